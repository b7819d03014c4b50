//! The command line as clap types. They say what a user may type; `command` decides what it means.
//!
//! `--help`, the man pages and the completions are generated from these types.

mod administration;
mod locks;
mod options;
mod run;
pub mod run_without_clap;

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

pub use administration::{Completions, Doctor, Gc, History, Man, Metrics, Overdue, Serve, Shell, Status};
pub use locks::{Claim, Del, Get, Lock, Lookup, Put, Renew, Unclaim, Unlock, Wait, Writing};
use options::OUTPUT;
pub use options::{Color, Common, Taking, Waiting};
pub use run::{Busy, OnLost, Period, Recurrence, Run};

/// Locks for shell scripts that show who holds them, since when and why
///
/// A lock has a name, or belongs to a file. One script at a time holds it; the others wait in order of arrival. It ends
/// when its holder releases it or dies, so a crash leaves nothing to clean up. A refused caller is told who holds it.
#[derive(Debug, Parser)]
#[command(
    name = "csalock",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    args_override_self = true,
    override_usage = "csalock [OPTION]... COMMAND [ARGUMENT]...",
    after_help = "Start with `csalock run NAME COMMAND`. `csalock man` shows the manual. Exit codes: 75 busy, 81 not held, \
                  82 held by another.",
    mut_args(|argument| match argument.get_id() == "json" {
        true => argument.help("Print the result as one JSON document; not for run"),
        false => argument,
    })
)]
pub struct Cli {
    /// Options before the command.
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum Command {
    /// Acquire a lock, run a command, release the lock
    #[command(alias = "run-with-lock")]
    Run(Run),
    /// Acquire locks for the calling script
    Lock(Lock),
    /// Release locks
    Unlock(Unlock),
    /// Wait until locks are free, and leave them free
    Wait(Wait),
    /// Show holders and waiters: since when, until when and why
    #[command(visible_alias = "list")]
    Status(Status),
    /// Show past holders: from when to when, and how it ended
    History(History),
    /// List jobs that have not succeeded in time
    Overdue(Overdue),
    /// Print the state of the locks for Prometheus
    Metrics(Metrics),
    /// Restart the time limit of held locks
    Renew(Renew),
    /// Print the value that a lock guards
    Get(Get),
    /// Write the value that a lock guards
    Put(Put),
    /// Delete the value that a lock guards
    Del(Del),
    /// Claim names permanently, all or none, and print the id
    Claim(Claim),
    /// Give up claims
    Unclaim(Unclaim),
    /// Print the id that claims a name, or the names of an id
    Lookup(Lookup),
    /// Remove leftovers of dead holders and waiters
    Gc(Gc),
    /// Check a store, and say how to repair what is wrong
    Doctor(Doctor),
    /// Serve a directory of locks to one client of another host
    Serve(Serve),
    /// Show a page of the manual
    Man(Man),
    /// Print the completions for a shell
    Completions(Completions),
}

impl Cli {
    /// All commands and the texts of the help, as clap knows them.
    pub fn definition() -> clap::Command {
        let mut root = Cli::command().disable_help_subcommand(true);
        root.build();
        let general = |argument: clap::Arg| match argument.get_id().as_str() {
            "help" => argument.help("Print help; -h is shorter").help_heading(OUTPUT),
            "version" => argument.help_heading(OUTPUT),
            _ => argument,
        };
        root.mut_args(general).mut_subcommands(|command| command.mut_args(general))
    }

    /// The first of the arguments is the program's name. The help is an error too, as in clap.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
        let mut cli = Cli::try_parse_from(arguments)?;
        let common = cli.command.common();
        *common = std::mem::take(common).after(std::mem::take(&mut cli.common));
        // clap compares options only if both stand before the command, or both after it.
        if common.quiet && common.verbose {
            return Err(conflict("--verbose", "--quiet"));
        }
        if let Command::Run(run) = &mut cli.command {
            run.expand().map_err(|option| conflict("--busy skip", option))?;
        }
        Ok(cli)
    }
}

fn conflict(option: &str, other: &str) -> clap::Error {
    let mut error = clap::Error::new(ErrorKind::ArgumentConflict);
    error.insert(ContextKind::InvalidArg, ContextValue::String(option.to_string()));
    error.insert(ContextKind::PriorArg, ContextValue::String(other.to_string()));
    error
}

impl Command {
    fn common(&mut self) -> &mut Common {
        match self {
            Command::Run(asked) => &mut asked.common,
            Command::Lock(asked) => &mut asked.common,
            Command::Unlock(asked) => &mut asked.common,
            Command::Wait(asked) => &mut asked.common,
            Command::Status(asked) => &mut asked.common,
            Command::History(asked) => &mut asked.common,
            Command::Overdue(asked) => &mut asked.common,
            Command::Metrics(asked) => &mut asked.common,
            Command::Renew(asked) => &mut asked.common,
            Command::Get(asked) => &mut asked.common,
            Command::Put(asked) => &mut asked.writing.common,
            Command::Del(asked) => &mut asked.writing.common,
            Command::Claim(asked) => &mut asked.common,
            Command::Unclaim(asked) => &mut asked.common,
            Command::Lookup(asked) => &mut asked.common,
            Command::Gc(asked) => &mut asked.common,
            Command::Doctor(asked) => &mut asked.common,
            Command::Serve(asked) => &mut asked.common,
            Command::Man(asked) => &mut asked.common,
            Command::Completions(asked) => &mut asked.common,
        }
    }
}
