//! Connections that a process shares with its parent: `csalock run` connects, its child acquires the lock and becomes the
//! command, and then the parent releases the lock on the same connection.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};

use nix::sys::stat::fstat;

use super::guarded;

/// Device and number of a socket. A descriptor's number may belong to another file after it was closed.
type SocketId = (u64, u64);

/// State that may have a connection.
pub(super) trait Connected {
    fn socket(&self) -> Option<BorrowedFd<'_>>;
}

/// The connections of the stores that this process or its parent has open.
pub(super) struct Connections<T>(Mutex<Vec<Entry<T>>>);

/// A server, the socket, and the state with the connection.
type Entry<T> = (String, Option<SocketId>, Weak<Mutex<T>>);

impl<T: Connected> Connections<T> {
    pub(super) const fn new() -> Connections<T> {
        Connections(Mutex::new(Vec::new()))
    }

    /// Adds a connection, for children of this process.
    pub(super) fn add(&self, server: String, state: &Arc<Mutex<T>>) {
        let id = socket_id(&*guarded(state));
        guarded(&self.0).push((server, id, Arc::downgrade(state)));
    }

    /// Returns the connection to this server, unless its descriptor is closed, as in a keeper.
    pub(super) fn find(&self, server: &str) -> Option<Arc<Mutex<T>>> {
        let mut found = None;
        guarded(&self.0).retain(|(of, id, state)| {
            let Some(state) = state.upgrade() else { return false };
            let is_open = *id == socket_id(&*guarded(&state));
            if !is_open {
                // The descriptor is closed or has been replaced, so its number may belong to another file by now.
                std::mem::forget(state);
            } else if of == server {
                found = Some(state);
            }
            is_open
        });
        found
    }
}

fn socket_id(state: &impl Connected) -> Option<SocketId> {
    fstat(state.socket()?.as_fd()).ok().map(|found| (found.st_dev, found.st_ino))
}
