//! Reads and writes of auxiliary objects: pages, wait edges, commit records, the bytes of external values, and the marks
//! of files that `csalock fence` replaces.

use super::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::{self, Auxiliary, FenceMark};
use crate::store::{CommitResult, Durability, Version, WriteOptions};

impl Engine {
    /// Returns the auxiliary object under this key and its version; a missing or unreadable object is empty.
    pub(super) fn auxiliary<T: Auxiliary + Default>(&self, key: &[u8]) -> Result<(Option<Version>, T)> {
        let Some(stored) = self.store.read(key)? else { return Ok((None, T::default())) };
        Ok((Some(stored.version), lock::decode_auxiliary(&stored.body).unwrap_or_default()))
    }

    /// Replaces the auxiliary object under this key, unless `change` returns `None`. Returns the resulting object; the
    /// store does not keep an empty one.
    pub(super) fn change_auxiliary<T: Auxiliary + Default + PartialEq>(
        &self,
        key: &[u8],
        change: &mut dyn FnMut(&T) -> Option<T>,
    ) -> Result<T> {
        let mut race = self.race(key);
        loop {
            let (version, found) = self.auxiliary(key)?;
            let Some(next) = change(&found) else { return Ok(found) };
            let body = (next != T::default()).then(|| lock::encode_auxiliary(key, &next));
            if version.is_none() && body.is_none() {
                return Ok(next);
            }
            match self.commit_beside(key, version.as_ref(), body.as_deref(), WriteOptions::default())? {
                CommitResult::Done(_) => return Ok(next),
                CommitResult::Conflict(_) => race.backoff()?,
            };
        }
    }

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
                // No other caller wrote: the commit failed because its directory was missing, so try again.
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

    /// Removes the auxiliary object under this name, if it exists.
    pub(super) fn remove_auxiliary(&self, key: &[u8], durability: Durability) -> Result<()> {
        let keep = WriteOptions { durability, mode: None };
        while let Some(version) = self.version(key)? {
            if let CommitResult::Done(_) = self.commit_beside(key, Some(&version), None, keep)? {
                break;
            }
        }
        Ok(())
    }
}

/// The marks of files that `csalock fence` replaces.
impl Engine {
    /// Returns the fence mark under this key, and its version. Without a mark, all fields are empty.
    /// Fails if the mark is unreadable: any token would pass otherwise.
    pub(crate) fn fence_mark(&self, key: &[u8]) -> Result<(Option<Version>, FenceMark)> {
        let Some(stored) = self.store.read(key)? else { return Ok((None, FenceMark::default())) };
        let unreadable = || {
            let what = format!("{}: the fence mark is unreadable", self.store.describe(key));
            Error::new(ErrorKind::Corrupt, what, "nothing was changed; remove it if the file is right")
        };
        let mark = lock::decode_auxiliary(&stored.body).ok_or_else(unreadable)?;
        Ok((Some(stored.version), mark))
    }

    /// Replaces the fence mark in this version. The new mark is on disk when the call returns its version. Returns `None`
    /// after a conflict; the mark may have been written all the same, if the reply was lost.
    pub(crate) fn write_fence_mark(
        &self,
        key: &[u8],
        expect: Option<Version>,
        mark: &FenceMark,
    ) -> Result<Option<Version>> {
        let body = lock::encode_auxiliary(key, mark);
        let options = WriteOptions { durability: Durability::Durable, mode: None };
        Ok(match self.commit_beside(key, expect.as_ref(), Some(&body), options)? {
            CommitResult::Done(version) => Some(version),
            CommitResult::Conflict(_) => None,
        })
    }
}
