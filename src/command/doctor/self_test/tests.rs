//! Tests of the self-test with stores that break the promises of compare-and-swap.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::host::Fake;
use crate::store::{HistoryCursor, Leases, Memory, Scope, Version, Visit, Write, WriteSet};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    RefusesAll,
    AcceptsAll,
    LosesWrites,
    FallingVersions,
}

struct Broken {
    memory: Memory,
    fault: Fault,
    was_written: AtomicBool,
}

impl Broken {
    fn with(fault: Fault) -> Broken {
        let memory = Memory::new(Arc::new(Fake::new(1)));
        memory.commit(&WriteSet::of(b"x", None, Some(b"record"))).unwrap();
        Broken { memory, fault, was_written: AtomicBool::new(false) }
    }

    /// Returns a version that falls with each commit, or the unchanged one.
    fn shown(&self, version: Version) -> Version {
        let falls = self.fault == Fault::FallingVersions;
        if falls { Version { number: 100 - version.number, ..version } } else { version }
    }
}

impl Store for Broken {
    fn read(&self, name: &[u8]) -> Result<Option<Versioned>> {
        let stored = self.memory.read(name)?.map(|stored| Versioned { version: self.shown(stored.version), ..stored });
        let lost = self.fault == Fault::LosesWrites && self.was_written.load(Ordering::Relaxed);
        Ok(stored.map(|stored| if lost { Versioned { body: b"other".to_vec(), ..stored } } else { stored }))
    }

    fn commit(&self, set: &WriteSet<'_>) -> Result<CommitResult> {
        if self.fault == Fault::RefusesAll {
            return Ok(CommitResult::Conflict(None));
        }
        self.was_written.store(true, Ordering::Relaxed);
        let [change] = set.changes[..] else { panic!("{} changes", set.changes.len()) };
        let expect = match self.fault {
            Fault::AcceptsAll => self.memory.read(change.name)?.map(|stored| stored.version),
            _ => change.expect.map(|version| self.shown(version)),
        };
        Ok(match self.memory.commit(&WriteSet::from(Write { expect, ..change }))? {
            CommitResult::Done(version) => CommitResult::Done(self.shown(version)),
            other => other,
        })
    }

    fn scan(&self, visit: &mut Visit<'_>) -> Result<()> {
        self.memory.scan(visit)
    }

    fn leases(&self) -> &dyn Leases {
        self.memory.leases()
    }

    fn scope(&self) -> Scope {
        self.memory.scope()
    }

    fn describe(&self, name: &[u8]) -> String {
        self.memory.describe(name)
    }

    fn read_new_history(&self, cursor: &mut HistoryCursor, visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.memory.read_new_history(cursor, visit)
    }

    fn diagnose(&self) -> Vec<Finding> {
        Vec::new()
    }
}

#[test]
fn each_broken_promise_of_commit_is_found() {
    for (fault, expected) in [
        (Fault::None, None),
        (Fault::RefusesAll, Some("a commit fails although the record has not changed")),
        (Fault::AcceptsAll, Some("a commit succeeds although the record has changed")),
        (Fault::LosesWrites, Some("a read returns another record than the one that was written")),
        (Fault::FallingVersions, Some("version numbers do not rise")),
    ] {
        assert_eq!(check_commits(&Broken::with(fault), b"x").unwrap(), expected);
    }
}
