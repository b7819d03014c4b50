//! ssh store: a directory on another host, which `csalock serve` there reads and writes for us.
//!
//! **Server.** ssh(1) starts one server process for each connection ([`serve_at`]). It carries out the calls of the store
//! trait on a [`directory::Directory`], in the order in which they arrive, and nothing else. So everything that makes a
//! directory correct makes this store correct, and processes of that host may use the directory at the same time: the
//! set-user-ID bit of the directory tells them that other hosts share it.
//!
//! **Leases** count on the clocks of that host. A holder subtracts the time that the answer took.
//!
//! **Lost connections.** See [`client`]. A commit compares the version, so its repetition is a conflict if it was made.
//!
//! **Trust.** A key that may start the server can acquire any lock of that directory. It can do nothing else if a forced
//! command permits only that.

mod client;
mod errors;
mod link;
mod serve;
#[cfg(any(test, fuzzing, debug_assertions))]
pub mod untrusted;
mod wire;

use std::ffi::OsString;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use self::client::{Slot, Subscribed};
pub use self::serve::serve_at;
pub use self::wire::FORMAT;
use self::wire::{Change, Commit, Reply, WireRequest};
use directory::layout::file_name;
use host::{Host, server_time};
use lock::error::Result;
use lock::name::escape;
use lock::{HandleHash, Lease, Sighting};
use net::{Calls, host_and_port};
use store::{
    Abilities, Call, CommitResult, Finding, Leases, Scope, ServerUrl, Store, Subscription, Swept, Topic, Upkeep,
    Variables, Version, Versioned, Visit, WriteSet,
};

/// A directory on a host that ssh(1) reaches: `ssh://[USER@]HOST[:PORT]/PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remote {
    /// `[USER@]HOST` as ssh(1) knows it.
    pub(crate) destination: String,
    /// Port; without it, that of the configuration of ssh(1).
    pub(crate) port: Option<u16>,
    pub(crate) path: String,
}

impl Remote {
    pub(crate) fn parse(rest: &[u8]) -> std::result::Result<Remote, &'static str> {
        let rest = std::str::from_utf8(rest).map_err(|_| "it is not UTF-8")?;
        let rest = rest.strip_prefix("//").ok_or("two slashes and a host come after the colon")?;
        let (server, path) = rest.split_once('/').filter(|(_, path)| !path.is_empty()).ok_or("its path is missing")?;
        let (user, server) = server.rsplit_once('@').map_or((None, server), |(user, server)| (Some(user), server));
        if user.is_some_and(|user| user.contains(':') || user.to_ascii_lowercase().contains("%3a")) {
            return Err("a password does not belong there, where every user sees it; ssh(1) uses keys and agents");
        }
        let (host, port) = host_and_port(server);
        let port = port.map(|port| port.parse().ok().filter(|port| *port > 0).ok_or("the port is not a number"));
        let port: Option<u16> = port.transpose()?;
        // ssh(1) would take a word with a dash for an option, and a shell in its configuration may see the others.
        let is_plain = |word: &str| {
            let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-._%:".contains(&byte);
            !word.is_empty() && !word.starts_with('-') && word.bytes().all(is_safe)
        };
        if !is_plain(host) || user.is_some_and(|user| !is_plain(user)) {
            return Err("the server is [USER@]HOST[:PORT], as for ssh(1)");
        }
        if path.bytes().any(|byte| byte.is_ascii_control()) {
            return Err("its path contains a control character");
        }
        let destination = user.map_or(host.to_string(), |user| format!("{user}@{host}"));
        let path = format!("/{}", path.strip_prefix("./").unwrap_or(path).trim_end_matches('/'));
        Ok(Remote { destination, port, path })
    }

    fn command(&self) -> String {
        format!("csalock serve --stdio 'dir:{}'", self.path.replace('\'', "'\\''"))
    }
}

impl ServerUrl for Remote {
    fn url(&self) -> String {
        let (user, host) = self.destination.rsplit_once('@').unwrap_or(("", &self.destination));
        let at = if user.is_empty() { "" } else { "@" };
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_string() };
        let port = self.port.map_or(String::new(), |port| format!(":{port}"));
        format!("ssh://{user}{at}{host}{port}{}", self.path)
    }

    fn open(&self, variables: &Variables<'_>, host: Arc<dyn Host>) -> Result<Box<dyn Store>> {
        Ok(Box::new(Ssh::open(self, variables("CSALOCK_SSH"), host)))
    }
}

/// Reads a URL after `ssh:`.
pub fn parse(rest: &[u8]) -> std::result::Result<Arc<dyn ServerUrl>, &'static str> {
    Ok(Arc::new(Remote::parse(rest)?))
}

pub(crate) struct Ssh {
    host: Arc<dyn Host>,
    remote: Remote,
    /// ssh(1), or the program in `CSALOCK_SSH`.
    program: OsString,
    slot: Arc<Mutex<Slot>>,
    calls: Calls,
}

impl Ssh {
    /// For messages. A forced command may serve another directory.
    fn place(&self, file: &str) -> String {
        format!("{}/{}", self.remote.url(), escape(file.as_bytes()))
    }

    fn span(&self, call: Call, request: &WireRequest) -> Result<Duration> {
        self.ask(call, request).map(Duration::from_millis)
    }
}

/// The waiter with this channel.
fn waiter(channel: &[u8]) -> Option<HandleHash> {
    HandleHash::parse(std::str::from_utf8(channel).ok()?)
}

impl Store for Ssh {
    fn read(&self, call: Call, name: &[u8]) -> Result<Option<Versioned>> {
        self.ask(call, &WireRequest::Read(name.to_vec()))
    }

    fn scan(&self, call: Call, visit: &mut Visit<'_>) -> Result<()> {
        self.list(call, &WireRequest::Scan, &mut |entry| match entry {
            Reply::Entry(place, stored) => {
                let file = place.rsplit('/').next().unwrap_or_default();
                visit(&self.place(file), stored)
            }
            _ => Err(self.nonsense()),
        })
    }

    fn commit(&self, call: Call, set: &WriteSet<'_>) -> Result<CommitResult> {
        let change = |change: &store::Write<'_>| Change {
            name: change.name.to_vec(),
            expect: change.expect,
            body: change.body.map(<[u8]>::to_vec),
            options: change.options,
        };
        let leases = |leases: &[&Lease]| leases.iter().copied().cloned().collect();
        let commit = Commit {
            change: set.change.as_ref().map(change),
            expired: leases(&set.expired),
            ended: leases(&set.ended),
            wake: set.wake.iter().filter_map(|(channel, _)| waiter(channel)).collect(),
            closed: set.closed.iter().filter_map(|channel| waiter(channel)).collect(),
            history: set.history.to_vec(),
            limits: set.limits,
        };
        let answer: ((Option<Version>, bool), bool) = self.ask_or_repeat(call, &WireRequest::Commit(commit.into()))?;
        Ok(match answer {
            ((Some(version), _), _) => CommitResult::Done(version),
            ((None, false), false) => CommitResult::Conflict(None),
            _ => CommitResult::Unclear,
        })
    }

    fn leases(&self) -> &dyn Leases {
        self
    }

    fn subscribe(&self, call: Call, topic: Topic<'_>) -> Option<Box<dyn Subscription>> {
        let Topic::Channel(channel, _) = topic else { return None };
        let request = WireRequest::Subscribe(waiter(channel)?);
        Subscribed::new(self, call, &request).map(|subscribed| Box::new(subscribed) as Box<dyn Subscription>)
    }

    fn abilities(&self) -> Abilities {
        Abilities { scope: Scope::Shared, wakes_hosts: true, notifies: false }
    }
}

impl Upkeep for Ssh {
    fn describe(&self, name: &[u8]) -> String {
        self.place(&escape(&file_name(name)))
    }

    fn answers(&self) -> u64 {
        self.calls.answers()
    }

    fn read_history(&self, call: Call, visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.list(call, &WireRequest::History, &mut |line| match line {
            Reply::Line(line) => {
                visit(&line);
                Ok(())
            }
            _ => Err(self.nonsense()),
        })
    }

    fn sweep(&self, call: Call, dry_run: bool) -> Result<Swept> {
        self.ask(call, &WireRequest::Sweep { dry_run })
    }

    fn diagnose(&self, call: Call) -> Vec<Finding> {
        let Remote { destination, path, .. } = &self.remote;
        let what = Finding::good("store", format!("directory {} on {destination}, over ssh", escape(path.as_bytes())));
        let findings: Vec<Finding> = match self.ask(call, &WireRequest::Diagnose) {
            Ok(findings) => findings,
            Err(error) => return vec![what, Finding::failed("server", &error)],
        };
        let there = |finding: Finding| Finding {
            topic: "there".to_string(),
            found: escape(format!("{}: {}", finding.topic, finding.found).as_bytes()),
            cure: finding.cure.map(|cure| escape(cure.as_bytes())),
            ..finding
        };
        std::iter::once(what).chain(findings.into_iter().map(there)).collect()
    }
}

impl Leases for Ssh {
    fn grant(&self, call: Call, span: Duration) -> Result<Lease> {
        self.ask(call, &WireRequest::Grant(span.as_millis() as u64))
    }

    fn time(&self, call: Call) -> Result<Duration> {
        self.span(call, &WireRequest::Time).map(server_time)
    }

    fn ttl(&self, call: Call, lease: &Lease) -> Result<Duration> {
        let asked = self.host.boottime();
        let span = self.span(call, &WireRequest::Ttl(lease.clone()))?;
        Ok(span.saturating_sub(self.host.boottime().saturating_sub(asked)))
    }

    fn time_to_expiry(&self, call: Call, lease: &Lease, seen: &[Sighting]) -> Result<Duration> {
        self.span(call, &WireRequest::TimeToExpiry(lease.clone(), seen.to_vec()))
    }

    fn new_sightings(&self, call: Call, leases: &[&Lease], seen: &[Sighting]) -> Result<Vec<Sighting>> {
        let leases = leases.iter().copied().cloned().collect();
        self.ask(call, &WireRequest::NewSightings(leases, seen.to_vec()))
    }
}
