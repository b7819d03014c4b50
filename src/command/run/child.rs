//! The child process that acquires the lock and becomes the command.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::flock_compat::FlockCompat;
use crate::child::{ChildSide, CommandLine, Report, VforkStatus};
use crate::cli::{OnLost, RunWithLock};
use crate::command::context::{Context, eprint_line, refusal};
use crate::command::keepalive::{KeeperConfig, spawn_detached};
use crate::command::lock::report_taken;
use crate::command::lock_set::{LockSet, OpenLockSet};
use crate::command::wait_progress::WaitProgress;
use crate::engine::{AcquireAllResult, AcquireRequest, WaitPolicy};
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::host::Invocation;
use crate::lock::{Grant, Handle, Mode, Owner, ProcessId};
use crate::shared_deadline::SharedDeadline;
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
        let common = &self.asked.common;
        let request = self.request(child_side.is_none(), opened.are_shared())?;
        let policy = self.asked.taking.waiting.wait_policy();
        let until = policy.limit.map(|limit| self.began.saturating_add(limit));
        // The store may have been locked during the first attempt, which took time.
        let limit = until.map(|until| until.saturating_sub(self.context.host.boottime()));
        let patience = WaitPolicy { limit, ..policy };
        let (mut waits, mut teller) = (false, WaitProgress::new(common));
        let taken = opened.acquire(&request, &patience, Some(self.signals.interrupt()), &mut |at, waiting| {
            if !std::mem::replace(&mut waits, true) {
                child_side.inspect(|becoming| becoming.depend_on_guardian(self.context.inherited));
            }
            teller.update(&self.targets.all[at], &opened.reporter(at), waiting)
        })?;
        drop(teller);
        match taken {
            AcquireAllResult::Granted(grants, evicted) => {
                let files = self.flock_compat.map(|old| old.take(self, &opened, request.mode, until, child_side));
                if let Some(refused) = files.and_then(Result::transpose) {
                    self.release(&opened)?;
                    return Ok(refused?);
                }
                report_taken(common, self.targets, &opened, &grants, evicted.as_ref());
                if let Err(error) = self.see_to_leases(&opened, &grants, child_side.is_none()) {
                    self.release(&opened)?;
                    return Err(error.into());
                }
                child_side.inspect(|becoming| becoming.tell(Report::Granted));
                let error = match child_side.is_none_or(|becoming| self.wait_for_go(becoming)) {
                    true => self.execute(&grants),
                    false => Error::new(
                        ErrorKind::Lost,
                        "the lease was over, or nobody was there to watch it, before the command could begin; it was not run",
                        "try again",
                    ),
                };
                self.release(&opened)?;
                Err(error.into())
            }
            AcquireAllResult::Refused(at, response) => {
                let busy = self.asked.taking.waiting.conflict_exit_code;
                let (text, exit) = refusal(&response, &self.targets.all[at], &opened.reporter(at), busy);
                common.note(&text);
                Ok(exit)
            }
            AcquireAllResult::Interrupted => Ok(self.signals.exit()),
        }
    }

    /// Acquires the locks if they are free and becomes the command. If an obstacle appears, the regular path checks it
    /// again and reports it.
    pub(super) fn acquire_in_vfork(&self, progress: &VforkStatus) {
        let Ok(opened) = self.targets.open(self.context) else { return };
        let Ok(request) = self.request(false, false) else { return };
        let taken = opened.acquire(&request, &WaitPolicy::NONE, None, &mut |_, _| None);
        let Ok(AcquireAllResult::Granted(grants, evicted)) = taken else { return };
        report_taken(&self.asked.common, self.targets, &opened, &grants, evicted.as_ref());
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
        opened.start_leases(grants, shared_deadline);
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
            ends.saturating_sub(self.context.host.boottime()).saturating_sub(span * 3 / 10)
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
        let taking = &self.asked.taking;
        let owner = self.context.owner(vec![process], self.command_line.line(), taking.waiting.label.as_ref())?;
        Ok(AcquireRequest {
            handle: self.handle.clone(),
            mode: taking.mode(),
            // With -F the keeper receives the end of the grant for the command, as long as the command lives.
            owner: Owner { supervisor: self.supervisor.or(is_kept.then_some(process)), ..owner },
            process,
            owner_outlives_process: false,
            release_on_exit,
            claim: None,
            lifetime: taking.lifetime(),
            slots: taking.slots,
            refuse_stale: taking.waiting.fail_on_stale,
            provisional: false,
            confirming: false,
            enclosing_grants: self.context.enclosing_grants(),
            invocation: Some(Invocation {
                pid: self.supervisor.unwrap_or(process).pid,
                ignores_interrupt: self.context.inherited.ignored(Signal::SIGINT),
            }),
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
        opened.release(self.handle.proof()).into_iter().try_for_each(|answer| answer.map(drop))
    }
}
