//! Messages about a command that runs under locks, and about jobs that must succeed in time.

use std::time::Duration;

use super::{Reporter, Zone};
use crate::run::supervisor::Notice;
use engine::lease_schedule::StopReason;
use engine::{Engine, LockRef, LockSet};
use lock::duration::shown as span;
use lock::name::escape;
use lock::{Error, ErrorKind, JobState, NotHolder, Owner, ProcessId, Success};

pub(crate) fn notice(locks: &LockSet, notice: &Notice<'_>) -> String {
    let names = locks.shown_names();
    let shown = |lock: &LockRef| format!("lock {}", escape(&lock.display_name));
    match notice {
        Notice::Ended(StopReason::MaxHold, _) => {
            format!("the command was ended: it held lock {names} longer than --max-hold")
        }
        Notice::Ended(StopReason::Lease, true) => {
            format!("the command was ended before the --ttl of lock {names} was over")
        }
        Notice::Ended(StopReason::Lease, false) => format!(
            "the command was ended before the lease of lock {names} was over: it could not be renewed; see `csalock \
             doctor`"
        ),
        Notice::Paused => format!(
            "the lease of lock {names} was not renewed in time, because this machine or csalock stood still; the command was \
             stopped until the lease was renewed, and no other caller held the lock"
        ),
        Notice::EndedByOther => format!(
            "the command was ended: `csalock renew --ttl` or `csalock unlock --force --end` had limited the time of \
             lock {names}"
        ),
        Notice::EndedAfterLoss => "the command was ended".to_string(),
        Notice::OutOfReach => {
            format!("the command could not be ended when its time under lock {names} was over: it runs as another user")
        }
        Notice::Lost(lock, engine, released) => {
            let how = match released {
                Ok(released) => how_lost(engine, released.as_ref().err()),
                Err(error) => format!("its lease is over, and it could not be released: {error}"),
            };
            let lock = shown(lock);
            format!("lost while the command ran: {lock}: {how}; what the command did after that was not guarded")
        }
        Notice::NotReported(lock, error) => format!(
            "the job of {} has succeeded, but that could not be recorded, so it may run again: {error}",
            shown(lock)
        ),
        Notice::NotReleased(lock, error) => format!("{} could not be released: {error}", shown(lock)),
        Notice::Survivors(processes) => {
            format!("{}; to end them too, use --tree", survivors("command", &names, processes))
        }
        Notice::Silent => format!(
            "lock {names} could not be released: the store does not answer; it is released when that answers again, \
             and at the latest its lease ends it"
        ),
    }
}

fn survivors(ended: &str, names: &str, processes: &[ProcessId]) -> String {
    let pids: Vec<String> = processes.iter().map(|process| process.pid.to_string()).collect();
    format!("processes of the ended {ended} go on without lock {names}: pid {}", pids.join(", pid "))
}

/// A process that another one ended had started these.
pub(crate) fn left_by_end(name: &str, holder: &Owner, processes: &[ProcessId]) -> String {
    let left = survivors("holder", name, processes);
    // The supervisor of a tree is one of the owners, and a command without a supervisor is its own.
    let could_be_tree = holder.supervisor.is_some_and(|supervisor| !holder.processes.contains(&supervisor));
    let tree = if could_be_tree { "; `csalock run --tree` ends them too" } else { "" };
    format!("{left}; kill them if they do harm{tree}")
}

/// No command ran, because the lock was lost before its file was locked.
pub(crate) fn lost_while_waiting(lock: &LockRef, engine: &Engine, not_holder: &NotHolder) -> Error {
    let (lock, how) = (escape(&lock.display_name), how_lost(engine, Some(not_holder)));
    let what = format!("lost during the wait for its file: lock {lock}: {how}");
    Error::new(ErrorKind::Lost, what, "the command was not run")
}

fn how_lost(engine: &Engine, not_holder: Option<&NotHolder>) -> String {
    match not_holder {
        Some(NotHolder { ending: Some(ending), .. }) => {
            format!("it was held by {}", Reporter::new(engine).ending(ending))
        }
        Some(NotHolder { store_was_replaced: true, .. }) => {
            "its store was moved, replaced or removed, so other callers did not see the grant".to_string()
        }
        _ => "its record has no trace of the grant".to_string(),
    }
}

/// `now` is a time of the store.
pub(crate) fn overdue(job: &JobState, now: Duration, zone: Zone) -> String {
    let within = within(job).map(|within| format!(", and {within}")).unwrap_or_default();
    if let Some(success) = job.doubtful_success(now.as_millis() as u64) {
        return format!("{}{within}", in_future(success, zone));
    }
    let (what, since) = match (&job.success, &job.promise) {
        (Some(success), _) => ("last succeeded at", success.at),
        (None, Some(promise)) => ("has never succeeded, since", promise.since),
        (None, None) => return "its job has not succeeded yet".to_string(),
    };
    let since = Duration::from_millis(since);
    let age = span(now.saturating_sub(since));
    format!("its job {what} {} ({age} ago){within}", zone.full(since))
}

pub(crate) fn in_future(success: &Success, zone: Zone) -> String {
    let at = zone.full(Duration::from_millis(success.at));
    format!("its job last succeeded at {at}, in the future of the store's clock, so that does not count")
}

pub(super) fn within(job: &JobState) -> Option<String> {
    let within = Duration::from_millis(job.promise.as_ref()?.span);
    Some(format!("must succeed once in {}", span(within)))
}

/// A clause about the newest slot in which a run has failed: how many runs have begun of how many.
pub(crate) fn runs(job: &JobState, zone: Zone) -> Option<String> {
    let runs = job.runs.as_ref()?;
    let of = runs.allowed().map(|allowed| format!(" of {allowed}")).unwrap_or_default();
    let slot = zone.full(Duration::from_millis(runs.slot));
    let noun = if (runs.count, of.as_str()) == (1, "") { "run" } else { "runs" };
    Some(format!("{}{of} {noun} used in the slot from {slot}", runs.count))
}

pub(crate) fn due(job: &JobState, now: Duration, zone: Zone) -> Option<String> {
    let due = zone.full(Duration::from_millis(job.due(now.as_millis() as u64)?));
    let word = if job.is_overdue(now.as_millis() as u64) { "overdue since" } else { "next by" };
    Some(format!("{word} {due}"))
}
