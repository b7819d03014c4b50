//! Taking several names: all of them or none.
//!
//! Whoever waits for one name should not keep the others from those who could use them meanwhile. So one name is waited
//! for with nothing else in hand, then the others are tried; if one of them is taken, everything is given back and that
//! one is waited for. As long as this goes on nobody waits while he holds, so these calls cannot stand in a circle.
//!
//! Others might always be faster, though. After [`MOST_ROUNDS`] rounds the names are taken in their fixed order, each
//! kept while the next is waited for. Every call has the same order, so there is no circle among them then either, and
//! each queue is first come, first served: everybody gets all names in the end. What is kept by a lease is kept longer
//! while the next is waited for.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::acquire::CANCEL_GRACE;
use super::batch::{self, Batch};
use super::{AcquireRequest, AcquireResult, Engine, WaitPolicy, Waiting};
use crate::error::Result;
use crate::host::Invocation;
use crate::lock::{EndedGrant, Grant, Request, Response};
use crate::store::Durability;

/// So often everything is given back because one name was taken.
const MOST_ROUNDS: usize = 3;

/// One of several names, in the store that it is in.
#[derive(Clone, Copy)]
pub struct StoredLock<'a> {
    /// The store.
    pub engine: &'a Engine,
    /// The name.
    pub name: &'a [u8],
}

/// How an attempt to take several names ended.
#[derive(Debug)]
pub enum AcquireAllResult {
    /// All are taken: the grants in the order of the wishes; and from whom, if somebody had not given back. A tentative
    /// applicant has yet to [confirm](confirm_all) them.
    Granted(Vec<Grant>, Option<(usize, EndedGrant)>),
    /// None is taken, because of this one.
    Refused(usize, Response),
    /// None is taken: the interrupt came.
    Interrupted,
}

/// As [`super::Onlooker`], with the wish that is waited for.
pub type Onlooker<'a> = dyn FnMut(usize, &Waiting<'_>) -> Option<Duration> + 'a;

/// Takes all wishes, which stand in an order that is the same for everybody, or none.
///
/// # Errors
///
/// When a store cannot be asked or told. Nothing is held then that can still be given back; the rest dies with the
/// applicant.
pub fn acquire_all(
    wishes: &[StoredLock<'_>],
    request: &AcquireRequest,
    policy: &WaitPolicy,
    interrupt: Option<BorrowedFd<'_>>,
    on_wait: &mut Onlooker<'_>,
) -> Result<AcquireAllResult> {
    let mut several = MultiAcquire::new(wishes, request, policy, interrupt, on_wait);
    several.bound(Some(several.until));
    let mut taken = several.run();
    if taken.is_err() && wishes[0].engine.is_interrupted(interrupt) {
        taken = Ok(AcquireAllResult::Interrupted);
    }
    if !matches!(taken, Ok(AcquireAllResult::Granted(..))) {
        if !matches!(taken, Ok(AcquireAllResult::Refused(..))) {
            // What cannot be said at once ends by itself.
            several.bound(Some(wishes[0].engine.host().boottime()));
        }
        let given_back = several.release();
        several.bound(None);
        if !matches!(taken, Ok(AcquireAllResult::Interrupted)) {
            given_back?;
        }
    }
    several.bound(None);
    taken
}

/// Takes for good what was taken tentatively: all of it or nothing. `None`: one was lost meanwhile; that somebody could
/// take it again since, by another token, is of no use to those who were told the first one.
///
/// # Errors
///
/// When a store cannot be asked or told. Some of it may be held for good then.
pub fn confirm_all(
    wishes: &[StoredLock<'_>],
    request: &AcquireRequest,
    grants: Vec<Grant>,
) -> Result<Option<Vec<Grant>>> {
    let mut on_wait = |_: usize, _: &Waiting<'_>| None;
    let mut several = MultiAcquire::new(wishes, request, &WaitPolicy::NONE, None, &mut on_wait);
    several.held = grants.iter().cloned().map(Some).collect();
    let confirmed = several.confirm()?;
    let held: Vec<Grant> = several.held.into_iter().flatten().collect();
    let are_the_same = held.iter().map(|grant| grant.token).eq(grants.iter().map(|grant| grant.token));
    Ok((confirmed && are_the_same).then_some(held))
}

struct MultiAcquire<'a, 'b> {
    wishes: &'a [StoredLock<'a>],
    /// So long the stores may be asked, on CLOCK_BOOTTIME.
    until: Duration,
    /// The applicant while it holds nothing of this, and while it does.
    alone: AcquireRequest,
    keeping: AcquireRequest,
    /// Somebody else says when the grants are to be confirmed.
    until_confirmed: bool,
    policy: WaitPolicy,
    interrupt: Option<BorrowedFd<'a>>,
    onlooker: &'a mut Onlooker<'b>,
    held: Vec<Option<Grant>>,
    evicted: Option<(usize, EndedGrant)>,
}

/// Why not all could be taken.
enum NotAcquired {
    /// That one, for which it was waited as long as it may be.
    Refused(usize, Response),
    /// That one, which was only tried.
    Tried(usize, Response),
    Interrupted,
}

impl<'a, 'b> MultiAcquire<'a, 'b> {
    fn new(
        wishes: &'a [StoredLock<'a>],
        request: &AcquireRequest,
        policy: &WaitPolicy,
        interrupt: Option<BorrowedFd<'a>>,
        on_wait: &'a mut Onlooker<'b>,
    ) -> MultiAcquire<'a, 'b> {
        let host = wishes[0].engine.host();
        let until = policy.limit.map_or(Duration::MAX, |limit| host.boottime().saturating_add(limit));
        let alone = AcquireRequest { provisional: request.provisional || wishes.len() > 1, ..request.clone() };
        let mut keeping = alone.clone();
        keeping.enclosing_grants.push(request.handle.proof());
        let held = wishes.iter().map(|_| None).collect();
        MultiAcquire {
            wishes,
            until,
            alone,
            keeping,
            until_confirmed: request.provisional,
            policy: *policy,
            interrupt,
            onlooker: on_wait,
            held,
            evicted: None,
        }
    }

    fn bound(&self, until: Option<Duration>) {
        self.wishes.iter().for_each(|wish| wish.engine.store().set_deadline(until));
    }

    fn run(&mut self) -> Result<AcquireAllResult> {
        let host = self.wishes[0].engine.host();
        let began = host.boottime();
        let mut first = 0;
        for round in 0.. {
            let spent = host.boottime().saturating_sub(began);
            let rest = WaitPolicy { limit: self.policy.limit.map(|limit| limit.saturating_sub(spent)), ..self.policy };
            let not = match round {
                MOST_ROUNDS.. => self.ordered_phase(began)?,
                0 if self.are_one_change() => self.take_together(self.until_confirmed)?,
                _ => self.optimistic_phase(first, &rest)?,
            };
            match not {
                None if self.until_confirmed || self.confirm()? => {
                    let grants = self.held.iter_mut().filter_map(Option::take).collect();
                    return Ok(AcquireAllResult::Granted(grants, self.evicted.take()));
                }
                None => {}
                Some(NotAcquired::Interrupted) => return Ok(AcquireAllResult::Interrupted),
                Some(NotAcquired::Tried(at, Response::Busy(_))) if !rest.is_none() => first = at,
                Some(NotAcquired::Tried(at, response) | NotAcquired::Refused(at, response)) => {
                    return Ok(AcquireAllResult::Refused(at, response));
                }
            }
            self.release()?;
        }
        unreachable!("the rounds have no end")
    }

    /// Waits for one with nothing else in hand, then tries the others.
    fn optimistic_phase(&mut self, first: usize, policy: &WaitPolicy) -> Result<Option<NotAcquired>> {
        if let Some(not) = self.take(first, policy, false)? {
            return Ok(Some(not));
        }
        self.try_all_but(Some(first))
    }

    /// Takes all but this one without waiting; or all of them, where that is one change.
    fn try_all_but(&mut self, one: Option<usize>) -> Result<Option<NotAcquired>> {
        if self.are_one_change() {
            return self.take_together(self.until_confirmed);
        }
        for at in (0..self.wishes.len()).filter(|at| Some(*at) != one) {
            if let Some(not) = self.take(at, &WaitPolicy::NONE, true)? {
                return Ok(Some(not));
            }
        }
        Ok(None)
    }

    /// Whether all of them are in one store, which can change them as one.
    fn are_one_change(&self) -> bool {
        let engine = self.wishes[0].engine;
        self.wishes.iter().all(|wish| std::ptr::eq(wish.engine, engine)) && engine.changes_at_once(self.wishes.len())
    }

    /// Takes all of them by one change, whichever of them are held already; for good, unless that is to come later.
    fn take_together(&mut self, provisional: bool) -> Result<Option<NotAcquired>> {
        let names: Vec<&[u8]> = self.wishes.iter().map(|wish| wish.name).collect();
        let held: Vec<bool> = self.held.iter().map(Option::is_some).collect();
        let confirming = self.until_confirmed && !provisional;
        let request =
            AcquireRequest { provisional, confirming, invocation: self.called_to_try(), ..self.keeping.clone() };
        let give_up_at = self.until.saturating_add(CANCEL_GRACE);
        let engine = self.wishes[0].engine;
        let limit = self.policy.limit.map(|_| self.until.saturating_sub(engine.host().boottime()));
        let rest = WaitPolicy { limit, ..self.policy };
        let mut on_wait = |waiting: &Waiting<'_>| (self.onlooker)(0, waiting);
        let mut take = || engine.acquire_batch(&names, &request, &held, give_up_at);
        let together = engine.when_reached(names[0], &rest, self.interrupt, &mut on_wait, &mut take)?;
        let Some(together) = together else { return Ok(Some(NotAcquired::Interrupted)) };
        match together {
            Batch::Refused(at, response) => Ok(Some(NotAcquired::Tried(at, response))),
            Batch::Done(outcomes) => {
                let (grants, evicted) = batch::granted(outcomes);
                self.held = grants.into_iter().map(Some).collect();
                self.evicted = evicted.or(self.evicted.take());
                Ok(None)
            }
        }
    }

    /// Whose caller may be in our own way where we only try. Where we are willing to wait, that is seen better while we do.
    fn called_to_try(&self) -> Option<Invocation> {
        self.alone.invocation.filter(|_| self.policy.is_none())
    }

    /// Waits for each in order, keeping those before.
    fn ordered_phase(&mut self, began: Duration) -> Result<Option<NotAcquired>> {
        for at in 0..self.wishes.len() {
            let spent = self.wishes[0].engine.host().boottime().saturating_sub(began);
            let rest = WaitPolicy { limit: self.policy.limit.map(|limit| limit.saturating_sub(spent)), ..self.policy };
            if let Some(not) = self.take(at, &rest, at > 0)? {
                return Ok(Some(not));
            }
        }
        // That of the first may have been lost meanwhile.
        if self.until_confirmed { self.try_all_but(None) } else { Ok(None) }
    }

    fn take(&mut self, at: usize, policy: &WaitPolicy, keeping: bool) -> Result<Option<NotAcquired>> {
        let StoredLock { engine, name } = self.wishes[at];
        let request = if keeping { &self.keeping } else { &self.alone };
        let called = if policy.is_none() { self.called_to_try() } else { request.invocation };
        let applicant = &AcquireRequest { invocation: called, ..request.clone() };
        let (on_wait, wishes, held) = (&mut *self.onlooker, self.wishes, &mut self.held);
        let taken = engine.acquire(name, applicant, policy, self.interrupt, &mut |waiting| {
            let kept = wishes.iter().zip(&mut *held).filter_map(|(wish, held)| Some((wish, held.as_mut()?)));
            let soon = kept
                .filter_map(|(StoredLock { engine, name }, grant)| engine.extend_if_short(name, applicant, grant))
                .min();
            [on_wait(at, waiting), soon].into_iter().flatten().min()
        });
        engine.store().set_deadline(Some(self.until));
        match taken? {
            AcquireResult::Interrupted => Ok(Some(NotAcquired::Interrupted)),
            AcquireResult::Answer(Response::Granted(grant, evicted)) => {
                self.held[at] = Some(grant);
                self.evicted = evicted.map(|ending| (at, ending)).or(self.evicted.take());
                Ok(None)
            }
            AcquireResult::Answer(response) if policy.is_none() => Ok(Some(NotAcquired::Tried(at, response))),
            AcquireResult::Answer(outcome) => Ok(Some(NotAcquired::Refused(at, outcome))),
        }
    }

    /// For good: until now each grant depended on the waiting process, so that none outlives it alone; and a wait for the
    /// last does not eat the lease of the first. `false`: one was lost meanwhile.
    fn confirm(&mut self) -> Result<bool> {
        if self.wishes.len() == 1 {
            return if self.until_confirmed { self.confirm_each() } else { Ok(true) };
        }
        if self.are_one_change() {
            let is_for_good = |held: &Option<Grant>| held.as_ref().is_some_and(|grant| grant.provisional.is_none());
            return Ok(self.held.iter().all(is_for_good) || self.take_together(false)?.is_none());
        }
        // Where the grants end with this process anyway, it need not be said that they do so together.
        if !self.alone.owner_outlives_process {
            return self.confirm_each();
        }
        let proof = self.alone.handle.proof();
        let durability = self.alone.claim.as_ref().map_or(Durability::Volatile, |_| Durability::Durable);
        let mut decided = Ok(true);
        for (engine, names) in self.stores() {
            decided = decided.and_then(|so_far| Ok(so_far && engine.commit_all(&proof, &names, durability)?));
        }
        let confirmed = decided.and_then(|decided| Ok(decided && self.confirm_each()?));
        for (engine, _) in self.stores() {
            let forgotten = engine.remove_commit_record(&proof);
            // A decision that was carried out misleads nobody; `gc` removes it.
            if !matches!(confirmed, Ok(true)) {
                forgotten?;
            }
        }
        confirmed
    }

    fn confirm_each(&mut self) -> Result<bool> {
        for (StoredLock { engine, name }, held) in self.wishes.iter().zip(&mut self.held) {
            match engine.confirm(name, &self.alone)? {
                Some(grant) => *held = Some(grant),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The stores in which several grants depend on us. Who is killed while he decides may have decided for some only.
    fn stores(&self) -> Vec<(&Engine, Vec<&[u8]>)> {
        let mut stores: Vec<(&Engine, Vec<&[u8]>)> = Vec::new();
        for (StoredLock { engine, name }, held) in self.wishes.iter().zip(&self.held) {
            // What is claimed under the same id already has another proof.
            if held.as_ref().is_none_or(|grant| grant.proof != self.alone.handle.proof()) {
                continue;
            }
            match stores.iter_mut().find(|(known, _)| std::ptr::eq(*known, *engine)) {
                Some((_, names)) => names.push(name),
                None => stores.push((engine, vec![name])),
            }
        }
        stores.retain(|(_, names)| names.len() > 1);
        stores
    }

    fn release(&mut self) -> Result<()> {
        let mut done = Ok(());
        for (StoredLock { engine, name }, held) in self.wishes.iter().zip(&mut self.held).rev() {
            if held.take().is_some() {
                let credentials = engine.supervisor(self.alone.handle.proof())?;
                done = done.and(engine.apply(name, &Request::Release(credentials)).map(drop));
            }
        }
        done
    }
}
