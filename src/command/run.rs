//! `csalock run-with-lock`. [`crate::child`] describes which process does what.

mod child;
mod flock_compat;
mod supervisor;

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use self::child::CommandChild;
use self::flock_compat::FlockCompat;
use self::supervisor::Supervisor;
use super::context::{Context, LockRef, eprint_line};
use super::lock_set::{LockSet, OpenLockSet};
use crate::child::{CommandLine, Fork, RunningCommand, VforkOutcome};
use crate::cli::RunWithLock;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::host::{WakeAddress, WakeSocket};
use crate::lock::Handle;
use crate::shared_deadline::SharedDeadline;
use crate::signals::Signals;

pub(super) fn run(context: &Context, asked: &RunWithLock) -> anyhow::Result<Exit> {
    if asked.common.json {
        let what = "run-with-lock has no result of its own that could be JSON";
        return Err(Error::new(ErrorKind::InvalidInput, what, "leave --json out").into());
    }
    let (names, command_line) = command_line(asked)?;
    let targets = LockSet::new(context, &asked.common, &names)?;
    let flock_compat = FlockCompat::of(asked, &targets)?;
    let compat = flock_compat.as_ref();
    let handle = Handle::new(context.host.random()?);
    let signals = Signals::listen(context.inherited)?;
    let supervisor = (!asked.no_fork).then(|| context.host.this_process()).transpose()?;
    // The child opens the stores itself, because neither descriptors nor SQLite's connections may be shared.
    let opened = targets.open(context);
    let shared = opened.as_ref().is_ok_and(OpenLockSet::are_shared);
    let kept = shared || asked.taking.ttl.is_some();
    let shared_deadline = kept.then(SharedDeadline::new).transpose()?;
    let (targets, plan, signals, handle) = (&targets, &command_line, &signals, &handle);
    let began = context.host.boottime();
    let take = CommandChild {
        context,
        asked,
        targets,
        command_line: plan,
        signals,
        handle,
        supervisor,
        flock_compat: compat,
        shared_deadline,
        began,
    };
    if asked.no_fork {
        return take.acquire_and_exec(None);
    }
    // A child that shares our memory keeps signals from us, so it must not wait for a locked store either.
    let is_free = |(target, engine): (&LockRef, &Engine)| {
        engine.store().set_deadline(Some(context.host.boottime()));
        let found = engine.store().read(&target.name);
        engine.store().set_deadline(None);
        found.is_ok_and(|found| found.is_none())
    };
    let are_free = !kept && opened.as_ref().is_ok_and(|opened| opened.each().all(is_free));
    // The socket exists before the command starts, because the command may renew at once. A keeper has its own socket.
    let proof = handle.proof();
    let bell = if kept { None } else { WakeSocket::new(WakeAddress::Supervisor(&proof)) };
    let guard = |running: RunningCommand| {
        let guard = Supervisor {
            context,
            asked,
            targets,
            handle,
            opened,
            flock_compat: compat,
            shared_deadline,
            bell,
            released: RefCell::default(),
        };
        let exit = guard.supervise(&running, signals);
        running.reap();
        // The process ends here, and the kernel closes a database faster than SQLite does.
        std::mem::forget(guard);
        exit
    };
    // A file or the start signal may need a wait, and a child that shares our memory must not wait.
    if are_free && compat.is_none() {
        match plan.spawn_vfork(&|progress| take.acquire_in_vfork(progress))? {
            VforkOutcome::Running(running) => return guard(running),
            VforkOutcome::Failed(exit) => return Ok(exit),
            VforkOutcome::No => {}
        }
    }
    match plan.fork(kept)? {
        Fork::Child(child_side) => {
            let taken = take.acquire_and_exec(Some(&child_side)).or_else(|error| asked.taking.waiting.end(error));
            let exit = taken.unwrap_or_else(|error| {
                eprint_line(&format!("{error:#}"));
                super::exit_of(&error)
            });
            child_side.leave(exit)
        }
        Fork::Parent(running) => guard(running),
    }
}

/// Returns the names and the command: `NAME COMMAND...`, `NAME --also NAME -- COMMAND...` or `NAME -c STRING`.
fn command_line(asked: &RunWithLock) -> Result<(Vec<OsString>, CommandLine)> {
    let usage =
        |what: &str| Error::new(ErrorKind::InvalidInput, what, "say: csalock run-with-lock NAME COMMAND [ARGUMENT]...");
    let (typed, mut words) = asked.words.split_first().ok_or_else(|| usage("the name is missing"))?;
    let mut names = [std::slice::from_ref(typed), &asked.also].concat();
    let mut shell = asked.shell.clone();
    while let [option, rest @ ..] = words {
        let (name, rest) = match (option.as_bytes().strip_prefix(b"--also"), rest) {
            (Some(b""), [name, rest @ ..]) => (name.clone(), rest),
            (Some(b""), []) => return Err(usage("--also needs a name")),
            (Some([b'=', name @ ..]), rest) => (OsStr::from_bytes(name).to_os_string(), rest),
            _ => break,
        };
        names.push(name);
        words = rest;
    }
    match words {
        [dashes, rest @ ..] if dashes == "--" => words = rest,
        // flock(1) accepts -c after the name, too.
        [dash_c, string] if shell.is_none() && (dash_c == "-c" || dash_c == "--command") => {
            shell = Some(string.clone());
            words = &[];
        }
        [dash_c, ..] if dash_c == "-c" || dash_c == "--command" => {
            return Err(usage("behind the name -c takes one STRING, and nothing else"));
        }
        [option, ..] if option.as_bytes().starts_with(b"-") => {
            let option = crate::name::shell_quote(option.as_bytes());
            return Err(usage(&format!("{option} stands behind the name, where options are not ours")));
        }
        _ => {}
    }
    let command_line = match (shell, words) {
        (Some(_), [_, ..]) => return Err(usage("-c STRING and a command cannot both be run")),
        (Some(string), []) => CommandLine::new(["/bin/sh".into(), "-c".into(), string]),
        (None, []) => return Err(usage("the command is missing")),
        (None, [program, ..]) if program.is_empty() => return Err(usage("the command's name is empty")),
        (None, words) => CommandLine::new(words.iter().cloned()),
    };
    Ok((names, command_line))
}
