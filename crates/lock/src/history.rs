//! Past grants: the holder, the times of start and end, the time of waiting, and the reason for the end.
//!
//! Each grant is a line ([`Past::line`]) that a store appends to its history, within [`HistoryLimits`]. The history is
//! for people: no rule of locking depends on it, and a line may be lost. Writing a line needs no lock and no wait.
//!
//! A past grant as a line of JSON:
//!
//! ```text
//! {"past":3,"sum":"0123456789abcdef","name":"nightly","token":17, … ,"how":"released"}
//! ```
//!
//! The line is sealed as a record is. The reader skips a torn or overwritten line. The beginning of a line cannot
//! appear elsewhere in a line, because JSON escapes `"` in texts. A torn line therefore never hides the next line.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::line::{open, seal};
use crate::text::{self, is_default};
use crate::{EndReason, EndedGrant, Grant, Mode, Owner};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    #[serde(skip)]
    pub name: Vec<u8>,
    pub token: Option<u64>,
    pub mode: Mode,
    #[serde(default, skip_serializing_if = "is_default")]
    pub slot: u32,
    pub holder: Who,
    /// In milliseconds since 1970, as [`Grant::since`].
    pub from: u64,
    /// In milliseconds since 1970. `None`: the lock is still held, or the end was not recorded.
    pub to: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub waited: u64,
    pub how: Option<EndReason>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub broken_by: Option<Who>,
    /// `None`: no process did, or the lock is still held.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ended_by: Option<EndedBy>,
    /// This grant had ended before, and `to` is the end of its holder's work: the holder released it only then.
    #[serde(default, skip_serializing_if = "is_default")]
    pub late: bool,
    /// How the command of `run` ended. `None`: there was no command, or its supervisor did not see its end.
    #[serde(default, skip_serializing_if = "is_default")]
    pub run: Option<RunEnd>,
}

/// A process that asked a holder to end, as in [`crate::EndRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedBy {
    pub who: Who,
    #[serde(default, skip_serializing_if = "is_default")]
    pub replaces: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEnd {
    /// As the shell counts: 128 + N after signal N.
    pub exit: u8,
    #[serde(default, skip_serializing_if = "is_default")]
    pub signal: Option<i32>,
    /// How long the command ran, in milliseconds.
    pub ran: u64,
}

/// How the holder that releases a lock has used it, as far as the caller knows.
#[derive(Debug, Clone, Copy)]
pub enum Use {
    Unknown,
    /// `run` called a command, which has ended.
    Run(RunEnd),
    /// `run` called no command. The history has such a grant, which is not a hold, only if a process ended its holder.
    Nothing,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Who {
    pub pid: Option<i32>,
    #[serde(with = "text")]
    pub host: String,
    pub uid: u32,
    #[serde(with = "text")]
    pub command: Vec<u8>,
    #[serde(default, with = "text", skip_serializing_if = "is_default")]
    pub label: Option<Vec<u8>>,
}

impl Who {
    /// Describes an owner by the process id that counts.
    pub fn new(owner: &Owner, pid: Option<i32>) -> Who {
        let Owner { host, uid, command, label, .. } = owner.clone();
        Who { pid, host, uid, command, label }
    }
}

impl Past {
    pub fn held(name: &[u8], grant: &Grant, pid: Option<i32>) -> Past {
        Past {
            name: name.to_vec(),
            token: grant.token,
            mode: grant.mode,
            slot: grant.slot,
            holder: Who::new(&grant.owner, pid),
            from: grant.since,
            waited: grant.waited,
            ..Past::default()
        }
    }

    /// The holder worked on beside another one, which may not share the lock with it.
    pub fn overlaps(&self, other: &Past) -> bool {
        let is_other = self.name == other.name && !self.is_same_grant(other) && self.token < other.token;
        let excludes = self.mode != other.mode || self.mode == Mode::Exclusive;
        self.late && is_other && excludes && self.to.is_some_and(|to| other.from < to)
    }

    /// Describes a grant that ended at `now` or earlier.
    pub fn ended(name: &[u8], ending: &EndedGrant, pid: Option<i32>, now: u64) -> Past {
        let to = match (ending.grant.lifetime.lease(), ending.reason) {
            // The lease expired at its own end, even if csalock noticed it later.
            (Some(lease), EndReason::Expired) => lease.wall.min(now),
            _ => now,
        };
        Past { to: Some(to), how: Some(ending.grant.shown(ending.reason)), ..Past::held(name, &ending.grant, pid) }
    }

    /// This may be the last run of its job: it failed, or the end of its command is known.
    pub fn is_run(&self) -> bool {
        self.run.is_some() || !matches!(self.how, Some(EndReason::Released | EndReason::Ended))
    }

    pub fn is_same_grant(&self, other: &Past) -> bool {
        let which = |past: &Past| (past.token, past.slot, past.from, past.holder.pid);
        which(self) == which(other) && self.name == other.name
    }
}

const KIND: &str = "past";

const BEGIN: &str = "{\"past\":";

impl Past {
    pub fn line(&self) -> String {
        String::from_utf8(seal(KIND, &self.name, self)).expect("a line is ASCII")
    }

    /// In milliseconds since 1970, as all times here: when the caller began to wait.
    pub fn came(&self) -> u64 {
        self.from.saturating_sub(self.waited)
    }

    /// For an unknown end, the time when the grant began.
    pub fn until(&self, now: u64) -> u64 {
        match (self.to, self.how) {
            (Some(to), _) => to,
            (None, None) => now,
            (None, Some(_)) => self.from,
        }
    }

    /// `None` if the line is incomplete or not a past grant.
    pub fn read(line: &[u8]) -> Option<Past> {
        let line = String::from_utf8_lossy(line);
        let (name, past) = open::<Past>(KIND, &line[line.rfind(BEGIN)?..]).ok()?;
        Some(Past { name, ..past })
    }
}

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

    /// A grant that ended late enough is shown at the time `now` since 1970.
    pub fn keep(&self, past: &Past, now: Duration) -> bool {
        past.to.is_some_and(|to| to >= now.saturating_sub(self.age).as_millis() as u64)
    }

    pub fn are_off(&self) -> bool {
        self.size == 0
    }
}

/// Parses a size in bytes: `500000`, `512K`, `1M`, `1G`.
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
    use crate::{EndReason, Mode};

    fn full() -> Past {
        let holder = Who {
            pid: Some(4711),
            host: "a host".into(),
            uid: 1000,
            command: b"sh -c '{\"past\":3,\"sum\" %,=\n\xff'".to_vec(),
            label: Some(Vec::new()),
        };
        let breaker = Who { pid: None, host: String::new(), uid: 0, command: Vec::new(), label: None };
        Past {
            name: b"a\nb {\"past\":3,".to_vec(),
            token: Some(7),
            mode: Mode::Slot,
            slot: 2,
            holder,
            from: 8,
            to: Some(9),
            waited: 10,
            how: Some(EndReason::Broken),
            ended_by: Some(EndedBy { who: Who { pid: Some(5), ..breaker.clone() }, replaces: true }),
            broken_by: Some(breaker),
            late: false,
            run: Some(RunEnd { exit: 137, signal: Some(9), ran: 11 }),
        }
    }

    #[test]
    fn a_line_reads_back() {
        let bare = Past {
            token: None,
            to: None,
            waited: 0,
            how: None,
            broken_by: None,
            ended_by: None,
            late: true,
            run: None,
            ..full()
        };
        for past in [full(), bare] {
            let line = past.line();
            assert_eq!((line.matches('\n').count(), line.ends_with('\n')), (1, true));
            assert_eq!(Past::read(line.as_bytes()), Some(past));
        }
    }

    #[test]
    fn no_single_changed_or_missing_byte_is_believed() {
        let line = full().line().into_bytes();
        for at in 0..line.len() {
            let mut changed = line.clone();
            changed[at] ^= 1;
            // The checksum does not cover the number of the format.
            let same = changed.starts_with(b"{\"past\":2,").then(full);
            assert_eq!(Past::read(&changed), same, "changed at {at}");
            assert_eq!(Past::read(&line[..at]), None, "cut at {at}");
        }
        for strange in [&b""[..], b"\n", b"{\"past\":", b"{\"past\":3,\"sum\":\"", b"\0\0\0", &[0xff; 100]] {
            assert_eq!(Past::read(strange), None);
        }
    }

    #[test]
    fn a_torn_line_does_not_damage_the_next() {
        let line = full().line().into_bytes();
        for at in 0..line.len() {
            let torn = [&line[..at], &line].concat();
            assert_eq!(Past::read(&torn), Some(full()), "torn at {at}");
        }
        assert_eq!(Past::read(&[&[0; 4096][..], &line].concat()), Some(full()));
    }

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
