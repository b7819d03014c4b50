//! Records and auxiliary objects as [lines](super::line).
//!
//! Auxiliary objects are pages of long queues, published wait edges, commit records and external values. A user cannot
//! type their names. The bytes of a value follow its line unchanged. A damaged object counts as missing. A foreign one
//! is an error, except wait edges, which are hints.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::line::{checksum, damaged, name_in, of_unknown_form, open, seal};
use super::{CommitRecord, LeaseClock, MOST_SIGHTINGS, Mode, Owner, Page, Record, WaitEdges};
use crate::error::Result;

const RECORD: &str = "csalock";

/// Maximum size of a record in bytes, enough for more than five thousand waiters.
pub const MOST_BYTES: usize = 4 << 20;

const MOST_PAGES: u64 = 10_000;

pub fn encode(record: &Record) -> Vec<u8> {
    seal(RECORD, &record.name, record.as_written().as_ref())
}

/// Decodes the output of [`encode`]. Grants made in this very record get `version`, its stored version, as their token.
/// Any other bytes are an error of the kind [`crate::error::ErrorKind::Corrupt`], with the problem.
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

/// False if the rules cannot compute with a number in the record.
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

/// Violated invariant that the record alone reveals. csalock writes no such record, so a reader cannot trust it.
pub fn broken_invariant(record: &Record) -> Option<&'static str> {
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

pub fn committed(record: &Record, version: u64) -> Record {
    let mut record = record.as_written().into_owned();
    add_tokens(&mut record, version);
    record
}

/// Grants and values that `version` introduced have it as their token, values also as their version.
fn add_tokens(record: &mut Record, version: u64) {
    record.holders.iter_mut().for_each(|grant| grant.token = grant.token.or(Some(version)));
    if let Some(value) = &mut record.value {
        value.version = value.version.or(Some(version));
        value.token = value.token.or(Some(version));
    }
}

/// An object that is not a record.
pub trait Auxiliary: Serialize + DeserializeOwned {
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

/// Line before the bytes of an external value.
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

/// Store name of an auxiliary object, even if the rest of its line is damaged.
pub fn name_of_auxiliary(bytes: &[u8]) -> Option<Vec<u8>> {
    name_in(std::str::from_utf8(bytes.split(|byte| *byte == b'\n').next()?).ok()?)
}

pub fn encode_auxiliary<T: Auxiliary>(name: &[u8], object: &T) -> Vec<u8> {
    seal(T::KIND, name, object)
}

/// Decodes the output of [`encode_auxiliary`]; returns `None` for damaged bytes.
/// Fails if another version of csalock wrote the object.
pub fn decode_auxiliary<T: Auxiliary>(bytes: &[u8]) -> Result<Option<T>> {
    let Ok(line) = std::str::from_utf8(bytes) else { return Ok(None) };
    match open(T::KIND, line) {
        Err(error) if error.is_of_other_version() => Err(error),
        opened => Ok(opened.ok().map(|(_, object)| object)),
    }
}

/// An external value is a line, then the value itself.
pub fn encode_value(name: &[u8], writer: &Owner, bytes: &[u8]) -> Vec<u8> {
    let head = ValueHead { writer: writer.clone(), checksum: checksum(bytes) };
    [&encode_auxiliary(name, &head)[..], bytes].concat()
}

/// Writer and value in the output of [`encode_value`]; `None` for damaged bytes. Fails if another version wrote them.
pub fn decode_value(bytes: &[u8]) -> Result<Option<(Owner, Vec<u8>)>> {
    let (head, value) = bytes.split_at(bytes.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1));
    let head = decode_auxiliary::<ValueHead>(head)?.filter(|head| head.checksum == checksum(value));
    Ok(head.map(|head| (head.writer, value.to_vec())))
}

/// Returns the store name and the object that keep the bytes of a damaged record: a line, then the bytes. A user cannot
/// type the name, because it contains a NUL byte.
pub fn encode_damaged(name: &[u8], version: u64, bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let key = [name, b"\0damaged.", version.to_string().as_bytes()].concat();
    let head = seal("csalock-damaged", &key, &serde_json::json!({ "version": version }));
    (key, [&head, bytes].concat())
}

#[cfg(test)]
mod tests;
