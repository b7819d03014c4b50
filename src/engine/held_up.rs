//! Who is held up by a wait: the processes of the scripts that go on only when it ends. What they hold does not become free
//! meanwhile.
//!
//! Whom a shell waits for cannot be asked, only seen ([`Host::held_up_by`]), and at first not everything can: what a script
//! does in the background may look like what it waits for, until the script has begun something else. On a busy machine
//! that takes its time, and between two commands a script looks as if it waited again. So whoever is held up has to seem
//! so twice; and whoever was once seen to go on is not held up any more. Only who does not wait at all is told what there
//! is to be seen at once.

use std::time::Duration;

use super::taking::SOON_OVER;
use crate::host::{Called, Host};
use crate::lock::Process;

/// What is to be seen of the script around a wait.
#[derive(Debug)]
pub(super) struct HeldUp {
    called: Option<Called>,
    /// Those who seem to wait, and when that is looked at again, on CLOCK_BOOTTIME.
    doubtful: Option<(Vec<Process>, Duration)>,
}

impl HeldUp {
    pub(super) fn new(called: Option<Called>) -> HeldUp {
        HeldUp { called, doubtful: None }
    }

    /// Those who seem to be held up from the beginning; `None`: nobody called us.
    pub(super) fn at_once(&self, host: &dyn Host) -> Option<Vec<Process>> {
        Some(host.held_up_by(self.called.as_ref()?, false))
    }

    /// Looks again, at this time of CLOCK_BOOTTIME, some time after the wait began.
    pub(super) fn look_again(&mut self, host: &dyn Host, now: Duration, within: &mut Vec<Process>) {
        let Some(called) = self.called.filter(|_| !(within.is_empty() && self.is_known())) else { return };
        let mut seen = host.held_up_by(&called, true);
        let (doubtful, at) = self.doubtful.get_or_insert_with(|| {
            let doubtful = seen.iter().filter(|process| !within.contains(process)).copied().collect();
            (doubtful, now + SOON_OVER)
        });
        doubtful.retain(|process| seen.contains(process));
        let are_believed = now >= *at;
        seen.retain(|process| within.contains(process) || (are_believed && doubtful.contains(process)));
        if are_believed {
            doubtful.clear();
        }
        *within = seen;
    }

    /// Whether nobody will be added any more.
    pub(super) fn is_known(&self) -> bool {
        self.called.is_none() || self.doubtful.as_ref().is_some_and(|(doubtful, _)| doubtful.is_empty())
    }

    /// When to look again, if `first` is when to do so for the first time.
    pub(super) fn next_look(&self, first: Duration) -> Option<Duration> {
        (!self.is_known()).then(|| self.doubtful.as_ref().map_or(first, |(_, at)| *at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Fake;

    const FIRST: Duration = Duration::from_millis(100);

    /// Whom a wait holds up where these are seen at once, and those later, one look after the other; and whether no more
    /// can come.
    fn held_up(at_once: &[i32], later: &[(Duration, &[i32])]) -> (Vec<i32>, bool) {
        let host = Fake::new(1);
        let mut held_up = HeldUp::new(Some(Called { pid: 1, ignores_interrupt: true }));
        host.set_held_up(at_once);
        let mut within = held_up.at_once(&host).unwrap();
        for (now, seen) in later {
            host.set_held_up(seen);
            held_up.look_again(&host, *now, &mut within);
        }
        assert_eq!(held_up.next_look(FIRST).is_none(), held_up.is_known());
        (within.iter().map(|process| process.pid).collect(), held_up.is_known())
    }

    #[test]
    fn who_is_seen_at_once_is_held_up() {
        assert_eq!(held_up(&[2], &[]), (vec![2], false));
        assert_eq!(held_up(&[2], &[(FIRST, &[2])]), (vec![2], true));
    }

    #[test]
    fn who_is_seen_only_later_has_to_be_seen_twice_some_time_apart() {
        let (before, twice) = (FIRST + SOON_OVER / 2, FIRST + SOON_OVER);
        assert_eq!(held_up(&[], &[(FIRST, &[2]), (before, &[2])]), (vec![], false));
        assert_eq!(held_up(&[], &[(FIRST, &[2]), (twice, &[2])]), (vec![2], true));
        assert_eq!(held_up(&[3], &[(FIRST, &[2, 3]), (before, &[3]), (twice, &[2, 3])]), (vec![3], true));
        assert_eq!(held_up(&[], &[(FIRST, &[]), (twice, &[2])]), (vec![], true));
    }

    #[test]
    fn who_was_seen_to_go_on_is_held_up_no_more() {
        assert_eq!(held_up(&[2, 3], &[(FIRST, &[3]), (FIRST * 2, &[2, 3])]), (vec![3], true));
        assert_eq!(held_up(&[2], &[(FIRST, &[2]), (FIRST * 9, &[]), (FIRST * 10, &[2])]), (vec![], true));
    }

    #[test]
    fn whom_nobody_called_holds_up_nobody() {
        let mut held_up = HeldUp::new(None);
        let host = Fake::new(1);
        host.set_held_up(&[2]);
        let mut within = Vec::new();
        held_up.look_again(&host, FIRST, &mut within);
        assert_eq!((held_up.at_once(&host), within.len(), held_up.is_known()), (None, 0, true));
    }
}
