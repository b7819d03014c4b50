//! A command that runs: its signals, its time limits, its end.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitpid};
use nix::unistd::Pid;
use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus, waitid};

use super::{Report, in_spite_of_signals};
use crate::boottime_timer::BoottimeTimer;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::host::{Host, WakeSocket};
use crate::signals::{FORWARDED, Signals};

/// The command, in a process of its own.
#[derive(Debug)]
pub struct Running {
    pid: Pid,
    /// Where it tells how far it got; `None` if that is known: the lock is taken, the command runs.
    hear: Option<OwnedFd>,
    /// Where it waits for leave to become the command.
    go: RefCell<Option<OwnedFd>>,
}

/// What may change the limits of a command.
pub trait EventSource {
    /// Becomes readable when there is some.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Whether there was some since it was last asked.
    fn drain(&self) -> bool;

    /// A child of ours that [`EventSource::drain`] waits for.
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

/// When a command is to be ended, on CLOCK_BOOTTIME.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    /// When it gets SIGTERM, and SIGCONT so that it hears it.
    pub term: Duration,
    /// When it gets SIGKILL.
    pub kill: Duration,
    /// What for.
    pub why: StopReason,
}

/// What a command is ended for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// `--max-hold` is over.
    MaxHold,
    /// Its lock's lease is about to be over.
    Lease,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExitReport {
    /// What it told last before it became the command; `None` if it died before it could.
    pub told: Option<Report>,
    /// Its status as the shell counts it.
    pub exit: Exit,
    /// The signal that ended it, if it came from the terminal, to us as well.
    pub of_terminal: Option<Signal>,
    /// If we ended it: what for, and whether it had to be killed.
    pub stopped: Option<(StopReason, bool)>,
    /// If it was to be ended and we may not: it is another user's by now.
    pub out_of_reach: bool,
}

impl Running {
    pub(super) fn new(pid: Pid, hear: Option<OwnedFd>, give: Option<OwnedFd>) -> Running {
        Running { pid, hear, go: RefCell::new(give) }
    }

    /// Lets it become the command; or not, and then it gives back.
    pub fn send_go(&self, leave: bool) {
        if let Some(give) = self.go.take().filter(|_| leave) {
            let _ = in_spite_of_signals(|| nix::unistd::write(&give, b"!"));
        }
    }

    /// Its process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits for its end, forwards signals to it, and ends it when one of the limits is reached. The limits are asked for
    /// when the lock is taken (if it is `limited` from the beginning), when one of them is reached, for it may have moved,
    /// and when there is news.
    ///
    /// # Errors
    ///
    /// When the system cannot wait.
    pub fn supervise(
        &self,
        signals: &Signals,
        limited: bool,
        ask: &dyn Fn() -> Vec<Deadline>,
        news: &dyn EventSource,
        host: &dyn Host,
    ) -> Result<ExitReport> {
        let timer = BoottimeTimer::new()?;
        let mut limits: Vec<Deadline> = Vec::new();
        let mut told = None;
        let (mut stopped, mut out_of_reach) = (None, false);
        let mut of_terminal = None;
        let mut child_ended = false;
        loop {
            if let Some(status) = self.ended()? {
                // What ended it may have come to us as well, and not been looked at yet.
                let last = std::iter::from_fn(|| signals.next()).filter(|came| came.from_terminal).last();
                let of_terminal = last
                    .map(|came| came.signal)
                    .or(of_terminal)
                    .filter(|came| status.terminating_signal() == Some(*came as i32));
                let told = self.told().or(told);
                return Ok(ExitReport { told, exit: exit_of(&status), of_terminal, stopped, out_of_reach });
            }
            if limited && told.is_none() {
                told = self.told();
                limits = if told.is_some() { ask() } else { Vec::new() };
            }
            let mut now = host.boottime();
            let rang = news.drain();
            if std::mem::take(&mut child_ended) {
                self.reap_others(news.process());
            }
            if rang && told.is_none() {
                told = self.told();
            }
            // What rings before the command runs is its own taking of the locks.
            if told.is_some() && stopped.is_none() && (rang || limits.iter().any(|limit| limit.term <= now)) {
                limits = ask();
                now = host.boottime();
            }
            if let Some(due) = limits.iter().find(|limit| limit.kill <= now) {
                if self.ended()?.is_some() {
                    // It ended by itself while the limits were asked for.
                    continue;
                }
                if self.send(Signal::SIGKILL) {
                    stopped = Some((stopped.map_or(due.why, |(why, _)| why), true));
                } else {
                    out_of_reach = true;
                }
                limits.clear();
            }
            for due in limits.iter_mut().filter(|limit| limit.term <= now) {
                if self.send(Signal::SIGTERM) {
                    stopped.get_or_insert((due.why, false));
                    self.send(Signal::SIGCONT);
                }
                due.term = Duration::MAX;
            }
            let next = limits.iter().flat_map(|limit| [limit.term, limit.kill]).min();
            let hear = self.hear.as_ref().filter(|_| limited && told.is_none()).map(AsFd::as_fd);
            timer.set(next.filter(|next| *next < Duration::MAX));
            wait([Some(signals.as_fd()), hear, news.descriptor(), Some(timer.as_fd())])?;
            while let Some(came) = signals.next() {
                child_ended |= came.signal == Signal::SIGCHLD;
                if came.from_terminal {
                    of_terminal = Some(came.signal);
                } else if FORWARDED.contains(&came.signal) {
                    self.send(came.signal);
                }
            }
        }
    }

    /// What the child told last, if it told anything new.
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

    /// Sends it a signal. `false`: we may not.
    fn send(&self, signal: Signal) -> bool {
        kill(self.pid, signal) != Err(Errno::EPERM)
    }

    /// Waits for the children that have ended and that we did not begin: the first process of a container, say, adopts
    /// what the others leave, and nobody else can reap it.
    fn reap_others(&self, known: Option<Pid>) {
        let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let next = || nix::sys::wait::waitid(Id::All, peek).ok().and_then(|status| status.pid());
        // How the command or that child ended is asked for elsewhere, and then this is called again.
        while let Some(pid) = next().filter(|pid| *pid != self.pid && Some(*pid) != known) {
            if waitpid(pid, Some(WaitPidFlag::WNOHANG)).is_err() {
                break;
            }
        }
    }

    /// Reaps it when its locks are released: then the time that it used counts as ours, and no zombie is left to a pid 1 that
    /// reaps none.
    pub fn reap(&self) {
        let _ = waitpid(self.pid, Some(WaitPidFlag::WNOHANG));
    }

    /// How it ended, if it has. It stays a zombie: as long as it is one, others see that we are about to give back, and do
    /// not take its lock for one that a dead owner left behind.
    fn ended(&self) -> Result<Option<WaitIdStatus>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let pid = rustix::process::Pid::from_raw(self.pid.as_raw());
        match pid.map_or(Err(rustix::io::Errno::CHILD), |pid| waitid(WaitId::Pid(pid), options)) {
            Err(rustix::io::Errno::INTR) => Ok(None),
            Ok(status) => Ok(status),
            Err(errno) => Err(Error::new(Exit::System, format!("cannot wait for the command: {errno}"), "")),
        }
    }
}

fn wait(heard: [Option<BorrowedFd<'_>>; 4]) -> Result<()> {
    let mut polled: Vec<PollFd<'_>> =
        heard.into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    match poll(&mut polled, PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(Error::new(Exit::System, format!("cannot wait for the command: {}", errno.desc()), "")),
    }
}

fn exit_of(status: &WaitIdStatus) -> Exit {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Exit::Code(code as u8),
        (None, Some(signal)) => Exit::signalled(signal),
        (None, None) => Exit::Bug,
    }
}
