//! Which processes of the pid namespace of this process live.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::kill;
use nix::unistd::Pid;

use super::{proc_stat, wait_set};
use crate::lock::{Liveness, ProcessId};

/// A process that was watched while it lived, and its pidfd.
#[derive(Debug, Default)]
pub(super) struct WatchedProcess(OnceLock<(ProcessId, OwnedFd)>);

impl WatchedProcess {
    /// Watches this process from now on, if it lives and no other process is watched.
    pub(super) fn watch(&self, process: &ProcessId) {
        if let Ok(Some(pidfd)) = wait_set::pidfd(process)
            // Only a look at /proc after the opening proves that the pidfd belongs to that process.
            && fate_in_proc(process) == Liveness::Alive
        {
            let _ = self.0.set((*process, pidfd));
        }
    }

    /// Returns the liveness of a process.
    pub(super) fn fate(&self, process: &ProcessId) -> Liveness {
        let watched = self.0.get().filter(|(watched, _)| watched == process);
        // A pidfd is readable as soon as its process has ended.
        let is_alive = |pidfd: &OwnedFd| {
            matches!(poll(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO), Ok(0))
        };
        if watched.is_some_and(|(_, pidfd)| is_alive(pidfd)) { Liveness::Alive } else { fate_in_proc(process) }
    }
}

/// Returns the liveness of a process, as /proc and kill(2) show it.
fn fate_in_proc(process: &ProcessId) -> Liveness {
    match proc_stat::read(process.pid) {
        Ok(Some(stat)) if stat.start != process.start || stat.is_zombie() => Liveness::Dead,
        Ok(Some(_)) => Liveness::Alive,
        // The process has ended, or `hidepid` hides it, or /proc is not that of this namespace.
        Ok(None) | Err(_) => match kill(Pid::from_raw(process.pid), None) {
            Err(Errno::ESRCH) => Liveness::Dead,
            _ => Liveness::Unknown,
        },
    }
}

/// Returns true if this pid namespace certainly has no live process with this pid. The start time of the process may be
/// unknown.
pub(super) fn is_absent(process: &ProcessId) -> bool {
    let is_zombie = || matches!(proc_stat::read(process.pid), Ok(Some(stat)) if stat.is_zombie());
    kill(Pid::from_raw(process.pid), None) == Err(Errno::ESRCH) || is_zombie()
}

/// Returns true if this process is a zombie whose parent is its running supervisor. Such a parent saw the process end
/// and releases its locks at this moment. A stopped parent does not count.
pub(super) fn is_released_by(process: &ProcessId, supervisor: &ProcessId) -> bool {
    let stat = |pid| proc_stat::read(pid).ok().flatten();
    let ended = stat(process.pid).filter(|stat| stat.start == process.start && stat.is_zombie());
    ended.is_some_and(|ended| ended.parent == supervisor.pid)
        && stat(supervisor.pid).is_some_and(|stat| stat.start == supervisor.start && stat.is_running())
}

/// Returns true if this process is stopped.
pub(super) fn is_stopped(process: &ProcessId) -> bool {
    matches!(proc_stat::read(process.pid), Ok(Some(stat)) if stat.start == process.start && stat.is_stopped())
}

/// Returns true if a process exists and is not stopped.
pub fn is_at_work(pid: i32) -> bool {
    matches!(proc_stat::read(pid), Ok(Some(stat)) if stat.is_running())
}
