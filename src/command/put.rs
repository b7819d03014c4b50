//! `csalock put` and `csalock del`

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

use anyhow::Context as _;
use nix::sys::signal::Signal;

use super::context::{Context, LockRef, eprint_line, exactly_one, print_json, refusal, refusal_of};
use super::wait_progress::WaitProgress;
use crate::cli::{Del, Put, Writing};
use crate::engine::{AcquireRequest, AcquireResult, WantedValue};
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::host::{Invocation, caller, command_of};
use crate::lock::{Handle, Lifetime, MOST_VALUE, Mode, Precondition, Response, Value};
use crate::name::{escape, shell_quote};
use crate::report::{Reporter, ValueJson};
use crate::signals::Signals;

pub(super) fn put(context: &Context, asked: &Put) -> anyhow::Result<Exit> {
    let (name, value) = match asked.words.as_slice() {
        [name] => (name, OsStr::new("-")),
        [name, value] => (name, value.as_os_str()),
        [_, _, other, ..] => {
            let what = format!("{} is one word too many after the name and the value", shell_quote(other.as_bytes()));
            return Err(Error::new(ErrorKind::InvalidInput, what, "put the value in quotes").into());
        }
        [] => unreachable!("clap sees to it that there is a name"),
    };
    let target = context.target(&asked.writing.common, name)?;
    let bytes = if value == "-" { from_stdin(context, &target)? } else { value.as_bytes().to_vec() };
    if bytes.len() > MOST_VALUE {
        let what = format!("the value for lock {} has more than {MOST_VALUE} bytes", escape(&target.display_name));
        return Err(
            Error::new(ErrorKind::InvalidInput, what, "keep it in a file, and the file's name in the value").into()
        );
    }
    let only_if = asked.if_absent.then_some(Precondition::Absent);
    write(context, &asked.writing, &target, Some(&bytes), only_if, asked.mode)
}

pub(super) fn del(context: &Context, asked: &Del) -> anyhow::Result<Exit> {
    let target = context.target(&asked.writing.common, exactly_one(&asked.names)?)?;
    write(context, &asked.writing, &target, None, None, None)
}

fn from_stdin(context: &Context, target: &LockRef) -> Result<Vec<u8>> {
    let failed = |what: String| {
        let what = format!("cannot read the value for lock {} from stdin: {what}", escape(&target.display_name));
        Error::new(ErrorKind::InputOutput, what, "nothing was written; give the value as an argument, or on stdin")
    };
    if context.inherited.closed(0) {
        return Err(failed("it is closed".to_string()));
    }
    let mut bytes = Vec::new();
    let most = MOST_VALUE as u64 + 1;
    std::io::stdin().lock().take(most).read_to_end(&mut bytes).map_err(|error| failed(error.to_string()))?;
    Ok(bytes)
}

fn write(
    context: &Context,
    asked: &Writing,
    target: &LockRef,
    bytes: Option<&[u8]>,
    only_if: Option<Precondition>,
    mode: Option<u32>,
) -> anyhow::Result<Exit> {
    let engine = context.engine(&target.location)?;
    let reporter = Reporter { host: engine.host(), scope: engine.store().scope() };
    let wanted = WantedValue {
        by: context.credentials(&engine, asked.handle.as_deref())?,
        bytes,
        mode,
        precondition: only_if.or(asked.if_version.map(Precondition::Version)),
        require_lock: asked.unlock || asked.handle.is_some(),
        release: asked.unlock,
        even_if_stale: asked.even_if_stale,
    };
    let request = request(context, asked)?;
    let signals = Signals::listen(context.inherited)?;
    let mut teller = WaitProgress::new(&asked.common);
    let policy = asked.waiting.wait_policy();
    let taken = engine.write(&target.name, &wanted, &request, &policy, Some(signals.interrupt()), &mut |waiting| {
        teller.update(target, &reporter, waiting)
    })?;
    drop(teller);
    let response = match taken {
        AcquireResult::Answer(outcome) => outcome,
        AcquireResult::Interrupted => {
            return Ok(signals.exit());
        }
    };
    if let Response::Written(value, stale) = &response {
        if let Some(stale) = stale {
            let (name, holder) = (escape(&target.display_name), reporter.ending(stale));
            let done = if bytes.is_some() { "written" } else { "deleted" };
            asked.common.note(&format!(
                "lock {name} was stale: it was held by {holder}; the value was {done} for --even-if-stale"
            ));
        }
        told(asked, target, value.as_ref(), bytes.is_some()).context("the value was written")?;
        return Ok(Exit::Done);
    }
    let (text, exit) = refused(&response, asked, target, &reporter);
    asked.common.note(&text);
    Ok(exit)
}

fn told(asked: &Writing, target: &LockRef, value: Option<&Value>, put: bool) -> anyhow::Result<()> {
    let Some(value) = value else { return Ok(()) };
    if asked.common.json {
        print_json(&ValueJson::new(&target.display_name, value, None))?;
    } else if asked.common.verbose {
        let (name, what) = (escape(&target.display_name), if put { "has now" } else { "had" });
        eprint_line(&format!("the value of lock {name} {what} {}", described(value)));
    }
    Ok(())
}

fn described(value: &Value) -> String {
    let plural = if value.size == 1 { "" } else { "s" };
    format!("version {} and {} byte{plural}", value.version.unwrap_or_default(), value.size)
}

fn refused(response: &Response, asked: &Writing, target: &LockRef, reporter: &Reporter<'_>) -> (String, Exit) {
    let (name, typed) = (escape(&target.display_name), &target.shell_arg);
    match (response, asked.if_version) {
        (Response::VersionMismatch(Some(value)), None) => (
            format!("lock {name} guards a value already, with {}; see it with `csalock get {typed}`", described(value)),
            Exit::NotUnique,
        ),
        (Response::VersionMismatch(value), version) => (
            format!(
                "the value of lock {name} is not at version {} any more: {}; read it again with `csalock get {typed}`",
                version.unwrap_or_default(),
                value.as_ref().map_or("there is none".to_string(), |value| format!("it has {}", described(value)))
            ),
            Exit::Stale,
        ),
        (Response::Shared(others), _) => (
            format!(
                "nothing was written, for you share lock {name}: {}; give it back, and take it for yourself alone",
                others.iter().map(|grant| reporter.holding(grant)).collect::<Vec<_>>().join("; and ")
            ),
            asked.waiting.conflict_exit_code.map_or(Exit::Busy, Exit::Code),
        ),
        (Response::NoValue, _) => (format!("lock {name} guards no value"), Exit::NotHeld),
        (Response::NotOwner(holders, Some(ending)), _) => {
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
        (Response::NotHeld(_), _) => (
            format!(
                "nothing was written, for lock {name} is not held; take it first with `csalock get --lock {typed}`"
            ),
            Exit::NotHeld,
        ),
        (other @ Response::NotOwner(..), _) => refusal_of(asked.handle.as_deref(), other, target, reporter),
        (other, _) => refusal(other, target, reporter, asked.waiting.conflict_exit_code),
    }
}

/// Returns a request for this process in case it must wait: the lock is acquired for the moment of the write.
fn request(context: &Context, asked: &Writing) -> Result<AcquireRequest> {
    let process = context.host.this_process()?;
    let command = caller(process.pid).map_or_else(|_| command_of(process.pid), |caller| caller.command);
    let label: Option<&OsString> = asked.waiting.label.as_ref();
    Ok(AcquireRequest {
        handle: Handle::new(context.host.random()?),
        mode: Mode::Exclusive,
        owner: context.owner(vec![process], command, label)?,
        process,
        owner_outlives_process: false,
        release_on_exit: true,
        claim: None,
        lifetime: Lifetime::WhileOwnerLives,
        slots: None,
        refuse_stale: asked.waiting.fail_on_stale,
        provisional: false,
        confirming: false,
        enclosing_grants: context.enclosing_grants(),
        invocation: Some(Invocation { pid: process.pid, ignores_interrupt: context.inherited.ignored(Signal::SIGINT) }),
    })
}
