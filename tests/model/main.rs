//! The protocol, explored: every order of steps, crashes, lost replies, stale reads and leases that end, in small
//! worlds.
//!
//! The decisions are those of the product's own `lock::decide`, and the store has the product's own bytes. The model
//! adds the rest: actors that read, find facts, decide and commit in any order ([`step`], [`asking`]), and a world that
//! interferes. [`promises`] has the invariants, [`worlds`] the worlds, and [`mutants`] shows that each promise can be
//! seen broken. The steps of stores are models of their own: [`etcd`], [`sqlite`], [`standby`]. The unit tests of the directory
//! store explore its real code (`crates/directory/src/model.rs`).
//!
//! `CSALOCK_TESTS=hours` explores the same worlds with more faults, which takes half an hour. The number of states
//! is printed; `--nocapture` shows it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stderr, reason = "the number of states")]
#![allow(clippy::disallowed_methods, reason = "the time that an exploration takes is printed")]

#[macro_use]
extern crate harness;

mod actor;
#[path = "../any_request/mod.rs"]
mod any_request;
mod asking;
mod clocks;
mod etcd;
mod explore;
#[path = "../extent/mod.rs"]
mod extent;
mod facts;
mod mutants;
mod promises;
mod sqlite;
mod standby;
mod state;
mod step;
mod storage;
mod world;
mod worlds;

fn main() -> std::process::ExitCode {
    harness::main(env!("CARGO_TARGET_TMPDIR"))
}
