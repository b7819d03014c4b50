//! What happens in a storm: every round of every worker, every fault and every trouble of the store. All of it is a pure
//! function of the seed, so that a seed is enough to have the same again.

use std::time::Duration;

use fastrand::Rng;

/// Locks that are held in every mode, by one holder's life or by time.
pub(crate) const NAMES: [&str; 3] = ["a", "b", "c"];

/// The lock that is held for ever and broken.
pub(crate) const BREAKABLE: &str = "d";

/// A lock that is a file's, for `--flock` and flock(1).
pub(crate) const FILE: &str = "./f";

/// How many may have a place at once, whoever asks.
pub(crate) const SLOTS: u32 = 3;

/// How many pairs of names there are to be claimed.
const PAIRS: usize = 4;

pub(crate) struct Schedule {
    pub(crate) seed: u64,
    /// Whether the first worker goes in without asking anybody: to see that it is seen.
    pub(crate) cheats: bool,
}

/// What a worker does, and what is done to it meanwhile.
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
    Run { hold: Hold, no_fork: bool, max_hold: Option<u32> },
    /// A command under one lock that takes another.
    Nested { outer: Hold, inner: Hold, no_fork: bool },
    /// Under `lock`, given back in this way.
    Script { hold: Hold, end: End, renew: Option<u32> },
    Flock { share: Share, stay: u32 },
    OldFlock { share: Share, stay: u32 },
    Forever { stay: u32 },
    Force,
    CountUp { ttl: Option<u32>, even_if_stale: bool },
    CountIf,
    Create,
    Delete,
    Claim { pair: usize, turned: bool },
    ClaimFresh,
    Look(Look),
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

/// How a script gives back what it holds.
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

/// How long, and how, somebody is willing to wait.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wait {
    /// 0: not at all.
    pub(crate) timeout: u32,
    pub(crate) fail_on_stale: bool,
    pub(crate) label: bool,
    pub(crate) other_code: bool,
    pub(crate) attempts: bool,
}

/// What befalls one of a round's processes, so many milliseconds after the round began.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fault {
    pub(crate) after: u32,
    pub(crate) aim: Aim,
    pub(crate) what: Shot,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Shot {
    Kill,
    /// For so long.
    Stop(u32),
}

/// Whom it is to hit. Where there is no such process it hits any of the round's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Aim {
    /// The csalock that was called, which is also the guardian of a command.
    Caller,
    /// The one that takes the lock, and becomes the command.
    Waiter,
    Command,
    Keeper,
    Shell,
    Any(usize),
}

/// What befalls the store.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Trouble {
    /// How long it was quiet before.
    pub(crate) quiet: Duration,
    pub(crate) lasts: Duration,
    /// Of a server: whether it is killed, or stands still.
    pub(crate) kills: bool,
    /// Which server, of those that there are.
    pub(crate) server: usize,
}

impl Schedule {
    pub(crate) fn new(seed: u64) -> Schedule {
        Schedule { seed, cheats: false }
    }

    /// A stream of numbers for one thing alone, so that none depends on how often another drew.
    fn rng(&self, stream: u64, number: usize) -> Rng {
        let mixed = (stream + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (number as u64 + 1).wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
        Rng::with_seed(self.seed ^ mixed)
    }

    pub(crate) fn round(&self, worker: usize, number: usize) -> Round {
        let rng = &mut self.rng(worker as u64, number);
        let what = if self.cheats && worker == 0 { What::Cheat } else { what(rng) };
        let clocks = ["-10d", "+10d", "-1h", "+90s"];
        Round {
            what,
            wait: wait(rng),
            clock: (rng.u8(..10) == 0).then(|| clocks[rng.usize(..clocks.len())]),
            fault: (rng.u8(..10) < 3).then(|| fault(rng)),
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
            quiet: Duration::from_millis(rng.u64(500..4000)),
            lasts: Duration::from_millis(if rng.u8(..5) == 0 { rng.u64(1000..3000) } else { rng.u64(50..500) }),
            kills: rng.bool(),
            server: rng.usize(..),
        }
    }
}

fn what(rng: &mut Rng) -> What {
    let stay = |rng: &mut Rng| rng.u32(0..25);
    let share = |rng: &mut Rng| if rng.u8(..3) == 0 { Share::Shared } else { Share::Exclusive };
    match rng.u8(..100) {
        0..22 => {
            let hold = hold(rng);
            let no_fork = hold.ttl.is_none() && rng.u8(..5) == 0;
            let max_hold = (!no_fork && rng.u8(..10) == 0).then(|| rng.u32(30..200));
            What::Run { hold, no_fork, max_hold }
        }
        22..30 => {
            let (mut outer, mut inner) = (hold(rng), hold(rng));
            let at = rng.usize(..NAMES.len());
            (outer.names, inner.names) = (vec![NAMES[at]], vec![NAMES[(at + 1 + rng.usize(..2)) % NAMES.len()]]);
            (outer.ttl, inner.ttl) = (None, None);
            What::Nested { outer, inner, no_fork: rng.bool() }
        }
        30..50 => {
            let hold = hold(rng);
            let end = [End::AsOwner, End::AsOwner, End::ByHandle, End::All, End::Dies][rng.usize(..5)];
            let renew = hold.ttl.filter(|_| rng.bool()).map(|_| rng.u32(300..1500));
            What::Script { hold, end, renew }
        }
        50..53 => What::Flock { share: share(rng), stay: stay(rng) },
        53..55 => What::OldFlock { share: share(rng), stay: stay(rng) },
        55..59 => What::Forever { stay: stay(rng) },
        59..61 => What::Force,
        61..70 => {
            let ttl = (rng.u8(..4) == 0).then(|| rng.u32(200..1000));
            What::CountUp { ttl, even_if_stale: ttl.is_some() && rng.bool() }
        }
        70..74 => What::CountIf,
        74..77 => What::Create,
        77..80 => What::Delete,
        80..87 => What::Claim { pair: rng.usize(..PAIRS), turned: rng.bool() },
        87..90 => What::ClaimFresh,
        _ => What::Look(look(rng)),
    }
}

fn hold(rng: &mut Rng) -> Hold {
    let mut names = NAMES.to_vec();
    rng.shuffle(&mut names);
    names.truncate([1, 1, 1, 1, 2, 3][rng.usize(..6)]);
    let share = [Share::Exclusive, Share::Exclusive, Share::Exclusive, Share::Shared, Share::Slot][rng.usize(..5)];
    let ttl = (rng.u8(..5) == 0).then(|| rng.u32(200..800));
    // Now and then longer than the lease.
    let stay = match ttl {
        Some(ttl) if rng.u8(..10) == 0 => ttl + 3500,
        _ => rng.u32(0..25),
    };
    Hold { names, share, ttl, stay }
}

fn look(rng: &mut Rng) -> Look {
    match rng.u8(..14) {
        0 | 1 => Look::Status,
        2 | 3 => Look::StatusJson,
        4 | 5 => Look::StatusOf(NAMES[rng.usize(..NAMES.len())]),
        6 | 7 => Look::Gc,
        8 => Look::DryGc,
        9 => Look::History,
        10 => Look::Doctor,
        11 | 12 => Look::Get(["n", "o", "p"][rng.usize(..3)]),
        _ => Look::Lookup(rng.usize(..PAIRS)),
    }
}

fn wait(rng: &mut Rng) -> Wait {
    Wait {
        timeout: [0, 100, 500, 2000, 5000, 5000][rng.usize(..6)],
        fail_on_stale: rng.u8(..12) == 0,
        label: rng.u8(..8) == 0,
        other_code: rng.u8(..12) == 0,
        attempts: rng.u8(..16) == 0,
    }
}

fn fault(rng: &mut Rng) -> Fault {
    let aim = match rng.u8(..9) {
        0 | 1 => Aim::Caller,
        2 => Aim::Waiter,
        3 | 4 => Aim::Command,
        5 => Aim::Keeper,
        6 => Aim::Shell,
        _ => Aim::Any(rng.usize(..16)),
    };
    // Most rounds are short, or wait.
    let after = if rng.u8(..4) < 3 { rng.u32(0..40) } else { rng.u32(0..800) };
    let what = match rng.u8(..9) {
        0 => Shot::Stop(rng.u32(300..1500)),
        1 | 2 => Shot::Stop(rng.u32(10..200)),
        _ => Shot::Kill,
    };
    Fault { after, aim, what }
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
        u64::from(stay + stop + 4 * self.wait.timeout)
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

#[test]
fn the_same_seed_gives_the_same_storm_and_another_one_another() {
    let rounds = |seed| -> Vec<Round> {
        let schedule = Schedule::new(seed);
        (0..40).flat_map(|worker| (0..50).map(move |number| (worker, number))).map(|(w, n)| schedule.round(w, n)).collect()
    };
    let troubles = |seed| -> Vec<Trouble> { (0..50).map(|number| Schedule::new(seed).trouble(number)).collect() };
    assert_eq!((rounds(7), troubles(7)), (rounds(7), troubles(7)));
    assert_ne!(rounds(7), rounds(8));
    assert_ne!(troubles(7), troubles(8));
    // Nor do two workers do the same.
    assert_ne!(rounds(7)[..50], rounds(7)[50..100]);
    // This must stay so, or a seed that somebody noted means nothing any more.
    assert_eq!(format!("{:?}", Schedule::new(7).trouble(0)), "");
}

#[test]
fn everything_there_is_happens_in_every_storm() {
    let schedule = Schedule::new(1);
    let all: Vec<Round> = (0..40).flat_map(|worker| (0..50).map(move |number| (worker, number))).map(|(w, n)| schedule.round(w, n)).collect();
    let some = |is_so: &dyn Fn(&Round) -> bool| all.iter().any(is_so);
    for (what, is_there) in [
        ("killed keepers", some(&|round| round.kills() && round.fault.as_ref().is_some_and(|fault| fault.aim == Aim::Keeper))),
        ("stopped callers", some(&|round| round.fault.as_ref().is_some_and(|fault| fault.aim == Aim::Caller && !round.kills()))),
        ("clocks", some(&|round| round.clock.is_some())),
        ("three names", some(&|round| matches!(&round.what, What::Run { hold, .. } if hold.names.len() == 3))),
        ("renewals", some(&|round| matches!(round.what, What::Script { renew: Some(_), .. }))),
        ("commands that outlast their lease", some(&|round| matches!(&round.what, What::Run { hold, .. } if hold.ttl.is_some_and(|ttl| ttl < hold.stay)))),
        ("force", some(&|round| round.what == What::Force)),
        ("doctors", some(&|round| round.what == What::Look(Look::Doctor))),
    ] {
        assert!(is_there, "{what}");
    }
}
