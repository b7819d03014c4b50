//! Who may write, when, and what version it gets.

use super::*;
use crate::lock::{Ask, Begun, Fate, Grant, Home, Lease, LeaseClock, Party, Process, Proof, Share, Tenure, Waiter};
use crate::lock::{decide, decode, encode};

fn proof(pid: i32) -> Proof {
    crate::lock::Handle::new([pid as u8; 16]).proof()
}

fn home() -> Home {
    Home { machine: "m".into(), boot: "b".into(), pids: "p".into(), net: 1 }
}

/// Held by 1 until the lease that ends then.
fn held(ends: u64) -> Record {
    let owner = Process { pid: 1, start: 1 };
    let party = Party {
        home: home(),
        owners: vec![owner],
        supervisor: None,
        host: "h".into(),
        uid: 0,
        command: Vec::new(),
        label: None,
    };
    let lease = Lease { clock: LeaseClock::FileSystem(Begun::default()), ends, wall: ends };
    let grant = Grant {
        proof: proof(1),
        token: Some(5),
        share: Share::Exclusive,
        slot: 0,
        party,
        tenure: Tenure::Until(lease),
        since: 0,
        waited: 0,
        unconfirmed: None,
        yields: false,
        claim: None,
    };
    Record { holders: vec![grant], ..Record::free(b"x") }
}

fn writing(pid: i32, bytes: &[u8]) -> Writing {
    Writing {
        claimant: Claimant {
            proof: Some(proof(pid)),
            owners: Vec::new(),
            claim: None,
            home: home(),
            supervises: false,
            repeated: false,
        },
        value: Some(Value::new(bytes, u64::from(bytes[0]), None)),
        only_if: None,
        as_holder: false,
        give_back: false,
        even_if_stale: false,
    }
}

/// Puts it to a record at that version, in a world where all live and a lease that ends at 0 is over.
fn put(record: &mut Record, version: u64, writing: Writing) -> Outcome {
    let mut facts = Facts::at(7);
    let step = loop {
        match decide(record, &Ask::Write(writing.clone()), &facts) {
            Ok(step) => break step,
            Err(Wanted::Fate(home, process)) => facts.learn_fate(home, process, Fate::Alive),
            Err(Wanted::Over(lease)) => facts.learn_over(lease.clone(), lease.ends == 0),
            Err(wanted) => panic!("{wanted:?}"),
        }
    };
    match step {
        Step::Done(outcome) => outcome,
        Step::Write { record: next, outcome: Some(outcome), .. } => {
            *record = decode(&encode(&next), version).unwrap();
            outcome
        }
        step => panic!("{step:?}"),
    }
}

fn versions(record: &Record) -> (Option<u64>, Option<u64>) {
    let value = record.value.as_ref().unwrap();
    (value.version, value.token)
}

#[test]
fn the_first_version_is_the_records_and_each_write_adds_one() {
    let mut record = Record::free(b"x");
    assert!(matches!(put(&mut record, 40, writing(9, b"a")), Outcome::Written(..)));
    assert_eq!(versions(&record), (Some(40), Some(40)));
    put(&mut record, 60, writing(9, b"b"));
    assert_eq!(versions(&record), (Some(41), Some(60)));
    let holders = held(1).holders;
    record.holders = holders;
    put(&mut record, 61, writing(1, b"c"));
    assert_eq!(versions(&record), (Some(42), Some(5)), "the token is that of the grant");
    let deleted = put(&mut record, 70, Writing { value: None, ..writing(1, b"d") });
    assert!(matches!(deleted, Outcome::Written(Some(value), _) if value.version == Some(42)));
    assert_eq!(record.value, None);
    assert!(matches!(put(&mut record, 71, Writing { value: None, ..writing(1, b"d") }), Outcome::NoValue));
    put(&mut record, 80, writing(1, b"e"));
    assert_eq!(versions(&record).0, Some(80));
}

#[test]
fn who_does_not_hold_it_waits_and_who_says_he_does_is_refused() {
    let mut record = held(1);
    let before = record.clone();
    assert!(matches!(put(&mut record, 2, writing(9, b"a")), Outcome::Busy(holders) if holders.len() == 1));
    let as_holder = Writing { as_holder: true, ..writing(9, b"a") };
    assert!(matches!(put(&mut record, 2, as_holder.clone()), Outcome::NotOwner(_, None)));
    assert_eq!(record, before);
    assert!(matches!(put(&mut Record::free(b"x"), 2, as_holder), Outcome::NotHeld(None)));
}

#[test]
fn nobody_writes_past_a_queue() {
    let mut record = held(1);
    let party = record.holders.remove(0).party;
    let waiter = Waiter {
        proof: proof(3),
        share: Share::Exclusive,
        process: Process { pid: 3, start: 1 },
        party,
        tenure: Tenure::OwnerLives,
        confirms: false,
        yields: false,
        claim: None,
        under: Vec::new(),
        within: Vec::new(),
        lease: None,
        since: 0,
    };
    record.waiters.push(waiter);
    assert!(matches!(put(&mut record, 2, writing(9, b"a")), Outcome::Busy(_)));
}

#[test]
fn a_grant_that_is_over_writes_only_if_it_says_so_and_was_the_last() {
    let mut record = held(0);
    let unlock = Writing { as_holder: true, give_back: true, ..writing(1, b"a") };
    assert!(matches!(put(&mut record, 9, unlock.clone()), Outcome::NotOwner(holders, Some(_)) if holders.is_empty()));
    assert!(matches!(put(&mut record, 9, writing(1, b"a")), Outcome::NotOwner(_, Some(_))));
    let mut taken_since = record.clone();
    let stale = Writing { even_if_stale: true, ..unlock };
    assert!(matches!(put(&mut record, 9, stale.clone()), Outcome::Written(..)));
    assert!(record.is_free() && record.value.is_some());
    let grant = taken_since.holders.remove(0);
    let of =
        |pid: i32, token, how| Ending { grant: Grant { proof: proof(pid), token: Some(token), ..grant.clone() }, how };
    taken_since.endings = vec![of(1, 5, Ended::Expired), of(2, 6, Ended::Released)];
    assert!(matches!(put(&mut taken_since, 9, stale.clone()), Outcome::NotOwner(_, Some(_))));
    taken_since.endings.pop();
    assert!(matches!(put(&mut taken_since, 9, stale), Outcome::Written(..)));
}

#[test]
fn a_repetition_is_seen_for_what_it_is() {
    let mut record = Record::free(b"x");
    put(&mut record, 40, writing(9, b"a"));
    let mut again = writing(9, b"a");
    again.claimant.repeated = true;
    assert!(matches!(put(&mut record, 41, again), Outcome::Written(..)));
    assert_eq!(versions(&record).0, Some(40), "written once");
    let mut record = held(1);
    let mut unlock = Writing { as_holder: true, give_back: true, ..writing(1, b"a") };
    put(&mut record, 41, unlock.clone());
    unlock.claimant.repeated = true;
    assert!(matches!(put(&mut record, 42, unlock), Outcome::Written(..)));
    assert_eq!(versions(&record).0, Some(41));
}

#[test]
fn a_condition_is_looked_at_before_anybody_waits() {
    let mut record = held(1);
    let absent = |pid| Writing { only_if: Some(OnlyIf::Absent), ..writing(pid, b"a") };
    let version = |pid, version| Writing { only_if: Some(OnlyIf::Version(version)), ..writing(pid, b"b") };
    assert!(matches!(put(&mut record, 9, absent(9)), Outcome::Busy(_)));
    assert!(matches!(put(&mut record, 9, version(9, 3)), Outcome::OtherValue(None)));
    assert!(matches!(put(&mut record, 9, absent(1)), Outcome::Written(..)));
    assert!(matches!(put(&mut record, 10, absent(9)), Outcome::OtherValue(Some(_))));
    assert!(matches!(put(&mut record, 10, version(1, 10)), Outcome::OtherValue(Some(_))));
    assert!(matches!(put(&mut record, 10, version(1, 9)), Outcome::Written(..)));
}
