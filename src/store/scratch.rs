//! Scratch store, for tests of a location whose store does not exist yet. A real store cannot be removed safely after
//! the test: another process may have started to use it.

use std::path::PathBuf;

use nix::sys::stat::Mode;
use nix::unistd::mkdir;

use super::Location;
use crate::error::{Error, Result};

/// Temporary store in a directory of its own, which is removed when this is dropped.
pub struct Scratch {
    pub location: Location,
    directory: PathBuf,
}

impl Scratch {
    /// Returns a scratch store in the nearest existing directory of a store that was never used. Returns `None` for a
    /// used store, which is tested itself. `mark` must be unguessable.
    pub fn of(location: &Location, mark: &str) -> Result<Option<Scratch>> {
        let Some(path) = location.path().filter(|_| !location.was_used()) else { return Ok(None) };
        let Some(parent) = path.ancestors().find(|path| path.is_dir()) else { return Ok(None) };
        let directory = parent.join(format!(".doctor-{mark}"));
        mkdir(&directory, Mode::S_IRWXU).map_err(|errno| Error::os(errno, "create", &directory))?;
        Ok(Some(Scratch { location: location.moved_to(directory.join("store")), directory }))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
