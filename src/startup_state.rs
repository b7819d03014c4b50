//! The state at process start: what csalock changes for itself, which a command under a lock must find unchanged, and
//! facts that cost no system call because the kernel passes them to each program.

#![expect(unsafe_code, reason = "reading and changing a signal's disposition is unsafe")]

use std::fs::OpenOptions;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::{Gid, Uid, getegid, geteuid};

/// Bit set: the number of each ignored signal of [`TAKEN`], and from [`CLOSED`] on a bit for each closed descriptor of
/// 0, 1 and 2.
static FOUND: AtomicU64 = AtomicU64::new(0);

const CLOSED: u32 = 40;

/// The signals that csalock ignores: a broken pipe and a limit on file sizes cause an error message, not a silent death.
pub const TAKEN: [Signal; 2] = [Signal::SIGPIPE, Signal::SIGXFSZ];

/// Set once `main` has recorded the state: then this is a process of csalock, whose users never change.
const RECORDED: u64 = 1 << 63;

/// The ignored signals as /proc has shown them: bit N for signal N, and bit 0 once they are known.
static IGNORED: AtomicU64 = AtomicU64::new(0);

/// The ignored signals and closed descriptors at process start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartupState(u64);

impl StartupState {
    /// Returns the startup state of this process.
    pub fn of_this_process() -> StartupState {
        StartupState(FOUND.load(Ordering::Relaxed))
    }

    /// Returns true if this signal was ignored.
    pub fn ignored(self, signal: Signal) -> bool {
        let known = IGNORED.load(Ordering::Relaxed);
        match signal {
            _ if TAKEN.contains(&signal) => self.0 & bit(signal) != 0,
            // csalock never changes the disposition of another signal that it asks about.
            _ if known != 0 => known & bit(signal) != 0,
            _ => is_ignored(signal),
        }
    }

    /// Returns true if one of the descriptors 0, 1 and 2 was closed.
    pub fn any_closed(self) -> bool {
        (0..3).any(|descriptor| self.closed(descriptor))
    }

    /// Returns the path of the file or directory that this process inherited as this descriptor, other than 0, 1 and 2.
    /// The answer is right until csalock opens files of its own.
    pub fn file(self, descriptor: u16) -> Option<PathBuf> {
        let path = (descriptor > 2).then(|| std::fs::read_link(format!("/proc/self/fd/{descriptor}")))?.ok()?;
        // A pipe or a socket has no path, and that of a device or a deleted file cannot be locked.
        std::fs::metadata(&path).is_ok_and(|found| found.is_file() || found.is_dir()).then_some(path)
    }

    /// Returns true if this descriptor (0, 1 or 2) was closed.
    pub fn closed(self, descriptor: u32) -> bool {
        self.0 & (1 << (CLOSED + descriptor)) != 0
    }
}

/// Records the state of this process, ignores the signals that csalock ignores, and opens /dev/null in place of closed
/// descriptors, so that no file of a store gets their numbers. `main` calls this first.
pub fn record() {
    let mut found = 0;
    // SAFETY: poll(2) permits closed descriptors, and nothing else uses these here.
    let mut standard = [0, 1, 2].map(|at| PollFd::new(unsafe { BorrowedFd::borrow_raw(at) }, PollFlags::empty()));
    let _ = poll(&mut standard, PollTimeout::ZERO);
    for (at, polled) in standard.iter().enumerate() {
        if polled.revents().is_some_and(|events| events.contains(PollFlags::POLLNVAL)) {
            found |= 1 << (CLOSED as usize + at);
            // The lowest free number is that of the closed descriptor.
            let _ = OpenOptions::new().read(true).write(true).open("/dev/null").map(IntoRawFd::into_raw_fd);
        }
    }
    for signal in TAKEN {
        let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
        // SAFETY: the disposition runs no code.
        if unsafe { sigaction(signal, &ignore) }.is_ok_and(|before| matches!(before.handler(), SigHandler::SigIgn)) {
            found |= bit(signal);
        }
    }
    FOUND.store(found | RECORDED, Ordering::Relaxed);
}

/// Notes the ignored signals, bit N - 1 for signal N, as the first read of this process's line in /proc shows them.
pub fn note_ignored(mask: u64) {
    let _ = IGNORED.compare_exchange(0, mask << 1 | 1, Ordering::Relaxed, Ordering::Relaxed);
}

/// Returns the effective user of this process.
pub fn effective_user() -> Uid {
    match is_recorded() {
        // SAFETY: getauxval(3) reads a table that the kernel has filled in.
        true => Uid::from_raw(unsafe { libc::getauxval(libc::AT_EUID) } as libc::uid_t),
        false => geteuid(),
    }
}

/// Returns the effective group of this process.
pub fn effective_group() -> Gid {
    match is_recorded() {
        // SAFETY: as above.
        true => Gid::from_raw(unsafe { libc::getauxval(libc::AT_EGID) } as libc::gid_t),
        false => getegid(),
    }
}

fn is_recorded() -> bool {
    FOUND.load(Ordering::Relaxed) & RECORDED != 0
}

fn bit(signal: Signal) -> u64 {
    1 << signal as u32
}

fn is_ignored(signal: Signal) -> bool {
    // SAFETY: a zeroed sigaction is valid and may be overwritten, and a null new action changes nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal as i32, std::ptr::null(), &raw mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}
