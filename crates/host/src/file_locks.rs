//! The processes that hold flock(2) or a record lock of fcntl(2) on a file, as /proc shows them.
//!
//! /proc/locks shows the process that called flock(2). In a script (`exec 9>FILE; flock 9`) that process has long
//! ended. Of the lock of an open file description (F_OFD_SETLK) it shows no process. This module looks for processes that
//! have the file open, and uses /proc/locks only for hidden processes.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::stat::{major, makedev, minor};
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, PROC_SUPER_MAGIC, fstatfs, statfs};
use rustix::fs::{FlockOperation, Mode, OFlags, open};

use lock::DescriptorLock;

/// Maximum number of reads of the kernel's list before the list counts as empty.
const LOOKS: usize = 10;

/// Locks of one do not exclude those of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileLock {
    Flock,
    /// fcntl(2): a traditional record lock, or that of an open file description
    Fcntl,
}

impl FileLock {
    pub const ALL: [FileLock; 2] = [FileLock::Flock, FileLock::Fcntl];

    /// Of the option and of the system call.
    pub fn name(self) -> &'static str {
        match self {
            FileLock::Flock => "flock",
            FileLock::Fcntl => "fcntl",
        }
    }

    fn words(self) -> &'static [&'static str] {
        match self {
            FileLock::Flock => &["FLOCK"],
            FileLock::Fcntl => &["POSIX", "OFDLCK"],
        }
    }
}

/// Returns the pids of the visible holders of each lock on a file, in ascending order. A lock whose holders are all hidden
/// has none. The function does not open the file, because closing it would drop the POSIX locks of this process.
pub fn file_locks(path: &Path) -> Vec<(FileLock, Vec<i32>)> {
    let Ok(file) = fs::metadata(path) else { return Vec::new() };
    // A script's csalock has inherited the descriptor.
    let own = nix::unistd::Pid::this().as_raw();
    let others = numbers("/proc").filter(|pid| *pid != own);
    let lines: Vec<(i32, String)> = others.flat_map(|pid| lines_of_locks(pid, path, &file)).collect();
    let pids_of = |lock: FileLock| {
        let is_it = |line: &str| line.split_whitespace().any(|word| lock.words().contains(&word));
        let seen: BTreeSet<i32> = lines.iter().filter(|(_, line)| is_it(line)).map(|(pid, _)| *pid).collect();
        if seen.is_empty() { callers(path, lock.words(), LOOKS) } else { Some(seen.into_iter().collect()) }
    };
    FileLock::ALL.into_iter().filter_map(|lock| Some((lock, pids_of(lock)?))).collect()
}

/// The kernel lists one of these locks on the file. One read of the list can miss a lock while other locks come and go;
/// `surely` reads it several times.
pub fn is_file_locked(path: &Path, kinds: &[FileLock], surely: bool) -> bool {
    let words: Vec<&str> = kinds.iter().flat_map(|kind| kind.words()).copied().collect();
    callers(path, &words, if surely { LOOKS } else { 1 }).is_some()
}

/// Each with the pid.
fn lines_of_locks(pid: i32, path: &Path, file: &fs::Metadata) -> Vec<(i32, String)> {
    let descriptors = format!("/proc/{pid}/fd");
    let is_it = |link: &str| {
        // The link is read first, because a stat of another process's open file might never return.
        fs::read_link(link).is_ok_and(|to| to == path)
            && fs::metadata(link).is_ok_and(|found| (found.dev(), found.ino()) == (file.dev(), file.ino()))
    };
    let open = numbers(&descriptors).filter(|number| is_it(&format!("{descriptors}/{number}")));
    let infos = open.filter_map(|number| fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).ok());
    let lines = infos.flat_map(|info| info.lines().map(String::from).collect::<Vec<_>>());
    lines.filter(|line| line.starts_with("lock:")).map(|line| (pid, line)).collect()
}

/// Visible other processes, by ascending pid. This does not open the file, for the reason at [`file_locks`].
pub fn posix_holders(path: &Path, exclusive_only: bool) -> Vec<i32> {
    let (word, own) = (if exclusive_only { "WRITE" } else { "POSIX" }, nix::unistd::Pid::this().as_raw());
    callers(path, &[word], LOOKS).unwrap_or_default().into_iter().filter(|pid| *pid != own).collect()
}

/// Live processes with a lock of one of these kinds or modes, by ascending pid; `None` if the kernel lists no such lock.
fn callers(path: &Path, words: &[&str], looks: usize) -> Option<Vec<i32>> {
    let place = place_of(path)?;
    // The kernel returns its list in pieces, so a line can be missed while other processes lock and unlock.
    let pids = (0..looks).find_map(|_| listed(&place, words).filter(|pids| !pids.is_empty()))?;
    let lives = |pid: &i32| fs::exists(format!("/proc/{pid}")).unwrap_or(false);
    Some(pids.into_iter().filter(lives).collect())
}

/// The file's device and inode, as the kernel lists them.
fn place_of(path: &Path) -> Option<String> {
    let file = fs::metadata(path).ok()?;
    let kind = statfs(path).ok()?.filesystem_type();
    let differs = [BTRFS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC].contains(&kind);
    let (device, inode) = differs.then(|| device_and_inode(path)).flatten().unwrap_or((file.dev(), file.ino()));
    Some(format!("{:02x}:{:02x}:{inode}", major(device), minor(device)))
}

/// Of a file on a file system whose stat(2) shows others. The descriptor drops no locks when it is closed.
fn device_and_inode(path: &Path) -> Option<(u64, u64)> {
    let file = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    let field = |name| info.lines().find_map(|line| Some(line.strip_prefix(name)?.trim()));
    let (mount, inode) = (field("mnt_id:")?, field("ino:")?.parse().ok()?);
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(mount))?;
    let (major, minor) = line.split(' ').nth(2)?.split_once(':')?;
    Some((makedev(major.parse().ok()?, minor.parse().ok()?), inode))
}

/// The lock of flock(2) that descriptor `number` of this process has, and true if it is exclusive.
pub fn descriptor_lock(number: i32) -> Option<(DescriptorLock, bool)> {
    lock_in(&fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()?)
}

/// This process has a descriptor with this lock of flock(2). Fails if its descriptors cannot be read.
pub(crate) fn has_descriptor(pid: i32, lock: &DescriptorLock) -> std::io::Result<bool> {
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        // It may have been closed meanwhile.
        let info = fs::read_to_string(entry?.path()).unwrap_or_default();
        if lock_in(&info).is_some_and(|(found, _)| found == *lock) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn lock_in(info: &str) -> Option<(DescriptorLock, bool)> {
    let found = |line: &str| match line.strip_prefix("lock:")?.split_whitespace().collect::<Vec<_>>()[..] {
        [_, "FLOCK", _, mode, taker, place, ..] => {
            Some((DescriptorLock { place: place.to_string(), taker: taker.parse().ok()? }, mode == "WRITE"))
        }
        _ => None,
    };
    info.lines().find_map(found)
}

/// Processes that took the locks of flock(2) that the kernel lists for this file. `None`: its list cannot be read.
pub(crate) fn flock_takers(place: &str) -> Option<BTreeSet<i32>> {
    let mut looks = (0..LOOKS).map(|_| listed(place, FileLock::Flock.words()));
    looks.find(|takers| takers.as_ref().is_none_or(|takers| !takers.is_empty())).unwrap_or(Some(BTreeSet::new()))
}

/// Locks a file by flock(2), if no process excludes that. Returns the lock too.
pub fn try_flock(path: &Path, exclusive: bool) -> Option<(fs::File, DescriptorLock)> {
    let how = if exclusive { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
    // On NFS an exclusive lock needs a writable descriptor.
    [OFlags::RDONLY, OFlags::RDWR].into_iter().find_map(|access| {
        let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = open(path, flags, Mode::empty()).ok()?;
        rustix::fs::flock(&file, how).ok()?;
        let (lock, _) = descriptor_lock(file.as_raw_fd())?;
        Some((file.into(), lock))
    })
}

/// Returns the callers from one read of the kernel's list. A line looks like `1: FLOCK  ADVISORY  WRITE 359
/// 00:13:11691 0 EOF`; waiters have `->` after the number. The lock of an open file description has the pid -1.
fn listed(wanted: &str, words: &[&str]) -> Option<BTreeSet<i32>> {
    let mut file = fs::File::open("/proc/locks").ok()?;
    // An empty file in its place, as sandboxes mount one, lists no lock either.
    fstatfs(&file).ok().filter(|found| found.filesystem_type() == PROC_SUPER_MAGIC)?;
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    let holder = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [_, kind, _, mode, pid, place, ..]
            if place == wanted && [kind, mode].iter().any(|word| words.contains(word)) =>
        {
            pid.parse().ok()
        }
        _ => None,
    };
    // A line of a changing list may appear twice.
    Some(text.lines().filter_map(holder).collect())
}

fn numbers(directory: &str) -> impl Iterator<Item = i32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use nix::libc;

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test")]
    fn holders_are_the_processes_that_have_the_file_open_and_locked() {
        let dir = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(dir.path()).unwrap().join("file");
        let (file, other) = (fs::File::create(&path).unwrap(), fs::File::open(&path).unwrap());
        // A process that another test starts has every file of this process open until its exec.
        let becomes = |wanted: &[(FileLock, Vec<i32>)]| {
            assert!((0..1000).any(|_| file_locks(&path) == wanted), "{wanted:?} {:?}", file_locks(&path));
        };
        let own = std::process::id() as i32;
        becomes(&[]);
        fs2::FileExt::lock_shared(&file).unwrap();
        becomes(&[(FileLock::Flock, vec![own])]);
        assert_eq!(callers(&path, &["FLOCK"], LOOKS), Some(vec![own]));
        let whole = libc::flock { l_type: libc::F_WRLCK as i16, l_whence: 0, l_start: 0, l_len: 0, l_pid: 0 };
        nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_OFD_SETLK(&whole)).unwrap();
        // The kernel names no process with it, and this process does not count as a holder.
        becomes(&[(FileLock::Flock, vec![own]), (FileLock::Fcntl, vec![])]);
        assert_eq!(callers(&path, FileLock::Fcntl.words(), LOOKS), Some(Vec::new()));
        drop(file);
        becomes(&[]);
        drop(other);
    }
}
