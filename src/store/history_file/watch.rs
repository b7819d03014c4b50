//! Notification of changes of a history file: inotify(7).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};

use crate::store::Subscription;

struct HistoryWatch(OwnedFd);

impl Subscription for HistoryWatch {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn is_notified(&mut self) -> bool {
        true
    }
}

/// Subscribes to changes of the file at this path by processes of this host. Returns `None` if the file does not exist,
/// or if the user has no inotify instance left.
pub(in crate::store) fn watch(path: &Path) -> Option<Box<dyn Subscription>> {
    let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
    // A rotation moves the file; a removal changes its attributes, because a reader has it open.
    let changes = WatchFlags::MODIFY | WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF | WatchFlags::ATTRIB;
    add_watch(&inotify, path, changes | WatchFlags::DONT_FOLLOW).ok()?;
    Some(Box::new(HistoryWatch(inotify)))
}
