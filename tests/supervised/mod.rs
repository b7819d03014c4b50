//! A test program under a supervisor: with default signals, and without processes and files that outlive it.
//!
//! Before `main` the program forks twice. One child runs the tests. The supervisor ends every process that has its mark in
//! the environment: servers, sleeping jobs and keepers too. It does so when the tests end, on a signal, and when the
//! cargo(1) that started it is gone. The other child, the cleaner, does the same if the supervisor is killed. Neither
//! adopts orphans, because tests check the parents of processes.
//!
//! The program under test is copied into the directory of the run, which other users may enter. They may not execute it
//! where it was built if that is below a private directory, such as /root.
//!
//! Temporary files are in directories of the run, which are then removed. If root runs the tests, they have mounts and a
//! /dev/shm of their own: csalock leaves witnesses there, and its `gc` reads all of them. Where that is not possible, the
//! last run to end removes the witnesses that are younger than itself.
//!
//! nohup(1) and background jobs of shells start programs with ignored signals, which csalock rightly passes on. The
//! tests must not depend on that, so all dispositions are reset here.

#![allow(unsafe_code, reason = "fork(2), and a function that is called before main")]

use std::collections::BTreeSet;
use std::fs::DirEntry;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant, SystemTime};

use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, kill, raise, signal, sigprocmask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid, mkdtemp, setpgid, setsid};

/// Marks the processes of a run, by the pid of its supervisor.
pub(crate) const MARK: &str = "TEST_RUN_OF_CSALOCK";

/// Names the directory for files in memory.
const IN_MEMORY: &str = "TEST_MEMORY_OF_CSALOCK";

/// The directory in memory that all processes of a host share.
const MEMORY: &str = "/dev/shm";

/// The prefix of the name of a run's directory in memory, and that of a witness of csalock.
const RUN: &str = "tests-of-csalock-";
const WITNESS: &str = "csalock-";

/// The greatest difference between the clock and the time of a file that was written then, which is that of the last tick.
const TICK: Duration = Duration::from_millis(10);

/// True if this run has a /dev/shm of its own.
static HAS_OWN_MOUNTS: OnceLock<bool> = OnceLock::new();

/// The name of the program in the directory for temporary files.
const PROGRAM: &str = "csalock";

/// The file in the directory for temporary files that keeps all of them.
const KEPT: &str = "kept";

/// The signals that end a run.
const ENDING: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

/// The directories of a run, each with the variable that names it.
struct Places {
    begun: SystemTime,
    all: Vec<(&'static str, PathBuf)>,
}

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
    let _ = HAS_OWN_MOUNTS.set(separate_mounts());
    let places = make_places();
    // No process has been forked yet that could have the copy open for writing when it is executed.
    if let Some((_, place)) = places.all.first() {
        let _ = std::fs::copy(env!("CARGO_BIN_EXE_csalock"), place.join(PROGRAM));
    }
    // SAFETY: the process has a single thread before main.
    let cleaner = match unsafe { fork() } {
        Ok(ForkResult::Child) => clean_after(supervisor, &places),
        Ok(ForkResult::Parent { child }) => Some(child),
        Err(_) => None,
    };
    // SAFETY: the process has a single thread before main.
    match unsafe { fork() } {
        Ok(ForkResult::Parent { child }) => supervise(child, starter, &awaited, cleaner, &places),
        _ => {
            let _ = prctl::set_pdeathsig(Signal::SIGKILL);
            // Tests stop processes. If one of them were in the starter's group, the kernel would send SIGHUP to the group
            // when the shell that started it ends (setpgid(2)).
            let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
            let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
            // SAFETY: the process has a single thread before main.
            unsafe {
                std::env::set_var(MARK, getppid().to_string());
                places.all.iter().for_each(|(variable, place)| std::env::set_var(variable, place));
            }
        }
    }
}

/// Makes the directories of this run, which other users may enter: servers have a user of their own.
fn make_places() -> Places {
    let begun = SystemTime::now() - TICK;
    let parents = [("TMPDIR", std::env::temp_dir(), "t"), (IN_MEMORY, MEMORY.into(), RUN)];
    let made = parents.into_iter().filter_map(|(variable, parent, prefix)| {
        let place = mkdtemp(&parent.join(format!("{prefix}XXXXXX"))).ok()?;
        std::fs::set_permissions(&place, std::os::unix::fs::PermissionsExt::from_mode(0o755)).ok()?;
        Some((variable, place))
    });
    Places { begun, all: made.collect() }
}

/// Separates the mounts of this process from those of the machine, with a /dev/shm of its own, if it runs as root. Returns
/// true if it has.
fn separate_mounts() -> bool {
    const NOTHING: Option<&str> = None;
    // A program that was built there must remain visible.
    if std::env::current_exe().is_ok_and(|program| program.starts_with(MEMORY)) {
        return false;
    }
    // In a chroot(1) whose root is not a mount point, a mount would appear on the machine too. And a process that has left
    // the mount namespace of its root could not find its own program any more.
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if !mounts.lines().any(|line| line.split(' ').nth(4) == Some("/")) {
        return false;
    }
    let separate = || {
        unshare(CloneFlags::CLONE_NEWNS)?;
        mount(NOTHING, "/", NOTHING, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NOTHING)?;
        mount(Some("tmpfs"), MEMORY, Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some("mode=1777"))
    };
    separate().is_ok()
}

/// Waits for the end of the supervisor and removes what it left.
fn clean_after(supervisor: Pid, places: &Places) -> ! {
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
    remove_all(supervisor, BTreeSet::new(), places);
    exit(0)
}

/// Waits for the tests or for one of these signals, which are blocked, removes what is left, and ends like the tests.
fn supervise(tests: Pid, starter: Option<Pid>, awaited: &SigSet, cleaner: Option<Pid>, places: &Places) -> ! {
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
    remove_all(getpid(), [tests.as_raw()].into(), places);
    let _ = cleaner.map(|cleaner| kill(cleaner, Signal::SIGKILL));
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

/// Ends every process of this run and removes its directories.
fn remove_all(supervisor: Pid, killed: BTreeSet<i32>, places: &Places) {
    end_all(supervisor, killed);
    for (_, place) in places.all.iter().filter(|(_, place)| !place.join(KEPT).exists()) {
        let _ = std::fs::remove_dir_all(place);
    }
    remove_witnesses(places.begun);
}

/// Removes the witnesses that were left since the beginning of this run, if no other run needs them. That of a process
/// beside the tests may be one of them: its locks then last as long as their leases, at worst.
fn remove_witnesses(begun: SystemTime) {
    let entries = || std::fs::read_dir(MEMORY).into_iter().flatten().flatten();
    let starts_with =
        |entry: &DirEntry, prefix| entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix));
    let is_young =
        |entry: &DirEntry| entry.metadata().and_then(|found| found.modified()).is_ok_and(|time| time >= begun);
    if !entries().any(|entry| starts_with(&entry, RUN)) {
        let all = entries().filter(|entry| starts_with(entry, WITNESS) && is_young(entry));
        all.for_each(|entry| drop(std::fs::remove_file(entry.path())));
    }
}

/// Kills every process with the mark of this supervisor and waits until all of them are gone. A process may start another
/// one meanwhile, and has no mark during exec(2) and shortly before it ends. `killed` are processes that it need not find.
fn end_all(supervisor: Pid, mut killed: BTreeSet<i32>) {
    let mark = format!("{MARK}={supervisor}");
    let is_marked = |pid: &i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    let start = Instant::now();
    let mut scans_without = 0;
    while start.elapsed() < GONE && (scans_without < SCANS || !killed.is_empty()) {
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

/// Returns true if the tests have mounts of their own, and so a /dev/shm of their own.
#[allow(dead_code, reason = "one test asks")]
pub(crate) fn has_own_mounts() -> bool {
    HAS_OWN_MOUNTS.get() == Some(&true)
}

#[allow(dead_code, reason = "not every test program clears an environment")]
/// Returns the mark, for a process with an environment of its own.
pub(crate) fn mark() -> Option<(&'static str, std::ffi::OsString)> {
    Some((MARK, std::env::var_os(MARK)?))
}

/// Makes a directory in memory, where that is possible: thousands of syncs would test nothing but the disk.
pub(crate) fn in_memory() -> tempfile::TempDir {
    let parent = std::env::var_os(IN_MEMORY).map_or_else(std::env::temp_dir, PathBuf::from);
    tempfile::tempdir_in(parent).unwrap()
}

/// Returns the path of the program under test, which every user may execute.
#[allow(dead_code, reason = "not every test program starts it")]
pub(crate) fn csalock() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| {
        let copy = std::env::temp_dir().join(PROGRAM).display().to_string();
        assert!(std::path::Path::new(&copy).exists(), "the program under test was not copied to {copy}");
        copy
    })
}

#[allow(dead_code, reason = "only storms have files to inspect")]
/// Keeps the temporary files of this run when it ends, for inspection.
pub(crate) fn keep_files() {
    let _ = std::fs::write(std::env::temp_dir().join(KEPT), "");
}

#[allow(dead_code, reason = "not every test program has servers")]
/// Starts a program from a thread that lasts as long as this process. A program with a signal for the death of its parent
/// gets that signal when the thread ends.
pub(crate) fn spawn_for_all(mut command: Command) -> Child {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        tell.send(command.spawn()).unwrap();
        loop {
            std::thread::park();
        }
    });
    told.recv().unwrap().unwrap()
}
