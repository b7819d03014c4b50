//! `csalock put` and `csalock del`

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

use anyhow::Context;
use nix::sys::signal::Signal;

use super::onlooker::Teller;
use super::world::{Target, World, print_json, refusal, refusal_of, say, the_one};
use crate::cli::{Del, Put, Writing};
use crate::engine::{Applicant, Taken, WantedValue};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::host::{Called, caller, command_of};
use crate::lock::{Handle, MOST_VALUE, OnlyIf, Outcome, Share, Tenure, Value};
use crate::name::{quoted, shown};
use crate::report::{Reporter, ValueJson};
use crate::signals::Signals;

pub(super) fn put(world: &World, asked: &Put) -> anyhow::Result<Exit> {
    let (name, value) = match asked.words.as_slice() {
        [name] => (name, OsStr::new("-")),
        [name, value] => (name, value.as_os_str()),
        [_, _, other, ..] => {
            let what = format!("{} is one word too many after the name and the value", quoted(other.as_bytes()));
            return Err(Error::new(Exit::Usage, what, "put the value in quotes").into());
        }
        [] => unreachable!("clap sees to it that there is a name"),
    };
    let target = world.target(&asked.writing.common, name)?;
    let bytes = if value == "-" { from_stdin(world, &target)? } else { value.as_bytes().to_vec() };
    if bytes.len() > MOST_VALUE {
        let what = format!("the value for lock {} has more than {MOST_VALUE} bytes", shown(&target.known_as));
        return Err(Error::new(Exit::Usage, what, "keep it in a file, and the file's name in the value").into());
    }
    let only_if = asked.if_absent.then_some(OnlyIf::Absent);
    write(world, &asked.writing, &target, Some(&bytes), only_if, asked.mode)
}

pub(super) fn del(world: &World, asked: &Del) -> anyhow::Result<Exit> {
    let target = world.target(&asked.writing.common, the_one(&asked.names)?)?;
    write(world, &asked.writing, &target, None, None, None)
}

fn from_stdin(world: &World, target: &Target) -> Result<Vec<u8>> {
    let failed = |what: String| {
        let what = format!("cannot read the value for lock {} from stdin: {what}", shown(&target.known_as));
        Error::new(Exit::InputOutput, what, "nothing was written; give the value as an argument, or on stdin")
    };
    if world.inherited.closed(0) {
        return Err(failed("it is closed".to_string()));
    }
    let mut bytes = Vec::new();
    let most = MOST_VALUE as u64 + 1;
    std::io::stdin().lock().take(most).read_to_end(&mut bytes).map_err(|error| failed(error.to_string()))?;
    Ok(bytes)
}

fn write(
    world: &World,
    asked: &Writing,
    target: &Target,
    bytes: Option<&[u8]>,
    only_if: Option<OnlyIf>,
    mode: Option<u32>,
) -> anyhow::Result<Exit> {
    let engine = world.engine(&target.location)?;
    let reporter = Reporter { host: engine.host(), reach: engine.store().reach() };
    let wanted = WantedValue {
        by: world.claimant(&engine, asked.handle.as_deref())?,
        bytes,
        mode,
        only_if: only_if.or(asked.if_version.map(OnlyIf::Version)),
        as_holder: asked.unlock || asked.handle.is_some(),
        give_back: asked.unlock,
        even_if_stale: asked.even_if_stale,
    };
    let applicant = applicant(world, asked)?;
    let signals = Signals::listen(world.inherited)?;
    let mut teller = Teller::new(&asked.common);
    let patience = asked.waiting.patience();
    let taken =
        engine.write(&target.name, &wanted, &applicant, &patience, Some(signals.interrupt()), &mut |waiting| {
            teller.look(target, &reporter, waiting)
        })?;
    drop(teller);
    let outcome = match taken {
        Taken::Answer(outcome) => outcome,
        Taken::Interrupted => {
            return Ok(signals.exit());
        }
    };
    if let Outcome::Written(value, stale) = &outcome {
        if let Some(stale) = stale {
            let (name, holder) = (shown(&target.known_as), reporter.ending(stale));
            let done = if bytes.is_some() { "written" } else { "deleted" };
            asked.common.tell(&format!(
                "lock {name} was stale: it was held by {holder}; the value was {done} for --even-if-stale"
            ));
        }
        told(asked, target, value.as_ref(), bytes.is_some()).context("the value was written")?;
        return Ok(Exit::Done);
    }
    let (text, exit) = refused(&outcome, asked, target, &reporter);
    asked.common.tell(&text);
    Ok(exit)
}

fn told(asked: &Writing, target: &Target, value: Option<&Value>, put: bool) -> anyhow::Result<()> {
    let Some(value) = value else { return Ok(()) };
    if asked.common.json {
        print_json(&ValueJson::new(&target.known_as, value, None))?;
    } else if asked.common.verbose {
        let (name, what) = (shown(&target.known_as), if put { "has now" } else { "had" });
        say(&format!("the value of lock {name} {what} {}", described(value)));
    }
    Ok(())
}

fn described(value: &Value) -> String {
    let plural = if value.size == 1 { "" } else { "s" };
    format!("version {} and {} byte{plural}", value.version.unwrap_or_default(), value.size)
}

fn refused(outcome: &Outcome, asked: &Writing, target: &Target, reporter: &Reporter<'_>) -> (String, Exit) {
    let (name, typed) = (shown(&target.known_as), &target.to_type);
    match (outcome, asked.if_version) {
        (Outcome::OtherValue(Some(value)), None) => (
            format!("lock {name} guards a value already, with {}; see it with `csalock get {typed}`", described(value)),
            Exit::NotUnique,
        ),
        (Outcome::OtherValue(value), version) => (
            format!(
                "the value of lock {name} is not at version {} any more: {}; read it again with `csalock get {typed}`",
                version.unwrap_or_default(),
                value.as_ref().map_or("there is none".to_string(), |value| format!("it has {}", described(value)))
            ),
            Exit::Stale,
        ),
        (Outcome::Shared(others), _) => (
            format!(
                "nothing was written, for you share lock {name}: {}; give it back, and take it for yourself alone",
                others.iter().map(|grant| reporter.holding(grant)).collect::<Vec<_>>().join("; and ")
            ),
            asked.waiting.conflict_exit_code.map_or(Exit::Busy, Exit::Chosen),
        ),
        (Outcome::NoValue, _) => (format!("lock {name} guards no value"), Exit::NotHeld),
        (Outcome::NotOwner(holders, Some(ending)), _) => {
            let now = holders.first().map(|grant| format!(", and is now held by {}", reporter.holder(grant)));
            (
                format!(
                    "nothing was written, for lock {name} was held by {}{}; take it again before you read and write{}",
                    reporter.ending(ending),
                    now.unwrap_or_default(),
                    if asked.unlock { ", or say --even-if-stale, if nobody has had it since" } else { "" },
                ),
                Exit::NotOwner,
            )
        }
        (Outcome::NotHeld(_), _) => (
            format!(
                "nothing was written, for lock {name} is not held; take it first with `csalock get --lock {typed}`"
            ),
            Exit::NotHeld,
        ),
        (other @ Outcome::NotOwner(..), _) => refusal_of(asked.handle.as_deref(), other, target, reporter),
        (other, _) => refusal(other, target, reporter, asked.waiting.conflict_exit_code),
    }
}

/// This process, should it have to wait: the lock is taken for the moment of the write.
fn applicant(world: &World, asked: &Writing) -> Result<Applicant> {
    let process = world.host.this_process()?;
    let command = caller(process.pid).map_or_else(|_| command_of(process.pid), |caller| caller.command);
    let label: Option<&OsString> = asked.waiting.label.as_ref();
    Ok(Applicant {
        handle: Handle::new(world.host.random()?),
        share: Share::Exclusive,
        party: world.party(vec![process], command, label)?,
        process,
        outlived: false,
        yields: true,
        claim: None,
        tenure: Tenure::OwnerLives,
        slots: None,
        refuse_stale: asked.waiting.fail_on_stale,
        tentative: false,
        confirming: false,
        under: world.under(),
        called: Some(Called { pid: process.pid, ignores_interrupt: world.inherited.ignored(Signal::SIGINT) }),
    })
}
