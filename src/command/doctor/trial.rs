//! Trial of a store: write, read, compare-and-swap and delete. If csalock is killed meanwhile, `gc` removes what is left.

use std::time::Duration;

use crate::error::Result;
use crate::host::Host;
use crate::lock::{Page, encode_auxiliary};
use crate::store::{CommitResult, Finding, Store, Version, WriteSet};

/// Maximum time of the trial before the store counts as slow for locks.
const SLOW: Duration = Duration::from_secs(2);

/// Maximum number of tries of a write. A store may report a conflict although no other caller writes, for example if
/// a reply was lost.
const TRIES: u32 = 3;

/// Tries the store with a record whose name has this unique number, and deletes it.
pub(super) fn finding(store: &dyn Store, host: &dyn Host, number: u64) -> Result<Finding> {
    // A page of a queue that no record knows is a leftover. No user can type its name, which has a NUL.
    let key = Page::key(b"csalock doctor", number);
    let begun = host.boottime();
    let broken = broken_promise(store, &key);
    let took = host.boottime().saturating_sub(begun);
    if !matches!(broken, Ok(None))
        && let Ok(Some(left)) = store.read(&key)
    {
        let _ = write(store, &key, Some(&left.version), None);
    }
    let found = format!("a record is written and deleted in {:.1} ms", took.as_secs_f64() * 1e3);
    Ok(match broken? {
        Some(broken) => Finding::bad("locks", broken, "do not use this store for locks; name another one with --store"),
        None if took > SLOW => {
            let cure = "the store is slow: check the load of its disk or server, and the network";
            Finding::doubtful("locks", found, cure)
        }
        None => Finding::good("locks", found),
    })
}

/// Returns the promise of a store that this one breaks, or `None`.
fn broken_promise(store: &dyn Store, key: &[u8]) -> Result<Option<&'static str>> {
    let body = encode_auxiliary(key, &Page::default());
    let refused = "a write fails although the record has not changed";
    let Some(first) = write(store, key, None, Some(&body))? else { return Ok(Some(refused)) };
    let Some(second) = write(store, key, Some(&first), Some(&body))? else { return Ok(Some(refused)) };
    if store.read(key)?.is_none_or(|stored| stored.body != body || stored.version != second) {
        return Ok(Some("a read does not return what was written"));
    }
    if second.number <= first.number {
        return Ok(Some("version numbers do not rise"));
    }
    if store.commit(&WriteSet::of(key, Some(&first), Some(&body)))?.is_done() {
        return Ok(Some("a write succeeds although the record has changed"));
    }
    let deleted = write(store, key, Some(&second), None)?;
    Ok(if deleted.is_none() || store.read(key)?.is_some() { Some("a record cannot be deleted") } else { None })
}

/// Writes or deletes the record. Returns `None` if the store reports a conflict that has no reason.
fn write(store: &dyn Store, key: &[u8], expect: Option<&Version>, body: Option<&[u8]>) -> Result<Option<Version>> {
    let set = WriteSet::of(key, expect, body);
    for _ in 0..TRIES {
        if let CommitResult::Done(version) = store.commit(&set)? {
            store.finish(&set);
            return Ok(Some(version));
        }
        let found = store.read(key)?;
        let version = found.as_ref().map(|stored| stored.version);
        // The reply to our own write was lost.
        if version.as_ref() != expect && found.as_ref().map(|stored| &stored.body[..]) == body {
            return Ok(Some(version.unwrap_or_default()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::host::Fake;
    use crate::store::{Abilities, HistoryCursor, Leases, Memory, Scope, Upkeep, Versioned, Visit, Write};

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
            Broken { memory: Memory::new(Arc::new(Fake::new(1))), fault, was_written: AtomicBool::new(false) }
        }

        /// Returns a version that falls with each commit, or the unchanged one.
        fn shown(&self, version: Version) -> Version {
            let falls = self.fault == Fault::FallingVersions;
            if falls { Version { number: 100 - version.number, ..version } } else { version }
        }
    }

    impl Store for Broken {
        fn read(&self, name: &[u8]) -> Result<Option<Versioned>> {
            let stored =
                self.memory.read(name)?.map(|stored| Versioned { version: self.shown(stored.version), ..stored });
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

        fn abilities(&self) -> Abilities {
            Abilities::of(Scope::Local)
        }

        fn describe(&self, name: &[u8]) -> String {
            self.memory.describe(name)
        }
    }

    impl Upkeep for Broken {
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
            (Fault::RefusesAll, Some("a write fails although the record has not changed")),
            (Fault::AcceptsAll, Some("a write succeeds although the record has changed")),
            (Fault::LosesWrites, Some("a read does not return what was written")),
            (Fault::FallingVersions, Some("version numbers do not rise")),
        ] {
            assert_eq!(broken_promise(&Broken::with(fault), b"x").unwrap(), expected);
        }
    }
}
