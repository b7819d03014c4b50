//! Edges of the wait-for graph that waiters publish, so that other waiters can find a cycle.
//!
//! A record lists the holders and waiters of a lock, but not the other waits of its holders. So a waiter that may hold
//! other locks publishes edges under each process that continues only after the wait, and under each enclosing grant. A
//! waiter for a lock of that process reads the edges there. An edge is only a hint; the record that it leads to counts,
//! so an edge that a dead waiter left misleads no process.

use serde::{Deserialize, Serialize};

use super::codec::text;
use super::handle::HandleHash;
use super::owner::{PidDomain, ProcessId};
use super::record::{Grant, Waiter};

/// Waits of one process, or under one grant.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WaitEdges {
    /// Name of the lock, and handle hash of the queue entry, of each wait.
    #[serde(with = "text")]
    pub waits: Vec<(Vec<u8>, HandleHash)>,
}

impl WaitEdges {
    /// Returns the names under which a waiter's edges are stored.
    pub fn keys(waiter: &Waiter) -> Vec<Vec<u8>> {
        let of_processes =
            waiter.blocked_processes.iter().map(|process| WaitEdges::of_process(&waiter.owner.domain, process));
        waiter.enclosing_grants.iter().map(WaitEdges::under).chain(of_processes).collect()
    }

    /// Returns the names under which edges for the waits of a holder may be stored.
    pub fn keys_of_holder(grant: &Grant) -> Vec<Vec<u8>> {
        let of_owners = grant.owner.processes.iter().map(|owner| WaitEdges::of_process(&grant.owner.domain, owner));
        std::iter::once(WaitEdges::under(&grant.proof)).chain(of_owners).collect()
    }

    fn of_process(domain: &PidDomain, process: &ProcessId) -> Vec<u8> {
        format!("\0{}:{}:{}:{}", domain.boot, domain.pids, process.pid, process.start).into_bytes()
    }

    fn under(proof: &HandleHash) -> Vec<u8> {
        format!("\0{proof}").into_bytes()
    }
}
