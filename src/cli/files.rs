//! Arguments of the command for files.

use std::ffi::OsString;

use clap::Args;

use super::options::{COMMAND, Common, LOCK, whole};

/// Replace a file, unless a newer holder has written it
///
/// Replaces FILE by stdin, or by the output of COMMAND, if the token of the lock is not lower than the newest token that
/// wrote FILE; otherwise exits with 87 and leaves FILE as it is. So a job that was stopped, and whose lock another job has
/// acquired since, cannot overwrite the work of that job. Readers see the earlier bytes or the new ones, and never a part.
/// If COMMAND fails, FILE stays as it is, and csalock exits with the status of COMMAND.
#[derive(Debug, Args)]
#[command(
    override_usage = "csalock fence [OPTION]... FILE [-- COMMAND...]\n       csalock fence --show [OPTION]... FILE"
)]
pub struct Fence {
    /// Token to write with [env: CSALOCK_TOKEN], which csalock run sets
    #[arg(long, value_name = "N", value_parser = whole(1, u64::MAX), help_heading = LOCK)]
    pub token: Option<u64>,
    /// Print the newest token that wrote FILE, and write nothing; exit 81 if there is none
    #[arg(long, conflicts_with_all = ["token", "command"], help_heading = LOCK)]
    pub show: bool,
    /// File to replace
    #[arg(value_name = "FILE")]
    pub file: OsString,
    /// Command whose output replaces the file
    #[arg(value_name = "COMMAND", last = true, num_args = 1.., help_heading = COMMAND)]
    pub command: Vec<OsString>,
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
}
