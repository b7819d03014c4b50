//! Tests of the SQLite store: allowed places of a database, errors of an unusable database, and the views.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use nix::sys::stat::Mode;
use rusqlite::Connection;
use tempfile::TempDir;

use super::Sqlite;
use super::busy::{LEAST, PATIENCE};
use host::{Fake, Host};
use lock::error::{Error, ErrorKind, Result};
use lock::{
    self, Grant, Handle, Lease, LeaseClock, Lifetime, Mode as LockMode, Owner, PidDomain, ProcessId, Record, Waiter,
};
use store::{Call, CommitResult, Store, Version, WriteSet, with_suffix};

fn open(path: &Path) -> Result<Sqlite> {
    Sqlite::open(path, Arc::new(Fake::new(1)))
}

impl Sqlite {
    fn commit_and_finish(&self, set: &WriteSet<'_>) -> Result<CommitResult> {
        let done = self.commit(Call::default(), set)?;
        self.finish(Call::default(), set);
        Ok(done)
    }
}

fn put(path: &Path) -> Result<CommitResult> {
    open(path)?.commit_and_finish(&WriteSet::of(b"x", None, Some(b"body")))
}

fn failures(path: &Path) -> (Option<ErrorKind>, Option<ErrorKind>) {
    let kind = |failed: Option<Error>| failed.map(|error| error.kind());
    (kind(open(path).and_then(|store| store.read(Call::default(), b"x")).err()), kind(put(path).err()))
}

fn with_database(change: &str) -> (TempDir, std::path::PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("db");
    put(&path).unwrap();
    Connection::open(&path).unwrap().execute_batch(change).unwrap();
    (place, path)
}

fn without_log(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    assert_eq!(journal_mode(&connection, " = DELETE"), "delete");
    connection
}

fn journal_mode(connection: &Connection, value: &str) -> String {
    connection.query_row(&format!("PRAGMA journal_mode{value}"), [], |row| row.get(0)).unwrap()
}

#[test]
fn an_impossible_database_is_explained() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path();
    fs::write(root.join("text"), "no database, but rather a long text. ".repeat(100)).unwrap();
    fs::create_dir(root.join("directory")).unwrap();
    symlink("elsewhere", root.join("link")).unwrap();
    symlink("loop", root.join("loop")).unwrap();
    nix::unistd::mkfifo(&root.join("fifo"), Mode::S_IRWXU).unwrap();
    fs::create_dir(root.join("open")).unwrap();
    fs::set_permissions(root.join("open"), fs::Permissions::from_mode(0o777)).unwrap();
    for (name, kind) in [
        ("missing/db", ErrorKind::Unavailable),
        ("text/db", ErrorKind::Unavailable),
        ("loop/db", ErrorKind::Unavailable),
        ("directory", ErrorKind::Unavailable),
        ("fifo", ErrorKind::Unavailable),
        ("..", ErrorKind::Unavailable),
        ("link", ErrorKind::Denied),
        ("open/db", ErrorKind::Denied),
        ("text", ErrorKind::Corrupt),
    ] {
        assert_eq!(failures(&root.join(name)), (Some(kind), Some(kind)), "{name}");
    }
    let deep =
        ["d".repeat(200), "d".repeat(200), "d".repeat(200)].iter().fold(root.to_path_buf(), |at, name| at.join(name));
    fs::create_dir_all(&deep).unwrap();
    assert_eq!(failures(&deep.join("db")), (None, Some(ErrorKind::InvalidInput)));
    fs::set_permissions(root.join("open"), fs::Permissions::from_mode(0o1777)).unwrap();
    assert_eq!(failures(&root.join("open/db")), (None, None));
    assert!(!root.join("elsewhere").exists());
}

#[test]
fn links_on_the_way_to_the_directory_are_followed() {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("real")).unwrap();
    symlink("real", place.path().join("link")).unwrap();
    put(&place.path().join("link/db")).unwrap();
    assert!(open(&place.path().join("real/db")).unwrap().read(Call::default(), b"x").unwrap().is_some());
}

#[test]
fn the_umask_alone_decides_about_the_mode_of_the_file() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("db");
    put(&path).unwrap();
    fs::write(place.path().join("like it"), "").unwrap();
    let mode = |name: &str| fs::metadata(place.path().join(name)).unwrap().permissions().mode();
    assert_eq!(mode("db"), mode("like it"));
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
}

#[test]
fn a_file_left_empty_by_a_crash_is_an_empty_store() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("db");
    fs::write(&path, "").unwrap();
    assert_eq!(open(&path).unwrap().read(Call::default(), b"x"), Ok(None));
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    assert_eq!(put(&path), Ok(CommitResult::Done(Version { number: 1_700_000_000_000_000, mark: 0 })));
}

#[test]
fn other_databases_are_recognized_and_left_alone() {
    let place = tempfile::tempdir().unwrap();
    let foreign = place.path().join("foreign");
    Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE t(x)").unwrap();
    let before = fs::read(&foreign).unwrap();
    assert_eq!(failures(&foreign), (Some(ErrorKind::Corrupt), Some(ErrorKind::Corrupt)));
    assert!(fs::read(&foreign).unwrap() == before);

    let (_place, newer) = with_database("ALTER TABLE records_2 RENAME TO records_3; PRAGMA user_version = 3");
    assert_eq!(failures(&newer), (Some(ErrorKind::Corrupt), Some(ErrorKind::Corrupt)));
    assert!(put(&newer).unwrap_err().to_string().contains("has format 3, this csalock knows 2"));
}

#[test]
fn a_database_that_lost_something_is_corrupt_and_never_free() {
    let (_place, path) = with_database("DROP TABLE records_2");
    assert_eq!(failures(&path), (Some(ErrorKind::Corrupt), Some(ErrorKind::Corrupt)));
    let (_place, path) = with_database("DELETE FROM records_2");
    assert_eq!(failures(&path), (None, Some(ErrorKind::Corrupt)));
    let (_place, path) = with_database("UPDATE records_2 SET body = NULL");
    assert_eq!(failures(&path).0, Some(ErrorKind::Corrupt));
    let mut seen = Vec::new();
    let scanned = open(&path).unwrap().scan(Call::default(), &mut |place, found| {
        seen.push((place.ends_with("(row x)"), found.map_err(|error| error.kind())));
        Ok(())
    });
    assert_eq!((scanned, seen), (Ok(()), vec![(true, Err(ErrorKind::Corrupt))]));
}

#[test]
fn a_database_that_is_in_its_place_or_cannot_be_looked_at_is_not_called_replaced() {
    let place = tempfile::tempdir().unwrap();
    let (directory, moved) = (place.path().join("locks"), place.path().join("moved"));
    fs::create_dir(&directory).unwrap();
    let store = open(&directory.join("db")).unwrap();
    store.commit_and_finish(&WriteSet::of(b"x", None, Some(b"body"))).unwrap();
    assert!(!store.is_replaced());
    // A backup may give it another name.
    fs::hard_link(directory.join("db"), place.path().join("copy")).unwrap();
    assert!(!store.is_replaced());
    fs::rename(&directory, &moved).unwrap();
    assert!(store.is_replaced());
    symlink("locks", &directory).unwrap();
    assert!(!store.is_replaced());
}

#[test]
fn a_replaced_database_is_opened_again() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("db");
    let store = open(&path).unwrap();
    let CommitResult::Done(version) = store.commit_and_finish(&WriteSet::of(b"x", None, Some(b"old"))).unwrap() else {
        panic!()
    };
    fs::remove_file(&path).unwrap();
    put(&path).unwrap();
    assert!(!store.commit_and_finish(&WriteSet::of(b"x", Some(&version), Some(b"new"))).unwrap().is_done());
    assert_eq!(store.read(Call::default(), b"x").unwrap().unwrap().body, b"body");
}

#[test]
fn a_database_that_others_keep_locked_is_busy_at_the_deadline_and_else_out_of_reach() {
    let (_place, path) = with_database("");
    let fake = Fake::new(1);
    let store = Sqlite::open(&path, Arc::new(fake.clone())).unwrap();
    let waited = |work: &dyn Fn() -> ErrorKind| {
        let began = fake.boottime();
        (work(), fake.boottime() - began)
    };
    let read = || store.read(Call::default(), b"x").unwrap_err().kind();
    let write_by = |call| store.commit(call, &WriteSet::of(b"y", None, Some(b"body"))).unwrap_err().kind();
    let write = || write_by(Call::default());
    let other = without_log(&path);
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    assert_eq!(waited(&read), (ErrorKind::Unavailable, PATIENCE));
    assert_eq!(waited(&write), (ErrorKind::Unavailable, PATIENCE));
    other.execute_batch("ROLLBACK; BEGIN IMMEDIATE").unwrap();
    let call = Call::until(fake.boottime() + 3 * PATIENCE);
    let write = || write_by(call);
    assert_eq!(waited(&write), (ErrorKind::Busy, 3 * PATIENCE));
    // A process that only reads blocks each commit.
    other.execute_batch("ROLLBACK; BEGIN; SELECT count(*) FROM records_2").unwrap();
    assert_eq!(waited(&write), (ErrorKind::Busy, LEAST));
    assert_eq!(store.read(Call::default(), b"x").unwrap().unwrap().body, b"body");
    other.execute_batch("ROLLBACK").unwrap();
    assert!(matches!(store.commit_and_finish(&WriteSet::of(b"y", None, Some(b"body"))), Ok(CommitResult::Done(_))));
}

#[test]
fn with_a_log_a_writer_blocks_only_writers_and_a_reader_blocks_no_process() {
    let (_place, path) = with_database("");
    let fake = Fake::new(1);
    let store = Sqlite::open(&path, Arc::new(fake.clone())).unwrap();
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    assert_eq!(store.read(Call::default(), b"x").unwrap().unwrap().body, b"body");
    let began = fake.boottime();
    let write = || store.commit_and_finish(&WriteSet::of(b"y", None, Some(b"body")));
    assert_eq!(write().unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(fake.boottime() - began, PATIENCE);
    other.execute_batch("ROLLBACK; BEGIN; SELECT count(*) FROM records_2").unwrap();
    assert!(matches!(write(), Ok(CommitResult::Done(_))));
}

fn sizes(path: &Path) -> (u64, u64) {
    let size = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
    (size(path), size(&with_suffix(path, "-wal")))
}

#[test]
fn the_log_stays_short_even_if_each_process_commits_once() {
    let (_place, path) = with_database("");
    let mut largest = 0;
    for _ in 0..100 {
        let store = open(&path).unwrap();
        let CommitResult::Done(version) = store.commit_and_finish(&WriteSet::of(b"y", None, Some(b"body"))).unwrap()
        else {
            panic!()
        };
        drop(store);
        open(&path).unwrap().commit_and_finish(&WriteSet::of(b"y", Some(&version), None)).unwrap();
        largest = largest.max(sizes(&path).1);
    }
    assert!(largest > 8 << 12 && largest < 16 << 12, "{largest}");
    // The removal of the log by another program loses nothing.
    journal_mode(&Connection::open(&path).unwrap(), "");
    assert!(sizes(&path).0 > 0 && sizes(&path).1 == 0);
    assert!(open(&path).unwrap().read(Call::default(), b"x").unwrap().is_some());
}

#[test]
fn a_database_with_a_rollback_journal_gets_a_log_when_no_process_uses_it() {
    let (_place, path) = with_database("");
    let other = without_log(&path);
    other.execute_batch("BEGIN; SELECT count(*) FROM records_2").unwrap();
    let store = open(&path).unwrap();
    assert!(store.read(Call::default(), b"x").unwrap().is_some());
    drop(other);
    assert!(matches!(store.commit_and_finish(&WriteSet::of(b"y", None, Some(b"body"))), Ok(CommitResult::Done(_))));
    assert_eq!(journal_mode(&Connection::open(&path).unwrap(), ""), "wal");
    assert!(store.read(Call::default(), b"y").unwrap().is_some());
}

#[test]
fn a_database_whose_log_some_user_could_not_write_keeps_the_rollback_journal() {
    for (directory, file, wanted) in [
        (0o755, 0o644, "wal"),
        (0o700, 0o600, "wal"),
        (0o750, 0o640, "wal"),
        (0o2770, 0o660, "wal"),
        (0o2775, 0o664, "wal"),
        (0o770, 0o660, "delete"),
        (0o2770, 0o644, "delete"),
        (0o1777, 0o666, "delete"),
        (0o3770, 0o660, "delete"),
    ] {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("db");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(file)).unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(directory)).unwrap();
        put(&path).unwrap();
        assert_eq!(journal_mode(&Connection::open(&path).unwrap(), ""), wanted, "{directory:o} {file:o}");
    }
}

#[test]
fn a_database_with_an_access_control_list_has_no_log() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("db");
    fs::write(&path, "").unwrap();
    // Version 2: the owner, user 33, the group, the mask, others.
    let entries = [(1, 6, u32::MAX), (2, 6, 33), (4, 4, u32::MAX), (16, 6, u32::MAX), (32, 4, u32::MAX)];
    let entry = |(tag, rights, user): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &user.to_le_bytes()].concat()
    };
    let list = [2u32.to_le_bytes().to_vec(), entries.map(entry).concat()].concat();
    let given = rustix::fs::setxattr(&path, "system.posix_acl_access", &list, rustix::fs::XattrFlags::empty());
    if given == Err(rustix::io::Errno::NOTSUP) {
        return;
    }
    put(&path).unwrap();
    assert_eq!(journal_mode(&Connection::open(&path).unwrap(), ""), "delete");
}

#[test]
fn a_database_with_two_names_is_refused_under_both() {
    let (place, path) = with_database("");
    let [other, used] = [place.path().join("other"), place.path().join("used")];
    put(&used).unwrap();
    let store = open(&used).unwrap();
    assert!(store.read(Call::default(), b"x").unwrap().is_some());
    for (file, name) in [(&path, &other), (&used, &place.path().join("also"))] {
        fs::hard_link(file, name).unwrap();
        assert_eq!([failures(file), failures(name)], [(Some(ErrorKind::Denied), Some(ErrorKind::Denied)); 2]);
    }
    // An open database is refused too.
    let put = || store.commit_and_finish(&WriteSet::of(b"y", None, Some(b"body")));
    assert_eq!(store.read(Call::default(), b"x").unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(put().unwrap_err().kind(), ErrorKind::Denied);
    fs::remove_file(place.path().join("also")).unwrap();
    assert!(matches!(put(), Ok(CommitResult::Done(_))));
}

#[test]
fn a_new_database_ignores_the_log_of_a_removed_one() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("db");
    let old = open(&path).unwrap();
    for name in [b"a", b"b", b"c"] {
        old.commit_and_finish(&WriteSet::of(name, None, Some(b"old"))).unwrap();
    }
    assert!(sizes(&path).1 > 0);
    // A process still uses the old database and its index.
    fs::remove_file(&path).unwrap();
    let new = open(&path).unwrap();
    assert_eq!(new.read(Call::default(), b"a"), Ok(None));
    for name in [b"x", b"y"] {
        assert!(matches!(new.commit_and_finish(&WriteSet::of(name, None, Some(b"new"))), Ok(CommitResult::Done(_))));
    }
    assert!(!old.commit_and_finish(&WriteSet::of(b"z", None, Some(b"old"))).unwrap().is_done());
    for store in [open(&path).unwrap(), old] {
        let mut names = Vec::new();
        store
            .scan(Call::default(), &mut |_, found| {
                names.push(String::from_utf8(found?.body).unwrap());
                Ok(())
            })
            .unwrap();
        assert_eq!(names, ["new", "new"]);
    }
}

fn owner(pid: i32, command: &[u8], label: Option<&[u8]>) -> Arc<Owner> {
    let domain = PidDomain { machine: "m".into(), boot: "b-1".into(), pids: "4026531836.0".into(), net: 1 };
    let owners = vec![ProcessId { pid, start: 1 }, ProcessId { pid: 1, start: 1 }];
    let (command, label) = (command.to_vec(), label.map(<[u8]>::to_vec));
    let host = "web1".into();
    Arc::new(Owner {
        domain,
        processes: owners,
        supervisor: None,
        outlives_lock: false,
        session: None,
        host,
        uid: 33,
        command,
        label,
    })
}

#[test]
fn the_views_agree_with_the_records() {
    let nasty = b"sh -c 'x=\"a b\\n=%20,:'\n\xff;";
    let lease = Lease { clock: LeaseClock::Boot("b-1".into()), ends: 5, wall: 1_795_409_000_123 };
    let grant = |number: u8, token, party, lifetime| Grant {
        proof: Handle::new([number; 16]).proof(),
        token,
        mode: LockMode::Shared,
        slot: 0,
        owner: party,
        lifetime,
        since: 1_795_408_000_123,
        waited: 250,
        provisional: None,
        release_on_exit: false,
        claim: None,
        latest_only: false,
        end_request: None,
    };
    let record = Record {
        holders: vec![
            grant(1, Some(1), owner(12, b"backup", Some(b"a label=")), Lifetime::WhileOwnerLives),
            grant(2, None, owner(13, nasty, None), Lifetime::ExpiresAt(lease.clone())),
        ],
        waiters: vec![Waiter {
            enclosing_grants: Vec::new(),
            blocked_processes: Vec::new(),
            proof: Handle::new([3; 16]).proof(),
            mode: LockMode::Exclusive,
            slots: None,
            owner: owner(14, b"wait", None),
            process: ProcessId { pid: 15, start: 1 },
            lifetime: Lifetime::Ttl(5000),
            needs_confirmation: true,
            lease: Some(lease),
            was_frozen: false,
            since: 1_795_408_001_123,
            release_on_exit: false,
            claim: None,
            latest_only: false,
        }],
        ..Record::free(b"a=\"b\\: c")
    };
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("db");
    let store = open(&path).unwrap();
    let junk: [&[u8]; 4] =
        [b"holder = \"\xff\0", b"[1]", br#"{"holders":"x","waiters":{"y":["z"]}}"#, br#"{"holders":["x",7]}"#];
    for (number, body) in junk.iter().enumerate() {
        store.commit_and_finish(&WriteSet::of(format!("junk {number}").as_bytes(), None, Some(body))).unwrap();
    }
    store.commit_and_finish(&WriteSet::of(&record.name, None, Some(&lock::encode(&record)))).unwrap();
    // A user can write a value that looks like a record.
    let key = lock::Value::key(b"v", 7);
    store
        .commit(
            Call::default(),
            &WriteSet::of(
                &key,
                None,
                Some(&lock::encode_value(&key, &record.waiters[0].owner, &lock::encode(&record))),
            ),
        )
        .unwrap();
    let connection = Connection::open(&path).unwrap();
    let one = |sql: &str| -> Vec<String> {
        let mut statement = connection.prepare(sql).unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(|row| row.unwrap()).collect()
    };
    let sql = "SELECT format('%s|%s|%s|%s|%s|%s|%s|%s|%s|%s', name, pid, host, uid, command, ifnull(label, '-'), since, \
               ifnull(expires, '-'), share, token) FROM holders";
    assert_eq!(
        one(sql),
        [
            "a=\"b\\: c|12|web1|33|backup|a label=|2026-11-23 04:26:40|-|shared|1",
            "a=\"b\\: c|13|web1|33|sh -c 'x=\"a b\\n=%2520,:'%0A%FF;|-|2026-11-23 04:26:40|2026-11-23 04:43:20|\
             shared|1700000000000004",
        ]
    );
    let sql = "SELECT format('%s|%s|%s|%s|%s|%s|%s|%s', name, pid, host, uid, command, ifnull(label, '-'), since, share) \
               FROM waiters";
    assert_eq!(one(sql), ["a=\"b\\: c|14|web1|33|wait|-|2026-11-23 04:26:41|exclusive"]);
    assert_eq!(one("SELECT typeof(pid)||typeof(uid)||typeof(token) FROM holders LIMIT 1"), ["integerintegerinteger"]);
}
