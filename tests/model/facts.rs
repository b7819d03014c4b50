//! The world as the protocol asks after it.

use std::sync::Arc;

use lock::{Facts, Lease, LeaseClock, LeaseStart, Liveness, ProcessId, Query, Record};

use super::state::State;
use super::world::{Planted, World, home};

/// A fact that an actor has found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Known {
    /// The state of the process with this pid on this host.
    Fate(u8, i32, Seen),
    /// No group of processes is frozen here.
    NotFrozen(u8, i32),
    /// Whether this lease is over.
    Over(u64, bool),
    /// Whether this lease outlasts an unlimited wait: no.
    NotOutlasted(u64),
    /// This lease begins now.
    Lent(u64),
    /// No actor makes commit records here.
    Undecided(usize),
}

/// How long the leases of time limits last.
pub(crate) const SPAN: u64 = 1;

/// [`Liveness`], to be hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Seen {
    Alive,
    Stopped,
    Dead,
    Unknown,
    Missing,
}

pub(crate) fn lease(number: u64) -> Lease {
    Lease { clock: LeaseClock::FileSystem(LeaseStart::default()), ends: number, wall: 0 }
}

impl Known {
    pub(crate) fn find_out(world: &World, state: &State, host: u8, wanted: &Query) -> Known {
        match wanted {
            Query::Liveness(at, process) => {
                let where_it_is = (0..8).find(|known| home(*known) == *at).unwrap();
                let seen = match state.is_dead(process) {
                    _ if where_it_is != host && world.planted == Some(Planted::UnknownIsDead) => Seen::Dead,
                    _ if where_it_is != host && world.copies => Seen::Missing,
                    _ if where_it_is != host => Seen::Unknown,
                    _ if world.planted == Some(Planted::DeathUnseen) => Seen::Alive,
                    true => Seen::Dead,
                    false if state.is_stopped(process) && world.planted != Some(Planted::StopsUnseen) => Seen::Stopped,
                    false => Seen::Alive,
                };
                Known::Fate(where_it_is, process.pid, seen)
            }
            Query::Frozen(at, process) => {
                Known::NotFrozen((0..8).find(|known| home(*known) == *at).unwrap(), process.pid)
            }
            Query::Descriptor(..) => unreachable!("no caller locks a descriptor"),
            Query::LeaseExpired(lease) => Known::Over(lease.ends, state.is_over(lease.ends)),
            Query::Outlasts(lease) => Known::NotOutlasted(lease.ends),
            Query::Committed(proof) => Known::Undecided(super::world::whose(proof).unwrap()),
            // Decided about, and not written.
            Query::NewLease(_) => Known::Lent(u64::from(u32::BITS - 1)),
            Query::Page(_) => unreachable!("no queue is that long"),
        }
    }

    /// Whether a later request cannot have another result.
    pub(crate) fn is_final(&self) -> bool {
        !matches!(self, Known::Fate(_, _, Seen::Alive | Seen::Stopped) | Known::Over(_, false))
    }

    pub(crate) fn teach(&self, facts: &mut Facts) {
        match *self {
            Known::Fate(host, pid, seen) => {
                let fate = match seen {
                    Seen::Alive => Liveness::Alive,
                    Seen::Stopped => Liveness::Stopped,
                    Seen::Dead => Liveness::Dead,
                    Seen::Unknown => Liveness::Unknown,
                    Seen::Missing => Liveness::Missing,
                };
                facts.insert_liveness(home(host), ProcessId { pid, start: 1 }, fate);
            }
            Known::NotFrozen(host, pid) => facts.frozen.push((home(host), ProcessId { pid, start: 1 }, false)),
            Known::Over(number, over) => facts.insert_expired(lease(number), over),
            Known::NotOutlasted(number) => facts.outlasts.push((lease(number), false)),
            Known::Lent(number) => facts.new_lease.push((SPAN, lease(number))),
            Known::Undecided(actor) => facts.committed.push((super::world::proof(actor), false)),
        }
    }
}

/// Everything that can be known at once about this record, on this host.
pub(crate) fn decide_now<T>(world: &World, state: &State, host: u8, of: impl Fn(&Facts) -> Result<T, Query>) -> T {
    let mut facts = world.no_facts(state);
    loop {
        match of(&facts) {
            Ok(done) => return done,
            Err(wanted) => Known::find_out(world, state, host, &wanted).teach(&mut facts),
        }
    }
}

pub(crate) fn leases(record: &Arc<Record>) -> impl Iterator<Item = u64> {
    let of_holders = record.holders.iter().filter_map(|grant| grant.lifetime.lease());
    let of_waiters = record.waiters.iter().filter_map(|waiter| waiter.lease.as_ref());
    of_holders.chain(of_waiters).map(|lease| lease.ends)
}
