//! Durations as users type them and as csalock shows them.

use std::time::Duration;

/// The longest wait of a caller; `None` is without end. (A type of its own, so that clap does not take it for an option that
/// may be absent.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit(pub Option<Duration>);

/// Pauses that double from `min` to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The first pause.
    pub min: Duration,
    /// The longest pause.
    pub max: Duration,
}

/// Maximum duration, about 300 years: longer than any lock, and far from any overflow.
const LONGEST: Duration = Duration::from_secs(10_000_000_000);

/// Parses a duration above zero: `250ms`, `10s`, `5m`, `1h30m`, or seconds with or without a fraction.
/// Returns the problem if the text is invalid; the function never changes a value silently.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err("must be more than 0".to_string()),
        span if span < Duration::from_millis(1) => Err("must be at least 1ms".to_string()),
        span => Ok(span),
    }
}

/// Parses a timeout: a duration as for [`parse_duration`], `0` to try once, or `inf` to wait without a limit.
/// Returns the errors of [`parse_duration`].
pub fn parse_timeout(text: &str) -> Result<Limit, String> {
    match text {
        "inf" => Ok(Limit(None)),
        _ => parse(text).map(|span| Limit(Some(span))).map_err(|why| {
            why.replace("leave it out where there is to be no limit", "inf has no limit")
                .replace("or a number of seconds", "a number of seconds, or inf")
        }),
    }
}

/// Parses a polling interval `MIN..MAX`.
/// Returns the errors of [`parse_duration`], and an error if `MAX` is below `MIN`.
pub fn parse_backoff(text: &str) -> Result<Backoff, String> {
    let (min, max) = text.split_once("..").ok_or("say MIN..MAX, for example 50ms..2s")?;
    let (min, max) = (parse_duration(min)?, parse_duration(max)?);
    if max < min {
        return Err("MAX is below MIN".to_string());
    }
    Ok(Backoff { min, max })
}

fn parse(text: &str) -> Result<Duration, String> {
    let is_number = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    let span = if !text.is_empty() && text.bytes().all(is_number) {
        text.parse().ok().map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    } else if text.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase()) {
        // (humantime reads an upper-case M as a month.)
        humantime::parse_duration(text).ok()
    } else {
        None
    };
    match span {
        Some(span) if span > LONGEST => Err("is too long; leave it out where there is to be no limit".to_string()),
        Some(span) => Ok(span),
        None => Err("is not a duration; say for example 250ms, 10s, 5m, 1h30m, or a number of seconds".to_string()),
    }
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

/// Formats a time since 1970 as RFC 3339 in UTC, in seconds.
pub fn rfc3339(since_1970: Duration) -> String {
    let time = std::time::UNIX_EPOCH.checked_add(since_1970.min(LONGEST));
    time.map(|time| humantime::format_rfc3339_seconds(time).to_string()).unwrap_or_default()
}

/// Formats a time since 1970 as RFC 3339 in UTC, in milliseconds.
pub fn rfc3339_millis(since_1970: Duration) -> String {
    let time = std::time::UNIX_EPOCH.checked_add(since_1970.min(LONGEST));
    time.map(|time| humantime::format_rfc3339_millis(time).to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed() {
        for (text, millis) in [("250ms", 250), ("10s", 10_000), ("1h30m", 5_400_000), ("1.5", 1500), (".25", 250)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn invalid_durations_are_refused() {
        for text in ["", "0", "-1", "1x", "abc", "1e3", "nan", "inf", "1 s", ".", "99999999999", "0s", "+1", "1s-"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        for text in ["99999999999", "99999999999999999999", "99999999999d"] {
            assert!(parse_duration(text).is_err_and(|why| why.starts_with("is too long")), "{text}");
        }
    }

    #[test]
    fn a_limit_may_be_none_and_may_be_zero() {
        assert_eq!(parse_timeout("inf"), Ok(Limit(None)));
        assert_eq!(parse_timeout("0"), Ok(Limit(Some(Duration::ZERO))));
        assert!(parse_timeout("-1").is_err_and(|why| why.ends_with(", a number of seconds, or inf")));
        assert_eq!(parse_timeout("99999999999999999999"), Err("is too long; inf has no limit".to_string()));
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
        assert_eq!(
            (rfc3339(time), rfc3339_millis(time)),
            ("2023-11-14T22:13:20Z".into(), "2023-11-14T22:13:20.120Z".into())
        );
    }
}
