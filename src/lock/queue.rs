//! The queue of a record: who is evicted, who is served, who fits.

use super::ask::Application;
use super::facts::{Facts, Fate, Wanted};
use super::handle::Proof;
use super::protocol::{is_decided, standing};
use super::record::{Ended, Ending, Grant, Pages, Party, Process, Record, Share, Tenure, Waiter};

/// How many waiters stand in the record itself before newcomers are sent to a page.
pub(super) const WINDOW: usize = 16;

/// With so few left in the record, the next page is fetched.
const LOW_WATER: usize = 3;

/// Ends the grants that no longer stand, and forgets the endings whose supervisors and holders will never ask.
pub(super) fn evict(record: &mut Record, facts: &Facts) -> Result<Vec<Ending>, Wanted> {
    let mut evicted = Vec::new();
    let mut at = 0;
    while at < record.holders.len() {
        match standing(&record.holders[at], facts)? {
            Ok(_) => {
                let grant = &mut record.holders[at];
                if is_decided(grant, facts)? {
                    grant.unconfirmed = None;
                    if grant.claim.is_some() {
                        grant.tenure = Tenure::Forever;
                    }
                }
                at += 1;
            }
            Err(how) => {
                let grant = end(record, at, how);
                evicted.push(Ending { grant, how });
            }
        }
    }
    for mut ending in std::mem::take(&mut record.endings) {
        forget_dead_supervisor(&mut ending, facts)?;
        let is_awaited = ending.grant.party.supervisor.is_some() || ending.how != Ended::Broken;
        let owner = effective_owner(&ending.grant.party, facts)?;
        if is_awaited || owner.is_some_and(|(_, fate)| fate.may_live_here()) {
            record.endings.push(ending);
        }
    }
    Ok(evicted)
}

/// A supervisor that is dead hears of nothing any more.
fn forget_dead_supervisor(ending: &mut Ending, facts: &Facts) -> Result<(), Wanted> {
    let party = &mut ending.grant.party;
    if let Some(supervisor) = &party.supervisor
        && !facts.fate(&party.home, supervisor)?.may_live_here()
    {
        party.supervisor = None;
    }
    Ok(())
}

pub(super) fn end(record: &mut Record, at: usize, how: Ended) -> Grant {
    let grant = record.holders.remove(at);
    record.endings.push(Ending { grant: grant.clone(), how });
    grant
}

pub(super) fn serve(record: &mut Record, facts: &Facts) -> Result<Vec<Proof>, Wanted> {
    evict(record, facts)?;
    serve_as(record, facts, None)
}

/// Walks the queue in order of arrival and grants to those who fit. Returns who has something new to see.
pub(super) fn serve_as(record: &mut Record, facts: &Facts, me: Option<&Application>) -> Result<Vec<Proof>, Wanted> {
    let mut wake = Vec::new();
    loop {
        if record.waiters.len() <= LOW_WATER && record.pages.is_some() {
            wake.extend(fetch(record, facts)?);
            continue;
        }
        let Some(first) = record.waiters.first() else { break };
        let myself = me.filter(|application| application.entry.proof == first.proof);
        if myself.is_none() && is_gone(first, facts)? {
            record.waiters.remove(0);
            // Whoever stands next was watching the one that is gone.
            wake.extend(record.waiters.first().map(|next| next.proof));
            continue;
        }
        let Some(slot) = free_slot(&record.holders, record.slots, first.share) else { break };
        let waiter = record.waiters.remove(0);
        wake.push(waiter.proof);
        let leased = waiter.lease.is_some() || !matches!(waiter.tenure, Tenure::OwnerLives);
        record.holders.push(promote(waiter, slot, myself, facts)?);
        if leased {
            // The next one watches a process; that this grant may end by a lease it has to be told.
            wake.extend(record.waiters.first().map(|next| next.proof));
        }
    }
    if !counts(record) {
        record.slots = None;
    }
    wake.dedup();
    Ok(wake)
}

/// Brings the waiters of the first page into the record. Returns the first of them: he could not see who stands before
/// him until now.
pub(super) fn fetch(record: &mut Record, facts: &Facts) -> Result<Option<Proof>, Wanted> {
    let Some(pages) = record.pages else { return Ok(None) };
    // Whoever had already been moved when somebody died half-way, or entered a page twice, stands once.
    let has = |record: &Record, proof: Proof| {
        record.holders.iter().any(|grant| grant.proof == proof)
            || record.waiters.iter().any(|waiter| waiter.proof == proof)
    };
    let before = record.waiters.len();
    for waiter in facts.page(pages.first)? {
        if !has(record, waiter.proof) {
            record.waiters.push(waiter.clone());
        }
    }
    record.pages = (pages.first < pages.last).then(|| Pages { first: pages.first + 1, ..pages });
    Ok(record.waiters.get(before).map(|waiter| waiter.proof))
}

pub(super) fn promote(waiter: Waiter, slot: u32, myself: Option<&Application>, facts: &Facts) -> Result<Grant, Wanted> {
    let is_tentative = myself.map_or(waiter.confirms, |application| application.tentative);
    let unconfirmed = is_tentative.then_some(waiter.process);
    let tenure = match (myself, unconfirmed, (&waiter.lease, &waiter.tenure)) {
        (Some(application), ..) => application.tenure.clone(),
        (None, Some(_), (Some(lease), _)) => Tenure::Until(lease.clone()),
        // A waiter that is stopped may not confirm it for as long as it likes.
        (None, Some(_), (None, Tenure::AtMost(span))) => Tenure::Until(facts.lent(*span)?.clone()),
        _ => waiter.tenure.clone(),
    };
    let waited = facts.wall.saturating_sub(waiter.since);
    let Waiter { proof, share, party, yields, claim, .. } = waiter;
    Ok(Grant { proof, token: None, share, slot, party, tenure, since: facts.wall, waited, unconfirmed, yields, claim })
}

/// The lowest place that `share` would get beside those who hold, or `None` if it does not fit.
pub(super) fn free_slot<'a>(
    holders: impl IntoIterator<Item = &'a Grant, IntoIter: Clone>,
    slots: Option<u32>,
    share: Share,
) -> Option<u32> {
    let mut holders = holders.into_iter();
    let alike = holders.clone().all(|grant| grant.share == share);
    match share {
        Share::Exclusive => holders.next().is_none().then_some(0),
        Share::Shared => alike.then_some(0),
        Share::Slot if !alike => None,
        Share::Slot => (0..slots?).find(|slot| holders.clone().all(|grant| grant.slot != *slot)),
    }
}

/// Whether anybody has or wants a place of several, as far as the record tells.
fn counts(record: &Record) -> bool {
    record.holders.iter().any(|grant| grant.share == Share::Slot)
        || record.waiters.iter().any(|waiter| waiter.share == Share::Slot)
        || record.pages.is_some()
}

/// The number of places that the record has, where another one is asked for and somebody relies on it.
pub(super) fn other_slots(record: &Record, application: &Application, facts: &Facts) -> Result<Option<u32>, Wanted> {
    let (Some(has), Some(wants)) = (record.slots, application.slots) else { return Ok(None) };
    if has == wants {
        return Ok(None);
    }
    let mut in_use = record.pages.is_some() || record.holders.iter().any(|grant| grant.share == Share::Slot);
    for waiter in record.waiters.iter().filter(|waiter| waiter.share == Share::Slot) {
        in_use = in_use || !is_gone(waiter, facts)?;
    }
    Ok(in_use.then_some(has))
}

pub(super) fn is_gone(waiter: &Waiter, facts: &Facts) -> Result<bool, Wanted> {
    // To look at a process costs less than to ask for a lease.
    let is_dead = facts.fate(&waiter.party.home, &waiter.process)? == Fate::Dead;
    Ok(is_dead || waiter.lease.as_ref().map_or(Ok(false), |lease| facts.over(lease))?)
}

/// The first owner that may live, or else the last that is missing; and what is known of it. `None`: all are dead for sure.
pub(super) fn effective_owner(party: &Party, facts: &Facts) -> Result<Option<(Process, Fate)>, Wanted> {
    let mut missing = None;
    for owner in &party.owners {
        match facts.fate(&party.home, owner)? {
            Fate::Dead => {}
            Fate::Missing => missing = Some((*owner, Fate::Missing)),
            fate => return Ok(Some((*owner, fate))),
        }
    }
    Ok(missing)
}
