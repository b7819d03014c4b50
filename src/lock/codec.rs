//! Records and other objects as lines of JSON, which a person can read with cat(1), safe against untrusted input.
//!
//! ```text
//! {"csalock":2,"sum":"0123456789abcdef","name":"nightly","holders":[{"proof":"6e34…","token":17,"mode":"exclusive", …
//! ```
//!
//! - The first field is the kind of object and the format number; csalock refuses other formats and never guesses.
//! - The second field is the beginning of the SHA-256 of all fields after it, so csalock detects a torn or edited object.
//! - An object has exactly one form. A reader encodes the decoded object again and refuses the line if it differs, for
//!   example by an unknown or repeated field, or by another order. If the checksum is right, another version of csalock
//!   wrote the line, which may be a live lock: it is foreign, and not damaged.
//! - Fields that are empty in most objects are left out if they are: SQLite keeps a row of up to 1002 bytes in one page.
//! - A line is printable ASCII ([`text`]), and no field contains a line break.
//!
//! Auxiliary objects as bytes: pages of long queues, published wait edges, commit records and external values. A
//! user cannot type their names.
//!
//! Each object is a line like a record; the bytes of a value follow its line unchanged. A damaged object counts as
//! missing. A foreign one is an error, except wait edges, which are hints.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use self::text::{escape, unescape};
use super::lifetime::{LeaseClock, MOST_SIGHTINGS};
use super::record::{Mode, Record};
use crate::error::{Error, Result};
use crate::lock::auxiliary::{CommitRecord, WaitEdges};
use crate::lock::owner::Owner;
use crate::lock::queue::Page;

pub(crate) mod text;

const FORMAT: u32 = 2;

const RECORD: &str = "csalock";

/// Maximum size of a record in bytes, enough for more than five thousand waiters.
pub(crate) const MOST_BYTES: usize = 4 << 20;

const MOST_PAGES: u64 = 10_000;

pub(crate) fn seal(kind: &str, name: &[u8], object: &impl Serialize) -> Vec<u8> {
    let mut line = beginning(kind).into_bytes();
    let sum = line.len()..line.len() + 16;
    line.extend_from_slice(b"0000000000000000\",");
    let sealed = line.len();
    line.extend_from_slice(name_field(name).as_bytes());
    let object_begins = line.len();
    serde_json::to_writer(&mut line, object).expect("data without maps always has a JSON text");
    // The fields of the object follow the name.
    line[object_begins] = b',';
    let checksum = checksum(&line[sealed..]);
    line[sum].copy_from_slice(format!("{checksum:016x}").as_bytes());
    line.push(b'\n');
    line
}

fn beginning(kind: &str) -> String {
    format!("{{\"{kind}\":{FORMAT},\"sum\":\"")
}

fn name_field(name: &[u8]) -> String {
    let json = serde_json::to_string(&escape(name));
    format!("\"name\":{}", json.expect("a text always has a JSON text"))
}

/// A writer that compares an object with its fields: what is written, after the opening brace, with what remains of them.
struct Remainder<'a> {
    fields: &'a [u8],
    has_brace: bool,
}

impl io::Write for Remainder<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = if std::mem::replace(&mut self.has_brace, true) { bytes } else { &bytes[1..] };
        self.fields = self.fields.strip_prefix(written).ok_or(io::ErrorKind::InvalidData)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns true if these fields after the checksum are those of the object in the form that [`seal`] writes.
fn is_sealed(sealed: &str, name: &[u8], object: &impl Serialize) -> bool {
    let Some(fields) = sealed.strip_prefix(&name_field(name)).and_then(|fields| fields.strip_prefix(',')) else {
        return false;
    };
    let mut remainder = Remainder { fields: fields.as_bytes(), has_brace: false };
    serde_json::to_writer(&mut remainder, object).is_ok() && remainder.fields.is_empty()
}

/// Decodes the output of [`seal`] into the name and the object. Returns the problem of any other line.
pub(crate) fn open<T: Serialize + DeserializeOwned>(kind: &str, line: &str) -> Result<(Vec<u8>, T)> {
    let Some(sealed) = line.strip_prefix(&beginning(kind)) else {
        return Err(unknown_beginning(kind, line));
    };
    let parts = sealed.strip_suffix('\n').and_then(|sealed| sealed.split_once("\","));
    let (sum, sealed) = parts.ok_or_else(|| damaged("it is cut short"))?;
    if sum != format!("{:016x}", checksum(sealed.as_bytes())) {
        return Err(damaged("its checksum is wrong"));
    }
    let object = serde_json::from_str(line).ok().and_then(|object| Some((name_in(line)?, object)));
    let is_ours = |(name, object): &(Vec<u8>, T)| is_sealed(sealed, name, object);
    object.filter(is_ours).ok_or_else(|| of_unknown_form(line))
}

/// Returns the problem of a line that does not begin like an object of this kind and format. Another format may have
/// another checksum, so its line is never called damaged.
fn unknown_beginning(kind: &str, line: &str) -> Error {
    // An object of format 1 began with the kind and the number as two words.
    let format = line.strip_prefix(&format!("{{\"{kind}\":")).or_else(|| line.strip_prefix(&format!("{kind} ")));
    let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).take(40).collect::<String>();
    match format.map(digits).filter(|digits| !digits.is_empty() && *digits != FORMAT.to_string()) {
        Some(format) => foreign(line, &format!("its format is {format}, this csalock knows {FORMAT}")),
        None if line.is_empty() => damaged("it is empty"),
        None => damaged(&format!("it does not begin with {{\"{kind}\":{FORMAT}")),
    }
}

fn damaged(wrong: &str) -> Error {
    Error::corrupt(format!("a lock record is unreadable: {wrong}"))
}

/// Returns the problem of an object with a right checksum that this version would not write.
fn of_unknown_form(line: &str) -> Error {
    foreign(line, "this csalock does not know its form")
}

/// Returns the problem of an object that another version wrote, with its first holders if it names them as this version
/// does.
fn foreign(line: &str, how: &str) -> Error {
    let fields: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    let holder = |grant: &serde_json::Value| {
        let owner = &grant["owner"];
        let pid: i32 = owner["processes"][0].as_str()?.split(':').next()?.parse().ok()?;
        Some(format!("; held by pid {pid} on {}", crate::name::escape(owner["host"].as_str()?.as_bytes())))
    };
    let grants = fields["holders"].as_array().into_iter().flatten();
    let holders: String = grants.filter_map(holder).take(3).collect();
    Error::of_other_version(format!("written by another version of csalock: {how}{holders}"))
}

/// Returns the name in a line, even if the rest of the line is damaged.
fn name_in(line: &str) -> Option<Vec<u8>> {
    let (_, name) = line.split_once("\"name\":")?;
    unescape(&serde_json::Deserializer::from_str(name).into_iter::<String>().next()?.ok()?)
}

/// Returns true if a field has the value that a missing field means.
pub(crate) fn is_default<T: Default + PartialEq>(field: &T) -> bool {
    *field == T::default()
}

/// Returns the first 64 bits of the SHA-256.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    Sha256::digest(bytes).iter().take(8).fold(0, |sum, byte| (sum << 8) | u64::from(*byte))
}

pub fn encode(record: &Record) -> Vec<u8> {
    seal(RECORD, &record.name, record.as_written().as_ref())
}

/// Decodes the output of [`encode`]. Grants made in this very record get `version`, its stored version, as their token.
/// Returns [`crate::error::ErrorKind::Corrupt`] with the problem for any other bytes.
pub fn decode(bytes: &[u8], version: u64) -> Result<Record> {
    if bytes.len() > MOST_BYTES {
        return Err(damaged(&format!("it has more than {MOST_BYTES} bytes")));
    }
    let line = std::str::from_utf8(bytes).map_err(|_| damaged("it is not text"))?;
    let (name, record) = open(RECORD, line)?;
    let mut record = Record { name, ..record };
    // A record without a name would be free.
    if record.name.is_empty() || !is_in_range(&record) || matches!(record.as_stored(), Cow::Owned(_)) {
        return Err(of_unknown_form(line));
    }
    if let Some(wrong) = broken_invariant(&record) {
        return Err(damaged(wrong));
    }
    add_tokens(&mut record, version);
    Ok(record)
}

/// Returns true if the numbers of a record have values that the rules can compute with.
fn is_in_range(record: &Record) -> bool {
    let pages = record.pages.is_none_or(|pages| {
        let count = pages.last.checked_sub(pages.first);
        count.is_some_and(|count| count < MOST_PAGES) && pages.last < u64::MAX >> 1
    });
    let value = record.value.as_ref().is_none_or(|value| {
        let fits = value.inline.as_ref().is_none_or(|bytes| bytes.len() as u64 == value.size);
        fits && value.version.is_none_or(|version| version < u64::MAX >> 1)
    });
    let sightings = record.sightings.iter().all(|seen| matches!(seen.lease.clock, LeaseClock::FileSystem(_)));
    record.slots != Some(0) && pages && value && sightings && record.sightings.len() <= MOST_SIGHTINGS
}

/// Returns the violated invariant, among those that the record alone reveals. csalock writes no such record, and a
/// reader cannot trust any conclusion from it.
pub(crate) fn broken_invariant(record: &Record) -> Option<&'static str> {
    let mut proofs = BTreeSet::new();
    let all = record.holders.iter().map(|grant| grant.proof).chain(record.waiters.iter().map(|waiter| waiter.proof));
    if !all.into_iter().all(|proof| proofs.insert(proof)) {
        return Some("a holder or waiter is there twice");
    }
    let [first, others @ ..] = record.holders.as_slice() else { return None };
    if others.iter().any(|grant| grant.mode != first.mode) {
        return Some("its holders exclude each other");
    }
    let is_claimed = record.holders.iter().any(|grant| grant.claim.is_some());
    if !others.is_empty() && (first.mode == Mode::Exclusive || is_claimed) {
        return Some("it has two exclusive holders");
    }
    let mut places = BTreeSet::new();
    let places = record.holders.iter().all(|grant| match grant.mode {
        Mode::Slot => record.slots.is_some_and(|slots| grant.slot < slots) && places.insert(grant.slot),
        Mode::Exclusive | Mode::Shared => grant.slot == 0,
    });
    (!places).then_some("a holder has a slot that it cannot have")
}

pub(crate) fn committed(record: Record, version: u64) -> Record {
    let shortened = match record.as_written() {
        Cow::Owned(shortened) => Some(shortened),
        Cow::Borrowed(_) => None,
    };
    let mut record = shortened.unwrap_or(record);
    add_tokens(&mut record, version);
    record
}

/// Sets the token of each grant, and the version and token of the value, that the record's `version` introduced.
fn add_tokens(record: &mut Record, version: u64) {
    record.holders.iter_mut().for_each(|grant| grant.token = grant.token.or(Some(version)));
    if let Some(value) = &mut record.value {
        value.version = value.version.or(Some(version));
        value.token = value.token.or(Some(version));
    }
}

/// An object that is not a record.
pub(crate) trait Auxiliary: Serialize + DeserializeOwned {
    const KIND: &'static str;
}

impl Auxiliary for Page {
    const KIND: &'static str = "csalock-page";
}

impl Auxiliary for WaitEdges {
    const KIND: &'static str = "csalock-waits";
}

impl Auxiliary for CommitRecord {
    const KIND: &'static str = "csalock-decision";
}

/// The line before the bytes of an external value.
#[derive(Serialize, Deserialize)]
struct ValueHead {
    writer: Owner,
    checksum: u64,
}

impl Auxiliary for ValueHead {
    const KIND: &'static str = "csalock-value";
}

pub fn is_auxiliary(bytes: &[u8]) -> bool {
    bytes.starts_with(b"{\"csalock-")
}

/// Returns the name that an auxiliary object is stored under, even if the rest of its line is damaged.
pub(crate) fn name_of_auxiliary(bytes: &[u8]) -> Option<Vec<u8>> {
    name_in(std::str::from_utf8(bytes.split(|byte| *byte == b'\n').next()?).ok()?)
}

pub(crate) fn encode_auxiliary<T: Auxiliary>(name: &[u8], object: &T) -> Vec<u8> {
    seal(T::KIND, name, object)
}

/// Decodes the output of [`encode_auxiliary`]; returns `None` for damaged bytes.
/// Fails if another version of csalock wrote the object.
pub(crate) fn decode_auxiliary<T: Auxiliary>(bytes: &[u8]) -> Result<Option<T>> {
    let Ok(line) = std::str::from_utf8(bytes) else { return Ok(None) };
    match open(T::KIND, line) {
        Err(error) if error.is_of_other_version() => Err(error),
        opened => Ok(opened.ok().map(|(_, object)| object)),
    }
}

/// Returns the bytes of an external value that is stored under this name: a line, then the value itself.
pub(crate) fn encode_value(name: &[u8], writer: &Owner, bytes: &[u8]) -> Vec<u8> {
    let head = ValueHead { writer: writer.clone(), checksum: checksum(bytes) };
    [&encode_auxiliary(name, &head)[..], bytes].concat()
}

/// Decodes the output of [`encode_value`] into the writer and the value; returns `None` for damaged bytes.
/// Fails if another version of csalock wrote the value.
pub(crate) fn decode_value(bytes: &[u8]) -> Result<Option<(Owner, Vec<u8>)>> {
    let (head, value) = bytes.split_at(bytes.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1));
    let head = decode_auxiliary::<ValueHead>(head)?.filter(|head| head.checksum == checksum(value));
    Ok(head.map(|head| (head.writer, value.to_vec())))
}

/// Returns the store name and the object that keep the bytes of a damaged record: a line, then the bytes. A user cannot
/// type the name, because it contains a NUL byte.
pub(crate) fn encode_damaged(name: &[u8], version: u64, bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let key = [name, b"\0damaged.", version.to_string().as_bytes()].concat();
    let head = seal("csalock-damaged", &key, &serde_json::json!({ "version": version }));
    (key, [&head, bytes].concat())
}

#[cfg(test)]
mod tests;
