//! One call of `csalock run`, as all of its processes know it.

use std::ffi::CString;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::child::SleepingChild;
use super::exec::{CommandLine, GrantNumbers};
use super::keeper::{KeeperConfig, spawn_detached};
use super::shared_lease_end::SharedLeaseEnd;
use crate::exit::Exit;
use engine::{Context, LockSet, OpenLockSet, environment};
use host::signals::{self, Signals};
use lock::history::{RunEnd, Use};
use lock::{Error, ErrorKind, Grant, Handle, ProcessId, Result};
use store::Call;

pub struct GuardedCommand<'a> {
    pub context: &'a Context,
    pub locks: &'a LockSet,
    pub handle: &'a Handle,
    pub command_line: &'a CommandLine,
    pub signals: &'a Signals,
    pub limits: CommandLimits,
    /// Process that stays as the supervisor; `None`: csalock becomes the command.
    pub supervisor: Option<ProcessId>,
    /// csalock records a success of the command, under the lock.
    pub records_success: bool,
    /// The success is one in a period.
    pub has_period: bool,
    pub shared_lease_end: Option<&'static SharedLeaseEnd>,
}

#[derive(Debug, Clone, Copy)]
pub struct CommandLimits {
    pub ttl: Option<Duration>,
    pub max_hold: Option<Duration>,
    /// Time between SIGTERM and SIGKILL.
    pub kill_after: Duration,
    /// csalock kills the command before its lease is over.
    pub kills: bool,
    /// Locks last until all processes that come from the command have ended, and the limits are for all of them.
    pub tree: bool,
}

impl<'a> GuardedCommand<'a> {
    /// A success in a slot that is not on record is worth a wait, while the lock is ours and no signal came.
    pub(super) fn awaits_record(&self) -> bool {
        let Some(shared) = self.shared_lease_end.filter(|shared| shared.is_unrecorded.load(SeqCst)) else {
            return false;
        };
        shared.load().is_none_or(|ends| self.context.host.boottime() < ends) && !signals::is_pending()
    }

    pub(super) fn exit_without_record(&self) -> Exit {
        if signals::is_pending() { Exit::interrupted(self.signals.interrupted_by()) } else { ErrorKind::Lost.into() }
    }

    pub fn keeper(&self, command: ProcessId, opened: &OpenLockSet<'_>, grants: &[Grant]) -> Option<KeeperConfig<'a>> {
        Some(KeeperConfig {
            context: self.context,
            targets: self.locks,
            proof: self.handle.proof(),
            owners: std::iter::once(command).chain(self.supervisor.filter(|_| self.limits.tree)).collect(),
            shared_lease_end: self.shared_lease_end?,
            first_leases: opened.leases(grants),
            lease: opened.span(),
            kills: self.limits.kills,
            is_reported: self.has_period,
            timed: self.limits.ttl.is_some(),
            tree: None,
        })
    }

    pub fn fork(&self, variables: &[CString]) -> Result<SleepingChild<'a>> {
        // Without a supervisor no process reports the exit status or the end of the time limit, so a command with --ttl
        // or a period is killed with csalock.
        let dies_with_parent = self.has_period || (self.limits.ttl.is_some() && self.limits.kills);
        SleepingChild::fork(self.command_line, variables, self.signals, dies_with_parent)
    }

    /// As the holder of these grants, whose leases a keeper of its own renews. Returns only if that fails.
    pub fn exec(
        &self,
        opened: &OpenLockSet<'_>,
        grants: &[Grant],
        variables: &[CString],
        numbers: GrantNumbers,
    ) -> Error {
        let keeper = self.context.host.this_process().map(|process| self.keeper(process, opened, grants));
        let kept = keeper.and_then(|keeper| keeper.map_or(Ok(()), |keeper| spawn_detached(&keeper, opened, grants)));
        if let Err(error) = kept {
            return error;
        }
        self.signals.restore();
        let environment = environment::block(variables);
        self.command_line.cannot_execute(self.command_line.execute(&environment, Some(numbers)))
    }

    /// Releases the locks without a run of the command, for this reason if it could not be executed.
    pub fn release(&self, opened: &OpenLockSet<'_>, why: Option<&Error>) -> Result<()> {
        let is_of_command = |kind: &ErrorKind| matches!(kind, ErrorKind::CannotExecute | ErrorKind::CommandNotFound);
        let kind = why.map(Error::kind).filter(is_of_command);
        let run = |kind| Use::Run(RunEnd { exit: Exit::from(kind).code(), signal: None, ran: 0 });
        let used = kind.map_or(Use::Nothing, run);
        // The keeper must not take the release for a loss.
        if let Some(shared_lease_end) = self.shared_lease_end {
            for at in 0..self.locks.all.len() {
                shared_lease_end.release(at);
            }
        }
        opened.release(Call::default(), self.handle.proof(), used).into_iter().try_for_each(|answer| answer.map(drop))
    }
}
