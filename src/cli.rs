//! What can be typed: the clap types, and nothing else. What is meant by it is each command's business.
//!
//! `--help`, the man pages and the completions are all made from this file.

pub mod plain;

use std::ffi::OsString;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::duration::{Backoff, Limit, parse_backoff, parse_duration, parse_timeout};

/// Locks for shell scripts: who holds it, since when and why
///
/// A lock has a name, or is a file's. One script at a time holds it, the others wait in order of arrival. It ends when
/// the holder gives it back or dies, so nobody has to clear up after a crash; and whoever is refused is told who holds
/// it.
#[derive(Debug, Parser)]
#[command(
    name = "csalock",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    subcommand_required = true,
    arg_required_else_help = false,
    after_help = "Start with `csalock run-with-lock NAME COMMAND`. Exit codes: 75 busy, 81 not held, 82 somebody \
                  else's; all of them are in csalock(1)."
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
    /// Take a lock for the calling script; prints the handle that proves it
    Lock(Lock),
    /// Give back locks
    Unlock(Unlock),
    /// Take a lock, run a command, give the lock back
    #[command(visible_alias = "run")]
    RunWithLock(RunWithLock),
    /// Show who holds, since when, until when, and who waits; changes nothing
    #[command(visible_alias = "list")]
    Status(Status),
    /// Show who held what, from when to when, and how it ended
    History(History),
    /// Let locks that are held last a new time from now
    Renew(Renew),
    /// Print the value that a lock guards
    Get(Get),
    /// Write the value that a lock guards
    Put(Put),
    /// Delete the value that a lock guards
    Del(Del),
    /// Claim names for good, all of them or none; prints the id
    Claim(Claim),
    /// Give up claims
    Unclaim(Unclaim),
    /// Print the id under which a name is claimed, or the names of an id
    Lookup(Lookup),
    /// Remove what dead holders and waiters left behind
    Gc(Gc),
    /// Say whether a store is all right, and what to do if not
    Doctor(Doctor),
}

/// Options of every command.
#[derive(Debug, Default, Args)]
pub struct Common {
    /// Where the records are: dir:PATH, sqlite:PATH or etcd://HOST:PORT/PREFIX [env: CSALOCK_STORE]
    #[arg(long, value_name = "URL")]
    pub store: Option<OsString>,
    /// Print the result as one JSON document; run-with-lock has none
    #[arg(long)]
    pub json: bool,
    /// Say nothing on stderr about answers that the exit code tells
    #[arg(short, long)]
    pub quiet: bool,
    /// Say on stderr what happens
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
}

/// Options of everything that may have to wait for a lock.
#[derive(Debug, Args)]
pub struct Waiting {
    /// Wait at most this long: 10s, 5m, 250ms, 1h30m, seconds; 0 tries once; inf waits for ever
    #[arg(
        short = 'w', long, alias = "wait", value_name = "DURATION", default_value = "30s",
        value_parser = parse_timeout, overrides_with = "nonblock"
    )]
    pub timeout: Limit,
    /// Do not wait: the same as -w 0
    #[arg(short, long, aliases = ["nb", "nonblocking"], overrides_with = "timeout")]
    pub nonblock: bool,
    /// Do not take over from a holder that died or whose time is over: exit 80 instead
    #[arg(long)]
    pub fail_on_stale: bool,
    /// Pauses between looks that nothing prompts, for example 50ms..2s: the first, and the longest that they double to
    #[arg(long, value_name = "MIN..MAX", value_parser = parse_backoff)]
    pub backoff: Option<Backoff>,
    /// Give up after so many looks, with exit 75
    #[arg(long, value_name = "N", value_parser = whole(1, u32::MAX))]
    pub attempts: Option<u32>,
    /// Say why, for those who look at the lock
    #[arg(long, value_name = "TEXT")]
    pub label: Option<OsString>,
    /// Exit with this code instead of 75 when it is busy
    #[arg(short = 'E', long, value_name = "N", value_parser = whole(0, u8::MAX))]
    pub conflict_exit_code: Option<u8>,
}

/// Options of everything that takes a lock.
#[derive(Debug, Args)]
pub struct Taking {
    /// Options of waiting.
    #[command(flatten)]
    pub waiting: Waiting,
    /// Take it for oneself alone; the default
    #[arg(short = 'x', short_alias = 'e', long, overrides_with = "shared")]
    pub exclusive: bool,
    /// Take it together with all others who share it
    #[arg(short, long, overrides_with = "exclusive")]
    pub shared: bool,
    /// Take one of N places: so many may hold it at once
    #[arg(
        short = 'j', long, value_name = "N", conflicts_with_all = ["exclusive", "shared"],
        value_parser = whole(1u32, 10_000)
    )]
    pub slots: Option<u32>,
    /// Hold it at most this long
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub ttl: Option<Duration>,
    /// Hold it until it is given back, whatever becomes of the owner
    #[arg(long, conflicts_with = "ttl")]
    pub forever: bool,
}

/// Take a lock for the calling script; prints the handle that proves it
///
/// The lock belongs to the shell that runs the script, also when it is taken inside $( ), a pipeline or a function. It
/// ends when the script gives it back, when the script dies, or with --ttl. Of several names all are taken or none; one
/// handle proves them all.
#[derive(Debug, Args)]
pub struct Lock {
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
    /// Options of taking.
    #[command(flatten)]
    pub taking: Taking,
    /// The lock belongs to this process instead of the script that calls
    #[arg(long, value_name = "PID", value_parser = whole(1, i32::MAX))]
    pub pid: Option<i32>,
    /// Names, or paths: those are the locks of files
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<OsString>,
}

/// Give back locks
///
/// Gives back what the caller holds: what its handle proves, or else what it owns. Somebody else's lock stays as it is,
/// unless --force says otherwise.
#[derive(Debug, Args)]
pub struct Unlock {
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
    /// The handle that proves the lock is held [env: CSALOCK_HANDLE; else being its owner does]
    #[arg(long, value_name = "HANDLE", conflicts_with = "force")]
    pub handle: Option<String>,
    /// Give back everything that the caller owns: in the store, in the current directory, and beside the files named
    #[arg(long)]
    pub all: bool,
    /// Break the lock, whoever holds it, and say whose it was; with --all, every lock of the store but claims
    #[arg(long)]
    pub force: bool,
    /// With --force: only the grant with this fencing token
    #[arg(long, value_name = "N", requires = "force", conflicts_with = "all")]
    pub token: Option<u64>,
    /// The locks
    #[arg(value_name = "NAME", required_unless_present = "all")]
    pub names: Vec<OsString>,
}

/// Take a lock, run a command, give the lock back
///
/// The command runs with the stdin, stdout, stderr and terminal that csalock was given, its arguments are passed on as
/// they are, and its exit status becomes csalock's. Signals that end csalock are passed on to it. The lock belongs to the
/// command itself: should csalock be killed, the lock still lasts until the command ends.
///
/// Options go before the name; what comes after it is the command's.
#[derive(Debug, Args)]
pub struct RunWithLock {
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
    /// Options of taking.
    #[command(flatten)]
    pub taking: Taking,
    /// Become the command instead of waiting for it; the lock ends with it
    #[arg(short = 'F', long, conflicts_with_all = ["max_hold", "ttl", "forever"])]
    pub no_fork: bool,
    /// Lock the file itself with flock(2) as well, as flock(1) does; for names that are paths
    #[arg(long)]
    pub flock: bool,
    /// Run STRING with /bin/sh -c
    #[arg(short = 'c', long = "command", value_name = "STRING")]
    pub shell: Option<OsString>,
    /// End the command after this time: exit 124, or 137 if it had to be killed
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub max_hold: Option<Duration>,
    /// Kill a command that was asked to end and did not, after this time
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "10s")]
    pub kill_after: Duration,
    /// What to do with the command when --ttl is about to be over, or a lease that could not be renewed
    #[arg(long, value_name = "WHAT", value_enum, default_value = "kill")]
    pub on_lost: OnLost,
    /// Take this lock as well: all or none. It may also stand after the name
    #[arg(long, value_name = "NAME")]
    pub also: Vec<OsString>,
    /// The name, then the command and its arguments
    #[arg(value_name = "NAME [--also NAME]... [--] COMMAND", required = true, trailing_var_arg = true)]
    pub words: Vec<OsString>,
}

/// What happens to a command whose lock is about to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OnLost {
    /// It is ended before
    Kill,
    /// It goes on; a warning is printed
    Warn,
}

/// Show who holds, since when, until when, and who waits; changes nothing
///
/// Without a name, all locks of the store are shown. With names, the exit status says whether they are held: 0, or 81
/// if one of them is free.
#[derive(Debug, Args)]
pub struct Status {
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
    /// Print the names only, one a line
    #[arg(short = '1', long, conflicts_with = "json")]
    pub names_only: bool,
    /// Go on showing it, as top(1) does, until q or Ctrl-C
    #[arg(short = 'W', long, conflicts_with_all = ["json", "names_only"])]
    pub watch: bool,
    /// How often --watch looks again
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1s", requires = "watch")]
    pub interval: Duration,
    /// Names, paths, or patterns with * ? [ ]; without any, all locks of the store
    #[arg(value_name = "NAME")]
    pub names: Vec<OsString>,
}

/// Show who held what, from when to when, and how it ended
///
/// One row for each time that a lock was held, in the order in which they ended; what is held now comes last. A store
/// remembers 1 MiB of them, and none that ended more than 30 days ago; CSALOCK_HISTORY_SIZE and CSALOCK_HISTORY_AGE say
/// otherwise, and CSALOCK_HISTORY=0 keeps none. The locks of files that are kept beside them have no history.
#[derive(Debug, Args)]
pub struct History {
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
    /// Show only what ended within this time: 12h, 7d
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub since: Option<Duration>,
    /// Show the last N; without it 50, or all with --json
    #[arg(short = 'n', long, value_name = "N", value_parser = whole(1, u32::MAX))]
    pub lines: Option<u32>,
    /// Names, or patterns with * ? [ ]; without any, all locks of the store
    #[arg(value_name = "NAME")]
    pub names: Vec<OsString>,
}

/// Let locks that are held last a new time from now
///
/// Only the holder can do so, and only while the lock is still held: what is over stays over.
#[derive(Debug, Args)]
pub struct Renew {
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
    /// The handle that proves the lock is held [env: CSALOCK_HANDLE; else being its owner does]
    #[arg(long, value_name = "HANDLE")]
    pub handle: Option<String>,
    /// Hold it at most this long from now on
    #[arg(long, value_name = "DURATION", required = true, value_parser = parse_duration)]
    pub ttl: Duration,
    /// The locks
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<OsString>,
}

/// Print the value that a lock guards
///
/// Prints its bytes as they are, and nothing else; exit 81 if there is none. It is what was written last, whoever holds the
/// lock. With --lock the lock is taken first, for the calling script: then it stays what it is until the script writes it or
/// gives the lock back. The lock is taken also where there is no value yet.
#[derive(Debug, Args)]
#[command(override_usage = "csalock get [OPTIONS] <NAME>")]
pub struct Get {
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
    /// Take the lock and read, in one step
    #[arg(long)]
    pub lock: bool,
    /// Options of taking.
    #[command(flatten, next_help_heading = "With --lock")]
    pub taking: Taking,
    /// The lock belongs to this process instead of the script that calls
    #[arg(long, value_name = "PID", value_parser = whole(1, i32::MAX), help_heading = "With --lock")]
    pub pid: Option<i32>,
    /// The name, or a path: that is the lock of a file
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<OsString>,
}

/// Options of everything that writes a value.
#[derive(Debug, Args)]
pub struct Writing {
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
    /// Options of waiting.
    #[command(flatten)]
    pub waiting: Waiting,
    /// The handle that proves the lock is held [env: CSALOCK_HANDLE; else being its owner does]
    #[arg(long, value_name = "HANDLE")]
    pub handle: Option<String>,
    /// Only as the holder of the lock, and give it back in the same step
    #[arg(long)]
    pub unlock: bool,
    /// With --unlock: also when the lock's time is over, if nobody has had it since
    #[arg(long, requires = "unlock")]
    pub even_if_stale: bool,
    /// Only if the value has this version: exit 80 if it has another
    #[arg(long, value_name = "N")]
    pub if_version: Option<u64>,
}

/// Write the value that a lock guards
///
/// Up to 1 MiB, kept until it is deleted; when this returns it is on the disk. Nobody writes past a lock: the holder writes
/// under it, everybody else takes it for the moment that this needs, and waits for it if he must. A holder whose time is
/// over writes nothing.
#[derive(Debug, Args)]
#[command(override_usage = "csalock put [OPTIONS] <NAME> [VALUE]")]
pub struct Put {
    /// Options of writing.
    #[command(flatten)]
    pub writing: Writing,
    /// Only if there is no value yet: exit 83 if there is one
    #[arg(long, conflicts_with = "if_version")]
    pub if_absent: bool,
    /// Who may read the value, of those who may use the store: 0600. It stays like that until another --mode
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub mode: Option<u32>,
    /// The name; then the value, or - or nothing for all that stdin has. A value such as --x goes after --
    #[arg(value_name = "NAME [VALUE]", required = true, allow_negative_numbers = true)]
    pub words: Vec<OsString>,
}

/// Delete the value that a lock guards
///
/// In the same way as put writes it; exit 81 if there is none.
#[derive(Debug, Args)]
#[command(override_usage = "csalock del [OPTIONS] <NAME>")]
pub struct Del {
    /// Options of writing.
    #[command(flatten)]
    pub writing: Writing,
    /// The name
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<OsString>,
}

/// Claim names for good, all of them or none; prints the id
///
/// A claimed name is held until it is given up with unclaim, also over reboots; when this returns it is on the disk. If one of
/// the names is claimed under another id, nothing is claimed: exit 83, with all that are taken and their ids. Who holds the
/// lock of a name is waited for.
///
/// Who claims again under the same id gets 0, so an id has to be one person's, or fresh. A name with a slash means a file:
/// do not take one from a stranger.
#[derive(Debug, Args)]
pub struct Claim {
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
    /// Options of waiting.
    #[command(flatten)]
    pub waiting: Waiting,
    /// What the names are to lead to, for example a user's number; a fresh one if there is none
    #[arg(long, value_name = "ID")]
    pub id: Option<OsString>,
    /// The names
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<OsString>,
}

/// Give up claims
///
/// If one of the names is not claimed under that id, nothing is given up: exit 82, or 81 if nobody holds it.
#[derive(Debug, Args)]
pub struct Unclaim {
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
    /// The id that they were claimed under
    #[arg(long, value_name = "ID", required = true)]
    pub id: OsString,
    /// Give up everything that the id has in the store
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
    /// The names
    #[arg(value_name = "NAME", required_unless_present = "all")]
    pub names: Vec<OsString>,
}

/// Print the id under which a name is claimed, or the names of an id
///
/// Exit 81 if there is none.
#[derive(Debug, Args)]
#[command(override_usage = "csalock lookup [OPTIONS] <NAME | --id ID>")]
pub struct Lookup {
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
    /// Print the names that are claimed under this id, one a line
    #[arg(long, value_name = "ID", conflicts_with = "names")]
    pub id: Option<OsString>,
    /// The name
    #[arg(value_name = "NAME", required_unless_present = "id")]
    pub names: Vec<OsString>,
}

/// Remove what dead holders and waiters left behind
///
/// Nobody needs this for correctness: whoever takes a lock clears away the dead. It keeps a store tidy whose locks nobody
/// takes any more.
#[derive(Debug, Args)]
pub struct Gc {
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
    /// Only say what would be removed
    #[arg(long)]
    pub dry_run: bool,
}

/// Say whether a store is all right, and what to do if not
///
/// Checks the store, its file system and its permissions, and tests a lock under a name that no other caller uses.
/// The test leaves no traces. Exit 0 if no finding is bad, 69 if one is, or if the store cannot be reached.
#[derive(Debug, Args)]
#[command(override_usage = "csalock doctor [OPTIONS] [NAME]")]
pub struct Doctor {
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
    /// The store of this name: with a slash in it and no store chosen, the one beside that file
    #[arg(value_name = "NAME")]
    pub names: Vec<OsString>,
}

/// Permission bits in octal; at least the owner may read and write.
fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| mode & !0o666 == 0 && mode & 0o600 == 0o600);
    mode.ok_or_else(|| "say it in octal, with 6 for the owner and no right to execute: 0600, 0640, 0660".to_string())
}

/// A whole number from `least` to `most`.
fn whole<N>(least: N, most: N) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync
where
    N: FromStr + Display + PartialOrd + Copy + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("is no whole number from {least} to {most}"))
    }
}
