//! A model of the directory store: every order of its system calls by several processes. Crashes occur between any two
//! calls; replies are lost and listings stale, as on NFS.
//!
//! It runs the real code, one system call at a time ([`replay`], [`super::sys`] in test builds). On its file system
//! each call is one step ([`file_system`]). The clients ([`client`]) do what the engine does: read, acquire a free or
//! stale lock, change it, release it. [`world`] has the invariants; `CSALOCK_TESTS=hours` explores larger worlds.

mod client;
mod file_system;
pub(super) mod replay;
mod world;
mod worlds;

use std::time::Duration;

/// Identifier of the store's own directory.
const STORE: &str = "store";

/// Time since 1970 that every clock shows. The clocks stand still, so version numbers must grow without them.
pub(super) const TIME: Duration = Duration::from_secs(1);
