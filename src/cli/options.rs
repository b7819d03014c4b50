//! Options that several commands have.

use std::ffi::OsString;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;

use crate::duration::{Backoff, Limit, parse_backoff, parse_duration, parse_timeout};
use crate::lock::MOST_SLOTS;

/// Options of every command.
#[derive(Debug, Default, Args)]
pub struct Common {
    /// Keep the records in dir:PATH, sqlite:PATH or etcd://HOST:PORT/PREFIX [env: CSALOCK_STORE]
    #[arg(long, value_name = "URL")]
    pub store: Option<OsString>,
    /// Print the result as one JSON document; not for run-with-lock
    #[arg(long)]
    pub json: bool,
    /// Print no message for an answer that the exit code gives
    #[arg(short, long)]
    pub quiet: bool,
    /// Print each step on stderr
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
}

/// Options of commands that may wait for a lock.
#[derive(Debug, Args)]
pub struct Waiting {
    /// Wait at most this long: 10s, 5m, 250ms, 1h30m, seconds; 0 tries once; inf has no limit
    #[arg(
        short = 'w', long, alias = "wait", value_name = "DURATION", default_value = "30s",
        value_parser = parse_timeout, overrides_with = "nonblock", allow_negative_numbers = true
    )]
    pub timeout: Limit,
    /// Do not wait: the same as -w 0
    #[arg(short, long, aliases = ["nb", "nonblocking"], overrides_with = "timeout")]
    pub nonblock: bool,
    /// Do not take over a stale lock, whose owner died or whose time is over: exit 80 instead
    #[arg(long)]
    pub fail_on_stale: bool,
    /// Pause between two looks at the lock: it doubles from MIN to MAX, for example 50ms..2s
    #[arg(long, value_name = "MIN..MAX", value_parser = parse_backoff)]
    pub backoff: Option<Backoff>,
    /// Give up after N looks at the lock, with exit 75
    #[arg(long, value_name = "N", value_parser = whole(1, u32::MAX))]
    pub attempts: Option<u32>,
    /// Show this reason in `csalock status`
    #[arg(long, value_name = "TEXT")]
    pub label: Option<OsString>,
    /// Exit with this code instead of 75 if the lock is busy
    #[arg(short = 'E', long, value_name = "N", value_parser = whole(0, u8::MAX))]
    pub conflict_exit_code: Option<u8>,
}

/// Options of commands that acquire a lock.
#[derive(Debug, Args)]
pub struct Taking {
    /// Options of waiting.
    #[command(flatten)]
    pub waiting: Waiting,
    /// Acquire an exclusive lock; the default
    #[arg(short = 'x', short_alias = 'e', long, overrides_with = "shared")]
    pub exclusive: bool,
    /// Share the lock with other holders that share it
    #[arg(short, long, overrides_with = "exclusive")]
    pub shared: bool,
    /// Acquire one of N slots: at most N holders at once
    #[arg(
        short = 'j', long, value_name = "N", conflicts_with_all = ["exclusive", "shared"],
        value_parser = whole(1, MOST_SLOTS)
    )]
    pub slots: Option<u32>,
    /// Release the lock after this time at the latest
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub ttl: Option<Duration>,
    /// Keep the lock until it is released, even if its owner ends
    #[arg(long, conflicts_with = "ttl")]
    pub forever: bool,
}

/// Returns the parser of a whole number from `least` to `most`.
pub(super) fn whole<N>(least: N, most: N) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync
where
    N: FromStr + Display + PartialOrd + Copy + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("is not a whole number from {least} to {most}"))
    }
}
