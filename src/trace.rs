//! The trace: in builds for tests, a log of every commit of an engine. Release builds do not contain it.
//!
//! `CSALOCK_TRACE` names the file. A commit is two lines of JSON, each appended by one write(2). The intent comes
//! before the call of the store, and the result after its answer. An intent without a result, or with an unknown
//! result, may or may not have happened. An intent contains the input of the rules, so that a checker can repeat the
//! decision: the record before, the request and the facts. `tests/trace` holds the checker.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{ThreadId, current};

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::host::Host;
use crate::lock::codec::text;
use crate::lock::{self, CommitRecord, Facts, Page, PidDomain, ProcessId, Record, Request};
use crate::store::{CommitResult, Store, Version, Write, WriteSet, guarded};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Line {
    /// The process. No other object in a line begins with this field, so a reader finds the start of a line.
    pub process: ProcessId,
    pub domain: PidDomain,
    /// The id of the commit: its start in nanoseconds on CLOCK_BOOTTIME. A counter would start again after exec(2).
    pub step: u64,
    /// The time of the line, in milliseconds on CLOCK_BOOTTIME.
    pub at: u64,
    pub event: Event,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Event {
    /// The engine is about to make these changes in one commit.
    Intent(Vec<Intent>),
    /// The store made the changes with this version: number and mark.
    Committed(u64, u64),
    /// The store reports that another process committed first.
    Conflict,
    /// The store failed; the changes may have been made.
    Unknown(String),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Intent {
    /// The place in the store, as messages name it.
    pub place: String,
    pub name: Bytes,
    /// The expected current version: number and mark.
    pub expect: Option<(u64, u64)>,
    /// For a change of a record: the record that was read.
    pub before: Option<Bytes>,
    pub body: Option<Bytes>,
    /// For a change of a record: the decision behind it.
    pub decided: Option<Decided>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Decided {
    /// The request, in an object whose only field is the name of its type.
    pub ask: serde_json::Value,
    pub facts: Facts,
    /// The time when the engine began to collect the facts, in milliseconds on CLOCK_BOOTTIME.
    pub from: u64,
    /// The time when the engine had collected the facts, in milliseconds on CLOCK_BOOTTIME.
    pub until: u64,
}

/// Bytes that are not always UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Bytes(#[serde(with = "text")] pub Vec<u8>);

type Of = (ThreadId, Vec<u8>);

/// The log of an engine's commits.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    path: Option<PathBuf>,
    /// This process, cached because each line contains it.
    process: Mutex<Option<ProcessId>>,
    /// The last decision of each thread about each name.
    decided: Mutex<Vec<(Of, Decided)>>,
}

impl Trace {
    pub(crate) fn new(path: Option<PathBuf>) -> Trace {
        Trace { path, ..Trace::default() }
    }

    /// Returns the time in milliseconds on CLOCK_BOOTTIME, if the trace is on.
    pub(crate) fn now(&self, host: &dyn Host) -> Option<u64> {
        self.path.as_ref().map(|_| host.boottime().as_millis() as u64)
    }

    /// Stores a decision for the commit that carries it out.
    pub(crate) fn decided<R: Request>(
        &self,
        host: &dyn Host,
        from: Option<u64>,
        record: &Record,
        ask: &R,
        facts: &Facts,
    ) {
        let (Some(from), Some(until)) = (from, self.now(host)) else { return };
        let name = std::any::type_name::<R>().rsplit("::").next().unwrap_or_default();
        let ask = serde_json::json!({ name: ask });
        let decided = Decided { ask, facts: facts.clone(), from, until };
        let mut known = guarded(&self.decided);
        let of = (current().id(), record.name.clone());
        known.retain(|(other, _)| *other != of);
        known.push((of, decided));
    }

    /// Makes these changes and logs them. `before` has the records that some changes replace.
    pub(crate) fn commit(
        &self,
        store: &dyn Store,
        host: &dyn Host,
        set: &WriteSet<'_>,
        before: &[&Record],
    ) -> Result<CommitResult> {
        if self.path.is_none() {
            return store.commit(set);
        }
        let step = new_step(host);
        let intents = set.change.iter().map(|change| self.intent(store, change, before)).collect();
        self.log(host, step, Event::Intent(intents))?;
        let swap = store.commit(set);
        let event = match &swap {
            Ok(CommitResult::Done(Version { number, mark })) => Event::Committed(*number, *mark),
            Ok(CommitResult::Conflict(_)) => Event::Conflict,
            Err(error) => Event::Unknown(error.to_string()),
        };
        // Without this line the checker assumes that the commit may have happened.
        let _ = self.log(host, step, event);
        swap
    }

    fn intent(&self, store: &dyn Store, change: &Write<'_>, before: &[&Record]) -> Intent {
        let before = before.iter().find(|record| record.name == change.name);
        let known = guarded(&self.decided);
        let is_mine = |((thread, name), _): &&(Of, Decided)| *thread == current().id() && name == change.name;
        let decided = before.and_then(|_| known.iter().find(is_mine));
        Intent {
            place: store.describe(change.name),
            name: Bytes(change.name.to_vec()),
            expect: change.expect.map(|Version { number, mark }| (number, mark)),
            before: before.map(|record| Bytes(lock::encode(record))),
            body: change.body.map(|body| Bytes(body.to_vec())),
            decided: decided.map(|(_, decided)| decided.clone()),
        }
    }

    /// Returns this process, which may be a fork of the process that created the engine.
    #[expect(clippy::disallowed_methods, reason = "only to see whether the process is still the same")]
    fn process(&self, host: &dyn Host) -> Result<ProcessId> {
        let mut known = guarded(&self.process);
        match *known {
            Some(process) if process.pid == std::process::id() as i32 => Ok(process),
            _ => Ok(*known.insert(host.this_process()?)),
        }
    }

    fn log(&self, host: &dyn Host, step: u64, event: Event) -> Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let at = host.boottime().as_millis() as u64;
        let line = Line { domain: host.domain()?, process: self.process(host)?, step, at, event };
        let failed = |why: String| Error::new(ErrorKind::InputOutput, format!("{}: {why}", path.display()), "");
        let mut text = serde_json::to_vec(&line).map_err(|error| failed(error.to_string()))?;
        text.push(b'\n');
        let written =
            OpenOptions::new().append(true).create(true).open(path).and_then(|mut file| file.write_all(&text));
        written.map_err(|error| failed(error.to_string()))
    }
}

/// Returns a number that is unique among the commits of this process, even if two threads ask at once.
fn new_step(host: &dyn Host) -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = host.boottime().as_nanos() as u64;
    let next = |last: u64| now.max(last + 1);
    LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last))).map_or(now, next)
}

pub fn page(body: &[u8]) -> Option<Page> {
    lock::decode_auxiliary(body).ok().flatten()
}

pub fn decision(body: &[u8]) -> Option<CommitRecord> {
    lock::decode_auxiliary(body).ok().flatten()
}
