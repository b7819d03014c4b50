//! The words for a job that must succeed in time, at the time `now` of its store.

use std::time::Duration;

use super::Zone;
use crate::duration::shown as span;
use crate::lock::{JobState, Success};

/// Returns a clause about a job that has not succeeded in time.
pub(crate) fn overdue(job: &JobState, now: Duration, zone: Zone) -> String {
    let within = within(job).unwrap_or_default();
    if let Some(success) = job.doubtful_success(now.as_millis() as u64) {
        return format!("{}, and {within}", in_future(success, zone));
    }
    let (what, since) = match &job.success {
        Some(success) => ("last succeeded at", success.at),
        None => ("has not succeeded since", job.promise.map_or(0, |promise| promise.since)),
    };
    let since = Duration::from_millis(since);
    let age = span(now.saturating_sub(since));
    format!("its job {what} {} ({age} ago), and {within}", zone.full(since))
}

/// Returns a clause about a success that does not count.
pub(crate) fn in_future(success: &Success, zone: Zone) -> String {
    let at = zone.full(Duration::from_millis(success.at));
    format!("its job last succeeded at {at}, in the future of the store's clock, so that does not count")
}

pub(super) fn within(job: &JobState) -> Option<String> {
    let within = Duration::from_millis(job.promise.as_ref()?.span);
    Some(format!("must succeed once in {}", span(within)))
}

/// Returns a clause about the time by which the job must succeed.
pub(crate) fn due(job: &JobState, now: Duration, zone: Zone) -> Option<String> {
    let due = zone.full(Duration::from_millis(job.due(now.as_millis() as u64)?));
    let word = if job.is_overdue(now.as_millis() as u64) { "overdue since" } else { "next by" };
    Some(format!("{word} {due}"))
}
