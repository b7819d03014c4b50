//! The write-ahead log of the database: which databases have one, and when it is written into the database.
//!
//! A log makes a commit cheap: an append, without a sync unless the commit must survive a power cut. SQLite reads the
//! whole log when a process opens a database that no other process has open. The log therefore stays short.
//!
//! Log and index (`-wal`, `-shm`) are files of their own, which stay when the process ends. If another program removed
//! them, even a read creates them again. SQLite gives them the mode of the database, but the group of the process and no
//! access control list. If a user of the database could not write them, the database keeps the rollback journal.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use nix::unistd::{AccessFlags, eaccess, getegid, geteuid};
use rustix::fs::lgetxattr;
use rustix::io::Errno;

use super::{Sqlite, vfs};
use crate::store::{guarded, with_suffix};

/// Number of frames at which the log is written into the database and emptied.
///
/// A frame costs each lone process 2 us, and the writing costs three syncs, 0.5 ms or more. A commit is one or two
/// frames.
const MOST_FRAMES: i32 = 12;

impl Sqlite {
    /// Keeps the log short after a commit, and gives the database a log if it may have one. Does not wait for other
    /// processes. If it fails, the next commit tries again.
    pub(super) fn tend_journal(&self) {
        let database = guarded(&self.database);
        let Some(open) = database.as_ref() else { return };
        let frames = open.frames.load(Ordering::Relaxed);
        let statement = match frames {
            0 if may_have_log(&self.path) => "PRAGMA journal_mode = WAL",
            MOST_FRAMES.. => "PRAGMA wal_checkpoint(TRUNCATE)",
            _ => return,
        };
        let tend = || open.connection.query_row(statement, [], |_| Ok(()));
        let _ = self.busy.without_waiting(|| vfs::within(&self.busy, tend));
    }
}

/// Removes the log and the index of an earlier database with this name, which processes may still use. The caller has
/// locked the database for writing. While it is empty, no process has a log of it.
pub(super) fn remove_foreign_log(path: &Path) {
    if fs::symlink_metadata(path).is_ok_and(|found| found.len() == 0) {
        for suffix in ["-wal", "-shm"] {
            let _ = fs::remove_file(with_suffix(path, suffix));
        }
    }
}

/// Returns true if the file is the whole database, without log and journal, and this user cannot create a log.
pub(super) fn cannot_make_log(path: &Path) -> bool {
    let may_not = |path: &Path| eaccess(path, AccessFlags::W_OK).is_err();
    let is_there = |suffix| fs::symlink_metadata(with_suffix(path, suffix)).is_ok();
    // A killed writer leaves a journal, and with it a file that is only partly changed.
    !is_there("-wal") && !is_there("-journal") && (may_not(path) || path.parent().is_none_or(may_not))
}

/// Returns true if this user may only read the database of this log, and would create the log or its index. They would
/// belong to this user, and the owner of the database could not write them.
pub(super) fn is_foreign_log(log: &Path) -> bool {
    let Some(database) = log.as_os_str().as_bytes().strip_suffix(b"-wal") else { return false };
    let database = Path::new(OsStr::from_bytes(database));
    let is_missing = |suffix| fs::symlink_metadata(with_suffix(database, suffix)).is_err();
    (is_missing("-wal") || is_missing("-shm")) && eaccess(database, AccessFlags::W_OK).is_err()
}

/// Returns true if all users of the database could write a log that any of them creates.
fn may_have_log(path: &Path) -> bool {
    let directory = path.parent().and_then(|directory| fs::metadata(directory).ok());
    let (Some(directory), Ok(file)) = (directory, fs::symlink_metadata(path)) else { return false };
    let is = |mode: u32, of: &fs::Metadata| of.mode() & mode != 0;
    // In a shared sticky directory the kernel refuses O_CREAT for another user's file (fs.protected_regular).
    if is(0o1000, &directory) && is(0o022, &directory) {
        return false;
    }
    // A new file has the entries of an access control list only if it gets them from the directory.
    if has_list("access", path) && !path.parent().is_some_and(|directory| has_list("default", directory)) {
        return false;
    }
    let needs_group = (file.mode() >> 3) & !file.mode() & 0o6 != 0;
    let keeps_group = if is(0o2000, &directory) {
        directory.gid() == file.gid()
    } else {
        // Then only the owner of the directory and root make a log. SQLite gives root's log the database's group.
        let (us, group) = (geteuid(), getegid().as_raw());
        !is(0o020, &directory) && us.as_raw() == directory.uid() && (us.is_root() || group == file.gid())
    };
    !needs_group || keeps_group
}

fn has_list(kind: &str, path: &Path) -> bool {
    let found = lgetxattr(path, format!("system.posix_acl_{kind}"), &mut [0; 1024]);
    !matches!(found, Err(Errno::NODATA | Errno::NOTSUP))
}
