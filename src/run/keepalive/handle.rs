//! The keeper of a command, as its supervisor sees it: start, restart and stop.
//!
//! A keeper without a supervisor has a parent that does nothing but wait for it. If the keeper is killed, the parent
//! starts another one. If the parent is killed, the keeper becomes the parent of another keeper.

use std::cell::Cell;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::prctl::set_name;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::{KeeperConfig, drain, new_event, pause};
use crate::error::{Error, ErrorKind, Result};
use crate::host::WakeSocket;
use crate::run::detach::{self, Detach};

/// The keeper of a command, as its supervisor sees it.
pub struct Keeper<'a> {
    config: KeeperConfig<'a>,
    /// Receives a wake-up when the command renews or releases. It exists before the command starts, and each keeper
    /// inherits it.
    wake_socket: Option<&'a WakeSocket>,
    /// An eventfd by which the keeper reports a new end of the lease.
    new_end: OwnedFd,
    pid: Cell<Option<Pid>>,
    was_started: Cell<bool>,
    /// True if the keeper ended by itself because no lease is left to renew.
    done: Cell<bool>,
}

impl<'a> Keeper<'a> {
    /// Returns an eventfd for [`Keeper::new`].
    pub fn new_end_event() -> Result<OwnedFd> {
        new_event().map_err(|errno| Error::new(ErrorKind::System, format!("cannot make an eventfd: {errno}"), ""))
    }

    pub fn new(config: KeeperConfig<'a>, wake_socket: Option<&'a WakeSocket>, new_end: OwnedFd) -> Keeper<'a> {
        let (pid, was_started, done) = (Cell::new(None), Cell::new(false), Cell::new(false));
        Keeper { config, wake_socket, new_end, pid, was_started, done }
    }

    /// Starts the keeper unless it runs or has finished its work. Returns true if it runs or has finished.
    pub fn ensure_running(&self) -> bool {
        if self.pid.get().is_none() && !self.done.get() {
            let supervisor = Pid::this();
            // An earlier keeper may have received a wake-up that it did not handle, and a socket of its own comes later.
            let is_late = self.was_started.replace(true) || self.wake_socket.is_none();
            let work = || self.config.run(None, Some(supervisor), Some(&self.new_end), self.wake_socket, is_late);
            let keep: Vec<_> =
                [Some(self.new_end.as_fd()), self.wake_socket.map(AsFd::as_fd)].into_iter().flatten().collect();
            // If the keeper does not start, the supervisor ends the command before the lease ends.
            self.pid.set(detach::spawn(Detach::Child, &keep, work).unwrap_or(None));
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
        self.new_end.as_fd()
    }

    /// Returns true if that happened since the last call.
    pub fn drain(&self) -> bool {
        let is_new = drain(self.new_end.as_fd());
        let status = self.pid.get().map(|pid| waitpid(pid, Some(WaitPidFlag::WNOHANG)));
        let ended = status.is_some_and(|status| status != Ok(WaitStatus::StillAlive));
        if ended {
            self.pid.set(None);
            self.done.set(matches!(status, Some(Ok(WaitStatus::Exited(_, 0)))));
        }
        is_new || ended
    }

    /// Returns the process of the keeper, which [`Keeper::drain`] reaps.
    pub fn process(&self) -> Option<Pid> {
        self.pid.get()
    }
}

/// The name of the process, as ps(1) shows it.
const NAME: &CStr = c"csalock-parent";

impl KeeperConfig<'_> {
    /// Starts a keeper, and another one as often as it is killed; `is_late` means that a keeper was there before. Returns
    /// when a keeper has ended by itself.
    pub(super) fn run_in_child(&self, mut is_late: bool) {
        let _ = set_name(NAME);
        let this = Pid::this();
        loop {
            let keep = || {
                self.run(Some(this), None, None, None, is_late);
                // The parent was killed, and the threads of this keeper have ended.
                self.run_in_child(true);
            };
            match detach::spawn(Detach::Child, &[], keep) {
                Ok(Some(keeper)) if !has_finished(keeper) => {
                    // A keeper that is killed again and again must not keep a processor busy.
                    if is_late {
                        pause();
                    }
                }
                Ok(_) => return,
                // There is no memory or no process for a keeper at the moment.
                Err(_) => pause(),
            }
            is_late = true;
        }
    }
}

/// Waits for the end of a keeper. Returns false if a signal ended it, or if it could not start.
fn has_finished(keeper: Pid) -> bool {
    loop {
        match waitpid(keeper, None) {
            Err(Errno::EINTR) => {}
            status => return !matches!(status, Ok(WaitStatus::Signaled(..) | WaitStatus::Exited(_, 1..))),
        }
    }
}
