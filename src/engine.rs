//! The one loop: read the record, learn what must be known, decide, then swap or wait. And again.
//!
//! Nothing above the engine touches a store, nothing below it knows what a lock is. It decides nothing itself: all
//! rules are in [`crate::lock::decide`].

mod applicant;
mod breaking;
mod circle;
mod commit;
mod crowd;
mod decision;
mod held_up;
mod history;
mod leases;
mod leftovers;
mod outage;
mod pages;
mod patience;
mod race;
mod several;
mod sight;
mod taking;
mod together;
mod values;
mod witness;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use self::crowd::learn_crowd;
use self::leases::Lent;
use self::race::Race;

pub use applicant::Applicant;
pub use leases::LEASE;
pub use outage::OUTAGE;
pub use patience::{Backoff, Patience};
pub use several::{AllTaken, Onlooker, Wish, confirm_all, take_all};
pub use sight::Sight;
pub use taking::{Taken, Waiting};
pub use values::Wanted as WantedValue;

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::history::Limits;
use crate::host::{Host, Listener};
use crate::lock::{
    self, Ask, Claimant, Ended, Ending, Facts, Fate, Grant, Handle, Home, Lease, Outcome, Party, Process, Proof,
    Record, Step, Tenure, Value, Waiter, Wanted, Writing, decide,
};
use crate::store::{Change, Durability, Keep, Store, Stored, Swap, Version};

/// A store and the host it is used from.
pub struct Engine {
    store: Box<dyn Store>,
    host: Arc<dyn Host>,
    remembers: Limits,
    /// How long leases are that are renewed.
    lease: Duration,
    lent: Mutex<Vec<Lent>>,
    #[cfg(debug_assertions)]
    trace: crate::trace::Trace,
}

/// One record that is to take another one's place.
struct Swapped<'a> {
    expect: Option<Version>,
    before: &'a Record,
    record: &'a Record,
    wake: &'a [Proof],
    /// Leases whose end justifies this.
    over: &'a [Lease],
}

/// One look at a record.
type Current = (Option<Version>, Record);

impl Engine {
    /// An engine for this store.
    pub fn new(store: Box<dyn Store>, host: Arc<dyn Host>) -> Engine {
        Engine {
            store,
            host,
            remembers: Limits::default(),
            lease: LEASE,
            lent: Mutex::default(),
            #[cfg(debug_assertions)]
            trace: crate::trace::Trace::new(crate::environment::Environment::trace()),
        }
    }

    /// The same, that keeps so much history.
    pub fn remembering(self, limits: Limits) -> Engine {
        Engine { remembers: limits, ..self }
    }

    /// The same, whose leases are so long where they are renewed.
    pub fn leasing(self, lease: Duration) -> Engine {
        Engine { lease, ..self }
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
        self.settle_for(name, ask, None)
    }

    fn settle_for(&self, name: &[u8], ask: &Ask, by: Option<&Party>) -> Result<Outcome> {
        loop {
            if let Some(outcome) = self.settle_in(self.race_for(name, ask), ask, by)? {
                return Ok(outcome);
            }
        }
    }

    /// The same, unless others are faster as long as this race goes on.
    fn settle_in(&self, mut race: Race<'_>, ask: &Ask, by: Option<&Party>) -> Result<Option<Outcome>> {
        let name = race.key;
        let mut ask = ask.clone();
        // The answer, if the record knows nothing of it.
        let mut removed: Option<Outcome> = None;
        loop {
            let (version, record) = self.read(name)?;
            let is_known = |outcome: &Outcome| match outcome {
                Outcome::Released(grant) => record.knows(&grant.proof),
                Outcome::Broken(endings) => endings.iter().any(|ending| record.knows(&ending.grant.proof)),
                _ => true,
            };
            if let Some(outcome) = removed.take().filter(|outcome| !is_known(outcome)) {
                if let Outcome::Released(grant) = &outcome {
                    self.tell_supervisor(&grant.proof);
                }
                return Ok(Some(outcome));
            }
            match self.decide(&record, &ask, None)? {
                Step::Done(outcome) => return Ok(Some(outcome)),
                Step::Write { record: next, outcome, wake, over } => {
                    let swapped = Swapped { expect: version, before: &record, record: &next, wake: &wake, over: &over };
                    let stored = self.swap_with(&[swapped], &[], by)?;
                    // What stood there just now left a trace if another process ended it. So if there is none, our own write
                    // was stored, and the reply was lost.
                    let leaves_no_trace = |outcome: &Outcome| match outcome {
                        Outcome::Released(_) => true,
                        _ => next.is_vacant(),
                    };
                    removed = outcome.clone().filter(|outcome| stored.is_none() && leaves_no_trace(outcome));
                    if let (Some(version), Some(outcome)) = (stored, outcome) {
                        match &outcome {
                            // Whoever renews on and on knows.
                            Outcome::Renewed(Grant { tenure: Tenure::Renewed(_), .. }) => {}
                            Outcome::Renewed(grant) => self.tell_supervisor(&grant.proof),
                            _ => {}
                        }
                        return Ok(Some(with_token(outcome, &version)));
                    }
                    if let Ask::Release(claimant)
                    | Ask::Renew(claimant, _)
                    | Ask::Mourn(claimant)
                    | Ask::Write(Writing { claimant, .. }) = &mut ask
                    {
                        claimant.repeated = true;
                    }
                    if !race.lost()? {
                        return Ok(None);
                    }
                }
                Step::Join(_) | Step::Wait { .. } => return Ok(Some(Outcome::Busy(record.holders))),
            }
        }
    }

    /// Somebody on this host who says that a grant is theirs.
    ///
    /// # Errors
    ///
    /// When this host cannot be told from others.
    pub fn claimant(&self, proof: Option<Proof>, owners: Vec<Process>) -> Result<Claimant> {
        Ok(Claimant { proof, owners, claim: None, home: self.host.home()?, supervises: false, repeated: false })
    }

    /// The process on this host that took the grant with this proof for itself, or that supervises it.
    ///
    /// # Errors
    ///
    /// As [`Engine::claimant`].
    pub fn supervisor(&self, proof: Proof) -> Result<Claimant> {
        Ok(Claimant { supervises: true, ..self.claimant(Some(proof), Vec::new())? })
    }

    /// Everything about one name, for people; `None` when it is free and was never heard of.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked.
    pub fn sight(&self, name: &[u8]) -> Result<Sight> {
        self.see(self.read(name)?.1)
    }

    /// Everything about every name, one after the other. `visit` gets an `Err` for a record that is unreadable.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked, and what `visit` returns.
    pub fn each_sight(&self, visit: &mut dyn FnMut(Result<Sight>) -> Result<()>) -> Result<()> {
        self.store.scan(&mut |place, stored| {
            if stored.as_ref().is_ok_and(|stored| self.is_beside(stored, place)) {
                return Ok(());
            }
            let record =
                stored.and_then(|stored| decode(&stored, place)).and_then(|record| self.in_place(record, place));
            visit(record.and_then(|record| self.see(record)))
        })
    }

    /// Whether something is kept beside records, and under its own name. What only looks like that is in a record's place.
    fn is_beside(&self, stored: &Stored, place: &str) -> bool {
        let key =
            Some(&stored.body).filter(|body| lock::is_internal(body)).and_then(|body| lock::name_of_internal(body));
        key.is_some_and(|key| key.contains(&0) && self.store.place(&key) == place)
    }

    /// A record, if it is in the place of its name. (One that a power cut tore has none.)
    fn in_place(&self, record: Record, place: &str) -> Result<Record> {
        if record.name.is_empty() || self.store.place(&record.name) == place {
            return Ok(record);
        }
        Err(of_another_name(place, &record.name))
    }

    /// An owner that ends while its record is read may have confirmed or released the grant before, so the record is read
    /// again before a grant is shown as ended.
    fn see(&self, mut record: Record) -> Result<Sight> {
        loop {
            let whole = self.whole(record.clone())?;
            let sight = Sight::of(whole.clone(), |facts, wanted| self.learn(&whole, facts, wanted, None))?;
            if sight.holders.iter().all(std::result::Result::is_ok) {
                return Ok(sight);
            }
            let now = self.read(&record.name)?.1;
            if now == record {
                return Ok(sight);
            }
            record = now;
        }
    }

    /// Removes what is kept beside the records under this name, if it is there.
    fn remove_beside(&self, key: &[u8], durability: Durability) -> Result<()> {
        let keep = Keep { durability, mode: None };
        while let Some(version) = self.store.version(key)? {
            if let Swap::Stored(_) = self.commit_beside(key, Some(&version), None, keep)? {
                break;
            }
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
            return Err(of_another_name(&self.store.place(name), &record.name).in_version(stored.version));
        }
        Ok((Some(stored.version), record))
    }

    /// Decides for somebody who is willing to wait so long.
    fn decide(&self, record: &Record, ask: &Ask, patience: Option<Duration>) -> Result<Step> {
        #[cfg(debug_assertions)]
        let from = self.trace.now(self.host.as_ref());
        let mut facts = Facts::at(self.host.wall().as_millis() as u64);
        learn_crowd(record, &mut facts, &mut |facts, wanted| self.learn(record, facts, wanted, patience))?;
        loop {
            match decide(record, ask, &facts) {
                Ok(step) => {
                    #[cfg(debug_assertions)]
                    self.trace.decided(self.host.as_ref(), from, record, ask, &facts);
                    return Ok(step);
                }
                Err(Wanted::Decided(proof)) => facts.learn_decided(proof, self.has_decided_for_good(&proof)?),
                Err(wanted) => self.learn(record, &mut facts, wanted, patience)?,
            }
        }
    }

    /// Finds out what must be known to decide about this record, as we read it.
    fn learn(&self, record: &Record, facts: &mut Facts, wanted: Wanted, patience: Option<Duration>) -> Result<()> {
        match wanted {
            Wanted::Outlasts(lease) => {
                let left = self.store.until_over(&lease, &record.sightings)?;
                facts.learn_outlasts(lease, patience.is_some_and(|patience| left > patience));
            }
            Wanted::Decided(proof) => facts.learn_decided(proof, self.has_decided(&proof)?),
            Wanted::Lent(span) => facts.learn_lent(span, self.store.lend(Duration::from_millis(span))?),
            Wanted::Page(number) => facts.learn_page(number, self.seal(&record.name, number)?),
            Wanted::Fate(home, process) => {
                let fate = self.fate_in(record, facts, &home, &process);
                let is_released = || {
                    let supervisor = record.supervisor_of(&home, &process);
                    supervisor.is_some_and(|supervisor| self.host.is_released_by(&supervisor, &home, &process))
                };
                let lived =
                    fate == Fate::Dead && (is_released() || self.was_confirmed_since(record, &home, &process)?);
                facts.learn_fate(home, process, if lived { Fate::Alive } else { fate });
            }
            Wanted::Over(lease) => {
                let over = self.is_over(record, &lease)?;
                facts.learn_over(lease, over);
            }
        }
        Ok(())
    }

    /// Whether a grant of this record depended on this process when we read it, and does not any more: then it confirmed that
    /// grant before it ended, and its end says nothing.
    fn was_confirmed_since(&self, record: &Record, home: &Home, process: &Process) -> Result<bool> {
        let depend = |record: &Record| -> Vec<Proof> {
            let on_it = |grant: &&Grant| grant.unconfirmed.as_ref() == Some(process) && grant.party.home == *home;
            record.holders.iter().filter(on_it).map(|grant| grant.proof).collect()
        };
        let before = depend(record);
        Ok(!before.is_empty() && depend(&self.read(&record.name)?.1) != before)
    }

    /// Stores records, and what is kept beside them, as one change; wakes those it concerns, and writes down what ended;
    /// what was broken, by whom. `None`: somebody was faster.
    fn swap_with(&self, records: &[Swapped<'_>], beside: &[Change<'_>], by: Option<&Party>) -> Result<Option<Version>> {
        let body = |swapped: &Swapped<'_>| (!swapped.record.is_vacant()).then(|| lock::encode(swapped.record));
        let bodies: Vec<_> = records.iter().map(body).collect();
        for (swapped, body) in records.iter().zip(&bodies) {
            self.check_size(&swapped.record.name, body.as_deref())?;
        }
        let mut changes = beside.to_vec();
        for (Swapped { expect, before, record, over, .. }, body) in records.iter().zip(&bodies) {
            let keep = Keep { durability: values::durability(before, record), mode: None };
            changes.push(Change { name: &record.name, expect: *expect, body: body.as_deref(), keep, over });
        }
        let before: Vec<&Record> = records.iter().map(|swapped| swapped.before).collect();
        let Swap::Stored(version) = self.commit(&changes, &before)? else { return Ok(None) };
        for Swapped { before, record, wake, .. } in records {
            self.wake(before, wake);
            self.tell_supervisors(before, record);
            self.end_leases(before, record);
            self.remove_witnesses(before, record);
            // What is left behind if this fails misleads nobody, and the record is as it is.
            let _ = self.tidy_up(before, record);
            self.remember(before, record, by);
        }
        self.store.settle();
        Ok(Some(version))
    }

    /// Nobody could read a larger one.
    fn check_size(&self, name: &[u8], body: Option<&[u8]>) -> Result<()> {
        if body.is_none_or(|body| body.len() <= lock::MOST_BYTES) {
            return Ok(());
        }
        let what = format!("{} has no room for so many holders", self.store.place(name));
        Err(Error::new(Exit::System, what, "nothing was changed; try again when some of them are gone"))
    }

    /// Tells those who watch a command that its grant has changed.
    fn tell_supervisor(&self, proof: &Proof) {
        self.host.ring(Listener::Guardian(proof));
    }

    /// Tells those who watch a command whose grant ended. A supervisor knows what it released, and sees its command die.
    fn tell_supervisors(&self, before: &Record, after: &Record) {
        let is_over = |grant: &&Grant| after.holders.iter().all(|other| other.proof != grant.proof);
        for grant in before.holders.iter().filter(is_over) {
            let ending = after.endings.iter().rev().find(|ending| ending.grant.proof == grant.proof);
            let is_known = |ending: &Ending| match ending.how {
                Ended::Died => true,
                Ended::Released => ending.grant.party.supervisor != grant.party.supervisor,
                Ended::Expired | Ended::Broken => false,
            };
            if !ending.is_some_and(is_known) {
                self.tell_supervisor(&grant.proof);
            }
        }
    }

    fn wake(&self, before: &Record, wake: &[Proof]) {
        for proof in wake {
            let waiter = before.waiters.iter().find(|waiter| waiter.proof == *proof);
            if !self.host.ring(Listener::Waiter(proof)) {
                self.store.ring(&proof.bell(), waiter.and_then(|waiter| waiter.lease.as_ref()));
            }
        }
    }

    /// Removes what was kept beside a record for waiters who wait no more.
    fn tidy_up(&self, before: &Record, now: &Record) -> Result<()> {
        let fetched = self.remove_pages(before, now)?;
        self.remove_old_value(before, now)?;
        // Who was granted what he waited for takes his notes away himself.
        let is_there = |waiter: &&Waiter| {
            now.waiters.iter().any(|other| other.proof == waiter.proof)
                || now.holders.iter().any(|grant| grant.proof == waiter.proof)
        };
        fetched
            .iter()
            .filter(|waiter| !is_there(waiter))
            .for_each(|waiter| self.remove_witness(&now.name, &waiter.proof));
        let gone = before.waiters.iter().chain(&fetched).filter(|waiter| !is_there(waiter));
        gone.into_iter().try_for_each(|waiter| {
            self.store.silence(&waiter.proof.bell());
            self.forget(&now.name, waiter)
        })
    }
}

fn of_another_name(place: &str, other: &[u8]) -> Error {
    Error::corrupt(format!("{place} is the record of another name, {}", crate::name::shown(other)))
}

/// Reads a record. One that a power cut may have torn, and that is torn, is as good as none: its name is empty then.
fn decode(stored: &Stored, place: &str) -> Result<Record> {
    match lock::decode(&stored.body, stored.version.number) {
        Err(_) if stored.may_be_torn => Ok(Record::default()),
        Err(error) => Err(Error::new(error.exit(), format!("{place}: {error}"), "").in_version(stored.version)),
        decoded => decoded,
    }
}

/// The token of what was granted just now is the version that it was stored as.
fn with_token(outcome: Outcome, version: &Version) -> Outcome {
    let numbered = |grant: Grant| Grant { token: grant.token.or(Some(version.number)), ..grant };
    match outcome {
        Outcome::Granted(grant, before) => Outcome::Granted(numbered(grant), before),
        Outcome::Busy(grants) => Outcome::Busy(grants.into_iter().map(numbered).collect()),
        Outcome::Written(Some(value), stale) => {
            let or_this = |known: Option<u64>| known.or(Some(version.number));
            let value = Value { version: or_this(value.version), token: or_this(value.token), ..value };
            Outcome::Written(Some(value), stale)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
