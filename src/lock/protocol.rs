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
//! shell knows nothing about.
//!
//! The function never calls out. When it needs to know something it returns [`Wanted`]; the engine finds out, adds
//! it to [`Facts`] and calls again.

use super::facts::{Facts, Fate, Wanted};
use super::handle::Proof;
use super::record::{Ended, Ending, Grant, Home, Lease, Party, Process, Record, Share, Tenure, Waiter};

/// How many past grants a record remembers.
const ENDINGS_KEPT: usize = 4;

/// What somebody wants done with a record.
#[derive(Debug, Clone)]
pub enum Ask {
    /// Take it, or queue for it.
    Take(Application),
    /// Leave the queue.
    Withdraw(Proof),
    /// Give back what the claimant holds.
    Release(Claimant),
    /// Set a new tenure for what the claimant holds.
    Renew(Claimant, Tenure),
    /// End these grants, whoever holds them.
    Break(Vec<Proof>),
    /// Remove what is abandoned.
    Collect,
}

/// Somebody who wants the lock.
#[derive(Debug, Clone)]
pub struct Application {
    /// The entry that would stand in the queue.
    pub entry: Waiter,
    /// What a grant that is made now lasts: [`Waiter::tenure`], begun.
    pub tenure: Tenure,
    /// How many may hold at once, for [`Share::Slot`].
    pub slots: Option<u32>,
    /// Queue when it is not free.
    pub queue: bool,
    /// Refuse when a holder is gone without having given back.
    pub refuse_stale: bool,
    /// The proof of a grant that the asker already works under. Waiting for that one would never end.
    pub carried: Option<Proof>,
}

/// Somebody who says that a grant is theirs.
#[derive(Debug, Clone)]
pub struct Claimant {
    /// By the handle.
    pub proof: Option<Proof>,
    /// By being the owner: the processes that the caller may speak for.
    pub owners: Vec<Process>,
    /// Where those run.
    pub home: Home,
    /// Whether this ask was put to the store before, with a reply that was lost or unclear.
    pub repeated: bool,
}

/// What is to happen next.
#[derive(Debug, Clone)]
pub enum Step {
    /// Nothing changes; this is the answer.
    Done(Outcome),
    /// Swap the record for this one, then wake these waiters. Without an answer yet: look again.
    Write {
        /// The record as it is to be.
        record: Record,
        /// The answer, once it is stored.
        outcome: Option<Outcome>,
        /// Waiters that have something new to see.
        wake: Vec<Proof>,
    },
    /// In the queue: wait until one of these processes dies or one of these leases ends, or somebody wakes us.
    Wait {
        /// Processes whose end concerns us.
        processes: Vec<(Home, Process)>,
        /// Leases whose end concerns us.
        leases: Vec<Lease>,
        /// How many stand before us in the queue.
        ahead: usize,
    },
}

/// The answer to an [`Ask`]. "No" is an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Taken; and from whom, if that one had not given back.
    Granted(Grant, Option<Ending>),
    /// Held by these, and not waited for.
    Busy(Vec<Grant>),
    /// These are gone without having given back, and `refuse_stale` was set.
    Stale(Vec<Ending>),
    /// The asker holds it already, by this grant.
    Deadlock(Grant),
    /// Other slots were asked for than the record has.
    OtherSlots(u32),
    /// Out of the queue.
    Withdrawn,
    /// A withdrawal that came too late: granted in the meantime.
    GrantedMeanwhile(Grant),
    /// Given back.
    Released(Grant),
    /// Lasts anew.
    Renewed(Grant),
    /// These were broken.
    Broken(Vec<Grant>),
    /// The claimant holds nothing here, nor does anybody; how the claimant's grant ended, if that is still known.
    NotHeld(Option<Ending>),
    /// Held by these, who are not the claimant; how the claimant's grant ended, if that is still known.
    NotOwner(Vec<Grant>, Option<Ending>),
    /// These grants and waits of the dead were removed.
    Collected(Vec<Ending>, Vec<Waiter>),
}

/// Decides about one ask. See the module's own words for the rules.
///
/// # Errors
///
/// `Err` is a question: answer it in `facts` and call again.
pub fn decide(record: &Record, ask: &Ask, facts: &Facts) -> Result<Step, Wanted> {
    match ask {
        Ask::Take(application) => take(record, application, facts),
        Ask::Withdraw(proof) => withdraw(record, proof, facts),
        Ask::Release(claimant) => match find(record, claimant, facts)? {
            Found::Mine(at) => {
                let mut next = record.clone();
                let grant = end(&mut next, at, Ended::Released);
                let wake = serve(&mut next, facts)?;
                Ok(write(next, Outcome::Released(grant), wake))
            }
            Found::Ended(ending) if claimant.repeated && ending.how == Ended::Released => {
                Ok(Step::Done(Outcome::Released(ending.grant)))
            }
            Found::Ended(ending) if ending.how == Ended::Broken => hear_of_break(record, ending, facts),
            other => refuse(record, other, facts),
        },
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
        Ask::Break(proofs) => break_grants(record, proofs, facts),
        Ask::Collect => collect(record, facts),
    }
}

/// Whether a grant still stands: what is known of its owner's life, or how it ended.
///
/// # Errors
///
/// As [`decide`].
pub fn standing(grant: &Grant, facts: &Facts) -> Result<Result<Fate, Ended>, Wanted> {
    if let Tenure::Until(lease) = &grant.tenure
        && facts.over(lease)?
    {
        return Ok(Err(Ended::Expired));
    }
    if let Some(waiter) = &grant.unconfirmed {
        let fate = facts.fate(&grant.party.home, waiter)?;
        return Ok(if fate == Fate::Dead { Err(Ended::Died) } else { Ok(fate) });
    }
    let fate = match effective_owner(&grant.party, facts)? {
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

fn take(record: &Record, application: &Application, facts: &Facts) -> Result<Step, Wanted> {
    let me = application.entry.proof;
    if let Some(at) = record.holders.iter().position(|grant| grant.proof == me) {
        return Ok(already_mine(record, at, application));
    }
    let mut next = record.clone();
    let ended = evict(&mut next, facts)?;
    let evicted: Vec<Ending> = ended.iter().filter(|ending| ending.how != Ended::Released).cloned().collect();
    if application.refuse_stale && !evicted.is_empty() {
        return Ok(Step::Done(Outcome::Stale(evicted)));
    }
    let queued = next.waiters.iter().any(|waiter| waiter.proof == me);
    if !queued && let Some(has) = other_slots(&next, application) {
        return Ok(Step::Done(Outcome::OtherSlots(has)));
    }
    if !queued {
        next.waiters.push(application.entry.clone());
        next.slots = application.slots.or(next.slots);
    }
    if let Some(entry) = next.waiters.iter_mut().find(|waiter| waiter.proof == me) {
        entry.lease = application.entry.lease.clone();
    }
    let mut wake = serve_as(&mut next, facts, Some(application))?;
    wake.retain(|proof| *proof != me);
    if let Some(grant) = next.holders.iter().find(|grant| grant.proof == me) {
        let grant = grant.clone();
        return Ok(write(next, Outcome::Granted(grant, evicted.into_iter().next_back()), wake));
    }
    if let Some(own) = waits_for_itself(&next, application, facts)? {
        return Ok(Step::Done(Outcome::Deadlock(own)));
    }
    if !application.queue {
        let busy = Outcome::Busy(next.holders.clone());
        next.waiters.retain(|waiter| waiter.proof != me);
        let changed = !ended.is_empty() || !wake.is_empty();
        return Ok(if changed { write(next, busy, wake) } else { Step::Done(busy) });
    }
    if next == *record {
        return wait(record, &me, facts);
    }
    Ok(Step::Write { record: next, outcome: None, wake })
}

/// The record bears my proof: somebody granted it to me, or an earlier try of mine did and its reply was lost.
fn already_mine(record: &Record, at: usize, application: &Application) -> Step {
    let grant = &record.holders[at];
    let before = record.endings.last().filter(|ending| ending.how != Ended::Released).cloned();
    if grant.unconfirmed.is_none() {
        return Step::Done(Outcome::Granted(grant.clone(), before));
    }
    let mut next = record.clone();
    next.holders[at].unconfirmed = None;
    next.holders[at].tenure = application.tenure.clone();
    let grant = next.holders[at].clone();
    write(next, Outcome::Granted(grant, before), Vec::new())
}

fn wait(record: &Record, me: &Proof, facts: &Facts) -> Result<Step, Wanted> {
    let ahead = record.waiters.iter().take_while(|waiter| waiter.proof != *me).count();
    let (mut processes, mut leases) = (Vec::new(), Vec::new());
    if let Some(before) = ahead.checked_sub(1).map(|at| &record.waiters[at]) {
        processes.push((before.party.home.clone(), before.process));
        leases.extend(before.lease.clone());
    } else {
        for grant in &record.holders {
            let owner = effective_owner(&grant.party, facts)?.map(|(owner, _)| owner);
            if let Some(process) = grant.unconfirmed.or(owner) {
                processes.push((grant.party.home.clone(), process));
            }
            if let Tenure::Until(lease) = &grant.tenure {
                leases.push(lease.clone());
            }
        }
    }
    Ok(Step::Wait { processes, leases, ahead })
}

fn withdraw(record: &Record, me: &Proof, facts: &Facts) -> Result<Step, Wanted> {
    if let Some(grant) = record.holders.iter().find(|grant| grant.proof == *me) {
        return Ok(Step::Done(Outcome::GrantedMeanwhile(grant.clone())));
    }
    if !record.waiters.iter().any(|waiter| waiter.proof == *me) {
        return Ok(Step::Done(Outcome::Withdrawn));
    }
    let mut next = record.clone();
    next.waiters.retain(|waiter| waiter.proof != *me);
    let wake = serve(&mut next, facts)?;
    Ok(write(next, Outcome::Withdrawn, wake))
}

/// Only what was seen is broken: should the reply be lost, whoever got the lock thereby keeps it.
fn break_grants(record: &Record, proofs: &[Proof], facts: &Facts) -> Result<Step, Wanted> {
    let mut next = record.clone();
    let mut broken = Vec::new();
    while let Some(at) = next.holders.iter().position(|grant| proofs.contains(&grant.proof)) {
        broken.push(end(&mut next, at, Ended::Broken));
    }
    if !broken.is_empty() {
        let wake = serve(&mut next, facts)?;
        return Ok(write(next, Outcome::Broken(broken), wake));
    }
    let done = |ending: &&Ending| ending.how == Ended::Broken && proofs.contains(&ending.grant.proof);
    let earlier: Vec<Grant> = record.endings.iter().filter(done).map(|ending| ending.grant.clone()).collect();
    Ok(Step::Done(if earlier.is_empty() { Outcome::NotHeld(None) } else { Outcome::Broken(earlier) }))
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

/// What a claimant has here.
enum Found {
    Mine(usize),
    Ended(Ending),
    Nothing,
}

fn find(record: &Record, claimant: &Claimant, facts: &Facts) -> Result<Found, Wanted> {
    for (at, grant) in record.holders.iter().enumerate() {
        if !is_mine(grant, claimant, facts)? {
            continue;
        }
        // Whose life it shares does not matter to who shows the handle, or is that owner: a wrapper gives back for its
        // command that has ended.
        let over = matches!(&grant.tenure, Tenure::Until(lease) if facts.over(lease)?);
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
    if claimant.proof == Some(grant.proof) {
        return Ok(true);
    }
    let owner = effective_owner(&grant.party, facts)?;
    Ok(grant.party.home.shares_pids_with(&claimant.home)
        && owner.is_some_and(|(owner, _)| claimant.owners.contains(&owner)))
}

/// The holder asks after a grant that was broken: tell, and keep it no longer.
fn hear_of_break(record: &Record, ending: Ending, facts: &Facts) -> Result<Step, Wanted> {
    let mut next = record.clone();
    next.endings.retain(|kept| *kept != ending);
    match refuse(record, Found::Ended(ending), facts)? {
        Step::Done(outcome) => Ok(write(next, outcome, Vec::new())),
        other => Ok(other),
    }
}

fn refuse(record: &Record, found: Found, facts: &Facts) -> Result<Step, Wanted> {
    let ending = match found {
        Found::Ended(ending) => Some(ending),
        _ => None,
    };
    let mut holders = Vec::new();
    for grant in &record.holders {
        if standing(grant, facts)?.is_ok() {
            holders.push(grant.clone());
        }
    }
    Ok(Step::Done(if holders.is_empty() { Outcome::NotHeld(ending) } else { Outcome::NotOwner(holders, ending) }))
}

/// Ends the grants that no longer stand, and forgets of those that were broken whose holders will never ask.
fn evict(record: &mut Record, facts: &Facts) -> Result<Vec<Ending>, Wanted> {
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

fn end(record: &mut Record, at: usize, how: Ended) -> Grant {
    let grant = record.holders.remove(at);
    record.endings.push(Ending { grant: grant.clone(), how });
    let surplus = record.endings.len().saturating_sub(ENDINGS_KEPT);
    record.endings.drain(..surplus);
    grant
}

fn serve(record: &mut Record, facts: &Facts) -> Result<Vec<Proof>, Wanted> {
    evict(record, facts)?;
    serve_as(record, facts, None)
}

/// Walks the queue in order of arrival and grants to those who fit. Returns who has something new to see.
fn serve_as(record: &mut Record, facts: &Facts, me: Option<&Application>) -> Result<Vec<Proof>, Wanted> {
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

fn promote(waiter: Waiter, slot: u32, myself: Option<&Application>, facts: &Facts) -> Grant {
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
fn free_slot(record: &Record, share: Share) -> Option<u32> {
    let alike = record.holders.iter().all(|grant| grant.share == share);
    match share {
        Share::Exclusive => record.holders.is_empty().then_some(0),
        Share::Shared => alike.then_some(0),
        Share::Slot if !alike => None,
        Share::Slot => (0..record.slots?).find(|slot| record.holders.iter().all(|grant| grant.slot != *slot)),
    }
}

fn other_slots(record: &Record, application: &Application) -> Option<u32> {
    let counted = |share| share == Share::Slot;
    let in_use = record.holders.iter().any(|grant| counted(grant.share))
        || record.waiters.iter().any(|waiter| counted(waiter.share));
    let has = record.slots.filter(|_| in_use)?;
    application.slots.is_some_and(|wants| wants != has).then_some(has)
}

/// The grant that the asker itself holds and would wait for, if there is one.
fn waits_for_itself(record: &Record, application: &Application, facts: &Facts) -> Result<Option<Grant>, Wanted> {
    let claimant = Claimant {
        proof: application.carried,
        owners: [&[application.entry.process], application.entry.party.owners.as_slice()].concat(),
        home: application.entry.party.home.clone(),
        repeated: false,
    };
    for grant in &record.holders {
        if is_mine(grant, &claimant, facts)? {
            return Ok(Some(grant.clone()));
        }
    }
    Ok(None)
}

fn is_gone(waiter: &Waiter, facts: &Facts) -> Result<bool, Wanted> {
    if let Some(lease) = &waiter.lease
        && facts.over(lease)?
    {
        return Ok(true);
    }
    Ok(facts.fate(&waiter.party.home, &waiter.process)? == Fate::Dead)
}

/// The first owner that is not dead for sure, and what is known of it.
fn effective_owner(party: &Party, facts: &Facts) -> Result<Option<(Process, Fate)>, Wanted> {
    for owner in &party.owners {
        let fate = facts.fate(&party.home, owner)?;
        if fate != Fate::Dead {
            return Ok(Some((*owner, fate)));
        }
    }
    Ok(None)
}

fn write(record: Record, outcome: Outcome, wake: Vec<Proof>) -> Step {
    Step::Write { record, outcome: Some(outcome), wake }
}

#[cfg(test)]
mod tests;
