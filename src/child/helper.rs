//! A helper process that runs an action on request and reports the result, for checks that need two processes. The
//! helper ends with csalock.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, getppid};

use crate::error::{Error, ErrorKind, Result};

/// The helper process. Dropping this value kills it.
pub struct Helper {
    pid: Pid,
    told: BufReader<UnixStream>,
}

impl Helper {
    /// Forks the helper, which answers each line with one line returned by `act`. The caller must have one thread and
    /// no open state that a fork must not inherit.
    pub fn fork(act: impl Fn(&str) -> String) -> Result<Helper> {
        let failed = |errno: Errno| {
            Error::new(ErrorKind::System, format!("cannot start a process: {}", errno.desc()), "try again")
        };
        let ours = Pid::this();
        let (here, there) =
            UnixStream::pair().map_err(|error| failed(Errno::from_raw(error.raw_os_error().unwrap_or(0))))?;
        // SAFETY: this process has one thread, so the child may do everything that the parent may do.
        match unsafe { fork() }.map_err(failed)? {
            ForkResult::Parent { child } => Ok(Helper { pid: child, told: BufReader::new(here) }),
            ForkResult::Child => {
                drop(here);
                let _ = set_pdeathsig(Signal::SIGKILL);
                if getppid() == ours {
                    serve(there, act);
                }
                leave()
            }
        }
    }

    /// Sends a request line to the helper.
    /// Returns an error if the helper has ended.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        self.told.get_mut().write_all(format!("{line}\n").as_bytes()).map_err(|error| gone(&error))
    }

    /// Returns the answer of the helper, which must come within `at_most`.
    /// Returns an error if the helper has ended or does not answer.
    pub fn answer(&mut self, at_most: Duration) -> Result<String> {
        let mut line = String::new();
        let read = self.told.get_ref().set_read_timeout(Some(at_most)).and_then(|()| self.told.read_line(&mut line));
        match read {
            Ok(0) => Err(gone(&std::io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => Ok(line.trim_end().to_string()),
            Err(error) => Err(gone(&error)),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = kill(self.pid, Signal::SIGKILL);
        let _ = waitpid(self.pid, None);
    }
}

fn serve(mut stream: UnixStream, act: impl Fn(&str) -> String) {
    let Ok(told) = stream.try_clone() else { return };
    for line in BufReader::new(told).lines() {
        let Ok(line) = line else { return };
        if stream.write_all(format!("{}\n", act(&line)).as_bytes()).is_err() {
            return;
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "this is another process than the one whose main alone exits")]
fn leave() -> ! {
    std::process::exit(0)
}

fn gone(error: &std::io::Error) -> Error {
    let what = match error.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            "a second process does not come to an end with it"
        }
        _ => "a second process ended before it was done",
    };
    Error::new(ErrorKind::System, what, "see the kernel log, then try again")
}
