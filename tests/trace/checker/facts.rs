//! Whether the facts that commits were decided by agree with each other and with what the log shows.

use std::collections::{BTreeMap, HashMap};

use engine::trace::{Decided, Line};
use lock::{CommitRecord, Lease, LeaseClock, Liveness, Page, boot_of};

use super::{Key, Known, Report, Step, named};

/// The first observation of the end of a lease, and its process.
type Over = HashMap<String, (u64, String)>;

pub(super) fn check(lines: &[Line], names: &BTreeMap<Key, Vec<Step>>, report: &mut Report) {
    let mut last_seen = HashMap::new();
    for line in lines {
        let seen = last_seen.entry((line.domain.clone(), line.process)).or_insert(line.at);
        *seen = line.at.max(*seen);
    }
    let mut over = Over::new();
    let steps = || names.iter().flat_map(|(key, steps)| steps.iter().map(move |step| (key, step)));
    let decided = || steps().filter_map(|(key, step)| Some((key, step, step.intent.decided.as_ref()?)));
    for (_, step, decided) in decided() {
        for (lease, _) in decided.facts.lease_expired.values().flatten().filter(|(_, over)| *over) {
            let first = over.entry(of_boot(step, lease)).or_insert((decided.until, step.who.1.pid.to_string()));
            first.0 = first.0.min(decided.until);
        }
    }
    for (key, step, decided) in decided() {
        let mut wrong = |why: String| report.wrong.push(format!("{}: {why}: {}", named(key), step.shown()));
        let processes =
            decided.facts.liveness.iter().flat_map(|(process, known)| known.iter().map(move |it| (process, it)));
        for (process, (home, _)) in processes.filter(|(_, (_, fate))| *fate == Liveness::Dead) {
            let seen = last_seen.get(&(home.clone(), *process)).filter(|_| home.boot == step.who.0.boot);
            if let Some(at) = seen.filter(|at| **at > decided.until) {
                wrong(format!("process {} is taken for dead, but commits at {at}", process.pid));
            }
        }
        for (lease, is_over) in decided.facts.lease_expired.values().flatten() {
            if let Err(why) = may_be(step, lease, *is_over, decided, &over) {
                wrong(why);
            }
        }
        for (proof, _) in decided.facts.committed.iter().filter(|(_, made)| *made) {
            let of_it = steps().filter(|((_, name), _)| *name == CommitRecord::key(proof));
            let bodies = of_it.filter_map(|(_, step)| engine::trace::decision(&step.intent.body.as_ref()?.0));
            if !bodies.into_iter().any(|decision| decision.committed) {
                wrong(format!("no commit makes the decision of {proof}"));
            }
        }
        for (number, waiters) in &decided.facts.pages {
            let of_it = names.get(&(place_of(names, &Page::key(&key.1, *number)), Page::key(&key.1, *number)));
            let bodies = of_it.into_iter().flatten().filter_map(|step| step.intent.body.as_ref());
            let mut pages = bodies.filter_map(|body| engine::trace::page(&body.0));
            if !pages.any(|page| page.sealed && page.waiters == *waiters) {
                wrong(format!("page {number} was never sealed with these waiters"));
            }
        }
    }
}

fn place_of(names: &BTreeMap<Key, Vec<Step>>, name: &[u8]) -> String {
    names.keys().find(|(_, known)| known == name).map(|(place, _)| place.clone()).unwrap_or_default()
}

/// A lease, with the boot on whose clock the log has the times; and the process, where each counts for itself.
fn of_boot(step: &Step, lease: &Lease) -> String {
    // A host may have processes of one number in several pid namespaces.
    let process = matches!(lease.clock, LeaseClock::FileSystem(_)).then_some((&step.who.0.pids, step.who.1));
    format!("{} {process:?} {lease:?}", step.who.0.boot)
}

fn may_be(step: &Step, lease: &Lease, is_over: bool, decided: &Decided, over: &Over) -> Result<(), String> {
    if let LeaseClock::Boot(boot) = &lease.clock
        && *boot == step.who.0.boot
    {
        // The clock is rounded down to milliseconds on both sides.
        if is_over && lease.ends > decided.until + 1 {
            return Err(format!("a lease is taken for over {} ms early", lease.ends - decided.until));
        }
        if !is_over && lease.ends < decided.from {
            return Err(format!("a lease that ended {} ms ago is taken for standing", decided.from - lease.ends));
        }
    }
    if let LeaseClock::FileSystem(begun) = &lease.clock
        && begun.boot == boot_of(&step.who.0.boot)
        && is_over
        && begun.at / 1000 + begun.span > decided.until + 1
    {
        return Err(format!("a lease is taken for over {} ms early", begun.at / 1000 + begun.span - decided.until));
    }
    // A step counts a lease as standing if it reads, after its facts, that the record has lost it. The step is late,
    // and its commit conflicts or its result stays unknown.
    if step.known != Known::Stored {
        return Ok(());
    }
    match over.get(&of_boot(step, lease)) {
        Some((at, who)) if !is_over && *at < decided.from => {
            Err(format!("a lease that {who} saw over at {at} stands again"))
        }
        _ => Ok(()),
    }
}
