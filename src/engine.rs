//! The engine's loop: read the record, gather the required facts, decide, then commit or wait, and repeat.
//!
//! The layers above the engine never access a store; the layers below it know nothing about locks. The engine itself
//! contains no rules: all rules are in [`crate::lock::decide`].

mod acquire;
mod acquire_all;
mod auxiliary;
mod commit;
mod commit_record;
mod deadlock;
mod facts;
mod gc;
mod history;
mod inspect;
mod leases;
mod lock_set;
mod values;
mod wait_policy;

use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use self::commit::{CasRetry, Committed, RecordUpdate};
use self::history::Remark;
use self::leases::IssuedLease;
pub use acquire::{AcquireRequest, AcquireResult, EndsWith};
pub use acquire_all::{OnWaitForOne, StoredLock, acquire_all, confirm_all};
pub use inspect::LockStatus;
pub use lock_set::{LockRef, LockSet, OpenLockSet, Released};
pub use values::{ValueWrite, WriteResult};
pub use wait_policy::{Progress, RETRY_INTERVAL, WaitPolicy};

use crate::environment::{Environment, LEASE};
use crate::error::{Error, ErrorKind, Result};
use crate::history::{HistoryLimits, Use};
use crate::host::{Host, Unix};
use crate::lock::{
    self, Break, Credentials, EndedGrant, Facts, Grant, Handle, HandleHash, NotHolder, Owner, ProcessId, Query, Record,
    Release, ReportSuccess, Request, Transition, Waiter, decide,
};
use crate::signals::StartupState;
use crate::store::{Call, CommitResult, Durability, Location, Scope, Store, Version, Versioned, WriteOptions};

pub struct Context {
    pub environment: Environment,
    pub host: Arc<dyn Host>,
    pub inherited: StartupState,
}

impl Context {
    pub fn of_this_process() -> Context {
        #[cfg(debug_assertions)]
        {
            crate::host::OFFSETS.get_or_init(Environment::clock_offsets);
            crate::host::FIRST_PIDS.get_or_init(Environment::first_pid_namespace);
        }
        Context {
            environment: Environment::of_this_process(),
            host: Arc::new(Unix::new()),
            inherited: StartupState::of_this_process(),
        }
    }

    pub fn engine(&self, location: &Location) -> Result<Engine> {
        Engine::open(location, &self.environment, self.host.clone())
    }

    pub fn lease(&self) -> Duration {
        self.environment.lease().unwrap_or(LEASE)
    }
}

/// Maximum time of one try to record a success.
const TO_REPORT: Duration = Duration::from_secs(10);

/// Maximum time for retries to remove an unreadable record, if the store reports changes all the time.
const REMOVAL_LIMIT: Duration = Duration::from_secs(5);

/// Runs the lock requests of a host against a store. A clone shares everything but the limits of its calls.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<EngineState>,
    /// Limits of each call of the store.
    call: Call,
}

/// State that all clones of an engine share.
pub struct EngineState {
    store: Box<dyn Store>,
    host: Arc<dyn Host>,
    remembers: HistoryLimits,
    /// For hints; `None` in tests.
    location: Option<Location>,
    lease: Duration,
    issued_leases: Mutex<Vec<IssuedLease>>,
    /// Waits that ended with a grant and are still published, with their names.
    granted_waits: Mutex<Vec<(Vec<u8>, Waiter)>>,
}

/// A record as read, with its version; the version is `None` if the store has no such record.
pub type VersionedRecord = (Option<Version>, Record);

/// The grants that were broken, or were stale and have been removed; or else the place to which an unreadable record
/// was moved, `None` if the store could not read its bytes.
pub type Broken = std::result::Result<std::result::Result<Vec<EndedGrant>, Option<String>>, NotHolder>;

impl Engine {
    pub fn open(location: &Location, environment: &Environment, host: Arc<dyn Host>) -> Result<Engine> {
        let store = crate::store::open(location, &Environment::variable, host.clone())?;
        #[cfg(debug_assertions)]
        let store = crate::trace::wrap(store, &host, Environment::trace());
        // An invalid setting must not cost a caller the lock; `csalock history` reports what is wrong.
        let limits = environment.history().unwrap_or_default();
        let mut state = EngineState::new(store, host);
        state.remembers = if location.is_beside() { limits.off() } else { limits };
        state.location = Some(location.clone());
        if state.needs_leases() {
            state.lease = environment.lease()?;
        }
        Ok(Engine { shared: Arc::new(state), call: Call::default() })
    }

    pub fn new(store: Box<dyn Store>, host: Arc<dyn Host>) -> Engine {
        Engine { shared: Arc::new(EngineState::new(store, host)), call: Call::default() }
    }

    /// This engine, whose calls of the store have these limits.
    pub fn during(&self, call: Call) -> Engine {
        Engine { shared: self.shared.clone(), call }
    }

    pub fn call(&self) -> Call {
        self.call
    }

    pub fn store(&self) -> &dyn Store {
        self.store.as_ref()
    }

    /// Time since 1970 on the store's clock, which all hosts share.
    pub fn time(&self) -> Result<Duration> {
        self.store.leases().time(self.call)
    }

    pub fn host(&self) -> &dyn Host {
        self.host.as_ref()
    }

    pub fn new_handle(&self) -> Result<Handle> {
        Ok(Handle::new(self.host.random()?))
    }

    /// Executes a request that needs no waiting, and returns the response.
    pub fn apply<R: Request>(&self, name: &[u8], ask: &R) -> Result<R::Response> {
        self.apply_as(name, ask, Remark::default())
    }

    fn apply_as<R: Request>(&self, name: &[u8], ask: &R, remark: Remark<'_>) -> Result<R::Response> {
        loop {
            if let Some(response) = self.try_apply(self.cas_retry_for::<R>(name), ask, remark)? {
                return Ok(response);
            }
        }
    }

    /// Like [`Engine::apply`], but `None` if other writers win until `retry` ends.
    fn try_apply<R: Request>(
        &self,
        mut retry: CasRetry<'_>,
        ask: &R,
        remark: Remark<'_>,
    ) -> Result<Option<R::Response>> {
        let name = retry.key;
        let mut ask = ask.clone();
        // The record that a commit conflicted with, if the store returned it.
        let mut found = None;
        // A commit that conflicted, but may have succeeded without a reply: the grants that it ended, and its response.
        let mut conflicted: Option<(Vec<HandleHash>, R::Response)> = None;
        loop {
            let (version, record) = found.take().map_or_else(|| self.read(name), Ok)?;
            // A grant that another process ends leaves its ending in the record. If the record has neither the grant
            // nor the ending, our own commit has succeeded.
            if let Some((ended, response)) = conflicted.take()
                && !ended.iter().any(|proof| record.knows(proof))
            {
                ended.iter().for_each(|proof| self.wake_supervisor(proof));
                return Ok(Some(response));
            }
            match self.decide(&record, &ask, None)? {
                Transition::Done(response) => return Ok(Some(response)),
                Transition::Write { record: next, response, wake, expired } => {
                    let update = RecordUpdate {
                        expect: version,
                        before: &record,
                        record: &next,
                        wake: &wake,
                        expired: &expired,
                    };
                    match self.commit_update(&update, remark)? {
                        Committed::Done(version) => {
                            R::changed(&response).iter().for_each(|proof| self.wake_supervisor(proof));
                            return Ok(Some(R::with_tokens(response, version.number)));
                        }
                        // A request that pauses reads again after its pause.
                        Committed::Conflict(now) if R::HAS_PRIORITY => found = now,
                        Committed::Conflict(_) => {}
                    }
                    let ended = R::ended(&response, &next);
                    if !ended.is_empty() {
                        conflicted = Some((ended, response));
                    }
                    ask.repeat();
                    if !retry.backoff()? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Fails if this host cannot be distinguished from other hosts.
    pub fn credentials(&self, proof: Option<HandleHash>, owners: Vec<ProcessId>) -> Result<Credentials> {
        Ok(Credentials {
            proof,
            owners,
            claim: None,
            space: self.host.pid_space()?,
            orphan: None,
            supervises: false,
            repeated: false,
        })
    }

    pub fn by_proof(&self, proof: HandleHash) -> Result<Credentials> {
        self.credentials(Some(proof), Vec::new())
    }

    /// Releases the grant with this hash for the process on this host that acquired it or supervises its owner.
    pub fn release(&self, name: &[u8], proof: HandleHash) -> Result<Released> {
        self.release_after(name, proof, Use::Unknown)
    }

    /// Releases a grant like [`Engine::release`], after this use of the lock. If the store was replaced meanwhile, the
    /// grant was lost, because other callers did not see it.
    pub fn release_after(&self, name: &[u8], proof: HandleHash, used: Use) -> Result<Released> {
        let is_replaced = self.store.is_replaced();
        let ask = Release(Credentials { supervises: true, ..self.by_proof(proof)? });
        let released = self.apply_as(name, &ask, Remark { by: None, used: Some((proof, used)) })?;
        self.retract_granted();
        Ok(if is_replaced { Err(NotHolder { store_was_replaced: true, ..NotHolder::default() }) } else { released })
    }

    /// Records that the run under the grant with this hash has succeeded. Tries again while the store does not answer
    /// or refuses the change, as long as `go_on` returns true.
    pub fn report_success(
        &self,
        name: &[u8],
        proof: HandleHash,
        in_slot: bool,
        go_on: &dyn Fn() -> bool,
    ) -> Result<std::result::Result<(), NotHolder>> {
        loop {
            let engine = self.during(Call::until(self.host.boottime() + TO_REPORT));
            let reported = engine.time().and_then(|now| {
                let (credentials, at) = (self.by_proof(proof)?, now.as_millis() as u64);
                engine.apply(name, &ReportSuccess { credentials, in_slot, at, host: self.host.name() })
            });
            match reported {
                Err(error) if (error.kind() == ErrorKind::Unavailable || error.is_refused_change()) && go_on() => {}
                reported => return reported,
            }
        }
    }

    /// Ends the grants that one read finds, or those of them that are `meant`, and records the breaker. Grants that
    /// came after that read stay; if there are any, the response contains them.
    ///
    /// If every grant is meant, an unreadable record is moved aside. It is an error if only some grants are meant, if
    /// the store does not know its version, or if another version of csalock wrote it: it may be a live lock.
    pub fn break_lock(
        &self,
        name: &[u8],
        meant: Option<&dyn Fn(&Grant) -> bool>,
        by: Option<&Owner>,
    ) -> Result<Broken> {
        let mut retry = self.cas_retry(name).until(self.host.boottime().saturating_add(REMOVAL_LIMIT));
        let mut moved: Option<Option<String>> = None;
        loop {
            let error = match (self.read(name), &moved) {
                (Ok((_, record)), Some(place)) => {
                    return Ok(match record.holders {
                        // Another process removed the record, or this process did and the reply was lost.
                        none if none.is_empty() => Ok(Err(place.clone())),
                        holders => Err(NotHolder { holders, ..NotHolder::default() }),
                    });
                }
                (Ok((_, record)), None) => {
                    let meant = record.holders.iter().filter(|grant| meant.is_none_or(|meant| meant(grant)));
                    let proofs = meant.map(|grant| grant.proof).collect();
                    return Ok(self.apply_as(name, &Break(proofs), Remark { by, used: None })?.map(Ok));
                }
                (Err(error), _) if error.kind() == ErrorKind::Corrupt && meant.is_none() => error,
                (Err(error), _) => return Err(error),
            };
            let Some(version) = error.version() else { return Err(error) };
            let place = self.copy_aside(name, version)?;
            if let CommitResult::Done(_) = self.commit_beside(name, Some(&version), None, WriteOptions::default())? {
                return Ok(Ok(Err(place)));
            }
            moved = Some(place);
            if !retry.backoff()? {
                return Err(error);
            }
        }
    }

    /// Stores the bytes of a damaged record in this version where no reader takes them for a lock. Returns their place,
    /// or `None` if the store cannot read them. The record is removed after that, so a kill in between loses nothing.
    fn copy_aside(&self, name: &[u8], version: Version) -> Result<Option<String>> {
        let stored = match self.store.read(self.call, name) {
            Err(error) if error.kind() == ErrorKind::Corrupt => None,
            read => read?.filter(|stored| stored.version == version),
        };
        let Some(stored) = stored else { return Ok(None) };
        let (key, body) = lock::encode_damaged(name, version.number, &stored.body);
        // Another process may have stored the same bytes there.
        self.write_auxiliary(&key, None, &body, WriteOptions { durability: Durability::Durable, mode: None })?;
        Ok(Some(self.store.describe(&key)))
    }

    pub fn read(&self, name: &[u8]) -> Result<VersionedRecord> {
        let read = self.store.read(self.call, name).and_then(|stored| self.record_of(name, stored));
        read.map_err(|error| error.of_lock(|| self.shell_arg(name)))
    }

    /// Waits until all that this process has read certainly stands. An answer that promises a commit of another process
    /// needs that, because that process may have died before its commit was safe.
    pub fn settle(&self) -> Result<()> {
        self.store.settle(self.call)
    }

    fn record_of(&self, name: &[u8], stored: Option<Versioned>) -> Result<VersionedRecord> {
        let Some(stored) = stored else { return Ok((None, Record::free(name))) };
        let record = decode(&stored, || self.store.describe(name))?;
        if record.name.is_empty() {
            return Ok((Some(stored.version), Record::free(name)));
        }
        if record.name != name {
            return Err(of_another_name(&self.store.describe(name), &record.name).in_version(stored.version));
        }
        Ok((Some(stored.version), record))
    }

    /// Decides about a request whose caller waits for `time_left` at most; `None` means no limit.
    fn decide<R: Request>(
        &self,
        record: &Record,
        ask: &R,
        time_left: Option<Duration>,
    ) -> Result<Transition<R::Response>> {
        let mut facts = Facts::at(self.host.wall().as_millis() as u64);
        facts.replies_get_lost = self.store.scope() == Scope::Shared;
        self.prefetch(record, &mut facts, time_left)?;
        loop {
            match decide(record, ask, &facts) {
                Ok(step) => {
                    #[cfg(debug_assertions)]
                    if matches!(step, Transition::Write { .. }) {
                        crate::trace::decided(self.host.as_ref(), record, ask, &facts);
                    }
                    if matches!(&step, Transition::Done(response) if R::promises(response)) {
                        self.settle()?;
                    }
                    return Ok(step);
                }
                Err(Query::Committed(proof)) => {
                    let may_commit = facts.is_awaited(record, &proof);
                    facts.insert_committed(proof, self.has_committed_finally(&proof, may_commit)?);
                }
                Err(query) => self.learn(record, &mut facts, query, time_left)?,
            }
        }
    }
}

impl EngineState {
    fn new(store: Box<dyn Store>, host: Arc<dyn Host>) -> EngineState {
        EngineState {
            store,
            host,
            remembers: HistoryLimits::default(),
            location: None,
            lease: crate::environment::LEASE,
            issued_leases: Mutex::default(),
            granted_waits: Mutex::default(),
        }
    }
}

impl Deref for Engine {
    type Target = EngineState;

    fn deref(&self) -> &EngineState {
        &self.shared
    }
}

fn of_another_name(place: &str, other: &[u8]) -> Error {
    Error::corrupt(format!("{place} is the record of another name, {}", crate::name::escape(other)))
}

/// A damaged record counts as absent if a power cut may have torn it: its name is then empty. Of a copied record only
/// the parts count that depend on no process.
fn decode(stored: &Versioned, place: impl FnOnce() -> String) -> Result<Record> {
    match lock::decode(&stored.body, stored.version.number) {
        Err(error) if error.is_of_other_version() => Err(error.in_place(&place())),
        Err(_) if stored.may_be_torn => Ok(Record::default()),
        Err(error) => Err(error.in_place(&place()).in_version(stored.version)),
        Ok(record) if stored.is_copy => Ok(record.into_copy()),
        decoded => decoded,
    }
}

#[cfg(test)]
mod tests;
