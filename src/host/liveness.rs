//! Which processes of the pid namespace of this process live.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use super::proc_stat;
use crate::lock::{Liveness, ProcessId};

/// When this process first saw a certain state of other processes, on CLOCK_BOOTTIME.
#[derive(Debug, Default)]
pub(super) struct FirstSight(Mutex<BTreeMap<ProcessId, Duration>>);

impl FirstSight {
    /// Returns true if this process has not seen the state of that process for longer than `span`.
    pub(super) fn is_within(&self, process: &ProcessId, now: Duration, span: Duration) -> bool {
        let mut first = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        now.saturating_sub(*first.entry(*process).or_insert(now)) <= span
    }
}

/// Returns the liveness of a process, as /proc and kill(2) show it.
pub(super) fn liveness_of(process: &ProcessId) -> Liveness {
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
/// and releases its locks at this moment, unless it hangs. A stopped parent does not count.
pub(super) fn is_released_by(process: &ProcessId, supervisor: &ProcessId) -> bool {
    let stat = |pid| proc_stat::read(pid).ok().flatten();
    let ended = stat(process.pid).filter(|stat| stat.start == process.start && stat.is_zombie());
    ended.is_some_and(|ended| ended.parent == supervisor.pid)
        && stat(supervisor.pid).is_some_and(|stat| stat.start == supervisor.start && stat.is_running())
}

pub(super) fn is_stopped(process: &ProcessId) -> bool {
    matches!(proc_stat::read(process.pid), Ok(Some(stat)) if stat.start == process.start && stat.is_stopped())
}

/// Returns true if a process exists and is not stopped.
pub fn is_at_work(pid: i32) -> bool {
    matches!(proc_stat::read(pid), Ok(Some(stat)) if stat.is_running())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_counts_from_its_first_sight_and_each_process_for_itself() {
        let (sight, [one, other]) = (FirstSight::default(), [1, 2].map(|pid| ProcessId { pid, start: 7 }));
        let at = |process, seconds| sight.is_within(process, Duration::from_secs(seconds), Duration::from_secs(15));
        assert_eq!([at(&one, 100), at(&one, 115), at(&one, 116)], [true, true, false]);
        // Two holders of slots may hang at the same time.
        assert_eq!([at(&other, 116), at(&one, 117), at(&other, 131), at(&other, 132)], [true, false, true, false]);
    }
}
