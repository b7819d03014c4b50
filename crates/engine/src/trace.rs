//! The trace: in builds for tests only, a store around each store of an engine, which logs every commit.
//!
//! `CSALOCK_TRACE` names the file. A commit is two lines of JSON, each appended by one write(2). The intent comes
//! before the call of the store, and the result after its answer. An intent without a result, or with an unknown
//! result, may or may not have happened. An intent contains the input of the rules, so that a checker can repeat the
//! decision: the record before, the request and the facts. `tests/trace` holds the checker.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use host::Host;
use lock::{self, CommitRecord, Facts, Page, PidDomain, ProcessId, Record, Request};
use lock::{Error, ErrorKind, Result, text};
use store::{
    Abilities, Call, CommitResult, Finding, Leases, Store, Subscription, Swept, Topic, Upkeep, Version, Versioned,
    Visit, Write, WriteSet, guarded,
};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Line {
    /// No other object in a line begins with this field, so a reader finds the start of a line.
    pub process: ProcessId,
    pub domain: PidDomain,
    /// Id of the commit: its start in nanoseconds on CLOCK_BOOTTIME. A counter would start again after exec(2).
    pub step: u64,
    /// Time of the line, in milliseconds on CLOCK_BOOTTIME.
    pub at: u64,
    pub event: Event,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Event {
    /// Changes that the engine is about to make in one commit.
    Intent(Vec<Intent>),
    /// Number and mark of the version with which the store made the changes.
    Committed(u64, u64),
    /// Another process committed first.
    Conflict,
    /// After this failure of the store, the changes may have been made.
    Unknown(String),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Intent {
    /// Place in the store, as messages name it.
    pub place: String,
    pub name: Bytes,
    /// Number and mark of the expected current version.
    pub expect: Option<(u64, u64)>,
    /// For a change of a record: the record that was read.
    pub before: Option<Bytes>,
    pub body: Option<Bytes>,
    pub decided: Option<Decided>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Decided {
    /// Request, in an object whose only field is the name of its type.
    pub ask: serde_json::Value,
    pub facts: Facts,
    /// Time when the engine began to collect the facts, in milliseconds on CLOCK_BOOTTIME.
    pub from: u64,
    /// Time when the engine had collected the facts, on the same clock.
    pub until: u64,
}

/// Bytes that are not always UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Bytes(#[serde(with = "text")] pub Vec<u8>);

/// A store that logs each commit, with the decision behind it.
struct Traced {
    store: Box<dyn Store>,
    host: Arc<dyn Host>,
    path: PathBuf,
    /// This process, cached because each line contains it.
    process: Mutex<Option<ProcessId>>,
}

/// This process has a [`Traced`] store.
static IS_ON: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Decisions of this thread that are not yet committed, by name, each with the record before.
    static DECIDED: RefCell<BTreeMap<Vec<u8>, (Bytes, Decided)>> = const { RefCell::new(BTreeMap::new()) };
}

pub fn wrap(store: Box<dyn Store>, host: &Arc<dyn Host>, path: Option<PathBuf>) -> Box<dyn Store> {
    let Some(path) = path else { return store };
    IS_ON.store(true, Ordering::Relaxed);
    Box::new(Traced { store, host: host.clone(), path, process: Mutex::default() })
}

/// Keeps a decision for the commit that carries it out. The store sees neither the request nor the facts.
pub(crate) fn decided<R: Request>(host: &dyn Host, record: &Record, ask: &R, facts: &Facts) {
    if !IS_ON.load(Ordering::Relaxed) {
        return;
    }
    let until = host.boottime();
    // The facts have the wall clock of the moment before the first of them.
    let span = host.wall().saturating_sub(Duration::from_millis(facts.wall));
    let name = std::any::type_name::<R>().rsplit("::").next().unwrap_or_default();
    let decided = Decided {
        ask: serde_json::json!({ name: ask }),
        facts: facts.clone(),
        from: until.saturating_sub(span).as_millis() as u64,
        until: until.as_millis() as u64,
    };
    let decision = (Bytes(lock::encode(record)), decided);
    DECIDED.with_borrow_mut(|known| known.insert(record.name.clone(), decision));
}

macro_rules! pass_on {
    ($(fn $method:ident(&self $(, $argument:ident: $type:ty)*) $(-> $result:ty)?;)*) => {
        $(fn $method(&self $(, $argument: $type)*) $(-> $result)? {
            self.store.$method($($argument),*)
        })*
    };
}

impl Store for Traced {
    fn commit(&self, call: Call, set: &WriteSet<'_>) -> Result<CommitResult> {
        let Some(change) = &set.change else {
            return self.store.commit(call, set);
        };
        let step = new_step(self.host.as_ref());
        self.log(step, Event::Intent(vec![self.intent(change)]))?;
        let result = self.store.commit(call, set);
        let event = match &result {
            Ok(CommitResult::Done(Version { number, mark })) => Event::Committed(*number, *mark),
            Ok(CommitResult::Conflict(_) | CommitResult::Unclear) => Event::Conflict,
            Err(error) => Event::Unknown(error.to_string()),
        };
        // Without this line the checker assumes that the commit may have happened.
        let _ = self.log(step, event);
        result
    }

    pass_on! {
        fn read(&self, call: Call, name: &[u8]) -> Result<Option<Versioned>>;
        fn scan(&self, call: Call, visit: &mut Visit<'_>) -> Result<()>;
        fn finish(&self, call: Call, set: &WriteSet<'_>);
        fn before_wait(&self, call: Call, is_long: bool) -> bool;
        fn settle(&self, call: Call) -> Result<()>;
        fn leases(&self) -> &dyn Leases;
        fn subscribe(&self, call: Call, topic: Topic<'_>) -> Option<Box<dyn Subscription>>;
        fn abilities(&self) -> Abilities;
        fn is_replaced(&self) -> bool;
    }
}

impl Upkeep for Traced {
    pass_on! {
        fn describe(&self, name: &[u8]) -> String;
        fn answers(&self) -> u64;
        fn cleaned_directory(&self) -> Option<PathBuf>;
        fn read_history(&self, call: Call, visit: &mut dyn FnMut(&[u8])) -> Result<bool>;
        fn sweep(&self, call: Call, dry_run: bool) -> Result<Swept>;
        fn count_connections(&self, call: Call) -> Option<(u64, u64)>;
        fn diagnose(&self, call: Call) -> Vec<Finding>;
    }
}

impl Traced {
    fn intent(&self, change: &Write<'_>) -> Intent {
        let (before, decided) = DECIDED.with_borrow_mut(|known| known.remove(change.name)).unzip();
        Intent {
            place: self.store.describe(change.name),
            name: Bytes(change.name.to_vec()),
            expect: change.expect.map(|Version { number, mark }| (number, mark)),
            before,
            body: change.body.map(|body| Bytes(body.to_vec())),
            decided,
        }
    }

    /// This process, which may be a fork of the process that opened the store.
    #[expect(clippy::disallowed_methods, reason = "only to see whether the process is still the same")]
    fn process(&self) -> Result<ProcessId> {
        let mut known = guarded(&self.process);
        match *known {
            Some(process) if process.pid == std::process::id() as i32 => Ok(process),
            _ => Ok(*known.insert(self.host.this_process()?)),
        }
    }

    fn log(&self, step: u64, event: Event) -> Result<()> {
        let at = self.host.boottime().as_millis() as u64;
        let line = Line { domain: self.host.domain()?, process: self.process()?, step, at, event };
        let failed = |why: String| Error::new(ErrorKind::InputOutput, format!("{}: {why}", self.path.display()), "");
        let mut text = serde_json::to_vec(&line).map_err(|error| failed(error.to_string()))?;
        text.push(b'\n');
        let written =
            OpenOptions::new().append(true).create(true).open(&self.path).and_then(|mut file| file.write_all(&text));
        written.map_err(|error| failed(error.to_string()))
    }
}

/// Unique among the commits of this process, even if two threads ask at once.
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
