//! One state of a world: what is stored, who is where in what it does, who is dead, which leases are over.

use super::actor::{Actor, Swapping};
use super::storage::Kept;
use super::world::{Faults, World};

/// The event that broke a promise.
pub(crate) type Broken = &'static str;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The stored object for each name.
    pub(crate) names: Vec<Kept>,
    pub(crate) actors: Vec<Actor>,
    /// The processes that are dead, by [`super::context::bit`].
    pub(crate) dead: u32,
    /// The processes that are stopped, and those that have ever been.
    pub(crate) stopped: u32,
    pub(crate) ever_stopped: u32,
    /// How many leases were lent, and which of them are over.
    pub(crate) lent: u8,
    pub(crate) over: u32,
    /// The faults that may still happen.
    pub(crate) left: Faults,
    /// The requests that were sent and have not arrived.
    pub(crate) on_its_way: Vec<Sent>,
    /// For each name, the highest token that any actor was told, and the highest of an exclusive grant.
    pub(crate) told: Vec<(u64, u64)>,
    /// An actor was told that the success of the job is on record.
    pub(crate) reported: bool,
    /// A promise that the last step has broken.
    pub(crate) broken: Option<Broken>,
}

/// A swap that is on its way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Sent {
    pub(crate) by: usize,
    pub(crate) swap: Swapping,
}

impl State {
    pub(crate) fn first(world: &World) -> State {
        State {
            names: vec![Kept::default(); world.names],
            actors: world.actors.iter().map(|_| Actor::new(world.names)).collect(),
            dead: 0,
            stopped: 0,
            ever_stopped: 0,
            lent: 0,
            over: 0,
            left: world.faults,
            on_its_way: Vec::new(),
            told: vec![(0, 0); world.names],
            reported: false,
            broken: None,
        }
    }

    pub(crate) fn is_over(&self, lease: u64) -> bool {
        self.over & (1 << lease) != 0
    }

    pub(crate) fn is_stopped(&self, process: &lock::ProcessId) -> bool {
        self.stopped & super::world::bit(process) != 0
    }

    pub(crate) fn was_stopped(&self, process: &lock::ProcessId) -> bool {
        self.ever_stopped & super::world::bit(process) != 0
    }

    pub(crate) fn is_dead(&self, process: &lock::ProcessId) -> bool {
        self.dead & super::world::bit(process) != 0
    }
}
