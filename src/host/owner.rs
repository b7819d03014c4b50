//! Who the owner of `csalock lock` is: the shell that runs the script, also from inside `$( )`, a pipeline or `( )`.
//!
//! We follow the parents upward. Programs that are known to only start another one (`sudo`, `timeout`, ...) are stepped
//! over: they end together with us. Wrappers are programs whose arguments say that they start this call (`su -c 'csalock
//! lock x'`, `tini -- csalock lock x`). Most of them end with us as well, but some go on, so they are kept as owners. Then
//! come the shell's own forks: as long as parent and child are one program image forked without an exec (the kernel says so
//! of the child, and stacks and arguments begin at the same addresses) both are the script, and are kept, innermost first.
//! (Other programs fork processes with work of their own: servers, cron.) The *effective owner* is the first of all these
//! that still lives: for `h=$(csalock lock x)` the inner one is gone a moment later and the script itself owns the lock,
//! while two `( ... ) &` of one script are two owners.
//!
//! Limits: a caller that has ended already, so that we were handed to init or to another process that adopts orphans,
//! owns nothing; that is an error and not a lock that would live as long as the machine. Where init is itself a script,
//! in a container, and what was handed to it is of its own process group, it cannot be told from what it called; nor can
//! what another adopts of its own session.

use std::fs;

use nix::sys::signal::Signal;

use super::proc_stat::{self, ProcStat};
use super::programs::{arguments_of, is_called_shell, is_name_of_shell, is_shell, is_starter, is_wrapper};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lock::ProcessId;

/// So many scripts that called one another are looked at.
const MOST_SCRIPTS: usize = 8;

/// How far up we look for forks of one image.
const MOST_FORKS: usize = 16;

/// A program that only starts another one, in a process group of its own, has init as its parent.
const CALLED_OR_ADOPTED: &str = "the first process called the program that started csalock, or adopted it, so the owner of the \
                                 lock is unclear";

/// Init of a container is csalock itself, or was told to start it.
const ALONE: &str = "csalock was called only by programs that end with it, so no process would own the lock";

/// How far up we look at all.
const MOST_PARENTS: usize = 64;

/// The script that called us.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    /// Its processes, innermost first.
    pub owners: Vec<ProcessId>,
    /// The programs between it and us that only started the next one, and wait for its end.
    pub starters: Vec<ProcessId>,
    /// Its command line, the arguments separated by spaces.
    pub command: Vec<u8>,
}

/// A process that somebody called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Invocation {
    /// Its pid.
    pub pid: i32,
    /// Whether it was made to ignore SIGINT.
    pub ignores_interrupt: bool,
}

/// Finds out who called this process, whose pid is `pid`.
///
/// # Errors
///
/// A usage error when the caller has ended, and a system error when /proc cannot be read.
pub fn caller(pid: i32) -> Result<Caller> {
    let us = look(pid)?.ok_or_else(orphan)?;
    if us.parent == 0 {
        return Err(no_owner(ALONE));
    }
    let ours = arguments_of(pid);
    let (mut at, mut stat) = (us.parent, parent_of(&us)?);
    let mut arguments = arguments_of(at);
    let (mut owners, mut starters) = (Vec::new(), Vec::new());
    for _ in 0..MOST_PARENTS {
        let process = ProcessId { pid: at, start: stat.start };
        if is_starter(&stat, &arguments) {
            starters.push(process);
        } else if is_wrapper(&stat, &arguments, &ours) {
            owners.push(process);
        } else {
            break;
        }
        // Init of a container, or a process whose parent is outside of one.
        if stat.parent == 0 {
            return Err(no_owner(ALONE));
        }
        (at, stat) = (stat.parent, parent_of(&stat)?);
        arguments = arguments_of(at);
    }
    if stat.program == b"systemd" || (at == 1 && !is_called_by_init(&us, &stat)) {
        return Err(if at == us.parent { orphan() } else { no_owner(CALLED_OR_ADOPTED) });
    }
    owners.push(ProcessId { pid: at, start: stat.start });
    let is_shell = is_called_shell(&stat, &arguments);
    while owners.len() < MOST_FORKS && is_shell && stat.is_fork && stat.image != (0, 0) && stat.parent > 0 {
        let Some(parent) = look(stat.parent)?.filter(|parent| parent.image == stat.image) else { break };
        owners.push(ProcessId { pid: stat.parent, start: parent.start });
        stat = parent;
    }
    Ok(Caller { owners, starters, command: arguments.join(&b' ') })
}

/// The processes of the script that called this process, and of the scripts that called that one, as far as they go on only
/// when it ends, innermost first; and before them this process, if it was a script itself, which may hold what it took
/// before its `exec csalock`.
///
/// Who runs in the background is not waited for. A shell with job control leaves the terminal to another process group. One
/// without has such a job ignore SIGINT, which the shell itself does not; unless it was made to ignore it itself, say by
/// running in the background. Then nothing tells at once; but `some_time_later` a shell that went on has begun something
/// else, or is about to.
pub(super) fn blocked_callers(called: &Invocation, some_time_later: bool) -> Vec<ProcessId> {
    let Ok(Some(mut below)) = proc_stat::read(called.pid) else { return Vec::new() };
    let itself = ProcessId { pid: called.pid, start: below.start };
    let mut waiting: Vec<ProcessId> = below.has_called_others().then_some(itself).into_iter().collect();
    let (mut from, mut ignored_below) = (called.pid, called.ignores_interrupt);
    // Who does not wait at all is told that it is busy, also by those whom his script was called by.
    for _ in 0..if some_time_later { MOST_SCRIPTS } else { 1 } {
        let Ok(Caller { owners, starters, .. }) = caller(from) else { break };
        waiting.extend(starters);
        // Other programs than shells may call something and go on. The one that called us is taken to wait.
        let is_script = owners.last().is_some_and(is_shell);
        if from != called.pid && !is_script {
            break;
        }
        for owner in &owners {
            let Ok(Some(stat)) = proc_stat::read(owner.pid) else { return waiting };
            let ignores_too = ignores(owner.pid, Signal::SIGINT);
            let has_gone_on = || has_moved_on(owner, &below);
            let in_background = if stat.group != below.group && below.foreground > 0 {
                below.foreground != below.group
            } else if ignored_below && ignores_too {
                !some_time_later || !stat.is_sleeping() || has_gone_on()
            } else {
                ignored_below || (some_time_later && has_gone_on())
            };
            if in_background {
                return waiting;
            }
            waiting.push(*owner);
            (below, ignored_below) = (stat, ignores_too);
        }
        if !is_script {
            break;
        }
        from = below.pid;
    }
    waiting
}

/// Whether the owner of what process `pid` takes may end with this call: it is not a shell, and began a session for this
/// process or for the shell that called it, as sshd(8) does for a command.
pub fn may_end_with_call(pid: i32, owner: &ProcessId) -> bool {
    let Ok(Some(us)) = proc_stat::read(pid) else { return false };
    let child = child_that_leads_to(owner, &us);
    let is_call = child.pid == us.pid || is_name_of_shell(&child.program);
    is_call && child.session == child.pid && !is_shell(owner)
}

/// Whether a shell has begun something after what leads to this process, and that is not of the same pipeline.
fn has_moved_on(shell: &ProcessId, below: &ProcStat) -> bool {
    let below = &child_that_leads_to(shell, below);
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", shell.pid)).unwrap_or_default();
    let age = |stat: &ProcStat| (stat.start, stat.pid);
    let children = children.split_whitespace().filter_map(|pid| proc_stat::read(pid.parse().ok()?).ok().flatten());
    let mut younger: Vec<ProcStat> = children.filter(|stat| age(stat) > age(below) && !stat.is_zombie()).collect();
    younger.sort_by_key(age);
    let pipe = |pid: i32, fd: i32| {
        let link = fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?;
        link.to_str().is_some_and(|link| link.starts_with("pipe:")).then_some(link)
    };
    let written = |pid: i32| [pipe(pid, 1), pipe(pid, 2)].into_iter().flatten();
    let mut pipes: Vec<_> = written(below.pid).collect();
    for child in younger {
        if pipe(child.pid, 0).is_none_or(|read| !pipes.contains(&read)) {
            return true;
        }
        pipes.extend(written(child.pid));
    }
    false
}

/// A process's own child that leads to one below. Between the two may be programs that only start others.
fn child_that_leads_to(ancestor: &ProcessId, below: &ProcStat) -> ProcStat {
    let mut child = below.clone();
    for _ in 0..MOST_PARENTS {
        match proc_stat::read(child.parent) {
            Ok(Some(parent)) if parent.pid != ancestor.pid => child = parent,
            Ok(Some(_)) => return child,
            _ => break,
        }
    }
    below.clone()
}

/// Whether a process ignores a signal: SigIgn in proc_pid_status(5). Who cannot be seen is taken for somebody who does.
fn ignores(pid: i32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_none_or(|mask| mask & (1 << (signal as u32 - 1)) != 0)
}

fn look(pid: i32) -> Result<Option<ProcStat>> {
    if pid <= 0 {
        return Ok(None);
    }
    proc_stat::read(pid).map_err(|error| {
        let cure = "mount /proc, or say --pid and --forever";
        // A /proc mounted with hidepid shows nobody else's.
        let hidden = error.kind() == std::io::ErrorKind::PermissionDenied;
        let exit = if hidden { Exit::Permission } else { Exit::System };
        Error::new(exit, format!("cannot see the calling process: {error}"), cure)
    })
}

/// The process that began this one, if it is there.
fn parent_of(child: &ProcStat) -> Result<ProcStat> {
    let parent = look(child.parent)?.ok_or_else(orphan)?;
    // Session and parent are a process's own from its beginning, unless it begins a session, and then it leads it. So
    // this one's parent has ended, and whoever adopts the orphans below him (conmon, tini, a desktop) has it now.
    let adopted = parent.session != child.session && child.session != child.pid;
    if adopted { Err(orphan()) } else { Ok(parent) }
}

/// Init is the caller only where it is the script, as in a container; else it is what orphans are handed to. What it
/// calls is in its own process group, or in that of the terminal if it has job control. (Sessions that began outside of
/// the container are all 0, so they say little.)
fn is_called_by_init(us: &ProcStat, init: &ProcStat) -> bool {
    let in_front = us.foreground > 0 && us.foreground == us.group;
    init.session == us.session && (init.group == us.group || in_front)
}

fn orphan() -> Error {
    no_owner("the process that called csalock has ended, so nobody would own the lock")
}

fn no_owner(why: &str) -> Error {
    Error::new(
        Exit::Usage,
        why,
        "name the owner with --pid PID, or keep the lock until it is given back with --forever",
    )
}
