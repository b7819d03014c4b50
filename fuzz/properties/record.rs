//! Properties of records and auxiliary objects: decoded bytes of the newest format encode to the same bytes, and encoded
//! values decode to the same values.

use super::paper::{is_harmless, show};
use super::source::Source;
use lock::line::{FORMAT, checksum};
use lock::{self, Auxiliary, CommitRecord, Handle, HandleHash, MOST_BYTES, Page, Record, WaitEdges};

/// Version for records that have no version of their own.
const VERSION: u64 = 4711;

/// Adds the beginning of a line and the correct checksum, as an attacker would.
pub(super) fn sealed(kind: &str, fields: &[u8]) -> Vec<u8> {
    [format!("{{\"{kind}\":{FORMAT},\"sum\":\"{:016x}\",", checksum(fields)).as_bytes(), fields, b"\n"].concat()
}

/// False for bytes that are not written as they are read: those of an older format, or with fields that a reader ignores.
fn is_newest(bytes: &[u8]) -> bool {
    let has = |part: &str| bytes.windows(part.len()).any(|window| window == part.as_bytes());
    has(&format!("\":{FORMAT},\"sum\":")) && !has(",\"optional\":")
}

/// Decodes any bytes as a record, without and with a correct checksum.
pub(super) fn bytes(bytes: &[u8]) {
    for bytes in [bytes.to_vec(), sealed("csalock", bytes)] {
        match lock::decode(&bytes, VERSION) {
            Ok(record) => {
                // Earlier versions wrote the commands of ended grants.
                let is_earlier = lock::committed(&record, VERSION) != record;
                let is_same = lock::encode(&as_it_stands(&record, &bytes)) == bytes || !is_newest(&bytes);
                assert!(is_same || is_earlier, "it reads as another record's bytes");
                assert!(!record.name.is_empty(), "a record without a name would be free");
                show(record);
            }
            Err(error) => assert!(is_harmless(&error.to_string()), "{error:?}"),
        }
    }
    handle(bytes);
}

/// Without the numbers that come from its version and not from the bytes.
fn as_it_stands(record: &Record, bytes: &[u8]) -> Record {
    let mut record = record.clone();
    let json: serde_json::Value = serde_json::from_slice(bytes).expect("a record is JSON");
    let stored = |object: &serde_json::Value, field: &str| object[field].as_u64();
    for (grant, entry) in record.holders.iter_mut().zip(json["holders"].as_array().expect("the holders are a list")) {
        grant.token = stored(entry, "token");
    }
    if let Some(value) = &mut record.value {
        (value.version, value.token) = (stored(&json["value"], "version"), stored(&json["value"], "token"));
    }
    record
}

pub(super) fn there_and_back(bytes: &[u8]) {
    let record = Source(bytes).record();
    let encoded = lock::encode(&record);
    assert!(encoded.len() <= MOST_BYTES);
    assert_eq!(lock::decode(&encoded, VERSION), Ok(lock::committed(&record, VERSION)));
    show(record);
}

/// Decodes any bytes as auxiliary objects, without and with a correct checksum; encodes and decodes any such object.
pub(super) fn beside(bytes: &[u8]) {
    let key = Page::key(b"a b", 7);
    for kind in ["csalock-page", "csalock-waits", "csalock-decision", "csalock-value"] {
        for bytes in [bytes.to_vec(), sealed(kind, bytes)] {
            // Unreadable bytes count as missing, so their name misleads no reader.
            let name = lock::name_of_auxiliary(&bytes).unwrap_or_default();
            is_written_so::<Page>(&name, &bytes);
            is_written_so::<WaitEdges>(&name, &bytes);
            is_written_so::<CommitRecord>(&name, &bytes);
            if let Ok(Some((writer, value))) = lock::decode_value(&bytes) {
                let written = lock::encode_value(&name, &writer, &value);
                assert!(written == bytes || !is_newest(&bytes), "it reads as other bytes");
            }
            let _ = (Page::of_key(&name), CommitRecord::of_key(&name), lock::Value::of_key(&name));
        }
    }
    let mut source = Source(bytes);
    reads_back(&key, Page { sealed: source.flag(), waiters: source.several(Source::waiter) });
    reads_back(&key, WaitEdges { waits: source.several(Source::noted) });
    reads_back(&key, CommitRecord { committed: source.flag(), names: source.names() });
    let writer = source.owner();
    let encoded = lock::encode_value(&key, &writer, bytes);
    assert_eq!(lock::decode_value(&encoded), Ok(Some((writer, bytes.to_vec()))));
    assert_eq!(lock::name_of_auxiliary(&encoded), Some(key));
}

fn is_written_so<T: Auxiliary>(name: &[u8], bytes: &[u8]) {
    if let Ok(Some(object)) = lock::decode_auxiliary::<T>(bytes) {
        let written = lock::encode_auxiliary(name, &object);
        assert!(written == bytes || !is_newest(bytes), "it reads as other bytes");
    }
}

fn reads_back<T: Auxiliary + PartialEq + std::fmt::Debug>(name: &[u8], object: T) {
    assert_eq!(lock::decode_auxiliary(&lock::encode_auxiliary(name, &object)), Ok(Some(object)));
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
