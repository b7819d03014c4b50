//! The locks that other programs have on files, for `csalock wait`: it looks for them and takes none.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::sys::statfs::statfs;

use super::context::Context;
use crate::report::{RefusalReport, locked_by};
use crate::run::flock;
use host::{FileLock, command_of, file_locks, is_file_locked};
use lock::error::ErrorKind;
use lock::name::escape;
use store::mount;

/// Number of reads of the kernel's list that miss a lock before the file counts as unlocked.
const LOOKS: usize = 10;

/// Another process, maybe one that cannot be seen from here, has locked the file.
pub(super) fn is_locked(context: &Context, file: &Path, kinds: &[FileLock]) -> bool {
    if (0..LOOKS).any(|_| is_file_locked(file, kinds)) {
        return true;
    }
    // The kernel lists no locks of other pid namespaces and of other hosts.
    let is_hidden = context.host.is_in_container()
        || statfs(file).is_ok_and(|found| mount::network(found.filesystem_type()).is_some());
    let is_locked = |kind: &FileLock| flock::is_locked(*kind, file).unwrap_or(false);
    is_hidden && file.exists() && kinds.iter().any(is_locked)
}

/// The refusal of a caller that waits for such a lock.
pub(super) fn refusal(file: &Path, kinds: &[FileLock]) -> RefusalReport {
    let mut found = file_locks(file);
    found.retain(|(kind, _)| kinds.contains(kind));
    if found.is_empty() {
        found.push((kinds[0], Vec::new()));
    }
    let by = found.into_iter().map(|(kind, pids)| locked_by(kind, pids.into_iter().map(|pid| (pid, command_of(pid)))));
    let by: Vec<String> = by.collect();
    let name = file.as_os_str().as_bytes();
    let message = format!("lock {} is busy: its file is {}", escape(name), by.join("; and "));
    RefusalReport::new(ErrorKind::Busy, message, "wait longer with -w, or see lslocks(8)").about(name)
}
