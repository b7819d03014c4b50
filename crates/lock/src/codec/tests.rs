//! Tests that every field survives encoding and decoding, and that the decoder refuses all other bytes.

use std::num::NonZeroU32;
use std::time::Duration;

use super::*;
use crate::{
    ClockReading, CommitRecord, EndReason, EndRequest, EndedGrant, Grant, JobState, Lease, LeaseStart, Lifetime, Mode,
    Owner, Pages, PidDomain, ProcessId, Promise, Replacement, Runs, Sighting, Success, Value, Waiter,
};

fn full() -> Record {
    let owner = Owner {
        domain: PidDomain { machine: "m@h".into(), boot: "b".into(), pids: "1.2".into(), net: 3 },
        processes: vec![ProcessId { pid: 1, start: 2 }, ProcessId { pid: 3, start: 4 }],
        supervisor: Some(ProcessId { pid: 17, start: 18 }),
        outlives_lock: false,
        session: Some(19),
        host: "a host".into(),
        uid: 1000,
        command: b"sh -c 'a %,:\n\xff'".to_vec(),
        label: Some(Vec::new()),
    };
    let lease = Lease { clock: LeaseClock::Boot("b:c".into()), ends: 5, wall: 6 };
    let shared = Lease { clock: LeaseClock::FileSystem(LeaseStart { boot: 0xb, at: 21, span: 22 }), ..lease.clone() };
    let at = ClockReading { boottime: Duration::from_micros(23), store: Duration::from_micros(24) };
    let grant = Grant {
        proof: crate::Handle::new([1; 16]).proof(),
        token: Some(u64::MAX),
        mode: Mode::Slot,
        slot: 1,
        owner: owner.clone().into(),
        lifetime: Lifetime::ExpiresAt(lease.clone()),
        since: 8,
        waited: 15,
        provisional: Some(ProcessId { pid: 9, start: 10 }),
        release_on_exit: true,
        claim: Some(b"id 1\xff".to_vec()),
        latest_only: true,
        end_request: Some(EndRequest { by: owner.clone(), replaces: true }.into()),
    };
    let waiter = Waiter {
        proof: crate::Handle::new([2; 16]).proof(),
        mode: Mode::Shared,
        slots: NonZeroU32::new(4),
        owner: Owner { processes: Vec::new(), supervisor: None, label: None, ..owner }.into(),
        process: ProcessId { pid: 11, start: 12 },
        lifetime: Lifetime::Ttl(13),
        needs_confirmation: true,
        release_on_exit: false,
        claim: Some(b"2".to_vec()),
        latest_only: true,
        enclosing_grants: vec![grant.proof],
        blocked_processes: vec![ProcessId { pid: 15, start: 16 }],
        lease: Some(shared.clone()),
        was_frozen: false,
        since: 14,
    };
    Record {
        is_copy: false,
        name: b"a\nb".to_vec(),
        slots: Some(3),
        pages: Some(Pages { first: 5, last: 7 }),
        holders: vec![grant.clone()],
        replacement: Some(Replacement { by: waiter.proof, waiters: vec![grant.proof] }),
        waiters: vec![waiter],
        value: Some(Value {
            version: Some(20),
            token: Some(19),
            size: 3,
            write_id: 0xab,
            mode: Some(0o600),
            inline: Some(b"a\0\n".to_vec()),
        }),
        job: Some(JobState {
            success: Some(Success { at: 21, slot: Some(22), host: "h".to_string() }),
            runs: Some(Runs { slot: 23, count: 24, last: grant.proof, began: 25, most: 26, told: Some(grant.proof) }),
            promise: Some(Promise { span: 25, since: 26, complained: Some(27), by: Some(grant.proof), refused: 28 }),
        }),
        ended_grants: vec![EndedGrant {
            grant: Grant { lifetime: Lifetime::UntilReleased, ..grant },
            reason: EndReason::Broken,
        }],
        sightings: vec![Sighting { lease: shared, boot: 0xc, at }],
    }
}

#[test]
fn a_record_reads_back_without_the_words_of_ended_grants() {
    let written = full();
    let mut read = decode(&encode(&written), 99).unwrap();
    assert_eq!(read, committed(&written, 99));
    let ended = &mut read.ended_grants[0].grant;
    assert_eq!((&ended.owner.command[..], &ended.owner.label, &ended.end_request), (&b""[..], &None, &None));
    *ended = written.ended_grants[0].grant.clone();
    assert_eq!(read, written);
}

/// Earlier versions of this format wrote the commands of ended grants.
#[test]
fn a_record_of_an_earlier_version_reads_back() {
    let bytes = seal(RECORD, &full().name, &full());
    assert_eq!(decode(&bytes, 99), Ok(full()));
}

#[test]
fn a_record_is_a_line_of_json() {
    let mut record = Record { holders: full().holders, ..Record::free(b"a \"\\%\xff") };
    (record.holders[0].mode, record.holders[0].slot) = (Mode::Exclusive, 0);
    let line = String::from_utf8(encode(&record)).unwrap();
    let written = concat!(
        r#"{"csalock":3,"sum":"SUM","name":"a \"\\%25%FF","holders":[{"#,
        r#""proof":"HASH","token":18446744073709551615,"mode":"exclusive","owner":{"domain":{"machine":"m@h","#,
        r#""boot":"b","pids":"1.2","net":3},"processes":["1:2","3:4"],"#,
        r#""supervisor":"17:18","session":19,"host":"a host","uid":1000,"command":"sh -c 'a %25,:%0A%FF'","label":""},"#,
        r#""lifetime":{"expires_at":{"clock":{"boot":"b:c"},"ends":5,"wall":6}},"since":8,"waited":15,"#,
        r#""provisional":"9:10","latest_only":true,"release_on_exit":true,"claim":"id 1%FF","end_request":{"by":{"domain":{"machine":"m@h","#,
        r#""boot":"b","pids":"1.2","net":3},"processes":["1:2","3:4"],"#,
        r#""supervisor":"17:18","session":19,"host":"a host","uid":1000,"command":"sh -c 'a %25,:%0A%FF'","label":""},"#,
        r#""replaces":true}}]}"#,
        "\n"
    );
    let (sum, proof) = (&line[20..36], record.holders[0].proof.to_string());
    assert_eq!(line, written.replace("SUM", sum).replace("HASH", &proof));
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

/// A process that goes on from its own commit must not bring back what the store dropped.
#[test]
fn a_record_that_was_committed_equals_the_next_read() {
    let mut record = full();
    (record.holders[0].token, record.holders[0].claim) = (None, None);
    let ending = EndedGrant { reason: EndReason::Died, grant: record.holders[0].clone() };
    for token in 31..=37 {
        let mut ending = ending.clone();
        ending.grant.token = Some(token);
        ending.grant.owner_mut().supervisor = None;
        record.ended_grants.push(ending);
    }
    record.sightings[0].lease.ends += 1;
    record.replacement = Some(Replacement { by: crate::Handle::new([3; 16]).proof(), waiters: Vec::new() });
    let read = decode(&encode(&record), 99).unwrap();
    assert_eq!(committed(&record, 99), read);
    let endings: Vec<_> = read.ended_grants.iter().map(|ending| ending.grant.token).collect();
    assert_eq!(endings, [u64::MAX, 34, 35, 36, 37].map(Some));
}

#[test]
fn a_value_apart_reads_back_and_nothing_else_does() {
    let (writer, key) = (full().holders[0].owner.as_ref().clone(), Value::key(b"a b", 7));
    for value in [&b""[..], b"\n\n", b"sum 0\n\n\0\xff"] {
        let bytes = encode_value(&key, &writer, value);
        assert_eq!(decode_value(&bytes), Ok(Some((writer.clone(), value.to_vec()))));
        assert_eq!(name_of_auxiliary(&bytes), Some(key.clone()));
        assert_eq!(decode_value(&[&bytes[..], b"x"].concat()), Ok(None));
    }
    assert_eq!(Value::of_key(&key), Some((&b"a b"[..], 7)));
    assert_eq!((Value::of_key(b"a b"), decode_value(&encode(&full()))), (None, Ok(None)));
}

#[test]
fn no_single_changed_or_missing_byte_goes_unseen() {
    let bytes = encode(&full());
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        if changed.starts_with(b"{\"csalock\":2,") {
            // The number of the format is not among what the checksum covers, and the line says the same in both.
            assert_eq!(decode(&changed, 1), decode(&bytes, 1));
        } else {
            assert!(decode(&changed, 1).is_err(), "changed at {at}");
        }
        assert!(decode(&bytes[..at], 1).is_err(), "cut at {at}");
    }
}

/// Returns the error for the full record with `from` replaced by `to`, and with the correct checksum.
fn respelled(from: &str, to: &str) -> String {
    let line = String::from_utf8(encode(&full())).unwrap();
    let (_, fields) = line.trim_end().split_once("\",").unwrap();
    assert_eq!(fields.matches(from).count(), 1, "{from}: {fields}");
    let fields = fields.replace(from, to);
    let line = format!("{{\"csalock\":3,\"sum\":\"{:016x}\",{fields}\n", checksum(fields.as_bytes()));
    decode(line.as_bytes(), 1).map_or_else(|error| error.message().to_string(), |_| String::new())
}

/// End of the full record.
const END: &str = "\"nanos\":24000}}}]}";

#[test]
fn what_a_reader_may_ignore_comes_last() {
    for optional in ["{}", "{\"colour\":\"red\",\"deep\":[{\"a\":null}]}"] {
        let to = END.replacen("]}", &format!("],\"optional\":{optional}}}"), 1);
        assert_eq!(respelled(END, &to), "", "{to}");
    }
}

#[test]
fn a_record_of_the_oldest_format_is_written_in_the_newest() {
    let written = String::from_utf8(encode(&full())).unwrap();
    let old = written.replacen("\"csalock\":3", "\"csalock\":2", 1);
    let read = decode(old.as_bytes(), 99).unwrap();
    assert_eq!((String::from_utf8(encode(&read)).unwrap(), read), (written, committed(&full(), 99)));
}

#[test]
fn a_record_has_only_one_spelling() {
    assert_eq!(respelled("\"slots\":3", "\"slots\":3"), "");
    for (from, to) in [
        ("\"slots\":3", "\"slots\": 3"),
        ("\"slots\":3", "\"slots\":3.0"),
        ("\"slots\":3", "\"slots\":3,\"slots\":3"),
        ("\"slots\":3", "\"slots\":3,\"more\":[[[]]]"),
        (END, "\"nanos\":24000}}}],\"more\":{}}"),
        (END, "\"nanos\":24000}}}],\"optional\":[]}"),
        (END, "\"nanos\":24000}}}],\"optional\":{},\"more\":1}"),
        (END, "\"nanos\":24000}}}],\"optional\":{},\"optional\":{}}"),
        ("\"slots\":3", "\"slots\":3,\"optional\":{}"),
        ("\"mode\":384,", ""),
        ("\"needs_confirmation\":true", "\"needs_confirmation\":true,\"release_on_exit\":false"),
        ("\"process\":\"11:", "\"process\":\"+11:"),
        ("\"name\":\"a%0Ab\"", "\"name\":\"%61%0Ab\""),
        ("\"name\":\"a%0Ab\"", "\"name\":\"a%0ab\""),
        ("\"name\":\"a%0Ab\"", "\"name\":\"\\u0061%0Ab\""),
        ("\"name\":\"a%0Ab\"", "\"name\":\"a%0\""),
        ("\"name\":\"a%0Ab\"", "\"name\":\"\""),
        ("\"reason\":\"broken\"", "\"reason\":\"Broken\""),
    ] {
        assert!(respelled(from, to).starts_with(OF_OTHER_VERSION), "{from} {to}: {}", respelled(from, to));
    }
}

/// The beginning of the error for a record with the right checksum.
const OF_OTHER_VERSION: &str =
    "written by another version of csalock: this csalock does not know its form; held by pid 1 on a host";

#[test]
fn numbers_that_the_rules_cannot_compute_with_are_refused() {
    for (from, to) in [
        ("\"slots\":3", "\"slots\":0"),
        ("\"slots\":4", "\"slots\":0"),
        ("\"pages\":{\"first\":5", "\"pages\":{\"first\":8"),
        ("\"pages\":{\"first\":5,\"last\":7", "\"pages\":{\"first\":5,\"last\":10005"),
        ("\"version\":20", "\"version\":18446744073709551615"),
        ("\"size\":3", "\"size\":4"),
        ("\"process\":\"11:", "\"process\":\"0:"),
        ("\"process\":\"11:", "\"process\":\"-11:"),
        ("\"process\":\"11:", "\"process\":\"4294967307:"),
    ] {
        assert!(respelled(from, to).starts_with(OF_OTHER_VERSION), "{from} {to}: {}", respelled(from, to));
    }
}

#[test]
fn lines_without_end_are_refused() {
    for deep in ["[", "{\"a\":", "{\"holders\":[", "\"name\":[[[["] {
        let fields = deep.repeat((MOST_BYTES - 100) / deep.len());
        let line = format!("{{\"csalock\":3,\"sum\":\"{:016x}\",{fields}\n", checksum(fields.as_bytes()));
        assert_eq!(decode(line.as_bytes(), 1).unwrap_err().kind(), crate::error::ErrorKind::Corrupt, "{deep}");
        assert_eq!(name_of_auxiliary(line.as_bytes()), None, "{deep}");
    }
}

#[test]
fn another_format_is_named_and_refused() {
    for (line, format) in [("csalock 1\nname x\n", 1), ("{\"csalock\":4,\"name\":\"x\"}\n", 4)] {
        let error = decode(line.as_bytes(), 1).unwrap_err();
        assert!(error.to_string().contains(&format!("its format is {format}, this csalock knows 2 to 3")), "{error}");
        assert!(error.is_of_other_version(), "{error}");
    }
}

#[test]
fn a_decision_reads_back_and_nothing_else_does() {
    let key = CommitRecord::key(&full().holders[0].proof);
    for made in [false, true] {
        let decision = CommitRecord { committed: made, names: vec![b"a b".to_vec(), b"\xff".to_vec()] };
        let bytes = encode_auxiliary(&key, &decision);
        assert_eq!((decode_auxiliary(&bytes), name_of_auxiliary(&bytes)), (Ok(Some(decision)), Some(key.clone())));
        assert_eq!(decode_auxiliary::<CommitRecord>(&bytes[..bytes.len() - 1]), Ok(None));
        let other = String::from_utf8(bytes).unwrap().replacen(":3,", ":4,", 1);
        assert!(decode_auxiliary::<CommitRecord>(other.as_bytes()).unwrap_err().is_of_other_version());
    }
    assert_eq!(CommitRecord::of_key(&key), Some(full().holders[0].proof));
    assert_eq!(decode_auxiliary::<CommitRecord>(&encode(&full())), Ok(None));
}

#[test]
fn incompatible_holders_are_not_believed() {
    let wrong = |change: &dyn Fn(&mut Record)| {
        let mut record = full();
        record.holders[0].claim = None;
        let other = Grant { proof: crate::Handle::new([3; 16]).proof(), slot: 2, ..record.holders[0].clone() };
        record.holders.push(other);
        assert_eq!(decode(&encode(&record), 99), Ok(committed(&record, 99)));
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
