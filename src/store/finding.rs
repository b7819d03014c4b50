//! What a store has to say about its own health, for `csalock doctor`.

use crate::error::Error;

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What: one or two words.
    pub topic: &'static str,
    /// What was found.
    pub found: String,
    /// Whether that will do.
    pub verdict: Verdict,
    /// What to do about it; empty where it is good.
    pub cure: String,
}

/// Whether something will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It will.
    Good,
    /// Locks work, but not as well, or not for everybody.
    Doubtful,
    /// Locks do not work.
    Bad,
}

impl Finding {
    /// What will do.
    pub fn good(topic: &'static str, found: impl Into<String>) -> Finding {
        Finding { topic, found: found.into(), verdict: Verdict::Good, cure: String::new() }
    }

    /// What may not do, and what to do about it.
    pub fn doubtful(topic: &'static str, found: impl Into<String>, cure: impl Into<String>) -> Finding {
        Finding { topic, found: found.into(), verdict: Verdict::Doubtful, cure: cure.into() }
    }

    /// What could not be found out, which is as bad: in the error's own words.
    pub fn failed(topic: &'static str, error: &Error) -> Finding {
        Finding::bad(topic, error.message(), error.hint())
    }

    /// What will not do, and what to do about it.
    pub fn bad(topic: &'static str, found: impl Into<String>, cure: impl Into<String>) -> Finding {
        Finding { topic, found: found.into(), verdict: Verdict::Bad, cure: cure.into() }
    }
}
