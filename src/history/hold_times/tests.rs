use super::*;
use crate::history::Who;

fn past(mode: Mode, seconds: u64, how: EndReason) -> Past {
    Past {
        name: b"x".to_vec(),
        token: Some(1),
        mode,
        slot: 0,
        holder: Who { pid: Some(1), host: "a".into(), uid: 0, command: Vec::new(), label: None },
        from: 1_000_000,
        to: Some(1_000_000 + 1000 * seconds),
        waited: 0,
        how: Some(how),
        broken_by: None,
        ended_by: None,
        run: None,
    }
}

fn times(mode: Mode, seconds: &[u64]) -> HoldTimes {
    let mut times = HoldTimes::default();
    seconds.iter().for_each(|seconds| times.add(&past(mode, *seconds, EndReason::Released)));
    times
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The median and the 90th percentile of exclusive hold times of these seconds.
fn usual(of: &[u64]) -> Option<(u64, u64)> {
    let usual = times(Mode::Exclusive, of).usual(Mode::Exclusive)?;
    Some((usual.median().as_secs(), usual.percentile90().as_secs()))
}

/// The seconds until the turn of a caller with the last mode, behind waiters with the others.
fn turn(times: &HoldTimes, holders: &[(Mode, u64)], queue: &[Mode], slots: u32) -> Option<u64> {
    let holders = holders.iter().map(|(mode, held)| (*mode, seconds(*held))).collect();
    let (mode, ahead) = queue.split_last().unwrap();
    let place = PlaceInQueue { holders, ahead: ahead.to_vec(), mode: *mode, slots };
    times.expected(&place).map(|expected| expected.turn.as_secs())
}

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;
const J: Mode = Mode::Slot;

#[test]
fn few_grants_say_nothing() {
    assert_eq!(usual(&[]), None);
    assert_eq!(usual(&[5, 5]), None);
    assert_eq!(usual(&[3, 1, 2]), Some((2, 3)));
    assert_eq!(usual(&[1, 2, 3, 4]), Some((2, 4)));
    assert_eq!(usual(&[10, 9, 8, 7, 6, 5, 4, 3, 2, 1]), Some((5, 9)));
}

#[test]
fn only_released_grants_of_the_mode_count() {
    let mut found = times(X, &[1, 1]);
    for how in [EndReason::Died, EndReason::Expired, EndReason::Broken] {
        found.add(&past(X, 9, how));
    }
    found.add(&past(S, 9, EndReason::Released));
    found.add(&Past { to: None, ..past(X, 9, EndReason::Released) });
    assert_eq!((found.usual(X), found.usual(S), found.any_usual()), (None, None, None));
    found.add(&past(X, 4, EndReason::Released));
    assert_eq!(found.usual(X).map(|usual| usual.sorted), Some(vec![1000, 1000, 4000]));
    assert_eq!(found.any_usual(), found.usual(X));
}

#[test]
fn only_the_most_recent_grants_count() {
    let found = times(X, &[vec![1000; 5], vec![1; MOST_SAMPLES]].concat()).usual(X).unwrap();
    assert_eq!((found.samples(), found.percentile90()), (MOST_SAMPLES, seconds(1)));
}

#[test]
fn the_rest_of_a_holder_depends_on_how_long_it_has_held() {
    let usual = times(X, &[10, 20, 30, 40, 50, 60, 70, 80, 90, 1000]).usual(X).unwrap();
    let rest = |held| usual.rest(seconds(held)).as_secs();
    assert_eq!([rest(0), rest(9), rest(10), rest(55), rest(90)], [50, 41, 50, 25, 910]);
    // Longer than usual: as long again.
    assert_eq!([rest(91), rest(2000)], [91, 2000]);
    let equal = times(X, &[5, 5, 5]).usual(X).unwrap();
    assert_eq!([4, 5, 6].map(|held| equal.rest(seconds(held)).as_secs()), [1, 0, 6]);
}

#[test]
fn exclusive_waiters_come_one_after_the_other() {
    let times = times(X, &[10, 10, 10]);
    assert_eq!(turn(&times, &[], &[X], 1), None);
    assert_eq!(turn(&times, &[(X, 4)], &[X], 1), Some(6));
    assert_eq!(turn(&times, &[(X, 4)], &[X, X, X], 1), Some(26));
    assert_eq!(turn(&times, &[], &[X, X], 1), Some(10));
    // Nothing is known about waiters that share.
    assert_eq!(turn(&times, &[(X, 4)], &[S, X], 1), None);
    assert_eq!(turn(&times, &[(S, 4)], &[X], 1), None);
}

#[test]
fn callers_that_share_come_together() {
    let mut both = times(X, &[10, 10, 10]);
    [3, 3, 3].iter().for_each(|seconds| both.add(&past(S, *seconds, EndReason::Released)));
    assert_eq!(turn(&both, &[(S, 1), (S, 2)], &[S], 1), Some(0));
    assert_eq!(turn(&both, &[(S, 1), (S, 2)], &[X], 1), Some(2));
    assert_eq!(turn(&both, &[(X, 1)], &[S, S, S], 1), Some(9));
    assert_eq!(turn(&both, &[(X, 1)], &[S, S, X], 1), Some(12));
    // A caller that shares does not overtake an exclusive waiter.
    assert_eq!(turn(&both, &[(S, 1)], &[X, S], 1), Some(12));
}

#[test]
fn slots_become_free_one_by_one() {
    let times = times(J, &[10, 10, 10]);
    assert_eq!(turn(&times, &[(J, 1), (J, 4)], &[J], 3), Some(0));
    assert_eq!(turn(&times, &[(J, 1), (J, 4)], &[J], 2), Some(6));
    assert_eq!(turn(&times, &[(J, 1), (J, 4)], &[J, J], 2), Some(9));
    assert_eq!(turn(&times, &[(J, 1), (J, 4)], &[J, J, J], 2), Some(16));
    assert_eq!(turn(&times, &[(J, 1), (J, 4)], &[X], 2), Some(9));
}

#[test]
fn a_long_queue_is_played_through_quickly() {
    let times = times(X, &[1, 1, 1]);
    let queue = vec![X; 10_000];
    assert_eq!(turn(&times, &[(X, 0)], &queue, 1), Some(10_000));
}
