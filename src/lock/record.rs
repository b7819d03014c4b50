//! The record of one name: its holders, its waiters and the last grants that ended.
//!
//! [`super::decide`] keeps these invariants; a record that violates the first or the fourth is unreadable:
//! - `holders` fit together: one exclusive, any number of shared, or at most `slots` with distinct slots;
//! - `waiters` are in order of arrival, and the first of them does not fit beside `holders`;
//! - a waiter that came when `waiters` was full is on one of the `pages` ([`super::Page`]), behind all of `waiters`;
//! - a handle hash occurs once, in one of the two lists;
//! - tokens grow in the order of granting.

use std::num::NonZeroU32;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::codec::{is_default, text};
use super::ending::{EndRequest, EndedGrant};
use super::handle::HandleHash;
use super::job::JobState;
use super::lifetime::Sighting;
use super::lifetime::{Lease, Lifetime};
use super::owner::{Owner, PidDomain, ProcessId};
use super::queue::Pages;
use super::queue::Replacement;
use super::value::Value;

pub const MOST_SLOTS: u32 = 10_000;

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Record {
    /// Name of the lock, stored so that a reader detects a record that two names share.
    #[serde(skip)]
    pub name: Vec<u8>,
    /// Maximum number of holders, if they have [`Mode::Slot`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub slots: Option<u32>,
    /// Grants in the order of granting.
    pub holders: Vec<Grant>,
    /// First waiters of the queue, in order of arrival.
    #[serde(default, skip_serializing_if = "is_default")]
    pub waiters: Vec<Waiter>,
    /// Pages with the other waiters of the queue.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pages: Option<Pages>,
    /// Waiters that lost their place to a newer caller, until that caller has gone.
    #[serde(default, skip_serializing_if = "is_default")]
    pub replacement: Option<Replacement>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub value: Option<Value>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub job: Option<JobState>,
    /// Last grants that ended, oldest first, for retries after a lost reply and for late holders. An ending that [is
    /// owed](EndedGrant::is_owed) stays until its process learns of it or dies. After a decision the list has all
    /// endings of that decision; a store keeps only the last few.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ended_grants: Vec<EndedGrant>,
    /// Leases of other hosts that callers on any host saw in this record. The store keeps only the sightings whose
    /// lease is still in the record.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sightings: Vec<Sighting>,
    /// True if the store found this record in another directory than the one that it was written in.
    #[serde(skip)]
    pub is_copy: bool,
}

/// Part of the lock that a caller wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Exclusive,
    /// A share beside any number of other readers.
    Shared,
    Slot,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    pub proof: HandleHash,
    /// Fencing token. `None` only in a record that is not stored yet; the token is then the version of that record.
    #[serde(default, skip_serializing_if = "is_default")]
    pub token: Option<u64>,
    pub mode: Mode,
    /// Slot number, from 0; 0 unless the mode is [`Mode::Slot`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub slot: u32,
    /// Owner of the grant. Copies of a record share it: a decision copies the record and restarts after each answer.
    pub owner: Arc<Owner>,
    pub lifetime: Lifetime,
    /// Time of granting, in milliseconds since 1970 on the writer's clock; for display only, never compared.
    pub since: u64,
    /// Time that the holder waited, in milliseconds on that clock; for display only.
    #[serde(default, skip_serializing_if = "is_default")]
    pub waited: u64,
    /// Waiter that another process granted the lock to, until the waiter confirms. The grant ends with that process,
    /// unless a commit record keeps it ([`super::CommitRecord`]).
    #[serde(default, skip_serializing_if = "is_default")]
    pub provisional: Option<ProcessId>,
    /// True if the waiter of an unconfirmed grant gives its place to a newer caller ([`Waiter::latest_only`]).
    #[serde(default, skip_serializing_if = "is_default")]
    pub latest_only: bool,
    /// True if the owner's end releases the grant and does not count as a loss.
    #[serde(default, skip_serializing_if = "is_default")]
    pub release_on_exit: bool,
    /// Id of the claim, if the name is claimed. A claim is permanent and depends on no process.
    #[serde(default, with = "text", skip_serializing_if = "is_default")]
    pub claim: Option<Vec<u8>>,
    /// Last call that asked the holder to end; copies of a record share it, like the owner.
    #[serde(default, skip_serializing_if = "is_default")]
    pub end_request: Option<Arc<EndRequest>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// Hash of the waiter's handle; the waiter's channel is derived from it.
    pub proof: HandleHash,
    pub mode: Mode,
    /// With [`Mode::Slot`]: the waiter's number of slots, which becomes that of the record when the waiter is granted
    /// one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub slots: Option<NonZeroU32>,
    /// Owner of the future grant, shared like [`Grant::owner`].
    pub owner: Arc<Owner>,
    /// Process that waits; its death ends the wait.
    pub process: ProcessId,
    pub lifetime: Lifetime,
    /// True if the waiter must confirm a grant before its owner counts as the owner of the lock.
    #[serde(default, skip_serializing_if = "is_default")]
    pub needs_confirmation: bool,
    /// True if the owner's end will release the grant ([`Grant::release_on_exit`]).
    #[serde(default, skip_serializing_if = "is_default")]
    pub release_on_exit: bool,
    /// Id of the claim, if the waiter claims the name ([`Grant::claim`]).
    #[serde(default, with = "text", skip_serializing_if = "is_default")]
    pub claim: Option<Vec<u8>>,
    /// True if a newer caller that asks for this takes the waiter's place ([`super::Replacement`]).
    #[serde(default, skip_serializing_if = "is_default")]
    pub latest_only: bool,
    /// Grants that the waiter works under, here or under other names; they do not end before this wait does.
    #[serde(default, skip_serializing_if = "is_default")]
    pub enclosing_grants: Vec<HandleHash>,
    /// Processes, innermost first, that continue only when this wait is over: the scripts that wait.
    #[serde(default, skip_serializing_if = "is_default")]
    pub blocked_processes: Vec<ProcessId>,
    /// True if the waiter was found frozen at its turn, and has not looked since.
    #[serde(default, skip_serializing_if = "is_default")]
    pub was_frozen: bool,
    /// Lease until which the waiter counts as alive, if other hosts cannot see its process.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lease: Option<Lease>,
    /// Time of arrival, in milliseconds since 1970 ([`Grant::since`]).
    pub since: u64,
}

impl Grant {
    /// Returns the owner for a change that other copies of the grant do not see.
    pub fn owner_mut(&mut self) -> &mut Owner {
        Arc::make_mut(&mut self.owner)
    }

    /// Counts the time since the grant as a wait, for display: the work under it begins at `wall`. Holders that share the
    /// lock keep their times, because a later token begins later.
    pub(super) fn begin(&mut self, wall: u64) {
        let waited = wall.saturating_sub(self.since);
        if self.mode == Mode::Exclusive {
            self.since = self.since.saturating_add(waited);
            self.waited = self.waited.saturating_add(waited);
        }
    }
}

impl Waiter {
    /// Creates the entry of a process that waits for an exclusive lock, which this owner will hold while it lives.
    pub fn new(proof: HandleHash, owner: Owner, process: ProcessId) -> Waiter {
        Waiter {
            proof,
            mode: Mode::Exclusive,
            slots: None,
            owner: Arc::new(owner),
            process,
            lifetime: Lifetime::WhileOwnerLives,
            needs_confirmation: false,
            release_on_exit: false,
            claim: None,
            latest_only: false,
            enclosing_grants: Vec::new(),
            blocked_processes: Vec::new(),
            was_frozen: false,
            lease: None,
            since: 0,
        }
    }

    /// Returns the entry of a waiter that has not confirmed its grant, without what only the waiter knows.
    pub(super) fn waiting_again(grant: Grant, process: ProcessId, slots: Option<u32>) -> Waiter {
        Waiter {
            mode: grant.mode,
            slots: slots.filter(|_| grant.mode == Mode::Slot).and_then(NonZeroU32::new),
            lease: grant.lifetime.lease().cloned(),
            lifetime: grant.lifetime,
            needs_confirmation: true,
            release_on_exit: grant.release_on_exit,
            claim: grant.claim,
            latest_only: grant.latest_only,
            since: grant.since.saturating_sub(grant.waited),
            ..Waiter::new(grant.proof, Arc::unwrap_or_clone(grant.owner), process)
        }
    }

    /// Returns the number of slots that the waiter counts; a damaged entry counts one.
    pub fn slot_count(&self) -> u32 {
        self.slots.map_or(1, NonZeroU32::get)
    }

    pub fn waits_where(&self) -> (PidDomain, ProcessId) {
        (self.owner.domain.clone(), self.process)
    }
}

impl Record {
    pub fn free(name: &[u8]) -> Record {
        Record { name: name.to_vec(), ..Record::default() }
    }

    /// Returns what counts of a copy of a record: the value, the job, the claims, and the grants that end only by a release.
    /// The owners of the other grants, and the waiters, use the original.
    pub(crate) fn into_copy(mut self) -> Record {
        let is_permanent = |grant: &Grant| grant.claim.is_some() || grant.lifetime == Lifetime::UntilReleased;
        self.holders.retain(|grant| grant.provisional.is_none() && is_permanent(grant));
        let Record { name, slots, holders, value, job, .. } = self;
        let slots = slots.filter(|_| !holders.is_empty());
        Record { name, slots, holders, value, job, is_copy: true, ..Record::default() }
    }

    pub fn owners(&self) -> impl Iterator<Item = &Owner> {
        self.holders.iter().map(|grant| &*grant.owner).chain(self.waiters.iter().map(|waiter| &*waiter.owner))
    }

    pub fn holder(&self, proof: &HandleHash) -> Option<&Grant> {
        self.holders.iter().find(|grant| grant.proof == *proof)
    }

    /// Returns the waiter with this handle hash, unless it is on a page.
    pub fn waiter(&self, proof: &HandleHash) -> Option<&Waiter> {
        self.waiters.iter().find(|waiter| waiter.proof == *proof)
    }

    pub fn is_free(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty() && self.pages.is_none()
    }

    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        let of_holders = self.holders.iter().filter_map(|grant| grant.lifetime.lease());
        let of_waiters = self.waiters.iter().filter_map(|waiter| waiter.lease.as_ref());
        of_holders.chain(of_waiters)
    }

    pub fn has_entry(&self, proof: &HandleHash) -> bool {
        self.holder(proof).is_some() || self.waiter(proof).is_some()
    }

    pub fn knows(&self, proof: &HandleHash) -> bool {
        self.holder(proof).is_some() || self.ended_grants.iter().any(|ending| ending.grant.proof == *proof)
    }
}
