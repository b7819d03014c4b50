//! Scratch store, for tests of a location whose store does not exist yet. A real store cannot be removed safely after
//! the test: another process may have started to use it.

use std::path::PathBuf;

use nix::sys::stat::Mode;
use nix::unistd::mkdir;

use super::{Layout, Location};
use crate::error::{Error, Result};

/// Temporary store in a directory of its own, which is removed when this is dropped.
pub struct Scratch {
    /// Location of the store.
    pub location: Location,
    directory: PathBuf,
}

impl Scratch {
    /// Creates a scratch store in the nearest existing directory of a store that was never used. Returns `None` for a
    /// used store, which is tested itself. The `number` must be unique.
    pub fn of(location: &Location, number: u64) -> Result<Option<Scratch>> {
        let mut location = location.clone();
        let was_used = match &location {
            Location::Directory { path, layout: Layout::Beside, .. } => path.exists(),
            Location::Directory { path, .. } => path.join(".work").exists(),
            Location::Sqlite { path } => std::fs::symlink_metadata(path).is_ok_and(|found| found.len() > 0),
            Location::Etcd(_) | Location::Postgres(_) | Location::Ssh(_) => return Ok(None),
        };
        let (Location::Directory { path, .. } | Location::Sqlite { path }) = &mut location else { return Ok(None) };
        let Some(parent) = path.ancestors().find(|path| path.is_dir()).filter(|_| !was_used) else { return Ok(None) };
        let directory = parent.join(format!(".doctor-{number:016x}"));
        mkdir(&directory, Mode::S_IRWXU).map_err(|errno| Error::os(errno, "create", &directory))?;
        *path = directory.join("store");
        Ok(Some(Scratch { location, directory }))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
