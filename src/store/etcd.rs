//! The etcd store: for hosts that share an etcd cluster, through the JSON gateway that etcd documents.
//!
//! Under the prefix that the URL names:
//!
//! ```text
//! PREFIX/records/NAME     a record; its version is the key's mod_revision
//! PREFIX/births/NN        changed with each record of some names that comes to be
//! PREFIX/leases/ID        there as long as the lease with this id, in hexadecimal
//! PREFIX/bells/PROOF      put to wake a waiter; goes away with the waiter's lease
//! PREFIX/history/...      a line of history
//! ```
//!
//! **Swap.** One transaction: if the key is still at that revision (0: not there), put or delete it. Revisions are the
//! cluster's own and only grow, so a record that was removed and came back has a greater one. A transaction whose
//! answer did not come may have happened: it is sent again until there is an answer, and if it had happened, the
//! repetition finds another revision and says *conflict*. That no answer came in time never means that nothing was
//! stored.
//!
//! **Births.** That nothing is there has no revision. A request that a stalled server held back, and whose repetition
//! another one answered, would find a name as free as before once that was undone, and make the record a second time. So
//! who makes a record also changes the *birth key* of that name, and compares it: one of 256, so that few get into each
//! other's way.
//!
//! **Reading** is always linearizable: a server that lost touch with the others does not answer from what it remembers.
//!
//! **Leases** are etcd's own, each with a key that goes when it ends. A lease is over when that key is gone, as a
//! linearizable read sees it. What a server says of a lease itself is believed for nothing but the time that is left:
//! it comes from the leader's memory, and a leader that was deposed and does not know it yet goes on to say it, and to
//! accept keep-alives. So nothing is ever kept alive here. To renew is to begin a new lease and to swap it into the
//! record, and both take a majority. Its key is put by the next transaction of this process ([`leases`]), so that a
//! lock is taken with two waits: for what stands there, and for what we make of it. etcd may let a lease last longer,
//! never shorter, than it was asked for: it begins anew with each leader. So its holder must count on his own clock, and
//! does.
//!
//! **Stale reads.** Some releases of etcd answer linearizable reads with an old state after a server was paused (3.4.20
//! to 3.4.41, 3.5.0 to 3.5.27, 3.6.0 to 3.6.8). So the transaction that ends a grant because its lease is over also
//! compares that the key of that lease is gone. If the comparison fails, the transaction lists the keys that are there,
//! and for a second no read can say that these leases are over.
//!
//! **Giving back** ends with the end of the lease and a line of history, and perhaps a bell. They are written one after
//! the other without waiting for answers ([`line`]); then all of these are waited for, for a second at most: a busy
//! server needs some of it. Not to wait at all would be cheaper still, but a server whose client is gone does not do
//! what it has not begun: most leases stayed. What is lost all the same lives for the rest of its time to live, and
//! hurts nobody.
//!
//! **Bells** wake waiters on other hosts ([`bell`]). Nobody relies on them.
//!
//! **Trust.** Whoever may write these keys can take any lock. etcd has no modes for keys, only roles for prefixes, so a
//! record that fewer people are to read than may read the store is refused.

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

use self::api::{Anything, Done, Found, Granted, Pair, delete, encoded, end_of, is_at, put, range};
use self::client::{Client, Failed};
use self::leases::{Leases, Pending};
use super::{
    Cluster, CommitResult, Finding, Scope, Store, Subscription, Version, Versioned, Visit, Write, WriteOptions,
};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::history::Limits;
use crate::host::Host;
use crate::lock::{Lease, LeaseClock};
use crate::name::escape;

/// How many changes one transaction makes. Each compares two keys at most and takes two steps.
const MOST_AT_ONCE: usize = 32;

/// How many leases one transaction compares, and of how many it puts the keys: with the changes, etcd's limit of 128.
const MOST_LEASES: usize = 64;

/// How long a lease counts as lasting after a transaction has found its key.
const SEEN_LASTING: Duration = Duration::from_secs(1);

/// A scan begins with so many records at once, and never takes more.
const FIRST_PAGE: usize = 16;
const LARGEST_PAGE: usize = 256;

/// More than this it takes into memory at once only where single records are large.
const PAGE_BYTES: usize = 1 << 20;

/// etcd counts leases in seconds. Within its last one a lease has this long at least.
const LAST_SECOND: Duration = Duration::from_millis(100);

/// How an etcd cluster is to be accessed, beside its URL.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// `CSALOCK_ETCD_CACERT`: whose signature its certificates have, as a file in PEM; else the system's authorities.
    pub cacert: Option<PathBuf>,
    /// `CSALOCK_ETCD_CERT`: our own certificate, as a file in PEM.
    pub cert: Option<PathBuf>,
    /// `CSALOCK_ETCD_KEY`: its key, as a file in PEM.
    pub key: Option<PathBuf>,
    /// `CSALOCK_ETCD_USER`
    pub user: Option<String>,
    /// `CSALOCK_ETCD_PASSWORD`
    pub password: Option<String>,
    /// `CSALOCK_ETCD_PASSWORD_FILE`: a file whose first line is the password.
    pub password_file: Option<PathBuf>,
    /// Where tokens are kept that a login gave: a directory of this user's, gone with the boot.
    pub runtime: Option<PathBuf>,
}

/// Where the next page begins: behind this one, whose keys must rise, or a list might have no end.
fn next_page(client: &Client, from: &[u8], page: &Found) -> Result<Vec<u8>> {
    let rise = page.kvs.windows(2).all(|two| two[0].key < two[1].key);
    match page.kvs.last() {
        Some(last) if rise && page.kvs[0].key.as_slice() >= from => Ok([&last.key[..], b"\0"].concat()),
        None if !page.more => Ok(from.to_vec()),
        _ => Err(client.nonsense("a list whose keys do not rise")),
    }
}

/// What asks for a lease.
fn grant(lease: &Pending) -> Value {
    json!({"ID": lease.id.to_string(), "TTL": lease.seconds.to_string()})
}

/// A store in an etcd cluster.
pub struct Etcd {
    client: Client,
    host: Arc<dyn Host>,
    prefix: String,
    leases: Leases,
}

impl Etcd {
    /// A store in this cluster. Nobody is asked yet.
    ///
    /// # Errors
    ///
    /// When certificates or a password cannot be read.
    pub fn open(cluster: &Cluster, access: &Access, host: Arc<dyn Host>) -> Result<Etcd> {
        Ok(Etcd {
            client: Client::new(cluster, access, host.clone())?,
            host,
            prefix: cluster.prefix.clone(),
            leases: Leases::default(),
        })
    }

    /// The key of something of ours.
    fn key(&self, kind: &str, name: &[u8]) -> Vec<u8> {
        [self.prefix.as_bytes(), b"/", kind.as_bytes(), b"/", name].concat()
    }

    fn record_key(&self, name: &[u8]) -> Vec<u8> {
        self.key("records", name)
    }

    /// The key that is changed whenever a record of this name, or of some others, comes to be.
    fn birth_key(&self, name: &[u8]) -> Vec<u8> {
        self.key("births", format!("{:02x}", Sha256::digest(name)[0]).as_bytes())
    }

    fn lease_key(&self, id: u64) -> Vec<u8> {
        self.key("leases", format!("{id:016x}").as_bytes())
    }

    /// What stands at one key.
    fn at(&self, key: &[u8], keys_only: bool) -> Result<Option<Pair>> {
        let question = json!({"key": encoded(key), "keys_only": keys_only});
        let found = self.client.ask::<Found>("/v3/kv/range", &question)?.kvs.pop();
        match found {
            Some(pair) if pair.key != key => Err(self.client.nonsense("an answer about another key")),
            found => Ok(found),
        }
    }

    /// Makes all these steps if everything is still as it is compared with, and these leases are over. More leases than
    /// one transaction takes are seen to by others before it: what is over stays over, and a key that nothing refers to
    /// misleads nobody.
    fn transact(&self, compare: Vec<Value>, steps: Vec<Value>, over: &[u64]) -> Result<CommitResult> {
        let pending = self.leases.pending(self.host.boottime());
        let (pending, earlier) = pending.split_at(pending.len().min(MOST_LEASES));
        for pending in earlier.chunks(MOST_LEASES) {
            self.transact_once(Vec::new(), Vec::new(), pending, &[])?;
        }
        let (over, earlier) = over.split_at(over.len().min(MOST_LEASES));
        for over in earlier.chunks(MOST_LEASES) {
            // etcd answers a transaction without any change as it answers a read, which may be stale.
            let nothing = vec![delete(&self.lease_key(over[0]))];
            if self.transact_once(Vec::new(), nothing, &[], over)? == CommitResult::Conflict {
                return Ok(CommitResult::Conflict);
            }
        }
        self.transact_once(compare, steps, pending, over)
    }

    /// One transaction, which also puts the keys of the pending leases.
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

    /// Asks again for new leases, of which one did not come about. Nobody has used them, so that they begin anew does no
    /// harm.
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

    /// How one of our changes begins and what it does; `None`: its record cannot be as expected.
    fn step(&self, change: &Write<'_>) -> Result<Option<(Value, Value)>> {
        // A removal shows nobody anything.
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

    /// Refuses what fewer people are to read than may read the store.
    fn check_mode(&self, mode: u32) -> Result<()> {
        if mode & 0o044 == 0o044 {
            return Ok(());
        }
        Err(Error::new(
            Exit::Permission,
            format!("etcd has no modes, so whoever may read {} could read what is to have mode {mode:04o}", self.url()),
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
                // A lease on another clock is over here.
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
        let end = encoded(&end_of(&all));
        let (mut from, mut limit) = (all.clone(), FIRST_PAGE);
        loop {
            let question = json!({"key": encoded(&from), "range_end": end, "limit": limit.to_string()});
            let found: Found = match self.client.call("/v3/kv/range", &question) {
                // Long records: then fewer of them.
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
        // Above zero, as etcd wants its numbers.
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
    /// How long a lease has left whose key we have not stored yet.
    fn left_of_pending(&self, id: u64) -> Option<Duration> {
        let left = self.leases.ends(id)?.saturating_sub(self.host.boottime());
        Some(left).filter(|left| !left.is_zero())
    }
}
