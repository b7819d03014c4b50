//! The command line as clap types. They say what a user may type; `command` decides what it means.
//!
//! `--help`, the man pages and the completions are generated from these types.

mod as_flock;
mod commands;
mod options;
mod run;
pub mod run_without_clap;

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

pub use as_flock::AsFlock;
pub use commands::{
    Claim, Completions, Del, Doctor, Gc, Get, History, Lock, Lookup, Man, Metrics, Overdue, Put, Renew, Serve, Shell,
    Status, Unclaim, Unlock, Wait, Writing,
};
use options::OUTPUT;
pub use options::{Color, Common, Taking, Waiting};
use run::OFTEN;
pub use run::{Busy, OnLost, Period, Recurrence, Run};

/// Ids of the options of every command, in the order of the help.
const GENERAL: [&str; 7] = ["store", "json", "quiet", "verbose", "color", "help", "version"];

/// A place in the help after the options of any command.
const BEHIND_ALL: usize = 100;

const JSON_OF_MOST: &str = "Print the result as one JSON document; not for run";

/// Locks for shell scripts that show who holds them, since when and why
///
/// A lock has a name, or belongs to a file. One script at a time holds it; the others wait in order of arrival. It ends
/// when its holder releases it or dies, so a crash leaves nothing to clean up. A refused caller is told who holds it.
#[derive(Debug, Parser)]
#[command(
    name = "csalock",
    version = env!("CSALOCK_VERSION"),
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    args_override_self = true,
    override_usage = "csalock [OPTION]... COMMAND [ARGUMENT]...",
    after_help = "Start with `csalock run NAME COMMAND`. `csalock man` shows the manual. Exit codes: 75 busy, 81 not held, \
                  82 held by another."
)]
pub struct Cli {
    #[command(flatten)]
    pub common: Common,
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
        let root = general_last(root.mut_arg("json", |json| json.help(JSON_OF_MOST)));
        root.mut_subcommands(|command| {
            let useless = without_effect(command.get_name());
            let is_run = command.get_name() == "run";
            general_last(command).mut_args(|argument| {
                let id = argument.get_id().as_str();
                let (is_useless, is_rare) =
                    (useless.contains(&id), is_run && !OFTEN.split(' ').any(|often| often == id));
                argument.hide(is_useless).hide_short_help(is_rare)
            })
        })
    }

    /// The first of the arguments is the program's name. The help is an error too, as in clap.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
        let mut cli = Cli::try_parse_from(arguments)?;
        // clap compares options only if both stand before the command, or both after it.
        if cli.common.quiet && cli.common.verbose {
            return Err(conflict("--verbose", "--quiet"));
        }
        if let Command::Status(Status { names_only, watch, .. }) = &cli.command
            && cli.common.json
            && (*names_only || *watch)
        {
            return Err(conflict("--json", if *watch { "--watch" } else { "--names-only" }));
        }
        if let Command::Run(run) = &mut cli.command {
            run.expand().map_err(|option| conflict("--busy skip", option))?;
        }
        Ok(cli)
    }
}

/// Moves the options of every command, and their headings, to the end of the help.
fn general_last(command: clap::Command) -> clap::Command {
    GENERAL.into_iter().enumerate().fold(command, |command, (at, id)| {
        if command.get_arguments().all(|argument| argument.get_id() != id) {
            return command;
        }
        // clap appends an argument that changes.
        command.mut_arg(id, |argument| match id {
            "help" => argument.help("Print help; -h is shorter").help_heading(OUTPUT),
            "version" => argument.help("Print version; with -v, stores and formats too").help_heading(OUTPUT),
            _ => argument.display_order(BEHIND_ALL + at),
        })
    })
}

/// Options that this command accepts like others, but does not show.
fn without_effect(command: &str) -> &'static [&'static str] {
    match command {
        "run" | "metrics" => &["json"],
        "man" | "completions" => &["store", "json"],
        "serve" => &["store", "json", "quiet", "verbose"],
        "wait" => &["fail_on_stale", "label", "no_command"],
        _ => &[],
    }
}

fn conflict(option: &str, other: &str) -> clap::Error {
    let mut error = clap::Error::new(ErrorKind::ArgumentConflict);
    error.insert(ContextKind::InvalidArg, ContextValue::String(option.to_string()));
    error.insert(ContextKind::PriorArg, ContextValue::String(other.to_string()));
    error
}
