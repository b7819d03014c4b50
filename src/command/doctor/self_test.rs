//! Self-test of a lock: acquire, read, commit, refuse, wait and release, under a name that cannot be typed. If we are
//! killed during the test, the lock has a dead holder.

use std::time::Duration;

use nix::unistd::Pid;

use super::unexpected;
use crate::child::Helper;
use crate::command::context::Context;
use crate::engine::{AcquireRequest, AcquireResult, Engine, WaitPolicy};
use crate::error::{Error, Result};
use crate::history::Limits;
use crate::host::pause;
use crate::lock::{Handle, Request, Response};
use crate::signals::Signals;
use crate::store::{CommitResult, Finding, Location, Versioned};

/// Number of measurements of each step.
const TIMES: usize = 5;

/// Maximum time of a step before the store counts as slow for locks.
const SLOW: Duration = Duration::from_millis(500);

/// Maximum time until a notified waiter wakes up; a later waiter was not notified.
const LATE: Duration = Duration::from_millis(700);

/// Maximum time that a participant of the test may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The steps of a lock that are measured.
const STEPS: [&str; 4] = ["take", "read", "swap", "give back"];

pub(super) struct Trial<'a> {
    context: &'a Context,
    engine: Engine,
    name: Vec<u8>,
    other: Helper,
    signals: &'a Signals,
}

impl Trial<'_> {
    pub(super) fn new<'a>(
        context: &'a Context,
        location: &Location,
        mark: &str,
        other: Helper,
        signals: &'a Signals,
    ) -> Result<Trial<'a>> {
        Ok(Trial { context, engine: engine(context, location)?, name: name(mark), other, signals })
    }

    /// Returns all findings; leaves no traces in the store.
    pub(super) fn findings(mut self) -> Vec<Finding> {
        let mut findings = vec![self.steps().unwrap_or_else(|error| Finding::failed("locks", &error))];
        let may_go_on =
            |findings: &Vec<Finding>| findings.iter().all(|found| found.verdict != crate::store::Verdict::Bad);
        if may_go_on(&findings) {
            findings.push(self.refusal().unwrap_or_else(|error| Finding::failed("refusal", &error)));
        }
        if may_go_on(&findings) {
            findings.push(self.wake().unwrap_or_else(|error| Finding::failed("wake", &error)));
        }
        self.clear();
        findings
    }

    /// Removes all traces, even after a failure. A record that cannot be removed soon has a dead holder.
    fn clear(self) {
        drop(self.other);
        let holders = self.engine.inspect(&self.name).map(|status| status.record.holders).unwrap_or_default();
        for grant in holders {
            if let Ok(credentials) = self.engine.credentials(Some(grant.proof), Vec::new()) {
                let _ = self.engine.apply(&self.name, &Request::Release(credentials));
            }
        }
        let _ = self.engine.apply(&self.name, &Request::Gc);
    }

    /// Acquires, reads, commits and releases the lock in a single process.
    fn steps(&self) -> Result<Finding> {
        let mut taken: [Vec<Duration>; STEPS.len()] = Default::default();
        for _ in 0..TIMES {
            let handle =
                self.timed(&mut taken[0], || take(self.context, &self.engine, &self.name, &WaitPolicy::NONE))?;
            let handle = handle.ok_or_else(|| unexpected("a name that nobody knows is taken"))?;
            let swapped = self.read_and_swap(&mut taken);
            self.timed(&mut taken[3], || release(&self.engine, &self.name, &handle))?;
            if let Some(wrong) = swapped? {
                return Ok(Finding::bad("locks", wrong, "this is no place for locks; name another store with --store"));
            }
            if self.signals.pending() {
                break;
            }
        }
        let medians: Vec<Duration> = taken.iter_mut().map(|times| median(times)).collect();
        let each = STEPS.iter().zip(&medians).map(|(step, median)| format!("{step} {}", milliseconds(*median)));
        let found = format!("{} (medians of {TIMES})", each.collect::<Vec<_>>().join(", "));
        Ok(match medians.iter().max() {
            Some(slowest) if *slowest > SLOW => Finding::doubtful(
                "locks",
                found,
                "the store is slow: see the load of its disk or server, and the network",
            ),
            _ => Finding::good("locks", found),
        })
    }

    /// Returns what is wrong with compare-and-swap, or `None`.
    fn read_and_swap(&self, taken: &mut [Vec<Duration>; STEPS.len()]) -> Result<Option<String>> {
        let store = self.engine.store();
        let read = |taken: &mut Vec<Duration>| -> Result<Versioned> {
            let stored = self.timed(taken, || store.read(&self.name))?;
            stored.ok_or_else(|| unexpected("what was written is not there"))
        };
        let first = read(&mut taken[1])?;
        let swapped =
            self.timed(&mut taken[2], || store.commit(&self.name, Some(&first.version), Some(&first.body)))?;
        let CommitResult::Done(version) = swapped else {
            return Ok(Some("a swap fails that nobody else was in the way of".into()));
        };
        let second = read(&mut taken[1])?;
        Ok(if second.body != first.body || second.version != version {
            Some("what is read is not what was written".into())
        } else if version.number <= first.version.number {
            Some("version numbers do not rise".into())
        } else if store.commit(&self.name, Some(&first.version), Some(&first.body))? != CommitResult::Conflict {
            Some("a swap succeeds although the record has changed".into())
        } else {
            None
        })
    }

    /// Tests that another process cannot acquire a lock that this process holds.
    fn refusal(&mut self) -> Result<Finding> {
        let handle = self.hold()?;
        let answer = self.ask("try", PATIENCE);
        release(&self.engine, &self.name, &handle)?;
        Ok(match answer?.as_str() {
            "refused" => Finding::good("refusal", "what one process holds is refused to another"),
            "granted" => Finding::bad(
                "refusal",
                "two processes held one lock at the same time",
                "this is no place for locks; name another store with --store",
            ),
            other => Finding::bad("refusal", other, ""),
        })
    }

    /// Measures the time from the release until the next waiter on this host holds the lock.
    fn wake(&mut self) -> Result<Finding> {
        let mut taken = Vec::new();
        for _ in 0..TIMES {
            let handle = self.hold()?;
            let begun = self.engine.host().boottime();
            self.other.tell("wait")?;
            while self.engine.inspect(&self.name)?.waiters.is_empty() {
                if self.engine.host().boottime().saturating_sub(begun) > PATIENCE {
                    release(&self.engine, &self.name, &handle)?;
                    return Err(unexpected("who waits does not enter the queue"));
                }
                pause(self.engine.host(), Duration::from_millis(1))?;
            }
            // The helper is in the queue now; a moment later it sleeps.
            pause(self.engine.host(), Duration::from_millis(10))?;
            let freed = self.engine.host().boottime();
            release(&self.engine, &self.name, &handle)?;
            let answer = self.other.answer(PATIENCE)?;
            let held = answer.parse().map(Duration::from_nanos).map_err(|_| unexpected(&answer))?;
            taken.push(held.saturating_sub(freed));
            if self.signals.pending() {
                break;
            }
        }
        let median = median(&mut taken);
        let found = format!(
            "{} from giving back to the next one who waits on this host (median of {TIMES})",
            milliseconds(median)
        );
        Ok(if median > LATE {
            let cure = "nobody rings, so they look again every so often; see how busy this host is";
            Finding::doubtful("wake", found, cure)
        } else {
            Finding::good("wake", found)
        })
    }

    fn hold(&self) -> Result<Handle> {
        let handle = take(self.context, &self.engine, &self.name, &WaitPolicy::NONE)?;
        handle.ok_or_else(|| unexpected("a name that nobody knows is taken"))
    }

    fn ask(&mut self, what: &str, at_most: Duration) -> Result<String> {
        self.other.tell(what)?;
        self.other.answer(at_most)
    }

    fn timed<T>(&self, taken: &mut Vec<Duration>, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let begun = self.engine.host().boottime();
        let done = work()?;
        taken.push(self.engine.host().boottime().saturating_sub(begun));
        Ok(done)
    }
}

/// Acts as the other process: tries to acquire the held lock, or waits and returns when it held it, on CLOCK_BOOTTIME.
pub(super) fn act_as_other(context: &Context, location: &Location, mark: &str, line: &str) -> String {
    let act = || -> Result<String> {
        let (engine, name) = (engine(context, location)?, name(mark));
        let limit = WaitPolicy { limit: Some(PATIENCE), attempts: None, backoff: None };
        let policy = if line == "wait" { limit } else { WaitPolicy::NONE };
        let taken = take(context, &engine, &name, &policy)?;
        let now = context.host.boottime();
        let Some(handle) = taken else { return Ok("refused".to_string()) };
        release(&engine, &name, &handle)?;
        Ok(if line == "wait" { now.as_nanos().to_string() } else { "granted".to_string() })
    };
    act().unwrap_or_else(|error: Error| error.to_string().replace('\n', " "))
}

/// Returns an engine that writes no history.
fn engine(context: &Context, location: &Location) -> Result<Engine> {
    Ok(context.engine(location)?.remembering(Limits::default().off()))
}

/// Returns a name with a NUL: it cannot be typed, and is not taken for a name that a user may want again.
fn name(mark: &str) -> Vec<u8> {
    format!("csalock doctor\0{mark}").into_bytes()
}

/// Acquires the lock for this process. Returns `None` if another process holds it.
fn take(context: &Context, engine: &Engine, name: &[u8], policy: &WaitPolicy) -> Result<Option<Handle>> {
    let process = context.host.this_process()?;
    let owner = context.owner(vec![process], b"csalock doctor".to_vec(), None)?;
    let request = AcquireRequest::for_itself(engine.new_handle()?, owner, process);
    match engine.acquire(name, &request, policy, None, &mut |_| None)? {
        AcquireResult::Answer(Response::Granted(..)) => Ok(Some(request.handle)),
        AcquireResult::Answer(Response::Busy(_)) | AcquireResult::Interrupted => Ok(None),
        AcquireResult::Answer(other) => {
            Err(unexpected(&format!("unexpected answer {other:?} to process {}", Pid::this())))
        }
    }
}

fn release(engine: &Engine, name: &[u8], handle: &Handle) -> Result<()> {
    let credentials = engine.credentials(Some(handle.proof()), Vec::new())?;
    match engine.apply(name, &Request::Release(credentials))? {
        Response::Released(_) => Ok(()),
        other => Err(unexpected(&format!("what was taken cannot be given back: {other:?}"))),
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn milliseconds(span: Duration) -> String {
    let span = span.as_secs_f64() * 1e3;
    if span < 10.0 { format!("{span:.2} ms") } else { format!("{span:.0} ms") }
}
