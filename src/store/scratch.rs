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
    /// Returns a scratch store in the nearest existing directory of a store that was never used. Returns `None` for a
    /// used store, which is tested itself. `mark` must be unguessable.
    ///
    /// # Errors
    ///
    /// Returns an error if the directory cannot be made.
    pub fn of(location: &Location, mark: &str) -> Result<Option<Scratch>> {
        let (path, was_used) = match location {
            Location::Directory { path, layout: Layout::Beside, .. } => (path, path.exists()),
            Location::Directory { path, .. } => (path, path.join(".work").exists()),
            Location::Sqlite { path } => (path, std::fs::symlink_metadata(path).is_ok_and(|found| found.len() > 0)),
            Location::Etcd(_) | Location::Postgres(_) | Location::Ssh(_) => return Ok(None),
        };
        let Some(parent) = path.ancestors().find(|path| path.is_dir()).filter(|_| !was_used) else { return Ok(None) };
        let directory = parent.join(format!(".doctor-{mark}"));
        mkdir(&directory, Mode::S_IRWXU).map_err(|errno| Error::os(errno, "create", &directory))?;
        let mut location = location.clone();
        match &mut location {
            Location::Directory { path, .. } | Location::Sqlite { path } => *path = directory.join("store"),
            Location::Etcd(_) | Location::Postgres(_) | Location::Ssh(_) => {}
        }
        Ok(Some(Scratch { location, directory }))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
