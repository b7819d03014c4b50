//! The mark of a file that `csalock fence` replaces: the newest token, and the draft that contains the newest bytes.

use serde::{Deserialize, Serialize};

/// The mark of one file. [`crate::fence`] explains how it is used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceMark {
    /// Token of the newest write.
    pub token: u64,
    /// File name of the draft with the bytes of that write; empty without a write.
    pub draft: String,
}

impl FenceMark {
    /// Returns the store name of the mark of the file with this name. A user cannot type this name, because it contains a
    /// NUL byte.
    pub fn key(file: &[u8]) -> Vec<u8> {
        [file, b"\0fence"].concat()
    }
}
