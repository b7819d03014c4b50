//! A test program under a supervisor: with default signals, and without processes that outlive it.
//!
//! Before `main` the program forks twice. One child runs the tests. The supervisor ends every process that has its mark in
//! the environment: servers, sleeping jobs and keepers too. It does so when the tests end, on a signal, and when the
//! cargo(1) that started it is gone. The other child, the cleaner, does the same if the supervisor is killed. Neither
//! adopts orphans, because tests check the parents of processes.
//!
//! nohup(1) and background jobs of shells start programs with ignored signals, which csalock rightly passes on. The
//! tests must not depend on that, so all dispositions are reset here.

#![allow(unsafe_code, reason = "fork(2), and a function that is called before main")]

use std::collections::BTreeSet;
use std::time::Duration;

use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, kill, raise, signal, sigprocmask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid, setsid};

/// Marks the processes of a run, by the pid of its supervisor.
pub(crate) const MARK: &str = "TEST_RUN_OF_CSALOCK";

/// The signals that end a run.
const ENDING: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = begin;

extern "C" fn begin() {
    for one in Signal::iterator().filter(|one| !matches!(one, Signal::SIGKILL | Signal::SIGSTOP)) {
        // SAFETY: no handler of ours is installed.
        let _ = unsafe { signal(one, SigHandler::SigDfl) };
    }
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
    // The tests start this program again, as a process of a storm, which has its own identity.
    let words = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    if words.split(|byte| *byte == 0).any(|word| word == b"--ignored" || word == b"--list") {
        return;
    }
    // cargo(1) may be ended alone. A shell may go, and leave its background jobs.
    let starter = Some(getppid())
        .filter(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("cargo")));
    let supervisor = getpid();
    // A signal may come as soon as the tests run, which may be before this process runs again.
    let mut awaited: SigSet = ENDING.into_iter().collect();
    awaited.add(Signal::SIGCHLD);
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&awaited), None);
    // SAFETY: the process has a single thread before main.
    if let Ok(ForkResult::Child) = unsafe { fork() } {
        clean_after(supervisor);
    }
    // SAFETY: the process has a single thread before main.
    match unsafe { fork() } {
        Ok(ForkResult::Parent { child }) => supervise(child, starter, &awaited),
        _ => {
            let _ = prctl::set_pdeathsig(Signal::SIGKILL);
            let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
            // SAFETY: the process has a single thread before main.
            unsafe { std::env::set_var(MARK, getppid().to_string()) };
        }
    }
}

/// Waits for the end of the supervisor and ends the processes that it left.
fn clean_after(supervisor: Pid) -> ! {
    // The end of the parent is a signal, and no other signal reaches this process.
    let end: SigSet = [Signal::SIGUSR1].into_iter().collect();
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None);
    let _ = setsid();
    // A reader of the output must not wait for this process.
    for descriptor in 0..3 {
        let _ = nix::unistd::close(descriptor);
    }
    let _ = prctl::set_pdeathsig(Signal::SIGUSR1);
    while getppid() == supervisor {
        next(&end, Duration::from_secs(1));
    }
    end_all(supervisor, BTreeSet::new());
    exit(0)
}

/// Waits for the tests or for one of these signals, which are blocked, ends what is left, and ends like the tests.
fn supervise(tests: Pid, starter: Option<Pid>, awaited: &SigSet) -> ! {
    let mut status = None;
    let mut ending = None;
    while status.is_none() && ending.is_none() {
        ending = next(awaited, Duration::from_secs(1)).filter(|signal| ENDING.contains(signal));
        status = reap(tests);
        if starter.is_some_and(|starter| getppid() != starter) {
            ending = ending.or(Some(Signal::SIGTERM));
        }
    }
    let _ = kill(tests, Signal::SIGKILL);
    end_all(getpid(), [tests.as_raw()].into());
    match (status, ending) {
        (Some(WaitStatus::Exited(_, code)), _) => exit(code),
        (Some(WaitStatus::Signaled(_, signal, _)), _) | (_, Some(signal)) => {
            let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
            let _ = raise(signal);
            exit(128 + signal as i32)
        }
        _ => exit(1),
    }
}

fn exit(code: i32) -> ! {
    // SAFETY: nothing has begun that would have to be ended.
    unsafe { libc::_exit(code) }
}

/// Returns the next of these signals, if one comes in time.
fn next(signals: &SigSet, at_most: Duration) -> Option<Signal> {
    let timeout = libc::timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: at_most.subsec_nanos().into() };
    // SAFETY: both pointers are to values that live until it returns.
    let number = unsafe { libc::sigtimedwait(signals.as_ref(), std::ptr::null_mut(), &timeout) };
    Signal::try_from(number).ok()
}

/// Reaps the children that have ended. Returns the status of the tests.
fn reap(tests: Pid) -> Option<WaitStatus> {
    let mut status = None;
    while let Ok(ended) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
        if ended == WaitStatus::StillAlive {
            break;
        }
        status = status.or(Some(ended).filter(|ended| ended.pid() == Some(tests)));
    }
    status
}

/// Time after which a killed process that still exists hangs in the kernel.
const GONE: Duration = Duration::from_secs(10);

/// Number of scans in a row that must find no process: during exec(2) a process has no environment.
const SCANS: u32 = 20;

/// Kills every process with the mark of this supervisor and waits until all of them are gone. A process may start another
/// one meanwhile, and has no mark during exec(2) and shortly before it ends. `killed` are processes that it need not find.
fn end_all(supervisor: Pid, mut killed: BTreeSet<i32>) {
    let mark = format!("{MARK}={supervisor}");
    let is_marked = |pid: &i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    let start = std::time::Instant::now();
    let mut scans_without = 0;
    while scans_without < SCANS || (!killed.is_empty() && start.elapsed() < GONE) {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let marked: Vec<i32> = pids.filter(is_marked).collect();
        for pid in &marked {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        scans_without = if marked.is_empty() { scans_without + 1 } else { 0 };
        killed.extend(&marked);
        killed.retain(|pid| is_running(*pid));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns true if this process exists and is not a zombie, which its parent reaps.
fn is_running(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[allow(dead_code, reason = "not every test program clears an environment")]
/// Returns the mark, for a process with an environment of its own.
pub(crate) fn mark() -> Option<(&'static str, std::ffi::OsString)> {
    Some((MARK, std::env::var_os(MARK)?))
}
