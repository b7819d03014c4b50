//! The command of `run-with-lock`: a fork that takes the lock for itself and then becomes the command, and a guardian
//! that stays behind, waits for its end and gives the lock back.
//!
//! 1. [`CommandLine::spawn_vfork`] tries without a full fork: a child that shares our memory, while we stand still, takes the lock if
//!    it is free and becomes the command. That is nearly always so, and saves a third of the time.
//! 2. Else [`CommandLine::fork`] forks, before the lock is taken, so that what the record names is the job itself, by the process id
//!    that it will keep; a job whose guardian was killed keeps its lock until it ends.
//! 3. The child takes the lock, waiting for it if need be. While it waits it dies with its guardian. Then it tells
//!    [`Report::Granted`] and executes the command: with no descriptor of ours, and with signals as they were when we
//!    were started. If it gets no lock it tells [`Report::Exit`].
//!    Where the lock has a lease it needs leave: its guardian first starts who renews it and looks to its end, so that no
//!    command ever runs without.
//! 4. The guardian [watches](Running::supervise): it forwards signals, ends the command when its time is over, and sees how
//!    it ended.

#![expect(unsafe_code, reason = "fork")]

mod helper;
mod running;

use std::convert::Infallible;
use std::ffi::{CStr, CString, OsString};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, clone};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;
use nix::unistd::{ForkResult, Pid, execvpe, fork, getppid, pipe2};

pub use helper::Helper;
pub use running::{Deadline, EventSource, ExitReport, Running, StopReason};

use crate::detach;
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::host::StartupState;
use crate::signals::{Signals, reraise};

/// Room for the stack of a child that shares our memory; what it does not touch costs nothing.
const CHILDS_STACK: NonZeroUsize = NonZeroUsize::new(512 * 1024).unwrap();

/// A command that is to be run.
#[derive(Debug, Clone)]
pub struct CommandLine {
    words: Vec<CString>,
}

/// Who we are after the fork.
#[derive(Debug)]
pub enum Fork {
    /// The one who stays behind.
    Parent(Running),
    /// The one who is to become the command.
    Child(ChildSide),
}

/// How far a child came that shares our memory. Atomic, for the compiler cannot know that what is written before an exec
/// is read by somebody else after it.
#[derive(Debug, Default)]
pub struct VforkStatus(AtomicU16);

/// What became of a child that shares our memory.
#[derive(Debug)]
pub enum VforkOutcome {
    /// It took the lock, and is now the command.
    Running(Running),
    /// It did nothing, for the lock is not to be had at once, or something is wrong. Do it the long way.
    No,
    /// It had the lock and could not become the command; this is the exit code.
    Failed(Exit),
}

impl VforkStatus {
    const GRANTED: u16 = 1;
    const FAILED: u16 = 2;

    /// The lock is taken; the command comes next.
    pub fn granted(&self) {
        self.0.store(VforkStatus::GRANTED, Ordering::SeqCst);
    }

    /// The command could not be run, and the lock was given back.
    pub fn failed(&self, exit: Exit) {
        self.0.store(VforkStatus::FAILED | u16::from(exit.code()) << 8, Ordering::SeqCst);
    }
}

/// The process that is to become the command.
#[derive(Debug)]
pub struct ChildSide {
    tell: OwnedFd,
    supervisor: Pid,
    /// Where leave comes to become the command, if it needs one.
    go: Option<OwnedFd>,
}

/// What the child has to tell its guardian before it becomes the command, or ends without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// The lock is taken.
    Granted,
    /// There will be no command; end with this exit code.
    Exit(u8),
}

impl CommandLine {
    /// `words` are the program and its arguments, at least one.
    pub fn new(words: impl IntoIterator<Item = OsString>) -> CommandLine {
        // Words that came from a command line cannot contain NUL.
        let words = words.into_iter().filter_map(|word| CString::new(word.into_vec()).ok()).collect();
        CommandLine { words }
    }

    /// The command line, its words separated by spaces.
    pub fn line(&self) -> Vec<u8> {
        self.words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>().join(&b' ')
    }

    /// Starts a child that shares our memory, and waits until it has become the command or ended; `take` runs in it, and
    /// says in its argument how far it got. What it opens stays its own, what it allocates becomes ours.
    ///
    /// # Errors
    ///
    /// As [`CommandLine::fork`].
    pub fn spawn_vfork(&self, take: &dyn Fn(&VforkStatus)) -> Result<VforkOutcome> {
        let progress = VforkStatus::default();
        let failed = |errno: Errno| Error::os(errno, "start", self.shown());
        // SAFETY: a fresh mapping of nobody else's, all zeros, that is never unmapped before the process ends. (A vector
        // would have every page of it touched.)
        let stack = unsafe {
            let (access, kind) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE);
            let begin = mmap_anonymous(None, CHILDS_STACK, access, kind).map_err(failed)?;
            std::slice::from_raw_parts_mut(begin.as_ptr().cast::<u8>(), CHILDS_STACK.get())
        };
        let flags = CloneFlags::CLONE_VM | CloneFlags::CLONE_VFORK;
        let child = Box::new(|| {
            take(&progress);
            0
        });
        // SAFETY: CLONE_VFORK keeps this thread, the only one, still until the child has left our memory, so the two never
        // use it at the same time; the stack outlives the child's use of it.
        let started = unsafe { clone(child, stack, flags, Some(Signal::SIGCHLD as i32)) };
        let pid = started.map_err(failed)?;
        let came = progress.0.load(Ordering::SeqCst);
        if came == VforkStatus::GRANTED {
            return Ok(VforkOutcome::Running(Running::new(pid, None, None)));
        }
        let ended = nix::sys::wait::waitpid(pid, None);
        Ok(match ended {
            _ if came != 0 => VforkOutcome::Failed(Exit::Code((came >> 8) as u8)),
            // The job itself, though not yet the command. What it left half-done in our memory is not to be trusted: whoever
            // tidies that up may wait for ever for a mutex that it held.
            Ok(WaitStatus::Signaled(_, signal, _)) => detach::exit_now(Exit::signalled(signal as i32).code()),
            _ => VforkOutcome::No,
        })
    }

    /// Forks the child that is to become the command; with `leave` only after [`Running::send_go`].
    ///
    /// # Errors
    ///
    /// When the system has no processes or descriptors left.
    pub fn fork(&self, leave: bool) -> Result<Fork> {
        let failed = |errno: Errno| Error::os(errno, "start", self.shown());
        let (hear, tell) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).map_err(failed)?;
        let (ask, give) = leave.then(|| pipe2(OFlag::O_CLOEXEC)).transpose().map_err(failed)?.unzip();
        let supervisor = nix::unistd::Pid::this();
        // SAFETY: this process has one thread, so the child may do whatever we may.
        match unsafe { fork() }.map_err(failed)? {
            ForkResult::Parent { child } => Ok(Fork::Parent(Running::new(child, Some(hear), give))),
            ForkResult::Child => Ok(Fork::Child(ChildSide { tell, supervisor, go: ask })),
        }
    }

    /// Becomes the command at once; one that is killed when this guardian ends. Returns only if that fails.
    pub fn execute(
        &self,
        variables: &[(&str, OsString)],
        signals: &Signals,
        inherited: StartupState,
        killed_with: Option<Pid>,
    ) -> Error {
        let _ = set_pdeathsig(killed_with.map(|_| Signal::SIGKILL));
        if killed_with.is_some_and(|supervisor| getppid() != supervisor) {
            // It was gone before we asked to be told.
            reraise(Signal::SIGKILL);
        }
        signals.restore(inherited);
        close_again(inherited);
        let environment = Environment::block(variables);
        let errno = match execvpe(&self.words[0], &self.words, &environment) {
            // A script without #! is the shell's, as execvp(3) has it.
            Err(Errno::ENOEXEC) => self.execute_with_shell(&environment),
            Err(errno) => errno,
            Ok(never) => match never {},
        };
        let (exit, cure) = match errno {
            Errno::ENOENT if self.words[0].as_bytes().contains(&b' ') => {
                (Exit::NotFound, "say -c to run a string with a shell")
            }
            Errno::ENOENT | Errno::ENOTDIR => (Exit::NotFound, "see its name and PATH"),
            Errno::E2BIG => (Exit::CannotExecute, "give it fewer or shorter arguments"),
            _ => (Exit::CannotExecute, "see its mode and its first line"),
        };
        Error::new(exit, format!("cannot run {}: {}", self.shown(), errno.desc()), cure)
    }

    fn execute_with_shell(&self, environment: &[CString]) -> Errno {
        let Some(script) = find_in_path(&self.words[0]) else { return Errno::ENOEXEC };
        let words: Vec<&CStr> =
            [c"/bin/sh", script.as_c_str()].into_iter().chain(self.words[1..].iter().map(AsRef::as_ref)).collect();
        let tried: nix::Result<Infallible> = nix::unistd::execve(c"/bin/sh", &words, environment);
        tried.err().unwrap_or(Errno::ENOEXEC)
    }

    fn shown(&self) -> String {
        crate::name::escape(self.words[0].as_bytes())
    }
}

impl ChildSide {
    /// From now on, until it becomes the command, the process ends when its guardian does.
    pub fn depend_on_guardian(&self, inherited: StartupState) {
        // By SIGTERM we leave the queue in good order. Where that is ignored, whoever serves the queue passes the dead over.
        let gentle = !inherited.ignored(Signal::SIGTERM);
        let _ = set_pdeathsig(if gentle { Signal::SIGTERM } else { Signal::SIGKILL });
        if getppid() != self.supervisor {
            // It was gone before we asked to be told.
            reraise(Signal::SIGKILL);
        }
    }

    /// Waits for leave to become the command, at most so long. Whether it came.
    pub fn wait_for_go(&self, at_most: Duration) -> bool {
        let Some(ask) = &self.go else { return true };
        let at_most = PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX);
        let came = in_spite_of_signals(|| poll(&mut [PollFd::new(ask.as_fd(), PollFlags::POLLIN)], at_most));
        came.is_ok_and(|ready| ready > 0) && in_spite_of_signals(|| nix::unistd::read(ask, &mut [0; 1])) == Ok(1)
    }

    /// Tells the guardian.
    pub fn tell(&self, report: Report) {
        let message = match report {
            Report::Granted => vec![b'G'],
            Report::Exit(code) => vec![b'E', code],
        };
        // A guardian that is gone need not know.
        let _ = in_spite_of_signals(|| nix::unistd::write(&self.tell, &message));
    }

    /// Ends the process without having become the command.
    #[expect(clippy::disallowed_methods, reason = "this is another process than the one whose main alone exits")]
    pub fn leave(self, exit: Exit) -> ! {
        if let Exit::Signal(signal) = exit
            && let Ok(signal) = signal.try_into()
        {
            reraise(signal);
        }
        self.tell(Report::Exit(exit.code()));
        std::process::exit(exit.code().into())
    }
}

fn in_spite_of_signals<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}

/// Descriptors that were closed when we were started are /dev/null in here; the command finds them closed again.
fn close_again(inherited: StartupState) {
    for descriptor in (0..3).filter(|descriptor| inherited.closed(*descriptor)) {
        // SAFETY: nothing of ours uses the descriptor any more, and closing a number touches no memory.
        unsafe { nix::libc::close(descriptor as i32) };
    }
}

fn find_in_path(program: &CStr) -> Option<CString> {
    if program.to_bytes().contains(&b'/') {
        return Some(program.to_owned());
    }
    let path = Environment::path();
    let candidates = std::env::split_paths(&path).map(|directory| {
        let directory = if directory.as_os_str().is_empty() { ".".into() } else { directory };
        directory.join(OsString::from_vec(program.to_bytes().to_vec()))
    });
    let executable = |path: &std::path::PathBuf| nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok();
    let mut candidates = candidates.filter(executable);
    candidates.next().and_then(|path| CString::new(path.into_os_string().into_vec()).ok())
}
