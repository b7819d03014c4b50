//! Every system call of every command, as the last call of its process, and as a call that fails: with each plausible
//! error, as if the reply had been lost, or with a full disk or no descriptors from there on. After each of them: the
//! holders are exactly the callers that were told so; waiters and the next caller get in; values and claims exist
//! wholly or not at all; the store has its old weight; every output is true or says what is unknown.
//!
//! The calls before `main` are left out. `CSALOCK_TESTS=hours` tries a kill before every call, and each way to fail
//! each time. The others take a sample of the points that differ: a kill after each call that others can see, because a
//! later read before it makes no difference, and each way to fail once for each command, process, call and path. `quick`
//! does so in a third of the scenarios, others for each commit; `all` in every one. Each test prints how many points it
//! tried. `CSALOCK_SCENARIO=PART` selects scenarios.

pub(crate) mod calls;
pub(crate) mod fixture;
pub(crate) mod invariants;
pub(crate) mod scenarios;
pub(crate) mod tracer;

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;
use std::time::Instant;

use self::fixture::{Before, Fixture, Place};
use self::invariants::Mishap;
use self::scenarios::{ALL, Scenario};
use self::tracer::{Fault, Made, Point, Traced, trace};

use crate::extent::{choose, is_complete, scenario_part, turn};
use crate::sandbox::{PREFIX, csalock, skip};

/// Number of points in a sample of each scenario.
const SAMPLE: usize = 3;

/// Number of failures of a call that is repeated.
const MOST_TIMES: usize = 3;

cases! {
    fn every_system_call_on_a_directory() { every_call(Place::Directory) }
    fn beside_files() { every_call(Place::Beside) }
    fn every_system_call_on_a_shared_directory() { every_call(Place::Shared) }
    fn every_system_call_on_sqlite() { every_call(Place::Sqlite) }
}

fn every_call(place: Place) {
    if !cfg!(target_arch = "x86_64") {
        return skip("every system call", "only on x86-64 it is known how to make one fail");
    }
    let mut tried = 0;
    let mut known = HashSet::new();
    let mut failures = Vec::new();
    let begun = Instant::now();
    for scenario in scenarios() {
        // Beside files no history is kept, and only SQLite has a log.
        let is_for_sqlite = scenario.before.contains(&Before::FullLog);
        if (place == Place::Beside && scenario.words[0] == "history") || (place != Place::Sqlite && is_for_sqlite) {
            continue;
        }
        let begun = Instant::now();
        let (points, failed) = every_call_of(place, scenario, &mut known);
        println!("{place:?}: {}: {points} points, {} failed, {:?}", scenario.name, failed.len(), begun.elapsed());
        failed.iter().for_each(|failed| println!("{failed}\n"));
        tried += points;
        failures.extend(failed);
    }
    println!("{place:?}: {tried} points in {:?}, {} failed", begun.elapsed(), failures.len());
    assert!(failures.is_empty(), "{} of {tried}:\n{}", failures.len(), failures.join("\n\n"));
}

/// The scenarios that are wanted. Without a part of their names, a quick run has one in three.
pub(crate) fn scenarios() -> impl Iterator<Item = &'static Scenario> {
    let part = scenario_part();
    let is_wanted = |scenario: &&Scenario| part.as_ref().is_none_or(|part| scenario.name.contains(part));
    let wanted: Vec<_> = ALL.iter().filter(is_wanted).collect();
    assert!(!wanted.is_empty(), "CSALOCK_SCENARIO={}: no scenario has this in its name", part.unwrap_or_default());
    let third = (turn() % 3, 3);
    let (first, every) = if part.is_none() { choose(third, (0, 1), (0, 1)) } else { (0, 1) };
    wanted.into_iter().skip(first).step_by(every)
}

fn every_call_of(place: Place, scenario: &Scenario, known: &mut HashSet<String>) -> (usize, Vec<String>) {
    let weight = Fixture::set(place, &[]);
    let _ = weight.call(&["run", "-n", "X", "--also", "Y", "true"]).capture();
    weight.call(&["gc"]).capture();
    let weight = weight.weight();
    let mut failures = Vec::new();
    let (run, verdict) = play(place, scenario, None, &weight, None);
    if let Err(why) = verdict {
        return (1, vec![format!("{place:?}: {}: nothing happens: {why}\n{}", scenario.name, said(&run))]);
    }
    let undisturbed = run.stdout;
    let mut points = points(scenario, &run.made, known);
    if !is_complete() {
        let (every, first) = (points.len().div_ceil(SAMPLE).max(1), turn() / 3);
        points = points.into_iter().skip(first % every).step_by(every).collect();
    }
    for point in &points {
        let (run, verdict) = play(place, scenario, Some(*point), &weight, Some(&undisturbed));
        if let Err(why) = verdict {
            failures.push(format!("{place:?}: {}: {}: {why}\n{}", scenario.name, shown(point, &run), said(&run)));
        }
    }
    (points.len(), failures)
}

fn play(
    place: Place,
    scenario: &Scenario,
    point: Option<Point>,
    weight: &[String],
    undisturbed: Option<&str>,
) -> (Traced, Result<(), String>) {
    let mut fixture = Fixture::set(place, scenario.before);
    let run = trace(fixture.call(scenario.words).into_command(), point);
    let mishap = match point.filter(|_| run.met.is_some()).map(|point| point.fault) {
        None => Mishap::None,
        Some(Fault::Killed | Fault::AllKilled) => Mishap::Killed,
        Some(_) => Mishap::Failed,
    };
    let verdict = invariants::check(&mut fixture, scenario, mishap, &run, weight, undisturbed);
    (run, verdict)
}

/// The points of these calls: all of them, or those that differ.
fn points(scenario: &Scenario, made: &[Vec<Made>], known: &mut HashSet<String>) -> Vec<Point> {
    let mut points = Vec::new();
    for (process, calls) in made.iter().enumerate() {
        let first = if process == 0 { before_main() } else { 0 };
        let mut times: HashMap<String, usize> = HashMap::new();
        for (call, made) in calls.iter().enumerate().skip(first) {
            let mut add = |fault| points.push(Point { process, call, number: made.number, fault });
            if is_complete() || call == first || calls::is_seen(&calls[call - 1]) {
                add(Fault::Killed);
                if process > 0 {
                    add(Fault::AllKilled);
                }
            }
            let what = format!("{} {}", calls::name(made.number), anonymous(&made.path));
            let time = times.entry(what.clone()).or_default();
            *time += 1;
            for fault in calls::faults(made) {
                let key = format!("{} {process} {what} {time} {fault:?}", scenario.words[0]);
                if is_complete() || (*time <= MOST_TIMES && known.insert(key)) {
                    add(fault);
                }
            }
        }
    }
    points
}

/// A path without what is different each time.
fn anonymous(path: &str) -> String {
    let part = |part: &str| match part {
        _ if part.starts_with(PREFIX) && part.len() == 6 => "SANDBOX".to_string(),
        _ if part.len() > 20 && part.bytes().all(|byte| byte.is_ascii_hexdigit()) => "ID".to_string(),
        _ if part.len() > 1 && part.bytes().all(|byte| byte.is_ascii_digit()) => "N".to_string(),
        _ => part.to_string(),
    };
    path.split(['/', '.', '%']).map(part).collect::<Vec<_>>().join("/")
}

/// How many calls are made before the program begins: those that are the same whatever it is to do.
pub(crate) fn before_main() -> usize {
    static CALLS: OnceLock<usize> = OnceLock::new();
    *CALLS.get_or_init(|| {
        let made = |word: &str| {
            let mut command = std::process::Command::new(csalock());
            command.arg(word).env_clear();
            trace(command, None).made.remove(0)
        };
        let (one, other) = (made("--version"), made("--no-such-option"));
        one.iter().zip(&other).take_while(|(one, other)| one.number == other.number).count()
    })
}

pub(crate) fn shown(point: &Point, run: &Traced) -> String {
    let what = run.met.as_ref().map_or("never made".to_string(), |made| {
        format!("{} {} {:x?}", calls::name(made.number), made.path, &made.arguments[..4])
    });
    format!("process {} call {} {:?} ({what})", point.process, point.call, point.fault)
}

pub(crate) fn said(run: &Traced) -> String {
    format!("  {:?} {:?} {:?}", run.status, run.stdout, run.stderr)
}
