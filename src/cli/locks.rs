//! Arguments of `lock`, `unlock` and `renew`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::options::{Common, LOCK, Taking, whole};
use crate::duration::parse_duration;

/// Acquire locks for the calling script
///
/// The locks belong to the shell that runs the script, even if $( ), a pipeline or a function calls csalock. They end
/// when the script releases them, when it dies, or with --ttl. Several names are acquired together: all or none, with
/// one handle.
#[derive(Debug, Args)]
#[command(override_usage = "csalock lock [OPTION]... NAME...")]
pub struct Lock {
    /// Options of the acquisition.
    #[command(flatten)]
    pub taking: Taking,
    /// Acquire the lock for this process instead of the calling script
    #[arg(long, value_name = "PID", value_parser = whole(1, i32::MAX), help_heading = LOCK)]
    pub pid: Option<i32>,
    /// Print the handle, with which other processes too can release the locks
    #[arg(long)]
    pub print_handle: bool,
    /// Name of a lock, or path of a file to lock
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<OsString>,
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
}

/// Release locks
///
/// The handle, or else the calling script, proves that the caller holds the locks. The lock of another holder stays as it
/// is, except with --force. A command of `csalock run` is then killed, unless its csalock was killed before; a script
/// goes on without its lock.
#[derive(Debug, Args)]
#[command(override_usage = "csalock unlock [OPTION]... NAME...\n       csalock unlock [OPTION]... --all [NAME]...")]
pub struct Unlock {
    /// Handle of the lock, or @FILE with it [env: CSALOCK_HANDLE]; otherwise the caller must be the owner
    #[arg(long, value_name = "HANDLE", conflicts_with = "force", help_heading = LOCK)]
    pub handle: Option<String>,
    /// Release all locks of the caller: in the store, in the current directory, and beside the files named
    #[arg(long, help_heading = LOCK)]
    pub all: bool,
    /// Break the lock of any holder, and print its holder; with --all, every lock of the store except claims
    #[arg(long, help_heading = LOCK)]
    pub force: bool,
    /// With --force: break only the grant with this fencing token
    #[arg(long, value_name = "N", requires = "force", conflicts_with = "all", value_parser = whole(0, u64::MAX), help_heading = LOCK)]
    pub token: Option<u64>,
    /// Name of a lock, or path of its file
    #[arg(value_name = "NAME", required_unless_present = "all")]
    pub names: Vec<OsString>,
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
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
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
}
