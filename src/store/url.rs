//! Store URLs: `dir:PATH`, `sqlite:PATH`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::name::{absolute, shown};

/// The name of the store beside the files that it locks.
const BESIDE: &str = ".csalock";

/// Where a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A directory of records.
    Directory {
        /// Its absolute path.
        path: PathBuf,
        /// What it is there for.
        layout: Layout,
    },
    /// One SQLite database.
    Sqlite {
        /// Its absolute path.
        path: PathBuf,
    },
}

/// What a directory of records is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// A store of its own, that stays when it is empty and remembers the highest token.
    Own,
    /// A default store: as `Own`, and the directories above it are made when they are missing.
    Default,
    /// `.csalock` beside the files that it locks: made with the mode and group of their directory, and gone with its
    /// last record.
    Beside,
}

impl Location {
    /// The store beside the files in this directory.
    pub fn beside(directory: &Path) -> Location {
        Location::Directory { path: directory.join(BESIDE), layout: Layout::Beside }
    }

    /// Reads a store URL; a plain path with a slash in it is a directory's. Relative paths start at `current`.
    ///
    /// # Errors
    ///
    /// A usage error that names the URL and the forms there are.
    pub fn parse(url: &OsStr, current: &Path) -> Result<Location> {
        let bytes = url.as_bytes();
        let wrong = |what: &str| {
            let url = shown(bytes);
            Error::new(Exit::Usage, format!("store {url}: {what}"), "say dir:PATH or sqlite:PATH")
        };
        let (scheme, path) = match bytes.iter().position(|byte| *byte == b':') {
            Some(colon) if !bytes[..colon].contains(&b'/') => (&bytes[..colon], &bytes[colon + 1..]),
            _ if bytes.contains(&b'/') => (&b"dir"[..], bytes),
            _ => return Err(wrong("no store has such a URL")),
        };
        if path.is_empty() {
            return Err(wrong("its path is missing"));
        }
        if path.contains(&0) {
            return Err(wrong("a path cannot contain NUL"));
        }
        let path = absolute(OsStr::from_bytes(path), current)?;
        match scheme {
            b"dir" if path.ends_with(BESIDE) => Ok(Location::Directory { path, layout: Layout::Beside }),
            b"dir" => Ok(Location::Directory { path, layout: Layout::Own }),
            b"sqlite" => Ok(Location::Sqlite { path }),
            b"etcd" | b"etcds" => Err(wrong("this csalock has no etcd store yet")),
            _ => Err(wrong("no store has such a URL")),
        }
    }

    /// The URL that opens this location again.
    pub fn url(&self) -> OsString {
        let (scheme, path) = match self {
            Location::Directory { path, .. } => ("dir:", path),
            Location::Sqlite { path } => ("sqlite:", path),
        };
        OsString::from_vec([scheme.as_bytes(), path.as_os_str().as_bytes()].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Location> {
        Location::parse(OsStr::new(url), Path::new("/here"))
    }

    #[test]
    fn every_form_and_its_way_back() {
        let directory = |path: &str| Location::Directory { path: path.into(), layout: Layout::Own };
        assert_eq!(parse("dir:/a b"), Ok(directory("/a b")));
        assert_eq!(parse("dir:x"), Ok(directory("/here/x")));
        assert_eq!(parse("./x:y"), Ok(directory("/here/./x:y")));
        assert_eq!(parse("sqlite:/db"), Ok(Location::Sqlite { path: "/db".into() }));
        assert_eq!(directory("/a b").url(), "dir:/a b");
    }

    #[test]
    fn anything_else_is_a_usage_error() {
        for url in ["", "x", "dir:", "redis:/x", "etcd://h:1/p", "dir:a\0b"] {
            assert_eq!(parse(url).map_err(|error| error.exit()), Err(Exit::Usage), "{url:?}");
        }
    }
}
