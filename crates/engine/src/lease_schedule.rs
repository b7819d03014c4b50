//! The times at which a lease is renewed and a command is ended, and for which `run` waits for a store: pure arithmetic.
//!
//! docs/dev/timeouts.md has the whole schedule. All times are on CLOCK_BOOTTIME. The end of a lease counts from before the
//! request for it, so a process of this host takes the lease for over before any store does.

use std::time::Duration;

/// Maximum difference between two readings of the same end.
const READING_TOLERANCE: Duration = Duration::from_millis(5);

/// Minimum time without a call for which connections are given back. Most commands end sooner.
pub const IDLE_BEFORE_REST: Duration = Duration::from_secs(2);

/// Minimum delay of a limit that was missed, and of one that not even a busy machine sees so late.
const SHORTEST_DELAY: Duration = Duration::from_millis(10);
const SHORTEST_SLEEP: Duration = Duration::from_secs(1);

/// Minimum time between two looks of a keeper.
const SHORTEST_LOOK: Duration = Duration::from_millis(10);

/// Minimum time that a command stays stopped for a store that does not answer: a machine that wakes up needs several seconds
/// for its network.
const SHORTEST_PAUSE_AFTER_SLEEP: Duration = Duration::from_secs(10);

/// Maximum silence of a store during a release that a keeper can finish; then csalock exits. A dead NFS server blocks its
/// callers until it is back. A slow store answers each call within this time, and the supervisor waits for it.
pub const LONGEST_SILENCE: Duration = Duration::from_secs(5);

pub const SILENCE_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum time that a store may take to answer a release, however long the lease is.
pub const LONGEST_RELEASE: Duration = Duration::from_secs(10);

/// Interval between checks that the supervisor is at work, and between calls to a store that did not answer.
pub const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum time between two subscriptions, and before the first. Most commands have ended by then, and a record with a
/// busy queue changes all the time.
pub const SUBSCRIPTION_PAUSE: Duration = Duration::from_secs(1);

/// Time until a store that could not start a subscription is asked again.
pub const SUBSCRIPTION_RETRY: Duration = Duration::from_secs(20);

/// When csalock ends a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopTimes {
    /// SIGCONT follows SIGTERM so that a stopped command receives it.
    pub term: Duration,
    pub kill: Duration,
    pub why: StopReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    MaxHold,
    Lease,
}

impl StopTimes {
    /// SIGKILL gets its time when SIGTERM is sent, which may be late.
    pub fn of_max_hold(began: Duration, max_hold: Duration) -> StopTimes {
        StopTimes { term: began.saturating_add(max_hold), kill: Duration::MAX, why: StopReason::MaxHold }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseSchedule {
    pub ends: Duration,
    /// Length of the lease when it started.
    pub span: Duration,
}

impl LeaseSchedule {
    /// A `known` schedule stays, unless it has another end.
    pub fn seen(known: Option<LeaseSchedule>, ends: Duration, now: Duration) -> LeaseSchedule {
        match known {
            Some(known) if known.ends.abs_diff(ends) < READING_TOLERANCE => {
                LeaseSchedule { ends: known.ends.min(ends), span: known.span }
            }
            // It started and ended while this process did not run.
            Some(known) if known.ends < ends && ends <= now => LeaseSchedule { ends, span: known.span },
            _ => LeaseSchedule { ends, span: ends.saturating_sub(now) },
        }
    }

    /// No process ends the command before this time.
    pub fn last_start(self) -> Duration {
        self.ends.saturating_sub(self.span / 10 * 3)
    }

    pub fn renewal(self) -> Duration {
        self.ends.saturating_sub(self.span / 3 * 2)
    }

    pub fn supervisor(self, kill_after: Duration) -> StopTimes {
        let kill = self.ends.saturating_sub(self.span / 10);
        StopTimes { term: kill.saturating_sub(kill_after.min(self.span / 5)), kill, why: StopReason::Lease }
    }

    /// A keeper sends SIGTERM only if its supervisor is dead.
    pub fn keeper(self) -> StopTimes {
        let kill = self.ends.saturating_sub(self.span / 20);
        StopTimes { term: self.last_start(), kill, why: StopReason::Lease }
    }

    /// If SIGTERM is seen to be due only now, no keeper here ran in time either, and the lock may still be ours.
    pub fn pause(self, due: StopTimes, now: Duration) -> Option<Pause> {
        let (delay, soon) = (now.saturating_sub(due.term), now + retry_pause(self.span));
        let has_slept = delay >= SHORTEST_SLEEP.max(self.span / 20);
        let until = if has_slept { now + SHORTEST_PAUSE_AFTER_SLEEP.max(self.span / 2) } else { soon };
        let is_missed = delay >= SHORTEST_DELAY && !self.span.is_zero();
        is_missed.then_some(Pause { lease_end: self.ends, began: now, until })
    }

    /// A keeper without a supervisor then stops to call a silent store.
    pub fn give_up(self) -> Duration {
        self.ends.saturating_add(self.span.saturating_mul(4))
    }
}

/// A command is stopped, because it is not known whether its lock is still held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// End of the lease at the beginning of the pause.
    lease_end: Duration,
    began: Duration,
    pub until: Duration,
}

/// Interval between checks that the command is still stopped: other processes may continue it.
pub const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseStep {
    Wait,
    /// A renewed lease lets the command go on.
    Resume,
    /// Limits of the lease count, because the lock was lost, or the store is silent for too long.
    End,
}

impl Pause {
    /// `ends` is the end as it is known now. That of a lost lock is the time when the keeper noticed the loss.
    pub fn step(self, ends: Duration, now: Duration) -> PauseStep {
        match ends {
            _ if ends > now && ends > self.lease_end + READING_TOLERANCE => PauseStep::Resume,
            _ if now >= self.until || (self.began..=now).contains(&ends) => PauseStep::End,
            _ => PauseStep::Wait,
        }
    }
}

/// From the start of a lease of this length.
pub fn renewal_pause(span: Duration) -> Duration {
    span / 3
}

/// From the start of a supervised keeper to its first work, for a lease with this time left.
pub fn settling_pause(left: Duration) -> Duration {
    (left / 10).min(Duration::from_millis(100))
}

/// The time of the next look at a lease that `ends` then, after a look at `now`. A lease that began a moment after `now` is
/// due that much later: an earlier look would not renew it.
pub fn next_look(ends: Option<Duration>, span: Duration, now: Duration) -> Duration {
    let renewal = ends.map_or(Duration::ZERO, |ends| LeaseSchedule { ends, span }.renewal());
    let left = ends.map_or(span, |ends| ends.saturating_sub(now)).min(span);
    let next = if renewal > now { renewal } else { now + renewal_pause(left) };
    next.max(now + SHORTEST_LOOK)
}

/// Between two tries to renew a lease of this length, if the store does not answer.
pub fn retry_pause(span: Duration) -> Duration {
    span / 30
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Leases from a millisecond to weeks, each with its start.
    fn leases() -> impl Iterator<Item = (Duration, LeaseSchedule)> {
        let spans = [1, 7, 100, 1000, 3000, 60_000, 3_600_000, 1_814_400_000].map(Duration::from_millis);
        spans.into_iter().map(|span| (1000 * SECOND, LeaseSchedule { ends: 1000 * SECOND + span, span }))
    }

    #[test]
    fn the_supervisor_kills_at_a_tenth_and_asks_before_by_kill_after_but_at_most_a_fifth() {
        let lease = LeaseSchedule { ends: 100 * SECOND, span: 60 * SECOND };
        let at = |term, kill| StopTimes { term: term * SECOND, kill: kill * SECOND, why: StopReason::Lease };
        assert_eq!(lease.supervisor(SECOND * 3), at(91, 94));
        assert_eq!(lease.supervisor(SECOND * 12), at(82, 94));
        assert_eq!(lease.supervisor(Duration::MAX), at(82, 94));
        assert_eq!(lease.supervisor(Duration::ZERO), at(94, 94));
        assert_eq!(lease.keeper(), at(82, 97));
    }

    #[test]
    fn a_command_is_dead_before_its_lease_is_over_and_the_keeper_comes_last() {
        for (begun, lease) in leases() {
            let (supervisor, keeper) = (lease.supervisor(Duration::MAX), lease.keeper());
            assert!(supervisor.term >= lease.last_start(), "no command starts to be ended at once: {lease:?}");
            assert!(keeper.term <= supervisor.kill && supervisor.kill < keeper.kill && keeper.kill < lease.ends);
            assert!(begun < lease.last_start(), "there is time to start: {lease:?}");
        }
    }

    #[test]
    fn renewal_may_fail_ten_times_before_a_command_is_asked_to_end() {
        for (begun, lease) in leases() {
            let first = begun + renewal_pause(lease.span);
            assert!(first.abs_diff(lease.renewal()) < Duration::from_micros(1), "{lease:?}");
            assert!(begun + settling_pause(lease.span) < first);
            assert!(first + retry_pause(lease.span) * 10 < lease.supervisor(Duration::MAX).term, "{lease:?}");
            assert!(lease.give_up() == lease.ends + lease.span * 4);
        }
    }

    #[test]
    fn a_keeper_looks_when_the_renewal_is_due_and_no_moment_before() {
        let (now, span, moment) = (1000 * SECOND, 9 * SECOND, Duration::from_millis(1));
        let next = |left: Duration| next_look(Some(now + left), span, now) - now;
        // The lease was requested after the clock was read.
        assert_eq!(next(span + moment), 3 * SECOND + moment);
        assert_eq!(next(7 * SECOND), SECOND);
        // A time limit is not renewed, and a renewal that is due was refused.
        assert_eq!([6, 3].map(|left| next(left * SECOND)), [2, 1].map(|left| left * SECOND));
        assert_eq!(next(Duration::ZERO), SHORTEST_LOOK);
        assert_eq!(next_look(None, span, now) - now, 3 * SECOND);
    }

    #[test]
    fn a_lease_that_is_read_again_keeps_its_length_and_its_earliest_end() {
        let first = LeaseSchedule::seen(None, 100 * SECOND, 40 * SECOND);
        assert_eq!(first, LeaseSchedule { ends: 100 * SECOND, span: 60 * SECOND });
        let near = Duration::from_millis(4);
        assert_eq!(LeaseSchedule::seen(Some(first), 100 * SECOND + near, 90 * SECOND), first);
        let earlier = LeaseSchedule::seen(Some(first), 100 * SECOND - near, 90 * SECOND);
        assert_eq!(earlier, LeaseSchedule { ends: 100 * SECOND - near, ..first });
        let renewed = LeaseSchedule::seen(Some(first), 120 * SECOND, 90 * SECOND);
        assert_eq!(renewed, LeaseSchedule { ends: 120 * SECOND, span: 30 * SECOND });
    }

    #[test]
    fn a_lease_that_is_over_when_it_is_seen_ends_the_command_at_once() {
        let late = LeaseSchedule::seen(None, 10 * SECOND, 11 * SECOND);
        let now = StopTimes { term: 10 * SECOND, kill: 10 * SECOND, why: StopReason::Lease };
        assert_eq!((late.supervisor(SECOND), late.keeper()), (now, now));
    }

    #[test]
    fn a_command_whose_end_was_missed_pauses_until_the_lease_is_renewed_or_lost() {
        let lease = LeaseSchedule { ends: 100 * SECOND, span: 60 * SECOND };
        let due = lease.supervisor(SECOND * 12);
        assert_eq!(lease.pause(due, 82 * SECOND), None, "it is seen in time");
        assert_eq!(lease.pause(due, 95 * SECOND).unwrap().until, 125 * SECOND, "it slept");
        assert_eq!(lease.pause(lease.keeper(), 84 * SECOND).unwrap().until, 86 * SECOND, "it is late");
        assert_eq!(lease.pause(due, 83 * SECOND).unwrap().until, 85 * SECOND, "SIGTERM can still come before the end");
        assert_eq!(LeaseSchedule { span: Duration::ZERO, ..lease }.pause(due, 200 * SECOND), None, "the lock was lost");
        let pause = lease.pause(due, 200 * SECOND).unwrap();
        assert_eq!(pause.until, 230 * SECOND);
        let short = LeaseSchedule { ends: 100 * SECOND, span: 4 * SECOND };
        assert_eq!(short.pause(short.keeper(), 200 * SECOND).unwrap().until, 210 * SECOND);
        for (ends, now, step) in [
            (100, 201, PauseStep::Wait),
            (150, 201, PauseStep::Wait),
            (260, 201, PauseStep::Resume),
            (200, 201, PauseStep::End),
            (201, 201, PauseStep::End),
            (100, 230, PauseStep::End),
        ] {
            assert_eq!(pause.step(ends * SECOND, now * SECOND), step, "{ends} {now}");
        }
    }

    #[test]
    fn a_lease_that_was_renewed_and_ended_unseen_keeps_its_length() {
        let known = LeaseSchedule { ends: 100 * SECOND, span: 60 * SECOND };
        let seen = LeaseSchedule::seen(Some(known), 120 * SECOND, 300 * SECOND);
        assert_eq!(seen, LeaseSchedule { ends: 120 * SECOND, span: 60 * SECOND });
        let lost = LeaseSchedule::seen(Some(known), 70 * SECOND, 70 * SECOND);
        assert_eq!(lost, LeaseSchedule { ends: 70 * SECOND, span: Duration::ZERO });
    }

    #[test]
    fn max_hold_counts_from_the_start_of_the_command() {
        let limit = StopTimes::of_max_hold(5 * SECOND, 60 * SECOND);
        assert_eq!(limit, StopTimes { term: 65 * SECOND, kill: Duration::MAX, why: StopReason::MaxHold });
        assert_eq!(StopTimes::of_max_hold(5 * SECOND, Duration::MAX).term, Duration::MAX);
    }
}
