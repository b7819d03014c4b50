//! Tests of the engine with a store in memory and a host whose clock moves only during waits.

mod claims;
mod days;

use super::*;
use host::Fake;
use lock::{EndReason, Lifetime, Liveness, Mode, NotHolder, Owner, Phase, Refusal, Release, Sweep, Transition};
use store::{Call, CommitResult, Memory, WriteSet};

/// Returns an engine, and its host with two live processes, 1 and 2.
fn engine() -> (Engine, Fake) {
    let host = Fake::new(1);
    host.set_liveness(2, Liveness::Alive);
    let shared: Arc<dyn Host> = Arc::new(host.clone());
    (Engine::new(Box::new(Memory::new(shared.clone())), shared), host)
}

pub(super) fn request(engine: &Engine, pid: i32, lifetime: Lifetime) -> AcquireRequest {
    let process = ProcessId { pid, start: 1 };
    let domain = engine.host().domain().unwrap();
    let owner = Owner {
        domain,
        processes: vec![process],
        supervisor: None,
        outlives_lock: false,
        session: None,
        host: "h".into(),
        uid: 0,
        command: Vec::new(),
        label: None,
    };
    let mut request = AcquireRequest::for_itself(engine.host().new_handle().unwrap(), owner, process);
    request.entry.lifetime = lifetime;
    request
}

pub(super) fn take(engine: &Engine, request: &AcquireRequest, policy: WaitPolicy) -> AcquireResult {
    engine.acquire(b"x", request, &policy, None, &mut |_| None).unwrap()
}

pub(super) fn within(seconds: u64) -> WaitPolicy {
    WaitPolicy { limit: Some(Duration::from_secs(seconds)), backoff: None }
}

#[test]
fn a_timeout_counts_on_the_boot_clock_and_leaves_no_waiter() {
    let (engine, host) = engine();
    take(&engine, &request(&engine, 1, Lifetime::WhileOwnerLives), WaitPolicy::NONE);
    let before = host.boottime();
    host.set_wall(Duration::from_secs(1));
    let response = take(&engine, &request(&engine, 2, Lifetime::WhileOwnerLives), within(30));
    assert!(matches!(response, AcquireResult::Refused(_, Refusal::Busy(_))), "{response:?}");
    assert_eq!(host.boottime() - before, Duration::from_secs(30));
    assert!(engine.inspect(b"x").unwrap().record.waiters.is_empty());
}

#[test]
fn every_grant_that_ends_is_logged_once_even_beyond_the_limit_of_a_record() {
    let (engine, host) = engine();
    let take = |pid: i32| {
        host.set_liveness(pid, Liveness::Alive);
        let mut reader = request(&engine, pid, Lifetime::WhileOwnerLives);
        reader.entry.mode = Mode::Shared;
        assert!(matches!(take(&engine, &reader, WaitPolicy::NONE), AcquireResult::Granted(..)));
    };
    (10..20).for_each(take);
    (10..20).for_each(|pid| host.set_liveness(pid, Liveness::Dead));
    let past = || {
        let mut past = Vec::new();
        assert!(engine.each_past(&mut |grant| past.push((grant.holder.pid, grant.how))).unwrap());
        past
    };
    assert_eq!(past(), []);
    take(20);
    let died: Vec<_> = (10..20).map(|pid| (Some(pid), Some(EndReason::Died))).collect();
    assert_eq!(past(), died);
    assert_eq!(engine.inspect(b"x").unwrap().record.ended_grants.len(), 4);
    host.set_liveness(20, Liveness::Dead);
    engine.apply(b"x", &Sweep).unwrap();
    assert_eq!(past(), [died, vec![(Some(20), Some(EndReason::Died))]].concat());
}

#[test]
fn an_ending_is_not_logged_again_when_its_holder_acquires_the_lock_once_more() {
    let (engine, _) = engine();
    let shared = |pid| {
        let mut reader = request(&engine, pid, Lifetime::WhileOwnerLives);
        reader.entry.mode = Mode::Shared;
        reader
    };
    let (other, again) = (shared(1), shared(2));
    // A caller of several locks releases those that it has when it must wait, and acquires them later by the same
    // handle.
    for request in [&other, &again, &shared(1)] {
        take(&engine, request, WaitPolicy::NONE);
    }
    release(&engine, &again).unwrap();
    for request in [&again, &shared(1), &shared(1)] {
        take(&engine, request, WaitPolicy::NONE);
    }
    let logged = || {
        let mut tokens = Vec::new();
        engine.each_past(&mut |grant| tokens.push(grant.token.unwrap())).unwrap();
        tokens
    };
    let first = logged();
    release(&engine, &again).unwrap();
    let both = logged();
    assert!(first.len() == 1 && both.len() == 2 && both[0] == first[0] && both[1] > both[0], "{first:?} {both:?}");
}

#[test]
fn a_caller_that_counts_as_dead_can_commit_nothing() {
    let (engine, host) = engine();
    let several = AcquireRequest {
        phase: Phase::Provisional,
        outlives_process: true,
        ..request(&engine, 2, Lifetime::WhileOwnerLives)
    };
    assert!(matches!(take(&engine, &several, WaitPolicy::NONE), AcquireResult::Granted(..)));
    let key = lock::CommitRecord::key(&several.handle.proof());
    let mut decision = lock::CommitRecord { committed: false, names: vec![b"x".to_vec()] };
    let begun = engine
        .store()
        .commit(Call::default(), &WriteSet::of(&key, None, Some(&lock::encode_auxiliary(&key, &decision))))
        .unwrap();
    let CommitResult::Done(version) = begun else { panic!() };
    assert!(matches!(
        take(&engine, &request(&engine, 1, Lifetime::WhileOwnerLives), WaitPolicy::NONE),
        AcquireResult::Refused(_, Refusal::Busy(_))
    ));
    host.set_liveness(2, Liveness::Dead);
    assert!(!engine.inspect(b"x").unwrap().is_held());
    assert!(engine.store().read(Call::default(), &key).unwrap().is_some(), "looking changes nothing");
    let response = take(&engine, &request(&engine, 1, Lifetime::WhileOwnerLives), WaitPolicy::NONE);
    assert!(matches!(response, AcquireResult::Granted(..)), "{response:?}");
    decision.committed = true;
    let late = engine
        .store()
        .commit(Call::default(), &WriteSet::of(&key, Some(&version), Some(&lock::encode_auxiliary(&key, &decision))))
        .unwrap();
    assert!(!late.is_done());
}

/// A commit record that counted as missing would end a valid grant.
#[test]
fn a_commit_record_of_another_version_ends_no_grant() {
    let (engine, host) = engine();
    let several = AcquireRequest {
        phase: Phase::Provisional,
        outlives_process: true,
        ..request(&engine, 2, Lifetime::WhileOwnerLives)
    };
    assert!(matches!(take(&engine, &several, WaitPolicy::NONE), AcquireResult::Granted(..)));
    let key = lock::CommitRecord::key(&several.handle.proof());
    let decision = lock::CommitRecord { committed: true, names: vec![b"x".to_vec()] };
    let bytes = String::from_utf8(lock::encode_auxiliary(&key, &decision)).unwrap().replacen(":3,", ":4,", 1);
    assert!(
        engine.store().commit(Call::default(), &WriteSet::of(&key, None, Some(bytes.as_bytes()))).unwrap().is_done()
    );
    host.set_liveness(2, Liveness::Dead);
    let next = request(&engine, 1, Lifetime::WhileOwnerLives);
    let error = engine.acquire(b"x", &next, &WaitPolicy::NONE, None, &mut |_| None).unwrap_err();
    assert!(error.is_of_other_version() && error.version().is_none(), "{error}");
    assert!(engine.record(b"x").unwrap().holder(&several.handle.proof()).is_some());
}

#[test]
fn a_waiter_that_confirmed_and_ended_after_the_read_does_not_count_as_dead() {
    let (engine, host) = engine();
    host.set_liveness(3, Liveness::Alive);
    let process = ProcessId { pid: 3, start: 1 };
    let mut waits = AcquireRequest {
        phase: Phase::Provisional,
        outlives_process: true,
        ..request(&engine, 2, Lifetime::WhileOwnerLives)
    };
    waits.entry.process = process;
    assert!(matches!(take(&engine, &waits, WaitPolicy::NONE), AcquireResult::Granted(..)));
    let (_, as_it_was) = engine.read(b"x").unwrap();
    engine.confirm(b"x", &waits).unwrap().unwrap();
    host.set_liveness(3, Liveness::Dead);
    let stranger = engine.by_proof(engine.host().new_handle().unwrap().proof()).unwrap();
    let step = engine.decide(&as_it_was, &Release(stranger), None).unwrap();
    assert!(matches!(step, Transition::Done(Err(ref other)) if !other.holders.is_empty()), "{step:?}");
}

#[test]
fn a_confirmation_does_not_acquire_a_released_lock_again() {
    let (engine, _) = engine();
    let told = AcquireRequest {
        phase: Phase::Provisional,
        outlives_process: true,
        ..request(&engine, 2, Lifetime::WhileOwnerLives)
    };
    assert!(matches!(take(&engine, &told, WaitPolicy::NONE), AcquireResult::Granted(..)));
    let by_handle = engine.by_proof(told.handle.proof()).unwrap();
    assert!(matches!(engine.apply(b"x", &Release(by_handle)), Ok(Ok(_))));
    assert!(engine.confirm(b"x", &told).unwrap().is_none());
    assert_eq!(engine.inspect(b"x").unwrap().record, Record::free(b"x"));
}

#[test]
fn a_holder_that_released_and_ended_after_the_read_is_not_shown_as_dead() {
    let (engine, host) = engine();
    let holds = request(&engine, 2, Lifetime::WhileOwnerLives);
    assert!(matches!(take(&engine, &holds, WaitPolicy::NONE), AcquireResult::Granted(..)));
    let (_, as_it_was) = engine.read(b"x").unwrap();
    let by_handle = engine.by_proof(holds.handle.proof()).unwrap();
    assert!(matches!(engine.apply(b"x", &Release(by_handle)), Ok(Ok(_))));
    host.set_liveness(2, Liveness::Dead);
    assert_eq!(engine.inspect_record(as_it_was).unwrap().record, Record::free(b"x"));
}

fn release(engine: &Engine, request: &AcquireRequest) -> Released {
    engine.release(b"x", request.handle.proof()).unwrap()
}

#[test]
fn a_loss_that_left_no_trace_is_not_a_release() {
    let (engine, host) = engine();
    let late = request(&engine, 1, Lifetime::Ttl(5000));
    take(&engine, &late, WaitPolicy::NONE);
    host.pass(Duration::from_secs(6));
    // The record keeps the ending for an owner that lives.
    host.set_liveness(1, Liveness::Dead);
    let next = request(&engine, 2, Lifetime::WhileOwnerLives);
    assert!(matches!(take(&engine, &next, WaitPolicy::NONE), AcquireResult::Granted(..)));
    assert!(release(&engine, &next).is_ok());
    // The record has no trace of the lost grant.
    let released = release(&engine, &late);
    assert!(matches!(released, Err(NotHolder { ending: None, stale: None, .. })), "{released:?}");
}
