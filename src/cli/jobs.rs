//! Arguments about jobs: commands that must succeed once in a while.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::options::{Common, JOB, whole};
use crate::duration::parse_duration;

/// Options of `run` for a command that is started again and again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct Recurrence {
    /// Run the job at most once in each hour, day, week or DURATION, on all hosts of the store
    #[arg(
        long, value_name = "SLOT", value_parser = Period::parse, conflicts_with_all = ["no_fork", "also", "shared", "slots"],
        help_heading = JOB
    )]
    pub once_per: Option<Period>,
    /// With --once-per: begin at most N more runs in a slot if runs fail or die [default: 3]
    #[arg(long, value_name = "N", requires = "once_per", value_parser = whole(0, u32::MAX - 1), help_heading = JOB)]
    pub retries: Option<u32>,
    /// If the lock is busy, exit 0 and print nothing while the last success of the job is younger than this; complain once
    /// with exit 86 when it is older
    #[arg(
        long, value_name = "DURATION", value_parser = parse_duration,
        conflicts_with_all = ["no_fork", "also", "shared", "slots", "conflict_exit_code"], help_heading = JOB
    )]
    pub overdue: Option<Duration>,
}

/// A time in which a job runs once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    /// An hour of the local time.
    Hour,
    /// A day of the local time.
    Day,
    /// A week of the local time; it begins on Monday.
    Week,
    /// Any other span; the spans follow each other since 1970 UTC.
    Span(Duration),
}

impl Period {
    fn parse(text: &str) -> Result<Period, String> {
        match text {
            "hour" => Ok(Period::Hour),
            "day" => Ok(Period::Day),
            "week" => Ok(Period::Week),
            _ => match parse_duration(text) {
                Ok(span) => Ok(Period::Span(span)),
                Err(_) => Err("is not a slot; use hour, day, week or a duration such as 10m".to_string()),
            },
        }
    }
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
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
}
