//! A commit as one transaction, with its conditions and effects.
//!
//! **Effects** of a commit are steps of its transaction: the keys of ended leases are deleted, waiters are woken and
//! lines of history are put. A lease whose key is deleted is over, although etcd forgets it only at the end of its ttl.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use super::api::{Anything, Done, delete, is_at, is_unchanged, put, range};
use super::leases::Pending;
use super::{Etcd, history};
use crate::error::Result;
use crate::lock::{Lease, LeaseClock};
use crate::store::net::retry::Failed;
use crate::store::{CommitResult, Version, Write, WriteSet};

/// Maximum number of leases that one transaction compares, or puts keys for.
const MOST_LEASES: usize = 32;

/// Maximum number of steps of one transaction: etcd's default limit (--max-txn-ops).
pub(super) const MOST_STEPS: usize = 128;

/// Time for which a lease counts as lasting after a transaction found its key: no later read is needed, or may say otherwise.
pub(super) const SEEN_LASTING: Duration = Duration::from_secs(1);

/// Returns the ids of these leases. A lease on another clock counts as over in this store.
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
    pub(super) fn run_transaction(&self, set: &WriteSet<'_>) -> Result<CommitResult> {
        if set.changes.is_empty() && set.ended.is_empty() && set.wake.is_empty() && set.history.is_empty() {
            return Ok(CommitResult::Done(Version::default()));
        }
        let steps: Vec<_> = set.changes.iter().map(|change| self.step(change)).collect::<Result<_>>()?;
        let Some(steps) = steps.into_iter().collect::<Option<Vec<_>>>() else {
            return Ok(CommitResult::Conflict(None));
        };
        let (mut compare, mut steps): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
        let mut births: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for change in set.changes.iter().filter(|change| change.expect.is_none() && change.body.is_some()) {
            let Some(absent_at) = self.absent_at(change.name)? else { return Ok(CommitResult::Conflict(None)) };
            // etcd refuses a transaction that puts one key twice.
            let since = births.entry(self.birth_key(change.name)).or_insert(absent_at);
            *since = absent_at.min(*since);
        }
        for (key, since) in &births {
            compare.push(is_unchanged(key, *since));
            steps.push(put(key, b"", None));
        }
        self.transact(compare, steps, set)
    }

    /// Returns a revision at which this name had no record: that of the last read of this process, or of a new one.
    /// `None` if it has a record now.
    fn absent_at(&self, name: &[u8]) -> Result<Option<u64>> {
        if let Some(revision) = self.absences.take(name) {
            return Ok(Some(revision));
        }
        let (found, revision) = self.at(&self.record_key(name), true)?;
        Ok(found.is_none().then_some(revision))
    }

    /// Returns the comparison and the step of a change; `None` if its record cannot have the expected version.
    fn step(&self, change: &Write<'_>) -> Result<Option<(Value, Value)>> {
        let hint = "let only a role of etcd read that prefix (etcdctl role grant-permission)";
        change.check_mode("etcd", &self.url(), hint)?;
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
    fn transact(&self, compare: Vec<Value>, mut steps: Vec<Value>, set: &WriteSet<'_>) -> Result<CommitResult> {
        let (over, ended) = (ids(&set.expired), ids(&set.ended));
        let mut pending = self.leases.pending(self.client.host.boottime());
        // Only new bytes can refer to a pending lease; a full cluster refuses leases, but not a removal. etcd refuses a
        // transaction that changes one key twice.
        let has_bytes = set.changes.iter().any(|change| change.body.is_some());
        pending.retain(|lease| has_bytes && !ended.contains(&lease.id));
        let (pending, earlier) = pending.split_at(pending.len().min(MOST_LEASES));
        for pending in earlier.chunks(MOST_LEASES) {
            self.transact_once(Transaction { pending, ..Transaction::default() })?;
        }
        let (over, earlier) = over.split_at(over.len().min(MOST_LEASES));
        for over in earlier.chunks(MOST_LEASES) {
            // etcd treats a transaction without any change like a read, which may be stale.
            let steps = vec![delete(&self.lease_key(over[0]))];
            if !self.transact_once(Transaction { steps, over, ..Transaction::default() })?.is_done() {
                return Ok(CommitResult::Conflict(None));
            }
        }
        let history = self.key("history", b"");
        let mut effects: Vec<Value> =
            set.wake.iter().filter_map(|(channel, lease)| self.bell(channel, *lease)).collect();
        for line in set.history.iter() {
            effects.push(history::put_line(self.client.host.as_ref(), &history, line)?);
        }
        steps.extend(ended.iter().take(MOST_LEASES).map(|id| delete(&self.lease_key(*id))));
        let later = effects.split_off(effects.len().min(MOST_STEPS.saturating_sub(steps.len() + pending.len())));
        let name = if let [change] = &set.changes[..] { Some(change.name) } else { None };
        let done = self.transact_once(Transaction { compare, steps, pending, over, effects, name })?;
        if done.is_done() {
            for ended in ended.get(MOST_LEASES..).unwrap_or_default().chunks(MOST_STEPS) {
                let steps = ended.iter().map(|id| delete(&self.lease_key(*id))).collect();
                let _ = self.transact_once(Transaction { steps, ..Transaction::default() });
            }
            ended.iter().for_each(|id| self.leases.forget(*id));
            self.carry_out(&later);
            if !set.history.is_empty() {
                history::prune_sometimes(&self.client, &history, &set.limits);
            }
        }
        Ok(done)
    }

    /// Returns the step that wakes a waiter, which ends with the waiter's lease.
    fn bell(&self, channel: &[u8], lease: Option<&Lease>) -> Option<Value> {
        match lease?.clock {
            LeaseClock::Etcd(id) => Some(put(&self.key("bells", channel), b"", Some(id))),
            _ => None,
        }
    }

    /// Carries out effects one by one, as far as etcd accepts them.
    fn carry_out(&self, effects: &[Value]) {
        for effect in effects {
            let _ = self.client.ask::<Anything>("/v3/kv/txn", &json!({"success": [effect]}));
        }
    }

    fn transact_once(&self, transaction: Transaction<'_>) -> Result<CommitResult> {
        let Transaction { mut compare, mut steps, pending, over, effects, name } = transaction;
        let keys: Vec<_> = over.iter().map(|id| self.lease_key(*id)).collect();
        compare.extend(keys.iter().map(|key| is_at(key, 0)));
        steps.extend(pending.iter().map(|lease| put(&self.lease_key(lease.id), b"", Some(lease.id))));
        let record = name.map(|name| range(&self.record_key(name), false));
        let look: Vec<_> = keys.iter().map(|key| range(key, true)).chain(record).collect();
        let ask = |steps: &[Value], regrants: bool| {
            let requests = pending.iter().filter(|lease| regrants || !lease.is_granted).map(Pending::request);
            let question = json!({"compare": compare, "success": steps, "failure": look});
            self.client.call::<Done>(&requests.collect::<Vec<_>>(), "/v3/kv/txn", &question)
        };
        let mut asked = ask(&[&steps[..], &effects].concat(), false);
        let is_lease_gone = asked.as_ref().is_err_and(|failed| failed.trouble.is_lease_gone());
        // The lease of a waiter may be over, or the cluster full: that must not prevent a release.
        let leaves_effects = !effects.is_empty() && asked.as_ref().is_err_and(|failed| failed.trouble.is_refusal());
        if is_lease_gone || leaves_effects {
            asked = ask(&steps, is_lease_gone);
        }
        let (done, was_resent) = asked.map_err(Failed::into_error)?;
        self.leases.set_granted(pending);
        if !done.succeeded {
            let until = self.client.host.boottime().saturating_add(SEEN_LASTING);
            self.leases.add_lasting(over, &done, until);
            // The first copy of a repeated transaction may have been committed.
            let name = name.filter(|_| !was_resent);
            let read = name.zip(done.responses.get(over.len()).and_then(|read| read.found()));
            let found = read.filter(|(name, pair)| pair.key == self.record_key(name));
            return Ok(CommitResult::Conflict(found.map(|(_, pair)| Etcd::stored(pair.clone()))));
        }
        self.leases.settle(pending);
        if leaves_effects {
            self.carry_out(&effects);
        }
        Ok(CommitResult::Done(Version { number: done.header.revision, mark: 0 }))
    }
}
