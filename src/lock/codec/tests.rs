//! Tests that every field survives encoding and decoding, and that the decoder refuses all other bytes.

use super::auxiliary::*;
use super::*;
use crate::lock::commit_record::CommitRecord;

fn full() -> Record {
    let owner = Owner {
        domain: PidDomain { machine: "m@h".into(), boot: "b".into(), pids: "1.2".into(), net: 3 },
        processes: vec![ProcessId { pid: 1, start: 2 }, ProcessId { pid: 3, start: 4 }],
        supervisor: Some(ProcessId { pid: 17, start: 18 }),
        host: "a host".into(),
        uid: 1000,
        command: b"sh -c 'a %,:\n\xff'".to_vec(),
        label: Some(Vec::new()),
    };
    let lease = Lease { clock: LeaseClock::Boot("b:c".into()), ends: 5, wall: 6 };
    let shared = Lease { clock: LeaseClock::FileSystem(Begun { boot: 0xb, at: 21, span: 22 }), ..lease.clone() };
    let at = Moment { boottime: Duration::from_micros(23), store: Duration::from_micros(24) };
    let grant = Grant {
        proof: crate::lock::Handle::new([1; 16]).proof(),
        token: Some(7),
        mode: Mode::Slot,
        slot: 1,
        owner: owner.clone(),
        lifetime: Lifetime::ExpiresAt(lease.clone()),
        since: 8,
        waited: 15,
        provisional: Some(ProcessId { pid: 9, start: 10 }),
        release_on_exit: true,
        claim: Some(b"id 1\xff".to_vec()),
    };
    let waiter = Waiter {
        proof: crate::lock::Handle::new([2; 16]).proof(),
        mode: Mode::Shared,
        owner: Owner { processes: Vec::new(), supervisor: None, label: None, ..owner },
        process: ProcessId { pid: 11, start: 12 },
        lifetime: Lifetime::Ttl(13),
        needs_confirmation: true,
        release_on_exit: false,
        claim: Some(b"2".to_vec()),
        enclosing_grants: vec![grant.proof],
        blocked_processes: vec![ProcessId { pid: 15, start: 16 }],
        lease: Some(shared.clone()),
        since: 14,
    };
    Record {
        name: b"a\nb".to_vec(),
        slots: Some(3),
        pages: Some(Pages { first: 5, last: 7 }),
        holders: vec![grant.clone()],
        waiters: vec![waiter],
        value: Some(Value {
            version: Some(20),
            token: Some(19),
            size: 3,
            write_id: 0xab,
            mode: Some(0o600),
            inline: Some(b"a\0\n".to_vec()),
        }),
        ended_grants: vec![EndedGrant {
            grant: Grant { lifetime: Lifetime::UntilReleased, ..grant },
            reason: EndReason::Broken,
        }],
        sightings: vec![Sighting { lease: shared, boot: 0xc, at }],
    }
}

#[test]
fn a_record_reads_back() {
    assert_eq!(decode(&encode(&full()), 99), Ok(full()));
}

#[test]
fn a_grant_without_a_token_has_that_of_its_version() {
    let mut record = full();
    record.holders[0].token = None;
    assert_eq!(decode(&encode(&record), 99).unwrap().holders[0].token, Some(99));
}

#[test]
fn a_value_without_a_version_has_that_of_its_record() {
    let mut record = full();
    let written = Value::new(&[b'x'; 1025], 7, None);
    record.value = Some(written.clone());
    let read = decode(&encode(&record), 99).unwrap().value;
    assert_eq!(read, Some(Value { version: Some(99), token: Some(99), ..written }));
    assert_eq!(read.unwrap().inline, None, "so long ones are apart");
}

#[test]
fn a_value_apart_reads_back_and_nothing_else_does() {
    let (writer, key) = (full().holders[0].owner.clone(), Value::key(b"a b", 7));
    for value in [&b""[..], b"\n\n", b"sum 0\n\n\0\xff"] {
        let bytes = encode_value(&key, &writer, value);
        assert_eq!(decode_value(&bytes), Some((writer.clone(), value.to_vec())));
        assert_eq!(name_of_internal(&bytes), Some(key.clone()));
        assert_eq!(decode_value(&[&bytes[..], b"x"].concat()), None);
    }
    assert_eq!(Value::of_key(&key), Some((&b"a b"[..], 7)));
    assert_eq!((Value::of_key(b"a b"), decode_value(&encode(&full()))), (None, None));
}

#[test]
fn no_single_changed_or_missing_byte_goes_unseen() {
    let bytes = encode(&full());
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        assert!(decode(&changed, 1).is_err(), "changed at {at}");
        assert!(decode(&bytes[..at], 1).is_err(), "cut at {at}");
    }
}

#[test]
fn another_format_is_named_and_refused() {
    let said = decode(b"csalock 2\nname x\n", 1).unwrap_err().to_string();
    assert!(said.contains("its format is 2, this csalock knows 1"), "{said}");
}

#[test]
fn a_decision_reads_back_and_nothing_else_does() {
    let key = CommitRecord::key(&full().holders[0].proof);
    for made in [false, true] {
        let decision = CommitRecord { committed: made, names: vec![b"a b".to_vec(), b"\xff".to_vec()] };
        let bytes = encode_decision(&key, &decision);
        assert_eq!((decode_decision(&bytes), name_of_internal(&bytes)), (Some(decision), Some(key.clone())));
        assert_eq!(decode_decision(&bytes[..bytes.len() - 1]), None);
    }
    assert_eq!(CommitRecord::of_key(&key), Some(full().holders[0].proof));
    assert_eq!(decode_decision(&encode(&full())), None);
}

#[test]
fn incompatible_holders_are_not_believed() {
    let wrong = |change: &dyn Fn(&mut Record)| {
        let mut record = full();
        record.holders[0].claim = None;
        let other = Grant { proof: crate::lock::Handle::new([3; 16]).proof(), slot: 2, ..record.holders[0].clone() };
        record.holders.push(other);
        assert_eq!(decode(&encode(&record), 99), Ok(record.clone()));
        change(&mut record);
        let error = decode(&encode(&record), 99).unwrap_err();
        assert_eq!(error.kind(), crate::error::ErrorKind::Corrupt);
        error.message().to_string()
    };
    let both = |record: &mut Record, share: Mode| {
        record.holders.iter_mut().for_each(|grant| (grant.mode, grant.slot) = (share, 0));
    };
    let exclusive = "a lock record is unreadable: it has two exclusive holders";
    assert_eq!(wrong(&|record| both(record, Mode::Exclusive)), exclusive);
    let claim = |record: &mut Record| {
        both(record, Mode::Shared);
        record.holders[1].claim = Some(b"other".to_vec());
    };
    assert_eq!(wrong(&claim), exclusive);
    let excluded = "a lock record is unreadable: its holders exclude each other";
    assert_eq!(wrong(&|record| record.holders[1].mode = Mode::Shared), excluded);
    assert_eq!(wrong(&|record| record.holders[0].mode = Mode::Exclusive), excluded);
    let slot = "a lock record is unreadable: a holder has a slot that it cannot have";
    assert_eq!(wrong(&|record| record.holders[1].slot = 1), slot);
    assert_eq!(wrong(&|record| record.holders[1].slot = 3), slot);
    assert_eq!(wrong(&|record| record.slots = None), slot);
    let shared = |record: &mut Record| {
        both(record, Mode::Shared);
        record.holders[1].slot = 1;
    };
    assert_eq!(wrong(&shared), slot);
    let twice = "a lock record is unreadable: a holder or waiter is there twice";
    assert_eq!(wrong(&|record| record.holders[1].proof = record.holders[0].proof), twice);
    assert_eq!(wrong(&|record| record.waiters[0].proof = record.holders[0].proof), twice);
}
