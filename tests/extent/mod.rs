//! How much the tests try: `CSALOCK_TESTS=quick|all|hours`, the only switch of that kind.
//!
//! `quick` is the default and tries a sample of what takes long, another one for each commit. `all` adds what takes
//! minutes, `hours` the complete model, every system call and long storms.
//!
//! Three parameters repeat one failure: `CSALOCK_SEED=N` is the seed of a storm, `CSALOCK_TURN=N` selects the samples, and
//! `CSALOCK_SCENARIO=PART` limits the suites of system calls and exchanges to the scenarios whose names contain PART.

#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::disallowed_methods, reason = "the environment has the switch")]

use std::process::Command;
use std::sync::OnceLock;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Extent {
    Quick,
    All,
    Hours,
}

pub(crate) const FOR_ALL: &str = "CSALOCK_TESTS=all tries them";

/// Returns true if it is the turn of this one of so many tests. A quick run has one of them.
pub(crate) fn is_turn_of(this: usize, all: usize) -> bool {
    extent() > Extent::Quick || turn() % all == this
}

/// Returns the number that selects the samples of this run. All runs of one commit have the same, so a failure repeats.
pub(crate) fn turn() -> usize {
    static TURN: OnceLock<usize> = OnceLock::new();
    *TURN.get_or_init(|| match variable("CSALOCK_TURN") {
        Some(text) => text.parse().unwrap_or_else(|_| panic!("CSALOCK_TURN={text}: expected an integer")),
        None => of_commit().unwrap_or_default(),
    })
}

/// Returns a number for the commit of the sources; `None` if they are not in a clone.
fn of_commit() -> Option<usize> {
    let mut git = Command::new("git");
    let done = git.args(["-C", env!("CARGO_MANIFEST_DIR"), "rev-parse", "--short=7", "HEAD"]).output().ok()?;
    usize::from_str_radix(str::from_utf8(&done.stdout).ok()?.trim(), 16).ok()
}

pub(crate) fn extent() -> Extent {
    let word = variable("CSALOCK_TESTS").unwrap_or_default();
    match &word[..] {
        "" | "quick" => Extent::Quick,
        "all" => Extent::All,
        "hours" => Extent::Hours,
        _ => panic!("CSALOCK_TESTS={word}: unknown extent; use quick, all or hours"),
    }
}

pub(crate) fn choose<T>(quick: T, all: T, hours: T) -> T {
    match extent() {
        Extent::Quick => quick,
        Extent::All => all,
        Extent::Hours => hours,
    }
}

pub(crate) fn is_complete() -> bool {
    extent() == Extent::Hours
}

pub(crate) fn storm_seconds() -> u64 {
    choose(5, 60, 600)
}

/// Returns the seed to repeat, or else a seed from the clock.
pub(crate) fn seed() -> u64 {
    let Some(text) = variable("CSALOCK_SEED") else {
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        return clock.as_micros() as u64;
    };
    text.parse().unwrap_or_else(|_| panic!("CSALOCK_SEED={text}: expected an integer"))
}

pub(crate) fn scenario_part() -> Option<String> {
    variable("CSALOCK_SCENARIO").filter(|part| !part.is_empty())
}

fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}
