//! The engine's loop: read the record, gather the required facts, decide, then commit or wait, and repeat.
//!
//! Above the engine, only `csalock serve` opens a store by itself; the stores know nothing about locks. The engine itself
//! contains no rules: all rules are in [`lock::decide`].

mod acquire;
mod acquire_all;
mod apply;
mod auxiliary;
pub mod cleaners;
mod commit;
mod commit_record;
mod deadlock;
pub mod environment;
mod facts;
mod gc;
mod history;
mod inspect;
pub mod lease_schedule;
mod leases;
mod lock_set;
pub mod stores;
#[cfg(any(test, debug_assertions))]
pub mod trace;
mod values;
mod wait_policy;

use std::ffi::OsStr;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use acquire::{AcquireRequest, AcquireResult};
pub(crate) use acquire_all::confirm_all;
pub use acquire_all::{StoredLock, acquire_all};
pub use apply::Broken;
pub use inspect::LockStatus;
pub use lock_set::{LockRef, LockSet, OpenLockSet, Released};
pub use stores::location;
pub use values::{ValueWrite, WriteResult};
pub use wait_policy::{Progress, RETRY_INTERVAL, WaitPolicy};

use crate::environment::CurrentDirectory;
use host::{Host, Unix};
use lock::error::{Error, Result};
use lock::history::HistoryLimits;
use lock::{self, Credentials, HandleHash, Lease, ProcessId, Record, Waiter};
use store::{Call, Location, Store, Variables, Version, Versioned};

pub struct Context {
    pub current: CurrentDirectory,
    pub host: Arc<dyn Host>,
}

impl Context {
    pub fn of_this_process() -> Context {
        #[cfg(any(test, debug_assertions))]
        {
            host::OFFSETS.get_or_init(environment::clock_offsets);
            host::FIRST_PIDS.get_or_init(environment::first_pid_namespace);
        }
        Context { current: CurrentDirectory::default(), host: Arc::new(Unix::new()) }
    }

    pub fn engine(&self, location: &Location) -> Result<Engine> {
        Engine::open(location, self.host.clone())
    }
}

/// Settings of an engine beside the place of its store.
pub struct Settings<'a> {
    pub variables: &'a Variables<'a>,
    /// That of the URL, or else of the variables, if it is missing here.
    pub lease: Option<Duration>,
}

/// A clone shares everything but the limits of its calls of the store.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<EngineState>,
    call: Call,
}

pub struct EngineState {
    store: Box<dyn Store>,
    host: Arc<dyn Host>,
    history_limits: HistoryLimits,
    /// For hints; `None` in tests.
    location: Option<Location>,
    lease: Duration,
    issued_leases: Mutex<Vec<IssuedLease>>,
    /// Waits that ended with a grant and are still published, with their names.
    granted_waits: Mutex<Vec<(Vec<u8>, Waiter)>>,
}

/// A lease that this process has requested.
#[derive(Debug)]
struct IssuedLease {
    lease: Lease,
    /// Earliest end of the lease on CLOCK_BOOTTIME.
    ends: Duration,
    span: Duration,
}

/// A record as read, with its version; the version is `None` if the store has no such record.
pub(crate) type VersionedRecord = (Option<Version>, Record);

impl Engine {
    pub fn open(location: &Location, host: Arc<dyn Host>) -> Result<Engine> {
        Engine::open_with(location, host, &Settings { variables: &environment::variable, lease: None })
    }

    pub fn open_with(location: &Location, host: Arc<dyn Host>, settings: &Settings<'_>) -> Result<Engine> {
        let store = stores::open(location, settings.variables, host.clone())?;
        #[cfg(any(test, debug_assertions))]
        let store = crate::trace::wrap(store, &host, environment::trace());
        // An invalid setting must not cost a caller the lock; `csalock history` reports what is wrong.
        let limits = environment::history_of(settings.variables).unwrap_or_default();
        let mut state = EngineState::new(store, host);
        state.history_limits = if location.is_beside() { limits.off() } else { limits };
        state.location = Some(location.clone());
        let lease = settings.lease.or_else(|| location.lease());
        let lease = lease.map_or_else(|| environment::lease(settings.variables), Ok);
        state.lease = if state.needs_leases() { lease? } else { lease.unwrap_or(environment::LEASE) };
        Ok(Engine { shared: Arc::new(state), call: Call::default() })
    }

    pub fn new(store: Box<dyn Store>, host: Arc<dyn Host>) -> Engine {
        Engine { shared: Arc::new(EngineState::new(store, host)), call: Call::default() }
    }

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

    /// Fails if this host cannot be distinguished from other hosts.
    pub fn credentials(&self, proof: Option<HandleHash>, owners: Vec<ProcessId>) -> Result<Credentials> {
        Ok(Credentials { proof, owners, space: self.host.pid_space()?, ..Credentials::default() })
    }

    pub fn by_proof(&self, proof: HandleHash) -> Result<Credentials> {
        self.credentials(Some(proof), Vec::new())
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

    /// The file that a name means, if it means one.
    fn file_of(&self, name: &[u8]) -> Option<PathBuf> {
        let path = Path::new(OsStr::from_bytes(name));
        let directory = self.location.as_ref().and_then(Location::directory_of_files);
        // A path in a store of its own is absolute.
        directory.map_or_else(|| path.is_absolute().then(|| path.to_path_buf()), |directory| Some(directory.join(path)))
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
}

impl EngineState {
    fn new(store: Box<dyn Store>, host: Arc<dyn Host>) -> EngineState {
        EngineState {
            store,
            host,
            history_limits: HistoryLimits::default(),
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
    Error::corrupt(format!("{place} is the record of another name, {}", lock::name::escape(other)))
}

/// A damaged record that a power cut may have torn counts as absent: its name is then empty.
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
