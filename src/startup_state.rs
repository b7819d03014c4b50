//! The state at process start that csalock changes for itself: signals that it ignores, and closed descriptors of stdin,
//! stdout and stderr. A command under a lock must start with that state.

#![expect(unsafe_code, reason = "reading and changing a signal's disposition is unsafe")]

use std::fs::OpenOptions;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Bit set: the number of each ignored signal of [`TAKEN`], and from [`CLOSED`] on a bit for each closed descriptor of
/// 0, 1 and 2.
static FOUND: AtomicU64 = AtomicU64::new(0);

const CLOSED: u32 = 40;

/// The signals that csalock ignores: a broken pipe and a limit on file sizes cause an error message, not a silent death.
pub const TAKEN: [Signal; 2] = [Signal::SIGPIPE, Signal::SIGXFSZ];

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
        match TAKEN.contains(&signal) {
            true => self.0 & (1 << signal as u32) != 0,
            // csalock never changes the disposition of another signal that it asks about.
            false => is_ignored(signal),
        }
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
            found |= 1 << signal as u32;
        }
    }
    FOUND.store(found, Ordering::Relaxed);
}

fn is_ignored(signal: Signal) -> bool {
    // SAFETY: a zeroed sigaction is valid and may be overwritten, and a null new action changes nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal as i32, std::ptr::null(), &raw mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}
