//! Requests about a record, and the responses.

use super::handle::HandleHash;
use super::lifetime::{Lease, Lifetime};
use super::owner::{PidDomain, ProcessId};
use super::record::{EndedGrant, Grant, Record, Waiter};
use super::sighting::Sighting;
use super::value::{Value, Writing};

/// Request of a caller about a record.
#[derive(Debug, Clone)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub enum Request {
    /// Acquires the lock, or queues for it.
    Acquire(Acquire),
    /// Leaves the queue. The number is the page of the waiter, if the waiter entered a page.
    Cancel(HandleHash, Option<u64>),
    /// Releases the caller's grant.
    Release(Credentials),
    /// Sets a new lifetime for the caller's grant.
    Renew(Credentials, Lifetime),
    /// Tells hosts that cannot see the owner of the caller's grant that the owner has died.
    OwnerDied(Credentials),
    /// Makes the caller's grant depend on a commit record, with a new handle hash ([`super::CommitRecord`]).
    Prepare(Credentials, Prepare),
    /// Writes the value, or deletes it.
    Write(Writing),
    /// Ends the grants with these handle hashes, regardless of the holder.
    Break(Vec<HandleHash>),
    /// Removes stale grants and dead waiters.
    Gc,
    /// Records that the caller's host has seen these leases.
    Note(Vec<Sighting>),
}

/// Dependency of a grant on a commit record, set again or extended.
#[derive(Debug, Clone)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct Prepare {
    /// Handle hash that names the commit record.
    pub proof: HandleHash,
    /// Process that commits.
    pub process: ProcessId,
    /// Time for which that process counts as alive if other hosts cannot see it; otherwise [`Lifetime::UntilReleased`].
    pub lifetime: Lifetime,
}

/// Request to acquire the lock.
#[derive(Debug, Clone)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct Acquire {
    /// Entry for the queue.
    pub entry: Waiter,
    /// Lifetime of a grant that is made now: [`Waiter::lifetime`] with its lease started.
    pub lifetime: Lifetime,
    /// Maximum number of holders, for [`super::record::Mode::Slot`].
    pub slots: Option<u32>,
    /// True to enter the queue if the lock is not free.
    pub queue: bool,
    /// True to refuse the lock if a holder is gone and did not release it.
    pub refuse_stale: bool,
    /// True to make the grant depend on the waiting process until the caller repeats the request without this flag.
    pub provisional: bool,
    /// True to accept only an existing grant: the caller was told of it, and a release may have ended it since.
    pub confirming: bool,
    /// Position of the entry on the pages.
    pub position: Option<QueuePosition>,
    /// Number of a page that is full.
    pub full: Option<u64>,
}

impl Acquire {
    /// Creates the request of this waiter, which does not enter the queue.
    pub fn new(entry: Waiter) -> Acquire {
        Acquire {
            lifetime: entry.lifetime.clone(),
            entry,
            slots: None,
            queue: false,
            refuse_stale: false,
            provisional: false,
            confirming: false,
            position: None,
            full: None,
        }
    }
}

/// Position of a waiter on a page.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct QueuePosition {
    /// Page number.
    pub page: u64,
    /// Number of waiters ahead on that page.
    pub ahead: usize,
    /// Processes of those waiters and of the waiters on the previous page, nearest first.
    pub before: Vec<(PidDomain, ProcessId)>,
    /// Entry of the waiter on the page.
    pub entry: Waiter,
}

/// Edge of a cycle in the wait-for graph: a lock that the previous waiter waits for, and its holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// Name of the lock.
    pub name: Vec<u8>,
    /// Grant of the holder, which does not release the lock before its own wait is over.
    pub grant: Grant,
}

/// Credentials of a caller that has a grant.
#[derive(Debug, Clone)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct Credentials {
    /// Hash of the handle, if the caller has the handle.
    pub proof: Option<HandleHash>,
    /// Processes that the caller may act for; a grant matches if its owner is among them.
    pub owners: Vec<ProcessId>,
    /// Id of a claim, if the caller knows it.
    pub claim: Option<Vec<u8>>,
    /// Domain of these processes.
    pub domain: PidDomain,
    /// True if the caller acquired the grant for itself, or supervises the process that did. No other process needs to
    /// learn how the grant ended.
    pub supervises: bool,
    /// True if an earlier try of this request had a lost or unclear reply.
    pub repeated: bool,
}

/// Next step of the engine.
#[derive(Debug, Clone)]
pub enum Transition {
    /// The record does not change, and this is the response.
    Done(Response),
    /// The engine commits this record, then wakes these waiters. Without a response, the engine decides again.
    Write {
        /// New record.
        record: Record,
        /// Response to return after the commit.
        response: Option<Response>,
        /// Waiters whose situation has changed.
        wake: Vec<HandleHash>,
        /// Leases whose end justifies this change; the store must not commit while one of these leases lasts.
        over: Vec<Lease>,
    },
    /// The queue is long, so the caller enters it on this page and repeats the request.
    Enqueue(u64),
    /// The caller waits in the queue until one of these processes dies, one of these leases ends, or a wake-up comes.
    Wait {
        /// Processes whose end matters to the caller.
        processes: Vec<(PidDomain, ProcessId)>,
        /// Leases whose end matters to the caller.
        leases: Vec<Lease>,
        /// Number of waiters ahead in the queue.
        ahead: usize,
    },
}

/// Response to a [`Request`], including refusals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    /// The caller has the lock. The ending is that of the previous holder, if that holder did not release the lock.
    Granted(Grant, Option<EndedGrant>),
    /// These grants hold the lock, and the caller does not queue.
    Busy(Vec<Grant>),
    /// The holders of these grants are gone without a release, and `refuse_stale` was set.
    Stale(Vec<EndedGrant>),
    /// The wait would never end. The caller waits for the first edge, whose holder waits for the second, and so on; the
    /// last edge is the caller's own grant.
    Deadlock(Vec<Edge>),
    /// The record has this slot count, and the request has another one.
    SlotCountConflict(u32),
    /// The claim fails, because another id has claimed the name permanently.
    Claimed(Grant),
    /// The value was written, or this value was deleted. The ending is that of the writer's grant, if it was over.
    Written(Option<Value>, Option<EndedGrant>),
    /// The write fails, because these grants share the lock.
    Shared(Vec<Grant>),
    /// The precondition does not hold; this is the current value.
    VersionMismatch(Option<Value>),
    /// The name has no value to delete.
    NoValue,
    /// The waiter has left the queue.
    Cancelled,
    /// The cancellation came too late, because the waiter has this grant in the meantime.
    GrantedMeanwhile(Grant),
    /// The grant was released.
    Released(Grant),
    /// The grant has its new lifetime.
    Renewed(Grant),
    /// These grants were broken, or were stale and have been removed.
    Broken(Vec<EndedGrant>),
    /// The lock has no holder. The ending is that of the caller's grant, if the record still has it.
    NotHeld(Option<EndedGrant>),
    /// Only other callers hold the lock. The ending is that of the caller's grant, if the record still has it.
    NotOwner(Vec<Grant>, Option<EndedGrant>),
    /// These grants and waiters of dead processes were removed.
    Collected(Vec<EndedGrant>, Vec<Waiter>),
    /// The record has the sightings, as far as it has their leases and enough room.
    SightingsRecorded,
}
