//! `metrics`: the state of a store in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::holder::{self, waiting};
use engine::LockStatus;
use lock::history::{Past, RunEnd};
use lock::name::escape;
use lock::{EndReason, JobState, Liveness};

const KINDS: [EndReason; 5] =
    [EndReason::Released, EndReason::Ended, EndReason::Died, EndReason::Expired, EndReason::Broken];

type ValueOf = fn(&LockMetrics) -> Option<String>;

/// Name, help and value of each family with a sample for each lock that has the value.
const OF_LOCK: [(&str, &str, ValueOf); 13] = [
    ("csalock_holders", "Holders of the lock.", |lock| number(lock.holders)),
    (
        "csalock_stale_holders",
        "Holders whose owner is dead or whose time is over, and which no caller has removed yet.",
        |lock| number(lock.stale_holders),
    ),
    ("csalock_held_seconds", "Time since the oldest grant of a holder; 0 without one.", |lock| seconds(lock.held)),
    ("csalock_waiters", "Waiters in the queue of the lock.", |lock| number(lock.waiters)),
    ("csalock_oldest_wait_seconds", "Time since the oldest waiter came; 0 without one.", |lock| {
        seconds(lock.oldest_wait)
    }),
    ("csalock_last_success_timestamp_seconds", "Time at which the job of the lock last succeeded.", |lock| {
        millis(lock.job.as_ref()?.success_at(lock.now)?.at)
    }),
    (
        "csalock_success_in_future",
        "1 if the job last succeeded in the future of the store's clock, which does not count.",
        |lock| lock.job.as_ref()?.doubtful_success(lock.now).map(|_| "1".to_string()),
    ),
    ("csalock_due_timestamp_seconds", "Time by which the job of the lock must succeed again.", |lock| {
        millis(lock.job.as_ref()?.due(lock.now)?)
    }),
    ("csalock_refused_calls", "Calls of run --overdue since the last success that did not get the lock.", |lock| {
        Some(lock.job.as_ref()?.promise?.refused.to_string())
    }),
    ("csalock_slot_runs", "Runs of run --once-per in the newest slot, if none has succeeded.", |lock| {
        Some(lock.job.as_ref()?.runs.as_ref()?.count.to_string())
    }),
    (
        "csalock_last_run_exit_code",
        "Exit status of the last run, 128 + N after signal N; absent if the run was not seen to end.",
        |lock| Some(lock.last_run?.exit.to_string()),
    ),
    ("csalock_last_run_duration_seconds", "Time that the command of the last run took.", |lock| {
        millis(lock.last_run?.ran)
    }),
    ("csalock_slot_runs_allowed", "Runs that may begin in that slot; absent without a limit.", |lock| {
        Some(lock.job.as_ref()?.runs.as_ref()?.allowed()?.to_string())
    }),
];

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// URL of the store, as a label.
    store: String,
    pub(crate) is_up: bool,
    pub(crate) unreadable: usize,
    /// By name, as a label.
    locks: BTreeMap<String, LockMetrics>,
    omitted: usize,
    /// A caller may be unable to read the history.
    pub(crate) lacks_history: bool,
}

#[derive(Debug, Default)]
struct LockMetrics {
    is_named: bool,
    holders: usize,
    stale_holders: usize,
    held: Duration,
    waiters: usize,
    oldest_wait: Duration,
    job: Option<JobState>,
    /// `None` also if its supervisor did not see the end.
    last_run: Option<RunEnd>,
    /// Of the store, in milliseconds since 1970.
    now: u64,
    /// Number of endings of each kind, and the time of the last one since 1970.
    endings: [(usize, Duration); KINDS.len()],
}

impl Metrics {
    pub(crate) fn new(store: &str) -> Metrics {
        Metrics { store: label(store), ..Metrics::default() }
    }

    /// Adds a lock that is shown even if it was never held.
    pub(crate) fn add_name(&mut self, name: &[u8]) {
        self.lock(name).is_named = true;
    }

    /// Adds the holders and waiters of a lock, and its job at the time `of_store` of the store.
    pub(crate) fn add_status(&mut self, status: &LockStatus, now: Duration, of_store: Duration) {
        let age = |since: u64| now.saturating_sub(Duration::from_millis(since));
        let grants = status.record.holders.iter().zip(&status.holders);
        let holders: Vec<u64> = grants.filter(|(_, holds)| holds.holds()).map(|(grant, _)| grant.since).collect();
        let waiters = status.record.waiters.iter().zip(&status.waiters);
        let came = waiters.filter(|(_, liveness)| **liveness != Liveness::Dead).map(|(waiter, _)| waiter.since);
        let lock = self.lock(&status.record.name);
        lock.holders = holders.len();
        lock.stale_holders = holder::holders(status).len() - holders.len();
        lock.held = holders.into_iter().min().map(age).unwrap_or_default();
        lock.oldest_wait = came.min().map(age).unwrap_or_default();
        lock.waiters = waiting(status);
        lock.job.clone_from(&status.record.job);
        lock.now = of_store.as_millis() as u64;
    }

    pub(crate) fn add_ending(&mut self, past: &Past) {
        let lock = self.lock(&past.name);
        if past.is_run() {
            lock.last_run = past.run;
        }
        if let Some(kind) = KINDS.iter().position(|kind| Some(*kind) == past.how) {
            let (number, last) = &mut lock.endings[kind];
            *number += 1;
            *last = (*last).max(Duration::from_millis(past.to.unwrap_or_default()));
        }
    }

    fn lock(&mut self, name: &[u8]) -> &mut LockMetrics {
        self.locks.entry(label(&escape(name))).or_default()
    }

    /// First those that the caller named, then those with waiters, those with holders, and those that were held last.
    pub(crate) fn limit(&mut self, most: usize) {
        let rank = |lock: &LockMetrics| {
            let last = lock.endings.iter().map(|(_, last)| *last).max();
            (lock.is_named, lock.waiters > 0, lock.holders + lock.stale_holders > 0, last)
        };
        let mut ranks: Vec<_> = self.locks.iter().map(|(name, lock)| (rank(lock), name.clone())).collect();
        ranks.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
        for (_, name) in ranks.split_off(most.min(ranks.len())) {
            self.locks.remove(&name);
            self.omitted += 1;
        }
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let one = |number: usize| [(String::new(), number.to_string())];
        self.add(&mut text, "csalock_up", "Whether the store answered (1) or not (0).", one(self.is_up.into()));
        if !self.is_up {
            return text;
        }
        self.add(&mut text, "csalock_unreadable_records", "Records that cannot be read.", one(self.unreadable));
        let help = "Locks that are left out because of --limit.";
        self.add(&mut text, "csalock_omitted_locks", help, one(self.omitted));
        for (name, help, value) in OF_LOCK {
            let samples = self.locks.iter().map(|(name, lock)| Some((format!(",name=\"{name}\""), value(lock)?)));
            self.add(&mut text, name, help, samples.flatten());
        }
        if !self.lacks_history {
            let help = "Grants in the history that ended in this way; old ones leave the history.";
            let numbers = self.endings().map(|(labels, number, _)| (labels, number.to_string()));
            self.add(&mut text, "csalock_history_endings", help, numbers);
            let help = "Time of the last grant in the history that ended in this way.";
            let known = self.endings().filter(|(_, number, _)| *number > 0);
            let times = known.filter_map(|(labels, _, last)| Some((labels, seconds(last)?)));
            self.add(&mut text, "csalock_last_ending_timestamp_seconds", help, times);
        }
        text
    }

    /// Labels, number and time of the last for each lock and kind of ending.
    fn endings(&self) -> impl Iterator<Item = (String, usize, Duration)> {
        self.locks.iter().flat_map(|(name, lock)| {
            let labels = move |kind: &EndReason| format!(",name=\"{name}\",ending=\"{}\"", kind.word());
            KINDS.iter().zip(lock.endings).map(move |(kind, (number, last))| (labels(kind), number, last))
        })
    }

    /// Adds a family of samples, each with its labels and value; nothing without samples. All families are gauges: no
    /// number here only grows.
    fn add(&self, text: &mut String, name: &str, help: &str, samples: impl IntoIterator<Item = (String, String)>) {
        for (at, (labels, value)) in samples.into_iter().enumerate() {
            if at == 0 {
                let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
            }
            let _ = writeln!(text, "{name}{{store=\"{}\"{labels}}} {value}", self.store);
        }
    }
}

fn number(number: usize) -> Option<String> {
    Some(number.to_string())
}

fn millis(millis: u64) -> Option<String> {
    seconds(Duration::from_millis(millis))
}

fn seconds(span: Duration) -> Option<String> {
    Some(format!("{:.3}", span.as_secs_f64()))
}

fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        assert_eq!(label("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
        let mut metrics = Metrics::new("dir:/a\"b");
        metrics.is_up = true;
        metrics.add_name(b"x\"\n\\");
        let wanted = "csalock_waiters{store=\"dir:/a\\\"b\",name=\"x\\\"\\\\n\\\\\\\\\"} 0\n";
        assert!(metrics.text().contains(wanted), "{}", metrics.text());
    }

    #[test]
    fn the_limit_keeps_locks_that_matter() {
        let mut metrics = Metrics::new("");
        for name in ["a", "b", "c", "d"] {
            metrics.lock(name.as_bytes());
        }
        metrics.lock(b"b").waiters = 1;
        metrics.lock(b"d").holders = 1;
        metrics.lock(b"c").endings[1] = (1, Duration::from_secs(1));
        metrics.add_name(b"a");
        let mut kept = |most| {
            metrics.limit(most);
            metrics.locks.keys().cloned().collect::<String>()
        };
        assert_eq!([kept(9), kept(3), kept(2), kept(1), kept(0)], ["abcd", "abd", "ab", "a", ""]);
        assert_eq!(metrics.omitted, 4);
    }
}
