//! The program `csalock`, as a library for its tests. Rust programs use the crate `csalock-locks`.

#![doc(hidden)]

pub mod cli;
pub mod command;
pub mod exit;
pub mod glob;
mod report;
pub mod run;
pub mod terminal;
/// Properties of the parsers of untrusted bytes.
#[cfg(any(test, fuzzing))]
#[path = "../fuzz/properties/mod.rs"]
pub mod untrusted;
