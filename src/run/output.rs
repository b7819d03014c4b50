//! A command whose output csalock reads.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawnp};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, pipe2};

use crate::environment::Environment;
use crate::error::{Error, ErrorKind, Result};
use crate::exit::Exit;
use crate::name::escape;
use crate::signals::{Signals, StartupState, TAKEN};

/// A command that runs, with a pipe in the place of its stdout.
pub struct PipedCommand(Pid);

impl PipedCommand {
    /// Starts the command with the signals, descriptors and environment that this process was started with. Returns the
    /// reading end of the pipe, too.
    pub fn start(words: &[OsString], signals: &Signals, inherited: StartupState) -> Result<(PipedCommand, File)> {
        let name = words.first().map(|word| escape(word.as_bytes())).unwrap_or_default();
        spawn(words, signals, inherited).map_err(|errno| {
            let (kind, hint) = match errno {
                Errno::ENOENT | Errno::ENOTDIR => (ErrorKind::CommandNotFound, "check the spelling and `$PATH`"),
                Errno::E2BIG => (ErrorKind::CannotExecute, "give it fewer or shorter arguments"),
                _ => (
                    ErrorKind::CannotExecute,
                    "check that it is executable (`chmod +x`) and that its `#!` line names an existing program",
                ),
            };
            Error::new(kind, format!("cannot run {name}: {}", errno.desc()), hint)
        })
    }

    pub fn send(&self, signal: Signal) {
        let _ = kill(self.0, signal);
    }

    /// Returns the exit status of the command if it has ended.
    pub fn status(&self) -> Result<Option<Exit>> {
        let mut found = waitpid(self.0, Some(WaitPidFlag::WNOHANG));
        while found == Err(Errno::EINTR) {
            found = waitpid(self.0, Some(WaitPidFlag::WNOHANG));
        }
        match found {
            Ok(WaitStatus::Exited(_, 0)) => Ok(Some(Exit::Done)),
            Ok(WaitStatus::Exited(_, code)) => Ok(Some(Exit::Code(code as u8))),
            Ok(WaitStatus::Signaled(_, signal, _)) => Ok(Some(Exit::signalled(signal as i32))),
            Ok(_) => Ok(None),
            Err(errno) => {
                Err(Error::new(ErrorKind::System, format!("cannot wait for the command: {}", errno.desc()), ""))
            }
        }
    }
}

fn spawn(words: &[OsString], signals: &Signals, inherited: StartupState) -> nix::Result<(PipedCommand, File)> {
    let words = words.iter().map(|word| CString::new(word.as_bytes()).map_err(|_| Errno::EINVAL));
    let words = words.collect::<nix::Result<Vec<CString>>>()?;
    let (output, input) = pipe2(OFlag::O_CLOEXEC)?;
    let mut descriptors = PosixSpawnFileActions::init()?;
    descriptors.add_dup2(input.as_raw_fd(), 1)?;
    for closed in [0, 2].into_iter().filter(|descriptor| inherited.closed(*descriptor as u32)) {
        descriptors.add_close(closed)?;
    }
    let mut taken = SigSet::empty();
    TAKEN.into_iter().filter(|signal| !inherited.ignored(*signal)).for_each(|signal| taken.add(signal));
    let mut attributes = PosixSpawnAttr::init()?;
    attributes.set_sigdefault(&taken)?;
    attributes.set_sigmask(signals.mask_before())?;
    attributes.set_flags(PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK)?;
    let program = words.first().ok_or(Errno::EINVAL)?;
    let pid = posix_spawnp(program, &descriptors, &attributes, &words, &Environment::all())?;
    Ok((PipedCommand(pid), File::from(output)))
}
