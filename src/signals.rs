//! Signals as something to wait for, next to everything else that we wait for: signalfd(2).
//!
//! While we wait for a lock, a signal that would end us must first take us out of the queue; while a command runs, it is
//! the command's. Signals that were ignored when we were started stay ignored.

#![expect(unsafe_code, reason = "changing a signal's disposition is unsafe, and a fork needs it")]

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, raise, sigaction, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::host::Inherited;

/// The signals that end a wait, and that a command gets instead of us.
pub const FORWARDED: [Signal; 6] =
    [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2];

/// A signal that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Came {
    /// Which one.
    pub signal: Signal,
    /// It came from the terminal, which sends it to our whole process group, the command included. (SIGHUP it may send to
    /// the first process of a session alone.)
    pub from_terminal: bool,
}

/// From its creation on signals are queued here instead of doing what they do.
pub struct Signals {
    descriptor: SignalFd,
    before: SigSet,
}

impl Signals {
    /// Begins to queue: [`FORWARDED`] and the end of children.
    ///
    /// # Errors
    ///
    /// When the system has no descriptors left.
    pub fn listen(inherited: Inherited) -> Result<Signals> {
        let failed = |errno: Errno| Error::new(Exit::System, format!("cannot wait for signals: {}", errno.desc()), "");
        let mut mask = SigSet::empty();
        FORWARDED.into_iter().filter(|signal| !inherited.ignored(*signal)).for_each(|signal| mask.add(signal));
        mask.add(Signal::SIGCHLD);
        let mut before = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&mask), Some(&mut before)).map_err(failed)?;
        // A child that stops is none of our business; and were SIGCHLD ignored, no child could be waited for.
        let action = SigAction::new(SigHandler::SigDfl, SaFlags::SA_NOCLDSTOP, SigSet::empty());
        // SAFETY: the default disposition runs no code of ours.
        unsafe { sigaction(Signal::SIGCHLD, &action) }.map_err(failed)?;
        let descriptor = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).map_err(failed)?;
        Ok(Signals { descriptor, before })
    }

    /// The next one that came, if any did.
    pub fn next(&self) -> Option<Came> {
        let info = self.descriptor.read_signal().ok().flatten()?;
        let signal = Signal::try_from(info.ssi_signo as i32).ok()?;
        let from_terminal = info.ssi_code == libc::SI_KERNEL && signal != Signal::SIGHUP;
        Some(Came { signal, from_terminal })
    }

    /// Gives back to what is about to be executed the mask and dispositions that we were started with.
    pub fn restore(&self, inherited: Inherited) {
        for signal in [Signal::SIGPIPE, Signal::SIGCHLD] {
            let handler = if inherited.ignored(signal) { SigHandler::SigIgn } else { SigHandler::SigDfl };
            // SAFETY: neither disposition runs code of ours.
            let _ = unsafe { sigaction(signal, &SigAction::new(handler, SaFlags::empty(), SigSet::empty())) };
        }
        let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&self.before), None);
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Ends this process by a signal, so that whoever waits for it sees what happened. Returns if the signal does not do so.
pub fn die_of(signal: Signal) {
    let mut mask = SigSet::empty();
    mask.add(signal);
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default disposition runs no code of ours.
    let _ = unsafe { sigaction(signal, &default) };
    let _ = sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&mask), None);
    let _ = raise(signal);
}
