//! Signals as events that csalock can wait for together with other events: signalfd(2).
//!
//! During a wait for a lock, a signal that would end csalock first removes it from the queue. While a command runs,
//! csalock forwards every signal to it but those of job control, SIGCHLD and [`TAKEN`]. Signals that were ignored at the
//! start stay ignored.
//!
//! A command under a lock must find ignored signals and closed descriptors as they were at process start. Rust's runtime
//! ignores SIGPIPE and opens /dev/null in place of closed descriptors before it calls `main`. A function that the program
//! calls before it therefore observes both.

#![expect(unsafe_code, reason = "changing a signal's disposition is unsafe, and a fork needs it")]

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal::*;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, raise, sigaction, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use rustix::event;
use rustix::stdio::{stderr, stdin, stdout};

use lock::error::{Error, ErrorKind, Result};

/// csalock ignores them: a broken pipe and a limit on file sizes cause an error message, not a silent death.
pub(crate) const TAKEN: [Signal; 2] = [SIGPIPE, SIGXFSZ];

/// Bit set: the number of each ignored signal of [`TAKEN`], and from [`CLOSED`] on a bit for each closed descriptor of
/// 0, 1 and 2.
static OBSERVED: AtomicU64 = AtomicU64::new(0);

const CLOSED: u32 = 40;

pub(crate) fn was_ignored(signal: Signal) -> bool {
    // csalock never changes the disposition of another signal that it asks about.
    if TAKEN.contains(&signal) { observed(bit(signal as i32)) } else { is_ignored(signal as i32) }
}

/// `None` for 0, 1 and 2. The answer is right until csalock opens files of its own.
pub fn file_at_start(descriptor: u16) -> Option<PathBuf> {
    let path = (descriptor > 2).then(|| std::fs::read_link(format!("/proc/self/fd/{descriptor}")))?.ok()?;
    // A pipe or a socket has no path, and that of a device or a deleted file cannot be locked.
    std::fs::metadata(&path).is_ok_and(|found| found.is_file() || found.is_dir()).then_some(path)
}

/// Of 0, 1 and 2. A closed one is /dev/null by now, so that no file of a store gets its number.
pub fn was_closed(descriptor: u32) -> bool {
    observed(1 << (CLOSED + descriptor))
}

fn observed(bit: u64) -> bool {
    OBSERVED.load(Ordering::Relaxed) & bit != 0
}

/// Completes the signals of [`TAKEN`]; `main` calls this first. Rust's runtime has ignored SIGPIPE already.
pub fn ignore_file_size_limit() {
    let _ = set_ignored(Signal::SIGXFSZ, true);
}

/// Observes the state; `csalock` calls this before `main`. It needs nothing of Rust's runtime.
pub extern "C" fn observe() {
    let mut observed = 0;
    let standard = [stdin(), stdout(), stderr()];
    let mut polled = standard.map(|descriptor| event::PollFd::from_borrowed_fd(descriptor, event::PollFlags::empty()));
    let _ = event::poll(&mut polled, Some(&event::Timespec::default()));
    for (at, polled) in polled.iter().enumerate() {
        if polled.revents().contains(event::PollFlags::NVAL) {
            observed |= 1 << (CLOSED as usize + at);
        }
    }
    for signal in TAKEN.into_iter().filter(|signal| is_ignored(*signal as i32)) {
        observed |= bit(signal as i32);
    }
    OBSERVED.store(observed, Ordering::Relaxed);
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: a zeroed sigaction is valid and may be overwritten, and a null new action changes nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

/// The signals that users and terminals commonly send.
pub const COMMON: [i32; 6] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2];

/// The signals that csalock does not queue, beside SIGCHLD: no process can queue the first two, the kernel acts on those of
/// job control, and csalock causes those of [`TAKEN`] itself. A fault in csalock ends it even though its signal is queued.
const NOT_QUEUED: [Signal; 8] = [SIGKILL, SIGSTOP, SIGCONT, SIGTSTP, SIGTTIN, SIGTTOU, SIGPIPE, SIGXFSZ];

/// Signals without an effect on a process that does not handle them end no wait.
const WITHOUT_EFFECT: [Signal; 3] = [SIGCHLD, SIGURG, SIGWINCH];

/// A set of signals that end a wait and that a [`Signals`] of this process queues: see [`bit`].
static QUEUED: AtomicU64 = AtomicU64::new(0);

static BLOCKED: AtomicU64 = AtomicU64::new(0);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedSignal {
    /// Its number. Real-time signals have no name.
    pub signal: i32,
    /// True if the terminal sent the signal to the whole process group, the command included. (False for SIGHUP,
    /// because the terminal may send it only to the first process of a session.)
    pub from_terminal: bool,
}

impl ReceivedSignal {
    /// csalock passes such a signal on to the command.
    pub fn is_forwarded(self) -> bool {
        !self.from_terminal && self.signal != SIGCHLD as i32
    }

    pub fn ends(self) -> bool {
        ends(self.signal)
    }
}

/// A source of events that end a wait.
pub trait Interrupt {
    /// One of them becomes readable at such an event.
    fn descriptors(&self) -> Result<Vec<BorrowedFd<'_>>>;
}

/// A queue of signals, which do not have their usual effect from its creation on.
pub struct Signals {
    /// Created when the first wait needs it.
    descriptor: OnceLock<SignalFd>,
    /// For a wait that other signals do not end.
    interrupt: OnceLock<Option<SignalFd>>,
    all: SigSet,
    ignored_children: bool,
}

impl Signals {
    /// Starts to queue the signals that csalock forwards, and SIGCHLD.
    pub fn listen() -> Result<Signals> {
        let signals = Signals::queue(bit(SIGCHLD as i32))?;
        // A process that ignores SIGCHLD cannot wait for children.
        let before = set_ignored(SIGCHLD, false).map_err(failed)?;
        signals.all_events()?;
        Ok(Signals { ignored_children: matches!(before.handler(), SigHandler::SigIgn), ..signals })
    }

    /// Starts to queue the signals that end a wait, for a command that starts no other.
    pub fn listen_without_children() -> Result<Signals> {
        Signals::queue(0)
    }

    /// Queues ignored signals too: [`Signals::next`] asks about a signal when it arrives, which costs no call before.
    fn queue(others: u64) -> Result<Signals> {
        let never = NOT_QUEUED.into_iter().chain([SIGCHLD]);
        let queued = !never.fold(0, |bits, signal| bits | bit(signal as i32));
        let mask = set_of(queued | others);
        let mut before = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&mask), Some(&mut before)).map_err(failed)?;
        QUEUED.store(numbers(queued).filter(|signal| ends(*signal)).map(bit).sum(), Ordering::SeqCst);
        BLOCKED.fetch_or((queued | others) & !bits_of(&before), Ordering::SeqCst);
        Ok(Signals { descriptor: OnceLock::new(), interrupt: OnceLock::new(), all: mask, ignored_children: false })
    }

    /// Readable when a signal that ends a wait arrives. (SIGCHLD does not end a wait: after `exec csalock` the script's
    /// children are children of csalock.)
    pub fn interrupt(&self) -> Result<BorrowedFd<'_>> {
        let interrupt = self.interrupt.get_or_init(|| {
            let ending = numbers(QUEUED.load(Ordering::SeqCst)).filter(|signal| !is_ignored(*signal));
            open(&set_of(ending.map(bit).sum())).ok()
        });
        // Without a free descriptor, the end of a child only ends a wait too early.
        interrupt.as_ref().map_or_else(|| self.all_events(), Ok).map(AsFd::as_fd)
    }

    /// Readable when a signal is in the queue. This never fails after [`Signals::listen`].
    pub fn all_events(&self) -> Result<&SignalFd> {
        super::known(&self.descriptor, || open(&self.all))
    }

    /// After an interrupted wait: the signal that interrupted it.
    pub fn interrupted_by(&self) -> Option<i32> {
        std::iter::from_fn(|| self.next()).find(|received| received.ends()).map(|received| received.signal)
    }

    /// Waits at most `span` for a signal that ends a wait. Returns true if none arrived.
    pub fn no_signal_within(&self, span: Duration) -> bool {
        let Ok(interrupt) = self.interrupt() else { return !is_pending() };
        let mut polled = [PollFd::new(interrupt, PollFlags::POLLIN)];
        !matches!(poll(&mut polled, PollTimeout::try_from(span).unwrap_or(PollTimeout::MAX)), Ok(1))
    }

    /// `None` if no signal arrived that is not ignored.
    pub fn next(&self) -> Option<ReceivedSignal> {
        const FROM_TERMINAL: [i32; 3] = [libc::SIGINT, libc::SIGQUIT, libc::SIGWINCH];
        loop {
            let info = self.all_events().ok()?.read_signal().ok().flatten()?;
            let signal = info.ssi_signo as i32;
            // The kernel also sends SIGALRM, to csalock alone, if the caller had set an alarm.
            let from_terminal = info.ssi_code == libc::SI_KERNEL && FROM_TERMINAL.contains(&signal);
            if signal == SIGCHLD as i32 || !is_ignored(signal) {
                return Some(ReceivedSignal { signal, from_terminal });
            }
        }
    }

    /// Restores the signal mask and dispositions of the start, for a program that csalock executes next.
    pub fn restore(&self) {
        // The command starts with the default disposition of SIGCHLD, if nothing ignored it.
        if self.ignored_children {
            let _ = set_ignored(SIGCHLD, true);
        }
        restore_most();
    }
}

/// Otherwise the signals that csalock queues could not end a program that this process starts.
pub fn restore_for(program: &mut Command) {
    // SAFETY: sigaction(2) and sigprocmask(2) may be called in a forked child (signal-safety(7)), and nothing else is.
    unsafe {
        program.pre_exec(move || {
            restore_most();
            Ok(())
        })
    };
}

pub fn restore_most() {
    for signal in TAKEN {
        let _ = set_ignored(signal, was_ignored(signal));
    }
    // A mask that is set anew loses two signals which glibc never blocks, even if the caller had them blocked.
    let blocked = set_of(BLOCKED.load(Ordering::SeqCst));
    let _ = sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&blocked), None);
}

impl Interrupt for Signals {
    fn descriptors(&self) -> Result<Vec<BorrowedFd<'_>>> {
        Ok(vec![self.interrupt()?])
    }
}

/// A queued signal that ends a wait is unread, and stays so for [`Signals::interrupted_by`]. Without [`Signals`] it ends the process.
pub fn is_pending() -> bool {
    let queued = QUEUED.load(Ordering::SeqCst);
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigpending(2) only writes to the set; the set is initialised if the call succeeds.
    let pending = unsafe {
        if queued == 0 || libc::sigpending(set.as_mut_ptr()) != 0 {
            return false;
        }
        SigSet::from_sigset_t_unchecked(set.assume_init())
    };
    numbers(queued & bits_of(&pending)).any(|signal| !is_ignored(signal))
}

fn open(mask: &SigSet) -> Result<SignalFd> {
    SignalFd::with_flags(mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).map_err(failed)
}

/// Ignores a signal or restores its default effect. Returns the previous action.
fn set_ignored(signal: Signal, is_ignored: bool) -> nix::Result<SigAction> {
    let handler = if is_ignored { SigHandler::SigIgn } else { SigHandler::SigDfl };
    set_action(signal, &SigAction::new(handler, SaFlags::empty(), SigSet::empty()))
}

/// A disposition without code, one that the process had before, or the handler of [`SigtstpHandler::call`].
fn set_action(signal: Signal, action: &SigAction) -> nix::Result<SigAction> {
    // SAFETY: such a handler obeys signal-safety(7), and a previous action is as valid as before.
    unsafe { sigaction(signal, action) }
}

fn ends(signal: i32) -> bool {
    WITHOUT_EFFECT.into_iter().all(|other| other as i32 != signal)
}

fn numbers(bits: u64) -> impl Iterator<Item = i32> {
    (1..=64).filter(move |signal| bits & bit(*signal) != 0)
}

/// Omits the signals that the C library reserves for itself.
fn set_of(bits: u64) -> SigSet {
    let mut set = *SigSet::empty().as_ref();
    // SAFETY: the set is initialised, and sigaddset(3) rejects other signals.
    unsafe {
        numbers(bits).for_each(|signal| _ = libc::sigaddset(&raw mut set, signal));
        SigSet::from_sigset_t_unchecked(set)
    }
}

fn bits_of(set: &SigSet) -> u64 {
    // SAFETY: the set is initialised.
    (1..=64).filter(|signal| unsafe { libc::sigismember(set.as_ref(), *signal) == 1 }).map(bit).sum()
}

/// Sends a signal, which may be a real-time signal.
pub fn send(process: Pid, signal: i32) -> nix::Result<()> {
    // SAFETY: kill(2) takes numbers.
    Errno::result(unsafe { libc::kill(process.as_raw(), signal) }).map(drop)
}

fn failed(errno: Errno) -> Error {
    Error::new(ErrorKind::System, format!("cannot wait for signals: {}", errno.desc()), "")
}

/// A handler for Ctrl-Z. While this value exists, only the handler stops the process, by [`stop`].
pub struct SigtstpHandler(SigAction);

impl SigtstpHandler {
    /// Installs the handler. Returns `None` if Ctrl-Z is ignored. The handler must obey signal-safety(7).
    pub fn call(handler: extern "C" fn(libc::c_int)) -> Option<SigtstpHandler> {
        let action = SigAction::new(SigHandler::Handler(handler), SaFlags::SA_RESTART, SigSet::empty());
        let before = set_action(SIGTSTP, &action).ok()?;
        let ignored = matches!(before.handler(), SigHandler::SigIgn);
        let caught = SigtstpHandler(before);
        (!ignored).then_some(caught)
    }
}

impl Drop for SigtstpHandler {
    fn drop(&mut self) {
        let _ = set_action(SIGTSTP, &self.0);
    }
}

/// Stops this process as Ctrl-Z does, unless Ctrl-Z is ignored. Returns after SIGCONT. Safe in a signal handler.
pub fn stop() {
    let Ok(action) = set_ignored(SIGTSTP, false) else { return };
    if !matches!(action.handler(), SigHandler::SigIgn) {
        let (mut mask, mut before) = (SigSet::empty(), SigSet::empty());
        mask.add(SIGTSTP);
        let _ = raise(SIGTSTP);
        let _ = sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&mask), Some(&mut before));
        let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
    }
    let _ = set_action(SIGTSTP, &action);
}

/// Ends this process by a signal, so that its parent sees the signal. Returns if the signal does not end the process.
pub fn reraise(signal: i32) {
    // SAFETY: the default disposition runs no code, and raise(3) takes a number. The signal is pending until its mask ends.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
    let _ = sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&set_of(bit(signal))), None);
}
