//! Self-test of a lock under a name that cannot be typed: acquire, commit, refuse and release. If csalock is killed
//! during the test, the lock has a dead holder.

#[cfg(test)]
mod tests;

use std::time::Duration;

use super::unexpected;
use crate::command::context::Context;
use crate::engine::{AcquireRequest, AcquireResult, Engine, WaitPolicy};
use crate::error::Result;
use crate::history::HistoryLimits;
use crate::lock::{Gc, Handle, Refusal, Release};
use crate::store::{CommitResult, Finding, Location, Store, Versioned, WriteSet};

/// Maximum time of the test before the store counts as slow for locks.
const SLOW: Duration = Duration::from_secs(2);

/// Hint for a store whose answers contradict each other.
const NO_PLACE: &str = "do not use this store for locks; name another one with --store";

/// Returns the findings `locks` and `refusal`; leaves no traces in the store.
pub(super) fn findings(context: &Context, location: &Location, mark: &str) -> Result<Vec<Finding>> {
    // A name with a NUL cannot be typed, and leaves no tombstone.
    let name = format!("csalock doctor\0{mark}").into_bytes();
    let engine = engine(context, location)?;
    let findings = try_lock(context, location, &engine, &name);
    clear(&engine, &name);
    findings
}

fn try_lock(context: &Context, location: &Location, engine: &Engine, name: &[u8]) -> Result<Vec<Finding>> {
    let begun = context.host.boottime();
    let handle = acquire(context, engine, name)?.ok_or_else(|| unexpected("a new name has a holder"))?;
    let broken = check_commits(engine.store(), name)?;
    let refusal = refusal(context, location, name);
    release(engine, name, &handle)?;
    let time = context.host.boottime().saturating_sub(begun);
    if let Some(broken) = broken {
        return Ok(vec![Finding::bad("locks", broken, NO_PLACE)]);
    }
    let found = format!("acquired, changed and released in {:.1} ms", time.as_secs_f64() * 1e3);
    let locks = if time > SLOW {
        Finding::doubtful("locks", found, "the store is slow: check the load of its disk or server, and the network")
    } else {
        Finding::good("locks", found)
    };
    Ok(vec![locks, refusal.unwrap_or_else(|error| Finding::failed("refusal", &error))])
}

/// Returns what is wrong with compare-and-swap, or `None`.
fn check_commits(store: &dyn Store, name: &[u8]) -> Result<Option<&'static str>> {
    let read = || -> Result<Versioned> { store.read(name)?.ok_or_else(|| unexpected("a written record is missing")) };
    let first = read()?;
    let CommitResult::Done(version) = store.commit(&WriteSet::of(name, Some(&first.version), Some(&first.body)))?
    else {
        return Ok(Some("a commit fails although the record has not changed"));
    };
    let second = read()?;
    Ok(if second.body != first.body || second.version != version {
        Some("a read returns another record than the one that was written")
    } else if version.number <= first.version.number {
        Some("version numbers do not rise")
    } else if store.commit(&WriteSet::of(name, Some(&first.version), Some(&first.body)))?.is_done() {
        Some("a commit succeeds although the record has changed")
    } else {
        None
    })
}

/// Tests that a caller with a store of its own cannot acquire a lock that has a holder.
fn refusal(context: &Context, location: &Location, name: &[u8]) -> Result<Finding> {
    let engine = engine(context, location)?;
    Ok(match acquire(context, &engine, name)? {
        None => Finding::good("refusal", "a lock that has a holder is refused to another caller"),
        Some(_) => Finding::bad("refusal", "two callers held one lock at the same time", NO_PLACE),
    })
}

/// Returns an engine that writes no history.
fn engine(context: &Context, location: &Location) -> Result<Engine> {
    Ok(context.engine(location)?.remembering(HistoryLimits::default().off()))
}

/// Acquires the lock for this process. Returns `None` if the lock has another holder.
fn acquire(context: &Context, engine: &Engine, name: &[u8]) -> Result<Option<Handle>> {
    let process = context.host.this_process()?;
    let owner = context.owner(vec![process], b"csalock doctor".to_vec(), None)?;
    let request = AcquireRequest::for_itself(engine.new_handle()?, owner, process);
    match engine.acquire(name, &request, &WaitPolicy::NONE, None, &mut |_| None)? {
        AcquireResult::Granted(..) => Ok(Some(request.handle)),
        // The holder is this process, so a wait for it would be a deadlock.
        AcquireResult::Refused(Refusal::Busy(_) | Refusal::Deadlock(_)) => Ok(None),
        other => Err(unexpected(&format!("unexpected answer {other:?}"))),
    }
}

fn release(engine: &Engine, name: &[u8], handle: &Handle) -> Result<()> {
    let credentials = engine.by_proof(handle.proof())?;
    let released = engine.apply(name, &Release(credentials))?.map(drop);
    released.map_err(|other| unexpected(&format!("an acquired lock cannot be released: {other:?}")))
}

/// Removes all traces, even after a failure. A record that cannot be removed soon has a dead holder.
fn clear(engine: &Engine, name: &[u8]) {
    let holders = engine.record(name).map(|record| record.holders).unwrap_or_default();
    for grant in holders {
        if let Ok(credentials) = engine.by_proof(grant.proof) {
            let _ = engine.apply(name, &Release(credentials));
        }
    }
    let _ = engine.apply(name, &Gc);
}
