//! The directory store, explored: every order of its system calls by several processes, with crashes between any two of
//! them, replies that are lost and listings that are stale, as on NFS.
//!
//! It is the real code that runs, one system call at a time ([`replay`], [`super::sys`] in test builds), on a file system in
//! which each call is one step ([`file_system`]). Its users ([`client`]) do with it what the engine does: read, take what is free or was left by the
//! dead, change it, give it back. What they must find is in [`world`]; `CSALOCK_MODEL=full` explores the larger worlds.

mod client;
mod file_system;
pub(super) mod replay;
mod world;
mod worlds;

use std::time::Duration;

/// The place of the store's own directory.
const STORE: &str = "store";

/// What every clock shows, since 1970. It stands still, so version numbers must grow without it.
pub(super) const TIME: Duration = Duration::from_secs(1);
