//! Two-phase commit of several names: the caller gets all of them or none, even if it is killed in between.
//!
//! A caller that acquires several names gets *provisional* grants, which end with it. It then commits them together:
//!
//! 1. The caller writes an uncommitted commit record, under a store name derived from the grants' handle hash.
//! 2. The caller replaces that record by a *committed* one; from this step on all the grants are valid.
//! 3. The caller confirms the grants one by one and removes the commit record.
//!
//! A release of several claims reverses this. The caller writes a committed record, makes each claim depend on it, and
//! removes it in one step.
//!
//! A process that finds a provisional grant of a dead caller reads the commit record. It first removes an uncommitted
//! one, so that a late NFS request of the dead caller cannot commit it; the grant is then over. If the record is
//! committed, the grant is valid and the next writer confirms it.

use serde::{Deserialize, Serialize};

use super::codec::text;
use super::handle::HandleHash;

/// Commit record of a caller that acquires several names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitRecord {
    /// True if the grants are valid.
    pub committed: bool,
    #[serde(with = "text")]
    pub names: Vec<Vec<u8>>,
}

impl CommitRecord {
    /// Returns the store name of a commit record. A user cannot type this name, because it contains a NUL byte.
    pub fn key(proof: &HandleHash) -> Vec<u8> {
        [proof.to_string().as_bytes(), b"\0decision"].concat()
    }

    /// Returns the handle hash of the commit record with this store name, or `None` for other names.
    pub fn of_key(key: &[u8]) -> Option<HandleHash> {
        HandleHash::parse(std::str::from_utf8(key.strip_suffix(b"\0decision")?).ok()?)
    }
}
