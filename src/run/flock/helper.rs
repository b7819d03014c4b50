//! The process that blocks in flock(2) for csalock, so that csalock can wait for other events too.

#![expect(unsafe_code, reason = "fork")]

use std::cell::Cell;
use std::fs::File;

use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getppid};

use super::lock;
use crate::lock::Mode;
use crate::run::child::in_spite_of_signals;
use crate::run::detach::exit_now;

/// The helper. It ends when csalock ends, or when this value is dropped.
pub(super) struct Helper {
    pid: Pid,
    /// The result, once reaped; the pid may belong to another process from then on. EINTR: a signal killed the helper.
    ended: Cell<Option<nix::Result<()>>>,
}

impl Helper {
    pub(super) fn start(file: &File, mode: Mode) -> nix::Result<Helper> {
        let parent = Pid::this();
        // SAFETY: the child only makes system calls; it acquires no mutex and allocates nothing.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(Helper { pid: child, ended: Cell::new(None) }),
            ForkResult::Child => {
                // The child inherits the blocked signals that end a wait, so only the parent ends it.
                let locked = set_pdeathsig(Signal::SIGKILL).and_then(|()| match getppid() == parent {
                    true => in_spite_of_signals(|| lock(file, mode, true)),
                    false => Err(Errno::ESRCH),
                });
                // This runs no cleanup of the parent a second time.
                exit_now(locked.err().map_or(0, |errno| errno as u8))
            }
        }
    }

    /// Returns the result of the attempt, or `None` while the helper waits.
    pub(super) fn ended(&self) -> Option<nix::Result<()>> {
        self.reap(Some(WaitPidFlag::WNOHANG))
    }

    /// Ends the helper. Returns true if it had acquired the lock.
    pub(super) fn stop(&self) -> bool {
        if self.ended.get().is_none() {
            let _ = kill(self.pid, Signal::SIGKILL);
        }
        self.reap(None) == Some(Ok(()))
    }

    fn reap(&self, how: Option<WaitPidFlag>) -> Option<nix::Result<()>> {
        while self.ended.get().is_none() {
            self.ended.set(match waitpid(self.pid, how) {
                Err(Errno::EINTR) => continue,
                Ok(WaitStatus::StillAlive) => return None,
                Ok(WaitStatus::Exited(_, 0)) => Some(Ok(())),
                Ok(WaitStatus::Exited(_, errno)) => Some(Err(Errno::from_raw(errno))),
                Ok(_) | Err(_) => Some(Err(Errno::EINTR)),
            });
        }
        self.ended.get()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.stop();
    }
}
