//! An SQLite database that a process has begun to open, and for whose log it has a lock that others cannot wait for. A
//! signal has stopped the process there.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{PATIENT, hears_signals, store};
use crate::etcd::fair::is_within;
use crate::sandbox::{Job, Sandbox, has, proc, wait_until};

/// A lock on the index of the log that its first user takes: which of its calls of fcntl(2) does that, and the byte.
#[derive(Clone, Copy)]
struct Lock {
    call: usize,
    byte: u64,
}

/// The lock of the process that empties the index.
const DEAD_MAN: Lock = Lock { call: 2, byte: 128 };
/// The lock of a writer, which finds out that the index is invalid.
const WRITE: Lock = Lock { call: 4, byte: 120 };
/// The locks of the process that builds the index.
const RECOVER: Lock = Lock { call: 5, byte: 121 };

/// Callers without a deadline, which learn after ten seconds that the store is unreachable.
const OTHERS: [(&[&str], i32); 7] = [
    (&["status"], 69),
    (&["status", "-q", "held"], 69),
    (&["get", "v"], 69),
    (&["lookup", "c"], 69),
    (&["gc"], 69),
    (&["unlock", "--force", "held"], 69),
    (&["renew", "--ttl", "1h", "held"], 69),
];

/// Callers who wait until a signal comes.
const ENDLESS: [&[&str]; 4] = [
    &["run", "-w", "inf", "a", "touch", "ran"],
    &["lock", "-w", "inf", "a", "b"],
    &["put", "-w", "inf", "v", "2"],
    &["get", "-w", "inf", "--lock", "v"],
];

/// The time in which they end, with and without a deadline. SQLite's own pauses take 20 seconds or more.
const SOON: Duration = Duration::from_secs(8);
const LATER: Duration = Duration::from_secs(16);

/// A `csalock run a true` that is stopped as soon as it has this lock, under its tracer.
fn stopped(sandbox: &Sandbox, lock: Lock) -> (Job, i32) {
    let index = sandbox.store_path().display().to_string() + "-shm";
    // musl sets the flag of the descriptor by a call of its own, which comes first.
    let call = lock.call + usize::from(cfg!(target_env = "musl"));
    let stop = format!("inject=fcntl:signal=SIGSTOP:when={call}");
    let traced = ["-qq", "-o", "trace", "-P", &index, "-e", "trace=fcntl", "-e", &stop, "csalock", "run", "a", "true"];
    let tracer = sandbox.call("strace", traced).spawn();
    // The kernel joins neighbouring locks of a process.
    let has_it = |pid: i32| {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        let its = format!(" WRITE {pid} ");
        let mut ranges = locks.lines().filter(|line| line.contains(&its)).filter_map(|line| {
            let (line, last) = line.rsplit_once(' ')?;
            Some(line.rsplit_once(' ')?.1.parse::<u64>().ok()?..=last.parse::<u64>().ok()?)
        });
        ranges.any(|range| range.contains(&lock.byte))
    };
    let mut found = None;
    wait_until("it is stopped", || {
        let is_stopped = |pid: &i32| matches!(proc::stat(*pid), Some(('T' | 't', _))) && has_it(*pid);
        found = proc::children(tracer.pid()).into_iter().find(is_stopped);
        found.is_some()
    });
    (tracer, found.unwrap())
}

/// Starts these callers at once. Each ends in this time, with its code and what it says about the stopped process.
#[track_caller]
fn are_refused(sandbox: &Sandbox, pid: i32, commands: &[(&[&str], i32)], span: Duration) {
    let said = format!(
        "csalock: the database STORE is kept locked by pid PID (csalock run a true), which is stopped; \
         continue it (`kill -CONT {pid}`) or end it, then try again\n"
    );
    let began = Instant::now();
    let jobs: Vec<(&[&str], i32, Job)> =
        commands.iter().map(|(words, code)| (*words, *code, sandbox.csalock(*words).spawn())).collect();
    for (words, code, job) in jobs {
        let done = job.wait();
        let found = (done.code, done.stdout.as_str(), sandbox.plain(&done.stderr));
        assert_eq!(found, (Some(code), "", said.clone()), "{words:?}");
    }
    assert!(is_within(began, span), "{:?}", began.elapsed());
}

#[track_caller]
fn end_at_a_signal(sandbox: &Sandbox, commands: &[&[&str]]) {
    let jobs: Vec<Job> = commands.iter().map(|words| sandbox.csalock(*words).spawn()).collect();
    for job in &jobs {
        wait_until("it hears signals", || hears_signals(job.pid()));
    }
    let began = Instant::now();
    jobs.iter().for_each(|job| job.send(Signal::SIGTERM));
    for (words, job) in commands.iter().zip(jobs) {
        let done = job.wait();
        assert_eq!((done.signal, done.stdout.as_str()), (Some(Signal::SIGTERM as i32), ""), "{words:?} {done:?}");
    }
    assert!(is_within(began, SOON), "{:?}", began.elapsed());
}

/// The callers of the store while a process is stopped with this lock, and after it goes on.
fn check(lock: Lock) {
    if !has("strace") {
        return;
    }
    let sandbox = store();
    let (tracer, pid) = stopped(&sandbox, lock);
    let waiter = sandbox.csalock(["run", "-w", "inf", "b", "true"]).spawn();
    are_refused(&sandbox, pid, &PATIENT, SOON);
    end_at_a_signal(&sandbox, &ENDLESS);
    are_refused(&sandbox, pid, &OTHERS, LATER);
    // It has waited for longer by now than SQLite tries.
    wait_until("the waiter waits", || hears_signals(waiter.pid()));
    kill(Pid::from_raw(pid), Signal::SIGCONT).unwrap();
    assert_eq!((tracer.wait().code, waiter.wait().code), (Some(0), Some(0)));
    assert!(!sandbox.path("files/ran").exists());
    sandbox.csalock(["get", "v"]).stdout("1").run();
    assert_eq!(sandbox.state("held"), "held");
}

#[test]
fn a_process_that_is_stopped_as_it_empties_the_index_of_the_log() {
    check(DEAD_MAN);
}

#[test]
fn a_process_that_is_stopped_as_it_finds_the_index_invalid() {
    check(WRITE);
}

#[test]
fn a_process_that_is_stopped_as_it_builds_the_index() {
    check(RECOVER);
}
