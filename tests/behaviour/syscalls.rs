//! Every system call of every command, as the last one that its process makes, and as one that fails: with each error that
//! makes sense there, or as if the reply had been lost, or with a full disk or no descriptors from there on. After each:
//! nobody holds who was not told, whoever was told holds, waiters and the next one get in, values and claims are there
//! wholly or not at all, the store weighs what it weighed, every answer is true or says what could not be found out.
//!
//! The calls before `main` are left out. A kill is tried after each call that others can see, since one more look before
//! it makes no difference; and each way to fail once for each command, process, call and path.
//!
//! `CSALOCK_SYSCALLS`: nothing is a sample, other points in each run; `all` is what is said above; `every` leaves nothing
//! out. `all:PART` is all of those scenarios whose name has PART in it. `all` has about 6,900 points on a directory store,
//! 6,800 beside files, 8,700 on a directory that is shared and 9,500 on SQLite. On two idle cores 25 to 40 of them take a
//! second.

pub(crate) mod calls;
pub(crate) mod fixture;
pub(crate) mod invariants;
pub(crate) mod scenarios;
pub(crate) mod tracer;

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;
use std::time::Instant;

use self::fixture::{Place, Stage};
use self::invariants::Mishap;
use self::scenarios::{ALL, Scenario};
use self::tracer::{Fault, Made, Point, Traced, trace};

use crate::sandbox::{CSALOCK, skip};

/// `all`: every point. Else a part of the name of a scenario: every point of it. Nothing: a sample.
const WHICH: &str = "CSALOCK_SYSCALLS";

/// So many points a sample has of each scenario.
const SAMPLE: usize = 3;

/// A call that is made on and on fails so often.
const MOST_TIMES: usize = 3;

#[test]
fn of_a_directory() {
    every_call(Place::Directory);
}

#[test]
fn beside_files() {
    every_call(Place::Beside);
}

#[test]
fn of_a_shared_directory() {
    every_call(Place::Shared);
}

#[test]
fn of_sqlite() {
    every_call(Place::Sqlite);
}

/// How much is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    Sample,
    /// Each way to fail at a call with one path once for each command, and a kill after each call that others can see.
    All,
    /// All calls in all scenarios.
    Every,
}

/// What the environment says is to be tried, and in which scenarios.
pub(crate) fn extent() -> (Extent, String) {
    let which = std::env::var(WHICH).unwrap_or_default();
    let (extent, part) = which.split_once(':').unwrap_or((&which, ""));
    let extent = match extent {
        "" => Extent::Sample,
        "all" => Extent::All,
        "every" => Extent::Every,
        other => panic!("{WHICH} is {other:?}"),
    };
    (extent, part.to_string())
}

fn every_call(place: Place) {
    if !cfg!(target_arch = "x86_64") {
        return skip("every system call", "only on x86-64 it is known how to make one fail");
    }
    let (extent, part) = extent();
    let mut tried = 0;
    let mut known = HashSet::new();
    let mut failures = Vec::new();
    let begun = Instant::now();
    for scenario in scenarios(extent, &part) {
        // Beside files no history is kept.
        if place == Place::Beside && scenario.words[0] == "history" {
            continue;
        }
        let begun = Instant::now();
        let (points, failed) = every_call_of(place, scenario, extent, &mut known);
        println!("{place:?}: {}: {points} points, {} failed, {:?}", scenario.name, failed.len(), begun.elapsed());
        failed.iter().for_each(|failed| println!("{failed}\n"));
        tried += points;
        failures.extend(failed);
    }
    println!("{place:?}: {tried} points in {:?}, {} failed", begun.elapsed(), failures.len());
    assert!(failures.is_empty(), "{} of {tried}:\n{}", failures.len(), failures.join("\n\n"));
}

/// The scenarios that are wanted: for a sample one in three, others in each run.
pub(crate) fn scenarios(extent: Extent, part: &str) -> impl Iterator<Item = &'static Scenario> {
    let first = std::process::id() as usize % 3;
    let is_wanted = move |at: usize| extent != Extent::Sample || at % 3 == first;
    ALL.iter().enumerate().filter(move |(at, _)| is_wanted(*at)).map(|(_, scenario)| scenario).filter({
        let part = part.to_string();
        move |scenario| scenario.name.contains(&part)
    })
}

fn every_call_of(
    place: Place,
    scenario: &Scenario,
    extent: Extent,
    known: &mut HashSet<String>,
) -> (usize, Vec<String>) {
    let weight = Stage::set(place, &[]);
    let _ = weight.call(&["run", "-n", "X", "--also", "Y", "true"]).capture();
    weight.call(&["gc"]).capture();
    let weight = weight.weight();
    let mut failures = Vec::new();
    let (run, verdict) = play(place, scenario, None, &weight, None);
    if let Err(why) = verdict {
        return (1, vec![format!("{place:?}: {}: nothing happens: {why}\n{}", scenario.name, said(&run))]);
    }
    let undisturbed = run.stdout;
    let mut points = points(scenario, &run.made, extent, known);
    if extent == Extent::Sample {
        let (every, first) = (points.len().div_ceil(SAMPLE).max(1), std::process::id() as usize / 3);
        points = points.into_iter().skip(first % every).step_by(every).collect();
    }
    if std::env::var_os("CSALOCK_SYSCALLS_COUNT").is_some() {
        return (points.len(), Vec::new());
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
    let mut stage = Stage::set(place, scenario.before);
    let run = trace(stage.call(scenario.words).into_command(), point);
    let mishap = match point.filter(|_| run.met.is_some()).map(|point| point.fault) {
        None => Mishap::None,
        Some(Fault::Killed | Fault::AllKilled) => Mishap::Killed,
        Some(_) => Mishap::Failed,
    };
    let verdict = invariants::check(&mut stage, scenario, mishap, &run, weight, undisturbed);
    (run, verdict)
}

/// The points of these calls.
fn points(scenario: &Scenario, made: &[Vec<Made>], extent: Extent, known: &mut HashSet<String>) -> Vec<Point> {
    let mut points = Vec::new();
    for (process, calls) in made.iter().enumerate() {
        let first = if process == 0 { before_main() } else { 0 };
        let mut times: HashMap<String, usize> = HashMap::new();
        for (call, made) in calls.iter().enumerate().skip(first) {
            let mut add = |fault| points.push(Point { process, call, number: made.number, fault });
            if extent == Extent::Every || call == first || calls::is_seen(&calls[call - 1]) {
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
                if extent == Extent::Every || (*time <= MOST_TIMES && known.insert(key)) {
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
        _ if part.starts_with("csalock-") => "SANDBOX".to_string(),
        _ if part.len() > 20 && part.bytes().all(|byte| byte.is_ascii_hexdigit()) => "ID".to_string(),
        _ if part.len() > 1 && part.bytes().all(|byte| byte.is_ascii_digit()) => "N".to_string(),
        _ => part.to_string(),
    };
    path.split(['/', '.', '%']).map(part).collect::<Vec<_>>().join("/")
}

/// How many calls are made before the program begins: those that are the same whatever it is to do.
fn before_main() -> usize {
    static CALLS: OnceLock<usize> = OnceLock::new();
    *CALLS.get_or_init(|| {
        let made = |word: &str| {
            let mut command = std::process::Command::new(CSALOCK);
            command.arg(word).env_clear();
            trace(command, None).made.remove(0)
        };
        let (one, other) = (made("--version"), made("--no-such-option"));
        one.iter().zip(&other).take_while(|(one, other)| one.number == other.number).count()
    })
}

fn shown(point: &Point, run: &Traced) -> String {
    let what = run.met.as_ref().map_or("never made".to_string(), |made| {
        format!("{} {} {:x?}", calls::name(made.number), made.path, &made.arguments[..4])
    });
    format!("process {} call {} {:?} ({what})", point.process, point.call, point.fault)
}

fn said(run: &Traced) -> String {
    format!("  {:?} {:?} {:?}", run.status, run.stdout, run.stderr)
}
