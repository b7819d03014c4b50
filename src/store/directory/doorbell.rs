//! A waiter's bell in the store: a FIFO, for processes of this host that cannot reach the waiter's socket because they are
//! in another network namespace, as those of another container are.
//!
//! A process rings by opening the FIFO for writing and closing it, which hangs up on the waiter. Nothing is ever written, so
//! a name that leads elsewhere does no harm. The FIFO goes away with the wait; `gc` removes one whose waiter was killed.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fchmod, mknodat};

use super::root::Root;
use super::sys;
use crate::store::{Layout, Subscription};

/// What its name begins with, among the drafts.
pub(super) const PREFIX: &[u8] = b".bell.";

const CAUTIOUS: OFlag = OFlag::O_NONBLOCK.union(OFlag::O_NOFOLLOW).union(OFlag::O_NOCTTY).union(OFlag::O_CLOEXEC);

/// A FIFO that a waiter has open for reading.
pub(super) struct Doorbell {
    root: Arc<Root>,
    store: PathBuf,
    bell: Vec<u8>,
    fifo: OwnedFd,
}

impl Doorbell {
    /// Makes it in a store at this path.
    pub(super) fn new(root: Arc<Root>, store: PathBuf, bell: &[u8]) -> Result<Doorbell, Errno> {
        let (drafts, name) = (root.drafts()?, name(bell));
        let name = sys::os(&name);
        let private = Mode::S_IRUSR | Mode::S_IWUSR;
        mknodat(drafts, name, SFlag::S_IFIFO, private, 0)?;
        let fifo = openat(drafts, name, OFlag::O_RDONLY | CAUTIOUS, Mode::empty())?;
        // Only those who may change the store ring, and only its waiter hears it.
        root.ownership.give_file(&fifo);
        fchmod(&fifo, private | (root.inner_mode & (Mode::S_IWGRP | Mode::S_IWOTH)))?;
        Ok(Doorbell { root, store, bell: bell.to_vec(), fifo })
    }
}

impl Subscription for Doorbell {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.fifo.as_fd()
    }

    fn is_notified(&mut self) -> bool {
        true
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        remove(&self.root, &self.store, &self.bell);
    }
}

/// Rings. Whether a waiter hears it.
pub(super) fn ring(root: &Root, bell: &[u8]) -> bool {
    root.drafts().is_ok_and(|drafts| is_heard(drafts, &name(bell)))
}

/// Whether a waiter hears the bell with this file name, which it does then.
pub(super) fn is_heard(drafts: &OwnedFd, file_name: &[u8]) -> bool {
    openat(drafts, sys::os(file_name), OFlag::O_WRONLY | CAUTIOUS, Mode::empty()).is_ok()
}

/// Removes the bell of a waiter that is gone, if it had one in the store at this path.
pub(super) fn remove(root: &Root, store: &std::path::Path, bell: &[u8]) {
    let name = name(bell);
    let name: &OsStr = sys::os(&name);
    if root.drafts().is_ok_and(|drafts| sys::remove_if_there(drafts, name) == Ok(true)) && root.layout == Layout::Beside
    {
        root.remove_if_empty(store);
    }
}

fn name(bell: &[u8]) -> Vec<u8> {
    [PREFIX, bell].concat()
}
