//! The directory store's system calls, each relative to a directory descriptor and never through a link.

use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use nix::NixPath;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use nix::unistd::UnlinkatFlags;
use rustix::fs::{Advice, RawDir, RenameFlags};

use crate::host::file_time;
use crate::store::answers::answered;
use crate::store::directory::ownership::Ownership;

/// Suffix of a directory's name until the directory is complete; random digits follow it.
const UNBORN: &str = ".new.";

/// Opens a directory for listing it and for work in it.
pub(super) fn open_directory<P: ?Sized + NixPath>(at: impl AsFd, name: &P) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    answered(nix::fcntl::openat(at, name, flags, Mode::empty()))
}

/// Creates a directory that the store's users can use, whatever the umask is.
pub(super) fn make_directory<P: ?Sized + NixPath>(
    at: impl AsFd,
    name: &P,
    mode: Mode,
    ownership: Ownership,
) -> Result<OwnedFd, Errno> {
    answered(nix::sys::stat::mkdirat(at.as_fd(), name, mode))?;
    let made = open_directory(at, name)?;
    if !ownership.give_directory(&made)? {
        return Err(Errno::EPERM);
    }
    if mode.intersects(!Mode::S_IRWXU) {
        nix::sys::stat::fchmod(&made, mode)?;
    }
    Ok(made)
}

/// Creates a directory under another name and renames it, so that it appears with its owner, group and mode. Returns
/// EEXIST if the name is in use.
pub(super) fn put_directory(at: impl AsFd, name: &OsStr, mode: Mode, ownership: Ownership) -> Result<(), Errno> {
    let draft = [name, OsStr::new(&format!("{UNBORN}{:016x}", random()?))].into_iter().collect::<OsString>();
    let made = make_directory(&at, draft.as_os_str(), mode, ownership);
    let Err(errno) = made.and_then(|_| rename_onto_nothing(&at, &draft, name)) else { return Ok(()) };
    let _ = remove_directory(&at, &draft);
    // An NFS client may have repeated the rename after it succeeded.
    let is_there = fstatat(at, name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok();
    Err(if is_there { Errno::EEXIST } else { errno })
}

/// Renames a directory to an unused name. Some file systems cannot guarantee that the name is unused: they may replace
/// an empty directory, as if its last user had removed it.
fn rename_onto_nothing(at: impl AsFd, old: &OsStr, new: &OsStr) -> Result<(), Errno> {
    match answered(rustix::fs::renameat_with(&at, old, &at, new, RenameFlags::NOREPLACE)) {
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::OPNOTSUPP) => {
            rename(&at, old, &at, new)
        }
        renamed => renamed.map_err(|errno| Errno::from_raw(errno.raw_os_error())),
    }
}

/// Removes directories that killed processes were about to [put](put_directory) under this name long ago; returns their
/// number. A process that still needs its directory makes it anew.
pub(super) fn sweep_unborn(at: impl AsFd, name: &str, long_ago: Duration, dry_run: bool) -> Result<u64, Errno> {
    let start = format!("{name}{UNBORN}");
    let mut found = Vec::new();
    each_name(open_directory(&at, ".")?, &mut |entry| {
        if entry.starts_with(start.as_bytes()) && changed_at(&at, os(entry)).is_ok_and(|changed| changed < long_ago) {
            found.push(entry.to_vec());
        }
        Ok(())
    })?;
    let is_swept = |draft: &&Vec<u8>| dry_run || remove_directory(&at, os(draft)).is_ok();
    Ok(found.iter().filter(is_swept).count() as u64)
}

fn random() -> Result<u64, Errno> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|_| Errno::EIO)?;
    Ok(u64::from_be_bytes(random))
}

/// Creates a new file with these bytes, with these additional open flags, mode and owner, and syncs it if requested.
/// Reports errors that a server returns only at close.
pub(super) fn create_file(
    at: impl AsFd,
    name: &str,
    kind: (OFlag, Mode, Ownership),
    bytes: &[u8],
    synced: bool,
) -> Result<(), Errno> {
    fill(create(at, name, kind)?, bytes, synced)
}

fn create(at: impl AsFd, name: &str, (flags, mode, ownership): (OFlag, Mode, Ownership)) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = answered(nix::fcntl::openat(at, name, flags, mode))?;
    ownership.give_file(&file);
    // The umask may have removed permissions. The file is still empty. A change costs much more than this look.
    if mode.intersects(Mode::S_IRWXG | Mode::S_IRWXO) && fstat(&file)?.st_mode & 0o7777 != mode.bits() {
        nix::sys::stat::fchmod(&file, mode)?;
    }
    Ok(file)
}

fn fill(file: OwnedFd, bytes: &[u8], synced: bool) -> Result<(), Errno> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match answered(nix::unistd::write(&file, rest)) {
            Ok(0) => return Err(Errno::EIO),
            Ok(written) => rest = &rest[written..],
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    if synced {
        sync_file(&file)?;
    }
    match answered(nix::unistd::close(file)) {
        // The descriptor is closed, and Linux has lost no data.
        Err(Errno::EINTR) => Ok(()),
        closed => closed,
    }
}

/// Waits until a file is on disk.
pub(super) fn sync_file(file: impl AsFd) -> Result<(), Errno> {
    loop {
        match answered(nix::unistd::fsync(&file)) {
            Err(Errno::EINTR) => {}
            synced => return synced,
        }
    }
}

/// Waits until the names in a directory are on disk.
pub(super) fn sync_directory(directory: impl AsFd) -> Result<(), Errno> {
    match sync_file(directory) {
        // The file system does not support syncing directories. EROFS is different: ext4 returns it after an error that
        // stopped all writes.
        Err(Errno::EINVAL | Errno::ENOSYS | Errno::ENOTSUP) => Ok(()),
        synced => synced,
    }
}

/// Reads a regular file of at most `most` bytes, opened with these additional flags. A file that is one line ends with that
/// line. Returns `Ok(Err(reason))` if the name leads to anything else.
pub(super) fn read_file(
    at: impl AsFd,
    name: &str,
    flags: OFlag,
    most: usize,
    is_line: bool,
) -> Result<Result<Vec<u8>, String>, Errno> {
    let flags = flags | OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let file = match answered(nix::fcntl::openat(at, name, flags, Mode::empty())) {
        Err(Errno::ELOOP) => return Ok(Err("it is a symbolic link".to_string())),
        // The name leads to a socket, or to a device that does not exist.
        Err(Errno::ENXIO | Errno::ENODEV) => return Ok(Err("it is not a regular file".to_string())),
        opened => opened?,
    };
    let mut buffer = vec![0; 4096];
    let mut length = 0;
    loop {
        match answered(nix::unistd::read(&file, &mut buffer[length..])) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(Errno::EINTR) => {}
            Err(Errno::EISDIR) => return Ok(Err("it is a directory".to_string())),
            Err(Errno::EAGAIN) => return Ok(Err("it is not a regular file".to_string())),
            Err(errno) => return Err(errno),
        }
        if length > most {
            return Ok(Err(format!("it has more than {most} bytes")));
        }
        if is_line && buffer[..length].ends_with(b"\n") {
            break;
        }
        if length == buffer.len() {
            buffer.resize(2 * length, 0);
        }
    }
    buffer.truncate(length);
    Ok(Ok(buffer))
}

pub(super) fn rename<P: ?Sized + NixPath>(from: impl AsFd, old: &P, to: impl AsFd, new: &OsStr) -> Result<(), Errno> {
    answered(nix::fcntl::renameat(from, old, to, new))
}

/// Removes a file. Returns `false` if the file, or on NFS its directory, did not exist.
pub(super) fn remove_if_there(at: impl AsFd, name: &OsStr) -> Result<bool, Errno> {
    match answered(nix::unistd::unlinkat(&at, name, UnlinkatFlags::NoRemoveDir)) {
        // An empty directory in a file's place is removed too.
        Err(Errno::EISDIR) => nix::unistd::unlinkat(at, name, UnlinkatFlags::RemoveDir).map(|()| true),
        removed => was_there(removed),
    }
}

/// Treats a missing file as removed; returns true if the file existed.
pub(super) fn was_there(removed: Result<(), Errno>) -> Result<bool, Errno> {
    match removed {
        Err(Errno::ENOENT | Errno::ESTALE) => Ok(false),
        removed => removed.map(|()| true),
    }
}

/// Removes a file; succeeds even if it is gone already.
pub(super) fn remove_file(at: impl AsFd, name: &OsStr) -> Result<(), Errno> {
    remove_if_there(at, name).map(drop)
}

/// Removes a directory if it is empty; succeeds even if it is gone already.
pub(super) fn remove_directory(at: impl AsFd, name: &OsStr) -> Result<(), Errno> {
    was_there(answered(nix::unistd::unlinkat(at, name, UnlinkatFlags::RemoveDir))).map(drop)
}

/// Returns true if the name leads to something, as far as this process can see.
pub(super) fn is_there(at: impl AsFd, name: &OsStr) -> bool {
    answered(fstatat(at, name, AtFlags::AT_SYMLINK_NOFOLLOW)).is_ok()
}

/// Returns true if the name leads to something in the directory below `at`, as far as this process can see.
pub(super) fn is_there_below(at: impl AsFd, directory: &OsStr, name: &str) -> bool {
    is_there(at, Path::new(directory).join(name).as_os_str())
}

/// Returns true if the name certainly leads to nothing.
pub(super) fn is_missing(at: impl AsFd, name: &OsStr) -> bool {
    answered(fstatat(at, name, AtFlags::AT_SYMLINK_NOFOLLOW)).is_err_and(|errno| errno == Errno::ENOENT)
}

/// Visits the names in a directory that was just opened.
pub(super) fn each_name(directory: impl AsFd, visit: &mut dyn FnMut(&[u8]) -> Result<(), Errno>) -> Result<(), Errno> {
    forget_listing(directory.as_fd());
    each_name_as_known(directory, visit)
}

/// Makes an NFS client list the directory anew: it detects changes by the directory's times, and on v3, two changes
/// within one tick of the server's clock have equal times.
pub(super) fn forget_listing(directory: impl AsFd) {
    let _ = rustix::fs::fadvise(directory.as_fd(), 0, None, Advice::DontNeed);
}

/// Visits the names in a directory that was just opened, as this host knows them.
pub(super) fn each_name_as_known(
    directory: impl AsFd,
    visit: &mut dyn FnMut(&[u8]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(directory.as_fd(), &mut buffer);
    while let Some(entry) = answered(entries.next()) {
        let entry = entry.map_err(|errno| Errno::from_raw(errno.raw_os_error()))?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            visit(name)?;
        }
    }
    Ok(())
}

/// Returns true if an open directory was removed, or replaced by another of its name. The call bypasses the NFS
/// client's cache, which keeps a removed directory for some seconds.
pub(super) fn is_removed(directory: impl AsFd) -> bool {
    let flags = rustix::fs::AtFlags::EMPTY_PATH | rustix::fs::AtFlags::STATX_FORCE_SYNC;
    match answered(rustix::fs::statx(&directory, "", flags, rustix::fs::StatxFlags::NLINK)) {
        Ok(found) => found.stx_nlink == 0,
        // Kernels before 4.11 have no such call.
        Err(rustix::io::Errno::NOSYS) => fstat(directory).map_or(true, |found| found.st_nlink == 0),
        Err(_) => true,
    }
}

/// Returns the time of the last status change, since 1970. Only this time is always the server's: an NFS client that is
/// cut off after creating a file leaves arbitrary values in the others.
pub(super) fn changed(found: &FileStat) -> Duration {
    file_time(found.st_ctime, found.st_ctime_nsec)
}

/// Returns the time of this name's last change, since 1970, or the time that its owner has set, if that is earlier.
pub(super) fn changed_at(at: impl AsFd, name: &OsStr) -> Result<Duration, Errno> {
    let found = fstatat(at, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    Ok(changed(&found).min(file_time(found.st_mtime, found.st_mtime_nsec)))
}

/// Returns the time, since 1970, that the file system gives to a new file.
pub(super) fn fresh_time(directory: &OwnedFd, mode: Mode) -> Result<Duration, Errno> {
    let flags = OFlag::O_WRONLY | OFlag::O_TMPFILE | OFlag::O_CLOEXEC;
    // A file without a name needs no cleanup, but NFS does not support it.
    let stat = match answered(nix::fcntl::openat(directory, ".", flags, mode)) {
        Ok(file) => fstat(&file)?,
        Err(_) => {
            let name = format!(".clock.{:016x}", random()?);
            let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
            let file = answered(nix::fcntl::openat(directory, name.as_str(), flags, mode))?;
            let stat = fstat(&file);
            // An NFS client renames a file that is removed while open.
            drop(file);
            remove_file(directory, OsStr::new(&name))?;
            stat?
        }
    };
    Ok(changed(&stat))
}

pub(super) fn os(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}
