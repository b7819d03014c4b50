//! Looking at processes from outside.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Returns when the process has ended, or after this time.
pub(crate) fn wait_for_end(pid: i32, at_most: Duration) {
    let Some(Ok(pidfd)) = Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty())) else { return };
    let mut polled = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
    let _ = poll(&mut polled, PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX));
}

/// The one-letter state and the parent of a process; `None` when there is none.
pub(crate) fn stat(pid: i32) -> Option<(char, i32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Stops processes, but not within a call of an SQLite store: a stopped process keeps the database locked.
pub(crate) fn stop(pids: &[i32]) {
    let send = |signal| pids.iter().for_each(|pid| kill(nix::unistd::Pid::from_raw(*pid), signal).unwrap());
    super::wait_until("they lock no database", || {
        send(Signal::SIGSTOP);
        super::wait_until("they are stopped", || pids.iter().all(|pid| matches!(stat(*pid), Some(('T' | 't', _)))));
        let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
        let is_ours = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
            [_, "POSIX", _, "WRITE", pid, ..] => pids.iter().any(|ours| ours.to_string() == pid),
            _ => false,
        };
        let is_locked = locks.lines().any(is_ours);
        if is_locked {
            send(Signal::SIGCONT);
        }
        !is_locked
    });
}

/// Whether a process exists and is not a zombie. Its other threads may end after the first one, and have its files until then.
pub(crate) fn lives(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X') || stat_field(pid, 20) > Some(1))
}

/// The name of the program that a process runs, at most 15 characters of it; empty when there is none.
pub(crate) fn program(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_string()
}

/// When a process started, in clock ticks since boot.
pub(crate) fn start_of(pid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

/// A field of /proc/PID/stat, counted as proc_pid_stat(5) does.
pub(crate) fn stat_field(pid: i32, number: usize) -> Option<i64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.split(' ').nth(number - 3)?.parse().ok()
}

/// The processes whose parent it is.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().map(|child| child.parse().unwrap()).collect()
}

pub(crate) fn keepers(supervisor: i32) -> Vec<i32> {
    children(supervisor).into_iter().filter(|pid| program(*pid) == "csalock-keeper" && lives(*pid)).collect()
}

/// How much memory it has for itself, programs and libraries aside, in KiB.
pub(crate) fn private_kibibytes(pid: i32) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let (mut anonymous, mut sum) = (false, 0);
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words[0].contains('-') && !words[0].ends_with(':') {
            // A file that was only just built has not been written to the disk yet, and counts as dirty.
            anonymous = words.get(1).is_some_and(|access| access.contains('w'));
        } else if anonymous && words[0] == "Private_Dirty:" {
            sum += words[1].parse::<u64>().unwrap();
        }
    }
    sum
}

/// The processes of a process group that have not ended.
pub(crate) fn in_group(group: i32) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| stat_field(*pid, 5) == Some(group.into()) && lives(*pid)).collect()
}

pub(crate) fn command(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ")
}
