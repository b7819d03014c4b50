//! The loop on a store in memory and a host whose clock only moves when somebody waits.

use super::*;
use crate::host::Fake;

use crate::lock::{Ended, Ending, Fate, Party, Share, Tenure};
use crate::store::Memory;

/// Two processes of one host, 1 and 2, both alive.
fn engine() -> (Engine, Fake) {
    let host = Fake::new(1);
    host.set_fate(2, Fate::Alive);
    let shared: Arc<dyn Host> = Arc::new(host.clone());
    (Engine::new(Box::new(Memory::new(shared.clone())), shared), host)
}

pub(super) fn applicant(engine: &Engine, pid: i32, tenure: Tenure) -> Applicant {
    let process = Process { pid, start: 1 };
    let home = engine.host().home().unwrap();
    let party = Party {
        home,
        owners: vec![process],
        supervisor: None,
        host: "h".into(),
        uid: 0,
        command: Vec::new(),
        label: None,
    };
    Applicant { tenure, ..Applicant::for_itself(engine.new_handle().unwrap(), party, process) }
}

pub(super) fn take(engine: &Engine, applicant: &Applicant, patience: Patience) -> Outcome {
    match engine.take(b"x", applicant, &patience, None, &mut |_| None).unwrap() {
        Taken::Answer(outcome) => outcome,
        Taken::Interrupted => panic!("nobody interrupted"),
    }
}

pub(super) fn within(seconds: u64) -> Patience {
    Patience { limit: Some(Duration::from_secs(seconds)), attempts: None, backoff: None }
}

#[test]
fn patience_ends_on_the_boot_clock_whatever_the_wall_clock_says_and_leaves_no_waiter() {
    let (engine, host) = engine();
    take(&engine, &applicant(&engine, 1, Tenure::OwnerLives), Patience::NONE);
    let before = host.boottime();
    host.set_wall(Duration::from_secs(1));
    let outcome = take(&engine, &applicant(&engine, 2, Tenure::OwnerLives), within(30));
    assert!(matches!(outcome, Outcome::Busy(_)), "{outcome:?}");
    assert_eq!(host.boottime() - before, Duration::from_secs(30));
    assert!(engine.sight(b"x").unwrap().record.waiters.is_empty());
}

#[test]
fn a_wait_ends_with_the_holders_lease_and_does_not_eat_ones_own() {
    let (engine, host) = engine();
    take(&engine, &applicant(&engine, 1, Tenure::AtMost(5000)), Patience::NONE);
    let before = host.boottime();
    let outcome = take(&engine, &applicant(&engine, 2, Tenure::AtMost(7000)), within(30));
    let waited = host.boottime() - before;
    assert!(waited >= Duration::from_secs(5) && waited < Duration::from_millis(5100), "{waited:?}");
    let Outcome::Granted(grant, Some(Ending { how: Ended::Expired, .. })) = outcome else { panic!("{outcome:?}") };
    let Tenure::Until(lease) = grant.tenure else { panic!("{grant:?}") };
    assert_eq!(engine.store().remaining(&lease).unwrap(), Duration::from_secs(7));
}

#[test]
fn a_lease_is_not_moved_by_the_wall_clock_but_ends_with_the_boot() {
    let (engine, host) = engine();
    let holder = applicant(&engine, 1, Tenure::AtMost(60_000));
    take(&engine, &holder, Patience::NONE);
    for wall in [1, 4_000_000_000] {
        host.set_wall(Duration::from_secs(wall));
        let outcome = take(&engine, &applicant(&engine, 2, Tenure::OwnerLives), Patience::NONE);
        assert!(matches!(outcome, Outcome::Busy(_)), "{outcome:?}");
    }
    host.reboot("boot-2");
    let outcome = take(&engine, &applicant(&engine, 2, Tenure::OwnerLives), Patience::NONE);
    assert!(matches!(outcome, Outcome::Granted(..)), "{outcome:?}");
}

#[test]
fn attempts_are_looks() {
    let (engine, host) = engine();
    take(&engine, &applicant(&engine, 1, Tenure::OwnerLives), Patience::NONE);
    let backoff = Some(Backoff { min: Duration::from_secs(1), max: Duration::from_secs(2) });
    let before = host.boottime();
    let patience = Patience { limit: None, attempts: Some(3), backoff };
    let outcome = take(&engine, &applicant(&engine, 2, Tenure::OwnerLives), patience);
    assert!(matches!(outcome, Outcome::Busy(_)), "{outcome:?}");
    assert_eq!(host.boottime() - before, Duration::from_secs(3));
}

#[test]
fn tokens_grow_also_after_the_record_was_removed() {
    let (engine, _) = engine();
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let holder = applicant(&engine, 1, Tenure::OwnerLives);
        let Outcome::Granted(grant, None) = take(&engine, &holder, Patience::NONE) else { panic!() };
        tokens.push(grant.token.unwrap());
        let claimant = engine.claimant(Some(holder.handle.proof()), Vec::new()).unwrap();
        assert!(matches!(engine.settle(b"x", &Ask::Release(claimant)).unwrap(), Outcome::Released(_)));
    }
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
    assert_eq!(engine.sight(b"x").unwrap().record, Record::free(b"x"));
}

#[test]
fn every_grant_that_ends_is_written_down_once_also_more_than_a_record_remembers() {
    let (engine, host) = engine();
    let take = |pid: i32| {
        host.set_fate(pid, Fate::Alive);
        let reader = Applicant { share: Share::Shared, ..applicant(&engine, pid, Tenure::OwnerLives) };
        assert!(matches!(take(&engine, &reader, Patience::NONE), Outcome::Granted(..)));
    };
    (10..20).for_each(take);
    (10..20).for_each(|pid| host.set_fate(pid, Fate::Dead));
    let past = || {
        let mut past = Vec::new();
        assert!(engine.each_past(&Limits::default(), &mut |grant| past.push((grant.holder.pid, grant.how))).unwrap());
        past
    };
    assert_eq!(past(), []);
    take(20);
    let died: Vec<_> = (10..20).map(|pid| (Some(pid), Some(Ended::Died))).collect();
    assert_eq!(past(), died);
    assert_eq!(engine.sight(b"x").unwrap().record.endings.len(), 4);
    host.set_fate(20, Fate::Dead);
    engine.settle(b"x", &Ask::Collect).unwrap();
    assert_eq!(past(), [died, vec![(Some(20), Some(Ended::Died))]].concat());
}

#[test]
fn who_is_taken_for_dead_can_decide_nothing_any_more() {
    let (engine, host) = engine();
    let several = Applicant { tentative: true, outlived: true, ..applicant(&engine, 2, Tenure::OwnerLives) };
    assert!(matches!(take(&engine, &several, Patience::NONE), Outcome::Granted(..)));
    let key = lock::Decision::key(&several.handle.proof());
    let mut decision = lock::Decision { made: false, names: vec![b"x".to_vec()] };
    let begun = engine.store().swap(&key, None, Some(&lock::encode_decision(&key, &decision))).unwrap();
    let Swap::Stored(version) = begun else { panic!() };
    assert!(matches!(take(&engine, &applicant(&engine, 1, Tenure::OwnerLives), Patience::NONE), Outcome::Busy(_)));
    host.set_fate(2, Fate::Dead);
    assert!(!engine.sight(b"x").unwrap().is_held());
    assert!(engine.store().read(&key).unwrap().is_some(), "looking changes nothing");
    let outcome = take(&engine, &applicant(&engine, 1, Tenure::OwnerLives), Patience::NONE);
    assert!(matches!(outcome, Outcome::Granted(..)), "{outcome:?}");
    decision.made = true;
    let late = engine.store().swap(&key, Some(&version), Some(&lock::encode_decision(&key, &decision))).unwrap();
    assert_eq!(late, Swap::Conflict);
}

#[test]
fn who_confirmed_and_ended_since_the_record_was_read_is_not_taken_for_dead() {
    let (engine, host) = engine();
    host.set_fate(3, Fate::Alive);
    let process = Process { pid: 3, start: 1 };
    let waits = Applicant { tentative: true, outlived: true, process, ..applicant(&engine, 2, Tenure::OwnerLives) };
    assert!(matches!(take(&engine, &waits, Patience::NONE), Outcome::Granted(..)));
    let (_, as_it_was) = engine.read(b"x").unwrap();
    engine.confirm(b"x", &waits).unwrap().unwrap();
    host.set_fate(3, Fate::Dead);
    let stranger = engine.claimant(Some(engine.new_handle().unwrap().proof()), Vec::new()).unwrap();
    let step = engine.decide(&as_it_was, &Ask::Release(stranger), None).unwrap();
    assert!(matches!(step, Step::Done(Outcome::NotOwner(..))), "{step:?}");
}

#[test]
fn what_was_told_and_given_back_is_not_taken_anew_by_confirming_it() {
    let (engine, _) = engine();
    let told = Applicant { tentative: true, outlived: true, ..applicant(&engine, 2, Tenure::OwnerLives) };
    assert!(matches!(take(&engine, &told, Patience::NONE), Outcome::Granted(..)));
    let by_handle = engine.claimant(Some(told.handle.proof()), Vec::new()).unwrap();
    assert!(matches!(engine.settle(b"x", &Ask::Release(by_handle)).unwrap(), Outcome::Released(_)));
    assert!(engine.confirm(b"x", &told).unwrap().is_none());
    assert_eq!(engine.sight(b"x").unwrap().record, Record::free(b"x"));
}

#[test]
fn who_gave_back_and_ended_since_the_record_was_read_is_not_shown_as_dead() {
    let (engine, host) = engine();
    let holds = applicant(&engine, 2, Tenure::OwnerLives);
    assert!(matches!(take(&engine, &holds, Patience::NONE), Outcome::Granted(..)));
    let (_, as_it_was) = engine.read(b"x").unwrap();
    let by_handle = engine.claimant(Some(holds.handle.proof()), Vec::new()).unwrap();
    assert!(matches!(engine.settle(b"x", &Ask::Release(by_handle)).unwrap(), Outcome::Released(_)));
    host.set_fate(2, Fate::Dead);
    assert_eq!(engine.see(as_it_was).unwrap().record, Record::free(b"x"));
}
