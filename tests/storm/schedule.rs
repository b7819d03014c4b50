//! The events of a storm: every round of every worker, every fault, and every failure of the store. All of it is a pure
//! function of the seed, so a seed is enough to repeat it.

use std::time::Duration;

use fastrand::Rng;

use crate::generator;

/// Locks that are held in every mode, by one holder's life or by time.
pub(crate) const NAMES: [&str; 3] = ["a", "b", "c"];

/// The lock that is held permanently and broken.
pub(crate) const BREAKABLE: &str = "d";

/// A lock that is a file's, for `--flock` and flock(1).
pub(crate) const FILE: &str = "./f";

pub(crate) const SLOTS: u32 = 3;

/// A waiter without a timeout.
pub(crate) const INFINITE: u32 = u32::MAX;

/// Number of pairs of names to claim.
pub(crate) const PAIRS: usize = 4;

pub(crate) struct Schedule {
    pub(crate) seed: u64,
    /// Whether the first worker enters without a lock, to show that this is seen.
    pub(crate) cheats: bool,
}

/// The actions of a worker, and the faults meanwhile.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Round {
    pub(crate) what: What,
    pub(crate) wait: Wait,
    /// By how much the wall clock is wrong.
    pub(crate) clock: Option<&'static str>,
    pub(crate) fault: Option<Fault>,
    /// How long the worker rests before it.
    pub(crate) pause: Duration,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum What {
    /// With `latest` it gives way to a newer one while it waits.
    Run {
        hold: Hold,
        no_fork: bool,
        max_hold: Option<u32>,
        latest: bool,
    },
    /// A command under one lock that takes another.
    Nested {
        outer: Hold,
        inner: Hold,
        no_fork: bool,
    },
    /// Under `lock`, released in this way.
    Script {
        hold: Hold,
        end: End,
        renew: Option<u32>,
    },
    Flock {
        share: Share,
        stay: u32,
    },
    OldFlock {
        share: Share,
        stay: u32,
    },
    Forever {
        stay: u32,
    },
    Force,
    CountUp {
        ttl: Option<u32>,
        even_if_stale: bool,
    },
    CountIf,
    Create,
    Delete,
    Claim {
        pair: usize,
        turned: bool,
    },
    ClaimFresh,
    Look(Look),
    /// One call whose result is part of a history, of one of a few names.
    Op(Op, usize),
    /// The critical section without the lock.
    Cheat,
}

/// Which locks are held, and how.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Hold {
    pub(crate) names: Vec<&'static str>,
    pub(crate) share: Share,
    /// In milliseconds, as all times in here.
    pub(crate) ttl: Option<u32>,
    pub(crate) stay: u32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Share {
    Exclusive,
    Shared,
    Slot,
}

/// The way in which a script releases its locks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum End {
    AsOwner,
    ByHandle,
    All,
    /// By its own end.
    Dies,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Look {
    Status,
    StatusJson,
    StatusOf(&'static str),
    Gc,
    DryGc,
    History,
    Doctor,
    Get(&'static str),
    Lookup(usize),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Op {
    Get,
    Put,
    PutIfAbsent,
    Delete,
    Claim,
    Unclaim,
    LookUp,
    /// The script unlocks after this time.
    Lock {
        stay: u32,
    },
    Break,
}

/// The timeout of a wait, and its form.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wait {
    /// 0: not at all.
    pub(crate) timeout: u32,
    pub(crate) fail_on_stale: bool,
    pub(crate) label: bool,
    pub(crate) other_code: bool,
    pub(crate) backoff: bool,
}

/// A fault of one of a round's processes, this many milliseconds after the round began.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fault {
    pub(crate) after: u32,
    pub(crate) aim: Aim,
    pub(crate) what: Shot,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Shot {
    Kill,
    /// The duration.
    Stop(u32),
}

/// The target of a signal. A round without such a process signals any of its processes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Aim {
    /// The csalock that was called, which is also the supervisor of a command.
    Caller,
    /// The one that takes the lock, and becomes the command.
    Waiter,
    Command,
    Keeper,
    Shell,
    Any(usize),
}

/// A failure of the store.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Trouble {
    /// How long it was quiet before.
    pub(crate) quiet: Duration,
    pub(crate) lasts: Duration,
    /// The failure of a server: it is killed, or it hangs.
    pub(crate) kills: bool,
    /// Which server, counted round and round those that there are.
    pub(crate) server: usize,
}

impl Schedule {
    pub(crate) fn new(seed: u64) -> Schedule {
        Schedule { seed, cheats: false }
    }

    /// A stream of numbers for one thing alone, so that none depends on how often another drew.
    fn rng(&self, stream: u64, number: usize) -> Rng {
        let mixed =
            (stream + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (number as u64 + 1).wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
        Rng::with_seed(self.seed ^ mixed)
    }

    pub(crate) fn round(&self, worker: usize, number: usize) -> Round {
        let rng = &mut self.rng(worker as u64, number);
        let what = if self.cheats && worker == 0 { What::Cheat } else { generator::what(rng) };
        let mut wait = generator::wait(rng);
        if matches!(what, What::Forever { .. }) {
            // The process that would break it may never come.
            wait.timeout = wait.timeout.min(5000);
        }
        let clocks = ["-10d", "+10d", "-1h", "+90s"];
        Round {
            what,
            wait,
            clock: (rng.u8(..10) == 0).then(|| clocks[rng.usize(..clocks.len())]),
            fault: (rng.u8(..20) < 9).then(|| generator::fault(rng)),
            pause: Duration::from_millis(rng.u64(..20)),
        }
    }

    /// The round of one who is called like this: `w3.17`.
    pub(crate) fn round_of(&self, who: &str) -> Round {
        let (worker, number) = who.trim_start_matches('w').split_once('.').unwrap();
        self.round(worker.parse().unwrap(), number.parse().unwrap())
    }

    pub(crate) fn trouble(&self, number: usize) -> Trouble {
        let rng = &mut self.rng(u64::MAX - 1, number);
        Trouble {
            quiet: Duration::from_millis(rng.u64(1000..5000)),
            lasts: Duration::from_millis(if rng.u8(..5) == 0 { rng.u64(1000..3000) } else { rng.u64(50..500) }),
            kills: rng.bool(),
            server: rng.usize(..60),
        }
    }
}

impl Round {
    /// The longest that may pass of itself until it is done, in milliseconds.
    pub(crate) fn lasts(&self) -> u64 {
        let stay = match &self.what {
            What::Run { hold, .. } | What::Script { hold, .. } => hold.stay * 2,
            What::Nested { outer, inner, .. } => outer.stay + inner.stay,
            _ => 50,
        };
        let stop = match &self.fault {
            Some(Fault { what: Shot::Stop(span), after, .. }) => span + after,
            _ => 0,
        };
        // The most waits that there are one after the other.
        u64::from(stay + stop + 4 * self.wait.timeout.min(5000))
    }

    /// Whether it has no time limit: it waits without a timeout, or reads all names.
    pub(crate) fn takes_its_time(&self) -> bool {
        self.wait.timeout == INFINITE || matches!(self.what, What::Look(_))
    }

    pub(crate) fn kills(&self) -> bool {
        matches!(self.fault, Some(Fault { what: Shot::Kill, .. }))
    }
}

impl Share {
    /// As an option, and as the witness knows it.
    pub(crate) fn letter(self) -> char {
        match self {
            Share::Exclusive => 'x',
            Share::Shared => 's',
            Share::Slot => 'j',
        }
    }
}
