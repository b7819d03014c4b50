//! The checks of a directory before csalock uses it as a store.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, SFlag, lstat, stat};
use nix::unistd::geteuid;

use super::pointer::Name;
use super::sys;
use crate::error::{Error, ErrorKind, Result};
use crate::name::escape_path;

/// Maximum number of retries if a store is removed while an NFS client opens it.
const OPENINGS: usize = 20;

/// Opens a store's directory; follows a link in its place only if no other user can have put it there. (Linux can
/// enforce this itself: protected_symlinks, proc_sys_fs(5).)
pub(super) fn open_through(path: &Path, links: bool) -> std::result::Result<OwnedFd, Errno> {
    // If the directory is removed while an NFS client opens it, the path is unused or leads to a new directory.
    let opened = (0..OPENINGS).map(|_| open(path, links)).find(|opened| !matches!(opened, Err(Errno::ESTALE)));
    opened.unwrap_or(Err(Errno::ESTALE))
}

fn open(path: &Path, links: bool) -> std::result::Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    match nix::fcntl::open(path, flags | OFlag::O_NOFOLLOW, Mode::empty()) {
        Err(errno @ (Errno::ENOTDIR | Errno::ELOOP)) => {
            let link = lstat(path)?;
            if SFlag::from_bits_truncate(link.st_mode) & SFlag::S_IFMT != SFlag::S_IFLNK {
                return Err(errno);
            }
            let above = stat(path.parent().unwrap_or(Path::new("/")))?;
            let for_all = Mode::S_ISVTX | Mode::S_IWOTH;
            let is_strange = Mode::from_bits_truncate(above.st_mode).contains(for_all)
                && ![geteuid().as_raw(), above.st_uid].contains(&link.st_uid);
            match links && !is_strange {
                true => nix::fcntl::open(path, flags, Mode::empty()),
                false => Err(Errno::ELOOP),
            }
        }
        opened => opened,
    }
}

/// Returns the error for a store that [`open_through`] could not open.
pub(super) fn cannot_open(errno: Errno, path: &Path) -> Error {
    match errno {
        Errno::ENOTDIR if lstat(path).is_ok() => {
            let what = format!("{} is not a store: {}", escape_path(path), errno.desc());
            let cure = "see who made it, and move it away, or name another store with --store";
            Error::new(ErrorKind::Corrupt, what, cure)
        }
        Errno::ELOOP if stat(path).err() != Some(Errno::ELOOP) => {
            let what = format!("{} is a symbolic link, which is not followed there", escape_path(path));
            Error::new(ErrorKind::Denied, what, "see who made it, or name the real directory")
        }
        _ => Error::os_through_links(errno, "open the store", path),
    }
}

/// Returns true if there are records in a directory that is not known to be a store. Fails if other things are in it:
/// csalock must not create files at a mistyped path.
pub(super) fn has_records(directory: &OwnedFd, path: &Path) -> Result<bool> {
    let (mut has_records, mut foreign) = (false, None);
    let listed = sys::open_directory(directory, ".").and_then(|fresh| {
        sys::each_name(fresh, &mut |name| {
            let is_usual = name.starts_with(b".") || name == b"lost+found";
            if !is_usual && foreign.is_none() {
                match is_record_place(directory, sys::os(name)) {
                    true => has_records = true,
                    false => foreign = Some(name.to_vec()),
                }
            }
            Ok(())
        })
    });
    match (listed, foreign) {
        // A directory that was removed has nothing foreign in it.
        (Ok(()), None) | (Err(Errno::ENOENT | Errno::ESTALE), _) => Ok(has_records),
        (Err(errno), _) => Err(Error::os(errno, "list the store", path)),
        (Ok(()), Some(name)) => {
            let what = format!("{} is not a store: {} is in it", escape_path(path), crate::name::escape(&name));
            Err(Error::new(ErrorKind::Corrupt, what, "see the path; name a new directory, or an empty one"))
        }
    }
}

/// Returns true if the entry with this name in a store's directory may be a record, as far as this can be determined.
fn is_record_place(store: &OwnedFd, name: &OsStr) -> bool {
    let directory = match sys::open_directory(store, name) {
        Ok(directory) => directory,
        Err(errno) => return !matches!(errno, Errno::ENOTDIR | Errno::ELOOP),
    };
    let (mut is_empty, mut has_names) = (true, false);
    let listed = sys::each_name(directory, &mut |name| {
        is_empty = false;
        has_names |= Name::parse(name).is_some();
        Ok(())
    });
    listed.is_err() || is_empty || has_names
}

/// Fails if all users may write and any user may remove the files of others, because no lock works there.
pub(super) fn refuse_open_to_all(mode: Mode, path: &Path) -> Result<()> {
    if !mode.contains(Mode::S_IWOTH) || mode.contains(Mode::S_ISVTX) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Denied,
        format!("every user may rename and remove what is in {}", escape_path(path)),
        "give it the sticky bit (chmod +t) or take the right to write from others (chmod o-w)",
    ))
}
