//! SQLite's own pauses, with the limit of the call that makes them.
//!
//! A process that opens a log holds some locks of its index only for microseconds, and SQLite does not ask the busy
//! handler about them: it tries up to a hundred times to begin a read (`walTryBeginRead`), pauses for ten seconds in
//! all, and fails with SQLITE_PROTOCOL. If the other process is stopped meanwhile, no deadline and no signal would end
//! these pauses. They are calls of the VFS, SQLite's interface to the operating system. This VFS is SQLite's own except
//! for the pauses, so both know the same locks of this process.

#![expect(unsafe_code, reason = "SQLite's interface to the operating system is a table of C functions")]

use std::cell::RefCell;
use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::{Arc, Once};
use std::time::Duration;

use rusqlite::ffi;

use super::busy::Busy;

const NAME: &CStr = c"csalock";

thread_local! {
    /// Limit of the call that this thread makes.
    static LIMIT: RefCell<Option<Arc<Busy>>> = const { RefCell::new(None) };
}

/// Returns the name of the VFS, for opening a database.
pub(super) fn name() -> &'static CStr {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: SQLite returns its default VFS, which exists until the process ends, as the leaked copy does. A copy
        // works: SQLite registers such copies itself, under other names.
        unsafe {
            if let Some(own) = ffi::sqlite3_vfs_find(ptr::null()).as_ref() {
                let ours =
                    ffi::sqlite3_vfs { zName: NAME.as_ptr(), pNext: ptr::null_mut(), xSleep: Some(pause), ..*own };
                ffi::sqlite3_vfs_register(Box::leak(Box::new(ours)), 0);
            }
        }
    });
    NAME
}

/// Runs `work`, in which SQLite's pauses have this limit.
pub(super) fn within<T>(limit: &Arc<Busy>, work: impl FnOnce() -> T) -> T {
    let outer = LIMIT.replace(Some(limit.clone()));
    let done = work();
    LIMIT.set(outer);
    done
}

/// Pauses for some microseconds, or less if the call has no time left: then SQLite soon runs out of tries.
unsafe extern "C" fn pause(_: *mut ffi::sqlite3_vfs, micros: c_int) -> c_int {
    let span = Duration::from_micros(micros.unsigned_abs().into());
    if let Some(limit) = LIMIT.with_borrow(Clone::clone) {
        limit.pause(span);
    }
    micros
}

#[cfg(test)]
mod tests {
    use super::super::busy::LEAST;
    use super::*;
    use crate::host::{Fake, Host};

    #[test]
    fn the_pauses_of_sqlite_last_as_long_as_the_call() {
        let fake = Fake::new(1);
        let busy = Arc::new(Busy::new("/nonexistent".into(), Arc::new(fake.clone())));
        let pauses = || {
            for _ in 0..100 {
                // SAFETY: SQLite knows this VFS, which nothing changes, and its pause does not use its first argument.
                unsafe {
                    let vfs = ffi::sqlite3_vfs_find(name().as_ptr()).as_ref().unwrap();
                    assert_eq!(vfs.xSleep.unwrap()(ptr::null_mut(), 300_000), 300_000);
                }
            }
        };
        let began = fake.boottime();
        busy.bound(Some(began));
        within(&busy, pauses);
        assert_eq!(fake.boottime() - began, LEAST);
        pauses();
        busy.without_waiting(|| within(&busy, pauses));
        assert_eq!(fake.boottime() - began, LEAST);
    }
}
