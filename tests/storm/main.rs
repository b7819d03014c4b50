//! The long storm: forty processes that do everything csalock can do, at random, while they are killed and stopped,
//! their clocks are set, the disk is full and servers are restarted; and a witness that knows nothing of csalock.
//!
//! The events are a pure function of a seed: which worker runs which command when, and which fault hits it at which
//! point ([`schedule`]). The kernel's interleaving is not, so a seed repeats the events, but not always their results.
//! Each storm prints its seed first and again when it fails; `CSALOCK_SEED=N` repeats it. A storm lasts five seconds,
//! longer with `CSALOCK_TESTS`. Ten minutes on one store: `CSALOCK_TESTS=hours cargo test --profile checked
//! --test storm on_etcd -- --nocapture`

#![allow(clippy::disallowed_methods, reason = "a test is a process of its own, with clocks and children")]
#![allow(clippy::unwrap_used, reason = "in a test that is how a failure shows")]
#![allow(clippy::print_stderr, clippy::print_stdout, reason = "a storm says its seed and its figures")]

#[macro_use]
extern crate harness;

#[path = "../trace/checker/mod.rs"]
mod checker;
#[path = "../etcd/mod.rs"]
mod etcd;
#[path = "../extent/mod.rs"]
mod extent;
#[path = "../postgres/mod.rs"]
mod postgres;
#[path = "../programs/mod.rs"]
mod programs;
#[allow(dead_code, reason = "the tests of behaviour use the rest")]
#[allow(unused_imports, reason = "likewise")]
#[path = "../behaviour/sandbox/mod.rs"]
mod sandbox;
#[path = "../ssh/mod.rs"]
mod ssh;
#[path = "../supervised/mod.rs"]
mod supervised;

mod codes;
mod counts;
mod critical_section;
mod exclusion;
mod fault_points;
mod fenced;
mod generator;
mod history;
mod linear;
mod mutants;
mod nemesis;
mod objects;
mod schedule;
mod script;
mod setup;
mod storm;
mod worker;

fn main() -> std::process::ExitCode {
    harness::main_without(env!("CARGO_TARGET_TMPDIR"), storm::why_not)
}
