//! Auxiliary objects as bytes: pages of long queues, published wait edges, commit records, fence marks and external
//! values. A user cannot type their names.
//!
//! Each object is a line like a record; the bytes of a value follow its line unchanged. An object that csalock cannot
//! read, or did not write in this format, counts as missing, except a fence mark.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{checksum, name_in, open, seal};
use crate::lock::auxiliary::CommitRecord;
use crate::lock::auxiliary::FenceMark;
use crate::lock::auxiliary::WaitEdges;
use crate::lock::owner::Owner;
use crate::lock::page::Page;

/// An object that is not a record.
pub(crate) trait Auxiliary: Serialize + DeserializeOwned {
    /// Kind of object ([`seal`]).
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

impl Auxiliary for FenceMark {
    const KIND: &'static str = "csalock-fence";
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

/// Returns true if these bytes are an auxiliary object and not a record.
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

/// Decodes the output of [`encode_auxiliary`]; returns `None` for any other bytes.
pub(crate) fn decode_auxiliary<T: Auxiliary>(bytes: &[u8]) -> Option<T> {
    open(T::KIND, std::str::from_utf8(bytes).ok()?).ok().map(|(_, object)| object)
}

/// Returns the bytes of an external value that is stored under this name: a line, then the value itself.
pub(crate) fn encode_value(name: &[u8], writer: &Owner, bytes: &[u8]) -> Vec<u8> {
    let head = ValueHead { writer: writer.clone(), checksum: checksum(bytes) };
    [&encode_auxiliary(name, &head)[..], bytes].concat()
}

/// Decodes the output of [`encode_value`] into the writer and the value; returns `None` for any other bytes.
pub(crate) fn decode_value(bytes: &[u8]) -> Option<(Owner, Vec<u8>)> {
    let (head, value) = bytes.split_at(bytes.iter().position(|byte| *byte == b'\n')? + 1);
    let head: ValueHead = decode_auxiliary(head)?;
    (head.checksum == checksum(value)).then(|| (head.writer, value.to_vec()))
}
