//! Locks for Rust programs, in the stores of the command `csalock`: a directory (also on NFS, or behind ssh), an SQLite
//! database, etcd or PostgreSQL.
//!
//! ```
//! use std::time::Duration;
//!
//! let store = tempfile::tempdir()?;
//! let locks = csalock_locks::Locks::open(&format!("dir:{}", store.path().display()))?;
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
//! A lock ends with the process that holds it, however that process dies. The crates below this one have no stable interface.

#![deny(missing_docs)]

mod guard;
mod locks;

pub use guard::Guard;
pub use lock::error::{Error, ErrorKind, Result};
pub use locks::{LockRequest, Locks};
