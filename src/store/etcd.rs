//! etcd store, for hosts that share an etcd cluster, through the documented JSON gateway of etcd.
//!
//! The URL names a prefix, under which the store has these keys:
//!
//! ```text
//! PREFIX/records/NAME     a record; its version is the key's mod_revision
//! PREFIX/births/NN        changed when a record of certain names is created
//! PREFIX/leases/ID        exists as long as the lease with this id, in hexadecimal
//! PREFIX/bells/PROOF      put to wake a waiter; removed with the waiter's lease
//! PREFIX/history/...      a line of history
//! ```
//!
//! **Commit.** A transaction compares the key's revision (0: no key), then puts or deletes the key. Revisions belong to
//! the cluster and only grow, so a record that was removed and created again has a greater one. A transaction without
//! an answer may have been committed, so the client repeats it until an answer comes. If the first attempt was
//! committed, the repetition finds another revision and reports a *conflict*. A missing answer never means that nothing
//! was stored.
//!
//! **Creation guards.** An absent key has no revision. A stalled server may hold back a request to create a record, and
//! another server may answer its repetition. If that record is then removed, the delayed request would find the name
//! free and create the record a second time. A transaction that creates a record therefore compares and changes the
//! *creation guard* of that name too. The store has 256 guards, so few callers conflict.
//!
//! **Reads** are always linearizable: a server that lost contact with the others does not answer from its own state.
//!
//! **Leases** are etcd's own, each with a key that etcd removes at its end. A lease is over when a linearizable read
//! does not find that key. A server's answer about the lease itself is used only for the ttl. The leader answers from
//! memory: a deposed leader that is not yet aware of it keeps answering and accepting keep-alives. The store therefore
//! sends no keep-alives. A renewal starts a new lease and commits it to the record; both need a majority. The next
//! transaction of this process puts the lease's key ([`leases`]), so an acquisition waits twice: for the read and for
//! the commit. etcd may let a lease last longer than requested, never shorter, because each new leader restarts it. The
//! holder therefore counts on its own clock.
//!
//! **Stale reads.** After a pause of a server, some etcd releases answer linearizable reads with an old state: 3.4.20
//! to 3.4.41, 3.5.0 to 3.5.27, 3.6.0 to 3.6.8. A transaction that ends a grant with an expired lease therefore compares
//! that the lease's key is gone too. If the comparison fails, the transaction lists the keys that exist. For a second
//! after that, no read can report these leases as over.
//!
//! **Release** ends with the revocation of the lease, a line of history and perhaps a notification. The client writes
//! them in sequence without waiting for answers ([`connection`]). It then waits for all answers together, for a second
//! at most, because a busy server needs some of it. A server drops requests that it has not begun when its client is
//! gone: without the wait, most leases stayed. A lease that is not revoked lasts for the rest of its ttl and does no
//! harm.
//!
//! **Notifications** wake waiters on other hosts ([`watch`]). Correctness does not depend on them.
//!
//! **Trust.** A user who may write these keys can acquire any lock. etcd has no modes for keys, only roles for
//! prefixes. The store therefore refuses a record that fewer users may read than may read the store.

mod api;
mod auth;
mod client;
mod connection;
mod dial;
mod errors;
mod health;
mod history;
mod http_framing;
mod leases;
mod tls;
#[cfg(any(test, fuzzing))]
pub(crate) mod untrusted;
mod watch;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use self::api::{Anything, Done, Found, Granted, Pair, delete, encoded, is_at, prefix_end, put, range};
use self::client::{Client, Failed};
use self::leases::{Leases, Pending};
use super::{
    Cluster, CommitResult, Finding, Scope, Store, Subscription, Version, Versioned, Visit, Write, WriteOptions,
};
use crate::error::{Error, ErrorKind, Result};
use crate::history::Limits;
use crate::host::Host;
use crate::lock::{Lease, LeaseClock};
use crate::name::escape;

/// Maximum number of changes in one transaction. Each change compares at most two keys and takes two steps.
const MOST_AT_ONCE: usize = 32;

/// Maximum number of leases that one transaction compares or puts keys for: with the changes, etcd's limit of 128.
const MOST_LEASES: usize = 64;

/// Time for which a lease counts as lasting after a transaction found its key.
const SEEN_LASTING: Duration = Duration::from_secs(1);

/// Number of records in the first page of a scan, and in the largest page.
const FIRST_PAGE: usize = 16;
const LARGEST_PAGE: usize = 256;

/// Page size in bytes above which a scan halves the next page. Single large records may exceed it.
const PAGE_BYTES: usize = 1 << 20;

/// Minimum ttl of a lease in its last second, because etcd counts leases in seconds.
const LAST_SECOND: Duration = Duration::from_millis(100);

/// Access settings of an etcd cluster, in addition to its URL.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// `CSALOCK_ETCD_CACERT`: PEM file of the accepted certificate authorities; default: the system's authorities.
    pub cacert: Option<PathBuf>,
    /// `CSALOCK_ETCD_CERT`: PEM file of the client certificate.
    pub cert: Option<PathBuf>,
    /// `CSALOCK_ETCD_KEY`: PEM file of the client certificate's key.
    pub key: Option<PathBuf>,
    /// `CSALOCK_ETCD_USER`: name of the etcd user.
    pub user: Option<String>,
    /// `CSALOCK_ETCD_PASSWORD`: password of the etcd user.
    pub password: Option<String>,
    /// `CSALOCK_ETCD_PASSWORD_FILE`: file whose first line is the password.
    pub password_file: Option<PathBuf>,
    /// Directory for login tokens, owned by this user and removed at a reboot.
    pub runtime: Option<PathBuf>,
}

/// Returns the first key of the page after this page. Fails unless the keys rise, since a list could be endless.
fn next_page(client: &Client, from: &[u8], page: &Found) -> Result<Vec<u8>> {
    let rise = page.kvs.windows(2).all(|two| two[0].key < two[1].key);
    match page.kvs.last() {
        Some(last) if rise && page.kvs[0].key.as_slice() >= from => Ok([&last.key[..], b"\0"].concat()),
        None if !page.more => Ok(from.to_vec()),
        _ => Err(client.nonsense("a list whose keys do not rise")),
    }
}

/// Returns the request for a lease.
fn grant(lease: &Pending) -> Value {
    json!({"ID": lease.id.to_string(), "TTL": lease.seconds.to_string()})
}

/// Store in an etcd cluster.
pub struct Etcd {
    client: Client,
    host: Arc<dyn Host>,
    prefix: String,
    leases: Leases,
}

impl Etcd {
    /// Returns a store in this cluster, without contacting it.
    /// Fails if the certificates or the password cannot be read.
    pub fn open(cluster: &Cluster, access: &Access, host: Arc<dyn Host>) -> Result<Etcd> {
        Ok(Etcd {
            client: Client::new(cluster, access, host.clone())?,
            host,
            prefix: cluster.prefix.clone(),
            leases: Leases::default(),
        })
    }

    /// Returns the key of an object of this kind in the store.
    fn key(&self, kind: &str, name: &[u8]) -> Vec<u8> {
        [self.prefix.as_bytes(), b"/", kind.as_bytes(), b"/", name].concat()
    }

    fn record_key(&self, name: &[u8]) -> Vec<u8> {
        self.key("records", name)
    }

    /// Returns the creation guard of this name: a key that each creation of this record, or of some others, changes.
    fn birth_key(&self, name: &[u8]) -> Vec<u8> {
        self.key("births", format!("{:02x}", Sha256::digest(name)[0]).as_bytes())
    }

    fn lease_key(&self, id: u64) -> Vec<u8> {
        self.key("leases", format!("{id:016x}").as_bytes())
    }

    /// Reads one key.
    fn at(&self, key: &[u8], keys_only: bool) -> Result<Option<Pair>> {
        let question = json!({"key": encoded(key), "keys_only": keys_only});
        let found = self.client.ask::<Found>("/v3/kv/range", &question)?.kvs.pop();
        match found {
            Some(pair) if pair.key != key => Err(self.client.nonsense("an answer about another key")),
            found => Ok(found),
        }
    }

    /// Commits all these steps if all comparisons hold and these leases are over. Earlier transactions handle the
    /// leases that exceed the limit of one transaction: an expired lease stays expired, and a key without a reference
    /// does no harm.
    fn transact(&self, compare: Vec<Value>, steps: Vec<Value>, over: &[u64]) -> Result<CommitResult> {
        let pending = self.leases.pending(self.host.boottime());
        let (pending, earlier) = pending.split_at(pending.len().min(MOST_LEASES));
        for pending in earlier.chunks(MOST_LEASES) {
            self.transact_once(Vec::new(), Vec::new(), pending, &[])?;
        }
        let (over, earlier) = over.split_at(over.len().min(MOST_LEASES));
        for over in earlier.chunks(MOST_LEASES) {
            // etcd treats a transaction without any change like a read, which may be stale.
            let nothing = vec![delete(&self.lease_key(over[0]))];
            if self.transact_once(Vec::new(), nothing, &[], over)? == CommitResult::Conflict {
                return Ok(CommitResult::Conflict);
            }
        }
        self.transact_once(compare, steps, pending, over)
    }

    /// Runs one transaction, which puts the keys of the pending leases too.
    fn transact_once(
        &self,
        mut compare: Vec<Value>,
        mut steps: Vec<Value>,
        pending: &[Pending],
        over: &[u64],
    ) -> Result<CommitResult> {
        let keys: Vec<_> = over.iter().map(|id| self.lease_key(*id)).collect();
        compare.extend(keys.iter().map(|key| is_at(key, 0)));
        steps.extend(pending.iter().map(|lease| put(&self.lease_key(lease.id), b"", Some(lease.id))));
        let look: Vec<_> = keys.iter().map(|key| range(key)).collect();
        let question = json!({"compare": compare, "success": steps, "failure": look});
        let mut asked = self.client.call::<Done>("/v3/kv/txn", &question);
        if matches!(&asked, Err(failed) if failed.is_lease_gone()) {
            self.grant_anew(pending)?;
            asked = self.client.call("/v3/kv/txn", &question);
        }
        let done = asked.map_err(Failed::error)?;
        if !done.succeeded {
            let until = self.host.boottime().saturating_add(SEEN_LASTING);
            let lasting = over.iter().zip(&done.responses).filter(|(_, response)| response.found_any());
            lasting.for_each(|(id, _)| self.leases.add_lasting(*id, until));
            return Ok(CommitResult::Conflict);
        }
        self.leases.settle(pending);
        Ok(CommitResult::Done(Version { number: done.header.revision, mark: 0 }))
    }

    /// Requests new leases again after one of them was not granted. No grant uses these leases yet, so their restart
    /// does no harm.
    fn grant_anew(&self, pending: &[Pending]) -> Result<()> {
        for lease in pending {
            match self.client.call::<Anything>("/v3/lease/grant", &grant(lease)) {
                Err(failed) if !failed.is_lease_there() => return Err(failed.error()),
                _ => {}
            }
        }
        Ok(())
    }

    fn granted(&self, id: u64) -> Result<Granted> {
        self.client.ask("/v3/lease/timetolive", &json!({"ID": id.to_string()}))
    }

    /// Returns the comparison and the step of a change; `None` if its record cannot have the expected version.
    fn step(&self, change: &Write<'_>) -> Result<Option<(Value, Value)>> {
        // A removal makes no bytes readable, so it needs no mode.
        if let (Some(mode), Some(_)) = (change.options.mode, change.body) {
            self.check_mode(mode)?;
        }
        let revision = match change.expect {
            None => 0,
            Some(Version { number, mark: 0 }) if number > 0 && number <= i64::MAX as u64 => number,
            Some(_) => return Ok(None),
        };
        let key = self.record_key(change.name);
        let step = change.body.map_or_else(|| delete(&key), |body| put(&key, body, None));
        Ok(Some((is_at(&key, revision), step)))
    }

    /// Refuses a mode that lets fewer users read the record than may read the store.
    fn check_mode(&self, mode: u32) -> Result<()> {
        if mode & 0o044 == 0o044 {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Denied,
            format!(
                "etcd has no modes, so every user who may read {} could read bytes that need mode {mode:04o}",
                self.url()
            ),
            "leave the mode out, and let only a role of etcd read that prefix (etcdctl role grant-permission)",
        ))
    }

    fn url(&self) -> String {
        escape(self.client.cluster.url().as_bytes())
    }

    fn stored(pair: Pair) -> Versioned {
        Versioned { version: Version { number: pair.mod_revision, mark: 0 }, body: pair.value, may_be_torn: false }
    }
}

impl Store for Etcd {
    fn read(&self, name: &[u8]) -> Result<Option<Versioned>> {
        Ok(self.at(&self.record_key(name), false)?.map(Etcd::stored))
    }

    fn version(&self, name: &[u8]) -> Result<Option<Version>> {
        Ok(self.at(&self.record_key(name), true)?.map(|pair| Etcd::stored(pair).version))
    }

    fn commit_with(
        &self,
        name: &[u8],
        expect: Option<&Version>,
        body: Option<&[u8]>,
        keep: WriteOptions,
    ) -> Result<CommitResult> {
        self.commit_batch(&[Write { name, expect: expect.copied(), body, options: keep, over: &[] }])
    }

    fn max_batch(&self) -> usize {
        MOST_AT_ONCE
    }

    fn commit_batch(&self, changes: &[Write<'_>]) -> Result<CommitResult> {
        let steps: Vec<_> = changes.iter().map(|change| self.step(change)).collect::<Result<_>>()?;
        match steps.into_iter().collect::<Option<Vec<_>>>() {
            None => Ok(CommitResult::Conflict),
            Some(steps) => {
                let (mut compare, mut steps): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
                let born = changes.iter().filter(|change| change.expect.is_none() && change.body.is_some());
                // etcd refuses a transaction that puts one key twice.
                for key in born.map(|change| self.birth_key(change.name)).collect::<BTreeSet<_>>() {
                    let revision = self.at(&key, true)?.map_or(0, |pair| pair.mod_revision);
                    compare.push(is_at(&key, revision));
                    steps.push(put(&key, b"", None));
                }
                // A lease on another clock counts as over in this store.
                let over = changes.iter().flat_map(|change| change.over).filter_map(|lease| match lease.clock {
                    LeaseClock::Etcd(id) => Some(id),
                    _ => None,
                });
                self.transact(compare, steps, &over.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>())
            }
        }
    }

    fn scan(&self, visit: &mut Visit<'_>) -> Result<()> {
        let all = self.record_key(b"");
        let end = encoded(&prefix_end(&all));
        let (mut from, mut limit) = (all.clone(), FIRST_PAGE);
        loop {
            let question = json!({"key": encoded(&from), "range_end": end, "limit": limit.to_string()});
            let found: Found = match self.client.call("/v3/kv/range", &question) {
                // The records are long, so the next attempt asks for fewer of them.
                Err(failed) if failed.is_too_long() && limit > 1 => {
                    limit = 1;
                    continue;
                }
                found => found.map_err(Failed::error)?,
            };
            let bytes: usize = found.kvs.iter().map(|pair| pair.value.len()).sum();
            limit = if bytes > PAGE_BYTES { limit / 2 } else { limit * 2 }.clamp(1, LARGEST_PAGE);
            from = next_page(&self.client, &from, &found)?;
            for pair in found.kvs {
                let place = self.describe(pair.key.get(all.len()..).unwrap_or_default());
                visit(&place, Ok(Etcd::stored(pair)))?;
            }
            if !found.more {
                return Ok(());
            }
        }
    }

    fn grant_lease(&self, span: Duration) -> Result<Lease> {
        let begun = self.host.boottime();
        // etcd requires an id above zero.
        let id = ((u128::from_ne_bytes(self.host.random()?) >> 65) as u64).max(1);
        let seconds = (span.as_secs() + u64::from(span.subsec_nanos() > 0)).max(1);
        let lease = Pending { id, seconds, ends: begun.saturating_add(span) };
        self.client.send("/v3/lease/grant", &grant(&lease));
        self.leases.add(lease);
        let wall = self.host.wall().saturating_add(Duration::from_secs(seconds)).as_millis() as u64;
        Ok(Lease { clock: LeaseClock::Etcd(id), ends: wall, wall })
    }

    fn lease_ttl(&self, lease: &Lease) -> Result<Duration> {
        let LeaseClock::Etcd(id) = lease.clock else { return Ok(Duration::ZERO) };
        if let Some(left) = self.left_of_pending(id) {
            return Ok(left);
        }
        if self.lease_expired(lease)? {
            return Ok(Duration::ZERO);
        }
        let seconds = u64::try_from(self.granted(id)?.ttl).unwrap_or_default();
        Ok(Duration::from_secs(seconds).max(LAST_SECOND))
    }

    fn lease_expired(&self, lease: &Lease) -> Result<bool> {
        let LeaseClock::Etcd(id) = lease.clock else { return Ok(true) };
        let is_lasting = self.left_of_pending(id).is_some() || self.leases.is_lasting(id, self.host.boottime());
        Ok(!is_lasting && self.at(&self.lease_key(id), true)?.is_none())
    }

    fn revoke_lease(&self, lease: &Lease) {
        if let LeaseClock::Etcd(id) = lease.clock {
            self.leases.forget(id);
            self.client.send("/v3/lease/revoke", &json!({"ID": id.to_string()}));
        }
    }

    fn set_deadline(&self, until: Option<Duration>) {
        self.client.set_deadline(until);
    }

    fn scope(&self) -> Scope {
        Scope::Shared
    }

    fn describe(&self, name: &[u8]) -> String {
        format!("{} (key \"{}\")", self.url(), escape(name))
    }

    fn can_notify(&self) -> bool {
        true
    }

    fn notify(&self, bell: &[u8], lease: Option<&Lease>) {
        if let Some(LeaseClock::Etcd(id)) = lease.map(|lease| &lease.clock) {
            let question = json!({
                "key": encoded(&self.key("bells", bell)), "value": "", "lease": id.to_string()
            });
            self.client.send("/v3/kv/put", &question);
        }
    }

    fn flush(&self) {
        self.client.flush();
    }

    fn subscribe(&self, bell: &[u8], since: &Version) -> Option<Box<dyn Subscription>> {
        let only_puts = json!({"start_revision": (since.number + 1).to_string(), "filters": ["NODELETE"]});
        watch::hear(&self.client, &self.key("bells", bell), only_puts)
    }

    fn subscribe_changes(&self, name: &[u8]) -> Option<Box<dyn Subscription>> {
        watch::hear(&self.client, &self.record_key(name), json!({}))
    }

    fn diagnose(&self) -> Vec<Finding> {
        health::examine(&self.client, &self.record_key(b""))
    }

    fn append_history(&self, line: &[u8], limits: &Limits) {
        history::remember(&self.client, &self.key("history", b""), line, limits);
    }

    fn read_history(&self, visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        history::remembered(&self.client, &self.key("history", b""), visit).map(|()| true)
    }
}

impl Etcd {
    /// Returns the ttl of a lease whose key is not stored yet.
    fn left_of_pending(&self, id: u64) -> Option<Duration> {
        let left = self.leases.ends(id)?.saturating_sub(self.host.boottime());
        Some(left).filter(|left| !left.is_zero())
    }
}
