//! Locks for Rust programs, in the stores of the command `csalock`: a directory (also on NFS, or behind ssh), an SQLite
//! database, etcd or PostgreSQL.
//!
//! ```
//! use std::time::Duration;
//! use csalock_locks::{Acquired, Locks};
//!
//! let store = tempfile::tempdir()?;
//! let locks = Locks::open(&format!("dir:{}", store.path().display()))?;
//! match locks.lock("nightly", Duration::from_secs(30))? {
//!     Acquired::Held(guard) => {
//!         println!("this process alone has it; token {}", guard.token());
//!         guard.release()?;
//!     }
//!     Acquired::Refused(refused) => println!("{refused}"),
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
//!
//! # A worker that stops when its lock is lost
//!
//! On a store that other hosts share, a lock can be lost while the program runs: the store does not answer for the length of
//! a lease, the machine sleeps, or an administrator breaks the lock. The next holder then starts its work. A program must
//! stop before that, or let the service that it changes refuse late writes by the [token](Guard::token).
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
//! use std::time::Duration;
//! use csalock_locks::{Acquired, Locks};
//!
//! # let store = tempfile::tempdir()?;
//! # let url = format!("dir:{}", store.path().display());
//! # let steps = [1, 2, 3];
//! # fn work(_step: i32, _token: u64) {}
//! let guard = match Locks::open(&url)?.lock("import", Duration::from_secs(10))? {
//!     Acquired::Held(guard) => guard,
//!     Acquired::Refused(refused) => return Err(refused.to_string().into()),
//! };
//! let is_lost = Arc::new(AtomicBool::new(false));
//! let told = is_lost.clone();
//! guard.on_lost(move || told.store(true, SeqCst))?;
//! for step in steps {
//!     if is_lost.load(SeqCst) {
//!         break;
//!     }
//!     work(step, guard.token());
//! }
//! // Fails with `ErrorKind::Lost` if another process may have worked at the same time.
//! guard.release()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A leader that must stop
//!
//! A leader waits for its turn and leads until the lock is lost. Where no step can be checked, the process ends itself:
//! `csalock run` does that for a command.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use csalock_locks::{Acquired, Locks, OpenOptions};
//! let locks = OpenOptions::new().environment(true).open("etcd://db1,db2,db3/billing")?;
//! loop {
//!     let Acquired::Held(guard) = locks.lock("leader", Duration::from_secs(3600))? else { continue };
//!     guard.on_lost(|| std::process::abort())?;
//!     // Lead, and give up the lead by `guard.release()`.
//! #   drop(guard);
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), csalock_locks::Error>(())
//! ```
//!
//! # A job that runs once a day
//!
//! Many hosts may start it. The lock lets one of them look, work and note the day.
//!
//! ```
//! # use std::time::Duration;
//! # use csalock_locks::{Acquired, Locks};
//! # let directory = tempfile::tempdir()?;
//! # let done = directory.path().join("done");
//! # let locks = Locks::open(&format!("dir:{}", directory.path().display()))?;
//! # fn report() {}
//! let today = "2026-11-29";
//! if let Acquired::Held(guard) = locks.lock("report", Duration::ZERO)? {
//!     if !std::fs::read_to_string(&done).is_ok_and(|day| day == today) {
//!         report();
//!         std::fs::write(&done, today)?;
//!     }
//!     guard.release()?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Async programs
//!
//! Each call may wait for a disk or a server, and [`Locks::acquire`] for other processes. In an async program they belong
//! into a thread that may block: `tokio::task::spawn_blocking(move || locks.lock("x", wait))`. [`Locks`] is cheap to clone,
//! and a [`Guard`] may be moved to any task and thread. Its drop releases the locks, which is such a call too: release it by
//! `spawn_blocking(move || guard.release())`, or the drop blocks a thread of the runtime, for five seconds at most if other
//! hosts may share the store. A task that is cancelled drops its guard.

#![deny(missing_docs)]

mod acquired;
mod error;
mod guard;
mod locks;
mod renewal;

pub use acquired::{Acquired, Holder, Refused};
pub use error::{Error, ErrorKind, Result};
pub use guard::Guard;
pub use locks::{LockRequest, Locks, OpenOptions};
