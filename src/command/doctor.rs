//! `csalock doctor`: checks whether a store is suitable.
//!
//! A store reports what only it knows ([`crate::store::Store::diagnose`]). This module checks every store alike,
//! through the engine. The self-test uses a lock under a name that cannot be typed. It runs in the store or, if the
//! store does not exist yet, in a temporary store.

mod contents;
mod self_test;

use std::ffi::OsStr;

use super::context::{Context, print, print_json};
use crate::cli::Doctor;
use crate::duration::shown as span;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::name::escape;
use crate::report::{HealthJson, OutputStyle, health};
use crate::signals::Signals;
use crate::store::{self, Finding, Location, Scope, Scratch, Verdict};

/// Maximum width of a line in columns, however wide the terminal is.
const WIDEST: usize = 100;

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
    tell(asked, &url, &findings)?;
    let is_bad = findings.iter().any(|finding| finding.verdict == Verdict::Bad);
    Ok(if is_bad { ErrorKind::Unavailable.into() } else { Exit::Done })
}

fn tell(asked: &Doctor, url: &OsStr, findings: &[Finding]) -> anyhow::Result<()> {
    if asked.common.json {
        return print_json(&HealthJson::new(url.as_encoded_bytes(), findings));
    }
    let style = super::status::output_style(&asked.common, false);
    print(health(findings, OutputStyle { width: style.width.map(|width| width.min(WIDEST)), ..style }))
}

/// Returns all findings.
fn examine(context: &Context, location: &Location, signals: &Signals) -> Vec<Finding> {
    let engine = match context.engine(location) {
        Ok(engine) => engine,
        Err(error) => {
            let mut findings = vec![Finding::failed("store", &error)];
            findings.extend(store::path_findings(location));
            return findings;
        }
    };
    let mut findings = engine.store().diagnose();
    findings.push(hosts(&engine));
    findings.extend(host(&engine));
    findings.extend(contents::findings(context, location, &engine));
    drop(engine);
    // If the records cannot be read, a second wait for the store is useless.
    let is_readable = findings.iter().all(|finding| finding.topic != "records" || finding.verdict != Verdict::Bad);
    if is_readable && !signals.pending() {
        findings.extend(self_test(context, location).unwrap_or_else(|error| vec![Finding::failed("locks", &error)]));
    }
    findings
}

/// Tests that a lock can be acquired, refused and released.
fn self_test(context: &Context, location: &Location) -> Result<Vec<Finding>> {
    let mark: String = context.host.random()?.iter().map(|byte| format!("{byte:02x}")).collect();
    let scratch = Scratch::of(location, &mark)?;
    let location = scratch.as_ref().map_or(location, |scratch| &scratch.location);
    self_test::findings(context, location, &mark)
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
            Some(Finding::doubtful(
                "host",
                format!(
                    "it has no /etc/machine-id, so it is known by its name alone: \"{}\"",
                    escape(engine.host().name().as_bytes())
                ),
                "make one (systemd-machine-id-setup), or check that no two hosts have one name",
            ))
        }
        Ok(_) => None,
    }
}

/// Returns an error for an unexpected result.
fn unexpected(what: &str) -> Error {
    Error::new(ErrorKind::Bug, what, "report this as a bug, unless another program writes to the store")
}
