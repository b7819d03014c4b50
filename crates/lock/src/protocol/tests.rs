//! Tests of the rules, without any clock, process or file.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::*;
use crate::queue::INLINE_WAITERS;
use crate::{
    Acquire, AcquireStep, AskToEnd, Awaited, Break, Cancel, Credentials, DescriptorLock, EndRequest, EndedGrant,
    Handle, Lease, LeaseClock, LeaseStart, Mode, NotHolder, OwnerDied, Pages, Phase, PidDomain, ProcessId, QueuePlace,
    QueuePosition, Refusal, Release, RenewGrant, Sweep, Waiter, decode, encode,
};

fn domain() -> PidDomain {
    PidDomain { machine: "m".into(), boot: "b".into(), pids: "p".into(), net: 1 }
}

fn process(pid: i32) -> ProcessId {
    ProcessId { pid, start: 1 }
}

fn proof(pid: i32) -> HandleHash {
    Handle::new([pid as u8; 16]).proof()
}

fn owner(owners: &[i32]) -> Owner {
    let owners = owners.iter().map(|pid| process(*pid)).collect();
    Owner {
        domain: domain(),
        processes: owners,
        supervisor: None,
        outlives_lock: false,
        session: None,
        host: "h".into(),
        uid: 0,
        command: b"job".to_vec(),
        label: None,
    }
}

fn lease(ends: u64) -> Lease {
    Lease { clock: LeaseClock::FileSystem(LeaseStart::default()), ends, wall: ends }
}

fn wants(pid: i32, share: Mode) -> Acquire {
    wants_of(pid, share, 2)
}

fn wants_of(pid: i32, share: Mode, slots: u32) -> Acquire {
    let slots = NonZeroU32::new(slots).filter(|_| share == Mode::Slot);
    let entry = Waiter { mode: share, slots, ..Waiter::new(proof(pid), owner(&[pid]), process(pid)) };
    Acquire { queue: true, ..Acquire::new(entry) }
}

/// Pid of the process that has committed its grants.
const DECIDED: i32 = 50;

/// Pids of a process that is stopped, and of processes that are frozen.
const STOPPED: i32 = 60;
const FROZEN: [i32; 2] = [61, 62];

/// Pid of a process of another host.
const UNSEEN: i32 = 63;

thread_local! {
    /// True if the stopped process goes on.
    static GOES_ON: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Decides about a request while these pids are dead, all others live, and leases that end at 0 are over.
fn settle<R: Request>(record: &Record, ask: &R, dead: &[i32]) -> Transition<R::Response> {
    let mut facts = Facts::at(7);
    loop {
        match decide(record, ask, &facts) {
            Ok(step) => return step,
            Err(Query::Liveness(domain, process)) => {
                let liveness = match process.pid {
                    pid if dead.contains(&pid) => Liveness::Dead,
                    STOPPED if !GOES_ON.get() => Liveness::Stopped,
                    UNSEEN => Liveness::Unknown,
                    _ => Liveness::Alive,
                };
                facts.insert_liveness(domain, process, liveness);
            }
            Err(Query::Outlasts(lease)) => facts.outlasts.push((lease, true)),
            Err(Query::Frozen(domain, process)) => {
                let is_frozen = FROZEN.contains(&process.pid);
                facts.frozen.push((domain, process, is_frozen));
            }
            Err(Query::Descriptor(domain, lock, by)) => {
                let liveness = match lock.place.as_str() {
                    "closed" => Liveness::Dead,
                    "left" if by.is_some() => Liveness::Dead,
                    "unseen" => Liveness::Unknown,
                    _ => Liveness::Alive,
                };
                facts.descriptors.push((domain, lock, by, liveness));
            }
            Err(Query::NewLease(span)) => facts.new_lease.push((span, lease(span))),
            Err(Query::Page(page)) => _ = facts.pages.insert(page, Vec::new()),
            Err(Query::Committed(who)) => facts.committed.push((who, who == proof(DECIDED))),
            Err(Query::LeaseExpired(lease)) => {
                let over = lease.ends == 0;
                facts.insert_expired(lease, over);
            }
        }
    }
}

fn response_of<R>(step: Transition<R>) -> R {
    match step {
        Transition::Done(response) | Transition::Write { response, .. } => response,
    }
}

/// Applies a request, with the version number as token, and returns the response and the waiters to wake.
fn apply<R: Request>(record: &mut Record, version: u64, ask: R, dead: &[i32]) -> (R::Response, Vec<HandleHash>) {
    match settle(record, &ask, dead) {
        Transition::Done(response) => (response, Vec::new()),
        Transition::Write { record: next, response, wake, .. } => {
            *record = decode(&encode(&next), version).unwrap();
            (response, wake)
        }
    }
}

fn take(record: &mut Record, version: u64, pid: i32, share: Mode) -> AcquireStep {
    apply(record, version, wants(pid, share), &[]).0
}

fn renewal(credentials: Credentials, lifetime: Lifetime) -> RenewGrant {
    RenewGrant { credentials, lifetime, begins: false }
}

fn handle_of(pid: i32) -> Credentials {
    Credentials {
        proof: Some(proof(pid)),
        owners: Vec::new(),
        claim: None,
        space: domain().into(),
        descriptor: None,
        orphan: None,
        supervises: false,
        repeated: false,
    }
}

fn by_owner(pid: i32) -> Credentials {
    Credentials { proof: None, owners: vec![process(pid)], ..handle_of(pid) }
}

fn holders(record: &Record) -> Vec<i32> {
    record.holders.iter().map(|grant| grant.owner.processes[0].pid).collect()
}

/// Returns a record that process 1 holds and that processes 2, 3, ... wait for.
fn queue(shares: &[Mode]) -> Record {
    let mut record = Record::free(b"x");
    for (at, share) in shares.iter().enumerate() {
        let pid = at as i32 + 1;
        take(&mut record, pid as u64, pid, *share);
    }
    record
}

#[test]
fn a_free_lock_is_granted_with_the_version_as_its_token() {
    let mut record = Record::free(b"x");
    assert!(matches!(take(&mut record, 17, 1, Mode::Exclusive), AcquireStep::Granted(_, None)));
    assert_eq!((holders(&record), record.holders[0].token), (vec![1], Some(17)));
}

#[test]
fn a_release_grants_to_the_first_in_the_queue_and_wakes_only_it() {
    let mut record = queue(&[Mode::Exclusive; 4]);
    let (response, wake) = apply(&mut record, 9, Release(handle_of(1)), &[]);
    assert!(response.is_ok());
    assert_eq!((holders(&record), wake, record.waiters.len()), (vec![2], vec![proof(2)], 2));
    assert_eq!(record.holders[0].token, Some(9));
}

#[test]
fn the_dead_in_the_queue_are_passed_over() {
    let mut record = queue(&[Mode::Exclusive; 4]);
    apply(&mut record, 9, Release(handle_of(1)), &[2, 3]).0.unwrap();
    assert_eq!((holders(&record), record.waiters.len()), (vec![4], 0));
}

#[test]
fn readers_hold_together_and_never_pass_a_waiting_writer() {
    let mut record = queue(&[Mode::Shared, Mode::Shared, Mode::Exclusive, Mode::Shared]);
    assert_eq!((holders(&record), record.waiters.len()), (vec![1, 2], 2));
    apply(&mut record, 9, Release(handle_of(1)), &[]).0.unwrap();
    assert_eq!(holders(&record), [2]);
    apply(&mut record, 10, Release(handle_of(2)), &[]).0.unwrap();
    assert_eq!(holders(&record), [3]);
    apply(&mut record, 11, Release(handle_of(3)), &[]).0.unwrap();
    assert_eq!(holders(&record), [4]);
}

#[test]
fn slots_are_numbered_from_the_lowest_free_one() {
    let mut record = queue(&[Mode::Slot; 3]);
    let slots = |record: &Record| record.holders.iter().map(|grant| grant.slot).collect::<Vec<_>>();
    assert_eq!((holders(&record), slots(&record)), (vec![1, 2], vec![0, 1]));
    apply(&mut record, 9, Release(handle_of(1)), &[]).0.unwrap();
    assert_eq!((holders(&record), slots(&record)), (vec![2, 3], vec![1, 0]));
}

#[test]
fn another_number_of_slots_counts_when_no_holder_of_the_former_is_left() {
    let mut record = queue(&[Mode::Slot; 2]);
    apply(&mut record, 9, Release(handle_of(2)), &[]).0.unwrap();
    apply(&mut record, 10, wants_of(3, Mode::Slot, 4), &[]);
    // A slot of the former number is free, but the waiter came first.
    apply(&mut record, 11, wants_of(4, Mode::Slot, 2), &[]);
    apply(&mut record, 12, wants_of(5, Mode::Slot, 4), &[]);
    assert_eq!((holders(&record), record.slots, record.waiters.len()), (vec![1], Some(2), 3));
    apply(&mut record, 13, Release(handle_of(1)), &[]).0.unwrap();
    assert_eq!((holders(&record), record.slots, record.waiters.len()), (vec![3], Some(4), 2));
    apply(&mut record, 14, Release(handle_of(3)), &[]).0.unwrap();
    assert_eq!((holders(&record), record.slots, record.waiters.len()), (vec![4], Some(2), 1));
    apply(&mut record, 15, Release(handle_of(4)), &[]).0.unwrap();
    assert_eq!((holders(&record), record.slots), (vec![5], Some(4)));
    apply(&mut record, 16, Release(handle_of(5)), &[]).0.unwrap();
    assert_eq!(record.slots, None);
}

#[test]
fn a_dead_holder_is_evicted_and_the_next_holder_is_told() {
    let mut record = queue(&[Mode::Exclusive]);
    let (response, _) = apply(&mut record, 9, wants(2, Mode::Exclusive), &[1]);
    let AcquireStep::Granted(_, Some(ending)) = response else { panic!("{response:?}") };
    assert_eq!((ending.reason, ending.grant.token), (EndReason::Died, Some(1)));
}

#[test]
fn a_waiter_is_granted_before_a_newcomer_that_finds_the_holder_dead() {
    let mut record = queue(&[Mode::Exclusive; 2]);
    let newcomer = Acquire { queue: false, ..wants(3, Mode::Exclusive) };
    let (response, wake) = apply(&mut record, 9, newcomer, &[1]);
    assert!(matches!(response, AcquireStep::Refused(Refusal::Busy(_))));
    assert_eq!((holders(&record), wake, record.waiters.len()), (vec![2], vec![proof(2)], 0));
}

#[test]
fn unknown_is_not_dead() {
    let record = queue(&[Mode::Exclusive]);
    let mut facts = Facts::at(7);
    facts.insert_liveness(domain(), process(1), Liveness::Unknown);
    let request = Acquire { queue: false, ..wants(2, Mode::Exclusive) };
    let step = decide(&record, &request, &facts);
    assert!(matches!(step, Ok(Transition::Done(AcquireStep::Refused(Refusal::Busy(_))))), "{step:?}");
}

#[test]
fn refuse_stale_changes_nothing() {
    let record = queue(&[Mode::Exclusive]);
    let request = Acquire { refuse_stale: true, ..wants(2, Mode::Exclusive) };
    assert!(matches!(settle(&record, &request, &[1]), Transition::Done(AcquireStep::Refused(Refusal::Stale(_)))));
}

#[test]
fn every_ask_may_be_repeated() {
    let mut record = queue(&[Mode::Exclusive; 2]);
    let before = record.clone();
    assert!(matches!(take(&mut record, 9, 1, Mode::Exclusive), AcquireStep::Granted(..)));
    assert_eq!(record, before);
    apply(&mut record, 9, Release(handle_of(1)), &[]).0.unwrap();
    let again = Credentials { repeated: true, ..handle_of(1) };
    assert!(apply(&mut record, 10, Release(again), &[]).0.is_ok());
    let late = apply(&mut record, 10, Release(handle_of(1)), &[]).0;
    assert!(matches!(&late, Err(NotHolder { holders, ending: Some(_), .. }) if holders.len() == 1), "{late:?}");
    assert_eq!(holders(&record), [2]);
}

#[test]
fn only_the_handle_or_the_owner_releases() {
    let record = queue(&[Mode::Exclusive]);
    for stranger in [handle_of(2), by_owner(2)] {
        assert!(
            matches!(settle(&record, &Release(stranger), &[]), Transition::Done(Err(other)) if !other.holders.is_empty())
        );
    }
    for holder in [handle_of(1), by_owner(1)] {
        assert!(matches!(settle(&record, &Release(holder), &[]), Transition::Write { .. }));
    }
}

#[test]
fn the_ending_of_another_grant_is_not_taken_for_the_callers() {
    let record = queue(&[Mode::Exclusive]);
    let Transition::Done(Err(other)) = settle(&record, &Release(handle_of(2)), &[1]) else { panic!("it is released") };
    let stale = other.stale.map(|ending| (ending.grant.proof, ending.reason));
    assert_eq!((other.holders, other.ending, stale), (Vec::new(), None, Some((proof(1), EndReason::Died))));
}

#[test]
fn the_owner_is_the_first_of_the_chain_that_lives() {
    let mut record = Record::free(b"x");
    let mut request = wants(1, Mode::Exclusive);
    request.entry.owner = owner(&[1, 2]).into();
    apply(&mut record, 1, request, &[]);
    assert!(
        matches!(settle(&record, &Release(by_owner(2)), &[]), Transition::Done(Err(other)) if !other.holders.is_empty())
    );
    assert!(matches!(settle(&record, &Release(by_owner(2)), &[1]), Transition::Write { .. }));
}

#[test]
fn a_wait_for_the_callers_own_lock_is_a_deadlock() {
    let record = queue(&[Mode::Exclusive]);
    let mut request = wants(2, Mode::Exclusive);
    request.entry.enclosing_grants = vec![proof(1)];
    assert!(matches!(settle(&record, &request, &[]), Transition::Done(AcquireStep::Refused(Refusal::Deadlock(_)))));
    let mut request = wants(2, Mode::Exclusive);
    request.entry.blocked_processes = vec![process(1)];
    assert!(matches!(settle(&record, &request, &[]), Transition::Done(AcquireStep::Refused(Refusal::Deadlock(_)))));
}

#[test]
fn a_lease_that_is_over_ends_the_grant_for_all_callers() {
    let mut record = queue(&[Mode::Exclusive]);
    record.holders[0].lifetime = Lifetime::ExpiresAt(lease(0));
    for step in [
        settle(&record, &Release(handle_of(1)), &[]),
        settle(&record, &renewal(by_owner(1), Lifetime::ExpiresAt(lease(9))), &[]),
    ] {
        assert!(
            matches!(&step, Transition::Done(Err(NotHolder { holders, ending: Some(EndedGrant { reason: EndReason::Expired, .. }), .. })) if holders.is_empty()),
            "{step:?}"
        );
    }
    let taken = take(&mut record, 9, 2, Mode::Exclusive);
    assert!(matches!(taken, AcquireStep::Granted(_, Some(ending)) if ending.reason == EndReason::Expired));
    let late = settle(&record, &Release(handle_of(1)), &[]);
    assert!(matches!(late, Transition::Done(Err(NotHolder { holders, ending: Some(_), .. })) if !holders.is_empty()));
}

#[test]
fn a_script_with_a_grant_that_is_over_releases_the_other() {
    let mut record = held_by(1, Lifetime::ExpiresAt(lease(0)));
    let mut other = record.holders[0].clone();
    (other.proof, other.lifetime, other.slot) = (proof(2), Lifetime::WhileOwnerLives, 1);
    (record.holders[0].mode, other.mode) = (Mode::Slot, Mode::Slot);
    record.holders.push(other);
    let (released, _) = apply(&mut record, 9, Release(by_owner(1)), &[]);
    assert_eq!(released.map(|grant| grant.proof), Ok(proof(2)));
}

#[test]
fn a_transition_names_the_leases_that_must_have_ended() {
    let mut record = queue(&[Mode::Shared, Mode::Shared, Mode::Exclusive]);
    (record.holders[0].lifetime, record.holders[1].lifetime) =
        (Lifetime::ExpiresAt(lease(0)), Lifetime::ExpiresAt(lease(5)));
    record.waiters[0].lease = Some(lease(0));
    let step = settle(&record, &wants(4, Mode::Exclusive), &[]);
    assert!(matches!(step, Transition::Write { expired, .. } if expired == [lease(0)]));
    record.holders.remove(0);
    record.waiters[0].lease = Some(lease(6));
    let step = settle(&record, &Release(handle_of(2)), &[]);
    assert!(matches!(step, Transition::Write { expired, .. } if expired.is_empty()));
}

#[test]
fn a_lease_begins_with_the_grant_and_anew_when_the_waiter_confirms() {
    let mut record = queue(&[Mode::Exclusive]);
    let mut request = wants(2, Mode::Exclusive);
    request.entry.lifetime = Lifetime::Ttl(1000);
    request.entry.needs_confirmation = true;
    apply(&mut record, 2, request.clone(), &[]);
    apply(&mut record, 3, Release(handle_of(1)), &[]).0.unwrap();
    let grant = &record.holders[0];
    assert_eq!((&grant.lifetime, grant.provisional), (&Lifetime::ExpiresAt(lease(1000)), Some(process(2))));
    request.entry.lifetime = Lifetime::ExpiresAt(lease(2000));
    apply(&mut record, 4, request, &[]);
    let grant = &record.holders[0];
    assert_eq!((&grant.lifetime, grant.provisional, grant.token), (&Lifetime::ExpiresAt(lease(2000)), None, Some(3)));
}

#[test]
fn an_unconfirmed_grant_dies_with_its_waiter_and_not_with_its_owner() {
    let mut record = queue(&[Mode::Exclusive]);
    let mut request = wants(2, Mode::Exclusive);
    request.entry.owner = owner(&[20]).into();
    request.entry.needs_confirmation = true;
    apply(&mut record, 2, request, &[]);
    apply(&mut record, 3, Release(handle_of(1)), &[]).0.unwrap();
    let (response, _) = apply(&mut record, 4, wants(3, Mode::Exclusive), &[2]);
    assert!(matches!(response, AcquireStep::Granted(..)), "{response:?}");
}

#[test]
fn an_unconfirmed_grant_of_a_stopped_waiter_dies_with_its_script() {
    let mut record = queue(&[Mode::Exclusive]);
    let mut request = wants(2, Mode::Exclusive);
    request.entry.owner = owner(&[20]).into();
    request.entry.needs_confirmation = true;
    apply(&mut record, 2, request.clone(), &[]);
    apply(&mut record, 3, Release(handle_of(1)), &[]).0.unwrap();
    // Another waiter watches both.
    let watched = match settle(&record, &wants(3, Mode::Exclusive), &[]) {
        Transition::Write { record: next, .. } => match settle(&next, &wants(3, Mode::Exclusive), &[]) {
            Transition::Done(AcquireStep::Wait(Awaited { processes, .. })) => processes,
            step => panic!("{step:?}"),
        },
        step => panic!("{step:?}"),
    };
    assert_eq!(watched.iter().map(|(_, process)| process.pid).collect::<Vec<_>>(), [2, 20]);
    let (response, _) = apply(&mut record, 4, wants(3, Mode::Exclusive), &[20]);
    assert!(matches!(response, AcquireStep::Granted(_, Some(_))), "{response:?}");
    let (response, _) = apply(&mut record, 5, Acquire { phase: Phase::Direct, queue: false, ..request }, &[20]);
    assert!(!matches!(response, AcquireStep::Granted(..)), "{response:?}");
}

#[test]
fn an_unconfirmed_grant_does_not_belong_to_its_owner() {
    let mut record = Record::free(b"x");
    let mut request = wants(2, Mode::Exclusive);
    request.entry.owner = owner(&[20]).into();
    request.phase = Phase::Provisional;
    apply(&mut record, 1, request, &[]);
    for dead in [&[][..], &[2]] {
        let answer = settle(&record, &Release(by_owner(20)), dead);
        assert!(matches!(answer, Transition::Done(Err(_))), "{answer:?}");
    }
    assert!(matches!(settle(&record, &Release(handle_of(2)), &[2]), Transition::Write { .. }));
}

#[test]
fn a_committed_batch_is_confirmed_by_the_next_writer() {
    let mut record = Record::free(b"x");
    let mut request = wants(DECIDED, Mode::Shared);
    request.entry.owner = owner(&[20]).into();
    request.phase = Phase::Provisional;
    apply(&mut record, 1, request, &[]);
    let (response, _) = apply(&mut record, 2, wants(3, Mode::Shared), &[DECIDED]);
    assert!(matches!(response, AcquireStep::Granted(_, None)), "{response:?}");
    assert_eq!((holders(&record), record.holders[0].provisional), (vec![20, 3], None));
    let (outcome, _) = apply(&mut record, 3, wants(4, Mode::Shared), &[20, DECIDED]);
    assert!(matches!(outcome, AcquireStep::Granted(_, Some(_))), "{outcome:?}");
    assert_eq!(holders(&record), [3, 4]);
}

#[test]
fn a_claim_excludes_all_but_its_own_id() {
    let claims = |pid: i32, id: &[u8]| {
        let mut request = wants(pid, Mode::Exclusive);
        request.entry.owner = owner(&[]).into();
        request.entry.claim = Some(id.to_vec());
        request.entry.lifetime = Lifetime::UntilReleased;
        request
    };
    let mut record = Record::free(b"x");
    let several = Acquire { phase: Phase::Provisional, ..claims(2, b"two") };
    apply(&mut record, 1, several.clone(), &[]);
    // The provisional claim may still fail, so the next claimant waits, and gets the name if the first dies.
    assert!(matches!(
        settle(&record, &claims(3, b"three"), &[]),
        Transition::Write { response: AcquireStep::Wait(_), .. }
    ));
    let mut alone = record.clone();
    let (response, _) = apply(&mut alone, 2, claims(3, b"three"), &[2]);
    assert!(matches!(response, AcquireStep::Granted(grant, _) if grant.claim.as_deref() == Some(b"three")));
    apply(&mut record, 2, claims(3, b"three"), &[]);
    let (outcome, wake) = apply(&mut record, 3, Acquire { phase: Phase::Direct, ..several }, &[]);
    assert!(matches!(outcome, AcquireStep::Granted(..)), "{outcome:?}");
    assert_eq!(wake, [proof(3)], "who wants to claim it as well need not wait");
    for dead in [&[][..], &[2]] {
        let refused = settle(&record, &claims(3, b"three"), dead);
        assert!(
            matches!(refused, Transition::Done(AcquireStep::Refused(Refusal::Claimed(ref grant))) if grant.proof == proof(2)),
            "{refused:?}"
        );
        let again = settle(&record, &claims(4, b"two"), dead);
        assert!(
            matches!(again, Transition::Done(AcquireStep::Granted(ref grant, None)) if grant.proof == proof(2)),
            "{again:?}"
        );
    }
    let by = |id: &[u8]| Credentials { proof: None, claim: Some(id.to_vec()), ..handle_of(2) };
    assert!(matches!(apply(&mut record, 4, Release(by(b"three")), &[]).0, Err(other) if !other.holders.is_empty()));
    assert!(apply(&mut record, 4, Release(by(b"two")), &[]).0.is_ok());
}

#[test]
fn forever_outlives_its_owner() {
    let mut record = queue(&[Mode::Exclusive]);
    record.holders[0].lifetime = Lifetime::UntilReleased;
    let request = Acquire { queue: false, ..wants(2, Mode::Exclusive) };
    assert!(matches!(settle(&record, &request, &[1]), Transition::Done(AcquireStep::Refused(Refusal::Busy(_)))));
}

#[test]
fn a_break_ends_only_the_grant_that_was_seen() {
    let mut record = queue(&[Mode::Exclusive; 2]);
    let (response, wake) = apply(&mut record, 9, Break(vec![proof(1)]), &[]);
    assert!(matches!(response, Ok(broken) if broken.len() == 1));
    assert_eq!((holders(&record), wake), (vec![2], vec![proof(2)]));
    let repeated = apply(&mut record, 10, Break(vec![proof(1)]), &[]).0;
    assert!(repeated.is_ok());
    assert_eq!(holders(&record), [2]);
}

#[test]
fn a_break_removes_a_grant_whose_owner_died() {
    let mut record = queue(&[Mode::Exclusive; 2]);
    let (response, wake) = apply(&mut record, 9, Break(vec![proof(1)]), &[1]);
    let died = |ending: &EndedGrant| ending.grant.proof == proof(1) && ending.reason == EndReason::Died;
    assert!(matches!(&response, Ok(broken) if broken.iter().all(died) && broken.len() == 1));
    assert_eq!((holders(&record), wake), (vec![2], vec![proof(2)]));
    // The record keeps the ending without the command.
    let repeated = apply(&mut record, 10, Break(vec![proof(1)]), &[1]).0;
    assert!(matches!(&repeated, Ok(broken) if broken.iter().all(died) && broken.len() == 1), "{repeated:?}");
    // The request names no grant, so the response lists the holders.
    let refused = settle(&record, &Break(Vec::new()), &[]);
    assert!(
        matches!(refused, Transition::Done(Err(NotHolder { ref holders, ending: None, stale: None, .. })) if holders[0].proof == proof(2)),
        "{refused:?}"
    );
}

#[test]
fn a_broken_grant_is_remembered_until_its_holder_learns_of_it_or_dies() {
    let mut record = queue(&[Mode::Exclusive]);
    apply(&mut record, 9, Break(vec![proof(1)]), &[]).0.unwrap();
    assert!(record.is_free() && !record.is_removable());
    let mut dead = record.clone();
    apply(&mut dead, 10, Sweep, &[1]);
    assert!(dead.is_removable());
    let (told, _) = apply(&mut record, 10, Release(handle_of(1)), &[]);
    assert!(
        matches!(told, Err(NotHolder { ref holders, ending: Some(EndedGrant { reason: EndReason::Broken, .. }), .. }) if holders.is_empty()),
        "{told:?}"
    );
    assert!(record.is_removable());
}

#[test]
fn old_releases_are_forgotten_where_no_reply_is_lost() {
    let tokens =
        |record: &Record| -> Vec<u64> { record.ended_grants.iter().filter_map(|end| end.grant.token).collect() };
    // Some jobs acquire and release one after the other.
    let pass = |record: &mut Record, pids: std::ops::RangeInclusive<i32>| {
        for pid in pids {
            take(record, pid as u64, pid, Mode::Exclusive);
            apply(record, pid as u64, Release(handle_of(pid)), &[]).0.unwrap();
        }
    };
    let mut record = Record::free(b"x");
    pass(&mut record, 1..=3);
    assert_eq!(tokens(&record), [3]);
    take(&mut record, 4, 4, Mode::Exclusive);
    let mut facts = Facts::at(7);
    facts.replies_get_lost = true;
    let Ok(Transition::Write { record: next, .. }) = decide(&record, &Release(handle_of(4)), &facts) else { panic!() };
    assert_eq!(tokens(&next), [3, 4]);
    // A holder may have to hear that its lock was broken, so that stays among the last four, with all after it.
    apply(&mut record, 5, Break(vec![proof(4)]), &[]).0.unwrap();
    pass(&mut record, 6..=7);
    assert_eq!(tokens(&record), [4, 6, 7]);
}

/// The supervisor releases while its command is a zombie, whose liveness costs nine system calls.
#[test]
fn a_release_asks_for_the_liveness_of_the_next_waiter_only() {
    let record = queue(&[Mode::Exclusive, Mode::Exclusive, Mode::Exclusive]);
    let release = Release(Credentials { supervises: true, ..handle_of(1) });
    let mut facts = Facts::at(7);
    assert_eq!(decide(&record, &release, &facts).unwrap_err(), Query::Liveness(domain(), process(2)));
    facts.insert_liveness(domain(), process(2), Liveness::Alive);
    assert!(decide(&record, &release, &facts).is_ok());
}

#[test]
fn the_end_of_a_supervised_grant_is_remembered_until_its_supervisor_learns_of_it_or_dies() {
    const SUPERVISOR: i32 = 70;
    let mut query = wants(1, Mode::Exclusive);
    Arc::make_mut(&mut query.entry.owner).supervisor = Some(process(SUPERVISOR));
    let mut granted = Record::free(b"x");
    apply(&mut granted, 1, query, &[]);
    let supervisor = Credentials { supervises: true, ..handle_of(1) };
    let [mut released, mut died, mut broken] = [(); 3].map(|()| granted.clone());
    apply(&mut released, 2, Release(handle_of(1)), &[]).0.unwrap();
    apply(&mut died, 2, Sweep, &[1]);
    apply(&mut broken, 2, Break(vec![proof(1)]), &[]).0.unwrap();
    for (mut record, dead, how) in
        [(released, &[][..], EndReason::Released), (died, &[1], EndReason::Died), (broken, &[], EndReason::Broken)]
    {
        // These grants exceed the number of past grants that a record keeps for others.
        for pid in 2..9 {
            take(&mut record, pid as u64, pid, Mode::Exclusive);
            apply(&mut record, 9, Release(handle_of(pid)), dead).0.unwrap();
        }
        assert!(record.is_free() && !record.is_removable(), "{how:?}");
        let mut alone = record.clone();
        apply(&mut alone, 10, Sweep, &[1, SUPERVISOR]);
        assert!(alone.is_removable(), "{how:?}");
        // The command itself may ask, and its request does not remove the ending.
        apply(&mut record, 10, Release(handle_of(1)), dead).0.unwrap_err();
        let (told, _) = apply(&mut record, 11, Release(supervisor.clone()), dead);
        assert!(
            matches!(told, Err(NotHolder { holders, ending: Some(ending), .. }) if holders.is_empty() && ending.reason == how),
            "{how:?}"
        );
        assert!(record.is_removable(), "{how:?}");
    }
    let (told, _) = apply(&mut granted, 2, Release(supervisor), &[]);
    assert!(told.is_ok() && granted.is_removable());
}

#[test]
fn a_waiter_that_leaves_wakes_the_next_which_watched_it() {
    let mut record = queue(&[Mode::Exclusive, Mode::Exclusive, Mode::Exclusive]);
    let (response, wake) = apply(&mut record, 9, Cancel { proof: proof(2), page: None }, &[]);
    assert_eq!((response, wake, holders(&record)), (None, vec![proof(3)], vec![1]));
}

#[test]
fn a_cancelled_wait_lets_later_waiters_pass() {
    let mut record = queue(&[Mode::Shared, Mode::Exclusive, Mode::Shared]);
    let (response, wake) = apply(&mut record, 9, Cancel { proof: proof(2), page: None }, &[]);
    assert_eq!((response, wake, holders(&record)), (None, vec![proof(3)], vec![1, 3]));
    let late = apply(&mut record, 10, Cancel { proof: proof(3), page: None }, &[]).0;
    assert!(late.is_some());
}

#[test]
fn collecting_removes_the_dead_wherever_they_stand() {
    let mut record = queue(&[Mode::Exclusive; 4]);
    let (response, _) = apply(&mut record, 9, Sweep, &[1, 3]);
    let (ended, dropped) = response;
    assert_eq!((ended.len(), dropped.len(), holders(&record), record.waiters.len()), (1, 1, vec![2], 1));
}

#[test]
fn a_waiter_watches_the_waiter_before_it_and_the_first_watches_the_holder() {
    let record = queue(&[Mode::Exclusive; 3]);
    for (pid, watched) in [(2, 1), (3, 2)] {
        let step = settle(&record, &wants(pid, Mode::Exclusive), &[]);
        let Transition::Done(AcquireStep::Wait(Awaited { processes, ahead, .. })) = step else { panic!("{step:?}") };
        assert_eq!((processes, ahead), (vec![(domain(), process(watched))], pid as usize - 2));
    }
}

#[test]
fn a_waiter_does_not_look_repeatedly_because_the_lease_of_the_waiter_before_it_is_over() {
    for (ends, awaited) in [(5, vec![lease(5)]), (0, Vec::new())] {
        let mut record = queue(&[Mode::Exclusive; 4]);
        // It died on another host, and the waiter before it lives.
        record.waiters[1].lease = Some(lease(ends));
        let step = settle(&record, &wants(4, Mode::Exclusive), &[]);
        let Transition::Done(AcquireStep::Wait(Awaited { leases, ahead: 2, .. })) = step else { panic!("{step:?}") };
        assert_eq!(leases, awaited);
    }
}

/// Decides like [`settle`] for an exclusive request, with these pages.
fn ask_with_pages<R: Request>(record: &Record, ask: &R, pages: &[(u64, Vec<Waiter>)]) -> Transition<R::Response> {
    let mut facts = Facts::at(7);
    loop {
        match decide(record, ask, &facts) {
            Ok(step) => return step,
            Err(Query::Liveness(domain, process)) => facts.insert_liveness(domain, process, Liveness::Alive),
            Err(Query::Page(number)) => {
                let (_, waiters) = pages.iter().find(|(known, _)| *known == number).unwrap();
                _ = facts.pages.insert(number, waiters.clone());
            }
            Err(query) => panic!("{query:?}"),
        }
    }
}

fn waiters(record: &Record) -> Vec<i32> {
    record.waiters.iter().map(|waiter| waiter.process.pid).collect()
}

fn crowded(count: usize) -> Record {
    let mut record = queue(&vec![Mode::Exclusive; count + 1]);
    record.pages = Some(Pages { first: 3, last: 3 });
    record
}

#[test]
fn a_waiter_that_finds_the_record_full_goes_to_a_page() {
    let full = queue(&[Mode::Exclusive; INLINE_WAITERS + 1]);
    let Transition::Write { record, response: AcquireStep::Wait(_), .. } =
        settle(&full, &wants(99, Mode::Exclusive), &[])
    else {
        panic!()
    };
    assert_eq!((record.pages, record.waiters.len()), (Some(Pages { first: 7, last: 7 }), INLINE_WAITERS));
    let late = wants(99, Mode::Exclusive);
    assert!(matches!(settle(&record, &late, &[]), Transition::Done(AcquireStep::Enqueue(7))));
    let full = Acquire { place: QueuePlace::BesidePage(7), ..late.clone() };
    let Transition::Write { record: longer, .. } = settle(&record, &full, &[]) else { panic!() };
    assert_eq!(longer.pages, Some(Pages { first: 7, last: 8 }));
    let place = QueuePlace::OnPage(QueuePosition { page: 7, ahead: 2, before: Vec::new(), entry: late.entry.clone() });
    let placed = Acquire { place, ..late };
    assert!(
        matches!(settle(&record, &placed, &[]), Transition::Done(AcquireStep::Wait(Awaited { ahead, .. })) if ahead == INLINE_WAITERS + 2)
    );
    // A page that the record no longer names is not a position.
    let moved_on = Record { pages: Some(Pages { first: 8, last: 9 }), ..*record };
    assert!(matches!(settle(&moved_on, &placed, &[]), Transition::Done(AcquireStep::Enqueue(9))));
}

#[test]
fn a_page_is_fetched_when_few_are_left_and_its_first_is_woken() {
    let record = crowded(4);
    let page: Vec<Waiter> = [50, 51].iter().map(|pid| wants(*pid, Mode::Exclusive).entry).collect();
    let step = ask_with_pages(&record, &Release(handle_of(1)), &[(3, page)]);
    let Transition::Write { record, wake, .. } = step else { panic!() };
    assert_eq!((holders(&record), waiters(&record), record.pages), (vec![2], vec![3, 4, 5, 50, 51], None));
    assert_eq!(wake, vec![proof(2), proof(50)]);
}

#[test]
fn a_waiter_that_is_fetched_twice_is_queued_once() {
    let record = crowded(2);
    let page: Vec<Waiter> = [1, 3, 50].iter().map(|pid| wants(*pid, Mode::Exclusive).entry).collect();
    let Transition::Write { record, .. } = ask_with_pages(&record, &Release(handle_of(1)), &[(3, page)]) else {
        panic!()
    };
    // Process 1 has just released the lock and may want it again.
    assert_eq!((holders(&record), waiters(&record)), (vec![2], vec![3, 1, 50]));
}

#[test]
fn a_waiter_on_a_page_in_transfer_leaves_by_the_record() {
    let record = crowded(INLINE_WAITERS);
    let page: Vec<Waiter> = [50, 51].iter().map(|pid| wants(*pid, Mode::Exclusive).entry).collect();
    let Transition::Write { record, response, .. } =
        ask_with_pages(&record, &Cancel { proof: proof(50), page: Some(3) }, &[(3, page)])
    else {
        panic!()
    };
    assert_eq!(response, None);
    assert_eq!((record.pages, waiters(&record).last(), record.waiters.len()), (None, Some(&51), INLINE_WAITERS + 1));
}

fn held_by(pid: i32, lifetime: Lifetime) -> Record {
    let mut take = wants(pid, Mode::Exclusive);
    take.entry.lifetime = lifetime;
    let Transition::Write { record, .. } = settle(&Record::free(b"x"), &take, &[]) else { panic!() };
    *record
}

#[test]
fn a_lease_can_be_renewed_late_until_another_caller_acquires_the_lock() {
    let renewed = |ends| Lifetime::Keepalive(lease(ends));
    let credentials = handle_of(1);
    let held = held_by(1, renewed(0));
    let Transition::Write { record, .. } = settle(&held, &renewal(credentials.clone(), renewed(9)), &[]) else {
        panic!()
    };
    assert_eq!(record.holders[0].lifetime, renewed(9));
    // A grant with a fixed time limit keeps the limit, and is over when the limit is.
    let held = held_by(1, Lifetime::ExpiresAt(lease(5)));
    let step = settle(&held, &renewal(credentials.clone(), renewed(9)), &[]);
    assert!(matches!(step, Transition::Done(Ok(grant)) if grant.lifetime == Lifetime::ExpiresAt(lease(5))));
    let held = held_by(2, Lifetime::WhileOwnerLives);
    let step = settle(&held, &renewal(credentials, renewed(9)), &[]);
    assert!(matches!(step, Transition::Done(Err(other)) if !other.holders.is_empty()));
}

#[test]
fn a_holder_that_begins_has_waited_until_then() {
    for lifetime in [Lifetime::Ttl(9), Lifetime::Keepalive(lease(9))] {
        for (mode, times) in [(Mode::Exclusive, (50, 47)), (Mode::Shared, (10, 7)), (Mode::Slot, (10, 7))] {
            let mut held = held_by(1, lifetime.clone());
            let slots = (mode == Mode::Slot).then_some(2);
            held.slots = slots;
            let grant = &mut held.holders[0];
            (grant.mode, grant.since, grant.waited) = (mode, 10, 7);
            let times_at = |wall: u64, begins: bool| {
                let ask = RenewGrant { begins, ..renewal(handle_of(1), lifetime.clone()) };
                match decide(&held, &ask, &Facts::at(wall)).unwrap() {
                    Transition::Write { record, .. } => (record.holders[0].since, record.holders[0].waited),
                    Transition::Done(done) => panic!("{done:?}"),
                }
            };
            assert_eq!(times_at(50, true), times, "{mode:?}");
            // The clock was set back.
            assert_eq!((times_at(5, true), times_at(50, false)), ((10, 7), (10, 7)), "{mode:?}");
        }
    }
}

#[test]
fn the_last_lease_of_a_holder_whose_renewal_was_ended_is_the_one_that_it_knows() {
    let held = held_by(1, Lifetime::Keepalive(lease(5)));
    let ends = |pid: i32| AskToEnd { proof: proof(pid), request: None, ends_renewal: true };
    assert!(matches!(settle(&held, &ends(2), &[]), Transition::Done(None)));
    let Transition::Write { record, response, .. } = settle(&held, &ends(1), &[]) else { panic!() };
    assert_eq!((&record.holders[0].lifetime, response), (&Lifetime::ExpiresAt(lease(5)), Some(proof(1))));
    // Neither the keeper nor a repeated request changes that lease.
    let step = settle(&record, &renewal(handle_of(1), Lifetime::Keepalive(lease(9))), &[]);
    assert!(matches!(step, Transition::Done(Ok(grant)) if grant.lifetime == Lifetime::ExpiresAt(lease(5))));
    assert!(matches!(settle(&record, &ends(1), &[]), Transition::Done(None)));
    // The next caller waits for the end of the lease.
    let next = Acquire { queue: false, ..wants(2, Mode::Exclusive) };
    assert!(matches!(response_of(settle(&record, &next, &[])), AcquireStep::Refused(Refusal::Busy(_))));
    let over = held_by(1, Lifetime::ExpiresAt(lease(0)));
    assert!(matches!(response_of(settle(&over, &next, &[])), AcquireStep::Granted(..)));
}

#[test]
fn a_grant_remembers_which_call_asked_its_holder_to_end_and_changes_in_nothing_else() {
    let asks = |pid: i32| {
        let request = EndRequest { by: owner(&[pid]), replaces: false };
        AskToEnd { proof: proof(1), request: Some(request.into()), ends_renewal: false }
    };
    for lifetime in [Lifetime::WhileOwnerLives, Lifetime::Keepalive(lease(5)), Lifetime::ExpiresAt(lease(5))] {
        let held = held_by(1, lifetime);
        let Transition::Write { record, response, .. } = settle(&held, &asks(8), &[]) else { panic!() };
        assert_eq!(response, None);
        assert_eq!(record.holders[0].end_request, asks(8).request);
        // A repeated request writes nothing, a later one counts, and one of an unknown caller does not.
        assert!(matches!(settle(&record, &asks(8), &[]), Transition::Done(None)));
        let Transition::Write { record: later, .. } = settle(&record, &asks(9), &[]) else { panic!() };
        assert_eq!(later.holders[0].end_request, asks(9).request);
        assert!(matches!(settle(&record, &AskToEnd { request: None, ..asks(8) }, &[]), Transition::Done(None)));
        let mut same = *record;
        same.holders[0].end_request = None;
        assert_eq!(same, held);
    }
}

#[test]
fn an_owner_recorded_as_dead_is_dead_for_all_callers() {
    let credentials = handle_of(1);
    let mut held = held_by(1, Lifetime::Keepalive(lease(5)));
    let Transition::Write { record, .. } = settle(&held, &OwnerDied(credentials.clone()), &[]) else { panic!() };
    assert_eq!(record.holders[0].lifetime, Lifetime::OwnerDied);
    // The grant stays in the record for a caller that refuses stale grants.
    let refuses = Acquire { refuse_stale: true, ..wants(2, Mode::Exclusive) };
    let step = settle(&record, &refuses, &[]);
    assert!(
        matches!(step, Transition::Done(AcquireStep::Refused(Refusal::Stale(endings))) if endings[0].reason == EndReason::Died)
    );
    // A waiter gets the lock at once.
    held.waiters = vec![wants(3, Mode::Exclusive).entry];
    let Transition::Write { record, wake, .. } = settle(&held, &OwnerDied(credentials), &[]) else { panic!() };
    assert_eq!((record.holders[0].proof, wake), (proof(3), vec![proof(3)]));
}

#[test]
fn no_caller_evicts_an_owner_that_it_sees_alive() {
    let late = held_by(1, Lifetime::Keepalive(lease(0)));
    let waits = settle(&late, &wants(2, Mode::Exclusive), &[]);
    let Transition::Write { record, response: AcquireStep::Wait(_), .. } = waits else { panic!() };
    // The waiter reads the record when that process ends, and not repeatedly because the lease is over.
    let Transition::Done(AcquireStep::Wait(Awaited { processes, leases, .. })) =
        settle(&record, &wants(2, Mode::Exclusive), &[])
    else {
        panic!()
    };
    assert_eq!((processes, leases), (vec![(domain(), process(1))], Vec::new()));
    let step = settle(&late, &wants(2, Mode::Exclusive), &[1]);
    assert!(matches!(step, Transition::Write { response: AcquireStep::Granted(..), .. }));
    // A fixed time limit ends the grant even if the owner lives.
    let step = settle(&held_by(1, Lifetime::ExpiresAt(lease(0))), &wants(2, Mode::Exclusive), &[]);
    assert!(matches!(step, Transition::Write { response: AcquireStep::Granted(..), .. }));
}

fn wants_latest(pid: i32) -> Acquire {
    let mut request = wants(pid, Mode::Exclusive);
    request.entry.latest_only = true;
    request
}

#[test]
fn the_newest_caller_takes_the_place_of_the_one_before() {
    let mut record = queue(&[Mode::Exclusive; 2]);
    apply(&mut record, 5, wants_latest(7), &[]);
    take(&mut record, 6, 3, Mode::Exclusive);
    let (step, wake) = apply(&mut record, 7, wants_latest(8), &[]);
    assert_eq!((step, wake), (AcquireStep::Wait(Awaited::default()), vec![proof(7), proof(3)]));
    assert_eq!(waiters(&record), [2, 8, 3]);
    // A caller whose entry got lost cannot know whether a newer caller ran, so it does not queue again.
    let (refused, _) = apply(&mut record, 8, Acquire { place: QueuePlace::InRecord, ..wants_latest(9) }, &[]);
    assert_eq!(refused, AcquireStep::Refused(Refusal::Replaced(None)));
    let replaced = Acquire { place: QueuePlace::InRecord, ..wants_latest(7) };
    let successor = |record: &Record| match response_of(settle(record, &replaced, &[])) {
        AcquireStep::Refused(Refusal::Replaced(Some(by))) => (by.owner.processes[0].pid, by.waits),
        other => panic!("{other:?}"),
    };
    assert_eq!(successor(&record), (8, true));
    apply(&mut record, 9, wants_latest(10), &[]);
    assert_eq!(successor(&record), (10, true));
    for (version, pid) in [(10, 1), (11, 2)] {
        apply(&mut record, version, Release(handle_of(pid)), &[]).0.unwrap();
    }
    assert_eq!((holders(&record), successor(&record)), (vec![10], (10, false)));
}

#[test]
fn the_newest_caller_waits_in_the_record_even_if_the_queue_has_pages() {
    let mut record = crowded(INLINE_WAITERS);
    apply(&mut record, 98, wants_latest(98), &[]);
    apply(&mut record, 99, wants_latest(99), &[]);
    assert_eq!((waiters(&record).len(), waiters(&record).last()), (INLINE_WAITERS + 1, Some(&99)));
}

/// The request of a waiter that confirms its grant, as all do.
fn waits(pid: i32) -> Acquire {
    let mut request = wants(pid, Mode::Exclusive);
    request.entry.needs_confirmation = true;
    request
}

/// Returns a record whose holder 1 is followed by these waiters.
fn queue_of(waiters: &[i32]) -> Record {
    let mut record = queue(&[Mode::Exclusive]);
    for pid in waiters {
        apply(&mut record, 2, waits(*pid), &[]);
    }
    record
}

fn pids(record: &Record) -> (Vec<i32>, Vec<i32>) {
    let holders = record.holders.iter().map(|grant| grant.owner.processes[0].pid).collect();
    (holders, record.waiters.iter().map(|waiter| waiter.process.pid).collect())
}

/// Makes all grants older than a waiter may be stopped.
fn pass(record: &mut Record) {
    record.holders.iter_mut().for_each(|grant| grant.since += 500);
}

#[test]
fn a_stopped_waiter_is_passed_over_and_keeps_its_place() {
    let mut record = queue_of(&[STOPPED, 3, 4]);
    apply(&mut record, 5, Release(handle_of(1)), &[]).0.unwrap();
    assert_eq!(pids(&record), (vec![3], vec![STOPPED, 4]));
    apply(&mut record, 6, Release(handle_of(3)), &[]).0.unwrap();
    apply(&mut record, 7, Release(handle_of(4)), &[]).0.unwrap();
    assert_eq!(pids(&record), (vec![], vec![STOPPED]));
    // A look of its supervisor does not show that it goes on.
    let step = settle(&record, &waits(STOPPED), &[]);
    assert!(matches!(step, Transition::Done(AcquireStep::Wait(_))), "{step:?}");
    GOES_ON.set(true);
    let (step, _) = apply(&mut record, 8, waits(STOPPED), &[]);
    assert!(matches!(step, AcquireStep::Granted(..)), "{step:?}");
}

#[test]
fn a_supervisor_does_not_confirm_a_grant_for_a_stopped_child() {
    let mut record = queue_of(&[STOPPED]);
    GOES_ON.set(true);
    apply(&mut record, 5, Release(handle_of(1)), &[]).0.unwrap();
    GOES_ON.set(false);
    let step = settle(&record, &waits(STOPPED), &[]);
    assert!(matches!(step, Transition::Done(AcquireStep::Wait(_))), "{step:?}");
    GOES_ON.set(true);
    let (step, _) = apply(&mut record, 6, waits(STOPPED), &[]);
    assert!(matches!(step, AcquireStep::Granted(..)), "{step:?}");
}

#[test]
fn a_free_lock_wakes_its_stopped_waiters_and_is_free_for_newcomers() {
    let mut record = queue_of(&[STOPPED]);
    let (_, wake) = apply(&mut record, 5, Release(handle_of(1)), &[]);
    assert_eq!((pids(&record), wake), ((vec![], vec![STOPPED]), vec![proof(STOPPED)]));
    let (step, _) = apply(&mut record, 6, Acquire { queue: false, ..waits(3) }, &[]);
    assert!(matches!(step, AcquireStep::Granted(..)), "{step:?}");
    assert_eq!(pids(&record), (vec![3], vec![STOPPED]));
}

#[test]
fn a_waiter_behind_stopped_ones_watches_the_holder_as_the_first() {
    let record = queue_of(&[STOPPED, 3]);
    let step = settle(&record, &waits(3), &[]);
    let Transition::Done(AcquireStep::Wait(Awaited { processes, ahead, .. })) = step else { panic!("{step:?}") };
    assert_eq!((processes[0].1, ahead), (process(1), 0));
}

#[test]
fn an_unconfirmed_grant_of_a_stopped_waiter_is_taken_back_after_a_while() {
    for stopped in [STOPPED, FROZEN[0]] {
        let mut record = queue_of(&[stopped, 3]);
        record.waiters[0].process = process(9);
        apply(&mut record, 5, Release(handle_of(1)), &[]).0.unwrap();
        record.holders[0].provisional = Some(process(stopped));
        let step = settle(&record, &waits(3), &[]);
        assert!(matches!(step, Transition::Done(AcquireStep::Wait(_))), "{step:?}");
        pass(&mut record);
        let (step, _) = apply(&mut record, 6, waits(3), &[]);
        assert!(matches!(step, AcquireStep::Granted(..)), "{step:?}");
        assert_eq!(pids(&record), (vec![3], vec![stopped]));
        // It cannot confirm what it has no longer, and waits in its old place.
        apply(&mut record, 7, waits(4), &[]);
        let confirm = Acquire { phase: Phase::Confirm, ..waits(stopped) };
        let refused = settle(&record, &confirm, &[]);
        assert!(matches!(refused, Transition::Done(AcquireStep::Refused(Refusal::Lost))), "{refused:?}");
        let step = settle(&record, &waits(stopped), &[]);
        assert!(matches!(response_of(step.clone()), AcquireStep::Wait(_)), "{step:?}");
        assert_eq!(pids(&record), (vec![3], vec![stopped, 4]));
    }
}

#[test]
fn a_newer_caller_takes_the_place_of_a_waiter_that_stopped_at_its_grant() {
    for comes_first in [false, true] {
        let mut record = queue_of(&[STOPPED, 3]);
        record.waiters[0].latest_only = true;
        record.waiters[0].process = process(9);
        apply(&mut record, 5, Release(handle_of(1)), &[]).0.unwrap();
        record.holders[0].provisional = Some(process(STOPPED));
        let newer = || {
            let mut newer = waits(4);
            newer.entry.latest_only = true;
            newer
        };
        if comes_first {
            apply(&mut record, 6, newer(), &[]);
        }
        pass(&mut record);
        apply(&mut record, 7, waits(3), &[]);
        apply(&mut record, 8, newer(), &[]);
        assert_eq!(pids(&record), (vec![3], vec![4]));
        let mut old = waits(STOPPED);
        (old.entry.latest_only, old.place) = (true, QueuePlace::InRecord);
        let refused = settle(&record, &old, &[]);
        assert!(matches!(refused, Transition::Done(AcquireStep::Refused(Refusal::Replaced(_)))), "{refused:?}");
    }
}

#[test]
fn a_confirmed_or_committed_grant_of_a_stopped_process_stays() {
    let mut record = queue_of(&[3]);
    (record.holders[0].owner, record.holders[0].provisional) = (owner(&[STOPPED]).into(), None);
    pass(&mut record);
    let step = settle(&record, &waits(3), &[]);
    assert!(matches!(step, Transition::Done(AcquireStep::Wait(_))), "{step:?}");
    (record.holders[0].proof, record.holders[0].provisional) = (proof(DECIDED), Some(process(STOPPED)));
    let step = settle(&record, &waits(3), &[]);
    assert!(matches!(step, Transition::Done(AcquireStep::Wait(_))), "{step:?}");
}

#[test]
fn frozen_waiters_cost_one_turn_together() {
    let mut record = queue_of(&[FROZEN[0], FROZEN[1], 3, 4]);
    apply(&mut record, 5, Release(handle_of(1)), &[]).0.unwrap();
    assert_eq!(pids(&record), (vec![FROZEN[0]], vec![FROZEN[1], 3, 4]));
    pass(&mut record);
    apply(&mut record, 6, waits(3), &[]);
    assert_eq!(pids(&record), (vec![3], vec![FROZEN[0], FROZEN[1], 4]));
    apply(&mut record, 7, Release(handle_of(3)), &[]).0.unwrap();
    assert_eq!(pids(&record), (vec![4], FROZEN.to_vec()));
    apply(&mut record, 8, Release(handle_of(4)), &[]).0.unwrap();
    let (step, _) = apply(&mut record, 9, wants(FROZEN[0], Mode::Exclusive), &[]);
    assert!(matches!(step, AcquireStep::Granted(..)), "{step:?}");
}

#[test]
fn a_release_by_a_caller_whose_grant_was_taken_back_leaves_the_queue() {
    let mut record = queue_of(&[2, 3]);
    let (response, _) = apply(&mut record, 5, Release(handle_of(2)), &[]);
    let ending = response.unwrap_err().ending;
    assert_eq!(ending.map(|ending| ending.reason), Some(EndReason::Expired));
    assert_eq!(pids(&record), (vec![1], vec![3]));
}

#[test]
fn an_expired_grant_ends_only_for_a_waiter_that_needs_its_place() {
    let sleeper = |mode| {
        let mut record = Record::free(b"x");
        for pid in [1, 2] {
            apply(&mut record, pid as u64, Acquire { queue: false, ..wants(pid, mode) }, &[]);
        }
        let asleep = &mut record.holders[0];
        asleep.lifetime = Lifetime::Keepalive(lease(0));
        asleep.owner_mut().processes = vec![process(UNSEEN)];
        record
    };
    for (mode, newcomer, left) in [
        (Mode::Shared, Mode::Shared, vec![UNSEEN, 2, 3]),
        (Mode::Slot, Mode::Slot, vec![2, 3]),
        // The other holder is in the way all the same.
        (Mode::Shared, Mode::Exclusive, vec![UNSEEN, 2]),
    ] {
        let mut record = sleeper(mode);
        apply(&mut record, 4, Acquire { queue: false, ..wants(3, newcomer) }, &[]);
        assert_eq!(pids(&record).0, left, "{mode:?} {newcomer:?}");
    }
    let mut record = sleeper(Mode::Shared);
    apply(&mut record, 4, wants(3, Mode::Exclusive), &[]);
    let step = settle(&record, &wants(3, Mode::Exclusive), &[]);
    let Transition::Done(AcquireStep::Wait(Awaited { leases, .. })) = step else { panic!("{step:?}") };
    assert_eq!(leases, [], "an ended lease makes no wait short");
    apply(&mut record, 5, Release(handle_of(2)), &[]).0.unwrap();
    assert_eq!(pids(&record).0, [3]);
}

/// A record whose holder is the descriptor that process 1 locked, at this place.
fn held_by_descriptor(place: &str, mode: Mode) -> (Record, DescriptorLock) {
    let (mut record, lock) = (Record::free(b"x"), DescriptorLock { place: place.to_string(), taker: 9 });
    take(&mut record, 1, 1, mode);
    record.holders[0].lifetime = Lifetime::Descriptor(lock.clone());
    (record, lock)
}

#[test]
fn a_descriptor_holds_a_lock_until_it_is_closed_even_if_its_script_is_dead() {
    for (place, holds) in [("open", true), ("unseen", true), ("closed", false)] {
        let (mut record, _) = held_by_descriptor(place, Mode::Exclusive);
        let (step, _) = apply(&mut record, 2, wants(2, Mode::Exclusive), &[1]);
        assert_eq!(matches!(step, AcquireStep::Wait(_)), holds, "{place}: {step:?}");
        // The end of such a grant is its release.
        assert!(!matches!(step, AcquireStep::Granted(_, Some(_))), "{place}: {step:?}");
        let (step, _) = apply(&mut record, 3, wants(2, Mode::Exclusive), &[1]);
        let looks = matches!(&step, AcquireStep::Wait(awaited) if awaited.has_descriptor);
        assert_eq!(looks, holds, "{place}: {step:?}");
    }
}

#[test]
fn only_its_descriptor_releases_the_lock_of_a_descriptor() {
    let (record, lock) = held_by_descriptor("open", Mode::Exclusive);
    let releases = |by: Credentials| response_of(settle(&record, &Release(by), &[])).is_ok();
    let with = |descriptor: DescriptorLock, pid| Credentials { descriptor: Some(descriptor), ..by_owner(pid) };
    assert!(!releases(by_owner(1)));
    assert!(releases(with(lock.clone(), 2)));
    assert!(!releases(with(DescriptorLock { place: "other".into(), ..lock.clone() }, 1)));
    assert!(!releases(with(DescriptorLock { taker: 8, ..lock.clone() }, 1)));
    // Outside of the first pid namespace the kernel does not name the process that locked the file.
    let unnamed = DescriptorLock { taker: 0, ..lock };
    assert_eq!([1, 2].map(|pid| releases(with(unnamed.clone(), pid))), [true, false]);
}

#[test]
fn a_caller_that_has_the_file_ends_the_descriptors_that_exclude_it() {
    for (held, wanted, ends) in [
        (Mode::Exclusive, Mode::Exclusive, true),
        (Mode::Exclusive, Mode::Shared, true),
        (Mode::Shared, Mode::Exclusive, true),
        (Mode::Shared, Mode::Shared, false),
    ] {
        let (mut record, _) = held_by_descriptor("unseen", held);
        let (step, _) = apply(&mut record, 2, Acquire { has_file: true, ..wants(2, wanted) }, &[]);
        assert!(matches!(step, AcquireStep::Granted(_, None)), "{held:?} {wanted:?}: {step:?}");
        assert_eq!(record.holders.len(), if ends { 1 } else { 2 }, "{held:?} {wanted:?}");
    }
}

#[test]
fn only_a_lock_that_is_seen_makes_a_script_wait_for_itself() {
    for (place, is_own) in [("open", true), ("left", false), ("unseen", false)] {
        let (mut record, _) = held_by_descriptor(place, Mode::Exclusive);
        let mut again = wants(2, Mode::Exclusive);
        again.entry.blocked_processes = vec![process(1)];
        let (step, _) = apply(&mut record, 2, again, &[]);
        assert_eq!(matches!(step, AcquireStep::Refused(Refusal::Deadlock(_))), is_own, "{place}: {step:?}");
    }
}
