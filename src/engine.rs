//! The one loop: read the record, learn what must be known, decide, then swap or wait. And again.
//!
//! Nothing above the engine touches a store, nothing below it knows what a lock is. It decides nothing itself: all
//! rules are in [`crate::lock::decide`].

mod patience;
mod sight;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

pub use patience::{Backoff, Patience};
pub use sight::Sight;

use crate::error::{Error, Result};
use crate::host::{Host, Vigil, Woken};
use crate::lock::{
    self, Application, Ask, Claimant, Facts, Grant, Handle, Lease, Outcome, Party, Process, Proof, Record, Share, Step,
    Tenure, Waiter, Wanted, decide,
};
use crate::store::{Reach, Store, Stored, Swap, Version};

/// On a store that other hosts may use, a waiter is taken for alive this long after it last said so.
const WAITERS_LEASE: Duration = Duration::from_secs(60);

/// A lease that is over by this much is over on every clock that rounds.
const ROUNDING: Duration = Duration::from_millis(1);

/// A store and the host it is used from.
pub struct Engine {
    store: Box<dyn Store>,
    host: Arc<dyn Host>,
}

/// Who wants a lock, and on what terms.
#[derive(Debug, Clone)]
pub struct Applicant {
    /// The secret that will prove the grant.
    pub handle: Handle,
    /// How much of it.
    pub share: Share,
    /// For whom.
    pub party: Party,
    /// The process that waits.
    pub process: Process,
    /// Whether that process may end without the party losing what it waited for: then a grant must be confirmed.
    pub outlived: bool,
    /// Whether the party's end gives the lock back, as a matter of course.
    pub yields: bool,
    /// How long the grant is to last.
    pub tenure: Tenure,
    /// How many may hold at once, for [`Share::Slot`].
    pub slots: Option<u32>,
    /// Refuse when the holder is gone without having given back.
    pub refuse_stale: bool,
    /// The grant that the applicant already works under.
    pub carried: Option<Proof>,
}

/// How an attempt to take a lock ended.
#[derive(Debug)]
pub enum Taken {
    /// With this answer.
    Answer(Outcome),
    /// Not at all: the interrupt came. Nothing is held, nothing is queued.
    Interrupted,
}

/// One look at a record that is being waited for.
type Current = (Option<Version>, Record);

impl Engine {
    /// An engine for this store.
    pub fn new(store: Box<dyn Store>, host: Arc<dyn Host>) -> Engine {
        Engine { store, host }
    }

    /// Its store.
    pub fn store(&self) -> &dyn Store {
        self.store.as_ref()
    }

    /// Its host.
    pub fn host(&self) -> &dyn Host {
        self.host.as_ref()
    }

    /// A new secret.
    ///
    /// # Errors
    ///
    /// When the system has no random numbers.
    pub fn new_handle(&self) -> Result<Handle> {
        Ok(Handle::new(self.host.random()?))
    }

    /// Does what needs no waiting.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked or told.
    pub fn settle(&self, name: &[u8], ask: &Ask) -> Result<Outcome> {
        let mut ask = ask.clone();
        loop {
            let (version, record) = self.read(name)?;
            match self.decide(&record, &ask)? {
                Step::Done(outcome) => return Ok(outcome),
                Step::Write { record, outcome, wake } => {
                    let stored = self.swap(name, version.as_ref(), &record, &wake)?;
                    if let (Some(version), Some(outcome)) = (stored, outcome) {
                        return Ok(with_token(outcome, &version));
                    }
                    if let Ask::Release(claimant) | Ask::Renew(claimant, _) = &mut ask {
                        claimant.repeated = true;
                    }
                }
                Step::Wait { .. } => return Ok(Outcome::Busy(record.holders)),
            }
        }
    }

    /// Takes a lock, waiting for it as long as `patience` lasts. `waiting` is told once, when the wait begins, who is in
    /// the way.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked or told. Should the lock be taken all the same, then by a grant that dies with the
    /// applicant.
    pub fn take(
        &self,
        name: &[u8],
        applicant: &Applicant,
        patience: &Patience,
        interrupt: Option<BorrowedFd<'_>>,
        waiting: &mut dyn FnMut(&Record),
    ) -> Result<Taken> {
        let me = applicant.handle.proof();
        let mut clock = patience.begin(self.host.boottime(), self.store.reach());
        let mut application = self.application(applicant, patience)?;
        let mut vigil: Option<Box<dyn Vigil + '_>> = None;
        let mut current: Option<Current> = None;
        let mut told = false;
        loop {
            application.tenure = self.begin(&applicant.tenure)?;
            self.keep_waiters_lease(&mut application)?;
            let (version, record) = match current.take() {
                Some(current) => current,
                None => self.read(name)?,
            };
            match self.decide(&record, &Ask::Take(application.clone()))? {
                Step::Done(outcome) => return Ok(Taken::Answer(outcome)),
                Step::Write { record, outcome, wake } => {
                    if outcome.is_none() && vigil.is_none() {
                        vigil = Some(self.host.vigil(&me, interrupt)?);
                    }
                    let stored = self.swap(name, version.as_ref(), &record, &wake)?;
                    match (stored, outcome) {
                        (Some(version), Some(outcome)) => return Ok(Taken::Answer(with_token(outcome, &version))),
                        (Some(version), None) => current = Some((Some(version), record)),
                        (None, _) => {}
                    }
                }
                Step::Wait { processes, leases, ahead } => {
                    if !std::mem::replace(&mut told, true) {
                        waiting(&record);
                    }
                    let Some(pause) = clock.next_pause(self.host.boottime()) else {
                        match self.settle(name, &Ask::Withdraw(me))? {
                            Outcome::GrantedMeanwhile(_) => continue,
                            _ => return Ok(Taken::Answer(Outcome::Busy(record.holders))),
                        }
                    };
                    let vigil = match &mut vigil {
                        Some(vigil) => vigil,
                        none => none.insert(self.host.vigil(&me, interrupt)?),
                    };
                    let at_most = leases.iter().try_fold(pause, |pause, lease| {
                        self.store.remaining(lease).map(|remaining| pause.min(remaining + ROUNDING))
                    })?;
                    let here = self.host.home()?;
                    let seen: Vec<Process> = processes
                        .iter()
                        .filter(|(home, _)| here.shares_pids_with(home))
                        .map(|(_, process)| *process)
                        .collect();
                    // Who runs in another network namespace cannot ring us, but we may see what it writes.
                    let deaf = ahead == 0 && processes.iter().any(|(home, _)| home.net != here.net);
                    let doorway = deaf.then(|| self.store.doorway(name)).flatten();
                    if vigil.wait(&seen, doorway.as_deref(), at_most)? == Woken::Interrupted {
                        self.abandon(name, &me)?;
                        return Ok(Taken::Interrupted);
                    }
                }
            }
        }
    }

    /// Leaves the queue, and gives back what was granted in the meantime.
    fn abandon(&self, name: &[u8], me: &Proof) -> Result<()> {
        if let Outcome::GrantedMeanwhile(_) = self.settle(name, &Ask::Withdraw(*me))? {
            self.settle(name, &Ask::Release(self.claimant(Some(*me), Vec::new())?))?;
        }
        Ok(())
    }

    /// Somebody on this host who says that a grant is theirs.
    ///
    /// # Errors
    ///
    /// When this host cannot be told from others.
    pub fn claimant(&self, proof: Option<Proof>, owners: Vec<Process>) -> Result<Claimant> {
        Ok(Claimant { proof, owners, home: self.host.home()?, repeated: false })
    }

    /// A tenure that begins now.
    ///
    /// # Errors
    ///
    /// When the store's clock cannot be asked.
    pub fn begin(&self, tenure: &Tenure) -> Result<Tenure> {
        match tenure {
            Tenure::AtMost(span) => Ok(Tenure::Until(self.store.lend(Duration::from_millis(*span))?)),
            other => Ok(other.clone()),
        }
    }

    /// Everything about one name, for people; `None` when it is free and was never heard of.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked.
    pub fn sight(&self, name: &[u8]) -> Result<Sight> {
        let (_, record) = self.read(name)?;
        Sight::of(record, |record, wanted| self.learn(record, wanted))
    }

    /// Everything about every name, one after the other. `visit` gets an `Err` for a record that is unreadable.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked, and what `visit` returns.
    pub fn each_sight(&self, visit: &mut dyn FnMut(Result<Sight>) -> Result<()>) -> Result<()> {
        self.store.scan(&mut |place, stored| {
            let record = stored.and_then(|stored| decode(&stored, place));
            visit(record.and_then(|record| Sight::of(record, |facts, wanted| self.learn(facts, wanted))))
        })
    }

    /// Removes a record that cannot be understood, whatever was in it.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked or told.
    pub fn remove_unreadable(&self, name: &[u8]) -> Result<bool> {
        let Some(stored) = self.store.read(name)? else { return Ok(false) };
        if decode(&stored, "").is_ok() {
            return Ok(false);
        }
        Ok(matches!(self.store.swap(name, Some(&stored.version), None)?, Swap::Stored(_)))
    }

    fn application(&self, applicant: &Applicant, patience: &Patience) -> Result<Application> {
        let confirms = applicant.outlived || matches!(applicant.tenure, Tenure::AtMost(_));
        let entry = Waiter {
            proof: applicant.handle.proof(),
            share: applicant.share,
            party: applicant.party.clone(),
            process: applicant.process,
            tenure: applicant.tenure.clone(),
            confirms,
            yields: applicant.yields,
            lease: None,
            since: self.host.wall().as_millis() as u64,
        };
        Ok(Application {
            entry,
            tenure: applicant.tenure.clone(),
            slots: applicant.slots,
            queue: !patience.is_none(),
            refuse_stale: applicant.refuse_stale,
            carried: applicant.carried,
        })
    }

    /// Where other hosts cannot see whether a waiter lives, it says so from time to time.
    fn keep_waiters_lease(&self, application: &mut Application) -> Result<()> {
        if !application.queue || self.store.reach() == Reach::ThisHost {
            return Ok(());
        }
        let has = |lease: &Lease| self.store.remaining(lease);
        if application.entry.lease.as_ref().map(has).transpose()?.unwrap_or_default() < WAITERS_LEASE / 2 {
            application.entry.lease = Some(self.store.lend(WAITERS_LEASE)?);
        }
        Ok(())
    }

    fn read(&self, name: &[u8]) -> Result<Current> {
        let Some(stored) = self.store.read(name)? else { return Ok((None, Record::free(name))) };
        let record = decode(&stored, &self.store.place(name))?;
        if record.name.is_empty() {
            return Ok((Some(stored.version), Record::free(name)));
        }
        if record.name != name {
            let (place, other) = (self.store.place(name), crate::name::shown(&record.name));
            return Err(Error::corrupt(format!("{place} is the record of another name, {other}")));
        }
        Ok((Some(stored.version), record))
    }

    fn decide(&self, record: &Record, ask: &Ask) -> Result<Step> {
        let mut facts = Facts::at(self.host.wall().as_millis() as u64);
        loop {
            match decide(record, ask, &facts) {
                Ok(step) => return Ok(step),
                Err(wanted) => self.learn(&mut facts, wanted)?,
            }
        }
    }

    fn learn(&self, facts: &mut Facts, wanted: Wanted) -> Result<()> {
        match wanted {
            Wanted::Fate(home, process) => {
                let fate = self.host.fate(&home, &process, self.store.reach());
                facts.learn_fate(home, process, fate);
            }
            Wanted::Over(lease) => {
                let over = self.store.remaining(&lease)?.is_zero();
                facts.learn_over(lease, over);
            }
        }
        Ok(())
    }

    /// Stores a record and wakes those it concerns. `None`: somebody was faster.
    fn swap(&self, name: &[u8], expect: Option<&Version>, record: &Record, wake: &[Proof]) -> Result<Option<Version>> {
        let body = (!record.is_vacant()).then(|| lock::encode(record));
        match self.store.swap(name, expect, body.as_deref())? {
            Swap::Conflict => Ok(None),
            Swap::Stored(version) => {
                wake.iter().for_each(|proof| self.host.ring(proof));
                Ok(Some(version))
            }
        }
    }
}

/// Reads a record. One that a power cut may have torn, and that is torn, is as good as none: its name is empty then.
fn decode(stored: &Stored, place: &str) -> Result<Record> {
    match lock::decode(&stored.body, stored.version.number) {
        Err(_) if stored.may_be_torn => Ok(Record::default()),
        Err(error) => Err(Error::new(error.exit(), format!("{place}: {error}"), "")),
        decoded => decoded,
    }
}

/// The token of what was granted just now is the version that it was stored as.
fn with_token(outcome: Outcome, version: &Version) -> Outcome {
    let numbered = |grant: Grant| Grant { token: grant.token.or(Some(version.number)), ..grant };
    match outcome {
        Outcome::Granted(grant, before) => Outcome::Granted(numbered(grant), before),
        Outcome::Busy(grants) => Outcome::Busy(grants.into_iter().map(numbered).collect()),
        other => other,
    }
}
