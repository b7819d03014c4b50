//! Where records live. A store keeps bytes under names and swaps them; it does not know what a lock is.
//!
//! The whole of what a back end must be able to do is [`Store`], and `tests/stores.rs` is one suite that every
//! back end passes. What they promise alike:
//!
//! - [`Store::commit`] is an atomic compare-and-swap, also between hosts where the store has several.
//! - A version's number is a fencing token: under one name it only grows, also after the record was removed and
//!   came back. (No two versions are equal, so there is no ABA.)
//! - A process that dies at any instruction leaves either the old record or the new one.
//! - Nothing but `swap`, `sweep` and `note` changes anything. Asking a store that does not exist yet finds nothing in it.

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

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

pub use answers::answers;
pub use directory::Directory;
pub use etcd::{Access, Etcd};
pub use finding::{Finding, Verdict};
pub use identity::in_order;
pub use memory::Memory;
pub use path_checks::surroundings;
pub use scratch::Scratch;
pub use sqlite::Sqlite;
pub use url::{Cluster, Layout, Location};

use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::history::Limits;
use crate::host::Host;
use crate::lock::{Lease, Sighting};

/// Which of a record's versions. Equal only to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// Only grows for a name: the fencing token of what was granted in this version.
    pub number: u64,
    /// Whatever else a store needs to tell it from others.
    pub mark: u64,
}

/// A record as a store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    /// Which version.
    pub version: Version,
    /// The record's bytes.
    pub body: Vec<u8>,
    /// It was written before the last power cut or reboot and not synced: if it makes no sense, that is why.
    pub may_be_torn: bool,
}

/// What became of a swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitResult {
    /// It is stored, as this version. After a removal the version names nothing.
    Done(Version),
    /// Somebody was faster, or the reply to our own success was lost: read again, and look for your own step in the
    /// record before you take it for somebody else's.
    Conflict,
}

/// What a power cut may do to what was swapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Durability {
    /// Anything: undo it, or tear the record. It dies with the boot anyway.
    #[default]
    Volatile,
    /// Undo it. Either the old record is there, whole, or the new one.
    Atomic,
    /// Nothing, once the swap has returned.
    Durable,
}

/// How a swap is to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// What it outlasts.
    pub durability: Durability,
    /// Who may read it: the permission bits of a file, at most. `None`: whoever may read the store.
    pub mode: Option<u32>,
}

/// One of several swaps that are one: see [`Store::commit_with`].
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// Under which name.
    pub name: &'a [u8],
    /// What must be there.
    pub expect: Option<Version>,
    /// What comes in its place.
    pub body: Option<&'a [u8]>,
    /// How it is to be stored.
    pub options: WriteOptions,
    /// Leases that must be over.
    pub over: &'a [Lease],
}

/// How far a store reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Every process that uses it runs under this kernel, or ran under it before a reboot.
    Local,
    /// Other hosts may use it.
    Shared,
}

/// What a sweep did, or would do.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// How many leftovers it removed.
    pub removed: u64,
    /// Why it left a record or a leftover alone, one error for each.
    pub passed_over: Vec<Error>,
}

impl Swept {
    /// Takes note of a failure that concerns one record, so that the sweep can go on with the next.
    ///
    /// # Errors
    ///
    /// When it concerns more than that.
    pub fn pass_over(&mut self, error: Error) -> Result<()> {
        if !error.is_of_one_record() {
            return Err(error);
        }
        self.passed_over.push(error);
        Ok(())
    }
}

/// What to do with one record of a scan. It gets where the record is, and the record if it could be read.
pub type Visit<'a> = dyn FnMut(&str, Result<Versioned>) -> Result<()> + 'a;

/// Named, versioned bytes, and leases on a clock that all users of the store share.
pub trait Store: Send + Sync {
    /// The record under `name`, or `None` where there is none. If there is one whose bytes cannot be had, the error bears
    /// its version ([`Error::version`]), wherever the store knows it.
    fn read(&self, name: &[u8]) -> Result<Option<Versioned>>;

    /// Which version stands under `name`, also where it cannot be read.
    fn version(&self, name: &[u8]) -> Result<Option<Version>> {
        Ok(self.read(name)?.map(|stored| stored.version))
    }

    /// Replaces the record under `name` by `body`, or removes it if that is `None`, provided that its version is still
    /// `expect` (`None`: that there is none).
    fn commit_with(
        &self,
        name: &[u8],
        expect: Option<&Version>,
        body: Option<&[u8]>,
        keep: WriteOptions,
    ) -> Result<CommitResult>;

    /// The same for what need not outlive the boot.
    fn commit(&self, name: &[u8], expect: Option<&Version>, body: Option<&[u8]>) -> Result<CommitResult> {
        self.commit_with(name, expect, body, WriteOptions::default())
    }

    /// How many changes [`Store::commit_batch`] makes as one.
    fn max_batch(&self) -> usize {
        1
    }

    /// Makes all of these changes, each under a name of its own, or none. The version is that of all of them. It is a
    /// conflict, too, if one of their leases lasts. A store whose leases end by a clock looks at it here: that clock only
    /// goes forward, so a lease that is over before the swap is over during it. Any other store must look during the swap.
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
            _ => Err(Error::new(Exit::Bug, "this store makes one change at a time", "")),
        }
    }

    /// Visits every record, in no particular order, in memory that does not grow with their number.
    fn scan(&self, visit: &mut Visit<'_>) -> Result<()>;

    /// A lease that ends `span` from now.
    fn grant_lease(&self, span: Duration) -> Result<Lease>;

    /// How long a lease has left at least, for its holder; zero when it is over. What is over stays over.
    fn lease_ttl(&self, lease: &Lease) -> Result<Duration>;

    /// Whether a lease is over: as [`Store::lease_ttl`], for less.
    fn lease_expired(&self, lease: &Lease) -> Result<bool> {
        Ok(self.lease_ttl(lease)?.is_zero())
    }

    /// How long until this host takes a lease for over that it found in a record with these sightings. If the store's clock
    /// may be set, that is later than its holder does.
    fn time_to_expiry(&self, lease: &Lease, _seen: &[Sighting]) -> Result<Duration> {
        self.lease_ttl(lease)
    }

    /// Sightings of these leases that the next caller on this host needs, beside those that were seen already.
    fn new_sightings(&self, _leases: &[&Lease], _seen: &[Sighting]) -> Result<Vec<Sighting>> {
        Ok(Vec::new())
    }

    /// Takes note that nobody needs a lease any more. Nobody relies on it.
    fn revoke_lease(&self, _lease: &Lease) {}

    /// Until then, on CLOCK_BOOTTIME, and less than a second longer, calls that come now may try to get an answer; `None`: as
    /// long as the store thinks right. A store that cannot be kept waiting for one need not care.
    fn set_deadline(&self, _until: Option<Duration>) {}

    /// Who may be using it.
    fn scope(&self) -> Scope;

    /// Where `name`'s record is, for messages.
    fn describe(&self, name: &[u8]) -> String;

    /// Whether [`Store::notify`] reaches waiters on other hosts.
    fn can_notify(&self) -> bool {
        false
    }

    /// Wakes the waiter that hears this bell; what that leaves in the store goes away with the lease. Nobody relies on it.
    fn notify(&self, _bell: &[u8], _lease: Option<&Lease>) {}

    /// Sees to it that what was noted, rung and remembered so far reaches the store, if it can within a moment.
    fn flush(&self) {}

    /// Begins to listen for a bell: for all that rang after this version was stored if [`Store::can_notify`], else for all that
    /// rings from now on.
    fn subscribe(&self, _bell: &[u8], _since: &Version) -> Option<Box<dyn Subscription>> {
        None
    }

    /// Removes what a waiter that is gone may have left in the store to be rung by.
    fn remove_channel(&self, _bell: &[u8]) {}

    /// Begins to listen for changes of the record under `name` that come from now on, where a store tells of them.
    fn subscribe_changes(&self, _name: &[u8]) -> Option<Box<dyn Subscription>> {
        None
    }

    /// What there is to say about its health: what it is, who shares it, its clock, its server.
    fn diagnose(&self) -> Vec<Finding>;

    /// Removes leftovers of processes that died half-way. There are none where they go with leases.
    fn sweep(&self, _dry_run: bool) -> Result<Swept> {
        Ok(Swept::default())
    }

    /// Keeps a line of history, its newline included, as far as the limits allow. It may be lost, and nothing is waited for.
    fn append_history(&self, line: &[u8], limits: &Limits);

    /// Visits the lines of history, in the order in which they came. `false`: this store keeps none.
    fn read_history(&self, visit: &mut dyn FnMut(&[u8])) -> Result<bool>;
}

/// Somebody who listens for a bell in the store.
pub trait Subscription {
    /// Becomes readable when the bell may have rung.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Whether it rang, or nothing more can be heard: then somebody has to look, and to listen anew. Does not wait.
    fn is_notified(&mut self) -> bool;
}

/// Opens the store at a location. Creates nothing: the first swap does.
///
/// # Errors
///
/// When there is something that is no store, or that must not be one: on a network file system for SQLite, or open to
/// other users without the sticky bit.
pub fn open(location: &Location, host: Arc<dyn Host>) -> Result<Box<dyn Store>> {
    Ok(match location {
        Location::Directory { path, layout, shared: false } => Box::new(Directory::open(path, *layout, host)?),
        Location::Directory { path, layout, shared: true } => Box::new(Directory::open_shared(path, *layout, host)?),
        Location::Sqlite { path } => Box::new(Sqlite::open(path, host)?),
        Location::Etcd(cluster) => Box::new(Etcd::open(cluster, &Environment::etcd(), host)?),
    })
}
