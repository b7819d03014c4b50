//! `csalock get`

use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;

use super::acquire::{ForScript, Granted, report_taken};
use super::context::{Context, LockRef, print, print_json};
use crate::cli::{Get, Taking};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind};
use crate::exit::Exit;
use crate::lock::{Handle, Lifetime, Mode};
use crate::report::{RefusedLock, Reporter, SettingNames, json};

pub(super) fn run(context: &Context, asked: &Get) -> anyhow::Result<Exit> {
    context.require_stdout("the value", "send it somewhere")?;
    if asked.lock {
        return take_and_get(context, asked);
    }
    if let Some(option) = asked.pid.map(|_| "--pid").or_else(|| only_for_taking(&asked.taking)) {
        let what = format!("{option} cannot be used without --lock");
        return Err(Error::new(ErrorKind::InvalidInput, what, "add --lock, or leave it out").into());
    }
    let target = context.target(&asked.common, &asked.name)?;
    give(asked, &context.engine(&target.location)?, &target, None)
}

fn take_and_get(context: &Context, asked: &Get) -> anyhow::Result<Exit> {
    let targets = &context.lock_set(&asked.common, std::slice::from_ref(&asked.name))?;
    let target = targets.first();
    let Get { common, taking, pid, .. } = asked;
    ForScript { context, common, taking, pid: *pid, targets, settings: &SettingNames::OPTIONS, prints: true }.acquire(
        |Granted { opened, handle, grants, evicted, owner, .. }| {
            report_taken(common, opened, grants, *evicted, Some(owner));
            // A value that was not read is useless, and then so is the lock.
            give(asked, opened.engine(0), target, Some((handle, grants[0].token)))
        },
    )
}

/// Prints the value, and the grant that it was read under if the lock was acquired for that.
fn give(asked: &Get, engine: &Engine, target: &LockRef, taken: Option<(&Handle, Option<u64>)>) -> anyhow::Result<Exit> {
    let Some((value, bytes)) = engine.value(&target.name)? else {
        let reporter = Reporter::new(engine);
        let mut refusal = RefusedLock::new(target, &reporter).no_value();
        if let Some(grant) = taken {
            refusal.hint = "the lock is held now, so write one or give it back".to_string();
            if asked.common.json {
                print_json(&json::no_value(&refusal, grant))?;
                return Ok(refusal.kind.into());
            }
        }
        return asked.common.refuse(&refusal, refusal.kind, None);
    };
    if asked.common.json {
        print_json(&json::value(&target.display_name, &value, taken, Some(bytes)))?;
    } else {
        print(&bytes)?;
        // The prompt of a shell begins on a line of its own.
        if std::io::stdout().is_terminal() && bytes.last().is_some_and(|last| *last != b'\n') {
            print("\n")?;
        }
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
        (taking.give_up_if.is_some(), "--give-up-if"),
        (waiting.label.as_ref().is_some_and(|label| !label.as_bytes().is_empty()), "--label"),
        (waiting.conflict_exit_code.is_some(), "--conflict-exit-code"),
        (taking.exclusive || taking.mode() != Mode::Exclusive, "-x, -s or -j"),
        (taking.lifetime() != Lifetime::WhileOwnerLives, "--ttl or --forever"),
    ]
    .into_iter()
    .find_map(|(given, option)| given.then_some(option))
}
