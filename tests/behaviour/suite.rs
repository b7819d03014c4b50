//! The test program itself: it starts with default signals, knows its extent, counts what it skips and leaves nothing when
//! it is interrupted.

use std::path::Path;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::sandbox::{Kind, Sandbox, proc, wait_until};

/// The file in which a run that will be interrupted writes its ignored signals and its processes.
const SAYS: &str = "CSALOCK_TEST_INTERRUPTED";

/// A file that this run leaves in the memory of its own.
const IN_MEMORY: &str = "/dev/shm/left-by-an-interrupted-run";

/// The signals up to 31 that a program of Rust ignores from its start: SIGPIPE alone. Those above are the C library's own.
const IGNORED: &str = "0000000000001000";
const STANDARD: u64 = (1 << 31) - 1;

/// The run that the test below interrupts.
#[test]
fn a_run_that_starts_processes() {
    let Some(path) = std::env::var_os(SAYS) else { return };
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
    let ignored = format!("{:016x}", u64::from_str_radix(ignored, 16).unwrap() & STANDARD);
    // One in a session of its own, and one whose parent is gone.
    #[allow(clippy::zombie_processes, reason = "the supervisor waits for it")]
    let sleeper = Command::new("setsid").args(["sleep", "1000000"]).spawn().unwrap();
    let orphan = Command::new("sh").args(["-c", "sleep 1000000 > /dev/null 2>&1 & echo $!"]).output().unwrap();
    let orphan = String::from_utf8(orphan.stdout).unwrap();
    // During exec(2) a process has no environment by which the supervisor finds it.
    for pid in [sleeper.id() as i32, orphan.trim().parse().unwrap()] {
        wait_until("the process is asleep", || proc::program(pid) == "sleep");
    }
    std::mem::forget([tempfile::tempdir().unwrap(), crate::supervised::in_memory()]);
    // Only root can have a /dev/shm of its own, and not everywhere.
    if crate::supervised::has_own_mounts() {
        std::fs::write(IN_MEMORY, "").unwrap();
    }
    let said = format!("{ignored}\n{}\n{}\n{orphan}", std::process::id(), sleeper.id());
    let draft = std::path::Path::new(&path).with_extension("draft");
    std::fs::write(&draft, said).unwrap();
    std::fs::rename(draft, path).unwrap();
    loop {
        std::thread::park();
    }
}

/// The kernel sends SIGHUP to a group that has a stopped member when the last process with a parent elsewhere leaves it.
#[test]
fn a_run_outlives_the_shell_that_started_it_while_a_process_is_stopped() {
    let sandbox = Sandbox::new(Kind::Directory);
    let script = r#"set -m
        (
            (trap '' HUP; "$0" suite::a_run_that_starts_processes --exact; echo $? > "$1/ended") > "$1/printed" 2>&1 &
            until [[ -e $CSALOCK_TEST_INTERRUPTED ]]; do sleep 0.01; done
            stopped=$(tail -n 1 "$CSALOCK_TEST_INTERRUPTED")
            kill -STOP "$stopped"
            until grep -q '^State:.T' "/proc/$stopped/status"; do sleep 0.01; done
        ) &
        wait"#;
    let this = std::env::current_exe().unwrap();
    let words = [Path::new("-c"), Path::new(script), &this, &sandbox.path("")];
    sandbox.call("bash", words).env(SAYS, sandbox.path("says")).capture();
    let said = sandbox.read("says");
    let tests: i32 = said.lines().nth(1).unwrap_or_else(|| panic!("{}", sandbox.read("printed"))).parse().unwrap();
    // A run that was hung up has no supervisor any more.
    if let Some((_, supervisor)) = proc::stat(tests).filter(|(_, parent)| *parent > 1) {
        let _ = kill(Pid::from_raw(supervisor), Signal::SIGTERM);
    }
    wait_until("the run has ended", || sandbox.path("ended").exists() && !sandbox.read("ended").is_empty());
    assert_eq!(sandbox.read("ended"), format!("{}\n", 128 + Signal::SIGTERM as i32));
}

#[test]
fn a_run_begins_with_default_signals_and_an_interrupted_one_leaves_nothing() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGKILL] {
        let sandbox = Sandbox::new(Kind::Directory);
        let this = std::env::current_exe().unwrap();
        let words = "suite::a_run_that_starts_processes --exact --nocapture";
        let script = format!("trap '' HUP INT QUIT TERM USR1; exec {} {words}", this.display());
        let says = sandbox.path("says");
        let temporary = sandbox.path("temporary");
        std::fs::create_dir(&temporary).unwrap();
        let has_files = || std::fs::read_dir(&temporary).unwrap().count() > 0;
        let mut job = sandbox.script("dash", &script).env(SAYS, &says).env("TMPDIR", &temporary).spawn();
        wait_until("the run has started its processes", || says.exists() || job.has_ended());
        let said = sandbox.read("says");
        let mut lines = said.lines();
        assert_eq!(lines.next(), Some(IGNORED), "{said} {} {}", job.printed(), job.said());
        let pids: Vec<i32> = lines.map(|line| line.parse().unwrap()).collect();
        assert!(pids.len() == 3 && pids.iter().all(|pid| proc::lives(*pid)), "{said}");
        assert!(has_files() && !Path::new(IN_MEMORY).exists());
        job.send(signal);
        assert_eq!(job.wait().signal, Some(signal as i32));
        // After a killed supervisor, another process cleans up.
        if signal == Signal::SIGKILL {
            wait_until("the processes are gone", || !pids.iter().any(|pid| proc::lives(*pid)) && !has_files());
        }
        assert!(!pids.iter().any(|pid| proc::lives(*pid)) && !has_files(), "{pids:?} after {signal}");
    }
}

/// Parts of the tests below, which run them where a program is missing.
#[test]
#[ignore = "the tests below run it"]
fn lacks_a_shell() {
    assert!(!harness::has("zsh"));
}

#[test]
#[ignore = "the tests below run it"]
fn starts_a_shell_that_is_missing() {
    harness::abandon("zsh".as_ref(), std::io::ErrorKind::NotFound.into());
}

#[test]
#[ignore = "the tests below run it"]
fn prints_and_passes() {
    println!("a line of a test that passes");
}

/// The end of a run, as the target `untested` prints it.
#[test]
#[ignore = "the tests below run it"]
fn ends_a_run() {
    harness::totals::main(env!("CARGO_TARGET_TMPDIR"));
}

/// Runs a script, with this test program as `$0`, where no program is found. Returns its status and its output.
fn where_nothing_is_installed(sandbox: &Sandbox, script: &str, ci: &str) -> (Option<i32>, String) {
    // The name is that of the program whose runs are counted.
    crate::programs::copy_program(Path::new("/bin/dash"), &sandbox.path("bin/cargo"), "755");
    let this = std::env::current_exe().unwrap();
    let words = [Path::new("-c"), Path::new(script), &this];
    let call = sandbox.call(sandbox.path("bin/cargo"), words).env("PATH", "/nonexistent").env("CI", ci);
    let done = call.env("RUST_BACKTRACE", "0").capture();
    assert_eq!(done.stderr, "");
    let is_constant =
        |line: &&str| !line.is_empty() && !line.starts_with("running ") && !line.contains("; finished in ");
    (done.code, done.stdout.lines().filter(is_constant).map(|line| format!("{line}\n")).collect())
}

#[test]
fn a_test_that_lacks_a_program_is_skipped_with_its_cause() {
    let sandbox = Sandbox::new(Kind::Directory);
    for name in ["lacks_a_shell", "starts_a_shell_that_is_missing"] {
        let run = format!("\"$0\" suite::{name} --exact --ignored; exit $?");
        let said = format!(
            "test suite::{name} ... ignored (no zsh (apt-get install zsh))\nSKIPPED 1 test: no zsh (apt-get install zsh)\n"
        );
        assert_eq!(where_nothing_is_installed(&sandbox, &run, ""), (Some(0), said));
        // CI installs it.
        let said = format!(
            "test suite::{name} ... FAILED\nfailures:\n---- suite::{name} ----\n\
             not tried although CI=true: no zsh (apt-get install zsh)\nfailures:\n    suite::{name}\n"
        );
        assert_eq!(where_nothing_is_installed(&sandbox, &run, "true"), (Some(101), said));
    }
}

#[test]
fn a_run_ends_with_the_totals_of_its_suites_alone() {
    let sandbox = Sandbox::new(Kind::Directory);
    let end = "\"$0\" suite::ends_a_run --exact --ignored --test-threads=1";
    let after = |suite: &str| {
        let (code, said) = where_nothing_is_installed(&sandbox, &format!("{suite} > /dev/null; {end}; exit $?"), "");
        assert_eq!(code, Some(0), "{said}");
        said.replace("test suite::ends_a_run ... ", "").replace("ok\n", "").trim_start().to_string()
    };
    let skips = "\"$0\" suite:: --ignored --skip ends_a_run --skip starts";
    assert_eq!(
        after(skips),
        "SKIPPED 1 test: no zsh (apt-get install zsh)\nSKIPPED 1 test in all; 1 test of 1 suite ran.\n\
         To try more: apt-get install zsh\n"
    );
    assert_eq!(after("\"$0\" prints_and_passes --ignored"), "Nothing was skipped: 1 test of 1 suite ran.\n");
    // What another run left does not count, and is removed.
    let left = Path::new(env!("CARGO_TARGET_TMPDIR")).join("totals/1-0");
    std::fs::create_dir_all(&left).unwrap();
    std::fs::write(left.join("suite"), "run 5\nlacking 5\nroot 5\n").unwrap();
    assert_eq!(after("\"$0\" prints_and_passes --ignored"), "Nothing was skipped: 1 test of 1 suite ran.\n");
    assert!(!left.exists());
}
