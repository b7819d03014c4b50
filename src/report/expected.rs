//! The words for the expected time of a caller's turn, and its JSON document.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::duration::{about, shown as span};
use crate::history::{ExpectedTurn, UsualHold};

/// The expected time of a caller's turn, as `status --json` and refusals show it. Times are in seconds.
#[derive(Debug, Serialize)]
pub struct ExpectedJson {
    held: Option<f64>,
    median: f64,
    percentile90: f64,
    /// Number of grants in the history that were counted.
    grants: usize,
    ahead: usize,
    turn: f64,
    /// The limit of `--give-up-if`, if it is the reason of a refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    give_up_if: Option<f64>,
}

impl ExpectedJson {
    /// Returns the document of a turn that is later than `limit`, if there is one.
    pub fn new(expected: &ExpectedTurn, limit: Option<Duration>) -> ExpectedJson {
        let seconds = |span: Duration| span.as_millis() as f64 / 1000.0;
        ExpectedJson {
            held: expected.held.map(seconds),
            median: seconds(expected.usual.median()),
            percentile90: seconds(expected.usual.percentile90()),
            grants: expected.usual.samples(),
            ahead: expected.ahead,
            turn: seconds(expected.turn),
            give_up_if: limit.map(seconds),
        }
    }
}

/// Writes how long the lock is usually held.
impl fmt::Display for UsualHold {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} (9 of 10 times at most {})", span(self.median()), span(self.percentile90()))
    }
}

/// Writes how long the lock is usually held, and when it is the caller's turn.
impl fmt::Display for ExpectedTurn {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longer = if self.is_longer_than_usual() { ", now longer than usual" } else { "" };
        write!(formatter, "usually held {}{longer}; your turn {}", self.usual, self.when())
    }
}

impl ExpectedTurn {
    /// Returns when the turn comes. If the holder holds longer than usual, that is hardly more than a guess.
    pub fn when(&self) -> String {
        match self.is_longer_than_usual() {
            true => format!("perhaps in {}", about(self.turn)),
            false => format!("in about {}", about(self.turn)),
        }
    }
}
