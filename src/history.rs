//! Past grants: the holder, the times of start and end, the time of waiting, and the reason for the end.
//!
//! Each grant is a line ([`Past::line`]) that a store appends to its history, within [`Limits`]. The history is for people
//! and for estimates of a caller's turn: no rule of locking depends on it, and a line may be lost. Writing a line needs no
//! lock and no wait.

mod audit;
mod hold_times;
mod limits;
mod line;

pub use audit::{Audit, Fault, FaultKind, audit};
pub use hold_times::{ExpectedTurn, HoldTimes, Place, UsualHold};
pub use limits::{Limits, parse_size};
pub use line::is_damaged;

use serde::{Deserialize, Serialize};

use crate::lock::codec::{is_default, text};
use crate::lock::{EndReason, EndedGrant, Grant, Mode, Owner};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// The name of the lock, as its record has it.
    #[serde(skip)]
    pub name: Vec<u8>,
    pub token: Option<u64>,
    pub mode: Mode,
    /// The slot number for [`Mode::Slot`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub slot: u32,
    pub holder: Who,
    /// The start, in milliseconds since 1970, as [`Grant::since`].
    pub from: u64,
    /// The end, in milliseconds since 1970. `None`: the lock is still held, or the end was not recorded.
    pub to: Option<u64>,
    /// The time of waiting, in milliseconds.
    #[serde(default, skip_serializing_if = "is_default")]
    pub waited: u64,
    /// The reason for the end. `None`: the lock is held.
    pub how: Option<EndReason>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub broken_by: Option<Who>,
}

/// A process, described for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Who {
    /// The process id, if it is known.
    pub pid: Option<i32>,
    #[serde(with = "text")]
    pub host: String,
    pub uid: u32,
    #[serde(with = "text")]
    pub command: Vec<u8>,
    #[serde(default, with = "text", skip_serializing_if = "is_default")]
    pub label: Option<Vec<u8>>,
}

impl Who {
    /// Describes an owner by the process id that counts.
    pub fn new(owner: &Owner, pid: Option<i32>) -> Who {
        let Owner { host, uid, command, label, .. } = owner.clone();
        Who { pid, host, uid, command, label }
    }
}

impl Past {
    pub fn held(name: &[u8], grant: &Grant, pid: Option<i32>) -> Past {
        Past {
            name: name.to_vec(),
            token: grant.token,
            mode: grant.mode,
            slot: grant.slot,
            holder: Who::new(&grant.owner, pid),
            from: grant.since,
            to: None,
            waited: grant.waited,
            how: None,
            broken_by: None,
        }
    }

    /// Describes a grant that ended at `now` or earlier.
    pub fn ended(name: &[u8], ending: &EndedGrant, pid: Option<i32>, now: u64) -> Past {
        let to = match (ending.grant.lifetime.lease(), ending.reason) {
            // The lease expired at its own end, even if csalock noticed it later.
            (Some(lease), EndReason::Expired) => lease.wall.min(now),
            _ => now,
        };
        Past { to: Some(to), how: Some(ending.reason), ..Past::held(name, &ending.grant, pid) }
    }

    /// Returns true if both describe the same grant.
    pub fn is_same_grant(&self, other: &Past) -> bool {
        let which = |past: &Past| (past.token, past.slot, past.from, past.holder.pid);
        which(self) == which(other) && self.name == other.name
    }
}
