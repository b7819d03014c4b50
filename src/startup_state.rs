//! The state at process start that the runtime overwrites before `main`: the ignored signals, and whether stdin, stdout
//! and stderr were closed. A command under a lock must start with that state.

#![expect(unsafe_code, reason = "only code that runs before the runtime can see what the runtime overwrites")]

use std::sync::atomic::{AtomicU64, Ordering};

use nix::libc;
use nix::sys::signal::Signal;

/// Bit set: each ignored signal's number, and from [`CLOSED`] on a bit for each closed descriptor of 0, 1 and 2.
static FOUND: AtomicU64 = AtomicU64::new(0);

const CLOSED: u32 = 40;

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
        self.0 & (1 << signal as u32) != 0
    }

    /// Returns true if this descriptor (0, 1 or 2) was closed.
    pub fn closed(self, descriptor: u32) -> bool {
        self.0 & (1 << (CLOSED + descriptor)) != 0
    }
}

extern "C" fn look() {
    let mut found = 0;
    for descriptor in 0..3 {
        // SAFETY: F_GETFD reads a flag of a number; it touches no memory.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1 {
            found |= 1 << (CLOSED + descriptor as u32);
        }
    }
    for signal in [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGTERM,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGPIPE,
        libc::SIGCHLD,
        libc::SIGXFSZ,
    ] {
        // SAFETY: a zeroed sigaction is valid and may be overwritten, and a null new action changes nothing.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0 && action.sa_sigaction == libc::SIG_IGN {
                found |= 1 << signal;
            }
        }
    }
    FOUND.store(found, Ordering::Relaxed);
}

// SAFETY: the C runtime calls the functions of this section before `main`. Rust's runtime sets SIGPIPE and opens
// /dev/null for closed descriptors only later; `look` needs nothing of that runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;
