//! The output of `audit` for people and for programs.

use std::fmt::Write as _;
use std::time::Duration;

use super::OutputStyle;
use super::document::Document;
use super::history::{ended, who};
use super::json::{mode, past, text};
use crate::duration::shown as span;
use crate::history::{Fault, FaultKind, Past};
use crate::lock::Mode;
use crate::name::escape;

#[derive(Debug)]
pub(crate) struct AuditReport<'a> {
    pub(crate) grants: usize,
    pub(crate) locks: usize,
    pub(crate) faults: &'a [Fault<'a>],
    /// The limits of the audit: what kind, and a sentence.
    pub(crate) unknown: Vec<(&'static str, String)>,
    /// The longest overlap that is not counted.
    pub(crate) tolerance: Duration,
}

impl AuditReport<'_> {
    /// Returns the text for people, as seen from this host.
    pub(crate) fn text(&self, host: &str, style: OutputStyle) -> String {
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

    pub(crate) fn json(&self) -> Document {
        let fault = |fault: &Fault<'_>| {
            let (kind, overlap) = match fault.kind {
                FaultKind::Overlap(overlap) => ("overlap", Some(overlap as f64 / 1000.0)),
                FaultKind::Token => ("token", None),
            };
            Document::new()
                .with("fault", kind)
                .with("lock", text(&fault.grants[0].name))
                .with("seconds", overlap)
                .with_list("grants", fault.grants.map(past))
        };
        let unknown = self.unknown.iter();
        let unknown = unknown.map(|(what, why)| Document::new().with("what", *what).with("message", why.as_str()));
        Document::new()
            .with("grants", self.grants)
            .with("locks", self.locks)
            .with("tolerance", self.tolerance.as_secs_f64())
            .with_list("faults", self.faults.iter().map(fault))
            .with_list("unknown", unknown)
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
