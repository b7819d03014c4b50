//! The job that runs under a lock, as the record knows it, and the rules for changing that: the last run that
//! succeeded, the runs of the current slot, and how often the job must succeed.
//!
//! **Slots.** A slot is a span of time in which the job must succeed once; its number is its begin, in milliseconds
//! since 1970. The caller computes the slot from the store's clock, and the record keeps the newest one. If that clock
//! is set back by a minute at most, callers count in that slot.
//!
//! **A wrong clock.** The store's clock may have been ahead once. A success that lies in the future of the clock by
//! more than a minute does not count, and neither does a slot, a promise or a complaint of such a time
//! ([`JobState::as_of`]). Otherwise the job would stop, in silence, until that time.

use serde::{Deserialize, Serialize};

use super::handle::HandleHash;
use super::text::is_default;

/// Maximum number of milliseconds by which a time may be ahead of the store's clock. Clocks of servers differ by less.
const FUTURE: u64 = 60_000;

/// History of the runs under a lock. Times are in milliseconds since 1970 on the store's clock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobState {
    #[serde(default, skip_serializing_if = "is_default")]
    pub success: Option<Success>,
    /// Runs of the newest slot that have begun since that success.
    #[serde(default, skip_serializing_if = "is_default")]
    pub runs: Option<Runs>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub promise: Option<Promise>,
}

/// Run that succeeded: its command ended with 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Success {
    pub at: u64,
    /// Newest slot in which the job has succeeded, in this run or an earlier one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub slot: Option<u64>,
    pub host: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runs {
    pub slot: u64,
    pub count: u32,
    pub last: HandleHash,
    #[serde(default, skip_serializing_if = "is_default")]
    pub began: u64,
    /// Maximum number of runs in the slot, as the last run was told; 0 is unknown, [`Runs::UNLIMITED`] none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub most: u32,
    /// Caller that has reported that all runs are used up.
    #[serde(default, skip_serializing_if = "is_default")]
    pub told: Option<HandleHash>,
}

impl Runs {
    pub const UNLIMITED: u32 = u32::MAX;

    /// Maximum number of runs in the slot; `None` if it is unlimited or unknown.
    pub fn allowed(&self) -> Option<u32> {
        Some(self.most).filter(|most| ![0, Runs::UNLIMITED].contains(most))
    }
}

/// Promise that the job succeeds at least once in each span of this many milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    pub span: u64,
    pub since: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    pub complained: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub by: Option<HandleHash>,
    /// Number of calls since the last success that did not get the lock. A call whose reply is lost may count twice.
    #[serde(default, skip_serializing_if = "is_default")]
    pub refused: u64,
}

impl JobState {
    /// Part of this state that counts at `now`. A promise that was made in the future is due.
    pub(super) fn as_of(&self, now: u64) -> JobState {
        let is_past = |time: u64| time <= now.saturating_add(FUTURE);
        let success = self.success.clone().filter(|success| is_past(success.at));
        let promise = self.promise.map(|promise| Promise {
            since: if is_past(promise.since) { promise.since } else { now.saturating_sub(promise.span) },
            complained: promise.complained.filter(|at| is_past(*at)),
            ..promise
        });
        JobState {
            success: success.map(|success| Success { slot: success.slot.filter(|slot| is_past(*slot)), ..success }),
            runs: self.runs.clone().filter(|runs| is_past(runs.slot)).map(|runs| Runs {
                began: Some(runs.began).filter(|began| is_past(*began)).unwrap_or_default(),
                ..runs
            }),
            promise,
        }
    }

    pub fn success_at(&self, now: u64) -> Option<Success> {
        self.as_of(now).success
    }

    /// Last success, if it does not count because it lies in the future of `now`.
    pub fn doubtful_success(&self, now: u64) -> Option<&Success> {
        self.success.as_ref().filter(|success| success.at > now.saturating_add(FUTURE))
    }

    /// Time by which the next run must succeed; `None` without a promise.
    pub fn due(&self, now: u64) -> Option<u64> {
        let job = self.as_of(now);
        let promise = job.promise?;
        let last = job.success.as_ref().map_or(0, |success| success.at);
        Some(last.max(promise.since).saturating_add(promise.span))
    }

    /// By `now`, in milliseconds since 1970, the job must have succeeded and has not.
    pub fn is_overdue(&self, now: u64) -> bool {
        self.due(now).is_some_and(|due| due <= now)
    }

    /// Promise of this span at `now`. Its time is that of an earlier promise, if there is one.
    pub(super) fn promised(&self, span: u64, now: u64) -> Promise {
        Promise { span, ..self.promise.unwrap_or(Promise { span, since: now, complained: None, by: None, refused: 0 }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Handle;

    #[test]
    fn what_lies_in_the_future_by_more_than_a_minute_does_not_count() {
        let (minute, now) = (60_000, 10_000_000);
        let job = |at: u64| JobState {
            success: Some(Success { at, slot: Some(at), host: "h".into() }),
            runs: Some(Runs {
                slot: at,
                count: 9,
                last: Handle::new([1; 16]).proof(),
                began: at,
                most: 10,
                told: None,
            }),
            promise: Some(Promise { span: 1000, since: at, complained: Some(at), by: None, refused: 3 }),
        };
        assert_eq!(job(now + minute).as_of(now), job(now + minute));
        assert_eq!((job(now + minute).due(now), job(now + minute).is_overdue(now)), (Some(now + minute + 1000), false));
        let ahead = job(now + minute + 1);
        let promise = Promise { since: now - 1000, complained: None, ..ahead.promise.unwrap() };
        assert_eq!(ahead.as_of(now), JobState { success: None, runs: None, promise: Some(promise) });
        assert_eq!((ahead.due(now), ahead.is_overdue(now)), (Some(now), true));
        assert!(ahead.doubtful_success(now).is_some() && ahead.success_at(now).is_none());
        assert_eq!(ahead.as_of(now + 1), ahead);
    }
}
