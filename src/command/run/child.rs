//! The child process that acquires the lock and becomes the command.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use nix::unistd::Pid;

use super::flock_compat::FlockCompat;
use crate::cli::{OnLost, RunWithLock};
use crate::command::acquire::{Acquisition, report_taken, request};
use crate::command::context::{Context, eprint_line};
use crate::engine::{AcquireAllResult, AcquireRequest, WaitPolicy, acquire_all};
use crate::engine::{LockSet, OpenLockSet};
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::lock::{Grant, Handle, Mode, Owner, ProcessId};
use crate::run::deadline::SharedDeadline;
use crate::run::keepalive::{KeeperConfig, spawn_detached};
use crate::run::schedule::LeaseSchedule;
use crate::run::spawn::{ChildSide, CommandLine, Report, VforkStatus};
use crate::signals::Signals;

/// Everything that the child needs.
pub(super) struct CommandChild<'a> {
    pub(super) context: &'a Context,
    pub(super) asked: &'a RunWithLock,
    pub(super) targets: &'a LockSet,
    pub(super) command_line: &'a CommandLine,
    pub(super) signals: &'a Signals,
    pub(super) handle: &'a Handle,
    /// The process that stays behind; `None` with `-F`.
    pub(super) supervisor: Option<ProcessId>,
    pub(super) flock_compat: Option<&'a FlockCompat>,
    /// Shows the other processes when our lease ends, if it has an end.
    pub(super) shared_deadline: Option<SharedDeadline>,
    /// Start of the wait for the locks, on CLOCK_BOOTTIME.
    pub(super) began: Duration,
}

impl CommandChild<'_> {
    /// Acquires the locks and becomes the command. Returns only if it has not become the command. Without a supervisor
    /// (`-F`) the locks end with the command.
    pub(super) fn acquire_and_exec(&self, child_side: Option<&ChildSide>) -> anyhow::Result<Exit> {
        let opened = self.targets.open(self.context)?;
        let request = self.request(child_side.is_none(), opened.are_shared())?;
        let waiting = &self.asked.taking.waiting;
        let policy = waiting.wait_policy();
        let until = policy.limit.map(|limit| self.began.saturating_add(limit));
        // The store may have been locked during the first attempt, which took time.
        let limit = until.map(|until| until.saturating_sub(self.context.host.boottime()));
        let depend = || {
            child_side.inspect(|child_side| child_side.depend_on_guardian(self.context.inherited));
        };
        let acquisition = Acquisition {
            policy: WaitPolicy { limit, ..policy },
            at_first_wait: &depend,
            ..Acquisition::new(&self.asked.common, waiting, self.signals)
        };
        let (grants, evicted) = match acquisition.acquire(&opened, &request)? {
            AcquireAllResult::Granted(grants, evicted) => (grants, evicted),
            ended => return Ok(acquisition.end(&opened, &ended)),
        };
        let files = self.flock_compat.map(|compat| compat.take(self, &opened, request.mode, until, child_side));
        if let Some(refused) = files.and_then(Result::transpose) {
            self.release(&opened)?;
            return Ok(refused?);
        }
        report_taken(&self.asked.common, &opened, &grants, evicted.as_ref());
        let error = self.exec(&opened, &grants, child_side);
        self.release(&opened)?;
        Err(error.into())
    }

    /// Becomes the command, as the holder of these grants. Returns the reason if that fails.
    fn exec(&self, opened: &OpenLockSet<'_>, grants: &[Grant], child_side: Option<&ChildSide>) -> Error {
        if let Err(error) = self.see_to_leases(opened, grants, child_side.is_none()) {
            return error;
        }
        child_side.inspect(|child_side| child_side.tell(Report::Granted));
        match child_side.is_none_or(|child_side| self.wait_for_go(child_side)) {
            true => self.execute(grants),
            false => Error::new(
                ErrorKind::Lost,
                "its lease was over, or its supervisor was gone, before the command could begin; it was not run",
                "try again",
            ),
        }
    }

    /// Acquires the locks if they are free and becomes the command. If an obstacle appears, the regular path checks it
    /// again and reports it.
    pub(super) fn acquire_in_vfork(&self, progress: &VforkStatus) {
        let Ok(opened) = self.targets.open(self.context) else { return };
        let Ok(request) = self.request(false, false) else { return };
        let taken = acquire_all(&opened.lock_refs(), &request, &WaitPolicy::NONE, None, &mut |_, _| None);
        let Ok(AcquireAllResult::Granted(grants, evicted)) = taken else { return };
        report_taken(&self.asked.common, &opened, &grants, evicted.as_ref());
        // The open descriptors are not the supervisor's, although the memory is.
        drop(opened);
        progress.granted();
        let error = self.execute(&grants);
        progress.failed(Exit::from(error.kind()));
        eprint_line(&error.to_string());
        if let Err(error) = self.targets.open(self.context).and_then(|opened| self.release(&opened)) {
            eprint_line(&error.to_string());
        }
    }

    /// Publishes when the leases end; without a supervisor, starts a keeper that renews them.
    fn see_to_leases(&self, opened: &OpenLockSet<'_>, grants: &[Grant], alone: bool) -> Result<()> {
        let Some(shared_deadline) = self.shared_deadline else { return Ok(()) };
        shared_deadline.start(opened, grants);
        if !alone {
            return Ok(());
        }
        let keeping = KeeperConfig {
            context: self.context,
            targets: self.targets,
            proof: self.handle.proof(),
            owners: vec![self.context.host.this_process()?],
            shared_deadline,
            kills: self.asked.on_lost == OnLost::Kill,
            timed: self.asked.taking.ttl.is_some(),
        };
        spawn_detached(&keeping, opened, grants)
    }

    /// Waits until a process watches our lease. Returns false if the command would have to end before it starts.
    fn wait_for_go(&self, child_side: &ChildSide) -> bool {
        let span = self.asked.taking.ttl.unwrap_or(self.context.lease());
        let left = || {
            let ends = self.shared_deadline.and_then(SharedDeadline::load).unwrap_or(Duration::MAX);
            LeaseSchedule { ends, span }.last_start().saturating_sub(self.context.host.boottime())
        };
        child_side.wait_for_go(left()) && !left().is_zero()
    }

    fn execute(&self, grants: &[Grant]) -> Error {
        // Only the supervisor ends the command before the lease is over, so the command must die with it.
        let dependent = self.asked.taking.ttl.is_some() && self.asked.on_lost == OnLost::Kill;
        self.command_line.execute(
            &self.variables(grants),
            self.signals,
            self.context.inherited,
            self.supervisor.filter(|_| dependent).map(|supervisor| Pid::from_raw(supervisor.pid)),
        )
    }

    fn request(&self, release_on_exit: bool, is_kept: bool) -> Result<AcquireRequest> {
        let process = self.context.host.this_process()?;
        let (taking, command) = (&self.asked.taking, self.command_line.line());
        let request = request(self.context, &taking.waiting, self.handle.clone(), process, vec![process], command)?;
        Ok(AcquireRequest {
            mode: taking.mode(),
            lifetime: taking.lifetime(),
            slots: taking.slots,
            // With -F the keeper receives the end of the grant for the command, as long as the command lives.
            owner: Owner { supervisor: self.supervisor.or(is_kept.then_some(process)), ..request.owner },
            release_on_exit,
            invocation: Some(self.context.invocation(self.supervisor.unwrap_or(process).pid)),
            ..request
        })
    }

    /// Returns the environment variables that describe the locks to the command.
    fn variables(&self, grants: &[Grant]) -> Vec<(&'static str, OsString)> {
        let (first, grant) = (self.targets.first(), &grants[self.targets.first_at()]);
        let mut variables = vec![
            ("CSALOCK_NAME", OsString::from_vec(first.display_name.clone())),
            ("CSALOCK_STORE", first.location.inherited_url()),
            ("CSALOCK_OUTER_STORE", self.context.outer_store()),
            ("CSALOCK_HANDLE", self.handle.to_string().into()),
            ("CSALOCK_TOKEN", grant.token.unwrap_or_default().to_string().into()),
        ];
        if grant.mode == Mode::Slot {
            variables.push(("CSALOCK_SLOT", grant.slot.to_string().into()));
        }
        let outer: Vec<String> = self.context.enclosing_grants().iter().map(ToString::to_string).collect();
        if !outer.is_empty() {
            variables.push(("CSALOCK_OUTER", outer.join(",").into()));
        }
        variables
    }

    fn release(&self, opened: &OpenLockSet<'_>) -> Result<()> {
        // The keeper must not take the release for a loss.
        if let Some(shared_deadline) = self.shared_deadline {
            shared_deadline.release_first(self.targets.all.len());
        }
        opened.release_all(self.handle.proof())
    }
}
