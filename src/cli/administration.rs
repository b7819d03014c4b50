//! Arguments of the commands for administrators: they show the locks, their past and the jobs, care for the store, and
//! print the manual.

use std::ffi::OsString;

use clap::{Args, ValueEnum};

use super::options::whole;
use crate::report::Moment;

/// Show holders and waiters: since when, until when and why
///
/// Changes nothing. Without a name, it shows all locks of the store. Unless a store is named, the locks of files are not
/// among them but beside the files: `csalock status FILE` shows one, and `csalock status DIRECTORY/` those of the files in
/// a directory. With one NAME, a terminal gets all about that lock; `-v` prints that into a pipe too. With names, it exits
/// with 0 if all of them are held, and with 81 if one of them is free.
#[derive(Debug, Args)]
#[command(override_usage = "csalock status [OPTION]... [NAME]...")]
pub struct Status {
    /// Print the names only, one per line
    #[arg(short = '1', long, conflicts_with = "json")]
    pub names_only: bool,
    /// Update the display each second until Ctrl-C
    #[arg(short = 'W', long, conflicts_with_all = ["json", "names_only"])]
    pub watch: bool,
    /// Show the stores of this user, of root and of CSALOCK_STORES (a list separated by spaces), and for root those of all
    /// users; with NAME, only locks of this name
    #[arg(long, conflicts_with_all = ["watch", "names_only"])]
    pub all_stores: bool,
    /// Show times in UTC instead of the local zone
    #[arg(long)]
    pub utc: bool,
    /// Name, path, pattern with * ? [ ], or DIRECTORY/ for its files; without any, all locks of the store
    #[arg(value_name = "NAME")]
    pub names: Vec<OsString>,
}

/// Show past holders: from when to when, and how it ended
///
/// Prints one row for each grant, in the order in which they ended; locks that are held now come last. A store keeps 1 MiB
/// of history, for 30 days; CSALOCK_HISTORY_SIZE and CSALOCK_HISTORY_AGE change that, and CSALOCK_HISTORY=0 keeps none.
/// Locks beside their files have no history.
#[derive(Debug, Args)]
#[command(override_usage = "csalock history [OPTION]... [NAME]...")]
pub struct History {
    /// Show only grants that ended after this: 12h, 02:13, yesterday, 2026-11-21, "2026-11-21 02:13"
    #[arg(long, value_name = "TIME", value_parser = Moment::parse)]
    pub since: Option<Moment>,
    /// Show only grants that began before the end of this minute or day; formats as for --since
    #[arg(long, value_name = "TIME", value_parser = Moment::parse)]
    pub until: Option<Moment>,
    /// Show the grants that stood at this time; formats as for --since, such as 02:13
    #[arg(long, value_name = "TIME", value_parser = Moment::parse, conflicts_with_all = ["since", "until"])]
    pub at: Option<Moment>,
    /// Show and read times in UTC instead of the local zone
    #[arg(long)]
    pub utc: bool,
    /// Show the last N grants; the default is 50, or all with --json or a time
    #[arg(short = 'n', long, value_name = "N", value_parser = whole(1, u32::MAX))]
    pub lines: Option<u32>,
    /// Name, or pattern with * ? [ ]; without any, all locks of the store
    #[arg(value_name = "NAME")]
    pub names: Vec<OsString>,
}

/// List jobs that have not succeeded in time
///
/// A job is one that `csalock run --overdue DURATION` has named. Exit 0 if no job is overdue, and 86 if one is.
#[derive(Debug, Args)]
#[command(override_usage = "csalock overdue [OPTION]... [NAME]...")]
pub struct Overdue {
    /// List the jobs that are on time too, and when each of them is due
    #[arg(long, conflicts_with = "forget")]
    pub all: bool,
    /// Forget when the named jobs succeeded and when they must
    #[arg(long, requires = "names")]
    pub forget: bool,
    /// Show times in UTC instead of the local zone
    #[arg(long)]
    pub utc: bool,
    /// Names of jobs; without any, all jobs of the store
    #[arg(value_name = "NAME")]
    pub names: Vec<OsString>,
}

/// Print the state of the locks for Prometheus
///
/// Prints holders, waiters, times and endings in the text format of Prometheus, for the textfile collector of
/// node_exporter. Changes nothing in the store. If the store does not answer, csalock_up is 0, and csalock exits with the
/// code of the error.
#[derive(Debug, Args)]
#[command(override_usage = "csalock metrics [OPTION]... [NAME]...")]
pub struct Metrics {
    /// Write to this file: a temporary file in the same directory replaces it
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<OsString>,
    /// Show at most N locks: those named first, then those in use, then those held last
    #[arg(long, value_name = "N", value_parser = whole(1, u32::MAX), default_value = "200")]
    pub limit: u32,
    /// Name, or pattern with * ? [ ]; without any, all locks of the store
    #[arg(value_name = "NAME")]
    pub names: Vec<OsString>,
}

/// Remove leftovers of dead holders and waiters
///
/// Correctness does not need this command, because every acquisition removes the dead entries of its lock. It cleans up a
/// store with locks that are no longer in use.
#[derive(Debug, Args)]
#[command(override_usage = "csalock gc [OPTION]... [NAME]...")]
pub struct Gc {
    /// Only print what would be removed
    #[arg(long)]
    pub dry_run: bool,
    /// Name, path, or pattern with * ? [ ]; without any, the whole store
    #[arg(value_name = "NAME")]
    pub names: Vec<OsString>,
}

/// Check a store, and say how to repair what is wrong
///
/// Checks the store, its file system and its permissions, and tries to write, read and delete a record. It leaves
/// nothing behind. Exits with 0 if locks work there, even with warnings, and with 69 otherwise.
#[derive(Debug, Args)]
#[command(override_usage = "csalock doctor [OPTION]... [NAME]")]
pub struct Doctor {
    /// Check the store of this lock; for a path without a chosen store, the store beside that file, or in DIR/
    #[arg(value_name = "NAME")]
    pub name: Option<OsString>,
}

/// Serve a directory of locks to one client of another host
///
/// ssh(1) starts this command on the host of a store ssh://HOST/PATH; users do not. It answers requests about that one
/// directory on its standard input and output, runs no command for the client, and ends with the connection.
#[derive(Debug, Args)]
#[command(override_usage = "csalock serve --stdio dir:PATH")]
pub struct Serve {
    /// Speak on standard input and output
    #[arg(long, required = true)]
    pub stdio: bool,
    /// The directory: dir:PATH
    #[arg(value_name = "STORE")]
    pub directory: OsString,
}

/// Print the completions for a shell
///
/// The shells read them from files: in bash from ~/.local/share/bash-completion/completions/csalock, in zsh from _csalock in
/// a directory of $fpath, in fish from ~/.config/fish/completions/csalock.fish.
#[derive(Debug, Args)]
#[command(override_usage = "csalock completions bash|zsh|fish")]
pub struct Completions {
    /// The shell: bash, zsh or fish
    #[arg(value_name = "SHELL", value_enum, hide_possible_values = true)]
    pub shell: Shell,
}

/// A shell with completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// GNU Bash.
    Bash,
    /// The Z shell.
    Zsh,
    /// The friendly interactive shell.
    Fish,
}

/// Show a page of the manual
///
/// The pages are part of the program. On a terminal, man(1) shows the page; without man-db, and in a pipe or a file,
/// csalock prints it as plain text.
#[derive(Debug, Args)]
#[command(override_usage = "csalock man [--roff] [COMMAND|7]")]
pub struct Man {
    /// Print the source of the page, which man(1) reads
    #[arg(long)]
    pub roff: bool,
    /// Command whose page is shown; 7 is csalock(7), which explains the concepts; without it, csalock(1)
    #[arg(value_name = "COMMAND")]
    pub page: Option<String>,
}
