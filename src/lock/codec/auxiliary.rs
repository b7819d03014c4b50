//! Auxiliary objects as bytes: pages of long queues, published wait edges, commit records and external values. A user
//! cannot type their names.
//!
//! Each object begins with a line of its own and the name that it is stored under. All objects except values are lines
//! that end with a checksum, like a record. A value's bytes follow an empty line unchanged. An object that csalock
//! cannot read, or did not write in this format, counts as missing.

use std::fmt::Write as _;

use super::fields::{Fields, escape, unescape};
use super::{body, checksum, closed, read_party, read_waiter, write_party, write_waiter};
use crate::lock::commit_record::CommitRecord;
use crate::lock::handle::HandleHash;
use crate::lock::owner::Owner;
use crate::lock::page::Page;
use crate::lock::wait_edges::WaitEdges;

const FIRST_LINE_OF_PAGE: &str = "csalock-page 1\n";
const FIRST_LINE_OF_WAITS: &str = "csalock-waits 1\n";
const FIRST_LINE_OF_VALUE: &str = "csalock-value 1\n";
const FIRST_LINE_OF_DECISION: &str = "csalock-decision 1\n";

/// Returns true if these bytes are an auxiliary object and not a record.
pub fn is_auxiliary(bytes: &[u8]) -> bool {
    bytes.starts_with(b"csalock-")
}

/// Returns the bytes of a page that is stored under this name.
pub(crate) fn encode_page(name: &[u8], page: &Page) -> Vec<u8> {
    let mut text = internal(FIRST_LINE_OF_PAGE, name);
    if page.sealed {
        text.push_str("sealed yes\n");
    }
    page.waiters.iter().for_each(|waiter| write_waiter(&mut text, waiter));
    closed(text)
}

/// Returns the bytes of published wait edges that are stored under this name.
pub(crate) fn encode_waits(name: &[u8], waits: &WaitEdges) -> Vec<u8> {
    let mut text = internal(FIRST_LINE_OF_WAITS, name);
    for (name, proof) in &waits.waits {
        let _ = write!(text, "wait proof={proof} name=");
        escape(&mut text, name);
        text.push('\n');
    }
    closed(text)
}

/// Returns the bytes of a commit record that is stored under this name.
pub(crate) fn encode_decision(name: &[u8], decision: &CommitRecord) -> Vec<u8> {
    let mut text = internal(FIRST_LINE_OF_DECISION, name);
    if decision.committed {
        text.push_str("made yes\n");
    }
    for name in &decision.names {
        text.push_str("for ");
        escape(&mut text, name);
        text.push('\n');
    }
    closed(text)
}

/// Returns the bytes of an external value that is stored under this name: header lines, then the value itself.
pub(crate) fn encode_value(name: &[u8], writer: &Owner, bytes: &[u8]) -> Vec<u8> {
    [head_of_value(name, writer, checksum(bytes)).as_bytes(), bytes].concat()
}

fn head_of_value(name: &[u8], writer: &Owner, sum: u64) -> String {
    let mut text = internal(FIRST_LINE_OF_VALUE, name);
    text.push_str("writer ");
    write_party(&mut text, writer);
    let _ = write!(text, "sum {sum:016x}\n\n");
    text
}

fn internal(first_line: &str, name: &[u8]) -> String {
    let mut text = format!("{first_line}name ");
    escape(&mut text, name);
    text.push('\n');
    text
}

/// Returns the name that an auxiliary object is stored under.
pub(crate) fn name_of_internal(bytes: &[u8]) -> Option<Vec<u8>> {
    let second = bytes.split(|byte| *byte == b'\n').nth(1)?;
    unescape(std::str::from_utf8(second).ok()?.strip_prefix("name ")?)
}

/// Decodes the output of [`encode_page`]; returns `None` for any other bytes.
pub(crate) fn decode_page(bytes: &[u8]) -> Option<Page> {
    let mut page = Page::default();
    for line in body(bytes, FIRST_LINE_OF_PAGE).ok()?.lines() {
        match line.split_once(' ')? {
            ("name", _) => {}
            ("sealed", "yes") => page.sealed = true,
            ("waiter", rest) => page.waiters.push(read_waiter(&Fields::of(rest)?)?),
            _ => return None,
        }
    }
    (encode_page(&name_of_internal(bytes)?, &page) == bytes).then_some(page)
}

/// Decodes the output of [`encode_waits`]; returns `None` for any other bytes.
pub(crate) fn decode_waits(bytes: &[u8]) -> Option<WaitEdges> {
    let wait = |line: &str| {
        let fields = Fields::of(line.strip_prefix("wait ")?)?;
        Some((unescape(fields.get("name")?)?, HandleHash::parse(fields.get("proof")?)?))
    };
    let lines = body(bytes, FIRST_LINE_OF_WAITS).ok()?.lines().filter(|line| !line.starts_with("name "));
    let waits = WaitEdges { waits: lines.map(wait).collect::<Option<_>>()? };
    (encode_waits(&name_of_internal(bytes)?, &waits) == bytes).then_some(waits)
}

/// Decodes the output of [`encode_value`] into the writer and the value; returns `None` for any other bytes.
pub(crate) fn decode_value(bytes: &[u8]) -> Option<(Owner, Vec<u8>)> {
    let end = bytes.windows(2).position(|two| two == b"\n\n")?;
    let mut lines = std::str::from_utf8(&bytes[..end]).ok()?.strip_prefix(FIRST_LINE_OF_VALUE)?.lines().skip(1);
    let writer = read_party(&Fields::of(lines.next()?.strip_prefix("writer ")?)?)?;
    let sum = u64::from_str_radix(lines.next()?.strip_prefix("sum ")?, 16).ok()?;
    let (head, value) = bytes.split_at(end + 2);
    let is_ours = head == head_of_value(&name_of_internal(bytes)?, &writer, sum).as_bytes();
    (is_ours && sum == checksum(value)).then(|| (writer, value.to_vec()))
}

/// Decodes the output of [`encode_decision`]; returns `None` for any other bytes.
pub(crate) fn decode_decision(bytes: &[u8]) -> Option<CommitRecord> {
    let mut decision = CommitRecord { committed: false, names: Vec::new() };
    for line in body(bytes, FIRST_LINE_OF_DECISION).ok()?.lines() {
        match line.split_once(' ')? {
            ("name", _) => {}
            ("made", "yes") => decision.committed = true,
            ("for", name) => decision.names.push(unescape(name)?),
            _ => return None,
        }
    }
    (encode_decision(&name_of_internal(bytes)?, &decision) == bytes).then_some(decision)
}
