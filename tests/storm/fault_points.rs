//! Hitting one of a round's processes: finding the one that is meant, and signals to it.

use std::path::Path;

use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::sandbox::proc;
use crate::schedule::Aim;

struct Process {
    pid: i32,
    parent: i32,
    name: String,
}

/// Returns all processes except zombies.
fn all() -> Vec<Process> {
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(look).collect()
}

fn look(pid: i32) -> Option<Process> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (before, after) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = after.split(' ').collect();
    let process = Process { pid, parent: fields[1].parse().ok()?, name: before.split_once('(')?.1.to_string() };
    (!matches!(fields[0], "Z" | "X")).then_some(process)
}

/// Whether a process has this in its environment; this finds keepers, which are in no group of the storm.
fn has_in_environment(pid: i32, what: &Path) -> bool {
    let what = what.as_os_str().as_encoded_bytes();
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.windows(what.len()).any(|window| window == what)
}

/// A round's first process and all that come of it, as long as their parents live.
fn family(first: i32) -> Vec<Process> {
    let mut found: Vec<Process> = look(first).into_iter().collect();
    let mut at = 0;
    while at < found.len() {
        found.extend(proc::children(found[at].pid).into_iter().filter_map(look));
        at += 1;
    }
    found
}

/// Returns the pid and the start of the chosen one among the descendants of this process, or among the keepers of this
/// place.
pub(crate) fn find(aim: Aim, first: i32, place: &Path) -> Option<(i32, u64)> {
    let family = family(first);
    let name_of = |pid: i32| family.iter().find(|process| process.pid == pid).map(|process| process.name.as_str());
    let calls = |process: &Process| process.name == "csalock";
    let is_keeper = |process: &Process| process.name == "csalock-keeper" && has_in_environment(process.pid, place);
    let find = |is_it: &dyn Fn(&Process) -> bool| family.iter().find(|process| is_it(process)).map(|found| found.pid);
    let found = match aim {
        Aim::Caller => find(&|process| calls(process) && name_of(process.parent) != Some("csalock")),
        Aim::Waiter => find(&|process| calls(process) && name_of(process.parent) == Some("csalock")),
        Aim::Command => find(&|process| !calls(process) && name_of(process.parent) == Some("csalock")),
        Aim::Shell => find(&|process| process.name == "dash"),
        // They are not descendants.
        Aim::Keeper => all().into_iter().find(is_keeper).map(|found| found.pid),
        Aim::Any(number) => family.get(number % family.len().max(1)).map(|found| found.pid),
    };
    let pid = found.or(family.first().map(|first| first.pid))?;
    Some((pid, proc::start_of(pid)?))
}

/// Whether the target existed.
pub(crate) fn send(who: (i32, u64), signal: Signal) -> bool {
    proc::start_of(who.0) == Some(who.1) && kill(Pid::from_raw(who.0), signal).is_ok()
}

/// Makes this process the parent of orphans, so that it learns of their ends without a scan.
pub(crate) fn adopt_orphans() {
    nix::sys::prctl::set_child_subreaper(true).unwrap();
}

/// Whether a process group whose leader has been reaped still has a process.
pub(crate) fn is_left(group: i32) -> bool {
    while waitpid(Pid::from_raw(-group), Some(WaitPidFlag::WNOHANG)).is_ok_and(|end| end != WaitStatus::StillAlive) {}
    killpg(Pid::from_raw(group), None).is_ok()
}

/// Lets those keepers go that have ended: they are in groups of their own.
pub(crate) fn bury_keepers() {
    let me = std::process::id() as i32;
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let dead = |pid: &i32| proc::stat(*pid) == Some(('Z', me)) && proc::stat_field(*pid, 5) == Some((*pid).into());
    for pid in pids.filter(dead) {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if name == "csalock-keeper\n" {
            let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
        }
    }
}

/// Returns all processes that use files in this place.
pub(crate) fn users_of(place: &Path) -> Vec<String> {
    let here = |process: &Process| process.name.starts_with("csalock") && has_in_environment(process.pid, place);
    all().iter().filter(|process| here(process)).map(|process| format!("{} {}", process.pid, process.name)).collect()
}
