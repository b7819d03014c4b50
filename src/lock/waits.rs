//! Who waits for what, found by who waits: the notes by which a circle of waits is seen.
//!
//! A record says who holds a lock and who waits for it, but not what its holders wait for elsewhere. So a waiter who may
//! hold other locks leaves a note under each process that goes on only when the wait ends, and one under each grant that it
//! works under. Whoever waits for a lock of that process looks there. A note is only a hint: what counts is the record that
//! it leads to, so one that was left behind by the dead misleads nobody.

use super::handle::HandleHash;
use super::record::{Grant, PidDomain, ProcessId, Waiter};

/// The waits of one process, or under one grant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WaitEdges {
    /// Which lock is waited for, and by which entry of its queue.
    pub waits: Vec<(Vec<u8>, HandleHash)>,
}

impl WaitEdges {
    /// The names under which a waiter's notes are stored.
    pub fn keys(waiter: &Waiter) -> Vec<Vec<u8>> {
        let of_processes =
            waiter.blocked_processes.iter().map(|process| WaitEdges::of_process(&waiter.owner.domain, process));
        waiter.enclosing_grants.iter().map(WaitEdges::under).chain(of_processes).collect()
    }

    /// The names under which notes about the waits of a holder may be.
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
