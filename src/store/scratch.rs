//! Where a store is tried out that is not there yet, so that looking does not make it: under a name of its own beside
//! the place where it will be, or inside a directory that waits, empty, to become a store. Nobody else can be using it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::path_checks::first_that_exists;
use super::{Layout, Location};

/// A store to try things out in, removed with all that belongs to it when this is dropped.
pub struct Scratch {
    /// Where it is.
    pub location: Location,
    paths: Vec<PathBuf>,
}

impl Scratch {
    /// For a store that was never used; `None` for one that was: that one is itself the place to try. `mark` is what
    /// nobody else can guess.
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

/// The uppermost part of the path that is not there.
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
