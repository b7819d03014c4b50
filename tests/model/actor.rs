//! An actor: its task, the step in it, and the grants that it was told of.

use std::sync::Arc;

use lock::Mode;

use super::facts::Known;
use super::storage::{Bytes, Version};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Actor {
    /// The task that is at hand.
    pub(crate) task: usize,
    pub(crate) phase: Phase,
    /// A reply was lost, or another actor was faster.
    pub(crate) repeated: bool,
    /// A notification came.
    pub(crate) rung: bool,
    /// Its patience is over, or it must give way: it leaves the queue.
    pub(crate) leaves: bool,
    /// The store has accepted its entry into the queue.
    pub(crate) queued: bool,
    /// A newer caller has taken its place there.
    pub(crate) replaced: bool,
    /// A request was refused: it releases its other locks.
    pub(crate) refused: bool,
    /// The actor whose grants it is about to break.
    pub(crate) breaking: Option<Vec<usize>>,
    /// How often it renewed what it keeps.
    pub(crate) renewals: u8,
    /// The last version that it saw of each name: an actor reads no version older than the last one it saw.
    pub(crate) seen: Vec<u64>,
    /// Its grants by name.
    pub(crate) holds: Vec<Hold>,
    /// The lease by which others take it for alive while it waits.
    pub(crate) waits_by: Option<u64>,
    /// The lease that was begun for a grant.
    pub(crate) begun: Option<u64>,
}

/// The grant of an actor on one name, as far as it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Hold {
    pub(crate) is: Holding,
    pub(crate) share: Option<HeldMode>,
    pub(crate) slot: u32,
    /// The lease that ends it.
    pub(crate) lease: Option<u64>,
    /// It wrote itself that it has it.
    pub(crate) said: bool,
    /// The token of its last grant that another actor broke, of which it may not have been told yet.
    pub(crate) broken: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Holding {
    #[default]
    Nothing,
    /// It was told that it holds, and may do as it likes.
    Told,
    /// It has begun to give it back.
    GivingBack,
    /// Its lease is over, another actor broke it, or its owner is dead.
    Lost,
}

/// [`Mode`], with an implementation of `Hash`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum HeldMode {
    Exclusive,
    Shared,
    Slot,
}

impl From<Mode> for HeldMode {
    fn from(share: Mode) -> HeldMode {
        match share {
            Mode::Exclusive => HeldMode::Exclusive,
            Mode::Shared => HeldMode::Shared,
            Mode::Slot => HeldMode::Slot,
        }
    }
}

/// The step of an actor in its task.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// About to read.
    Ready,
    /// It has read this, and is finding out what it must know.
    Read(Version, Vec<Known>),
    /// About to swap.
    Swapping(Swapping),
    /// In the queue, looking out for the death of these and the end of those.
    Waiting { processes: u32, leases: u32, seen: u64 },
    /// It has done everything, or died.
    Ended,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Swapping {
    pub(crate) name: usize,
    pub(crate) expect: Option<u64>,
    pub(crate) body: Option<Arc<Bytes>>,
    /// The result that it learns then; `None`: to read again.
    pub(crate) answer: Option<Answer>,
    /// The actors that it notifies then.
    pub(crate) rings: Vec<usize>,
    /// The actors whose grants it breaks.
    pub(crate) breaks: Vec<usize>,
    /// It says in it that it has the lock.
    pub(crate) says: bool,
}

/// The response to a request, as far as the model goes by it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    /// It holds, by this token (`None`: the version of this swap), on this slot, until this lease is over.
    Granted { token: Option<u64>, mode: HeldMode, slot: u32, lease: Option<u64> },
    /// It is not in the queue any more.
    Left,
    /// It was granted it before it could leave.
    FindsIt,
    /// It lasts until this lease is over.
    Renewed(Option<u64>),
    /// Anything else that is done.
    Done,
    /// No.
    Refused,
}

impl Actor {
    pub(crate) fn new(names: usize) -> Actor {
        Actor {
            task: 0,
            phase: Phase::Ready,
            repeated: false,
            rung: false,
            leaves: false,
            queued: false,
            replaced: false,
            refused: false,
            breaking: None,
            renewals: 0,
            seen: vec![0; names],
            holds: vec![Hold::default(); names],
            waits_by: None,
            begun: None,
        }
    }

    /// Whether it may use a name freely.
    pub(crate) fn holds(&self, name: usize) -> bool {
        self.holds[name].is == Holding::Told
    }
}

impl Hold {
    /// It is over, without a release.
    pub(crate) fn lose(&mut self) {
        if self.is != Holding::Nothing {
            self.is = Holding::Lost;
        }
    }
}
