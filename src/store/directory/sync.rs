//! Syncing of a store, and of the directories above it, which must outlast a power cut too if anything in it must.
//!
//! A commit cannot know when the store was made: perhaps a moment ago, by a process that synced nothing. So each
//! process syncs the parent directory once. Above a default store, the levels further up may be as new. csalock syncs
//! them as far as it could have made them: up to the first directory that is not writable, or to another file system.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::fstat;
use nix::unistd::{AccessFlags, faccessat, syncfs};

use super::root::Root;
use super::sys;
use crate::error::{Error, Result};
use crate::store::Layout;

impl Root {
    /// Waits until the token is on disk. The directory that contains it may be new.
    pub(super) fn sync_token(&self) -> Result<()> {
        if self.layout == Layout::Beside {
            return Ok(());
        }
        self.in_work(|work| sys::sync_directory(work))?;
        self.sync()
    }

    /// Waits until the names in the store, and the store itself, are on disk.
    pub(super) fn sync(&self) -> Result<()> {
        let failed = |errno| Error::os(errno, "sync the store", &self.path);
        sys::sync_directory(&self.directory).map_err(failed)?;
        if self.anchored.get().is_none() {
            let outermost = match &self.sticky {
                Some(sticky) => sys::sync_directory(sticky).map(|()| sticky).map_err(failed)?,
                None => &self.directory,
            };
            sync_above(outermost, self.layout).map_err(failed)?;
            let _ = self.anchored.set(());
        }
        Ok(())
    }
}

/// Syncs the directories above a store. The walk uses `..`, because the store's path may be a link.
fn sync_above(store: &OwnedFd, layout: Layout) -> std::result::Result<(), Errno> {
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
