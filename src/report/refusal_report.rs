//! A refusal or an error in words, for people and as a JSON document.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::json::{HolderJson, text};
use super::{ExpectedJson, Reporter};
use crate::duration::shown;
use crate::error::{Error, ErrorKind};
use crate::exit::Exit;
use crate::history::ExpectedTurn;
use crate::lock::Grant;

/// A refusal or an error: the lock, the problem, the next step, and the holders that stand in the way.
#[derive(Debug, Clone)]
pub struct RefusalReport {
    /// The kind, which decides the exit code.
    pub kind: ErrorKind,
    /// Name of the lock for display, if the report is about one lock.
    pub lock: Option<Vec<u8>>,
    /// The thing and its problem.
    pub message: String,
    /// The next step; empty if there is none.
    pub hint: String,
    /// The grants of other holders, or those that ended.
    pub holders: Vec<Grant>,
    /// The expected time of the caller's turn, and the limit of `--give-up-if` that it exceeds.
    pub expected: Option<(ExpectedTurn, Option<Duration>)>,
}

/// The document of a refusal or an error.
#[derive(Debug, Serialize)]
pub struct RefusalJson {
    /// The name of the lock, if the report is about one lock.
    lock: Option<String>,
    reason: &'static str,
    message: String,
    holders: Vec<HolderJson>,
    /// The expected time of the caller's turn, if the history of the lock has enough grants.
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<ExpectedJson>,
    hint: Option<String>,
    exit_code: u8,
}

impl RefusalReport {
    /// Creates a report that is not about one lock.
    pub fn new(kind: ErrorKind, message: impl Into<String>, hint: impl Into<String>) -> RefusalReport {
        let (message, hint) = (message.into(), hint.into());
        RefusalReport { kind, lock: None, message, hint, holders: Vec::new(), expected: None }
    }

    /// Returns the report about the lock with this name for display.
    #[must_use]
    pub fn about(self, lock: &[u8]) -> RefusalReport {
        RefusalReport { lock: Some(lock.to_vec()), ..self }
    }

    /// Returns the document. `exit` is the exit code of the program, and `reporter` can look up the holders.
    pub fn json(&self, exit: Exit, reporter: Option<&Reporter<'_>>) -> RefusalJson {
        let holder = |grant: &Grant| {
            reporter.map(|reporter| HolderJson::of_grant(grant, reporter.liveness(&grant.owner), reporter))
        };
        RefusalJson {
            lock: self.lock.as_deref().map(text),
            reason: reason(self.kind),
            message: self.message.clone(),
            holders: self.holders.iter().filter_map(holder).collect(),
            expected: self.expected.as_ref().map(|(expected, limit)| ExpectedJson::new(expected, *limit)),
            hint: Some(self.hint.clone()).filter(|hint| !hint.is_empty()),
            exit_code: exit.code(),
        }
    }
}

impl From<&Error> for RefusalReport {
    fn from(error: &Error) -> RefusalReport {
        RefusalReport::new(error.kind(), error.message(), error.hint())
    }
}

/// Writes the problem, the expected time of the turn, and the next step.
impl fmt::Display for RefusalReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)?;
        if let Some((expected, limit)) = &self.expected {
            write!(formatter, "; {expected}")?;
            if let Some(limit) = limit {
                write!(formatter, ", later than --give-up-if {}", shown(*limit))?;
            }
        }
        let separator = if self.hint.is_empty() { "" } else { "; " };
        write!(formatter, "{separator}{}", self.hint)
    }
}

/// Returns the word for a kind. These words are a stable interface.
fn reason(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidInput => "usage error",
        ErrorKind::Corrupt => "unreadable",
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::Bug => "bug",
        ErrorKind::System => "system error",
        ErrorKind::CannotCreate => "cannot create",
        ErrorKind::InputOutput => "input/output error",
        ErrorKind::Busy => "busy",
        ErrorKind::Denied => "permission denied",
        ErrorKind::Stale => "stale",
        ErrorKind::NotHeld => "not held",
        ErrorKind::NotOwner => "not the owner",
        ErrorKind::NotUnique => "not unique",
        ErrorKind::Deadlock => "deadlock",
        ErrorKind::Lost => "lost",
        ErrorKind::Overdue => "overdue",
        ErrorKind::FencedOff => "fenced off",
        ErrorKind::CannotExecute => "cannot execute",
        ErrorKind::CommandNotFound => "command not found",
    }
}
