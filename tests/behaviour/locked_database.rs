//! An SQLite database that another process keeps locked: by a transaction, only by reading, or because it is stopped.

mod stopped;

use std::time::Instant;

use nix::sys::signal::Signal;
use rusqlite::Connection;

use crate::etcd::fair::is_within;
use crate::sandbox::{Done, Job, Kind, Mount, PATIENCE, Sandbox, has_namespaces, wait_until};

/// A lock that blocks every access, a lock that blocks writers, and the lock of a reader.
const WRITER: &str = "BEGIN EXCLUSIVE";
const RESERVED: &str = "BEGIN IMMEDIATE";
const READER: &str = "BEGIN; SELECT count(*) FROM records_2";

/// The locks that block a commit, with the kind of journal that the database has then. With a log, no reader does.
const BLOCKING: [(Journal, &str); 4] =
    [(Journal::Log, RESERVED), (Journal::Rollback, WRITER), (Journal::Rollback, RESERVED), (Journal::Rollback, READER)];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Journal {
    Log,
    Rollback,
}

/// A store with a value under `v` and a lock `held` in it.
fn store() -> Sandbox {
    let sandbox = Sandbox::new(Kind::Sqlite);
    sandbox.csalock(["put", "v", "1"]).run();
    sandbox.csalock(["lock", "-q", "--forever", "held"]).run();
    sandbox
}

/// Locks the database in the name of this test. Its journal stays as it is until the lock ends.
fn locked(sandbox: &Sandbox, (journal, how): (Journal, &str)) -> Connection {
    let connection = Connection::open(sandbox.store_path()).unwrap();
    if journal == Journal::Rollback {
        let mode: String = connection.query_row("PRAGMA journal_mode = DELETE", [], |row| row.get(0)).unwrap();
        assert_eq!(mode, "delete");
    }
    connection.execute_batch(how).unwrap();
    connection
}

const REFUSED: &str = "csalock: the database STORE is kept locked by pid PID (TEST); end that process or its transaction, then \
                       try again\n";

#[track_caller]
fn is_refused(sandbox: &Sandbox, words: &[&str], code: i32, done: &Done) {
    // Another of the callers may hold a lock of the database for a moment.
    let caller = format!("({}", sandbox.plain(&sandbox.path("bin/csalock").display().to_string()));
    let mut said = sandbox.plain(&done.stderr);
    if let Some((before, rest)) = said.split_once(&caller) {
        said = format!("{before}(TEST{}", rest.split_once(");").map_or(String::new(), |(_, rest)| format!(");{rest}")));
    }
    assert_eq!((done.code, done.stdout.as_str(), said.as_str()), (Some(code), "", REFUSED), "{words:?}");
}

/// Runs all of them at once. Each ends with this code while the database is still locked.
#[track_caller]
fn are_refused(sandbox: &Sandbox, commands: &[(&[&str], i32)]) {
    let began = Instant::now();
    let jobs: Vec<(&(&[&str], i32), Job)> =
        commands.iter().map(|command| (command, sandbox.csalock(command.0).spawn())).collect();
    for ((words, code), job) in jobs {
        is_refused(sandbox, words, *code, &job.wait());
    }
    assert!(is_within(began, PATIENCE / 2), "{:?}", began.elapsed());
}

/// Callers who wait for a lock, and have a deadline.
const PATIENT: [(&[&str], i32); 10] = [
    (&["run", "-n", "a", "touch", "ran"], 75),
    (&["run", "-w", "1", "a", "touch", "ran"], 75),
    (&["run", "-n", "-E", "9", "a", "touch", "ran"], 9),
    (&["run", "-n", "-F", "a", "touch", "ran"], 75),
    (&["run", "-n", "a", "--also", "b", "--", "touch", "ran"], 75),
    (&["lock", "-n", "a"], 75),
    (&["lock", "-w", "1", "-E", "9", "a", "b"], 9),
    (&["put", "-n", "v", "2"], 75),
    (&["get", "-n", "--lock", "v"], 75),
    (&["claim", "-n", "c"], 75),
];

#[test]
fn a_waiter_is_told_at_the_deadline_that_the_lock_is_busy() {
    for how in BLOCKING {
        let sandbox = store();
        let connection = locked(&sandbox, how);
        are_refused(&sandbox, &PATIENT);
        drop(connection);
        assert!(!sandbox.path("files/ran").exists());
        sandbox.csalock(["get", "v"]).stdout("1").run();
        sandbox.csalock(["run", "-n", "a", "true"]).run();
    }
}

#[test]
fn a_caller_without_a_deadline_learns_in_time_that_the_store_is_unreachable() {
    let sandbox = store();
    let connection = locked(&sandbox, (Journal::Rollback, WRITER));
    let readers: [&[&str]; 5] = [&["status"], &["status", "-q", "held"], &["get", "v"], &["lookup", "c"], &["gc"]];
    let writers: [&[&str]; 2] = [&["unlock", "--force", "held"], &["renew", "--ttl", "1h", "held"]];
    let all = |words: &[&'static [&'static str]]| words.iter().map(|words| (*words, 69)).collect::<Vec<_>>();
    are_refused(&sandbox, &all(&[&readers[..], &writers[..]].concat()));
    connection.execute_batch("ROLLBACK").unwrap();
    connection.execute_batch(READER).unwrap();
    are_refused(&sandbox, &all(&[&["unlock", "--force", "held"]]));
    sandbox.csalock(["get", "v"]).stdout("1").run();
}

#[test]
fn with_a_log_a_writer_blocks_no_reader_and_a_reader_no_writer() {
    let sandbox = store();
    let connection = locked(&sandbox, (Journal::Log, WRITER));
    sandbox.csalock(["get", "v"]).stdout("1").run();
    assert_eq!(sandbox.state("held"), "held");
    are_refused(&sandbox, &[(&["unlock", "--force", "held"], 69), (&["renew", "--ttl", "1h", "held"], 69)]);
    connection.execute_batch("ROLLBACK").unwrap();
    connection.execute_batch(READER).unwrap();
    for number in ["2", "3", "4"] {
        sandbox.csalock(["put", "-n", "v", number]).run();
        sandbox.csalock(["get", "v"]).stdout(number).run();
        sandbox.csalock(["run", "-n", "a", "true"]).run();
    }
}

/// Whether a process queues SIGINT, to hear it while it waits.
fn hears_signals(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t"));
    blocked.is_some_and(|mask| u64::from_str_radix(mask, 16).unwrap() & 1 << (Signal::SIGINT as i32 - 1) != 0)
}

#[test]
fn a_signal_ends_a_wait_for_the_database_at_once() {
    let commands: [&[&str]; 6] = [
        &["run", "-w", "inf", "a", "touch", "ran"],
        &["run", "-w", "inf", "-F", "a", "touch", "ran"],
        &["run", "-w", "inf", "--ttl", "1h", "a", "touch", "ran"],
        &["lock", "-w", "inf", "a", "b"],
        &["put", "-w", "inf", "v", "2"],
        &["get", "-w", "inf", "--lock", "v"],
    ];
    for (how, signal) in BLOCKING.into_iter().zip([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT]) {
        let sandbox = store();
        let _locked = locked(&sandbox, how);
        let jobs = commands.map(|words| (words, sandbox.csalock(words).spawn()));
        for (_, job) in &jobs {
            wait_until("it hears signals", || hears_signals(job.pid()));
        }
        let began = Instant::now();
        for (words, job) in jobs {
            job.send(signal);
            let done = job.wait();
            assert_eq!((done.signal, done.stdout.as_str()), (Some(signal as i32), ""), "{words:?} {done:?}");
        }
        assert!(is_within(began, PATIENCE / 2), "{:?}", began.elapsed());
        assert!(!sandbox.path("files/ran").exists());
    }
}

#[test]
fn a_wait_without_end_goes_on_and_gets_the_lock() {
    let sandbox = store();
    let locked = locked(&sandbox, (Journal::Log, RESERVED));
    let jobs = [["run", "-w", "inf", "a", "true"], ["run", "-w", "inf", "b", "true"]]
        .map(|words| sandbox.csalock(words).spawn());
    for job in &jobs {
        wait_until("it waits", || hears_signals(job.pid()));
    }
    are_refused(&sandbox, &PATIENT[1..2]);
    drop(locked);
    for job in jobs {
        assert_eq!(job.wait().code, Some(0));
    }
}

#[test]
fn a_waiter_that_is_killed_leaves_the_database_as_it_was() {
    let sandbox = store();
    let locked = locked(&sandbox, (Journal::Rollback, READER));
    let mut job = sandbox.csalock(["put", "-w", "inf", "v", "2"]).spawn();
    // It is about to commit, and keeps new readers out: it has SQLite's pending byte.
    let pending = format!(" WRITE {} ", job.pid());
    wait_until("it wants to commit", || {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|line| line.contains(&pending) && line.contains(" 1073741824 "))
    });
    job.kill();
    sandbox.csalock(["get", "v"]).stdout("1").run();
    drop(locked);
    sandbox.csalock(["put", "-n", "v", "3"]).run();
    sandbox.csalock(["get", "v"]).stdout("3").run();
}

#[test]
fn a_command_ends_with_its_own_status_and_the_next_acquires_the_lock() {
    let sandbox = store();
    let mut job = sandbox.csalock(["run", "x", "dash", "-c", "echo ready; cat; exit 3"]).spawn();
    job.lines(1);
    let locked = locked(&sandbox, (Journal::Log, WRITER));
    job.release();
    let done = job.wait();
    let said = REFUSED.replace("csalock: ", "csalock: lock x could not be released: ");
    assert_eq!((done.code, sandbox.plain(&done.stderr)), (Some(3), said));
    drop(locked);
    assert_eq!(sandbox.state("x"), "abandoned");
    assert_eq!(sandbox.csalock(["run", "-q", "-n", "x", "true"]).capture().code, Some(0));
}

/// Each caller has read the value before the first one deletes it.
#[test]
fn one_of_the_callers_that_delete_a_value_at_once_deletes_it() {
    let sandbox = store();
    let locked = locked(&sandbox, (Journal::Log, RESERVED));
    let jobs = [(); 6].map(|()| sandbox.csalock(["del", "-q", "v"]).spawn());
    for job in &jobs {
        let is_open =
            |file: std::fs::DirEntry| std::fs::read_link(file.path()).is_ok_and(|path| path.ends_with("store-shm"));
        let files = || std::fs::read_dir(format!("/proc/{}/fd", job.pid())).unwrap();
        wait_until("it has read the log", || hears_signals(job.pid()) && files().flatten().any(is_open));
    }
    drop(locked);
    let mut codes = jobs.map(|job| job.wait().code.unwrap());
    codes.sort_unstable();
    assert_eq!(codes, [0, 81, 81, 81, 81, 81]);
}

/// It would replace what the waiter writes. The lock is the waiter's turn, and the database only delays that.
#[test]
fn a_holder_whose_time_is_over_does_not_wait_behind_others_to_write() {
    let sandbox = store();
    let script =
        "csalock lock --ttl 1s v > /dev/null; echo held; read go; csalock put --unlock --even-if-stale v late; echo $?";
    let mut late = sandbox.script("dash", script).spawn();
    late.lines(1);
    let waiter = sandbox.csalock(["run", "-q", "v", "csalock", "put", "v", "new"]).spawn();
    wait_until("it waits", || sandbox.csalock(["status", "--json", "v"]).capture().stdout.contains("\"waiters\":[{"));
    let locked = locked(&sandbox, (Journal::Log, RESERVED));
    wait_until("the time is over", || sandbox.state("v") != "held");
    late.tell("go");
    let done = late.wait();
    drop(locked);
    assert!(done.stdout == "held\n82\n" && done.stderr.contains("let its time run out"), "{done:?}");
    waiter.wait().exits(0);
    sandbox.csalock(["get", "v"]).stdout("new").run();
}

/// The log grows during a long read until it fills the disk.
#[test]
fn a_log_that_filled_the_disk_is_emptied_after_the_read() {
    if !has_namespaces("a mount") {
        return;
    }
    let sandbox = Sandbox::new(Kind::Sqlite);
    let _mount = Mount::new(&sandbox, "size=256k,mode=0755");
    let store = sandbox.store_at("files/mount/store");
    let put = |name: &str| sandbox.csalock(["put", name, &"v".repeat(500)]).env("CSALOCK_STORE", &store).capture();
    assert_eq!(put("first").code, Some(0));
    let reader = Connection::open(sandbox.path("files/mount/store")).unwrap();
    reader.execute_batch(READER).unwrap();
    // The database itself gets larger too.
    let full = (0..1000).map(|number| put(&format!("v{number}"))).find(|done| done.code != Some(0)).unwrap();
    assert!(full.code == Some(74) && full.stderr.contains("No space left on device"), "{full:?}");
    assert_eq!(put("other").code, Some(74));
    drop(reader);
    for name in ["other", "v0"] {
        put(name).exits(0);
    }
    assert!(std::fs::metadata(sandbox.path("files/mount/store-wal")).unwrap().len() < 64 << 10);
}
