//! CAS retries: another process changes a record between our read and our commit.
//!
//! Each conflict has a winner, so all processes together make progress. On a local store a lost try costs next to
//! nothing, and the next try follows at once. On a shared store a try is several exchanges with the store. Of forty
//! simultaneous tries, thirty-nine are in vain and delay the holder that all of them wait for. So a loser pauses for a
//! random time within a span that doubles each time. A release, renewal or confirmation has a single caller and
//! priority, so it does not pause. A mere try does not pause either: its next read most likely reports busy.

use std::time::Duration;

use super::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::Request;
use crate::store::Scope;

/// Maximum number of consecutive tries lost to other writers before the retries fail with an error.
const MOST_LOST: u32 = 50_000;

/// Number of tries that may be lost without a rival, as when a directory moves; the deadline does not limit them.
const FEW: u32 = 3;

/// Maximum pause, which leaves room for some dozens of simultaneous tries.
const LONGEST: Duration = Duration::from_millis(250);

/// State of the tries to change one record.
pub(crate) struct CasRetry<'a> {
    engine: &'a Engine,
    pub(super) key: &'a [u8],
    lost: u32,
    /// Start of this try on CLOCK_BOOTTIME.
    began: Duration,
    /// Time on CLOCK_BOOTTIME after which no further try follows.
    deadline: Duration,
    pub(super) has_priority: bool,
}

impl Engine {
    /// Starts CAS retries for the object under this key.
    pub(crate) fn race<'a>(&'a self, key: &'a [u8]) -> CasRetry<'a> {
        let began = self.host.boottime();
        CasRetry { engine: self, key, lost: 0, began, deadline: Duration::MAX, has_priority: false }
    }

    /// Starts CAS retries for a request of this type.
    pub(super) fn race_for<'a, R: Request>(&'a self, key: &'a [u8]) -> CasRetry<'a> {
        CasRetry { has_priority: R::HAS_PRIORITY, ..self.race(key) }
    }
}

impl CasRetry<'_> {
    /// Limits the retries to this time on CLOCK_BOOTTIME.
    pub(super) fn until(self, give_up_at: Duration) -> Self {
        CasRetry { deadline: give_up_at, ..self }
    }

    /// Counts a lost try and pauses if necessary. Returns true if there is time for another read, now.
    /// Fails if the number of lost tries exceeds any plausible number of rivals.
    pub(crate) fn backoff(&mut self) -> Result<bool> {
        self.lost += 1;
        if self.lost >= MOST_LOST {
            let what = format!("{} changes faster than it can be followed", self.engine.store().describe(self.key));
            return Err(Error::new(ErrorKind::System, what, "see what else is at work there, then try again"));
        }
        let host = self.engine.host();
        let now = host.boottime();
        if !self.has_priority && self.engine.store().scope() == Scope::Shared {
            let span = now.saturating_sub(self.began).saturating_mul(1 << self.lost.min(8)).min(LONGEST);
            let drawn = host.random()?.into_iter().fold(0, |drawn, byte| drawn ^ byte);
            let pause = span.mul_f64(f64::from(drawn) / 255.0).min(self.deadline.saturating_sub(now));
            host.sleep(pause);
        }
        self.began = host.boottime();
        Ok(self.began < self.deadline || self.lost < FEW)
    }
}

#[cfg(test)]
mod tests;
