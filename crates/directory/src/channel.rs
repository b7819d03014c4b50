//! A waiter's wake-up channel in the store: a FIFO, for processes of this host that cannot reach the waiter's socket.
//! Those run in another network namespace, as in another container.
//!
//! A process notifies by opening the FIFO for writing and closing it, which hangs up on the waiter. No data is written,
//! so a name that leads elsewhere does no harm. The FIFO ends with the wait; `gc` removes that of a killed waiter.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fchmod, mknodat};

use super::layout::CHANNEL;
use super::root::Root;
use super::sys;
use store::Subscription;
use store::history_file::CAUTIOUS;

pub(super) struct Channel {
    root: Arc<Root>,
    id: Vec<u8>,
    fifo: OwnedFd,
}

impl Channel {
    pub(super) fn new(root: Arc<Root>, id: &[u8]) -> Result<Channel, Errno> {
        let drafts = root.drafts()?;
        let name = file_name(id);
        let private = Mode::S_IRUSR | Mode::S_IWUSR;
        mknodat(drafts, name.as_slice(), SFlag::S_IFIFO, private, 0)?;
        let fifo = openat(drafts, name.as_slice(), OFlag::O_RDONLY | CAUTIOUS, Mode::empty())?;
        // Only users that may change the store can notify, and only the waiter gets the wake-up.
        root.ownership.give_file(&fifo);
        fchmod(&fifo, private | (root.inner_mode & (Mode::S_IWGRP | Mode::S_IWOTH)))?;
        Ok(Channel { root, id: id.to_vec(), fifo })
    }
}

impl Subscription for Channel {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.fifo.as_fd()
    }

    fn is_notified(&mut self) -> bool {
        true
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        remove(&self.root, &self.id);
    }
}

pub(super) fn notify(root: &Root, id: &[u8]) {
    let _ = root.drafts().map(|drafts| notify_file(drafts, &file_name(id)));
}

/// Notifies the waiter on the FIFO with this file name. Returns true if the waiter is there.
pub(super) fn notify_file(drafts: &OwnedFd, file_name: &[u8]) -> bool {
    openat(drafts, file_name, OFlag::O_WRONLY | CAUTIOUS, Mode::empty()).is_ok()
}

pub(super) fn remove(root: &Root, id: &[u8]) {
    if root.drafts().is_ok_and(|drafts| sys::remove_file(drafts, file_name(id).as_slice()) == Ok(true)) {
        root.remove_if_empty();
    }
}

fn file_name(id: &[u8]) -> Vec<u8> {
    [CHANNEL.as_bytes(), id].concat()
}
