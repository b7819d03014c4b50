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
    group: i32,
    name: String,
}

/// Everybody there is, but zombies.
fn all() -> Vec<Process> {
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(look).collect()
}

fn look(pid: i32) -> Option<Process> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (before, after) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = after.split(' ').collect();
    let process = Process {
        pid,
        parent: fields[1].parse().ok()?,
        group: fields[2].parse().ok()?,
        name: before.split_once('(')?.1.to_string(),
    };
    (!matches!(fields[0], "Z" | "X")).then_some(process)
}

/// Whether a process has this in its environment: so the keepers are known, who are in no group of ours.
fn has_in_environment(pid: i32, what: &Path) -> bool {
    let what = what.as_os_str().as_encoded_bytes();
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.windows(what.len()).any(|window| window == what)
}

/// The pid, and when it started, of whoever is meant in this process group, or among the keepers of this place.
pub(crate) fn find(aim: Aim, group: i32, place: &Path) -> Option<(i32, u64)> {
    let all = all();
    let of_group: Vec<&Process> = all.iter().filter(|process| process.group == group).collect();
    let name_of = |pid: i32| of_group.iter().find(|process| process.pid == pid).map(|process| process.name.as_str());
    let calls = |process: &Process| process.name == "csalock";
    let find = |is_it: &dyn Fn(&Process) -> bool| of_group.iter().find(|process| is_it(process)).copied();
    let is_keeper = |process: &&Process| process.name == "csalock-keeper" && has_in_environment(process.pid, place);
    let found = match aim {
        Aim::Caller => find(&|process| calls(process) && name_of(process.parent) != Some("csalock")),
        Aim::Waiter => find(&|process| calls(process) && name_of(process.parent) == Some("csalock")),
        Aim::Command => find(&|process| !calls(process) && name_of(process.parent) == Some("csalock")),
        Aim::Shell => find(&|process| process.name == "dash"),
        Aim::Keeper => all.iter().find(is_keeper),
        Aim::Any(_) => None,
    };
    let Aim::Any(number) = aim else {
        let found = found.or(of_group.first().copied());
        return found.and_then(|process| Some((process.pid, proc::start_of(process.pid)?)));
    };
    let any = of_group.get(number % of_group.len().max(1));
    any.and_then(|process| Some((process.pid, proc::start_of(process.pid)?)))
}

/// Whether it was there to be hit.
pub(crate) fn send(who: (i32, u64), signal: Signal) -> bool {
    proc::start_of(who.0) == Some(who.1) && kill(Pid::from_raw(who.0), signal).is_ok()
}

/// From now on whoever loses his parent is a child of this process, which so learns of his end without looking around.
pub(crate) fn adopt_orphans() {
    nix::sys::prctl::set_child_subreaper(true).unwrap();
}

/// Whether anybody is left of a process group whose first process has been waited for.
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

/// Everybody who works with what is in this place.
pub(crate) fn users_of(place: &Path) -> Vec<String> {
    let here = |process: &Process| process.name.starts_with("csalock") && has_in_environment(process.pid, place);
    all().iter().filter(|process| here(process)).map(|process| format!("{} {}", process.pid, process.name)).collect()
}
