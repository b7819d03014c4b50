//! `csalock doctor`: checks whether a store is suitable.
//!
//! A store reports the risks that only it knows ([`crate::store::Store::diagnose`]). This module checks every store
//! alike: the hosts that share it, its records, a trial of write, read and delete, and its clock.

mod trial;

use std::time::Duration;

use super::context::{Context, print, print_json};
use crate::cli::Doctor;
use crate::duration::shown as span;
use crate::engine::Engine;
use crate::error::{ErrorKind, Result};
use crate::exit::Exit;
use crate::lock::Liveness;
use crate::name::{escape, shell_quote};
use crate::report::{OutputStyle, findings_text, json};
use crate::signals::Signals;
use crate::store::{Finding, Location, Scope, Scratch, Verdict};

/// Maximum width of a line in columns, however wide the terminal is.
const WIDEST: usize = 100;

/// Maximum difference between two clocks that is not reported. People and jobs compare their times.
const FAR: Duration = Duration::from_secs(10);

pub(super) fn run(context: &Context, asked: &Doctor) -> anyhow::Result<Exit> {
    let location = match &asked.name {
        None => context.store(&asked.common),
        Some(name) => context.target(&asked.common, name).map(|target| target.location),
    };
    // An interrupt is handled when none of our traces are left in the store.
    let signals = Signals::listen(context.inherited)?;
    let (url, findings) = match &location {
        Ok(location) => (location.url(), examine(context, location, &signals)),
        Err(error) if error.kind() == ErrorKind::InvalidInput => return Err(error.clone().into()),
        Err(error) => {
            let typed = asked.name.as_ref().or(asked.common.store.as_ref());
            (typed.cloned().unwrap_or_default(), vec![Finding::failed("store", error)])
        }
    };
    if signals.pending() {
        return Ok(signals.exit());
    }
    if asked.common.json {
        print_json(&json::findings(url.as_encoded_bytes(), &findings))?;
    } else {
        let style = super::status::output_style(&asked.common, false);
        let width = style.width.map(|width| width.min(WIDEST));
        print(findings_text(&findings, OutputStyle { width, ..style }))?;
    }
    let is_bad = findings.iter().any(|finding| finding.verdict == Verdict::Bad);
    Ok(if is_bad { ErrorKind::Unavailable.into() } else { Exit::Done })
}

fn examine(context: &Context, location: &Location, signals: &Signals) -> Vec<Finding> {
    let engine = match context.engine(location) {
        Ok(engine) => engine,
        Err(error) => return vec![Finding::failed("store", &error)],
    };
    let mut findings = engine.store().diagnose();
    findings.push(hosts(&engine));
    findings.extend(host(&engine));
    let records = records(location, &engine);
    // If the records cannot be read, a second wait for the store is useless.
    let is_readable = records.iter().all(|finding| finding.verdict != Verdict::Bad);
    findings.extend(records);
    if is_readable && !signals.pending() {
        findings.extend(
            use_store(context, location, engine).unwrap_or_else(|error| vec![Finding::failed("locks", &error)]),
        );
    }
    findings
}

/// Tries the store and reads its clock. A store that does not exist yet stays missing: a temporary one is used.
fn use_store(context: &Context, location: &Location, engine: Engine) -> Result<Vec<Finding>> {
    let number = context.host.unique_number()?;
    let scratch = Scratch::of(location, number)?;
    let engine = match &scratch {
        Some(scratch) => context.engine(&scratch.location)?,
        None => engine,
    };
    let trial = trial::finding(engine.store(), engine.host(), number)?;
    Ok(std::iter::once(trial).chain(clock(location, &engine)?).collect())
}

/// Returns which hosts share the store, and the consequences of that.
fn hosts(engine: &Engine) -> Finding {
    let lease = span(engine.lease());
    let shared = format!("other hosts may share it: a holder renews a lease of {lease}, and");
    Finding::good(
        "hosts",
        match (engine.store().scope(), engine.store().abilities().wakes_hosts) {
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

/// Returns the reason why processes of this host may not be recognised again; `None` if all is well.
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

/// Counts the locks that are held and waited for, and the records that are unreadable.
fn records(location: &Location, engine: &Engine) -> Vec<Finding> {
    let (mut held, mut waiting, mut unreadable) = (0, 0, Vec::new());
    let scanned = engine.for_each_lock(&mut |status| {
        match status {
            Ok(status) => {
                held += u64::from(status.is_held());
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
    if let [error, others @ ..] = unreadable.as_slice() {
        let store = shell_quote(location.url().as_encoded_bytes());
        let cure = format!("run `csalock status --store {store}`: it names each with the next step");
        let others = if others.is_empty() { String::new() } else { format!("; and {} more", others.len()) };
        findings.push(Finding::doubtful("records", format!("unreadable: {}{others}", error.message()), cure));
    }
    findings
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
        Finding::good(
            "clock",
            format!("it differs from this host's by less than {}; no lease ends by either", span(FAR)),
        )
    }))
}
