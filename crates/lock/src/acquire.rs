//! Rules for the start of a grant: acquire, wait, confirm and cancel.

use super::deadlock::{fits_beside, waits_within};
use super::ending::{end, end_descriptors, evict};
use super::protocol::{is_decided, is_seen_alive, lease_expired, write, write_if_changed};
use super::queue::{INLINE_WAITERS, enter_in_place, grant_in_order, grant_waiting, refill, replaced};
use super::{
    Acquire, AcquireStep, Awaited, Cancel, Edge, EndReason, EndedGrant, Facts, Grant, HandleHash, Lifetime, Liveness,
    Page, Pages, Phase, PidDomain, ProcessId, Query, QueuePlace, QueuePosition, Record, Refusal, Request, Transition,
    Waiter,
};

impl Request for Acquire {
    type Response = AcquireStep;

    const HAS_PRIORITY: bool = false;

    /// Acquires the lock or, if it is not free, enters the queue or waits there.
    ///
    /// Every caller enters the queue, even one that does not wait; then the queue is served. So the order of the queue
    /// holds for newcomers too. A caller that does not wait and was granted nothing is taken out again.
    fn rule(&self, record: &Record, facts: &Facts) -> Result<Step, Query> {
        let me = self.entry.proof;
        if let Some(at) = record.holders.iter().position(|grant| grant.proof == me) {
            return already_granted(record, at, self, facts);
        }
        if let Some(claimed) = claimed(record, self, facts)? {
            return Ok(Transition::Done(claimed));
        }
        if self.phase == Phase::Confirm {
            return Ok(refused(Refusal::Lost));
        }
        if let Some(refusal) = replaced(record, self) {
            return Ok(refused(refusal));
        }
        let mut next = record.clone();
        end_descriptors(&mut next, self);
        evict(&mut next, facts, &|_| false)?;
        let in_record = next.waiter(&me).is_some();
        let place = self.place.on_page().filter(|place| next.pages.is_some_and(|pages| pages.has(place.page)));
        let mut wake = Vec::new();
        if !in_record && place.is_none() {
            if next.pages.is_some() {
                // Waiters of pages come into the record, which may leave room for the caller.
                wake = grant_in_order(&mut next, facts, None)?;
            }
            wake.extend(enter(&mut next, self, facts));
        }
        update_entry(&mut next, &self.entry);
        // The supervisor makes this request, and its child, the process of the entry, may be stopped all the same.
        let is_stopped = (in_record || place.is_some()) && is_stopped(&self.entry, facts)?;
        wake.extend(grant_in_order(&mut next, facts, (!is_stopped).then_some(self))?);
        let ended = &next.ended_grants[record.ended_grants.len()..];
        let stale: Vec<EndedGrant> =
            ended.iter().filter(|ending| ending.reason != EndReason::Released).cloned().collect();
        if self.refuse_stale && !stale.is_empty() {
            return Ok(refused(Refusal::Stale(stale)));
        }
        wake.retain(|proof| *proof != me);
        if let Some(grant) = next.holder(&me).cloned() {
            return Ok(write(next, granted(grant, stale.last().cloned()), wake));
        }
        if let Some(own) = waits_for_itself(&next, &self.entry, facts)? {
            return Ok(refused(Refusal::Deadlock(vec![Edge { name: next.name, grant: own }])));
        }
        if !self.queue {
            let busy = busy(next.holders.clone());
            // The caller was in the queue for this decision only.
            next.waiters.retain(|waiter| waiter.proof != me);
            return Ok(write_if_changed(record, next, busy, wake));
        }
        if next != *record {
            return Ok(write(next, AcquireStep::Wait(Awaited::default()), wake));
        }
        match place {
            _ if in_record => wait(record, &me, facts),
            Some(place) => wait_on_page(record, place, &self.entry, facts),
            None => Ok(queue_on_page(next, &self.place, facts)),
        }
    }

    fn promises(step: &AcquireStep) -> bool {
        matches!(step, AcquireStep::Granted(..) | AcquireStep::Refused(Refusal::Claimed(_)))
    }

    fn with_tokens(step: AcquireStep, version: u64) -> AcquireStep {
        let with_token = |grant: Grant| Grant { token: grant.token.or(Some(version)), ..grant };
        match step {
            AcquireStep::Granted(grant, before) => AcquireStep::Granted(Box::new(with_token(*grant)), before),
            AcquireStep::Refused(Refusal::Busy(grants)) => busy(grants.into_iter().map(with_token).collect()),
            step => step,
        }
    }
}

type Step = Transition<AcquireStep>;

fn granted(grant: Grant, before: Option<EndedGrant>) -> AcquireStep {
    AcquireStep::Granted(Box::new(grant), before.map(Box::new))
}

fn busy(holders: Vec<Grant>) -> AcquireStep {
    AcquireStep::Refused(Refusal::Busy(holders))
}

fn refused(refusal: Refusal) -> Step {
    Transition::Done(AcquireStep::Refused(refusal))
}

/// Handles a grant with the caller's handle hash: another process made it, or an earlier try whose reply was lost.
fn already_granted(record: &Record, at: usize, request: &Acquire, facts: &Facts) -> Result<Step, Query> {
    let grant = &record.holders[at];
    let before = record.ended_grants.last().filter(|ending| ending.reason != EndReason::Released).cloned();
    if request.refuse_stale
        && let Some(stale) = before.clone()
    {
        // The process that granted the lock could not know that this caller refuses stale grants.
        let mut next = record.clone();
        end(&mut next, at, EndReason::Released);
        let wake = grant_waiting(&mut next, facts)?;
        return Ok(write(next, AcquireStep::Refused(Refusal::Stale(vec![stale])), wake));
    }
    if grant.provisional.is_none() || request.phase == Phase::Provisional {
        return Ok(Transition::Done(granted(grant.clone(), before)));
    }
    if request.queue && request.phase == Phase::Direct && is_stopped(&request.entry, facts)? {
        // Another caller takes the grant back, or the process goes on.
        return Ok(Transition::Done(AcquireStep::Wait(Awaited::default())));
    }
    // The script may have been killed during the wait. One that is missing here is not that of this caller.
    let needs_owner = !grant.owner.processes.is_empty() && request.entry.lifetime != Lifetime::UntilReleased;
    if needs_owner && !facts.effective_owner(&grant.owner)?.is_some_and(|(_, liveness)| liveness.may_live_here()) {
        return Ok(refused(Refusal::Lost));
    }
    Ok(confirm(record, at, request, before))
}

fn is_stopped(entry: &Waiter, facts: &Facts) -> Result<bool, Query> {
    Ok(facts.liveness(&entry.owner.domain, &entry.process)? == Liveness::Stopped)
}

/// Makes a provisional grant permanent. `before` is the stale grant before it, if there was one.
fn confirm(record: &Record, at: usize, request: &Acquire, before: Option<EndedGrant>) -> Step {
    let mut next = record.clone();
    next.holders[at].provisional = None;
    next.holders[at].latest_only = false;
    next.holders[at].lifetime = request.entry.lifetime.clone();
    let grant = next.holders[at].clone();
    // Waiters that want to claim the name too need not wait any longer.
    let others = next.waiters.iter().filter(|waiter| grant.claim.is_some() && waiter.claim.is_some());
    let wake = others.map(|waiter| waiter.proof).collect();
    write(next, granted(grant, before), wake)
}

/// Response to a request for a claim if the name is already claimed permanently.
fn claimed(record: &Record, request: &Acquire, facts: &Facts) -> Result<Option<AcquireStep>, Query> {
    let Some(id) = &request.entry.claim else { return Ok(None) };
    let Some(grant) = record.holders.iter().find(|grant| grant.claim.is_some()) else { return Ok(None) };
    if grant.provisional.is_some() && !is_decided(grant, facts)? {
        return Ok(None);
    }
    let is_mine = grant.claim.as_ref() == Some(id);
    let grant = Box::new(grant.clone());
    Ok(Some(if is_mine { AcquireStep::Granted(grant, None) } else { AcquireStep::Refused(Refusal::Claimed(grant)) }))
}

/// Enters the queue of the record, unless it is full and the caller queues. Returns the waiters to wake.
fn enter(next: &mut Record, request: &Acquire, facts: &Facts) -> Vec<HandleHash> {
    let entry = || Waiter { since: facts.wall, ..request.entry.clone() };
    if request.queue && request.entry.latest_only {
        return enter_in_place(next, entry());
    }
    if next.pages.is_none() && (next.waiters.len() < INLINE_WAITERS || !request.queue) {
        next.waiters.push(entry());
    }
    Vec::new()
}

/// Updates the entry of a waiter in the record, if it has one, by what has changed since its last request.
fn update_entry(next: &mut Record, now: &Waiter) {
    if let Some(entry) = next.waiters.iter_mut().find(|waiter| waiter.proof == now.proof) {
        *entry = Waiter { latest_only: entry.latest_only, since: entry.since, ..now.clone() };
    }
}

/// Own grant of the caller for which it would wait: the shortest cycle.
fn waits_for_itself(record: &Record, entry: &Waiter, facts: &Facts) -> Result<Option<Grant>, Query> {
    let mut own = Vec::new();
    for grant in &record.holders {
        // A grant with a --ttl ends without help; it blocks only a caller whose timeout is shorter.
        if waits_within(entry, grant, facts)?
            && !matches!(&grant.lifetime, Lifetime::ExpiresAt(lease) if !facts.outlasts(lease)?)
        {
            own.push(grant);
        }
    }
    let Some(first) = own.first() else { return Ok(None) };
    Ok(if fits_beside(&own, record, entry, facts)? { None } else { Some((*first).clone()) })
}

fn wait(record: &Record, me: &HandleHash, facts: &Facts) -> Result<Step, Query> {
    let ahead = record.waiters.iter().take_while(|waiter| waiter.proof != *me).count();
    let before = record.waiters[..ahead].iter().rev().map(Waiter::waits_where);
    let mut awaited = awaited_ends(record, before, ahead, facts)?;
    if let Some(lease) = ahead.checked_sub(1).and_then(|at| record.waiters[at].lease.as_ref())
        // A waiter whose lease is over keeps its place until the walk of the queue comes to it.
        && !facts.lease_expired(lease)?
    {
        awaited.leases.push(lease.clone());
    }
    Ok(Transition::Done(AcquireStep::Wait(awaited)))
}

/// A caller on a page waits, or enters the page again if its entry has changed.
fn wait_on_page(record: &Record, place: &QueuePosition, entry: &Waiter, facts: &Facts) -> Result<Step, Query> {
    if place.entry != *entry {
        return Ok(Transition::Done(AcquireStep::Enqueue(place.page)));
    }
    let first = record.pages.map_or(place.page, |pages| pages.first);
    let in_record = record.waiters.iter().rev().map(Waiter::waits_where);
    let ahead = record.waiters.len() + Page::before(first, place.page) + place.ahead;
    let awaited = awaited_ends(record, place.before.iter().cloned().chain(in_record), ahead, facts)?;
    Ok(Transition::Done(AcquireStep::Wait(awaited)))
}

/// Step of a caller for which the record has no room.
fn queue_on_page(mut next: Record, place: &QueuePlace, facts: &Facts) -> Step {
    next.pages = match next.pages {
        // Page numbers start at the clock, so a page that an earlier queue left is never met.
        None => Some(Pages { first: facts.wall, last: facts.wall }),
        Some(pages) if *place == QueuePlace::BesidePage(pages.last) => Some(Pages { last: pages.last + 1, ..pages }),
        Some(pages) => return Transition::Done(AcquireStep::Enqueue(pages.last)),
    };
    write(next, AcquireStep::Wait(Awaited::default()), Vec::new())
}

/// A waiter watches the closest waiter ahead that is not stopped, or the holders and their leases if there is none.
fn awaited_ends(
    record: &Record,
    before: impl Iterator<Item = (PidDomain, ProcessId)>,
    ahead: usize,
    facts: &Facts,
) -> Result<Awaited, Query> {
    for (domain, process) in before {
        if matches!(facts.liveness(&domain, &process)?, Liveness::Alive | Liveness::Unknown) {
            return Ok(Awaited { processes: vec![(domain, process)], ahead, ..Awaited::default() });
        }
    }
    let mut awaited = Awaited::default();
    for grant in &record.holders {
        let waiter = match grant.provisional {
            Some(process) => Some((process, facts.liveness(&grant.owner.domain, &process)?)),
            None => None,
        };
        let owner = facts.effective_owner(&grant.owner)?.filter(|owner| waiter != Some(*owner));
        // No host can observe the end of a missing process.
        let live = waiter.into_iter().chain(owner).filter(|(_, liveness)| liveness.may_live_here());
        awaited.processes.extend(live.map(|(process, _)| (grant.owner.domain.clone(), process)));
        // If this host can see the owner, the owner's end counts and the lease does not.
        let by_lease = !matches!(grant.lifetime, Lifetime::Keepalive(_)) || !is_seen_alive(grant, facts)?;
        // An expired grant that is still here is not in the way of this waiter.
        let is_over = by_lease && matches!(grant.lifetime, Lifetime::Keepalive(_)) && lease_expired(grant, facts)?;
        if by_lease && !is_over {
            awaited.leases.extend(grant.lifetime.lease().cloned());
        }
        awaited.has_descriptor |= matches!(grant.lifetime, Lifetime::Descriptor(_));
    }
    Ok(awaited)
}

impl Request for Cancel {
    type Response = Option<Grant>;

    const HAS_PRIORITY: bool = false;

    /// Leaves the queue, unless the lock was granted in the meantime.
    fn rule(&self, record: &Record, facts: &Facts) -> Result<Transition<Option<Grant>>, Query> {
        let me = &self.proof;
        if let Some(grant) = record.holder(me) {
            return Ok(Transition::Done(Some(grant.clone())));
        }
        let mut next = record.clone();
        // A sealed page cannot lose a waiter, so the record fetches the page first and then drops the waiter.
        while self.page.is_some_and(|page| next.pages.is_some_and(|pages| pages.has(page))) {
            refill(&mut next, facts)?;
        }
        let Some(at) = next.waiters.iter().position(|waiter| waiter.proof == *me) else {
            return Ok(Transition::Done(None));
        };
        next.waiters.remove(at);
        // The next waiter watches this process, which may live on.
        let successor = next.waiters.get(at).map(|waiter| waiter.proof);
        let mut wake = grant_waiting(&mut next, facts)?;
        wake.extend(successor.filter(|successor| !wake.contains(successor)));
        Ok(write(next, None, wake))
    }
}
