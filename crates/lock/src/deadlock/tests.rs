//! Tests of cycles drawn by hand. Every process lives; process N holds and waits with its own handle hash.

use super::*;
use crate::{Handle, Lease, LeaseClock, LeaseStart, Liveness, Mode, Owner, PidDomain, ProcessId};
use std::num::NonZeroU32;

fn proof(pid: i32) -> HandleHash {
    Handle::new([pid as u8; 16]).proof()
}

fn owner(pid: i32) -> Owner {
    let domain = PidDomain { machine: "m".into(), boot: "b".into(), pids: "p".into(), net: 1 };
    let owners = vec![ProcessId { pid, start: 1 }];
    Owner {
        domain,
        processes: owners,
        supervisor: None,
        outlives_lock: false,
        session: None,
        host: "h".into(),
        uid: 0,
        command: Vec::new(),
        label: None,
    }
}

fn holds(pid: i32, share: Mode, slot: u32) -> Grant {
    Grant {
        proof: proof(pid),
        token: Some(1),
        mode: share,
        slot,
        owner: owner(pid).into(),
        lifetime: Lifetime::WhileOwnerLives,
        since: 0,
        waited: 0,
        provisional: None,
        release_on_exit: false,
        claim: None,
        latest_only: false,
        end_request: None,
    }
}

/// Returns a waiter of a script, which waits by a process of its own with the script's pid plus 100.
fn waits(pid: i32, share: Mode) -> Waiter {
    Waiter {
        proof: proof(pid + 100),
        mode: share,
        owner: owner(pid).into(),
        slots: NonZeroU32::new(2).filter(|_| share == Mode::Slot),
        process: ProcessId { pid: pid + 100, start: 1 },
        lifetime: Lifetime::WhileOwnerLives,
        needs_confirmation: true,
        release_on_exit: false,
        claim: None,
        latest_only: false,
        enclosing_grants: Vec::new(),
        blocked_processes: vec![ProcessId { pid, start: 1 }],
        lease: None,
        was_frozen: false,
        since: pid as u64,
    }
}

fn record(name: &str, holders: Vec<Grant>, waiters: Vec<Waiter>) -> Record {
    let slots = holders.iter().any(|grant| grant.mode == Mode::Slot).then_some(2);
    Record { slots, holders, waiters, ..Record::free(name.as_bytes()) }
}

/// Returns the locks and the victim of the cycle that contains the wait of `pid`, among all waits of these records.
fn found(pid: i32, records: &[Record]) -> Option<(Vec<String>, i32)> {
    let mut all: Vec<WaitNode> = Vec::new();
    for record in records {
        for waiter in &record.waiters {
            let wait = WaitNode { name: record.name.clone(), record: record.clone(), waiter: waiter.clone() };
            let at = if waiter.owner.processes[0].pid == pid { 0 } else { all.len() };
            all.insert(at, wait);
        }
    }
    let mut facts = Facts::default();
    let cycle = loop {
        match find_cycle(&all, &facts) {
            Ok(found) => break found?,
            Err(Query::Liveness(domain, process)) => facts.insert_liveness(domain, process, Liveness::Alive),
            Err(query) => panic!("{query:?}"),
        }
    };
    let names = cycle.edges.iter().map(|link| String::from_utf8(link.name.clone()).unwrap()).collect();
    let victim = all.iter().find(|wait| wait.waiter.proof == cycle.victim).unwrap();
    Some((names, victim.waiter.owner.processes[0].pid))
}

const ALONE: Mode = Mode::Exclusive;

fn names(names: &str) -> Vec<String> {
    names.chars().map(|name| name.to_string()).collect()
}

#[test]
fn two_waiters_in_a_cycle_agree_on_the_victim() {
    let a = record("a", vec![holds(1, ALONE, 0)], vec![waits(2, ALONE)]);
    let b = record("b", vec![holds(2, ALONE, 0)], vec![waits(1, ALONE)]);
    assert_eq!(found(1, &[a.clone(), b.clone()]), Some((names("ba"), 2)));
    assert_eq!(found(2, &[a.clone(), b]), Some((names("ab"), 2)));
    assert_eq!(found(2, &[a]), None);
}

#[test]
fn a_cycle_of_many_locks() {
    let ring: Vec<Record> = (1..=5)
        .map(|pid| {
            record(
                &"abcde"[pid as usize - 1..pid as usize],
                vec![holds(pid, ALONE, 0)],
                vec![waits(pid % 5 + 1, ALONE)],
            )
        })
        .collect();
    for pid in 1..=5 {
        let (links, victim) = found(pid, &ring).unwrap();
        assert_eq!((links.len(), victim), (5, 5), "{pid}");
    }
    assert_eq!(found(1, &ring[1..]), None);
}

#[test]
fn a_waiter_behind_a_cycle_is_not_in_it() {
    let a = record("a", vec![holds(1, ALONE, 0)], vec![waits(2, ALONE), waits(9, ALONE)]);
    let b = record("b", vec![holds(2, ALONE, 0)], vec![waits(1, ALONE)]);
    assert_eq!(found(9, &[a.clone(), b.clone()]), None);
    assert_eq!(found(1, &[a, b]).unwrap().1, 2);
}

#[test]
fn a_slot_that_another_holder_may_release_is_not_a_cycle() {
    let stuck = |other: i32| {
        let a = record("a", vec![holds(1, ALONE, 0)], vec![waits(2, ALONE)]);
        let b = record("b", vec![holds(2, Mode::Slot, 0), holds(other, Mode::Slot, 1)], vec![waits(1, Mode::Slot)]);
        let c = record("c", vec![holds(1, ALONE, 0)], vec![waits(3, ALONE)]);
        found(1, &[a, b, c])
    };
    assert_eq!(stuck(4), None);
    assert!(stuck(3).is_some());
}

#[test]
fn readers_are_held_up_by_the_writer_before_them() {
    let a = |before: Vec<Waiter>| {
        let waiters = [before, vec![waits(2, Mode::Shared)]].concat();
        record("a", vec![holds(1, Mode::Shared, 0)], waiters)
    };
    let b = record("b", vec![holds(2, ALONE, 0)], vec![waits(1, ALONE)]);
    assert_eq!(found(1, &[a(Vec::new()), b.clone()]), None);
    assert!(found(1, &[a(vec![waits(3, ALONE)]), b]).is_some());
}

#[test]
fn one_stuck_reader_blocks_a_writer() {
    let a = record("a", vec![holds(1, Mode::Shared, 0), holds(3, Mode::Shared, 0)], vec![waits(2, ALONE)]);
    let b = record("b", vec![holds(2, ALONE, 0)], vec![waits(1, ALONE)]);
    assert!(found(1, &[a, b]).is_some());
}

#[test]
fn a_lease_ends_by_itself() {
    let lease = Lease { clock: LeaseClock::FileSystem(LeaseStart::default()), ends: 5, wall: 5 };
    let grant = Grant { lifetime: Lifetime::ExpiresAt(lease), ..holds(1, ALONE, 0) };
    let a = record("a", vec![grant], vec![waits(2, ALONE)]);
    let b = record("b", vec![holds(2, ALONE, 0)], vec![waits(1, ALONE)]);
    assert_eq!(found(1, &[a, b]), None);
}

#[test]
fn a_cycle_closes_through_the_enclosing_grants() {
    let under = Waiter { enclosing_grants: vec![proof(1)], ..waits(7, ALONE) };
    let a = record("a", vec![holds(1, ALONE, 0)], vec![waits(2, ALONE)]);
    let b = record("b", vec![holds(2, ALONE, 0)], vec![under.clone()]);
    assert_eq!(found(7, &[a.clone(), b]), Some((names("ba"), 7)));
    let own = record("a", vec![holds(1, ALONE, 0)], vec![under]);
    assert_eq!(found(7, &[own]), Some((names("a"), 7)));
}
