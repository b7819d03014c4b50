//! What can be asked of a record, and what can be answered.

use super::handle::Proof;
use super::record::{Ending, Grant, Home, Lease, Process, Record, Tenure, Waiter};
use super::sighting::Sighting;
use super::value::{Value, Writing};

/// What somebody wants done with a record.
#[derive(Debug, Clone)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub enum Ask {
    /// Take it, or queue for it.
    Take(Application),
    /// Leave the queue; of whom is known that he stood on that page.
    Withdraw(Proof, Option<u64>),
    /// Give back what the claimant holds.
    Release(Claimant),
    /// Set a new tenure for what the claimant holds.
    Renew(Claimant, Tenure),
    /// Say that the owner of what the claimant holds has died, to those who cannot see it.
    Mourn(Claimant),
    /// Make what the claimant holds depend on a decision, with this proof from now on; see [`super::Decision`].
    Doubt(Claimant, Doubt),
    /// Write the value, or delete it.
    Write(Writing),
    /// End these grants, whoever holds them.
    Break(Vec<Proof>),
    /// Remove what is abandoned.
    Collect,
    /// Remember that the caller's host has seen these leases.
    Note(Vec<Sighting>),
}

/// How a grant comes to depend on a decision, again or for longer.
#[derive(Debug, Clone)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct Doubt {
    /// Whose decision.
    pub proof: Proof,
    /// Who decides.
    pub process: Process,
    /// Where others cannot see that process: as long as it is taken for alive; else [`Tenure::Forever`].
    pub tenure: Tenure,
}

/// Somebody who wants the lock.
#[derive(Debug, Clone)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct Application {
    /// The entry that would stand in the queue.
    pub entry: Waiter,
    /// What a grant that is made now lasts: [`Waiter::tenure`], begun.
    pub tenure: Tenure,
    /// How many may hold at once, for [`super::record::Share::Slot`].
    pub slots: Option<u32>,
    /// Queue when it is not free.
    pub queue: bool,
    /// Refuse when a holder is gone without having given back.
    pub refuse_stale: bool,
    /// Not for good yet: what is granted depends on the waiting process, until it asks again without this.
    pub tentative: bool,
    /// Take nothing that is not granted already: it was told, and may have been given back since.
    pub confirming: bool,
    /// Where in the pages the entry stands.
    pub place: Option<Place>,
    /// This page takes no more.
    pub full: Option<u64>,
}

/// Where on a page somebody waits.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct Place {
    /// The page.
    pub page: u64,
    /// How many stand before him on it.
    pub ahead: usize,
    /// Those, and those on the page before, the nearest first.
    pub before: Vec<(Home, Process)>,
    /// The entry as it stands there.
    pub entry: Waiter,
}

/// One link of a circle of waits: who holds what the one before waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The lock.
    pub name: Vec<u8>,
    /// Its holder, who does not give it back before his own wait is over.
    pub grant: Grant,
}

/// Somebody who says that a grant is theirs.
#[derive(Debug, Clone)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct Claimant {
    /// By the handle.
    pub proof: Option<Proof>,
    /// By being the owner: the processes that the caller may speak for.
    pub owners: Vec<Process>,
    /// By the id of a claim.
    pub claim: Option<Vec<u8>>,
    /// Where those run.
    pub home: Home,
    /// Whether the claimant took the grant for itself, or supervises the process that did: how the grant ended concerns no
    /// other process.
    pub supervises: bool,
    /// Whether this ask was put to the store before, with a reply that was lost or unclear.
    pub repeated: bool,
}

/// What is to happen next.
#[derive(Debug, Clone)]
pub enum Step {
    /// Nothing changes; this is the answer.
    Done(Outcome),
    /// Swap the record for this one, then wake these waiters. Without an answer yet: look again.
    Write {
        /// The record as it is to be.
        record: Record,
        /// The answer, once it is stored.
        outcome: Option<Outcome>,
        /// Waiters that have something new to see.
        wake: Vec<Proof>,
        /// Leases whose end justifies this: the store must not make the change while one of them lasts.
        over: Vec<Lease>,
    },
    /// The queue is long: enter it on this page, then ask again.
    Join(u64),
    /// In the queue: wait until one of these processes dies or one of these leases ends, or somebody wakes us.
    Wait {
        /// Processes whose end concerns us.
        processes: Vec<(Home, Process)>,
        /// Leases whose end concerns us.
        leases: Vec<Lease>,
        /// How many stand before us in the queue.
        ahead: usize,
    },
}

/// The answer to an [`Ask`]. "No" is an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Taken; and from whom, if that one had not given back.
    Granted(Grant, Option<Ending>),
    /// Held by these, and not waited for.
    Busy(Vec<Grant>),
    /// These are gone without having given back, and `refuse_stale` was set.
    Stale(Vec<Ending>),
    /// Waiting would never end: the asker waits for the first, whose holder waits for the second, and so on; the last is
    /// the asker's own.
    Deadlock(Vec<Link>),
    /// Other slots were asked for than the record has.
    OtherSlots(u32),
    /// It was to be claimed, and is claimed by another id for good.
    Claimed(Grant),
    /// The value was written, or this one was deleted; and how the writer's grant had ended, if it had.
    Written(Option<Value>, Option<Ending>),
    /// Not written: these hold the lock as well.
    Shared(Vec<Grant>),
    /// What must be so for that is not: this is the value.
    OtherValue(Option<Value>),
    /// There is no value to delete.
    NoValue,
    /// Out of the queue.
    Withdrawn,
    /// A withdrawal that came too late: granted in the meantime.
    GrantedMeanwhile(Grant),
    /// Given back.
    Released(Grant),
    /// Lasts anew.
    Renewed(Grant),
    /// These were broken, or were stale and are removed.
    Broken(Vec<Ending>),
    /// The claimant holds nothing here, nor does anybody; how the claimant's grant ended, if that is still known.
    NotHeld(Option<Ending>),
    /// Held by these, who are not the claimant; how the claimant's grant ended, if that is still known.
    NotOwner(Vec<Grant>, Option<Ending>),
    /// These grants and waits of the dead were removed.
    Collected(Vec<Ending>, Vec<Waiter>),
    /// The sightings are in the record, as far as their leases are, and there is room.
    Noted,
}
