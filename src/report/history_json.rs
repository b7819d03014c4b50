//! The JSON document of `history`, which is as stable as the other documents.

use std::time::Duration;

use serde::Serialize;

use super::json::{mode, text};
use super::user;
use crate::duration::rfc3339_millis;
use crate::history::{Past, Who};
use crate::lock::{EndReason, JobState, Mode};

/// A past or present grant.
#[derive(Debug, Serialize)]
pub struct PastJson {
    name: String,
    #[serde(flatten)]
    holder: WhoJson,
    label: Option<String>,
    mode: &'static str,
    slot: Option<u32>,
    token: Option<u64>,
    from: String,
    to: Option<String>,
    /// Time of the wait, in seconds.
    waited: f64,
    ended: Option<&'static str>,
    broken_by: Option<WhoJson>,
}

#[derive(Debug, Serialize)]
struct WhoJson {
    pid: Option<i32>,
    host: String,
    user: String,
    command: String,
}

/// A job that must succeed in time.
#[derive(Debug, Serialize)]
pub struct OverdueJson {
    name: String,
    /// True if it has not.
    overdue: bool,
    #[serde(flatten)]
    job: JobJson,
}

/// The last success of a job, and how often it must succeed.
#[derive(Debug, Serialize)]
pub struct JobJson {
    last_success: Option<String>,
    /// Host of that success.
    host: Option<String>,
    /// Time in which the job must succeed once, in seconds.
    within: Option<f64>,
    due: Option<String>,
    /// Number of calls since that success that did not get the lock.
    refused: Option<u64>,
}

impl OverdueJson {
    /// Returns the document for the job under the lock of this name at the time `now` of its store.
    pub fn new(name: &[u8], job: &JobState, now: Duration) -> OverdueJson {
        OverdueJson { name: text(name), overdue: job.is_overdue(now.as_millis() as u64), job: JobJson::new(job, now) }
    }
}

impl JobJson {
    /// Returns the document for a job at the time `now`.
    pub fn new(job: &JobState, now: Duration) -> JobJson {
        let time = |millis| rfc3339_millis(Duration::from_millis(millis));
        JobJson {
            last_success: job.success.as_ref().map(|success| time(success.at)),
            host: job.success.as_ref().map(|success| success.host.clone()),
            within: job.promise.map(|promise| promise.span as f64 / 1000.0),
            due: job.due(now.as_millis() as u64).map(time),
            refused: job.promise.map(|promise| promise.refused),
        }
    }
}

impl PastJson {
    /// Returns the document for one grant.
    pub fn new(past: &Past) -> PastJson {
        let time = |millis| rfc3339_millis(Duration::from_millis(millis));
        let who = |who: &Who| WhoJson {
            pid: who.pid,
            host: who.host.clone(),
            user: user(who.uid),
            command: text(&who.command),
        };
        PastJson {
            name: text(&past.name),
            holder: who(&past.holder),
            label: past.holder.label.as_deref().map(text),
            mode: mode(past.mode),
            slot: (past.mode == Mode::Slot).then_some(past.slot),
            token: past.token,
            from: time(past.from),
            to: past.to.map(time),
            waited: past.waited as f64 / 1000.0,
            ended: past.how.map(EndReason::word),
            broken_by: past.broken_by.as_ref().map(who),
        }
    }
}
