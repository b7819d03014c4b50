//! Past grants: who held what, from when to when, how long they had waited for it, and how it ended.
//!
//! Each is one line ([`Past::line`]) that a store appends to what it keeps beside its records, within [`Limits`]. It is a
//! memory for people and nothing else: nothing is ever decided by it, a line may be lost, and to write one costs nobody a
//! lock or a wait.

mod limits;
mod line;

pub use limits::{Limits, parse_size};

use crate::lock::{EndReason, EndedGrant, Grant, Mode, Owner};

/// A grant, from its beginning to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Past {
    /// What was held, as its record bears it.
    pub name: Vec<u8>,
    /// The fencing number.
    pub token: Option<u64>,
    /// How much of it.
    pub share: Mode,
    /// Which place, for [`Mode::Slot`].
    pub slot: u32,
    /// By whom.
    pub holder: Who,
    /// From when on: milliseconds since 1970, as [`Grant::since`].
    pub from: u64,
    /// Until when, likewise. `None`: it is held, or nobody has written down its end.
    pub to: Option<u64>,
    /// How long it was waited for, in milliseconds.
    pub waited: u64,
    /// How it ended. `None`: it is held.
    pub how: Option<EndReason>,
    /// Who broke it.
    pub broken_by: Option<Who>,
}

/// Somebody, as people know them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// The process, where it was one.
    pub pid: Option<i32>,
    /// Its host's name.
    pub host: String,
    /// The numeric user.
    pub uid: u32,
    /// What it ran.
    pub command: Vec<u8>,
    /// What `--label` said.
    pub label: Option<Vec<u8>>,
}

impl Who {
    /// A party, and which of its processes counts.
    pub fn new(owner: &Owner, pid: Option<i32>) -> Who {
        let Owner { host, uid, command, label, .. } = owner.clone();
        Who { pid, host, uid, command, label }
    }
}

impl Past {
    /// A grant that is held, by this process.
    pub fn held(name: &[u8], grant: &Grant, pid: Option<i32>) -> Past {
        Past {
            name: name.to_vec(),
            token: grant.token,
            share: grant.mode,
            slot: grant.slot,
            holder: Who::new(&grant.owner, pid),
            from: grant.since,
            to: None,
            waited: grant.waited,
            how: None,
            broken_by: None,
        }
    }

    /// A grant that is over, as was found at this time.
    pub fn ended(name: &[u8], ending: &EndedGrant, pid: Option<i32>, now: u64) -> Past {
        let to = match (ending.grant.lifetime.lease(), ending.reason) {
            // Whenever that was noticed.
            (Some(lease), EndReason::Expired) => lease.wall.min(now),
            _ => now,
        };
        Past { to: Some(to), how: Some(ending.reason), ..Past::held(name, &ending.grant, pid) }
    }

    /// Whether both are of one grant.
    pub fn is_same_grant(&self, other: &Past) -> bool {
        let which = |past: &Past| (past.token, past.slot, past.from, past.holder.pid);
        which(self) == which(other) && self.name == other.name
    }
}
