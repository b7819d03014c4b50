//! Durations as users type them and as csalock shows them.

use std::time::Duration;

use jiff::Timestamp;

/// The longest wait of a caller; `None` is without end. (A type of its own, so that clap does not take it for an option that
/// may be absent.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit(pub Option<Duration>);

/// Pauses that double from `min` to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    pub min: Duration,
    pub max: Duration,
}

/// Maximum duration, about 300 years: longer than any lock, and in nanoseconds still an `u64`.
const LONGEST: Duration = Duration::from_secs(10_000_000_000);

/// Minimum length of a lease that a keeper renews: a third of it must suffice for a request to a slow server, and etcd
/// counts whole seconds.
pub const SHORTEST_LEASE: Duration = Duration::from_secs(3);

/// Units of time: the length in milliseconds and the spellings, of which the first is the usual one. Upper case is not
/// accepted, because M means minutes to some users and months to others.
const UNITS: [(u128, &[&str]); 6] = [
    (1, &["ms", "msec", "millis"]),
    (1000, &["s", "sec", "secs", "second", "seconds"]),
    (60_000, &["m", "min", "mins", "minute", "minutes"]),
    (3_600_000, &["h", "hr", "hrs", "hour", "hours"]),
    (86_400_000, &["d", "day", "days"]),
    (604_800_000, &["w", "week", "weeks"]),
];

/// Parses a duration above zero: `250ms`, `0.5s`, `5m`, `1h30m`, `1d`, or seconds with or without a fraction.
/// An invalid text is an error; the function never changes a value silently.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    match parse(text, "or seconds", "leave it out for no limit")? {
        span if span < Duration::from_millis(1) => Err("is too short; use at least 1ms".to_string()),
        span => Ok(span),
    }
}

/// Parses the length of a lease: a duration as for [`parse_duration`].
pub fn parse_lease(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        span if span < SHORTEST_LEASE => Err("is less than three seconds".to_string()),
        span => Ok(span),
    }
}

/// Parses a timeout: a duration as for [`parse_duration`], `0` to try once, or `inf` to wait without a limit.
pub fn parse_timeout(text: &str) -> Result<Limit, String> {
    match text {
        "inf" => Ok(Limit(None)),
        _ => parse(text, "seconds, 0 or inf", "use inf for no limit").map(|span| Limit(Some(span))),
    }
}

/// Parses a polling interval `MIN..MAX`.
pub fn parse_backoff(text: &str) -> Result<Backoff, String> {
    let (min, max) = text.split_once("..").ok_or("is not a range; use MIN..MAX, for example 50ms..2s")?;
    let of = |bound: &'static str| move |why| format!("is not a range, because {bound} {why}");
    let (min, max) = (parse_duration(min).map_err(of("MIN"))?, parse_duration(max).map_err(of("MAX"))?);
    if max < min {
        return Err("is not a range; use a MAX that is not below MIN".to_string());
    }
    Ok(Backoff { min, max })
}

/// Parses a number of seconds, or numbers with units. An error is the end of a sentence that begins with the text, and the
/// next step: these other examples, or this advice for a duration that is too long.
fn parse(text: &str, others: &str, without_limit: &str) -> Result<Duration, String> {
    let malformed =
        |why: String| format!("is not a duration{why}; use for example 250ms, 0.5s, 5m, 1h30m, 1d, {others}");
    let is_digit = |char: char| char.is_ascii_digit() || char == '.';
    let (mut nanos, mut rest) = (0u128, text);
    while !rest.is_empty() || text.is_empty() {
        let (number, after) = rest.split_at(rest.find(|char| !is_digit(char)).unwrap_or(rest.len()));
        let (unit, after) = after.split_at(after.find(is_digit).unwrap_or(after.len()));
        let (whole, billionths) = decimal(number).ok_or_else(|| malformed(String::new()))?;
        let per_unit = if number == text { 1000 } else { milliseconds_of(unit).map_err(malformed)? };
        let below_one = billionths * per_unit / 1000;
        nanos = nanos.saturating_add(whole.saturating_mul(per_unit * 1_000_000)).saturating_add(below_one);
        rest = after;
    }
    if nanos > LONGEST.as_nanos() {
        Err(format!("is longer than 300 years; {without_limit}"))
    } else {
        Ok(Duration::from_nanos(nanos as u64))
    }
}

/// An error is a clause about a word that a user may have meant as a unit, or empty.
fn milliseconds_of(unit: &str) -> Result<u128, String> {
    let known = |unit: &str| UNITS.iter().find(|(_, names)| names.contains(&unit));
    match known(unit) {
        Some((millis, _)) => Ok(*millis),
        None if (1..=10).contains(&unit.len()) && unit.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
            let meant = known(&unit.to_ascii_lowercase()).map(|(_, names)| names);
            let next = meant.map(|names| format!(", {} are {}", names.last().unwrap_or(&""), names[0]));
            Err(format!(", because {unit} is not a unit{}", next.unwrap_or_default()))
        }
        None => Err(String::new()),
    }
}

/// Parses digits with at most one point, into a whole number, the largest if it is larger, and billionths.
fn decimal(text: &str) -> Option<(u128, u128)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let billionths = format!("{fraction:0<9}");
    let whole = if whole.is_empty() { 0 } else { whole.parse().unwrap_or(u128::MAX) };
    Some((whole, billionths.get(..9)?.parse().ok()?))
}

/// Formats a duration with at most two units: `12ms`, `3s`, `4m10s`, `2h5m`, `3d4h`.
pub fn shown(span: Duration) -> String {
    let seconds = span.as_secs();
    let two = |big: u64, unit: char, small: u64, rest: char| match small {
        0 => format!("{big}{unit}"),
        _ => format!("{big}{unit}{small}{rest}"),
    };
    match seconds {
        0 => format!("{}ms", span.as_millis()),
        1..60 => format!("{seconds}s"),
        60..3600 => two(seconds / 60, 'm', seconds % 60, 's'),
        3600..86_400 => two(seconds / 3600, 'h', seconds % 3600 / 60, 'm'),
        _ => two(seconds / 86_400, 'd', seconds % 86_400 / 3600, 'h'),
    }
}

/// Formats a time since 1970 as RFC 3339 in UTC, in milliseconds.
pub fn rfc3339_millis(since_1970: Duration) -> String {
    format!("{:.3}", timestamp(since_1970))
}

/// At most the last possible time, because untrusted input may contain any.
pub fn timestamp(since_1970: Duration) -> Timestamp {
    let millis = i64::try_from(since_1970.as_millis()).ok();
    millis.and_then(|millis| Timestamp::from_millisecond(millis).ok()).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed() {
        for (text, millis) in [
            ("250ms", 250),
            ("10s", 10_000),
            ("1h30m", 5_400_000),
            ("1.5", 1500),
            (".25", 250),
            ("0.5s", 500),
            ("1.5h", 5_400_000),
            ("1d", 86_400_000),
            ("2weeks", 1_209_600_000),
            ("1m0.25s", 60_250),
            ("0.1d", 8_640_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn invalid_durations_are_refused() {
        for text in ["", "0", "-1", "1x", "abc", "1e3", "nan", "inf", "1 s", ".", "99999999999", "0s", "+1", "1s-"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        let too_long = "is longer than 300 years; leave it out for no limit";
        for text in ["99999999999", "99999999999999999999", "99999999999d", &"9".repeat(1000), "10000000000.5s1ms"] {
            assert_eq!(parse_duration(text), Err(too_long.to_string()), "{text}");
        }
        for text in ["0", "0s", "0.9ms", ".0"] {
            assert_eq!(parse_duration(text), Err("is too short; use at least 1ms".to_string()), "{text}");
        }
        for (text, why) in [
            ("5M", ", because M is not a unit, minutes are m"),
            ("1h5M", ", because M is not a unit, minutes are m"),
            ("10S", ", because S is not a unit, seconds are s"),
            ("2H", ", because H is not a unit, hours are h"),
            ("1Day", ", because Day is not a unit, days are d"),
            ("1y", ", because y is not a unit"),
            ("1e3", ", because e is not a unit"),
            ("1h30", ""),
            ("1..5s", ""),
            ("s", ""),
            ("-1", ""),
            ("1 s", ""),
        ] {
            let said = format!("is not a duration{why}; use for example 250ms, 0.5s, 5m, 1h30m, 1d, or seconds");
            assert_eq!(parse_duration(text), Err(said), "{text}");
        }
    }

    #[test]
    fn a_limit_may_be_none_and_may_be_zero() {
        assert_eq!(parse_timeout("inf"), Ok(Limit(None)));
        assert_eq!(parse_timeout("0"), Ok(Limit(Some(Duration::ZERO))));
        assert!(parse_timeout("-1").is_err_and(|why| why.ends_with("1d, seconds, 0 or inf")));
        assert_eq!(
            parse_timeout("99999999999999999999"),
            Err("is longer than 300 years; use inf for no limit".to_string())
        );
    }

    #[test]
    fn a_backoff_rises() {
        assert!(parse_backoff("10ms..1s").is_ok());
        for text in ["1s..10ms", "1s", "..", "0..1s"] {
            assert!(parse_backoff(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_shown_with_two_units_at_most() {
        for (seconds, text) in [(3, "3s"), (60, "1m"), (250, "4m10s"), (7500, "2h5m"), (273_600, "3d4h")] {
            assert_eq!(shown(Duration::from_secs(seconds)), text);
        }
        assert_eq!(shown(Duration::from_millis(12)), "12ms");
        let time = Duration::from_millis(1_700_000_000_120);
        assert_eq!(rfc3339_millis(time), "2023-11-14T22:13:20.120Z");
    }
}
