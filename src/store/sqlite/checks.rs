//! Checks of the database file and its directory before SQLite opens them, and creation with clear errors.

use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::stat::{Mode, SFlag, lstat, makedev, mknod, stat};
use nix::sys::statfs::statfs;
use nix::unistd::{AccessFlags, eaccess, geteuid};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};

use crate::error::{Error, ErrorKind, Result};
use crate::name::escape_path;
use crate::store::mount::network;
use crate::store::{mount, with_suffix};

/// Checks that a database may exist at `path`.
pub(super) fn check_directory(path: &Path) -> Result<()> {
    let directory = directory_of(path)?;
    let failed = |errno| Error::os_through_links(errno, "use the database's directory", directory);
    let found = stat(directory).map_err(failed)?;
    if SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT != SFlag::S_IFDIR {
        return Err(failed(Errno::ENOTDIR));
    }
    let mode = Mode::from_bits_truncate(found.st_mode);
    if mode.contains(Mode::S_IWOTH) && !mode.contains(Mode::S_ISVTX) {
        return Err(Error::new(
            ErrorKind::Denied,
            format!("every user may replace the database {}", escape_path(path)),
            "give its directory the sticky bit (chmod +t) or take the right to write from others (chmod o-w)",
        ));
    }
    match network(statfs(directory).map_err(failed)?.filesystem_type()) {
        Some(kind) => Err(Error::new(
            ErrorKind::Unavailable,
            format!("{} is on {kind}, where SQLite cannot lock its database safely", escape_path(path)),
            "use a dir: store there, or a local directory for this one",
        )),
        None => Ok(()),
    }
}

/// Returns the identity of the file if it exists. Anything but a regular file is an error.
pub(super) fn check_file(path: &Path) -> Result<Option<FileId>> {
    let found = match look(path) {
        Ok(found) => found,
        Err(Errno::ENOENT) if directory_of(path)?.is_dir() => return Ok(None),
        Err(errno) => return Err(Error::os(errno, "open the database", path)),
    };
    match SFlag::from_bits_truncate(found.mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => {
            check_names(path, &found)?;
            check_journals(path).map(|()| Some(found.id))
        }
        SFlag::S_IFLNK => Err(Error::new(
            ErrorKind::Denied,
            format!("the database {} is a symbolic link", escape_path(path)),
            "links are not followed there; name the real file",
        )),
        _ => Err(Error::new(
            ErrorKind::Unavailable,
            format!("{} is not a file, so it is not a database", escape_path(path)),
            "name a file, or use a dir: store",
        )),
    }
}

/// Device and inode number, which distinguish a file from its successor at the same path.
pub(super) type FileId = (u64, u64);

/// Returns the identity of the file at this path, if there is one, and if it has no other name.
pub(super) fn file_id(path: &Path) -> Option<FileId> {
    look(path).ok().filter(Found::is_sole).map(|found| found.id)
}

/// Returns true if this path names another file than the one with this identity, or none. It returns false if that
/// cannot be found out.
pub(super) fn is_elsewhere(path: &Path, id: FileId) -> bool {
    match look(path) {
        Ok(found) => found.id != id || !found.is_sole(),
        Err(errno) => matches!(errno, Errno::ENOENT | Errno::ENOTDIR),
    }
}

/// Object at a path.
struct Found {
    mode: u32,
    links: u64,
    id: FileId,
    /// Whether it is a mount of its own, which kernels before 5.8 do not say.
    is_mount: Option<bool>,
}

impl Found {
    /// Returns true if the file has no other name.
    fn is_sole(&self) -> bool {
        self.links == 1 && self.is_mount != Some(true)
    }
}

fn look(path: &Path) -> nix::Result<Found> {
    let (flags, wanted) = (AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS);
    let found = match statx(CWD, path, flags, wanted) {
        Ok(found) => found,
        // Kernels before 4.11 do not have this call.
        Err(rustix::io::Errno::NOSYS) => {
            let found = lstat(path)?;
            let id = (found.st_dev, found.st_ino);
            return Ok(Found { mode: found.st_mode, links: found.st_nlink, id, is_mount: None });
        }
        Err(errno) => return Err(Errno::from_raw(errno.raw_os_error())),
    };
    let device = makedev(found.stx_dev_major.into(), found.stx_dev_minor.into());
    let is_mount = Some(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    Ok(Found {
        mode: found.stx_mode.into(),
        links: found.stx_nlink.into(),
        id: (device, found.stx_ino),
        is_mount: is_mount.filter(|_| found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT)),
    })
}

/// Refuses a file with several names. Each name has a log of its own, so its users would not see the grants of others.
fn check_names(path: &Path, found: &Found) -> Result<()> {
    let (what, cure) = if found.links > 1 {
        ("has several names (hard links), each with a log of its own", "remove the other names")
    } else if found.is_mount.unwrap_or_else(|| mount::is_mount_point(path)) {
        ("is mounted without its log, which is a file next to it", "mount the directory of the database")
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Denied, format!("the database {} {what}", escape_path(path)), cure))
}

/// Refuses files that SQLite would treat as a journal and either wait for or fail on with unclear errors.
fn check_journals(path: &Path) -> Result<()> {
    for behind in ["-journal", "-wal"] {
        let journal = with_suffix(path, behind);
        let found = lstat(&journal).map(|found| SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT);
        if found.is_ok_and(|kind| kind != SFlag::S_IFREG) {
            let what = format!("{} is not a file, so it is not a journal of the database", escape_path(&journal));
            return Err(Error::new(ErrorKind::Corrupt, what, "see who made it, and move it away"));
        }
    }
    Ok(())
}

/// Refuses a database that more users may access than this mode allows. A missing file fails at the write instead.
pub(super) fn check_mode(path: &Path, mode: u32) -> Result<()> {
    check_mode_of(path, mode)?;
    // Its mode may have been changed after it had got a log.
    check_mode_of(&with_suffix(path, "-wal"), mode)
}

fn check_mode_of(path: &Path, mode: u32) -> Result<()> {
    let Ok(found) = lstat(path) else { return Ok(()) };
    if found.st_mode & 0o077 & !mode == 0 {
        return Ok(());
    }
    let (path, found) = (escape_path(path), found.st_mode & 0o7777);
    Err(Error::new(
        ErrorKind::Denied,
        format!("the database {path} has mode {found:04o}, which is more than {:04o}", mode & 0o777),
        format!("chmod {:04o} that file, or use a dir: store, where records have modes", found & (mode | 0o7700)),
    ))
}

/// Creates an empty file, with this mode at most. The call succeeds if another process created it first.
///
/// SQLite would create it too, but never group-writable, and its error would have no reason. mknod(2) opens no file. A
/// close would drop the locks that another connection of this process has on the file.
pub(super) fn create_file(path: &Path, mode: Option<u32>) -> Result<()> {
    let mode = Mode::from_bits_truncate(mode.unwrap_or(0o666) & 0o666);
    match mknod(path, SFlag::S_IFREG, mode, 0) {
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(Error::os(errno, "create the database", path)),
    }
}

/// Returns the reason why the system prevents use of the database, without opening it.
pub(super) fn obstacle(path: &Path) -> Option<Error> {
    if let Err(error) = check_directory(path).and_then(|()| check_file(path)) {
        return Some(error);
    }
    let files = ["", "-wal", "-shm"].map(|suffix| with_suffix(path, suffix));
    for (wanted, doing) in [(AccessFlags::R_OK, "read the database"), (AccessFlags::W_OK, "write the database")] {
        for file in files.iter().filter(|file| *file == path || lstat(*file).is_ok()) {
            if let Err(errno) = eaccess(file, wanted) {
                return Some(Error::os(errno, doing, file));
            }
        }
    }
    let directory = directory_of(path).ok()?;
    match eaccess(directory, AccessFlags::W_OK | AccessFlags::X_OK) {
        Err(errno) => Some(Error::os(errno, "create the database's journal in", directory)),
        Ok(()) => foreign_journal(path, directory).or_else(|| no_inodes(path, directory)),
    }
}

/// Returns an error without free inodes, because a journal is a new file.
fn no_inodes(path: &Path, directory: &Path) -> Option<Error> {
    let found = statfs(directory).ok()?;
    // Some file systems do not count inodes.
    let are_used_up = found.files() > 0 && found.files_free() == 0;
    are_used_up.then(|| Error::os(Errno::ENOSPC, "write the database", path))
}

/// Returns an error for a journal that this process cannot remove because of the sticky bit. A process that is killed
/// during a write leaves such a journal, which the next process plays back and removes.
fn foreign_journal(path: &Path, directory: &Path) -> Option<Error> {
    let place = stat(directory).ok()?;
    let journal = lstat(&with_suffix(path, "-journal")).ok()?;
    let (we, sticky) = (geteuid(), Mode::from_bits_truncate(place.st_mode).contains(Mode::S_ISVTX));
    if !sticky || we.is_root() || [place.st_uid, journal.st_uid].contains(&we.as_raw()) {
        return None;
    }
    Some(Error::new(
        ErrorKind::Denied,
        format!("user {} was killed while writing the database {}", journal.st_uid, escape_path(path)),
        "let that user, the directory's owner or root use it once; share databases without the sticky bit (chmod -t)",
    ))
}

/// Returns the path with the symlinks in its directory resolved.
pub(super) fn without_links(path: &Path) -> PathBuf {
    let resolved = directory_of(path).ok().and_then(|directory| std::fs::canonicalize(directory).ok());
    match (resolved, path.file_name()) {
        (Some(directory), Some(file)) => directory.join(file),
        _ => path.to_path_buf(),
    }
}

fn directory_of(path: &Path) -> Result<&Path> {
    match (path.parent(), path.file_name()) {
        (Some(directory), Some(_)) if directory.as_os_str().is_empty() => Ok(Path::new(".")),
        (Some(directory), Some(_)) => Ok(directory),
        _ => Err(Error::new(
            ErrorKind::Unavailable,
            format!("{} is a directory, not a database", escape_path(path)),
            "name a file in it, or use a dir: store",
        )),
    }
}
