//! The one loop: read the record, learn what must be known, decide, then swap or wait. And again.
//!
//! Nothing above the engine touches a store, nothing below it knows what a lock is. It decides nothing itself: all
//! rules are in [`crate::lock::decide`].

mod patience;
mod sight;
mod taking;

use std::sync::Arc;
use std::time::Duration;

pub use patience::{Backoff, Patience};
pub use sight::Sight;
pub use taking::{Applicant, Taken};

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::host::Host;
use crate::lock::{
    self, Ask, Claimant, Facts, Grant, Handle, Outcome, Process, Proof, Record, Step, Tenure, Wanted, decide,
};
use crate::store::{Store, Stored, Swap, Version};

/// So often somebody may be faster than we are, one time after the other, before we say that something is wrong.
const MOST_CONFLICTS: usize = 50_000;

/// A store and the host it is used from.
pub struct Engine {
    store: Box<dyn Store>,
    host: Arc<dyn Host>,
}

/// One look at a record.
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
        for _ in 0..MOST_CONFLICTS {
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
        Err(self.overtaken(name))
    }

    /// Somebody was always faster; more often than anybody could have been.
    fn overtaken(&self, name: &[u8]) -> Error {
        let what = format!("{} changes faster than it can be followed", self.store.place(name));
        Error::new(Exit::System, what, "see what else is at work there, then try again")
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

#[cfg(test)]
mod tests;
