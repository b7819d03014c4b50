//! The state of a supervised command: its time limits, the signals sent to it, and the report about its end.

use std::time::Duration;

use nix::sys::signal::Signal;
use rustix::process::WaitIdStatus;

use super::{ExitReport, RunningCommand};
use crate::error::Result;
use crate::exit::Exit;
use crate::run::schedule::{Deadline, StopReason};
use crate::run::spawn::Report;
use crate::signals::{FORWARDED, Signals};

/// State of the supervision of a command.
pub(super) struct Enforcement<'a> {
    command: &'a RunningCommand,
    /// Deadlines of the command. The term of a deadline whose SIGTERM was sent is `Duration::MAX`.
    pub(super) limits: Vec<Deadline>,
    /// Last report of the child.
    pub(super) told: Option<Report>,
    /// Reason for which csalock ended the command, and true if SIGKILL was necessary.
    pub(super) stopped: Option<(StopReason, bool)>,
    /// True if csalock may not send a signal to the command.
    out_of_reach: bool,
    /// Last signal that the terminal sent.
    of_terminal: Option<Signal>,
    /// True if a child of this process has ended since the last check.
    pub(super) child_ended: bool,
}

impl Enforcement<'_> {
    /// Returns the state before the first event.
    pub(super) fn new(command: &RunningCommand) -> Enforcement<'_> {
        Enforcement {
            command,
            limits: Vec::new(),
            told: None,
            stopped: None,
            out_of_reach: false,
            of_terminal: None,
            child_ended: false,
        }
    }

    /// Returns true if the time of a SIGTERM has come.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.limits.iter().any(|limit| limit.term <= now)
    }

    /// Sends the signals that are due. Returns false if the command has ended by itself instead of a SIGKILL.
    pub(super) fn send_due_signals(&mut self, now: Duration) -> Result<bool> {
        if let Some(due) = self.limits.iter().find(|limit| limit.kill <= now) {
            if self.command.ended()?.is_some() {
                return Ok(false);
            }
            if self.command.send(Signal::SIGKILL) {
                self.stopped = Some((self.stopped.map_or(due.why, |(why, _)| why), true));
            } else {
                self.out_of_reach = true;
            }
            self.limits.clear();
        }
        for due in self.limits.iter_mut().filter(|limit| limit.term <= now) {
            if self.command.send(Signal::SIGTERM) {
                self.stopped.get_or_insert((due.why, false));
                self.command.send(Signal::SIGCONT);
            }
            due.term = Duration::MAX;
        }
        Ok(true)
    }

    /// Returns the time of the next signal on CLOCK_BOOTTIME.
    pub(super) fn next_limit(&self) -> Option<Duration> {
        let times = self.limits.iter().flat_map(|limit| [limit.term, limit.kill]);
        times.min().filter(|next| *next < Duration::MAX)
    }

    /// Forwards the signals that arrived. The terminal sends its signals to the command itself.
    pub(super) fn forward(&mut self, signals: &Signals) {
        while let Some(came) = signals.next() {
            self.child_ended |= came.signal == Signal::SIGCHLD;
            if came.from_terminal {
                self.of_terminal = Some(came.signal);
            } else if FORWARDED.contains(&came.signal) {
                self.command.send(came.signal);
            }
        }
    }

    /// Returns the report about the ended command.
    pub(super) fn exit_report(&self, status: &WaitIdStatus, signals: &Signals) -> ExitReport {
        // The signal that ended the command may have reached csalock too, still unread.
        let last = std::iter::from_fn(|| signals.next()).filter(|came| came.from_terminal).last();
        let of_terminal = last.map(|came| came.signal).or(self.of_terminal);
        ExitReport {
            told: self.command.told().or(self.told),
            exit: exit_of(status),
            of_terminal: of_terminal.filter(|came| status.terminating_signal() == Some(*came as i32)),
            stopped: self.stopped,
            out_of_reach: self.out_of_reach,
        }
    }
}

fn exit_of(status: &WaitIdStatus) -> Exit {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Exit::Code(code as u8),
        (None, Some(signal)) => Exit::signalled(signal),
        (None, None) => Exit::Bug,
    }
}
