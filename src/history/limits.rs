//! The limits of the history: its size and its age.

use std::time::Duration;

use super::Past;

/// Maximum size limit of a history, in bytes.
const MOST_BYTES: u64 = 1 << 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct HistoryLimits {
    /// Maximum size in bytes. 0: no history is written.
    pub size: u64,
    /// Maximum age. Grants that ended earlier are not shown, and are removed.
    pub age: Duration,
}

impl Default for HistoryLimits {
    fn default() -> HistoryLimits {
        HistoryLimits { size: 1 << 20, age: Duration::from_secs(30 * 24 * 3600) }
    }
}

impl HistoryLimits {
    pub fn off(self) -> HistoryLimits {
        HistoryLimits { size: 0, ..self }
    }

    /// Returns true if this grant ended late enough to be shown at the time `now` since 1970.
    pub fn keep(&self, past: &Past, now: Duration) -> bool {
        past.to.is_some_and(|to| to >= now.saturating_sub(self.age).as_millis() as u64)
    }

    pub fn are_off(&self) -> bool {
        self.size == 0
    }
}

/// Parses a size in bytes: `500000`, `512K`, `1M`, `1G`.
/// Returns the problem if the text is invalid.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|char: char| !char.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" => Some(1),
        "k" | "K" | "KiB" => Some(1 << 10),
        "M" | "MiB" => Some(1 << 20),
        "G" | "GiB" => Some(1 << 30),
        _ => None,
    };
    let number = Some(digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let number = number.and_then(|digits| digits.parse::<u64>().ok());
    match number.zip(unit).map(|(number, unit)| number.saturating_mul(unit)) {
        Some(size) if size <= MOST_BYTES => Ok(size),
        Some(_) => Err("is more than 1G".to_string()),
        None => Err("is not a size; use for example 500000, 512K or 1M".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed() {
        for (text, size) in [("0", 0), ("1", 1), ("512K", 512 << 10), ("2k", 2048), ("1M", 1 << 20), ("1GiB", 1 << 30)]
        {
            assert_eq!(parse_size(text), Ok(size), "{text}");
        }
        let far_too_much = format!("{}G", u64::MAX);
        for text in ["", "M", "-1", "+1", "1.5M", "1 M", "1T", "2G", "x1", "99999999999999999999", &far_too_much] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
