//! Protection of stores in /tmp and /var/tmp from the programs that remove old files there.
//!
//! The records of a lock are as old as the lock, so to a cleaner they look forgotten. systemd-tmpfiles skips a directory
//! on which another process has a lock of flock(2), and everything below it (tmpfiles.d(5)). A shared lock suffices, so
//! the holders do not disturb each other. Other stores cost nothing.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, open};
use nix::sys::stat::Mode;

use crate::Engine;

/// Cleaners look for files that are hours or days old, and most commands end sooner than this.
pub const UNPROTECTED_TIME: Duration = Duration::from_secs(1);

/// Locks on the directories of stores. They end with this value or with the process.
pub struct CleanerGuard {
    unprotected: Vec<PathBuf>,
    protected: Vec<Flock<OwnedFd>>,
}

impl CleanerGuard {
    pub fn of<'a>(engines: impl IntoIterator<Item = &'a Engine>) -> CleanerGuard {
        let directories = engines.into_iter().filter_map(|engine| engine.store().cleaned_directory());
        let mut unprotected: Vec<PathBuf> = directories.collect();
        unprotected.dedup();
        CleanerGuard { unprotected, protected: Vec::new() }
    }

    pub fn is_needed(&self) -> bool {
        !self.unprotected.is_empty()
    }

    /// A next call tries again: a cleaner may work there now, or descriptors may be scarce.
    pub fn protect(&mut self) {
        let protected = &mut self.protected;
        self.unprotected.retain(|directory| match shared_lock(directory) {
            Ok(lock) => {
                protected.push(lock);
                false
            }
            Err(errno) => matches!(errno, Errno::EWOULDBLOCK | Errno::EINTR | Errno::EMFILE | Errno::ENFILE),
        });
    }
}

fn shared_lock(directory: &Path) -> nix::Result<Flock<OwnedFd>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let directory = open(directory, flags, Mode::empty())?;
    Flock::lock(directory, FlockArg::LockSharedNonblock).map_err(|(_, errno)| errno)
}
