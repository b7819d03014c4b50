//! Reads and commits of the marks of files that `csalock fence` replaces.

use super::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::{self, FenceMark};
use crate::store::{Durability, Version, WriteOptions};

/// Returns the new mark for a version and its mark, or `None` to leave it.
type FenceChange<'a> = dyn FnMut(Option<Version>, &FenceMark) -> Result<Option<FenceMark>> + 'a;

impl Engine {
    /// Returns the mark of the file with this name, and its version. Without a mark, all fields are empty.
    /// Fails if the mark is unreadable: any token would pass otherwise.
    pub fn fence_mark(&self, file: &[u8]) -> Result<(Option<Version>, FenceMark)> {
        let key = FenceMark::key(file);
        let Some(stored) = self.store.read(&key)? else { return Ok((None, FenceMark::default())) };
        let unreadable = || {
            let what = format!("{}: the fence mark is unreadable", self.store.describe(&key));
            Error::new(ErrorKind::Corrupt, what, "nothing was changed; remove it if the file is right")
        };
        let mark = lock::decode_auxiliary(&stored.body).ok_or_else(unreadable)?;
        Ok((Some(stored.version), mark))
    }

    /// Replaces the mark of the file with this name by what `change` makes of its version and itself, and tries again if
    /// another process was faster. The new mark is on the disk when the call returns its version. Returns `None` if
    /// `change` does.
    pub fn change_fence_mark(&self, file: &[u8], change: &mut FenceChange<'_>) -> Result<Option<Version>> {
        let key = FenceMark::key(file);
        let options = WriteOptions { durability: Durability::Durable, mode: None };
        let mut race = self.race(&key);
        loop {
            let (version, mark) = self.fence_mark(file)?;
            let Some(next) = change(version, &mark)? else { return Ok(None) };
            let body = lock::encode_auxiliary(&key, &next);
            if let Some(committed) = self.write_auxiliary(&key, version, &body, options)? {
                return Ok(Some(committed));
            }
            race.backoff()?;
        }
    }
}
