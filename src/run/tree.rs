//! The processes that come from a command, and those of them that outlive it.

use std::collections::BTreeSet;
use std::time::Duration;

use nix::sys::prctl::set_child_subreaper;
use nix::unistd::Pid;
use rustix::process::WaitOptions;

use super::detach;
use super::timer::wait_readable;
use host::processes::{self, MOST_SEARCHES, ProcStat};
use host::{self, Host};
use lock::{Error, ErrorKind, ProcessId, Result};

/// Number of looks at the processes that an ended process had started, and the time between two of them.
const SURVIVOR_CHECKS: u32 = 10;
const SURVIVOR_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The command and all processes that come from it, also those in other sessions and those whose parents have ended:
/// the supervisor adopts these, prctl(2).
#[derive(Debug)]
pub struct Tree {
    pub(super) supervisor: ProcessId,
    command: ProcessId,
    /// Earlier children of the supervisor: ssh(1) for a store.
    earlier_children: Vec<ProcessId>,
}

impl Tree {
    /// A command that has not started yet. This process, its supervisor, adopts the processes that come from it.
    pub fn adopt(supervisor: ProcessId, command: ProcessId) -> Result<Tree> {
        let children = processes::children_of(supervisor.pid).map_err(cannot_follow)?;
        set_child_subreaper(true).map_err(cannot_follow)?;
        let children = children.into_iter().filter_map(|pid| Some(processes::read(pid).ok()??.id()));
        Ok(Tree { supervisor, command, earlier_children: children.filter(|child| *child != command).collect() })
    }

    /// Tells if others than the ended command may live, and reaps those that have ended. For the supervisor only.
    pub(super) fn has_survivors(&self, keeper: Option<Pid>) -> bool {
        for _ in 0..MOST_SEARCHES {
            let Ok(children) = processes::children_of(self.supervisor.pid) else { return true };
            let mut has_reaped = false;
            let known = [Some(self.command.pid), keeper.map(Pid::as_raw)];
            for pid in children.into_iter().filter(|pid| !known.contains(&Some(*pid))) {
                let is_foreign = || matches!(processes::read(pid), Ok(Some(stat)) if self.is_foreign(&stat));
                match rustix::process::waitpid(rustix::process::Pid::from_raw(pid), WaitOptions::NOHANG) {
                    Ok(Some(_)) => has_reaped = true,
                    _ if is_foreign() => {}
                    _ => return true,
                }
            }
            // A child that ended after this look at the children may have left one of its own, which is a child by now.
            if !has_reaped {
                return false;
            }
        }
        true
    }

    /// Parents first. A `keeper` of this process may still have its name.
    fn descendants(&self, keeper: Option<Pid>) -> Vec<ProcessId> {
        let is_foreign = |child: &ProcStat| Some(Pid::from_raw(child.id().pid)) == keeper || self.is_foreign(child);
        processes::descendants(&[self.supervisor, self.command], &is_foreign)
    }

    /// False if one of them is not stopped by a signal.
    pub(super) fn is_stopped(&self, keeper: Option<Pid>) -> bool {
        let all = self.descendants(keeper);
        let is_stopped = |process: &ProcessId| *process == self.supervisor || host::is_stopped(process.pid);
        // One of them may have forked after its children were read, and then stopped.
        all.iter().all(is_stopped) && self.descendants(keeper) == all
    }

    /// Sends a signal to all processes but the command itself. Returns false if permission is denied for one of them.
    pub(super) fn send(&self, signal: i32, keeper: Option<Pid>) -> bool {
        let (mut reached, mut is_allowed) = (BTreeSet::from([self.supervisor, self.command]), true);
        for _ in 0..MOST_SEARCHES {
            let found = self.descendants(keeper).into_iter();
            let new: Vec<ProcessId> = found.filter(|process| reached.insert(*process)).collect();
            if new.is_empty() {
                break;
            }
            let denied = |process: &ProcessId| host::send(process, signal) == Err(nix::errno::Errno::EPERM);
            is_allowed &= new.iter().filter(|process| denied(process)).count() == 0;
        }
        is_allowed
    }

    fn is_foreign(&self, child: &ProcStat) -> bool {
        self.earlier_children.contains(&child.id()) || is_keeper(child)
    }
}

/// Such a process renews a lease, and ends by itself after its owner.
fn is_keeper(process: &ProcStat) -> bool {
    [detach::NAME, detach::PARENT_NAME].iter().any(|name| process.program == name.to_bytes())
}

/// Living processes that come from this one, without keepers.
pub(crate) fn descendants_of(process: ProcessId) -> impl Iterator<Item = ProcessId> {
    processes::descendants(&[process], &is_keeper).into_iter().skip(1)
}

/// Some may have received the signal that ended their parent, and are about to end, so this takes up to 100 ms.
pub(crate) fn survivors(host: &dyn Host, processes: BTreeSet<ProcessId>) -> Vec<ProcessId> {
    let mut survivors: Vec<ProcessId> = processes.into_iter().collect();
    for _ in 0..SURVIVOR_CHECKS {
        survivors.retain(|process| host.process(process.pid).is_ok_and(|found| found == Some(*process)));
        if survivors.is_empty() {
            break;
        }
        let _ = wait_readable([], Some(SURVIVOR_CHECK_INTERVAL));
    }
    survivors
}

pub(super) fn cannot_follow(error: impl std::fmt::Display) -> Error {
    let what = format!("cannot follow the processes of the command: {error}");
    Error::new(ErrorKind::System, what, "leave --tree out")
}
