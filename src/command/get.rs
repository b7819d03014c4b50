//! `csalock get`

use std::os::unix::ffi::OsStrExt;

use super::lock::{applicant, confirm_and_keep, told, warn_of_owner};
use super::onlooker::Teller;
use super::targets::Targets;
use super::world::{World, print_bytes, print_json, refusal, the_one};
use crate::cli::{Get, Taking};
use crate::engine::{AllTaken, Applicant, Engine, OUTAGE};
use crate::error::Error;
use crate::exit::Exit;
use crate::lock::{Handle, Share, Tenure};
use crate::name::shown;
use crate::report::ValueJson;
use crate::signals::Signals;

pub(super) fn run(world: &World, asked: &Get) -> anyhow::Result<Exit> {
    if world.inherited.closed(1) {
        let what = "stdout is closed, so nobody would get the value";
        return Err(Error::new(Exit::InputOutput, what, "send it somewhere").into());
    }
    the_one(&asked.names)?;
    if asked.lock {
        return take_and_get(world, asked);
    }
    if let Some(option) = asked.pid.map(|_| "--pid").or_else(|| only_for_taking(&asked.taking)) {
        let what = format!("{option} says how to take the lock, which get does only with --lock");
        return Err(Error::new(Exit::Usage, what, "say --lock as well, or leave it out").into());
    }
    let target = world.target(&asked.common, the_one(&asked.names)?)?;
    give(asked, &world.engine(&target.location)?, &target.name, &target.known_as, None)
}

fn take_and_get(world: &World, asked: &Get) -> anyhow::Result<Exit> {
    let targets = Targets::new(world, &asked.common, &asked.names)?;
    let target = targets.first();
    let handle = Handle::new(world.host.random()?);
    // Should we be killed before the value is printed, then the script must not write: it holds the lock only afterwards.
    let applicant = Applicant { tentative: true, ..applicant(world, &asked.taking, asked.pid, &handle)? };
    let opened = targets.open(world)?;
    let signals = Signals::listen(world.inherited)?;
    let mut teller = Teller::new(&asked.common);
    let patience = asked.taking.waiting.patience();
    let until = world.end_of(&patience);
    let taken = opened.take(&applicant, &patience, Some(signals.interrupt()), &mut |at, waiting| {
        teller.look(target, &opened.reporter(at), waiting)
    })?;
    drop(teller);
    match taken {
        AllTaken::Interrupted => Ok(signals.exit()),
        AllTaken::Refused(at, outcome) => {
            let busy = asked.taking.waiting.conflict_exit_code;
            let (text, exit) = refusal(&outcome, target, &opened.reporter(at), busy);
            asked.common.tell(&text);
            Ok(exit)
        }
        AllTaken::Granted(grants, evicted) => {
            warn_of_owner(&asked.common, asked.pid, &targets, &applicant);
            told(&asked.common, &targets, &opened, &grants, evicted.as_ref());
            let engine = opened.engine(0);
            let given = give(asked, engine, &target.name, &target.known_as, Some((&handle, grants[0].token)));
            // A value that was not read is nothing to work with.
            if given.is_err() {
                opened.give_back(handle.proof()).into_iter().try_for_each(|answer| answer.map(drop))?;
                return given;
            }
            let go_on = || signals.quiet_for(OUTAGE) && world.host.boottime() < until;
            confirm_and_keep(world, &targets, &opened, &applicant, grants, &go_on)?;
            given
        }
    }
}

/// Prints the value; and under which grant it was read, if the lock was taken for that.
fn give(
    asked: &Get,
    engine: &Engine,
    name: &[u8],
    known_as: &[u8],
    taken: Option<(&Handle, Option<u64>)>,
) -> anyhow::Result<Exit> {
    let Some((value, bytes)) = engine.value(name)? else {
        let name = shown(known_as);
        let held = if taken.is_some() { "; the lock is held now, so write one or give it back" } else { "" };
        asked.common.tell(&format!("lock {name} guards no value{held}"));
        return Ok(Exit::NotHeld);
    };
    if asked.common.json {
        print_json(&ValueJson::new(known_as, &value, taken))?;
    } else {
        print_bytes(&bytes)?;
    }
    Ok(Exit::Done)
}

/// An option that was given and is about taking only.
fn only_for_taking(taking: &Taking) -> Option<&'static str> {
    let waiting = &taking.waiting;
    [
        (waiting.nonblock, "--nonblock"),
        (waiting.fail_on_stale, "--fail-on-stale"),
        (waiting.backoff.is_some(), "--backoff"),
        (waiting.attempts.is_some(), "--attempts"),
        (waiting.label.as_ref().is_some_and(|label| !label.as_bytes().is_empty()), "--label"),
        (waiting.conflict_exit_code.is_some(), "--conflict-exit-code"),
        (taking.exclusive || taking.share() != Share::Exclusive, "-x, -s or -j"),
        (taking.tenure() != Tenure::OwnerLives, "--ttl or --forever"),
    ]
    .into_iter()
    .find_map(|(given, option)| given.then_some(option))
}
