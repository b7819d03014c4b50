//! How long, and how often, somebody is willing to try.

use std::time::Duration;

/// A ring can be lost, though none should: so often a waiter looks for itself where every user is on this host.
const SELDOM: Backoff = Backoff { min: Duration::from_millis(1000), max: Duration::from_millis(1000) };

/// How a waiter polls where it cannot be rung, or where it only has so many attempts.
const OFTEN: Backoff = Backoff { min: Duration::from_millis(20), max: Duration::from_millis(500) };

/// How long, and how often, somebody is willing to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitPolicy {
    /// At most this long; `None`: for ever.
    pub limit: Option<Duration>,
    /// At most so many looks.
    pub attempts: Option<u32>,
    /// The pauses between looks that nothing prompts.
    pub backoff: Option<Backoff>,
}

/// Pauses that double from `min` to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The first one.
    pub min: Duration,
    /// The longest.
    pub max: Duration,
}

impl WaitPolicy {
    /// Try once.
    pub const NONE: WaitPolicy = WaitPolicy { limit: Some(Duration::ZERO), attempts: None, backoff: None };

    /// Whether it is one try only.
    pub fn is_none(&self) -> bool {
        self.limit == Some(Duration::ZERO) || self.attempts == Some(1)
    }

    /// Begins now; `polls`: where nobody can wake us.
    pub(super) fn begin(&self, now: Duration, polls: bool) -> WaitClock {
        let often = self.attempts.is_some() || polls;
        let backoff = self.backoff.unwrap_or(if often { OFTEN } else { SELDOM });
        WaitClock {
            deadline: self.limit.map(|limit| now.saturating_add(limit)),
            looks_left: self.attempts,
            pause: backoff.min,
            longest: backoff.max,
            seldom: backoff == SELDOM,
        }
    }
}

/// Patience running out, on CLOCK_BOOTTIME.
pub(super) struct WaitClock {
    deadline: Option<Duration>,
    looks_left: Option<u32>,
    pause: Duration,
    longest: Duration,
    /// Whether a look is only there because a ring could be lost.
    seldom: bool,
}

impl WaitClock {
    /// When it is over; `None`: never.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// What is left of it; `None`: it has no end.
    pub(super) fn left(&self, now: Duration) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_sub(now))
    }

    /// How long to wait before the next look, with so many ahead; `None`: patience is over. Where a look is only for the
    /// case that a ring was lost, those far behind look less often: together they look as often as a few.
    pub(super) fn next_pause(&mut self, now: Duration, ahead: usize) -> Option<Duration> {
        let left = self.left(now);
        if left == Some(Duration::ZERO) {
            return None;
        }
        if let Some(looks) = &mut self.looks_left {
            *looks = looks.saturating_sub(1);
            if *looks == 0 {
                return None;
            }
        }
        // Up to a quarter less, so that those who began together do not go on together. The clock's last digits are as
        // good as random here.
        let jitter = self.pause.mul_f64(0.25 * f64::from(now.subsec_nanos() % 1000) / 1000.0);
        let pause = self.pause.saturating_sub(jitter);
        self.pause = (self.pause * 2).min(self.longest);
        let pause =
            if self.seldom { pause.saturating_mul(u32::try_from(ahead + 1).unwrap_or(u32::MAX)) } else { pause };
        Some(left.map_or(pause, |left| left.min(pause)))
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
        let found = pauses(WaitPolicy { limit: None, attempts: None, backoff }, Duration::ZERO);
        assert_eq!(found, [1, 2, 3, 3].map(|seconds| Some(Duration::from_secs(seconds))));
    }

    #[test]
    fn attempts_and_the_limit_both_end_it() {
        let policy = WaitPolicy { limit: None, attempts: Some(3), backoff: None };
        assert_eq!(pauses(policy, Duration::ZERO).iter().filter(|pause| pause.is_some()).count(), 2);
        let patience = WaitPolicy { limit: Some(Duration::from_millis(10)), attempts: None, backoff: None };
        assert_eq!(pauses(patience, Duration::from_millis(4))[0], Some(Duration::from_millis(6)));
        assert_eq!(pauses(patience, Duration::from_millis(10))[0], None);
    }
}
