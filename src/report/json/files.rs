//! The JSON documents of `csalock fence`.

use serde::Serialize;

use super::text;

/// The output of `fence --json`.
#[derive(Debug, Serialize)]
pub struct FenceJson {
    file: String,
    token: u64,
    /// The newest token before this write, if there was one.
    before: Option<u64>,
    bytes: u64,
}

/// The output of `fence --show --json`.
#[derive(Debug, Serialize)]
pub struct NewestJson {
    file: String,
    token: u64,
    /// False if the next writer completes the write with this token.
    complete: bool,
}

impl FenceJson {
    /// Returns the document for a file that was replaced.
    pub fn new(file: &[u8], token: u64, before: Option<u64>, bytes: u64) -> FenceJson {
        FenceJson { file: text(file), token, before, bytes }
    }
}

impl NewestJson {
    /// Returns the document for the newest token of a file.
    pub fn new(file: &[u8], token: u64, complete: bool) -> NewestJson {
        NewestJson { file: text(file), token, complete }
    }
}
