//! The working directory of an open store, the version numbers and parked records in it, and the syncing of the store.
//!
//! **Version numbers.** `token.17` is the highest version number of any record whose directory was removed. The number
//! only rises: a raise renames the file, and of two files the higher number counts. So it needs no lock, and a lost race
//! does no harm.
//!
//! **Parked records.** `rest.NAME` marks a parked record: its tombstone stays after its removal, and the next caller that
//! acquires that name revives it. Most stores use one name repeatedly, and on a disk, making and removing a directory costs
//! more than the rest of a lock. A parked record keeps its place for at least a minute; then the next released record
//! replaces it. If two records come first at the same time, both are parked.
//!
//! **Syncing.** If anything in a store must outlast a power cut, the directories above it must too. A commit cannot know
//! when the store was made: perhaps a moment ago, by a process that synced nothing. So each process syncs the parent
//! directory once. Above a default store, the levels further up may be as new. csalock syncs them as far as it could have
//! made them: up to the first directory that is not writable, or to another file system.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::fstat;
use nix::unistd::{AccessFlags, faccessat, syncfs};

use super::layout::{PARKED, TOKEN, WORK, is_file_name, next_version, number_of};
use super::root::{Root, not_a_directory, open_or_put};
use super::sys::{self, Ownership};
use host::Host;
use lock::error::{Error, ErrorKind, Result};
use lock::name::escape_path;
use store::{Layout, Scope, guarded};

const PARKED_AT_LEAST: Duration = Duration::from_secs(60);

impl Root {
    pub(super) fn drafts(&self) -> nix::Result<&OwnedFd> {
        if self.layout == Layout::Beside {
            return Ok(&self.directory);
        }
        if let Some(work) = self.work.get() {
            return Ok(work);
        }
        let work = open_or_put(&self.directory, WORK, self.inner_mode, self.ownership)?;
        Ok(self.work.get_or_init(|| work))
    }

    /// `None` if the directory does not exist.
    pub(super) fn existing_drafts(&self) -> Result<Option<OwnedFd>> {
        let place = if self.layout == Layout::Beside { "." } else { WORK };
        match sys::open_directory(&self.directory, place) {
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => self.unless_gone(errno).map_err(|errno| self.no_work(errno)),
            Ok(drafts) => Ok(Some(drafts)),
        }
    }

    fn in_work<T>(&self, work: impl Fn(&OwnedFd) -> nix::Result<T>) -> Result<T> {
        self.drafts().and_then(work).map_err(|errno| self.no_work(errno))
    }

    pub(super) fn no_work(&self, errno: Errno) -> Error {
        match errno {
            Errno::ENOTDIR | Errno::ELOOP => not_a_directory(&self.path.join(WORK)),
            errno => Error::os(errno, "use the working directory of the store", &self.path),
        }
    }

    pub(super) fn file_system_time(&self) -> Result<Duration> {
        let drafts = self.drafts().map_err(|errno| self.no_work(errno))?;
        sys::fresh_time(drafts, self.file_mode)
            .map_err(|errno| Error::os(errno, "ask for the time of the file system of", &self.path))
    }

    /// A version number above all used ones, for a name whose directory was just put in place.
    pub(super) fn next_number(&self, host: &dyn Host) -> Result<u64> {
        let clock = match self.scope {
            Scope::Local => host.wall(),
            Scope::Shared => self.file_system_time()?,
        };
        let used = match self.layout {
            Layout::Beside => 0,
            _ => self.in_work(|work| Ok(self.marks(work)?.0.unwrap_or(0)))?,
        };
        let above = next_version(used).ok_or_else(|| used_up(&self.path.join(WORK)))?;
        Ok((clock.as_micros() as u64).max(above))
    }

    /// Raises the token to this number, unless it is higher already.
    pub(super) fn raise_token(&self, number: u64) -> Result<()> {
        if self.layout == Layout::Beside {
            return Ok(());
        }
        let new = format!("{TOKEN}{number}");
        self.in_work(|work| {
            let known = *guarded(&self.known_token);
            let mut token = if known.is_some() { known } else { self.marks(work)?.0 };
            while token.is_none_or(|token| token < number) {
                let raised = match token {
                    Some(token) => sys::rename(work, format!("{TOKEN}{token}").as_str(), work, new.as_str()),
                    None => self.create_mark(work, &new),
                };
                match raised {
                    // Another process has raised the token.
                    Err(Errno::ENOENT | Errno::EEXIST) => token = self.marks(work)?.0,
                    raised => return raised,
                }
            }
            Ok(())
        })
    }

    /// Returns the parked records that this one replaces, or `None` if they have not had their time.
    pub(super) fn park(&self, file_name: &[u8], now: Duration) -> Result<Option<Vec<Vec<u8>>>> {
        let mark = parked(file_name);
        self.in_work(|work| {
            if sys::is_there(work, Path::new(&mark)) == Ok(true) {
                return Ok(Some(Vec::new()));
            }
            let (_, others) = self.marks(work)?;
            for name in &others {
                let since = sys::changed_at(work, parked(name).as_str()).unwrap_or_default();
                if now.saturating_sub(since) < PARKED_AT_LEAST {
                    return Ok(None);
                }
            }
            for name in &others {
                sys::remove_file(work, parked(name).as_str())?;
            }
            match self.create_mark(work, &mark) {
                Ok(()) | Err(Errno::EEXIST) => Ok(Some(others)),
                Err(errno) => Err(errno),
            }
        })
    }

    /// Also the file names of the parked records.
    pub(super) fn marks(&self, work: &OwnedFd) -> nix::Result<(Option<u64>, Vec<Vec<u8>>)> {
        let mut token = None;
        let mut parked = Vec::new();
        sys::each_name(sys::open_directory(work, ".")?, &mut |name| {
            if let Some(number) = name.strip_prefix(TOKEN.as_bytes()) {
                token = token.max(std::str::from_utf8(number).ok().and_then(number_of));
            }
            // The name `rest...` would mean the directory above the store.
            parked.extend(name.strip_prefix(PARKED.as_bytes()).filter(|name| is_file_name(name)).map(<[u8]>::to_vec));
            Ok(())
        })?;
        *guarded(&self.known_token) = token;
        Ok((token, parked))
    }

    fn create_mark(&self, work: &OwnedFd, name: &str) -> nix::Result<()> {
        sys::create_file(work, name, (OFlag::empty(), self.file_mode, Ownership::default()), b"", false)
    }

    /// Waits until the token is on disk. The directory that contains it may be new.
    pub(super) fn sync_token(&self) -> Result<()> {
        if self.layout == Layout::Beside {
            return Ok(());
        }
        self.in_work(|work| sys::sync_directory(work))?;
        self.sync()
    }

    pub(super) fn sync(&self) -> Result<()> {
        self.sync_names().map_err(|errno| Error::os(errno, "sync the store", &self.path))
    }

    fn sync_names(&self) -> nix::Result<()> {
        sys::sync_directory(&self.directory)?;
        if self.parents_synced.get().is_none() {
            if let Some(sticky) = &self.sticky {
                sys::sync_directory(sticky)?;
            }
            sync_above(self.sticky.as_ref().unwrap_or(&self.directory), self.layout)?;
            let _ = self.parents_synced.set(());
        }
        Ok(())
    }
}

/// File names of records are ASCII.
fn parked(file_name: &[u8]) -> String {
    format!("{PARKED}{}", String::from_utf8_lossy(file_name))
}

/// Syncs the directories above a store. The walk uses `..`, because the store's path may be a link.
fn sync_above(store: &OwnedFd, layout: Layout) -> nix::Result<()> {
    let mut below = sys::open_directory(store, ".")?;
    loop {
        let may_write = faccessat(&below, "..", AccessFlags::W_OK, AtFlags::AT_EACCESS).is_ok();
        let above = match sys::open_directory(&below, "..") {
            // The directory is writable but not readable, so a sync of the whole file system is the smallest request.
            Err(Errno::EACCES) if may_write => return syncfs(store),
            // Another user made the store there.
            Err(Errno::EACCES) => return Ok(()),
            above => above?,
        };
        let (inner, outer) = (fstat(&below)?, fstat(&above)?);
        if inner.st_dev != outer.st_dev || inner.st_ino == outer.st_ino {
            return Ok(());
        }
        sys::sync_directory(&above)?;
        if layout != Layout::Default || !may_write {
            return Ok(());
        }
        below = above;
    }
}

pub(super) fn used_up(path: &Path) -> Error {
    let what = format!("no version number is left above those in {}", escape_path(path));
    Error::new(ErrorKind::Corrupt, what, "see who wrote that number there, and move it away")
}
