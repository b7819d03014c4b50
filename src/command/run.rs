//! `csalock run-with-lock`: who does what is said in [`crate::child`].

mod guard;
mod old_flock;
mod take;

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use self::guard::Guard;
use self::old_flock::OldFlock;
use self::take::Take;
use super::targets::{Opened, Targets};
use super::world::{Target, World, say};
use crate::child::{AtOnce, Forked, Plan, Running};
use crate::cli::RunWithLock;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::host::{Bell, Listener};
use crate::lease_end::LeaseEnd;
use crate::lock::Handle;
use crate::signals::Signals;

pub(super) fn run(world: &World, asked: &RunWithLock) -> anyhow::Result<Exit> {
    if asked.common.json {
        let what = "run-with-lock has no result of its own that could be JSON";
        return Err(Error::new(Exit::Usage, what, "leave --json out").into());
    }
    let (names, plan) = plan(asked)?;
    let targets = Targets::new(world, &asked.common, &names)?;
    let old_flock = OldFlock::of(asked, &targets)?;
    let old_flock = old_flock.as_ref();
    let handle = Handle::new(world.host.random()?);
    let signals = Signals::listen(world.inherited)?;
    let guardian = (!asked.no_fork).then(|| world.host.this_process()).transpose()?;
    // The child opens the stores for itself: neither descriptors nor SQLite's connections may be shared.
    let opened = targets.open(world);
    let shared = opened.as_ref().is_ok_and(Opened::are_shared);
    let kept = shared || asked.taking.ttl.is_some();
    let lease_end = kept.then(LeaseEnd::new).transpose()?;
    let (targets, plan, signals, handle) = (&targets, &plan, &signals, &handle);
    let began = world.host.boottime();
    let take = Take { world, asked, targets, plan, signals, handle, guardian, old_flock, lease_end, began };
    if asked.no_fork {
        return take.and_become(None);
    }
    // A child that shares our memory keeps signals from us, so it must not wait for a store that is locked either.
    let is_free = |(target, engine): (&Target, &Engine)| {
        engine.store().bound(Some(world.host.boottime()));
        let found = engine.store().read(&target.name);
        engine.store().bound(None);
        found.is_ok_and(|found| found.is_none())
    };
    let are_free = !kept && opened.as_ref().is_ok_and(|opened| opened.each().all(is_free));
    // From before the command can begin, for it may renew at once. A keeper has a bell of its own.
    let proof = handle.proof();
    let bell = if kept { None } else { Bell::new(Listener::Guardian(&proof)) };
    let guard = |running: Running| {
        let guard =
            Guard { world, asked, targets, handle, opened, old_flock, lease_end, bell, released: RefCell::default() };
        let exit = guard.until_the_end(&running, signals);
        running.reap();
        // The process ends here, and the kernel closes a database faster than SQLite does.
        std::mem::forget(guard);
        exit
    };
    // A file may have to be waited for, and so may leave to begin, which a child that shares our memory must not do.
    if are_free && old_flock.is_none() {
        match plan.at_once(&|progress| take.at_once(progress))? {
            AtOnce::Running(running) => return guard(running),
            AtOnce::Failed(exit) => return Ok(exit),
            AtOnce::No => {}
        }
    }
    match plan.fork(kept)? {
        Forked::Command(becoming) => {
            let taken = take.and_become(Some(&becoming)).or_else(|error| asked.taking.waiting.end(error));
            let exit = taken.unwrap_or_else(|error| {
                say(&format!("{error:#}"));
                super::exit_of(&error)
            });
            becoming.leave(exit)
        }
        Forked::Guardian(running) => guard(running),
    }
}

/// The names, and what is to be run: `NAME COMMAND...`, `NAME --also NAME -- COMMAND...`, `NAME -c STRING`.
fn plan(asked: &RunWithLock) -> Result<(Vec<OsString>, Plan)> {
    let usage = |what: &str| Error::new(Exit::Usage, what, "say: csalock run-with-lock NAME COMMAND [ARGUMENT]...");
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
        // As flock(1) has it: after the name.
        [dash_c, string] if shell.is_none() && (dash_c == "-c" || dash_c == "--command") => {
            shell = Some(string.clone());
            words = &[];
        }
        [dash_c, ..] if dash_c == "-c" || dash_c == "--command" => {
            return Err(usage("behind the name -c takes one STRING, and nothing else"));
        }
        [option, ..] if option.as_bytes().starts_with(b"-") => {
            let option = crate::name::quoted(option.as_bytes());
            return Err(usage(&format!("{option} stands behind the name, where options are not ours")));
        }
        _ => {}
    }
    let plan = match (shell, words) {
        (Some(_), [_, ..]) => return Err(usage("-c STRING and a command cannot both be run")),
        (Some(string), []) => Plan::new(["/bin/sh".into(), "-c".into(), string]),
        (None, []) => return Err(usage("the command is missing")),
        (None, [program, ..]) if program.is_empty() => return Err(usage("the command's name is empty")),
        (None, words) => Plan::new(words.iter().cloned()),
    };
    Ok((names, plan))
}
