//! The invariants after a command under any fault: a holder was told so, no holder that was told has lost its lock, the
//! next caller gets in at once, values and claims exist wholly or not at all, and no leftovers remain.
//!
//! A caller that gets no handle is told by the exit code alone. If the command is killed, or could not release what it may
//! have acquired and says so, then the caller may hold the lock or not. It can release the lock as the owner.

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use lock::{Grant, Handle, HandleHash};

use super::calls;
use super::fixture::{Before, Fixture, Place};
use super::scenarios::{About, Scenario};
use super::tracer::Traced;
use crate::checker;
use crate::etcd::fair::is_within;
use crate::sandbox::{Done, csalock, proc, wait_until};

/// Exit codes that a mishap may lead to. It is never an answer: busy, not held and the like are said only when they are so.
const CODES: [i32; 5] = [69, 71, 73, 74, 77];

/// The fault that hit a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mishap {
    None,
    /// Something that it needed failed.
    Failed,
    /// One of its processes was killed.
    Killed,
}

/// A wait without a wake-up ends in this time, even on a busy machine.
const BOUNDED: Duration = Duration::from_secs(20);

type Verdict = Result<(), String>;

/// Ends everything that is still held, and looks whether all was well. `weight` is what the store weighs with nothing in
/// it, `undisturbed` what the command prints if nothing happens.
pub(crate) fn check(
    fixture: &mut Fixture,
    scenario: &Scenario,
    mishap: Mishap,
    run: &Traced,
    weight: &[String],
    undisturbed: Option<&str>,
) -> Verdict {
    fixture.settle()?;
    answer(scenario, mishap, run, undisturbed)?;
    if scenario.words[0] == "run" {
        // Its command may outlive its supervisor, and holds as long.
        gone(run)?;
    }
    if mishap == Mishap::Killed {
        // A half-stored record is completed by the next caller.
        fixture.call(&["gc"]).capture();
    }
    let succeeded = run.status.code() == Some(0);
    let given = handles(&run.stdout);
    let unknown = mishap == Mishap::Killed || run.stderr.contains("may be held all the same");
    holders(fixture, scenario, succeeded, unknown, &given)?;
    values(fixture, scenario, succeeded)?;
    claims(fixture, scenario, succeeded)?;
    release_all(fixture, scenario, succeeded, &given)?;
    waiters(fixture)?;
    forget_value(fixture)?;
    next(fixture)?;
    tidy(fixture, weight)?;
    gone(run)?;
    traced(fixture)
}

/// A clear answer: the true one, or that it could not be found out and why.
fn answer(scenario: &Scenario, mishap: Mishap, run: &Traced, undisturbed: Option<&str>) -> Verdict {
    if run.hung {
        return Err("it hangs".to_string());
    }
    if run.stderr.contains("panicked") || run.stderr.contains("RUST_BACKTRACE") {
        return Err("it panics".to_string());
    }
    let killed = mishap == Mishap::Killed;
    let at_exec = run.met.as_ref().is_some_and(|met| calls::name(met.number) == "execve");
    match (run.status.code(), run.status.signal()) {
        (None, Some(9)) if killed => Ok(()),
        (None, signal) => Err(format!("it died of signal {signal:?}")),
        (Some(code), _) if code == scenario.code => match undisturbed {
            Some(stdout) if !is_same(scenario, &run.stdout, stdout) => Err(format!("it answers {:?}", run.stdout)),
            _ => Ok(()),
        },
        (Some(code), _) if mishap == Mishap::None => Err(format!("exit {code} instead of {}", scenario.code)),
        // The command of `csalock run` was killed.
        (Some(137), _) if killed => Ok(()),
        (Some(126 | 127), _) if at_exec => Ok(()),
        // The lease had no keeper.
        (Some(85), _) if run.stderr.contains("it was not run") => Ok(()),
        (Some(code), _) if !CODES.contains(&code) => Err(format!("exit {code}")),
        (Some(code), _) if !is_in_manual(scenario.words[0], code) => {
            Err(format!("exit {code}, which its page does not list"))
        }
        // A doctor's findings are results.
        (Some(_), _) if scenario.words[0] == "doctor" && run.stdout.lines().any(|line| line.starts_with("error ")) => {
            Ok(())
        }
        (Some(code), _)
            if scenario.words.contains(&"--json") && run.stdout.contains(&format!("\"exit_code\":{code}}}")) =>
        {
            Ok(())
        }
        (Some(code), _) if !run.stderr.starts_with("csalock: ") => Err(format!("exit {code} without a word")),
        _ => Ok(()),
    }
}

fn is_in_manual(command: &str, code: i32) -> bool {
    let page = format!("{}/man/csalock-{command}.1", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(page).unwrap().contains(&format!("\n.TP\n.B {code}\n"))
}

/// Whether one answer says what the other does, as far as that does not depend on the time.
fn is_same(scenario: &Scenario, one: &str, other: &str) -> bool {
    match scenario.words[0] {
        "get" if !scenario.words.contains(&"--json") => one == other,
        "lookup" => one == other,
        "status" | "history" => one.lines().count() == other.lines().count(),
        _ => true,
    }
}

fn handles(stdout: &str) -> Vec<Handle> {
    let words = stdout.split(|character: char| !character.is_ascii_hexdigit()).filter(|word| word.len() == 32);
    words.filter_map(Handle::parse).collect()
}

fn names(scenario: &Scenario) -> Vec<&'static str> {
    let has_y = scenario.words.contains(&"Y") || format!("{:?}", scenario.before).contains("\"y\"");
    if has_y { vec!["x", "y"] } else { vec!["x"] }
}

/// Whether the command acquires locks without a word.
fn is_silent(scenario: &Scenario) -> bool {
    scenario.words[0] == "lock" && !scenario.words.contains(&"--print-handle")
}

fn acquires(scenario: &Scenario, name: &str) -> bool {
    scenario.about == About::Taking && scenario.words.contains(&name.to_uppercase().as_str())
}

/// The holders are exactly the callers that were told so.
fn holders(fixture: &Fixture, scenario: &Scenario, succeeded: bool, unknown: bool, given: &[Handle]) -> Verdict {
    let proofs = |held: &[(&str, Handle)], name: &str| -> Vec<HandleHash> {
        held.iter().filter(|(of, _)| *of == name).map(|(_, handle)| handle.proof()).collect()
    };
    let ends = matches!(scenario.about, About::Ending | About::Writing { gives_back: true });
    let caller = std::process::id() as i32;
    for name in names(scenario) {
        let sight = fixture.sight(name).map_err(|error| format!("{name}: {error}"))?;
        let standing: Vec<_> = sight
            .record
            .holders
            .iter()
            .zip(&sight.holders)
            .filter(|(grant, standing)| standing.holds() && grant.claim.is_none())
            .map(|(grant, _)| grant.clone())
            .collect();
        if standing.len() > 1 {
            return Err(format!("{name} has two holders: {standing:?}"));
        }
        let before = [proofs(&fixture.held, name), proofs(&fixture.mine, name)].concat();
        let is_callers =
            |grant: &Grant| acquires(scenario, name) && grant.owner.processes.iter().any(|owner| owner.pid == caller);
        if succeeded && acquires(scenario, name) && !standing.iter().any(is_callers) {
            return Err(format!("{name} is not held: {:?}", sight.record));
        }
        let to_be_held = if succeeded && acquires(scenario, name) {
            given.iter().map(Handle::proof).collect()
        } else if ends {
            Vec::new()
        } else {
            before.clone()
        };
        if to_be_held.iter().any(|proof| standing.iter().all(|grant| grant.proof != *proof)) {
            return Err(format!("{name} was lost: {:?}", sight.record));
        }
        for grant in standing {
            let is_waiters = fixture.waiters.iter().any(|(of, job)| {
                *of == name
                    && (grant.owner.processes.iter().any(|owner| owner.pid == job.pid())
                        || grant.owner.command == b"true")
            });
            let is_silent = is_silent(scenario) && is_callers(&grant) && (succeeded || unknown);
            let is_given = given.iter().any(|handle| handle.proof() == grant.proof);
            let is_known = before.contains(&grant.proof) || is_given || is_silent;
            if !is_known && !is_waiters {
                return Err(format!("{name} is held by a process that was not told: {grant:?}"));
            }
            if succeeded && ends && before.contains(&grant.proof) {
                return Err(format!("{name} is still held: {grant:?}"));
            }
        }
    }
    if succeeded && scenario.about == About::Taking && given.is_empty() && !is_silent(scenario) {
        return Err("no handle".to_string());
    }
    Ok(())
}

fn values(fixture: &Fixture, scenario: &Scenario, succeeded: bool) -> Verdict {
    let found = fixture.engine.value(b"x").map_err(|error| format!("value of x: {error}"))?;
    let text = found.map(|(_, bytes)| String::from_utf8_lossy(&bytes).into_owned());
    let old = match () {
        () if scenario.before.contains(&Before::Value("x")) => Some("old".to_string()),
        () if scenario.before.contains(&Before::LongValue("x")) => Some("old ".repeat(1000)),
        () => None,
    };
    let new = match scenario.about {
        About::Writing { .. } => Some("new".to_string()),
        About::Deleting => None,
        _ => old.clone(),
    };
    if text != new && (succeeded || text != old) {
        return Err(format!("the value is {text:?}"));
    }
    Ok(())
}

/// Removes the value as a caller that has never held the lock, because an earlier holder might be told of its loss.
fn forget_value(fixture: &Fixture) -> Verdict {
    if fixture.engine.value(b"x").map_err(|error| format!("value of x: {error}"))?.is_none() {
        return Ok(());
    }
    let wait = if fixture.place == Place::Etcd { "-w 1m" } else { "-n" };
    let script = format!("{} del {wait} {}; exit $?", csalock(), fixture.typed("x"));
    let call = fixture.sandbox.script("dash", &script).env("CSALOCK_TRACE", fixture.trace());
    let done = if fixture.place == Place::Beside { call.without("CSALOCK_STORE") } else { call }.capture();
    if done.code == Some(0) { Ok(()) } else { Err(format!("del: {done:?}")) }
}

fn claims(fixture: &Fixture, scenario: &Scenario, succeeded: bool) -> Verdict {
    let claimed = |name: &str| -> Result<Option<String>, String> {
        let found = fixture.engine.claim_of(name.as_bytes()).map_err(|error| format!("claim of {name}: {error}"))?;
        Ok(found.and_then(|grant| grant.claim).map(|id| String::from_utf8_lossy(&id).into_owned()))
    };
    let found = (claimed("x")?, claimed("y")?);
    let me = || Some("me".to_string());
    let (all, none) = ((me(), me()), (None, None));
    let before = |name| {
        scenario.before.iter().find_map(|before| match before {
            Before::Claimed(of, id) if *of == name => Some(id.to_string()),
            _ => None,
        })
    };
    let may_be = match (scenario.about, succeeded) {
        (About::Claiming, true) => vec![all],
        (About::Unclaiming, true) => vec![none],
        (About::Claiming | About::Unclaiming, false) => vec![all, none],
        _ => vec![(before("x"), before("y"))],
    };
    if !may_be.contains(&found) {
        return Err(format!("claimed are {found:?}"));
    }
    for (name, id) in [("X", found.0), ("Y", found.1)] {
        if let Some(id) = id {
            quiet(fixture, &["unclaim", "--id", &id, name])?;
        }
    }
    Ok(())
}

fn release_all(fixture: &mut Fixture, scenario: &Scenario, succeeded: bool, given: &[Handle]) -> Verdict {
    for (name, handle) in fixture.held.iter().chain(&fixture.mine) {
        // The process that ended it need not know.
        let _ = fixture.release(name, handle.proof());
    }
    for name in names(scenario) {
        for handle in given {
            let released = fixture.release(name, handle.proof());
            if succeeded && acquires(scenario, name) {
                released?;
            }
        }
        if is_silent(scenario) && acquires(scenario, name) {
            let done = fixture.call(&["unlock", &name.to_uppercase()]).capture();
            if succeeded && done.code != Some(0) {
                return Err(format!("{name} is not released: {done:?}"));
            }
        }
    }
    Ok(())
}

/// The waiter gets in now.
fn waiters(fixture: &mut Fixture) -> Verdict {
    for (name, mut job) in fixture.waiters.drain(..) {
        let begun = Instant::now();
        while !job.has_ended() && is_within(begun, BOUNDED) {
            proc::wait_for_end(job.pid(), BOUNDED / 10);
        }
        if !job.has_ended() {
            return Err(format!("the waiter for {name} still waits: {:?}", fixture.engine.inspect(name.as_bytes())));
        }
        let done = job.wait();
        if done.code != Some(0) {
            return Err(format!("the waiter for {name} did not acquire it: {done:?}"));
        }
    }
    Ok(())
}

/// The next one gets in at once; but a server may be busy.
fn next(fixture: &Fixture) -> Verdict {
    let wait = if fixture.place == Place::Etcd { &["-w", "1m"][..] } else { &["-n"] };
    quiet(fixture, &[&["run"][..], wait, &["X", "--also", "Y", "true"]].concat())
}

fn tidy(fixture: &Fixture, weight: &[String]) -> Verdict {
    fixture.age_drafts();
    let swept = fixture.call(&["gc"]).capture();
    if swept.code != Some(0) || !swept.stderr.is_empty() {
        return Err(format!("gc: {swept:?}"));
    }
    let mut unreadable = None;
    fixture
        .engine
        .for_each_lock(&mut |sight| {
            unreadable = sight.err().or(unreadable.take());
            Ok(())
        })
        .map_err(|error| error.to_string())?;
    if let Some(error) = unreadable {
        return Err(format!("unreadable: {error}"));
    }
    let mut found = fixture.weight();
    if fixture.place == Place::Etcd {
        // A lease that could not be released.
        wait_until("it is as it was", || {
            found = fixture.weight();
            found == weight
        });
    }
    if found != weight {
        let listing =
            if fixture.place == Place::Etcd { found.clone() } else { fixture.sandbox.listing(fixture.store_path()) };
        return Err(format!("left behind: {found:?} instead of {weight:?}: {listing:#?}"));
    }
    Ok(())
}

fn gone(run: &Traced) -> Verdict {
    let begun = Instant::now();
    while let Some(pid) = run.pids.iter().find(|pid| proc::lives(**pid)) {
        if !is_within(begun, BOUNDED) {
            return Err(format!("process {pid} lives on"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Every version of every name is explained by a commit that the rules allow.
fn traced(fixture: &Fixture) -> Verdict {
    if !fixture.trace().exists() {
        return Ok(());
    }
    let end = checker::end_of(fixture.engine.store());
    let report = checker::check_file(&fixture.trace(), Some(&end));
    if report.wrong.is_empty() { Ok(()) } else { Err(format!("the trace: {}", report.wrong.join("\n"))) }
}

fn quiet(fixture: &Fixture, words: &[&str]) -> Verdict {
    let begun = Instant::now();
    let done: Done = fixture.call(words).capture();
    match done.code {
        Some(0) if done.stderr.lines().all(|line| line.contains("was taken over from")) => Ok(()),
        _ => Err(format!("{words:?} after {:?}: {done:?}", begun.elapsed())),
    }
}
