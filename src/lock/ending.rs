//! Grants that are over: how each ended, and which of them a record keeps.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::codec::is_default;
use super::handle::HandleHash;
use super::lifetime::Lifetime;
use super::lifetime::Sighting;
use super::owner::Owner;
use super::queue::Replacement;
use super::record::{Grant, Record};

/// Number of past grants that a record always keeps.
const ENDINGS_KEPT: usize = 4;

/// Maximum number of past grants in a record, including those that stay until a process has learned of them.
const MOST_ENDINGS: usize = 256;

/// Number of past grants among which expired ones stay. Hosts that died with a lock never ask for its ending.
const EXPIRED_KEPT: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedGrant {
    pub grant: Grant,
    pub reason: EndReason,
}

impl EndedGrant {
    /// Returns true if a process must still learn of this ending. The supervisor takes a grant without a trace for
    /// lost. The owner of a grant that was broken, or that expired, must learn of that before it writes a value, because
    /// a caller without a trace is one that never had the lock.
    pub fn is_owed(&self) -> bool {
        let owner = &self.grant.owner;
        // A claim has neither a supervisor nor a process, so no process asks for its ending.
        let has_owner = !owner.processes.is_empty() && self.grant.lifetime != Lifetime::OwnerDied;
        match self.reason {
            EndReason::Released | EndReason::Died => owner.supervisor.is_some(),
            EndReason::Expired => self.grant.provisional.is_none() && has_owner,
            EndReason::Broken => owner.supervisor.is_some() || has_owner,
        }
    }
}

/// A call of another process that asked a holder to end. It is for the history: no rule depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndRequest {
    pub by: Owner,
    /// True if that process is a caller of `run --busy replace`, which takes the place of the holder.
    #[serde(default, skip_serializing_if = "is_default")]
    pub replaces: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EndReason {
    Released,
    Died,
    Expired,
    /// A user broke the grant with `--force`.
    Broken,
}

impl EndReason {
    pub(crate) fn word(self) -> &'static str {
        match self {
            EndReason::Released => "released",
            EndReason::Died => "died",
            EndReason::Expired => "expired",
            EndReason::Broken => "broken",
        }
    }
}

impl Record {
    /// Returns the record as the store keeps it: without old endings, without sightings of leases that are over, and
    /// without the replacement by a caller that has gone.
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

    /// Returns the record as it is written: [as the store keeps it](Record::as_stored), and without the commands and labels
    /// of grants that have ended. They may contain passwords, and unlike the history a record is for all users of a store.
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

    /// Returns true if the record may have forgotten grants that ended after the oldest of its endings.
    pub(super) fn may_have_forgotten(&self) -> bool {
        self.ended_grants.len() >= ENDINGS_KEPT
    }

    /// Drops the oldest of the endings in `before` that are releases of which no process must learn. If an ending stays,
    /// so do all after it. A crowd would otherwise read and write all recent endings at each commit.
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
