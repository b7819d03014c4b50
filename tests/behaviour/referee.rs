//! A critical section that detects a second process inside: a marker that only one can create, and a counter that loses
//! steps when two count at once.
//!
//! The critical section is a process of its own: this very program, started again to run the one test in here.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use crate::sandbox::{Sandbox, proc};

const PLACE: &str = "CSALOCK_TEST_REFEREE";

/// The words that run the critical section under a lock.
pub(crate) fn command() -> Vec<String> {
    let this = std::env::current_exe().unwrap().display().to_string();
    [this.as_str(), "referee::critical_section", "--exact", "--ignored", "--test-threads=1"]
        .map(str::to_string)
        .to_vec()
}

pub(crate) fn place(sandbox: &Sandbox) -> (&'static str, std::path::PathBuf) {
    (PLACE, sandbox.path("files"))
}

#[track_caller]
pub(crate) fn steps(sandbox: &Sandbox) -> Vec<u64> {
    assert_eq!(sandbox.read("files/broken"), "", "two processes were inside at once");
    let steps: Vec<u64> = sandbox.read("files/steps").lines().map(|line| line.parse().unwrap()).collect();
    assert!(steps.windows(2).all(|pair| pair[0] + 1 == pair[1]), "steps were lost: {steps:?}");
    steps
}

#[test]
#[ignore = "is run by other tests, under a lock"]
fn critical_section() {
    let Some(place) = std::env::var_os(PLACE) else { return };
    let place = Path::new(&place);
    let me = std::process::id() as i32;
    let marker = place.join("marker");
    let mine = format!("{me} {}", proc::start_of(me).unwrap());
    while let Err(error) =
        OpenOptions::new().write(true).create_new(true).open(&marker).and_then(|mut file| write!(file, "{mine}"))
    {
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
        let other = fs::read_to_string(&marker).unwrap_or_default();
        if is_dead(&other) {
            // The process was killed inside; the next holder may clear up.
            let _ = fs::remove_file(&marker);
        } else {
            append(&place.join("broken"), &format!("{other} and {mine}"));
            return;
        }
    }
    let steps = fs::read_to_string(place.join("steps")).unwrap_or_default();
    let last: u64 = steps.lines().next_back().map_or(0, |line| line.parse().unwrap());
    std::thread::sleep(Duration::from_micros(200));
    append(&place.join("steps"), &(last + 1).to_string());
    if fs::read_to_string(&marker).ok().as_deref() != Some(&mine) {
        append(&place.join("broken"), &format!("the marker of {mine} was taken"));
    }
    let _ = fs::remove_file(&marker);
}

fn append(file: &Path, line: &str) {
    OpenOptions::new().append(true).create(true).open(file).unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Whether the process that wrote this into the marker is gone; one that was killed before it wrote anything, too.
fn is_dead(marker: &str) -> bool {
    let Some((pid, start)) = marker.split_once(' ') else {
        std::thread::sleep(Duration::from_millis(50));
        return true;
    };
    let pid: i32 = pid.parse().unwrap();
    !proc::lives(pid) || proc::start_of(pid).is_none_or(|found| found.to_string() != start)
}
