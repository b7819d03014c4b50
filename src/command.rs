//! The way from the arguments to an exit code: one file per command or family of commands, and what the commands share.
//!
//! A refusal or an error is one line on stderr or, with `--json`, one document on stdout.

mod acquire;
mod claim;
mod context;
mod csa;
mod descriptor;
mod doctor;
mod end_holder;
mod flock;
mod flock_compat;
mod gc;
mod help;
mod history;
mod lock;
mod metrics;
mod overdue;
mod run;
#[cfg(feature = "ssh")]
mod serve;
mod status;
mod unlock;
mod value;
mod wait_progress;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::slice::from_ref;
use std::time::Duration;

use self::context::{Context, eprint_line, json_line, print_before};
use crate::cli;
use crate::cli::{Cli, Command, Waiting};
use crate::exit::Exit;
use crate::report::RefusalReport;
use ::lock::error::{Error, ErrorKind};
use host::signals;

/// Runs the program: reads the arguments, of which the first is the program's name, executes the command, prints the
/// result.
pub fn run(arguments: Vec<OsString>) -> Exit {
    let program = arguments.first().and_then(|program| Path::new(program).file_name()?.to_str());
    match program {
        Some(function @ ("csaLock" | "csaUnlock")) => return end(csa::run(function, arguments[1..].to_vec())),
        Some("flock") => return end(flock::run(&arguments)),
        _ => {}
    }
    let cli = match cli::run_without_clap::read(&arguments).map_or_else(|| Cli::read(arguments.clone()), Ok) {
        Ok(cli) => cli,
        Err(error) => return end(help::tell(error, &arguments).or_else(end_with_reader)),
    };
    let context = Context::new(cli.common);
    let done = execute(&context, &cli.command);
    end(done.or_else(|error| Ok(report_failure(&context, &cli.command, &error))))
}

fn execute(context: &Context, command: &Command) -> anyhow::Result<Exit> {
    match command {
        Command::Run(options) => run::run(context, options),
        Command::Lock(options) => lock::lock(context, options),
        Command::Unlock(options) => unlock::run(context, options),
        Command::Wait(options) => lock::wait(context, options).or_else(end_with_reader),
        Command::Status(options) => status::run(context, options).or_else(end_with_reader),
        Command::History(options) => history::run(context, options).or_else(end_with_reader),
        Command::Overdue(options) => overdue::run(context, options).or_else(end_with_reader),
        Command::Metrics(options) => metrics::run(context, options).or_else(end_with_reader),
        Command::Renew(options) => lock::renew(context, options),
        Command::Get(options) => value::get(context, options).or_else(end_with_reader),
        Command::Put(options) => value::put(context, options),
        Command::Del(options) => value::del(context, options),
        Command::Claim(options) => claim::claim(context, options),
        Command::Unclaim(options) => claim::unclaim(context, options),
        Command::Lookup(options) => claim::lookup(context, options).or_else(end_with_reader),
        Command::Gc(options) => gc::run(context, options),
        Command::Doctor(options) => doctor::run(context, options).or_else(end_with_reader),
        #[cfg(feature = "ssh")]
        Command::Serve(options) => serve::run(context, options),
        #[cfg(not(feature = "ssh"))]
        Command::Serve(_) => {
            Err(Error::new(ErrorKind::Unavailable, "serve: this csalock was built without ssh", "").into())
        }
        Command::Man(options) => help::man(options).or_else(end_with_reader),
        Command::Completions(options) => help::completions(options).or_else(end_with_reader),
    }
}

fn report_failure(context: &Context, command: &Command, error: &anyhow::Error) -> Exit {
    // A store that was locked until the timeout counts as a busy lock.
    let (names, waiting) = names_and_waiting(command);
    let exit = waiting.map_or_else(|| kind_of(error).into(), |waiting| waiting.exit(kind_of(error)));
    let has_documents =
        !matches!(command, Command::Run(_) | Command::Serve(_) | Command::Man(_) | Command::Completions(_));
    if !(has_documents && context.common.json) || print_document(context, names, error, exit).is_err() {
        eprint_line(&format!("{error:#}"));
    }
    exit
}

fn print_document(context: &Context, names: &[OsString], error: &anyhow::Error, exit: Exit) -> anyhow::Result<()> {
    let known = error.chain().find_map(|cause| cause.downcast_ref::<Error>());
    let hint = known.map(Error::hint).unwrap_or_default();
    let text = format!("{error:#}");
    let message = text.strip_suffix(hint).and_then(|text| text.strip_suffix("; ")).unwrap_or(&text);
    let mut refusal = RefusalReport::new(kind_of(error), message, hint);
    if let [name] = names {
        refusal = refusal.about(name.as_bytes());
    }
    // If stdout is what failed, it has no reader or no space.
    print_before(context, Duration::ZERO, &json_line(&refusal.json(exit, None)))
}

/// The names that the command is about, and its options for a wait.
fn names_and_waiting(command: &Command) -> (&[OsString], Option<&Waiting>) {
    match command {
        Command::Run(options) => (&[], Some(&options.taking.waiting)),
        Command::Lock(options) => (&options.names, Some(&options.taking.waiting)),
        Command::Unlock(options) => (&options.names, None),
        Command::Wait(options) => (&options.names, Some(&options.waiting)),
        Command::Status(options) => (&options.names, None),
        Command::History(options) => (&options.names, None),
        Command::Overdue(options) => (&options.names, None),
        Command::Metrics(options) => (&options.names, None),
        Command::Renew(options) => (&options.names, None),
        Command::Get(options) => (from_ref(&options.name), Some(&options.taking.waiting)),
        Command::Put(options) => (from_ref(&options.name), Some(&options.writing.waiting)),
        Command::Del(options) => (from_ref(&options.name), Some(&options.writing.waiting)),
        Command::Claim(options) => (&options.names, Some(&options.waiting)),
        Command::Unclaim(options) => (&options.names, None),
        Command::Gc(options) => (&options.names, None),
        _ => (&[], None),
    }
}

/// Reports a failure, and ends the process by the signal that ended the command.
fn end(done: anyhow::Result<Exit>) -> Exit {
    let exit = done.unwrap_or_else(|error| {
        eprint_line(&format!("{error:#}"));
        kind_of(&error).into()
    });
    if let Exit::Signal(signal) = exit {
        signals::reraise(signal);
    }
    exit
}

/// Exits like any other program if the reader of a listing stops early (`csalock status | head -1`).
fn end_with_reader(error: anyhow::Error) -> anyhow::Result<Exit> {
    let is_broken_pipe = |cause: &std::io::Error| cause.kind() == std::io::ErrorKind::BrokenPipe;
    match error.root_cause().downcast_ref().is_some_and(is_broken_pipe) {
        true => Ok(Exit::Signal(nix::libc::SIGPIPE)),
        false => Err(error),
    }
}

/// The first cause in the chain that has a kind decides.
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
