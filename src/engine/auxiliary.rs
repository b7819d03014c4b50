//! Writes of auxiliary objects: pages, wait edges, commit records and the bytes of external values.

use super::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{CommitResult, Version, WriteOptions};

impl Engine {
    /// Writes an auxiliary object by compare-and-swap, even if a reply is lost. Returns `None` if another process changed
    /// the object.
    pub(super) fn write_auxiliary(
        &self,
        key: &[u8],
        expect: Option<Version>,
        body: &[u8],
        options: WriteOptions,
    ) -> Result<Option<Version>> {
        let mut race = self.race(key);
        loop {
            if let CommitResult::Done(stored) = self.commit_beside(key, expect.as_ref(), Some(body), options)? {
                return Ok(Some(stored));
            }
            match self.store.read(key)? {
                // The store has our write, and only the reply was lost.
                Some(stored) if stored.body == body => return Ok(Some(stored.version)),
                // The conflict has no rival: a directory was not in its place.
                found if found.as_ref().map(|stored| stored.version) == expect => {
                    race.backoff()?;
                }
                _ => return Ok(None),
            }
        }
    }

    /// Writes an auxiliary object that no other process knows.
    /// Fails if another process has written an object under this key nevertheless.
    pub(super) fn create_auxiliary(&self, key: &[u8], body: &[u8], options: WriteOptions) -> Result<()> {
        let foreign = || {
            let what = format!("{} is an object of another process", self.store.describe(key));
            Error::new(ErrorKind::System, what, "try again")
        };
        self.write_auxiliary(key, None, body, options)?.map(drop).ok_or_else(foreign)
    }
}
