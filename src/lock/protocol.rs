//! Every rule of locking, as one pure function: [`decide`] maps a record, a request and facts to a new record and a
//! response.
//!
//! **The queue.** A request that does not fit at once enters the queue behind earlier waiters. Every change of a record
//! serves its queue. It evicts stale holders, then walks the waiters in order of arrival. The walk drops dead waiters,
//! grants to waiters that fit and stops at the first that does not. Mutex, readers-writer lock and semaphore are this
//! rule with three ways to fit, so readers never pass a waiting writer.
//!
//! **Stale grants.** A grant is over when its lease is over or when all processes it depends on are certainly dead.
//! *Unknown* is never dead.
//!
//! **Retries.** A reply can be lost after the store has committed, so a caller may repeat every request. A grant with
//! the caller's handle hash is the caller's grant. A release that finds its own ending in the record has succeeded.
//!
//! **Provisional grants** ([`Grant::provisional`]). A grant that another process made for a waiter ends with that
//! waiter until the waiter confirms. Otherwise a waiter killed during the grant would leave its shell a lock that the
//! shell does not know of. For several names, csalock confirms all grants or none ([`super::CommitRecord`]).
//!
//! The function never calls out. If a fact is missing, it returns a [`Query`]; the engine adds the answer to [`Facts`]
//! and calls again.

use super::deadlock::{fits_beside, waits_within};
use super::facts::{Facts, Liveness, Query};
use super::handle::HandleHash;
use super::page::Page;
use super::queue::{
    INLINE_WAITERS, effective_owner, end, evict, grant_waiting, grant_waiting_as, is_gone, refill, slot_count_conflict,
};
use super::record::{EndReason, EndedGrant, Grant, Lifetime, Pages, PidDomain, ProcessId, Record, Waiter};
use super::request::{Acquire, Credentials, Edge, QueuePosition, Request, Response, Transition};
use super::sighting::note;
use super::value::decide_write;

/// Decides about one request by the rules in the module documentation.
///
/// # Errors
///
/// Returns the [`Query`] that the engine must answer in `facts` before it calls again.
pub fn decide(record: &Record, ask: &Request, facts: &Facts) -> Result<Transition, Query> {
    let mut step = answer(record, ask, facts)?;
    if let Transition::Write { over, .. } = &mut step {
        over.extend(facts.expired_leases().cloned());
    }
    Ok(step)
}

fn answer(record: &Record, ask: &Request, facts: &Facts) -> Result<Transition, Query> {
    match ask {
        Request::Acquire(application) => take(record, application, facts),
        Request::Cancel(proof, page) => withdraw(record, proof, *page, facts),
        Request::Release(credentials) => match find(record, credentials, facts)? {
            Found::Mine(at) => {
                let mut next = record.clone();
                if credentials.supervises {
                    next.holders[at].owner.supervisor = None;
                }
                let grant = end(&mut next, at, EndReason::Released);
                let wake = grant_waiting(&mut next, facts)?;
                Ok(write(next, Response::Released(grant), wake))
            }
            Found::Ended(ending) if hears_of(record, credentials, &ending) => hear_of(record, ending, facts),
            Found::Ended(ending) if credentials.repeated && ending.reason == EndReason::Released => {
                Ok(Transition::Done(Response::Released(ending.grant)))
            }
            other => refuse(record, other, facts),
        },
        Request::Renew(claimant, lifetime @ Lifetime::Keepalive(_)) => renew_on(record, claimant, lifetime, facts),
        Request::Renew(claimant, tenure) => match find(record, claimant, facts)? {
            Found::Mine(at) => {
                let mut next = record.clone();
                next.holders[at].lifetime = tenure.clone();
                let grant = next.holders[at].clone();
                let wake = next.waiters.first().map(|head| head.proof).into_iter().collect();
                Ok(write(next, Response::Renewed(grant), wake))
            }
            other => refuse(record, other, facts),
        },
        Request::OwnerDied(claimant) => match find(record, claimant, facts)? {
            Found::Mine(at) => {
                let mut next = record.clone();
                next.holders[at].lifetime = Lifetime::OwnerDied;
                let grant = next.holders[at].clone();
                // Without waiters the grant stays in the record, so that the next caller sees how it ended.
                let is_wanted = !next.waiters.is_empty() || next.pages.is_some();
                let wake = if is_wanted { grant_waiting(&mut next, facts)? } else { Vec::new() };
                Ok(write(next, Response::Released(grant), wake))
            }
            other => refuse(record, other, facts),
        },
        Request::Prepare(claimant, doubt) => match find(record, claimant, facts)? {
            Found::Mine(at) => {
                let mut next = record.clone();
                let grant = &mut next.holders[at];
                (grant.proof, grant.provisional) = (doubt.proof, Some(doubt.process));
                grant.lifetime = doubt.lifetime.clone();
                let doubted = grant.clone();
                Ok(write(next, Response::Renewed(doubted), Vec::new()))
            }
            other => refuse(record, other, facts),
        },
        Request::Write(writing) => decide_write(record, writing, facts),
        Request::Break(proofs) => break_grants(record, proofs, facts),
        Request::Gc => collect(record, facts),
        Request::Note(sightings) => Ok(note(record, sightings)),
    }
}

/// Returns the liveness of the owner if the grant is still valid, or else how the grant ended.
///
/// # Errors
///
/// Returns a [`Query`] if a fact is missing, like [`decide`].
pub fn grant_status(grant: &Grant, facts: &Facts) -> Result<Result<Liveness, EndReason>, Query> {
    let over = lease_expired(grant, facts)?;
    if let Some(waiter) = &grant.provisional {
        let liveness = facts.liveness(&grant.owner.domain, waiter)?;
        if liveness != Liveness::Dead && !over {
            return Ok(Ok(liveness));
        }
        if !facts.committed(&grant.proof)? {
            // The waiter died before it confirmed the grant, so its owner has lost nothing.
            return Ok(Err(if liveness == Liveness::Dead { EndReason::Released } else { EndReason::Expired }));
        }
        if grant.claim.is_some() {
            return Ok(Ok(Liveness::Unknown));
        }
    }
    if over {
        return Ok(Err(EndReason::Expired));
    }
    let fate = match effective_owner(&grant.owner, facts)? {
        _ if grant.lifetime == Lifetime::OwnerDied => Liveness::Dead,
        Some((_, fate)) => fate,
        None if grant.owner.processes.is_empty() => Liveness::Unknown,
        None => Liveness::Dead,
    };
    match (fate, &grant.lifetime) {
        (Liveness::Dead, Lifetime::UntilReleased) => Ok(Ok(Liveness::Dead)),
        (Liveness::Dead, _) if grant.release_on_exit => Ok(Err(EndReason::Released)),
        (Liveness::Dead, _) => Ok(Err(EndReason::Died)),
        (fate, _) => Ok(Ok(fate)),
    }
}

/// Returns true if the lease is over. A keepalive lease proves the owner's life only to hosts that cannot see the
/// owner; other hosts check the process.
fn lease_expired(grant: &Grant, facts: &Facts) -> Result<bool, Query> {
    match &grant.lifetime {
        Lifetime::Keepalive(lease) => Ok(!is_seen_alive(grant, facts)? && facts.lease_expired(lease)?),
        lifetime => lifetime.lease().map_or(Ok(false), |lease| facts.lease_expired(lease)),
    }
}

fn is_seen_alive(grant: &Grant, facts: &Facts) -> Result<bool, Query> {
    Ok(matches!(effective_owner(&grant.owner, facts)?, Some((_, Liveness::Alive))))
}

/// Returns true if a provisional grant is committed, so that it survives its waiter. The function queries the commit
/// record only after the waiter is dead or, for a claim, its lease is over.
pub(super) fn is_decided(grant: &Grant, facts: &Facts) -> Result<bool, Query> {
    let Some(waiter) = &grant.provisional else { return Ok(false) };
    let over = grant.claim.is_some() && lease_expired(grant, facts)?;
    Ok((over || facts.liveness(&grant.owner.domain, waiter)? == Liveness::Dead) && facts.committed(&grant.proof)?)
}

fn take(record: &Record, application: &Acquire, facts: &Facts) -> Result<Transition, Query> {
    let me = application.entry.proof;
    if let Some(at) = record.holders.iter().position(|grant| grant.proof == me) {
        return already_mine(record, at, application, facts);
    }
    if let Some(claimed) = claimed(record, application, facts)? {
        return Ok(Transition::Done(claimed));
    }
    if application.confirming {
        let mine = record.ended_grants.iter().find(|ending| ending.grant.proof == me);
        return Ok(Transition::Done(Response::NotHeld(mine.cloned())));
    }
    let mut next = record.clone();
    let ended = evict(&mut next, facts)?;
    let evicted: Vec<EndedGrant> =
        ended.iter().filter(|ending| ending.reason != EndReason::Released).cloned().collect();
    if application.refuse_stale && !evicted.is_empty() {
        return Ok(Transition::Done(Response::Stale(evicted)));
    }
    let in_record = next.waiters.iter().any(|waiter| waiter.proof == me);
    let place = application.position.as_ref().filter(|place| next.pages.is_some_and(|pages| pages.has(place.page)));
    let mut wake = Vec::new();
    if !in_record && place.is_none() {
        if next.pages.is_some() {
            wake = grant_waiting_as(&mut next, facts, None)?;
        }
        if let Some(has) = slot_count_conflict(&next, application, facts)? {
            return Ok(Transition::Done(Response::SlotCountConflict(has)));
        }
        next.slots = application.slots.or(next.slots);
        if next.pages.is_none() && (next.waiters.len() < INLINE_WAITERS || !application.queue) {
            next.waiters.push(Waiter { since: facts.wall, ..application.entry.clone() });
        }
    }
    if let Some(entry) = next.waiters.iter_mut().find(|waiter| waiter.proof == me) {
        entry.lease.clone_from(&application.entry.lease);
        entry.blocked_processes.clone_from(&application.entry.blocked_processes);
    }
    wake.extend(grant_waiting_as(&mut next, facts, Some(application))?);
    wake.retain(|proof| *proof != me);
    if let Some(grant) = next.holders.iter().find(|grant| grant.proof == me) {
        let grant = grant.clone();
        return Ok(write(next, Response::Granted(grant, evicted.into_iter().next_back()), wake));
    }
    if let Some(own) = waits_for_itself(&next, &application.entry, facts)? {
        return Ok(Transition::Done(Response::Deadlock(vec![Edge { name: next.name, grant: own }])));
    }
    if !application.queue {
        let busy = Response::Busy(next.holders.clone());
        next.waiters.retain(|waiter| waiter.proof != me);
        let changed = !ended.is_empty() || !wake.is_empty();
        return Ok(if changed { write(next, busy, wake) } else { Transition::Done(busy) });
    }
    if next != *record {
        return Ok(Transition::Write { record: next, response: None, wake, over: Vec::new() });
    }
    match place {
        _ if in_record => wait(record, &me, facts),
        Some(place) => wait_on_page(record, place, &application.entry, facts),
        None => Ok(queue_on_page(next, application.full, facts)),
    }
}

/// Returns the response to a request for a claim if the name is already claimed permanently.
fn claimed(record: &Record, application: &Acquire, facts: &Facts) -> Result<Option<Response>, Query> {
    let Some(id) = &application.entry.claim else { return Ok(None) };
    let Some(grant) = record.holders.iter().find(|grant| grant.claim.is_some()) else { return Ok(None) };
    if grant.provisional.is_some() && !is_decided(grant, facts)? {
        return Ok(None);
    }
    let is_mine = grant.claim.as_ref() == Some(id);
    Ok(Some(if is_mine { Response::Granted(grant.clone(), None) } else { Response::Claimed(grant.clone()) }))
}

/// Returns the step for a request whose queue has no room left in the record.
fn queue_on_page(mut next: Record, full: Option<u64>, facts: &Facts) -> Transition {
    next.pages = match next.pages {
        None => Some(Pages { first: facts.wall, last: facts.wall }),
        Some(pages) if full == Some(pages.last) => Some(Pages { last: pages.last + 1, ..pages }),
        Some(pages) => return Transition::Enqueue(pages.last),
    };
    Transition::Write { record: next, response: None, wake: Vec::new(), over: Vec::new() }
}

fn wait_on_page(record: &Record, place: &QueuePosition, entry: &Waiter, facts: &Facts) -> Result<Transition, Query> {
    if place.entry != *entry {
        return Ok(Transition::Enqueue(place.page));
    }
    let first = record.pages.map_or(place.page, |pages| pages.first);
    let in_record = record.waiters.iter().rev().map(Waiter::waits_where);
    let ahead = record.waiters.len() + Page::before(first, place.page) + place.ahead;
    wait_behind(record, place.before.iter().cloned().chain(in_record), ahead, facts)
}

/// Handles a grant with the caller's handle hash: another process made it, or an earlier try whose reply was lost.
fn already_mine(record: &Record, at: usize, application: &Acquire, facts: &Facts) -> Result<Transition, Query> {
    let grant = &record.holders[at];
    let before = record.ended_grants.last().filter(|ending| ending.reason != EndReason::Released).cloned();
    let mut next = record.clone();
    if let Some(stale) = before.clone().filter(|_| application.refuse_stale) {
        // The process that granted the lock could not know that this caller refuses stale grants.
        end(&mut next, at, EndReason::Released);
        let wake = grant_waiting(&mut next, facts)?;
        return Ok(write(next, Response::Stale(vec![stale]), wake));
    }
    if grant.provisional.is_none() || application.provisional {
        return Ok(Transition::Done(Response::Granted(grant.clone(), before)));
    }
    next.holders[at].provisional = None;
    next.holders[at].lifetime = application.lifetime.clone();
    let grant = next.holders[at].clone();
    // Waiters that want to claim the name too need not wait any longer.
    let others = next.waiters.iter().filter(|waiter| grant.claim.is_some() && waiter.claim.is_some());
    let wake = others.map(|waiter| waiter.proof).collect();
    Ok(write(next, Response::Granted(grant, before), wake))
}

fn wait(record: &Record, me: &HandleHash, facts: &Facts) -> Result<Transition, Query> {
    let ahead = record.waiters.iter().take_while(|waiter| waiter.proof != *me).count();
    let Transition::Wait { processes, mut leases, ahead } =
        wait_behind(record, record.waiters[..ahead].iter().rev().map(Waiter::waits_where), ahead, facts)?
    else {
        return Ok(Transition::Wait { processes: Vec::new(), leases: Vec::new(), ahead });
    };
    leases.extend(ahead.checked_sub(1).and_then(|at| record.waiters[at].lease.clone()));
    Ok(Transition::Wait { processes, leases, ahead })
}

/// Waits for the end of the nearest live waiter ahead or, if there is none, for the holders.
fn wait_behind(
    record: &Record,
    before: impl Iterator<Item = (PidDomain, ProcessId)>,
    ahead: usize,
    facts: &Facts,
) -> Result<Transition, Query> {
    for (domain, process) in before {
        if facts.liveness(&domain, &process)?.may_live_here() {
            return Ok(Transition::Wait { processes: vec![(domain, process)], leases: Vec::new(), ahead });
        }
    }
    let (mut processes, mut leases) = (Vec::new(), Vec::new());
    for grant in &record.holders {
        let process = match grant.provisional {
            Some(process) => Some((process, facts.liveness(&grant.owner.domain, &process)?)),
            None => effective_owner(&grant.owner, facts)?,
        };
        // No host can observe the end of a missing process.
        processes.extend(
            process
                .filter(|(_, liveness)| liveness.may_live_here())
                .map(|(process, _)| (grant.owner.domain.clone(), process)),
        );
        // If this host can see the owner, the owner's end counts and the lease does not.
        let by_lease = !matches!(grant.lifetime, Lifetime::Keepalive(_)) || !is_seen_alive(grant, facts)?;
        leases.extend(grant.lifetime.lease().filter(|_| by_lease).cloned());
    }
    Ok(Transition::Wait { processes, leases, ahead })
}

fn withdraw(record: &Record, me: &HandleHash, page: Option<u64>, facts: &Facts) -> Result<Transition, Query> {
    if let Some(grant) = record.holders.iter().find(|grant| grant.proof == *me) {
        return Ok(Transition::Done(Response::GrantedMeanwhile(grant.clone())));
    }
    let mut next = record.clone();
    // A sealed page cannot lose a waiter, so the record fetches the page first and then drops the waiter.
    while page.is_some_and(|page| next.pages.is_some_and(|pages| pages.has(page))) {
        refill(&mut next, facts)?;
    }
    if !next.waiters.iter().any(|waiter| waiter.proof == *me) {
        return Ok(Transition::Done(Response::Cancelled));
    }
    next.waiters.retain(|waiter| waiter.proof != *me);
    let wake = grant_waiting(&mut next, facts)?;
    Ok(write(next, Response::Cancelled, wake))
}

/// Breaks only grants that the caller saw. If the reply is lost, a retry does not break the next holder's grant.
fn break_grants(record: &Record, proofs: &[HandleHash], facts: &Facts) -> Result<Transition, Query> {
    let mut next = record.clone();
    let is_meant = |ending: &&EndedGrant| ending.reason != EndReason::Released && proofs.contains(&ending.grant.proof);
    // Eviction comes first, because it would drop the ending of a broken grant whose owner is dead.
    let mut broken: Vec<EndedGrant> = evict(&mut next, facts)?.iter().filter(is_meant).cloned().collect();
    while let Some(at) = next.holders.iter().position(|grant| proofs.contains(&grant.proof)) {
        broken.push(EndedGrant { grant: end(&mut next, at, EndReason::Broken), reason: EndReason::Broken });
    }
    if !broken.is_empty() {
        let wake = grant_waiting_as(&mut next, facts, None)?;
        return Ok(write(next, Response::Broken(broken), wake));
    }
    let earlier: Vec<EndedGrant> = record.ended_grants.iter().filter(is_meant).cloned().collect();
    if !earlier.is_empty() {
        return Ok(Transition::Done(Response::Broken(earlier)));
    }
    refuse(record, Found::Nothing, facts)
}

fn collect(record: &Record, facts: &Facts) -> Result<Transition, Query> {
    let mut next = record.clone();
    let evicted = evict(&mut next, facts)?;
    let mut dropped = Vec::new();
    for waiter in std::mem::take(&mut next.waiters) {
        if is_gone(&waiter, facts)? { &mut dropped } else { &mut next.waiters }.push(waiter);
    }
    let wake = grant_waiting(&mut next, facts)?;
    let response = Response::Collected(evicted, dropped);
    Ok(if next == *record { Transition::Done(response) } else { write(next, response, wake) })
}

/// Restarts a keepalive lease, even if it is over: no other caller has acquired the lock yet, and the first commit
/// wins. A grant with a fixed time limit keeps that limit.
fn renew_on(
    record: &Record,
    credentials: &Credentials,
    lifetime: &Lifetime,
    facts: &Facts,
) -> Result<Transition, Query> {
    let Some(at) = record.holders.iter().position(|grant| credentials.proof == Some(grant.proof)) else {
        return refuse(record, find(record, credentials, facts)?, facts);
    };
    let mut next = record.clone();
    if !matches!(record.holders[at].lifetime, Lifetime::Keepalive(_)) {
        return Ok(Transition::Done(Response::Renewed(record.holders[at].clone())));
    }
    next.holders[at].lifetime = lifetime.clone();
    let grant = next.holders[at].clone();
    // Waiters that watch the old lease read the record when that lease would end, so they need no wake-up.
    Ok(write(next, Response::Renewed(grant), Vec::new()))
}

/// Grant that matches a caller's credentials.
pub(super) enum Found {
    Mine(usize),
    Ended(EndedGrant),
    Nothing,
}

pub(super) fn find(record: &Record, credentials: &Credentials, facts: &Facts) -> Result<Found, Query> {
    for (at, grant) in record.holders.iter().enumerate() {
        if !is_mine(grant, credentials, facts)? {
            continue;
        }
        // The owner's liveness does not matter if the caller has the handle or is the owner. A wrapper releases the
        // lock for a command that has ended.
        let over = lease_expired(grant, facts)?;
        let late = EndedGrant { grant: grant.clone(), reason: EndReason::Expired };
        return Ok(if over { Found::Ended(late) } else { Found::Mine(at) });
    }
    let mine = |grant: &Grant| {
        credentials.proof == Some(grant.proof)
            || (grant.owner.domain.shares_pids_with(&credentials.domain)
                && grant.owner.processes.iter().any(|owner| credentials.owners.contains(owner)))
    };
    let ending = record.ended_grants.iter().rev().find(|ending| mine(&ending.grant));
    Ok(ending.cloned().map_or(Found::Nothing, Found::Ended))
}

fn is_mine(grant: &Grant, credentials: &Credentials, facts: &Facts) -> Result<bool, Query> {
    if credentials.proof == Some(grant.proof) || (credentials.claim.is_some() && credentials.claim == grant.claim) {
        return Ok(true);
    }
    let owner = effective_owner(&grant.owner, facts)?;
    let is_owned = grant.owner.domain.shares_pids_with(&credentials.domain)
        && owner.is_some_and(|(owner, _)| credentials.owners.contains(&owner));
    // An owner does not have a grant that it was not told of.
    Ok(is_owned && (grant.provisional.is_none() || is_decided(grant, facts)?))
}

/// Returns true if the caller is the process that must still learn of this ending.
fn hears_of(record: &Record, credentials: &Credentials, ending: &EndedGrant) -> bool {
    let is_for_claimant = credentials.supervises || ending.grant.owner.supervisor.is_none();
    is_for_claimant && ending.is_owed() && record.ended_grants.contains(ending)
}

/// Returns the ending of the grant to the caller and drops it from the record.
fn hear_of(record: &Record, ending: EndedGrant, facts: &Facts) -> Result<Transition, Query> {
    let mut next = record.clone();
    next.ended_grants.retain(|kept| *kept != ending);
    match refuse(record, Found::Ended(ending), facts)? {
        Transition::Done(response) => Ok(write(next, response, Vec::new())),
        other => Ok(other),
    }
}

pub(super) fn refuse(record: &Record, found: Found, facts: &Facts) -> Result<Transition, Query> {
    let mut ending = match found {
        Found::Ended(ending) => Some(ending),
        _ => None,
    };
    let mut holders = Vec::new();
    for grant in &record.holders {
        match grant_status(grant, facts)? {
            Ok(_) => holders.push(grant.clone()),
            Err(EndReason::Released) => {}
            Err(how) => ending = ending.or_else(|| Some(EndedGrant { grant: grant.clone(), reason: how })),
        }
    }
    Ok(Transition::Done(if holders.is_empty() {
        Response::NotHeld(ending)
    } else {
        Response::NotOwner(holders, ending)
    }))
}

/// Returns the caller's own grant for which it would wait, if there is one: the shortest cycle.
fn waits_for_itself(record: &Record, entry: &Waiter, facts: &Facts) -> Result<Option<Grant>, Query> {
    let mut own = Vec::new();
    for grant in &record.holders {
        // A lease without keepalive ends by itself, but a caller whose timeout comes first waits in vain.
        if waits_within(entry, grant, facts)?
            && !matches!(&grant.lifetime, Lifetime::ExpiresAt(lease) if !facts.outlasts(lease)?)
        {
            own.push(grant);
        }
    }
    let endless = !own.is_empty() && !fits_beside(&own, record, entry, facts)?;
    Ok(own.first().filter(|_| endless).map(|grant| (*grant).clone()))
}

pub(super) fn write(record: Record, response: Response, wake: Vec<HandleHash>) -> Transition {
    Transition::Write { record, response: Some(response), wake, over: Vec::new() }
}

#[cfg(test)]
mod tests;
