//! Wait limits of a call on a database that other processes have locked.
//!
//! A transaction of csalock takes a fraction of a millisecond, but any program may keep one open. Each call therefore
//! has a limit: the caller's deadline or else [`PATIENCE`]. A signal that ends the caller's wait ends this wait too. A
//! call that begins without time left waits for [`LEAST`]; in a crowd, where the database keeps changing, it waits for
//! its turn. All this holds for SQLite's own pauses too ([`super::vfs`]).

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::stat::lstat;

use crate::host::Host;
use crate::store::deadline::of_call;
use crate::store::{guarded, with_suffix};

/// Maximum wait of a call without a deadline, and of a call in a crowd.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Wait of a call without time left for a database that does not change.
pub(super) const LEAST: Duration = Duration::from_millis(500);

/// Wait after a signal that ends waits: the caller may still leave a queue or release a grant.
pub(super) const AFTER_SIGNAL: Duration = Duration::from_millis(200);

/// Maximum wait of a call after such a signal, in a crowd.
const LONGEST_AFTER_SIGNAL: Duration = Duration::from_secs(1);

/// Number of tries with the shortest pauses, which take 250 ms.
const EAGER_TRIES: i32 = 40;

/// Maximum length of a pause. SQLite asks for up to 323 ms.
const LONGEST_PAUSE: Duration = Duration::from_millis(25);

/// Waits of all calls on one database.
pub(super) struct Busy {
    host: Arc<dyn Host>,
    path: PathBuf,
    log: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Wait of this call, if it has begun.
    wait: Option<BusyWait>,
    /// Time at which a call last gave up.
    gave_up: Option<Duration>,
    /// True while a call must not wait at all.
    never: bool,
}

#[derive(Clone, Copy)]
struct BusyWait {
    began: Duration,
    /// Time at which a change of the database was last seen, and its modification time then.
    changed: (Duration, [Option<(i64, i64)>; 2]),
}

impl Busy {
    pub(super) fn new(path: PathBuf, host: Arc<dyn Host>) -> Busy {
        Busy { host, log: with_suffix(&path, "-wal"), path, state: Mutex::default() }
    }

    pub(super) fn begin(&self) {
        guarded(&self.state).wait = None;
    }

    /// Runs `work`, whose calls fail instead of waiting.
    pub(super) fn without_waiting<T>(&self, work: impl FnOnce() -> T) -> T {
        guarded(&self.state).never = true;
        let done = work();
        guarded(&self.state).never = false;
        done
    }

    /// Pauses after this number of failed tries. Returns true if the call may try again.
    pub(super) fn pause_after(&self, tries: i32) -> bool {
        self.pause(length(tries))
    }

    /// Pauses for this span, or less. Returns true if the call may try again.
    pub(super) fn pause(&self, span: Duration) -> bool {
        let mut state = guarded(&self.state);
        if state.never {
            return false;
        }
        let now = self.host.boottime();
        // A commit changes either the database or its log.
        let modified =
            [&self.path, &self.log].map(|path| lstat(path).ok().map(|found| (found.st_mtime, found.st_mtime_nsec)));
        let mut wait = state.wait.unwrap_or(BusyWait { began: now, changed: (now, modified) });
        if wait.changed.1 != modified {
            wait.changed = (now, modified);
        }
        state.wait = Some(wait);
        let end = self.end(&state, &wait);
        if now >= end {
            state.gave_up = Some(now);
            return false;
        }
        drop(state);
        self.host.sleep(span.min(LONGEST_PAUSE).min(end - now));
        true
    }

    /// Returns the end of a wait on CLOCK_BOOTTIME.
    fn end(&self, state: &State, wait: &BusyWait) -> Duration {
        let (began, (changed, _)) = (wait.began, wait.changed);
        let gave_up = state.gave_up.is_some_and(|at| began < at + PATIENCE);
        match of_call() {
            _ if self.host.is_interrupted() => (changed + AFTER_SIGNAL).min(began + LONGEST_AFTER_SIGNAL),
            Some(until) if until > began + LEAST => until,
            None if !gave_up => began + PATIENCE,
            _ => (changed + LEAST).min(began + PATIENCE),
        }
    }
}

/// Returns the length of a pause, short at first because most transactions take 0.1 ms. Later pauses are longer and
/// random: the tries of a crowd would otherwise keep the processors busy.
fn length(tries: i32) -> Duration {
    let mut random = [0; 2];
    if tries < EAGER_TRIES || getrandom::fill(&mut random).is_err() {
        return Duration::from_micros(50 << tries.clamp(0, 7));
    }
    // The pause is 12.5 to 25 ms long.
    Duration::from_micros(12_500 + 12_500 * u64::from(u16::from_ne_bytes(random)) / u64::from(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Fake;
    use crate::store::StoreDeadline;

    fn busy(fake: &Fake) -> Busy {
        Busy::new("/nonexistent".into(), Arc::new(fake.clone()))
    }

    /// Returns the wait of a call that begins now, on a host whose sleeps take exactly their time.
    fn waits(busy: &Busy, fake: &Fake) -> Duration {
        busy.begin();
        let began = fake.boottime();
        let mut tries = 0..;
        while busy.pause_after(tries.next().unwrap()) {}
        fake.boottime() - began
    }

    #[test]
    fn a_call_waits_until_its_deadline_and_never_for_less_than_a_turn() {
        let fake = Fake::new(1);
        let busy = busy(&fake);
        assert_eq!(waits(&busy, &fake), PATIENCE);
        assert_eq!(waits(&busy, &fake), LEAST);
        let deadline = StoreDeadline::begin(Some(fake.boottime() + Duration::from_secs(40)));
        assert_eq!(waits(&busy, &fake), Duration::from_secs(40));
        assert_eq!(waits(&busy, &fake), LEAST);
        drop(deadline);
        fake.pass(PATIENCE);
        assert_eq!(waits(&busy, &fake), PATIENCE);
    }

    #[test]
    fn a_signal_ends_a_wait_without_end() {
        let fake = Fake::new(1);
        let busy = busy(&fake);
        let _deadline = StoreDeadline::begin(Some(Duration::MAX));
        assert!((0..10_000).all(|tries| busy.pause_after(tries)));
        fake.interrupt();
        assert!(!busy.pause_after(0));
        assert_eq!(waits(&busy, &fake), AFTER_SIGNAL);
    }

    #[test]
    fn a_call_in_a_crowd_waits_for_its_turn() {
        let (fake, file) = (Fake::new(1), tempfile::NamedTempFile::new().unwrap());
        let busy = Busy::new(file.path().to_path_buf(), Arc::new(fake.clone()));
        let _deadline = StoreDeadline::begin(Some(fake.boottime()));
        let began = fake.boottime();
        let mut tries = 0..;
        // The other processes commit until this time.
        let until = began + Duration::from_secs(5);
        while busy.pause_after(tries.next().unwrap()) {
            if fake.boottime() < until {
                file.as_file().set_modified(std::time::UNIX_EPOCH + fake.boottime()).unwrap();
            }
        }
        let waited = fake.boottime() - began;
        assert!(waited > Duration::from_secs(5) && waited < Duration::from_secs(6), "{waited:?}");
    }

    #[test]
    fn tries_become_fewer_and_fall_apart_in_time() {
        let pauses: Vec<_> = (0..1000).map(length).collect();
        let millis = Duration::from_millis;
        assert!(pauses[..5].iter().sum::<Duration>() < millis(2));
        assert!(pauses.iter().all(|pause| *pause <= LONGEST_PAUSE));
        let late: std::collections::BTreeSet<_> = pauses[100..200].iter().collect();
        assert!(late.len() > 50 && late.iter().all(|pause| **pause >= millis(12)));
    }
}
