//! The answer to a request: the locks, or who has them.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::Guard;
use lock::escape::escape;
use lock::{Grant, Refusal};

/// The answer to [`Locks::acquire`](crate::Locks::acquire).
#[derive(Debug)]
#[must_use = "the locks are released when the guard is dropped"]
pub enum Acquired {
    /// This process has all locks of the request.
    Held(Guard),
    /// This process has none of them.
    Refused(Refused),
}

impl Acquired {
    /// For a program that only needs to know whether it has the locks.
    pub fn held(self) -> Option<Guard> {
        match self {
            Acquired::Held(guard) => Some(guard),
            Acquired::Refused(_) => None,
        }
    }
}

/// The lock that was not free, and its holders. It is displayed as one line.
#[derive(Debug, Clone)]
pub struct Refused {
    name: String,
    holders: Vec<Holder>,
}

/// A holder, as it named itself when it acquired the lock.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Holder {
    /// On the holder's host; `None` for a holder that depends on no process, like a claim.
    pub pid: Option<u32>,
    /// The name of its host.
    pub host: String,
    /// The id of its user there.
    pub uid: u32,
    /// Its command line.
    pub command: String,
    /// The reason that it gave ([`LockRequest::label`](crate::LockRequest::label)).
    pub label: Option<String>,
    /// When it acquired the lock, by the clock of its host.
    pub since: SystemTime,
}

impl Refused {
    pub(crate) fn new(name: &[u8], refusal: &Refusal) -> Refused {
        let holders = match refusal {
            Refusal::Busy(grants) => grants.iter().map(Holder::of).collect(),
            Refusal::Claimed(grant) => vec![Holder::of(grant)],
            _ => Vec::new(),
        };
        Refused { name: escape(name), holders }
    }

    /// The lock that was not free.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Empty if all of them ended while this process asked.
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }
}

impl Holder {
    fn of(grant: &Grant) -> Holder {
        let owner = &grant.owner;
        Holder {
            pid: owner.processes.first().map(|process| process.pid.unsigned_abs()),
            host: escape(owner.host.as_bytes()),
            uid: owner.uid,
            command: escape(&owner.command),
            label: owner.label.as_deref().map(escape),
            since: SystemTime::UNIX_EPOCH + Duration::from_millis(grant.since),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "lock {} is busy", self.name)?;
        for (at, holder) in self.holders.iter().enumerate() {
            let separator = if at == 0 { ": held by" } else { "," };
            match holder.pid {
                Some(pid) => write!(out, "{separator} pid {pid} on {}", holder.host)?,
                None => write!(out, "{separator} a caller on {}", holder.host)?,
            }
            if let Some(label) = &holder.label {
                write!(out, " for \"{label}\"")?;
            }
        }
        Ok(())
    }
}
