//! The command of `run-with-lock`: forked before the lock is taken, so that the lock can be taken in its name; parked on
//! a pipe; executed when the lock is there; watched until it ends.
//!
//! 1. [`Plan::park`] forks. The child waits on a pipe. Should we die now, it sees the end of the pipe and ends too, and
//!    with it whatever was granted in its name.
//! 2. [`Parked::go`] sends it the variables that tell of the lock; it executes the command. No descriptor of ours goes
//!    with it, and signals are as they were when we were started.
//! 3. [`Running::watch`] forwards signals and waits, whatever comes.
//!
//! The command keeps its process id through all of this: what the record names is the job itself, and a job whose
//! wrapper was killed keeps its lock until it ends.

#![expect(unsafe_code, reason = "fork")]

mod running;

use std::convert::Infallible;
use std::ffi::{CStr, CString, OsString};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::unistd::{ForkResult, Pid, execvpe, fork, pipe2};

pub use running::{Ended, Limits, Running, Stop};

use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::host::Inherited;
use crate::signals::Signals;

/// A command that is to be run.
#[derive(Debug, Clone)]
pub struct Plan {
    words: Vec<CString>,
}

/// A child that waits to become the command. Dropped without [`Parked::go`], it ends.
#[derive(Debug)]
pub struct Parked {
    /// Its process id, which will be the command's.
    pub pid: Pid,
    gate: OwnedFd,
}

impl Plan {
    /// `words` are the program and its arguments, at least one.
    pub fn new(words: impl IntoIterator<Item = OsString>) -> Plan {
        // Words that came from a command line cannot contain NUL.
        let words = words.into_iter().filter_map(|word| CString::new(word.into_vec()).ok()).collect();
        Plan { words }
    }

    /// The command line, its words separated by spaces.
    pub fn line(&self) -> Vec<u8> {
        self.words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>().join(&b' ')
    }

    /// Forks the child that is to become the command.
    ///
    /// # Errors
    ///
    /// When the system has no processes or descriptors left.
    pub fn park(self, signals: &Signals, inherited: Inherited) -> Result<Parked> {
        let failed = |errno: Errno| Error::os(errno, "start", self.shown());
        let (wait, gate) = pipe2(OFlag::O_CLOEXEC).map_err(failed)?;
        // SAFETY: this process has one thread, so the child may do whatever we may.
        match unsafe { fork() }.map_err(failed)? {
            ForkResult::Parent { child } => Ok(Parked { pid: child, gate }),
            ForkResult::Child => {
                drop(gate);
                let exit = self.wait_and_execute(wait, signals, inherited);
                leave(exit)
            }
        }
    }

    /// Becomes the command at once. Returns only if that fails.
    pub fn execute(&self, variables: &[(&str, OsString)], signals: &Signals, inherited: Inherited) -> Error {
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
        crate::name::shown(self.words[0].as_bytes())
    }

    fn wait_and_execute(&self, gate: OwnedFd, signals: &Signals, inherited: Inherited) -> Exit {
        // While it waits, the child dies of signals as any process does.
        signals.restore(inherited);
        let mut message = Vec::new();
        let read = std::fs::File::from(gate).read_to_end(&mut message);
        let Some(variables) = read.ok().and_then(|_| parse_message(&message)) else { return Exit::Done };
        let error = self.execute(&variables, signals, inherited);
        let _ = writeln!(std::io::stderr(), "csalock: {error}");
        error.exit()
    }
}

impl Parked {
    /// Lets it become the command, with these variables in its environment.
    ///
    /// # Errors
    ///
    /// When it has died meanwhile.
    pub fn go(self, variables: &[(&str, OsString)]) -> Result<Running> {
        let mut message = Vec::new();
        for (name, value) in variables {
            message.extend_from_slice(name.as_bytes());
            message.push(b'=');
            message.extend(value.clone().into_vec());
            message.push(0);
        }
        // Without this end it was cut short by our death, and the child ends as well.
        message.push(0);
        let sent = std::fs::File::from(self.gate).write_all(&message);
        match sent {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(Error::new(Exit::System, format!("cannot start the command: {error}"), ""))
            }
            _ => Ok(Running::new(self.pid)),
        }
    }

    /// Ends it without having run anything, and waits for its end.
    pub fn dismiss(self) {
        drop(self.gate);
        let _ = nix::sys::wait::waitpid(self.pid, None);
    }
}

fn parse_message(message: &[u8]) -> Option<Vec<(&str, OsString)>> {
    let body = message.strip_suffix(&[0, 0])?;
    body.split(|byte| *byte == 0)
        .map(|pair| {
            let at = pair.iter().position(|byte| *byte == b'=')?;
            let name = std::str::from_utf8(&pair[..at]).ok()?;
            Some((name, OsString::from_vec(pair[at + 1..].to_vec())))
        })
        .collect()
}

/// Descriptors that were closed when we were started are /dev/null in here; the command finds them closed again.
fn close_again(inherited: Inherited) {
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

#[expect(clippy::disallowed_methods, reason = "this is another process than the one whose main alone exits")]
fn leave(exit: Exit) -> ! {
    std::process::exit(exit.code().into())
}
