//! `csalock doctor`: whether a store will do.
//!
//! What only the store knows, it says itself ([`crate::store::Store::examine`]); what is asked of every store alike is
//! asked here, through the engine. A lock is tried out under a name that nobody can type: in the store, or where there is
//! no store yet in one that is made for it and removed again.

mod contents;
mod self_test;

use std::ffi::OsStr;

use super::context::{Context, exactly_one, print, print_json};
use crate::child::Helper;
use crate::cli::Doctor;
use crate::duration::shown as span;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::name::escape;
use crate::report::{HealthJson, OutputStyle, health};
use crate::signals::Signals;
use crate::store::{self, Finding, Location, Scope, Scratch, Verdict};
use crate::terminal;

/// No line is longer, however wide the terminal is.
const WIDEST: usize = 100;

pub(super) fn run(context: &Context, asked: &Doctor) -> anyhow::Result<Exit> {
    let location = match asked.names.as_slice() {
        [] => context.store(&asked.common),
        names => context.target(&asked.common, exactly_one(names)?).map(|target| target.location),
    };
    // Whoever interrupts us is heard when nothing of ours is left in the store.
    let signals = Signals::listen(context.inherited)?;
    let (url, findings) = match &location {
        Ok(location) => (location.url(), examine(context, location, &signals)),
        Err(error) if error.exit() == Exit::Usage => return Err(error.clone().into()),
        Err(error) => {
            let typed = asked.names.first().or(asked.common.store.as_ref());
            (typed.cloned().unwrap_or_default(), vec![Finding::failed("store", error)])
        }
    };
    if signals.pending() {
        return Ok(signals.exit());
    }
    tell(asked, &url, &findings)?;
    let is_bad = findings.iter().any(|finding| finding.verdict == Verdict::Bad);
    Ok(if is_bad { Exit::Unreachable } else { Exit::Done })
}

fn tell(asked: &Doctor, url: &OsStr, findings: &[Finding]) -> anyhow::Result<()> {
    if asked.common.json {
        return print_json(&HealthJson::new(url.as_encoded_bytes(), findings));
    }
    let stdout = std::io::stdout();
    let columns =
        if std::io::IsTerminal::is_terminal(&stdout) { terminal::size(&stdout).1 } else { crate::report::WIDTH };
    let paper = OutputStyle { colour: super::status::colour(), width: columns.clamp(crate::report::WIDTH, WIDEST) };
    print(&health(findings, paper))
}

/// Everything that is found.
fn examine(context: &Context, location: &Location, signals: &Signals) -> Vec<Finding> {
    let engine = match context.engine(location) {
        Ok(engine) => engine,
        Err(error) => {
            let mut findings = vec![Finding::failed("store", &error)];
            findings.extend(store::surroundings(location));
            return findings;
        }
    };
    let mut findings = engine.store().diagnose();
    findings.push(hosts(&engine));
    findings.extend(host(&engine));
    findings.extend(contents::findings(context, location, &engine));
    drop(engine);
    // What cannot even be read need not be waited for again.
    let is_readable = findings.iter().all(|finding| finding.topic != "records" || finding.verdict != Verdict::Bad);
    if is_readable && !signals.pending() {
        findings
            .extend(tried(context, location, signals).unwrap_or_else(|error| vec![Finding::failed("locks", &error)]));
    }
    findings
}

/// A lock is taken, refused, waited for and given back.
fn tried(context: &Context, location: &Location, signals: &Signals) -> Result<Vec<Finding>> {
    let mark: String = context.host.random()?.iter().map(|byte| format!("{byte:02x}")).collect();
    let scratch = Scratch::of(location, &mark);
    let location = scratch.as_ref().map_or(location, |scratch| &scratch.location);
    // Before anything is open that must not be carried over a fork.
    let other = Helper::fork(|line| self_test::act_as_other(context, location, &mark, line))?;
    Ok(self_test::Trial::new(context, location, &mark, other, signals)?.findings())
}

/// Who shares it, and what follows from that.
fn hosts(engine: &Engine) -> Finding {
    let lease = span(engine.lease());
    let shared = format!("other hosts may share it: who holds a lock renews a lease of {lease}, and");
    Finding::good(
        "hosts",
        match (engine.store().scope(), engine.store().can_notify()) {
            (Scope::Local, _) => {
                "this host alone: the end of an owner is seen at once, and waiters are woken".to_string()
            }
            (Scope::Shared, true) => format!("{shared} waiters on other hosts are woken by the store"),
            (Scope::Shared, false) => format!("{shared} waiters on other hosts look again every so often"),
        },
    )
}

/// What keeps processes of this host from being known again. Nothing is said where all is well.
fn host(engine: &Engine) -> Option<Finding> {
    let known = engine.host().domain().and_then(|domain| engine.host().this_process().map(|_| domain));
    match known {
        Err(error) => Some(Finding::failed("host", &error)),
        Ok(home) if engine.store().scope() == Scope::Shared && home.machine.starts_with('@') => {
            Some(Finding::doubtful(
                "host",
                format!(
                    "it has no /etc/machine-id, so it is known by its name alone: {}",
                    escape(engine.host().name().as_bytes())
                ),
                "make one (systemd-machine-id-setup), or see that no two hosts have one name",
            ))
        }
        Ok(_) => None,
    }
}

/// An error where something else was expected.
fn unexpected(what: &str) -> Error {
    Error::new(Exit::Bug, what, "this is a bug, or somebody else writes to the store")
}
