//! Scratch store, for tests of a location without creating its store. It has its own name next to the location, or is
//! in an empty directory that is to become a store. Only this process can be using it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::path_checks::first_that_exists;
use super::{Layout, Location};

/// Temporary store, which is removed with all its files when this is dropped.
pub struct Scratch {
    /// Location of the store.
    pub location: Location,
    paths: Vec<PathBuf>,
}

impl Scratch {
    /// Returns a scratch store for a store that was never used; `None` for a used store, which is itself the place to
    /// try. `mark` must be unguessable.
    pub fn of(location: &Location, mark: &str) -> Option<Scratch> {
        match location {
            Location::Directory { path, layout, shared } => {
                let was_used = if *layout == Layout::Beside { path.exists() } else { path.join(".work").exists() };
                let inside = path.is_dir().then(|| path.join(format!(".doctor-{mark}")));
                let path = inside.or_else(|| first_missing(path).map(|missing| beside(missing, mark)))?;
                let layout = if *layout == Layout::Beside { Layout::Beside } else { Layout::Own };
                let location = Location::Directory { path: path.clone(), layout, shared: *shared };
                (!was_used).then(|| Scratch { location, paths: vec![path] })
            }
            Location::Sqlite { path } => {
                let was_used = std::fs::symlink_metadata(path).is_ok_and(|found| found.len() > 0);
                let path = beside(path, mark);
                let belongs = |end: &str| {
                    let mut name = path.clone().into_os_string();
                    name.push(end);
                    PathBuf::from(name)
                };
                let paths = ["", "-journal", "-waits", "-history", "-history.1"].map(belongs).to_vec();
                (!was_used).then(|| Scratch { location: Location::Sqlite { path: path.clone() }, paths })
            }
            Location::Etcd(_) => None,
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for path in &self.paths {
            let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        }
    }
}

/// Returns the uppermost missing ancestor of the path.
fn first_missing(path: &Path) -> Option<&Path> {
    let there = first_that_exists(path)?;
    path.ancestors().take_while(|path| *path != there).last()
}

fn beside(path: &Path, mark: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".doctor-{mark}"));
    path.with_file_name(name)
}
