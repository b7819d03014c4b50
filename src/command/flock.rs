//! `flock`: the program under the name of flock(1) of util-linux, for scripts that call it. It has that program's command
//! line, exit codes and silence, and keeps the records of `run --flock` and `lock --fd` besides.
//!
//! The kernel's lock decides. If no record can be kept, that lock alone is taken, so a script never fails here where it
//! works with flock(1).

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::fcntl::OFlag;

use super::context::{Context, print};
use super::csa::path;
use super::run::run as run_under_lock;
use crate::cli::{AsFlock, Common, Run, Taking, Waiting};
use crate::exit::Exit;
use crate::run::exec::CommandLine;
use crate::run::flock::{Flock, Flocked, open};
use engine::environment;
use host::{FileLock, signals};
use lock::Mode;
use lock::duration::Limit;
use lock::error::{Error, ErrorKind, Result};
use lock::name;

/// Long options, with the letters of the short ones; a capital `C` is --fcntl and `v` is --verbose, which have none.
const LONG: [(&str, char); 14] = [
    ("shared", 's'),
    ("exclusive", 'x'),
    ("unlock", 'u'),
    ("nonblocking", 'n'),
    ("nb", 'n'),
    ("timeout", 'w'),
    ("wait", 'w'),
    ("conflict-exit-code", 'E'),
    ("close", 'o'),
    ("no-fork", 'F'),
    ("fcntl", 'C'),
    ("verbose", 'v'),
    ("help", 'h'),
    ("version", 'V'),
];

const HELP: &str = "\
Usage: flock [OPTION]... FILE|DIRECTORY COMMAND [ARGUMENT]...
       flock [OPTION]... FILE|DIRECTORY -c STRING
       flock [OPTION]... DESCRIPTOR

Locks a file with flock(2) while a command runs, or the file of an open descriptor.
This is csalock under the name flock: `csalock status FILE` shows who has the lock.

  -s, --shared             share the lock
  -x, -e, --exclusive      have it alone (the default)
  -u, --unlock             release it
  -n, --nb, --nonblocking  do not wait
  -w, --timeout SECONDS    wait at most so long
  -E, --conflict-exit-code NUMBER
                           exit code if the lock was not acquired, instead of 1
  -o, --close              do not hand the locked file on to the command
  -c, --command STRING     run a string with $SHELL
  -F, --no-fork            become the command
      --fcntl              use fcntl(2), without a record
      --verbose            report what is done
  -h, --help               show this text
  -V, --version            show the version
";

/// Pause between two tries to lock a file for which no record can be kept.
const PAUSE: Duration = Duration::from_millis(50);

/// Exit codes of sysexits.h, as flock(1) uses them.
const USAGE: u8 = 64;
const BAD_DATA: u8 = 65;
const NO_INPUT: u8 = 66;
const UNAVAILABLE: u8 = 69;
const SYSTEM: u8 = 71;
const CANNOT_CREATE: u8 = 73;

pub(super) fn is_called(program: Option<&OsString>) -> bool {
    program.is_some_and(|program| Path::new(program).file_name() == Some(OsStr::new("flock")))
}

pub(super) fn run(arguments: &[OsString]) -> anyhow::Result<Exit> {
    let (options, rest) = match Options::parse(arguments) {
        Ok(parsed) => parsed,
        Err(problem) => return Ok(fail(USAGE, &format!("{problem}\nTry 'flock --help' for more information."))),
    };
    if options.help {
        print(HELP)?;
        return Ok(Exit::Done);
    }
    if options.version {
        print(format!("flock from csalock {}\n", env!("CARGO_PKG_VERSION")))?;
        return Ok(Exit::Done);
    }
    match rest {
        [] => Ok(fail(USAGE, "a file, directory or file descriptor is missing")),
        [number] => match number.to_str().and_then(|number| number.parse::<u32>().ok()) {
            Some(number) => options.lock_descriptor(number),
            None => Ok(fail(USAGE, &format!("invalid file descriptor: '{}'", number.display()))),
        },
        [_, dash_c, rest @ ..] if is_dash_c(dash_c) && rest.len() != 1 => {
            Ok(fail(USAGE, &format!("{} requires exactly one command argument", dash_c.display())))
        }
        [file, dash_c, string] if is_dash_c(dash_c) => {
            let shell = environment::variable("SHELL").unwrap_or_else(|| "/bin/sh".into());
            options.run(file, &[shell, "-c".into(), string.clone()])
        }
        [file, command @ ..] => options.run(file, command),
    }
}

fn is_dash_c(word: &OsStr) -> bool {
    word == "-c" || word == "--command"
}

#[derive(Default)]
struct Options {
    shared: bool,
    unlock: bool,
    nonblock: bool,
    timeout: Option<Duration>,
    conflict: Option<u8>,
    close: bool,
    no_fork: bool,
    fcntl: bool,
    verbose: bool,
    help: bool,
    version: bool,
}

impl Options {
    /// Returns the options and the words after them, or what is wrong. Like getopt_long(3), it accepts several letters in
    /// one word, and an unmistakable beginning of a long option.
    fn parse(arguments: &[OsString]) -> std::result::Result<(Options, &[OsString]), String> {
        let (mut options, mut rest) = (Options::default(), arguments);
        while let [word, after @ ..] = rest {
            let bytes = word.as_bytes();
            if !bytes.starts_with(b"-") || bytes == b"-" {
                break;
            }
            rest = after;
            if bytes == b"--" {
                break;
            }
            let unknown = || format!("unrecognized option '{}'", word.display());
            let text = word.to_str().ok_or_else(unknown)?;
            if let Some(long) = text.strip_prefix("--") {
                let (name, attached) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
                let mut letters: Vec<char> =
                    LONG.iter().filter(|(full, _)| full.starts_with(name)).map(|it| it.1).collect();
                letters.dedup();
                let exact = LONG.iter().find(|(full, _)| *full == name).map(|it| it.1);
                let only = if letters.len() == 1 { letters.pop() } else { None };
                let letter = exact.or(only).ok_or_else(unknown)?;
                if attached.is_some() && !"wE".contains(letter) {
                    return Err(unknown());
                }
                options.add(letter, attached, &mut rest).ok_or_else(unknown)??;
                continue;
            }
            let mut letters = &text[1..];
            while let Some(letter) = letters.chars().next() {
                letters = &letters[letter.len_utf8()..];
                let attached = if "wE".contains(letter) { std::mem::take(&mut letters) } else { "" };
                let attached = (!attached.is_empty()).then_some(attached);
                options.add(letter, attached, &mut rest).ok_or_else(unknown)??;
            }
        }
        match options.no_fork && options.close {
            true => Err("the --no-fork and --close options are incompatible".to_string()),
            false => Ok((options, rest)),
        }
    }

    /// `None` if there is no such option.
    fn add(
        &mut self,
        letter: char,
        attached: Option<&str>,
        rest: &mut &[OsString],
    ) -> Option<std::result::Result<(), String>> {
        match letter {
            's' => (self.shared, self.unlock) = (true, false),
            'x' | 'e' => (self.shared, self.unlock) = (false, false),
            'u' => self.unlock = true,
            'n' => self.nonblock = true,
            'o' => self.close = true,
            'F' => self.no_fork = true,
            'C' => self.fcntl = true,
            'v' => self.verbose = true,
            'h' => self.help = true,
            'V' => self.version = true,
            'w' | 'E' => return Some(self.add_value(letter, attached, rest)),
            _ => return None,
        }
        Some(Ok(()))
    }

    fn add_value(
        &mut self,
        letter: char,
        attached: Option<&str>,
        rest: &mut &[OsString],
    ) -> std::result::Result<(), String> {
        let value = match (attached, *rest) {
            (Some(value), _) => value.to_string(),
            (None, [value, after @ ..]) => {
                *rest = after;
                value.to_string_lossy().into_owned()
            }
            (None, []) => return Err(format!("option '-{letter}' requires an argument")),
        };
        if letter == 'E' {
            self.conflict = Some(value.parse().map_err(|_| format!("invalid exit code (0 to 255): '{value}'"))?);
            return Ok(());
        }
        let seconds = value.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let seconds = seconds.ok_or_else(|| format!("invalid timeout: '{value}'"))?;
        self.timeout = Some(seconds);
        // Not even a later -n and an earlier -w make it wait.
        self.nonblock |= seconds.is_zero();
        Ok(())
    }

    fn conflict(&self) -> Exit {
        if self.verbose {
            let how = if self.nonblock { "failed to get lock" } else { "timeout while waiting to get lock" };
            return fail(self.conflict.unwrap_or(1), how);
        }
        Exit::Code(self.conflict.unwrap_or(1))
    }

    fn taking(&self) -> Taking {
        let timeout = Some(Limit(self.timeout.filter(|_| !self.nonblock)));
        let waiting = Waiting {
            nonblock: self.nonblock,
            timeout,
            conflict_exit_code: self.conflict.or(Some(1)),
            ..Waiting::default()
        };
        Taking { shared: self.shared, waiting, ..Taking::default() }
    }

    fn context() -> Context {
        Context::new(Common { quiet: true, ..Common::default() })
    }

    /// Locks the file while the command runs.
    fn run(&self, file: &OsStr, command: &[OsString]) -> anyhow::Result<Exit> {
        let context = Options::context();
        let began = context.host.boottime();
        if self.unlock || self.fcntl {
            return Ok(self.run_without_record(&context, file, command, began));
        }
        let terms = AsFlock { close: self.close, verbose: self.verbose, ..AsFlock::default() };
        // After the dashes all words are the command's.
        let words = [path(file.to_os_string()), "--".into()].into_iter().chain(command.iter().cloned()).collect();
        let options = Run {
            taking: self.taking(),
            flock: true,
            no_fork: self.no_fork,
            words,
            as_flock: Some(terms),
            ..Run::default()
        };
        let ended = run_under_lock(&context, &options);
        let has_run = options.as_flock.as_ref().is_some_and(|terms| terms.has_run.get());
        Ok(match ended {
            // A shell ends a loop of commands on Ctrl-C only if the signal ends this process, too.
            Ok(Exit::Signal(signal)) if has_run && signal != nix::libc::SIGINT => {
                Exit::Code(128_u8.wrapping_add(signal as u8))
            }
            Ok(exit) if has_run || matches!(exit, Exit::Signal(_)) => exit,
            // flock(1) waits there, or is served before those that wait for its caller.
            Ok(Exit::Failed(ErrorKind::Deadlock)) => self.run_without_record(&context, file, command, began),
            Ok(_) => self.conflict(),
            Err(error) if has_run => cannot_execute(&command[0], error.root_cause()),
            Err(error) => {
                if self.verbose {
                    fail(0, &format!("the lock has no record: {error:#}"));
                }
                self.run_without_record(&context, file, command, began)
            }
        })
    }

    /// Takes the kernel's lock alone, within the timeout of a wait that began at this time.
    fn run_without_record(&self, context: &Context, file: &OsStr, command: &[OsString], began: Duration) -> Exit {
        signals::restore_most();
        let path = match name::check(file.as_bytes()).and_then(|()| name::file_of(file.as_bytes(), &context.current)) {
            Ok(path) => path,
            Err(error) => return cannot_open(file, &error),
        };
        let locked = match self.unlock {
            true => open(FileLock::Flock, &path, OFlag::O_RDONLY).map(|_| None),
            false => self.take(context, &path, began).map(Some),
        };
        let flock = match locked {
            Ok(Some(None)) => return self.conflict(),
            Ok(locked) => locked.flatten(),
            Err(error) => return cannot_open(file, &error),
        };
        let command_line = CommandLine::new(command.iter().cloned());
        if self.verbose {
            tell_of_lock(context.host.boottime().saturating_sub(began), Some(&command_line));
        }
        if self.close {
            return match Command::new(&command[0]).args(&command[1..]).status() {
                Ok(status) => status.code().map_or(Exit::Code(128), |code| Exit::Code(code as u8)),
                Err(error) => cannot_execute(&command[0], &error),
            };
        }
        if let Some(Err(error)) = flock.as_ref().map(Flock::to_be_inherited) {
            return cannot_open(file, &error);
        }
        cannot_execute(&command[0], &command_line.replace_process())
    }

    /// `None` if another process has kept the lock until the timeout.
    fn take(&self, context: &Context, path: &Path, began: Duration) -> Result<Option<Flock>> {
        let end = self.timeout.map(|limit| began.saturating_add(limit));
        let kind = if self.fcntl { FileLock::Fcntl } else { FileLock::Flock };
        let mode = if self.shared { Mode::Shared } else { Mode::Exclusive };
        loop {
            if let Flocked::Held(flock) = Flock::take(kind, (path, None), mode, None)? {
                return Ok(Some(flock));
            }
            if self.nonblock || end.is_some_and(|end| end <= context.host.boottime()) {
                return Ok(None);
            }
            context.host.sleep(PAUSE);
        }
    }

    fn lock_descriptor(&self, _number: u32) -> anyhow::Result<Exit> {
        let _ = self.taking();
        Ok(fail(UNAVAILABLE, "descriptors come next"))
    }
}

/// Without a command, for a descriptor.
pub(super) fn tell_of_lock(waited: Duration, command: Option<&CommandLine>) {
    let (seconds, micros) = (waited.as_secs(), waited.subsec_micros());
    let executing = command.map(|command| format!("flock: executing {}\n", command.program().display()));
    let executing = executing.unwrap_or_default();
    let _ = print(format!("flock: getting lock took {seconds}.{micros:06} seconds\n{executing}"));
}

/// The reason of the system is at the end of a message.
fn reason(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    let text = text.split("; ").next().unwrap_or_default();
    text.rsplit(": ").next().unwrap_or_default().to_string()
}

fn cannot_open(file: &OsStr, error: &Error) -> Exit {
    let code = match error.kind() {
        ErrorKind::System => SYSTEM,
        ErrorKind::CannotCreate | ErrorKind::InputOutput => CANNOT_CREATE,
        _ if error.message().contains("lock ") => BAD_DATA,
        _ => NO_INPUT,
    };
    fail(code, &format!("cannot open lock file {}: {}", file.display(), reason(&error.message())))
}

fn cannot_execute(program: &OsStr, error: &dyn std::fmt::Display) -> Exit {
    fail(UNAVAILABLE, &format!("failed to execute {}: {}", program.display(), reason(error)))
}

fn fail(code: u8, text: &str) -> Exit {
    let _ = writeln!(std::io::stderr(), "flock: {text}");
    Exit::Code(code)
}
