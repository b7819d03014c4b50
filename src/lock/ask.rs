//! What can be asked of a record, and what can be answered.

use super::handle::HandleHash;
use super::record::{EndedGrant, Grant, Lease, Lifetime, PidDomain, ProcessId, Record, Waiter};
use super::sighting::Sighting;
use super::value::{Value, Writing};

/// What somebody wants done with a record.
#[derive(Debug, Clone)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub enum Request {
    /// Take it, or queue for it.
    Acquire(Acquire),
    /// Leave the queue; of whom is known that he stood on that page.
    Cancel(HandleHash, Option<u64>),
    /// Give back what the claimant holds.
    Release(Credentials),
    /// Set a new tenure for what the claimant holds.
    Renew(Credentials, Lifetime),
    /// Say that the owner of what the claimant holds has died, to those who cannot see it.
    OwnerDied(Credentials),
    /// Make what the claimant holds depend on a decision, with this proof from now on; see [`super::CommitRecord`].
    Prepare(Credentials, Prepare),
    /// Write the value, or delete it.
    Write(Writing),
    /// End these grants, whoever holds them.
    Break(Vec<HandleHash>),
    /// Remove what is abandoned.
    Gc,
    /// Remember that the caller's host has seen these leases.
    Note(Vec<Sighting>),
}

/// How a grant comes to depend on a decision, again or for longer.
#[derive(Debug, Clone)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct Prepare {
    /// Whose decision.
    pub proof: HandleHash,
    /// Who decides.
    pub process: ProcessId,
    /// Where others cannot see that process: as long as it is taken for alive; else [`Lifetime::UntilReleased`].
    pub lifetime: Lifetime,
}

/// Somebody who wants the lock.
#[derive(Debug, Clone)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct Acquire {
    /// The entry that would stand in the queue.
    pub entry: Waiter,
    /// What a grant that is made now lasts: [`Waiter::lifetime`], begun.
    pub lifetime: Lifetime,
    /// How many may hold at once, for [`super::record::Mode::Slot`].
    pub slots: Option<u32>,
    /// Queue when it is not free.
    pub queue: bool,
    /// Refuse when a holder is gone without having given back.
    pub refuse_stale: bool,
    /// Not for good yet: what is granted depends on the waiting process, until it asks again without this.
    pub provisional: bool,
    /// Take nothing that is not granted already: it was told, and may have been given back since.
    pub confirming: bool,
    /// Where in the pages the entry stands.
    pub position: Option<QueuePosition>,
    /// This page takes no more.
    pub full: Option<u64>,
}

/// Where on a page somebody waits.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct QueuePosition {
    /// The page.
    pub page: u64,
    /// How many stand before him on it.
    pub ahead: usize,
    /// Those, and those on the page before, the nearest first.
    pub before: Vec<(PidDomain, ProcessId)>,
    /// The entry as it stands there.
    pub entry: Waiter,
}

/// One link of a circle of waits: who holds what the one before waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// The lock.
    pub name: Vec<u8>,
    /// Its holder, who does not give it back before his own wait is over.
    pub grant: Grant,
}

/// Somebody who says that a grant is theirs.
#[derive(Debug, Clone)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct Credentials {
    /// By the handle.
    pub proof: Option<HandleHash>,
    /// By being the owner: the processes that the caller may speak for.
    pub owners: Vec<ProcessId>,
    /// By the id of a claim.
    pub claim: Option<Vec<u8>>,
    /// Where those run.
    pub domain: PidDomain,
    /// Whether the claimant took the grant for itself, or supervises the process that did: how the grant ended concerns no
    /// other process.
    pub supervises: bool,
    /// Whether this ask was put to the store before, with a reply that was lost or unclear.
    pub repeated: bool,
}

/// What is to happen next.
#[derive(Debug, Clone)]
pub enum Transition {
    /// Nothing changes; this is the answer.
    Done(Response),
    /// Swap the record for this one, then wake these waiters. Without an answer yet: look again.
    Write {
        /// The record as it is to be.
        record: Record,
        /// The answer, once it is stored.
        response: Option<Response>,
        /// Waiters that have something new to see.
        wake: Vec<HandleHash>,
        /// Leases whose end justifies this: the store must not make the change while one of them lasts.
        over: Vec<Lease>,
    },
    /// The queue is long: enter it on this page, then ask again.
    Enqueue(u64),
    /// In the queue: wait until one of these processes dies or one of these leases ends, or somebody wakes us.
    Wait {
        /// Processes whose end concerns us.
        processes: Vec<(PidDomain, ProcessId)>,
        /// Leases whose end concerns us.
        leases: Vec<Lease>,
        /// How many stand before us in the queue.
        ahead: usize,
    },
}

/// The answer to a [`Request`]. "No" is an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    /// Taken; and from whom, if that one had not given back.
    Granted(Grant, Option<EndedGrant>),
    /// Held by these, and not waited for.
    Busy(Vec<Grant>),
    /// These are gone without having given back, and `refuse_stale` was set.
    Stale(Vec<EndedGrant>),
    /// Waiting would never end: the asker waits for the first, whose holder waits for the second, and so on; the last is
    /// the asker's own.
    Deadlock(Vec<Edge>),
    /// Other slots were asked for than the record has.
    SlotCountConflict(u32),
    /// It was to be claimed, and is claimed by another id for good.
    Claimed(Grant),
    /// The value was written, or this one was deleted; and how the writer's grant had ended, if it had.
    Written(Option<Value>, Option<EndedGrant>),
    /// Not written: these hold the lock as well.
    Shared(Vec<Grant>),
    /// What must be so for that is not: this is the value.
    VersionMismatch(Option<Value>),
    /// There is no value to delete.
    NoValue,
    /// Out of the queue.
    Cancelled,
    /// A withdrawal that came too late: granted in the meantime.
    GrantedMeanwhile(Grant),
    /// Given back.
    Released(Grant),
    /// Lasts anew.
    Renewed(Grant),
    /// These were broken, or were stale and are removed.
    Broken(Vec<EndedGrant>),
    /// The claimant holds nothing here, nor does anybody; how the claimant's grant ended, if that is still known.
    NotHeld(Option<EndedGrant>),
    /// Held by these, who are not the claimant; how the claimant's grant ended, if that is still known.
    NotOwner(Vec<Grant>, Option<EndedGrant>),
    /// These grants and waits of the dead were removed.
    Collected(Vec<EndedGrant>, Vec<Waiter>),
    /// The sightings are in the record, as far as their leases are, and there is room.
    SightingsRecorded,
}
