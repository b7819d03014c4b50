//! The program `csalock`, as a library for its tests. Rust programs use the crate `csalock-locks`.

#[doc(hidden)]
pub mod cli;
#[doc(hidden)]
pub mod command;
#[doc(hidden)]
pub mod exit;
#[doc(hidden)]
pub mod glob;
mod report;
#[doc(hidden)]
pub mod run;
#[doc(hidden)]
pub mod terminal;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod untrusted;
