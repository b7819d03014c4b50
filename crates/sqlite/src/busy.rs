//! Waits for a database that other processes have locked: each ends with its call's limit, and soon after a signal.
//!
//! A transaction of csalock takes a fraction of a millisecond, but any program may keep one open, or be stopped in one.
//! SQLite waits in two ways, and both end in [`pause`]. It asks the busy handler about most locks. It does not ask about
//! locks on the log's index that a process has only for microseconds while it opens the log: it pauses in its VFS, the
//! interface to the operating system, up to a hundred times and for ten seconds in all (`walTryBeginRead`). Without a VFS
//! of its own, csalock would hear neither deadlines nor signals during those pauses. This VFS is SQLite's except for the
//! pause, so both know the same locks of this process.

use std::cell::RefCell;
use std::ffi::{CStr, c_int};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, Once};
use std::time::Duration;

use nix::sys::stat::lstat;
use rusqlite::ffi;

use host::Host;
use store::{Call, with_suffix};

/// Maximum wait of a call without a deadline, and of a call in a crowd.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Minimum wait of a call, also after its deadline or a signal: the caller may still leave a queue or release a grant.
pub(super) const LEAST: Duration = Duration::from_millis(500);

/// Maximum length of a pause, after which a signal is heard. SQLite's own pauses are up to 323 ms long.
const LONGEST_PAUSE: Duration = Duration::from_millis(25);

thread_local! {
    static WAIT: RefCell<Option<Wait>> = const { RefCell::new(None) };
}

struct Wait {
    host: Arc<dyn Host>,
    path: PathBuf,
    call: Call,
    began: Duration,
    /// Modification times of the database and its log when they were seen to change, and the time of that.
    modified: Modified,
    changed: Duration,
}

type Modified = [Option<(i64, i64)>; 2];

/// Runs `work`, in which SQLite waits for other processes. Outside, it fails instead.
pub(super) fn waiting<T>(host: &Arc<dyn Host>, path: &Path, call: Call, work: impl FnOnce() -> T) -> T {
    let began = host.boottime();
    let wait = Wait { host: host.clone(), path: path.to_path_buf(), call, began, modified: [None; 2], changed: began };
    let outer = WAIT.replace(Some(wait));
    let done = work();
    WAIT.set(outer);
    done
}

/// Busy handler: pauses after this number of failed tries. Returns true if the call may try again.
pub(super) fn pause_after(tries: i32) -> bool {
    // Most transactions end soon. The tries of a crowd become fewer, since they would keep the processors busy.
    pause(Duration::from_micros(50 << (tries / 4).clamp(0, 9)))
}

fn pause(span: Duration) -> bool {
    WAIT.with_borrow_mut(|wait| {
        let Some(wait) = wait else { return false };
        let now = wait.host.boottime();
        let modified = [wait.path.clone(), with_suffix(&wait.path, "-wal")]
            .map(|file| lstat(&file).ok().map(|found| (found.st_mtime, found.st_mtime_nsec)));
        if wait.modified != modified {
            wait.modified = modified;
            wait.changed = now;
        }
        let end = match wait.call.until {
            _ if wait.host.is_interrupted() => wait.began + LEAST,
            // In a crowd the turn of a caller comes as long as the others commit: 42 of 300 callers that put values of
            // their own at once, and tried once, got no turn within two seconds.
            Some(until) => until.max((wait.changed + LEAST).min(wait.began + PATIENCE)),
            None => wait.began + PATIENCE,
        };
        let left = end.saturating_sub(now);
        wait.host.sleep(span.min(LONGEST_PAUSE).min(left));
        !left.is_zero()
    })
}

#[expect(unsafe_code, reason = "SQLite's interface to the operating system is a table of C functions")]
pub(super) fn vfs() -> &'static CStr {
    const NAME: &CStr = c"csalock";
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: SQLite returns its default VFS, which exists until the process ends, as the leaked copy does. A copy
        // works: SQLite registers such copies itself, under other names.
        unsafe {
            if let Some(own) = ffi::sqlite3_vfs_find(ptr::null()).as_ref() {
                let next = ptr::null_mut();
                let ours = ffi::sqlite3_vfs { zName: NAME.as_ptr(), pNext: next, xSleep: Some(sleep), ..*own };
                ffi::sqlite3_vfs_register(Box::leak(Box::new(ours)), 0);
            }
        }
    });
    NAME
}

/// Pause of SQLite. If the call has no time left, it returns at once, and SQLite soon runs out of tries.
extern "C" fn sleep(_: *mut ffi::sqlite3_vfs, micros: c_int) -> c_int {
    pause(Duration::from_micros(micros.unsigned_abs().into()));
    micros
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::Fake;

    const NOWHERE: &str = "/nonexistent";

    /// Returns the wait of a call that begins now, on a host whose sleeps take exactly their time.
    fn waits(fake: &Fake, call: Call) -> Duration {
        let host: Arc<dyn Host> = Arc::new(fake.clone());
        let began = fake.boottime();
        waiting(&host, NOWHERE.as_ref(), call, || while pause_after(10) {});
        fake.boottime() - began
    }

    #[test]
    fn a_call_waits_until_its_deadline_and_never_for_less_than_a_turn() {
        let fake = Fake::new(1);
        assert_eq!(waits(&fake, Call::default()), PATIENCE);
        let call = Call::until(fake.boottime() + Duration::from_secs(40));
        assert_eq!(waits(&fake, call), Duration::from_secs(40));
        assert_eq!(waits(&fake, call), LEAST);
        assert!(!pause_after(0));
    }

    #[test]
    fn a_signal_ends_a_wait_without_end() {
        let fake = Fake::new(1);
        let host: Arc<dyn Host> = Arc::new(fake.clone());
        let call = Call::until(Duration::MAX);
        waiting(&host, NOWHERE.as_ref(), call, || {
            assert!((0..10_000).all(pause_after));
            fake.interrupt();
            assert!(!pause_after(0));
        });
        assert_eq!(waits(&fake, call), LEAST);
    }

    #[test]
    fn a_call_in_a_crowd_waits_for_its_turn() {
        let (fake, file) = (Fake::new(1), tempfile::NamedTempFile::new().unwrap());
        let host: Arc<dyn Host> = Arc::new(fake.clone());
        let began = fake.boottime();
        // The other processes commit until this time.
        let until = began + Duration::from_secs(5);
        waiting(&host, file.path(), Call::until(began), || {
            while pause_after(100) {
                if fake.boottime() < until {
                    file.as_file().set_modified(std::time::UNIX_EPOCH + fake.boottime()).unwrap();
                }
            }
        });
        let waited = fake.boottime() - began;
        assert!(waited > Duration::from_secs(5) && waited < Duration::from_secs(6), "{waited:?}");
    }

    #[test]
    fn the_pauses_of_sqlite_last_as_long_as_the_call() {
        let fake = Fake::new(1);
        let host: Arc<dyn Host> = Arc::new(fake.clone());
        let pauses = || (0..100).for_each(|_| assert_eq!(sleep(ptr::null_mut(), 300_000), 300_000));
        let began = fake.boottime();
        waiting(&host, NOWHERE.as_ref(), Call::until(began), pauses);
        assert_eq!(fake.boottime() - began, LEAST);
        pauses();
        assert_eq!(fake.boottime() - began, LEAST);
    }

    #[test]
    fn tries_become_fewer() {
        let fake = Fake::new(1);
        let host: Arc<dyn Host> = Arc::new(fake.clone());
        let pause_of = |tries| {
            let began = fake.boottime();
            waiting(&host, NOWHERE.as_ref(), Call::default(), || pause_after(tries));
            fake.boottime() - began
        };
        assert!((0..5).map(pause_of).sum::<Duration>() < Duration::from_millis(2));
        assert_eq!(pause_of(1000), LONGEST_PAUSE);
    }
}
