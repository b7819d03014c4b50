//! Runs of a job that must succeed once per slot, or at least once in each span (`--once-per`, `--overdue`). The rules are
//! in [`lock`]'s `job.rs`.

use std::time::Duration;

use jiff::ToSpan;
use jiff::civil::{Date, Time, Weekday};
use jiff::tz::TimeZone;

use crate::cli::{Period, Recurrence, Run};
use crate::command::acquire::{Acquisition, TO_LOOK};
use crate::command::context::{Context, LockRef, eprint_line};
use crate::exit::Exit;
use crate::report::{RefusalReport, RefusedLock, Reporter, Zone, in_future, millis_of, name_and_store, overdue};
use engine::environment::LocalZone;
use engine::{AcquireResult, Engine, OpenLockSet};
use lock::duration::timestamp;
use lock::error::{Error, ErrorKind, Result};
use lock::{BeginRun, Complain, Complaint, GiveUp, HandleHash, Refusal, RunStart, Runs, Success};
use store::Call;

/// Number of runs after the first one in a slot, if `--retries` is not given.
const RETRIES: u32 = 3;

/// Maximum time that a store may take to answer whether to report that all runs are used up.
const TO_GIVE_UP: Duration = Duration::from_secs(10);

pub(super) struct Recurring<'a> {
    context: &'a Context,
    options: &'a Run,
    target: &'a LockRef,
    proof: HandleHash,
}

impl<'a> Recurring<'a> {
    /// The job has one lock, whose grant has this proof.
    pub(super) fn of(context: &'a Context, options: &'a Run, target: &'a LockRef, proof: HandleHash) -> Option<Self> {
        (options.recurrence != Recurrence::default()).then_some(Recurring { context, options, target, proof })
    }

    pub(super) fn has_slots(&self) -> bool {
        self.options.recurrence.once_per.is_some()
    }

    /// Begin of the slot, in milliseconds since 1970. `now` is a time of the store.
    fn slot(&self, now: Duration) -> Option<u64> {
        self.options.recurrence.once_per.map(|period| begin_of(period, now, &LocalZone::of_this_process().rules()))
    }

    /// The lock of a job that has succeeded in this slot need not be acquired.
    pub(super) fn is_done(&self, engine: &Engine) -> Result<bool> {
        if !self.has_slots() {
            return Ok(false);
        }
        let job = engine.record(&self.target.name)?.job;
        let Some(job) = job.filter(|job| job.success.as_ref().is_some_and(|success| success.slot.is_some())) else {
            return Ok(false);
        };
        let now = engine.time()?;
        let Some(success) = job.success_at(millis(now)) else { return Ok(false) };
        let is_done = success.slot >= self.slot(now);
        if is_done {
            engine.settle()?;
            self.tell_done(&success);
        }
        Ok(is_done)
    }

    /// Begins the run under the grant, or returns the exit of csalock if the command must not run.
    pub(super) fn begin(&self, engine: &Engine) -> Result<Option<Exit>> {
        let (target, recurrence, now) = (self.target, &self.options.recurrence, engine.time()?);
        let request = BeginRun {
            credentials: engine.by_proof(self.proof)?,
            slot: self.slot(now),
            most: self.most(),
            pause: recurrence.retry_after.map(millis).unwrap_or_default(),
            promise: recurrence.overdue.map(millis),
            now: millis(now),
        };
        match engine.apply(&target.name, &request)? {
            Ok(RunStart::Begun(None)) => return Ok(None),
            Ok(RunStart::Begun(Some(doubtful))) => {
                let (lock, success) = (name_and_store(target), in_future(&doubtful, Zone::Local));
                self.context.common.note(&format!("lock {lock}: {success}; the job runs"));
                return Ok(None);
            }
            Ok(RunStart::Done(success)) => self.tell_done(&success),
            Ok(RunStart::UsedUp(runs)) => {
                if !self.give_up(engine)? {
                    let runs = if runs == 1 { "one run".to_string() } else { format!("{runs} runs") };
                    self.tell(&format!("its job has not succeeded in this slot after {runs}"));
                }
            }
            Ok(RunStart::TooEarly(began, next)) => {
                let [began, next] = [began, next].map(|at| Zone::Local.full(Duration::from_millis(at)));
                self.tell(&format!("its last run in this slot began at {began}, and the next may at {next}"));
            }
            Err(not_holder) => {
                let reporter = Reporter::new(engine);
                let refusal = RefusedLock::new(target, &reporter).not_holder(&not_holder);
                self.context.common.note(&refusal.to_string());
                return Ok(Some(ErrorKind::Lost.into()));
            }
        }
        Ok(Some(Exit::Done))
    }

    fn most(&self) -> u32 {
        self.options.recurrence.retries.unwrap_or(RETRIES).saturating_add(1)
    }

    /// Says that all runs of the slot have failed, unless a caller has said so. The exit code does not tell it, so
    /// `--quiet` does not hide it: cron(8) mails it once. Returns true if this caller has said it.
    pub(super) fn give_up(&self, engine: &Engine) -> Result<bool> {
        let (by, most) = (self.proof, self.most());
        if !self.has_slots() || most == Runs::UNLIMITED {
            return Ok(false);
        }
        // The command has ended, and the exit of csalock must not wait for a store that does not answer.
        let engine = engine.during(Call { until: Some(engine.host().boottime() + TO_GIVE_UP), ..engine.call() });
        let Some(runs) = engine.apply(&self.target.name, &GiveUp { by, most, now: millis(engine.time()?) })? else {
            return Ok(false);
        };
        let lock = name_and_store(self.target);
        let runs = if runs == 1 { "the only run".to_string() } else { format!("all {runs} runs") };
        eprint_line(&format!(
            "lock {lock}: {runs} of its job in this slot failed, so it does not run again before the next slot; to run it \
             now, use more --retries"
        ));
        Ok(true)
    }

    /// With `--overdue` a busy lock is silent while the job has succeeded in time.
    pub(super) fn refused(
        &self,
        acquisition: &Acquisition<'_>,
        opened: &OpenLockSet<'_>,
        result: &AcquireResult,
    ) -> anyhow::Result<Exit> {
        let (AcquireResult::Refused(_, refusal @ (Refusal::Busy(_) | Refusal::Replaced(_))), Some(most)) =
            (result, self.options.recurrence.overdue)
        else {
            return acquisition.end(opened, result);
        };
        let (engine, target, reporter) = (opened.engine(0), self.target, Reporter::new(opened.engine(0)));
        // The wait is over.
        let engine = engine.during(Call::until(engine.host().boottime() + TO_LOOK));
        let now = engine.time()?;
        let complain = Complain { by: self.proof, span: millis(most), now: millis(now) };
        if engine.apply(&target.name, &complain)? != Complaint::Due {
            return Ok(Exit::Done);
        }
        let job = engine.record(&target.name)?.job.unwrap_or_default();
        let busy = RefusedLock::new(target, &reporter).refusal(refusal);
        let message = format!("{}; {}", busy.message, overdue(&job, now, Zone::Local));
        // A wait does not help a job that is late already: its holder does.
        let hint = format!("`csalock status {}` says how its holder ends", target.shell_arg);
        let refusal = RefusalReport { kind: ErrorKind::Overdue, message, hint, ..busy };
        self.context.common.note(&refusal.to_string());
        Ok(refusal.kind.into())
    }

    fn tell_done(&self, success: &Success) {
        let host = lock::name::escape(success.host.as_bytes());
        let at = Zone::Local.full(Duration::from_millis(success.at));
        self.tell(&format!("its job has succeeded on {host} at {at}, in this slot"));
    }

    /// Says why the command is not run.
    fn tell(&self, why: &str) {
        self.context.common.note_step(|| format!("lock {}: {why}; nothing was run", name_and_store(self.target)));
    }
}

/// Slots that begin by the local time need its zone.
pub(super) fn check_zone(options: &Run) -> Result<()> {
    if !matches!(options.recurrence.once_per, Some(Period::Hour | Period::Day | Period::Week)) {
        return Ok(());
    }
    let zone = LocalZone::of_this_process();
    if zone.is_installed() {
        return Ok(());
    }
    let what = format!("--once-per: {} says {}, which is not an installed time zone", zone.source, zone.name);
    Err(Error::invalid(what, "install tzdata, or set TZ right, alike on all hosts"))
}

fn millis(span: Duration) -> u64 {
    span.as_millis() as u64
}

/// In milliseconds since 1970.
fn begin_of(period: Period, now: Duration, zone: &TimeZone) -> u64 {
    let time = timestamp(now);
    let today = zone.to_datetime(time).date();
    let midnight = |date: Date| millis_of(date.to_datetime(Time::midnight()), zone);
    match period {
        Period::Span(span) => now.as_millis() as u64 / millis(span) * millis(span),
        // In zones that are half an hour off, hours begin at the full hour of the clock on the wall.
        Period::Hour => {
            let offset = i64::from(zone.to_offset(time).seconds());
            u64::try_from((time.as_second() + offset).div_euclid(3600) * 3600 - offset).unwrap_or(0) * 1000
        }
        Period::Day => midnight(today),
        Period::Week => {
            let days = today.weekday().since(Weekday::Monday);
            midnight(today.saturating_sub(i32::from(days).days()))
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    /// Returns the begin of the slot that contains this time, as local time.
    fn begin(period: Period, zone: &str, now: &str) -> String {
        let zone = TimeZone::posix(zone).unwrap();
        let now: Timestamp = now.parse().unwrap();
        let begin = begin_of(period, Duration::from_secs(now.as_second() as u64), &zone);
        zone.to_datetime(Timestamp::from_millisecond(begin as i64).unwrap()).to_string()
    }

    #[test]
    fn slots_begin_at_full_hours_days_and_weeks_of_the_zone() {
        let europe = "CET-1CEST,M3.5.0,M10.5.0/3";
        assert_eq!(begin(Period::Hour, europe, "2026-11-21T02:13:05Z"), "2026-11-21T03:00:00");
        assert_eq!(begin(Period::Hour, "IST-5:30", "2026-11-21T02:13:05Z"), "2026-11-21T07:00:00");
        assert_eq!(begin(Period::Day, europe, "2026-11-20T23:30:00Z"), "2026-11-21T00:00:00");
        assert_eq!(begin(Period::Day, "EST5", "2026-11-21T04:59:59Z"), "2026-11-20T00:00:00");
        // 2026-11-21 is a Saturday.
        assert_eq!(begin(Period::Week, europe, "2026-11-21T12:00:00Z"), "2026-11-16T00:00:00");
        assert_eq!(begin(Period::Week, europe, "2026-11-15T23:00:00Z"), "2026-11-16T00:00:00");
        // The day of the change to winter time has 25 hours.
        assert_eq!(begin(Period::Day, europe, "2026-10-25T22:59:59Z"), "2026-10-25T00:00:00");
        assert_eq!(
            begin(Period::Span(Duration::from_secs(600)), "UTC0", "2026-11-21T02:13:05Z"),
            "2026-11-21T02:10:00"
        );
    }
}
