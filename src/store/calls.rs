//! Time limits of calls to a server, and the pauses between their attempts: the same in every store with a server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::Error;
use crate::host::Host;

/// Maximum time of a call, and its default.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Default time of a call after an unanswered call, so that several calls to a silent server do not each wait long.
const LITTLE_PATIENCE: Duration = Duration::from_secs(2);

/// Maximum time that a call may exceed its deadline.
const OVERTIME: Duration = Duration::from_millis(700);

/// Minimum time of a call, even if its deadline has passed.
const LEAST: Duration = Duration::from_millis(100);

/// First pause between attempts, doubled after each later one up to the longest.
const PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

/// Maximum time after a signal until a call notices it.
pub(super) const SIGNAL_CHECK: Duration = Duration::from_millis(100);

/// True while signals end calls.
static SIGNALS_END_CALLS: AtomicBool = AtomicBool::new(false);

/// While it exists, a pending signal ends each call to a server, or does not: a wait ends then, a release does not.
#[must_use]
pub struct SignalsEndCalls(bool);

impl SignalsEndCalls {
    /// Begins with this behaviour; the end brings back the one before.
    pub fn begin(yes: bool) -> SignalsEndCalls {
        SignalsEndCalls(SIGNALS_END_CALLS.swap(yes, Ordering::SeqCst))
    }
}

impl Drop for SignalsEndCalls {
    fn drop(&mut self) {
        SIGNALS_END_CALLS.store(self.0, Ordering::SeqCst);
    }
}

/// Returns true if a signal is pending that ends calls now.
pub(super) fn is_interrupted(host: &dyn Host) -> bool {
    SIGNALS_END_CALLS.load(Ordering::SeqCst) && host.is_interrupted()
}

/// Returns the time after which a wait for a server must look for signals.
pub(super) fn until_signal_check(left: Duration) -> Duration {
    if SIGNALS_END_CALLS.load(Ordering::SeqCst) { left.min(SIGNAL_CHECK) } else { left }
}

/// Results of the earlier calls of this process, and the deadline of the next ones.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Deadline that the caller has set, as [`super::Store::set_deadline`].
    pub(super) until: Option<Duration>,
    /// True after any answer.
    pub(super) answered: bool,
    /// True if the last call ended without an answer.
    silent: bool,
}

impl Calls {
    /// Returns the deadline of a call that begins at `now`. Both are on CLOCK_BOOTTIME.
    pub(super) fn deadline(&self, now: Duration) -> Duration {
        let patience = if self.silent { LITTLE_PATIENCE } else { PATIENCE };
        let at_most = self.until.map_or(patience, |until| until.saturating_add(OVERTIME).saturating_sub(now));
        now + at_most.clamp(LEAST, PATIENCE)
    }

    /// Records that a call was answered, even with a refusal.
    pub(super) fn note_answer(&mut self) {
        (self.answered, self.silent) = (true, false);
    }

    /// Records that a call ended without an answer, and returns its error. A caller that waits tries again later if no
    /// server has answered this process yet and the trouble `may_pass`.
    pub(super) fn note_silence(&mut self, error: Error, may_pass: bool) -> Error {
        self.silent = true;
        if !self.answered && may_pass { error.unreached() } else { error }
    }
}

/// Returns the pause after attempt `number`, which counts from 0.
pub(super) fn pause(number: u32) -> Duration {
    (PAUSE * (1 << number.min(6))).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const NOW: Duration = Duration::from_secs(1000);

    #[test]
    fn a_call_ends_shortly_after_the_deadline_of_its_caller() {
        let until = |seconds| Calls { until: Some(Duration::from_secs_f64(seconds)), ..Calls::default() };
        assert_eq!(until(1003.0).deadline(NOW), NOW + Duration::from_millis(3700));
        assert_eq!(until(2000.0).deadline(NOW), NOW + PATIENCE);
        assert_eq!(until(900.0).deadline(NOW), NOW + LEAST);
    }

    #[test]
    fn a_silent_server_is_given_less_time_until_it_answers() {
        let mut calls = Calls::default();
        let error = || Error::new(ErrorKind::Unavailable, "gone", "");
        assert_eq!(calls.deadline(NOW), NOW + PATIENCE);
        assert!(calls.note_silence(error(), true).is_unreached());
        assert_eq!(calls.deadline(NOW), NOW + LITTLE_PATIENCE);
        assert!(!calls.note_silence(error(), false).is_unreached());
        calls.note_answer();
        assert_eq!(calls.deadline(NOW), NOW + PATIENCE);
        assert!(!calls.note_silence(error(), true).is_unreached());
    }

    #[test]
    fn pauses_grow_up_to_the_longest() {
        assert_eq!([0, 1, 4, 100].map(|number| pause(number).as_millis()), [25, 50, 400, 400]);
    }
}
