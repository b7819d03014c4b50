//! A world to be explored: who is in it, what they want, and what may go wrong.

use super::state::State;
use lock::{Facts, Handle, HandleHash, Mode, Owner, PidDomain, ProcessId};

/// Everything that does not change while a world is explored.
#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) names: usize,
    pub(crate) actors: Vec<Script>,
    pub(crate) faults: Faults,
    /// Whether a waiter polls without a wake-up, as it does after a bounded time.
    pub(crate) bounded_looks: bool,
    /// Whether the hosts are copies of one machine: a process that is not on one of them may run on another.
    pub(crate) copies: bool,
    pub(crate) planted: Option<Planted>,
}

/// How often what may go wrong, in the whole of one run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    /// A process is stopped between two of its steps, and is continued at any time.
    pub(crate) stops: u8,
    /// A process dies between two of its steps.
    pub(crate) crashes: u8,
    /// A swap happens, and its reply is lost.
    pub(crate) lost_replies: u8,
    /// The record as it was before the last swap is read.
    pub(crate) stale_reads: u8,
    /// A process dies, and what it sent arrives afterwards.
    pub(crate) late_arrivals: u8,
    /// A swap is sent once more, and its first copy arrives at any time.
    pub(crate) late_copies: u8,
    /// How many leases there are to lend, each of which may end at any time.
    pub(crate) leases: u8,
}

/// The tasks of an actor, one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    /// Its host. Processes of another host cannot be seen.
    pub(crate) host: u8,
    /// Whether the lock is for a shell, which outlives the process that acquires.
    pub(crate) for_shell: bool,
    /// How long its grants last.
    pub(crate) lasts: Lasts,
    /// Whether it may leave the queue at any time.
    pub(crate) impatient: bool,
    /// Whether a newer caller of this kind takes its place in the queue.
    pub(crate) latest_only: bool,
    /// Whether it refuses a stale lock.
    pub(crate) refuses_stale: bool,
    /// Whether it lives on after its last task.
    pub(crate) stays: bool,
    /// How many slots [`Mode::Slot`] means to it.
    pub(crate) slots: u32,
    pub(crate) tasks: Vec<Task>,
}

/// How long grants last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lasts {
    /// While the owner lives.
    OwnerLives,
    /// By a lease at most.
    AtMost,
    /// By a lease that a keeper renews.
    Renewing,
}

/// One thing to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// Takes a name, and waits for it.
    Take(usize, Mode),
    /// Takes a name if it is free.
    Try(usize, Mode),
    /// Gives back what it took, by its handle.
    GiveBack(usize),
    /// Gives it back because it is its owner.
    GiveBackAsOwner(usize),
    /// Breaks what it finds held.
    Break(usize),
    /// Removes what is abandoned.
    Collect(usize),
    /// Begins a run of the job, or gives the lock back if the job has succeeded.
    Begin(usize),
    /// Records the success of the run, which ends at once.
    Report(usize),
    /// Renews the lease of this actor's grant so often at most, or says that its owner died.
    Keep { of: usize, name: usize, renewals: u8 },
}

/// A rule that is wrong on purpose, to see that a promise can be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Planted {
    /// An unknown process counts as dead.
    UnknownIsDead,
    /// A swap does not compare.
    NothingCompared,
    /// Giving back leaves the queue as it is.
    NobodyServed,
    /// The first waiter steps back behind the last.
    QueueJumped,
    /// A removed record is forgotten with its number.
    NumbersForgotten,
    /// The number of an absent record is unknown.
    BirthsUncounted,
    /// No actor is notified.
    NobodyRung,
    /// A grant to a waiter does not depend on the waiter.
    BornConfirmed,
    /// No actor sees that another is stopped.
    StopsUnseen,
    /// No actor sees that another is dead.
    DeathUnseen,
    /// A success that the store did not accept counts as recorded.
    SuccessLost,
}

impl Task {
    pub(crate) fn name(&self) -> usize {
        match *self {
            Task::Take(name, _) | Task::Try(name, _) | Task::GiveBack(name) | Task::GiveBackAsOwner(name) => name,
            Task::Break(name) | Task::Collect(name) | Task::Keep { name, .. } => name,
            Task::Begin(name) | Task::Report(name) => name,
        }
    }
}

impl Script {
    /// A job on the first host that owns what it takes.
    pub(crate) fn job(tasks: &[Task]) -> Script {
        Script {
            host: 0,
            for_shell: false,
            lasts: Lasts::OwnerLives,
            impatient: false,
            latest_only: false,
            refuses_stale: false,
            stays: false,
            slots: 2,
            tasks: tasks.to_vec(),
        }
    }

    /// The script on another host, which only sees leases.
    pub(crate) fn elsewhere(self, host: u8) -> Script {
        Script { host, ..self }
    }

    /// The script for a shell that lives on.
    pub(crate) fn for_shell(self) -> Script {
        Script { for_shell: true, ..self }
    }

    /// The script with grants of this lifetime.
    pub(crate) fn lasting(self, lasts: Lasts) -> Script {
        Script { lasts, ..self }
    }

    /// The script that may leave the queue.
    pub(crate) fn impatient(self) -> Script {
        Script { impatient: true, ..self }
    }

    /// The script that lives on after its last task.
    pub(crate) fn staying(self) -> Script {
        Script { stays: true, ..self }
    }

    /// The script whose place in the queue a newer one takes.
    pub(crate) fn latest_only(self) -> Script {
        Script { latest_only: true, ..self }
    }

    /// The script that counts so many slots.
    pub(crate) fn counting(self, slots: u32) -> Script {
        Script { slots, ..self }
    }

    pub(crate) fn refusing_stale(self) -> Script {
        Script { refuses_stale: true, ..self }
    }
}

/// Runs the job of this name, unless it has succeeded.
pub(crate) fn runs(name: usize) -> Script {
    Script::job(&[Task::Take(name, Mode::Exclusive), Task::Begin(name), Task::Report(name), Task::GiveBack(name)])
}

/// Takes this name for itself alone and gives it back.
pub(crate) fn takes(name: usize) -> Script {
    shares(name, Mode::Exclusive)
}

/// Takes this much of a name and gives it back.
pub(crate) fn shares(name: usize, share: Mode) -> Script {
    Script::job(&[Task::Take(name, share), Task::GiveBack(name)])
}

impl World {
    /// A world of these actors in which nothing goes wrong.
    pub(crate) fn of(names: usize, actors: Vec<Script>) -> World {
        World { names, actors, faults: Faults::default(), bounded_looks: true, copies: false, planted: None }
    }

    /// Facts without answers, of a store that loses replies if that may happen in this world.
    pub(crate) fn no_facts(&self, state: &State) -> Facts {
        // A waiter that stops does so for long.
        let mut facts = Facts::at(1000 * u64::from(self.faults.stops - state.left.stops));
        facts.replies_get_lost = self.faults.lost_replies > 0 || self.faults.late_copies > 0;
        facts
    }

    /// Whether the store counts the creations of a name, which a store needs if its requests may arrive twice.
    pub(crate) fn counts_births(&self) -> bool {
        self.faults.late_copies > 0 && self.planted != Some(Planted::BirthsUncounted)
    }

    /// Whether actors are on several hosts, so that only leases show what cannot be seen.
    pub(crate) fn has_many_hosts(&self) -> bool {
        self.actors.iter().any(|actor| actor.host != self.actors[0].host)
    }
}

pub(crate) fn name(at: usize) -> Vec<u8> {
    vec![b'a' + at as u8]
}

pub(crate) fn process(actor: usize) -> ProcessId {
    ProcessId { pid: 10 + actor as i32, start: 1 }
}

pub(crate) fn owner(script: &Script, actor: usize) -> ProcessId {
    let pid = if script.for_shell { 20 } else { 10 };
    ProcessId { pid: pid + actor as i32, start: 1 }
}

/// A process as one bit of a set.
pub(crate) fn bit(process: &ProcessId) -> u32 {
    1 << process.pid
}

pub(crate) fn home(host: u8) -> PidDomain {
    let machine = char::from(b'm' + host).to_string();
    PidDomain { boot: machine.clone(), pids: "p".into(), net: u64::from(host), machine }
}

/// Returns the credentials for the grants of an actor.
pub(crate) fn proof(actor: usize) -> HandleHash {
    use std::sync::OnceLock;
    static PROOFS: OnceLock<Vec<HandleHash>> = OnceLock::new();
    PROOFS.get_or_init(|| (0..8).map(|at| Handle::new([at; 16]).proof()).collect())[actor]
}

/// Returns the actor with this proof.
pub(crate) fn whose(wanted: &HandleHash) -> Option<usize> {
    (0..8).find(|actor| proof(*actor) == *wanted)
}

pub(crate) fn party(script: &Script, actor: usize) -> Owner {
    Owner {
        domain: home(script.host),
        processes: vec![owner(script, actor)],
        supervisor: None,
        outlives_lock: false,
        session: None,
        host: String::new(),
        uid: 0,
        command: Vec::new(),
        label: None,
    }
}
