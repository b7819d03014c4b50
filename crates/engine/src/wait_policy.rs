//! The time limit of a wait, and its pauses. Within the same limits a caller waits for the store, too.

use std::time::Duration;

use super::Engine;
use host::signals::Interrupt;
use host::{WakeReason, WakeSet};
use lock::duration::Backoff;
use lock::{Error, Record, Result};
use store::Call;

/// Polling interval of a waiter if all users are on this host: a wake-up can be lost, although none should.
const SELDOM: Backoff = Backoff { min: Duration::from_millis(1000), max: Duration::from_millis(1000) };

/// Polling interval of a waiter that receives no wake-ups.
const OFTEN: Backoff = Backoff { min: Duration::from_millis(20), max: Duration::from_millis(500) };

/// Polling interval of a waiter whose looks would take the connections that other users of a server need.
const CROWDED: Duration = Duration::from_millis(1500);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitPolicy {
    /// Maximum duration; `None` means no limit.
    pub limit: Option<Duration>,
    pub backoff: Option<Backoff>,
}

impl WaitPolicy {
    pub const NONE: WaitPolicy = WaitPolicy { limit: Some(Duration::ZERO), backoff: None };

    pub fn is_none(&self) -> bool {
        self.limit == Some(Duration::ZERO)
    }

    /// End of a wait that starts at `now`, on CLOCK_BOOTTIME; [`Duration::MAX`] means no limit.
    pub fn end(&self, now: Duration) -> Duration {
        self.limit.map_or(Duration::MAX, |limit| now.saturating_add(limit))
    }

    pub fn rest(&self, end: Duration, now: Duration) -> WaitPolicy {
        WaitPolicy { limit: self.limit.map(|_| end.saturating_sub(now)), ..*self }
    }

    /// Starts a wait at `now`; `polls` is true if no process can wake the waiter.
    pub(super) fn begin(&self, now: Duration, polls: bool) -> WaitClock {
        let backoff = self.backoff.unwrap_or(if polls { OFTEN } else { SELDOM });
        WaitClock {
            deadline: self.limit.map(|limit| now.saturating_add(limit)),
            pause: backoff.min,
            longest: backoff.max,
            seldom: backoff == SELDOM,
        }
    }
}

/// How a wait stands, for its callback.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    pub record: &'a Record,
    pub ahead: usize,
    /// Remaining time; `None` means no limit.
    pub left: Option<Duration>,
    /// Why the store cannot be read at the moment. The record is unknown then.
    pub outage: Option<&'a Error>,
    pub call: Call,
}

/// Callback at the start and at each continuation of a wait. Returns the maximum time until its next call.
pub(super) type OnWait<'a> = dyn FnMut(&Progress<'_>) -> Option<Duration> + 'a;

/// Remaining time of a wait, on CLOCK_BOOTTIME, and its next pause.
#[derive(Clone, Copy)]
pub(super) struct WaitClock {
    pub(super) deadline: Option<Duration>,
    pause: Duration,
    longest: Duration,
    /// Polls only cover lost wake-ups.
    seldom: bool,
}

impl WaitClock {
    pub(super) fn left(&self, now: Duration) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_sub(now))
    }

    /// The pause with `ahead` waiters in front, or `None` if the wait is over. If polls only cover lost wake-ups,
    /// waiters far behind poll less often: together they poll as often as a few.
    pub(super) fn next_pause(&mut self, now: Duration, ahead: usize) -> Option<Duration> {
        let left = self.left(now);
        if left == Some(Duration::ZERO) {
            return None;
        }
        // The jitter removes up to a quarter of the pause, so waiters that began together do not continue together. The
        // last digits of the clock are as good as random here.
        let jitter = self.pause.mul_f64(0.25 * f64::from(now.subsec_nanos() % 1000) / 1000.0);
        let pause = self.pause.saturating_sub(jitter);
        self.pause = (self.pause * 2).min(self.longest);
        let pause =
            if self.seldom { pause.saturating_mul(u32::try_from(ahead / 8 + 1).unwrap_or(u32::MAX)) } else { pause };
        Some(left.map_or(pause, |left| left.min(pause)))
    }
}

/// Maximum pause between two calls to a store that does not answer.
pub const RETRY_INTERVAL: Duration = Duration::from_millis(500);

impl Engine {
    /// Repeats `work`, which must be safe to repeat, while the store's servers do not answer but may soon. `None` means
    /// an interrupt. Fails with the last error of `work` if it has another cause or the policy ends the wait.
    pub fn outlast_outages<T>(
        &self,
        name: &[u8],
        policy: &WaitPolicy,
        interrupt: Option<&dyn Interrupt>,
        on_wait: &mut OnWait<'_>,
        work: &mut dyn FnMut(&Engine) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut clock = policy.begin(self.host.boottime(), false);
        let until = Some(clock.deadline.unwrap_or(Duration::MAX));
        let engine = self.during(Call { until, interruptible: interrupt.is_some() });
        loop {
            match work(&engine) {
                Err(_) if self.is_interrupted(interrupt) => return Ok(None),
                Err(error) if error.is_unreached => {
                    let interrupt = interrupt.map(Interrupt::descriptors).transpose()?.unwrap_or_default();
                    let mut wake_set = self.host.wake_set(&self.new_handle()?.proof(), interrupt)?;
                    if self.wait_out_outage(name, error, &mut clock, &mut *wake_set, on_wait)? {
                        return Ok(None);
                    }
                }
                done => return done.map(Some),
            }
        }
    }

    /// Returns scarce things, such as a connection to a server, before a pause. The pause is longer, within the time
    /// that is `left`, if each look costs other processes much.
    pub(super) fn pause_for_others(&self, pause: Duration, left: Option<Duration>) -> Duration {
        if !self.store.before_wait(self.call, false) {
            return pause;
        }
        left.map_or(CROWDED, |left| left.min(CROWDED)).max(pause)
    }

    /// True means an interrupt. Fails with this error if the policy ends the wait.
    pub(super) fn wait_out_outage(
        &self,
        name: &[u8],
        error: Error,
        clock: &mut WaitClock,
        wake_set: &mut dyn WakeSet,
        on_wait: &mut OnWait<'_>,
    ) -> Result<bool> {
        let now = self.host.boottime();
        let Some(pause) = clock.next_pause(now, 0) else { return Err(error) };
        let record = Record::free(name);
        on_wait(&Progress { record: &record, ahead: 0, left: clock.left(now), outage: Some(&error), call: self.call });
        Ok(wake_set.wait(&[], &mut None, pause.min(RETRY_INTERVAL))? == WakeReason::Interrupted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(policy: WaitPolicy, now: Duration) -> Vec<Option<Duration>> {
        let mut clock = policy.begin(Duration::ZERO, false);
        (0..4).map(|_| clock.next_pause(now, 0)).collect()
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let backoff = Some(Backoff { min: Duration::from_secs(1), max: Duration::from_secs(3) });
        let found = pauses(WaitPolicy { limit: None, backoff }, Duration::ZERO);
        assert_eq!(found, [1, 2, 3, 3].map(|seconds| Some(Duration::from_secs(seconds))));
    }

    #[test]
    fn the_limit_ends_it() {
        let short = WaitPolicy { limit: Some(Duration::from_millis(10)), backoff: None };
        assert_eq!(pauses(short, Duration::from_millis(4))[0], Some(Duration::from_millis(6)));
        assert_eq!(pauses(short, Duration::from_millis(10))[0], None);
    }
}
