//! The start of the program and of the command under its lock, also where the kernel offers less than usual.

#![allow(unsafe_code, reason = "a filter of system calls is installed in the child")]

use std::fs::{Permissions, set_permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::programs::copy_program;
use crate::sandbox::{Kind, Sandbox, csalock, has, has_namespaces, is_root, proc, wait_until};

/// Options of `run`, one for each way in which the command may be guarded.
const WAYS: [&[&str]; 4] = [&[], &["-F"], &["--ttl", "20s"], &["--once-per", "1h"]];

fn version(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn expected() -> (Option<i32>, String, String) {
    (Some(0), format!("csalock {}\n", env!("CARGO_PKG_VERSION")), String::new())
}

#[test]
fn the_program_starts_in_any_environment() {
    let mut command = Command::new(csalock());
    command.arg("--version").env_clear();
    assert_eq!(version(&mut command), expected());
    // The name by which a program is called may be empty.
    assert_eq!(version(command.arg0("")), expected());
    command.envs((0..2_000).map(|number| (format!("VARIABLE{number}"), "x".repeat(50))));
    assert_eq!(version(&mut command), expected());
}

#[test]
fn the_program_starts_with_the_rights_of_another_user() {
    require!(is_root("a program with the rights of another user"));
    let sandbox = Sandbox::new(Kind::Directory);
    let program = sandbox.path("csalock-of-another");
    copy_program(Path::new(csalock()), &program, "755");
    set_permissions(sandbox.path(""), Permissions::from_mode(0o755)).unwrap();
    chown(&program, Some(65_533), Some(65_533)).unwrap();
    set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(version(Command::new(&program).arg("--version").uid(65_534).env_clear()), expected());
}

fn runs_under(words: &[&str], ways: &[&[&str]]) {
    let sandbox = Sandbox::new(Kind::Directory);
    for (at, options) in ways.iter().enumerate() {
        let lock = format!("lock{at}");
        let run = [&words[1..], &[csalock(), "run"], options, &[&lock, "/bin/echo", "ran"]].concat();
        let done = sandbox.call(words[0], &run).capture();
        assert_eq!((done.code, done.stdout.as_str()), (Some(0), "ran\n"), "{options:?}: {}", done.stderr);
        assert_ne!(sandbox.state(&lock), "held");
    }
}

#[test]
fn an_emulated_program_runs_commands() {
    let emulator = format!("qemu-{}", std::env::consts::ARCH);
    if has(&emulator) {
        runs_under(&[&emulator], &WAYS);
    }
}

#[test]
fn a_program_under_valgrind_runs_commands() {
    if has("valgrind") {
        runs_under(&["valgrind", "--tool=none", "-q"], &WAYS);
    }
}

#[test]
fn a_command_may_be_the_first_process_of_a_namespace() {
    if has_namespaces("a pid namespace") {
        runs_under(&["unshare", "-p"], &WAYS[..2]);
        // Its keeper would be in the namespace as well, where the record's pids mean nothing.
        let sandbox = Sandbox::new(Kind::Directory);
        let done = sandbox.call("unshare", ["-p", csalock(), "run", "--ttl", "20s", "x", "echo", "ran"]).capture();
        let said = "csalock: no process could renew the lease of a command in another pid namespace; start csalock in that \
                    namespace too (unshare --pid --fork)\n";
        assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (Some(71), "", said));
        assert_eq!(sandbox.state("x"), "free");
    }
}

#[test]
fn a_child_that_cannot_be_told_to_start_ends() {
    require!(has("strace"));
    let sandbox = Sandbox::new(Kind::Directory);
    let fault = ["-f", "-qq", "-o", "/dev/null", "-e", "inject=sendmsg:error=EPIPE"];
    let done = sandbox.call("strace", [&fault[..], &[csalock(), "run", "-n", "x", "echo", "ran"]].concat()).capture();
    assert_eq!((done.seen_by_shell(), done.stdout.as_str(), done.stderr.as_str()), (137, "", ""));
    assert_eq!(sandbox.state("x"), "free");
}

/// A step of a filter of system calls: seccomp(2).
const fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const IS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const HAS: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// A filter that refuses a process which shares memory with its parent, unless it is a thread.
fn without_shared_memory() -> Vec<libc::sock_filter> {
    vec![
        step(LOAD, 0, 0, 0),
        step(IS, 0, 4, libc::SYS_clone as u32),
        step(LOAD, 0, 0, 16),
        step(HAS, 0, 2, libc::CLONE_VM as u32),
        step(HAS, 1, 0, libc::CLONE_THREAD as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

/// A filter of a kernel that does not know these calls.
fn without(calls: &[libc::c_long]) -> Vec<libc::sock_filter> {
    let mut filter = vec![step(LOAD, 0, 0, 0)];
    for call in calls {
        filter.push(step(IS, 0, 1, *call as u32));
        filter.push(step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32));
    }
    filter.push(step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    filter
}

fn filtered(sandbox: &Sandbox, words: &[&str], filter: Vec<libc::sock_filter>) -> Command {
    let mut command = sandbox.csalock(words).into_command();
    // SAFETY: the closure only makes system calls.
    unsafe {
        command.pre_exec(move || {
            let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
            let done = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0;
            if done { Ok(()) } else { Err(io::Error::last_os_error()) }
        })
    };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Calls that gVisor and older kernels lack.
const MISSING: [libc::c_long; 4] =
    [libc::SYS_pidfd_open, libc::SYS_pidfd_send_signal, libc::SYS_rseq, libc::SYS_madvise];

#[test]
fn a_filter_of_system_calls_refuses_no_command() {
    for filter in [without_shared_memory(), without(&MISSING)] {
        let sandbox = Sandbox::new(Kind::Directory);
        for (at, options) in WAYS.iter().enumerate() {
            let lock = format!("lock{at}");
            let words = [&["run"], *options, &[&lock, "/bin/echo", "ran"]].concat();
            let done = version(&mut filtered(&sandbox, &words, filter.clone()));
            assert_eq!(done, (Some(0), "ran\n".to_string(), String::new()), "{options:?}");
        }
    }
}

#[test]
fn a_waiter_without_pidfds_gets_the_lock() {
    let sandbox = Sandbox::new(Kind::Directory);
    let mut holder = sandbox.holder("x");
    let waiter = filtered(&sandbox, &["run", "-w", "inf", "x", "echo", "ran"], without(&MISSING)).spawn().unwrap();
    wait_until("it waits", || sandbox.waiting("x") == 1);
    holder.release();
    let done = waiter.wait_with_output().unwrap();
    assert_eq!((done.status.code(), done.stdout.as_slice()), (Some(0), &b"ran\n"[..]));
}

/// The keeper ends a command whose supervisor is stopped.
#[test]
fn a_keeper_without_pidfds_ends_the_command_in_time() {
    let sandbox = Sandbox::new(Kind::Directory);
    let run = filtered(&sandbox, &["run", "--ttl", "2s", "x", "sleep", "1000"], without(&MISSING)).spawn().unwrap();
    wait_until("the command runs", || !sandbox.holders("x").is_empty());
    let command = sandbox.holders("x")[0];
    wait_until("it is the command", || proc::program(command) == "sleep");
    let supervisor = Pid::from_raw(run.id() as i32);
    kill(supervisor, Signal::SIGSTOP).unwrap();
    wait_until("the command has ended", || !proc::lives(command));
    kill(supervisor, Signal::SIGCONT).unwrap();
    assert_eq!(run.wait_with_output().unwrap().status.code(), Some(85));
}

/// The program may be on a file system that does not answer.
#[test]
fn a_signal_ends_a_run_whose_program_is_slow_to_start() {
    require!(has("strace"));
    for (signal, options) in [(Signal::SIGTERM, &[][..]), (Signal::SIGINT, &["--ttl", "60s"])] {
        let sandbox = Sandbox::new(Kind::Directory);
        let trace = ["-f", "-qq", "-o", "trace", "-e", "trace=execve", "-e", "inject=execve:delay_enter=20s:when=1"];
        // A shell that is traced before its exec would be delayed, too.
        let run = [&["-I", "4"], &trace[..], &[csalock(), "run"], options, &["x", "/bin/sleep", "1000"]].concat();
        let job = sandbox.call("strace", &run).spawn();
        wait_until("the lock is acquired", || !sandbox.holders("x").is_empty());
        let child = sandbox.holders("x")[0];
        let supervisor = proc::stat(child).unwrap().1;
        wait_until("the child was told to start", || sandbox.read("files/trace").contains("execve"));
        kill(Pid::from_raw(supervisor), signal).unwrap();
        wait_until("csalock has ended", || !proc::lives(supervisor));
        assert_ne!(sandbox.state("x"), "held");
        drop(job);
    }
}

/// The kernel kills the child of a dead parent only if the child has asked for that before.
#[test]
fn a_leased_command_does_not_start_after_its_supervisor_was_killed() {
    require!(has("strace"));
    let sandbox = Sandbox::new(Kind::Directory);
    let trace = ["-f", "-qq", "-o", "trace", "-e", "trace=prctl,sendmsg", "-e", "inject=prctl:delay_enter=3s:when=1"];
    let run = [&["-I", "4"], &trace[..], &[csalock(), "run", "--ttl", "1h", "x", "sh", "-c", "> ran"]].concat();
    let job = sandbox.call("strace", &run).spawn();
    wait_until("the lock is acquired", || !sandbox.holders("x").is_empty());
    let child = sandbox.holders("x")[0];
    wait_until("the child was told to start", || sandbox.read("files/trace").contains("sendmsg"));
    kill(Pid::from_raw(proc::stat(child).unwrap().1), Signal::SIGKILL).unwrap();
    wait_until("the child has ended", || !proc::lives(child));
    assert!(!sandbox.path("files/ran").exists());
    drop(job);
}
