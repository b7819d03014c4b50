//! The engine's loop: read the record, gather the required facts, decide, then commit or wait, and repeat.
//!
//! The layers above the engine never access a store; the layers below it know nothing about locks. The engine itself
//! contains no rules: all rules are in [`crate::lock::decide`].

mod acquire;
mod acquire_all;
mod batch;
mod blocked_callers;
mod breaking;
mod commit;
mod commit_record;
mod contention;
mod deadlock;
mod gc;
mod history;
mod inspect;
mod leases;
mod outage;
mod overflow_queue;
mod prefetch;
mod request;
mod values;
mod wait_policy;
mod witness;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use self::contention::CasRetry;
use self::leases::IssuedLease;
use self::prefetch::prefetch_liveness;

pub use acquire::{AcquireResult, Waiting};
pub use acquire_all::{AcquireAllResult, Onlooker, StoredLock, acquire_all, confirm_all};
pub use inspect::LockStatus;
pub use outage::RETRY_INTERVAL;
pub use request::AcquireRequest;
pub use values::ValueWrite as WantedValue;
pub use wait_policy::WaitPolicy;

use crate::error::{Error, ErrorKind, Result};
use crate::history::Limits;
use crate::host::{Host, WakeAddress};
use crate::lock::{
    self, Credentials, EndReason, EndedGrant, Facts, Grant, Handle, HandleHash, Lease, Lifetime, Liveness, Owner,
    PidDomain, ProcessId, Query, Record, Request, Response, Transition, Value, Waiter, Writing, decide,
};
use crate::store::{CommitResult, Durability, Store, Version, Versioned, Write, WriteOptions};

/// Runs lock requests of a host against a store.
pub struct Engine {
    store: Box<dyn Store>,
    host: Arc<dyn Host>,
    remembers: Limits,
    /// Duration of leases that a keeper renews.
    lease: Duration,
    lent: Mutex<Vec<IssuedLease>>,
    #[cfg(debug_assertions)]
    trace: crate::trace::Trace,
}

/// The replacement of a record by its next version.
struct RecordUpdate<'a> {
    expect: Option<Version>,
    before: &'a Record,
    record: &'a Record,
    wake: &'a [HandleHash],
    /// Leases whose expiry justifies the replacement.
    over: &'a [Lease],
}

/// A record as read, with its version; the version is `None` if the store has no such record.
type VersionedRecord = (Option<Version>, Record);

impl Engine {
    /// Creates an engine for this store and this host.
    pub fn new(store: Box<dyn Store>, host: Arc<dyn Host>) -> Engine {
        Engine {
            store,
            host,
            remembers: Limits::default(),
            lease: crate::environment::LEASE,
            lent: Mutex::default(),
            #[cfg(debug_assertions)]
            trace: crate::trace::Trace::new(crate::environment::Environment::trace()),
        }
    }

    /// Sets the limits for the history that the engine keeps.
    pub fn remembering(self, limits: Limits) -> Engine {
        Engine { remembers: limits, ..self }
    }

    /// Sets the duration of leases that a keeper renews.
    pub fn leasing(self, lease: Duration) -> Engine {
        Engine { lease, ..self }
    }

    /// Returns the engine's store.
    pub fn store(&self) -> &dyn Store {
        self.store.as_ref()
    }

    /// Returns the engine's host.
    pub fn host(&self) -> &dyn Host {
        self.host.as_ref()
    }

    /// Generates a new handle, which is a secret.
    ///
    /// # Errors
    ///
    /// Fails if the system has no random numbers.
    pub fn new_handle(&self) -> Result<Handle> {
        Ok(Handle::new(self.host.random()?))
    }

    /// Executes a request that needs no waiting, and returns the response.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read or written.
    pub fn apply(&self, name: &[u8], ask: &Request) -> Result<Response> {
        self.apply_as(name, ask, None)
    }

    fn apply_as(&self, name: &[u8], ask: &Request, by: Option<&Owner>) -> Result<Response> {
        loop {
            if let Some(response) = self.try_apply(self.race_for(name, ask), ask, by)? {
                return Ok(response);
            }
        }
    }

    /// Executes a request like [`Engine::apply`], but returns `None` if other writers win until `race` ends.
    fn try_apply(&self, mut race: CasRetry<'_>, ask: &Request, by: Option<&Owner>) -> Result<Option<Response>> {
        let name = race.key;
        let mut ask = ask.clone();
        // The response to return if the next read shows no trace of the grant.
        let mut removed: Option<Response> = None;
        loop {
            let (version, record) = self.read(name)?;
            let is_known = |response: &Response| match response {
                Response::Released(grant) => record.knows(&grant.proof),
                Response::Broken(endings) => endings.iter().any(|ending| record.knows(&ending.grant.proof)),
                _ => true,
            };
            if let Some(outcome) = removed.take().filter(|outcome| !is_known(outcome)) {
                if let Response::Released(grant) = &outcome {
                    self.tell_supervisor(&grant.proof);
                }
                return Ok(Some(outcome));
            }
            match self.decide(&record, &ask, None)? {
                Transition::Done(outcome) => return Ok(Some(outcome)),
                Transition::Write { record: next, response: outcome, wake, over } => {
                    let swapped =
                        RecordUpdate { expect: version, before: &record, record: &next, wake: &wake, over: &over };
                    let stored = self.commit_update(&[swapped], &[], by)?;
                    // An ending by another process leaves a trace of the previous grant. If there is no trace, the
                    // store has our write and only the reply was lost.
                    let leaves_no_trace = |outcome: &Response| match outcome {
                        Response::Released(_) => true,
                        _ => next.is_removable(),
                    };
                    removed = outcome.clone().filter(|outcome| stored.is_none() && leaves_no_trace(outcome));
                    if let (Some(version), Some(outcome)) = (stored, outcome) {
                        match &outcome {
                            // The keeper itself renews such a lease, so it needs no notification.
                            Response::Renewed(Grant { lifetime: Lifetime::Keepalive(_), .. }) => {}
                            Response::Renewed(grant) => self.tell_supervisor(&grant.proof),
                            _ => {}
                        }
                        return Ok(Some(with_token(outcome, &version)));
                    }
                    if let Request::Release(credentials)
                    | Request::Renew(credentials, _)
                    | Request::OwnerDied(credentials)
                    | Request::Write(Writing { credentials, .. }) = &mut ask
                    {
                        credentials.repeated = true;
                    }
                    if !race.backoff()? {
                        return Ok(None);
                    }
                }
                Transition::Enqueue(_) | Transition::Wait { .. } => return Ok(Some(Response::Busy(record.holders))),
            }
        }
    }

    /// Returns the credentials of a caller on this host that presents a grant as its own.
    ///
    /// # Errors
    ///
    /// Fails if this host cannot be distinguished from other hosts.
    pub fn credentials(&self, proof: Option<HandleHash>, owners: Vec<ProcessId>) -> Result<Credentials> {
        Ok(Credentials { proof, owners, claim: None, domain: self.host.domain()?, supervises: false, repeated: false })
    }

    /// Returns the credentials of the process on this host that acquired the grant with this hash, or supervises it.
    ///
    /// # Errors
    ///
    /// Fails like [`Engine::credentials`].
    pub fn supervisor(&self, proof: HandleHash) -> Result<Credentials> {
        Ok(Credentials { supervises: true, ..self.credentials(Some(proof), Vec::new())? })
    }

    /// Returns the status of a name, for display; the record of an unknown name is free.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub fn inspect(&self, name: &[u8]) -> Result<LockStatus> {
        self.inspect_record(self.read(name)?.1)
    }

    /// Visits the status of every name in turn. `visit` gets an `Err` for an unreadable record.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read, or with the error that `visit` returns.
    pub fn for_each_lock(&self, visit: &mut dyn FnMut(Result<LockStatus>) -> Result<()>) -> Result<()> {
        self.store.scan(&mut |place, stored| {
            if stored.as_ref().is_ok_and(|stored| self.is_auxiliary(stored, place)) {
                return Ok(());
            }
            let record =
                stored.and_then(|stored| decode(&stored, place)).and_then(|record| self.check_location(record, place));
            visit(record.and_then(|record| self.inspect_record(record)))
        })
    }

    /// Returns true for an auxiliary object under its own name. A lookalike is stored in the place of a record.
    fn is_auxiliary(&self, stored: &Versioned, place: &str) -> bool {
        let key =
            Some(&stored.body).filter(|body| lock::is_auxiliary(body)).and_then(|body| lock::name_of_internal(body));
        key.is_some_and(|key| key.contains(&0) && self.store.describe(&key) == place)
    }

    /// Returns the record if it is in the place of its name. A record that a power cut tore has no name and passes.
    fn check_location(&self, record: Record, place: &str) -> Result<Record> {
        if record.name.is_empty() || self.store.describe(&record.name) == place {
            return Ok(record);
        }
        Err(of_another_name(place, &record.name))
    }

    /// Returns the status of a record. The method reads the record again before it reports a grant as ended. An owner
    /// that ends during the read may have confirmed or released the grant before.
    fn inspect_record(&self, mut record: Record) -> Result<LockStatus> {
        loop {
            let whole = self.whole(record.clone())?;
            let status = LockStatus::of(whole.clone(), |facts, query| self.learn(&whole, facts, query, None))?;
            if status.holders.iter().all(std::result::Result::is_ok) {
                return Ok(status);
            }
            let now = self.read(&record.name)?.1;
            if now == record {
                return Ok(status);
            }
            record = now;
        }
    }

    /// Removes the auxiliary object under this name, if it exists.
    fn remove_auxiliary(&self, key: &[u8], durability: Durability) -> Result<()> {
        let keep = WriteOptions { durability, mode: None };
        while let Some(version) = self.store.version(key)? {
            if let CommitResult::Done(_) = self.commit_beside(key, Some(&version), None, keep)? {
                break;
            }
        }
        Ok(())
    }

    fn read(&self, name: &[u8]) -> Result<VersionedRecord> {
        let Some(stored) = self.store.read(name)? else { return Ok((None, Record::free(name))) };
        let record = decode(&stored, &self.store.describe(name))?;
        if record.name.is_empty() {
            return Ok((Some(stored.version), Record::free(name)));
        }
        if record.name != name {
            return Err(of_another_name(&self.store.describe(name), &record.name).in_version(stored.version));
        }
        Ok((Some(stored.version), record))
    }

    /// Decides about a request whose caller waits for `policy` at most; `None` means no limit.
    fn decide(&self, record: &Record, ask: &Request, policy: Option<Duration>) -> Result<Transition> {
        #[cfg(debug_assertions)]
        let from = self.trace.now(self.host.as_ref());
        let mut facts = Facts::at(self.host.wall().as_millis() as u64);
        prefetch_liveness(record, &mut facts, &mut |facts, query| self.learn(record, facts, query, policy))?;
        loop {
            match decide(record, ask, &facts) {
                Ok(step) => {
                    #[cfg(debug_assertions)]
                    self.trace.decided(self.host.as_ref(), from, record, ask, &facts);
                    return Ok(step);
                }
                Err(Query::Committed(proof)) => facts.insert_committed(proof, self.has_committed_finally(&proof)?),
                Err(wanted) => self.learn(record, &mut facts, wanted, policy)?,
            }
        }
    }

    /// Answers a query of the decision about this record, as it was read, and adds the answer to the facts.
    fn learn(&self, record: &Record, facts: &mut Facts, query: Query, policy: Option<Duration>) -> Result<()> {
        match query {
            Query::Outlasts(lease) => {
                let left = self.store.time_to_expiry(&lease, &record.sightings)?;
                facts.insert_outlasts(lease, policy.is_some_and(|time_left| left > time_left));
            }
            Query::Committed(proof) => facts.insert_committed(proof, self.has_committed(&proof)?),
            Query::NewLease(span) => facts.insert_new_lease(span, self.store.grant_lease(Duration::from_millis(span))?),
            Query::Page(number) => facts.insert_page(number, self.seal(&record.name, number)?),
            Query::Liveness(domain, process) => {
                let liveness = self.fate_in(record, facts, &domain, &process);
                let is_released = || {
                    let supervisor = record.supervisor_of(&domain, &process);
                    supervisor.is_some_and(|supervisor| self.host.is_released_by(&supervisor, &domain, &process))
                };
                let lived = liveness == Liveness::Dead
                    && (is_released() || self.was_confirmed_since(record, &domain, &process)?);
                facts.insert_liveness(domain, process, if lived { Liveness::Alive } else { liveness });
            }
            Query::LeaseExpired(lease) => {
                let over = self.lease_expired(record, &lease)?;
                facts.insert_expired(lease, over);
            }
        }
        Ok(())
    }

    /// Returns true if a grant of this record depended on this process at the read and no longer does. The process then
    /// confirmed that grant before it ended, so its end proves nothing.
    fn was_confirmed_since(&self, record: &Record, domain: &PidDomain, process: &ProcessId) -> Result<bool> {
        let depend = |record: &Record| -> Vec<HandleHash> {
            let on_it = |grant: &&Grant| grant.provisional.as_ref() == Some(process) && grant.owner.domain == *domain;
            record.holders.iter().filter(on_it).map(|grant| grant.proof).collect()
        };
        let before = depend(record);
        Ok(!before.is_empty() && depend(&self.read(&record.name)?.1) != before)
    }

    /// Commits records and auxiliary objects as one change, wakes the waiters concerned and logs the ended grants. `by`
    /// is the owner that broke them. Returns `None` if another writer committed first.
    fn commit_update(
        &self,
        records: &[RecordUpdate<'_>],
        beside: &[Write<'_>],
        by: Option<&Owner>,
    ) -> Result<Option<Version>> {
        let body = |swapped: &RecordUpdate<'_>| (!swapped.record.is_removable()).then(|| lock::encode(swapped.record));
        let bodies: Vec<_> = records.iter().map(body).collect();
        for (swapped, body) in records.iter().zip(&bodies) {
            self.check_size(&swapped.record.name, body.as_deref())?;
        }
        let mut changes = beside.to_vec();
        for (RecordUpdate { expect, before, record, over, .. }, body) in records.iter().zip(&bodies) {
            let keep = WriteOptions { durability: values::durability(before, record), mode: None };
            changes.push(Write { name: &record.name, expect: *expect, body: body.as_deref(), options: keep, over });
        }
        let before: Vec<&Record> = records.iter().map(|swapped| swapped.before).collect();
        let CommitResult::Done(version) = self.commit(&changes, &before)? else { return Ok(None) };
        for RecordUpdate { before, record, wake, .. } in records {
            self.wake(before, wake);
            self.tell_supervisors(before, record);
            self.end_leases(before, record);
            self.remove_witnesses(before, record);
            // Leftovers of a failed removal do no harm, and the record is committed already.
            let _ = self.remove_leftovers(before, record);
            self.log_endings(before, record, by);
        }
        self.store.flush();
        Ok(Some(version))
    }

    /// Fails if the record is too large to be read again.
    fn check_size(&self, name: &[u8], body: Option<&[u8]>) -> Result<()> {
        if body.is_none_or(|body| body.len() <= lock::MOST_BYTES) {
            return Ok(());
        }
        let what = format!("{} has no room for so many holders", self.store.describe(name));
        Err(Error::new(ErrorKind::System, what, "nothing was changed; try again when some of them are gone"))
    }

    /// Notifies the supervisor of a command that its grant has changed.
    fn tell_supervisor(&self, proof: &HandleHash) {
        self.host.wake(WakeAddress::Supervisor(proof));
    }

    /// Notifies the supervisors of ended grants. A supervisor knows its own releases and sees its command die.
    fn tell_supervisors(&self, before: &Record, after: &Record) {
        let is_over = |grant: &&Grant| after.holders.iter().all(|other| other.proof != grant.proof);
        for grant in before.holders.iter().filter(is_over) {
            let ending = after.ended_grants.iter().rev().find(|ending| ending.grant.proof == grant.proof);
            let is_known = |ending: &EndedGrant| match ending.reason {
                EndReason::Died => true,
                EndReason::Released => ending.grant.owner.supervisor != grant.owner.supervisor,
                EndReason::Expired | EndReason::Broken => false,
            };
            if !ending.is_some_and(is_known) {
                self.tell_supervisor(&grant.proof);
            }
        }
    }

    fn wake(&self, before: &Record, wake: &[HandleHash]) {
        for proof in wake {
            let waiter = before.waiters.iter().find(|waiter| waiter.proof == *proof);
            if !self.host.wake(WakeAddress::Waiter(proof)) {
                self.store.notify(&proof.channel(), waiter.and_then(|waiter| waiter.lease.as_ref()));
            }
        }
    }

    /// Removes auxiliary objects that the new record no longer needs.
    fn remove_leftovers(&self, before: &Record, now: &Record) -> Result<()> {
        let fetched = self.remove_pages(before, now)?;
        self.remove_old_value(before, now)?;
        // A waiter that was granted the lock retracts its published edges itself.
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
            self.store.remove_channel(&waiter.proof.channel());
            self.retract(&now.name, waiter)
        })
    }
}

fn of_another_name(place: &str, other: &[u8]) -> Error {
    Error::corrupt(format!("{place} is the record of another name, {}", crate::name::escape(other)))
}

/// Reads a record. A torn record counts as absent if a power cut may have torn it: its name is then empty.
fn decode(stored: &Versioned, place: &str) -> Result<Record> {
    match lock::decode(&stored.body, stored.version.number) {
        Err(_) if stored.may_be_torn => Ok(Record::default()),
        Err(error) => Err(Error::new(error.kind(), format!("{place}: {error}"), "").in_version(stored.version)),
        decoded => decoded,
    }
}

/// Adds the token to a response: the token of a new grant is the version under which the store has it.
fn with_token(response: Response, version: &Version) -> Response {
    let numbered = |grant: Grant| Grant { token: grant.token.or(Some(version.number)), ..grant };
    match response {
        Response::Granted(grant, before) => Response::Granted(numbered(grant), before),
        Response::Busy(grants) => Response::Busy(grants.into_iter().map(numbered).collect()),
        Response::Written(Some(value), stale) => {
            let or_this = |known: Option<u64>| known.or(Some(version.number));
            let value = Value { version: or_this(value.version), token: or_this(value.token), ..value };
            Response::Written(Some(value), stale)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
