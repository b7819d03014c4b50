//! Locks for Rust programs, in the stores of the command `csalock`: a directory (also on NFS, or behind ssh), an SQLite
//! database, etcd or PostgreSQL.
//!
//! ```
//! use std::time::Duration;
//!
//! let store = tempfile::tempdir()?;
//! let locks = csalock::Locks::open(&format!("dir:{}", store.path().display()))?;
//! if let Some(guard) = locks.lock("nightly", Duration::from_secs(30))? {
//!     println!("this process alone has it; token {}", guard.token());
//!     assert!(guard.release()?, "the lock was held until now");
//! } else {
//!     println!("another process has it");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Locks`] is a store, [`LockRequest`] says which locks and on which terms, and a [`Guard`] holds them. The locks are those
//! of the command: `csalock status` shows the holder, its process, since when and why, and a script that runs `csalock lock`
//! waits for a Rust program like for any other. The command's manual, csalock(1), explains stores, leases and fencing
//! tokens.
//!
//! A lock ends with the process that holds it, however that process dies. Nothing else of this crate is a stable interface.
// The layers, each of which uses only those below it: ARCHITECTURE.md.

#[doc(hidden)]
pub mod cli;
#[doc(hidden)]
pub mod command;
#[doc(hidden)]
pub mod duration;
#[doc(hidden)]
pub mod engine;
#[doc(hidden)]
pub mod environment;
#[doc(hidden)]
#[deny(missing_docs)]
pub mod error;
#[doc(hidden)]
pub mod escape;
#[doc(hidden)]
pub mod exit;
#[doc(hidden)]
pub mod glob;
#[deny(missing_docs)]
mod guard;
#[doc(hidden)]
pub mod history;
#[doc(hidden)]
pub mod host;
#[doc(hidden)]
pub mod lock;
#[deny(missing_docs)]
mod locks;
#[doc(hidden)]
pub mod name;
pub(crate) mod report;
#[doc(hidden)]
pub mod run;
#[doc(hidden)]
pub mod signals;
#[doc(hidden)]
pub mod store;
#[doc(hidden)]
pub mod terminal;
#[cfg(any(test, debug_assertions))]
#[doc(hidden)]
pub mod trace;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod untrusted;
#[doc(hidden)]
pub mod version;

pub use error::{Error, ErrorKind, Result};
pub use guard::Guard;
pub use locks::{LockRequest, Locks};
