//! Deadlock detection: publishing the edges of waits that other waits may depend on, and following these edges.
//!
//! The edges come from the callers that a wait blocks: processes of the scripts that continue only after it. The
//! locks that they hold do not become free meanwhile. A shell cannot be asked which process it waits for; that can
//! only be observed ([`Host::blocked_callers`]). At first a background job may look like a foreground command,
//! until the script starts another command. This start takes time on a busy machine, and between two commands a
//! script looks as if it waited again. So a caller counts as blocked after two observations, and stops counting
//! once it was seen to continue. A request that does not wait uses the first observation. Most waits are shorter
//! than a second, so the observations come just before the first deadlock check. A caller that may hold this very
//! lock is observed sooner; most waits end before this is examined.

use std::time::Duration;

use super::Engine;
use host::Host;
use lock::error::Result;
use lock::{Cycle, Facts, HandleHash, Liveness, ProcessId, Record, WaitEdge, WaitEdges, WaitNode, Waiter, find_cycle};
use store::guarded;

/// Delay after which a wait publishes its edges and checks for a deadlock. Most waits are shorter.
pub(super) const DEADLOCK_DELAY: Duration = Duration::from_millis(1000);

/// Time between the two checks of a victim. By the second check, members that are not blocked any more have said so.
pub(super) const SECOND_CHECK_DELAY: Duration = Duration::from_millis(100);

const MOST_WAITS: usize = 2000;

/// Maximum number of published waits of one process for one lock, and of those under one grant. If one of these waits
/// is stuck, all waits behind it are stuck too and block the same processes. A thousand edges under one key would cost
/// each of their waiters a thousand times as much.
const MOST_OF_A_LOCK: usize = 4;

/// Maximum number of differing reads of the same waits before the check is left to the next process.
const MOST_LOOKS: usize = 20;

impl Engine {
    /// Publishes this wait under every key that other processes read, unless a key has enough similar waits. Returns
    /// true if it is published under one key at least.
    pub(super) fn publish(&self, name: &[u8], waiter: &Waiter) -> Result<bool> {
        let edge = WaitEdge(name.to_vec(), waiter.proof);
        let add = |edges: &mut WaitEdges| {
            let alike = edges.waits.iter().filter(|WaitEdge(of, _)| of == name).count();
            if alike < MOST_OF_A_LOCK && !edges.waits.contains(&edge) {
                edges.waits.push(edge.clone());
            }
        };
        let mut is_published = false;
        for key in WaitEdges::keys(waiter) {
            let mut edges = self.change_edges(&key, &add)?;
            if !edges.waits.contains(&edge) {
                let gone = self.ended_waits(&edges)?;
                edges = self.change_edges(&key, &|edges| {
                    edges.waits.retain(|edge| !gone.contains(edge));
                    add(edges);
                })?;
            }
            is_published |= edges.waits.contains(&edge);
        }
        Ok(is_published)
    }

    /// Those of these waits that are over, although they are still published.
    pub(super) fn ended_waits(&self, edges: &WaitEdges) -> Result<Vec<WaitEdge>> {
        let mut gone = Vec::new();
        for edge in &edges.waits {
            let WaitEdge(name, proof) = edge;
            let waits = match self.read(name).and_then(|(_, record)| self.entry(record, proof)) {
                // The unreadable record may still contain the waiter.
                Err(error) if error.is_of_one_record() => continue,
                waits => waits?,
            };
            let lives = waits.is_some_and(|(record, waiter)| {
                self.liveness(&record, &waiter.owner.domain, &waiter.process) != Liveness::Dead
            });
            if !lives {
                gone.push(edge.clone());
            }
        }
        Ok(gone)
    }

    pub(super) fn retract(&self, name: &[u8], waiter: &Waiter) -> Result<()> {
        WaitEdges::keys(waiter).iter().try_for_each(|key| {
            self.change_edges(key, &|edges| {
                edges.waits.retain(|WaitEdge(of, proof)| *proof != waiter.proof || of != name)
            })
            .map(drop)
        })
    }

    /// Removes the published edges of the waits of this process that ended with a grant. A command need not wait for
    /// this: edges of a process that is not in the queue any more have no meaning.
    pub fn retract_granted(&self) {
        for (name, waiter) in std::mem::take(&mut *guarded(&self.granted_waits)) {
            let _ = self.retract(&name, &waiter);
        }
    }

    /// Changes the edges under this key and returns them. An unreadable object is removed, unless it gets edges.
    pub(super) fn change_edges(&self, key: &[u8], change: &dyn Fn(&mut WaitEdges)) -> Result<WaitEdges> {
        self.change_auxiliary(key, &mut |found: &WaitEdges| {
            let mut next = found.clone();
            change(&mut next);
            (next != *found || next.waits.is_empty()).then_some(next)
        })
    }

    /// All edges of the cycle existed at one moment.
    pub(super) fn find_deadlock(&self, name: &[u8], me: &HandleHash) -> Result<Option<Cycle>> {
        let mut before = None;
        for _ in 0..MOST_LOOKS {
            let found = self.look_for_cycle(name, me)?;
            if found.is_none() || found == before {
                return Ok(found);
            }
            before = found;
        }
        Ok(None)
    }

    fn look_for_cycle(&self, name: &[u8], me: &HandleHash) -> Result<Option<Cycle>> {
        let mut waits: Vec<WaitNode> = Vec::new();
        let mut to_look_at = vec![WaitEdge(name.to_vec(), *me)];
        let mut looked_at = std::collections::HashSet::new();
        while let Some(edge) = to_look_at.pop() {
            if waits.len() >= MOST_WAITS || !looked_at.insert(edge.clone()) {
                continue;
            }
            let WaitEdge(name, proof) = edge;
            let (_, record) = match self.read(&name) {
                // An unreadable record of another lock does not fail this wait.
                Err(error) if !waits.is_empty() && error.is_of_one_record() => continue,
                read => read?,
            };
            let mut edges = Vec::new();
            for key in record.holders.iter().flat_map(WaitEdges::keys_of_holder) {
                edges.extend(self.auxiliary::<WaitEdges>(&key)?.1.waits);
            }
            // Holders that wait for no lock release this one, so the wait is not stuck. Most checks end here.
            if edges.is_empty() {
                continue;
            }
            let Some((record, waiter)) = self.entry(record, &proof)? else { continue };
            to_look_at.extend(edges);
            waits.push(WaitNode { name, record, waiter });
        }
        if waits.first().is_none_or(|first| first.waiter.proof != *me) {
            return Ok(None);
        }
        let mut facts = Facts::default();
        loop {
            match find_cycle(&waits, &facts) {
                Ok(found) => return Ok(found),
                Err(query) => self.learn(&Record::default(), &mut facts, query, None)?,
            }
        }
    }

    /// A waiter's entry from any part of the queue, and the record with that part.
    pub(super) fn entry(&self, record: Record, proof: &HandleHash) -> Result<Option<(Record, Waiter)>> {
        if let Some(waiter) = record.waiter(proof).cloned() {
            return Ok(Some((record, waiter)));
        }
        if record.pages.is_none() {
            return Ok(None);
        }
        let whole = self.whole(record)?;
        Ok(whole.waiter(proof).cloned().map(|waiter| (whole, waiter)))
    }
}

/// Time between the inspections of the callers: even busy shells mostly run their next command by then.
const INSPECTION_DELAY: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct BlockedCallers {
    called: Option<i32>,
    /// Holders at the beginning of the wait, until it is known whether the callers may be among them.
    holders: Option<Vec<ProcessId>>,
    /// This process itself, if it was a holder at the beginning of the wait: a command that became csalock.
    itself: Option<ProcessId>,
    /// Time of the first inspection on CLOCK_BOOTTIME.
    first: Duration,
    /// Callers that seem to wait, and the time of their next inspection on CLOCK_BOOTTIME.
    provisional: Option<(Vec<ProcessId>, Duration)>,
}

impl BlockedCallers {
    pub(super) fn new(called: Option<i32>) -> BlockedCallers {
        BlockedCallers { called, holders: None, itself: None, first: Duration::ZERO, provisional: None }
    }

    /// Callers that seem blocked from the beginning; `None` if there is no caller.
    pub(super) fn immediately(&self, host: &dyn Host) -> Option<Vec<ProcessId>> {
        Some(host.blocked_callers(self.called?, false))
    }

    /// Begins the observation of a wait for these holders at `now` on CLOCK_BOOTTIME. Returns that time.
    pub(super) fn begin(&mut self, now: Duration, holders: Vec<ProcessId>) -> Duration {
        self.itself = self.called.and_then(|called| holders.iter().find(|holder| holder.pid == called).copied());
        self.holders = Some(holders);
        self.first = now + INSPECTION_DELAY;
        now
    }

    /// Inspects the callers again at `now` on CLOCK_BOOTTIME, some time after the wait began.
    pub(super) fn look_again(&mut self, host: &dyn Host, now: Duration, within: &mut Vec<ProcessId>) {
        let is_over = within.is_empty() && self.is_known();
        let Some(called) = self.called.filter(|_| now >= self.first && !is_over) else { return };
        if self.holders.take().is_some_and(|holders| !host.may_be_called_by(called, &holders)) {
            self.first += DEADLOCK_DELAY - 2 * INSPECTION_DELAY;
            return;
        }
        let mut seen = host.blocked_callers(called, true);
        seen.extend(self.itself.filter(|itself| !seen.contains(itself)));
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

    /// No further caller can be added.
    pub(super) fn is_known(&self) -> bool {
        self.called.is_none() || self.provisional.as_ref().is_some_and(|(doubtful, _)| doubtful.is_empty())
    }

    pub(super) fn next_look(&self) -> Option<Duration> {
        (!self.is_known()).then(|| self.provisional.as_ref().map_or(self.first, |(_, at)| *at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::Fake;

    const FIRST: Duration = Duration::from_millis(100);

    /// Returns the callers that a wait blocks after an immediate observation and these later ones. The flag is true if
    /// no further caller can be added.
    fn blocked_callers(immediately: &[i32], later: &[(Duration, &[i32])]) -> (Vec<i32>, bool) {
        let host = Fake::new(1);
        let mut blocked_callers = BlockedCallers::new(Some(1));
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
        let host = host::Unix::new();
        let this = host.this_process().unwrap();
        let looks = |holder: ProcessId| {
            let mut blocked_callers = BlockedCallers::new(Some(this.pid));
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
