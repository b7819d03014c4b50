//! SQLite's own pauses, with the limit of the call that makes them.
//!
//! A process that opens a log holds some locks of its index only for microseconds, and SQLite does not ask the busy
//! handler about them: it tries up to a hundred times to begin a read (`walTryBeginRead`), pauses for ten seconds in
//! all, and fails with SQLITE_PROTOCOL. If the other process is stopped meanwhile, no deadline and no signal would end
//! these pauses. They are calls of the VFS, SQLite's interface to the operating system. This VFS is SQLite's own except
//! for the pauses and the open of a log, so both know the same locks of this process.

#![expect(unsafe_code, reason = "SQLite's interface to the operating system is a table of C functions")]

use std::cell::Cell;
use std::ffi::{CStr, OsStr, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rusqlite::ffi;

use super::busy::Busy;
use super::journal;

const NAME: &CStr = c"csalock";

thread_local! {
    /// Limit of the call that this thread makes, or null. A value that had to be dropped would cost page faults.
    static LIMIT: Cell<*const Busy> = const { Cell::new(ptr::null()) };
}

/// Returns the name of the VFS, for opening a database.
pub(super) fn name() -> &'static CStr {
    static REGISTERED: OnceLock<&CStr> = OnceLock::new();
    REGISTERED.get_or_init(|| {
        // SAFETY: SQLite returns its default VFS, which exists until the process ends, as the leaked copy does. A copy
        // works: SQLite registers such copies itself, under other names.
        unsafe {
            if let Some(own) = ffi::sqlite3_vfs_find(ptr::null()).as_ref() {
                let (name, next) = (NAME.as_ptr(), ptr::null_mut());
                let ours =
                    ffi::sqlite3_vfs { zName: name, pNext: next, xOpen: Some(open), xSleep: Some(pause), ..*own };
                ffi::sqlite3_vfs_register(Box::leak(Box::new(ours)), 0);
            }
        }
        NAME
    })
}

/// Runs `work`, in which SQLite's pauses have this limit.
pub(super) fn within<T>(limit: &Busy, work: impl FnOnce() -> T) -> T {
    let _outer = Outer(LIMIT.replace(limit));
    work()
}

/// Limit of the call around a call, which it gets back at the end of the other, even by a panic.
struct Outer(*const Busy);

impl Drop for Outer {
    fn drop(&mut self) {
        LIMIT.set(self.0);
    }
}

/// True once this process has opened a database that it may only read. All others need no check of their log.
static ANY_READ_ONLY: AtomicBool = AtomicBool::new(false);

/// Opens a file as SQLite does, but no log that the owner of the database could not write.
unsafe extern "C" fn open(
    vfs: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    opened: *mut c_int,
) -> c_int {
    // SAFETY: the name of a log ends with NUL.
    let path = || Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes()));
    if flags & ffi::SQLITE_OPEN_WAL != 0 && ANY_READ_ONLY.load(Relaxed) && journal::is_foreign_log(path()) {
        // SAFETY: SQLite passes memory for a file, and a file without methods is not open.
        unsafe { (*file).pMethods = ptr::null() };
        return ffi::SQLITE_CANTOPEN;
    }
    // SAFETY: SQLite's default VFS exists until the process ends, and its function gets the arguments meant for it. SQLite
    // passes null or a place for the flags with which the file was opened.
    unsafe {
        let own = ffi::sqlite3_vfs_find(ptr::null()).as_ref().and_then(|own| own.xOpen);
        let done = own.map_or(ffi::SQLITE_CANTOPEN, |own| own(vfs, name, file, flags, opened));
        if opened.as_ref().is_some_and(|flags| flags & ffi::SQLITE_OPEN_READONLY != 0) {
            ANY_READ_ONLY.store(true, Relaxed);
        }
        done
    }
}

/// Pauses for some microseconds, or less if the call has no time left: then SQLite soon runs out of tries.
unsafe extern "C" fn pause(_: *mut ffi::sqlite3_vfs, micros: c_int) -> c_int {
    // SAFETY: `within` has borrowed the limit until it removes this pointer.
    if let Some(limit) = unsafe { LIMIT.get().as_ref() } {
        limit.pause(Duration::from_micros(micros.unsigned_abs().into()));
    }
    micros
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::busy::LEAST;
    use super::*;
    use crate::host::{Fake, Host};
    use crate::store::StoreDeadline;

    #[test]
    fn the_pauses_of_sqlite_last_as_long_as_the_call() {
        let fake = Fake::new(1);
        let busy = Busy::new("/nonexistent".into(), Arc::new(fake.clone()));
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
        let _deadline = StoreDeadline::begin(Some(began));
        within(&busy, pauses);
        assert_eq!(fake.boottime() - began, LEAST);
        pauses();
        busy.without_waiting(|| within(&busy, pauses));
        assert_eq!(fake.boottime() - began, LEAST);
    }
}
