//! The version of a record: the number that a commit compares, and that becomes the fencing token of a grant.

use serde::{Deserialize, Serialize};

/// Version of a record. Different versions are never equal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Number that only grows under a name: the fencing token of the grants in this version.
    pub number: u64,
    /// Further data that a store needs to distinguish versions.
    pub mark: u64,
}
