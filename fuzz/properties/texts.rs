//! Properties of typed text and of the lines of a history: names, patterns, durations, sizes, URLs, lines.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use super::paper::is_harmless;
use super::record::sealed;
use crate::glob;
use crate::report::{Moment, OutputStyle, Zone, json, timeline};
use lock::duration::{parse_backoff, parse_duration, parse_timeout, rfc3339_millis, shown as span_shown};
use lock::history::{Past, parse_size};
use lock::name::{check, escape, escape_path, shell_quote};

/// Checks that a URL is refused, or means a store whose own URL means the same store.
pub(super) fn url(bytes: &[u8]) {
    let Ok(found) = engine::location(OsStr::from_bytes(bytes), Path::new("/here")).map_err(refused) else { return };
    let again = engine::location(&found.url(), Path::new("/elsewhere"));
    assert_eq!(again, Ok(found), "its URL means something else");
}

fn refused(error: lock::error::Error) {
    assert!(is_harmless(&error.to_string()), "{error:?}");
}

/// Checks that a duration is refused, or that its display form is not longer and displays unchanged.
pub(super) fn duration(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(span) = parse_duration(text) {
        assert!(span >= Duration::from_millis(1));
        let short = span_shown(span);
        let read = parse_duration(&short).expect("what is shown can be typed");
        assert!(read <= span && span_shown(read) == short, "{span:?} {short} {read:?}");
        rfc3339_millis(span);
        assert_eq!(parse_timeout(text).map(|limit| limit.0), Ok(Some(span)));
    }
    if let Ok(backoff) = parse_backoff(text) {
        assert!(Duration::ZERO < backoff.min && backoff.min <= backoff.max);
    }
    if let Ok(moment) = Moment::parse(text) {
        let (start, end) = moment.span(Zone::Utc, Duration::from_secs(1_800_000_000));
        assert!(start <= end, "{moment:?}");
    }
    if let Ok(size) = parse_size(text) {
        assert!(size <= 1 << 30);
    }
}

/// Checks names and patterns: the display is harmless, quoted names read back, and every pattern match ends. The first
/// line is the pattern, the rest is the name.
pub(super) fn name(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(4 << 10)];
    let (pattern, name) = bytes.split_at(bytes.iter().position(|byte| *byte == b'\n').unwrap_or(0));
    let matches = glob::matches(pattern, name);
    if !glob::is_pattern(pattern) {
        assert_eq!(matches, pattern == name);
    }
    assert!(glob::matches(b"*", name) && glob::matches(&[pattern, b"*"].concat(), &[name, b"x"].concat()) || !matches);
    for bytes in [pattern, name, bytes] {
        let error = check(bytes).err();
        let texts = [escape(bytes), shell_quote(bytes), escape_path(Path::new(OsStr::from_bytes(bytes)))];
        assert!(texts.iter().all(|text| is_harmless(text)) && error.iter().all(|error| is_harmless(error.message())));
        assert_eq!(as_a_shell_reads(&shell_quote(bytes)), bytes, "{}", shell_quote(bytes));
        if error.is_none() {
            super::files::file_name_maps_back(bytes);
        }
    }
}

/// A word as bash, zsh, mksh and busybox read it: bare, in single quotes, or in `$'...'`.
fn as_a_shell_reads(word: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = word;
    while !rest.is_empty() {
        if let Some(c) = rest.strip_prefix("$'") {
            let mut chars = c.char_indices();
            let end = loop {
                match chars.next().expect("it is closed") {
                    (at, '\'') => break at,
                    (_, '\\') => match chars.next().expect("something is escaped").1 {
                        'n' => bytes.push(b'\n'),
                        't' => bytes.push(b'\t'),
                        'r' => bytes.push(b'\r'),
                        'x' => {
                            let mut digit = || chars.next().and_then(|(_, char)| char.to_digit(16)).expect("a digit");
                            bytes.push((digit() * 16 + digit()) as u8);
                        }
                        plain @ ('\\' | '\'') => bytes.push(plain as u8),
                        other => panic!("\\{other} means something else in each shell"),
                    },
                    (_, char) => bytes.extend(char.to_string().bytes()),
                }
            };
            rest = &c[end + 1..];
        } else if let Some(plain) = rest.strip_prefix('\'') {
            let end = plain.find('\'').expect("it is closed");
            bytes.extend(&plain.as_bytes()[..end]);
            rest = &plain[end + 1..];
        } else if let Some(quote) = rest.strip_prefix("\\'") {
            bytes.push(b'\'');
            rest = quote;
        } else {
            let first = rest.as_bytes()[0];
            assert!(first.is_ascii_alphanumeric() || b"_./-+=@%:,".contains(&first), "{word}");
            bytes.push(first);
            rest = &rest[1..];
        }
    }
    bytes
}

/// Checks that a line of history is skipped, or equals the line of its past grant and is displayed harmlessly.
pub(super) fn history(bytes: &[u8]) {
    let sealed = sealed("past", String::from_utf8_lossy(bytes).replace('\n', " ").as_bytes());
    for line in [bytes, &sealed] {
        let Some(past) = Past::read(line) else { continue };
        let written = past.line().into_bytes();
        assert!(line.ends_with(&written), "{:?}", past.line());
        let document = json(&json::past(&past, past.late));
        assert!(is_harmless(&document), "{document:?}");
        let style = OutputStyle { colour: false, width: Some(80), zone: Zone::Utc };
        let lines = timeline(&[past], Duration::ZERO, Duration::from_millis(1_800_000_000_000), "here", style);
        assert!(lines.lines().all(is_harmless), "{lines:?}");
    }
}
