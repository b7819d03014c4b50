//! The work of `run` between its start and that of the command: it acquires the locks, locks their files and begins the
//! job.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use super::flock_compat::FlockCompat;
use super::recurrence::Recurring;
use crate::cli::{Busy, Run};
use crate::command::acquire::{Acquisition, report_taken, request};
use crate::engine::{AcquireAllResult, AcquireRequest, EndsWith, OpenLockSet};
use crate::error::Result;
use crate::exit::Exit;
use crate::lock::{EndedGrant, Grant, Mode, Owner, ProcessId};
use crate::run::child::SleepingChild;
use crate::run::command_line::GrantNumbers;
use crate::run::flock::Flock;
use crate::run::job::Job;
use crate::signals::Interrupt;

/// One call of `run`.
pub(super) struct Attempt<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) asked: &'a Run,
    pub(super) flock_compat: Option<&'a FlockCompat>,
    pub(super) recurring: Option<&'a Recurring<'a>>,
    /// Start of the wait for the locks, on CLOCK_BOOTTIME.
    pub(super) began: Duration,
    pub(super) process: ProcessId,
}

/// The grants and files that the command holds.
pub(super) struct Held {
    pub(super) grants: Vec<Grant>,
    /// The files of `--flock`.
    pub(super) files: Vec<Flock>,
}

impl Attempt<'_> {
    /// Acquires everything that the command needs, or returns the exit of csalock without a command. `child` is the
    /// process that will be the command, unless this process will.
    pub(super) fn acquire(
        &self,
        opened: &OpenLockSet<'_>,
        child: Option<&SleepingChild<'_>>,
    ) -> anyhow::Result<std::result::Result<Held, Exit>> {
        let request = self.request(child.is_none(), opened.need_leases())?;
        let acquisition = self.acquisition(child);
        let (grants, evicted) = match acquisition.acquire(opened, &request)? {
            AcquireAllResult::Granted(grants, evicted) => (grants, evicted),
            AcquireAllResult::Interrupted if !self.job.signals.pending() => {
                let killed = child.and_then(SleepingChild::ended);
                return Ok(Err(killed.unwrap_or_else(|| self.job.signals.exit())));
            }
            ended => {
                let Some(recurring) = self.recurring else { return acquisition.end(opened, &ended).map(Err) };
                return recurring.refused(&acquisition, opened, &ended, self.job.handle.proof()).map(Err);
            }
        };
        let prepared = self.prepare(opened, grants, evicted.as_ref(), child);
        if !matches!(prepared, Ok(Ok(_))) {
            self.job.release(opened)?;
        }
        Ok(prepared?)
    }

    /// Locks the files, reports the grants and begins the job. The caller releases the locks if that fails.
    fn prepare(
        &self,
        opened: &OpenLockSet<'_>,
        mut grants: Vec<Grant>,
        evicted: Option<&(usize, EndedGrant)>,
        child: Option<&SleepingChild<'_>>,
    ) -> Result<std::result::Result<Held, Exit>> {
        let mut files = Vec::new();
        if let Some(flock_compat) = self.flock_compat {
            match flock_compat.take(self, opened, &mut grants, child)? {
                Ok(locked) => files = locked,
                Err(exit) => return Ok(Err(exit)),
            }
        }
        report_taken(&self.asked.common, opened, &grants, evicted, None);
        if let Some(recurring) = self.recurring
            && let Some(exit) = recurring.begin(opened, self.job.handle.proof())?
        {
            return Ok(Err(exit));
        }
        Ok(Ok(Held { grants, files }))
    }

    fn acquisition<'b>(&'b self, child: Option<&'b SleepingChild<'_>>) -> Acquisition<'b> {
        let waiting = &self.asked.taking.waiting;
        let policy = waiting.wait_policy();
        let own = Acquisition::new(&self.asked.common, waiting, self.job.signals);
        Acquisition {
            // The stores were opened meanwhile, which took time.
            policy: policy.rest(policy.end(self.began), self.job.context.host.boottime()),
            give_up_if: self.asked.taking.give_up_if,
            interrupt: child.map_or(own.interrupt, |child| child as &dyn Interrupt),
            ..own
        }
    }

    /// Returns the request for the command. Without a supervisor (`-F`) the locks end with the command, and its end counts
    /// as a release; `is_kept` says that a keeper then renews their leases.
    fn request(&self, has_no_supervisor: bool, is_kept: bool) -> Result<AcquireRequest> {
        let (taking, command) = (&self.asked.taking, self.job.command_line.line());
        // Only the supervisor can record that a job has succeeded in its slot, so the lock depends on its life, too.
        let reporter = self.job.supervisor.filter(|_| self.job.has_slot());
        let owners = std::iter::once(self.process).chain(reporter).collect();
        let handle = self.job.handle.clone();
        let request = request(self.job.context, &taking.waiting, handle, self.process, owners, command)?;
        Ok(AcquireRequest {
            mode: taking.mode(),
            lifetime: taking.lifetime(),
            slots: taking.slots,
            latest_only: self.asked.busy == Busy::Latest,
            // With -F the keeper receives the end of the grant for the command, as long as the command lives.
            owner: Owner { supervisor: self.job.supervisor.or(is_kept.then_some(self.process)), ..request.owner },
            ends_with: if has_no_supervisor { EndsWith::Exit } else { EndsWith::Process },
            invocation: Some(self.job.context.invocation(self.job.supervisor.unwrap_or(self.process).pid)),
            ..request
        })
    }

    /// Returns the numbers that the command learns by `CSALOCK_TOKEN` and `CSALOCK_SLOT`.
    pub(super) fn numbers(&self, grants: &[Grant]) -> GrantNumbers {
        let grant = &grants[self.job.locks.first_at];
        GrantNumbers { token: grant.token.unwrap_or_default(), slot: (grant.mode == Mode::Slot).then_some(grant.slot) }
    }
}

/// Returns the environment variables that describe the locks to the command, as far as they are known before the grant.
pub(super) fn variables(job: &Job<'_>) -> Vec<CString> {
    let first = job.locks.first();
    let outer: Vec<String> = job.context.enclosing_grants().iter().map(ToString::to_string).collect();
    let mut variables: Vec<(&str, OsString)> = vec![
        ("CSALOCK_NAME", OsString::from_vec(first.display_name.clone())),
        ("CSALOCK_STORE", first.location.inherited_url()),
        ("CSALOCK_OUTER_STORE", job.context.outer_store()),
        ("CSALOCK_HANDLE", job.handle.to_string().into()),
    ];
    if !outer.is_empty() {
        variables.push(("CSALOCK_OUTER", outer.join(",").into()));
    }
    // None of the values contains NUL.
    let variable = |(name, value): &(&str, OsString)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat());
    variables.iter().filter_map(|each| variable(each).ok()).collect()
}
