//! Acquisition of several names: all of them or none.
//!
//! All calls acquire names in one order, and keep each name while they wait for the next, so they form no cycle. Each
//! queue is first come, first served, so every call gets all names in the end. Until then the grants are provisional:
//! each one depends on the waiting process, so none outlives it alone. The call extends their leases while it waits, so
//! the wait for the last name uses up no lease. Then it confirms all grants. A store that can change so many records at
//! once grants free names by one commit, and confirms all names by one commit.

use std::time::Duration;

use super::{AcquireRequest, AcquireResult, EndsWith, Engine, WaitPolicy, Waiting};
use crate::error::Result;
use crate::lock::{CommitRecord, EndedGrant, Grant, Phase, Refusal};
use crate::signals::Interrupt;
use crate::store::{Durability, SignalsEndCalls, StoreDeadline};

#[derive(Clone, Copy)]
pub struct StoredLock<'a> {
    pub engine: &'a Engine,
    pub name: &'a [u8],
}

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
pub type OnWaitForOne<'a> = dyn FnMut(usize, &Waiting<'_>) -> Option<Duration> + 'a;

/// Acquires all locks, in an order that is the same for every caller, or none.
/// Fails if a store cannot be read or written. The call then releases every grant that it can; the others end with the
/// caller.
pub fn acquire_all(
    locks: &[StoredLock<'_>],
    request: &AcquireRequest,
    policy: &WaitPolicy,
    interrupt: Option<&dyn Interrupt>,
    on_wait: &mut OnWaitForOne<'_>,
) -> Result<AcquireAllResult> {
    if let [StoredLock { engine, name }] = locks {
        let taken = engine.acquire(name, request, policy, interrupt, &mut |waiting| on_wait(0, waiting))?;
        return Ok(match taken {
            AcquireResult::Granted(grant, evicted) => {
                AcquireAllResult::Granted(vec![*grant], evicted.map(|ending| (0, *ending)))
            }
            AcquireResult::Refused(refusal) => AcquireAllResult::Refused(0, refusal),
            AcquireResult::Interrupted => AcquireAllResult::Interrupted,
        });
    }
    let mut several = MultiAcquire::new(locks, request, policy, interrupt, on_wait);
    let deadline = StoreDeadline::begin(Some(several.until));
    let calls = SignalsEndCalls::begin(interrupt.is_some());
    let mut taken = several.run();
    drop(calls);
    if taken.is_err() && locks[0].engine.is_interrupted(interrupt) {
        taken = Ok(AcquireAllResult::Interrupted);
    }
    if !matches!(taken, Ok(AcquireAllResult::Granted(..))) {
        if !matches!(taken, Ok(AcquireAllResult::Refused(..))) {
            // Entries that cannot be removed immediately end on their own.
            deadline.change(Some(locks[0].engine.host().boottime()));
        }
        if let Err(error) = several.release()
            && !matches!(taken, Ok(AcquireAllResult::Interrupted))
        {
            taken = Err(error);
        }
    }
    taken
}

struct MultiAcquire<'a, 'b> {
    locks: &'a [StoredLock<'a>],
    request: &'a AcquireRequest,
    /// Deadline of the wait and of the store calls on CLOCK_BOOTTIME.
    until: Duration,
    policy: WaitPolicy,
    interrupt: Option<&'a dyn Interrupt>,
    on_wait: &'a mut OnWaitForOne<'b>,
    /// True if the call has waited.
    waited: bool,
    held: Vec<Option<Grant>>,
    evicted: Option<(usize, EndedGrant)>,
}

impl<'a, 'b> MultiAcquire<'a, 'b> {
    fn new(
        locks: &'a [StoredLock<'a>],
        request: &'a AcquireRequest,
        policy: &WaitPolicy,
        interrupt: Option<&'a dyn Interrupt>,
        on_wait: &'a mut OnWaitForOne<'b>,
    ) -> MultiAcquire<'a, 'b> {
        let until = policy.end(locks[0].engine.host().boottime());
        let held = locks.iter().map(|_| None).collect();
        MultiAcquire { locks, request, until, policy: *policy, interrupt, on_wait, waited: false, held, evicted: None }
    }

    fn run(&mut self) -> Result<AcquireAllResult> {
        loop {
            if let Some(end) = self.take_all()? {
                return Ok(end);
            }
            if self.is_late() {
                return Ok(AcquireAllResult::Refused(0, Refusal::Busy(Vec::new())));
            }
            // Each step finds what an earlier try has done, so all of them may be repeated.
            let (StoredLock { engine, name }, rest) = (self.locks[0], self.rest_of_policy());
            let kept = engine.outlast_outages(name, &rest, self.interrupt, &mut |_| None, &mut || self.keep_all())?;
            let Some(kept) = kept else { return Ok(AcquireAllResult::Interrupted) };
            if kept && self.is_late() {
                return Ok(AcquireAllResult::Refused(0, Refusal::Busy(Vec::new())));
            }
            if kept {
                let grants = self.held.iter_mut().filter_map(Option::take).collect();
                return Ok(AcquireAllResult::Granted(grants, self.evicted.take()));
            }
            // A grant was lost during the wait for a later name, for example to `unlock --force`.
            self.release()?;
        }
    }

    /// Returns true if the wait is over. This process may have been stopped since its last grant.
    fn is_late(&self) -> bool {
        self.waited && self.rest_of_policy().limit == Some(Duration::ZERO)
    }

    /// Acquires all names, or returns the end of the attempt.
    fn take_all(&mut self) -> Result<Option<AcquireAllResult>> {
        for at in 0..self.locks.len() {
            let rest = self.rest_of_policy();
            if let Some(end) = self.take(at, &rest)? {
                return Ok(Some(end));
            }
        }
        Ok(None)
    }

    /// Makes sure that the call still has all grants: confirms them, or, if a later call of [`confirm_all`] does that,
    /// tries each name again. Returns false if it has not.
    fn keep_all(&mut self) -> Result<bool> {
        if self.request.phase != Phase::Provisional {
            return self.confirm();
        }
        for at in 0..self.locks.len() {
            if self.take(at, &WaitPolicy::NONE)?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn rest_of_policy(&self) -> WaitPolicy {
        self.policy.rest(self.until, self.locks[0].engine.host().boottime())
    }

    /// Returns the request for a provisional grant beside those that the call has.
    fn request_beside_held(&self, only_tries: bool) -> AcquireRequest {
        let mut request = AcquireRequest { phase: Phase::Provisional, ..self.request.clone() };
        if self.held.iter().any(Option::is_some) {
            request.enclosing_grants.push(request.handle.proof());
        }
        // If the caller does not wait, the holder may be its own caller. A wait detects that more reliably.
        if only_tries && !self.policy.is_none() {
            request.invocation = None;
        }
        request
    }

    /// Acquires one name provisionally, and extends the leases of the grants that the call has meanwhile.
    fn take(&mut self, at: usize, policy: &WaitPolicy) -> Result<Option<AcquireAllResult>> {
        let StoredLock { engine, name } = self.locks[at];
        let request = &self.request_beside_held(policy.is_none());
        let (on_wait, locks, held) = (&mut *self.on_wait, self.locks, &mut self.held);
        let waited = &mut self.waited;
        let taken = engine.acquire(name, request, policy, self.interrupt, &mut |waiting| {
            *waited = true;
            let mut next_call = None;
            for (StoredLock { engine, name }, grant) in locks.iter().zip(&mut *held) {
                let extended = grant.as_mut().and_then(|grant| engine.extend_if_short(name, request, grant));
                next_call = [next_call, extended].into_iter().flatten().min();
            }
            [on_wait(at, waiting), next_call].into_iter().flatten().min()
        });
        match taken? {
            AcquireResult::Interrupted => Ok(Some(AcquireAllResult::Interrupted)),
            AcquireResult::Granted(grant, evicted) => {
                self.hold(at, *grant, evicted.map(|ending| *ending));
                Ok(None)
            }
            AcquireResult::Refused(refusal) => Ok(Some(AcquireAllResult::Refused(at, refusal))),
        }
    }

    fn hold(&mut self, at: usize, grant: Grant, evicted: Option<EndedGrant>) {
        self.held[at] = Some(grant);
        self.evicted = evicted.map(|ending| (at, ending)).or(self.evicted.take());
    }
}

/// Confirms all provisional grants permanently, or none. Returns `None` if a grant was lost in the meantime. A new
/// grant has another token, which is of no use to a caller that knows the old one.
/// Fails if a store cannot be read or written. Some of the grants may be permanent then.
pub fn confirm_all(locks: &[StoredLock<'_>], request: &AcquireRequest, grants: &[Grant]) -> Result<Option<Vec<Grant>>> {
    let held = if let [StoredLock { engine, name }] = locks {
        engine.confirm(name, request)?.map(|grant| vec![grant])
    } else {
        let mut on_wait = |_: usize, _: &Waiting<'_>| None;
        let mut several = MultiAcquire::new(locks, request, &WaitPolicy::NONE, None, &mut on_wait);
        several.held = grants.iter().cloned().map(Some).collect();
        several.confirm()?.then(|| several.held.into_iter().flatten().collect())
    };
    let are_the_same =
        |held: &Vec<Grant>| held.iter().map(|grant| grant.token).eq(grants.iter().map(|grant| grant.token));
    Ok(held.filter(are_the_same))
}

impl MultiAcquire<'_, '_> {
    /// Makes the grants permanent. Returns `false` if a grant was lost in the meantime.
    fn confirm(&mut self) -> Result<bool> {
        // Grants that end with this process anyway need no commit record to end together.
        if self.request.ends_with != EndsWith::Owner {
            return self.confirm_each();
        }
        let proof = self.request.handle.proof();
        let durability = self.request.claim.as_ref().map_or(Durability::Volatile, |_| Durability::Durable);
        let mut decided = Ok(true);
        for (engine, names) in self.stores() {
            decided = decided.and_then(|so_far| Ok(so_far && engine.commit_all(&proof, &names, durability)?));
        }
        let confirmed = decided.and_then(|decided| Ok(decided && self.confirm_each()?));
        for (engine, _) in self.stores() {
            let forgotten = engine.remove_auxiliary(&CommitRecord::key(&proof), Durability::Volatile);
            // A commit record that was carried out does no harm; `gc` removes it.
            if !matches!(confirmed, Ok(true)) {
                forgotten?;
            }
        }
        confirmed
    }

    /// Makes each grant permanent by a commit of its own. Returns `false` if a grant was lost in the meantime.
    fn confirm_each(&mut self) -> Result<bool> {
        for (StoredLock { engine, name }, held) in self.locks.iter().zip(&mut self.held) {
            match engine.confirm(name, self.request)? {
                Some(grant) => *held = Some(grant),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Returns the stores with several grants of ours. A process killed during its commit may have decided for some.
    fn stores(&self) -> Vec<(&Engine, Vec<&[u8]>)> {
        let mut stores: Vec<(&Engine, Vec<&[u8]>)> = Vec::new();
        for (StoredLock { engine, name }, held) in self.locks.iter().zip(&self.held) {
            // A name that is claimed under the same id already has another handle hash.
            if held.as_ref().is_none_or(|grant| grant.proof != self.request.handle.proof()) {
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

    /// Releases all grants, the last one first. Tries each of them, even if an earlier release failed.
    fn release(&mut self) -> Result<()> {
        let mut done = Ok(());
        for (StoredLock { engine, name }, held) in self.locks.iter().zip(&mut self.held).rev() {
            if held.take().is_some() {
                done = done.and(engine.release(name, self.request.handle.proof()).map(drop));
            }
        }
        done
    }
}
