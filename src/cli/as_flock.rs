//! The command line of flock(1) of util-linux, for calls by the name `flock`.

use std::cell::Cell;
use std::ffi::OsString;
use std::time::Duration;

use clap::Parser;

use super::options::whole;

/// Lock a file with flock(2) while a command runs, or the file of an open descriptor
///
/// This is csalock under the name flock: `csalock status FILE` shows who has the lock.
#[derive(Debug, Default, Parser)]
#[command(
    name = "flock",
    version,
    infer_long_args = true,
    args_override_self = true,
    override_usage = "flock [OPTION]... FILE|DIRECTORY COMMAND [ARGUMENT]...\n       \
                      flock [OPTION]... FILE|DIRECTORY -c STRING\n       flock [OPTION]... DESCRIPTOR"
)]
pub struct AsFlock {
    /// Share the lock
    #[arg(short, long, overrides_with_all = ["exclusive", "unlock"])]
    pub shared: bool,
    /// Have the lock alone; the default
    #[arg(short = 'x', short_alias = 'e', long, overrides_with_all = ["shared", "unlock"])]
    pub exclusive: bool,
    /// Release the lock
    #[arg(short, long, overrides_with_all = ["shared", "exclusive"])]
    pub unlock: bool,
    /// Do not wait
    #[arg(short, long = "nonblocking", alias = "nb")]
    pub nonblock: bool,
    /// Wait at most so long
    #[arg(short = 'w', long, alias = "wait", value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<Duration>,
    /// Exit code if the lock is not acquired
    #[arg(short = 'E', long, value_name = "NUMBER", default_value = "1", value_parser = whole(0, u8::MAX))]
    pub conflict_exit_code: u8,
    /// Do not hand the locked file on to the command
    #[arg(short = 'o', long, conflicts_with = "no_fork")]
    pub close: bool,
    /// Become the command
    #[arg(short = 'F', long)]
    pub no_fork: bool,
    /// Report each step
    #[arg(long)]
    pub verbose: bool,
    /// The lock was acquired, so the command was executed, or will be.
    #[arg(skip)]
    pub has_run: Cell<bool>,
    /// File or descriptor, and the command; `-c STRING` runs a string with $SHELL
    #[arg(value_names = ["FILE", "COMMAND"], num_args = 1.., required = true, trailing_var_arg = true)]
    pub words: Vec<OsString>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "is not a number of seconds".to_string())
}
