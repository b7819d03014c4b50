//! The random choices for a round of a storm, and their frequencies.

use fastrand::Rng;

use crate::history::NAMES_OF_EACH;
use crate::schedule::{Aim, End, Fault, Hold, INFINITE, Look, NAMES, Op, PAIRS, Share, Shot, Wait, What};

pub(crate) fn what(rng: &mut Rng) -> What {
    let stay = |rng: &mut Rng| rng.u32(0..25);
    let share = |rng: &mut Rng| if rng.u8(..3) == 0 { Share::Shared } else { Share::Exclusive };
    match rng.u8(..100) {
        0..14 => {
            let hold = hold(rng);
            let no_fork = hold.ttl.is_none() && rng.u8(..5) == 0;
            let max_hold = (!no_fork && rng.u8(..10) == 0).then(|| rng.u32(30..200));
            let latest = hold.names.len() == 1 && rng.u8(..3) == 0;
            What::Run { hold, no_fork, max_hold, latest }
        }
        14..22 => What::Op(op(rng), rng.usize(..NAMES_OF_EACH)),
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
        90..94 => What::Op(op(rng), rng.usize(..NAMES_OF_EACH)),
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

fn op(rng: &mut Rng) -> Op {
    match rng.u8(..20) {
        0..3 => Op::Get,
        3..5 => Op::Put,
        5 => Op::PutIfAbsent,
        6 => Op::Delete,
        7..10 => Op::Claim,
        10..12 => Op::Unclaim,
        12..14 => Op::LookUp,
        14..19 => Op::Lock { stay: rng.u32(0..25) },
        _ => Op::Break,
    }
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

pub(crate) fn wait(rng: &mut Rng) -> Wait {
    Wait {
        timeout: [0, 100, 500, 2000, 5000, INFINITE][rng.usize(..6)],
        fail_on_stale: rng.u8(..12) == 0,
        label: rng.u8(..8) == 0,
        other_code: rng.u8(..12) == 0,
        backoff: rng.u8(..16) == 0,
    }
}

pub(crate) fn fault(rng: &mut Rng) -> Fault {
    let aim = match rng.u8(..9) {
        0 | 1 => Aim::Caller,
        2 => Aim::Waiter,
        3 | 4 => Aim::Command,
        5 => Aim::Keeper,
        6 => Aim::Shell,
        _ => Aim::Any(rng.usize(..16)),
    };
    // Most rounds are short, or wait.
    let after = match rng.u8(..10) {
        0..5 => rng.u32(0..12),
        5..8 => rng.u32(0..60),
        _ => rng.u32(0..800),
    };
    let what = match rng.u8(..9) {
        0 => Shot::Stop(rng.u32(300..1500)),
        1 | 2 => Shot::Stop(rng.u32(10..200)),
        _ => Shot::Kill,
    };
    Fault { after, aim, what }
}

#[cfg(test)]
mod tests {
    use crate::schedule::{Aim, Hold, Look, Round, Schedule, Trouble, What};

    fn rounds(seed: u64) -> Vec<Round> {
        let schedule = Schedule::new(seed);
        (0..2000).map(|number| schedule.round(number / 50, number % 50)).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_storm_and_another_one_another() {
        let troubles = |seed| -> Vec<Trouble> { (0..50).map(|number| Schedule::new(seed).trouble(number)).collect() };
        assert_eq!((rounds(7), troubles(7)), (rounds(7), troubles(7)));
        assert_ne!(rounds(7), rounds(8));
        assert_ne!(troubles(7), troubles(8));
        // Two workers do not do the same either.
        assert_ne!(rounds(7)[..50], rounds(7)[50..100]);
        // This must not change, because a seed in a report would lose its meaning.
        assert_eq!(
            format!("{:?}", Schedule::new(7).trouble(0)),
            "Trouble { quiet: 2.719s, lasts: 270ms, kills: true, server: 59 }"
        );
    }

    #[test]
    fn everything_there_is_happens_in_every_storm() {
        let all = rounds(1);
        let some = |is_so: &dyn Fn(&Round) -> bool| all.iter().any(is_so);
        let aims = |aim: Aim, kills: bool| {
            some(&|round| round.kills() == kills && round.fault.as_ref().is_some_and(|fault| fault.aim == aim))
        };
        let outlasts = |hold: &Hold| hold.ttl.is_some_and(|ttl| ttl < hold.stay);
        for (what, is_there) in [
            ("killed keepers", aims(Aim::Keeper, true)),
            ("stopped callers", aims(Aim::Caller, false)),
            ("clocks", some(&|round| round.clock.is_some())),
            ("latest", some(&|round| matches!(round.what, What::Run { latest: true, .. }))),
            ("three names", some(&|round| matches!(&round.what, What::Run { hold, .. } if hold.names.len() == 3))),
            ("renewals", some(&|round| matches!(round.what, What::Script { renew: Some(_), .. }))),
            ("outlasted leases", some(&|round| matches!(&round.what, What::Run { hold, .. } if outlasts(hold)))),
            ("force", some(&|round| round.what == What::Force)),
            ("doctors", some(&|round| round.what == What::Look(Look::Doctor))),
        ] {
            assert!(is_there, "{what}");
        }
    }
}
