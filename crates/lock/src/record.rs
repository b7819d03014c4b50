//! The record of one name: its holders, its waiters and the last grants that ended.
//!
//! [`super::decide`] keeps these invariants; a record that violates the first or the fourth is unreadable:
//! - `holders` fit together: one exclusive, any number of shared, or at most `slots` with distinct slots;
//! - `waiters` are in order of arrival, and the first of them does not fit beside `holders`;
//! - a waiter that came when `waiters` was full is on one of the `pages` ([`super::Page`]), behind all of `waiters`;
//! - a handle hash occurs once, in one of the two lists;
//! - tokens grow in the order of granting.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::text::is_default;
use super::{
    EndReason, EndedGrant, Grant, HandleHash, JobState, Lease, Lifetime, Owner, Pages, Replacement, Sighting, Value,
    Waiter,
};

/// Number of past grants that a record always keeps.
const ENDINGS_KEPT: usize = 4;

/// Maximum number of past grants in a record, including those that stay until a process has learned of them.
const MOST_ENDINGS: usize = 256;

/// Number of past grants among which expired ones stay. Hosts that died with a lock never ask for its ending.
const EXPIRED_KEPT: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Record {
    /// Name of the lock, stored so that a reader detects a record that two names share.
    #[serde(skip)]
    pub name: Vec<u8>,
    /// Maximum number of holders, if they have [`super::grant::Mode::Slot`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub slots: Option<u32>,
    /// Grants in the order of granting.
    pub holders: Vec<Grant>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub waiters: Vec<Waiter>,
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
    /// Leases of other hosts that callers saw in this record. The store keeps those that are still in the record.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sightings: Vec<Sighting>,
    /// A copy is in another directory than the one that it was written in.
    #[serde(skip)]
    pub is_copy: bool,
}

impl Record {
    pub fn free(name: &[u8]) -> Record {
        Record { name: name.to_vec(), ..Record::default() }
    }

    /// A copy keeps the value, the job, the claims, and the grants that end only by a release. Owners of the other
    /// grants, and the waiters, use the original.
    pub fn into_copy(mut self) -> Record {
        let is_permanent = |grant: &Grant| grant.claim.is_some() || grant.lifetime == Lifetime::UntilReleased;
        self.holders.retain(|grant| grant.provisional.is_none() && is_permanent(grant));
        let Record { name, slots, holders, value, job, .. } = self;
        let slots = if holders.is_empty() { None } else { slots };
        Record { name, slots, holders, value, job, is_copy: true, ..Record::default() }
    }

    pub fn owners(&self) -> impl Iterator<Item = &Owner> {
        self.holders.iter().map(|grant| &*grant.owner).chain(self.waiters.iter().map(|waiter| &*waiter.owner))
    }

    pub fn holder(&self, proof: &HandleHash) -> Option<&Grant> {
        self.holders.iter().find(|grant| grant.proof == *proof)
    }

    /// Does not find waiters on pages.
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

/// Part of a record that a store keeps.
impl Record {
    /// Without old endings, sightings of leases that are over, and the replacement by a caller that has gone.
    pub(super) fn as_stored(&self) -> Cow<'_, Record> {
        let is_current = |seen: &&Sighting| self.leases().any(|lease| *lease == seen.lease);
        let seen: Vec<Sighting> = self.sightings.iter().filter(is_current).cloned().collect();
        let has_ended = |proof: &HandleHash| self.kept_endings().any(|ending| ending.grant.proof == *proof);
        let has_trace = |found: &&Replacement| self.has_entry(&found.by) || has_ended(&found.by);
        let replacement = self.replacement.as_ref().filter(has_trace);
        let is_short = seen.len() == self.sightings.len() && self.kept_endings().count() == self.ended_grants.len();
        if is_short && replacement == self.replacement.as_ref() {
            return Cow::Borrowed(self);
        }
        let ended_grants = self.kept_endings().cloned().collect();
        Cow::Owned(Record { ended_grants, sightings: seen, replacement: replacement.cloned(), ..self.clone() })
    }

    /// [As the store keeps it](Record::as_stored), and without the commands and labels of grants that have ended. They
    /// may contain passwords, and unlike the history a record is for all users of a store.
    pub(super) fn as_written(&self) -> Cow<'_, Record> {
        let mut record = self.as_stored();
        let has_words = |owner: &Owner| !owner.command.is_empty() || owner.label.is_some();
        let tells = |grant: &Grant| has_words(&grant.owner) || grant.end_request.is_some();
        if record.ended_grants.iter().any(|ending| tells(&ending.grant)) {
            for EndedGrant { grant, .. } in &mut record.to_mut().ended_grants {
                (grant.owner_mut().command, grant.owner_mut().label) = (Vec::new(), None);
                grant.end_request = None;
            }
        }
        record
    }

    fn kept_endings(&self) -> impl Iterator<Item = &EndedGrant> {
        let from = |kept: usize| self.ended_grants.len().saturating_sub(kept);
        let [recent, expired, owed] = [ENDINGS_KEPT, EXPIRED_KEPT, MOST_ENDINGS].map(from);
        let kept = move |(at, ending): &(usize, &EndedGrant)| {
            let first = if ending.reason == EndReason::Expired { expired } else { owed };
            *at >= recent || (*at >= first && ending.is_owed())
        };
        self.ended_grants.iter().enumerate().filter(kept).map(|(_, ending)| ending)
    }

    /// Grants that ended after the oldest of these endings may be forgotten.
    pub(super) fn may_have_forgotten(&self) -> bool {
        self.ended_grants.len() >= ENDINGS_KEPT
    }

    /// Drops the oldest of the endings in `before` that are releases of which no process must learn. If an ending
    /// stays, so do all after it. A crowd would otherwise read and write all recent endings at each commit.
    pub(super) fn forget_releases(&mut self, before: &Record) {
        let recent = self.ended_grants.len().saturating_sub(ENDINGS_KEPT);
        let successor = self.replacement.as_ref().map(|replacement| replacement.by);
        let says_nothing = |ending: &EndedGrant| {
            let is_release = ending.reason == EndReason::Released && !ending.is_owed();
            is_release && successor != Some(ending.grant.proof) && before.ended_grants.contains(ending)
        };
        let window = self.ended_grants[recent..].split_last().map_or(&[][..], |(_, earlier)| earlier);
        let dropped = window.iter().take_while(|ending| says_nothing(ending)).count();
        self.ended_grants.drain(recent..recent + dropped);
    }

    pub fn is_removable(&self) -> bool {
        self.is_free() && self.value.is_none() && self.job.is_none() && !self.kept_endings().any(EndedGrant::is_owed)
    }
}
