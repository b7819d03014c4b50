//! Traces of commits, and the checker that replays them against the rules; [`planted`] shows what it finds.
//!
//! The storms, and the tests of every system call, check their own traces. To check others, from one host or several:
//! `CSALOCK_TRACES=one.log:other.log cargo test --profile checked --test trace these_traces -- --nocapture`. Every process
//! that used the stores must have logged, with `CSALOCK_TRACE=FILE` and a binary of the profile `checked`.

#![allow(clippy::unwrap_used, reason = "in a test that is how a failure shows")]
#![allow(clippy::print_stdout, reason = "figures")]
#![allow(clippy::disallowed_methods, reason = "which traces are checked is said in the environment")]

#[macro_use]
extern crate harness;

mod checker;
mod mutants;

use std::path::PathBuf;

#[test]
fn these_traces_are_explained() {
    let Some(paths) = std::env::var_os("CSALOCK_TRACES") else { return };
    let paths: Vec<PathBuf> = std::env::split_paths(&paths).collect();
    let lines = checker::read(&paths).unwrap_or_else(|error| panic!("{error}"));
    let report = checker::check(&lines, None);
    println!("{}", report.figures());
    assert!(report.wrong.is_empty(), "{} are wrong:\n{}", report.wrong.len(), report.wrong.join("\n\n"));
}

fn main() -> std::process::ExitCode {
    harness::main(env!("CARGO_TARGET_TMPDIR"))
}
