//! Arguments of `run`, with those of jobs. Those that it shares with other commands are in [`super::options`], and
//! [`super::run_without_clap`] reads the commonest ones.

use std::ffi::OsString;
use std::rc::Rc;
use std::time::Duration;

use clap::Args;

use super::AsFlock;
use super::options::{COMMAND, JOB, LOCK, Taking, WAITING, whole};
use lock::duration::parse_duration;

/// Default of `--kill-after`.
pub(super) const KILL_AFTER: &str = "10s";

/// Arguments in the short help, by their ids.
pub(super) const OFTEN: &str = "words timeout nonblock conflict_exit_code label shared slots flock also shell max_hold \
                                once_per quiet help";

/// Acquire a lock, run a command, release the lock
///
/// The command inherits stdin, stdout, stderr and the terminal, and gets its arguments unchanged; csalock exits with its
/// exit status and passes signals on to it. The lock belongs to the command itself: if csalock is killed, the lock lasts
/// until the command ends.
///
/// Options go before the name; all words after it belong to the command. Only --also NAME, or -c STRING instead of a
/// command, may follow the name.
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "csalock run [OPTION]... NAME COMMAND [ARGUMENT]...\n       csalock run [OPTION]... NAME -c STRING",
    after_help = "`csalock run --help` shows all options, `csalock man run` the manual.",
    after_long_help = "",
    mut_arg("timeout", |timeout| timeout.default_value_ifs([("busy", "latest", "inf"), ("busy", "skip", "0")]))
)]
pub struct Run {
    #[command(flatten)]
    pub taking: Taking,
    /// Become the command instead of waiting for it; the lock ends with the command
    #[arg(short = 'F', long, conflicts_with_all = ["max_hold", "ttl", "forever"], help_heading = COMMAND)]
    pub no_fork: bool,
    /// Action while the lock is busy
    #[arg(
        long, value_name = "WHAT", value_enum, default_value = "wait", conflicts_with = "nonblock", help_heading = WAITING
    )]
    pub busy: Busy,
    /// Lock the file itself with flock(2) too, as flock(1) does; for names that are paths
    #[arg(long, help_heading = LOCK)]
    pub flock: bool,
    /// Lock the file itself with fcntl(2) too, as dpkg does; for names that are paths
    #[arg(long, help_heading = LOCK)]
    pub fcntl: bool,
    /// If the caller runs under the lock already, run the command without acquiring it again
    #[arg(
        long, conflicts_with_all = ["ttl", "forever", "max_hold", "flock", "fcntl", "once_per", "overdue"], help_heading = LOCK
    )]
    pub reentrant: bool,
    /// Run STRING with /bin/sh -c
    #[arg(short = 'c', long = "command", value_name = "STRING", help_heading = COMMAND)]
    pub shell: Option<OsString>,
    /// End the command after this time: exit 124, or 137 if csalock had to kill it
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = COMMAND)]
    pub max_hold: Option<Duration>,
    /// Kill a command that goes on for this time after it was asked to end
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = KILL_AFTER, help_heading = COMMAND)]
    pub kill_after: Duration,
    /// Hold the lock until all processes that the command started have ended; signals and limits reach all of them
    #[arg(long, conflicts_with = "no_fork", help_heading = COMMAND)]
    pub tree: bool,
    /// Action before --ttl is over, or a lease that could not be renewed
    #[arg(long, value_name = "WHAT", value_enum, default_value = "kill", help_heading = COMMAND)]
    pub on_lost: OnLost,
    #[command(flatten)]
    pub recurrence: Recurrence,
    /// Acquire this lock too: all or none; this option may follow the name
    #[arg(long, value_name = "NAME", help_heading = LOCK)]
    pub also: Vec<OsString>,
    /// Name of a lock, or path of a file to lock; then the command and its arguments
    #[arg(value_names = ["NAME", "COMMAND"], num_args = 1.., required = true, trailing_var_arg = true)]
    pub words: Vec<OsString>,
    /// Of a call by the name `flock`, whose command and its children keep the locked file as those of flock(1) do.
    #[arg(skip)]
    pub as_flock: Option<Rc<AsFlock>>,
}

impl Run {
    /// Replaces `--busy skip` by the options that it stands for. Returns an option that says something else.
    pub(super) fn expand(&mut self) -> Result<(), &'static str> {
        let waiting = &mut self.taking.waiting;
        if self.busy != Busy::Skip {
            return Ok(());
        }
        if waiting.timeout.is_some_and(|limit| limit.0 != Some(Duration::ZERO)) {
            return Err("--timeout <DURATION>");
        }
        waiting.nonblock = true;
        // A run that is skipped counts as a success, so an exit code for it contradicts `--busy skip`.
        if waiting.conflict_exit_code.replace(0).is_some() {
            return Err("--conflict-exit-code <N>");
        }
        Ok(())
    }
}

/// Action while the lock is busy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Busy {
    /// Wait, as long as -w allows
    #[default]
    Wait,
    /// Do not run the command, and exit 0: the same as -n -E 0
    Skip,
    /// Wait, without a limit unless -w gives one, until a newer caller with this option takes the place; then exit 75
    Latest,
    /// End the command that holds the lock, by TERM and after --kill-after by KILL, and wait for the lock; a newer caller with
    /// this option takes the place
    Replace,
}

/// Action for a command whose lock is about to end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OnLost {
    /// csalock ends the command before
    #[default]
    Kill,
    /// The command goes on, and csalock prints a warning
    Warn,
}

/// Options of `run` for a command that is started again and again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct Recurrence {
    /// Run the job at most once in each hour, day, week or DURATION, on all hosts of the store
    #[arg(
        long, value_name = "SLOT", value_parser = Period::parse, conflicts_with_all = ["no_fork", "also", "shared", "slots"],
        help_heading = JOB
    )]
    pub once_per: Option<Period>,
    /// With --once-per: begin at most N more runs in a slot if runs fail or die, or inf [default: 3]
    #[arg(long, value_name = "N", requires = "once_per", value_parser = retries, help_heading = JOB)]
    pub retries: Option<u32>,
    /// With --once-per: begin no run earlier than this after the last run of the slot began
    #[arg(long, value_name = "DURATION", requires = "once_per", value_parser = parse_duration, help_heading = JOB)]
    pub retry_after: Option<Duration>,
    /// If the lock is busy, exit 0 and print nothing while the last success of the job is younger than this; complain once
    /// with exit 86 when it is older
    #[arg(
        long, value_name = "DURATION", value_parser = parse_duration,
        conflicts_with_all = ["no_fork", "also", "shared", "slots", "conflict_exit_code"], help_heading = JOB
    )]
    pub overdue: Option<Duration>,
}

/// Parses a number of runs; `u32::MAX` is no limit.
fn retries(text: &str) -> Result<u32, String> {
    match text {
        "inf" => Ok(u32::MAX),
        _ => whole(0, u32::MAX - 2)(text).map_err(|problem| format!("{problem}, or inf")),
    }
}

/// A time in which a job runs once. Hours, days and weeks are local; a week begins on Monday.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    Hour,
    Day,
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
            _ => parse_duration(text)
                .map(Period::Span)
                .map_err(|_| "is not a slot; use hour, day, week or a duration such as 10m".to_string()),
        }
    }
}
