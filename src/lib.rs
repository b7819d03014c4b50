//! Locks for shell scripts, and for Rust programs that share them.
//!
//! ```
//! use std::time::Duration;
//!
//! let store = tempfile::tempdir()?;
//! let locks = csalock::Locks::open(&format!("dir:{}", store.path().display()))?;
//! if let Some(guard) = locks.lock("nightly", Duration::from_secs(30))? {
//!     println!("nobody else is here; token {}", guard.token());
//!     assert!(guard.release()?, "it was ours until now");
//! } else {
//!     println!("somebody else has it");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The map
//!
//! ```text
//! argv -> cli -> command -> engine -> lock (record, rules) -> report -> exit
//!                   |          |-> store   directory, sqlite, etcd, memory
//!                   |-> child  '-> host    unix, fake
//!                   '-> flock
//! ```
//!
//! [`lock`] is pure: it defines the record and every rule of locking. [`engine`] is the loop that reads, queries,
//! decides and commits. A [`store`] keeps bytes, a [`host`] has clocks and processes; neither knows locks. [`command`]
//! contains the actions of the program, [`report`] its output and [`exit`] its exit codes.
#![deny(missing_docs)]

pub mod boottime_timer;
pub mod child;
pub mod cli;
pub mod command;
pub mod detach;
pub mod duration;
pub mod engine;
pub mod environment;
pub mod error;
pub mod escape;
pub mod exit;
pub mod flock;
pub mod glob;
mod guard;
pub mod history;
pub mod host;
pub mod lock;
pub mod name;
pub mod report;
pub mod shared_deadline;
pub mod signals;
pub mod startup_state;
pub mod store;
pub mod terminal;
#[cfg(debug_assertions)]
pub mod trace;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod untrusted;
pub mod version;

pub use guard::{Guard, Locks};
