//! The working directory of a store: drafts, the register and the version numbers that begin there. The records of a
//! `.csalock` are removed with it, so it has no register and is its own working directory.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::stat::Mode;

use super::entry::Entry;
use super::ownership::Ownership;
use super::pointer::after;
use super::register::Register;
use super::root::Root;
use super::sys;
use crate::error::{Error, ErrorKind, Result};
use crate::host::Host;
use crate::name::escape_path;
use crate::store::{Layout, Scope, guarded};

/// Name of the working directory. The name of a record's directory never begins with a dot.
pub(super) const WORK: &str = ".work";

impl Root {
    /// Returns the directory for drafts; creates it if it does not exist.
    pub(super) fn drafts(&self) -> std::result::Result<&OwnedFd, Errno> {
        if self.layout == Layout::Beside {
            return Ok(&self.directory);
        }
        if let Some(work) = self.work.get() {
            return Ok(work);
        }
        let work = open_or_put_directory(&self.directory, WORK, self.inner_mode, self.ownership)?;
        Ok(self.work.get_or_init(|| work))
    }

    /// Opens the directory for drafts anew; returns `None` if it does not exist.
    pub(super) fn existing_drafts(&self) -> Result<Option<OwnedFd>> {
        let place = if self.layout == Layout::Beside { "." } else { WORK };
        match sys::open_directory(&self.directory, place) {
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => self.unless_gone(errno).map_err(|errno| self.no_work(errno)),
            Ok(drafts) => Ok(Some(drafts)),
        }
    }

    /// Returns a version number above all used ones, for a name whose directory was just put in place.
    pub(super) fn next_number(&self, host: &dyn Host) -> Result<u64> {
        let clock = match self.scope {
            Scope::Local => host.wall(),
            Scope::Shared => self.file_system_time()?,
        };
        let used = match self.layout {
            Layout::Beside => 0,
            _ => self.in_work(|work| Ok(self.register(work)?.token.unwrap_or(0)))?,
        };
        let above = after(used).ok_or_else(|| used_up(&self.path.join(WORK)))?;
        Ok((clock.as_micros() as u64).max(above))
    }

    /// Records that this version number was used.
    pub(super) fn raise_token(&self, number: u64) -> Result<()> {
        match self.layout {
            Layout::Beside => Ok(()),
            _ => self.in_work(|work| {
                let known = *guarded(&self.known_token);
                let mut register = match known {
                    None => self.register(work)?,
                    token => Register { token, ..Register::default() },
                };
                register.raise(work, number, self.file_mode)
            }),
        }
    }

    /// Parks a record, if it may be parked: see [`Register::park`].
    pub(super) fn park(&self, entry: &Entry, now: Duration) -> Result<Option<Vec<Vec<u8>>>> {
        let name = entry.file_name.as_bytes();
        self.in_work(|work| match Register::has_parked(work, name) {
            true => Ok(Some(Vec::new())),
            false => self.register(work)?.park(work, name, now, self.file_mode),
        })
    }

    fn register(&self, work: &OwnedFd) -> std::result::Result<Register, Errno> {
        let register = Register::read(work)?;
        *guarded(&self.known_token) = register.token;
        Ok(register)
    }

    pub(super) fn in_work<T>(&self, work: impl Fn(&OwnedFd) -> std::result::Result<T, Errno>) -> Result<T> {
        self.drafts().and_then(work).map_err(|errno| self.no_work(errno))
    }

    /// Returns the time that the file system gives to a new file.
    pub(super) fn file_system_time(&self) -> Result<Duration> {
        let drafts = self.drafts().map_err(|errno| self.no_work(errno))?;
        let failed = |errno| Error::os(errno, "ask for the time of the file system of", &self.path);
        sys::fresh_time(drafts, self.file_mode).map_err(failed)
    }

    /// Returns the error for a directory for drafts that cannot be used.
    pub(super) fn no_work(&self, errno: Errno) -> Error {
        match errno {
            Errno::ENOTDIR | Errno::ELOOP => not_a_directory(&self.path.join(WORK)),
            errno => Error::os(errno, "use the working directory of the store", &self.path),
        }
    }
}

/// Returns the error for something else in the place of a directory that csalock works in.
pub(super) fn not_a_directory(path: &Path) -> Error {
    let what = format!("{} is not a directory, as it must be to work in", escape_path(path));
    Error::new(ErrorKind::Corrupt, what, "see who made it, and move it away")
}

/// Returns the error for a store with the highest version number, which cannot be reached by counting.
pub(super) fn used_up(path: &Path) -> Error {
    let what = format!("no version number is left above those in {}", escape_path(path));
    Error::new(ErrorKind::Corrupt, what, "see who wrote that number there, and move it away")
}

/// Opens a directory; creates it if it does not exist.
pub(super) fn open_or_put_directory(
    at: &OwnedFd,
    name: &str,
    mode: Mode,
    ownership: Ownership,
) -> std::result::Result<OwnedFd, Errno> {
    match sys::open_directory(at, name) {
        Err(Errno::ENOENT) => match sys::put_directory(at, OsStr::new(name), mode, ownership) {
            Ok(()) | Err(Errno::EEXIST) => sys::open_directory(at, name),
            Err(errno) => Err(errno),
        },
        opened => opened,
    }
}
