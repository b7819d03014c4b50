//! Tests of the permission to write and of the version that a value gets.

use super::*;
use crate::{
    Grant, HandleHash, Lease, LeaseClock, LeaseStart, Lifetime, Liveness, Mode, Owner, PidDomain, ProcessId, Request,
    Waiter, decide, decode, encode,
};

fn proof(pid: i32) -> HandleHash {
    crate::Handle::new([pid as u8; 16]).proof()
}

fn domain() -> PidDomain {
    PidDomain { machine: "m".into(), boot: "b".into(), pids: "p".into(), net: 1 }
}

/// Returns a record that process 1 holds until a lease that ends at `ends`.
fn held(ends: u64) -> Record {
    let owner = ProcessId { pid: 1, start: 1 };
    let party = Owner {
        domain: domain(),
        processes: vec![owner],
        supervisor: None,
        outlives_lock: false,
        session: None,
        host: "h".into(),
        uid: 0,
        command: Vec::new(),
        label: None,
    };
    let lease = Lease { clock: LeaseClock::FileSystem(LeaseStart::default()), ends, wall: ends };
    let grant = Grant {
        proof: proof(1),
        token: Some(5),
        mode: Mode::Exclusive,
        slot: 0,
        owner: party.into(),
        lifetime: Lifetime::ExpiresAt(lease),
        since: 0,
        waited: 0,
        provisional: None,
        release_on_exit: false,
        claim: None,
        latest_only: false,
        end_request: None,
    };
    Record { holders: vec![grant], ..Record::free(b"x") }
}

fn writing(pid: i32, bytes: &[u8]) -> SetValue {
    SetValue {
        credentials: Credentials {
            proof: Some(proof(pid)),
            owners: Vec::new(),
            claim: None,
            space: domain().into(),
            descriptor: None,
            orphan: None,
            supervises: false,
            repeated: false,
        },
        value: Some(Value::new(bytes, u64::from(bytes[0]), None)),
        precondition: None,
        require_lock: false,
        release: false,
        even_if_stale: false,
    }
}

/// Applies the write to a record with this version. All processes live, and only a lease that ends at 0 is over.
fn put(record: &mut Record, version: u64, writing: SetValue) -> <SetValue as Request>::Response {
    let mut facts = Facts::at(7);
    let step = loop {
        match decide(record, &writing, &facts) {
            Ok(step) => break step,
            Err(Query::Liveness(domain, process)) => facts.insert_liveness(domain, process, Liveness::Alive),
            Err(Query::LeaseExpired(lease)) => facts.insert_expired(lease.clone(), lease.ends == 0),
            Err(query) => panic!("{query:?}"),
        }
    };
    match step {
        Transition::Done(response) => response,
        Transition::Write { record: next, response, .. } => {
            *record = decode(&encode(&next), version).unwrap();
            response
        }
    }
}

fn versions(record: &Record) -> (Option<u64>, Option<u64>) {
    let value = record.value.as_ref().unwrap();
    (value.version, value.token)
}

#[test]
fn the_first_version_of_a_value_is_that_of_the_record_and_each_write_adds_one() {
    let mut record = Record::free(b"x");
    assert!(put(&mut record, 40, writing(9, b"a")).is_ok());
    assert_eq!(versions(&record), (Some(40), Some(40)));
    put(&mut record, 60, writing(9, b"b")).unwrap();
    assert_eq!(versions(&record), (Some(41), Some(60)));
    let holders = held(1).holders;
    record.holders = holders;
    put(&mut record, 61, writing(1, b"c")).unwrap();
    assert_eq!(versions(&record), (Some(42), Some(5)), "the token is that of the grant");
    let deleted = put(&mut record, 70, SetValue { value: None, ..writing(1, b"d") });
    assert!(matches!(deleted, Ok(Written { value: Some(value), .. }) if value.version == Some(42)));
    assert_eq!(record.value, None);
    assert!(matches!(put(&mut record, 71, SetValue { value: None, ..writing(1, b"d") }), Err(WriteRefusal::NoValue)));
    put(&mut record, 80, writing(1, b"e")).unwrap();
    assert_eq!(versions(&record).0, Some(80));
}

#[test]
fn a_caller_without_the_lock_waits_and_a_false_handle_is_refused() {
    let mut record = held(1);
    let before = record.clone();
    assert!(matches!(put(&mut record, 2, writing(9, b"a")), Err(WriteRefusal::Busy(holders)) if holders.len() == 1));
    let as_holder = SetValue { require_lock: true, ..writing(9, b"a") };
    assert!(
        matches!(put(&mut record, 2, as_holder.clone()), Err(WriteRefusal::NotHolder(other)) if !other.holders.is_empty())
    );
    assert_eq!(record, before);
    assert!(
        matches!(put(&mut Record::free(b"x"), 2, as_holder), Err(WriteRefusal::NotHolder(other)) if other == NotHolder::default())
    );
}

#[test]
fn no_caller_writes_past_a_queue() {
    let mut record = held(1);
    let owner = std::sync::Arc::unwrap_or_clone(record.holders.remove(0).owner);
    record.waiters.push(Waiter::new(proof(3), owner, ProcessId { pid: 3, start: 1 }));
    assert!(matches!(put(&mut record, 2, writing(9, b"a")), Err(WriteRefusal::Busy(_))));
}

#[test]
fn an_expired_grant_writes_only_on_request_and_if_it_was_the_last() {
    let mut record = held(0);
    let unlock = SetValue { require_lock: true, release: true, ..writing(1, b"a") };
    assert!(matches!(put(&mut record, 9, unlock.clone()), Err(WriteRefusal::Lost(holders, _)) if holders.is_empty()));
    assert!(matches!(put(&mut record, 9, writing(1, b"a")), Err(WriteRefusal::Lost(..))));
    let mut taken_since = record.clone();
    let stale = SetValue { even_if_stale: true, ..unlock };
    assert!(put(&mut record, 9, stale.clone()).is_ok());
    assert!(record.is_free() && record.value.is_some());
    let grant = taken_since.holders.remove(0);
    let of = |pid: i32, token, how| EndedGrant {
        grant: Grant { proof: proof(pid), token: Some(token), ..grant.clone() },
        reason: how,
    };
    taken_since.ended_grants = vec![of(1, 5, EndReason::Expired), of(2, 6, EndReason::Released)];
    assert!(matches!(put(&mut taken_since, 9, stale.clone()), Err(WriteRefusal::Lost(..))));
    taken_since.ended_grants.pop();
    assert!(put(&mut taken_since, 9, stale).is_ok());
}

#[test]
fn an_expired_grant_does_not_write_past_a_queue() {
    let mut record = held(0);
    let owner = record.holders[0].owner_mut().clone();
    record.waiters.push(Waiter::new(proof(3), owner, ProcessId { pid: 3, start: 1 }));
    let stale = SetValue { require_lock: true, release: true, even_if_stale: true, ..writing(1, b"a") };
    assert!(matches!(put(&mut record, 9, stale), Err(WriteRefusal::Lost(holders, _)) if holders[0].proof == proof(3)));
}

#[test]
fn a_repeated_request_is_recognized() {
    let mut record = Record::free(b"x");
    put(&mut record, 40, writing(9, b"a")).unwrap();
    let mut again = writing(9, b"a");
    again.credentials.repeated = true;
    assert!(put(&mut record, 41, again).is_ok());
    assert_eq!(versions(&record).0, Some(40), "written once");
    let mut record = held(1);
    let mut unlock = SetValue { require_lock: true, release: true, ..writing(1, b"a") };
    put(&mut record, 41, unlock.clone()).unwrap();
    unlock.credentials.repeated = true;
    assert!(put(&mut record, 42, unlock).is_ok());
    assert_eq!(versions(&record).0, Some(41));
}

#[test]
fn a_condition_is_checked_before_the_wait() {
    let mut record = held(1);
    let absent = |pid| SetValue { precondition: Some(Precondition::Absent), ..writing(pid, b"a") };
    let version = |pid, version| SetValue { precondition: Some(Precondition::Version(version)), ..writing(pid, b"b") };
    assert!(matches!(put(&mut record, 9, absent(9)), Err(WriteRefusal::Busy(_))));
    assert!(matches!(put(&mut record, 9, version(9, 3)), Err(WriteRefusal::VersionMismatch(None))));
    assert!(put(&mut record, 9, absent(1)).is_ok());
    assert!(matches!(put(&mut record, 10, absent(9)), Err(WriteRefusal::VersionMismatch(Some(_)))));
    assert!(matches!(put(&mut record, 10, version(1, 10)), Err(WriteRefusal::VersionMismatch(Some(_)))));
    assert!(put(&mut record, 10, version(1, 9)).is_ok());
}

/// Returns a record whose holders, each after the one before, have ended in this way.
fn ended(pids: std::ops::Range<i32>, reason: EndReason) -> Record {
    let grant = |pid: i32| {
        let mut grant = Grant { proof: proof(pid), since: pid as u64, ..held(1).holders.remove(0) };
        (grant.owner_mut().processes, grant.owner_mut().session) = (vec![ProcessId { pid, start: 1 }], Some(pid));
        grant
    };
    let ended_grants = pids.map(|pid| EndedGrant { grant: grant(pid), reason }).collect();
    Record { ended_grants, ..Record::free(b"x") }
}

#[test]
fn a_process_whose_script_has_ended_writes_only_if_the_script_surely_did_not_have_the_lock() {
    let orphan = |session, since| {
        let mut writing = writing(99, b"a");
        (writing.credentials.proof, writing.credentials.orphan) = (None, Some(Orphan { session, since }));
        writing
    };
    let dead = |record: &Record, writing: &SetValue| {
        let mut facts = Facts::at(7);
        loop {
            match decide(record, writing, &facts) {
                Ok(Transition::Done(response) | Transition::Write { response, .. }) => break response,
                Err(Query::Liveness(domain, process)) => facts.insert_liveness(domain, process, Liveness::Dead),
                Err(query) => panic!("{query:?}"),
            }
        }
    };
    for reason in [EndReason::Died, EndReason::Expired, EndReason::Broken] {
        let record = ended(1..3, reason);
        assert!(matches!(dead(&record, &orphan(2, 0)), Err(WriteRefusal::Lost(..))), "{reason:?}");
        assert!(dead(&record, &orphan(3, 0)).is_ok(), "{reason:?}: another session");
    }
    assert!(dead(&ended(1..3, EndReason::Released), &orphan(2, 0)).is_ok());
    let crowded = ended(11..15, EndReason::Died);
    assert!(matches!(dead(&crowded, &orphan(3, 10)), Err(WriteRefusal::Orphaned(_))), "its ending may be forgotten");
    assert!(dead(&crowded, &orphan(3, 11)).is_ok(), "the endings reach back to its start");
    assert!(put(&mut crowded.clone(), 9, orphan(13, 20)).is_ok(), "that script lives");
    let elsewhere = PidSpace { boot: "other".into(), pids: "p".into() };
    let mut writing = orphan(13, 20);
    writing.credentials.space = elsewhere;
    assert!(matches!(dead(&crowded, &writing), Err(WriteRefusal::Orphaned(_))), "other clocks prove nothing");
}

#[test]
fn the_ending_of_a_grant_stays_until_its_owner_has_the_lock_again_or_dies() {
    let by_owner = |pid: i32| {
        let mut writing = writing(pid, b"a");
        writing.credentials.owners = vec![ProcessId { pid, start: 1 }];
        SetValue { credentials: Credentials { proof: None, ..writing.credentials }, ..writing }
    };
    let mut record = ended(1..2, EndReason::Expired);
    record.ended_grants.extend(ended(2..9, EndReason::Died).ended_grants);
    record = decode(&encode(&record), 20).unwrap();
    assert_eq!(record.ended_grants.len(), 5);
    assert!(matches!(put(&mut record, 21, by_owner(1)), Err(WriteRefusal::Lost(..))));
    assert!(put(&mut record, 22, by_owner(10)).is_ok());
    let mut again = record.clone();
    again.ended_grants.extend(ended(1..2, EndReason::Released).ended_grants);
    assert!(put(&mut again, 23, by_owner(10)).is_ok());
    assert_eq!(again.ended_grants.iter().filter(|ending| ending.is_owed()).count(), 0);
    // So many hosts may have died with the lock.
    record.ended_grants.extend(ended(100..140, EndReason::Expired).ended_grants);
    assert_eq!(decode(&encode(&record), 24).unwrap().ended_grants.len(), 32);
}

#[test]
fn a_write_names_the_grant_that_allows_it() {
    let mut record = held(1);
    assert_eq!(put(&mut record, 2, writing(1, b"a")).unwrap().under, Some(proof(1)));
    assert_eq!(put(&mut Record::free(b"x"), 2, writing(1, b"a")).unwrap().under, None);
}
