//! A race: somebody else changes a record between our look at it and our swap.
//!
//! Somebody wins each race, so all of them together get on. On a store of this host a lost try costs next to nothing,
//! and the next one is made at once. Where many hosts share the store, a try is several exchanges with it; of forty who
//! try at once thirty-nine do it in vain, and he who holds, and for whom all of them wait, is held up by them. So a loser
//! pauses, for a time drawn at random from a span that doubles each time. Who gives back, renews or confirms does not:
//! there is one of him, and he has the right of way. Nor does he who only tries: his next look says no, most likely.

use std::time::Duration;

use super::Engine;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lock::Request;
use crate::store::Scope;

/// So often somebody may be faster than we are, one time after the other, before we say that something is wrong.
const MOST_LOST: u32 = 50_000;

/// What is lost less often may be lost to nobody, as when a directory moves, however late it is.
const FEW: u32 = 3;

/// No pause is longer: some dozens who try at once have room in it.
const LONGEST: Duration = Duration::from_millis(250);

/// Tries to change one record.
pub(super) struct CasRetry<'a> {
    engine: &'a Engine,
    pub(super) key: &'a [u8],
    lost: u32,
    /// When this try began, on CLOCK_BOOTTIME.
    began: Duration,
    /// When there is no time for another try.
    deadline: Duration,
    pub(super) has_priority: bool,
}

impl Engine {
    /// Begins a race for what is kept under this key.
    pub(super) fn race<'a>(&'a self, key: &'a [u8]) -> CasRetry<'a> {
        let began = self.host.boottime();
        CasRetry { engine: self, key, lost: 0, began, deadline: Duration::MAX, has_priority: false }
    }

    /// The same, of somebody who asks for this.
    pub(super) fn race_for<'a>(&'a self, key: &'a [u8], ask: &Request) -> CasRetry<'a> {
        let has_right_of_way = !matches!(ask, Request::Acquire(_) | Request::Cancel(..) | Request::Gc);
        CasRetry { has_priority: has_right_of_way, ..self.race(key) }
    }
}

impl CasRetry<'_> {
    /// The same, that goes on until then at most, on CLOCK_BOOTTIME.
    pub(super) fn until(self, give_up_at: Duration) -> Self {
        CasRetry { deadline: give_up_at, ..self }
    }

    /// Somebody was faster. Whether there is time for another look, which is to be had now.
    ///
    /// # Errors
    ///
    /// When that was so more often than anybody could have been faster.
    pub(super) fn backoff(&mut self) -> Result<bool> {
        self.lost += 1;
        if self.lost >= MOST_LOST {
            let what = format!("{} changes faster than it can be followed", self.engine.store().describe(self.key));
            return Err(Error::new(Exit::System, what, "see what else is at work there, then try again"));
        }
        let host = self.engine.host();
        let now = host.boottime();
        if !self.has_priority && self.engine.store().scope() == Scope::Shared {
            let span = now.saturating_sub(self.began).saturating_mul(1 << self.lost.min(8)).min(LONGEST);
            let drawn = host.random()?.into_iter().fold(0, |drawn, byte| drawn ^ byte);
            let pause = span.mul_f64(f64::from(drawn) / 255.0).min(self.deadline.saturating_sub(now));
            crate::host::pause(host, pause)?;
        }
        self.began = host.boottime();
        Ok(self.began < self.deadline || self.lost < FEW)
    }
}

#[cfg(test)]
mod tests;
