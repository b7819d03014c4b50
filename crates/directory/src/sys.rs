//! The directory store's system calls, each relative to a directory descriptor and never through a link, and the owner,
//! group and mode of what they create.
//!
//! New files get the store's owner and group, as far as the system permits it. Root may lock in another user's store, and
//! a member of a group in the group's. Their files must stay accessible to the others: a record's directory that only root
//! may open blocks its lock permanently.

use std::fs::File;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, getegid, geteuid};
use nix::{NixPath, Result};
use rustix::fs::{Advice, RawDir, RenameFlags};
use rustix::io::retry_on_intr;

use crate::layout::{CLOCK, END_OF_FILE, NEW, PLACE_LENGTH};
use host::file_time;
use lock::error::errno_of;
use store::with_suffix;

/// Number of system calls of this process that a file system has answered: each may wait for a server.
static ANSWERS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn answers() -> u64 {
    ANSWERS.load(Ordering::Relaxed)
}

fn answered<T>(answer: T) -> T {
    ANSWERS.fetch_add(1, Ordering::Relaxed);
    answer
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ownership {
    owner: Option<Uid>,
    group: Option<Gid>,
}

impl Ownership {
    pub(crate) fn in_directory(found: &FileStat) -> Ownership {
        let owner = Uid::from_raw(found.st_uid);
        let group = Gid::from_raw(found.st_gid);
        let we = geteuid();
        let inherits = Mode::from_bits_truncate(found.st_mode).contains(Mode::S_ISGID);
        // A group with no more rights than all other users makes no difference.
        let counts = we.is_root() || (found.st_mode >> 3) & 7 != found.st_mode & 7;
        Ownership {
            owner: (we.is_root() && !owner.is_root()).then_some(owner),
            group: (counts && !inherits && group != getegid()).then_some(group),
        }
    }

    pub(crate) fn without_owner(self) -> Ownership {
        Ownership { owner: None, ..self }
    }

    /// Gives away a file that we have just created. Only members of a group may give it files; files of other users
    /// keep their group.
    pub(crate) fn give_file(&self, made: impl AsFd) {
        if *self != Ownership::default() {
            let _ = fchown(made, self.owner, self.group);
        }
    }

    /// Gives away a new directory that was opened by its name. In another user's directory that name may lead
    /// elsewhere. So root gives away only what the new owner could have made; `false` means that it is another user's.
    pub(crate) fn give_directory(&self, made: impl AsFd) -> Result<bool> {
        if let Some(owner) = self.owner {
            let found = fstat(made.as_fd())?;
            if found.st_uid == owner.as_raw() {
                return Ok(true);
            }
            let listed = each_name(open_directory(made.as_fd(), ".")?, &mut |_| Err(Errno::ENOTEMPTY));
            if found.st_uid != geteuid().as_raw() || listed.is_err() {
                return Ok(false);
            }
        }
        self.give_file(made);
        Ok(true)
    }
}

pub(super) fn open_directory(at: impl AsFd, name: &(impl NixPath + ?Sized)) -> Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    answered(nix::fcntl::openat(at, name, flags, Mode::empty()))
}

/// Creates a directory that the store's users can use, whatever the umask is.
pub(super) fn make_directory(
    at: impl AsFd,
    name: &(impl NixPath + ?Sized),
    mode: Mode,
    ownership: Ownership,
) -> Result<OwnedFd> {
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
pub(super) fn put_directory(at: impl AsFd, name: &Path, mode: Mode, ownership: Ownership) -> Result<()> {
    let draft = with_suffix(name, &format!("{NEW}{:016x}", random()?));
    let made = make_directory(&at, &draft, mode, ownership);
    let Err(errno) = made.and_then(|_| rename_onto_nothing(&at, &draft, name)) else { return Ok(()) };
    let _ = remove_directory(&at, &draft);
    // An NFS client may have repeated the rename after it succeeded.
    Err(if is_there(at, name) == Ok(true) { Errno::EEXIST } else { errno })
}

/// Renames a directory to an unused name. Some file systems cannot guarantee that the name is unused: they may replace
/// an empty directory, as if its last user had removed it.
fn rename_onto_nothing(at: impl AsFd, old: &Path, new: &Path) -> Result<()> {
    match answered(rustix::fs::renameat_with(&at, old, &at, new, RenameFlags::NOREPLACE)) {
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::OPNOTSUPP) => {
            rename(&at, old, &at, new)
        }
        renamed => renamed.map_err(errno_of),
    }
}

/// Removes directories that killed processes were about to [put](put_directory) under this name long ago; returns their
/// number. A process that still needs its directory makes it anew.
pub(super) fn sweep_drafts_of(at: impl AsFd, name: &str, long_ago: Duration, dry_run: bool) -> Result<u64> {
    let start = format!("{name}{NEW}");
    let mut found = Vec::new();
    each_name(open_directory(&at, ".")?, &mut |entry| {
        if entry.starts_with(start.as_bytes()) && changed_at(&at, entry).is_ok_and(|changed| changed < long_ago) {
            found.push(entry.to_vec());
        }
        Ok(())
    })?;
    let is_swept = |draft: &&Vec<u8>| dry_run || remove_directory(&at, draft.as_slice()).is_ok();
    Ok(found.iter().filter(is_swept).count() as u64)
}

fn random() -> Result<u64> {
    host::random_bytes().map(u64::from_ne_bytes).map_err(|_| Errno::EIO)
}

/// Additional open flags, mode and owner.
pub(crate) type FileKind = (OFlag, Mode, Ownership);

/// Creates a new file with these bytes, and syncs it if requested. Reports errors that a server returns only at close.
pub(super) fn create_file(
    at: impl AsFd,
    name: &str,
    (flags, mode, ownership): FileKind,
    bytes: &[u8],
    synced: bool,
) -> Result<()> {
    let flags = flags | OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = answered(nix::fcntl::openat(at, name, flags, mode))?;
    ownership.give_file(&file);
    // The umask may have removed permissions. The file is still empty. A change costs much more than this look.
    if mode.intersects(Mode::S_IRWXG | Mode::S_IRWXO) && fstat(&file)?.st_mode & 0o7777 != mode.bits() {
        nix::sys::stat::fchmod(&file, mode)?;
    }
    let mut file = File::from(file);
    answered(file.write_all(bytes)).map_err(|error| Errno::try_from(error).unwrap_or(Errno::EIO))?;
    if synced {
        sync_file(&file)?;
    }
    match answered(nix::unistd::close(file)) {
        // The descriptor is closed, and Linux has lost no data.
        Err(Errno::EINTR) => Ok(()),
        closed => closed,
    }
}

fn sync_file(file: impl AsFd) -> Result<()> {
    answered(retry_on_intr(|| rustix::fs::fsync(&file))).map_err(errno_of)
}

pub(super) fn sync_directory(directory: impl AsFd) -> Result<()> {
    match sync_file(directory) {
        // The file system does not support syncing directories. EROFS is different: ext4 returns it after an error that
        // stopped all writes.
        Err(Errno::EINVAL | Errno::ENOSYS | Errno::ENOTSUP) => Ok(()),
        synced => synced,
    }
}

/// Reads a regular file of at most `most` bytes and its place, opened with these additional flags. A file that has
/// only lines ends as csalock ends it. Returns `Ok(Err(reason))` if the name leads to anything else.
pub(super) fn read_file(
    at: impl AsFd,
    name: &str,
    flags: OFlag,
    most: usize,
    has_lines: bool,
) -> Result<std::result::Result<Vec<u8>, String>> {
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
        if length > most + PLACE_LENGTH {
            return Ok(Err(format!("it has more than {most} bytes")));
        }
        if has_lines && buffer[..length].ends_with(END_OF_FILE.as_bytes()) {
            break;
        }
        if length == buffer.len() {
            buffer.resize(2 * length, 0);
        }
    }
    buffer.truncate(length);
    Ok(Ok(buffer))
}

/// Gives this name an empty private file, and removes the file that had the name. Does nothing if the file system cannot
/// exchange two names, and returns false if the name is gone.
pub(super) fn replace_by_empty(at: impl AsFd, name: &str, draft: &str, ownership: Ownership) -> bool {
    if create_file(&at, draft, (OFlag::empty(), Mode::S_IRUSR | Mode::S_IWUSR, ownership), b"", false).is_err() {
        return true;
    }
    let exchanged = rustix::fs::renameat_with(&at, draft, &at, name, RenameFlags::EXCHANGE);
    let _ = remove_file(&at, draft);
    exchanged != Err(rustix::io::Errno::NOENT)
}

pub(super) fn rename(
    from: impl AsFd,
    old: &(impl NixPath + ?Sized),
    to: impl AsFd,
    new: &(impl NixPath + ?Sized),
) -> Result<()> {
    answered(nix::fcntl::renameat(from, old, to, new))
}

/// `false` if the file, or on NFS its directory, did not exist.
pub(super) fn remove_file(at: impl AsFd, name: &(impl NixPath + ?Sized)) -> Result<bool> {
    match answered(nix::unistd::unlinkat(&at, name, UnlinkatFlags::NoRemoveDir)) {
        // An empty directory in a file's place is removed too.
        Err(Errno::EISDIR) => nix::unistd::unlinkat(at, name, UnlinkatFlags::RemoveDir).map(|()| true),
        removed => was_there(removed),
    }
}

/// `false` if the directory did not exist.
pub(super) fn remove_directory(at: impl AsFd, name: &(impl NixPath + ?Sized)) -> Result<bool> {
    was_there(answered(nix::unistd::unlinkat(at, name, UnlinkatFlags::RemoveDir)))
}

pub(super) fn was_there(removed: Result<()>) -> Result<bool> {
    match removed {
        Err(Errno::ENOENT | Errno::ESTALE) => Ok(false),
        removed => removed.map(|()| true),
    }
}

/// An error is not an answer.
pub(super) fn is_there(at: impl AsFd, path: &Path) -> Result<bool> {
    match answered(fstatat(at, path, AtFlags::AT_SYMLINK_NOFOLLOW)) {
        Err(Errno::ENOENT) => Ok(false),
        found => found.map(|_| true),
    }
}

pub(super) fn each_name(directory: impl AsFd, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    forget_listing(directory.as_fd());
    each_name_as_known(directory, visit)
}

/// Makes an NFS client list the directory anew: it detects changes by the directory's times, and on v3, two changes
/// within one tick of the server's clock have equal times.
pub(super) fn forget_listing(directory: impl AsFd) {
    let _ = rustix::fs::fadvise(directory.as_fd(), 0, None, Advice::DontNeed);
}

/// Visits the names in a directory that was just opened, as this host knows them.
pub(super) fn each_name_as_known(directory: impl AsFd, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(directory.as_fd(), &mut buffer);
    while let Some(entry) = answered(entries.next()) {
        let entry = entry.map_err(errno_of)?;
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
pub(super) fn changed_at(at: impl AsFd, name: &(impl NixPath + ?Sized)) -> Result<Duration> {
    let found = fstatat(at, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    Ok(changed(&found).min(file_time(found.st_mtime, found.st_mtime_nsec)))
}

/// Time since 1970 that the file system gives to a new file.
pub(super) fn fresh_time(directory: &OwnedFd, mode: Mode) -> Result<Duration> {
    let flags = OFlag::O_WRONLY | OFlag::O_TMPFILE | OFlag::O_CLOEXEC;
    // A file without a name needs no cleanup, but NFS does not support it.
    let stat = match answered(nix::fcntl::openat(directory, ".", flags, mode)) {
        Ok(file) => fstat(&file)?,
        Err(_) => {
            let name = format!("{CLOCK}{:016x}", random()?);
            let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
            let file = answered(nix::fcntl::openat(directory, name.as_str(), flags, mode))?;
            let stat = fstat(&file);
            // An NFS client renames a file that is removed while open.
            drop(file);
            remove_file(directory, name.as_str())?;
            stat?
        }
    };
    Ok(changed(&stat))
}
