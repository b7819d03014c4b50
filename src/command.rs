//! The way from the arguments to an exit code: one file per command, and what the commands share.

mod acquire;
mod audit;
mod carried;
mod claim;
mod completions;
mod context;
mod csa;
mod doctor;
mod failure;
mod fence;
mod gc;
mod get;
mod history;
mod lock;
mod lookup;
mod man;
mod metrics;
mod overdue;
mod put;
mod renew;
mod run;
mod serve;
mod status;
mod unlock;
mod usage;
mod wait_progress;

use std::ffi::OsString;

use crate::cli::{self, Cli, Command, Waiting};
use crate::error::{Error, ErrorKind};
use crate::exit::Exit;
use crate::report::SettingNames;
use crate::signals;
use context::Context;

/// Runs the program: reads the arguments, of which the first is the program's name, executes the command, prints the
/// result.
pub fn run(arguments: Vec<OsString>) -> Exit {
    if let Some(csa) = csa::called_as(arguments.first()) {
        return end(csa::run(&Context::of_this_process(), csa, arguments[1..].to_vec()));
    }
    let cli = match cli::plain::read(&arguments).map_or_else(|| Cli::read(arguments.clone()), Ok) {
        Ok(cli) => cli,
        Err(error) => return end(usage::tell(error, &arguments).or_else(end_with_reader)),
    };
    let context = Context::of_this_process();
    let done = execute(&context, &cli.command, &arguments);
    end(done.or_else(|error| Ok(failure::tell(&context, &cli.command, &error))))
}

fn execute(context: &Context, command: &Command, arguments: &[OsString]) -> anyhow::Result<Exit> {
    match command {
        Command::Run(asked) => run::run(context, asked, arguments),
        Command::Lock(asked) => lock::run(context, asked),
        Command::Unlock(asked) => unlock::run(context, asked, &SettingNames::OPTIONS),
        Command::Status(asked) => status::run(context, asked).or_else(end_with_reader),
        Command::History(asked) => history::run(context, asked).or_else(end_with_reader),
        Command::Overdue(asked) => overdue::run(context, asked).or_else(end_with_reader),
        Command::Audit(asked) => audit::run(context, asked).or_else(end_with_reader),
        Command::Metrics(asked) => metrics::run(context, asked).or_else(end_with_reader),
        Command::Renew(asked) => renew::run(context, asked),
        Command::Get(asked) => get::run(context, asked).or_else(end_with_reader),
        Command::Put(asked) => put::put(context, asked),
        Command::Del(asked) => put::del(context, asked),
        Command::Fence(asked) => fence::run(context, asked).or_else(end_with_reader),
        Command::Claim(asked) => claim::claim(context, asked),
        Command::Unclaim(asked) => claim::unclaim(context, asked),
        Command::Lookup(asked) => lookup::run(context, asked).or_else(end_with_reader),
        Command::Gc(asked) => gc::run(context, asked),
        Command::Doctor(asked) => doctor::run(context, asked).or_else(end_with_reader),
        Command::Serve(asked) => serve::run(context, asked),
        Command::Man(asked) => man::run(asked).or_else(end_with_reader),
        Command::Completions(asked) => completions::run(asked).or_else(end_with_reader),
    }
}

/// Returns how long the command waits for its locks and how it reacts to a timeout, if it acquires any.
fn waiting(command: &Command) -> Option<&Waiting> {
    match command {
        Command::Lock(asked) => Some(&asked.taking.waiting),
        Command::Run(asked) => Some(&asked.taking.waiting),
        Command::Get(asked) => Some(&asked.taking.waiting),
        Command::Put(asked) => Some(&asked.writing.waiting),
        Command::Del(asked) => Some(&asked.writing.waiting),
        Command::Claim(asked) => Some(&asked.waiting),
        _ => None,
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
        context::eprint_line(&format!("{error:#}"));
        exit_of(&error)
    })
}

/// Exits like any other program if the reader of a listing stops early (`csalock status | head -1`).
fn end_with_reader(error: anyhow::Error) -> anyhow::Result<Exit> {
    let is_broken_pipe = |cause: &std::io::Error| cause.kind() == std::io::ErrorKind::BrokenPipe;
    match error.root_cause().downcast_ref().is_some_and(is_broken_pipe) {
        true => Ok(Exit::Signal(nix::sys::signal::Signal::SIGPIPE)),
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
