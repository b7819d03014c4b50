//! Properties of records and auxiliary objects: decoded bytes encode to the same bytes, and encoded values decode to
//! the same values.

use super::paper::{is_harmless, show};
use super::source::Source;
use crate::lock::codec::checksum;
use crate::lock::{self, CommitRecord, Handle, HandleHash, MOST_BYTES, Page, Record, WaitEdges};

/// Version for records that have no version of their own.
const VERSION: u64 = 4711;

/// Adds the first line and the correct checksum, as an attacker would.
fn sealed(first_line: &str, lines: &[u8]) -> Vec<u8> {
    let mut bytes = [first_line.as_bytes(), lines].concat();
    if bytes.last() != Some(&b'\n') {
        bytes.push(b'\n');
    }
    let sum = format!("sum {:016x}\n", checksum(&bytes));
    [bytes, sum.into_bytes()].concat()
}

/// Decodes any bytes as a record, without and with a correct checksum.
pub(super) fn bytes(bytes: &[u8]) {
    for bytes in [bytes.to_vec(), sealed("csalock 1\n", bytes)] {
        match lock::decode(&bytes, VERSION) {
            Ok(record) => {
                assert_eq!(lock::encode(&as_it_stands(&record, &bytes)), bytes, "it reads as another record's bytes");
                assert!(!record.name.is_empty(), "a record without a name would be free");
                show(record);
            }
            Err(error) => assert!(is_harmless(&error.to_string()), "{error:?}"),
        }
    }
    handle(bytes);
}

/// Returns the record without the numbers that come from its version and not from the bytes.
fn as_it_stands(record: &Record, bytes: &[u8]) -> Record {
    let mut record = record.clone();
    let text = String::from_utf8_lossy(bytes).into_owned();
    let holders = text.lines().filter(|line| line.starts_with("holder "));
    for (grant, line) in record.holders.iter_mut().zip(holders) {
        grant.token = grant.token.filter(|_| line.contains(" token="));
    }
    if let (Some(value), Some(line)) = (&mut record.value, text.lines().find(|line| line.starts_with("value "))) {
        value.version = value.version.filter(|_| line.contains(" version="));
        value.token = value.token.filter(|_| line.contains(" token="));
    }
    record
}

/// Encodes and decodes any record.
pub(super) fn there_and_back(bytes: &[u8]) {
    let record = Source(bytes).record();
    let encoded = lock::encode(&record);
    assert!(encoded.len() <= MOST_BYTES);
    assert_eq!(lock::decode(&encoded, VERSION), Ok(record.clone()));
    show(record);
}

/// Decodes any bytes as auxiliary objects, without and with a correct checksum; encodes and decodes any such object.
pub(super) fn beside(bytes: &[u8]) {
    let key = Page::key(b"a b", 7);
    for first_line in ["csalock-page 1\n", "csalock-waits 1\n", "csalock-decision 1\n", "csalock-value 1\n"] {
        for bytes in [bytes.to_vec(), sealed(first_line, bytes)] {
            // Unreadable bytes count as missing, so their name misleads no reader.
            let name = lock::name_of_internal(&bytes).unwrap_or_default();
            let written = |written: Vec<u8>| assert_eq!(written, bytes, "it reads as other bytes");
            lock::decode_page(&bytes).into_iter().for_each(|page| written(lock::encode_page(&name, &page)));
            lock::decode_waits(&bytes).into_iter().for_each(|waits| written(lock::encode_waits(&name, &waits)));
            lock::decode_decision(&bytes).into_iter().for_each(|made| written(lock::encode_decision(&name, &made)));
            if let Some((writer, value)) = lock::decode_value(&bytes) {
                written(lock::encode_value(&name, &writer, &value));
            }
            let _ = (Page::of_key(&name), CommitRecord::of_key(&name), lock::Value::of_key(&name));
        }
    }
    let mut source = Source(bytes);
    let page = Page { sealed: source.flag(), waiters: source.several(Source::waiter) };
    assert_eq!(lock::decode_page(&lock::encode_page(&key, &page)), Some(page));
    let waits = WaitEdges { waits: source.several(Source::noted) };
    assert_eq!(lock::decode_waits(&lock::encode_waits(&key, &waits)), Some(waits));
    let decision = CommitRecord { committed: source.flag(), names: source.names() };
    assert_eq!(lock::decode_decision(&lock::encode_decision(&key, &decision)), Some(decision));
    let writer = source.owner();
    let encoded = lock::encode_value(&key, &writer, bytes);
    assert_eq!(lock::decode_value(&encoded), Some((writer, bytes.to_vec())));
    assert_eq!(lock::name_of_internal(&encoded), Some(key));
}

/// Checks that a handle is 32 hex digits, a handle hash 64 lower-case hex digits, and that nothing else parses.
fn handle(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for text in [text, text.trim()] {
        if let Some(handle) = Handle::parse(text) {
            assert_eq!(handle.to_string(), text.to_ascii_lowercase());
        }
        if let Some(proof) = HandleHash::parse(text) {
            assert_eq!(proof.to_string(), text);
        }
    }
}
