//! Findings of a store about its own health, for `csalock doctor`. Its JSON document, and `csalock serve`, show their
//! fields.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Topic, in one or two words.
    pub topic: String,
    /// Observation.
    pub found: String,
    /// Verdict about the observation.
    pub verdict: Verdict,
    /// Hint for the user, unless the verdict is good.
    pub cure: Option<String>,
}

/// Verdict about an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Locks work.
    Good,
    /// Locks work, but less well, or not for all users.
    Doubtful,
    /// Locks do not work.
    Bad,
}

impl Finding {
    /// Creates a good finding.
    pub fn good(topic: &str, found: impl Into<String>) -> Finding {
        Finding { topic: topic.to_string(), found: found.into(), verdict: Verdict::Good, cure: None }
    }

    /// Creates a doubtful finding, with a hint.
    pub fn doubtful(topic: &str, found: impl Into<String>, cure: impl Into<String>) -> Finding {
        Finding { verdict: Verdict::Doubtful, ..Finding::bad(topic, found, cure) }
    }

    /// Creates a bad finding for a failed check, with the message of the error.
    pub fn failed(topic: &str, error: &Error) -> Finding {
        Finding::bad(topic, error.message(), error.hint())
    }

    /// Creates a bad finding, with a hint.
    pub fn bad(topic: &str, found: impl Into<String>, cure: impl Into<String>) -> Finding {
        let cure = Some(cure.into()).filter(|cure| !cure.is_empty());
        Finding { verdict: Verdict::Bad, cure, ..Finding::good(topic, found) }
    }
}
