//! The queue of a record: who is evicted, who is served, who fits.

use super::ask::Application;
use super::facts::{Facts, Fate, Wanted};
use super::handle::Proof;
use super::protocol::standing;
use super::record::{Ended, Ending, Grant, Party, Process, Record, Share, Tenure, Waiter};

/// How many past grants a record remembers.
const ENDINGS_KEPT: usize = 4;

/// Ends the grants that no longer stand, and forgets of those that were broken whose holders will never ask.
pub(super) fn evict(record: &mut Record, facts: &Facts) -> Result<Vec<Ending>, Wanted> {
    for ending in std::mem::take(&mut record.endings) {
        if ending.how != Ended::Broken || effective_owner(&ending.grant.party, facts)?.is_some() {
            record.endings.push(ending);
        }
    }
    let mut evicted = Vec::new();
    let mut at = 0;
    while at < record.holders.len() {
        match standing(&record.holders[at], facts)? {
            Ok(_) => at += 1,
            Err(how) => {
                let grant = end(record, at, how);
                evicted.push(Ending { grant, how });
            }
        }
    }
    Ok(evicted)
}

pub(super) fn end(record: &mut Record, at: usize, how: Ended) -> Grant {
    let grant = record.holders.remove(at);
    record.endings.push(Ending { grant: grant.clone(), how });
    let surplus = record.endings.len().saturating_sub(ENDINGS_KEPT);
    record.endings.drain(..surplus);
    grant
}

pub(super) fn serve(record: &mut Record, facts: &Facts) -> Result<Vec<Proof>, Wanted> {
    evict(record, facts)?;
    serve_as(record, facts, None)
}

/// Walks the queue in order of arrival and grants to those who fit. Returns who has something new to see.
pub(super) fn serve_as(record: &mut Record, facts: &Facts, me: Option<&Application>) -> Result<Vec<Proof>, Wanted> {
    let mut wake = Vec::new();
    while let Some(first) = record.waiters.first() {
        let myself = me.filter(|application| application.entry.proof == first.proof);
        if myself.is_none() && is_gone(first, facts)? {
            record.waiters.remove(0);
            // Whoever stands next was watching the one that is gone.
            wake.extend(record.waiters.first().map(|next| next.proof));
            continue;
        }
        let Some(slot) = free_slot(record, first.share) else { break };
        let waiter = record.waiters.remove(0);
        wake.push(waiter.proof);
        let leased = waiter.lease.is_some() || !matches!(waiter.tenure, Tenure::OwnerLives);
        record.holders.push(promote(waiter, slot, myself, facts));
        if leased {
            // The next one watches a process; that this grant may end by a lease it has to be told.
            wake.extend(record.waiters.first().map(|next| next.proof));
        }
    }
    wake.dedup();
    Ok(wake)
}

pub(super) fn promote(waiter: Waiter, slot: u32, myself: Option<&Application>, facts: &Facts) -> Grant {
    let unconfirmed = (myself.is_none() && waiter.confirms).then_some(waiter.process);
    let tenure = match (myself, unconfirmed, &waiter.lease) {
        (Some(application), ..) => application.tenure.clone(),
        (None, Some(_), Some(lease)) => Tenure::Until(lease.clone()),
        _ => waiter.tenure.clone(),
    };
    let Waiter { proof, share, party, yields, .. } = waiter;
    Grant { proof, token: None, share, slot, party, tenure, since: facts.wall, unconfirmed, yields }
}

/// The lowest place that `share` would get beside those who hold, or `None` if it does not fit.
pub(super) fn free_slot(record: &Record, share: Share) -> Option<u32> {
    let alike = record.holders.iter().all(|grant| grant.share == share);
    match share {
        Share::Exclusive => record.holders.is_empty().then_some(0),
        Share::Shared => alike.then_some(0),
        Share::Slot if !alike => None,
        Share::Slot => (0..record.slots?).find(|slot| record.holders.iter().all(|grant| grant.slot != *slot)),
    }
}

pub(super) fn other_slots(record: &Record, application: &Application) -> Option<u32> {
    let counted = |share| share == Share::Slot;
    let in_use = record.holders.iter().any(|grant| counted(grant.share))
        || record.waiters.iter().any(|waiter| counted(waiter.share));
    let has = record.slots.filter(|_| in_use)?;
    application.slots.is_some_and(|wants| wants != has).then_some(has)
}

pub(super) fn is_gone(waiter: &Waiter, facts: &Facts) -> Result<bool, Wanted> {
    if let Some(lease) = &waiter.lease
        && facts.over(lease)?
    {
        return Ok(true);
    }
    Ok(facts.fate(&waiter.party.home, &waiter.process)? == Fate::Dead)
}

/// The first owner that is not dead for sure, and what is known of it.
pub(super) fn effective_owner(party: &Party, facts: &Facts) -> Result<Option<(Process, Fate)>, Wanted> {
    for owner in &party.owners {
        let fate = facts.fate(&party.home, owner)?;
        if fate != Fate::Dead {
            return Ok(Some((*owner, fate)));
        }
    }
    Ok(None)
}
