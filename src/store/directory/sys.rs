//! The system calls of the directory store, each relative to a directory descriptor and never through a link.

use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use nix::NixPath;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use nix::unistd::UnlinkatFlags;
use rustix::fs::{Advice, RawDir, RenameFlags};

use crate::store::answers::answered;
use crate::store::directory::ownership::Ownership;

/// What comes behind the name of a directory until it is whole; then random digits.
const UNBORN: &str = ".new.";

/// Opens a directory to list it and to work in it.
pub(super) fn open_directory<P: ?Sized + NixPath>(at: impl AsFd, name: &P) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    answered(nix::fcntl::openat(at, name, flags, Mode::empty()))
}

/// Makes a directory that the same users can use as the store itself, whatever the umask says.
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

/// Makes such a directory under another name and renames it, so that others see it only with its owner, group and mode.
/// EEXIST: the name is in use already.
pub(super) fn put_directory(at: impl AsFd, name: &OsStr, mode: Mode, ownership: Ownership) -> Result<(), Errno> {
    let draft = [name, OsStr::new(&format!("{UNBORN}{:016x}", random()?))].into_iter().collect::<OsString>();
    let made = make_directory(&at, draft.as_os_str(), mode, ownership);
    let Err(errno) = made.and_then(|_| rename_onto_nothing(&at, &draft, name)) else { return Ok(()) };
    let _ = remove_directory(&at, &draft);
    // On NFS the rename may have been repeated after it was done.
    let is_there = fstatat(at, name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok();
    Err(if is_there { Errno::EEXIST } else { errno })
}

/// Renames a directory. Not every file system can see to it that nothing has the new name: elsewhere an empty directory
/// may go, as if its last user had removed it.
fn rename_onto_nothing(at: impl AsFd, old: &OsStr, new: &OsStr) -> Result<(), Errno> {
    match answered(rustix::fs::renameat_with(&at, old, &at, new, RenameFlags::NOREPLACE)) {
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::OPNOTSUPP) => {
            rename(&at, old, &at, new)
        }
        renamed => renamed.map_err(|errno| Errno::from_raw(errno.raw_os_error())),
    }
}

/// Removes the directories that killed processes were about to [put](put_directory) under this name long ago, and counts
/// them. One that is still wanted is made anew.
pub(super) fn sweep_unborn(at: impl AsFd, name: &str, long_ago: Duration, dry_run: bool) -> Result<u64, Errno> {
    let start = format!("{name}{UNBORN}");
    let mut found = Vec::new();
    each_name::<Errno>(open_directory(&at, ".")?, &mut |entry| {
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

/// Creates a file that does not exist yet and writes all of it, to the disk if it is to be synced. Errors that a server
/// only tells at close are seen.
pub(super) fn create_file(at: impl AsFd, name: &str, mode: Mode, bytes: &[u8], synced: bool) -> Result<(), Errno> {
    create_file_as(at, name, (OFlag::empty(), mode, Ownership::default()), bytes, synced)
}

/// The same, opened with more flags, and given away.
pub(super) fn create_file_as(
    at: impl AsFd,
    name: &str,
    (flags, mode, ownership): (OFlag, Mode, Ownership),
    bytes: &[u8],
    synced: bool,
) -> Result<(), Errno> {
    let flags = flags | OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = answered(nix::fcntl::openat(at, name, flags, mode))?;
    ownership.give_file(&file);
    if mode.intersects(Mode::S_IRWXG | Mode::S_IRWXO) {
        // The umask may have taken some away. It is still empty.
        nix::sys::stat::fchmod(&file, mode)?;
    }
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
        // The descriptor is gone, and on Linux so are no data.
        Err(Errno::EINTR) => Ok(()),
        closed => closed,
    }
}

/// Waits until the disk has a file.
pub(super) fn sync_file(file: impl AsFd) -> Result<(), Errno> {
    loop {
        match answered(nix::unistd::fsync(&file)) {
            Err(Errno::EINTR) => {}
            synced => return synced,
        }
    }
}

/// Waits until the disk has the names in a directory.
pub(super) fn sync_directory(directory: impl AsFd) -> Result<(), Errno> {
    match sync_file(directory) {
        // That file system knows no such thing. EROFS does not mean that: ext4 says so after an error for which it has
        // stopped writing.
        Err(Errno::EINVAL | Errno::ENOSYS | Errno::ENOTSUP) => Ok(()),
        synced => synced,
    }
}

/// Reads a whole regular file of at most `most` bytes, opened with these flags as well. `Ok(Err(_))`: there is something
/// else under that name, and what.
pub(super) fn read_file(
    at: impl AsFd,
    name: &str,
    flags: OFlag,
    most: usize,
) -> Result<Result<Vec<u8>, String>, Errno> {
    let flags = flags | OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let file = match answered(nix::fcntl::openat(at, name, flags, Mode::empty())) {
        Err(Errno::ELOOP) => return Ok(Err("it is a symbolic link".to_string())),
        // A socket, or a device that is not there.
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

/// Removes a file. `false`: it was not there, or on NFS not even its directory.
pub(super) fn remove_if_there(at: impl AsFd, name: &OsStr) -> Result<bool, Errno> {
    match answered(nix::unistd::unlinkat(&at, name, UnlinkatFlags::NoRemoveDir)) {
        // Whoever put a directory in a file's place: an empty one goes.
        Err(Errno::EISDIR) => nix::unistd::unlinkat(at, name, UnlinkatFlags::RemoveDir).map(|()| true),
        removed => was_there(removed),
    }
}

/// What was to be removed and is gone already is removed. Whether it was there.
pub(super) fn was_there(removed: Result<(), Errno>) -> Result<bool, Errno> {
    match removed {
        Err(Errno::ENOENT | Errno::ESTALE) => Ok(false),
        removed => removed.map(|()| true),
    }
}

/// Removes a file. That it is gone already is as good.
pub(super) fn remove_file(at: impl AsFd, name: &OsStr) -> Result<(), Errno> {
    remove_if_there(at, name).map(drop)
}

/// Removes a directory if it is empty. That it is gone already is as good.
pub(super) fn remove_directory(at: impl AsFd, name: &OsStr) -> Result<(), Errno> {
    was_there(answered(nix::unistd::unlinkat(at, name, UnlinkatFlags::RemoveDir))).map(drop)
}

/// Visits the names in a directory that was opened just now. An NFS client that has a listing asks again: it knows of
/// changes by the directory's times only, which on v3 two changes within one tick of the server's clock share.
pub(super) fn each_name<E: From<Errno>>(
    directory: impl AsFd,
    visit: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let _ = rustix::fs::fadvise(directory.as_fd(), 0, None, Advice::DontNeed);
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

/// Whether a directory that is open was removed, or replaced by another of its name. What an NFS client remembers of it says
/// that it is there for some seconds more.
pub(super) fn is_removed(directory: impl AsFd) -> bool {
    match attributes_now(&directory, rustix::fs::StatxFlags::NLINK) {
        Ok(Some(found)) => found.stx_nlink == 0,
        Ok(None) => fstat(directory).map_or(true, |found| found.st_nlink == 0),
        Err(_) => true,
    }
}

/// What the file system knows of an open directory at this moment. `None`: kernels before 4.11 cannot be asked that.
fn attributes_now(directory: impl AsFd, wanted: rustix::fs::StatxFlags) -> Result<Option<rustix::fs::Statx>, Errno> {
    let flags = rustix::fs::AtFlags::EMPTY_PATH | rustix::fs::AtFlags::STATX_FORCE_SYNC;
    match answered(rustix::fs::statx(directory, "", flags, wanted)) {
        Ok(found) => Ok(Some(found)),
        Err(rustix::io::Errno::NOSYS) => Ok(None),
        Err(errno) => Err(Errno::from_raw(errno.raw_os_error())),
    }
}

/// When something was last changed, since 1970. Only the time of the last change of status is always the server's: an NFS
/// client that is cut off after it has made a file, and before it has set the other times, leaves anything in them.
pub(super) fn changed(found: &FileStat) -> Duration {
    Duration::new(found.st_ctime.max(0) as u64, found.st_ctime_nsec.max(0) as u32)
}

/// The same of an open directory, as the file system knows it at this moment: NFS clients keep times for a while.
pub(super) fn changed_now(directory: &OwnedFd) -> Result<Duration, Errno> {
    match attributes_now(directory, rustix::fs::StatxFlags::CTIME)? {
        Some(found) => Ok(Duration::new(found.stx_ctime.tv_sec.max(0) as u64, found.stx_ctime.tv_nsec)),
        None => Ok(changed(&fstat(directory)?)),
    }
}

/// When what has this name was last changed, since 1970; or when its owner says that it was, if that is earlier.
pub(super) fn changed_at(at: impl AsFd, name: &OsStr) -> Result<Duration, Errno> {
    let found = fstatat(at, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    let modified = Duration::new(found.st_mtime.max(0) as u64, found.st_mtime_nsec.max(0) as u32);
    Ok(changed(&found).min(modified))
}

/// The time, since 1970, that the file system gives to a file made now.
pub(super) fn fresh_time(directory: &OwnedFd, mode: Mode) -> Result<Duration, Errno> {
    let flags = OFlag::O_WRONLY | OFlag::O_TMPFILE | OFlag::O_CLOEXEC;
    // No name, nothing to clean up; NFS does not have it.
    let stat = match answered(nix::fcntl::openat(directory, ".", flags, mode)) {
        Ok(file) => fstat(&file)?,
        Err(_) => {
            let name = format!(".clock.{:016x}", random()?);
            let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
            let file = answered(nix::fcntl::openat(directory, name.as_str(), flags, mode))?;
            let stat = fstat(&file);
            // NFS clients rename a file that is removed while it is open.
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
