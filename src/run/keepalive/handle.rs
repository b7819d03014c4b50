//! The keeper of a command, as its supervisor sees it: start, restart and stop.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::{KeeperConfig, drain, new_pipe};
use crate::error::{Error, ErrorKind, Result};
use crate::run::detach::{self, Detach};

/// The keeper of a command, as its supervisor sees it.
pub struct Keeper<'a> {
    /// `None` if the command ended before the supervisor could identify it.
    config: Option<KeeperConfig<'a>>,
    hear: OwnedFd,
    tell: OwnedFd,
    pid: Cell<Option<Pid>>,
    /// True if the keeper ended by itself because no lease is left to renew.
    done: Cell<bool>,
}

impl<'a> Keeper<'a> {
    /// Returns a keeper that has not started yet.
    pub fn new(config: Option<KeeperConfig<'a>>) -> Result<Keeper<'a>> {
        let failed =
            |errno: nix::Error| Error::new(ErrorKind::System, format!("cannot make a pipe: {}", errno.desc()), "");
        let (hear, tell) = new_pipe().map_err(failed)?;
        Ok(Keeper { config, hear, tell, pid: Cell::new(None), done: Cell::new(false) })
    }

    /// Starts the keeper unless it runs or has finished its work. Returns true if it runs or has finished.
    pub fn ensure_running(&self) -> bool {
        if let Some(config) = self.config.as_ref().filter(|_| self.pid.get().is_none() && !self.done.get()) {
            let supervisor = Pid::this();
            let work = || config.run(Some(supervisor), Some(&self.tell));
            // If the keeper does not start, the supervisor ends the command before the lease ends.
            self.pid.set(detach::spawn(Detach::Child, Some(&self.tell), work).unwrap_or(None));
        }
        self.pid.get().is_some() || self.done.get()
    }

    /// Kills and reaps the keeper.
    pub fn stop(&self) {
        if let Some(pid) = self.pid.take() {
            let _ = kill(pid, Signal::SIGKILL);
            let _ = waitpid(pid, None);
        }
    }

    /// Returns a descriptor that becomes readable when the lease has a new end, or the keeper has ended.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.hear.as_fd()
    }

    /// Returns true if that happened since the last call.
    pub fn drain(&self) -> bool {
        let came = drain(self.hear.as_fd());
        let status = self.pid.get().map(|pid| waitpid(pid, Some(WaitPidFlag::WNOHANG)));
        let ended = status.is_some_and(|status| status != Ok(WaitStatus::StillAlive));
        if ended {
            self.pid.set(None);
            self.done.set(matches!(status, Some(Ok(WaitStatus::Exited(_, 0)))));
        }
        came || ended
    }

    /// Returns the process of the keeper, which [`Keeper::drain`] reaps.
    pub fn process(&self) -> Option<Pid> {
        self.pid.get()
    }
}
