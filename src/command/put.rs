//! `csalock put` and `csalock del`

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

use anyhow::Context as _;

use super::acquire::{Acquisition, command_of_caller, request};
use super::context::{Context, LockRef, eprint_line, print_json};
use crate::cli::{Del, Put, Writing};
use crate::engine::{AcquireRequest, EndsWith, ValueWrite, WriteResult};
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::host::ThisProcess;
use crate::lock::{Credentials, MOST_VALUE, Precondition, Value, Written};
use crate::name::escape;
use crate::report::{RefusedLock, Reporter, describe_value, json};
use crate::signals::Signals;

pub(super) fn put(context: &Context, asked: &Put) -> anyhow::Result<Exit> {
    let value = asked.value.as_deref().unwrap_or(OsStr::new("-"));
    let target = context.target(&asked.writing.common, &asked.name)?;
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
    let target = context.target(&asked.writing.common, &asked.name)?;
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
    let (this, credentials) = (ThisProcess::look()?, context.credentials(&engine, asked.handle.as_deref())?);
    let wanted = ValueWrite {
        by: Credentials { orphan: this.orphan(context.host.as_ref()), ..credentials },
        bytes,
        mode,
        precondition: only_if.or(asked.if_version.map(Precondition::Version)),
        require_lock: asked.unlock || asked.handle.is_some() || context.presents_handle_from_env(),
        release: asked.unlock,
        even_if_stale: asked.even_if_stale,
    };
    // If the lock is busy, this process waits, and acquires the lock for the moment of the write.
    let (handle, process, command) = (context.new_handle()?, this.id(), command_of_caller(&this));
    let request = AcquireRequest {
        ends_with: EndsWith::Exit,
        ..request(context, &asked.waiting, handle, process, vec![process], command)?
    };
    let signals = Signals::listen(context.inherited)?;
    let acquisition = Acquisition::new(&asked.common, &asked.waiting, &signals);
    let reporter = Reporter::new(&engine);
    match acquisition.write(&engine, target, &wanted, &request)? {
        WriteResult::Interrupted => Ok(signals.exit()),
        WriteResult::Written(Written { value, stale, .. }) => {
            if let Some(stale) = stale {
                let (name, holder) = (escape(&target.display_name), reporter.ending(&stale));
                let done = if bytes.is_some() { "written" } else { "deleted" };
                asked.common.note(&format!(
                    "lock {name} was stale: it was held by {holder}; the value was {done} for --even-if-stale"
                ));
            }
            told(asked, target, value.as_ref(), bytes.is_some()).context("the value was written")?;
            Ok(Exit::Done)
        }
        WriteResult::Refused(refusal) => {
            let mut lock = RefusedLock::new(target, &reporter);
            lock.presented = context.presented_handle(asked.handle.as_deref());
            acquisition.refuse(&lock.not_written(&refusal, asked.if_version, asked.unlock), &reporter)
        }
        WriteResult::NotAcquired(refusal) => {
            acquisition.refuse(&RefusedLock::new(target, &reporter).refusal(&refusal), &reporter)
        }
    }
}

fn told(asked: &Writing, target: &LockRef, value: Option<&Value>, put: bool) -> anyhow::Result<()> {
    let Some(value) = value else { return Ok(()) };
    if asked.common.json {
        print_json(&json::value(&target.display_name, value, None, None))?;
    } else if asked.common.verbose {
        let (name, what) = (escape(&target.display_name), if put { "has now" } else { "had" });
        eprint_line(&format!("the value of lock {name} {what} {}", describe_value(value)));
    }
    Ok(())
}
