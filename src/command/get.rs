//! `csalock get`

use std::os::unix::ffi::OsStrExt;

use super::context::{Context, exactly_one, print_bytes, print_json, refusal};
use super::lock::{acquire_request, confirm_and_keep, report_taken, warn_of_owner};
use super::lock_set::LockSet;
use super::wait_progress::WaitProgress;
use crate::cli::{Get, Taking};
use crate::engine::{AcquireAllResult, AcquireRequest, Engine, RETRY_INTERVAL};
use crate::error::{Error, ErrorKind};
use crate::exit::Exit;
use crate::lock::{Handle, Lifetime, Mode};
use crate::name::escape;
use crate::report::ValueJson;
use crate::signals::Signals;

pub(super) fn run(context: &Context, asked: &Get) -> anyhow::Result<Exit> {
    if context.inherited.closed(1) {
        let what = "stdout is closed, so nobody would get the value";
        return Err(Error::new(ErrorKind::InputOutput, what, "send it somewhere").into());
    }
    exactly_one(&asked.names)?;
    if asked.lock {
        return take_and_get(context, asked);
    }
    if let Some(option) = asked.pid.map(|_| "--pid").or_else(|| only_for_taking(&asked.taking)) {
        let what = format!("{option} says how to take the lock, which get does only with --lock");
        return Err(Error::new(ErrorKind::InvalidInput, what, "say --lock as well, or leave it out").into());
    }
    let target = context.target(&asked.common, exactly_one(&asked.names)?)?;
    give(asked, &context.engine(&target.location)?, &target.name, &target.display_name, None)
}

fn take_and_get(context: &Context, asked: &Get) -> anyhow::Result<Exit> {
    let targets = LockSet::new(context, &asked.common, &asked.names)?;
    let target = targets.first();
    let handle = Handle::new(context.host.random()?);
    // If we are killed before the value is printed, the script must not write. The lock is held only afterwards.
    let request = AcquireRequest { provisional: true, ..acquire_request(context, &asked.taking, asked.pid, &handle)? };
    let opened = targets.open(context)?;
    let signals = Signals::listen(context.inherited)?;
    let mut teller = WaitProgress::new(&asked.common);
    let policy = asked.taking.waiting.wait_policy();
    let until = context.deadline(&policy);
    let taken = opened.acquire(&request, &policy, Some(signals.interrupt()), &mut |at, waiting| {
        teller.update(target, &opened.reporter(at), waiting)
    })?;
    drop(teller);
    match taken {
        AcquireAllResult::Interrupted => Ok(signals.exit()),
        AcquireAllResult::Refused(at, response) => {
            let busy = asked.taking.waiting.conflict_exit_code;
            let (text, exit) = refusal(&response, target, &opened.reporter(at), busy);
            asked.common.note(&text);
            Ok(exit)
        }
        AcquireAllResult::Granted(grants, evicted) => {
            warn_of_owner(&asked.common, asked.pid, &targets, &request);
            report_taken(&asked.common, &targets, &opened, &grants, evicted.as_ref());
            let engine = opened.engine(0);
            let given = give(asked, engine, &target.name, &target.display_name, Some((&handle, grants[0].token)));
            // A value that was not read is useless.
            if given.is_err() {
                opened.release(handle.proof()).into_iter().try_for_each(|answer| answer.map(drop))?;
                return given;
            }
            let go_on = || signals.no_signal_within(RETRY_INTERVAL) && context.host.boottime() < until;
            confirm_and_keep(context, &targets, &opened, &request, grants, &go_on)?;
            given
        }
    }
}

/// Prints the value, and the grant that it was read under if the lock was acquired for that.
fn give(
    asked: &Get,
    engine: &Engine,
    name: &[u8],
    display_name: &[u8],
    taken: Option<(&Handle, Option<u64>)>,
) -> anyhow::Result<Exit> {
    let Some((value, bytes)) = engine.value(name)? else {
        let name = escape(display_name);
        let held = if taken.is_some() { "; the lock is held now, so write one or give it back" } else { "" };
        asked.common.note(&format!("lock {name} guards no value{held}"));
        return Ok(Exit::NotHeld);
    };
    if asked.common.json {
        print_json(&ValueJson::new(display_name, &value, taken))?;
    } else {
        print_bytes(&bytes)?;
    }
    Ok(Exit::Done)
}

/// Returns an option that was given although it only concerns acquiring.
fn only_for_taking(taking: &Taking) -> Option<&'static str> {
    let waiting = &taking.waiting;
    [
        (waiting.nonblock, "--nonblock"),
        (waiting.fail_on_stale, "--fail-on-stale"),
        (waiting.backoff.is_some(), "--backoff"),
        (waiting.attempts.is_some(), "--attempts"),
        (waiting.label.as_ref().is_some_and(|label| !label.as_bytes().is_empty()), "--label"),
        (waiting.conflict_exit_code.is_some(), "--conflict-exit-code"),
        (taking.exclusive || taking.mode() != Mode::Exclusive, "-x, -s or -j"),
        (taking.lifetime() != Lifetime::WhileOwnerLives, "--ttl or --forever"),
    ]
    .into_iter()
    .find_map(|(given, option)| given.then_some(option))
}
