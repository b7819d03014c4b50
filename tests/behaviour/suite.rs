//! The test program itself: it starts with default signals, knows its extent and leaves nothing when it is interrupted.

use std::path::Path;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::sandbox::{Kind, Sandbox, proc, wait_until};
use crate::syscalls::scenarios::ALL;

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
    // Only root can have a /dev/shm of its own.
    if nix::unistd::geteuid().is_root() {
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
            until grep -q '^State:.T' "/proc/$stopped/status"; do :; done
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
fn the_extent_of_this_run_is_known() {
    crate::extent::extent();
}

#[test]
fn an_unknown_extent_fails_and_names_the_three() {
    let mut run = Command::new(std::env::current_exe().unwrap());
    run.args(["suite::the_extent_of_this_run_is_known", "--exact"]).env("CSALOCK_TESTS", "full");
    let output = run.output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(!output.status.success(), "{printed}");
    assert!(printed.contains("CSALOCK_TESTS=full: unknown extent; use quick, all or hours"), "{printed}");
}

/// The run whose environment the test below sets.
#[test]
fn the_scenarios_of_this_run_are_known() {
    for scenario in crate::syscalls::scenarios() {
        println!("scenario {}", scenario.name);
    }
}

#[test]
fn a_part_of_a_name_selects_its_scenarios_and_an_unknown_part_fails() {
    let scenarios_with = |part: &str| {
        let mut run = Command::new(std::env::current_exe().unwrap());
        run.args(["suite::the_scenarios_of_this_run_are_known", "--exact", "--nocapture"]);
        let output = run.env("CSALOCK_SCENARIO", part).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        let names: Vec<String> = text.lines().filter_map(|line| Some(line.strip_prefix("scenario ")?.into())).collect();
        (output.status.success(), names, text)
    };
    // A quick run without a part has one in three.
    for scenario in &ALL[..3] {
        let (succeeded, names, text) = scenarios_with(scenario.name);
        assert!(succeeded && names.iter().any(|name| name == scenario.name), "{text}");
        assert!(names.iter().all(|name| name.contains(scenario.name)), "{text}");
    }
    let (succeeded, names, text) = scenarios_with("no such scenario");
    assert!(!succeeded && names.is_empty(), "{text}");
    assert!(text.contains("CSALOCK_SCENARIO=no such scenario: no scenario has this in its name"), "{text}");
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
