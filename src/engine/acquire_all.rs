//! Acquisition of several names: all of them or none.
//!
//! A waiter for one name should not block the other names, which other callers could use meanwhile. So the call waits
//! for one name while it holds nothing else, then tries the others. If one of them is held, the call releases
//! everything and waits for that one. Here no call waits while it holds a lock, so these calls cannot form a cycle.
//!
//! Other callers might always be faster. After [`MOST_ROUNDS`] rounds the call acquires the names in their fixed order
//! and keeps each while it waits for the next. All calls use one order, so they form no cycle. Each queue is first
//! come, first served, so every caller gets all names in the end. The call extends kept leases meanwhile.

mod confirm;

use std::time::Duration;

use super::acquire::CANCEL_GRACE;
use super::{AcquireRequest, AcquireResult, Engine, WaitPolicy, Waiting};
use crate::error::Result;
use crate::host::Invocation;
use crate::lock::{EndedGrant, Grant, Refusal};
use crate::signals::Interrupt;
use crate::store::SignalsEndCalls;

/// Maximum number of rounds that end with the release of everything because one name was held.
const MOST_ROUNDS: usize = 3;

/// A lock name and the store that contains it.
#[derive(Clone, Copy)]
pub struct StoredLock<'a> {
    /// The engine of the store.
    pub engine: &'a Engine,
    /// The name of the lock.
    pub name: &'a [u8],
}

/// Result of an attempt to acquire several names.
#[derive(Debug)]
pub enum AcquireAllResult {
    /// The call holds all names: the grants in the order of the locks, and the last stale grant that was evicted, with
    /// its index. A provisional caller has yet to [confirm](confirm_all) them.
    Granted(Vec<Grant>, Option<(usize, EndedGrant)>),
    /// The call holds nothing, because of the name with this index.
    Refused(usize, Refusal),
    /// The call holds nothing, because of the interrupt; what the stores did not remove ends by itself.
    Interrupted,
}

/// Callback as in [`super::Engine::acquire`], with the index of the lock that the call waits for.
pub type Onlooker<'a> = dyn FnMut(usize, &Waiting<'_>) -> Option<Duration> + 'a;

/// Acquires all locks, in an order that is the same for every caller, or none.
/// Fails if a store cannot be read or written. The call then releases every grant that it can; the others end with the
/// caller.
pub fn acquire_all(
    locks: &[StoredLock<'_>],
    request: &AcquireRequest,
    policy: &WaitPolicy,
    interrupt: Option<&dyn Interrupt>,
    on_wait: &mut Onlooker<'_>,
) -> Result<AcquireAllResult> {
    let mut several = MultiAcquire::new(locks, request, policy, interrupt, on_wait);
    several.bound(Some(several.until));
    let calls = SignalsEndCalls::begin(interrupt.is_some());
    let mut taken = several.run();
    drop(calls);
    if taken.is_err() && locks[0].engine.is_interrupted(interrupt) {
        taken = Ok(AcquireAllResult::Interrupted);
    }
    if !matches!(taken, Ok(AcquireAllResult::Granted(..))) {
        if !matches!(taken, Ok(AcquireAllResult::Refused(..))) {
            // Entries that cannot be removed immediately end on their own.
            several.bound(Some(locks[0].engine.host().boottime()));
        }
        if let Err(error) = several.release()
            && !matches!(taken, Ok(AcquireAllResult::Interrupted))
        {
            taken = Err(error);
        }
    }
    several.bound(None);
    taken
}

/// Confirms all provisional grants permanently, or none. Returns `None` if a grant was lost in the meantime. A new
/// grant has another token, which is of no use to a caller that knows the old one.
/// Fails if a store cannot be read or written. Some of the grants may be permanent then.
pub fn confirm_all(locks: &[StoredLock<'_>], request: &AcquireRequest, grants: &[Grant]) -> Result<Option<Vec<Grant>>> {
    let mut on_wait = |_: usize, _: &Waiting<'_>| None;
    let mut several = MultiAcquire::new(locks, request, &WaitPolicy::NONE, None, &mut on_wait);
    several.held = grants.iter().cloned().map(Some).collect();
    let confirmed = several.confirm()?;
    let held: Vec<Grant> = several.held.into_iter().flatten().collect();
    let are_the_same = held.iter().map(|grant| grant.token).eq(grants.iter().map(|grant| grant.token));
    Ok((confirmed && are_the_same).then_some(held))
}

/// State of one attempt to acquire several names.
struct MultiAcquire<'a, 'b> {
    locks: &'a [StoredLock<'a>],
    /// Deadline of the wait and of the store calls on CLOCK_BOOTTIME.
    until: Duration,
    /// The request while the call holds none of the names, and the request while it holds some.
    alone: AcquireRequest,
    keeping: AcquireRequest,
    /// True if a later call of [`confirm_all`] confirms the grants.
    until_confirmed: bool,
    policy: WaitPolicy,
    interrupt: Option<&'a dyn Interrupt>,
    on_wait: &'a mut Onlooker<'b>,
    held: Vec<Option<Grant>>,
    evicted: Option<(usize, EndedGrant)>,
}

/// Reason why the call did not acquire all names.
enum NotAcquired {
    /// The call waited for this name as long as the policy allows.
    Refused(usize, Refusal),
    /// The call only tried this name, without waiting.
    Tried(usize, Refusal),
    Interrupted,
}

impl<'a, 'b> MultiAcquire<'a, 'b> {
    fn new(
        locks: &'a [StoredLock<'a>],
        request: &AcquireRequest,
        policy: &WaitPolicy,
        interrupt: Option<&'a dyn Interrupt>,
        on_wait: &'a mut Onlooker<'b>,
    ) -> MultiAcquire<'a, 'b> {
        let until = policy.end(locks[0].engine.host().boottime());
        let alone = AcquireRequest { provisional: request.provisional || locks.len() > 1, ..request.clone() };
        let mut keeping = alone.clone();
        keeping.enclosing_grants.push(request.handle.proof());
        let held = locks.iter().map(|_| None).collect();
        MultiAcquire {
            locks,
            until,
            alone,
            keeping,
            until_confirmed: request.provisional,
            policy: *policy,
            interrupt,
            on_wait,
            held,
            evicted: None,
        }
    }

    /// Limits the calls of all stores to this time on CLOCK_BOOTTIME.
    fn bound(&self, until: Option<Duration>) {
        self.locks.iter().for_each(|lock| lock.engine.store().set_deadline(until));
    }

    /// Runs rounds until all names are acquired and confirmed, or the attempt fails.
    fn run(&mut self) -> Result<AcquireAllResult> {
        let mut first = 0;
        for round in 0.. {
            let rest = self.rest_of_policy();
            let not = match round {
                MOST_ROUNDS.. => self.ordered_phase()?,
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
                Some(NotAcquired::Tried(at, Refusal::Busy(_))) if !rest.is_none() => first = at,
                Some(NotAcquired::Tried(at, refusal) | NotAcquired::Refused(at, refusal)) => {
                    return Ok(AcquireAllResult::Refused(at, refusal));
                }
            }
            self.release()?;
        }
        unreachable!("the rounds have no end")
    }

    /// Returns the policy with the time that is left of it.
    fn rest_of_policy(&self) -> WaitPolicy {
        self.policy.rest(self.until, self.locks[0].engine.host().boottime())
    }

    /// Waits for one name while it holds nothing else, then tries the others.
    fn optimistic_phase(&mut self, first: usize, policy: &WaitPolicy) -> Result<Option<NotAcquired>> {
        if let Some(not) = self.take(first, policy, false)? {
            return Ok(Some(not));
        }
        self.try_all_but(Some(first))
    }

    /// Acquires all names except this one without waiting; a store with batches acquires all of them at once.
    fn try_all_but(&mut self, one: Option<usize>) -> Result<Option<NotAcquired>> {
        if self.are_one_change() {
            return self.take_together(self.until_confirmed);
        }
        for at in (0..self.locks.len()).filter(|at| Some(*at) != one) {
            if let Some(not) = self.take(at, &WaitPolicy::NONE, true)? {
                return Ok(Some(not));
            }
        }
        Ok(None)
    }

    /// Returns true if all names are in one store that can commit them as one batch.
    fn are_one_change(&self) -> bool {
        let engine = self.locks[0].engine;
        self.locks.iter().all(|lock| std::ptr::eq(lock.engine, engine)) && engine.changes_at_once(self.locks.len())
    }

    /// Acquires all names by one batch, including those already held; permanently, unless `provisional` is set.
    fn take_together(&mut self, provisional: bool) -> Result<Option<NotAcquired>> {
        let names: Vec<&[u8]> = self.locks.iter().map(|lock| lock.name).collect();
        let held: Vec<bool> = self.held.iter().map(Option::is_some).collect();
        let confirming = self.until_confirmed && !provisional;
        let request =
            AcquireRequest { provisional, confirming, invocation: self.called_to_try(), ..self.keeping.clone() };
        let give_up_at = self.until.saturating_add(CANCEL_GRACE);
        let engine = self.locks[0].engine;
        let rest = self.rest_of_policy();
        let mut on_wait = |waiting: &Waiting<'_>| (self.on_wait)(0, waiting);
        let mut take = || engine.acquire_batch(&names, &request, &held, give_up_at);
        let together = engine.when_reached(names[0], &rest, self.interrupt, &mut on_wait, &mut take)?;
        let Some(together) = together else { return Ok(Some(NotAcquired::Interrupted)) };
        match together {
            Err((at, refusal)) => Ok(Some(NotAcquired::Tried(at, refusal))),
            Ok(grants) => {
                for (at, (grant, evicted)) in grants.into_iter().enumerate() {
                    self.hold(at, grant, evicted);
                }
                Ok(None)
            }
        }
    }

    /// Returns the invocation if the call only tries: its caller may be the holder. A wait detects that more reliably.
    fn called_to_try(&self) -> Option<Invocation> {
        self.alone.invocation.filter(|_| self.policy.is_none())
    }

    /// Waits for each name in order and keeps the earlier ones.
    fn ordered_phase(&mut self) -> Result<Option<NotAcquired>> {
        for at in 0..self.locks.len() {
            if let Some(not) = self.take(at, &self.rest_of_policy(), at > 0)? {
                return Ok(Some(not));
            }
        }
        // The grant of the first name may have been lost in the meantime.
        if self.until_confirmed { self.try_all_but(None) } else { Ok(None) }
    }

    /// Acquires one name; `keeping` is true while the call holds others, whose leases it extends meanwhile.
    fn take(&mut self, at: usize, policy: &WaitPolicy, keeping: bool) -> Result<Option<NotAcquired>> {
        let StoredLock { engine, name } = self.locks[at];
        let request = if keeping { &self.keeping } else { &self.alone };
        let called = if policy.is_none() { self.called_to_try() } else { request.invocation };
        let applicant = &AcquireRequest { invocation: called, ..request.clone() };
        let (on_wait, locks, held) = (&mut *self.on_wait, self.locks, &mut self.held);
        let taken = engine.acquire(name, applicant, policy, self.interrupt, &mut |waiting| {
            let mut next_call = None;
            for (StoredLock { engine, name }, grant) in locks.iter().zip(&mut *held) {
                let extended = grant.as_mut().and_then(|grant| engine.extend_if_short(name, applicant, grant));
                next_call = [next_call, extended].into_iter().flatten().min();
            }
            [on_wait(at, waiting), next_call].into_iter().flatten().min()
        });
        engine.store().set_deadline(Some(self.until));
        match taken? {
            AcquireResult::Interrupted => Ok(Some(NotAcquired::Interrupted)),
            AcquireResult::Granted(grant, evicted) => {
                self.hold(at, *grant, evicted.map(|ending| *ending));
                Ok(None)
            }
            AcquireResult::Refused(refusal) if policy.is_none() => Ok(Some(NotAcquired::Tried(at, refusal))),
            AcquireResult::Refused(refusal) => Ok(Some(NotAcquired::Refused(at, refusal))),
        }
    }

    fn hold(&mut self, at: usize, grant: Grant, evicted: Option<EndedGrant>) {
        self.held[at] = Some(grant);
        self.evicted = evicted.map(|ending| (at, ending)).or(self.evicted.take());
    }
}
