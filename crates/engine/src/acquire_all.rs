//! Acquisition of several names: all of them or none.
//!
//! All calls acquire names in one order, and keep each name while they wait for the next, so they form no cycle. Each
//! queue is first come, first served, so every call gets all names in the end. Until then the grants are provisional:
//! each one depends on the waiting process, so none outlives it alone. The call extends their leases while it waits, so
//! the wait for the last name uses up no lease. Then it confirms all grants: the commit of a commit record decides that
//! all of them stand, and a confirmation of each name follows.

use std::time::Duration;

use super::{AcquireRequest, AcquireResult, Engine, Progress, WaitPolicy};
use host::signals::Interrupt;
use lock::{CommitRecord, EndedGrant, Grant, Phase, Refusal, Result};
use store::{Call, Durability};

#[derive(Clone, Copy)]
pub struct StoredLock<'a> {
    pub engine: &'a Engine,
    pub name: &'a [u8],
}

/// Callback as in [`super::Engine::acquire`], with the index of the lock that the call waits for.
pub(crate) type OnWaitForOne<'a> = dyn FnMut(usize, &Progress<'_>) -> Option<Duration> + 'a;

/// Acquires all locks or none; every caller names them in the same order.
///
/// Fails if a store cannot be read or written. The call then releases every grant that it can; the others end with the
/// caller. It releases no part of a claim that a commit record may keep.
pub fn acquire_all(
    locks: &[StoredLock<'_>],
    request: &AcquireRequest,
    policy: &WaitPolicy,
    interrupt: Option<&dyn Interrupt>,
    on_wait: &mut OnWaitForOne<'_>,
) -> Result<AcquireResult> {
    if let [StoredLock { engine, name }] = locks {
        return engine.acquire(name, request, policy, interrupt, &mut |waiting| on_wait(0, waiting));
    }
    let mut several = MultiAcquire::new(locks, request, policy, interrupt, on_wait);
    several.call = Call { until: Some(several.until), interruptible: interrupt.is_some() };
    let mut ended = several.run();
    several.call.interruptible = false;
    if ended.is_err() && locks[0].engine.is_interrupted(interrupt) {
        ended = Ok(AcquireResult::Interrupted);
    }
    match ended {
        Ok(AcquireResult::Granted(..)) => return ended,
        Ok(AcquireResult::Refused(..)) => {}
        // Entries that cannot be removed immediately end on their own.
        Ok(AcquireResult::Interrupted) | Err(_) => several.call.until = Some(locks[0].engine.host().boottime()),
    }
    // Half of a claim would stay permanently, because a claim does not end with a process.
    if several.may_be_claimed {
        let hint = "the names may be claimed all the same; check each with `csalock lookup NAME`";
        return ended.map_err(|error| error.with_hint(hint.to_string()));
    }
    let released = several.release();
    if !matches!(ended, Ok(AcquireResult::Interrupted)) {
        released?;
    }
    ended
}

/// Confirms all provisional grants permanently, or none. Returns `None` if a grant was lost in the meantime. A new
/// grant has another token, which is of no use to a caller that knows the old one.
/// Fails if a store cannot be read or written. Some of the grants may be permanent then.
pub(crate) fn confirm_all(
    locks: &[StoredLock<'_>],
    request: &AcquireRequest,
    grants: &[Grant],
) -> Result<Option<Vec<Grant>>> {
    let mut on_wait = |_: usize, _: &Progress<'_>| None;
    let mut several = MultiAcquire::new(locks, request, &WaitPolicy::NONE, None, &mut on_wait);
    several.held = grants.iter().cloned().map(Some).collect();
    if !several.confirm()? {
        return Ok(None);
    }
    let held: Vec<Grant> = several.held.into_iter().flatten().collect();
    let are_the_same = held.iter().map(|grant| grant.token).eq(grants.iter().map(|grant| grant.token));
    Ok(are_the_same.then_some(held))
}

struct MultiAcquire<'a, 'b> {
    locks: &'a [StoredLock<'a>],
    request: &'a AcquireRequest,
    /// Deadline of the wait on CLOCK_BOOTTIME.
    until: Duration,
    /// Limits of calls of the stores outside of the waits for the names.
    call: Call,
    policy: WaitPolicy,
    interrupt: Option<&'a dyn Interrupt>,
    on_wait: &'a mut OnWaitForOne<'b>,
    waited: bool,
    held: Vec<Option<Grant>>,
    evicted: Option<(usize, EndedGrant)>,
    /// A commit record may keep claims of this call, and some of them may be confirmed.
    may_be_claimed: bool,
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
        let (call, held) = (locks[0].engine.call(), locks.iter().map(|_| None).collect());
        let (policy, waited, evicted) = (*policy, false, None);
        let may_be_claimed = false;
        MultiAcquire { locks, request, until, call, policy, interrupt, on_wait, waited, held, evicted, may_be_claimed }
    }

    fn run(&mut self) -> Result<AcquireResult> {
        loop {
            for at in 0..self.locks.len() {
                if let Some(end) = self.take(at, &self.rest_of_policy())? {
                    return Ok(end);
                }
            }
            if self.is_late() {
                return Ok(AcquireResult::Refused(0, Refusal::Busy(Vec::new())));
            }
            // Each step finds what an earlier try has done, so all of them may be repeated.
            let (StoredLock { engine, name }, rest) = (self.locks[0], self.rest_of_policy());
            let kept = engine.outlast_outages(name, &rest, self.interrupt, &mut |_| None, &mut |_| self.keep_all())?;
            match kept {
                None => return Ok(AcquireResult::Interrupted),
                Some(true) if self.is_late() => return Ok(AcquireResult::Refused(0, Refusal::Busy(Vec::new()))),
                Some(true) => {
                    let grants = self.held.iter_mut().filter_map(Option::take).collect();
                    return Ok(AcquireResult::Granted(grants, self.evicted.take()));
                }
                // A grant was lost during the wait for a later name, for example to `unlock --force`.
                Some(false) => self.release()?,
            }
        }
    }

    /// A wait may be over although the call has its grants: this process may have been stopped since the last one.
    fn is_late(&self) -> bool {
        self.waited && self.rest_of_policy().limit == Some(Duration::ZERO)
    }

    /// Confirms all grants, or tries each name again if a later call of [`confirm_all`] confirms. False if one is lost.
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

    /// Acquires one name provisionally, and extends the leases of the others. `None` if the call now has the name.
    fn take(&mut self, at: usize, policy: &WaitPolicy) -> Result<Option<AcquireResult>> {
        let mut request = AcquireRequest { phase: Phase::Provisional, ..self.request.clone() };
        if self.held.iter().any(Option::is_some) {
            request.entry.enclosing_grants.push(request.handle.proof());
        }
        // If the caller does not wait, the holder may be its own caller. A wait detects that more reliably.
        if policy.is_none() && !self.policy.is_none() {
            request.called = None;
        }
        let StoredLock { engine, name } = self.locks[at];
        let taken = engine.acquire(name, &request, policy, self.interrupt, &mut |waiting| {
            self.waited = true;
            let mut next_call = None;
            for (StoredLock { engine, name }, grant) in self.locks.iter().zip(&mut self.held) {
                let extended =
                    grant.as_mut().and_then(|grant| engine.during(waiting.call).extend_if_short(name, &request, grant));
                next_call = [next_call, extended].into_iter().flatten().min();
            }
            [(self.on_wait)(at, waiting), next_call].into_iter().flatten().min()
        });
        match taken? {
            AcquireResult::Granted(mut grants, evicted) => {
                self.held[at] = grants.pop();
                self.evicted = evicted.map(|(_, ending)| (at, ending)).or(self.evicted.take());
                Ok(None)
            }
            AcquireResult::Refused(_, refusal) => Ok(Some(AcquireResult::Refused(at, refusal))),
            AcquireResult::Interrupted => Ok(Some(AcquireResult::Interrupted)),
        }
    }

    /// Makes the grants permanent. Returns `false` if a grant was lost in the meantime.
    fn confirm(&mut self) -> Result<bool> {
        // Grants that end with this process anyway need no commit record to end together.
        if !self.request.outlives_process {
            return self.confirm_each();
        }
        let proof = self.request.handle.proof();
        let is_claim = self.request.entry.claim.is_some();
        let durability = if is_claim { Durability::Durable } else { Durability::Volatile };
        let stores = self.stores();
        self.may_be_claimed = is_claim && !stores.is_empty();
        let mut confirmed = Ok(true);
        for (engine, names) in &stores {
            confirmed = confirmed
                .and_then(|so_far| Ok(so_far && engine.during(self.call).commit_all(&proof, names, durability)?));
        }
        if let Ok(true) = confirmed {
            confirmed = self.confirm_each();
            // The commit record keeps the claims that are not confirmed yet.
            if confirmed.is_err() && self.may_be_claimed {
                return confirmed;
            }
        }
        for (engine, _) in stores {
            let forgotten = engine.during(self.call).remove_auxiliary(&CommitRecord::key(&proof), Durability::Volatile);
            // A commit record that was carried out does no harm; `gc` removes it.
            if !matches!(confirmed, Ok(true)) {
                forgotten?;
            }
        }
        self.may_be_claimed = false;
        confirmed
    }

    fn confirm_each(&mut self) -> Result<bool> {
        for (StoredLock { engine, name }, held) in self.locks.iter().zip(&mut self.held) {
            match engine.confirm(name, self.request)? {
                Some(grant) => *held = Some(grant),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The stores that have several grants of this call, and so need a commit record. No commit covers two stores: a
    /// kill between them leaves the grants of the first.
    fn stores(&self) -> Vec<(&'a Engine, Vec<&'a [u8]>)> {
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
                done = done.and(engine.during(self.call).release(name, self.request.handle.proof()).map(drop));
            }
        }
        done
    }
}
