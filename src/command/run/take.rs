//! The process that takes the lock for itself and becomes the command.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;

use crate::child::{Becoming, Plan, Progress, Report};
use crate::cli::RunWithLock;
use crate::command::lock::told;
use crate::command::world::{Target, World, refusal, say};
use crate::engine::{Applicant, Patience, Taken};
use crate::error::Result;
use crate::exit::Exit;
use crate::lock::{Ask, Grant, Handle, Outcome, Share};
use crate::report::Reporter;
use crate::signals::Signals;

/// Everything that it needs.
pub(super) struct Take<'a> {
    pub(super) world: &'a World,
    pub(super) asked: &'a RunWithLock,
    pub(super) target: &'a Target,
    pub(super) plan: &'a Plan,
    pub(super) signals: &'a Signals,
    pub(super) handle: &'a Handle,
}

impl Take<'_> {
    /// Takes the lock and becomes the command. Returns only without having become it. Without a guardian (`-F`) the lock
    /// ends with the command.
    pub(super) fn and_become(&self, becoming: Option<&Becoming>) -> anyhow::Result<Exit> {
        let engine = self.world.engine(&self.target.location)?;
        let reporter = Reporter { host: engine.host(), reach: engine.store().reach() };
        let common = &self.asked.common;
        let taken = engine.take(
            &self.target.name,
            &self.applicant(becoming.is_none())?,
            &self.asked.taking.patience(),
            Some(self.signals.as_fd()),
            &mut |record| {
                becoming.inspect(|becoming| becoming.depend_on_guardian(self.world.inherited));
                common.tell_waiting(self.target, record, &reporter);
            },
        )?;
        match taken {
            Taken::Answer(Outcome::Granted(grant, evicted)) => {
                told(common, self.target, &reporter, &grant, evicted.as_ref());
                becoming.inspect(|becoming| becoming.tell(Report::Granted));
                let error = self.plan.execute(&self.variables(&grant), self.signals, self.world.inherited);
                self.give_back()?;
                Err(error.into())
            }
            Taken::Answer(outcome) => {
                let busy = self.asked.taking.conflict_exit_code;
                let (text, exit) = refusal(&outcome, self.target, &reporter, busy);
                common.tell(&text);
                Ok(exit)
            }
            Taken::Interrupted => {
                let signal = std::iter::from_fn(|| self.signals.next()).next();
                Ok(signal.map_or(Exit::System, |came| Exit::Raised(came.signal as i32)))
            }
        }
    }

    /// Takes the lock if it is free and becomes the command. Whatever stands in the way is looked at again, and
    /// told, by the long way.
    pub(super) fn at_once(&self, progress: &Progress) {
        let Ok(engine) = self.world.engine(&self.target.location) else { return };
        let Ok(applicant) = self.applicant(false) else { return };
        let taken = engine.take(&self.target.name, &applicant, &Patience::NONE, None, &mut |_| {});
        let Ok(Taken::Answer(Outcome::Granted(grant, evicted))) = taken else { return };
        let reporter = Reporter { host: engine.host(), reach: engine.store().reach() };
        told(&self.asked.common, self.target, &reporter, &grant, evicted.as_ref());
        // What it has open is not our guardian's, though its memory is.
        drop(engine);
        progress.granted();
        let error = self.plan.execute(&self.variables(&grant), self.signals, self.world.inherited);
        progress.failed(error.exit());
        say(&error.to_string());
        if let Err(error) = self.give_back() {
            say(&error.to_string());
        }
    }

    fn applicant(&self, yields: bool) -> Result<Applicant> {
        let process = self.world.host.this_process()?;
        let taking = &self.asked.taking;
        Ok(Applicant {
            handle: self.handle.clone(),
            share: Share::Exclusive,
            party: self.world.party(vec![process], self.plan.line(), taking.label.as_ref())?,
            process,
            outlived: false,
            yields,
            tenure: taking.tenure(),
            slots: None,
            refuse_stale: taking.fail_on_stale,
            carried: self.world.carried(),
        })
    }

    /// What tells the command of its lock.
    fn variables(&self, grant: &Grant) -> Vec<(&'static str, OsString)> {
        vec![
            ("CSALOCK_NAME", OsString::from_vec(self.target.known_as.clone())),
            ("CSALOCK_STORE", self.target.location.url()),
            ("CSALOCK_HANDLE", self.handle.to_string().into()),
            ("CSALOCK_TOKEN", grant.token.unwrap_or_default().to_string().into()),
        ]
    }

    fn give_back(&self) -> Result<Outcome> {
        let engine = self.world.engine(&self.target.location)?;
        let claimant = engine.claimant(Some(self.handle.proof()), Vec::new())?;
        engine.settle(&self.target.name, &Ask::Release(claimant))
    }
}
