//! The files of a fence: the fenced file in its directory, and drafts, which have the bytes that are to replace it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use fs2::FileExt;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat, stat};
use nix::unistd::{AccessFlags, Gid, Uid, UnlinkatFlags, faccessat, fchown, fsync, geteuid, unlinkat};

use crate::error::{Error, ErrorKind, Result};
use crate::host::Host;
use crate::lock::codec::checksum;
use crate::name::{escape, escape_path};
use crate::store::{Scope, Version};

/// Age of drafts, in seconds, that are removed even if their host does not share locks.
const HOUR: i64 = 3600;

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

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn folder(&self) -> &Path {
        folder(&self.path)
    }

    pub fn name(&self) -> &[u8] {
        self.os_name().as_bytes()
    }

    fn os_name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    pub(super) fn path_of(&self, draft: &str) -> PathBuf {
        self.folder().join(draft)
    }

    /// Fails if it is not a regular file; it may have become a symbolic link since the call began.
    fn file(&self) -> Result<Option<FileStat>> {
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
        if !draft.is_empty() && version_of(self.name(), draft).is_none() {
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
    fn check_sticky(&self, file: &FileStat, draft: &FileStat) -> Result<()> {
        match self.sticky_owner()? {
            Some(owner) if ![0, file.st_uid, owner].contains(&draft.st_uid) => {
                Err(failed(Errno::EPERM, "replace", &self.path))
            }
            _ => Ok(()),
        }
    }

    fn sticky_owner(&self) -> Result<Option<u32>> {
        let found = fstat(&self.directory).map_err(|errno| failed(errno, "examine", self.folder()))?;
        let is_sticky = Mode::from_bits_truncate(found.st_mode).contains(Mode::S_ISVTX);
        Ok(is_sticky.then_some(found.st_uid))
    }

    /// Renames a draft. Returns false if it is not there.
    fn rename(&self, draft: &str, to: impl AsRef<OsStr>) -> nix::Result<bool> {
        match renameat(&self.directory, draft, &self.directory, to.as_ref()) {
            Err(Errno::ENOENT) => Ok(false),
            renamed => renamed.map(|()| true),
        }
    }

    fn remove(&self, draft: &str) {
        // A draft that stays is removed by a later writer.
        let _ = unlinkat(&self.directory, draft, UnlinkatFlags::NoRemoveDir);
    }

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
                && version_of(self.name(), name).is_some_and(|expected| expected < version)
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
fn failed(errno: Errno, doing: &str, path: impl AsRef<Path>) -> Error {
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

const DRAFT: &str = ".csalock-fence.";

/// A draft in the directory of its file. It is removed with this value, unless a mark names it.
pub struct Draft<'a> {
    place: &'a Place,
    file: File,
    pub(super) name: String,
    /// The version of the mark that the commit of this draft expects, 0 for none.
    version: u64,
    /// True if a mark may name the draft: then other processes decide about it.
    pub(super) is_left: bool,
    bytes: u64,
}

impl<'a> Draft<'a> {
    /// Creates an empty draft, which only this user can read if the file exists.
    pub fn create(place: &'a Place, host: &dyn Host) -> Result<Draft<'a>> {
        let mode = if place.file()?.is_some() { 0o600 } else { 0o666 };
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        loop {
            let name = new_name(place, 0, host)?;
            let opened = openat(&place.directory, name.as_str(), flags, Mode::from_bits_truncate(mode));
            let file = opened.map_err(|errno| failed(errno, "create a draft in", place.folder()))?;
            let draft = Draft { place, file: File::from(file), name, version: 0, is_left: false, bytes: 0 };
            // A lock of another process means that it removes the draft as a leftover, and so does a missing name. On a
            // file system without locks, other writers leave the draft alone.
            let locked = draft.file.try_lock_exclusive();
            let is_being_removed = locked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
            if !is_being_removed && fstat(&draft.file).map_or(true, |found| found.st_nlink > 0) {
                return Ok(draft);
            }
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the time of the last write to the draft, in seconds on the clock of the file system.
    pub(super) fn time(&self) -> i64 {
        fstat(&self.file).map_or(0, |found| found.st_mtime)
    }

    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| self.cannot_write(&error))?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn cannot_write(&self, error: &io::Error) -> Error {
        let errno = Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32));
        failed(errno, "write a draft in", self.place.folder())
    }

    /// Gives the draft the owner and mode of the file, and waits until its bytes are on disk.
    pub(super) fn finish(&mut self) -> Result<()> {
        if let Some(wanted) = self.place.file()? {
            let made = fstat(&self.file).map_err(|errno| self.cannot_write(&errno.into()))?;
            self.place.check_sticky(&wanted, &made)?;
            let mut mode = Mode::from_bits_truncate(wanted.st_mode & 0o7777);
            let group = Some(Gid::from_raw(wanted.st_gid));
            if (made.st_uid, made.st_gid) != (wanted.st_uid, wanted.st_gid)
                && fchown(&self.file, Some(Uid::from_raw(wanted.st_uid)), group).is_err()
            {
                // Only root can give a file away. As with an editor, the file then belongs to the writer.
                mode.remove(Mode::S_ISUID);
                if made.st_gid != wanted.st_gid && fchown(&self.file, None, group).is_err() {
                    mode.remove(Mode::S_ISGID | Mode::S_IRWXG);
                }
            }
            fchmod(&self.file, mode).map_err(|errno| self.cannot_write(&errno.into()))?;
        }
        loop {
            match fsync(self.file.as_fd()) {
                Err(Errno::EINTR) => {}
                synced => return synced.map_err(|errno| self.cannot_write(&errno.into())),
            }
        }
    }

    /// Gives the draft the name for a commit that expects this version. An earlier version than before comes from a stale
    /// read, so that commit fails, and the mark may have the name of the commit before.
    pub(super) fn expect(&mut self, version: Option<Version>, host: &dyn Host) -> Result<()> {
        let number = version.map_or(0, |version| version.number);
        if number <= self.version {
            return Ok(());
        }
        let name = new_name(self.place, number, host)?;
        let renamed = self.place.rename(&self.name, &name);
        if !renamed.map_err(|errno| failed(errno, "rename a draft in", self.place.folder()))?
            && !self.place.has(&name)?
        {
            self.is_left = true;
            return Err(self.is_gone());
        }
        (self.name, self.version) = (name, number);
        Ok(())
    }

    /// Returns the error for a draft that another process has published or removed.
    pub(super) fn is_gone(&self) -> Error {
        let what = format!("{}: the draft is gone", escape_path(&self.place.path_of(&self.name)));
        Error::new(ErrorKind::System, what, "").outcome_unknown()
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if !self.is_left {
            self.place.remove(&self.name);
        }
    }
}

/// Returns the version of the mark that the commit of this draft expects, if the name is that of a draft of this file.
fn version_of(file: &[u8], name: &str) -> Option<u64> {
    let rest = name.strip_prefix(DRAFT)?;
    let (version, random) = rest.strip_prefix(&hash(file))?.strip_prefix('.')?.split_once('.')?;
    let is_random = random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_random { version.parse().ok() } else { None }
}

fn new_name(place: &Place, version: u64, host: &dyn Host) -> Result<String> {
    Ok(format!("{DRAFT}{}.{version}.{:016x}", hash(place.name()), host.unique_number()?))
}

/// Returns a part of the names of a file's drafts. Names of files may be too long to be part of another.
fn hash(file: &[u8]) -> String {
    format!("{:016x}", checksum(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_drafts_of_this_file_are_drafts() {
        let of_x = format!("{DRAFT}{}.17.00000000000000ff", hash(b"x"));
        assert_eq!(version_of(b"x", &of_x), Some(17));
        assert_eq!(version_of(b"y", &of_x), None);
        let start = format!("{DRAFT}{}", hash(b"x"));
        for name in ["", "x", "../x", DRAFT, &format!("{start}.17./../../x"), &format!("{start}.x.00000000000000ff")] {
            assert_eq!(version_of(b"x", name), None, "{name}");
        }
    }
}
