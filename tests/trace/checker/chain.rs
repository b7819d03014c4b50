//! The chain of a name's versions: each from the one before, from the first on.

use std::collections::{BTreeMap, BTreeSet};

use lock::{Record, decode, is_auxiliary};

use super::rules::beside;
use super::{Key, Known, Report, Step, Version, named};

/// The record in these bytes; `None` if it is something else.
pub(super) fn record(body: &[u8], number: u64) -> Option<Record> {
    if is_auxiliary(body) { None } else { decode(body, number).ok() }
}

/// The steps that happened, in their order, each with its version. `end`: what stands there now, if that is known.
pub(super) fn link(
    key: &Key,
    steps: &[Step],
    end: Option<Option<&(Version, Vec<u8>)>>,
    report: &mut Report,
) -> Vec<Step> {
    // The removal of what is not there changes nothing.
    let changes = steps.iter().filter(|step| !(step.is_removal() && step.intent.expect.is_none()));
    let (mut chain, mut open): (Vec<Step>, Vec<Step>) = changes.cloned().partition(|step| step.known == Known::Stored);
    // A process that was killed is the likeliest; a conflict was most often one.
    open.sort_by_key(|step| step.known);
    fill(key, &mut chain, &mut open, end.flatten());
    let mut segments = segments(key, chain, report);
    // A removal without a result: nothing names the version after it.
    for at in 0..segments.len() {
        let is_last = at + 1 == segments.len();
        let is_removed = if is_last { end == Some(None) } else { true };
        let Some(last) = segments[at].last().filter(|last| is_removed && !last.is_removal()) else { continue };
        let removes = |step: &Step| step.is_removal() && step.intent.expect == last.version;
        match open.iter().position(removes) {
            Some(found) => {
                let removal = Step { version: last.version, ..open.remove(found) };
                segments[at].push(removal);
            }
            None => {
                let next = segments.get(at + 1).map(|next| next[0].shown());
                report.wrong.push(format!("{}: no commit removes {}\nthen {next:?}", named(key), last.shown()));
            }
        }
    }
    let last = segments.last().and_then(|segment| segment.last());
    let stands = last.filter(|last| !last.is_removal());
    let found = end.flatten();
    if end.is_some()
        && (stands.map(|step| step.version) != found.map(|(version, _)| Some(*version))
            || stands.and_then(|step| step.intent.body.as_ref()).map(|body| &body.0) != found.map(|(_, body)| body))
        && !(found.is_none() && stands.is_some())
    {
        report.wrong.push(format!(
            "{}: the store has {found:?}, the last commit is {:?}",
            named(key),
            last.map(Step::shown)
        ));
    }
    segments.into_iter().flatten().collect()
}

/// The successor of a version: another step, or the end.
enum Needs<'a> {
    Step(&'a Step),
    End(&'a [u8]),
}

impl Needs<'_> {
    /// Whether this may be the body of the version that it builds on.
    fn fits(&self, key: &Key, body: &[u8], number: u64) -> bool {
        match self {
            Needs::End(found) => body == *found,
            Needs::Step(step) => match &step.intent.before {
                Some(before) => record(body, number) == record(&before.0, number),
                None => beside(key, Some(body), step).is_ok(),
            },
        }
    }
}

/// Moves steps without a result to the chain that explain a version which another step, or the end, builds on.
fn fill(key: &Key, chain: &mut Vec<Step>, open: &mut Vec<Step>, end: Option<&(Version, Vec<u8>)>) {
    loop {
        let made: BTreeSet<Version> =
            chain.iter().filter(|step| !step.is_removal()).filter_map(|step| step.version).collect();
        let built_on: BTreeSet<Version> = chain.iter().filter_map(|step| step.intent.expect).collect();
        let needed = chain
            .iter()
            .filter_map(|step| Some((step.intent.expect?, Needs::Step(step))))
            .chain(end.map(|(version, body)| (*version, Needs::End(body))))
            .filter(|(version, _)| !made.contains(version));
        let mut explained = needed.filter_map(|(version, needs)| {
            let fits = |step: &Step| {
                let is_next =
                    step.intent.expect.is_none_or(|expect| expect.0 < version.0 && !built_on.contains(&expect));
                is_next && step.intent.body.as_ref().is_some_and(|body| needs.fits(key, &body.0, version.0))
            };
            // A creation fits only if a removal is missing too.
            let replaces = |step: &Step| step.intent.expect.is_some() && fits(step);
            Some((open.iter().position(replaces).or_else(|| open.iter().position(fits))?, version))
        });
        let Some((at, version)) = explained.next() else { return };
        drop(explained);
        let step = open.remove(at);
        chain.push(Step { version: Some(version), ..step });
    }
}

/// The lives of a name, from its creation to its removal, in their order.
fn segments(key: &Key, chain: Vec<Step>, report: &mut Report) -> Vec<Vec<Step>> {
    let mut starts: Vec<Step> = Vec::new();
    let mut after: BTreeMap<Version, Step> = BTreeMap::new();
    for step in chain {
        match step.intent.expect {
            None => starts.push(step),
            Some(expect) => {
                if let Some(other) = after.insert(expect, step) {
                    let step = &after[&expect];
                    report.wrong.push(format!(
                        "{}: two commits replace one version: {}\n{}",
                        named(key),
                        other.shown(),
                        step.shown()
                    ));
                }
            }
        }
    }
    starts.sort_by_key(|step| step.version);
    let mut segments: Vec<Vec<Step>> = Vec::new();
    let mut highest = 0;
    for start in starts {
        let mut number = start.version.map_or(0, |(number, _)| number);
        if number <= highest {
            report.wrong.push(format!(
                "{}: the version of a new record is not above {highest}: {}",
                named(key),
                start.shown()
            ));
        }
        let mut segment = vec![start];
        while let Some(next) = segment.last().and_then(|last| after.remove(&last.version?)) {
            let rises = next.version.is_some_and(|(next, _)| next > number);
            number = number.max(next.version.map_or(0, |(next, _)| next));
            let ends = next.is_removal();
            if !rises && !ends {
                report.wrong.push(format!("{}: the version does not rise: {}", named(key), next.shown()));
            }
            segment.push(next);
            if ends {
                break;
            }
        }
        highest = highest.max(number);
        segments.push(segment);
    }
    let made: BTreeSet<Version> = after.values().filter_map(|step| step.version).collect();
    for (expect, step) in &after {
        if !made.contains(expect) {
            report.wrong.push(format!("{}: no commit explains the version before {}", named(key), step.shown()));
        }
    }
    segments
}
