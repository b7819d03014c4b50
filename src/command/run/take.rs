//! The process that takes the lock for itself and becomes the command.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::old_flock::OldFlock;
use crate::child::{Becoming, Plan, Progress, Report};
use crate::cli::{OnLost, RunWithLock};
use crate::command::keep::{Keeping, leave_behind};
use crate::command::lock::told;
use crate::command::onlooker::Teller;
use crate::command::targets::{Opened, Targets};
use crate::command::world::{World, refusal, say};
use crate::engine::{AllTaken, Applicant, Patience};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::host::Called;
use crate::lease_end::LeaseEnd;
use crate::lock::{Grant, Handle, Party, Process, Share};
use crate::signals::Signals;

/// Everything that it needs.
pub(super) struct Take<'a> {
    pub(super) world: &'a World,
    pub(super) asked: &'a RunWithLock,
    pub(super) targets: &'a Targets,
    pub(super) plan: &'a Plan,
    pub(super) signals: &'a Signals,
    pub(super) handle: &'a Handle,
    /// The process that stays behind; `None` with `-F`.
    pub(super) guardian: Option<Process>,
    pub(super) old_flock: Option<&'a OldFlock>,
    /// Where the others see when our lease ends, if it has an end.
    pub(super) lease_end: Option<LeaseEnd>,
    /// When the wait for the locks began, on CLOCK_BOOTTIME.
    pub(super) began: Duration,
}

impl Take<'_> {
    /// Takes the locks and becomes the command. Returns only without having become it. Without a guardian (`-F`) they end
    /// with the command.
    pub(super) fn and_become(&self, becoming: Option<&Becoming>) -> anyhow::Result<Exit> {
        let opened = self.targets.open(self.world)?;
        let common = &self.asked.common;
        let applicant = self.applicant(becoming.is_none(), opened.are_shared())?;
        let patience = self.asked.taking.waiting.patience();
        let until = patience.limit.map(|limit| self.began.saturating_add(limit));
        // The store may have been locked while it was tried at once.
        let limit = until.map(|until| until.saturating_sub(self.world.host.boottime()));
        let patience = Patience { limit, ..patience };
        let (mut waits, mut teller) = (false, Teller::new(common));
        let taken = opened.take(&applicant, &patience, Some(self.signals.interrupt()), &mut |at, waiting| {
            if !std::mem::replace(&mut waits, true) {
                becoming.inspect(|becoming| becoming.depend_on_guardian(self.world.inherited));
            }
            teller.look(&self.targets.all[at], &opened.reporter(at), waiting)
        })?;
        drop(teller);
        match taken {
            AllTaken::Granted(grants, evicted) => {
                let files = self.old_flock.map(|old| old.take(self, &opened, applicant.share, until, becoming));
                if let Some(refused) = files.and_then(Result::transpose) {
                    self.give_back(&opened)?;
                    return Ok(refused?);
                }
                told(common, self.targets, &opened, &grants, evicted.as_ref());
                if let Err(error) = self.see_to_leases(&opened, &grants, becoming.is_none()) {
                    self.give_back(&opened)?;
                    return Err(error.into());
                }
                becoming.inspect(|becoming| becoming.tell(Report::Granted));
                let error = match becoming.is_none_or(|becoming| self.has_leave(becoming)) {
                    true => self.execute(&grants),
                    false => Error::new(
                        Exit::Lost,
                        "the lease was over, or nobody was there to watch it, before the command could begin; it was not run",
                        "try again",
                    ),
                };
                self.give_back(&opened)?;
                Err(error.into())
            }
            AllTaken::Refused(at, outcome) => {
                let busy = self.asked.taking.waiting.conflict_exit_code;
                let (text, exit) = refusal(&outcome, &self.targets.all[at], &opened.reporter(at), busy);
                common.tell(&text);
                Ok(exit)
            }
            AllTaken::Interrupted => Ok(self.signals.exit()),
        }
    }

    /// Takes the locks if they are free and becomes the command. Whatever stands in the way is looked at again, and
    /// told, by the long way.
    pub(super) fn at_once(&self, progress: &Progress) {
        let Ok(opened) = self.targets.open(self.world) else { return };
        let Ok(applicant) = self.applicant(false, false) else { return };
        let taken = opened.take(&applicant, &Patience::NONE, None, &mut |_, _| None);
        let Ok(AllTaken::Granted(grants, evicted)) = taken else { return };
        told(&self.asked.common, self.targets, &opened, &grants, evicted.as_ref());
        // What it has open is not our guardian's, though its memory is.
        drop(opened);
        progress.granted();
        let error = self.execute(&grants);
        progress.failed(error.exit());
        say(&error.to_string());
        if let Err(error) = self.targets.open(self.world).and_then(|opened| self.give_back(&opened)) {
            say(&error.to_string());
        }
    }

    /// Tells when the leases end; without a guardian, leaves somebody behind who renews them.
    fn see_to_leases(&self, opened: &Opened<'_>, grants: &[Grant], alone: bool) -> Result<()> {
        let Some(lease_end) = self.lease_end else { return Ok(()) };
        opened.begin_leases(grants, lease_end);
        if !alone {
            return Ok(());
        }
        let keeping = Keeping {
            world: self.world,
            targets: self.targets,
            proof: self.handle.proof(),
            owners: vec![self.world.host.this_process()?],
            lease_end,
            kills: self.asked.on_lost == OnLost::Kill,
            timed: self.asked.taking.ttl.is_some(),
        };
        leave_behind(&keeping, opened, grants)
    }

    /// Waits until somebody is there who watches our lease. Not if the command would have to be ended before it has begun.
    fn has_leave(&self, becoming: &Becoming) -> bool {
        let span = self.asked.taking.ttl.unwrap_or(self.world.lease());
        let left = || {
            let ends = self.lease_end.and_then(LeaseEnd::get).unwrap_or(Duration::MAX);
            ends.saturating_sub(self.world.host.boottime()).saturating_sub(span * 3 / 10)
        };
        becoming.has_leave(left()) && !left().is_zero()
    }

    fn execute(&self, grants: &[Grant]) -> Error {
        // Nobody but its guardian ends a command before its lease is over.
        let dependent = self.asked.taking.ttl.is_some() && self.asked.on_lost == OnLost::Kill;
        self.plan.execute(
            &self.variables(grants),
            self.signals,
            self.world.inherited,
            self.guardian.filter(|_| dependent).map(|guardian| Pid::from_raw(guardian.pid)),
        )
    }

    fn applicant(&self, yields: bool, is_kept: bool) -> Result<Applicant> {
        let process = self.world.host.this_process()?;
        let taking = &self.asked.taking;
        let party = self.world.party(vec![process], self.plan.line(), taking.waiting.label.as_ref())?;
        Ok(Applicant {
            handle: self.handle.clone(),
            share: taking.share(),
            // With -F the keeper hears for the command how the grant ended, as long as that lives.
            party: Party { supervisor: self.guardian.or(is_kept.then_some(process)), ..party },
            process,
            outlived: false,
            yields,
            claim: None,
            tenure: taking.tenure(),
            slots: taking.slots,
            refuse_stale: taking.waiting.fail_on_stale,
            tentative: false,
            confirming: false,
            under: self.world.under(),
            called: Some(Called {
                pid: self.guardian.unwrap_or(process).pid,
                ignores_interrupt: self.world.inherited.ignored(Signal::SIGINT),
            }),
        })
    }

    /// What tells the command of its locks.
    fn variables(&self, grants: &[Grant]) -> Vec<(&'static str, OsString)> {
        let (first, grant) = (self.targets.first(), &grants[self.targets.first_at()]);
        let mut variables = vec![
            ("CSALOCK_NAME", OsString::from_vec(first.known_as.clone())),
            ("CSALOCK_STORE", first.location.given_url()),
            ("CSALOCK_OUTER_STORE", self.world.outer_store()),
            ("CSALOCK_HANDLE", self.handle.to_string().into()),
            ("CSALOCK_TOKEN", grant.token.unwrap_or_default().to_string().into()),
        ];
        if grant.share == Share::Slot {
            variables.push(("CSALOCK_SLOT", grant.slot.to_string().into()));
        }
        let outer: Vec<String> = self.world.under().iter().map(ToString::to_string).collect();
        if !outer.is_empty() {
            variables.push(("CSALOCK_OUTER", outer.join(",").into()));
        }
        variables
    }

    fn give_back(&self, opened: &Opened<'_>) -> Result<()> {
        // The keeper must not take it for lost.
        if let Some(lease_end) = self.lease_end {
            lease_end.release_first(self.targets.all.len());
        }
        opened.give_back(self.handle.proof()).into_iter().try_for_each(|answer| answer.map(drop))
    }
}
