//! A running command: its signals, its time limits and its end.

mod enforcement;

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitpid};
use nix::unistd::Pid;
use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus, waitid};

use self::enforcement::Enforcement;
use super::schedule::{Deadline, StopReason};
use super::spawn::{Report, in_spite_of_signals};
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::host::{Host, WakeSocket};
use crate::run::timer::BoottimeTimer;
use crate::signals::Signals;

/// The command in a process of its own.
#[derive(Debug)]
pub struct RunningCommand {
    pid: Pid,
    /// The descriptor of the child's reports; `None` if the lock is acquired and the command runs.
    hear: Option<OwnedFd>,
    /// The descriptor for the start signal of the child.
    go: RefCell<Option<OwnedFd>>,
}

/// A source of events that may change the time limits of a command.
pub trait EventSource {
    /// Returns a descriptor that becomes readable when an event arrives.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Returns true if an event arrived since the last call.
    fn drain(&self) -> bool;

    /// Returns a child of this process that [`EventSource::drain`] waits for.
    fn process(&self) -> Option<Pid> {
        None
    }
}

impl EventSource for Option<WakeSocket> {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.as_ref().map(AsFd::as_fd)
    }

    fn drain(&self) -> bool {
        self.as_ref().is_some_and(WakeSocket::was_woken)
    }
}

/// The end of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExitReport {
    /// The last report of the child before it became the command; `None` if it died before a report.
    pub told: Option<Report>,
    /// The status of the command as the shell counts it.
    pub exit: Exit,
    /// The signal that ended the command, if the terminal sent it to csalock too.
    pub of_terminal: Option<Signal>,
    /// If csalock ended the command: the reason, and true if SIGKILL was necessary.
    pub stopped: Option<(StopReason, bool)>,
    /// True if csalock could not end the command because it runs as another user by now.
    pub out_of_reach: bool,
}

impl RunningCommand {
    pub(super) fn new(pid: Pid, hear: Option<OwnedFd>, give: Option<OwnedFd>) -> RunningCommand {
        RunningCommand { pid, hear, go: RefCell::new(give) }
    }

    /// Sends the start signal, or without `leave` tells the child to release the lock.
    pub fn send_go(&self, leave: bool) {
        if let Some(give) = self.go.take().filter(|_| leave) {
            let _ = in_spite_of_signals(|| nix::unistd::write(&give, b"!"));
        }
    }

    /// Returns the process id of the command.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits for the end of the command, forwards signals to it, and ends it at one of the deadlines. `ask` returns the
    /// deadlines. The function calls it when the lock is acquired (if `limited`), at a deadline, which may have moved,
    /// and after an event.
    pub fn supervise(
        &self,
        signals: &Signals,
        limited: bool,
        ask: &dyn Fn() -> Vec<Deadline>,
        news: &dyn EventSource,
        host: &dyn Host,
    ) -> Result<ExitReport> {
        let timer = BoottimeTimer::new()?;
        let mut state = Enforcement::new(self);
        loop {
            if let Some(status) = self.ended()? {
                return Ok(state.exit_report(&status, signals));
            }
            if limited && state.told.is_none() {
                state.told = self.told();
                state.limits = if state.told.is_some() { ask() } else { Vec::new() };
            }
            let mut now = host.boottime();
            let rang = news.drain();
            if std::mem::take(&mut state.child_ended) {
                self.reap_others(news.process());
            }
            if rang && state.told.is_none() {
                state.told = self.told();
            }
            // Events before the command runs come from the child's own acquisition of the locks.
            if state.told.is_some() && state.stopped.is_none() && (rang || state.is_due(now)) {
                state.limits = ask();
                now = host.boottime();
            }
            if !state.send_due_signals(now)? {
                continue;
            }
            timer.set(state.next_limit());
            let hear = self.hear.as_ref().filter(|_| limited && state.told.is_none()).map(AsFd::as_fd);
            wait([Some(signals.as_fd()), hear, news.descriptor(), Some(timer.as_fd())])?;
            state.forward(signals);
        }
    }

    /// Returns the last report of the child, if a new report arrived.
    fn told(&self) -> Option<Report> {
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
    fn send(&self, signal: Signal) -> bool {
        kill(self.pid, signal) != Err(Errno::EPERM)
    }

    /// Reaps ended children that this process did not start. The first process of a container, for example, adopts
    /// orphans that no other process can reap.
    fn reap_others(&self, known: Option<Pid>) {
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
    pub fn reap(&self) {
        let _ = waitpid(self.pid, Some(WaitPidFlag::WNOHANG));
    }

    /// Returns the status of the command if it has ended, and leaves it as a zombie. The zombie shows other processes
    /// that a release is about to happen, so that they do not treat the lock as stale.
    fn ended(&self) -> Result<Option<WaitIdStatus>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let pid = rustix::process::Pid::from_raw(self.pid.as_raw());
        match pid.map_or(Err(rustix::io::Errno::CHILD), |pid| waitid(WaitId::Pid(pid), options)) {
            Err(rustix::io::Errno::INTR) => Ok(None),
            Ok(status) => Ok(status),
            Err(errno) => Err(Error::new(ErrorKind::System, format!("cannot wait for the command: {errno}"), "")),
        }
    }
}

fn wait(heard: [Option<BorrowedFd<'_>>; 4]) -> Result<()> {
    let mut polled: Vec<PollFd<'_>> =
        heard.into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    match poll(&mut polled, PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(Error::new(ErrorKind::System, format!("cannot wait for the command: {}", errno.desc()), "")),
    }
}
