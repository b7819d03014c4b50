//! The queue of a record: which holders it evicts, which waiters it serves, and which waiters fit.
//!
//! Of some callers only the newest waits (`run --busy latest`): a newcomer takes the place of the one before, and not
//! the end of the queue, so that a queue of other callers serves the newest even if newcomers come faster than it
//! moves. For the same reason such a caller waits in the record, never on a page.
//!
//! The record names the replaced waiters until their successor has gone, so that a waiter whose entry is missing learns
//! why. A waiter without that trace has lost its place all the same: it does not queue again, because a newer caller
//! may have run already.
//!
//! The end of a long queue is in pages of its own. A commit replaces a whole record, so with a thousand waiters in it
//! each of their steps would cost a thousand times as much. Therefore the record contains only the first waiters. If
//! there are more, it names a range of *pages*, each under its own name, and newcomers enter the last. A process that
//! serves a queue with few waiters left in the record fetches the first page into it.
//!
//! - csalock **seals** a page before a fetch. No waiter enters or leaves a sealed page, so the fetch moves each waiter
//!   exactly once.
//! - After a waiter enters a page, it reads the record. If the page is not (any more) among the record's pages, the
//!   entry is void, and the waiter enters the queue again.
//! - A page contains no grant. A bad or missing page costs its waiters their positions, but costs no holder a lock.
//!
//! A process that is stopped (SIGSTOP, Ctrl-Z, a debugger) or frozen cannot start its command, so it must not be
//! granted a lock that others wait for. The walk passes over a stopped waiter, which keeps its place. A waiter that
//! stops between its grant and the confirmation goes back to the head of the queue; its late confirmation then finds no
//! grant.

use std::num::NonZeroU32;

use super::ending::{end, evict, is_expired};
use super::protocol::has_dead_owner;
use super::{
    Acquire, EndReason, Facts, Grant, HandleHash, Lifetime, Liveness, Mode, Owner, Pages, Phase, ProcessId, Query,
    Record, Refusal, Replacement, Standing, Successor, Waiter,
};

/// Maximum number of waiters in the record itself; further waiters enter a page.
pub(super) const INLINE_WAITERS: usize = 16;

/// Number of waiters left in the record at which the next page is fetched.
const REFILL_BELOW: usize = 3;

/// Time after a grant, in milliseconds, after which it is taken back from a stopped waiter. A debugger stops a process
/// for moments. A step of the clock costs a stopped waiter its turn at most, never its place.
const STOPPED_FOR: u64 = 500;

pub(super) fn grant_waiting(record: &mut Record, facts: &Facts) -> Result<Vec<HandleHash>, Query> {
    evict(record, facts, &|_| false)?;
    grant_in_order(record, facts, None)
}

/// A caller that came now would get the lock at once, whatever its mode. The record has its whole queue.
pub fn is_free(record: &Record, facts: &Facts) -> Result<bool, Query> {
    let mut next = Record { pages: None, ..record.clone() };
    grant_waiting(&mut next, facts)?;
    for grant in &next.holders {
        if Standing::of(grant, facts)?.holds() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Puts waiters that stopped after their grants, before they confirmed them, back to the head of the queue.
fn take_back(record: &mut Record, facts: &Facts) -> Result<(), Query> {
    let mut returned = Vec::new();
    let mut at = 0;
    while let Some(grant) = record.holders.get(at) {
        let waiter = grant.provisional.filter(|_| facts.wall.abs_diff(grant.since) >= STOPPED_FOR);
        let standstill = waiter.map_or(Ok(None), |process| standstill(&grant.owner, &process, true, facts))?;
        match (waiter, standstill) {
            (Some(process), Some(stopped)) if !facts.committed(&grant.proof)? => {
                let waiter = Waiter::waiting_again(record.holders.remove(at), process, record.slots);
                // The newer caller has its place.
                if !(waiter.latest_only && record.waiters.iter().any(|other| other.latest_only)) {
                    returned.push(Waiter { was_frozen: stopped == Standstill::Frozen, ..waiter });
                }
            }
            _ => at += 1,
        }
    }
    record.waiters.splice(0..0, returned);
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Standstill {
    Stopped,
    Frozen,
}

/// Looks for a reason why a waiter cannot go on. A look for a frozen process costs more than its liveness.
fn standstill(
    owner: &Owner,
    process: &ProcessId,
    may_be_frozen: bool,
    facts: &Facts,
) -> Result<Option<Standstill>, Query> {
    // The process of `csalock run` is the sleeping child, and its supervisor starts it.
    for process in std::iter::once(process).chain(&owner.supervisor) {
        match facts.liveness(&owner.domain, process)? {
            Liveness::Stopped => return Ok(Some(Standstill::Stopped)),
            Liveness::Alive if may_be_frozen && facts.frozen(&owner.domain, process)? => {
                return Ok(Some(Standstill::Frozen));
            }
            _ => {}
        }
    }
    Ok(None)
}

/// Walks the queue in order of arrival and grants to waiters that fit and are not stopped. Returns the waiters to wake.
pub(super) fn grant_in_order(
    record: &mut Record,
    facts: &Facts,
    me: Option<&Acquire>,
) -> Result<Vec<HandleHash>, Query> {
    take_back(record, facts)?;
    let mut wake = Vec::new();
    let (mut is_taken, mut was_frozen) = (false, false);
    // The waiters before this one are stopped.
    let mut at = 0;
    loop {
        if record.waiters.len() <= at + REFILL_BELOW && record.pages.is_some() {
            wake.extend(refill(record, facts)?);
            continue;
        }
        let Some(first) = record.waiters.get(at) else { break };
        // No waiter fits beside the new holder, so it does not matter here whether the next one lives. The process that
        // sees its end removes it.
        if is_taken {
            break;
        }
        let myself = me.filter(|request| request.entry.proof == first.proof);
        if myself.is_none() && is_gone(first, facts)? {
            let gone = record.waiters.remove(at);
            wake.extend(lives(&gone, facts)?.then_some(gone.proof));
            // The next waiter was watching the waiter that is gone.
            wake.extend(record.waiters.get(at).map(|next| next.proof));
            continue;
        }
        if myself.is_none()
            && let Some(stopped) = standstill(&first.owner, &first.process, was_frozen || first.was_frozen, facts)?
        {
            // Others of a frozen group may wait too.
            was_frozen |= stopped == Standstill::Frozen;
            record.waiters[at].was_frozen |= stopped == Standstill::Frozen;
            at += 1;
            continue;
        }
        // The first waiter that does not fit ends the walk, so a reader never passes a writer that waits.
        let Some(slot) = make_room(record, at, facts)? else { break };
        let waiter = record.waiters.remove(at);
        is_taken = waiter.mode == Mode::Exclusive;
        record.slots = (waiter.mode == Mode::Slot).then(|| waiter.slot_count());
        wake.push(waiter.proof);
        let leased = waiter.lease.is_some() || !matches!(waiter.lifetime, Lifetime::WhileOwnerLives);
        record.holders.push(grant(waiter, slot, myself, facts)?);
        if leased {
            // The next waiter watches a process, so it must learn that a lease may end this grant.
            wake.extend(record.waiters.get(at).map(|next| next.proof));
        }
    }
    if record.holders.is_empty() {
        record.slots = None;
        // All of them are stopped, and look when they are continued.
        wake.extend(record.waiters.iter().map(|waiter| waiter.proof));
    }
    wake.dedup();
    Ok(wake)
}

/// Moves the first page into the record. Returns its first waiter, which could not see the waiter ahead until now.
pub(super) fn refill(record: &mut Record, facts: &Facts) -> Result<Option<HandleHash>, Query> {
    let Some(pages) = record.pages else { return Ok(None) };
    let before = record.waiters.len();
    for waiter in facts.page(pages.first)? {
        // A waiter appears once, even if a process died in the middle of a move or the waiter entered a page twice.
        if !record.has_entry(&waiter.proof) {
            record.waiters.push(waiter.clone());
        }
    }
    record.pages = (pages.first < pages.last).then(|| Pages { first: pages.first + 1, ..pages });
    Ok(record.waiters.get(before).map(|waiter| waiter.proof))
}

pub(super) fn grant(waiter: Waiter, slot: u32, myself: Option<&Acquire>, facts: &Facts) -> Result<Grant, Query> {
    let is_tentative = myself.map_or(waiter.needs_confirmation, |request| request.phase == Phase::Provisional);
    let provisional = is_tentative.then_some(waiter.process);
    let lifetime = match (myself, provisional, (&waiter.lease, &waiter.lifetime)) {
        (Some(request), ..) => request.entry.lifetime.clone(),
        (None, Some(_), (Some(lease), _)) => Lifetime::ExpiresAt(lease.clone()),
        // A stopped waiter must not delay its confirmation without limit, so its lease starts now.
        (None, Some(_), (None, Lifetime::Ttl(span))) => Lifetime::ExpiresAt(facts.new_lease(*span)?.clone()),
        _ => waiter.lifetime.clone(),
    };
    let waited = facts.wall.saturating_sub(waiter.since);
    let Waiter { proof, mode, owner, release_on_exit, claim, latest_only, .. } = waiter;
    Ok(Grant {
        proof,
        token: None,
        mode,
        slot,
        owner,
        lifetime,
        since: facts.wall,
        waited,
        provisional,
        latest_only: latest_only && is_tentative,
        release_on_exit,
        claim,
        end_request: None,
    })
}

/// Slot of a waiter that fits beside the holders. Ends the expired grants whose places it needs.
fn make_room(record: &mut Record, at: usize, facts: &Facts) -> Result<Option<u32>, Query> {
    let mut kept: Vec<&Grant> = record.holders.iter().collect();
    let mut expired = Vec::new();
    let slot = loop {
        if let Some(slot) = slot_for(&record.waiters[at], kept.iter().copied(), record.slots) {
            break slot;
        }
        let mut over = None;
        for (place, grant) in kept.iter().enumerate() {
            if over.is_none() && is_expired(grant, facts)? {
                over = Some(place);
            }
        }
        let Some(over) = over else { return Ok(None) };
        expired.push(kept.remove(over).proof);
    };
    while let Some(over) = record.holders.iter().position(|grant| expired.contains(&grant.proof)) {
        end(record, over, EndReason::Expired);
    }
    Ok(Some(slot))
}

/// Returns the lowest slot that the waiter would get beside the holders, which count `slots`, or `None` if it does not
/// fit. A waiter that counts another number of slots waits until no holder is left.
pub(super) fn slot_for<'a>(
    waiter: &Waiter,
    holders: impl IntoIterator<Item = &'a Grant, IntoIter: Clone>,
    slots: Option<u32>,
) -> Option<u32> {
    let mut holders = holders.into_iter();
    let alike = holders.clone().all(|grant| grant.mode == waiter.mode && slots == waiter.slots.map(NonZeroU32::get));
    match waiter.mode {
        Mode::Exclusive => holders.next().is_none().then_some(0),
        Mode::Shared => alike.then_some(0),
        Mode::Slot if !alike => None,
        Mode::Slot => (0..waiter.slot_count()).find(|slot| holders.clone().all(|grant| grant.slot != *slot)),
    }
}

/// A waiter that lives although it is gone must be woken.
pub(super) fn lives(waiter: &Waiter, facts: &Facts) -> Result<bool, Query> {
    Ok(facts.liveness(&waiter.owner.domain, &waiter.process)? != Liveness::Dead)
}

/// A waiter is gone if it is dead, or its script is, or its lease is over.
pub fn is_gone(waiter: &Waiter, facts: &Facts) -> Result<bool, Query> {
    // A process check costs less than a lease query, so it comes first.
    let is_dead = !lives(waiter, facts)? || has_dead_owner(&waiter.owner, &waiter.lifetime, facts)?;
    Ok(is_dead || waiter.lease.as_ref().map_or(Ok(false), |lease| facts.lease_expired(lease))?)
}

/// Maximum number of replaced waiters that a record names.
const MOST_NAMED: usize = 16;

/// Enters the queue in the place of the waiter before, or at the end if there is none. Returns the waiters to wake: the
/// replaced one, and the next one, which watched its process.
pub(super) fn enter_in_place(next: &mut Record, entry: Waiter) -> Vec<HandleHash> {
    let Some(at) = next.waiters.iter().position(|waiter| waiter.latest_only) else {
        next.waiters.push(entry);
        return Vec::new();
    };
    let by = entry.proof;
    let replaced = std::mem::replace(&mut next.waiters[at], entry).proof;
    let mut waiters = next.replacement.take().map(|earlier| earlier.waiters).unwrap_or_default();
    waiters.push(replaced);
    waiters.drain(..waiters.len().saturating_sub(MOST_NAMED));
    next.replacement = Some(Replacement { by, waiters });
    [Some(replaced), next.waiters.get(at + 1).map(|waiter| waiter.proof)].into_iter().flatten().collect()
}

/// Refusal of a caller that was in the queue and has lost its place there.
pub(super) fn replaced(record: &Record, request: &Acquire) -> Option<Refusal> {
    let me = &request.entry.proof;
    let replacement = record.replacement.as_ref().filter(|replacement| replacement.waiters.contains(me));
    let is_lost = replacement.is_some()
        || (request.entry.latest_only && request.place.is_queued() && record.waiter(me).is_none());
    is_lost.then(|| {
        Refusal::Replaced(replacement.and_then(|replacement| successor(record, &replacement.by)).map(Box::new))
    })
}

fn successor(record: &Record, by: &HandleHash) -> Option<Successor> {
    let ended = record.ended_grants.iter().map(|ending| &ending.grant);
    let grants = record.holders.iter().chain(ended).filter(|grant| grant.proof == *by);
    let granted = grants.map(|grant| Successor { owner: grant.owner.clone(), since: grant.since, waits: false }).next();
    granted.or_else(|| {
        let waiter = record.waiter(by)?;
        Some(Successor { owner: waiter.owner.clone(), since: waiter.since, waits: true })
    })
}
