//! Several names for good, all of them or none, also for somebody who is killed while he says so.
//!
//! Who takes several names gets each grant *unconfirmed*: it ends with him. When he has all, he decides once for all of them:
//!
//! 1. he writes down that he is about to, under a name of its own that the grants' proof leads to;
//! 2. he swaps that for *made*: from this step on all the grants stand;
//! 3. he confirms them one by one, and takes the decision away.
//!
//! To give up several claims at once it is done the other way round: a decision that they stand is made first, then each
//! claim is made to depend on it, and then one step takes it away.
//!
//! Whoever meets an unconfirmed grant of somebody dead asks for the decision. One that is not made is removed first, so
//! that no step of the dead that is still on its way to an NFS server can make it; then there is none, and the grant is over.
//! If it is made, the grant stands, and is confirmed by whoever writes that record next.

use super::handle::HandleHash;

/// What somebody who takes several names has decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitRecord {
    /// Whether their grants stand.
    pub committed: bool,
    /// The names.
    pub names: Vec<Vec<u8>>,
}

impl CommitRecord {
    /// The name that it is stored under: no name that anybody could type.
    pub fn key(proof: &HandleHash) -> Vec<u8> {
        [proof.to_string().as_bytes(), b"\0decision"].concat()
    }

    /// Whose decision is stored under this name, if one is.
    pub fn of_key(key: &[u8]) -> Option<HandleHash> {
        HandleHash::parse(std::str::from_utf8(key.strip_suffix(b"\0decision")?).ok()?)
    }
}
