//! Drafts: files with the bytes that are to replace a file.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

use fs2::FileExt;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fchmod, fstat};
use nix::unistd::{Gid, Uid, fchown, fsync};

use super::place::{Place, failed};
use crate::error::{Error, ErrorKind, Result};
use crate::host::Host;
use crate::lock::codec::checksum;
use crate::name::escape_path;
use crate::store::Version;

/// Beginning of the names of drafts.
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
    /// Number of bytes written.
    bytes: u64,
}

impl<'a> Draft<'a> {
    /// Creates an empty draft, which only this user can read if the file exists.
    pub fn create(place: &'a Place, host: &dyn Host) -> Result<Draft<'a>> {
        let mode = if place.file()?.is_some() { 0o600 } else { 0o666 };
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        loop {
            let name = new_name(place, 0, host)?;
            let opened = openat(place.directory(), name.as_str(), flags, Mode::from_bits_truncate(mode));
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

    /// Returns the number of bytes written.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the time of the last write to the draft, in seconds on the clock of the file system.
    pub(super) fn time(&self) -> i64 {
        fstat(&self.file).map_or(0, |found| found.st_mtime)
    }

    /// Appends bytes.
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
pub(super) fn version_of(file: &[u8], name: &str) -> Option<u64> {
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
