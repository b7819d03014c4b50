//! The child of `run-with-lock` before it becomes the command: its reports to the supervisor, and the start signal.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

use crate::exit::Exit;
use crate::host::StartupState;
use crate::signals::reraise;

/// The process that becomes the command.
#[derive(Debug)]
pub struct ChildSide {
    pub(super) tell: OwnedFd,
    pub(super) supervisor: Pid,
    /// The descriptor of the start signal, if the child needs a start signal.
    pub(super) go: Option<OwnedFd>,
}

/// The report of the child to its supervisor before the child becomes the command or ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// The lock is acquired.
    Granted,
    /// The child ends without a command; this is the exit code.
    Exit(u8),
}

impl ChildSide {
    /// Ends this process when its supervisor ends, until this process becomes the command.
    pub fn depend_on_guardian(&self, inherited: StartupState) {
        // SIGTERM lets a waiter leave the queue properly. If SIGTERM is ignored, the queue skips the dead waiter.
        let gentle = !inherited.ignored(Signal::SIGTERM);
        let _ = set_pdeathsig(if gentle { Signal::SIGTERM } else { Signal::SIGKILL });
        if getppid() != self.supervisor {
            // The supervisor ended before the death signal was set.
            reraise(Signal::SIGKILL);
        }
    }

    /// Waits at most `at_most` for the start signal. Returns true if it came.
    pub fn wait_for_go(&self, at_most: Duration) -> bool {
        let Some(ask) = &self.go else { return true };
        let at_most = PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX);
        let came = in_spite_of_signals(|| poll(&mut [PollFd::new(ask.as_fd(), PollFlags::POLLIN)], at_most));
        came.is_ok_and(|ready| ready > 0) && in_spite_of_signals(|| nix::unistd::read(ask, &mut [0; 1])) == Ok(1)
    }

    /// Sends a report to the supervisor.
    pub fn tell(&self, report: Report) {
        let message = match report {
            Report::Granted => vec![b'G'],
            Report::Exit(code) => vec![b'E', code],
        };
        // A supervisor that has ended needs no report.
        let _ = in_spite_of_signals(|| nix::unistd::write(&self.tell, &message));
    }

    /// Ends the process instead of becoming the command.
    #[expect(clippy::disallowed_methods, reason = "this is another process than the one whose main alone exits")]
    pub fn leave(self, exit: Exit) -> ! {
        if let Exit::Signal(signal) = exit
            && let Ok(signal) = signal.try_into()
        {
            reraise(signal);
        }
        self.tell(Report::Exit(exit.code()));
        std::process::exit(exit.code().into())
    }
}

pub(super) fn in_spite_of_signals<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}
