//! `csalock run`. [`crate::run::spawn`] describes which process does what.

mod child;
mod flock_compat;
mod recurrence;
mod stop;

use std::ffi::{OsStr, OsString};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;

use self::child::CommandChild;
use self::flock_compat::FlockCompat;
use self::recurrence::Recurring;
pub(super) use self::recurrence::overdue;
use self::stop::stop_after;
use super::context::{Context, eprint_line};
use super::usage;
use crate::cli::{Busy, OnLost, Run};
use crate::engine::OpenLockSet;
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::host::{WakeAddress, WakeSocket};
use crate::report::notice;
use crate::run::deadline::SharedDeadline;
use crate::run::job::{Job, Limits, SuccessReport};
use crate::run::keepalive;
use crate::run::spawn::{CommandLine, Fork, VforkOutcome};
use crate::run::supervisor::{Notice, Supervisor};
use crate::signals::Signals;

pub(super) fn run(context: &Context, asked: &Run, arguments: &[OsString]) -> anyhow::Result<Exit> {
    if asked.common.json {
        let what = "run has no result of its own that could be JSON";
        return Err(Error::new(ErrorKind::InvalidInput, what, "leave --json out").into());
    }
    let (names, command_line) = command_line(asked).map_err(|problem| usage::after_name(&problem, asked, arguments))?;
    if names.len() > 1
        && let Some(option) = only_for_one_lock(asked)
    {
        let what = format!("{option} is for one lock, and here are several");
        return Err(Error::new(ErrorKind::InvalidInput, what, format!("leave --also or {option} out")).into());
    }
    let locks = context.lock_set(&asked.common, &names)?;
    let flock_compat = FlockCompat::of(asked, &locks)?;
    let handle = context.new_handle()?;
    let process = context.host.this_process()?;
    let supervisor = (!asked.no_fork).then_some(process);
    // The process ends soon, and the kernel closes its descriptors.
    let signals = ManuallyDrop::new(Signals::listen(context.inherited)?);
    let opened = locks.open(context);
    // Descriptors or memory are scarce here, and the child would not have more of them.
    if let Err(error) = &opened
        && error.kind() == ErrorKind::System
    {
        return Err(error.clone().into());
    }
    let has_lease = opened.as_ref().is_ok_and(OpenLockSet::need_leases) || asked.taking.ttl.is_some();
    if has_lease {
        keepalive::check_limit()?;
    }
    let recurring = Recurring::of(asked);
    if let (Some(recurring), Ok(opened)) = (&recurring, &opened)
        && recurring.is_done(opened)?
    {
        return Ok(Exit::Done);
    }
    let job = Job {
        context,
        locks: &locks,
        handle: &handle,
        command_line: &command_line,
        signals: &signals,
        limits: Limits {
            ttl: asked.taking.ttl,
            max_hold: asked.max_hold,
            kill_after: asked.kill_after,
            kills: asked.on_lost == OnLost::Kill,
        },
        supervisor,
        reports: recurring.as_ref().map(|recurring| SuccessReport { in_slot: recurring.has_slots() }),
        shared_deadline: has_lease.then(SharedDeadline::new).transpose()?,
    };
    let began = context.host.boottime();
    let (flock_compat, recurring) = (flock_compat.as_ref(), recurring.as_ref());
    let child = CommandChild { job: &job, asked, flock_compat, recurring, began, parent: process };
    match asked.no_fork {
        true => child.acquire_and_exec(&opened?, None),
        false => run_supervised(&child, opened),
    }
}

/// Returns an option that is not for several locks. Names may follow `--also` where clap does not see it.
fn only_for_one_lock(asked: &Run) -> Option<&'static str> {
    let options = [
        (asked.busy == Busy::Latest, "--busy latest"),
        (asked.recurrence.once_per.is_some(), "--once-per"),
        (asked.recurrence.overdue.is_some(), "--overdue"),
    ];
    options.into_iter().find_map(|(is_given, option)| is_given.then_some(option))
}

/// Runs the command in a child process, and stays as its supervisor.
fn run_supervised<'a>(child: &CommandChild<'a>, opened: Result<OpenLockSet<'a>>) -> anyhow::Result<Exit> {
    let (job, asked) = (child.job, child.asked);
    let has_lease = job.shared_deadline.is_some();
    // A child that shares our memory keeps signals from us while it works, so it must not wait for a locked store, a file
    // or the start signal. It may also share our descriptors, so it must not close any for the command.
    let is_plain = child.flock_compat.is_none() && child.recurring.is_none();
    let may_share = !has_lease && is_plain && !job.context.inherited.any_closed();
    let is_quick = may_share && opened.as_ref().is_ok_and(are_free);
    // The socket exists before the command starts, because the command may renew at once.
    let bell = WakeSocket::new(WakeAddress::Supervisor(&job.handle.proof()));
    let tell = |message: &Notice<'_>| asked.common.note(&notice(job.locks, message));
    let files = child.flock_compat.map(|flock_compat| &flock_compat.handover);
    let supervisor = Supervisor::new(job, opened, bell, files, &tell)?;
    if let Ok(opened) = supervisor.opened()
        && may_share
    {
        if is_quick {
            match job.command_line.spawn_vfork(&|progress| child.acquire_in_vfork(opened, progress))? {
                VforkOutcome::Running(running) => return Ok(supervisor.supervise(&running)?),
                VforkOutcome::Failed(exit) => return Ok(exit),
                VforkOutcome::No => {}
            }
        }
        return match child.acquire_for_standby(opened)? {
            Ok(running) => Ok(supervisor.supervise(&running)?),
            Err(exit) => Ok(exit),
        };
    }
    match job.command_line.fork(has_lease)? {
        Fork::Child(child_side) => {
            let waiting = &asked.taking.waiting;
            let acquire = |opened: &_| child.acquire_and_exec(opened, Some(&child_side));
            let ended = match supervisor.opened() {
                Ok(opened) if opened.survive_fork() => acquire(opened),
                _ => job.locks.open(job.context).map_err(Into::into).and_then(|opened| acquire(&opened)),
            };
            child_side.leave(ended.unwrap_or_else(|error| {
                eprint_line(&format!("{error:#}"));
                waiting.exit_of(&error)
            }))
        }
        Fork::Parent(running) => {
            let _stop = stop_after(running.pid());
            Ok(supervisor.supervise(&running)?)
        }
    }
}

/// Returns true if none of the locks has a record, and every store answered at once.
fn are_free(opened: &OpenLockSet<'_>) -> bool {
    opened.each().all(|(target, engine)| {
        engine.store().set_deadline(Some(engine.host().boottime()));
        let is_free = engine.has_no_record(&target.name);
        engine.store().set_deadline(None);
        is_free
    })
}

/// Returns the names and the command: `NAME COMMAND...`, `NAME --also NAME -- COMMAND...` or `NAME -c STRING`.
/// Returns the problem if the words are something else.
pub(super) fn command_line(asked: &Run) -> std::result::Result<(Vec<OsString>, CommandLine), String> {
    let (typed, mut words) = asked.words.split_first().ok_or("the name is missing")?;
    let mut names = [std::slice::from_ref(typed), &asked.also].concat();
    let mut shell = asked.shell.clone();
    while let [option, rest @ ..] = words {
        let (name, rest) = match (option.as_bytes().strip_prefix(b"--also"), rest) {
            (Some(b""), [name, rest @ ..]) => (name.clone(), rest),
            (Some(b""), []) => return Err("--also: the name is missing".to_string()),
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
            return Err("-c after the name: exactly one STRING must follow".to_string());
        }
        [option, ..] if option.as_bytes().starts_with(b"-") => {
            return Err(format!("{} comes after the name, where the command begins", usage::quoted(option)));
        }
        _ => {}
    }
    let command_line = match (shell, words) {
        (Some(_), [_, ..]) => return Err("-c STRING and a command cannot both be run".to_string()),
        (Some(string), []) => CommandLine::new(["/bin/sh".into(), "-c".into(), string]),
        (None, []) => return Err("the command is missing".to_string()),
        (None, [program, ..]) if program.is_empty() => return Err("the command's name is empty".to_string()),
        (None, words) => CommandLine::new(words.iter().cloned()),
    };
    Ok((names, command_line))
}
