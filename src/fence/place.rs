//! The directory of a fenced file: the renames in it, and the removal of drafts that killed writers left.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use fs2::FileExt;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, stat};
use nix::unistd::{AccessFlags, UnlinkatFlags, faccessat, fsync, geteuid, unlinkat};

use super::draft;
use crate::error::{Error, ErrorKind, Result};
use crate::name::{escape, escape_path};
use crate::store::Scope;

/// Age of drafts, in seconds, that are removed even if their host does not share locks.
const HOUR: i64 = 3600;

/// The directory of a file, and the name of the file in it.
pub struct Place {
    directory: OwnedFd,
    path: PathBuf,
}

impl Place {
    /// Returns the place of the file with this absolute path without symbolic links.
    /// Fails if the file is not a regular file or if this user may not write it.
    pub fn open(path: PathBuf) -> Result<Place> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let folder = folder(&path);
        let opened = nix::fcntl::open(folder, flags, Mode::empty());
        let directory = opened.map_err(|errno| failed(errno, "open the directory", folder))?;
        let place = Place { directory, path };
        if place.file()?.is_some() {
            faccessat(&place.directory, place.os_name(), AccessFlags::W_OK, AtFlags::AT_EACCESS)
                .map_err(|errno| failed(errno, "write", place.path()))?;
        }
        Ok(place)
    }

    /// Returns the absolute path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the absolute path of the directory.
    pub fn folder(&self) -> &Path {
        folder(&self.path)
    }

    /// Returns the name of the file in its directory.
    pub fn name(&self) -> &[u8] {
        self.os_name().as_bytes()
    }

    fn os_name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// Returns the path of a draft.
    pub(super) fn path_of(&self, draft: &str) -> PathBuf {
        self.folder().join(draft)
    }

    pub(super) fn directory(&self) -> impl AsFd {
        self.directory.as_fd()
    }

    /// Returns the attributes of the file, if it exists.
    /// Fails if it is not a regular file; it may have become a symbolic link since the call began.
    pub(super) fn file(&self) -> Result<Option<FileStat>> {
        let found = self.attributes(self.os_name()).map_err(|errno| failed(errno, "examine", &self.path))?;
        let kind = found.map(|found| SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT);
        let is_root = self.os_name().is_empty();
        if !is_root && kind.is_none_or(|kind| kind == SFlag::S_IFREG) {
            return Ok(found);
        }
        let kind = if is_root || kind == Some(SFlag::S_IFDIR) { "a directory" } else { "not a regular file" };
        let what = format!("{} is {kind}", escape_path(&self.path));
        Err(Error::new(ErrorKind::InvalidInput, what, "only a regular file can be replaced; name one"))
    }

    /// Returns true if the directory contains the draft with this name, which may be empty for none.
    /// Fails if the name is not that of a draft of this file.
    pub(super) fn has(&self, draft: &str) -> Result<bool> {
        if !draft.is_empty() && draft::version_of(self.name(), draft).is_none() {
            let what = format!("{}: its fence mark names {}", escape_path(&self.path), escape(draft.as_bytes()));
            return Err(Error::new(ErrorKind::Corrupt, what, "that is not a draft; see who wrote the mark"));
        }
        let found = self.attributes(OsStr::new(draft));
        found.map(|found| found.is_some()).map_err(|errno| failed(errno, "examine", self.path_of(draft)))
    }

    fn attributes(&self, name: &OsStr) -> nix::Result<Option<FileStat>> {
        match fstatat(&self.directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => Ok(None),
            found => found.map(Some),
        }
    }

    /// Renames a draft to the file, if it is there: else it was published.
    pub(super) fn publish(&self, draft: &str) -> Result<()> {
        // All users may write the store in a directory with the sticky bit, but each replaces only files of its own.
        if let Ok(Some(made)) = self.attributes(OsStr::new(draft))
            && made.st_uid != geteuid().as_raw()
            && self.sticky_owner()?.is_some()
            && self.file()?.is_none_or(|file| file.st_uid != made.st_uid)
        {
            let what = format!("cannot replace {}: another user wrote the draft", escape_path(&self.path));
            return Err(Error::new(ErrorKind::Denied, what, "ask that user"));
        }
        let renamed = self.rename(draft, self.os_name());
        renamed.map(drop).map_err(|errno| failed(errno, "replace", &self.path))
    }

    /// Fails if the sticky bit of the directory keeps the maker of a draft from replacing the file: after the commit, no
    /// other user could complete the write.
    pub(super) fn check_sticky(&self, file: &FileStat, draft: &FileStat) -> Result<()> {
        match self.sticky_owner()? {
            Some(owner) if ![0, file.st_uid, owner].contains(&draft.st_uid) => {
                Err(failed(Errno::EPERM, "replace", &self.path))
            }
            _ => Ok(()),
        }
    }

    /// Returns the owner of the directory if it has the sticky bit.
    fn sticky_owner(&self) -> Result<Option<u32>> {
        let found = fstat(&self.directory).map_err(|errno| failed(errno, "examine", self.folder()))?;
        let is_sticky = Mode::from_bits_truncate(found.st_mode).contains(Mode::S_ISVTX);
        Ok(is_sticky.then_some(found.st_uid))
    }

    /// Renames a draft. Returns false if it is not there.
    pub(super) fn rename(&self, draft: &str, to: impl AsRef<OsStr>) -> nix::Result<bool> {
        match renameat(&self.directory, draft, &self.directory, to.as_ref()) {
            Err(Errno::ENOENT) => Ok(false),
            renamed => renamed.map(|()| true),
        }
    }

    pub(super) fn remove(&self, draft: &str) {
        // A draft that stays is removed by a later writer.
        let _ = unlinkat(&self.directory, draft, UnlinkatFlags::NoRemoveDir);
    }

    /// Waits until the names in the directory are on disk.
    pub(super) fn sync(&self) -> Result<()> {
        match fsync(&self.directory) {
            // The file system does not support syncing directories.
            Err(Errno::EINVAL | Errno::ENOSYS | Errno::ENOTSUP) => Ok(()),
            synced => synced.map_err(|errno| failed(errno, "sync the directory", self.folder())),
        }
    }

    /// Fails if another directory has taken the place of this one. The store beside the file is found by its path.
    pub(super) fn check(&self) -> Result<()> {
        let folder = self.folder();
        let found = fstat(&self.directory).and_then(|ours| Ok((ours, stat(folder)?)));
        let (ours, found) = found.map_err(|errno| failed(errno, "examine", folder))?;
        if (ours.st_dev, ours.st_ino) == (found.st_dev, found.st_ino) {
            return Ok(());
        }
        let what = format!("{}: another directory has taken its place", escape_path(folder));
        Err(Error::new(ErrorKind::System, what, "nothing was changed; try again"))
    }

    /// Removes the drafts of this file that belong to earlier versions of its mark and to no live writer. If other
    /// hosts may share the directory, their locks may be unknown here, so drafts of the last hour before `now`, the
    /// time of a fresh file, stay too. Failures leave drafts to the next writer.
    pub(super) fn sweep(&self, version: u64, scope: Scope, now: i64) {
        let Ok(listing) = std::fs::read_dir(self.folder()) else { return };
        let is_old = |name: &str| {
            let found = self.attributes(OsStr::new(name)).ok().flatten();
            found.is_some_and(|found| found.st_mtime.saturating_add(HOUR) < now)
        };
        for entry in listing.flatten() {
            if let Some(name) = entry.file_name().to_str()
                && draft::version_of(self.name(), name).is_some_and(|expected| expected < version)
                && (scope == Scope::Local || is_old(name))
                && let Some(_locked) = self.lock_leftover(name)
            {
                self.remove(name);
            }
        }
    }

    /// Locks a draft that no live writer has locked. The lock must last until the draft is removed: a writer that has
    /// just created its draft then makes another one.
    fn lock_leftover(&self, draft: &str) -> Option<File> {
        let flags = OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = File::from(openat(&self.directory, draft, flags, Mode::empty()).ok()?);
        file.try_lock_exclusive().is_ok().then_some(file)
    }
}

/// Returns an error of a system call on a file or directory that is not a store.
pub(super) fn failed(errno: Errno, doing: &str, path: impl AsRef<Path>) -> Error {
    let error = Error::os(errno, doing, path);
    let hint = match error.kind() {
        ErrorKind::Denied => "ask its owner for permission",
        ErrorKind::CannotCreate => "it is mounted read-only",
        ErrorKind::Unavailable => "create its directory, or name another file",
        _ => error.hint(),
    };
    Error::new(error.kind(), error.message(), hint)
}

fn folder(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}
