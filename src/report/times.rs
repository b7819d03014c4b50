//! Points in time as people read and type them: in the local zone, or in UTC.

use std::time::Duration;

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, ZonedDateTime};

use engine::environment::LocalZone;
use lock::duration::{parse_duration, timestamp};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Zone {
    Local,
    Utc,
}

impl Zone {
    fn rules(self) -> TimeZone {
        match self {
            Zone::Local => LocalZone::of_this_process().rules(),
            Zone::Utc => TimeZone::UTC,
        }
    }

    fn at(self, time: Duration) -> ZonedDateTime {
        timestamp(time).to_zoned_datetime(self.rules())
    }

    /// The format is that of strftime(3).
    pub(crate) fn format(self, time: Duration, format: &str) -> String {
        self.at(time).strftime(format).to_string()
    }

    /// `2026-11-21 02:13:05 CET`.
    pub(crate) fn full(self, time: Duration) -> String {
        self.format(time, "%F %T %Z")
    }

    /// RFC 3339, with the offset from UTC: `2026-11-21T02:13:05+01:00`.
    pub(crate) fn word(self, time: Duration) -> String {
        self.format(time, if self == Zone::Utc { "%FT%TZ" } else { "%FT%T%:z" })
    }

    /// Leaves out the parts of the date that it shares with `now`: `02:13:05`, `11-20 02:13:05`.
    pub(crate) fn brief(self, time: Duration, now: Duration) -> String {
        let today = self.at(now).date();
        let format = match self.at(time).date() {
            date if date == today => "%T",
            date if date.year() == today.year() => "%m-%d %T",
            _ => "%F %T",
        };
        self.format(time, format)
    }
}

/// A time that a user typed: some time ago, or a day, minute or second. Days and minutes have a length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moment {
    Ago(Duration),
    /// A time whose zone was typed too, in seconds since 1970.
    Exact(u64),
    /// A day, or a time of a day and its length: milliseconds of a minute or, if seconds were typed, of a second. Both are
    /// in the user's zone.
    Civil(Day, Option<(Time, u64)>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Day {
    /// No day was typed: today, or yesterday if the time of day is still to come.
    Last,
    Before(i32),
    Date(Date),
}

impl Moment {
    pub(crate) fn parse(text: &str) -> Result<Moment, String> {
        const PROBLEM: &str = "is not a time or a duration; use for example 12h, 02:13, yesterday, 2026-11-21, \
                               \"2026-11-21 02:13\" or 2026-11-21T02:13:05Z";
        if text == "now" {
            return Ok(Moment::Ago(Duration::ZERO));
        }
        if let Some(moment) = civil_moment(text) {
            return Ok(moment);
        }
        let is_hour = text.len() < 3 && text.parse::<u8>().is_ok_and(|hour| hour <= 24);
        if is_hour {
            return Err(format!(
                "is not clear; use {text:0>2}:00 for a time of day, or {text}s or {text}h for a duration"
            ));
        }
        if text.ends_with("am") || text.ends_with("pm") {
            return Err(PROBLEM.to_string());
        }
        let is_duration = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
        if is_duration && text.starts_with(|char: char| char.is_ascii_digit() || char == '.') {
            return parse_duration(text).map(Moment::Ago);
        }
        let exact = text.parse::<Timestamp>().ok().and_then(|time| u64::try_from(time.as_second()).ok());
        exact.map(Moment::Exact).ok_or_else(|| PROBLEM.to_string())
    }

    /// First and last millisecond of this moment since 1970, as seen at `now`.
    pub(crate) fn span(&self, zone: Zone, now: Duration) -> (u64, u64) {
        let today = zone.at(now).date();
        match *self {
            Moment::Ago(span) => {
                let at = now.saturating_sub(span).as_millis() as u64;
                (at, at)
            }
            Moment::Exact(second) => (second * 1000, second * 1000 + 999),
            Moment::Civil(Day::Date(date), clock) => span_of(date, clock, zone),
            Moment::Civil(Day::Before(days), clock) => span_of(today.saturating_sub(days.days()), clock, zone),
            Moment::Civil(Day::Last, clock) => match span_of(today, clock, zone) {
                (start, _) if start > now.as_millis() as u64 => span_of(today.saturating_sub(1.day()), clock, zone),
                of_today => of_today,
            },
        }
    }
}

fn civil_moment(text: &str) -> Option<Moment> {
    let (day, clock) = match text.split_once([' ', 'T']) {
        Some((day, clock)) => (day, Some(clock)),
        None if text.contains(':') => ("", Some(text)),
        None => (text, None),
    };
    let day = match day {
        "" => Day::Last,
        "today" => Day::Before(0),
        "yesterday" => Day::Before(1),
        // (A date without its hyphens is a number of seconds.)
        date if date.len() == 10 => Day::Date(date.parse().ok()?),
        _ => return None,
    };
    let Some(clock) = clock else { return (day != Day::Last).then_some(Moment::Civil(day, None)) };
    // An hour may have one digit.
    let clock = if clock.as_bytes().get(1) == Some(&b':') { format!("0{clock}") } else { clock.to_string() };
    let length = match clock.len() {
        5 => 60_000,
        8 => 1000,
        _ => return None,
    };
    (clock.as_bytes()[2] == b':').then_some(Moment::Civil(day, Some((clock.parse().ok()?, length))))
}

/// A time that the change to summer time skips means the time after the change.
pub(crate) fn millis_of(at: DateTime, zone: &TimeZone) -> u64 {
    let time = zone.to_timestamp(at).unwrap_or(Timestamp::MAX);
    u64::try_from(time.as_millisecond()).unwrap_or(0)
}

fn span_of(date: Date, clock: Option<(Time, u64)>, zone: Zone) -> (u64, u64) {
    let millis = |at: DateTime| millis_of(at, &zone.rules());
    let Some((time, length)) = clock else {
        let start = date.to_datetime(Time::midnight());
        return (millis(start), millis(start.saturating_add(1.day())).saturating_sub(1));
    };
    let start = millis(date.to_datetime(time));
    (start, start + length - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-21T12:00:00Z.
    const NOON: Duration = Duration::from_secs(1_795_262_400);

    #[test]
    fn times_are_shown_as_far_as_they_are_not_obvious() {
        let ago = |hours: u64| NOON - Duration::from_secs(3600 * hours);
        assert_eq!(Zone::Utc.full(NOON), "2026-11-21 12:00:00 UTC");
        assert_eq!(Zone::Utc.word(NOON), "2026-11-21T12:00:00Z");
        let brief = |hours| Zone::Utc.brief(ago(hours), NOON);
        assert_eq!([brief(0), brief(13), brief(9000)], ["12:00:00", "11-20 23:00:00", "2025-11-11 12:00:00"]);
        for strange in [Duration::ZERO, Duration::MAX] {
            assert_eq!(Zone::Utc.full(strange).len(), "2026-11-21 12:00:00 UTC".len());
        }
    }

    #[test]
    fn a_typed_time_is_the_whole_of_what_was_typed() {
        let span = |text: &str| {
            let (start, end) = Moment::parse(text).unwrap().span(Zone::Utc, NOON);
            let shown = |at| Zone::Utc.full(Duration::from_millis(at)).replace(" UTC", "");
            (shown(start), shown(end))
        };
        for (text, start, end) in [
            ("12h", "2026-11-21 00:00:00", "2026-11-21 00:00:00"),
            ("90", "2026-11-21 11:58:30", "2026-11-21 11:58:30"),
            ("02:13", "2026-11-21 02:13:00", "2026-11-21 02:13:59"),
            ("2:13", "2026-11-21 02:13:00", "2026-11-21 02:13:59"),
            ("now", "2026-11-21 12:00:00", "2026-11-21 12:00:00"),
            ("02:13:05", "2026-11-21 02:13:05", "2026-11-21 02:13:05"),
            ("12:00", "2026-11-21 12:00:00", "2026-11-21 12:00:59"),
            ("12:01", "2026-11-20 12:01:00", "2026-11-20 12:01:59"),
            ("today", "2026-11-21 00:00:00", "2026-11-21 23:59:59"),
            ("yesterday", "2026-11-20 00:00:00", "2026-11-20 23:59:59"),
            ("yesterday 02:13", "2026-11-20 02:13:00", "2026-11-20 02:13:59"),
            ("2026-11-19", "2026-11-19 00:00:00", "2026-11-19 23:59:59"),
            ("2026-11-19 02:13", "2026-11-19 02:13:00", "2026-11-19 02:13:59"),
            ("2026-11-19T02:13:05", "2026-11-19 02:13:05", "2026-11-19 02:13:05"),
            ("2026-11-19T02:13:05Z", "2026-11-19 02:13:05", "2026-11-19 02:13:05"),
            ("2026-11-19T02:13:05+01:00", "2026-11-19 01:13:05", "2026-11-19 01:13:05"),
        ] {
            assert_eq!(span(text), (start.to_string(), end.to_string()), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in
            ["", "2:1", "24:00", "02:60", "tomorrow", "2026-13-01", "2026-11-21 ", "11-21", "x", "-1h", "18", "3am"]
        {
            assert!(Moment::parse(text).is_err(), "{text}");
        }
        assert!(Moment::parse("5x").is_err_and(|why| why.starts_with("is not a duration")));
    }
}
