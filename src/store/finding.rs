//! Findings of a store about its own health, for `csalock doctor`.

use crate::error::Error;

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Topic, in one or two words.
    pub topic: &'static str,
    /// Observation.
    pub found: String,
    /// Verdict about the observation.
    pub verdict: Verdict,
    /// Hint for the user; empty for a good verdict.
    pub cure: String,
}

/// Verdict about an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum Verdict {
    /// Locks work.
    Good,
    /// Locks work, but less well, or not for all users.
    Doubtful,
    /// Locks do not work.
    Bad,
}

impl Finding {
    /// Returns a good finding.
    pub fn good(topic: &'static str, found: impl Into<String>) -> Finding {
        Finding { topic, found: found.into(), verdict: Verdict::Good, cure: String::new() }
    }

    /// Returns a doubtful finding, with a hint.
    pub fn doubtful(topic: &'static str, found: impl Into<String>, cure: impl Into<String>) -> Finding {
        Finding { topic, found: found.into(), verdict: Verdict::Doubtful, cure: cure.into() }
    }

    /// Returns a bad finding for a failed check, with the message of the error.
    pub fn failed(topic: &'static str, error: &Error) -> Finding {
        Finding::bad(topic, error.message(), error.hint())
    }

    /// Returns a bad finding, with a hint.
    pub fn bad(topic: &'static str, found: impl Into<String>, cure: impl Into<String>) -> Finding {
        Finding { topic, found: found.into(), verdict: Verdict::Bad, cure: cure.into() }
    }
}
