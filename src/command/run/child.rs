//! The child process that acquires the lock and becomes the command.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use super::flock_compat::FlockCompat;
use super::recurrence::Recurring;
use crate::cli::{Busy, Run};
use crate::command::acquire::{Acquisition, report_taken, request};
use crate::command::context::eprint_line;
use crate::engine::{AcquireAllResult, AcquireRequest, OpenLockSet, WaitPolicy, acquire_all};
use crate::error::{ErrorKind, Result};
use crate::exit::Exit;
use crate::lock::{Grant, Mode, Owner, ProcessId};
use crate::run::child::{ChildSide, RunningCommand};
use crate::run::job::{Job, Variables};
use crate::run::spawn::VforkStatus;

/// Everything that the child needs.
pub(super) struct CommandChild<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) asked: &'a Run,
    pub(super) flock_compat: Option<&'a FlockCompat>,
    pub(super) recurring: Option<&'a Recurring<'a>>,
    /// Start of the wait for the locks, on CLOCK_BOOTTIME.
    pub(super) began: Duration,
    /// The process before the fork; with `-F`, the one that becomes the command.
    pub(super) parent: ProcessId,
}

impl CommandChild<'_> {
    /// Acquires the locks and becomes the command. Returns only if it has not become the command. Without a supervisor
    /// (`-F`) the locks end with the command.
    pub(super) fn acquire_and_exec(
        &self,
        opened: &OpenLockSet<'_>,
        child_side: Option<&ChildSide>,
    ) -> anyhow::Result<Exit> {
        let process = if self.asked.no_fork { self.parent } else { self.job.context.host.this_process()? };
        let request = self.request(process, child_side.is_none(), opened.need_leases())?;
        let depend = || {
            child_side.inspect(|child_side| child_side.depend_on_supervisor(self.job.context.inherited));
        };
        let acquisition = Acquisition { at_first_wait: &depend, ..self.acquisition() };
        let (mut grants, evicted) = match acquisition.acquire(opened, &request)? {
            AcquireAllResult::Granted(grants, evicted) => (grants, evicted),
            ended => {
                let Some(recurring) = self.recurring else { return acquisition.end(opened, &ended) };
                return recurring.refused(&acquisition, opened, &ended, self.job.handle.proof());
            }
        };
        let policy = self.asked.taking.waiting.wait_policy();
        let until = policy.limit.map(|_| policy.end(self.began));
        let files = self.flock_compat.map(|compat| compat.take(self, opened, &mut grants, until, child_side));
        if let Some(refused) = files.and_then(Result::transpose) {
            self.job.release(opened)?;
            return Ok(refused?);
        }
        report_taken(&self.asked.common, opened, &grants, evicted.as_ref(), None);
        let begin = |recurring: &Recurring<'_>| recurring.begin(opened, self.job.handle.proof());
        let begun = self.recurring.map(begin).transpose();
        if let Some(ended) = begun.map(Option::flatten).transpose() {
            self.job.release(opened)?;
            return Ok(ended?);
        }
        let error = self.job.exec(opened, &grants, child_side, &self.variables(&grants));
        self.job.release(opened)?;
        Err(error.into())
    }

    /// Acquires the locks if they are free and becomes the command. If an obstacle appears, the regular path checks it
    /// again and reports it.
    pub(super) fn acquire_in_vfork(&self, opened: &OpenLockSet<'_>, progress: &VforkStatus) {
        let Ok(process) = self.job.context.host.this_process() else { return };
        let Ok(request) = self.request(process, false, false) else { return };
        let taken = acquire_all(&opened.lock_refs(), &request, &WaitPolicy::NONE, None, &mut |_, _| None);
        let Ok(AcquireAllResult::Granted(grants, evicted)) = taken else { return };
        report_taken(&self.asked.common, opened, &grants, evicted.as_ref(), None);
        progress.granted();
        let error = self.job.execute(&self.variables(&grants));
        progress.failed(Exit::from(error.kind()));
        eprint_line(&error.to_string());
        if let Err(error) = self.job.release(opened) {
            eprint_line(&error.to_string());
        }
    }

    /// Acquires the locks for a child that sleeps meanwhile, and makes it the command. Returns the command, or how csalock
    /// ends without one.
    pub(super) fn acquire_for_standby(
        &self,
        opened: &OpenLockSet<'_>,
    ) -> anyhow::Result<std::result::Result<RunningCommand, Exit>> {
        let variables = OnceCell::new();
        let become_command = |status: &VforkStatus| {
            let error = self.job.execute_restored(variables.get_or_init(Variables::new));
            status.failed(Exit::from(error.kind()));
            eprint_line(&error.to_string());
        };
        let standby = self.job.standby(&become_command)?;
        let Some(process) = self.job.context.host.process(standby.pid().as_raw())? else {
            return Ok(Err(standby.ended().unwrap_or(ErrorKind::System.into())));
        };
        let request = self.request(process, false, false)?;
        let acquisition = Acquisition { interrupt: &standby, ..self.acquisition() };
        let (grants, evicted) = match acquisition.acquire(opened, &request)? {
            AcquireAllResult::Granted(grants, evicted) => (grants, evicted),
            ended => {
                let killed = standby.ended().filter(|_| !self.job.signals.pending());
                return killed.map_or_else(|| acquisition.end(opened, &ended), Ok).map(Err);
            }
        };
        report_taken(&self.asked.common, opened, &grants, evicted.as_ref(), None);
        let _ = variables.set(self.variables(&grants));
        let started = standby.start();
        if !matches!(started, Ok(Ok(_))) {
            self.job.release(opened)?;
        }
        Ok(started?)
    }

    fn acquisition(&self) -> Acquisition<'_> {
        let waiting = &self.asked.taking.waiting;
        let policy = waiting.wait_policy();
        Acquisition {
            // The store may have been locked during the first attempt, which took time.
            policy: policy.rest(policy.end(self.began), self.job.context.host.boottime()),
            give_up_if: self.asked.taking.give_up_if,
            ..Acquisition::new(&self.asked.common, waiting, self.job.signals)
        }
    }

    /// Returns the request of the process that will be the command.
    fn request(&self, process: ProcessId, release_on_exit: bool, is_kept: bool) -> Result<AcquireRequest> {
        let (taking, command) = (&self.asked.taking, self.job.command_line.line());
        // Only the supervisor can record that a job has succeeded in its slot, so the lock depends on its life, too.
        let reporter = self.job.supervisor.filter(|_| self.job.has_slot());
        let owners = std::iter::once(process).chain(reporter).collect();
        let request = request(self.job.context, &taking.waiting, self.job.handle.clone(), process, owners, command)?;
        Ok(AcquireRequest {
            mode: taking.mode(),
            lifetime: taking.lifetime(),
            slots: taking.slots,
            latest_only: self.asked.busy == Busy::Latest,
            // With -F the keeper receives the end of the grant for the command, as long as the command lives.
            owner: Owner { supervisor: self.job.supervisor.or(is_kept.then_some(process)), ..request.owner },
            release_on_exit,
            invocation: Some(self.job.context.invocation(self.job.supervisor.unwrap_or(process).pid)),
            ..request
        })
    }

    /// Returns the environment variables that describe the locks to the command.
    fn variables(&self, grants: &[Grant]) -> Variables {
        let (first, grant) = (self.job.locks.first(), &grants[self.job.locks.first_at]);
        let mut variables = vec![
            ("CSALOCK_NAME", OsString::from_vec(first.display_name.clone())),
            ("CSALOCK_STORE", first.location.inherited_url()),
            ("CSALOCK_OUTER_STORE", self.job.context.outer_store()),
            ("CSALOCK_HANDLE", self.job.handle.to_string().into()),
            ("CSALOCK_TOKEN", grant.token.unwrap_or_default().to_string().into()),
        ];
        if grant.mode == Mode::Slot {
            variables.push(("CSALOCK_SLOT", grant.slot.to_string().into()));
        }
        let outer: Vec<String> = self.job.context.enclosing_grants().iter().map(ToString::to_string).collect();
        if !outer.is_empty() {
            variables.push(("CSALOCK_OUTER", outer.join(",").into()));
        }
        variables
    }
}
