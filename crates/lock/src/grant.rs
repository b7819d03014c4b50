//! A grant: the entry of a holder in a record, and how it ended.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::text::{self, is_default};
use super::{HandleHash, Lifetime, Owner, ProcessId};

pub const MOST_SLOTS: u32 = 10_000;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    #[default]
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
    /// An unconfirmed grant gives its place to a newer caller ([`super::Waiter::latest_only`]).
    #[serde(default, skip_serializing_if = "is_default")]
    pub latest_only: bool,
    /// Owner's end releases the grant and does not count as a loss.
    #[serde(default, skip_serializing_if = "is_default")]
    pub release_on_exit: bool,
    /// Id of the claim, if the name is claimed. A claim is permanent and depends on no process.
    #[serde(default, with = "text", skip_serializing_if = "is_default")]
    pub claim: Option<Vec<u8>>,
    /// Last call that asked the holder to end; copies of a record share it, like the owner.
    #[serde(default, skip_serializing_if = "is_default")]
    pub end_request: Option<Arc<EndRequest>>,
}

impl Grant {
    /// For a change that other copies of the grant do not see.
    pub fn owner_mut(&mut self) -> &mut Owner {
        Arc::make_mut(&mut self.owner)
    }

    /// A script needs no `unlock` at its end; the end of any other owner is a death.
    pub fn shown(&self, reason: EndReason) -> EndReason {
        let is_end_of_script = reason == EndReason::Died && self.owner.session.is_some();
        if is_end_of_script { EndReason::Ended } else { reason }
    }

    /// Counts the time since the grant as a wait, for display: the work under it begins at `wall`. Holders that share
    /// the lock keep their times, because a later token begins later.
    pub(super) fn begin(&mut self, wall: u64) {
        let waited = wall.saturating_sub(self.since);
        if self.mode == Mode::Exclusive {
            self.since = self.since.saturating_add(waited);
            self.waited = self.waited.saturating_add(waited);
        }
    }
}

/// A call of another process that asked a holder to end. It is for the history: no rule depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndRequest {
    pub by: Owner,
    /// By a caller of `run --busy replace`, which takes the place of the holder.
    #[serde(default, skip_serializing_if = "is_default")]
    pub replaces: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EndReason {
    Released,
    Died,
    /// Death of a script, which is the usual end of its grant: for display and in the history. Records have `Died`.
    Ended,
    Expired,
    /// A user broke the grant with `--force`.
    Broken,
}

impl EndReason {
    pub fn word(self) -> &'static str {
        match self {
            EndReason::Released => "released",
            EndReason::Died => "died",
            EndReason::Ended => "ended",
            EndReason::Expired => "expired",
            EndReason::Broken => "broken",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedGrant {
    pub grant: Grant,
    pub reason: EndReason,
}

impl EndedGrant {
    /// Returns true if a process must still learn of this ending. The supervisor takes a grant without a trace for
    /// lost. The owner of a grant that was broken, or that expired, must learn of that before it writes a value,
    /// because a caller without a trace is one that never had the lock.
    pub fn is_owed(&self) -> bool {
        let owner = &self.grant.owner;
        // A claim has neither a supervisor nor a process, so no process asks for its ending.
        let has_owner = !owner.processes.is_empty() && self.grant.lifetime != Lifetime::OwnerDied;
        match self.reason {
            EndReason::Released | EndReason::Died | EndReason::Ended => owner.supervisor.is_some(),
            EndReason::Expired => self.grant.provisional.is_none() && has_owner,
            EndReason::Broken => owner.supervisor.is_some() || has_owner,
        }
    }
}
