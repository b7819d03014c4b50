//! The processes that continue only when this process ends: those of the calling script, and of the scripts that called it.
//! A deadlock is a cycle through them.

use std::fs;

use nix::sys::signal::Signal;

use super::owner::{Caller, Invocation, caller, child_that_leads_to};
use super::proc_stat::{self, ProcStat};
use super::programs::is_shell;
use crate::lock::ProcessId;

/// Maximum number of scripts, each called by the next, that csalock examines.
const MOST_SCRIPTS: usize = 8;

/// Returns the processes of the calling script and of the scripts that called that script, innermost first. Only
/// processes that continue only when this process ends count, so no process with several threads. This process comes
/// first if it was a script: it may hold locks that it acquired before `exec csalock`.
///
/// A script does not wait for a background job. A shell with job control leaves the terminal to another process group.
/// A shell without job control makes such a job ignore SIGINT, unless the shell itself was made to ignore it, say as a
/// background job. Nothing tells this case immediately; but `some_time_later` a shell that moved on has begun something
/// else, or soon does.
pub(super) fn blocked_callers(called: &Invocation, some_time_later: bool) -> Vec<ProcessId> {
    let Ok(Some(mut below)) = proc_stat::read(called.pid) else { return Vec::new() };
    let itself = ProcessId { pid: called.pid, start: below.start };
    let mut waiting: Vec<ProcessId> = below.has_called_others().then_some(itself).into_iter().collect();
    let mut ignored_below = called.ignores_interrupt;
    // A caller that does not wait gets "busy" even if one of the outer scripts is the holder.
    for _ in 0..if some_time_later { MOST_SCRIPTS } else { 1 } {
        let Ok(Caller { owners, starters, .. }) = caller(&below) else { break };
        waiting.extend(starters);
        // Programs other than shells may call something and continue. Only the direct caller is assumed to wait.
        let is_script = owners.last().is_some_and(is_shell);
        if below.pid != called.pid && !is_script {
            break;
        }
        for owner in &owners {
            let Ok(Some(stat)) = proc_stat::read(owner.pid) else { return waiting };
            let ignores_too = ignores(owner.pid, Signal::SIGINT);
            let moved_on = || has_moved_on(owner, &below);
            let in_background = if stat.group != below.group && below.foreground > 0 {
                below.foreground != below.group
            } else if ignored_below && ignores_too {
                !some_time_later || !stat.is_sleeping() || moved_on()
            } else {
                ignored_below || (some_time_later && moved_on())
            };
            // Another thread may release the lock meanwhile.
            if in_background || stat.has_threads() {
                return waiting;
            }
            waiting.push(*owner);
            (below, ignored_below) = (stat, ignores_too);
        }
        if !is_script {
            break;
        }
    }
    waiting
}

/// Returns true if a shell has begun something, outside of the same pipeline, after the child that leads to `below`.
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

/// Returns true if a process ignores a signal (SigIgn in proc_pid_status(5)) or if the process cannot be seen.
fn ignores(pid: i32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_none_or(|mask| mask & (1 << (signal as u32 - 1)) != 0)
}
