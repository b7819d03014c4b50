//! Options that several commands have.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::IsTerminal;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;

use engine::environment;
use lock::MOST_SLOTS;
use lock::duration::{Backoff, Limit, parse_backoff, parse_duration, parse_timeout};

pub(super) const WAITING: &str = "Waiting";
pub(super) const LOCK: &str = "Lock";
pub(super) const COMMAND: &str = "Command";
pub(super) const JOB: &str = "Job";
pub(super) const OUTPUT: &str = "Output";

/// Options of every command. They may stand before the command, too.
#[derive(Debug, Default, Args)]
pub struct Common {
    /// Keep the records in dir:PATH, sqlite:PATH, etcd://HOST:PORT/PREFIX, postgres://HOST/DATABASE or ssh://HOST/PATH [env: CSALOCK_STORE]
    #[arg(long, value_name = "URL", help_heading = LOCK, global = true)]
    pub store: Option<OsString>,
    /// Print the result as one JSON document
    #[arg(long, help_heading = OUTPUT, global = true)]
    pub json: bool,
    /// Print no message for an answer that the exit code gives
    #[arg(short, long, help_heading = OUTPUT, global = true)]
    pub quiet: bool,
    /// Print each step on stderr
    #[arg(short, long, conflicts_with = "quiet", help_heading = OUTPUT, global = true)]
    pub verbose: bool,
    /// Use colours: on a terminal, always or never [env: NO_COLOR, CLICOLOR_FORCE]
    #[arg(
        long, value_name = "WHEN", value_enum, default_value = "auto", hide_default_value = true,
        help_heading = OUTPUT, global = true
    )]
    pub color: Color,
}

/// Condition for colours in the output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Color {
    /// On a terminal, unless the environment forbids or forces colours.
    #[default]
    Auto,
    /// Everywhere.
    Always,
    /// Nowhere.
    Never,
}

impl Color {
    /// The option decides, then the environment, then the output itself.
    pub fn is_for(self, output: &impl IsTerminal) -> bool {
        match self {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => environment::colour().unwrap_or_else(|| output.is_terminal()),
        }
    }
}

/// Options of commands that may wait for a lock.
#[derive(Debug, Default, Args)]
pub struct Waiting {
    /// Wait at most this long: 250ms, 0.5s, 5m, 1h30m, 1d, or seconds; 0 tries once, inf has no limit [default: 30s; 75s where other hosts use the store]
    #[arg(
        short = 'w', long, alias = "wait", value_name = "DURATION",
        value_parser = parse_timeout, overrides_with = "nonblock", allow_negative_numbers = true,
        help_heading = WAITING
    )]
    pub timeout: Option<Limit>,
    /// Do not wait: the same as -w 0
    #[arg(short, long, aliases = ["nb", "nonblocking"], overrides_with = "timeout", help_heading = WAITING)]
    pub nonblock: bool,
    /// Do not take over a stale lock, whose owner died or whose time is over: exit 80 instead
    #[arg(long, help_heading = WAITING)]
    pub fail_on_stale: bool,
    /// Pause between two looks at the lock: it doubles from MIN to MAX, for example 50ms..2s
    #[arg(long, value_name = "MIN..MAX", value_parser = parse_backoff, help_heading = WAITING)]
    pub backoff: Option<Backoff>,
    /// Show this reason in `csalock status`
    #[arg(long, value_name = "TEXT", help_heading = LOCK)]
    pub label: Option<OsString>,
    /// Store only the program's name, not the arguments of the command; CSALOCK_COMMAND=label does so for all calls
    #[arg(long, help_heading = LOCK)]
    pub no_command: bool,
    /// Exit with this code instead of 75 if the lock is busy
    #[arg(short = 'E', long, value_name = "N", value_parser = whole(0, u8::MAX), help_heading = WAITING)]
    pub conflict_exit_code: Option<u8>,
}

/// Options of commands that acquire a lock.
#[derive(Debug, Default, Args)]
pub struct Taking {
    #[command(flatten)]
    pub waiting: Waiting,
    /// Acquire an exclusive lock; the default
    #[arg(short = 'x', short_alias = 'e', long, overrides_with = "shared", help_heading = LOCK)]
    pub exclusive: bool,
    /// Share the lock with other holders that share it
    #[arg(short, long, overrides_with = "exclusive", help_heading = LOCK)]
    pub shared: bool,
    /// Acquire one of N slots: at most N holders at once
    #[arg(
        short = 'j', long, value_name = "N", conflicts_with_all = ["exclusive", "shared"],
        value_parser = whole(1, MOST_SLOTS),
        help_heading = LOCK
    )]
    pub slots: Option<u32>,
    /// Release the lock after this time at the latest
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = LOCK)]
    pub ttl: Option<Duration>,
    /// Keep the lock until it is released, or its --ttl is over, even if its owner ends
    #[arg(long, help_heading = LOCK)]
    pub forever: bool,
}

pub(super) fn whole<N>(least: N, most: N) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync
where
    N: FromStr + Display + PartialOrd + Copy + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let problem = if is_number { "out of range" } else { "not a whole number" };
        number.ok_or_else(|| format!("is {problem}; use {least} to {most}"))
    }
}
