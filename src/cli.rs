//! The command line as clap types. They say what a user may type; `command` decides what it means.
//!
//! `--help`, the man pages and the completions are generated from these types.

mod claims;
mod locks;
mod options;
pub mod plain;
mod reports;
mod values;

use clap::{Parser, Subcommand};

pub use claims::{Claim, Lookup, Unclaim};
pub use locks::{Lock, OnLost, Renew, RunWithLock, Unlock};
pub use options::{Common, Taking, Waiting};
pub use reports::{Doctor, Gc, History, Status};
pub use values::{Del, Get, Put, Writing};

/// Locks for shell scripts: who holds it, since when and why
///
/// A lock has a name, or belongs to a file. One script at a time holds it; the others wait in order of arrival. It ends
/// when its holder releases it or dies, so a crash leaves nothing to clean up. A refused caller is told who holds it.
#[derive(Debug, Parser)]
#[command(
    name = "csalock",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    subcommand_required = true,
    arg_required_else_help = false,
    after_help = "Start with `csalock run-with-lock NAME COMMAND`. Exit codes: 75 busy, 81 not held, 82 held by \
                  another; csalock(1) has all of them."
)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum Command {
    /// Acquire locks for the calling script
    Lock(Lock),
    /// Release locks
    Unlock(Unlock),
    /// Acquire a lock, run a command, release the lock
    #[command(visible_alias = "run")]
    RunWithLock(RunWithLock),
    /// Show holders and waiters: since when, until when and why
    #[command(visible_alias = "list")]
    Status(Status),
    /// Show past holders: from when to when, and how it ended
    History(History),
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
}
