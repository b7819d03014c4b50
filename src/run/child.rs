//! The two sides of the fork that becomes the command: the child until then, and the command as its supervisor sees it.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitpid};
use nix::unistd::{Pid, getppid};
use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus, waitid};

use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::host::StartupState;
use crate::signals::reraise;

/// The bytes of a start signal.
const GO: u8 = b'!';
const NO_KEEPER: u8 = b'K';

/// The process that becomes the command.
#[derive(Debug)]
pub struct ChildSide {
    pub(super) tell: OwnedFd,
    pub(super) supervisor: Pid,
    /// The descriptor of the start signal, if the child needs a start signal.
    pub(super) go: Option<OwnedFd>,
}

/// The answer of the supervisor to a child that reports the grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartSignal {
    /// The child becomes the command.
    Go,
    /// The child releases the lock, because its keeper could not be started.
    NoKeeper,
    /// No answer came in time, or the supervisor has ended.
    Missing,
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
    pub fn depend_on_supervisor(&self, inherited: StartupState) {
        // SIGTERM lets a waiter leave the queue properly. If SIGTERM is ignored, the queue skips the dead waiter.
        let gentle = !inherited.ignored(Signal::SIGTERM);
        die_with(self.supervisor, if gentle { Signal::SIGTERM } else { Signal::SIGKILL });
    }

    /// Ends the effect of [`ChildSide::depend_on_supervisor`], for the command.
    pub(super) fn outlive_supervisor(&self) {
        let _ = set_pdeathsig(None);
    }

    /// Waits at most `at_most` for the start signal, if this child needs one.
    pub fn wait_for_go(&self, at_most: Duration) -> StartSignal {
        let Some(ask) = &self.go else { return StartSignal::Go };
        let at_most = PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX);
        let came = in_spite_of_signals(|| poll(&mut [PollFd::new(ask.as_fd(), PollFlags::POLLIN)], at_most));
        let mut signal = [0; 1];
        match came.is_ok_and(|ready| ready > 0).then(|| in_spite_of_signals(|| nix::unistd::read(ask, &mut signal))) {
            Some(Ok(1)) if signal == [GO] => StartSignal::Go,
            Some(Ok(1)) => StartSignal::NoKeeper,
            _ => StartSignal::Missing,
        }
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
        if let Exit::Signal(signal) = exit {
            reraise(signal);
        }
        self.tell(Report::Exit(exit.code()));
        std::process::exit(exit.code().into())
    }
}

/// Ends this process by `signal` when its parent ends.
pub(super) fn die_with(parent: Pid, signal: Signal) {
    let _ = set_pdeathsig(signal);
    if getppid() != parent {
        // The parent ended before the death signal was set.
        reraise(Signal::SIGKILL);
    }
}

/// The command in a process of its own.
#[derive(Debug)]
pub struct RunningCommand {
    pid: Pid,
    /// The descriptor of the child's reports; `None` if the lock is acquired and the command runs.
    hear: Option<OwnedFd>,
    /// The descriptor for the start signal of the child.
    go: RefCell<Option<OwnedFd>>,
}

impl RunningCommand {
    pub(super) fn new(pid: Pid, hear: Option<OwnedFd>, give: Option<OwnedFd>) -> RunningCommand {
        RunningCommand { pid, hear, go: RefCell::new(give) }
    }

    /// Sends the start signal, or without a keeper tells the child to release the lock.
    pub(super) fn send_go(&self, has_keeper: bool) {
        if let Some(give) = self.go.take() {
            let signal = if has_keeper { GO } else { NO_KEEPER };
            let _ = in_spite_of_signals(|| nix::unistd::write(&give, &[signal]));
        }
    }

    /// Returns the process id of the child.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns the descriptor of the child's reports, if the child reports.
    pub(super) fn reports(&self) -> Option<BorrowedFd<'_>> {
        self.hear.as_ref().map(AsFd::as_fd)
    }

    /// Returns the last report of the child, if a new report arrived.
    pub(super) fn told(&self) -> Option<Report> {
        let Some(hear) = &self.hear else { return Some(Report::Granted) };
        let mut message = [0; 8];
        let length = in_spite_of_signals(|| nix::unistd::read(hear, &mut message)).unwrap_or(0);
        match message[..length] {
            [.., b'E', code] => Some(Report::Exit(code)),
            [b'G'] => Some(Report::Granted),
            _ => None,
        }
    }

    /// Sends a signal to the command. Returns false if permission is denied.
    pub(super) fn send(&self, signal: Signal) -> bool {
        kill(self.pid, signal) != Err(Errno::EPERM)
    }

    /// Reaps ended children that this process did not start. The first process of a container, for example, adopts
    /// orphans that no other process can reap.
    pub(super) fn reap_others(&self, known: Option<Pid>) {
        let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let next = || nix::sys::wait::waitid(Id::All, peek).ok().and_then(|status| status.pid());
        // Other code reaps the command and the known child, and then this function runs again.
        while let Some(pid) = next().filter(|pid| *pid != self.pid && Some(*pid) != known) {
            if waitpid(pid, Some(WaitPidFlag::WNOHANG)).is_err() {
                break;
            }
        }
    }

    /// Reaps the command after its locks are released. Its CPU time then counts for this process, and no zombie stays
    /// behind with a pid 1 that does not reap.
    pub(super) fn reap(&self) {
        let _ = waitpid(self.pid, Some(WaitPidFlag::WNOHANG));
    }

    /// Returns the status of the command if it has ended, and leaves it as a zombie. The zombie shows other processes
    /// that a release is about to happen, so that they do not treat the lock as stale.
    pub(super) fn ended(&self) -> Result<Option<WaitIdStatus>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let pid = rustix::process::Pid::from_raw(self.pid.as_raw());
        match pid.map_or(Err(rustix::io::Errno::CHILD), |pid| waitid(WaitId::Pid(pid), options)) {
            Err(rustix::io::Errno::INTR) => Ok(None),
            Ok(status) => Ok(status),
            Err(errno) => Err(Error::new(ErrorKind::System, format!("cannot wait for the command: {errno}"), "")),
        }
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
