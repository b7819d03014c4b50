//! Every rule of locking, as one pure function: [`decide`] takes the record as it is, what somebody asks and what
//! is known of the world, and says what the record becomes and what the answer is.
//!
//! **The queue.** Who cannot have it at once is entered behind those who came before. Whoever changes a record also
//! serves its queue: it evicts holders that are gone, then walks the waiters in order of arrival, drops the dead,
//! grants to those who fit and stops at the first who does not. Mutex, readers-writer lock and semaphore are this
//! one rule with three ways to fit, so readers never pass a waiting writer.
//!
//! **Being gone.** A grant is over when its lease is over or when all processes it depends on are dead for sure.
//! *Unknown* is never dead.
//!
//! **Repeating.** A reply can be lost after the store did what it was told. So every ask may be put again: a grant
//! that already bears my proof is my grant, and a release that finds its own ending in the record has happened.
//!
//! **A grant made for somebody else** ([`Grant::unconfirmed`]) lives as long as the waiter it was made for, until
//! that waiter confirms. Without this a waiter that is killed as it is granted would leave its shell a lock that the
//! shell knows nothing about. Of several names all are confirmed or none ([`super::Decision`]).
//!
//! The function never calls out. When it needs to know something it returns [`Wanted`]; the engine finds out, adds
//! it to [`Facts`] and calls again.

use super::ask::{Application, Ask, Claimant, Link, Outcome, Place, Step};
use super::cycle::{fits_beside, waits_within};
use super::facts::{Facts, Fate, Wanted};
use super::handle::Proof;
use super::page::Page;
use super::queue::{WINDOW, effective_owner, end, evict, fetch, is_gone, other_slots, serve, serve_as};
use super::record::{Ended, Ending, Grant, Home, Pages, Process, Record, Tenure, Waiter};
use super::sighting::note;
use super::value::decide_write;

/// Decides about one ask. See the module's own words for the rules.
///
/// # Errors
///
/// `Err` is a question: answer it in `facts` and call again.
pub fn decide(record: &Record, ask: &Ask, facts: &Facts) -> Result<Step, Wanted> {
    let mut step = answer(record, ask, facts)?;
    if let Step::Write { over, .. } = &mut step {
        over.extend(facts.leases_over().cloned());
    }
    Ok(step)
}

fn answer(record: &Record, ask: &Ask, facts: &Facts) -> Result<Step, Wanted> {
    match ask {
        Ask::Take(application) => take(record, application, facts),
        Ask::Withdraw(proof, page) => withdraw(record, proof, *page, facts),
        Ask::Release(claimant) => match find(record, claimant, facts)? {
            Found::Mine(at) => {
                let mut next = record.clone();
                if claimant.supervises {
                    next.holders[at].party.supervisor = None;
                }
                let grant = end(&mut next, at, Ended::Released);
                let wake = serve(&mut next, facts)?;
                Ok(write(next, Outcome::Released(grant), wake))
            }
            Found::Ended(ending) if hears_of(record, claimant, &ending) => hear_of(record, ending, facts),
            Found::Ended(ending) if claimant.repeated && ending.how == Ended::Released => {
                Ok(Step::Done(Outcome::Released(ending.grant)))
            }
            other => refuse(record, other, facts),
        },
        Ask::Renew(claimant, tenure @ Tenure::Renewed(_)) => renew_on(record, claimant, tenure, facts),
        Ask::Renew(claimant, tenure) => match find(record, claimant, facts)? {
            Found::Mine(at) => {
                let mut next = record.clone();
                next.holders[at].tenure = tenure.clone();
                let grant = next.holders[at].clone();
                let wake = next.waiters.first().map(|head| head.proof).into_iter().collect();
                Ok(write(next, Outcome::Renewed(grant), wake))
            }
            other => refuse(record, other, facts),
        },
        Ask::Mourn(claimant) => match find(record, claimant, facts)? {
            Found::Mine(at) => {
                let mut next = record.clone();
                next.holders[at].tenure = Tenure::OwnerDied;
                let grant = next.holders[at].clone();
                // Where nobody waits it stays, to be seen by whoever comes next.
                let is_wanted = !next.waiters.is_empty() || next.pages.is_some();
                let wake = if is_wanted { serve(&mut next, facts)? } else { Vec::new() };
                Ok(write(next, Outcome::Released(grant), wake))
            }
            other => refuse(record, other, facts),
        },
        Ask::Doubt(claimant, doubt) => match find(record, claimant, facts)? {
            Found::Mine(at) => {
                let mut next = record.clone();
                let grant = &mut next.holders[at];
                (grant.proof, grant.unconfirmed) = (doubt.proof, Some(doubt.process));
                grant.tenure = doubt.tenure.clone();
                let doubted = grant.clone();
                Ok(write(next, Outcome::Renewed(doubted), Vec::new()))
            }
            other => refuse(record, other, facts),
        },
        Ask::Write(writing) => decide_write(record, writing, facts),
        Ask::Break(proofs) => break_grants(record, proofs, facts),
        Ask::Collect => collect(record, facts),
        Ask::Note(sightings) => Ok(note(record, sightings)),
    }
}

/// Whether a grant still stands: what is known of its owner's life, or how it ended.
///
/// # Errors
///
/// As [`decide`].
pub fn standing(grant: &Grant, facts: &Facts) -> Result<Result<Fate, Ended>, Wanted> {
    let over = is_over(grant, facts)?;
    if let Some(waiter) = &grant.unconfirmed {
        let fate = facts.fate(&grant.party.home, waiter)?;
        if fate != Fate::Dead && !over {
            return Ok(Ok(fate));
        }
        if !facts.decided(&grant.proof)? {
            // The process died before anyone heard of the grant, so its owner has lost nothing.
            return Ok(Err(if fate == Fate::Dead { Ended::Released } else { Ended::Expired }));
        }
        if grant.claim.is_some() {
            return Ok(Ok(Fate::Unknown));
        }
    }
    if over {
        return Ok(Err(Ended::Expired));
    }
    let fate = match effective_owner(&grant.party, facts)? {
        _ if grant.tenure == Tenure::OwnerDied => Fate::Dead,
        Some((_, fate)) => fate,
        None if grant.party.owners.is_empty() => Fate::Unknown,
        None => Fate::Dead,
    };
    match (fate, &grant.tenure) {
        (Fate::Dead, Tenure::Forever) => Ok(Ok(Fate::Dead)),
        (Fate::Dead, _) if grant.yields => Ok(Err(Ended::Released)),
        (Fate::Dead, _) => Ok(Err(Ended::Died)),
        (fate, _) => Ok(Ok(fate)),
    }
}

/// Whether its lease is over. One that is renewed says that its owner lives to those who cannot see it; who can, believes
/// his eyes.
fn is_over(grant: &Grant, facts: &Facts) -> Result<bool, Wanted> {
    match &grant.tenure {
        Tenure::Renewed(lease) => Ok(!is_seen_alive(grant, facts)? && facts.over(lease)?),
        tenure => tenure.lease().map_or(Ok(false), |lease| facts.over(lease)),
    }
}

fn is_seen_alive(grant: &Grant, facts: &Facts) -> Result<bool, Wanted> {
    Ok(matches!(effective_owner(&grant.party, facts)?, Some((_, Fate::Alive))))
}

/// Whether an unconfirmed grant stands whatever becomes of whoever was granted it. Nobody asks for a decision before that
/// one is dead, or has had his time.
pub(super) fn is_decided(grant: &Grant, facts: &Facts) -> Result<bool, Wanted> {
    let Some(waiter) = &grant.unconfirmed else { return Ok(false) };
    let over = grant.claim.is_some() && is_over(grant, facts)?;
    Ok((over || facts.fate(&grant.party.home, waiter)? == Fate::Dead) && facts.decided(&grant.proof)?)
}

fn take(record: &Record, application: &Application, facts: &Facts) -> Result<Step, Wanted> {
    let me = application.entry.proof;
    if let Some(at) = record.holders.iter().position(|grant| grant.proof == me) {
        return already_mine(record, at, application, facts);
    }
    if let Some(claimed) = claimed(record, application, facts)? {
        return Ok(Step::Done(claimed));
    }
    if application.confirming {
        let mine = record.endings.iter().find(|ending| ending.grant.proof == me);
        return Ok(Step::Done(Outcome::NotHeld(mine.cloned())));
    }
    let mut next = record.clone();
    let ended = evict(&mut next, facts)?;
    let evicted: Vec<Ending> = ended.iter().filter(|ending| ending.how != Ended::Released).cloned().collect();
    if application.refuse_stale && !evicted.is_empty() {
        return Ok(Step::Done(Outcome::Stale(evicted)));
    }
    let in_record = next.waiters.iter().any(|waiter| waiter.proof == me);
    let place = application.place.as_ref().filter(|place| next.pages.is_some_and(|pages| pages.has(place.page)));
    let mut wake = Vec::new();
    if !in_record && place.is_none() {
        if next.pages.is_some() {
            wake = serve_as(&mut next, facts, None)?;
        }
        if let Some(has) = other_slots(&next, application, facts)? {
            return Ok(Step::Done(Outcome::OtherSlots(has)));
        }
        next.slots = application.slots.or(next.slots);
        if next.pages.is_none() && (next.waiters.len() < WINDOW || !application.queue) {
            next.waiters.push(Waiter { since: facts.wall, ..application.entry.clone() });
        }
    }
    if let Some(entry) = next.waiters.iter_mut().find(|waiter| waiter.proof == me) {
        entry.lease.clone_from(&application.entry.lease);
        entry.within.clone_from(&application.entry.within);
    }
    wake.extend(serve_as(&mut next, facts, Some(application))?);
    wake.retain(|proof| *proof != me);
    if let Some(grant) = next.holders.iter().find(|grant| grant.proof == me) {
        let grant = grant.clone();
        return Ok(write(next, Outcome::Granted(grant, evicted.into_iter().next_back()), wake));
    }
    if let Some(own) = waits_for_itself(&next, &application.entry, facts)? {
        return Ok(Step::Done(Outcome::Deadlock(vec![Link { name: next.name, grant: own }])));
    }
    if !application.queue {
        let busy = Outcome::Busy(next.holders.clone());
        next.waiters.retain(|waiter| waiter.proof != me);
        let changed = !ended.is_empty() || !wake.is_empty();
        return Ok(if changed { write(next, busy, wake) } else { Step::Done(busy) });
    }
    if next != *record {
        return Ok(Step::Write { record: next, outcome: None, wake, over: Vec::new() });
    }
    match place {
        _ if in_record => wait(record, &me, facts),
        Some(place) => wait_on_page(record, place, &application.entry, facts),
        None => Ok(queue_on_page(next, application.full, facts)),
    }
}

/// What there is to say to somebody who wants to claim what is claimed already, for good.
fn claimed(record: &Record, application: &Application, facts: &Facts) -> Result<Option<Outcome>, Wanted> {
    let Some(id) = &application.entry.claim else { return Ok(None) };
    let Some(grant) = record.holders.iter().find(|grant| grant.claim.is_some()) else { return Ok(None) };
    if grant.unconfirmed.is_some() && !is_decided(grant, facts)? {
        return Ok(None);
    }
    let is_mine = grant.claim.as_ref() == Some(id);
    Ok(Some(if is_mine { Outcome::Granted(grant.clone(), None) } else { Outcome::Claimed(grant.clone()) }))
}

/// Where somebody enters a queue that the record has no room for.
fn queue_on_page(mut next: Record, full: Option<u64>, facts: &Facts) -> Step {
    next.pages = match next.pages {
        None => Some(Pages { first: facts.wall, last: facts.wall }),
        Some(pages) if full == Some(pages.last) => Some(Pages { last: pages.last + 1, ..pages }),
        Some(pages) => return Step::Join(pages.last),
    };
    Step::Write { record: next, outcome: None, wake: Vec::new(), over: Vec::new() }
}

fn wait_on_page(record: &Record, place: &Place, entry: &Waiter, facts: &Facts) -> Result<Step, Wanted> {
    if place.entry != *entry {
        return Ok(Step::Join(place.page));
    }
    let first = record.pages.map_or(place.page, |pages| pages.first);
    let in_record = record.waiters.iter().rev().map(Waiter::waits_where);
    let ahead = record.waiters.len() + Page::before(first, place.page) + place.ahead;
    wait_behind(record, place.before.iter().cloned().chain(in_record), ahead, facts)
}

/// The record bears my proof: somebody granted it to me, or an earlier try of mine did and its reply was lost.
fn already_mine(record: &Record, at: usize, application: &Application, facts: &Facts) -> Result<Step, Wanted> {
    let grant = &record.holders[at];
    let before = record.endings.last().filter(|ending| ending.how != Ended::Released).cloned();
    let mut next = record.clone();
    if let Some(stale) = before.clone().filter(|_| application.refuse_stale) {
        // Whoever served the queue could not know that we refuse it.
        end(&mut next, at, Ended::Released);
        let wake = serve(&mut next, facts)?;
        return Ok(write(next, Outcome::Stale(vec![stale]), wake));
    }
    if grant.unconfirmed.is_none() || application.tentative {
        return Ok(Step::Done(Outcome::Granted(grant.clone(), before)));
    }
    next.holders[at].unconfirmed = None;
    next.holders[at].tenure = application.tenure.clone();
    let grant = next.holders[at].clone();
    // Who wants to claim it as well need wait no longer.
    let others = next.waiters.iter().filter(|waiter| grant.claim.is_some() && waiter.claim.is_some());
    let wake = others.map(|waiter| waiter.proof).collect();
    Ok(write(next, Outcome::Granted(grant, before), wake))
}

fn wait(record: &Record, me: &Proof, facts: &Facts) -> Result<Step, Wanted> {
    let ahead = record.waiters.iter().take_while(|waiter| waiter.proof != *me).count();
    let Step::Wait { processes, mut leases, ahead } =
        wait_behind(record, record.waiters[..ahead].iter().rev().map(Waiter::waits_where), ahead, facts)?
    else {
        return Ok(Step::Wait { processes: Vec::new(), leases: Vec::new(), ahead });
    };
    leases.extend(ahead.checked_sub(1).and_then(|at| record.waiters[at].lease.clone()));
    Ok(Step::Wait { processes, leases, ahead })
}

/// To wait for the end of the nearest who lives of those before us, or else of those who hold.
fn wait_behind(
    record: &Record,
    before: impl Iterator<Item = (Home, Process)>,
    ahead: usize,
    facts: &Facts,
) -> Result<Step, Wanted> {
    for (home, process) in before {
        if facts.fate(&home, &process)?.may_live_here() {
            return Ok(Step::Wait { processes: vec![(home, process)], leases: Vec::new(), ahead });
        }
    }
    let (mut processes, mut leases) = (Vec::new(), Vec::new());
    for grant in &record.holders {
        let process = match grant.unconfirmed {
            Some(process) => Some((process, facts.fate(&grant.party.home, &process)?)),
            None => effective_owner(&grant.party, facts)?,
        };
        // Nobody sees the end of a process that is missing.
        processes.extend(
            process.filter(|(_, fate)| fate.may_live_here()).map(|(process, _)| (grant.party.home.clone(), process)),
        );
        // Where the owner is seen, his end is what counts.
        let by_lease = !matches!(grant.tenure, Tenure::Renewed(_)) || !is_seen_alive(grant, facts)?;
        leases.extend(grant.tenure.lease().filter(|_| by_lease).cloned());
    }
    Ok(Step::Wait { processes, leases, ahead })
}

fn withdraw(record: &Record, me: &Proof, page: Option<u64>, facts: &Facts) -> Result<Step, Wanted> {
    if let Some(grant) = record.holders.iter().find(|grant| grant.proof == *me) {
        return Ok(Step::Done(Outcome::GrantedMeanwhile(grant.clone())));
    }
    let mut next = record.clone();
    // From a page that is being fetched nobody can be removed: finish that, and remove him here.
    while page.is_some_and(|page| next.pages.is_some_and(|pages| pages.has(page))) {
        fetch(&mut next, facts)?;
    }
    if !next.waiters.iter().any(|waiter| waiter.proof == *me) {
        return Ok(Step::Done(Outcome::Withdrawn));
    }
    next.waiters.retain(|waiter| waiter.proof != *me);
    let wake = serve(&mut next, facts)?;
    Ok(write(next, Outcome::Withdrawn, wake))
}

/// Only what was seen is broken: should the reply be lost, whoever got the lock thereby keeps it.
fn break_grants(record: &Record, proofs: &[Proof], facts: &Facts) -> Result<Step, Wanted> {
    let mut next = record.clone();
    let is_meant = |ending: &&Ending| ending.how != Ended::Released && proofs.contains(&ending.grant.proof);
    // First, so that what is broken now is still there to be written down.
    let mut broken: Vec<Ending> = evict(&mut next, facts)?.iter().filter(is_meant).cloned().collect();
    while let Some(at) = next.holders.iter().position(|grant| proofs.contains(&grant.proof)) {
        broken.push(Ending { grant: end(&mut next, at, Ended::Broken), how: Ended::Broken });
    }
    if !broken.is_empty() {
        let wake = serve_as(&mut next, facts, None)?;
        return Ok(write(next, Outcome::Broken(broken), wake));
    }
    let earlier: Vec<Ending> = record.endings.iter().filter(is_meant).cloned().collect();
    if !earlier.is_empty() {
        return Ok(Step::Done(Outcome::Broken(earlier)));
    }
    refuse(record, Found::Nothing, facts)
}

fn collect(record: &Record, facts: &Facts) -> Result<Step, Wanted> {
    let mut next = record.clone();
    let evicted = evict(&mut next, facts)?;
    let mut dropped = Vec::new();
    for waiter in std::mem::take(&mut next.waiters) {
        if is_gone(&waiter, facts)? { &mut dropped } else { &mut next.waiters }.push(waiter);
    }
    let wake = serve(&mut next, facts)?;
    let outcome = Outcome::Collected(evicted, dropped);
    Ok(if next == *record { Step::Done(outcome) } else { write(next, outcome, wake) })
}

/// Begins a lease that is renewed anew. Should it be over, then nobody has taken the lock yet: what changes the record
/// first, counts. What somebody set a time for keeps that.
fn renew_on(record: &Record, claimant: &Claimant, tenure: &Tenure, facts: &Facts) -> Result<Step, Wanted> {
    let Some(at) = record.holders.iter().position(|grant| claimant.proof == Some(grant.proof)) else {
        return refuse(record, find(record, claimant, facts)?, facts);
    };
    let mut next = record.clone();
    if !matches!(record.holders[at].tenure, Tenure::Renewed(_)) {
        return Ok(Step::Done(Outcome::Renewed(record.holders[at].clone())));
    }
    next.holders[at].tenure = tenure.clone();
    let grant = next.holders[at].clone();
    // Whoever waits for its end looks at the record when the old lease would be over.
    Ok(write(next, Outcome::Renewed(grant), Vec::new()))
}

/// What a claimant has here.
pub(super) enum Found {
    Mine(usize),
    Ended(Ending),
    Nothing,
}

pub(super) fn find(record: &Record, claimant: &Claimant, facts: &Facts) -> Result<Found, Wanted> {
    for (at, grant) in record.holders.iter().enumerate() {
        if !is_mine(grant, claimant, facts)? {
            continue;
        }
        // Whose life it shares does not matter to who shows the handle, or is that owner: a wrapper gives back for its
        // command that has ended.
        let over = is_over(grant, facts)?;
        let late = Ending { grant: grant.clone(), how: Ended::Expired };
        return Ok(if over { Found::Ended(late) } else { Found::Mine(at) });
    }
    let mine = |grant: &Grant| {
        claimant.proof == Some(grant.proof)
            || (grant.party.home.shares_pids_with(&claimant.home)
                && grant.party.owners.iter().any(|owner| claimant.owners.contains(owner)))
    };
    let ending = record.endings.iter().rev().find(|ending| mine(&ending.grant));
    Ok(ending.cloned().map_or(Found::Nothing, Found::Ended))
}

fn is_mine(grant: &Grant, claimant: &Claimant, facts: &Facts) -> Result<bool, Wanted> {
    if claimant.proof == Some(grant.proof) || (claimant.claim.is_some() && claimant.claim == grant.claim) {
        return Ok(true);
    }
    let owner = effective_owner(&grant.party, facts)?;
    let is_owned = grant.party.home.shares_pids_with(&claimant.home)
        && owner.is_some_and(|(owner, _)| claimant.owners.contains(&owner));
    // Of what it was not told that it has it, the owner has nothing.
    Ok(is_owned && (grant.unconfirmed.is_none() || is_decided(grant, facts)?))
}

/// Whether the claimant is the process that has yet to hear of this ending.
fn hears_of(record: &Record, claimant: &Claimant, ending: &Ending) -> bool {
    let is_for_claimant = claimant.supervises || ending.grant.party.supervisor.is_none();
    is_for_claimant && ending.is_owed() && record.endings.contains(ending)
}

/// Tells how the grant ended, and keeps that no longer.
fn hear_of(record: &Record, ending: Ending, facts: &Facts) -> Result<Step, Wanted> {
    let mut next = record.clone();
    next.endings.retain(|kept| *kept != ending);
    match refuse(record, Found::Ended(ending), facts)? {
        Step::Done(outcome) => Ok(write(next, outcome, Vec::new())),
        other => Ok(other),
    }
}

pub(super) fn refuse(record: &Record, found: Found, facts: &Facts) -> Result<Step, Wanted> {
    let mut ending = match found {
        Found::Ended(ending) => Some(ending),
        _ => None,
    };
    let mut holders = Vec::new();
    for grant in &record.holders {
        match standing(grant, facts)? {
            Ok(_) => holders.push(grant.clone()),
            Err(Ended::Released) => {}
            Err(how) => ending = ending.or_else(|| Some(Ending { grant: grant.clone(), how })),
        }
    }
    Ok(Step::Done(if holders.is_empty() { Outcome::NotHeld(ending) } else { Outcome::NotOwner(holders, ending) }))
}

/// The grant of the asker's own for which it would wait, if there is one: the shortest circle.
fn waits_for_itself(record: &Record, entry: &Waiter, facts: &Facts) -> Result<Option<Grant>, Wanted> {
    let mut own = Vec::new();
    for grant in &record.holders {
        // A lease that nobody renews ends by itself; but who does not wait for that long waits in vain.
        if waits_within(entry, grant, facts)?
            && !matches!(&grant.tenure, Tenure::Until(lease) if !facts.outlasts(lease)?)
        {
            own.push(grant);
        }
    }
    let endless = !own.is_empty() && !fits_beside(&own, record, entry, facts)?;
    Ok(own.first().filter(|_| endless).map(|grant| (*grant).clone()))
}

pub(super) fn write(record: Record, outcome: Outcome, wake: Vec<Proof>) -> Step {
    Step::Write { record, outcome: Some(outcome), wake, over: Vec::new() }
}

#[cfg(test)]
mod tests;
