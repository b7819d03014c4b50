//! Signals as something to wait for, next to everything else that we wait for: signalfd(2).
//!
//! While we wait for a lock, a signal that would end us must first take us out of the queue; while a command runs, it is
//! the command's. Signals that were ignored when we were started stay ignored.

#![expect(unsafe_code, reason = "changing a signal's disposition is unsafe, and a fork needs it")]

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, raise, sigaction, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::host::StartupState;

/// The signals that end a wait, and that a command gets instead of us.
pub const FORWARDED: [Signal; 6] =
    [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2];

/// Bit N is set if [`Signals`] of this process queue signal N, which ends a wait.
static QUEUED: AtomicU64 = AtomicU64::new(0);

/// A signal that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedSignal {
    /// Which one.
    pub signal: Signal,
    /// It came from the terminal, which sends it to our whole process group, the command included. (SIGHUP it may send to
    /// the first process of a session alone.)
    pub from_terminal: bool,
}

/// From its creation on signals are queued here instead of doing what they do.
pub struct Signals {
    descriptor: SignalFd,
    interrupt: SignalFd,
    before: SigSet,
}

impl Signals {
    /// Begins to queue: [`FORWARDED`] and the end of children.
    ///
    /// # Errors
    ///
    /// When the system has no descriptors left.
    pub fn listen(inherited: StartupState) -> Result<Signals> {
        let signals = Signals::listen_also(inherited, &[Signal::SIGCHLD])?;
        // A child that stops is none of our business; and were SIGCHLD ignored, no child could be waited for.
        let action = SigAction::new(SigHandler::SigDfl, SaFlags::SA_NOCLDSTOP, SigSet::empty());
        // SAFETY: the default disposition runs no code of ours.
        unsafe { sigaction(Signal::SIGCHLD, &action) }.map_err(failed)?;
        Ok(signals)
    }

    /// Begins to queue [`FORWARDED`], and these.
    ///
    /// # Errors
    ///
    /// As [`Signals::listen`].
    pub fn listen_also(inherited: StartupState, others: &[Signal]) -> Result<Signals> {
        let mut ending = SigSet::empty();
        FORWARDED.into_iter().filter(|signal| !inherited.ignored(*signal)).for_each(|signal| ending.add(signal));
        let mut mask = ending;
        others.iter().for_each(|signal| mask.add(*signal));
        let mut before = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&mask), Some(&mut before)).map_err(failed)?;
        QUEUED.store(ending.iter().fold(0, |bits, signal| bits | bit(signal)), Ordering::SeqCst);
        let open = |mask| SignalFd::with_flags(mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).map_err(failed);
        Ok(Signals { descriptor: open(&mask)?, interrupt: open(&ending)?, before })
    }

    /// Becomes readable when a signal came that ends a wait. (The end of a child does not: with `exec csalock` a script
    /// leaves us its own.)
    pub fn interrupt(&self) -> BorrowedFd<'_> {
        self.interrupt.as_fd()
    }

    /// How to exit when a wait was interrupted: by the signal that did.
    pub fn exit(&self) -> Exit {
        self.interrupted_by().map_or(Exit::System, |signal| Exit::Signal(signal as i32))
    }

    /// Whether one came that ends a wait. It can still be asked for by [`Signals::exit`].
    pub fn pending(&self) -> bool {
        !self.no_signal_within(Duration::ZERO)
    }

    /// Waits that long for one that ends a wait. Whether none came.
    pub fn no_signal_within(&self, span: Duration) -> bool {
        let mut polled = [PollFd::new(self.interrupt(), PollFlags::POLLIN)];
        !matches!(poll(&mut polled, PollTimeout::try_from(span).unwrap_or(PollTimeout::MAX)), Ok(1))
    }

    /// The signal that ended a wait.
    fn interrupted_by(&self) -> Option<Signal> {
        std::iter::from_fn(|| self.next()).map(|came| came.signal).find(|signal| FORWARDED.contains(signal))
    }

    /// The next one that came, if any did.
    pub fn next(&self) -> Option<ReceivedSignal> {
        let info = self.descriptor.read_signal().ok().flatten()?;
        let signal = Signal::try_from(info.ssi_signo as i32).ok()?;
        let from_terminal = info.ssi_code == libc::SI_KERNEL && signal != Signal::SIGHUP;
        Some(ReceivedSignal { signal, from_terminal })
    }

    /// Gives back to what is about to be executed the mask and dispositions that we were started with.
    pub fn restore(&self, inherited: StartupState) {
        for signal in [Signal::SIGPIPE, Signal::SIGCHLD, Signal::SIGXFSZ] {
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

/// Whether a signal is queued that ends a wait and that nothing has read yet. Without [`Signals`] none is: it ends the
/// process.
pub fn is_pending() -> bool {
    let queued = QUEUED.load(Ordering::SeqCst);
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigpending(2) writes to the set, and nothing else; the set is initialised if it succeeds.
    let pending = unsafe {
        if queued == 0 || libc::sigpending(set.as_mut_ptr()) != 0 {
            return false;
        }
        SigSet::from_sigset_t_unchecked(set.assume_init())
    };
    pending.iter().any(|signal| queued & bit(signal) != 0)
}

fn bit(signal: Signal) -> u64 {
    1 << signal as i32
}

fn failed(errno: Errno) -> Error {
    Error::new(Exit::System, format!("cannot wait for signals: {}", errno.desc()), "")
}

/// While it lives, this is called when Ctrl-Z is typed; to stop is then its business, by [`stop`].
#[derive(Debug)]
pub struct SigtstpHandler(SigAction);

impl SigtstpHandler {
    /// `None` where Ctrl-Z is ignored. What is called may do only what signal-safety(7) allows.
    pub fn call(handler: extern "C" fn(libc::c_int)) -> Option<SigtstpHandler> {
        let action = SigAction::new(SigHandler::Handler(handler), SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler promises to be one.
        let before = unsafe { sigaction(Signal::SIGTSTP, &action) }.ok()?;
        let ignored = matches!(before.handler(), SigHandler::SigIgn);
        let caught = SigtstpHandler(before);
        (!ignored).then_some(caught)
    }
}

impl Drop for SigtstpHandler {
    fn drop(&mut self) {
        // SAFETY: what was there before is as good as it was.
        let _ = unsafe { sigaction(Signal::SIGTSTP, &self.0) };
    }
}

/// Stops this process as Ctrl-Z does, unless that is ignored. Returns when it goes on. Safe in a signal handler.
pub fn stop() {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default disposition runs no code of ours.
    let Ok(action) = (unsafe { sigaction(Signal::SIGTSTP, &default) }) else { return };
    if !matches!(action.handler(), SigHandler::SigIgn) {
        let (mut mask, mut before) = (SigSet::empty(), SigSet::empty());
        mask.add(Signal::SIGTSTP);
        let _ = raise(Signal::SIGTSTP);
        let _ = sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&mask), Some(&mut before));
        let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
    }
    // SAFETY: what was there before is as good as it was.
    let _ = unsafe { sigaction(Signal::SIGTSTP, &action) };
}

/// A limit on the size of files is an error that can be told, not a death without a word.
pub fn ignore_file_size_signal() {
    let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    // SAFETY: ignoring runs no code of ours.
    let _ = unsafe { sigaction(Signal::SIGXFSZ, &ignore) };
}

/// Ends this process by a signal, so that whoever waits for it sees what happened. Returns if the signal does not do so.
pub fn reraise(signal: Signal) {
    let mut mask = SigSet::empty();
    mask.add(signal);
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default disposition runs no code of ours.
    let _ = unsafe { sigaction(signal, &default) };
    let _ = sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&mask), None);
    let _ = raise(signal);
}
