//! `csalock doctor`: checks whether a store is suitable.
//!
//! A store reports the risks that only it knows ([`store::Store::diagnose`]). This module checks every store
//! alike: the hosts that share it, its records, a trial of write, read and delete, and its clock.

use std::collections::BTreeSet;
use std::time::Duration;

use super::context::Context;
use crate::cli::Doctor;
use crate::exit::Exit;
use crate::report::{OutputStyle, Zone, findings_text, json};
use crate::run::timer::wait_readable;
use engine::Engine;
use engine::environment::LocalZone;
use host::Host;
use host::signals::{self, Signals};
use lock::duration::shown as span;
use lock::name::{escape, is_directory, shell_quote};
use lock::{ErrorKind, Grant, Lease, LeaseClock, Lifetime, Liveness, Page, Result, encode_auxiliary};
use store::{Call, CommitResult, Finding, Location, Scope, Scratch, Store, Topic, Verdict, Version, WriteSet};

/// Maximum width of a line in columns, however wide the terminal is.
const WIDEST: usize = 100;

/// Maximum difference between two clocks that is not reported. People and jobs compare their times.
const FAR: Duration = Duration::from_secs(10);

/// Maximum time of the trial before the store counts as slow for locks.
const SLOW: Duration = Duration::from_secs(2);

/// An interrupt ends the calls of a silent server.
const CALL: Call = Call { until: None, interruptible: true };

/// A store may report a conflict although no other caller writes, for example if a reply was lost.
const TRIES: u32 = 3;

pub(super) fn run(context: &Context, options: &Doctor) -> anyhow::Result<Exit> {
    let location = match &options.name {
        None => context.store(),
        Some(name) if is_directory(name) => context.store_in(name).map(|(location, _)| location),
        Some(name) => context.target(name).map(|target| target.location),
    };
    // An interrupt is handled when none of our traces are left in the store.
    let signals = Signals::listen()?;
    let (url, findings) = match &location {
        Ok(location) => (location.url(), examine(context, location)),
        Err(error) if error.kind() == ErrorKind::InvalidInput => return Err(error.clone().into()),
        Err(error) => {
            let typed = options.name.as_ref().or(context.common.store.as_ref());
            (typed.cloned().unwrap_or_default(), vec![Finding::failed("store", error)])
        }
    };
    if signals::is_pending() {
        return Ok(Exit::interrupted(signals.interrupted_by()));
    }
    let style = super::status::output_style(&context.common, false);
    let style = OutputStyle { width: style.width.map(|width| width.min(WIDEST)), ..style };
    context.common.print(&json::findings(url.as_encoded_bytes(), &findings), findings_text(&findings, style))?;
    let is_bad = findings.iter().any(|finding| finding.verdict == Verdict::Bad);
    Ok(if is_bad { ErrorKind::Unavailable.into() } else { Exit::Done })
}

fn examine(context: &Context, location: &Location) -> Vec<Finding> {
    let engine = match context.engine(location) {
        Ok(engine) => engine.during(CALL),
        Err(error) => return vec![Finding::failed("store", &error)],
    };
    let mut findings = engine.store().diagnose(CALL);
    let is_down = findings.iter().any(|finding| finding.verdict == Verdict::Bad);
    findings.push(hosts(&engine, is_down || delivers(context, &engine) == Some(true)));
    findings.extend(host(&engine));
    findings.push(zone(context.host.wall()));
    let records = records(location, &engine);
    // If the records cannot be read, a second wait for the store is useless.
    let is_readable = records.iter().all(|finding| finding.verdict != Verdict::Bad);
    findings.extend(records);
    if is_readable && !signals::is_pending() {
        let used = use_store(context, location, engine).unwrap_or_else(|error| vec![Finding::failed("locks", &error)]);
        findings.extend(used);
    }
    findings
}

/// A pooler may be in the way of wake-ups from one connection to another.
fn delivers(context: &Context, engine: &Engine) -> Option<bool> {
    let store = engine.store();
    if store.abilities().notifies || !store.abilities().wakes_hosts {
        return Some(true);
    }
    let channel = context.host.new_handle().ok()?.proof().channel();
    let mut heard = store.subscribe(CALL, Topic::Channel(&channel, Version::default()))?;
    let set = WriteSet { wake: vec![(channel, None)], ..WriteSet::default() };
    store.commit(CALL, &set).ok()?;
    store.finish(CALL, &set);
    Some(wait_readable([heard.descriptor()], Some(SLOW)).ok()? && heard.is_notified())
}

/// Says which hosts share the store, and the consequences of that.
fn hosts(engine: &Engine, delivers: bool) -> Finding {
    let lease = span(engine.lease());
    let shared = format!("other hosts may share it: a holder renews a lease of {lease}, and");
    Finding::good(
        "hosts",
        match (engine.store().scope(), delivers && engine.store().abilities().wakes_hosts) {
            (Scope::Local, _) if engine.needs_leases() => format!(
                "this host alone, and this is a container: a holder renews a lease of {lease}, because processes \
                 outside cannot see it; waiters are woken"
            ),
            (Scope::Local, _) => {
                "this host alone: the end of an owner is seen at once, and waiters are woken".to_string()
            }
            (Scope::Shared, true) => format!("{shared} waiters on other hosts are woken by the store"),
            (Scope::Shared, false) => format!("{shared} waiters on other hosts poll"),
        },
    )
}

/// `None` unless processes of this host may not be recognised again.
fn host(engine: &Engine) -> Option<Finding> {
    let known = engine.host().domain().and_then(|domain| engine.host().this_process().map(|_| domain));
    match known {
        Err(error) => Some(Finding::failed("host", &error)),
        Ok(home) if engine.store().scope() == Scope::Shared && home.machine.starts_with('@') => {
            let name = escape(engine.host().name().as_bytes());
            Some(Finding::doubtful(
                "host",
                format!("it has no /etc/machine-id, so it is known by its name alone: \"{name}\""),
                "make one (systemd-machine-id-setup), or check that no two hosts have one name",
            ))
        }
        Ok(_) => None,
    }
}

/// `--once-per day` begins its slots by this zone.
fn zone(now: Duration) -> Finding {
    let zone = LocalZone::of_this_process();
    let LocalZone { name, source, .. } = zone;
    if zone.is_installed() {
        return Finding::good("zone", format!("{name}, UTC{} now", Zone::Local.format(now, "%:z")));
    }
    let found = format!("{source} says {name}, which is not an installed time zone, so times are shown in UTC");
    Finding::doubtful("zone", found, "install tzdata, or set TZ right: --once-per day is refused until then")
}

/// Counts the locks that are held and waited for, and the records that are unreadable.
fn records(location: &Location, engine: &Engine) -> Vec<Finding> {
    let (mut held, mut waiting, mut copied, mut unreadable) = (0, 0, 0, Vec::new());
    let mut other_leases = BTreeSet::new();
    let scanned = engine.for_each_lock(&mut |status| {
        match status {
            Ok(status) => {
                held += u64::from(status.is_held());
                copied += u64::from(status.record.is_copy);
                other_leases
                    .extend(status.record.holders.iter().filter_map(lease_of).filter(|it| *it != engine.lease()));
                waiting += status.waiters.iter().filter(|liveness| **liveness != Liveness::Dead).count();
            }
            Err(error) => unreadable.push(error),
        }
        Ok(())
    });
    if let Err(error) = scanned {
        return vec![Finding::failed("records", &error)];
    }
    let mut findings = vec![Finding::good("records", format!("{held} held, {waiting} waiting"))];
    if let Some((used, most)) = engine.store().count_connections(CALL) {
        let (need, often) = (2 * waiting as u64, 3.0 * held as f64 / engine.lease().as_secs_f64());
        let found =
            format!("{used} of {most} in use; waiters may take {need}; holders log in {often:.1} times a second");
        let cure = "raise max_connections, or put pgbouncer before the server";
        findings.push(match 2 * used.max(need) > most {
            true => Finding::doubtful("connections", found, cure),
            false => Finding::good("connections", found),
        });
    }
    if !other_leases.is_empty() && engine.needs_leases() {
        let others: Vec<String> = other_leases.into_iter().map(span).collect();
        let found = format!("it is {} here, but {} for holders now", span(engine.lease()), others.join(" and "));
        let cure = "give every caller one URL of the store, with ?lease=DURATION at its end";
        findings.push(Finding::doubtful("lease", found, cure));
    }
    if copied > 0 {
        let found = format!("{copied} copied from another directory: what was held there blocks no caller here");
        findings.push(Finding::doubtful("records", found, "nothing must be done; `csalock gc` removes it"));
    }
    if let [error, others @ ..] = unreadable.as_slice() {
        let store = shell_quote(location.url().as_encoded_bytes());
        let cure = format!("run `csalock status --store {store}`: it names each with the next step");
        let others = if others.is_empty() { String::new() } else { format!("; and {} more", others.len()) };
        findings.push(Finding::doubtful("records", format!("unreadable: {}{others}", error.message()), cure));
    }
    findings
}

/// Length of the renewed leases of a grant, if the record has it. etcd keeps it to itself.
fn lease_of(grant: &Grant) -> Option<Duration> {
    let Lifetime::Keepalive(Lease { clock: LeaseClock::FileSystem(begun), .. }) = &grant.lifetime else { return None };
    Some(Duration::from_millis(begun.span))
}

/// Tries the store and reads its clock. A store that does not exist yet stays missing: a temporary one is used.
fn use_store(context: &Context, location: &Location, engine: Engine) -> Result<Vec<Finding>> {
    let number = context.host.unique_number()?;
    let scratch = Scratch::of(location, number)?;
    let engine = match &scratch {
        Some(scratch) => context.engine(&scratch.location)?.during(CALL),
        None => engine,
    };
    let trial = trial(engine.store(), engine.host(), number)?;
    Ok(std::iter::once(trial).chain(clock(location, &engine)?).collect())
}

/// Tries the store with a record whose name has this unique number, and deletes it.
fn trial(store: &dyn Store, host: &dyn Host, number: u64) -> Result<Finding> {
    // A page of a queue that no record knows is a leftover. No user can type its name, which has a NUL.
    let key = Page::key(b"csalock doctor", number);
    let begun = host.boottime();
    let broken = broken_promise(store, &key);
    let took = host.boottime().saturating_sub(begun);
    if !matches!(broken, Ok(None))
        && let Ok(Some(left)) = store.read(CALL, &key)
    {
        let _ = write(store, &key, Some(&left.version), None);
    }
    let found = format!("a record is written and deleted in {:.1} ms", took.as_secs_f64() * 1e3);
    Ok(match broken? {
        Some(broken) => Finding::bad("locks", broken, "do not use this store for locks; name another one with --store"),
        None if took > SLOW => {
            let cure = "the store is slow: check the load of its disk or server, and the network";
            Finding::doubtful("locks", found, cure)
        }
        None => Finding::good("locks", found),
    })
}

fn broken_promise(store: &dyn Store, key: &[u8]) -> Result<Option<&'static str>> {
    let body = encode_auxiliary(key, &Page::default());
    let refused = "a write fails although the record has not changed";
    let Some(first) = write(store, key, None, Some(&body))? else { return Ok(Some(refused)) };
    let Some(second) = write(store, key, Some(&first), Some(&body))? else { return Ok(Some(refused)) };
    if store.read(CALL, key)?.is_none_or(|stored| stored.body != body || stored.version != second) {
        return Ok(Some("a read does not return what was written"));
    }
    if second.number <= first.number {
        return Ok(Some("version numbers do not rise"));
    }
    if store.commit(CALL, &WriteSet::of(key, Some(&first), Some(&body)))?.is_done() {
        return Ok(Some("a write succeeds although the record has changed"));
    }
    let deleted = write(store, key, Some(&second), None)?;
    Ok(if deleted.is_none() || store.read(CALL, key)?.is_some() { Some("a record cannot be deleted") } else { None })
}

/// `None` if the store reports a conflict that has no reason.
fn write(store: &dyn Store, key: &[u8], expect: Option<&Version>, body: Option<&[u8]>) -> Result<Option<Version>> {
    let set = WriteSet::of(key, expect, body);
    for _ in 0..TRIES {
        if let CommitResult::Done(version) = store.commit(CALL, &set)? {
            store.finish(CALL, &set);
            return Ok(Some(version));
        }
        let found = store.read(CALL, key)?;
        let version = found.as_ref().map(|stored| stored.version);
        // The reply to our own write was lost.
        if version.as_ref() != expect && found.as_ref().map(|stored| &stored.body[..]) == body {
            return Ok(Some(version.unwrap_or_default()));
        }
    }
    Ok(None)
}

/// Compares the clock of a shared store with this host's. No lease ends by either, but jobs and people use both.
fn clock(location: &Location, engine: &Engine) -> Result<Option<Finding>> {
    if engine.store().scope() == Scope::Local {
        return Ok(None);
    }
    let (ours, theirs) = (engine.host().wall(), engine.time()?);
    let apart = ours.abs_diff(theirs);
    Ok(Some(if matches!(location, Location::Directory { .. }) && theirs.subsec_nanos() == 0 {
        let cure = "an expired lock is noticed up to two seconds later: use a file system with finer times";
        Finding::doubtful("clock", "the file system keeps times in whole seconds only", cure)
    } else if apart > FAR {
        let order = if theirs > ours { "ahead of" } else { "behind" };
        let found = format!("the store's clock is {} {order} this host's", span(apart));
        Finding::doubtful("clock", found, "set both clocks by NTP; no lease ends by them, but jobs and people use them")
    } else {
        let found = format!("it differs from this host's by less than {}; no lease ends by either", span(FAR));
        Finding::good("clock", found)
    }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use host::Fake;
    use store::{Abilities, Leases, Memory, Scope, Upkeep, Versioned, Visit, Write};

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Fault {
        None,
        RefusesAll,
        AcceptsAll,
        LosesWrites,
        FallingVersions,
    }

    struct Broken {
        memory: Memory,
        fault: Fault,
        was_written: AtomicBool,
    }

    impl Broken {
        fn with(fault: Fault) -> Broken {
            Broken { memory: Memory::new(Arc::new(Fake::new(1))), fault, was_written: AtomicBool::new(false) }
        }

        fn shown(&self, version: Version) -> Version {
            let falls = self.fault == Fault::FallingVersions;
            if falls { Version { number: 100 - version.number, ..version } } else { version }
        }
    }

    impl Store for Broken {
        fn read(&self, call: Call, name: &[u8]) -> Result<Option<Versioned>> {
            let stored =
                self.memory.read(call, name)?.map(|stored| Versioned { version: self.shown(stored.version), ..stored });
            let lost = self.fault == Fault::LosesWrites && self.was_written.load(Ordering::Relaxed);
            Ok(stored.map(|stored| if lost { Versioned { body: b"other".to_vec(), ..stored } } else { stored }))
        }

        fn commit(&self, call: Call, set: &WriteSet<'_>) -> Result<CommitResult> {
            if self.fault == Fault::RefusesAll {
                return Ok(CommitResult::Conflict(None));
            }
            self.was_written.store(true, Ordering::Relaxed);
            let change = set.change.unwrap();
            let expect = match self.fault {
                Fault::AcceptsAll => self.memory.read(call, change.name)?.map(|stored| stored.version),
                _ => change.expect.map(|version| self.shown(version)),
            };
            Ok(match self.memory.commit(call, &WriteSet::from(Write { expect, ..change }))? {
                CommitResult::Done(version) => CommitResult::Done(self.shown(version)),
                other => other,
            })
        }

        fn scan(&self, call: Call, visit: &mut Visit<'_>) -> Result<()> {
            self.memory.scan(call, visit)
        }

        fn leases(&self) -> &dyn Leases {
            self.memory.leases()
        }

        fn abilities(&self) -> Abilities {
            Abilities::of(Scope::Local)
        }
    }

    impl Upkeep for Broken {
        fn describe(&self, name: &[u8]) -> String {
            self.memory.describe(name)
        }

        fn read_history(&self, call: Call, visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
            self.memory.read_history(call, visit)
        }

        fn diagnose(&self, _call: Call) -> Vec<Finding> {
            Vec::new()
        }
    }

    #[test]
    fn each_broken_promise_of_commit_is_found() {
        for (fault, expected) in [
            (Fault::None, None),
            (Fault::RefusesAll, Some("a write fails although the record has not changed")),
            (Fault::AcceptsAll, Some("a write succeeds although the record has changed")),
            (Fault::LosesWrites, Some("a read does not return what was written")),
            (Fault::FallingVersions, Some("version numbers do not rise")),
        ] {
            assert_eq!(broken_promise(&Broken::with(fault), b"x").unwrap(), expected);
        }
    }
}
