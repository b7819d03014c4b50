//! The way from the arguments to an exit code: one file per command or family of commands, and what the commands share.
//!
//! A refusal or an error is one line on stderr or, with `--json`, one document on stdout.

mod acquire;
mod claim;
mod context;
mod csa;
mod doctor;
mod end_holder;
mod gc;
mod history;
mod lock;
mod manual;
mod metrics;
mod overdue;
mod run;
mod serve;
mod status;
mod unlock;
mod usage;
mod value;
mod wait_progress;

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use self::context::{Context, eprint_line, json_line, print_before, print_json};
use crate::cli::{Cli, Command, Common, Waiting};
use crate::error::{Error, ErrorKind};
use crate::exit::Exit;
use crate::report::{RefusalReport, Reporter, SettingNames};
use crate::{cli, signals};

/// Runs the program: reads the arguments, of which the first is the program's name, executes the command, prints the
/// result.
pub fn run(arguments: Vec<OsString>) -> Exit {
    if let Some(csa) = csa::called_as(arguments.first()) {
        return end(csa::run(&Context::of_this_process(), csa, arguments[1..].to_vec()));
    }
    let cli = match cli::run_without_clap::read(&arguments).map_or_else(|| Cli::read(arguments.clone()), Ok) {
        Ok(cli) => cli,
        Err(error) => return end(usage::tell(error, &arguments).or_else(end_with_reader)),
    };
    let context = Context::of_this_process();
    let done = execute(&context, &cli.command);
    end(done.or_else(|error| Ok(report_failure(&context, &cli.command, &error))))
}

fn execute(context: &Context, command: &Command) -> anyhow::Result<Exit> {
    match command {
        Command::Run(asked) => run::run(context, asked),
        Command::Lock(asked) => lock::lock(context, asked),
        Command::Unlock(asked) => unlock::run(context, asked, &SettingNames::OPTIONS),
        Command::Wait(asked) => lock::wait(context, asked).or_else(end_with_reader),
        Command::Status(asked) => status::run(context, asked).or_else(end_with_reader),
        Command::History(asked) => history::run(context, asked).or_else(end_with_reader),
        Command::Overdue(asked) => overdue::run(context, asked).or_else(end_with_reader),
        Command::Metrics(asked) => metrics::run(context, asked).or_else(end_with_reader),
        Command::Renew(asked) => lock::renew(context, asked),
        Command::Get(asked) => value::get(context, asked).or_else(end_with_reader),
        Command::Put(asked) => value::put(context, asked),
        Command::Del(asked) => value::del(context, asked),
        Command::Claim(asked) => claim::claim(context, asked),
        Command::Unclaim(asked) => claim::unclaim(context, asked),
        Command::Lookup(asked) => claim::lookup(context, asked).or_else(end_with_reader),
        Command::Gc(asked) => gc::run(context, asked),
        Command::Doctor(asked) => doctor::run(context, asked).or_else(end_with_reader),
        Command::Serve(asked) => serve::run(context, asked),
        Command::Man(asked) => manual::man(asked).or_else(end_with_reader),
        Command::Completions(asked) => manual::completions(asked).or_else(end_with_reader),
    }
}

fn report_failure(context: &Context, command: &Command, error: &anyhow::Error) -> Exit {
    let exit = waiting(command).map_or_else(|| exit_of(error), |waiting| waiting.exit_of_failure(error));
    if !common(command).is_some_and(|common| common.json) || print_document(context, command, error, exit).is_err() {
        eprint_line(&format!("{error:#}"));
    }
    exit
}

fn print_document(context: &Context, command: &Command, error: &anyhow::Error, exit: Exit) -> anyhow::Result<()> {
    let text = format!("{error:#}");
    let refusal = match error.chain().find_map(|cause| cause.downcast_ref::<Error>()) {
        Some(known) => {
            let hint = known.hint();
            let message = text.strip_suffix(hint).and_then(|text| text.strip_suffix("; ")).unwrap_or(&text);
            RefusalReport::new(known.kind(), message, hint)
        }
        None => RefusalReport::new(kind_of(error), text, ""),
    };
    let refusal = match name(command) {
        Some(name) => refusal.about(name.as_bytes()),
        None => refusal,
    };
    // If stdout is what failed, it has no reader or no space.
    print_before(context, Duration::ZERO, &json_line(&refusal.json(exit, None))?)
}

fn waiting(command: &Command) -> Option<&Waiting> {
    match command {
        Command::Lock(asked) => Some(&asked.taking.waiting),
        Command::Run(asked) => Some(&asked.taking.waiting),
        Command::Get(asked) => Some(&asked.taking.waiting),
        Command::Put(asked) => Some(&asked.writing.waiting),
        Command::Del(asked) => Some(&asked.writing.waiting),
        Command::Claim(asked) => Some(&asked.waiting),
        Command::Wait(asked) => Some(&asked.waiting),
        _ => None,
    }
}

fn common(command: &Command) -> Option<&Common> {
    Some(match command {
        Command::Run(_) | Command::Serve(_) | Command::Man(_) | Command::Completions(_) => return None,
        Command::Lock(asked) => &asked.common,
        Command::Unlock(asked) => &asked.common,
        Command::Wait(asked) => &asked.common,
        Command::Status(asked) => &asked.common,
        Command::History(asked) => &asked.common,
        Command::Overdue(asked) => &asked.common,
        Command::Metrics(asked) => &asked.common,
        Command::Renew(asked) => &asked.common,
        Command::Get(asked) => &asked.common,
        Command::Put(asked) => &asked.writing.common,
        Command::Del(asked) => &asked.writing.common,
        Command::Claim(asked) => &asked.common,
        Command::Unclaim(asked) => &asked.common,
        Command::Lookup(asked) => &asked.common,
        Command::Gc(asked) => &asked.common,
        Command::Doctor(asked) => &asked.common,
    })
}

/// Returns the name that a command is about, if it is exactly one.
fn name(command: &Command) -> Option<&OsStr> {
    let names: &[OsString] = match command {
        Command::Lock(asked) => &asked.names,
        Command::Unlock(asked) => &asked.names,
        Command::Wait(asked) => &asked.names,
        Command::Status(asked) => &asked.names,
        Command::History(asked) => &asked.names,
        Command::Overdue(asked) => &asked.names,
        Command::Metrics(asked) => &asked.names,
        Command::Renew(asked) => &asked.names,
        Command::Get(asked) => std::slice::from_ref(&asked.name),
        Command::Put(asked) => std::slice::from_ref(&asked.name),
        Command::Del(asked) => std::slice::from_ref(&asked.name),
        Command::Claim(asked) => &asked.names,
        Command::Unclaim(asked) => &asked.names,
        Command::Gc(asked) => &asked.names,
        Command::Run(_)
        | Command::Lookup(_)
        | Command::Doctor(_)
        | Command::Serve(_)
        | Command::Man(_)
        | Command::Completions(_) => &[],
    };
    match names {
        [name] => Some(name),
        _ => None,
    }
}

impl Common {
    fn refuse(
        &self,
        refusal: &RefusalReport,
        exit: impl Into<Exit>,
        reporter: Option<&Reporter<'_>>,
    ) -> anyhow::Result<Exit> {
        let exit = exit.into();
        match self.json {
            true => print_json(&refusal.json(exit, reporter))?,
            false => self.note(&refusal.to_string()),
        }
        Ok(exit)
    }

    /// Prints a message for people. With `--json` the document says the same.
    fn note_unless_json(&self, message: &impl Display) {
        if !self.json {
            self.note(&message.to_string());
        }
    }
}

/// Reports a failure, and ends the process by the signal that ended the command.
fn end(done: anyhow::Result<Exit>) -> Exit {
    let exit = exit_after(done);
    if let Exit::Signal(signal) = exit {
        signals::reraise(signal);
    }
    exit
}

/// Returns the exit code of a command, and reports its failure.
fn exit_after(done: anyhow::Result<Exit>) -> Exit {
    done.unwrap_or_else(|error| {
        eprint_line(&format!("{error:#}"));
        exit_of(&error)
    })
}

/// Exits like any other program if the reader of a listing stops early (`csalock status | head -1`).
fn end_with_reader(error: anyhow::Error) -> anyhow::Result<Exit> {
    let is_broken_pipe = |cause: &std::io::Error| cause.kind() == std::io::ErrorKind::BrokenPipe;
    match error.root_cause().downcast_ref().is_some_and(is_broken_pipe) {
        true => Ok(Exit::Signal(nix::libc::SIGPIPE)),
        false => Err(error),
    }
}

fn exit_of(error: &anyhow::Error) -> Exit {
    kind_of(error).into()
}

/// Returns the kind of a failure, taken from the first cause in the chain that has one.
fn kind_of(error: &anyhow::Error) -> ErrorKind {
    for cause in error.chain() {
        if let Some(error) = cause.downcast_ref::<Error>() {
            return error.kind();
        }
        if cause.downcast_ref::<std::io::Error>().is_some() {
            return ErrorKind::InputOutput;
        }
    }
    ErrorKind::Bug
}
