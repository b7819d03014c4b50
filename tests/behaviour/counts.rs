//! The number of system calls of the commonest commands: a higher one shows work that is done twice. A load on the machine
//! does not change it, so a test can have limits for it. A change that needs fewer lowers the limit.
//!
//! The calls are those of all processes of csalock until one of them executes the command. 37 of them start the C library
//! (static glibc 2.36) and Rust's runtime. With the 44 calls of date(1) itself, `csalock run -n nightly date` makes 149.

use std::process::Command;

use nix::libc;

use crate::sandbox::{FIRST_PIDS, Kind, Sandbox, csalock, has, pid_namespace, skip};
use crate::syscalls::tracer::{Made, trace};

const RUN: &[&str] = &["run", "L", TRUE];
const TRUE: &str = "/bin/true";

const LIMITS: [(Kind, &[&str], usize); 7] = [
    (Kind::Directory, RUN, 98),
    (Kind::Directory, &["run", "-n", "-q", "-E", "0", "L", TRUE], 98),
    (Kind::Directory, &["lock", "L"], 76),
    (Kind::Directory, &["unlock", "L"], 75),
    (Kind::Sqlite, RUN, 176),
    (Kind::Sqlite, &["lock", "L"], 148),
    (Kind::Sqlite, &["unlock", "L"], 143),
];

/// Number of runs. The one with the fewest calls counts: on a busy machine, a process that must wait looks again more often.
const RUNS: usize = 9;

#[test]
fn system_calls_do_not_grow() {
    check("system calls", |kind, words, limit| Some((fewest(|| calls(kind, words)), limit)));
}

/// A holder whose release meets a waiter. Without the variables of its lock, the waiter is not part of a deadlock.
#[test]
fn a_release_to_a_waiter_makes_few_system_calls() {
    let wait = "env -u CSALOCK_HANDLE csalock run L true & \
                until csalock status --json L | grep -q '\"waiters\":\\[{'; do sleep 0.01; done";
    check("system calls of a hand-over", |kind, words, _| {
        let limit = match (kind, words) {
            (Kind::Directory, RUN) => 140,
            (Kind::Sqlite, RUN) => 210,
            _ => return None,
        };
        Some((fewest(|| calls(kind, &["run", "L", "sh", "-c", wait])), limit))
    });
}

/// The release knows the record that the acquisition has written.
#[test]
fn a_run_of_a_free_lock_reads_no_record() {
    let sandbox = Sandbox::new(Kind::Directory);
    sandbox.csalock(["run", "L", "true"]).run();
    let traced = trace(call(&sandbox, RUN), None);
    let is_opened = |made: &&Made| made.number == libc::SYS_openat as u64 && made.path.contains("rec.");
    assert_eq!(traced.made.iter().flatten().filter(is_opened).count(), 1, "only the new record: {traced:?}");
}

/// The script that called csalock is looked up once, although several steps of a command need it.
#[test]
fn a_call_looks_for_its_caller_once() {
    if !has("strace") {
        return skip("files in /proc", "they are counted with strace");
    }
    // `renew` judges the owner of each lock as well.
    let calls =
        [("put L 5", 2), ("lock N", 2), ("unlock L M", 2), ("del L", 2), ("claim C >id", 2), ("renew --ttl 1m L M", 8)];
    for (words, most) in calls {
        let sandbox = Sandbox::new(Kind::Directory);
        sandbox.file("files/script", format!("csalock lock L; csalock lock M; csalock put L 1\ncsalock {words}\n:"));
        sandbox.call("strace", ["-f", "-qq", "-e", "trace=execve,openat", "-o", "calls", "dash", "script"]).run();
        let log = sandbox.read("files/calls");
        let (_, calls) = log.rsplit_once(" execve(").unwrap();
        let opened: Vec<&str> = calls.lines().filter_map(|line| line.split('"').nth(1)).collect();
        let of_processes = |end: &str| {
            let is_it = |path: &&&str| path.starts_with("/proc/") && path.ends_with(end);
            opened.iter().filter(is_it).count()
        };
        let (stats, arguments) = (of_processes("/stat"), of_processes("/cmdline"));
        assert!(stats <= most && arguments == 1, "{words}: {opened:?}");
        assert!(of_processes("") <= most + 4, "{words}: {opened:?}");
    }
}

/// A wait of more than a second leaves a note of itself, which must not delay the command.
#[test]
fn a_command_starts_before_the_note_of_its_wait_is_removed() {
    let sandbox = Sandbox::new(Kind::Directory);
    let hold = format!("echo; until ls {} | grep -q '^%00'; do sleep 0.01; done", sandbox.store_path().display());
    let mut holder = sandbox.csalock(["run", "L", "dash", "-c", &hold]).spawn();
    holder.lines(1);
    let mut wait = call(&sandbox, &["run", "-w", "inf", "L", TRUE]);
    wait.env("CSALOCK_HANDLE", "0123456789abcdef0123456789abcdef");
    let traced = trace(wait, None);
    assert!(traced.status.success() && holder.wait().code == Some(0), "{traced:?}");
    let last = |number: i64, path: &str| {
        let is_it = |made: &Made| made.number == number as u64 && made.path.contains(path);
        traced.made[0].iter().rposition(is_it)
    };
    let (started, removed) = (last(libc::SYS_sendmsg, ""), last(libc::SYS_unlinkat, "%00"));
    assert!(started.is_some() && started < removed, "{started:?} {removed:?}: {traced:?}");
    assert!(sandbox.is_tidy(), "no note is left");
}

/// Compares each count with its limit.
fn check(what: &str, count: impl Fn(Kind, &[&str], usize) -> Option<(usize, usize)>) {
    if !cfg!(all(target_arch = "x86_64", target_env = "gnu")) || !has("strace") {
        return skip(what, "the limits are those of a C library on x86-64, and are counted with strace");
    }
    let mut grown = String::new();
    for (kind, words, limit) in LIMITS {
        let Some((found, limit)) = count(kind, words, limit) else { continue };
        let line = format!("{kind:?}: {}: {found} {what}, at most {limit}\n", words.join(" "));
        print!("{line}");
        if found > limit {
            grown += &line;
        }
    }
    assert!(grown.is_empty(), "these grew:\n{grown}");
}

fn fewest(count: impl Fn() -> usize) -> usize {
    (0..RUNS).map(|_| count()).min().unwrap_or(0)
}

/// csalock without a directory to go to.
fn call(sandbox: &Sandbox, words: &[&str]) -> Command {
    let mut command = Command::new(csalock());
    command.args(words).env_clear().env("PATH", sandbox.search_path()).env("CSALOCK_STORE", sandbox.store());
    command.envs(crate::supervised::mark()).env(FIRST_PIDS, pid_namespace());
    command
}

/// Returns the number of system calls in a store that has been used before.
fn calls(kind: Kind, words: &[&str]) -> usize {
    let sandbox = Sandbox::new(kind);
    sandbox.csalock(["run", "L", "true"]).run();
    if words[0] != "run" {
        return calls_of_script(&sandbox, words);
    }
    let traced = trace(call(&sandbox, words), None);
    assert!(traced.status.success(), "{traced:?}");
    traced.made.iter().flatten().filter(|made| !is_of_an_assertion(made)).count()
}

/// Returns the number of system calls of the last call in a script that has locked and unlocked before.
fn calls_of_script(sandbox: &Sandbox, words: &[&str]) -> usize {
    let before = if words == ["unlock", "L"] { "" } else { "csalock unlock L" };
    let script = format!("csalock lock L; {before}\ncsalock {}\n:", words.join(" "));
    sandbox.file("files/script", script);
    sandbox.call("strace", ["-f", "-qq", "-o", "calls", "dash", "script"]).run();
    let log = sandbox.read("files/calls");
    let (before, calls) = log.rsplit_once(" execve(").unwrap();
    let pid = before.lines().last().unwrap();
    // Lines without a parenthesis report signals and ends.
    let own = calls.lines().filter(|line| line.starts_with(pid) && line.contains('(') && !line.contains("<..."));
    own.filter(|line| !line.contains("F_GETFD")).count()
}

/// Whether it is a check of Rust's library, in builds with debug assertions, that a descriptor is open before it is closed.
fn is_of_an_assertion(made: &Made) -> bool {
    made.number == libc::SYS_fcntl as u64 && made.arguments[1] == libc::F_GETFD as u64
}
