//! Rules for an existing grant: release, renew, prepare for a commit record, break, and the removal of stale entries.

use super::credentials::{Found, find, hear_of, hears_of, refuse};
use super::facts::{Facts, Query};
use super::handle::HandleHash;
use super::lifetime::Lifetime;
use super::protocol::write;
use super::queue::{end, evict, grant_waiting, grant_waiting_as, is_gone};
use super::record::{EndReason, EndedGrant, Record};
use super::request::{Credentials, Prepare, Response, Transition};

/// Releases the caller's grant, or tells the caller how it ended.
pub(super) fn release(record: &Record, credentials: &Credentials, facts: &Facts) -> Result<Transition, Query> {
    match find(record, credentials, facts)? {
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
    }
}

/// Sets a new lifetime for the caller's grant.
pub(super) fn renew(
    record: &Record,
    credentials: &Credentials,
    lifetime: &Lifetime,
    facts: &Facts,
) -> Result<Transition, Query> {
    let at = match find(record, credentials, facts)? {
        Found::Mine(at) => at,
        other => return refuse(record, other, facts),
    };
    let mut next = record.clone();
    next.holders[at].lifetime = lifetime.clone();
    let grant = next.holders[at].clone();
    let wake = next.waiters.first().map(|head| head.proof).into_iter().collect();
    Ok(write(next, Response::Renewed(grant), wake))
}

/// Restarts a keepalive lease, even if it is over: no other caller has acquired the lock yet, and the first commit
/// wins. A grant with a fixed time limit keeps that limit.
pub(super) fn keep_alive(
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

/// Ends the caller's grant because its owner has died, which other hosts cannot see.
pub(super) fn owner_died(record: &Record, credentials: &Credentials, facts: &Facts) -> Result<Transition, Query> {
    let at = match find(record, credentials, facts)? {
        Found::Mine(at) => at,
        other => return refuse(record, other, facts),
    };
    let mut next = record.clone();
    next.holders[at].lifetime = Lifetime::OwnerDied;
    let grant = next.holders[at].clone();
    // Without waiters the grant stays in the record, so that the next caller sees how it ended.
    let is_wanted = !next.waiters.is_empty() || next.pages.is_some();
    let wake = if is_wanted { grant_waiting(&mut next, facts)? } else { Vec::new() };
    Ok(write(next, Response::Released(grant), wake))
}

/// Makes the caller's grant depend on a commit record.
pub(super) fn prepare(
    record: &Record,
    credentials: &Credentials,
    dependency: &Prepare,
    facts: &Facts,
) -> Result<Transition, Query> {
    let at = match find(record, credentials, facts)? {
        Found::Mine(at) => at,
        other => return refuse(record, other, facts),
    };
    let mut next = record.clone();
    let grant = &mut next.holders[at];
    grant.proof = dependency.proof;
    grant.provisional = Some(dependency.process);
    grant.lifetime = dependency.lifetime.clone();
    let prepared = grant.clone();
    Ok(write(next, Response::Renewed(prepared), Vec::new()))
}

/// Breaks only grants that the caller saw. If the reply is lost, a retry does not break the next holder's grant.
pub(super) fn break_grants(record: &Record, proofs: &[HandleHash], facts: &Facts) -> Result<Transition, Query> {
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

/// Removes stale grants and all dead waiters of the record.
pub(super) fn collect(record: &Record, facts: &Facts) -> Result<Transition, Query> {
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
