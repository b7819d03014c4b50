//! A value that a lock guards.
//!
//! A record contains its name's value or refers to it, so a write, an acquire and a release replace the same record. A
//! write by the holder only, a read on acquire and a write on release are one commit each. Long values, and values that
//! only some users may read, are *external*. The store gets them first, under a name that is never reused, and they
//! never change; the record then names them. An external value without a record is from a dead process.
//!
//! **Versions** grow by one with each write. The first is the record's own version, which in any store exceeds all
//! earlier versions of this name. So no version recurs, even after a deletion of the value.

use serde::{Deserialize, Serialize};

use super::text;

pub const MOST_VALUE: usize = 1 << 20;

/// Maximum size in bytes of a value that is inline in the record.
const MOST_WITHIN: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// Version. `None` only in a record that is not stored yet; the version is then the one that the store assigns.
    pub version: Option<u64>,
    /// Fencing token of the grant that the writer had; if the writer had no grant, the same as `version`.
    pub token: Option<u64>,
    pub size: u64,
    /// Random number that distinguishes this write from any other.
    pub write_id: u64,
    /// File permission bits for readers. `None`: every user who may read the store may read the value.
    pub mode: Option<u32>,
    /// Bytes of the value; `None` if the value is external.
    #[serde(with = "text")]
    pub inline: Option<Vec<u8>>,
}

impl Value {
    pub fn new(bytes: &[u8], write_id: u64, mode: Option<u32>) -> Value {
        let inline = (bytes.len() <= MOST_WITHIN && mode.is_none()).then(|| bytes.to_vec());
        Value { version: None, token: None, size: bytes.len() as u64, write_id, mode, inline }
    }

    /// Store name of an external value. A user cannot type this name, because it contains a NUL byte.
    pub fn key(name: &[u8], write_id: u64) -> Vec<u8> {
        [name, b"\0value.", format!("{write_id:016x}").as_bytes()].concat()
    }

    /// Lock name and write id of the external value with this store name; `None` for other names.
    pub fn of_key(key: &[u8]) -> Option<(&[u8], u64)> {
        let nul = key.iter().position(|byte| *byte == 0)?;
        let write_id = std::str::from_utf8(key[nul..].strip_prefix(b"\0value.")?).ok()?;
        let (name, write_id) = (&key[..nul], u64::from_str_radix(write_id, 16).ok()?);
        (Value::key(name, write_id) == key).then_some((name, write_id))
    }
}
