//! Arguments of the commands that show, check and clean a store.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::options::{Common, whole};
use crate::duration::parse_duration;

/// Show holders and waiters: since when, until when and why
///
/// Changes nothing. Without a name, it shows all locks of the store. With names, it exits with 0 if all of them are held,
/// and with 81 if one of them is free.
#[derive(Debug, Args)]
pub struct Status {
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
    /// Print the names only, one per line
    #[arg(short = '1', long, conflicts_with = "json")]
    pub names_only: bool,
    /// Update the display, as top(1) does, until q or Ctrl-C
    #[arg(short = 'W', long, conflicts_with_all = ["json", "names_only"])]
    pub watch: bool,
    /// Time between two updates of --watch
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1s", requires = "watch")]
    pub interval: Duration,
    /// Name, path, or pattern with * ? [ ]; without any, all locks of the store
    #[arg(value_name = "NAME")]
    pub names: Vec<OsString>,
}

/// Show past holders: from when to when, and how it ended
///
/// Prints one row for each grant, in the order in which they ended; locks that are held now come last. A store keeps 1 MiB
/// of history, for 30 days; CSALOCK_HISTORY_SIZE and CSALOCK_HISTORY_AGE change that, and CSALOCK_HISTORY=0 keeps none.
/// Locks beside their files have no history.
#[derive(Debug, Args)]
pub struct History {
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
    /// Show only grants that ended within this time: 12h, 7d
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub since: Option<Duration>,
    /// Show the last N grants; the default is 50, or all with --json
    #[arg(short = 'n', long, value_name = "N", value_parser = whole(1, u32::MAX))]
    pub lines: Option<u32>,
    /// Name, or pattern with * ? [ ]; without any, all locks of the store
    #[arg(value_name = "NAME")]
    pub names: Vec<OsString>,
}

/// Remove leftovers of dead holders and waiters
///
/// Correctness does not need this command, because every acquisition removes the dead entries of its lock. It cleans up a
/// store with locks that are no longer in use.
#[derive(Debug, Args)]
pub struct Gc {
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
    /// Only print what would be removed
    #[arg(long)]
    pub dry_run: bool,
    /// Name, path, or pattern with * ? [ ]; without any, the whole store
    #[arg(value_name = "NAME")]
    pub names: Vec<OsString>,
}

/// Check a store, and say how to repair what is wrong
///
/// Checks the store, its file system and its permissions, and tries a lock under a name of its own. It leaves nothing
/// behind. Exits with 0 if nothing is bad, and with 69 if something is or the store cannot be reached.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
    /// Check the store of this lock; for a path without a chosen store, the store beside that file
    #[arg(value_name = "NAME")]
    pub name: Option<OsString>,
}
