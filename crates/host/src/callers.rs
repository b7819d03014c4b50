//! The processes that called csalock: the owner of `csalock lock`, and all that continue only when this process ends.
//!
//! The owner is the shell that runs the script, even if `$( )`, a pipeline or `( )` makes the call. This module follows
//! the parents upward. It skips programs that are known to only start another program (`sudo`, `timeout`, ...): they
//! end together with csalock. Wrappers are programs whose arguments say that they start this call
//! (`su -c 'csalock lock x'`, `tini -- csalock lock x`). Most wrappers end with csalock too, but some continue, so the
//! module keeps them as owners. The shell's forks come next. Parent and child are one image, forked without an exec, if
//! the kernel says so and their stacks and arguments begin at the same addresses. Both are then the script, and both
//! are kept, innermost first. (Servers, cron and other programs fork processes for work of their own.) The *effective
//! owner* is the first of these processes that still lives. For `h=$(csalock lock x)` the inner process soon ends and
//! the script itself owns the lock; two `( ... ) &` of one script are two owners.
//!
//! Limits: a caller that has already ended, so that init or another process adopted csalock, owns nothing. The call
//! then fails, because such a lock would live as long as the machine. If init is itself a script, in a container, an
//! adopted process of its own process group looks like a called process. The same applies to another adopter and
//! processes of its own session.
//!
//! The processes that continue only when this process ends are those of the calling script, and of the scripts that called
//! it. A deadlock is a cycle through them.

use std::cell::LazyCell;
use std::fs;
use std::sync::OnceLock;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::interface::Host;
use super::processes::{self, ProcStat, no_proc};
use super::programs::{arguments_of, is_called_shell, is_name_of_shell, is_shell, is_starter, is_wrapper};
use crate::signals;
use lock::{Error, ErrorKind, Orphan, Owner, ProcessId, Result};

/// Maximum number of forks of one program image that csalock follows upward.
const MOST_FORKS: usize = 16;

/// For a program that only starts another program, in its own process group, and has init as its parent.
const CALLED_OR_ADOPTED: &str = "the first process called the program that started csalock, or adopted it, so the owner of the \
                                 lock is unclear";

/// For an init of a container that is csalock itself, or a program told to start it.
const ALONE: &str = "csalock was called only by programs that end with it, so no process would own the lock";

const MOST_PARENTS: usize = 64;

/// Maximum number of bytes that are kept of a command or label.
const MOST_SHOWN: usize = 256;

/// Duration of a clock tick in /proc: USER_HZ is 100 on all machines that csalock is built for.
const MILLISECONDS_PER_TICK: u64 = 10;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    /// Innermost first.
    pub owners: Vec<ProcessId>,
    /// Programs between the script and csalock that only start the next program and wait for its end.
    pub starters: Vec<ProcessId>,
    pub command: Vec<u8>,
    /// A shell waits for the programs it calls. This one is the innermost process of the script.
    pub is_shell: bool,
    /// Such a script is only a part of another one, forked without an exec, and that one has ended.
    pub is_left_behind: bool,
}

/// Command and label are for display, so they are bounded.
pub fn new_owner(host: &dyn Host, processes: Vec<ProcessId>, command: &[u8], label: Option<&[u8]>) -> Result<Owner> {
    let bounded = |text: &[u8]| match text.get(..MOST_SHOWN) {
        // The dots show that text is missing, and no character is cut in two.
        Some(start) if text.len() > MOST_SHOWN => {
            let start = String::from_utf8_lossy(start);
            format!("{}...", start.trim_end_matches(char::REPLACEMENT_CHARACTER)).into_bytes()
        }
        _ => text.to_vec(),
    };
    Ok(Owner {
        domain: host.domain()?,
        processes,
        host: host.name(),
        uid: host.uid(),
        command: bounded(command),
        label: label.map(bounded),
        ..Owner::default()
    })
}

/// This process and its caller. Each is looked up in /proc at most once, and only if it is needed.
#[derive(Default)]
pub struct ThisProcess {
    stat: OnceLock<ProcStat>,
    caller: OnceLock<Result<Caller>>,
}

impl ThisProcess {
    fn stat(&self) -> Result<&ProcStat> {
        super::known(&self.stat, read_own)
    }

    pub fn id(&self) -> Result<ProcessId> {
        Ok(self.stat()?.id())
    }

    pub fn session(&self) -> Result<i32> {
        Ok(self.stat()?.session)
    }

    /// `None` unless the calling script has ended. The leader of a session was detached on purpose, or never called.
    pub fn orphan(&self, host: &dyn Host) -> Result<Option<Orphan>> {
        let stat = self.stat()?;
        let has_script = match self.caller() {
            Ok(caller) => !caller.is_left_behind,
            Err(error) => error.kind() != ErrorKind::InvalidInput,
        };
        if has_script || stat.session == stat.pid {
            return Ok(None);
        }
        let age = host.boottime().saturating_sub(Duration::from_millis(stat.start * MILLISECONDS_PER_TICK));
        Ok(Some(Orphan { session: stat.session, since: host.wall().saturating_sub(age).as_millis() as u64 }))
    }

    /// Fails with a usage error if the caller has ended, and with a system error if /proc cannot be read.
    pub fn caller(&self) -> Result<&Caller> {
        let stat = self.stat()?;
        self.caller.get_or_init(|| caller(stat)).as_ref().map_err(Error::clone)
    }

    /// Innermost first. This process counts, because a shell may have become it for its last command.
    pub fn with_caller(&self) -> Result<Vec<ProcessId>> {
        let above = match self.caller() {
            Ok(caller) => caller.owners.as_slice(),
            // The caller does not exist, or we may not see it.
            Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Denied) => &[],
            Err(error) => return Err(error),
        };
        Ok([&[self.id()?], above].concat())
    }
}

pub(super) fn read_own() -> Result<ProcStat> {
    processes::read_own().map_err(|error| no_proc(&error))
}

pub(super) fn caller(us: &ProcStat) -> Result<Caller> {
    if us.parent == 0 {
        return Err(no_owner(ALONE));
    }
    let ours = LazyCell::new(|| arguments_of(us.pid));
    let mut stat = parent_of(us)?;
    let mut arguments = arguments_of(stat.pid);
    let (mut owners, mut starters) = (Vec::new(), Vec::new());
    for _ in 0..MOST_PARENTS {
        if is_starter(&stat, &arguments) {
            starters.push(stat.id());
        } else if is_wrapper(&stat, &arguments, || &ours) {
            owners.push(stat.id());
        } else {
            break;
        }
        // A process without a parent is the init of a container, or its parent is outside of the container.
        if stat.parent == 0 {
            return Err(no_owner(ALONE));
        }
        stat = parent_of(&stat)?;
        arguments = arguments_of(stat.pid);
    }
    if stat.program == b"systemd" || (stat.pid == 1 && !is_called_by_init(us, &stat)) {
        return Err(if stat.pid == us.parent { orphan() } else { no_owner(CALLED_OR_ADOPTED) });
    }
    owners.push(stat.id());
    let is_shell = is_called_shell(&stat, &arguments);
    while owners.len() < MOST_FORKS && is_shell && stat.is_fork && stat.image != (0, 0) && stat.parent > 0 {
        let Some(parent) = look(stat.parent)?.filter(|parent| parent.image == stat.image) else { break };
        owners.push(parent.id());
        stat = parent;
    }
    let is_left_behind = is_shell && stat.is_fork;
    Ok(Caller { owners, starters, command: arguments.join(&b' '), is_shell, is_left_behind })
}

/// False only if the process is certainly none of these and descends from none of them.
pub(super) fn may_be_called_by(mut pid: i32, processes: &[ProcessId]) -> bool {
    for _ in 0..MOST_PARENTS {
        let Ok(Some(stat)) = processes::read(pid) else { return true };
        if processes.contains(&stat.id()) {
            return true;
        }
        // No process is older than those that called it.
        if stat.parent == 0 || processes.iter().all(|process| process.start > stat.start) {
            return false;
        }
        pid = stat.parent;
    }
    true
}

/// Such an owner of the locks of `pid` is not a shell, and began a session for it or for its shell, as sshd(8) does.
pub fn may_end_with_call(pid: i32, owner: &ProcessId) -> bool {
    if is_shell(owner) {
        return false;
    }
    let Ok(Some(us)) = processes::read(pid) else { return false };
    let child = child_that_leads_to(owner, &us);
    let is_call = child.pid == us.pid || is_name_of_shell(&child.program);
    is_call && child.session == child.pid
}

/// Programs that only start others may be between the two.
fn child_that_leads_to(ancestor: &ProcessId, below: &ProcStat) -> ProcStat {
    let mut callers = processes::with_callers(below.clone()).take(MOST_PARENTS);
    callers.find(|stat| stat.parent == ancestor.pid).unwrap_or_else(|| below.clone())
}

fn look(pid: i32) -> Result<Option<ProcStat>> {
    if pid <= 0 {
        return Ok(None);
    }
    processes::read(pid).map_err(|error| {
        let cure = "mount /proc, or use --pid and --forever";
        // A /proc mounted with hidepid shows only the processes of this user.
        let hidden = error.kind() == std::io::ErrorKind::PermissionDenied;
        let exit = if hidden { ErrorKind::Denied } else { ErrorKind::System };
        Error::new(exit, format!("cannot see the calling process: {error}"), cure)
    })
}

/// Fails if it does not exist any more.
fn parent_of(child: &ProcStat) -> Result<ProcStat> {
    let parent = look(child.parent)?.ok_or_else(orphan)?;
    // A process inherits its parent's session, unless it leads a session of its own. Otherwise a different session
    // shows that the parent has ended; an adopter of orphans (conmon, tini, a desktop) is the parent now.
    let adopted = parent.session != child.session && child.session != child.pid;
    if adopted { Err(orphan()) } else { Ok(parent) }
}

/// Returns true if init is the script, as in a container, and not just the adopter of orphans. A process that init
/// calls is in init's own process group, or in the terminal's group if init has job control. (Sessions that began
/// outside of the container are all 0, so they say little.)
fn is_called_by_init(us: &ProcStat, init: &ProcStat) -> bool {
    let in_front = us.foreground > 0 && us.foreground == us.group;
    init.session == us.session && (init.group == us.group || in_front)
}

fn orphan() -> Error {
    no_owner("the process that called csalock has ended, so the lock would have no owner")
}

fn no_owner(why: &str) -> Error {
    let cure = "name the owner with --pid PID, or keep the lock until it is released with --forever";
    Error::new(ErrorKind::InvalidInput, why, cure)
}

/// Maximum number of scripts, each called by the next, that csalock examines.
const MOST_SCRIPTS: usize = 8;

/// Returns the processes of the calling script and of the scripts that called that script, innermost first. Only
/// processes that continue only when this process ends count, so no process with several threads. This process comes
/// first if it was a script, or the command of another csalock: it may hold locks that it got before `exec csalock`.
///
/// A script does not wait for a background job. A shell with job control leaves the terminal to another process group.
/// A shell without job control makes such a job ignore SIGINT, unless the shell itself was made to ignore it, say as a
/// background job. Nothing tells this case immediately; but `some_time_later` a shell that moved on has begun something
/// else, or soon does.
pub(super) fn blocked_callers(called: i32, some_time_later: bool) -> Vec<ProcessId> {
    let Ok(Some(mut below)) = processes::read(called) else { return Vec::new() };
    let is_command = || processes::read(below.parent).is_ok_and(|it| it.is_some_and(|it| it.program == b"csalock"));
    let may_hold = below.faults_of_children > 0 || is_command();
    let mut waiting: Vec<ProcessId> = may_hold.then(|| below.id()).into_iter().collect();
    let mut ignored_below = signals::was_ignored(Signal::SIGINT);
    // A caller that does not wait gets "busy" even if one of the outer scripts is the holder.
    for _ in 0..if some_time_later { MOST_SCRIPTS } else { 1 } {
        let Ok(Caller { owners, starters, .. }) = caller(&below) else { break };
        waiting.extend(starters);
        // Programs other than shells may call something and continue. Only the direct caller is assumed to wait.
        let is_script = owners.last().is_some_and(is_shell);
        if below.pid != called && !is_script {
            break;
        }
        for owner in &owners {
            let Ok(Some(stat)) = processes::read(owner.pid) else { return waiting };
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
            if in_background || stat.threads > 1 {
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

/// A shell that has moved on has begun something, outside of the same pipeline, after the child that leads to `below`.
fn has_moved_on(shell: &ProcessId, below: &ProcStat) -> bool {
    let below = &child_that_leads_to(shell, below);
    // The kernel lists them in the order of their starts. Their pids and times do not tell it within a tick.
    let children = processes::children_of(shell.pid).unwrap_or_default();
    let younger = children.into_iter().skip_while(|pid| *pid != below.pid).skip(1);
    let younger = younger.filter_map(|pid| processes::read(pid).ok().flatten()).filter(|stat| !stat.is_zombie());
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

/// SigIgn in proc_pid_status(5). True also for a process that cannot be seen.
fn ignores(pid: i32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_none_or(|mask| mask & (1 << (signal as u32 - 1)) != 0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_call_comes_from_its_ancestors_and_never_from_younger_processes() {
        let this = processes::read_own().unwrap();
        let of = |pid: i32| ProcessId { pid, start: processes::start_of(pid).unwrap() };
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let called = child.id() as i32;
        let [itself, parent, grandparent] = [called, this.pid, this.parent].map(of);
        let younger = ProcessId { pid: this.parent, start: itself.start + 1 };
        let stranger = ProcessId { pid: 4_000_000, start: 1 };
        let may_be = [&[itself][..], &[parent], &[grandparent], &[younger, parent], &[younger], &[stranger], &[]]
            .map(|processes| may_be_called_by(called, processes));
        child.kill().and_then(|()| child.wait()).unwrap();
        assert_eq!(may_be, [true, true, true, true, false, false, false]);
    }
}
