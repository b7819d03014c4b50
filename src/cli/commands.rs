//! Arguments of all commands but `run`: first those of the commands for scripts, which acquire and release, then values
//! and claims; then those of the commands for administrators.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::options::{LOCK, Taking, Waiting, whole};
use super::run::KILL_AFTER;
use crate::report::Moment;
use lock::duration::parse_duration;

/// Acquire locks for the calling script
///
/// Every word is a name: `csalock run NAME COMMAND` runs a command under a lock. The locks belong to the shell that
/// runs the script, even if $( ), a pipeline or a function calls csalock. They end when the script releases them, when
/// it ends, or with --ttl. Several names are acquired together: all or none, with one handle.
#[derive(Debug, Default, Args)]
#[command(override_usage = "csalock lock [OPTION]... NAME...")]
pub struct Lock {
    #[command(flatten)]
    pub taking: Taking,
    /// Acquire the lock for this process instead of the calling script
    #[arg(long, value_name = "PID", value_parser = whole(1, i32::MAX), help_heading = LOCK)]
    pub pid: Option<i32>,
    /// Print the handle, with which other processes too can release the locks
    #[arg(long)]
    pub print_handle: bool,
    /// Succeed without acquiring a lock that the caller holds or runs under already; unlock --reentrant is its counterpart
    #[arg(long, conflicts_with_all = ["pid", "print_handle", "ttl", "forever"], help_heading = LOCK)]
    pub reentrant: bool,
    /// Lock the file that descriptor N is open on, until the last process has closed it, like flock(1)
    #[arg(
        long, value_name = "N", value_parser = whole(0, i32::MAX), help_heading = LOCK,
        conflicts_with_all = ["names", "pid", "print_handle", "reentrant", "ttl", "forever", "slots"]
    )]
    pub fd: Option<i32>,
    /// Name of a lock, or path of a file to lock
    #[arg(value_name = "NAME", required_unless_present = "fd")]
    pub names: Vec<OsString>,
}

/// Release locks
///
/// The handle, or else the calling script, proves that the caller holds the locks. The lock of another holder stays as
/// it is, except with --force. A command of `csalock run` is then killed, unless its csalock was killed before; a
/// script goes on without its lock. With --force --end, csalock first ends the command or script.
#[derive(Debug, Default, Args)]
#[command(override_usage = "csalock unlock [OPTION]... NAME...\n       csalock unlock [OPTION]... --all [NAME]...")]
pub struct Unlock {
    /// Handle of the lock, or @FILE with it [env: CSALOCK_HANDLE]; otherwise the caller must be the owner
    #[arg(long, value_name = "HANDLE", conflicts_with = "force", help_heading = LOCK)]
    pub handle: Option<String>,
    /// Release all locks of the caller: in the store, in the current directory, and beside the files named
    #[arg(long, help_heading = LOCK)]
    pub all: bool,
    /// Break the lock of any holder, and print its holder, whose command may still run beside the next one; '*' is every lock of the store except claims
    #[arg(long, help_heading = LOCK)]
    pub force: bool,
    /// With --force: end the holder, and release the lock only when its command or script has ended, or its lease is over
    #[arg(long, requires = "force", conflicts_with = "all", help_heading = LOCK)]
    pub end: bool,
    /// With --end: kill a command or script that goes on for this time after it was asked to end
    #[arg(
        long, value_name = "DURATION", value_parser = parse_duration, default_value = KILL_AFTER, requires = "end",
        help_heading = LOCK
    )]
    pub kill_after: Duration,
    /// With --force: break only the grant with this fencing token
    #[arg(long, value_name = "N", requires = "force", conflicts_with = "all", value_parser = whole(0, u64::MAX), help_heading = LOCK)]
    pub token: Option<u64>,
    /// Leave a lock that the caller runs under: the counterpart of lock --reentrant
    #[arg(long, conflicts_with_all = ["handle", "all", "force"], help_heading = LOCK)]
    pub reentrant: bool,
    /// Release the lock of the file that descriptor N is open on, for all processes that have this descriptor
    #[arg(
        long, value_name = "N", value_parser = whole(0, i32::MAX), help_heading = LOCK,
        conflicts_with_all = ["names", "handle", "all", "force", "reentrant"]
    )]
    pub fd: Option<i32>,
    /// Name of a lock, or path of its file
    #[arg(value_name = "NAME", required_unless_present_any = ["all", "fd"])]
    pub names: Vec<OsString>,
}

/// Wait until locks are free, and leave them free
///
/// A lock is free when the next caller would get it at once: no caller holds it or waits for it, or only callers that
/// died. The wait takes no place in the queue and delays no other caller, so another caller may have the lock when
/// csalock exits. Of several locks each was seen free once, not all of them at one moment.
#[derive(Debug, Args)]
#[command(override_usage = "csalock wait [OPTION]... NAME...")]
pub struct Wait {
    #[command(flatten)]
    pub waiting: Waiting,
    /// Of the locks of other programs on the file, wait only for those of flock(2), as flock(1) has them
    #[arg(long, help_heading = LOCK)]
    pub flock: bool,
    /// Of the locks of other programs on the file, wait only for those of fcntl(2), as apt and dpkg have them
    #[arg(long, help_heading = LOCK)]
    pub fcntl: bool,
    /// Name of a lock, or path of its file
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<OsString>,
}

/// Restart the time limit of held locks
///
/// Only the holder can renew a lock, and only while it still holds it: an expired grant stays expired.
#[derive(Debug, Args)]
#[command(override_usage = "csalock renew [OPTION]... --ttl DURATION NAME...")]
pub struct Renew {
    /// Handle of the lock, or @FILE with it [env: CSALOCK_HANDLE]; otherwise the caller must be the owner
    #[arg(long, value_name = "HANDLE", help_heading = LOCK)]
    pub handle: Option<String>,
    /// Release the lock after this time, from now, at the latest
    #[arg(long, value_name = "DURATION", required = true, value_parser = parse_duration, help_heading = LOCK)]
    pub ttl: Duration,
    /// Name of a lock, or path of its file
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<OsString>,
}

/// Print the value that a lock guards
///
/// Prints the bytes of the last write unchanged, and nothing else; exits with 81 if the value does not exist. The lock need
/// not be held. With --lock, the calling script acquires the lock first: the value then stays the same until the script
/// writes it or releases the lock. The lock is acquired even if the value does not exist yet. The options under Waiting
/// and Lock are for --lock.
#[derive(Debug, Args)]
#[command(override_usage = "csalock get [OPTION]... NAME")]
pub struct Get {
    /// Acquire the lock and read, in one step
    #[arg(long, help_heading = LOCK)]
    pub lock: bool,
    #[command(flatten)]
    pub taking: Taking,
    /// Acquire the lock for this process instead of the calling script
    #[arg(long, value_name = "PID", value_parser = whole(1, i32::MAX), help_heading = LOCK)]
    pub pid: Option<i32>,
    /// Name of a lock, or path of a file to lock
    pub name: OsString,
}

/// Options of commands that write a value.
#[derive(Debug, Args)]
pub struct Writing {
    #[command(flatten)]
    pub waiting: Waiting,
    /// Handle of the lock, or @FILE with it [env: CSALOCK_HANDLE]; otherwise the caller must be the owner
    #[arg(long, value_name = "HANDLE", help_heading = LOCK)]
    pub handle: Option<String>,
    /// Write only as the holder of the lock, and release it in the same step
    #[arg(long, help_heading = LOCK)]
    pub unlock: bool,
    /// With --unlock: write even if the grant is over, provided that no other caller has had the lock since
    #[arg(long, requires = "unlock", help_heading = LOCK)]
    pub even_if_stale: bool,
    /// Write only if the value has this version; otherwise exit 80
    #[arg(long, value_name = "N", value_parser = whole(0, u64::MAX))]
    pub if_version: Option<u64>,
}

/// Write the value that a lock guards
///
/// A value has at most 1 MiB and stays until it is deleted; it is on the disk when the command returns. Every write happens
/// under the lock: the holder uses its own grant, and any other caller acquires the lock for the write, after a wait if
/// necessary. A caller that had the lock and whose grant is over writes nothing, and neither does a `put` whose script has
/// ended with the lock. With a handle, or CSALOCK_HANDLE, only that grant counts.
#[derive(Debug, Args)]
#[command(override_usage = "csalock put [OPTION]... NAME [VALUE]")]
pub struct Put {
    #[command(flatten)]
    pub writing: Writing,
    /// Write only if the value does not exist yet; otherwise exit 83
    #[arg(long, conflicts_with = "if_version")]
    pub if_absent: bool,
    /// Permissions of the value, within those of the store: 0600; they stay until another --mode
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub mode: Option<u32>,
    /// Name of the lock
    pub name: OsString,
    /// Value; - or nothing reads stdin. A value such as --x goes after --
    #[arg(value_name = "VALUE", allow_negative_numbers = true)]
    pub value: Option<OsString>,
}

/// Delete the value that a lock guards
///
/// A deletion is a write: see put. Exits with 81 if the value does not exist.
#[derive(Debug, Args)]
#[command(override_usage = "csalock del [OPTION]... NAME")]
pub struct Del {
    #[command(flatten)]
    pub writing: Writing,
    /// Name of the lock
    pub name: OsString,
}

/// Permission bits in octal; at least the owner may read and write.
fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| mode & !0o666 == 0 && mode & 0o600 == 0o600);
    mode.ok_or_else(|| {
        "is not a mode; use octal digits, with 6 for the owner and no right to execute: 0600, 0640, 0660".to_string()
    })
}

/// Claim names permanently, all or none, and print the id
///
/// A claim lasts until unclaim, even after a reboot; it is on the disk when the command returns. If one of the names is
/// claimed under another id, nothing is claimed, and csalock exits with 83 and prints the claimed names with their ids. If
/// the lock of a name is held, csalock waits for it.
///
/// A second claim under the same id succeeds, so an id must belong to one user, or be new. A name with a slash means a file:
/// do not accept such a name from a user you do not trust.
#[derive(Debug, Args)]
#[command(override_usage = "csalock claim [OPTION]... NAME...")]
pub struct Claim {
    #[command(flatten)]
    pub waiting: Waiting,
    /// The id that claims the names, for example a user number; the default is a new id
    #[arg(long, value_name = "ID")]
    pub id: Option<OsString>,
    /// Name to claim
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<OsString>,
}

/// Give up claims
///
/// All of them or none: if one of the names is not claimed under this id, csalock exits with 82, or with 81 if it is not
/// claimed at all.
#[derive(Debug, Args)]
#[command(
    override_usage = "csalock unclaim [OPTION]... --id ID NAME...\n       csalock unclaim [OPTION]... --id ID --all"
)]
pub struct Unclaim {
    /// The id that claims the names
    #[arg(long, value_name = "ID", required = true)]
    pub id: OsString,
    /// Give up all names that the id claims in the store
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
    /// Name to give up
    #[arg(value_name = "NAME", required_unless_present = "all")]
    pub names: Vec<OsString>,
}

/// Print the id that claims a name, or the names of an id
///
/// Exits with 81 if the name or id is not claimed.
#[derive(Debug, Args)]
#[command(override_usage = "csalock lookup [OPTION]... NAME\n       csalock lookup [OPTION]... --id ID")]
pub struct Lookup {
    /// Print the names that this id claims, one per line
    #[arg(long, value_name = "ID", conflicts_with = "name")]
    pub id: Option<OsString>,
    /// Name of the lock
    #[arg(value_name = "NAME", required_unless_present = "id")]
    pub name: Option<OsString>,
}

/// Show holders and waiters: since when, until when and why
///
/// Changes nothing. Without a name, it shows all locks of the store. Unless a store is named, the locks of files are not
/// among them but beside the files: `csalock status FILE` shows one, and `csalock status DIRECTORY/` those of the files in
/// a directory. With one NAME, it shows all about that lock. With names, it exits with 0 if all of them are held, and with
/// 81 if one of them is free.
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
