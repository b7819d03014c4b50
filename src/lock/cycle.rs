//! Circles of waits, of any length and shape.
//!
//! Given all waits that somebody's wait may depend on, those are *stuck* that can never end by themselves. Everybody is
//! taken for stuck at first; then whoever would get the lock if all holders gave it back who are not held up by a stuck
//! wait, is not, and so on until nothing changes. A wait for one of several places thus depends on all their holders
//! being stuck, a wait for the whole lock on any one of them; and who stands behind somebody in a queue is held up by
//! what holds that one up.
//!
//! A stuck wait need not be part of a circle: it may only stand behind one. Of those that are, one has to give up, and
//! all must choose the same: the one who came last.

use super::ask::Edge;
use super::facts::{Facts, Query};
use super::handle::HandleHash;
use super::queue::{effective_owner, free_slot, is_gone};
use super::record::{Grant, Lifetime, Record, Waiter};

/// Somebody's wait, and the record of what he waits for.
#[derive(Debug, Clone)]
pub struct WaitNode {
    /// The lock's name.
    pub name: Vec<u8>,
    /// Its record.
    pub record: Record,
    /// The entry in its queue.
    pub waiter: Waiter,
}

/// A circle, as the first of the waits sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cycle {
    /// From the lock that is waited for to the waiter's own.
    pub edges: Vec<Edge>,
    /// Who is to give up.
    pub victim: HandleHash,
    /// All who are in it.
    pub members: Vec<HandleHash>,
    /// Every stuck wait, with the holders that are in its way. Two looks that agree on this, one wholly after the other,
    /// have seen something that was there all at once.
    evidence: Vec<(HandleHash, Vec<HandleHash>)>,
}

/// The circle that the first of these waits is part of, if there is one.
///
/// # Errors
///
/// As [`super::decide`].
pub fn find_cycle(waits: &[WaitNode], facts: &Facts) -> Result<Option<Cycle>, Query> {
    let blocked_callers = blockers(waits, facts)?;
    let stuck = stuck(waits, &blocked_callers, facts)?;
    // From each stuck wait to those that hold it up.
    let next = |at: usize| {
        let ways =
            blocked_callers[at].iter().enumerate().flat_map(|(holder, by)| by.iter().map(move |by| (*by, holder)));
        ways.filter(|(by, _)| stuck[*by])
    };
    let reach = |from: usize| reach(from, waits.len(), next);
    let from_me = reach(0);
    if waits.is_empty() || !stuck[0] || from_me[0].is_none() {
        return Ok(None);
    }
    let members: Vec<usize> = (0..waits.len()).filter(|at| from_me[*at].is_some() && reach(*at)[0].is_some()).collect();
    let age = |at: &&usize| (waits[**at].waiter.since, waits[**at].waiter.proof);
    let victim = members.iter().max_by_key(age).map_or(waits[0].waiter.proof, |at| waits[*at].waiter.proof);
    let mut links = Vec::new();
    let mut at = 0;
    while let Some((from, holder)) = from_me[at] {
        links.push(Edge { name: waits[from].name.clone(), grant: waits[from].record.holders[holder].clone() });
        at = from;
        if at == 0 {
            break;
        }
    }
    links.reverse();
    let in_the_way = |at: usize| next(at).map(|(_, holder)| waits[at].record.holders[holder].proof).collect();
    Ok(Some(Cycle {
        edges: links,
        victim,
        members: members.iter().map(|at| waits[*at].waiter.proof).collect(),
        evidence: (0..waits.len()).filter(|at| stuck[*at]).map(|at| (waits[at].waiter.proof, in_the_way(at))).collect(),
    }))
}

/// For each wait, for each holder of what it waits for: the waits that this holder does not outlive.
fn blockers(waits: &[WaitNode], facts: &Facts) -> Result<Vec<Vec<Vec<usize>>>, Query> {
    let mut all = Vec::new();
    for wait in waits {
        let mut of_wait = Vec::new();
        for grant in &wait.record.holders {
            let mut by = Vec::new();
            for (at, other) in waits.iter().enumerate() {
                // A lease that nobody renews ends by itself.
                if !matches!(grant.lifetime, Lifetime::ExpiresAt(_)) && waits_within(&other.waiter, grant, facts)? {
                    by.push(at);
                }
            }
            of_wait.push(by);
        }
        all.push(of_wait);
    }
    Ok(all)
}

/// Whether a grant does not end before this wait does: the waiter works under it, or its script owns it.
pub(super) fn waits_within(waiter: &Waiter, grant: &Grant, facts: &Facts) -> Result<bool, Query> {
    let of_waiter = |process| waiter.process == process || waiter.blocked_processes.contains(&process);
    let is_owned = grant.owner.domain.shares_pids_with(&waiter.owner.domain)
        && grant.owner.processes.iter().any(|owner| of_waiter(*owner))
        && effective_owner(&grant.owner, facts)?.is_some_and(|(owner, _)| of_waiter(owner));
    Ok(is_owned || waiter.enclosing_grants.contains(&grant.proof))
}

fn stuck(waits: &[WaitNode], blocked_callers: &[Vec<Vec<usize>>], facts: &Facts) -> Result<Vec<bool>, Query> {
    let mut stuck = vec![true; waits.len()];
    loop {
        let mut changed = false;
        for (at, wait) in waits.iter().enumerate().filter(|(at, _)| stuck[*at]).collect::<Vec<_>>() {
            let holders = wait.record.holders.iter().zip(&blocked_callers[at]);
            let remaining = holders.filter(|(_, by)| by.iter().any(|by| stuck[*by])).map(|(grant, _)| grant);
            if fits_beside(&remaining.collect::<Vec<_>>(), &wait.record, &wait.waiter, facts)? {
                stuck[at] = false;
                changed = true;
            }
        }
        if !changed {
            return Ok(stuck);
        }
    }
}

/// Whether a waiter would be granted the lock in the end if just these holders kept it.
pub(super) fn fits_beside(holders: &[&Grant], record: &Record, waiter: &Waiter, facts: &Facts) -> Result<bool, Query> {
    let fits = |other: &Waiter| free_slot(holders.iter().copied(), record.slots, other.mode).is_some();
    for before in record.waiters.iter().take_while(|before| before.proof != waiter.proof) {
        if !fits(before) && !is_gone(before, facts)? {
            return Ok(false);
        }
    }
    Ok(fits(waiter))
}

/// For each wait that can be reached: by which wait and past which of its holders, on a shortest way.
fn reach<I: Iterator<Item = (usize, usize)>>(
    from: usize,
    count: usize,
    next: impl Fn(usize) -> I,
) -> Vec<Option<(usize, usize)>> {
    let mut by = vec![None; count];
    let mut queue = std::collections::VecDeque::from([from]);
    while let Some(at) = queue.pop_front() {
        for (to, holder) in next(at) {
            if by[to].is_none() {
                by[to] = Some((at, holder));
                queue.push_back(to);
            }
        }
    }
    by
}

#[cfg(test)]
mod tests;
