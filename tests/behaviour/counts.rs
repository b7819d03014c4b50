//! The number of system calls and page faults of the commonest commands, which decide how fast they are. A load on the
//! machine does not change them, so a test can have limits for them. A change that needs fewer lowers the limit.
//!
//! The calls are those of all processes of csalock until one of them executes the command. A release build makes the same
//! calls. Its page faults are fewer, because it has less code: `benches/versus counts` shows them.

use std::process::{Command, Stdio};

use nix::libc;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::sandbox::proc::stat_field;
use crate::sandbox::{FIRST_PIDS, Kind, Sandbox, csalock, has, pid_namespace, skip};
use crate::start::has_own_start;
use crate::syscalls::tracer::{Made, trace};

const RUN: &[&str] = &["run", "L", TRUE];
const TRUE: &str = "/bin/true";

/// The maximum for each command: system calls, and page faults beyond those of the command under the lock. The faults of
/// one program differ by five with the way in which its file came into the page cache.
const LIMITS: [(Kind, &[&str], usize, Option<usize>); 7] = [
    (Kind::Directory, RUN, 65, Some(78)),
    (Kind::Directory, &["run", "-n", "-q", "-E", "0", "L", TRUE], 65, Some(78)),
    (Kind::Directory, &["lock", "L"], 45, None),
    (Kind::Directory, &["unlock", "L"], 45, None),
    (Kind::Sqlite, RUN, 137, Some(116)),
    (Kind::Sqlite, &["lock", "L"], 114, None),
    (Kind::Sqlite, &["unlock", "L"], 111, None),
];

/// Number of runs. Their median counts, because processes that run at the same time do not always do the same.
const RUNS: usize = 9;

#[test]
fn system_calls_do_not_grow() {
    check("system calls", |kind, words, limit, _| Some((median(|| calls(kind, words)), limit)));
}

#[test]
fn page_faults_do_not_grow() {
    let command = median(|| faults(Command::new(TRUE)));
    check("page faults", |kind, words, _, limit| {
        let most = command + limit?;
        let sandbox = Sandbox::new(kind);
        Some((median(|| faults(call(&sandbox, words))), most))
    });
}

/// A holder whose release meets a waiter. Without the variables of its lock, the waiter is not part of a deadlock. The
/// supervisor has read the record with the waiter as soon as it has a pidfd of the waiter.
#[test]
fn a_release_to_a_waiter_makes_few_system_calls() {
    let wait =
        "env -u CSALOCK_HANDLE csalock run L true & until grep -qs ^Pid: /proc/$PPID/fdinfo/*; do sleep 0.001; done";
    check("system calls of a hand-over", |kind, words, _, _| {
        let limit = match (kind, words) {
            // Three of them close the new file of the next record in advance, open it again, and look whether it is empty.
            (Kind::Directory, RUN) => 94,
            (Kind::Sqlite, RUN) => 164,
            _ => return None,
        };
        Some((median(|| calls(kind, &["run", "L", "sh", "-c", wait])), limit))
    });
}

/// Compares each count with its limit.
fn check(what: &str, count: impl Fn(Kind, &[&str], usize, Option<usize>) -> Option<(usize, usize)>) {
    if !has_own_start() || !has("strace") {
        return skip(
            what,
            "strace, or a static executable on x86-64 with an entry point of its own, for which the limits are",
        );
    }
    let mut grown = String::new();
    for (kind, words, calls, faults) in LIMITS {
        let Some((found, limit)) = count(kind, words, calls, faults) else { continue };
        let line = format!("{kind:?}: {}: {found} {what}, at most {limit}\n", words.join(" "));
        print!("{line}");
        if found > limit {
            grown += &line;
        }
    }
    assert!(grown.is_empty(), "these grew:\n{grown}");
}

fn median(count: impl Fn() -> usize) -> usize {
    let mut found: Vec<usize> = (0..RUNS).map(|_| count()).collect();
    found.sort_unstable();
    found[RUNS / 2]
}

/// csalock without a directory to go to: so it is spawned without a copy of this process, which would have faults too.
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

/// Returns the number of page faults of a process and its children.
fn faults(mut command: Command) -> usize {
    let mut child = command.stdin(Stdio::null()).spawn().unwrap();
    let pid = child.id() as i32;
    // A process that has ended keeps its counts until its parent waits for it.
    waitid(Id::Pid(Pid::from_raw(pid)), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
    let faults = (10..=13).map(|field| stat_field(pid, field).unwrap()).sum::<i64>();
    assert!(child.wait().unwrap().success(), "{command:?}");
    faults as usize
}
