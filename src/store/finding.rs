//! Findings of a store about its own health, for `csalock doctor`.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// One or two words.
    pub topic: String,
    pub found: String,
    pub verdict: Verdict,
    /// Hint for the user, unless the verdict is good.
    pub cure: Option<String>,
}

/// Verdict about an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Verdict {
    /// Locks work.
    Good,
    /// Locks work, but less well, or not for all users.
    Doubtful,
    /// Locks do not work.
    Bad,
}

impl Finding {
    pub fn good(topic: &str, found: impl Into<String>) -> Finding {
        Finding { topic: topic.to_string(), found: found.into(), verdict: Verdict::Good, cure: None }
    }

    pub fn doubtful(topic: &str, found: impl Into<String>, cure: impl Into<String>) -> Finding {
        Finding { verdict: Verdict::Doubtful, ..Finding::bad(topic, found, cure) }
    }

    pub fn failed(topic: &str, error: &Error) -> Finding {
        Finding::bad(topic, error.message(), error.hint())
    }

    pub fn bad(topic: &str, found: impl Into<String>, cure: impl Into<String>) -> Finding {
        let cure = Some(cure.into()).filter(|cure| !cure.is_empty());
        Finding { verdict: Verdict::Bad, cure, ..Finding::good(topic, found) }
    }
}
