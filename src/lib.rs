//! The program `csalock`, as a library for its tests. Rust programs use the crate `csalock-locks`.

#![doc(hidden)]

pub mod cli;
pub mod command;
pub mod exit;
pub mod glob;
mod report;
pub mod run;
pub mod terminal;
#[cfg(any(test, fuzzing))]
pub mod untrusted;
