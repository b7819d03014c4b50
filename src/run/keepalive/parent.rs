//! The parent of a keeper without a supervisor, which does nothing but wait for it. If the keeper is killed, the parent
//! starts another one. If the parent is killed, the keeper becomes the parent of another keeper.

use std::ffi::CStr;

use nix::errno::Errno;
use nix::sys::prctl::set_name;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::{KeeperConfig, pause};
use crate::run::detach::{self, Detach};

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
