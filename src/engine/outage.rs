//! Outages: a caller that waits for a lock waits for the store too.

use std::time::Duration;

use super::acquire::Onlooker;
use super::wait_policy::WaitClock;
use super::{Engine, WaitPolicy, Waiting};
use crate::error::{Error, Result};
use crate::host::{WaitSet, WaitSources, WakeReason};
use crate::lock::Record;
use crate::signals::Interrupt;
use crate::store::SignalsEndCalls;

/// Maximum pause between two calls to a store that does not answer.
pub const RETRY_INTERVAL: Duration = Duration::from_millis(500);

impl Engine {
    /// Repeats `work` while the store's servers have never answered but may soon. Returns `None` on an interrupt.
    /// Fails with the last error of `work`, if it has another cause or the policy ends the wait.
    pub(super) fn when_reached<T>(
        &self,
        name: &[u8],
        policy: &WaitPolicy,
        interrupt: Option<&dyn Interrupt>,
        on_wait: &mut Onlooker<'_>,
        work: &mut dyn FnMut() -> Result<T>,
    ) -> Result<Option<T>> {
        let mut clock = policy.begin(self.host.boottime(), false);
        loop {
            let calls = SignalsEndCalls::begin(interrupt.is_some());
            let done = work();
            drop(calls);
            match done {
                Err(_) if self.is_interrupted(interrupt) => return Ok(None),
                Err(error) if error.is_unreached() => {
                    let interrupt = interrupt.map(Interrupt::descriptors).transpose()?.unwrap_or_default();
                    let mut wait_set = self.host.wait_set(&self.new_handle()?.proof(), interrupt)?;
                    if self.outlast(name, error, &mut clock, &mut *wait_set, on_wait)? {
                        return Ok(None);
                    }
                }
                done => return done.map(Some),
            }
        }
    }

    /// Pauses after this error. Returns true on an interrupt.
    /// Fails with this error if the policy ends the wait.
    pub(super) fn outlast(
        &self,
        name: &[u8],
        error: Error,
        clock: &mut WaitClock,
        wait_set: &mut dyn WaitSet,
        on_wait: &mut Onlooker<'_>,
    ) -> Result<bool> {
        let now = self.host.boottime();
        let Some(pause) = clock.next_pause(now, 0) else { return Err(error) };
        let record = Record::free(name);
        on_wait(&Waiting { record: &record, ahead: 0, left: clock.left(now), outage: Some(&error) });
        let mut signs = WaitSources { watched: &[], subscription: &mut None };
        Ok(wait_set.wait(&mut signs, pause.min(RETRY_INTERVAL))? == WakeReason::Interrupted)
    }
}
