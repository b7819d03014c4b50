//! `csalock run-with-lock`: who does what is said in [`crate::child`].

mod guard;
mod take;

use std::ffi::OsString;

use self::guard::Guard;
use self::take::Take;
use super::world::{World, say};
use crate::child::{AtOnce, Forked, Plan};
use crate::cli::RunWithLock;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lock::Handle;
use crate::signals::Signals;

pub(super) fn run(world: &World, asked: &RunWithLock) -> anyhow::Result<Exit> {
    let (typed, plan) = plan(asked)?;
    let target = world.target(&asked.common, &typed)?;
    let handle = Handle::new(world.host.random()?);
    let signals = Signals::listen(world.inherited)?;
    let take = Take { world, asked, target: &target, plan: &plan, signals: &signals, handle: &handle };
    if asked.no_fork {
        return take.and_become(None);
    }
    // The child opens the store for itself: neither descriptors nor SQLite's connections may be shared.
    let engine = world.engine(&target.location);
    let is_taken =
        engine.as_ref().is_ok_and(|engine| engine.store().read(&target.name).is_ok_and(|found| found.is_some()));
    let guard = |running| {
        let guard = Guard { world, asked, target: &target, handle: &handle, engine };
        let exit = guard.until_the_end(running, &signals);
        // The process ends here, and the kernel closes a database faster than SQLite does.
        std::mem::forget(guard);
        exit
    };
    if !is_taken {
        match plan.at_once(&|progress| take.at_once(progress))? {
            AtOnce::Running(running) => return guard(running),
            AtOnce::Failed(exit) => return Ok(exit),
            AtOnce::No => {}
        }
    }
    match plan.fork()? {
        Forked::Command(becoming) => {
            let exit = take.and_become(Some(&becoming)).unwrap_or_else(|error| {
                say(&format!("{error:#}"));
                super::exit_of(&error)
            });
            becoming.leave(exit)
        }
        Forked::Guardian(running) => guard(running),
    }
}

/// The name, and what is to be run: `NAME COMMAND...`, `NAME -- COMMAND...`, `NAME -c STRING`.
fn plan(asked: &RunWithLock) -> Result<(OsString, Plan)> {
    let usage = |what: &str| Error::new(Exit::Usage, what, "say: csalock run-with-lock NAME COMMAND [ARGUMENT]...");
    let (typed, mut words) = asked.words.split_first().ok_or_else(|| usage("the name is missing"))?;
    let mut shell = asked.shell.clone();
    match words {
        [dashes, rest @ ..] if dashes == "--" => words = rest,
        // As flock(1) has it: after the name.
        [dash_c, string] if shell.is_none() && (dash_c == "-c" || dash_c == "--command") => {
            shell = Some(string.clone());
            words = &[];
        }
        _ => {}
    }
    match (shell, words) {
        (Some(_), [_, ..]) => Err(usage("-c STRING and a command cannot both be run")),
        (Some(string), []) => Ok((typed.clone(), Plan::new(["/bin/sh".into(), "-c".into(), string]))),
        (None, []) => Err(usage("the command is missing")),
        (None, [program, ..]) if program.is_empty() => Err(usage("the command's name is empty")),
        (None, words) => Ok((typed.clone(), Plan::new(words.iter().cloned()))),
    }
}
