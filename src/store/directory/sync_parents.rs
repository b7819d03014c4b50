//! The directories above a store, which have to outlast a power cut as well if anything in it is to.
//!
//! Who swaps cannot know when the store was made: perhaps a moment ago, by somebody who needed nothing synced. So the
//! directory that it stands in is always synced, once for each process that asks. Of a default store the levels above
//! that may be as new, and are synced upward as far as we could have made them: to the first directory in which we may
//! not write, or where another file system begins.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::fstat;
use nix::unistd::{AccessFlags, faccessat, syncfs};

use super::sys;
use crate::store::Layout;

/// Syncs them. They are found by `..`, since the store's path may be a link.
pub(super) fn sync_above(store: &OwnedFd, layout: Layout) -> Result<(), Errno> {
    let mut below = sys::open_directory(store, ".")?;
    loop {
        let may_write = faccessat(&below, "..", AccessFlags::W_OK, AtFlags::AT_EACCESS).is_ok();
        let above = match sys::open_directory(&below, "..") {
            // It may be written and not be read: then the whole file system is the least that we can ask for.
            Err(Errno::EACCES) if may_write => return syncfs(store),
            // Whoever made the store there was somebody else.
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
