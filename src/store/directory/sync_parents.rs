//! The directories above a store, which must outlast a power cut too if anything in the store must.
//!
//! A commit cannot know when the store was made: perhaps a moment ago, by a process that synced nothing. So each
//! process syncs the parent directory once. Above a default store, the levels further up may be as new. csalock syncs
//! them as far as it could have made them: up to the first directory that is not writable, or to another file system.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::fstat;
use nix::unistd::{AccessFlags, faccessat, syncfs};

use super::sys;
use crate::store::Layout;

/// Syncs the directories above a store. The walk uses `..`, because the store's path may be a link.
pub(super) fn sync_above(store: &OwnedFd, layout: Layout) -> Result<(), Errno> {
    let mut below = sys::open_directory(store, ".")?;
    loop {
        let may_write = faccessat(&below, "..", AccessFlags::W_OK, AtFlags::AT_EACCESS).is_ok();
        let above = match sys::open_directory(&below, "..") {
            // The directory is writable but not readable, so a sync of the whole file system is the smallest request.
            Err(Errno::EACCES) if may_write => return syncfs(store),
            // Another user made the store there.
            Err(Errno::EACCES) => return Ok(()),
            above => above?,
        };
        let (inner, outer) = (fstat(&below)?, fstat(&above)?);
        if inner.st_dev != outer.st_dev || inner.st_ino == outer.st_ino {
            return Ok(());
        }
        sys::sync_directory(&above)?;
        if layout != Layout::Default || !may_write {
            return Ok(());
        }
        below = above;
    }
}
