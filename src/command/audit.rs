//! `csalock audit`

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use super::context::{Context, eprint_line, print, print_json};
use super::history::{Filter, none_in, standing};
use crate::cli::Audit;
use crate::engine::{Engine, LockStatus};
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::history::{self, Past};
use crate::lock::EndReason;
use crate::name::escape;
use crate::report::{AuditReport, OutputStyle};

/// The history of the requested locks, and what the records show about it.
#[derive(Default)]
struct Material {
    /// The grants that ended, in the order of their lines; then those that are still in a record.
    grants: Vec<Past>,
    ended: Vec<Past>,
    /// Number of lines, or parts of them, that cannot be read.
    unreadable_lines: usize,
    /// The time at which the first line of the store was written, in milliseconds since 1970.
    begin: Option<u64>,
    /// Number of bytes of the lines.
    size: u64,
    unreadable: Vec<Error>,
}

pub(super) fn run(context: &Context, asked: &Audit) -> anyhow::Result<Exit> {
    let location = context.store(&asked.common)?;
    let wanted = Filter::of(context, &asked.common, &asked.names)?;
    let engine = context.engine(&location)?;
    let style = super::status::output_style(&asked.common, asked.utc);
    // A grant in a record has not ended before the record is read.
    let now = context.host.wall();
    let material = Material::of(&engine, &wanted)?.ok_or_else(|| none_in(&location))?;
    let since = asked.since.as_ref().map_or(0, |time| time.span(style.zone, now).0);
    let limits = context.environment.history()?;
    let from = if since > 0 { since } else { material.begin.unwrap_or(0) };
    let is_cut = limits.may_have_cut(material.size, Duration::from_millis(from), now);
    let unknown = material.unknown(since, is_cut, asked.tolerance, style);
    let stands = |past: &&Past| past.to.is_none_or(|to| to >= since);
    let grants: Vec<Past> = material.grants.iter().filter(stands).cloned().collect();
    let audit = history::audit(&grants, asked.tolerance.as_millis() as u64, now.as_millis() as u64);
    let locks = grants.iter().map(|past| past.name.as_slice()).collect::<BTreeSet<_>>().len();
    let mut report =
        AuditReport { grants: grants.len(), locks, faults: &audit.faults, unknown, tolerance: asked.tolerance };
    if audit.misdated > 0 {
        let by = crate::duration::shown(Duration::from_millis(audit.misdated_by));
        let what = format!(
            "times contradict tokens {}, by {by} at most: a clock was set, or clocks of hosts differ",
            times(audit.misdated)
        );
        report.unknown.push(("clock", what));
    }
    // The name of a record that cannot be read is unknown.
    let known = material.grants.iter().chain(&material.ended);
    let unknown_names = if material.unreadable.is_empty() { wanted.unknown(known, &location) } else { Vec::new() };
    let is_of_nothing = material.grants.is_empty() && !unknown_names.is_empty();
    let has_faults = !audit.faults.is_empty() || !material.unreadable.is_empty();
    if asked.common.json {
        report.unknown.extend(unknown_names.iter().map(|refusal| ("name", refusal.message.clone())));
        print_json(&report.json())?;
    } else {
        // A mistyped name must not pass the quiet check of every night.
        unknown_names.iter().for_each(|refusal| eprint_line(&refusal.to_string()));
        if has_faults || !(asked.common.quiet || is_of_nothing) {
            print(report.text(&context.host.name(), style))?;
        }
    }
    let unknown_name = unknown_names.first().map_or(Exit::Done, |refusal| refusal.kind.into());
    Ok(if has_faults { ErrorKind::Corrupt.into() } else { unknown_name })
}

fn example(past: &Past) -> String {
    let token = past.token.map_or("-".to_string(), |token| token.to_string());
    format!("for example {}, token {token}", escape(&past.name))
}

fn times(number: usize) -> String {
    if number == 1 { "once".to_string() } else { format!("{number} times") }
}

impl Material {
    /// Reads the records and then the history. Returns `None` if the store has no history.
    fn of(engine: &Engine, wanted: &Filter) -> Result<Option<Material>> {
        let mut material = Material::default();
        let mut held: Vec<Past> = Vec::new();
        wanted.each_lock(engine, &mut |status| match status {
            Ok(status) => {
                material.ended.extend(ended(engine, &status));
                held.extend(standing(engine, &status));
            }
            Err(error) => material.unreadable.push(error),
        })?;
        let Material { grants, unreadable_lines, begin, size, .. } = &mut material;
        let has_history = engine.each_line_of_history(&mut |past| match past {
            None => *unreadable_lines += 1,
            Some(past) => {
                *begin = begin.iter().copied().chain(past.to).min();
                *size += past.line().len() as u64;
                grants.push(past);
            }
        })?;
        let of_history: HashSet<_> = grants.iter().map(key).collect();
        material.ended.retain(|past| !of_history.contains(&key(past)));
        held.retain(|past| !of_history.contains(&key(past)));
        drop(of_history);
        // A grant in a record had no end when the record was read.
        material.grants.extend(held.into_iter().map(|past| Past { to: None, ..past }));
        let exact = wanted.exact(&material.grants);
        let is_wanted = |past: &Past| wanted.has(&past.name, &exact);
        material.grants.retain(is_wanted);
        material.ended.retain(is_wanted);
        Ok(has_history.then_some(material))
    }

    /// Returns the limits of an audit of the grants that ended since this time, of which some may have been cut.
    fn unknown(
        &self,
        since: u64,
        is_cut: bool,
        tolerance: Duration,
        style: OutputStyle,
    ) -> Vec<(&'static str, String)> {
        let mut unknown = Vec::new();
        match self.begin {
            None => unknown.push(("beginning", "the history is empty".to_string())),
            Some(begin) if begin > since && is_cut => {
                let begin = style.zone.full(Duration::from_millis(begin));
                unknown.push(("beginning", format!("the history begins at {begin}; earlier grants are not kept")));
            }
            Some(_) => {}
        }
        if self.unreadable_lines > 0 {
            unknown.push(("unreadable", format!("the history cannot be read {}", at_places(self.unreadable_lines))));
        }
        unknown.extend(self.unreadable.iter().map(|error| ("record", error.to_string())));
        // The ends of other grants may have been removed with the beginning of the history.
        let is_missing = |past: &&Past| past.from >= self.begin.unwrap_or(0);
        let missing: Vec<&Past> = self.ended.iter().filter(is_missing).collect();
        if let Some(past) = missing.last() {
            let number = missing.len();
            let which = if number == 1 { "an ending that a record shows" } else { "endings that records show" };
            unknown.push(("missing", format!("the history lacks {which} ({number}), {}", example(past))));
        }
        let since = |past: &&Past| past.to.is_none_or(|to| to >= since);
        for (what, how, before, after) in [
            ("broken", EndReason::Broken, "--force broke", ": a holder may have gone on"),
            ("expired", EndReason::Expired, "the time ran out of", ": a script may have gone on"),
        ] {
            let ended: Vec<&Past> = self.grants.iter().filter(|past| past.how == Some(how)).filter(since).collect();
            if let Some(past) = ended.last() {
                let grants = if ended.len() == 1 { "1 grant".to_string() } else { format!("{} grants", ended.len()) };
                unknown.push((what, format!("{before} {grants}, {}{after}", example(past))));
            }
        }
        let hosts: BTreeSet<&str> = self.grants.iter().map(|past| past.holder.host.as_str()).collect();
        if hosts.len() > 1 {
            let names: Vec<String> = hosts.iter().map(|host| escape(host.as_bytes())).collect();
            let tolerance = crate::duration::shown(tolerance);
            unknown.push((
                "hosts",
                format!(
                    "the times are those of {} hosts ({}); their clocks may differ by {tolerance}",
                    hosts.len(),
                    names.join(", ")
                ),
            ));
        }
        unknown
    }
}

fn at_places(number: usize) -> String {
    if number == 1 { "at 1 place".to_string() } else { format!("at {number} places") }
}

fn ended(engine: &Engine, status: &LockStatus) -> Vec<Past> {
    let grants = status.record.ended_grants.iter().map(|ending| &ending.grant);
    grants.map(|grant| Past::held(&status.record.name, grant, engine.pid(&grant.owner))).collect()
}

/// Returns what tells a grant from the others of its store.
fn key(past: &Past) -> (Vec<u8>, Option<u64>, u32, u64) {
    (past.name.clone(), past.token, past.slot, past.from)
}
