//! What the process was given at its start and the runtime overwrites before `main`: which signals were ignored, and
//! which of stdin, stdout and stderr were closed. A command run under a lock must find all of that as it was.

#![expect(unsafe_code, reason = "only code that runs before the runtime can see what the runtime overwrites")]

use std::sync::atomic::{AtomicU64, Ordering};

use nix::libc;
use nix::sys::signal::Signal;

/// A bit for each ignored signal's number, and at [`CLOSED`] one for each of descriptors 0, 1 and 2 that was closed.
static FOUND: AtomicU64 = AtomicU64::new(0);

const CLOSED: u32 = 40;

/// What was found at the start of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartupState(u64);

impl StartupState {
    /// What was found, for the process that asks.
    pub fn of_this_process() -> StartupState {
        StartupState(FOUND.load(Ordering::Relaxed))
    }

    /// Whether this signal was ignored.
    pub fn ignored(self, signal: Signal) -> bool {
        self.0 & (1 << signal as u32) != 0
    }

    /// Whether this descriptor, of 0, 1 and 2, was closed.
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
        // SAFETY: a zeroed sigaction is a valid one to be overwritten, and a null new action changes nothing.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0 && action.sa_sigaction == libc::SIG_IGN {
                found |= 1 << signal;
            }
        }
    }
    FOUND.store(found, Ordering::Relaxed);
}

// SAFETY: the C runtime calls what stands in this section before `main`, hence before Rust's runtime sets SIGPIPE and
// opens /dev/null in place of closed descriptors; `look` needs nothing of that runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;
