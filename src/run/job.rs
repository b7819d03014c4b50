//! One call of `csalock run`, as all of its processes know it.

use std::ffi::OsString;
use std::time::Duration;

use nix::unistd::Pid;

use super::child::{ChildSide, Report, StartSignal};
use super::deadline::SharedDeadline;
use super::keepalive::{KeeperConfig, spawn_detached};
use super::schedule::LeaseSchedule;
use super::spawn::{CommandLine, VforkStatus};
use super::standby::Standby;
use crate::engine::{Context, LockSet, OpenLockSet};
use crate::error::{Error, ErrorKind, Result};
use crate::lock::{Grant, Handle, ProcessId};
use crate::signals::Signals;

/// Environment variables for the command.
pub type Variables = Vec<(&'static str, OsString)>;

/// A command, its locks and its limits.
pub struct Job<'a> {
    pub context: &'a Context,
    pub locks: &'a LockSet,
    pub handle: &'a Handle,
    pub command_line: &'a CommandLine,
    pub signals: &'a Signals,
    pub limits: Limits,
    /// Process that stays as the supervisor; `None`: csalock becomes the command.
    pub supervisor: Option<ProcessId>,
    /// The success to record if the command ends with 0.
    pub reports: Option<SuccessReport>,
    /// End of the leases, if there are leases from the beginning.
    pub shared_deadline: Option<SharedDeadline>,
}

/// The success of a command that csalock records under the lock.
#[derive(Debug, Clone, Copy)]
pub struct SuccessReport {
    /// True if the run counts for the slot in which it began.
    pub in_slot: bool,
}

/// The limits of a command.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Time to live of the locks.
    pub ttl: Option<Duration>,
    /// Maximum duration of the command.
    pub max_hold: Option<Duration>,
    /// Time between SIGTERM and SIGKILL.
    pub kill_after: Duration,
    /// True if the command is killed before its lease is over.
    pub kills: bool,
}

impl<'a> Job<'a> {
    /// Returns true if the command must succeed once in a slot.
    pub fn has_slot(&self) -> bool {
        self.reports.is_some_and(|reports| reports.in_slot)
    }

    /// Returns the keeper of the command, if the locks have leases.
    pub fn keeper(&self, command: ProcessId) -> Option<KeeperConfig<'a>> {
        Some(KeeperConfig {
            context: self.context,
            targets: self.locks,
            proof: self.handle.proof(),
            owners: vec![command],
            shared_deadline: self.shared_deadline?,
            kills: self.limits.kills,
            is_reported: self.has_slot(),
            timed: self.limits.ttl.is_some(),
        })
    }

    /// Creates a child that will be the command.
    /// Fails if the system has no room for another process or descriptor.
    pub fn standby<'b>(&'b self, become_command: &'b dyn Fn(&VforkStatus)) -> Result<Standby<'b>> {
        let made = Standby::new(self.signals, self.context.inherited, become_command);
        made.map_err(|errno| self.command_line.cannot_start(errno))
    }

    /// Becomes the command, as the holder of these grants. Returns the reason if that fails.
    pub fn exec(
        &self,
        opened: &OpenLockSet<'_>,
        grants: &[Grant],
        child_side: Option<&ChildSide>,
        variables: &Variables,
    ) -> Error {
        if let Err(error) = self.start_leases(opened, grants) {
            return error;
        }
        child_side.inspect(|child_side| child_side.tell(Report::Granted));
        match child_side.map_or(StartSignal::Go, |child_side| self.wait_for_go(child_side)) {
            StartSignal::Go => {
                child_side.inspect(|child_side| child_side.outlive_supervisor());
                self.execute(variables)
            }
            StartSignal::NoKeeper => Error::new(
                ErrorKind::System,
                "the process that renews its lease could not start, so the command was not run",
                "see the limit of processes (ulimit -u) and the free memory, then try again",
            ),
            StartSignal::Missing => Error::new(
                ErrorKind::Lost,
                "its lease was over, or its supervisor was gone, before the command could begin; it was not run",
                "try again",
            ),
        }
    }

    /// Becomes the command at once.
    pub fn execute(&self, variables: &Variables) -> Error {
        self.signals.restore(self.context.inherited);
        self.execute_restored(variables)
    }

    /// Becomes the command in a process that has restored the signals.
    pub fn execute_restored(&self, variables: &Variables) -> Error {
        // Only the supervisor ends the command before the lease is over, and only it can record its success in a slot. So
        // the command must die with it.
        let dependent = self.has_slot() || (self.limits.ttl.is_some() && self.limits.kills);
        let killed_with = self.supervisor.filter(|_| dependent).map(|supervisor| Pid::from_raw(supervisor.pid));
        self.command_line.execute(variables, self.context.inherited, killed_with)
    }

    /// Releases the locks instead of becoming the command.
    pub fn release(&self, opened: &OpenLockSet<'_>) -> Result<()> {
        // The keeper must not take the release for a loss.
        if let Some(shared_deadline) = self.shared_deadline {
            (0..self.locks.all.len()).all(|at| shared_deadline.release(at));
        }
        opened.release_all(self.handle.proof())
    }

    /// Publishes when the leases end; without a supervisor, starts a keeper that renews them.
    fn start_leases(&self, opened: &OpenLockSet<'_>, grants: &[Grant]) -> Result<()> {
        let Some(shared_deadline) = self.shared_deadline else { return Ok(()) };
        if self.supervisor.is_some() {
            shared_deadline.start(opened, grants);
            return Ok(());
        }
        let keeper = self.keeper(self.context.host.this_process()?);
        keeper.map_or(Ok(()), |keeper| spawn_detached(&keeper, opened, grants))
    }

    /// Waits until a process watches the leases. The start signal is missing if the command would have to end before it
    /// starts.
    fn wait_for_go(&self, child_side: &ChildSide) -> StartSignal {
        let span = self.limits.ttl.unwrap_or(self.context.lease());
        let left = || {
            let ends = self.shared_deadline.and_then(SharedDeadline::load).unwrap_or(Duration::MAX);
            LeaseSchedule { ends, span }.last_start().saturating_sub(self.context.host.boottime())
        };
        match child_side.wait_for_go(left()) {
            StartSignal::Go if left().is_zero() => StartSignal::Missing,
            signal => signal,
        }
    }
}
