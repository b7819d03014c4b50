//! The promises that one process can see.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use host::Host;
use lock::error::{Error, ErrorKind};
use lock::history::HistoryLimits;
use lock::{Lease, LeaseClock, LeaseStart};
use store::{Call, CommitResult, Durability, LinesOfHistory, Scope, Swept, Version, Versioned, WriteOptions, WriteSet};

use crate::{Effects, Rig, stored};

const SECOND: Duration = Duration::from_secs(1);

const DURABILITIES: [Durability; 3] = [Durability::Volatile, Durability::Atomic, Durability::Durable];

pub fn a_record_that_was_never_written_is_absent(rig: &Rig) {
    assert_eq!(rig.store.read(Call::default(), b"x").unwrap(), None);
    rig.put(b"y", None, b"body");
    assert_eq!(rig.store.read(Call::default(), b"x").unwrap(), None);
}

pub fn a_written_record_is_read_back(rig: &Rig) {
    let version = rig.put(b"x", None, b"one");
    assert_eq!(rig.store.read(Call::default(), b"x").unwrap(), Some(Versioned::new(version, b"one".to_vec())));
    let version = rig.put(b"x", Some(&version), b"two");
    assert_eq!(rig.store.read(Call::default(), b"x").unwrap(), Some(Versioned::new(version, b"two".to_vec())));
}

pub fn the_first_swap_expects_none(rig: &Rig) {
    let version = rig.put(b"x", None, b"first");
    assert!(!rig.store.swap(b"x", None, Some(b"second")).unwrap().is_done());
    assert!(!rig.store.swap(b"x", None, None).unwrap().is_done());
    assert_eq!(rig.store.read(Call::default(), b"x").unwrap().map(|stored| stored.version), Some(version));
}

pub fn a_stale_version_conflicts_and_changes_nothing(rig: &Rig) {
    let stale = rig.put(b"x", None, b"one");
    let version = rig.put(b"x", Some(&stale), b"two");
    assert!(!rig.store.swap(b"x", Some(&stale), Some(b"three")).unwrap().is_done());
    assert!(!rig.store.swap(b"x", Some(&stale), None).unwrap().is_done());
    assert_eq!(rig.store.read(Call::default(), b"x").unwrap().map(|stored| stored.version), Some(version));
    assert_eq!(rig.body(b"x"), Some(b"two".to_vec()));
    assert_eq!(rig.bodies(), [b"two"]);
}

pub fn a_version_that_never_was_conflicts(rig: &Rig) {
    let version = rig.put(b"x", None, b"one");
    for wrong in [
        Version { mark: version.mark.wrapping_add(1), ..version },
        Version { number: version.number + 1, ..version },
        Version { number: u64::MAX, ..version },
        Version { number: 0, mark: 0 },
    ] {
        assert!(!rig.store.swap(b"x", Some(&wrong), Some(b"two")).unwrap().is_done(), "{wrong:?}");
        assert!(!rig.store.swap(b"x", Some(&wrong), None).unwrap().is_done(), "{wrong:?}");
    }
    assert_eq!(rig.body(b"x"), Some(b"one".to_vec()));
}

pub fn an_absent_record_cannot_be_removed_as_if_it_were_there(rig: &Rig) {
    let version = rig.put(b"x", None, b"one");
    for expect in [version, Version { number: 0, mark: 0 }] {
        assert!(!rig.store.swap(b"y", Some(&expect), None).unwrap().is_done());
        assert!(!rig.store.swap(b"y", Some(&expect), Some(b"two")).unwrap().is_done());
    }
    rig.remove(b"x", &version);
    assert!(!rig.store.swap(b"x", Some(&version), None).unwrap().is_done());
    assert!(!rig.store.swap(b"x", Some(&version), Some(b"two")).unwrap().is_done());
    assert_eq!(rig.bodies(), [b""; 0]);
}

pub fn a_conflict_passes_on_the_record_as_it_is(rig: &Rig) {
    let other = rig.again();
    rig.put(b"y", None, b"so that the store stays");
    let conflict = |expect: &Version, body: Option<&[u8]>| {
        let CommitResult::Conflict(found) =
            rig.store.commit(Call::default(), &WriteSet::of(b"x", Some(expect), body)).unwrap()
        else {
            panic!("a stale version was changed")
        };
        found.map(|found| (found.version, found.body))
    };
    for body in [None, Some(&b"late"[..])] {
        let stale = rig.put(b"x", None, b"one");
        let next = stored(other.commit_and_finish(&WriteSet::of(b"x", Some(&stale), Some(b"two"))).unwrap());
        for _ in 0..2 {
            assert_eq!(conflict(&stale, body), Some((next, b"two".to_vec())));
        }
        // The record that was passed on is the basis of the next commit.
        let version = rig.put(b"x", Some(&next), b"three");
        rig.remove(b"x", &version);
    }
}

pub fn an_absence_that_another_opener_ended_conflicts(rig: &Rig) {
    let other = rig.again();
    rig.put(b"y", None, b"so that the store stays");
    for body in [None, Some(&b"ours"[..])] {
        // The name was never used, and then it was used.
        for _ in 0..2 {
            assert_eq!(rig.store.read(Call::default(), b"x").unwrap(), None);
            let version = stored(other.commit_and_finish(&WriteSet::of(b"x", None, Some(b"theirs"))).unwrap());
            assert!(!rig.store.commit_and_finish(&WriteSet::of(b"x", None, body)).unwrap().is_done());
            assert_eq!(rig.body(b"x"), Some(b"theirs".to_vec()));
            rig.remove(b"x", &version);
        }
    }
}

pub fn a_removed_record_is_absent_and_its_next_number_is_greater_than_all_before(rig: &Rig) {
    let mut highest = 0;
    for _ in 0..20 {
        let born = rig.put(b"x", None, b"one");
        assert!(born.number > highest, "{} after {highest}", born.number);
        let changed = rig.put(b"x", Some(&born), b"two");
        assert!(changed.number > born.number);
        highest = changed.number;
        rig.remove(b"x", &changed);
        assert_eq!(rig.store.read(Call::default(), b"x").unwrap(), None);
        assert_eq!(rig.bodies(), [b""; 0]);
    }
}

pub fn numbers_grow_and_no_two_versions_are_equal(rig: &Rig) {
    let mut seen = Vec::new();
    for _ in 0..10 {
        let mut version = rig.put(b"x", None, b"body");
        for _ in 0..10 {
            seen.push(version);
            version = rig.put(b"x", Some(&version), b"body");
        }
        seen.push(version);
        rig.remove(b"x", &version);
    }
    assert!(seen.windows(2).all(|pair| pair[0].number < pair[1].number), "{seen:?}");
}

pub fn names_of_every_kind_are_records_of_their_own(rig: &Rig) {
    let mut names: Vec<Vec<u8>> = (1..=255).map(|byte| vec![byte]).collect();
    names.extend((1..=255).map(|byte| vec![b'a', byte]));
    let odd = b"..|...|./x|../x|/|//|/x|x/|a/b|a//b|--|-rf|~x|~root|a\n|a\nb|a b| a|a |\xff\xfe|\xc3\xa9|e\xcc\x81|\
        nightly|Nightly|NIGHTLY|%2F|%2f|a%2Fb|a%2fb|%252F|%20|a%20b|%|%%|%2|%2E%2E|%7E|.work|.csalock|\
        cur.1.x|rec.x|end.1.x|'|''; --|\"|\\|*|$(x)|x'61'|NULL|0|1|1.0|1e0";
    names.extend(odd.split(|byte| *byte == b'|').map(<[u8]>::to_vec));
    for length in [199, 200, 201, 254, 255, 256, 1023, 1024] {
        for byte in [b'x', b'%', b'/', b'.', 0xff] {
            names.push(vec![byte; length]);
            names.push([vec![byte; length - 1], vec![b'y']].concat());
        }
    }
    names.sort();
    names.dedup();
    let mut versions = BTreeMap::new();
    for name in &names {
        versions.insert(name.clone(), rig.put(name, None, &[b"of ", &name[..]].concat()));
    }
    // However a directory calls its records, that too is a name like any other.
    if let Some(Ok(listing)) = rig.place.path().map(fs::read_dir) {
        for entry in listing {
            let name = std::os::unix::ffi::OsStringExt::into_vec(entry.unwrap().file_name());
            if !versions.contains_key(&name) {
                versions.insert(name.clone(), rig.put(&name, None, &[b"of ", &name[..]].concat()));
            }
        }
    }
    for (name, version) in &versions {
        let stored = rig.store.read(Call::default(), name).unwrap().unwrap();
        assert_eq!((&stored.version, stored.body), (version, [b"of ", &name[..]].concat()), "{name:?}");
    }
    let mut bodies: Vec<_> = versions.keys().map(|name| [b"of ", &name[..]].concat()).collect();
    bodies.sort();
    assert_eq!(rig.bodies(), bodies);
    for (name, version) in &versions {
        rig.remove(name, version);
        assert_eq!(rig.store.read(Call::default(), name).unwrap(), None, "{name:?}");
    }
    assert_eq!(rig.bodies(), [b""; 0]);
}

pub fn bodies_of_every_size_are_kept_exactly(rig: &Rig) {
    let mut version = rig.put(b"x", None, b"");
    assert_eq!(rig.body(b"x"), Some(Vec::new()));
    for size in [1, 100, 511, 512, 513, 4000, 4095, 4096, 4097, 65_535, 65_536, 1_000_003, 1 << 20, 3, 0] {
        let body: Vec<u8> = (0..size as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        version = rig.put(b"x", Some(&version), &body);
        assert!(rig.body(b"x") == Some(body), "{size} bytes");
    }
}

pub fn a_scan_sees_every_record_once(rig: &Rig) {
    let mut expected = Vec::new();
    for number in 0..700 {
        let name = format!("record {number}");
        rig.put(name.as_bytes(), None, name.as_bytes());
        expected.push(name.into_bytes());
    }
    expected.sort();
    assert_eq!(rig.bodies(), expected);
    let mut versions_agree = true;
    let mut visit = |_: &str, stored: lock::error::Result<Versioned>| {
        let stored = stored?;
        versions_agree &= rig.store.read(Call::default(), &stored.body)?.as_ref() == Some(&stored);
        Ok(())
    };
    rig.store.scan(Call::default(), &mut visit).unwrap();
    assert!(versions_agree);
}

pub fn a_scan_stops_on_request(rig: &Rig) {
    for number in 0..10 {
        rig.put(&[number + 1], None, b"body");
    }
    let mut visits = 0;
    let stopped = rig.store.scan(Call::default(), &mut |_, _| {
        visits += 1;
        if visits < 3 { Ok(()) } else { Err(Error::new(ErrorKind::Bug, "stop", "")) }
    });
    assert_eq!((stopped.map_err(|error| error.kind()), visits), (Err(ErrorKind::Bug), 3));
}

pub fn a_scan_may_remove_the_records_that_it_sees(rig: &Rig) {
    for number in 0..600 {
        let name = format!("record {number}");
        rig.put(name.as_bytes(), None, name.as_bytes());
    }
    let mut visits = 0;
    let mut visit = |_: &str, found: lock::error::Result<Versioned>| {
        let found = found?;
        stored(rig.store.swap(&found.body, Some(&found.version), None)?);
        visits += 1;
        Ok(())
    };
    rig.store.scan(Call::default(), &mut visit).unwrap();
    assert_eq!(visits, 600);
    assert_eq!(rig.bodies(), [b""; 0]);
}

pub fn a_scan_sees_a_lasting_record_once_while_others_come_and_go(rig: &Rig) {
    let mut expected = Vec::new();
    for number in 0..300 {
        let name = format!("stays {number}");
        rig.put(name.as_bytes(), None, name.as_bytes());
        expected.push(name.into_bytes());
    }
    expected.sort();
    let (scanned, rounds) = (AtomicBool::new(false), AtomicU32::new(0));
    let other = rig.again();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !scanned.load(Ordering::Relaxed) {
                for number in 0..20 {
                    let name = format!("{} goes {number}", char::from(b'a' + number));
                    let born = stored(other.swap(name.as_bytes(), None, Some(b"goes")).unwrap());
                    let changed = stored(other.swap(name.as_bytes(), Some(&born), Some(b"goes soon")).unwrap());
                    stored(other.swap(name.as_bytes(), Some(&changed), None).unwrap());
                }
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        while rounds.load(Ordering::Relaxed) < 20 {
            let mut bodies = rig.bodies();
            bodies.retain(|body| !body.starts_with(b"goes"));
            assert_eq!(bodies, expected);
        }
        scanned.store(true, Ordering::Relaxed);
    });
}

pub fn opening_and_asking_create_nothing(rig: &Rig) {
    let before = rig.footprint();
    let store = rig.again();
    assert_eq!(store.read(Call::default(), b"x").unwrap(), None);
    store
        .scan(Call::default(), &mut |place, _| panic!("there is something in a store that does not exist: {place}"))
        .unwrap();
    assert_eq!(store.sweep(Call::default(), true).unwrap(), Swept::default());
    assert_eq!(store.sweep(Call::default(), false).unwrap(), Swept::default());
    store.describe(b"x");
    stored(store.commit_and_finish(&WriteSet { closed: vec![b"x".to_vec()], ..WriteSet::default() }).unwrap());
    assert_eq!(rig.footprint(), before);
    assert!(!store.swap(b"x", Some(&Version { number: 1, mark: 0 }), Some(b"body")).unwrap().is_done());
    assert_eq!(store.read(Call::default(), b"x").unwrap(), None);
}

pub fn a_second_opener_sees_the_same_records(rig: &Rig) {
    let other = rig.again();
    let version = rig.put(b"x", None, b"one");
    assert_eq!(other.read(Call::default(), b"x").unwrap(), rig.store.read(Call::default(), b"x").unwrap());
    let changed = stored(other.swap(b"x", Some(&version), Some(b"two")).unwrap());
    assert!(!rig.store.swap(b"x", Some(&version), None).unwrap().is_done());
    rig.remove(b"x", &changed);
    assert_eq!(other.read(Call::default(), b"x").unwrap(), None);
    let born = stored(other.swap(b"x", None, Some(b"three")).unwrap());
    assert!(born.number > changed.number);
    assert_eq!(rig.body(b"x"), Some(b"three".to_vec()));
}

pub fn many_acquisitions_leave_no_leftovers(rig: &Rig) {
    let acquire_and_release = |number: u32| {
        let name = format!("lock {}", number % 7);
        let version = rig.put(name.as_bytes(), None, &[b'x'; 600]);
        rig.remove(name.as_bytes(), &version);
    };
    (0..7).for_each(acquire_and_release);
    let before = rig.footprint();
    // After so many, leftovers would show.
    let many = if rig.place.is_on_server() { 1000 } else { 10_000 };
    (0..many).for_each(acquire_and_release);
    assert_eq!(rig.footprint(), before);
    assert_eq!(rig.bodies(), [b""; 0]);
}

pub fn the_time_of_a_store_is_that_of_the_host_that_keeps_it(rig: &Rig) {
    rig.put(b"x", None, b"body");
    let (faked, fake) = rig.faked();
    let shared = rig.place.open_shared(Arc::new(fake.clone()));
    for store in [Some(&*faked), shared.as_deref()].into_iter().flatten() {
        for wall in [1_000_000_000, 4_000_000_000].map(Duration::from_secs) {
            fake.set_wall(wall);
            let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let time = store.leases().time(Call::default()).unwrap();
            let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            match store.scope() {
                Scope::Local => assert_eq!(time, wall),
                // Some clocks tell whole seconds.
                Scope::Shared => assert!(before < time + SECOND && time <= after, "{before:?} {time:?} {after:?}"),
            }
        }
    }
}

/// The wall clock does not matter, but after a reboot.
pub fn a_lease_ends_when_its_time_is_over(rig: &Rig) {
    let (store, fake) = rig.faked();
    let [short, long] = [10, 1000].map(|seconds| store.leases().grant(Call::default(), seconds * SECOND).unwrap());
    let begun = fake.wall();
    let left = || [&short, &long].map(|lease| store.leases().ttl(Call::default(), lease).unwrap().as_millis());
    assert_eq!(left(), [10_000, 1_000_000]);
    for (passed, wall, rest) in [(4, 0, 6), (0, 4_000_000_000, 6), (6, 1_000_000_000, 0), (1, 0, 0)] {
        fake.pass(passed * SECOND);
        fake.set_wall(Duration::from_secs(wall));
        assert_eq!(left()[0], rest * 1000, "{passed} {wall}");
    }
    fake.set_wall(begun + 11 * SECOND);
    fake.reboot("boot-2");
    assert_eq!(left(), [0, 989_000]);
}

pub fn a_change_that_needs_the_end_of_a_lease_conflicts_while_the_lease_lasts(rig: &Rig) {
    let lease = rig.store.leases().grant(Call::default(), 60 * SECOND).unwrap();
    let version = rig.put(b"x", None, b"body");
    let clock = match &lease.clock {
        LeaseClock::Etcd(_) => LeaseClock::Etcd(1),
        LeaseClock::FileSystem(begun) => LeaseClock::FileSystem(LeaseStart { span: 0, ..*begun }),
        clock => clock.clone(),
    };
    let over = Lease { clock, ends: 0, wall: 0 };
    let swap = |leases: &[Lease]| {
        let expired = leases.iter().collect();
        rig.store
            .commit_and_finish(&WriteSet { expired, ..WriteSet::of(b"x", Some(&version), Some(b"other")) })
            .unwrap()
    };
    assert!(!swap(&[over.clone(), lease]).is_done());
    assert_eq!(rig.body(b"x"), Some(b"body".to_vec()));
    stored(swap(&[over]));
    assert_eq!(rig.body(b"x"), Some(b"other".to_vec()));
}

pub fn the_place_of_a_record_shows_its_name_escaped(rig: &Rig) {
    let place = rig.store.describe(b"nightly\x1b[2J\n");
    assert!(!place.contains(['\x1b', '\n']), "{place:?}");
    if let Some(shown) = rig.place.shown() {
        assert!(place.contains("nightly") && place.contains(shown), "{place:?}");
    }
}

/// The waiters that the caller then wakes find the change, and do not wait for the history and the cleanup.
pub fn a_commit_stands_before_it_is_finished(rig: &Rig) {
    let seen = || {
        let (other, mut lines) = (rig.again(), 0);
        other.read_history(Call::default(), &mut |_| lines += 1).unwrap();
        (other.read(Call::default(), b"x").unwrap().map(|stored| stored.body), lines)
    };
    let on_servers = usize::from(rig.place.is_on_server());
    let (mut expect, mut lines) = (None, 0);
    for body in [&b"one"[..], b"two"] {
        let history = LinesOfHistory::new(|| vec!["line\n".to_string()]);
        let set = WriteSet { history, ..WriteSet::of(b"x", expect.as_ref(), Some(body)) };
        expect = Some(stored(rig.store.commit(Call::default(), &set).unwrap()));
        assert_eq!(seen(), (Some(body.to_vec()), lines + on_servers));
        rig.store.finish(Call::default(), &set);
        lines += usize::from(rig.place.keeps_history());
        assert_eq!(seen(), (Some(body.to_vec()), lines));
    }
}

/// History is kept in order of arrival, or not at all; it is not a record.
pub fn lines_of_history_come_back_in_order(rig: &Rig) {
    let store = &rig.store;
    let lines = || {
        let mut lines = Vec::new();
        let kept = store.read_history(Call::default(), &mut |line| lines.push(line.to_vec())).unwrap();
        (kept, lines)
    };
    let keeps = rig.place.keeps_history();
    assert_eq!(lines(), (keeps, Vec::new()));
    let version = rig.put(b"x", None, b"one");
    let wanted: Vec<String> = (0..10).map(|number| format!("line {number}\n")).collect();
    wanted.iter().for_each(|line| rig.again().append_history(line, &HistoryLimits::default()));
    assert_eq!(lines(), (keeps, if keeps { wanted.into_iter().map(String::into_bytes).collect() } else { Vec::new() }));
    assert_eq!(rig.bodies(), [b"one"]);
    rig.remove(b"x", &version);
    assert!(rig.place.path().is_none_or(|path| path.exists() == keeps));
}

pub fn swaps_of_every_durability_do_the_same(rig: &Rig) {
    for first in DURABILITIES {
        for second in DURABILITIES {
            for third in DURABILITIES {
                born_changed_and_removed(rig, [first, second, third]);
            }
        }
    }
    rig.store.sweep(Call::default(), false).unwrap();
    assert_eq!(rig.bodies(), [b""; 0]);
}

fn born_changed_and_removed(rig: &Rig, durabilities: [Durability; 3]) {
    let [born, changed, removed] = durabilities.map(|durability| WriteOptions { durability, mode: None });
    let swap = |name: &str, expect: Option<&Version>, body: Option<&str>, keep| {
        rig.store.swap_with(name.as_bytes(), expect, body.map(str::as_bytes), keep).unwrap()
    };
    // More than one, since one of them may leave other traces than the rest.
    for name in ["x", "y"] {
        let old = stored(swap(name, None, Some("old"), born));
        assert!(!swap(name, None, Some("other"), born).is_done());
        assert_eq!(rig.body(name.as_bytes()).unwrap(), b"old");
        let new = stored(swap(name, Some(&old), Some("new"), changed));
        assert!(new.number > old.number);
        assert!(!swap(name, Some(&old), Some("other"), changed).is_done());
        assert_eq!(rig.body(name.as_bytes()).unwrap(), b"new");
        assert!(!swap(name, Some(&old), None, removed).is_done());
        let gone = stored(swap(name, Some(&new), None, removed));
        assert_eq!(rig.body(name.as_bytes()), None);
        assert!(!swap(name, Some(&new), None, removed).is_done());
        // And one that was never changed.
        let again = stored(swap(name, None, Some("again"), born));
        assert!(again.number > gone.number);
        stored(swap(name, Some(&again), None, removed));
        assert_eq!(rig.store.read(Call::default(), name.as_bytes()).unwrap(), None);
    }
}
