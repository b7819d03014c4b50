//! The output of `audit` for people and for programs.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::json::{mode, text};
use super::timeline::{ended, who};
use super::{OutputStyle, PastJson};
use crate::duration::shown as span;
use crate::history::{Fault, FaultKind, Past};
use crate::lock::Mode;
use crate::name::escape;

/// The result of an audit of a store.
#[derive(Debug)]
pub struct AuditReport<'a> {
    /// Number of grants that were checked.
    pub grants: usize,
    /// Number of locks that they belong to.
    pub locks: usize,
    /// The violations.
    pub faults: &'a [Fault<'a>],
    /// The limits of the audit: what kind, and a sentence.
    pub unknown: Vec<(&'static str, String)>,
    /// The longest overlap that is not counted.
    pub tolerance: Duration,
}

impl AuditReport<'_> {
    /// Returns the text for people, as seen from this host.
    pub fn text(&self, host: &str, style: OutputStyle) -> String {
        let mut text = String::new();
        let (red, yellow, end) = if style.colour { ("\x1b[31m", "\x1b[33m", "\x1b[0m") } else { ("", "", "") };
        for fault in self.faults {
            let what = match fault.kind {
                FaultKind::Overlap(overlap) => {
                    format!("two holders that exclude each other overlap for {}", span(Duration::from_millis(overlap)))
                }
                FaultKind::Token => "a later grant does not have a higher token".to_string(),
            };
            let _ = writeln!(text, "{red}fault{end}    {}: {what}", escape(&fault.grants[0].name));
            for past in fault.grants {
                let _ = writeln!(text, "         {}", grant(past, host, style));
            }
        }
        for (_, sentence) in &self.unknown {
            let _ = writeln!(text, "{yellow}unknown{end}  {sentence}");
        }
        let number = |number: usize, thing: &str| format!("{number} {thing}{}", if number == 1 { "" } else { "s" });
        let faults = if self.faults.is_empty() { "no fault".to_string() } else { number(self.faults.len(), "fault") };
        let _ = writeln!(text, "{faults} in {} of {}", number(self.grants, "grant"), number(self.locks, "lock"));
        text
    }

    /// Returns the document.
    pub fn json(&self) -> AuditJson {
        let fault = |fault: &Fault<'_>| FaultJson {
            fault: if fault.kind == FaultKind::Token { "token" } else { "overlap" },
            lock: text(&fault.grants[0].name),
            seconds: match fault.kind {
                FaultKind::Overlap(overlap) => Some(overlap as f64 / 1000.0),
                FaultKind::Token => None,
            },
            grants: fault.grants.map(PastJson::new),
        };
        let unknown = |(what, message): &(&'static str, String)| UnknownJson { what, message: message.clone() };
        AuditJson {
            grants: self.grants,
            locks: self.locks,
            tolerance: self.tolerance.as_secs_f64(),
            faults: self.faults.iter().map(fault).collect(),
            unknown: self.unknown.iter().map(unknown).collect(),
        }
    }
}

/// Returns a grant as one line: token, mode, times, end and holder.
fn grant(past: &Past, host: &str, style: OutputStyle) -> String {
    let time = |millis| style.zone.full(Duration::from_millis(millis));
    let token = past.token.map_or("-".to_string(), |token| token.to_string());
    let slot = if past.mode == Mode::Slot { format!(" {}", past.slot) } else { String::new() };
    let from = time(past.from);
    let until = match (past.to, past.how) {
        (Some(to), _) => format!("to {}, {}", time(to), ended(past)),
        (None, None) => "still held".to_string(),
        (None, Some(_)) => format!("{}, unnoticed", ended(past)),
    };
    format!("token {token}, {}{slot}, from {from} {until}: {}", mode(past.mode), who(&past.holder, host))
}

/// The document of `audit --json`.
#[derive(Debug, Serialize)]
pub struct AuditJson {
    grants: usize,
    locks: usize,
    /// The longest overlap that is not counted, in seconds.
    tolerance: f64,
    faults: Vec<FaultJson>,
    unknown: Vec<UnknownJson>,
}

#[derive(Debug, Serialize)]
struct FaultJson {
    fault: &'static str,
    lock: String,
    /// The length of an overlap.
    seconds: Option<f64>,
    grants: [PastJson; 2],
}

#[derive(Debug, Serialize)]
struct UnknownJson {
    what: &'static str,
    message: String,
}
