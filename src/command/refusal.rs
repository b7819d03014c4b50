//! The choice of message and kind of a refusal.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::engine::{LockRef, OpenLockSet};
use crate::error::ErrorKind;
use crate::lock::Response;
use crate::report::{RefusedLock, Reporter};

impl LockRef {
    /// Returns this lock as the subject of a refusal.
    pub(super) fn refused<'a>(&'a self, reporter: &'a Reporter<'a>) -> RefusedLock<'a> {
        let LockRef { name, display_name, shell_arg, .. } = self;
        RefusedLock { name, display_name, shell_arg, timeout_setting: "-w", reporter }
    }
}

impl OpenLockSet<'_> {
    /// Returns the reporter for the lock with this index.
    pub(super) fn reporter(&self, at: usize) -> Reporter<'_> {
        Reporter::new(self.engine(at))
    }
}

/// Returns the message and the kind for a lock that was not acquired, renewed or released.
pub(super) fn refusal(response: &Response, lock: &RefusedLock<'_>) -> (String, ErrorKind) {
    match response {
        Response::Busy(holders) => (lock.busy(holders), ErrorKind::Busy),
        Response::Stale(endings) => (lock.stale(endings), ErrorKind::Stale),
        Response::Deadlock(cycle) => (lock.deadlock(cycle), ErrorKind::Deadlock),
        Response::SlotCountConflict(slots) => (lock.slot_count_conflict(*slots), ErrorKind::InvalidInput),
        Response::NotHeld(Some(ending)) => (lock.not_held_any_more(ending), ErrorKind::NotHeld),
        Response::NotHeld(None) => (lock.not_held(is_bare_name_of_file(lock.display_name)), ErrorKind::NotHeld),
        Response::NotOwner(holders, ending) => (lock.not_owner(holders, ending.as_ref()), ErrorKind::NotOwner),
        other => (lock.unexpected(other), ErrorKind::Bug),
    }
}

/// Returns the message and the kind for a caller that may have given a `--handle`; see [`refusal`].
pub(super) fn refusal_of(handle: Option<&str>, response: &Response, lock: &RefusedLock<'_>) -> (String, ErrorKind) {
    match response {
        Response::NotOwner(holders, None) if handle.is_some() && holders.iter().all(|grant| grant.claim.is_none()) => {
            (lock.other_handle(holders), ErrorKind::NotOwner)
        }
        other => refusal(other, lock),
    }
}

fn is_bare_name_of_file(name: &[u8]) -> bool {
    let name = Path::new(OsStr::from_bytes(name));
    name.components().count() == 1 && name.exists()
}
