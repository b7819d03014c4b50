//! Who waits for what, found by who waits: the notes by which a circle of waits is seen.
//!
//! A record says who holds a lock and who waits for it, but not what its holders wait for elsewhere. So a waiter who may
//! hold other locks leaves a note under each process that goes on only when the wait ends, and one under each grant that it
//! works under. Whoever waits for a lock of that process looks there. A note is only a hint: what counts is the record that
//! it leads to, so one that was left behind by the dead misleads nobody.

use super::handle::Proof;
use super::record::{Grant, Home, Process, Waiter};

/// The waits of one process, or under one grant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Waits {
    /// Which lock is waited for, and by which entry of its queue.
    pub waits: Vec<(Vec<u8>, Proof)>,
}

impl Waits {
    /// The names under which a waiter's notes are stored.
    pub fn keys(waiter: &Waiter) -> Vec<Vec<u8>> {
        let of_processes = waiter.within.iter().map(|process| Waits::of_process(&waiter.party.home, process));
        waiter.under.iter().map(Waits::under).chain(of_processes).collect()
    }

    /// The names under which notes about the waits of a holder may be.
    pub fn keys_of_holder(grant: &Grant) -> Vec<Vec<u8>> {
        let of_owners = grant.party.owners.iter().map(|owner| Waits::of_process(&grant.party.home, owner));
        std::iter::once(Waits::under(&grant.proof)).chain(of_owners).collect()
    }

    fn of_process(home: &Home, process: &Process) -> Vec<u8> {
        format!("\0{}:{}:{}:{}", home.boot, home.pids, process.pid, process.start).into_bytes()
    }

    fn under(proof: &Proof) -> Vec<u8> {
        format!("\0{proof}").into_bytes()
    }
}
