//! Stores of records. A store commits bytes under names; it does not know what a lock is.
//!
//! The trait [`Store`] defines a back end, and `tests/stores` is the conformance suite for every back end.
//! Guarantees:
//!
//! - [`Store::commit`] is an atomic compare-and-swap, even between hosts if the store has several.
//! - A version's number is a fencing token: it only grows under a name, even if the record is removed and created
//!   again. (All versions differ, so there is no ABA problem.)
//! - A process that dies at any instruction leaves either the old record or the new one.
//! - Only a commit or a sweep changes records. Reads create nothing: a store that does not exist yet reads as empty.

pub mod health;
pub mod history_file;
mod identity;
pub mod leases;
#[cfg(any(test, fuzzing, debug_assertions))]
mod memory;
pub mod mount;
mod url;
mod write_set;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use health::{Finding, Scratch, Verdict};
pub use identity::in_order;
pub use leases::Leases;
#[cfg(any(test, fuzzing, debug_assertions))]
pub use memory::Memory;
pub use mount::{is_on_network, refuse_file_mounted_alone};
pub use url::{Layout, Location, ParseServer, ServerKind, UrlLease};
pub use write_set::{CommitResult, Durability, LinesOfHistory, Write, WriteOptions, WriteSet};

use host::Host;
pub use host::{Scope, Subscription};
pub use lock::Version;
use lock::{Error, Result, text};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versioned {
    pub version: Version,
    #[serde(with = "text")]
    pub body: Vec<u8>,
    /// True if the record was written before the last reboot and not synced: damage then has a known cause.
    pub may_be_torn: bool,
    pub is_copy: bool,
}

impl Versioned {
    pub fn new(version: Version, body: Vec<u8>) -> Versioned {
        Versioned { version, body, may_be_torn: false, is_copy: false }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    pub scope: Scope,
    /// True if a commit wakes waiters on other hosts, unless a pooler is in the way.
    pub wakes_hosts: bool,
    /// True if a commit certainly wakes waiters on other hosts, and subscribers of records learn of all changes.
    pub notifies: bool,
}

impl Abilities {
    /// A store without channels to other hosts.
    pub fn of(scope: Scope) -> Abilities {
        Abilities { scope, wakes_hosts: false, notifies: false }
    }
}

#[derive(Debug, Clone, Copy)]
pub enum Topic<'a> {
    /// Wake-ups of the waiter with this channel: all since this version was stored if the store [`Abilities::notifies`],
    /// else all from now on.
    Channel(&'a [u8], Version),
    Record(&'a [u8]),
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swept {
    pub removed: u64,
    /// Errors about the records and leftovers that the sweep skipped, one for each.
    pub passed_over: Vec<Error>,
}

impl Swept {
    /// Keeps an error that concerns one record, so that the sweep can continue; returns any other.
    pub fn pass_over(&mut self, error: Error) -> Result<()> {
        if !error.is_of_one_record() {
            return Err(error);
        }
        self.passed_over.push(error);
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Call {
    /// Deadline on CLOCK_BOOTTIME, which the call may exceed by less than a second; `None` means the default of the store.
    /// Only a store whose calls never wait for other processes ignores it.
    pub until: Option<Duration>,
    /// True if a pending signal ends the call to a server: a wait ends then, a release does not.
    pub interruptible: bool,
}

impl Call {
    /// A call with this deadline that no signal ends.
    pub fn until(deadline: Duration) -> Call {
        Call { until: Some(deadline), interruptible: false }
    }

    /// Every attempt has a deadline.
    pub fn end(self) -> Duration {
        self.until.unwrap_or(Duration::MAX)
    }

    /// This call, or the part of it that ends at this time.
    pub fn by(self, deadline: Duration) -> Call {
        Call { until: Some(self.end().min(deadline)), ..self }
    }

    pub fn is_interrupted(self, host: &dyn Host) -> bool {
        self.interruptible && host.is_interrupted()
    }
}

/// Callback for one record of a scan. It gets the record's location, and the record or the error of its read.
pub type Visit<'a> = dyn FnMut(&str, Result<Versioned>) -> Result<()> + 'a;

/// Named, versioned bytes, and leases on a clock that all users of the store share.
pub trait Store: Upkeep + Send + Sync {
    /// `None` if there is no record. If its bytes cannot be read, the error has its version ([`Error::version`]), if known.
    fn read(&self, call: Call, name: &[u8]) -> Result<Option<Versioned>>;

    /// Visits every record, in no particular order, in memory that does not grow with their number.
    fn scan(&self, call: Call, visit: &mut Visit<'_>) -> Result<()>;

    /// Makes the change if the record still has its expected version and the leases are over. Returns when it stands.
    fn commit(&self, call: Call, set: &WriteSet<'_>) -> Result<CommitResult>;

    /// Carries out the effects that a successful commit has not: wakes waiters through the store, writes the history,
    /// closes channels, and removes what the change replaced. Nothing that is correct depends on it.
    fn finish(&self, _call: Call, _set: &WriteSet<'_>) {}

    /// Gives up a scarce connection before a wait, or all connections if the wait `is_long`. Returns true if the next call
    /// takes one that others need, so that the process should not look often.
    fn before_wait(&self, _call: Call, _is_long: bool) -> bool {
        false
    }

    /// Waits until all that this process has read stands, even after a failover. A commit that was answered does; one whose
    /// process has died may be visible before that.
    fn settle(&self, _call: Call) -> Result<()> {
        Ok(())
    }

    fn leases(&self) -> &dyn Leases;

    /// Subscribes to wake-ups or changes, if the store reports them.
    fn subscribe(&self, _call: Call, _topic: Topic<'_>) -> Option<Box<dyn Subscription>> {
        None
    }

    fn abilities(&self) -> Abilities;

    /// Returns true if the path of the store now names another store, or none, than the one with this process's commits.
    /// Other processes do not see those commits then.
    fn is_replaced(&self) -> bool {
        false
    }
}

/// The part of a store that serves people and `csalock gc`. No rule of locking depends on it.
pub trait Upkeep {
    /// For messages.
    fn describe(&self, name: &[u8]) -> String;

    /// Number of answers of servers to this process, which distinguishes a slow server from a silent one.
    fn answers(&self) -> u64 {
        0
    }

    /// Returns the directory that must have a lock of flock(2) while a process holds a lock in the store, so that no cleaner
    /// of temporary files removes its records. `None` if no cleaner works there.
    fn cleaned_directory(&self) -> Option<PathBuf> {
        None
    }

    /// Visits the lines of history, oldest first. Returns false if the store keeps no history.
    fn read_history(&self, _call: Call, _visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        Ok(false)
    }

    /// Removes leftovers of processes that died half-way. A store whose leftovers end with leases has none.
    fn sweep(&self, _call: Call, _dry_run: bool) -> Result<Swept> {
        Ok(Swept::default())
    }

    /// Connections to the server that are in use, and their maximum, if the server has few.
    fn count_connections(&self, _call: Call) -> Option<(u64, u64)> {
        None
    }

    fn diagnose(&self, call: Call) -> Vec<Finding>;
}

impl dyn Store + '_ {
    pub fn scope(&self) -> Scope {
        self.abilities().scope
    }
}

/// Locks the mutex even if another thread panicked while it used the content.
pub fn guarded<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// Environment variables that are set and not empty. Each store reads its own settings.
pub type Variables<'a> = dyn Fn(&str) -> Option<OsString> + 'a;

/// The URL of a store on servers.
pub trait ServerUrl: std::fmt::Debug + Send + Sync {
    /// Two URLs with the same text are the same store.
    fn url(&self) -> String;

    /// Reaches no server: the first call does.
    fn open(&self, variables: &Variables<'_>, host: Arc<dyn Host>) -> Result<Box<dyn Store>>;
}

impl PartialEq for dyn ServerUrl {
    fn eq(&self, other: &dyn ServerUrl) -> bool {
        self.url() == other.url()
    }
}

impl Eq for dyn ServerUrl {}
