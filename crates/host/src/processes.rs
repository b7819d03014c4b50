//! The processes of the pid namespace of this process: their lines in /proc/PID/stat, proc_pid_stat(5), and which live.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::{Pid, geteuid};
use rustix::fs::{Mode, OFlags};
use rustix::io::retry_on_intr;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::signals;
use lock::error::{Error, ErrorKind, errno_of};
use lock::{Grant, Handle, Liveness, ProcessId};

/// It shows the pids of another namespace.
const FOREIGN: &str = "/proc is not that of this pid namespace";

/// True once /proc has shown this process under its own pid.
static IS_OURS: AtomicBool = AtomicBool::new(false);

/// Fields that csalock uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcStat {
    /// As the mounted /proc counts, possibly in another pid namespace.
    pub(super) pid: i32,
    /// File name, at most 15 bytes.
    pub program: Vec<u8>,
    state: u8,
    pub(super) threads: u64,
    pub(super) parent: i32,
    pub(super) session: i32,
    pub(super) group: i32,
    /// Forked without an exec since, so it runs its parent's program (PF_FORKNOEXEC).
    pub is_fork: bool,
    /// Page faults of children that it has waited for, even before an exec; every executed program causes some.
    pub(super) faults_of_children: u64,
    /// Process group in the foreground of its terminal; -1 without a terminal.
    pub(super) foreground: i32,
    /// Clock ticks after boot.
    pub(super) start: u64,
    /// The start addresses of the stack and the arguments, equal in parent and child after a fork without an exec. 0 if
    /// the kernel hides them.
    pub(super) image: (u64, u64),
}

/// Clock ticks after boot; `None` if the process is not visible.
pub fn start_of(pid: i32) -> Option<u64> {
    Some(read(pid).ok()??.start)
}

/// By a signal or a debugger, as far as that is visible.
pub fn is_stopped(pid: i32) -> bool {
    read(pid).ok().flatten().is_some_and(|stat| stat.is_stopped())
}

impl ProcStat {
    /// It has ended but is not reaped. (A first thread may end before the others.)
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X') && self.threads <= 1
    }

    pub fn id(&self) -> ProcessId {
        ProcessId { pid: self.pid, start: self.start }
    }

    /// As a process that waits for a child does. One that waits for a CPU, or is stopped, does not sleep.
    pub(super) fn is_sleeping(&self) -> bool {
        self.state == b'S'
    }

    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }

    pub fn is_running(&self) -> bool {
        !self.is_stopped() && !matches!(self.state, b'Z' | b'X')
    }
}

/// `None` if the process does not exist. An error (an unreadable or foreign /proc) says nothing about the process.
pub fn read(pid: i32) -> io::Result<Option<ProcStat>> {
    if !IS_OURS.load(Relaxed) {
        let own = read_own()?;
        if own.pid == pid {
            return Ok(Some(own));
        }
    }
    read_file(&format!("/proc/{pid}/stat"))
}

#[expect(clippy::disallowed_methods, reason = "pids mean something only where /proc shows this one as its own")]
pub(super) fn read_own() -> io::Result<ProcStat> {
    let is_ours = |stat: &ProcStat| IS_OURS.load(Relaxed) || stat.pid == nix::unistd::getpid().as_raw();
    let own = read_file("/proc/self/stat")?.filter(is_ours).ok_or_else(|| io::Error::other(FOREIGN))?;
    IS_OURS.store(true, Relaxed);
    Ok(own)
}

fn read_file(path: &str) -> io::Result<Option<ProcStat>> {
    let mut buffer = [0; 1024];
    // std's open takes another system call with musl, and a crowd of waiters reads thousands of these files.
    let opened = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let read = opened.and_then(|file| retry_on_intr(|| rustix::io::read(&file, &mut buffer)));
    match read.map_err(io::Error::from) {
        Ok(length) => match parse(&buffer[..length]) {
            Some(stat) => Ok(Some(stat)),
            None if length == 0 => Ok(None),
            None => Err(io::Error::new(io::ErrorKind::InvalidData, format!("{path} makes no sense"))),
        },
        // ESRCH: the process ended between open and read.
        Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match fs::metadata("/proc/self/stat") {
            Ok(_) => Ok(None),
            Err(_) => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// Reads a file of /proc, which has no size to ask for. One read(2) gets all of a small one.
pub(super) fn read_small(path: &str) -> io::Result<Vec<u8>> {
    let (mut file, mut bytes) = (fs::File::open(path)?, vec![0; 4096]);
    let length = retry_on_intr(|| rustix::io::read(&file, &mut bytes))?;
    if length < bytes.len() {
        bytes.truncate(length);
    } else {
        file.read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// This process, its parent and so on, as far as they are visible.
pub(super) fn with_callers(stat: ProcStat) -> impl Iterator<Item = ProcStat> {
    std::iter::successors(Some(stat), |stat| read(stat.parent).ok().flatten())
}

pub(super) fn no_proc(error: &io::Error) -> Error {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(errno @ (Errno::EMFILE | Errno::ENFILE)) => Error::os(errno, "read", "/proc"),
        None if error.kind() == io::ErrorKind::Other => {
            let what = format!("{FOREIGN}, so no process could tell which others live");
            Error::new(ErrorKind::System, what, "mount it (unshare --mount-proc)")
        }
        _ => Error::new(ErrorKind::System, format!("cannot read /proc: {error}"), "mount /proc of this namespace"),
    }
}

pub fn parse(line: &[u8]) -> Option<ProcStat> {
    // The program's name is in parentheses and may contain any byte, even ") ".
    let open = line.iter().position(|byte| *byte == b'(')?;
    let close = line.iter().rposition(|byte| *byte == b')')?;
    let fields: Vec<&str> = std::str::from_utf8(line.get(close + 2..)?).ok()?.split_ascii_whitespace().collect();
    // The numbers are those of the manual page, whose field 3 is the state.
    let field = |number: usize| fields.get(number - 3);
    let number = |at: usize| field(at)?.parse::<u64>().ok();
    Some(ProcStat {
        pid: std::str::from_utf8(&line[..open]).ok()?.trim_ascii().parse().ok()?,
        program: line.get(open + 1..close)?.to_vec(),
        state: *field(3)?.as_bytes().first()?,
        parent: field(4)?.parse().ok()?,
        group: field(5)?.parse().ok()?,
        session: field(6)?.parse().ok()?,
        foreground: field(8)?.parse().ok()?,
        is_fork: number(9)? & 0x40 != 0,
        faults_of_children: number(11)?,
        threads: number(20)?,
        start: number(22)?,
        image: (number(28).unwrap_or(0), number(48).unwrap_or(0)),
    })
}

/// When this process first saw a certain state of other processes, on CLOCK_BOOTTIME.
#[derive(Debug, Default)]
pub(super) struct FirstSight(Mutex<BTreeMap<ProcessId, Duration>>);

impl FirstSight {
    /// This process has not seen the state of that process for longer than `span`.
    pub(super) fn is_within(&self, process: &ProcessId, now: Duration, span: Duration) -> bool {
        let mut first = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        now.saturating_sub(*first.entry(*process).or_insert(now)) <= span
    }
}

/// As /proc and kill(2) show it.
pub fn liveness_of(process: &ProcessId) -> Liveness {
    match read(process.pid) {
        Ok(Some(stat)) if stat.start != process.start || stat.is_zombie() => Liveness::Dead,
        Ok(Some(stat)) if stat.is_stopped() => Liveness::Stopped,
        Ok(Some(_)) => Liveness::Alive,
        // The process has ended, or `hidepid` hides it, or /proc is not that of this namespace.
        Ok(None) | Err(_) => match kill(Pid::from_raw(process.pid), None) {
            Err(Errno::ESRCH) => Liveness::Dead,
            _ => Liveness::Unknown,
        },
    }
}

/// Certainly no live process has this pid in this pid namespace. Its start time may be unknown.
pub(super) fn is_absent(process: &ProcessId) -> bool {
    let is_zombie = || matches!(read(process.pid), Ok(Some(stat)) if stat.is_zombie());
    kill(Pid::from_raw(process.pid), None) == Err(Errno::ESRCH) || is_zombie()
}

/// A running parent saw its end and releases its locks now, unless it hangs. A stopped parent does not count.
pub(super) fn is_released_by(process: &ProcessId, supervisor: &ProcessId) -> bool {
    let stat = |pid| read(pid).ok().flatten();
    let ended = stat(process.pid).filter(|stat| stat.start == process.start && stat.is_zombie());
    ended.is_some_and(|ended| ended.parent == supervisor.pid)
        && stat(supervisor.pid).is_some_and(|stat| stat.start == supervisor.start && stat.is_running())
}

/// As far as that is visible: cgroups(7), version 2 or the freezer of version 1.
pub(super) fn is_process_frozen(process: &ProcessId) -> bool {
    let groups = fs::read_to_string(format!("/proc/{}/cgroup", process.pid)).unwrap_or_default();
    let shows =
        |path: String, frozen: &str| fs::read_to_string(path).is_ok_and(|text| text.lines().any(|line| line == frozen));
    let is_frozen = groups.lines().any(|line| match line.splitn(3, ':').collect::<Vec<_>>()[..] {
        ["0", "", group] => ["", "/unified"]
            .iter()
            .any(|mount| shows(format!("/sys/fs/cgroup{mount}{group}/cgroup.events"), "frozen 1")),
        [_, "freezer", group] => shows(format!("/sys/fs/cgroup/freezer{group}/freezer.state"), "FROZEN"),
        _ => false,
    });
    is_frozen && start_of(process.pid) == Some(process.start)
}

pub fn is_at_work(pid: i32) -> bool {
    matches!(read(pid), Ok(Some(stat)) if stat.is_running())
}

/// Zombies included. Fails if the process has ended or the kernel lacks them (before Linux 4.2, CONFIG_PROC_CHILDREN).
pub fn children_of(pid: i32) -> io::Result<Vec<i32>> {
    let mut children = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(thread?.path().join("children"))?;
        children.extend(text.split_ascii_whitespace().filter_map(|child| child.parse::<i32>().ok()));
    }
    Ok(children)
}

/// Maximum number of searches for processes that fork and end meanwhile.
pub const MOST_SEARCHES: usize = 16;

/// With `of`, parents first, without children for which `is_other` is true. One that is just forked may be missing.
pub fn descendants(of: &[ProcessId], is_other: &dyn Fn(&ProcStat) -> bool) -> Vec<ProcessId> {
    let children = || of.iter().map(|root| children_of(root.pid).ok()).collect::<Vec<_>>();
    for _ in 1..MOST_SEARCHES {
        let (before, found) = (children(), search_descendants(of, is_other));
        // After a look at its children, one of `of` may have adopted a process whose parent has ended.
        if children() == before {
            return found;
        }
    }
    search_descendants(of, is_other)
}

fn search_descendants(of: &[ProcessId], is_other: &dyn Fn(&ProcStat) -> bool) -> Vec<ProcessId> {
    let (mut found, mut known, mut at) = (of.to_vec(), BTreeSet::from_iter(of.iter().copied()), 0);
    while let Some(parent) = found.get(at).copied() {
        at += 1;
        let is_child = |child: &ProcStat| child.parent == parent.pid && !child.is_zombie() && !is_other(child);
        let children = children_of(parent.pid).unwrap_or_default().into_iter();
        let children: Vec<ProcStat> = children.filter_map(|child| read(child).ok()?.filter(is_child)).collect();
        // The pid of a parent that has ended may be that of another process.
        if start_of(parent.pid) == Some(parent.start) {
            found.extend(children.iter().map(ProcStat::id).filter(|child| known.insert(*child)));
        }
    }
    found
}

/// Real user id, as far as that is visible.
pub fn user_of(pid: i32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_ascii_whitespace().next()?.parse().ok()
}

pub const OF_OTHER_USER: &str = "that process is of another user";

/// Sends a signal like [`send`] to a process that a record of the user `uid` names, if it has not ended.
/// Returns why csalock does not: a user who may write in a store can name any process and any user in a record. The
/// process must be of that user, unless this process acts as that user, and must not be the first or have called this one.
pub fn send_for(uid: u32, process: &ProcessId, signal: i32) -> Result<(), (ErrorKind, &'static str)> {
    let mut callers = read_own().into_iter().flat_map(with_callers);
    // A process that has ended has no user, and gets no signal.
    let has_ended = || start_of(process.pid) != Some(process.start);
    let is_of_user = || geteuid().as_raw() == uid || user_of(process.pid).map_or_else(has_ended, |user| user == uid);
    if process.pid == 1 {
        Err((ErrorKind::Denied, "csalock never ends pid 1"))
    } else if callers.any(|stat| stat.id() == *process) {
        Err((ErrorKind::InvalidInput, "that process is the caller itself"))
    } else if !is_of_user() || send(process, signal) == Err(Errno::EPERM) {
        Err((ErrorKind::Denied, OF_OTHER_USER))
    } else {
        Ok(())
    }
}

/// Kills the command of a grant for which [`super::Host::is_abandoned`] is true and, with `--tree`, the processes below it.
/// Returns false if its environment does not have the handle of the grant: then the grant may be forged.
pub fn end_abandoned(Grant { owner, proof, .. }: &Grant) -> bool {
    let Some(command) = owner.processes.first() else { return false };
    let environment = fs::read(format!("/proc/{}/environ", command.pid)).unwrap_or_default();
    let has_handle = environment.split(|byte| *byte == 0).any(|variable| {
        let handle = variable.strip_prefix(b"CSALOCK_HANDLE=").and_then(|handle| std::str::from_utf8(handle).ok());
        handle.and_then(Handle::parse).is_some_and(|handle| handle.proof() == *proof)
    });
    // With --tree the supervisor is an owner, too.
    let is_other = |_: &ProcStat| owner.processes.len() == 1;
    let killed = |process: &&ProcessId| send_for(owner.uid, process, nix::libc::SIGKILL).is_ok();
    has_handle && descendants(&[*command], &is_other).iter().rev().filter(killed).count() > 0
}

/// Another version or copy of this program counts, if it has the same name.
pub fn is_csalock(process: &ProcessId) -> bool {
    let exe = format!("/proc/{}/exe", process.pid);
    let file = |path: &str| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    // The kernel adds a word to the name of a file that an upgrade has replaced.
    let is_named = |path: PathBuf| path.ends_with("csalock") || path.ends_with("csalock (deleted)");
    fs::read_link(&exe).is_ok_and(is_named) || file(&exe).is_some_and(|program| file("/proc/self/exe") == Some(program))
}

/// Of the process that has this pid now. Fails on old kernels, in some sandboxes, and without free descriptors, too.
pub fn pidfd_of(pid: i32) -> rustix::io::Result<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid).ok_or(rustix::io::Errno::INVAL)?;
    pidfd_open(pid, PidfdFlags::empty())
}

/// Sends a signal to this process, never to a later one with its pid.
/// Fails with ESRCH if the process has ended or is not visible, and with EPERM if permission is denied.
pub fn send(process: &ProcessId, signal: i32) -> nix::Result<()> {
    let pidfd = pidfd_of(process.pid);
    // Only this look after the open proves that the pidfd is that of the process.
    if !matches!(read(process.pid), Ok(Some(stat)) if stat.id() == *process && !stat.is_zombie()) {
        return Err(Errno::ESRCH);
    }
    match (pidfd, Signal::from_named_raw(signal)) {
        (Ok(pidfd), Some(signal)) => pidfd_send_signal(pidfd, signal).map_err(errno_of),
        // There are no pidfds before Linux 5.3 and in some sandboxes.
        _ => signals::send(Pid::from_raw(process.pid), signal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_parentheses_and_spaces() {
        let rest: Vec<String> = (4..=52).map(|number| number.to_string()).collect();
        let line = format!("17 (a) S 1 (b) R {}\n", rest.join(" "));
        let stat = parse(line.as_bytes()).unwrap();
        assert_eq!(stat.program, b"a) S 1 (b");
        assert_eq!((stat.parent, stat.session, stat.start, stat.image), (4, 6, 22, (28, 48)));
        assert!(!stat.is_zombie());
    }

    #[test]
    fn a_process_that_is_not_there() {
        assert_eq!(read(i32::MAX).unwrap(), None);
    }

    #[test]
    fn a_signal_reaches_no_later_process_with_the_pid_and_none_that_is_protected() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let id = |pid: i32| ProcessId { pid, start: start_of(pid).unwrap_or_default() };
        let (this, uid) = (read_own().unwrap(), geteuid().as_raw());
        let other = id(child.id() as i32);
        assert_eq!(send(&ProcessId { start: other.start - 1, ..other }, nix::libc::SIGKILL), Err(Errno::ESRCH));
        let sent = [other, this.id(), id(this.parent), ProcessId { pid: 1, start: 0 }].map(|it| send_for(uid, &it, 0));
        let foreign = send_for(uid + 1, &other, nix::libc::SIGKILL);
        assert!(!read(other.pid).unwrap().unwrap().is_zombie());
        child.kill().and_then(|()| child.wait()).unwrap();
        let kinds = sent.map(|sent| sent.map_err(|(kind, _)| kind));
        let [denied, caller] = [ErrorKind::Denied, ErrorKind::InvalidInput].map(Err);
        assert_eq!((kinds, foreign), ([Ok(()), caller, caller, denied], Err((ErrorKind::Denied, OF_OTHER_USER))));
    }

    #[test]
    fn a_state_counts_from_its_first_sight_and_each_process_for_itself() {
        let (sight, [one, other]) = (FirstSight::default(), [1, 2].map(|pid| ProcessId { pid, start: 7 }));
        let at = |process, seconds| sight.is_within(process, Duration::from_secs(seconds), Duration::from_secs(15));
        assert_eq!([at(&one, 100), at(&one, 115), at(&one, 116)], [true, true, false]);
        // Two holders of slots may hang at the same time.
        assert_eq!([at(&other, 116), at(&one, 117), at(&other, 131), at(&other, 132)], [true, false, true, false]);
    }
}
