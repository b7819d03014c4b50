//! The loop that repeats a call until a server answers or the time is over, for every store with a server.
//!
//! An answer, even a refusal, ends the call. While no server has let this process in or answered it, a trouble that
//! looks lasting ends the call at once: a caller that waits for a lock then asks again while that may help, and handles
//! signals meanwhile; every other caller gets the error. A call may reach a server more than once, and every call of
//! these stores tolerates that.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use super::errors::{CallError, Cause, Retry};
use host::Host;
use lock::error::Error;
use store::Call;

/// Maximum time of a call, and its default.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Default time of a call after an unanswered call, so that several calls to a silent server do not each wait long.
const LITTLE_PATIENCE: Duration = Duration::from_secs(2);

/// Maximum time that a call may exceed its deadline.
const OVERTIME: Duration = Duration::from_millis(700);

/// Minimum time of a call, even if its deadline has passed.
const LEAST: Duration = Duration::from_millis(100);

/// First pause between attempts, doubled after each later one up to the longest.
const PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

pub struct Calls {
    host: Arc<dyn Host>,
    /// True if a server has let this process in at the start. That is no answer to a call, but repetitions may help.
    has_met: bool,
    answers: AtomicU64,
    /// True after a call that no server answered.
    is_silent: AtomicBool,
}

impl Calls {
    pub fn new(host: Arc<dyn Host>, has_met: bool) -> Calls {
        Calls { host, has_met, answers: AtomicU64::new(0), is_silent: AtomicBool::new(false) }
    }

    pub fn answers(&self) -> u64 {
        self.answers.load(SeqCst)
    }

    pub fn note_answer(&self) {
        self.answers.fetch_add(1, SeqCst);
        self.is_silent.store(false, SeqCst);
    }

    /// Makes attempts until a server answers or the time is over. Each gets the call with its deadline.
    pub fn repeat<A, C: Cause>(
        &self,
        call: Call,
        mut attempt: impl FnMut(Call) -> Result<A, CallError<C>>,
    ) -> Result<A, CallError<C>> {
        let deadline = self.deadline(self.host.boottime(), call.until);
        let mut pause = PAUSE;
        loop {
            let error = match attempt(Call { until: Some(deadline), ..call }) {
                Ok(answer) => {
                    self.note_answer();
                    return Ok(answer);
                }
                Err(error) => error,
            };
            let may_help = match error.retry() {
                Retry::Answered => {
                    self.note_answer();
                    return Err(error);
                }
                Retry::Never => false,
                Retry::IfMet | Retry::IfMetOrLater => self.has_met || self.answers() > 0,
                Retry::Always => true,
            };
            if !may_help || call.is_interrupted(&*self.host) || self.host.boottime() + pause >= deadline {
                self.is_silent.store(true, SeqCst);
                return Err(error);
            }
            self.host.sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Marks the error for the user of a call that no server answered, if a caller that waits should try again later: a
    /// server has answered this process before, or waiting may help.
    pub fn mark_unreached<C: Cause>(&self, failed: &CallError<C>, error: Error) -> Error {
        let may_pass = matches!(failed.retry(), Retry::Always | Retry::IfMetOrLater);
        let is_answer = failed.retry() == Retry::Answered;
        if !is_answer && (may_pass || self.answers() > 0) { error.unreached() } else { error }
    }

    /// Deadline of a call that begins at `now`, for a caller with the deadline `until`; all on CLOCK_BOOTTIME.
    fn deadline(&self, now: Duration, until: Option<Duration>) -> Duration {
        let longest = if self.is_silent.load(SeqCst) { LITTLE_PATIENCE } else { PATIENCE };
        let at_most = until.map_or(longest, |until| until.saturating_add(OVERTIME).saturating_sub(now));
        now + at_most.clamp(LEAST, PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::Fake;
    use lock::error::ErrorKind;

    const NOW: Duration = Duration::from_secs(1000);

    #[test]
    fn a_call_ends_shortly_after_the_deadline_of_its_caller() {
        let calls = Calls::new(Arc::new(Fake::new(1)), false);
        let deadline = |seconds| calls.deadline(NOW, Some(Duration::from_secs_f64(seconds)));
        assert_eq!(deadline(1003.0), NOW + Duration::from_millis(3700));
        assert_eq!(deadline(2000.0), NOW + PATIENCE);
        assert_eq!(deadline(900.0), NOW + LEAST);
    }

    #[test]
    fn a_silent_server_is_given_less_time_until_it_answers() {
        let calls = Calls::new(Arc::new(Fake::new(1)), false);
        let is_unreached = |retry| {
            let error = Error::new(ErrorKind::Unavailable, "gone", "");
            calls.mark_unreached(&CallError::Server(Down(retry)), error).is_unreached
        };
        let deadline = || calls.deadline(NOW, None);
        assert_eq!(deadline(), NOW + PATIENCE);
        assert!(is_unreached(Retry::IfMetOrLater) && is_unreached(Retry::Always));
        calls.is_silent.store(true, SeqCst);
        assert_eq!(deadline(), NOW + LITTLE_PATIENCE);
        assert!(!is_unreached(Retry::IfMet) && !is_unreached(Retry::Never));
        calls.note_answer();
        assert_eq!(deadline(), NOW + PATIENCE);
        assert!(is_unreached(Retry::IfMet) && !is_unreached(Retry::Answered));
    }

    #[derive(Debug, PartialEq)]
    struct Down(Retry);

    impl Cause for Down {
        fn retry(&self) -> Retry {
            self.0
        }
    }

    /// Returns the number of attempts, and the time that they took.
    fn attempts(calls: &Calls, host: &Fake, retry: Retry) -> (u32, Duration) {
        let (mut count, begun) = (0, host.boottime());
        let failed = calls.repeat(Call::default(), |_| {
            count += 1;
            Err::<(), _>(CallError::Server(Down(retry)))
        });
        assert_eq!(failed, Err(CallError::Server(Down(retry))));
        (count, host.boottime() - begun)
    }

    #[test]
    fn a_call_is_repeated_with_growing_pauses_until_its_time_is_over() {
        let host = Fake::new(1);
        let calls = Calls::new(Arc::new(host.clone()), false);
        assert_eq!(attempts(&calls, &host, Retry::IfMet).0, 1);
        assert_eq!(attempts(&calls, &host, Retry::Never).0, 1);
        let (count, took) = attempts(&calls, &host, Retry::Always);
        assert!(took < LITTLE_PATIENCE && took + LONGEST_PAUSE >= LITTLE_PATIENCE, "{took:?}");
        assert_eq!(count, 9, "pauses of 25, 50, 100, 200 and 400 ms");
        assert_eq!(attempts(&calls, &host, Retry::Answered).0, 1);
        assert!(attempts(&calls, &host, Retry::IfMet).0 > 8, "a server has answered");
    }
}
