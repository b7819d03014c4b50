//! The loop that repeats a call until a server answers or the time is over, for every store with a server.
//!
//! An answer, even a refusal, ends the call. While no server has let this process in or answered it, a trouble that
//! looks lasting ends the call at once: a caller that waits for a lock then asks again while that may help, and handles
//! signals meanwhile; every other caller gets the error. A call may reach a server more than once, and every call of
//! these stores tolerates that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fmt, io};

use crate::error::Error;
use crate::host::Host;
use crate::name::escape;
use crate::store::{Call, guarded};

/// Maximum time of a call, and its default.
pub(in crate::store) const PATIENCE: Duration = Duration::from_secs(10);

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
const SIGNAL_CHECK: Duration = Duration::from_millis(100);

impl Call {
    /// The deadline, which every attempt has.
    pub(in crate::store) fn end(self) -> Duration {
        self.until.unwrap_or(Duration::MAX)
    }

    /// This call, or the part of it that ends at this time.
    pub(in crate::store) fn by(self, deadline: Duration) -> Call {
        Call { until: Some(self.end().min(deadline)), ..self }
    }

    pub(in crate::store) fn is_interrupted(self, host: &dyn Host) -> bool {
        self.interruptible && host.is_interrupted()
    }

    /// The part of the time `left` after which the call checks for a signal.
    pub(in crate::store) fn until_signal_check(self, left: Duration) -> Duration {
        if self.interruptible { left.min(SIGNAL_CHECK) } else { left }
    }
}

/// The step after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum Retry {
    /// Nothing: a server has answered.
    Answered,
    /// Nothing, although no server has answered.
    Never,
    /// Another attempt, if a server has answered this process before or let it in.
    IfMet,
    /// Another attempt.
    Always,
}

pub(in crate::store) trait Trouble {
    fn retry(&self) -> Retry;

    /// True if waiting may help: a server that is down or starting is silent or refuses connections. A wrong name, another
    /// protocol on the port, and failed TLS are permanent.
    fn may_pass(&self) -> bool;
}

/// Failure of a call: its last trouble, and the error for the user.
#[derive(Debug)]
pub(in crate::store) struct Failed<T> {
    pub(in crate::store) trouble: T,
    pub(in crate::store) error: Error,
}

impl<T> Failed<T> {
    pub(in crate::store) fn into_error(self) -> Error {
        self.error
    }
}

pub(in crate::store) struct Calls {
    host: Arc<dyn Host>,
    /// True if a server has let this process in at the start. That is no answer to a call, but repetitions may help.
    has_met: bool,
    state: Mutex<State>,
    answers: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    answered: bool,
    /// True if the last call ended without an answer.
    silent: bool,
}

impl Calls {
    pub(in crate::store) fn new(host: Arc<dyn Host>, has_met: bool) -> Calls {
        Calls { host, has_met, state: Mutex::default(), answers: AtomicU64::new(0) }
    }

    /// Number of answers so far.
    pub(in crate::store) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    pub(in crate::store) fn count_answer(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes attempts until a server answers or the time is over. Each gets the call with its deadline.
    pub(in crate::store) fn repeat<A, T: Trouble>(
        &self,
        call: Call,
        explain: impl FnOnce(&T) -> Error,
        mut attempt: impl FnMut(Call) -> Result<A, T>,
    ) -> Result<A, Failed<T>> {
        let deadline = guarded(&self.state).deadline(self.host.boottime(), call.until);
        let mut pause = PAUSE;
        loop {
            let trouble = match attempt(Call { until: Some(deadline), ..call }) {
                Ok(answer) => {
                    guarded(&self.state).note_answer();
                    self.count_answer();
                    return Ok(answer);
                }
                Err(trouble) => trouble,
            };
            let may_help = match trouble.retry() {
                Retry::Answered => {
                    guarded(&self.state).note_answer();
                    return Err(Failed { error: explain(&trouble), trouble });
                }
                Retry::Never => false,
                Retry::IfMet => self.has_met || guarded(&self.state).answered,
                Retry::Always => true,
            };
            if !may_help || call.is_interrupted(&*self.host) || self.host.boottime() + pause >= deadline {
                let error = guarded(&self.state).note_silence(explain(&trouble), trouble.may_pass());
                return Err(Failed { trouble, error });
            }
            self.host.sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

impl State {
    /// Returns the deadline of a call that begins at `now`, for a caller with the deadline `until`. All are on
    /// CLOCK_BOOTTIME.
    fn deadline(&self, now: Duration, until: Option<Duration>) -> Duration {
        let longest = if self.silent { LITTLE_PATIENCE } else { PATIENCE };
        let at_most = until.map_or(longest, |until| until.saturating_add(OVERTIME).saturating_sub(now));
        now + at_most.clamp(LEAST, PATIENCE)
    }

    fn note_answer(&mut self) {
        self.answered = true;
        self.silent = false;
    }

    /// Records that a call ended without an answer, and returns its error. A caller that waits tries again later if a
    /// server has answered this process before, or the trouble `may_pass`.
    fn note_silence(&mut self, error: Error, may_pass: bool) -> Error {
        self.silent = true;
        if self.answered || may_pass { error.unreached() } else { error }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) enum CallError {
    /// The server's name has no address.
    Unresolved,
    /// The name service did not answer in time.
    NamesSilent,
    /// The name service cannot be asked, for this reason.
    NamesFailed(String),
    /// The server cannot be reached, for this reason.
    Refused(String),
    Silent,
    Interrupted,
    /// The server closed the connection instead of answering.
    Closed,
    /// The TLS handshake failed, for this reason.
    Tls(String),
    /// The server expects TLS, but the URL says otherwise.
    WantsTls,
    NoGateway,
    TooLong,
    Strange(String),
    /// gRPC status code and message of etcd.
    Said(u32, String),
}

impl Trouble for CallError {
    fn retry(&self) -> Retry {
        match self {
            CallError::Silent | CallError::Closed => Retry::Always,
            CallError::Said(1 | 4 | 14, _) => Retry::Always,
            CallError::Said(_, said) if passes(said) => Retry::Always,
            CallError::Said(..) | CallError::TooLong => Retry::Answered,
            CallError::Interrupted => Retry::Never,
            _ => Retry::IfMet,
        }
    }

    fn may_pass(&self) -> bool {
        matches!(self, CallError::Refused(_) | CallError::NamesSilent) || self.retry() == Retry::Always
    }
}

/// Returns true for the messages of etcd while its members elect a leader or are overloaded.
fn passes(said: &str) -> bool {
    [
        "request timed out",
        "leader changed",
        "no leader",
        "not leader",
        "too many requests",
        "not healthy",
        "server stopped",
    ]
    .iter()
    .any(|passing| said.contains(passing))
}

impl fmt::Display for CallError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Unresolved => write!(out, "no host of that name is known"),
            CallError::NamesSilent => write!(out, "the name service does not answer"),
            CallError::NamesFailed(why) => write!(out, "the name service cannot be asked: {why}"),
            CallError::Refused(why) | CallError::Strange(why) => write!(out, "{}", escape(why.as_bytes())),
            CallError::TooLong => write!(out, "its answer does not end"),
            CallError::Silent => write!(out, "no answer in time"),
            CallError::Interrupted => write!(out, "a signal ended the call"),
            CallError::Closed => write!(out, "the connection was closed without an answer"),
            CallError::Tls(why) => write!(out, "no TLS with it: {}", escape(why.as_bytes())),
            CallError::WantsTls => write!(out, "it speaks TLS"),
            CallError::NoGateway => write!(out, "its JSON gateway is off (404)"),
            CallError::Said(_, message) => {
                write!(out, "{}", escape(message.trim_start_matches("etcdserver: ").as_bytes()))
            }
        }
    }
}

impl std::error::Error for CallError {}

impl From<CallError> for io::Error {
    fn from(trouble: CallError) -> io::Error {
        io::Error::other(trouble)
    }
}

impl From<io::Error> for CallError {
    fn from(error: io::Error) -> CallError {
        let inside = error.get_ref();
        if let Some(trouble) = inside.and_then(|inside| inside.downcast_ref::<CallError>()) {
            return trouble.clone();
        }
        if let Some(tls) = inside.and_then(|inside| inside.downcast_ref::<rustls::Error>()) {
            return CallError::Tls(tls.to_string());
        }
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => CallError::Silent,
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                CallError::Closed
            }
            io::ErrorKind::ConnectionRefused => {
                CallError::Refused("nothing listens there (connection refused)".to_string())
            }
            _ => CallError::Refused(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::host::Fake;

    const NOW: Duration = Duration::from_secs(1000);

    #[test]
    fn a_call_ends_shortly_after_the_deadline_of_its_caller() {
        let deadline = |seconds| State::default().deadline(NOW, Some(Duration::from_secs_f64(seconds)));
        assert_eq!(deadline(1003.0), NOW + Duration::from_millis(3700));
        assert_eq!(deadline(2000.0), NOW + PATIENCE);
        assert_eq!(deadline(900.0), NOW + LEAST);
    }

    #[test]
    fn a_silent_server_is_given_less_time_until_it_answers() {
        let mut state = State::default();
        let error = || Error::new(ErrorKind::Unavailable, "gone", "");
        assert_eq!(state.deadline(NOW, None), NOW + PATIENCE);
        assert!(state.note_silence(error(), true).is_unreached());
        assert_eq!(state.deadline(NOW, None), NOW + LITTLE_PATIENCE);
        assert!(!state.note_silence(error(), false).is_unreached());
        state.note_answer();
        assert_eq!(state.deadline(NOW, None), NOW + PATIENCE);
        assert!(state.note_silence(error(), false).is_unreached());
    }

    /// A trouble that another attempt may end, always or after an answer.
    #[derive(Debug, PartialEq)]
    struct Down(Retry);

    impl Trouble for Down {
        fn retry(&self) -> Retry {
            self.0
        }

        fn may_pass(&self) -> bool {
            true
        }
    }

    /// Returns the number of attempts, and the time that they took.
    fn attempts(calls: &Calls, host: &Fake, retry: Retry) -> (u32, Duration) {
        let (mut count, begun) = (0, host.boottime());
        let explain = |_: &Down| Error::new(ErrorKind::Unavailable, "down", "");
        let failed = calls.repeat(Call::default(), explain, |_| {
            count += 1;
            Err::<(), _>(Down(retry))
        });
        assert_eq!(failed.unwrap_err().trouble, Down(retry));
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
