//! Requests about a record, and the responses.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    DescriptorLock, EndRequest, EndedGrant, Facts, Grant, HandleHash, Lease, Lifetime, Owner, PidDomain, PidSpace,
    ProcessId, Query, QueuePlace, Record, Sighting, Waiter,
};

/// Request of a caller about a record. Each request has its own type of response. A trace contains it.
pub trait Request: Clone + Serialize {
    type Response;

    /// False for a request that other callers make at the same time, so that a loser of a commit pauses.
    const HAS_PRIORITY: bool = true;

    /// [`super::decide`] adds the leases whose end justifies the change.
    fn rule(&self, record: &Record, facts: &Facts) -> Result<Transition<Self::Response>, Query>;

    fn repeat(&mut self) {}

    /// Adds what only the store knows: the token of a new grant is the version under which the store has it.
    fn with_tokens(response: Self::Response, _version: u64) -> Self::Response {
        response
    }

    /// Returns true if this response, without a commit, promises that a grant, a claim, a value or a run of a job is in
    /// the record. So the record must stand by then.
    fn promises(_response: &Self::Response) -> bool {
        false
    }

    /// Grants that this request ends. After a conflict, a record with neither them nor their endings proves that the commit
    /// of `next` succeeded.
    fn ended(_response: &Self::Response, _next: &Record) -> Vec<HandleHash> {
        Vec::new()
    }

    /// Grant whose supervisor does not know what this response changed.
    fn changed(_response: &Self::Response) -> Option<HandleHash> {
        None
    }
}

/// Leaves the queue. The response is the grant that the waiter has in the meantime, if the request came too late.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Cancel {
    pub proof: HandleHash,
    pub page: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Release(pub Credentials);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RenewGrant {
    pub credentials: Credentials,
    pub lifetime: Lifetime,
    /// Until now, the holder has only waited under the grant (`Grant::begin`).
    pub begins: bool,
}

/// Tells hosts that cannot see the owner of the caller's grant that the owner has died.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OwnerDied(pub Credentials);

/// Makes the caller's grant depend on a commit record, or extends that dependency ([`super::CommitRecord`]).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Prepare {
    pub credentials: Credentials,
    /// Handle hash that names the commit record, and the new one of the grant.
    pub proof: HandleHash,
    pub process: ProcessId,
    /// Time for which that process counts as alive if other hosts cannot see it; otherwise [`Lifetime::UntilReleased`].
    pub lifetime: Lifetime,
}

/// Ends grants regardless of the holder. The response has those that were broken, or were stale and have been removed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Break(pub Vec<HandleHash>);

/// Notes in the grant with this handle hash which call asks its holder to end, and may end the renewal of its lease:
/// then the response is the hash.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AskToEnd {
    pub proof: HandleHash,
    /// `None` if the caller is unknown.
    pub request: Option<Arc<EndRequest>>,
    /// Present lease of the holder is the last one.
    pub ends_renewal: bool,
}

/// Removes stale grants and dead waiters. The response has the removed grants and waiters.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sweep;

/// Records that the caller's host has seen these leases, as far as the record has them and enough room.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Note(pub Vec<Sighting>);

/// A caller that waits first gets a provisional grant, and confirms it by a second request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    #[default]
    Direct,
    /// Depends on the waiting process.
    Provisional,
    /// The grant stands from now on. A release may have ended it since, so the request accepts no new grant.
    Confirm,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Acquire {
    pub entry: Waiter,
    /// True to enter the queue if the lock is not free.
    pub queue: bool,
    pub place: QueuePlace,
    /// True to refuse the lock if a holder is gone and did not release it.
    pub refuse_stale: bool,
    pub phase: Phase,
    /// This process has flock(2) on the file of the name, in the mode of the request, so a descriptor that excludes this
    /// has not.
    pub has_file: bool,
}

impl Acquire {
    pub fn new(entry: Waiter) -> Acquire {
        Acquire { entry, ..Acquire::default() }
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Credentials {
    pub proof: Option<HandleHash>,
    /// Processes that the caller may act for; a grant matches if its owner is among them.
    pub owners: Vec<ProcessId>,
    pub claim: Option<Vec<u8>>,
    pub space: PidSpace,
    /// A lock that a descriptor of the caller has.
    pub descriptor: Option<DescriptorLock>,
    /// What is known of the caller if the script that called this process has ended.
    pub orphan: Option<Orphan>,
    /// The caller acquired the grant, or supervises its owner: no other process needs to learn how the grant ended.
    pub supervises: bool,
    /// An earlier try of this request had a lost or unclear reply.
    pub repeated: bool,
}

/// A process whose calling script has ended. The script cannot be recognised any more, only the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphan {
    pub session: i32,
    /// Start of the process, in milliseconds since 1970 on the clock of this host.
    pub since: u64,
}

#[derive(Debug, Clone)]
pub enum Transition<R> {
    /// Response without a change of the record.
    Done(R),
    /// The engine commits this record, then wakes these waiters and returns the response.
    Write {
        record: Box<Record>,
        response: R,
        /// Waiters whose situation has changed.
        wake: Vec<HandleHash>,
        /// Leases whose end justifies this change; the store must not commit while one of these leases lasts.
        expired: Vec<Lease>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcquireStep {
    /// The caller has the lock. The ending is that of the previous holder, if that holder did not release the lock.
    Granted(Box<Grant>, Option<Box<EndedGrant>>),
    Refused(Refusal),
    /// A long queue: the caller enters it on this page and repeats the request.
    Enqueue(u64),
    /// The caller waits for one of these events. After a write, which changes them, it repeats the request.
    Wait(Awaited),
}

/// Events that may let a waiter go on, beside a wake-up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Awaited {
    /// Processes whose deaths matter to the waiter.
    pub processes: Vec<(PidDomain, ProcessId)>,
    /// Leases whose ends matter to the waiter.
    pub leases: Vec<Lease>,
    /// A holder is a descriptor, of whose close the kernel tells no process.
    pub has_descriptor: bool,
    /// Number of waiters ahead, for display.
    pub ahead: usize,
}

/// Reason to refuse a lock. `report` has the words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// These grants hold the lock, and the caller does not queue.
    Busy(Vec<Grant>),
    /// `refuse_stale` was set, and the holders of these grants are gone without a release.
    Stale(Vec<EndedGrant>),
    /// The wait would never end. The caller waits for the first edge, whose holder waits for the second, and so on; the
    /// last edge is the caller's own grant.
    Deadlock(Vec<Edge>),
    /// Another id has claimed the name permanently.
    Claimed(Box<Grant>),
    /// A newer caller has the caller's place in the queue, or the caller lost its place for an unknown reason.
    Replaced(Option<Box<Successor>>),
    /// A grant has ended that the caller had and only confirms.
    Lost,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NotHolder {
    pub holders: Vec<Grant>,
    /// Ending of the caller's grant, if the record still has it.
    pub ending: Option<EndedGrant>,
    /// Ending of another grant that is still in the record, although its owner died or its lease expired.
    pub stale: Option<EndedGrant>,
    /// Another store, or none, is at the place of the one with the caller's grant.
    pub store_was_replaced: bool,
}

/// Edge of a cycle in the wait-for graph: a lock that the previous waiter waits for, and its holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    pub name: Vec<u8>,
    /// Grant of the holder, which does not release the lock before its own wait is over.
    pub grant: Grant,
}

/// Caller that has the place of a replaced waiter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Successor {
    pub owner: Arc<Owner>,
    /// Time of its arrival or, if it has the lock, of its grant ([`super::Grant::since`]).
    pub since: u64,
    pub waits: bool,
}
