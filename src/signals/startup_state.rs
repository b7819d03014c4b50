//! The state at process start that a command under a lock must find unchanged: ignored signals and closed descriptors.
//!
//! Rust's runtime ignores SIGPIPE and opens /dev/null in place of closed descriptors before it calls `main`. A function
//! that runs before it therefore observes both.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::libc;
use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::stdio::{stderr, stdin, stdout};

use super::set_ignored;

/// The signals that csalock ignores: a broken pipe and a limit on file sizes cause an error message, not a silent death.
pub const TAKEN: [Signal; 2] = [Signal::SIGPIPE, Signal::SIGXFSZ];

/// Bit set: the number of each ignored signal of [`TAKEN`], and from [`CLOSED`] on a bit for each closed descriptor of
/// 0, 1 and 2.
static OBSERVED: AtomicU64 = AtomicU64::new(0);

const CLOSED: u32 = 40;

/// Both C libraries call the functions of this section before `main` (System V ABI, "Initialization and Termination
/// Functions").
// SAFETY: the section contains pointers to functions of this type, and `observe` needs nothing of Rust's runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = observe;

/// The ignored signals and closed descriptors at process start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartupState(u64);

impl StartupState {
    pub fn of_this_process() -> StartupState {
        StartupState(OBSERVED.load(Ordering::Relaxed))
    }

    pub fn ignored(self, signal: Signal) -> bool {
        match TAKEN.contains(&signal) {
            true => self.0 & bit(signal) != 0,
            // csalock never changes the disposition of another signal that it asks about.
            false => is_ignored(signal),
        }
    }

    /// Returns the path of the file or directory that this process inherited as this descriptor, other than 0, 1 and 2.
    /// The answer is right until csalock opens files of its own.
    pub fn file(self, descriptor: u16) -> Option<PathBuf> {
        let path = (descriptor > 2).then(|| std::fs::read_link(format!("/proc/self/fd/{descriptor}")))?.ok()?;
        // A pipe or a socket has no path, and that of a device or a deleted file cannot be locked.
        std::fs::metadata(&path).is_ok_and(|found| found.is_file() || found.is_dir()).then_some(path)
    }

    /// Returns true if this descriptor (0, 1 or 2) was closed. Since then it is /dev/null, so that no file of a store gets
    /// its number.
    pub fn closed(self, descriptor: u32) -> bool {
        self.0 & (1 << (CLOSED + descriptor)) != 0
    }
}

/// Ignores the signals that csalock ignores. `main` calls this first.
pub fn ignore_taken() {
    for signal in TAKEN {
        let _ = set_ignored(signal, true);
    }
}

/// Observes the state. Changes nothing, because programs that use the library run it too.
extern "C" fn observe() {
    let mut observed = 0;
    let standard = [stdin(), stdout(), stderr()];
    let mut polled = standard.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::empty()));
    let _ = poll(&mut polled, Some(&Timespec::default()));
    for (at, polled) in polled.iter().enumerate() {
        if polled.revents().contains(PollFlags::NVAL) {
            observed |= 1 << (CLOSED as usize + at);
        }
    }
    for signal in TAKEN.into_iter().filter(|signal| is_ignored(*signal)) {
        observed |= bit(signal);
    }
    OBSERVED.store(observed, Ordering::Relaxed);
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
