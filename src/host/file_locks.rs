//! The processes that hold flock(2) on a file, as /proc shows them.
//!
//! /proc/locks shows the process that called flock(2). In a script (`exec 9>FILE; flock 9`) that process has long
//! ended. This module looks for processes that have the file open, and uses /proc/locks only for hidden processes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Maximum number of reads of the kernel's list before the list counts as empty.
const LOOKS: usize = 10;

/// Returns the pids of the visible holders in ascending order.
pub fn flock_holders(path: &Path) -> Vec<i32> {
    let Ok(file) = fs::metadata(path) else { return Vec::new() };
    let is_it = |found: &fs::Metadata| (found.dev(), found.ino()) == (file.dev(), file.ino());
    let mut pids: Vec<i32> = numbers("/proc").filter(|pid| has_it_locked(*pid, path, &is_it)).collect();
    if pids.is_empty() {
        pids = callers(&file, "FLOCK");
    }
    pids.sort_unstable();
    pids
}

fn has_it_locked(pid: i32, path: &Path, is_it: &dyn Fn(&fs::Metadata) -> bool) -> bool {
    let descriptors = format!("/proc/{pid}/fd");
    numbers(&descriptors).any(|number| {
        let link = format!("{descriptors}/{number}");
        // The link is read first, because a stat of another process's open file might never return.
        fs::read_link(&link).is_ok_and(|to| to == path)
            && fs::metadata(&link).is_ok_and(|found| is_it(&found))
            && fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}"))
                .is_ok_and(|info| info.lines().any(|line| line.starts_with("lock:") && line.contains(" FLOCK ")))
    })
}

/// Returns the visible other processes with a POSIX lock (fcntl(2)) on a file, by ascending pid. The function does not
/// open the file, because closing it would drop the locks of this process.
pub fn posix_holders(path: &Path) -> Vec<i32> {
    other_callers(path, "POSIX")
}

/// Returns the visible other processes with an exclusive lock on a file, as [`posix_holders`].
pub fn exclusive_holders(path: &Path) -> Vec<i32> {
    other_callers(path, "WRITE")
}

fn other_callers(path: &Path, word: &str) -> Vec<i32> {
    let Ok(file) = fs::metadata(path) else { return Vec::new() };
    let own = nix::unistd::Pid::this().as_raw();
    callers(&file, word).into_iter().filter(|pid| *pid != own).collect()
}

/// Returns the live processes with a lock whose kind or mode is this word, by ascending pid.
fn callers(file: &fs::Metadata, word: &str) -> Vec<i32> {
    // The kernel returns its list in pieces, so a line can be missed while other processes lock and unlock.
    (0..LOOKS).map(|_| listed_callers(file, word)).find(|pids| !pids.is_empty()).unwrap_or_default()
}

/// Returns the callers from one read of the kernel's list. A line looks like `1: FLOCK  ADVISORY  WRITE 359
/// 00:13:11691 0 EOF`; waiters have `->` after the number.
fn listed_callers(file: &fs::Metadata, word: &str) -> Vec<i32> {
    let (major, minor) = (nix::sys::stat::major(file.dev()), nix::sys::stat::minor(file.dev()));
    let wanted = format!("{major:02x}:{minor:02x}:{}", file.ino());
    let text = fs::read_to_string("/proc/locks").unwrap_or_default();
    let holder = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [_, kind, _, mode, pid, place, ..] if [kind, mode].contains(&word) && place == wanted => pid.parse().ok(),
        _ => None,
    };
    let pids = text.lines().filter_map(holder).filter(|pid| fs::exists(format!("/proc/{pid}")).unwrap_or(false));
    // A line of a changing list may appear twice.
    pids.collect::<BTreeSet<i32>>().into_iter().collect()
}

fn numbers(directory: &str) -> impl Iterator<Item = i32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test")]
    fn holders_are_the_processes_that_have_the_file_open_and_locked() {
        let dir = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(dir.path()).unwrap().join("file");
        let (file, other) = (fs::File::create(&path).unwrap(), fs::File::open(&path).unwrap());
        // A process that another test starts has every file of this process open until its exec.
        let becomes = |holders: &[i32]| assert!((0..1000).any(|_| flock_holders(&path) == holders), "{holders:?}");
        let own = std::process::id() as i32;
        becomes(&[]);
        fs2::FileExt::lock_shared(&file).unwrap();
        becomes(&[own]);
        assert_eq!(callers(&fs::metadata(&path).unwrap(), "FLOCK"), [own]);
        drop(file);
        becomes(&[]);
        drop(other);
    }
}
