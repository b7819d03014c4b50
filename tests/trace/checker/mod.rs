//! The checker of traces: every version of every name must be explained by a commit that the rules allow.
//!
//! [`read`] reads the log files of one or more hosts, [`check`] replays them:
//!
//! - **chains** ([`chain`]): under each name every version comes from the one before, without gaps and forks. A commit whose
//!   result is missing or unknown (its process was killed, a reply was lost) fills a gap only if it fits exactly.
//! - **rules** ([`rules`]): `lock::decide` makes the same step of the record before, the request and the facts; tokens rise;
//!   holders fit together; pages, decisions and values beside the records change only as they may.
//! - **facts** ([`facts`]): no process commits after it was seen dead, no lease lives after it was seen over.

#![allow(dead_code, reason = "each of the test programs that include this uses a part of it")]

#[path = "../../any_request/mod.rs"]
pub(crate) mod any_request;
mod chain;
mod facts;
mod rules;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use engine::trace::{Bytes, Event, Intent, Line};
use lock::{PidDomain, ProcessId};
use store::{Call, Store};

pub(crate) type Version = (u64, u64);

/// A name, by its place in its store.
pub(crate) type Key = (String, Vec<u8>);

/// The known result of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Known {
    Stored,
    /// The process was killed, or the store failed.
    Nothing,
    /// The store said that another process was faster. It says so, too, when a reply was lost.
    Conflict,
}

/// One change of one name.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) who: (PidDomain, ProcessId),
    pub(crate) at: u64,
    pub(crate) intent: Intent,
    pub(crate) known: Known,
    pub(crate) version: Option<Version>,
}

/// The content of a store at the end: place, version and body.
pub(crate) type End = BTreeMap<String, (Version, Vec<u8>)>;

#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) wrong: Vec<String>,
    pub(crate) names: usize,
    pub(crate) steps: usize,
    /// Steps without a result that fill a gap: of processes that were killed, and after a conflict.
    pub(crate) filled: usize,
    pub(crate) lost_replies: usize,
}

impl Report {
    pub(crate) fn figures(&self) -> String {
        let Report { names, steps, filled, lost_replies, .. } = self;
        format!("{steps} commits of {names} names, {filled} without a result, {lost_replies} with a lost reply")
    }
}

/// Reads log files. A line that a killed process could not finish says nothing: it was not told that it may commit.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Vec<Line>, String> {
    const START: &str = r#"{"process":"#;
    let mut lines = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        for line in text.lines() {
            // The lines after the torn line of another process are whole.
            let whole = line.rfind(START).map(|at| &line[at..]);
            match whole.map(serde_json::from_str) {
                Some(Ok(line)) => lines.push(line),
                _ if line.starts_with('{') && !line.ends_with('}') => {}
                _ => return Err(format!("{}: not a line of a trace: {line:.200}", path.display())),
            }
        }
    }
    Ok(lines)
}

pub(crate) fn end_of(store: &dyn Store) -> End {
    let mut end = End::new();
    let mut visit = |place: &str, stored: lock::error::Result<store::Versioned>| {
        let stored = stored?;
        end.insert(self::place(place), ((stored.version.number, stored.version.mark), stored.body));
        Ok(())
    };
    store.scan(Call::default(), &mut visit).unwrap();
    end
}

/// Checks the log of everything that ever used these stores. `end`: what stands in them now, if that is known.
pub(crate) fn check(lines: &[Line], end: Option<&End>) -> Report {
    let mut report = Report::default();
    let mut names: BTreeMap<Key, Vec<Step>> = BTreeMap::new();
    // `doctor` tries the store itself, under names of its own.
    let is_trial = |step: &Step| step.intent.name.0.starts_with(b"csalock doctor\0");
    for step in steps(lines).into_iter().filter(|step| !is_trial(step)) {
        names.entry((place(&step.intent.place), step.intent.name.0.clone())).or_default().push(step);
    }
    facts::check(lines, &names, &mut report);
    for (key, steps) in &names {
        let end = end.map(|end| end.get(&key.0));
        let chain = chain::link(key, steps, end, &mut report);
        rules::check(key, &chain, &mut report);
        report.names += 1;
        report.steps += chain.len();
        report.filled += chain.iter().filter(|step| step.known == Known::Nothing).count();
        report.lost_replies += chain.iter().filter(|step| step.known == Known::Conflict).count();
    }
    for place in end.into_iter().flat_map(BTreeMap::keys) {
        if !names.keys().any(|(known, _)| known == place) {
            report.wrong.push(format!("{place}: no commit explains it"));
        }
    }
    report
}

pub(crate) fn check_file(path: &Path, end: Option<&End>) -> Report {
    match read(&[path.to_path_buf()]) {
        Ok(lines) => check(&lines, end),
        Err(error) => Report { wrong: vec![error], ..Report::default() },
    }
}

/// A place, however the servers of an etcd cluster are reached, and whether ssh or its own host uses a directory.
fn place(place: &str) -> String {
    let path = place.split_once("://").and_then(|(_, rest)| rest.split_once('/')).map(|(_, path)| path);
    path.unwrap_or(place).trim_start_matches('/').to_string()
}

fn named(key: &Key) -> String {
    String::from_utf8_lossy(&key.1).escape_debug().to_string()
}

fn steps(lines: &[Line]) -> Vec<Step> {
    let id = |line: &Line| (line.domain.boot.clone(), line.domain.pids.clone(), line.process, line.step);
    let mut results = std::collections::HashMap::new();
    for line in lines {
        let result = match line.event {
            Event::Intent(_) => continue,
            Event::Committed(number, mark) => (Known::Stored, Some((number, mark))),
            Event::Conflict => (Known::Conflict, None),
            Event::Unknown(_) => (Known::Nothing, None),
        };
        results.insert(id(line), result);
    }
    let mut steps = Vec::new();
    for line in lines {
        let Event::Intent(intents) = &line.event else { continue };
        let (known, version) = results.get(&id(line)).copied().unwrap_or((Known::Nothing, None));
        let who = (line.domain.clone(), line.process);
        let step = |intent: &Intent| Step { who: who.clone(), at: line.at, intent: intent.clone(), known, version };
        steps.extend(intents.iter().map(step));
    }
    steps
}

impl Step {
    pub(crate) fn is_removal(&self) -> bool {
        self.intent.body.is_none()
    }

    pub(crate) fn shown(&self) -> String {
        let text = |bytes: &Option<Bytes>| {
            bytes.as_ref().map_or("none".to_string(), |bytes| String::from_utf8_lossy(&bytes.0).into_owned())
        };
        let Step { who, at, intent, known, version } = self;
        format!(
            "{} at {at}: {known:?} {:?} -> {version:?}\nfrom {}\nto {}\nby {:?}",
            who.1.pid,
            intent.expect,
            text(&intent.before),
            text(&intent.body),
            intent.decided
        )
    }
}
