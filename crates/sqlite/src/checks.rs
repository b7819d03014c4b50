//! Files of the database and their directory: checks before SQLite opens them, creation with clear errors, and which
//! users may use them. No function opens a file: its close would drop SQLite's locks.

use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::stat::{Mode, SFlag, lstat, mknod, stat};
use nix::sys::statfs::statfs;
use nix::unistd::{AccessFlags, eaccess, getegid, geteuid};
use rustix::fs::lgetxattr;

use lock::error::{Error, ErrorKind, Result};
use lock::name::escape_path;
use store::mount::network;
use store::{mount, with_suffix};

pub(super) fn check_directory(path: &Path) -> Result<()> {
    let directory = directory_of(path)?;
    let failed = |errno| Error::os_through_links(errno, "use the database's directory", directory);
    let found = stat(directory).map_err(failed)?;
    if SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT != SFlag::S_IFDIR {
        return Err(failed(Errno::ENOTDIR));
    }
    let mode = Mode::from_bits_truncate(found.st_mode);
    if mode.contains(Mode::S_IWOTH) && !mode.contains(Mode::S_ISVTX) {
        let what = format!("every user may replace the database {}", escape_path(path));
        let cure = "give its directory the sticky bit (chmod +t) or take the right to write from others (chmod o-w)";
        return Err(Error::new(ErrorKind::Denied, what, cure));
    }
    let Some(kind) = network(statfs(directory).map_err(failed)?.filesystem_type()) else { return Ok(()) };
    let what = format!("{} is on {kind}, where SQLite cannot lock its database safely", escape_path(path));
    Err(Error::new(ErrorKind::Unavailable, what, "use a dir: store there, or a local directory for this one"))
}

/// `false` without a file. Anything but a regular file with one name is an error.
pub(super) fn check_file(path: &Path) -> Result<bool> {
    let found = match lstat(path) {
        Ok(found) => found,
        Err(Errno::ENOENT) if directory_of(path)?.is_dir() => return Ok(false),
        Err(errno) => return Err(Error::os(errno, "open the database", path)),
    };
    let denied = |what: &str, cure: &str| {
        Err(Error::new(ErrorKind::Denied, format!("the database {} {what}", escape_path(path)), cure))
    };
    match SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => {}
        SFlag::S_IFLNK => return denied("is a symbolic link", "links are not followed there; name the real file"),
        _ => {
            let what = format!("{} is not a file, so it is not a database", escape_path(path));
            return Err(Error::new(ErrorKind::Unavailable, what, "name a file, or use a dir: store"));
        }
    }
    // Each name has a log of its own, so its users would not see the grants of others.
    if found.st_nlink > 1 {
        return denied("has several names (hard links), each with a log of its own", "remove the other names");
    }
    if mount::is_file_mounted_alone(path) {
        let what = "is mounted without its log, which is a file next to it";
        return denied(what, "mount the directory of the database");
    }
    check_journals(path).map(|()| true)
}

/// Device and inode number, which distinguish a file from its successor at the same path.
pub(super) type FileId = (u64, u64);

/// `None` if there is no file, or one with another name, too.
pub(super) fn file_id(path: &Path) -> Option<FileId> {
    let found = lstat(path).ok()?;
    (found.st_nlink == 1).then_some((found.st_dev, found.st_ino))
}

/// Certainly the path names this file, and no other path does.
pub(super) fn is_name_of(path: &Path, file: Option<FileId>) -> bool {
    file.is_some() && file == file_id(path)
}

/// `false` if it cannot be found out.
pub(super) fn is_elsewhere(path: &Path, id: FileId) -> bool {
    match lstat(path) {
        // Another name of the file, as a backup may make it, does not move the file.
        Ok(found) => (found.st_dev, found.st_ino) != id,
        Err(errno) => matches!(errno, Errno::ENOENT | Errno::ENOTDIR),
    }
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
    // The mode of the database may have been changed after it had got a log.
    for file in [path.to_path_buf(), with_suffix(path, "-wal")] {
        let found = lstat(&file).map_or(0, |found| found.st_mode & 0o7777);
        if found & 0o077 & !mode != 0 {
            let path = escape_path(&file);
            let what = format!("the database {path} has mode {found:04o}, which is more than {:04o}", mode & 0o777);
            let less = found & (mode | 0o7700);
            let cure = format!("chmod {less:04o} that file, or use a dir: store, where records have modes");
            return Err(Error::new(ErrorKind::Denied, what, cure));
        }
    }
    Ok(())
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

/// Why the system prevents use of the database. It is not opened.
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
    if let Err(errno) = eaccess(directory, AccessFlags::W_OK | AccessFlags::X_OK) {
        return Some(Error::os(errno, "create the database's journal in", directory));
    }
    // A journal is a new file, which needs an inode. Some file systems do not count inodes.
    foreign_journal(path, directory).or_else(|| {
        let has_no_inode = statfs(directory).is_ok_and(|found| found.files() > 0 && found.files_free() == 0);
        has_no_inode.then(|| Error::os(Errno::ENOSPC, "write the database", path))
    })
}

/// A process that is killed during a write leaves a journal, which the next process plays back and removes. The sticky bit
/// may prevent that.
fn foreign_journal(path: &Path, directory: &Path) -> Option<Error> {
    let place = stat(directory).ok()?;
    let journal = lstat(&with_suffix(path, "-journal")).ok()?;
    let is_sticky = Mode::from_bits_truncate(place.st_mode).contains(Mode::S_ISVTX);
    if !is_sticky || [0, place.st_uid, journal.st_uid].contains(&geteuid().as_raw()) {
        return None;
    }
    let what = format!("user {} was killed while writing the database {}", journal.st_uid, escape_path(path));
    let cure =
        "let that user, the directory's owner or root use it once; share databases without the sticky bit (chmod -t)";
    Some(Error::new(ErrorKind::Denied, what, cure))
}

/// The file is the whole database, without log and journal, and this user cannot create a log.
pub(super) fn cannot_make_log(path: &Path) -> bool {
    let may_not = |path: &Path| eaccess(path, AccessFlags::W_OK).is_err();
    // A killed writer leaves a journal, and with it a file that is only partly changed.
    let is_whole = ["-wal", "-journal"].iter().all(|suffix| lstat(&with_suffix(path, suffix)).is_err());
    is_whole && (may_not(path) || directory_of(path).is_ok_and(may_not))
}

/// Each user who may create a log next to the database must be able to write the database, and each user of the database
/// to use that log. SQLite gives a log the mode of the database, but the group of the process.
pub(super) fn may_have_log(path: &Path) -> bool {
    let (Ok(file), Some(directory)) = (lstat(path), path.parent().and_then(|directory| stat(directory).ok())) else {
        return false;
    };
    // In a shared sticky directory the kernel refuses O_CREAT for another user's file (fs.protected_regular).
    let is_shared_sticky = directory.st_mode & 0o1000 != 0 && directory.st_mode & 0o022 != 0;
    // The log would not have the access control list of the database.
    let list = lgetxattr(path, "system.posix_acl_access", &mut [0; 1024]);
    if is_shared_sticky || !matches!(list, Err(rustix::io::Errno::NODATA | rustix::io::Errno::NOTSUP)) {
        return false;
    }
    let group_creates = directory.st_mode & 0o020 != 0;
    let owner_writes = [0, file.st_uid].contains(&directory.st_uid);
    if !owner_writes || (group_creates && file.st_mode & 0o020 == 0) {
        return false;
    }
    let needs_group = (file.st_mode >> 3) & !file.st_mode & 0o6 != 0;
    let keeps_group = if directory.st_mode & 0o2000 != 0 {
        directory.st_gid == file.st_gid
    } else {
        // Then only the owner of the directory and root make a log. SQLite gives root's log the database's group.
        let is_ours = geteuid().as_raw() == directory.st_uid;
        !group_creates && is_ours && (geteuid().is_root() || getegid().as_raw() == file.st_gid)
    };
    !needs_group || keeps_group
}

/// Only the links in its directory are resolved.
pub(super) fn without_links(path: &Path) -> PathBuf {
    let resolved = directory_of(path).ok().and_then(|directory| std::fs::canonicalize(directory).ok());
    match (resolved, path.file_name()) {
        (Some(directory), Some(file)) => directory.join(file),
        _ => path.to_path_buf(),
    }
}

fn directory_of(path: &Path) -> Result<&Path> {
    path.file_name().and_then(|_| path.parent()).ok_or_else(|| {
        let what = format!("{} is a directory, not a database", escape_path(path));
        Error::new(ErrorKind::Unavailable, what, "name a file in it, or use a dir: store")
    })
}
