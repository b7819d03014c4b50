//! A commit as one transaction, with its conditions and effects, and the history that it writes: one key per line.
//!
//! **Effects** of a commit are steps of its transaction: the keys of ended leases are deleted, waiters are woken and
//! lines of history are put. A lease whose key is deleted is over, although etcd forgets it only at the end of its ttl.
//!
//! **History.** A key contains the time and the length of its line, so the oldest lines can be removed without reading
//! them. The transaction that ends a grant puts its line. At random times, a process that has added a line removes old
//! lines.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::api::{
    Anything, Done, MOST_PAIRS, RangeAnswer, delete, encoded, is_at, is_unchanged, prefix_end, put, range,
};
use super::client::Client;
use super::errors::{LEASE_IS_GONE, is_refusal, says};
use super::leases::Pending;
use super::{Etcd, next_page};
use host::Host;
use lock::error::Result;
use lock::history::HistoryLimits;
use lock::{Lease, LeaseClock};
use net::check_mode;
use store::{Call, CommitResult, Version, Write, WriteSet};

/// Maximum number of leases that one transaction compares, or puts keys for.
const MOST_LEASES: usize = 32;

/// Maximum number of steps of one transaction: etcd's default limit (--max-txn-ops).
pub(super) const MOST_STEPS: usize = 128;

/// Time for which a lease counts as lasting after a transaction found its key: no later read is needed, or may say otherwise.
pub(super) const SEEN_LASTING: Duration = Duration::from_secs(1);

/// A lease on another clock counts as over in this store.
pub(super) fn ids(leases: &[&Lease]) -> Vec<u64> {
    let ids = leases.iter().filter_map(|lease| match lease.clock {
        LeaseClock::Etcd(id) => Some(id),
        _ => None,
    });
    ids.collect::<BTreeSet<_>>().into_iter().collect()
}

#[derive(Default)]
struct Transaction<'a> {
    compare: Vec<Value>,
    steps: Vec<Value>,
    /// Leases whose keys the transaction puts.
    pending: &'a [Pending],
    /// Leases whose keys must not exist.
    over: &'a [u64],
    /// Steps that the transaction can do without.
    effects: Vec<Value>,
    /// The name to read if the comparison fails.
    name: Option<&'a [u8]>,
}

impl Etcd {
    pub(super) fn run_transaction(&self, call: Call, set: &WriteSet<'_>) -> Result<CommitResult> {
        if set.change.is_none() && set.ended.is_empty() && set.wake.is_empty() && set.history.is_empty() {
            return Ok(CommitResult::Done(Version::default()));
        }
        let (mut compare, mut steps) = (Vec::new(), Vec::new());
        if let Some(change) = &set.change {
            let Some((is_expected, step)) = self.step(change)? else { return Ok(CommitResult::Conflict(None)) };
            compare.push(is_expected);
            steps.push(step);
            if change.expect.is_none() && change.body.is_some() {
                let Some(absent_at) = self.absent_at(call, change.name)? else {
                    return Ok(CommitResult::Conflict(None));
                };
                let guard = self.birth_key(change.name);
                compare.push(is_unchanged(&guard, absent_at));
                steps.push(put(&guard, b"", None));
            }
        }
        self.transact(call, compare, steps, set)
    }

    /// Revision at which the last read of this process, or a new one, found no record; `None` if there is one now.
    fn absent_at(&self, call: Call, name: &[u8]) -> Result<Option<u64>> {
        if let Some(revision) = self.absences.take(name) {
            return Ok(Some(revision));
        }
        let (found, revision) = self.at(call, &self.record_key(name), true)?;
        Ok(found.is_none().then_some(revision))
    }

    /// Comparison and step of a change; `None` if its record cannot have the expected version.
    fn step(&self, change: &Write<'_>) -> Result<Option<(Value, Value)>> {
        let hint = "let only a role of etcd read that prefix (etcdctl role grant-permission)";
        check_mode(change, "etcd", &self.url(), hint)?;
        let revision = match change.expect {
            None => 0,
            Some(Version { number, mark: 0 }) if number > 0 && number <= i64::MAX as u64 => number,
            Some(_) => return Ok(None),
        };
        let key = self.record_key(change.name);
        let step = change.body.map_or_else(|| delete(&key), |body| put(&key, body, None));
        Ok(Some((is_at(&key, revision), step)))
    }

    /// Runs a transaction with the keys of the pending leases and the effects of a commit. Earlier transactions handle
    /// the leases that exceed the limit of one transaction, since an expired lease stays expired and a key without a
    /// reference does no harm. Later ones carry out further effects.
    fn transact(
        &self,
        call: Call,
        compare: Vec<Value>,
        mut steps: Vec<Value>,
        set: &WriteSet<'_>,
    ) -> Result<CommitResult> {
        let (over, ended) = (ids(&set.expired), ids(&set.ended));
        let mut pending = self.leases.pending(self.client.host.boottime());
        // Only new bytes can refer to a pending lease; a full cluster refuses leases, but not a removal. etcd refuses a
        // transaction that changes one key twice.
        let has_bytes = set.change.is_some_and(|change| change.body.is_some());
        pending.retain(|lease| has_bytes && !ended.contains(&lease.id));
        let (pending, earlier) = pending.split_at(pending.len().min(MOST_LEASES));
        for pending in earlier.chunks(MOST_LEASES) {
            self.transact_once(call, Transaction { pending, ..Transaction::default() })?;
        }
        let (over, earlier) = over.split_at(over.len().min(MOST_LEASES));
        for over in earlier.chunks(MOST_LEASES) {
            // etcd treats a transaction without any change like a read, which may be stale.
            let steps = vec![delete(&self.lease_key(over[0]))];
            if !self.transact_once(call, Transaction { steps, over, ..Transaction::default() })?.is_done() {
                return Ok(CommitResult::Conflict(None));
            }
        }
        let history = self.key("history", b"");
        let mut effects: Vec<Value> =
            set.wake.iter().filter_map(|(channel, lease)| self.bell(channel, *lease)).collect();
        for line in set.history.iter() {
            effects.push(put_line(self.client.host.as_ref(), &history, line)?);
        }
        steps.extend(ended.iter().take(MOST_LEASES).map(|id| delete(&self.lease_key(*id))));
        let later = effects.split_off(effects.len().min(MOST_STEPS.saturating_sub(steps.len() + pending.len())));
        let name = set.change.map(|change| change.name);
        let done = self.transact_once(call, Transaction { compare, steps, pending, over, effects, name })?;
        if done.is_done() {
            for ended in ended.get(MOST_LEASES..).unwrap_or_default().chunks(MOST_STEPS) {
                let steps = ended.iter().map(|id| delete(&self.lease_key(*id))).collect();
                let _ = self.transact_once(call, Transaction { steps, ..Transaction::default() });
            }
            ended.iter().for_each(|id| self.leases.forget(*id));
            self.carry_out(call, &later);
            if !set.history.is_empty() {
                prune_sometimes(&self.client, call, &history, &set.limits);
            }
        }
        Ok(done)
    }

    fn bell(&self, channel: &[u8], lease: Option<&Lease>) -> Option<Value> {
        match lease?.clock {
            LeaseClock::Etcd(id) => Some(put(&self.key("bells", channel), b"", Some(id))),
            _ => None,
        }
    }

    fn carry_out(&self, call: Call, effects: &[Value]) {
        for effect in effects {
            let _ = self.client.ask::<Anything>(call, "/v3/kv/txn", &json!({"success": [effect]}));
        }
    }

    fn transact_once(&self, call: Call, transaction: Transaction<'_>) -> Result<CommitResult> {
        let Transaction { mut compare, mut steps, pending, over, effects, name } = transaction;
        let keys: Vec<_> = over.iter().map(|id| self.lease_key(*id)).collect();
        compare.extend(keys.iter().map(|key| is_at(key, 0)));
        steps.extend(pending.iter().map(|lease| put(&self.lease_key(lease.id), b"", Some(lease.id))));
        let record = name.map(|name| range(&self.record_key(name), false));
        let look: Vec<_> = keys.iter().map(|key| range(key, true)).chain(record).collect();
        let ask = |steps: &[Value], regrants: bool| {
            let requests = pending.iter().filter(|lease| regrants || !lease.is_granted).map(Pending::request);
            let question = json!({"compare": compare, "success": steps, "failure": look});
            self.client.call::<Done>(call, &requests.collect::<Vec<_>>(), "/v3/kv/txn", &question)
        };
        let mut asked = ask(&[&steps[..], &effects].concat(), false);
        let is_lease_gone = asked.as_ref().is_err_and(|error| says(error, LEASE_IS_GONE));
        // The lease of a waiter may be over, or the cluster full: that must not prevent a release.
        let leaves_effects = !effects.is_empty() && asked.as_ref().is_err_and(is_refusal);
        if is_lease_gone || leaves_effects {
            asked = ask(&steps, is_lease_gone);
        }
        let (done, was_resent) = asked.map_err(|failed| self.client.error(&failed))?;
        self.leases.set_granted(pending);
        if !done.succeeded {
            let until = self.client.host.boottime().saturating_add(SEEN_LASTING);
            self.leases.add_lasting(over, &done, until);
            // The first copy of a repeated transaction may have been committed.
            if was_resent {
                return Ok(CommitResult::Unclear);
            }
            let read = name.zip(done.responses.get(over.len()).and_then(|read| read.found()));
            let found = read.filter(|(name, pair)| pair.key == self.record_key(name));
            return Ok(CommitResult::Conflict(found.map(|(_, pair)| Etcd::stored(pair.clone()))));
        }
        pending.iter().for_each(|lease| self.leases.forget(lease.id));
        if leaves_effects {
            self.carry_out(call, &effects);
        }
        Ok(CommitResult::Done(Version { number: done.header.revision, mark: 0 }))
    }
}

/// Number of lines out of 256 after which the process checks for too many lines.
const NOW_AND_THEN: u8 = 4;

const PAGE: u64 = 500;
const MANY_KEYS: u64 = MOST_PAIRS as u64;

fn put_line(host: &dyn Host, prefix: &[u8], line: &str) -> Result<Value> {
    let chance: String = host.random()?[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    let key = [prefix, format!("{:020}.{chance}.{}", host.wall().as_nanos(), line.len()).as_bytes()].concat();
    Ok(put(&key, line.as_bytes(), None))
}

/// Removes old lines at random times, so that each line costs little.
fn prune_sometimes(client: &Client, call: Call, prefix: &[u8], limits: &HistoryLimits) {
    let Ok(random) = client.host.random() else { return };
    if random[0] < NOW_AND_THEN {
        let chance = random[1..5].iter().fold(0, |chance, byte| chance << 8 | u32::from(*byte));
        let _ = prune(client, call, prefix, limits, client.host.wall(), chance);
    }
}

/// Visits all lines, oldest first. Keys begin with the clocks of their writers, so a new line need not have the last key;
/// revisions only grow.
pub(super) fn read_history(client: &Client, call: Call, prefix: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<()> {
    let (mut from, mut lines) = (prefix.to_vec(), Vec::new());
    loop {
        let found: RangeAnswer = client.ask(call, "/v3/kv/range", &range_of_lines(&from, prefix, PAGE, false))?;
        from = next_page(client, &from, &found)?;
        lines.extend(found.kvs);
        if !found.more {
            lines.sort_by_key(|pair| pair.mod_revision);
            lines.iter().for_each(|pair| visit(&pair.value));
            return Ok(());
        }
    }
}

/// Removes the oldest lines that are too old or too many, at most [`MANY_KEYS`] at a time. `chance` is random.
fn prune(client: &Client, call: Call, prefix: &[u8], limits: &HistoryLimits, now: Duration, chance: u32) -> Result<()> {
    let first: RangeAnswer = client.ask(call, "/v3/kv/range", &range_of_lines(prefix, prefix, MANY_KEYS, true))?;
    // A full count of many pages is so rare that the average cost per line is that of a single page.
    let counts_all = u64::from(chance) % first.count.max(1) < MANY_KEYS;
    let mut size = if counts_all { sizes(prefix, &first).sum() } else { 0_u64 };
    let (mut more, mut from) = (first.more && counts_all, next_page(client, prefix, &first)?);
    while more {
        let page: RangeAnswer = client.ask(call, "/v3/kv/range", &range_of_lines(&from, prefix, MANY_KEYS, true))?;
        size = sizes(prefix, &page).fold(size, u64::saturating_add);
        from = next_page(client, &from, &page)?;
        more = page.more;
    }
    let oldest = now.saturating_sub(limits.age).as_nanos();
    let mut until = None;
    for (pair, length) in first.kvs.iter().zip(sizes(prefix, &first)) {
        let came = parts(prefix, &pair.key).next().and_then(|came| came.parse::<u128>().ok()).unwrap_or_default();
        if came >= oldest && size <= limits.size {
            break;
        }
        size = size.saturating_sub(length);
        until = Some([&pair.key[..], b"\0"].concat());
    }
    let Some(until) = until else { return Ok(()) };
    let question = json!({"key": encoded(prefix), "range_end": encoded(&until)});
    client.ask::<Anything>(call, "/v3/kv/deleterange", &question).map(drop)
}

fn sizes(prefix: &[u8], page: &RangeAnswer) -> impl Iterator<Item = u64> {
    page.kvs.iter().map(|pair| parts(prefix, &pair.key).next_back().and_then(|length| length.parse().ok()).unwrap_or(0))
}

/// Parts of a key: the time of its line, a random number, and the length of the line.
fn parts<'a>(prefix: &[u8], key: &'a [u8]) -> std::str::Split<'a, char> {
    let text = key.get(prefix.len()..).and_then(|key| std::str::from_utf8(key).ok());
    text.unwrap_or_default().split('.')
}

fn range_of_lines(from: &[u8], prefix: &[u8], limit: u64, keys_only: bool) -> Value {
    json!({
        "key": encoded(from), "range_end": encoded(&prefix_end(prefix)), "limit": limit.to_string(), "keys_only": keys_only
    })
}
