//! The callers that a wait blocks: processes of the scripts that continue only after it. The locks that they hold do
//! not become free meanwhile.
//!
//! A shell cannot be asked which process it waits for; that can only be observed ([`Host::blocked_callers`]). At first
//! a background job may look like a foreground command, until the script starts another command. This start takes time
//! on a busy machine, and between two commands a script looks as if it waited again. So a caller counts as blocked
//! after two observations, and stops counting once it was seen to continue. A request that does not wait uses the first
//! observation. Most waits are shorter than a second, so the observations come just before the first deadlock check. A
//! caller that may hold this very lock is observed sooner; most waits end before this is examined.

use std::time::Duration;

use super::deadlock::DEADLOCK_DELAY;
use crate::host::{Host, Invocation};
use crate::lock::ProcessId;

/// Time between the inspections of the callers: even busy shells mostly run their next command by then.
const INSPECTION_DELAY: Duration = Duration::from_millis(100);

/// Observations of the script around a wait.
#[derive(Debug)]
pub(super) struct BlockedCallers {
    called: Option<Invocation>,
    /// The holders at the beginning of the wait, until it is known whether the callers may be among them.
    holders: Option<Vec<ProcessId>>,
    /// Time of the first inspection on CLOCK_BOOTTIME.
    first: Duration,
    /// Callers that seem to wait, and the time of their next inspection on CLOCK_BOOTTIME.
    provisional: Option<(Vec<ProcessId>, Duration)>,
}

impl BlockedCallers {
    pub(super) fn new(called: Option<Invocation>) -> BlockedCallers {
        BlockedCallers { called, holders: None, first: Duration::ZERO, provisional: None }
    }

    /// Returns the callers that seem blocked from the beginning, or `None` if there is no caller.
    pub(super) fn immediately(&self, host: &dyn Host) -> Option<Vec<ProcessId>> {
        Some(host.blocked_callers(self.called.as_ref()?, false))
    }

    /// Begins the observation of a wait for these holders at `now` on CLOCK_BOOTTIME. Returns that time.
    pub(super) fn begin(&mut self, now: Duration, holders: Vec<ProcessId>) -> Duration {
        self.holders = Some(holders);
        self.first = now + INSPECTION_DELAY;
        now
    }

    /// Inspects the callers again at `now` on CLOCK_BOOTTIME, some time after the wait began.
    pub(super) fn look_again(&mut self, host: &dyn Host, now: Duration, within: &mut Vec<ProcessId>) {
        let is_over = within.is_empty() && self.is_known();
        let Some(called) = self.called.filter(|_| now >= self.first && !is_over) else { return };
        if self.holders.take().is_some_and(|holders| !host.may_be_called_by(&called, &holders)) {
            self.first += DEADLOCK_DELAY - 2 * INSPECTION_DELAY;
            return;
        }
        let mut seen = host.blocked_callers(&called, true);
        let (doubtful, at) = self.provisional.get_or_insert_with(|| {
            let doubtful = seen.iter().filter(|process| !within.contains(process)).copied().collect();
            (doubtful, now + INSPECTION_DELAY)
        });
        doubtful.retain(|process| seen.contains(process));
        let are_believed = now >= *at;
        seen.retain(|process| within.contains(process) || (are_believed && doubtful.contains(process)));
        if are_believed {
            doubtful.clear();
        }
        *within = seen;
    }

    /// Returns true if no further caller can be added.
    pub(super) fn is_known(&self) -> bool {
        self.called.is_none() || self.provisional.as_ref().is_some_and(|(doubtful, _)| doubtful.is_empty())
    }

    /// Returns the time of the next inspection, if any.
    pub(super) fn next_look(&self) -> Option<Duration> {
        (!self.is_known()).then(|| self.provisional.as_ref().map_or(self.first, |(_, at)| *at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Fake;

    const FIRST: Duration = Duration::from_millis(100);

    /// Returns the callers that a wait blocks after an immediate observation and these later ones. The flag is true if
    /// no further caller can be added.
    fn blocked_callers(immediately: &[i32], later: &[(Duration, &[i32])]) -> (Vec<i32>, bool) {
        let host = Fake::new(1);
        let mut blocked_callers = BlockedCallers::new(Some(Invocation { pid: 1, ignores_interrupt: true }));
        host.set_blocked_callers(immediately);
        let mut within = blocked_callers.immediately(&host).unwrap();
        for (now, seen) in later {
            host.set_blocked_callers(seen);
            blocked_callers.look_again(&host, *now, &mut within);
        }
        assert_eq!(blocked_callers.next_look().is_none(), blocked_callers.is_known());
        (within.iter().map(|process| process.pid).collect(), blocked_callers.is_known())
    }

    #[test]
    fn a_caller_that_is_seen_at_once_is_blocked() {
        assert_eq!(blocked_callers(&[2], &[]), (vec![2], false));
        assert_eq!(blocked_callers(&[2], &[(FIRST, &[2])]), (vec![2], true));
    }

    #[test]
    fn a_caller_that_is_seen_later_must_be_seen_twice_some_time_apart() {
        let (before, twice) = (FIRST + INSPECTION_DELAY / 2, FIRST + INSPECTION_DELAY);
        assert_eq!(blocked_callers(&[], &[(FIRST, &[2]), (before, &[2])]), (vec![], false));
        assert_eq!(blocked_callers(&[], &[(FIRST, &[2]), (twice, &[2])]), (vec![2], true));
        assert_eq!(blocked_callers(&[3], &[(FIRST, &[2, 3]), (before, &[3]), (twice, &[2, 3])]), (vec![3], true));
        assert_eq!(blocked_callers(&[], &[(FIRST, &[]), (twice, &[2])]), (vec![], true));
    }

    #[test]
    fn most_callers_are_observed_only_before_the_first_deadlock_check() {
        let host = crate::host::Unix::new();
        let this = host.this_process().unwrap();
        let looks = |holder: ProcessId| {
            let called = Invocation { pid: this.pid, ignores_interrupt: true };
            let mut blocked_callers = BlockedCallers::new(Some(called));
            blocked_callers.begin(FIRST, vec![holder]);
            let first = blocked_callers.next_look().unwrap();
            blocked_callers.look_again(&host, first, &mut Vec::new());
            (first, blocked_callers.next_look())
        };
        let (first, before_check) = (FIRST + INSPECTION_DELAY, FIRST + DEADLOCK_DELAY - INSPECTION_DELAY);
        assert_eq!(looks(ProcessId { start: u64::MAX, ..this }), (first, Some(before_check)));
        let (at, again) = looks(this);
        assert!(at == first && again.is_none_or(|again| again == first + INSPECTION_DELAY), "{again:?}");
    }

    #[test]
    fn a_caller_that_moved_on_is_not_blocked() {
        assert_eq!(blocked_callers(&[2, 3], &[(FIRST, &[3]), (FIRST * 2, &[2, 3])]), (vec![3], true));
        assert_eq!(blocked_callers(&[2], &[(FIRST, &[2]), (FIRST * 9, &[]), (FIRST * 10, &[2])]), (vec![], true));
    }

    #[test]
    fn a_process_without_a_caller_blocks_no_caller() {
        let mut blocked_callers = BlockedCallers::new(None);
        let host = Fake::new(1);
        host.set_blocked_callers(&[2]);
        let mut within = Vec::new();
        blocked_callers.look_again(&host, FIRST, &mut within);
        assert_eq!((blocked_callers.immediately(&host), within.len(), blocked_callers.is_known()), (None, 0, true));
    }
}
