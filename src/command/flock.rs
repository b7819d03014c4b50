//! `flock`: the program under the name of flock(1) of util-linux, for scripts that call it. It has that program's command
//! line, exit codes and silence, and keeps the records of `run --flock` and `lock --fd` besides.
//!
//! The kernel's lock decides. If no record can be kept, that lock alone is taken, so a script never fails here where it
//! works with flock(1).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use clap::Parser;
use nix::fcntl::OFlag;

use super::context::{Context, print};
use super::csa::path;
use super::descriptor::{self, lock_unrecorded};
use super::run::run as run_under_lock;
use crate::cli::{AsFlock, Common, Run, Taking, Waiting};
use crate::exit::Exit;
use crate::run::exec::{CommandLine, to_be_inherited};
use crate::run::flock::{inherited, open};
use engine::environment;
use host::FileLock;
use host::signals;
use lock::duration::Limit;
use lock::{Error, ErrorKind, Result, name};

/// Exit codes of flock(1), from sysexits.h.
const USAGE: u8 = 64;
const BAD_DATA: u8 = 65;
const NO_INPUT: u8 = 66;
const UNAVAILABLE: u8 = 69;
const SYSTEM: u8 = 71;
const CANNOT_CREATE: u8 = 73;

pub(super) fn run(arguments: &[OsString]) -> anyhow::Result<Exit> {
    let options = match AsFlock::try_parse_from(arguments) {
        Ok(options) => Rc::new(options),
        Err(shown) if !shown.use_stderr() => return print(shown.to_string()).map(|()| Exit::Done),
        Err(error) => {
            let text = error.to_string();
            let problem = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
            return Ok(fail(USAGE, &format!("{problem}; see flock --help")));
        }
    };
    let context = Context::new(Common { quiet: true, ..Common::default() });
    let shell = environment::variable("SHELL").unwrap_or_else(|| "/bin/sh".into());
    let call = |file, command| Call { context: &context, options: &options, file, command };
    match options.words.as_slice() {
        [number] => lock_descriptor(&context, &options, number),
        [file, dash_c, rest @ ..] if dash_c == "-c" || dash_c == "--command" => match rest {
            [string] => call(file, &[shell, "-c".into(), string.clone()]).run(),
            _ => Ok(fail(USAGE, "exactly one STRING must follow -c")),
        },
        [file, command @ ..] => call(file, command).run(),
        [] => Err(Error::invalid("the file is missing", "").into()),
    }
}

fn lock_descriptor(context: &Context, options: &AsFlock, number: &OsStr) -> anyhow::Result<Exit> {
    let parsed = number.to_str().and_then(|number| number.parse::<i32>().ok()).filter(|number| *number >= 0);
    let Some(number) = parsed else {
        return Ok(fail(USAGE, &format!("{} is neither a descriptor nor followed by a command", number.display())));
    };
    let began = context.host.boottime();
    let Ok(file) = inherited(number) else { return Ok(fail(BAD_DATA, &format!("{number}: Bad file descriptor"))) };
    if options.unlock {
        // A record of which the kernel's lock is gone is over, even if it cannot be changed.
        let _ = (descriptor::unlock(context, number), fs2::FileExt::unlock(&file));
        return Ok(Exit::Done);
    }
    let locked = match descriptor::lock(context, &taking(options), number) {
        Ok(Exit::Failed(ErrorKind::Deadlock)) | Err(_) => lock_unrecorded(context, &taking(options), &file, began),
        locked => locked,
    };
    Ok(match locked {
        Ok(Exit::Done) => {
            options.tell_of_lock(context.host.boottime().saturating_sub(began), None);
            Exit::Done
        }
        Ok(Exit::Signal(signal)) => Exit::Signal(signal),
        Ok(_) => conflict(options),
        Err(error) => fail(BAD_DATA, &format!("{number}: {}", reason(error.root_cause()))),
    })
}

/// A command under the lock of a file.
struct Call<'a> {
    context: &'a Context,
    options: &'a Rc<AsFlock>,
    file: &'a OsStr,
    command: &'a [OsString],
}

impl Call<'_> {
    fn run(&self) -> anyhow::Result<Exit> {
        let (context, options) = (self.context, self.options);
        let began = context.host.boottime();
        if options.unlock {
            return Ok(self.run_without_record(began));
        }
        // After the dashes all words are the command's.
        let words = [path(self.file.to_os_string()), "--".into()].into_iter().chain(self.command.iter().cloned());
        let run = Run {
            taking: taking(options),
            flock: true,
            no_fork: options.no_fork,
            words: words.collect(),
            as_flock: Some(options.clone()),
            ..Run::default()
        };
        Ok(match run_under_lock(context, &run) {
            // A shell ends a loop of commands on Ctrl-C only if the signal ends this process, too.
            Ok(Exit::Signal(signal)) if options.has_run.get() && signal != nix::libc::SIGINT => of_signal(signal),
            Ok(exit) if options.has_run.get() || matches!(exit, Exit::Signal(_)) => exit,
            // flock(1) waits there, or is served before those that wait for its caller.
            Ok(Exit::Failed(ErrorKind::Deadlock)) => self.run_without_record(began),
            Ok(_) => conflict(options),
            Err(error) if options.has_run.get() => self.cannot_execute(error.root_cause()),
            Err(error) => {
                if options.verbose {
                    fail(0, &format!("the lock has no record: {error:#}"));
                }
                self.run_without_record(began)
            }
        })
    }

    /// Takes the kernel's lock alone, within the timeout of a wait that began at this time.
    fn run_without_record(&self, began: Duration) -> Exit {
        let file = match self.open() {
            Ok(file) => file,
            Err(error) => return self.cannot_open(&error),
        };
        if !self.options.unlock {
            match lock_unrecorded(self.context, &taking(self.options), &file, began) {
                Ok(Exit::Done) => {}
                Ok(Exit::Signal(signal)) => return Exit::Signal(signal),
                Ok(_) => return conflict(self.options),
                Err(error) => {
                    return fail(BAD_DATA, &format!("{}: {}", self.file.display(), reason(error.root_cause())));
                }
            }
        }
        signals::restore_most();
        let command_line = CommandLine::new(self.command.iter().cloned());
        self.options.tell_of_lock(self.context.host.boottime().saturating_sub(began), Some(&command_line));
        if self.options.close {
            return match Command::new(&self.command[0]).args(&self.command[1..]).status() {
                Ok(status) => status.signal().map_or_else(|| Exit::Code(status.code().unwrap_or(1) as u8), of_signal),
                Err(error) => self.cannot_execute(&error),
            };
        }
        // Without a free descriptor the command would not keep the lock.
        match to_be_inherited(&file) {
            Ok(()) => self.cannot_execute(&command_line.replace_process()),
            Err(errno) => fail(SYSTEM, errno.desc()),
        }
    }

    fn open(&self) -> Result<File> {
        let file = self.file.as_encoded_bytes();
        name::check(file)?;
        open(FileLock::Flock, &name::file_of(file, &self.context.current)?, OFlag::O_RDONLY)
    }

    fn cannot_open(&self, error: &Error) -> Exit {
        let code = match error.kind() {
            ErrorKind::System => SYSTEM,
            ErrorKind::CannotCreate | ErrorKind::InputOutput => CANNOT_CREATE,
            _ => NO_INPUT,
        };
        fail(code, &format!("cannot open lock file {}: {}", self.file.display(), reason(&error.message())))
    }

    fn cannot_execute(&self, error: &dyn std::fmt::Display) -> Exit {
        fail(UNAVAILABLE, &format!("failed to execute {}: {}", self.command[0].display(), reason(error)))
    }
}

impl AsFlock {
    pub(super) fn tell_of_lock(&self, waited: Duration, command: Option<&CommandLine>) {
        if self.verbose {
            let (seconds, micros) = (waited.as_secs(), waited.subsec_micros());
            let command = command.map(|command| format!("flock: executing {}\n", command.program().display()));
            let command = command.unwrap_or_default();
            let _ = print(format!("flock: getting lock took {seconds}.{micros:06} seconds\n{command}"));
        }
    }
}

fn taking(options: &AsFlock) -> Taking {
    // One that does not wait stays so, whatever its timeout.
    let timeout = options.timeout.filter(|_| !options.nonblock);
    let nonblock = options.nonblock || timeout.is_some_and(|limit| limit.is_zero());
    let conflict_exit_code = Some(options.conflict_exit_code);
    let waiting = Waiting { nonblock, timeout: Some(Limit(timeout)), conflict_exit_code, ..Waiting::default() };
    Taking { shared: options.shared, waiting, ..Taking::default() }
}

fn conflict(options: &AsFlock) -> Exit {
    if options.verbose {
        let is_late = !options.nonblock && options.timeout.is_some_and(|limit| !limit.is_zero());
        fail(0, if is_late { "timeout while waiting to get lock" } else { "failed to get lock" });
    }
    Exit::Code(options.conflict_exit_code)
}

fn of_signal(signal: i32) -> Exit {
    Exit::Code(128_u8.wrapping_add(signal as u8))
}

/// The system's words, which are the end of a message.
fn reason(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    let text = text.split("; ").next().unwrap_or_default();
    text.rsplit(": ").next().unwrap_or_default().to_string()
}

fn fail(code: u8, text: &str) -> Exit {
    let _ = writeln!(std::io::stderr(), "flock: {text}");
    Exit::Code(code)
}
