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
//! free and create the record a second time. A transaction that creates a record therefore changes the *creation guard*
//! of that name, and compares that the guard has not changed since the read that found no record: its revision must not
//! exceed that of the read ([`Absences`]). The store has 256 guards, so few callers conflict.
//!
//! **Reads** are always linearizable: a server that lost contact with the others does not answer from its own state.
//!
//! **Leases** are etcd's own, each with a key that etcd removes at its end. A lease is over when a linearizable read
//! does not find that key. A server's answer about the lease itself is used only for the ttl. The leader answers from
//! memory: a deposed leader that is not yet aware of it keeps answering and accepting keep-alives. The store therefore
//! sends no keep-alives. A renewal starts a new lease and commits it to the record; both need a majority. The request
//! for the lease goes out with the transaction that puts its key ([`leases`]), so an acquisition of a free name takes two
//! round trips: the read, and the lease with the commit. etcd may let a lease last longer than requested, never shorter,
//! because each new leader restarts it. The holder therefore counts on its own clock.
//!
//! **Stale reads.** After a pause of a server, some etcd releases answer linearizable reads with an old state: 3.4.20
//! to 3.4.41, 3.5.0 to 3.5.27, 3.6.0 to 3.6.8. A transaction that ends a grant with an expired lease therefore compares
//! that the lease's key is gone too. If the comparison fails, the transaction lists the keys that exist. For a second
//! after that, no read can report these leases as over.
//!
//! **Notifications** wake waiters on other hosts ([`client`]). Correctness does not depend on them.
//!
//! **Trust.** A user who may write these keys can acquire any lock. etcd has no modes for keys, only roles for
//! prefixes. The store therefore refuses a record that fewer users may read than may read the store.

mod api;
mod auth;
mod client;
mod commit;
mod errors;
mod health;
mod http;
mod leases;
#[cfg(any(test, fuzzing, debug_assertions))]
pub mod untrusted;

use std::sync::Arc;

use serde_json::json;
use sha2::{Digest, Sha256};

use self::api::{Pair, RangeAnswer, encoded, prefix_end};
use self::client::Client;
use self::leases::KnownLeases;
use host::Host;
use lock::error::Result;
use lock::name::escape;
use net::{Absences, CallError, NetError, host_and_port};
use store::{
    Abilities, Call, CommitResult, Finding, Leases, Scope, ServerUrl, Store, Subscription, Topic, Upkeep, Variables,
    Version, Versioned, Visit, WriteSet,
};

const PREFIX: &str = "csalock";

const PORT: u16 = 2379;

/// An etcd cluster and the key prefix of the store: `etcd://HOST:PORT,HOST:PORT/PREFIX`, and `etcds://` for TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cluster {
    pub(crate) tls: bool,
    /// Host and port of each server, as typed; at least one.
    pub(crate) endpoints: Vec<String>,
    /// Prefix of all keys, without the slash that follows it.
    pub(crate) prefix: String,
}

impl Cluster {
    pub(crate) fn parse(tls: bool, rest: &[u8]) -> std::result::Result<Cluster, &'static str> {
        let rest = std::str::from_utf8(rest).map_err(|_| "it is not UTF-8")?;
        let rest = rest.strip_prefix("//").ok_or("two slashes and a server come after the colon")?;
        if rest.contains(['?', '#']) {
            return Err("its only option is ?lease=DURATION");
        }
        if rest.contains('@') {
            return Err("a password does not belong there, where every user sees it; see $CSALOCK_ETCD_PASSWORD");
        }
        let (servers, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.strip_prefix("./").unwrap_or(prefix).trim_matches('/');
        let endpoints = servers.split(',').map(endpoint).collect::<Option<Vec<_>>>().ok_or("a server is HOST:PORT")?;
        Ok(Cluster { tls, endpoints, prefix: if prefix.is_empty() { PREFIX } else { prefix }.to_string() })
    }
}

impl ServerUrl for Cluster {
    fn url(&self) -> String {
        let scheme = if self.tls { "etcds" } else { "etcd" };
        format!("{scheme}://{}/{}", self.endpoints.join(","), self.prefix)
    }

    fn open(&self, variables: &Variables<'_>, host: Arc<dyn Host>) -> Result<Box<dyn Store>> {
        Ok(Box::new(Etcd::open(self, variables, host)?))
    }
}

/// Reads a URL after `etcd:`.
pub fn parse(rest: &[u8]) -> std::result::Result<Arc<dyn ServerUrl>, &'static str> {
    Ok(Arc::new(Cluster::parse(false, rest)?))
}

/// Reads a URL after `etcds:`.
pub fn parse_tls(rest: &[u8]) -> std::result::Result<Arc<dyn ServerUrl>, &'static str> {
    Ok(Arc::new(Cluster::parse(true, rest)?))
}

fn endpoint(typed: &str) -> Option<String> {
    let (host, port) = host_and_port(typed);
    let port: u16 = port.map_or(Some(PORT), |port| port.parse().ok())?;
    let is_bracketed = typed.starts_with('[');
    let is_one = !host.is_empty() && (is_bracketed || !host.contains(':'));
    let is_plain = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:%".contains(&byte));
    let host = if is_bracketed { format!("[{host}]") } else { host.to_string() };
    (is_one && is_plain && port > 0).then(|| format!("{host}:{port}"))
}

/// Number of records in the first page of a scan, and in the largest page.
const FIRST_PAGE: usize = 16;
const LARGEST_PAGE: usize = 256;

/// Page size in bytes above which a scan halves the next page. Single large records may exceed it.
const PAGE_BYTES: usize = 1 << 20;

/// First key of the page after this page. Fails unless the keys rise, since a list could be endless.
fn next_page(client: &Client, from: &[u8], page: &RangeAnswer) -> Result<Vec<u8>> {
    let rise = page.kvs.windows(2).all(|two| two[0].key < two[1].key);
    match page.kvs.last() {
        Some(last) if rise && page.kvs[0].key.as_slice() >= from => Ok([&last.key[..], b"\0"].concat()),
        None if !page.more => Ok(from.to_vec()),
        _ => Err(client.nonsense("a list whose keys do not rise")),
    }
}

pub(crate) struct Etcd {
    client: Client,
    leases: KnownLeases,
    absences: Absences,
}

impl Etcd {
    /// Contacts no server. Fails if the certificates or the password cannot be read.
    pub(crate) fn open(cluster: &Cluster, variables: &Variables<'_>, host: Arc<dyn Host>) -> Result<Etcd> {
        Ok(Etcd {
            client: Client::new(cluster, variables, host)?,
            leases: KnownLeases::default(),
            absences: Absences::default(),
        })
    }

    fn key(&self, kind: &str, name: &[u8]) -> Vec<u8> {
        [self.client.cluster.prefix.as_bytes(), b"/", kind.as_bytes(), b"/", name].concat()
    }

    fn record_key(&self, name: &[u8]) -> Vec<u8> {
        self.key("records", name)
    }

    /// Creation guard of this name: a key that each creation of this record, or of some others, changes.
    fn birth_key(&self, name: &[u8]) -> Vec<u8> {
        self.key("births", format!("{:02x}", Sha256::digest(name)[0]).as_bytes())
    }

    fn lease_key(&self, id: u64) -> Vec<u8> {
        self.key("leases", format!("{id:016x}").as_bytes())
    }

    /// One key, and the revision of the read.
    fn at(&self, call: Call, key: &[u8], keys_only: bool) -> Result<(Option<Pair>, u64)> {
        let question = json!({"key": encoded(key), "keys_only": keys_only});
        let mut found: RangeAnswer = self.client.ask(call, "/v3/kv/range", &question)?;
        match found.kvs.pop() {
            Some(pair) if pair.key != key => Err(self.client.nonsense("an answer about another key")),
            pair => Ok((pair, found.header.revision)),
        }
    }

    fn url(&self) -> String {
        escape(self.client.cluster.url().as_bytes())
    }

    fn stored(pair: Pair) -> Versioned {
        Versioned::new(Version { number: pair.mod_revision, mark: 0 }, pair.value)
    }
}

impl Store for Etcd {
    fn read(&self, call: Call, name: &[u8]) -> Result<Option<Versioned>> {
        let (found, revision) = self.at(call, &self.record_key(name), false)?;
        self.absences.note(name, found.is_none().then_some(revision));
        Ok(found.map(Etcd::stored))
    }

    fn scan(&self, call: Call, visit: &mut Visit<'_>) -> Result<()> {
        let all = self.record_key(b"");
        let end = encoded(&prefix_end(&all));
        let (mut from, mut limit) = (all.clone(), FIRST_PAGE);
        loop {
            let question = json!({"key": encoded(&from), "range_end": end, "limit": limit.to_string()});
            let found: RangeAnswer = match self.client.call(call, &[], "/v3/kv/range", &question) {
                // The records are long, so the next attempt asks for fewer of them.
                Err(CallError::Net(NetError::TooLong)) if limit > 1 => {
                    limit = 1;
                    continue;
                }
                found => found.map_err(|failed| self.client.error(&failed))?.0,
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

    fn commit(&self, call: Call, set: &WriteSet<'_>) -> Result<CommitResult> {
        self.run_transaction(call, set)
    }

    fn leases(&self) -> &dyn Leases {
        self
    }

    fn subscribe(&self, call: Call, topic: Topic<'_>) -> Option<Box<dyn Subscription>> {
        match topic {
            Topic::Channel(channel, since) => {
                let only_puts = json!({"start_revision": (since.number + 1).to_string(), "filters": ["NODELETE"]});
                self.client.watch(call, &self.key("bells", channel), only_puts)
            }
            Topic::Record(name) => self.client.watch(call, &self.record_key(name), json!({})),
        }
    }

    fn abilities(&self) -> Abilities {
        Abilities { scope: Scope::Shared, wakes_hosts: true, notifies: true }
    }
}

impl Upkeep for Etcd {
    fn describe(&self, name: &[u8]) -> String {
        format!("{} (key \"{}\")", self.url(), escape(name))
    }

    fn answers(&self) -> u64 {
        self.client.calls.answers()
    }

    fn read_history(&self, call: Call, visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        commit::read_history(&self.client, call, &self.key("history", b""), visit).map(|()| true)
    }

    fn diagnose(&self, call: Call) -> Vec<Finding> {
        health::examine(&self.client, call)
    }
}
