//! The command of `csalock run`: a child that becomes the command when the lock is acquired, and a supervisor that waits
//! for the end of the command and releases the lock. In each case the record names the command's own process id, so a
//! command whose supervisor was killed keeps its lock until it ends.
//!
//! 1. [`CommandLine::spawn_vfork`] avoids a full fork: a child that shares the memory of this process acquires the lock
//!    if it is free and becomes the command. The parent is suspended meanwhile. This is the usual case and saves a
//!    third of the time.
//! 2. Otherwise the child of a [`Standby`](super::standby::Standby) sleeps while its parent acquires the lock.
//! 3. Where the child has more to do, [`CommandLine::fork`] forks. The child acquires the lock and waits if necessary; a
//!    waiting child dies with its supervisor. It reports [`Granted`](super::child::Report::Granted) and executes the
//!    command without csalock's descriptors and with the original signals. Without a lock it reports
//!    [`Exit`](super::child::Report::Exit). A lock with a lease needs a start signal: the supervisor first starts its
//!    keeper, so no command runs without a keeper.
//! 4. The [supervisor](super::supervisor) forwards signals, ends the command at its deadlines and releases the lock.

#![expect(unsafe_code, reason = "fork")]

use std::borrow::Cow;
use std::convert::Infallible;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::num::NonZeroUsize;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sched::{CloneFlags, clone};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;
use nix::unistd::{ForkResult, Pid, execvpe, fork, pipe2};

use super::child::{ChildSide, RunningCommand, die_with};
use crate::environment::Environment;
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::host::StartupState;
use crate::run::detach;
use crate::store::close_before_fork;

/// Bytes of stack that clone(2) may use in the parent.
const STACK_OF_CLONE: usize = 4096;

/// Bytes of the parent's stack for a child that suspends the parent.
const STACK_OF_VFORK: usize = 65536;

/// Size in bytes of the separate stack of a child that shares the parent's memory; untouched pages cost nothing.
const CHILDS_STACK: NonZeroUsize = NonZeroUsize::new(512 * 1024).unwrap();

/// Commands of a shell that are not programs, and would not help if they were (POSIX, special and intrinsic utilities).
const SHELL_BUILTINS: [&[u8]; 10] =
    [b"cd", b"export", b"exec", b"eval", b"set", b"source", b".", b"ulimit", b"umask", b"wait"];

/// A command and its arguments.
#[derive(Debug, Clone)]
pub struct CommandLine {
    words: Vec<CString>,
}

/// The role of this process after the fork.
#[derive(Debug)]
pub enum Fork {
    /// The process that stays as the supervisor.
    Parent(RunningCommand),
    /// The process that becomes the command.
    Child(ChildSide),
}

/// The progress of a child that shares the parent's memory. The value is atomic because the compiler cannot know that
/// the parent reads it after the child's exec.
#[derive(Debug, Default)]
pub struct VforkStatus(AtomicU16);

/// The result of a child that shares the parent's memory.
#[derive(Debug)]
pub enum VforkOutcome {
    /// The child acquired the lock and is now the command.
    Running(RunningCommand),
    /// The child did nothing, because the lock is not free or an error occurred. The caller must use a full fork.
    No,
    /// The child acquired the lock but could not become the command; this is the exit code.
    Failed(Exit),
}

impl VforkStatus {
    const GRANTED: u16 = 1;
    const FAILED: u16 = 2;

    /// Returns true if the child was about to become the command, and has not failed to.
    pub(super) fn is_granted(&self) -> bool {
        self.0.load(Ordering::SeqCst) == VforkStatus::GRANTED
    }

    /// Returns the exit code if the command could not be run.
    pub(super) fn failure(&self) -> Option<Exit> {
        let status = self.0.load(Ordering::SeqCst);
        (status & VforkStatus::FAILED != 0).then_some(Exit::Code((status >> 8) as u8))
    }

    /// Records that the lock is acquired and the command comes next.
    pub fn granted(&self) {
        self.0.store(VforkStatus::GRANTED, Ordering::SeqCst);
    }

    /// Records that the command could not be run and the lock was released.
    pub fn failed(&self, exit: Exit) {
        self.0.store(VforkStatus::FAILED | u16::from(exit.code()) << 8, Ordering::SeqCst);
    }
}

impl CommandLine {
    /// Creates a command line. `words` are the program and its arguments, at least one word.
    pub fn new(words: impl IntoIterator<Item = OsString>) -> CommandLine {
        // Words of a command line cannot contain NUL.
        let words = words.into_iter().filter_map(|word| CString::new(word.into_vec()).ok()).collect();
        CommandLine { words }
    }

    /// Returns the command line, its words separated by spaces.
    pub fn line(&self) -> Vec<u8> {
        self.words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>().join(&b' ')
    }

    /// Starts a child that shares this memory and these descriptors, and waits until it is the command or has ended. The
    /// child runs `take`, which reports through its argument. Everything that the child opens and allocates stays in
    /// this process.
    /// Returns the errors of [`CommandLine::fork`].
    pub fn spawn_vfork(&self, take: &dyn Fn(&VforkStatus)) -> Result<VforkOutcome> {
        let progress = VforkStatus::default();
        let failed = |errno| self.cannot_start(errno);
        // The child uses the same stack, whose pages exist already, beyond what the calls below use.
        // SAFETY: the kernel gives a program 128 KiB of stack at once, and the parent uses none of it while suspended.
        let stack = unsafe {
            let top = std::ptr::from_ref(&progress).cast::<u8>().cast_mut().sub(STACK_OF_CLONE);
            std::slice::from_raw_parts_mut(top.sub(STACK_OF_VFORK), STACK_OF_VFORK)
        };
        // With the descriptors, the child uses the open stores of this process: for the kernel, even the locks of SQLite
        // belong to the table of descriptors. The command gets a table of its own when the child executes it.
        let flags = CloneFlags::CLONE_VM | CloneFlags::CLONE_FILES | CloneFlags::CLONE_VFORK;
        let child = Box::new(|| {
            take(&progress);
            0
        });
        // SAFETY: CLONE_VFORK suspends this only thread until the child has left its memory, so the two never use it at
        // the same time.
        let started = unsafe { clone(child, stack, flags, Some(Signal::SIGCHLD as i32)) };
        let pid = started.map_err(failed)?;
        if progress.is_granted() {
            return Ok(VforkOutcome::Running(RunningCommand::new(pid, None, None)));
        }
        let ended = nix::sys::wait::waitpid(pid, None);
        Ok(match (progress.failure(), ended) {
            (Some(exit), _) => VforkOutcome::Failed(exit),
            // The signal ended the child before it became the command. The shared memory may be inconsistent: a cleanup
            // could wait without end for a mutex that the child held.
            (None, Ok(WaitStatus::Signaled(_, signal, _))) => detach::exit_now(Exit::signalled(signal as i32).code()),
            _ => VforkOutcome::No,
        })
    }

    /// Forks the child that becomes the command; with `leave` it waits for [`RunningCommand::send_go`].
    pub fn fork(&self, leave: bool) -> Result<Fork> {
        let failed = |errno| self.cannot_start(errno);
        let (hear, tell) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).map_err(failed)?;
        let (ask, give) = leave.then(|| pipe2(OFlag::O_CLOEXEC)).transpose().map_err(failed)?.unzip();
        let supervisor = nix::unistd::Pid::this();
        close_before_fork();
        // SAFETY: this process has one thread, so the child may do everything that the parent may do.
        match unsafe { fork() }.map_err(failed)? {
            ForkResult::Parent { child } => Ok(Fork::Parent(RunningCommand::new(child, Some(hear), give))),
            ForkResult::Child => Ok(Fork::Child(ChildSide { tell, supervisor, go: ask })),
        }
    }

    /// Becomes the command, or returns an error. The command is killed when the supervisor `killed_with` ends.
    /// The caller has restored the signals.
    pub fn execute(&self, variables: &[(&str, OsString)], inherited: StartupState, killed_with: Option<Pid>) -> Error {
        if let Some(supervisor) = killed_with {
            die_with(supervisor, Signal::SIGKILL);
        }
        close_again(inherited);
        let environment = Environment::block(variables);
        let errno = match execvpe(&self.words[0], &self.words, &environment) {
            // A shell runs a script without #!, as execvp(3) does.
            Err(Errno::ENOEXEC) => self.execute_with_shell(&environment),
            Err(errno) => errno,
            Ok(never) => match never {},
        };
        let word = self.words[0].as_bytes();
        let (kind, cure) = match errno {
            Errno::ENOENT if word.contains(&b' ') => {
                (ErrorKind::CommandNotFound, "use -c to run a string with a shell")
            }
            Errno::ENOENT if SHELL_BUILTINS.contains(&word) => {
                (ErrorKind::CommandNotFound, "it is a command of the shell; use -c to run a string with a shell")
            }
            Errno::ENOENT if word.iter().all(u8::is_ascii_digit) => {
                (ErrorKind::CommandNotFound, "the word before it was taken as the name of the lock")
            }
            Errno::ENOENT | Errno::ENOTDIR => (ErrorKind::CommandNotFound, "see its name and PATH"),
            // A word without a slash is searched in PATH, whatever the current directory contains.
            Errno::EACCES if word.contains(&b'/') && Path::new(OsStr::from_bytes(word)).is_dir() => {
                (ErrorKind::CannotExecute, "it is a directory; name a program")
            }
            Errno::E2BIG => (ErrorKind::CannotExecute, "give it fewer or shorter arguments"),
            _ => (ErrorKind::CannotExecute, "see its mode and its first line"),
        };
        Error::new(kind, format!("cannot run {}: {}", self.shown(), errno.desc()), cure)
    }

    fn execute_with_shell(&self, environment: &[Cow<'_, CStr>]) -> Errno {
        let Some(script) = find_in_path(&self.words[0]) else { return Errno::ENOEXEC };
        let words: Vec<&CStr> =
            [c"/bin/sh", script.as_c_str()].into_iter().chain(self.words[1..].iter().map(AsRef::as_ref)).collect();
        let tried: nix::Result<Infallible> = nix::unistd::execve(c"/bin/sh", &words, environment);
        tried.err().unwrap_or(Errno::ENOEXEC)
    }

    /// Returns the error for a process that the system could not create.
    pub(super) fn cannot_start(&self, errno: Errno) -> Error {
        Error::os(errno, "start", self.shown())
    }

    fn shown(&self) -> String {
        crate::name::escape(self.words[0].as_bytes())
    }
}

/// Maps the stack of a child that shares the parent's memory.
pub(super) fn childs_stack() -> nix::Result<&'static mut [u8]> {
    let (access, kind) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE);
    // SAFETY: the mapping is fresh, private and zeroed, and stays mapped until the process ends. (A vector would touch
    // every page.)
    unsafe {
        let begin = mmap_anonymous(None, CHILDS_STACK, access, kind)?;
        Ok(std::slice::from_raw_parts_mut(begin.as_ptr().cast::<u8>(), CHILDS_STACK.get()))
    }
}

/// Closes the descriptors that were closed at the start, for the command. Meanwhile they are /dev/null in this process.
fn close_again(inherited: StartupState) {
    for descriptor in (0..3).filter(|descriptor| inherited.closed(*descriptor)) {
        // SAFETY: nothing in this process uses the descriptor any more, and closing a number touches no memory.
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
