//! The trace: in builds for tests, a log of every commit that an engine makes. Release builds contain none of it.
//!
//! `CSALOCK_TRACE` names the file. A commit is two lines of JSON, each appended by one write(2): the intent, before the
//! store is called, and the result, after it answered. An intent without a result, or with an unknown one, may or may not
//! have happened. An intent bears everything that the rules need to decide again: the record before, the request and the
//! facts. `tests/trace` holds the checker.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{ThreadId, current};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::host::Host;
use crate::lock::{self, CommitRecord, Facts, Page, PidDomain, ProcessId, Record, Request};
use crate::store::{CommitResult, Store, Version, Write};

/// One line of a trace.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Line {
    /// The process. No other object in a line begins with this field, so a reader finds the start of a line.
    pub process: ProcessId,
    /// Where the process runs.
    pub domain: PidDomain,
    /// Which commit of the process: when it began, in nanoseconds on CLOCK_BOOTTIME. A count would begin anew after exec(2).
    pub step: u64,
    /// When the line was made, in milliseconds on CLOCK_BOOTTIME.
    pub at: u64,
    /// What it says.
    pub event: Event,
}

/// What a line says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Event {
    /// These changes are about to be made as one.
    Intent(Vec<Intent>),
    /// They are made, as this version: number and mark.
    Stored(u64, u64),
    /// The store says that another process was faster.
    Conflict,
    /// The store failed: the changes may have been made.
    Unknown(String),
}

/// A change that is about to be made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Intent {
    /// Where the store has it, as messages name it.
    pub place: String,
    /// The name.
    pub name: Bytes,
    /// The version that must be there: number and mark.
    pub expect: Option<(u64, u64)>,
    /// The record that was read, for a change of a record.
    pub before: Option<Bytes>,
    /// What comes in its place.
    pub body: Option<Bytes>,
    /// Why, for a change of a record.
    pub decided: Option<Decided>,
}

/// A decision of the rules.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Decided {
    /// The request.
    pub ask: Request,
    /// What was known.
    pub facts: Facts,
    /// When the engine began to find that out, in milliseconds on CLOCK_BOOTTIME.
    pub from: u64,
    /// When it had found it out.
    pub until: u64,
}

/// Bytes, as a text in which each character is one byte.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Bytes(pub Vec<u8>);

impl From<String> for Bytes {
    fn from(text: String) -> Bytes {
        Bytes(text.chars().map(|byte| u32::from(byte) as u8).collect())
    }
}

impl From<Bytes> for String {
    fn from(bytes: Bytes) -> String {
        bytes.0.into_iter().map(char::from).collect()
    }
}

type Of = (ThreadId, Vec<u8>);

/// Where an engine logs its commits.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    path: Option<PathBuf>,
    /// This process, so that it is not looked up for each line.
    process: Mutex<Option<ProcessId>>,
    /// The last decision of each thread about each name.
    decided: Mutex<Vec<(Of, Decided)>>,
}

impl Trace {
    pub(crate) fn new(path: Option<PathBuf>) -> Trace {
        Trace { path, ..Trace::default() }
    }

    /// The time, if anything is logged.
    pub(crate) fn now(&self, host: &dyn Host) -> Option<u64> {
        self.path.as_ref().map(|_| host.boottime().as_millis() as u64)
    }

    /// Keeps a decision for the commit that carries it out.
    pub(crate) fn decided(&self, host: &dyn Host, from: Option<u64>, record: &Record, ask: &Request, facts: &Facts) {
        let (Some(from), Some(until)) = (from, self.now(host)) else { return };
        let decided = Decided { ask: ask.clone(), facts: facts.clone(), from, until };
        let mut known = self.decided.lock().unwrap_or_else(PoisonError::into_inner);
        let of = (current().id(), record.name.clone());
        known.retain(|(other, _)| *other != of);
        known.push((of, decided));
    }

    /// Makes these changes, and logs that. `before`: the records that some of them replace.
    pub(crate) fn commit(
        &self,
        store: &dyn Store,
        host: &dyn Host,
        changes: &[Write<'_>],
        before: &[&Record],
    ) -> Result<CommitResult> {
        if self.path.is_none() {
            return store.commit_batch(changes);
        }
        let step = new_step(host);
        let intents = changes.iter().map(|change| self.intent(store, change, before)).collect();
        self.log(host, step, Event::Intent(intents))?;
        let swap = store.commit_batch(changes);
        let event = match &swap {
            Ok(CommitResult::Done(Version { number, mark })) => Event::Stored(*number, *mark),
            Ok(CommitResult::Conflict) => Event::Conflict,
            Err(error) => Event::Unknown(error.to_string()),
        };
        // Without this line the checker takes the intent for one that may have happened.
        let _ = self.log(host, step, event);
        swap
    }

    fn intent(&self, store: &dyn Store, change: &Write<'_>, before: &[&Record]) -> Intent {
        let before = before.iter().find(|record| record.name == change.name);
        let known = self.decided.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// This process, which may be a fork of the one that made the engine.
    #[expect(clippy::disallowed_methods, reason = "only to see whether the process is still the same")]
    fn process(&self, host: &dyn Host) -> Result<ProcessId> {
        let mut known = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        match *known {
            Some(process) if process.pid == std::process::id() as i32 => Ok(process),
            _ => Ok(*known.insert(host.this_process()?)),
        }
    }

    fn log(&self, host: &dyn Host, step: u64, event: Event) -> Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let at = host.boottime().as_millis() as u64;
        let line = Line { domain: host.domain()?, process: self.process(host)?, step, at, event };
        let failed = |why: String| Error::new(Exit::InputOutput, format!("{}: {why}", path.display()), "");
        let mut text = serde_json::to_vec(&line).map_err(|error| failed(error.to_string()))?;
        text.push(b'\n');
        let written =
            OpenOptions::new().append(true).create(true).open(path).and_then(|mut file| file.write_all(&text));
        written.map_err(|error| failed(error.to_string()))
    }
}

/// A number that no other commit of this process has, even if two threads ask at once.
fn new_step(host: &dyn Host) -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = host.boottime().as_nanos() as u64;
    let next = |last: u64| now.max(last + 1);
    LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last))).map_or(now, next)
}

/// Reads a page of a queue; `None` for anything else.
pub fn page(body: &[u8]) -> Option<Page> {
    lock::decode_page(body)
}

/// Reads a decision about several names; `None` for anything else.
pub fn decision(body: &[u8]) -> Option<CommitRecord> {
    lock::decode_decision(body)
}
