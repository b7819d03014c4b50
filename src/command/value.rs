//! `csalock get`, `csalock put` and `csalock del`: the value that a lock guards.

use std::ffi::OsStr;
use std::io::{IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;

use anyhow::Context as _;

use super::acquire::{Acquisition, command_of_caller, report_taken, request};
use super::context::{Context, LockRef, eprint_line, print, print_json};
use super::lock::{ForScript, Granted};
use crate::cli::{Del, Get, Put, Taking, Writing};
use crate::exit::Exit;
use crate::report::{RefusedLock, Reporter, describe_value, json};
use engine::{Engine, ValueWrite, WriteResult, environment};
use host::ThisProcess;
use host::signals::{self, Signals};
use lock::name::escape;
use lock::{Credentials, Error, ErrorKind, Lifetime, MOST_VALUE, Mode, Precondition, Result, SetValue, Value, Written};

pub(super) fn get(context: &Context, options: &Get) -> anyhow::Result<Exit> {
    context.require_stdout("the value", "send it somewhere")?;
    if options.lock {
        return take_and_get(context, options);
    }
    if let Some(option) = options.pid.map(|_| "--pid").or_else(|| only_for_taking(&options.taking)) {
        let what = format!("{option} cannot be used without --lock");
        return Err(Error::invalid(what, "add --lock, or leave it out").into());
    }
    let target = context.target(&options.name)?;
    give(context, &context.engine(&target.location)?, &target, None)
}

fn take_and_get(context: &Context, options: &Get) -> anyhow::Result<Exit> {
    let targets = &context.lock_set(std::slice::from_ref(&options.name))?;
    let target = targets.first();
    let Get { taking, pid, .. } = options;
    ForScript { context, taking, pid: *pid, targets, prints: true }.acquire(
        |Granted { opened, handle, grants, evicted, owner, .. }| {
            report_taken(&context.common, opened, grants, *evicted, Some(owner));
            // A value that was not read is useless, and then so is the lock.
            give(context, opened.engine(0), target, Some((handle, grants[0].token)))
        },
    )
}

/// Prints the value, and the grant that it was read under if the lock was acquired for that.
fn give(
    context: &Context,
    engine: &Engine,
    lock: &LockRef,
    taken: Option<json::ReadGrant<'_>>,
) -> anyhow::Result<Exit> {
    let Some((value, bytes)) = engine.value(&lock.name)? else {
        let reporter = Reporter::new(engine);
        let mut refusal = RefusedLock::new(lock, &reporter).no_value();
        if let Some(grant) = taken {
            refusal.hint = "the lock is held now, so write one or give it back".to_string();
            if context.common.json {
                print_json(&json::no_value(&refusal, grant))?;
                return Ok(refusal.kind.into());
            }
        }
        return context.common.refuse(&refusal, refusal.kind.into(), None);
    };
    if context.common.json {
        print_json(&json::value(&lock.display_name, &value, taken, Some(bytes)))?;
    } else {
        print(&bytes)?;
        // The prompt of a shell begins on a line of its own.
        if std::io::stdout().is_terminal() && bytes.last().is_some_and(|last| *last != b'\n') {
            print("\n")?;
        }
    }
    Ok(Exit::Done)
}

/// An option that was given although it only concerns acquiring.
fn only_for_taking(taking: &Taking) -> Option<&'static str> {
    let waiting = &taking.waiting;
    [
        (waiting.nonblock, "--nonblock"),
        (waiting.fail_on_stale, "--fail-on-stale"),
        (waiting.backoff.is_some(), "--backoff"),
        (waiting.label.as_ref().is_some_and(|label| !label.as_bytes().is_empty()), "--label"),
        (waiting.no_command, "--no-command"),
        (waiting.conflict_exit_code.is_some(), "--conflict-exit-code"),
        (taking.exclusive || taking.mode() != Mode::Exclusive, "-x, -s or -j"),
        (taking.lifetime() != Lifetime::WhileOwnerLives, "--ttl or --forever"),
    ]
    .into_iter()
    .find_map(|(given, option)| given.then_some(option))
}

pub(super) fn put(context: &Context, options: &Put) -> anyhow::Result<Exit> {
    let value = options.value.as_deref().unwrap_or(OsStr::new("-"));
    let target = context.target(&options.name)?;
    let bytes = if value == "-" { from_stdin(&target)? } else { value.as_bytes().to_vec() };
    if bytes.len() > MOST_VALUE {
        let what = format!("the value for lock {} has more than {MOST_VALUE} bytes", escape(&target.display_name));
        return Err(Error::invalid(what, "keep it in a file, and the file's name in the value").into());
    }
    let only_if = options.if_absent.then_some(Precondition::Absent);
    write(context, &options.writing, &target, Some(&bytes), only_if, options.mode)
}

pub(super) fn del(context: &Context, options: &Del) -> anyhow::Result<Exit> {
    let target = context.target(&options.name)?;
    write(context, &options.writing, &target, None, None, None)
}

fn from_stdin(target: &LockRef) -> Result<Vec<u8>> {
    let failed = |what: String| {
        let what = format!("cannot read the value for lock {} from stdin: {what}", escape(&target.display_name));
        Error::new(ErrorKind::InputOutput, what, "nothing was written; give the value as an argument, or on stdin")
    };
    if signals::was_closed(0) {
        return Err(failed("it is closed".to_string()));
    }
    let mut bytes = Vec::new();
    let most = MOST_VALUE as u64 + 1;
    std::io::stdin().lock().take(most).read_to_end(&mut bytes).map_err(|error| failed(error.to_string()))?;
    Ok(bytes)
}

fn write(
    context: &Context,
    options: &Writing,
    target: &LockRef,
    bytes: Option<&[u8]>,
    only_if: Option<Precondition>,
    mode: Option<u32>,
) -> anyhow::Result<Exit> {
    let engine = context.engine(&target.location)?;
    let this = ThisProcess::default();
    let credentials = context.credentials(&engine, options.handle.as_deref(), &this)?;
    // A handle that `run` has set comes with the name of its lock; it says nothing about other names, and the record knows
    // how its grant has ended.
    let is_presented = context.handle_from_env().is_some() && environment::variable("CSALOCK_NAME").is_none();
    let terms = SetValue {
        credentials: Credentials { orphan: this.orphan(context.host.as_ref())?, ..credentials },
        value: None,
        precondition: only_if.or(options.if_version.map(Precondition::Version)),
        require_lock: options.unlock || options.handle.is_some() || is_presented,
        release: options.unlock,
        even_if_stale: options.even_if_stale,
    };
    let wanted = ValueWrite { terms, bytes, mode };
    // If the lock is busy, this process waits, and acquires the lock for the moment of the write.
    let (handle, process, command) = (context.new_handle()?, this.id()?, command_of_caller(&this)?);
    let mut request = request(context, &options.waiting, handle, process, vec![process], command)?;
    request.entry.release_on_exit = true;
    let signals = Signals::listen()?;
    let lease = engine.needs_leases().then(|| engine.lease());
    let acquisition = Acquisition::new(context, &options.waiting, &signals, lease);
    let reporter = Reporter::new(&engine);
    match acquisition.write(&engine, target, &wanted, &request)? {
        WriteResult::Interrupted => Ok(Exit::interrupted(signals.interrupted_by())),
        WriteResult::Done(Ok(Written { value, stale, .. })) => {
            if let Some(stale) = stale {
                let (name, holder) = (escape(&target.display_name), reporter.ending(&stale));
                let done = if bytes.is_some() { "written" } else { "deleted" };
                context.common.note(&format!(
                    "lock {name} was stale: it was held by {holder}; the value was {done} for --even-if-stale"
                ));
            }
            told(context, target, value.as_ref(), bytes.is_some()).context("the value was written")?;
            Ok(Exit::Done)
        }
        WriteResult::Done(Err(refusal)) => {
            let mut lock = RefusedLock::new(target, &reporter);
            lock.presented = context.presented_handle(options.handle.as_deref());
            let may_help = options.unlock && !options.even_if_stale;
            acquisition.refuse(&lock.not_written(&refusal, options.if_version, may_help), &reporter)
        }
        WriteResult::NotAcquired(refusal) => {
            acquisition.refuse(&RefusedLock::new(target, &reporter).refusal(&refusal), &reporter)
        }
    }
}

fn told(context: &Context, target: &LockRef, value: Option<&Value>, put: bool) -> anyhow::Result<()> {
    let Some(value) = value else { return Ok(()) };
    if context.common.json {
        print_json(&json::value(&target.display_name, value, None, None))?;
    } else if context.common.verbose {
        let (name, what) = (escape(&target.display_name), if put { "has now" } else { "had" });
        eprint_line(&format!("the value of lock {name} {what} {}", describe_value(value)));
    }
    Ok(())
}
