//! Cycles in the wait-for graph, of any length and shape.
//!
//! Among all waits that a wait may depend on, the waits that can never end by themselves are *stuck*. At first the
//! search takes every wait for stuck. Then it assumes that each holder without a stuck wait releases the lock. A waiter
//! that would get the lock is not stuck, and the search repeats this until nothing changes. So a wait for a slot is
//! stuck only if all slot holders are stuck; a wait for the whole lock, if any holder is. A waiter in a queue shares
//! the obstacles of the waiters ahead.
//!
//! A stuck wait may be behind a cycle and not in it. A single waiter in the cycle must give up, and all waiters must
//! choose the same victim: the waiter that came last.

use super::queue::slot_for;
use super::{Edge, Facts, Grant, HandleHash, Lifetime, Liveness, Query, Record, Waiter, is_gone};

#[derive(Debug, Clone)]
pub struct WaitNode {
    pub name: Vec<u8>,
    pub record: Record,
    pub waiter: Waiter,
}

/// A cycle, as seen from the first of the waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cycle {
    /// Edges from the lock that is waited for to the waiter's own lock.
    pub edges: Vec<Edge>,
    /// Handle hash of the waiter that must give up.
    pub victim: HandleHash,
    pub members: Vec<HandleHash>,
    /// Every stuck wait, with the holders in its way. If two checks, the second after the end of the first, agree on
    /// this, the whole cycle existed at one moment.
    evidence: Vec<(HandleHash, Vec<HandleHash>)>,
}

/// Finds the cycle that contains the first of these waits.
pub fn find_cycle(waits: &[WaitNode], facts: &Facts) -> Result<Option<Cycle>, Query> {
    let blocked_callers = blockers(waits, facts)?;
    let stuck = stuck(waits, &blocked_callers, facts)?;
    // The edges lead from each wait to the stuck waits that hold it up.
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

/// For each wait and each holder of its lock: the waits that end before this holder releases the lock.
fn blockers(waits: &[WaitNode], facts: &Facts) -> Result<Vec<Vec<Vec<usize>>>, Query> {
    let mut all = Vec::new();
    for wait in waits {
        let mut of_wait = Vec::new();
        for grant in &wait.record.holders {
            let mut by = Vec::new();
            for (at, other) in waits.iter().enumerate() {
                // A lease without keepalive ends by itself, so it blocks no wait permanently.
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

/// A grant does not end before this wait does if the waiter works under it, or its script owns it.
pub(super) fn waits_within(waiter: &Waiter, grant: &Grant, facts: &Facts) -> Result<bool, Query> {
    let of_waiter = |process| waiter.process == process || waiter.blocked_processes.contains(&process);
    let is_near = grant.owner.domain.shares_pids_with(&waiter.owner.domain)
        && grant.owner.processes.iter().any(|owner| of_waiter(*owner));
    let owner = if is_near { facts.effective_owner(&grant.owner)?.map(|(owner, _)| owner) } else { None };
    let mut is_owned = owner.is_some_and(of_waiter);
    if let Lifetime::Descriptor(lock) = &grant.lifetime {
        let domain = &grant.owner.domain;
        // A script that has closed its descriptor still seems to own what its children have, or what no caller can see.
        if facts.descriptor(domain, lock, None)? != Liveness::Alive {
            return Ok(false);
        }
        is_owned = is_owned && facts.descriptor(domain, lock, owner)? != Liveness::Dead;
    }
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

/// A waiter fits if it would eventually be granted the lock even if these holders kept it.
pub(super) fn fits_beside(holders: &[&Grant], record: &Record, waiter: &Waiter, facts: &Facts) -> Result<bool, Query> {
    let fits = |other: &Waiter| slot_for(other, holders.iter().copied(), record.slots).is_some();
    for before in record.waiters.iter().take_while(|before| before.proof != waiter.proof) {
        if !fits(before) && !is_gone(before, facts)? {
            return Ok(false);
        }
    }
    Ok(fits(waiter))
}

/// For each reachable wait: the wait before it on a shortest path, and the holder that links them.
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
