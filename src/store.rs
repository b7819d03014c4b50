//! Stores of records. A store commits bytes under names; it does not know what a lock is.
//!
//! The trait [`Store`] defines a back end, and `tests/stores.rs` is the conformance suite for every back end.
//! Guarantees:
//!
//! - [`Store::commit`] is an atomic compare-and-swap, even between hosts if the store has several.
//! - A version's number is a fencing token: it only grows under a name, even if the record is removed and created
//!   again. (All versions differ, so there is no ABA problem.)
//! - A process that dies at any instruction leaves either the old record or the new one.
//! - Only a commit or a sweep changes records. Reads create nothing: a store that does not exist yet reads as empty.

mod answers;
pub(crate) mod directory;
pub(crate) mod etcd;
mod file_system;
mod finding;
mod history_file;
mod identity;
mod memory;
mod mount;
mod path_checks;
mod scratch;
mod sqlite;
mod url;

use std::sync::Arc;
use std::time::Duration;

pub use answers::answers;
pub use directory::Directory;
pub use etcd::{Access, Etcd};
pub use finding::{Finding, Verdict};
pub use identity::in_order;
pub use memory::Memory;
pub use path_checks::path_findings;
pub use scratch::Scratch;
pub use sqlite::Sqlite;
pub use url::{Cluster, Layout, Location};

use crate::error::{Error, ErrorKind, Result};
use crate::history::Limits;
use crate::host::Host;
pub use crate::host::{Scope, Subscription};
use crate::lock::{Lease, Sighting};
pub use crate::version::Version;

/// A stored record and its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    /// Version of the record.
    pub version: Version,
    /// Bytes of the record.
    pub body: Vec<u8>,
    /// True if the record was written before the last reboot and not synced: damage then has a known cause.
    pub may_be_torn: bool,
}

/// Result of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitResult {
    /// The store committed this version. After a removal, the version does not refer to a record.
    Done(Version),
    /// Another caller was faster, or the reply to our own success was lost. The caller must read again and first look
    /// for its own step in the record.
    Conflict,
}

/// Effect that a power cut may have on a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Durability {
    /// A power cut may undo the commit or tear the record. The record is valid for this boot only.
    #[default]
    Volatile,
    /// A power cut may undo the commit, but leaves either the old record or the new one.
    Atomic,
    /// A power cut has no effect after the commit has returned.
    Durable,
}

/// Options of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// Durability of the record.
    pub durability: Durability,
    /// Permission bits of the record's file, at most. `None`: every user who may read the store may read the record.
    pub mode: Option<u32>,
}

/// One change of a batch: see [`Store::commit_batch`].
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// Name of the record.
    pub name: &'a [u8],
    /// Expected version.
    pub expect: Option<Version>,
    /// New bytes, or `None` for a removal.
    pub body: Option<&'a [u8]>,
    /// Options of the write.
    pub options: WriteOptions,
    /// Leases that must be over.
    pub over: &'a [Lease],
}

/// Result of a sweep or of its dry run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Number of leftovers removed.
    pub removed: u64,
    /// Errors about the records and leftovers that the sweep skipped, one for each.
    pub passed_over: Vec<Error>,
}

impl Swept {
    /// Records a failure that concerns one record, so that the sweep can continue.
    /// Returns the error if it concerns more than one record.
    pub fn pass_over(&mut self, error: Error) -> Result<()> {
        if !error.is_of_one_record() {
            return Err(error);
        }
        self.passed_over.push(error);
        Ok(())
    }
}

/// Callback for one record of a scan. It gets the record's location, and the record or the error of its read.
pub type Visit<'a> = dyn FnMut(&str, Result<Versioned>) -> Result<()> + 'a;

/// Named, versioned bytes, and leases on a clock that all users of the store share.
pub trait Store: Send + Sync {
    /// Returns the record under `name`, or `None` if there is none. If its bytes cannot be read, the error contains its
    /// version ([`Error::version`]), provided that the store knows it.
    fn read(&self, name: &[u8]) -> Result<Option<Versioned>>;

    /// Returns the version of the record under `name`, even if its bytes cannot be read.
    fn version(&self, name: &[u8]) -> Result<Option<Version>> {
        Ok(self.read(name)?.map(|stored| stored.version))
    }

    /// Replaces the record under `name` by `body`, or removes it if `body` is `None`, provided that its version is
    /// still `expect` (`None`: no record).
    fn commit_with(
        &self,
        name: &[u8],
        expect: Option<&Version>,
        body: Option<&[u8]>,
        keep: WriteOptions,
    ) -> Result<CommitResult>;

    /// Commits with the default options, for a record that need not outlive the boot.
    fn commit(&self, name: &[u8], expect: Option<&Version>, body: Option<&[u8]>) -> Result<CommitResult> {
        self.commit_with(name, expect, body, WriteOptions::default())
    }

    /// Returns the maximum number of changes of [`Store::commit_batch`].
    fn max_batch(&self) -> usize {
        1
    }

    /// Commits all of these changes or none; each has its own name, and all get the same version. The result is a
    /// conflict if one of their leases lasts. A store with leases on a clock checks them first, because an expired
    /// lease cannot come back. Any other store must check the leases during the commit.
    fn commit_batch(&self, changes: &[Write<'_>]) -> Result<CommitResult> {
        match changes {
            [one] => {
                for lease in one.over {
                    if !self.lease_expired(lease)? {
                        return Ok(CommitResult::Conflict);
                    }
                }
                self.commit_with(one.name, one.expect.as_ref(), one.body, one.options)
            }
            _ => Err(Error::new(ErrorKind::Bug, "this store makes one change at a time", "")),
        }
    }

    /// Visits every record, in no particular order, in memory that does not grow with their number.
    fn scan(&self, visit: &mut Visit<'_>) -> Result<()>;

    /// Grants a lease that ends `span` from now.
    fn grant_lease(&self, span: Duration) -> Result<Lease>;

    /// Returns the minimum ttl of a lease for its holder; zero if it is over. An expired lease stays expired.
    fn lease_ttl(&self, lease: &Lease) -> Result<Duration>;

    /// Returns true if a lease is over: like [`Store::lease_ttl`], but cheaper.
    fn lease_expired(&self, lease: &Lease) -> Result<bool> {
        Ok(self.lease_ttl(lease)?.is_zero())
    }

    /// Returns the time until this host treats a lease from a record with these sightings as over. If the store's clock
    /// may be set, that is later than for its holder.
    fn time_to_expiry(&self, lease: &Lease, _seen: &[Sighting]) -> Result<Duration> {
        self.lease_ttl(lease)
    }

    /// Returns new sightings of these leases that the next caller on this host needs.
    fn new_sightings(&self, _leases: &[&Lease], _seen: &[Sighting]) -> Result<Vec<Sighting>> {
        Ok(Vec::new())
    }

    /// Revokes a lease that is not needed any more. Correctness does not depend on it.
    fn revoke_lease(&self, _lease: &Lease) {}

    /// Sets the deadline of later calls, on CLOCK_BOOTTIME; a call may exceed it by less than a second. `None` means
    /// the store's default. A store whose calls never wait may ignore it.
    fn set_deadline(&self, _until: Option<Duration>) {}

    /// Returns the hosts that may use the store.
    fn scope(&self) -> Scope;

    /// Returns the location of `name`'s record, for messages.
    fn describe(&self, name: &[u8]) -> String;

    /// Returns true if [`Store::notify`] reaches waiters on other hosts.
    fn can_notify(&self) -> bool {
        false
    }

    /// Wakes the subscriber of this channel; stored traces end with the lease. Correctness does not depend on it.
    fn notify(&self, _bell: &[u8], _lease: Option<&Lease>) {}

    /// Waits briefly until published edges, notifications and history lines have reached the store.
    fn flush(&self) {}

    /// Subscribes to a channel: to all notifications after this version was stored if [`Store::can_notify`], else to
    /// all from now on.
    fn subscribe(&self, _bell: &[u8], _since: &Version) -> Option<Box<dyn Subscription>> {
        None
    }

    /// Removes the channel that a dead waiter may have left in the store.
    fn remove_channel(&self, _bell: &[u8]) {}

    /// Subscribes to later changes of the record under `name`, if the store reports changes.
    fn subscribe_changes(&self, _name: &[u8]) -> Option<Box<dyn Subscription>> {
        None
    }

    /// Returns findings about the store's health: its kind, its users, its clock, its server.
    fn diagnose(&self) -> Vec<Finding>;

    /// Removes leftovers of processes that died half-way. A store whose leftovers end with leases has none.
    fn sweep(&self, _dry_run: bool) -> Result<Swept> {
        Ok(Swept::default())
    }

    /// Appends a line of history with its newline, within the limits. It does not wait, and the line may be lost.
    fn append_history(&self, line: &[u8], limits: &Limits);

    /// Visits the lines of history, oldest first. Returns false if the store keeps no history.
    fn read_history(&self, visit: &mut dyn FnMut(&[u8])) -> Result<bool>;
}

/// Opens the store at a location. It creates nothing: the first commit does.
/// Fails if the location has something other than a store, or an unsafe one: SQLite on a network file system, or a
/// place that other users may write without the sticky bit.
pub fn open(location: &Location, access: impl FnOnce() -> Access, host: Arc<dyn Host>) -> Result<Box<dyn Store>> {
    Ok(match location {
        Location::Directory { path, layout, shared } => Box::new(Directory::open_as(path, *layout, *shared, host)?),
        Location::Sqlite { path } => Box::new(Sqlite::open(path, host)?),
        Location::Etcd(cluster) => Box::new(Etcd::open(cluster, &access(), host)?),
    })
}
