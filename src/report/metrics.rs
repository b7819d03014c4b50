//! `metrics`: the state of a store in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::time::Duration;

use super::lock_table::waiting;
use crate::engine::LockStatus;
use crate::history::Past;
use crate::lock::{EndReason, Liveness};
use crate::name::escape;

/// The kinds of endings, in the order of their series.
const KINDS: [EndReason; 4] = [EndReason::Released, EndReason::Died, EndReason::Expired, EndReason::Broken];

/// The state of a store at one moment.
#[derive(Debug, Default)]
pub struct Metrics {
    /// URL of the store, as a label.
    store: String,
    /// True if the store answered.
    is_up: bool,
    /// Number of records that cannot be read.
    unreadable: usize,
    /// The locks by name, as labels.
    locks: BTreeMap<String, LockMetrics>,
    /// Number of locks that are left out.
    omitted: usize,
}

/// The state of one lock.
#[derive(Debug, Default)]
struct LockMetrics {
    /// True if the caller named the lock.
    is_named: bool,
    holders: usize,
    stale_holders: usize,
    /// Time since the oldest grant of a holder.
    held: Duration,
    waiters: usize,
    /// Time since the oldest waiter came.
    oldest_wait: Duration,
    /// Time of the last success of its job since 1970, and the time by which the next run must succeed.
    last_success: Option<Duration>,
    due: Option<Duration>,
    /// True if the last success lies in the future, so that it does not count.
    success_in_future: bool,
    /// Number of calls since the last success that did not get the lock, for jobs with a promise.
    refused: Option<u64>,
    /// Number of endings of each kind, and the time of the last one since 1970.
    endings: [(usize, Duration); KINDS.len()],
}

impl Metrics {
    /// Creates the metrics of a store that did not answer.
    pub fn new(store: &str) -> Metrics {
        Metrics { store: label(store), ..Metrics::default() }
    }

    /// Says that the store answered.
    pub fn set_up(&mut self) {
        self.is_up = true;
    }

    /// Counts a record that cannot be read.
    pub fn add_unreadable(&mut self) {
        self.unreadable += 1;
    }

    /// Adds a lock that is shown even if it was never held.
    pub fn add_name(&mut self, name: &[u8]) {
        self.lock(name).is_named = true;
    }

    /// Adds the holders and waiters of a lock, and its job at the time `of_store` of the store.
    pub fn add_status(&mut self, status: &LockStatus, now: Duration, of_store: Duration) {
        let age = |since: u64| now.saturating_sub(Duration::from_millis(since));
        let grants = status.record.holders.iter().zip(&status.holders);
        let holders: Vec<u64> = grants.filter(|(_, holds)| holds.is_ok()).map(|(grant, _)| grant.since).collect();
        let waiters = status.record.waiters.iter().zip(&status.waiters);
        let came = waiters.filter(|(_, liveness)| **liveness != Liveness::Dead).map(|(waiter, _)| waiter.since);
        let lock = self.lock(&status.record.name);
        lock.holders = holders.len();
        lock.stale_holders = status.holders.len() - holders.len();
        lock.held = holders.into_iter().min().map(age).unwrap_or_default();
        lock.oldest_wait = came.min().map(age).unwrap_or_default();
        lock.waiters = waiting(status);
        let job = status.record.job.as_ref();
        let of_store = of_store.as_millis() as u64;
        let last = job.and_then(|job| job.success_at(of_store));
        lock.last_success = last.map(|success| Duration::from_millis(success.at));
        lock.success_in_future = job.is_some_and(|job| job.doubtful_success(of_store).is_some());
        lock.due = job.and_then(|job| job.due(of_store)).map(Duration::from_millis);
        lock.refused = job.and_then(|job| job.promise).map(|promise| promise.refused);
    }

    /// Adds a grant that ended.
    pub fn add_ending(&mut self, past: &Past) {
        let lock = self.lock(&past.name);
        if let Some(kind) = KINDS.iter().position(|kind| Some(*kind) == past.how) {
            let (number, last) = &mut lock.endings[kind];
            *number += 1;
            *last = (*last).max(Duration::from_millis(past.to.unwrap_or_default()));
        }
    }

    fn lock(&mut self, name: &[u8]) -> &mut LockMetrics {
        self.locks.entry(label(&escape(name))).or_default()
    }

    /// Keeps at most this number of locks: those that the caller named, those with waiters and holders, and those that
    /// were held last.
    pub fn limit(&mut self, most: usize) {
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

    /// Returns the metrics as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        family(&mut text, "csalock_up", "Whether the store answered (1) or not (0).");
        self.add_sample(&mut text, "csalock_up", "", u8::from(self.is_up));
        if !self.is_up {
            return text;
        }
        family(&mut text, "csalock_unreadable_records", "Records that cannot be read.");
        self.add_sample(&mut text, "csalock_unreadable_records", "", self.unreadable);
        family(&mut text, "csalock_omitted_locks", "Locks that are left out because of --limit.");
        self.add_sample(&mut text, "csalock_omitted_locks", "", self.omitted);
        self.add_each(&mut text, "csalock_holders", "Holders of the lock.", |lock| lock.holders);
        let help = "Holders whose owner is dead or whose time is over, and which no caller has removed yet.";
        self.add_each(&mut text, "csalock_stale_holders", help, |lock| lock.stale_holders);
        let help = "Time since the oldest grant of a holder; 0 without one.";
        self.add_each(&mut text, "csalock_held_seconds", help, |lock| seconds(lock.held));
        self.add_each(&mut text, "csalock_waiters", "Waiters in the queue of the lock.", |lock| lock.waiters);
        let help = "Time since the oldest waiter came; 0 without one.";
        self.add_each(&mut text, "csalock_oldest_wait_seconds", help, |lock| seconds(lock.oldest_wait));
        let help = "Time at which the job of the lock last succeeded.";
        self.add_known(&mut text, "csalock_last_success_timestamp_seconds", help, |lock| {
            lock.last_success.map(seconds)
        });
        let help = "1 if the job last succeeded in the future of the store's clock, which does not count.";
        self.add_known(&mut text, "csalock_success_in_future", help, |lock| lock.success_in_future.then_some(1));
        let help = "Time by which the job of the lock must succeed again.";
        self.add_known(&mut text, "csalock_due_timestamp_seconds", help, |lock| lock.due.map(seconds));
        let help = "Calls of run --overdue since the last success that did not get the lock.";
        self.add_known(&mut text, "csalock_refused_calls", help, |lock| lock.refused);
        let help = "Grants in the history that ended in this way; old ones leave the history.";
        self.add_kinds(&mut text, "csalock_history_endings", help, |ending| Some(ending.0.to_string()));
        let help = "Time of the last grant in the history that ended in this way.";
        let last = |(number, last): (usize, Duration)| (number > 0).then(|| seconds(last));
        self.add_kinds(&mut text, "csalock_last_ending_timestamp_seconds", help, last);
        text
    }

    /// Adds a family with a sample for each lock.
    fn add_each<V: Display>(&self, text: &mut String, name: &str, help: &str, value: impl Fn(&LockMetrics) -> V) {
        if self.locks.is_empty() {
            return;
        }
        family(text, name, help);
        for (lock_name, lock) in &self.locks {
            self.add_sample(text, name, &format!(",name=\"{lock_name}\""), value(lock));
        }
    }

    /// Adds a family with a sample for each lock that has this value.
    fn add_known<V: Display>(
        &self,
        text: &mut String,
        name: &str,
        help: &str,
        value: impl Fn(&LockMetrics) -> Option<V>,
    ) {
        let mut samples = String::new();
        for (lock_name, lock) in &self.locks {
            if let Some(value) = value(lock) {
                self.add_sample(&mut samples, name, &format!(",name=\"{lock_name}\""), value);
            }
        }
        if !samples.is_empty() {
            family(text, name, help);
            text.push_str(&samples);
        }
    }

    /// Adds a family with a sample for each lock and kind of ending that has a value.
    fn add_kinds(
        &self,
        text: &mut String,
        name: &str,
        help: &str,
        value: impl Fn((usize, Duration)) -> Option<String>,
    ) {
        let mut samples = String::new();
        for (lock_name, lock) in &self.locks {
            for (kind, ending) in KINDS.iter().zip(lock.endings) {
                if let Some(value) = value(ending) {
                    let labels = format!(",name=\"{lock_name}\",ending=\"{}\"", kind.word());
                    self.add_sample(&mut samples, name, &labels, value);
                }
            }
        }
        if !samples.is_empty() {
            family(text, name, help);
            text.push_str(&samples);
        }
    }

    fn add_sample(&self, text: &mut String, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(text, "{name}{{store=\"{}\"{labels}}} {value}", self.store);
    }
}

/// Adds the lines before the samples of a metric. All are gauges: no number here only grows.
fn family(text: &mut String, name: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
}

fn seconds(span: Duration) -> String {
    format!("{:.3}", span.as_secs_f64())
}

/// Returns a text as the value of a label.
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
        metrics.set_up();
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
