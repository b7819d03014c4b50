//! Commits and their effects: the only place in which the engine changes a store.
//!
//! One commit can change several names, if the store supports batches. No crash can split a batch, so it needs no
//! provisional grants and no commit record.

use std::time::Duration;

use super::history::Remark;
use super::{AcquireRequest, Engine, VersionedRecord, WaitPolicy};
use crate::error::{Error, ErrorKind, Result};
use crate::host::WakeAddress;
use crate::lock::{
    self, Acquire, AcquireStep, CommitRecord, EndReason, EndedGrant, Grant, HandleHash, Lease, Lifetime, Record,
    Refusal, Request, Transition, Waiter,
};
use crate::store::{CommitResult, Durability, LinesOfHistory, Scope, Version, Write, WriteOptions, WriteSet};

pub(super) struct RecordUpdate<'a> {
    /// The version that the store must have; `None` if it must have no record.
    pub(super) expect: Option<Version>,
    pub(super) before: &'a Record,
    pub(super) record: &'a Record,
    pub(super) wake: &'a [HandleHash],
    /// Leases whose expiry justifies the replacement.
    pub(super) expired: &'a [Lease],
}

pub(super) enum Committed {
    Done(Version),
    /// Another writer committed first. The only record as it is, if the store returned it.
    Conflict(Option<VersionedRecord>),
}

impl Engine {
    pub(super) fn commit_beside(
        &self,
        name: &[u8],
        expect: Option<&Version>,
        body: Option<&[u8]>,
        options: WriteOptions,
    ) -> Result<CommitResult> {
        let set = WriteSet::from(Write { name, expect: expect.copied(), body, options });
        let done = self.store.commit(&set)?;
        if done.is_done() {
            self.store.finish(&set);
        }
        Ok(done)
    }

    /// Returns the version of the record under `name`, even if its bytes cannot be read.
    pub(super) fn version(&self, name: &[u8]) -> Result<Option<Version>> {
        match self.store.read(name) {
            Err(error) => error.version().map_or(Err(error), |version| Ok(Some(version))),
            Ok(stored) => Ok(stored.map(|stored| stored.version)),
        }
    }

    /// Commits records and auxiliary objects as one change, wakes the waiters concerned and logs the ended grants.
    pub(super) fn commit_update(
        &self,
        records: &[RecordUpdate<'_>],
        beside: &[Write<'_>],
        remark: Remark<'_>,
    ) -> Result<Committed> {
        let mut bodies = Vec::new();
        for RecordUpdate { record, .. } in records {
            let body = (!record.is_removable()).then(|| lock::encode(record));
            self.check_size(&record.name, body.as_deref())?;
            bodies.push(body);
        }
        // The next holder may end before this process runs again. Its end must not seem to come first.
        let ended_at = self.host.wall();
        let endings = || {
            let of = |update: &RecordUpdate<'_>| self.endings(update.before, update.record, remark, ended_at);
            records.iter().flat_map(of).collect()
        };
        let mut set = WriteSet {
            changes: beside.to_vec(),
            history: LinesOfHistory::new(endings),
            limits: self.remembers,
            ..WriteSet::default()
        };
        for (update, body) in records.iter().zip(&bodies) {
            let (name, durability) = (&update.record.name, durability(update.before, update.record));
            let options = WriteOptions { durability, mode: None };
            set.changes.push(Write { name, expect: update.expect, body: body.as_deref(), options });
            self.add_effects(&mut set, update);
        }
        let version = match self.store.commit(&set)? {
            CommitResult::Done(version) => version,
            CommitResult::Conflict(found) => {
                let only = if let ([update], []) = (records, beside) { Some(update) } else { None };
                let found =
                    only.zip(found).and_then(|(only, found)| self.record_of(&only.record.name, Some(found)).ok());
                return Ok(Committed::Conflict(found));
            }
        };
        // A command whose grant was broken should end before the next one starts.
        records.iter().for_each(|update| self.wake_supervisors(update.before, update.record));
        self.wake_waiters(records);
        self.store.finish(&set);
        for RecordUpdate { before, record, .. } in records {
            self.remove_witnesses(before, record);
            // Leftovers of a failed removal do no harm, and the record is committed already.
            let _ = self.remove_leftovers(before, record);
        }
        Ok(Committed::Done(version))
    }

    fn add_effects<'a>(&self, set: &mut WriteSet<'a>, update: &RecordUpdate<'a>) {
        let RecordUpdate { before, record, wake, expired, .. } = update;
        set.expired.extend(*expired);
        set.ended.extend(before.leases().filter(|lease| !record.leases().any(|other| other == *lease)));
        set.closed.extend(gone(&before.waiters, record).map(|waiter| waiter.proof.channel()));
        for proof in *wake {
            let waiter = before.waiter(proof);
            if waiter.is_none_or(|waiter| !self.can_wake(waiter)) {
                set.wake.push((proof.channel(), waiter.and_then(|waiter| waiter.lease.as_ref())));
            }
        }
    }

    /// Wakes the next holders, which start while the store cleans up and writes the history.
    fn wake_waiters(&self, records: &[RecordUpdate<'_>]) {
        let mut is_awake = false;
        for proof in records.iter().flat_map(|update| update.wake) {
            is_awake |= self.host.wake(WakeAddress::Waiter(proof));
        }
        if is_awake {
            self.host.give_way();
        }
    }

    /// Returns true if this process can wake a waiter directly. Otherwise only the store can: the waiter runs on another
    /// host or in another network namespace. Two copies of one virtual machine seem to be one host, so a waiter on the
    /// other copy gets no wake-up and notices the change at its next look. An additional wake-up through the store would
    /// add a write to every handover.
    fn can_wake(&self, waiter: &Waiter) -> bool {
        let there = &waiter.owner.domain;
        self.host.domain().is_ok_and(|here| here.boot == there.boot && here.net == there.net)
    }

    /// Fails if the record is too large to be read again.
    fn check_size(&self, name: &[u8], body: Option<&[u8]>) -> Result<()> {
        if body.is_none_or(|body| body.len() <= lock::MOST_BYTES) {
            return Ok(());
        }
        let what = format!("{} has no room for so many holders", self.store.describe(name));
        Err(Error::new(ErrorKind::System, what, "nothing was changed; try again when some of them are gone"))
    }

    pub(super) fn wake_supervisor(&self, proof: &HandleHash) {
        self.host.wake(WakeAddress::Supervisor(proof));
    }

    /// Notifies the supervisors and keepers of ended grants. A supervisor knows its own releases and sees its command die.
    /// A break is told for every grant, because a caller without either may wait for the file of its lock.
    fn wake_supervisors(&self, before: &Record, after: &Record) {
        let is_heard = |grant: &Grant| grant.owner.supervisor.is_some() || grant.lifetime.lease().is_some();
        let is_over = |grant: &&Grant| after.holder(&grant.proof).is_none();
        for grant in before.holders.iter().filter(is_over) {
            let ending = after.ended_grants.iter().rev().find(|ending| ending.grant.proof == grant.proof);
            let is_known = |ending: &EndedGrant| match ending.reason {
                EndReason::Died => true,
                EndReason::Released => ending.grant.owner.supervisor != grant.owner.supervisor,
                EndReason::Expired | EndReason::Broken => false,
            };
            let is_broken = ending.is_some_and(|ending| ending.reason == EndReason::Broken);
            if is_broken || (is_heard(grant) && !ending.is_some_and(is_known)) {
                self.wake_supervisor(&grant.proof);
            }
        }
    }

    /// Removes auxiliary objects that the new record no longer needs.
    fn remove_leftovers(&self, before: &Record, now: &Record) -> Result<()> {
        let fetched = self.remove_pages(before, now)?;
        self.remove_old_value(before, now)?;
        for grant in before.holders.iter().filter(|grant| now.waiter(&grant.proof).is_some()) {
            self.remove_auxiliary(&CommitRecord::key(&grant.proof), Durability::Volatile)?;
        }
        let fetched: Vec<&Waiter> = gone(&fetched, now).collect();
        fetched.iter().for_each(|waiter| self.remove_witness(&now.name, &waiter.proof));
        if !fetched.is_empty() {
            let closed = fetched.iter().map(|waiter| waiter.proof.channel()).collect();
            let set = WriteSet { closed, ..WriteSet::default() };
            // A store behind ssh(1) carries the effects out where it is, with the commit.
            self.store.commit(&set)?;
            self.store.finish(&set);
        }
        gone(&before.waiters, now).chain(fetched).try_for_each(|waiter| self.retract(&now.name, waiter))
    }
}

/// Returns those of these waiters that neither wait nor hold any more. A waiter that was granted the lock retracts its
/// published edges itself.
fn gone<'a>(waiters: &'a [Waiter], now: &'a Record) -> impl Iterator<Item = &'a Waiter> {
    waiters.iter().filter(|waiter| !now.has_entry(&waiter.proof))
}

/// Returns the durability of a commit from one record to another. Values, claims and the runs of jobs must survive a power
/// cut, and a power cut must not tear a record that contains them.
fn durability(before: &Record, now: &Record) -> Durability {
    let claims = |record: &Record| -> Vec<(HandleHash, bool)> {
        let claims = record.holders.iter().filter(|grant| grant.claim.is_some());
        claims.map(|grant| (grant.proof, grant.provisional.is_some())).collect()
    };
    if before.value != now.value || before.job != now.job || claims(before) != claims(now) {
        Durability::Durable
    } else if now.value.is_some() || now.job.is_some() || !claims(now).is_empty() {
        Durability::Atomic
    } else {
        Durability::Volatile
    }
}

/// Result of an attempt to change several records.
pub(super) enum Batch<T, E> {
    /// All records are changed, or already were as required: the response for each of them, and the new version.
    Done(Vec<T>, Option<Version>),
    /// No record is changed, because of the one with this index.
    Refused(usize, E),
    /// No record is changed, because other writers won until the deadline: the holders of the first name.
    Outrun(Vec<Grant>),
}

/// The grants of several names, each with the stale grant before it, or the refusal of the name with this index.
pub(super) type AcquiredBatch = std::result::Result<Vec<(Grant, Option<EndedGrant>)>, (usize, Refusal)>;

type Decide<'a, T, E> = dyn FnMut(usize, &Record) -> Result<Transition<std::result::Result<T, E>>> + 'a;

impl Engine {
    pub(super) fn changes_at_once(&self, names: usize) -> bool {
        (2..=self.store.abilities().changes).contains(&names)
    }

    /// Acquires all these names or none, without waiting; some may be granted provisionally already (`held`). The
    /// grants are permanent, unless the request is provisional.
    pub(super) fn acquire_batch(
        &self,
        names: &[&[u8]],
        request: &AcquireRequest,
        held: &[bool],
        give_up_at: Duration,
    ) -> Result<AcquiredBatch> {
        let scope = self.store.scope();
        names.iter().for_each(|name| self.leave_witness(scope, name, &request.handle.proof()));
        let mut terms = self.acquire_terms(scope, request, &WaitPolicy::NONE);
        let mut taken = self.try_batch(names, &terms, held, give_up_at)?;
        if let Some(called) = request.invocation.filter(|_| taken.is_err()) {
            // The holder may be a process that waits for this one.
            terms.entry.blocked_processes = self.host.blocked_callers(&called, false);
            taken = self.try_batch(names, &terms, held, give_up_at)?;
        }
        if taken.is_err() {
            let free = names.iter().zip(held).filter(|(_, held)| !**held);
            free.for_each(|(name, _)| self.remove_witness(name, &request.handle.proof()));
        }
        Ok(taken)
    }

    fn try_batch(
        &self,
        names: &[&[u8]],
        terms: &Acquire,
        held: &[bool],
        give_up_at: Duration,
    ) -> Result<AcquiredBatch> {
        // Each grant has its own lifetime, because each may be released alone.
        let mut begun: Vec<Option<Lifetime>> = vec![None; names.len()];
        let mut decide = |at: usize, record: &Record| {
            let terms = Acquire { refuse_stale: terms.refuse_stale && !held[at], ..terms.clone() };
            let mut step = self.decide(record, &terms, None)?;
            if let Transition::Write { record, response: AcquireStep::Granted(grant, _), .. } = &mut step {
                self.begin_grant(&terms.entry.lifetime, &mut begun[at], record, grant)?;
            }
            Ok(step.map(|step| match step {
                AcquireStep::Granted(grant, before) => Ok((*grant, before.map(|ending| *ending))),
                AcquireStep::Refused(refusal) => Err(refusal),
                // The caller does not queue.
                AcquireStep::Again | AcquireStep::Enqueue(_) | AcquireStep::Wait { .. } => {
                    Err(Refusal::Busy(record.holders.clone()))
                }
            }))
        };
        Ok(match self.commit_batch(names, &mut decide, give_up_at)? {
            Batch::Done(mut grants, version) => {
                for (grant, _) in &mut grants {
                    grant.token = grant.token.or(version.map(|version| version.number));
                }
                Ok(grants)
            }
            Batch::Refused(at, refusal) => Err((at, refusal)),
            Batch::Outrun(holders) => Err((0, Refusal::Busy(holders))),
        })
    }

    /// Decides about each name, and commits all changes as one batch unless one is refused.
    pub(super) fn commit_batch<T: Clone, E: Clone>(
        &self,
        names: &[&[u8]],
        decide: &mut Decide<'_, T, E>,
        give_up_at: Duration,
    ) -> Result<Batch<T, E>> {
        let mut retry = self.cas_retry(names[0]).until(give_up_at);
        // A caller that only tries waits for no process, and other waiters depend on a caller that holds a name.
        retry.has_priority = true;
        loop {
            let mut looks: Vec<(VersionedRecord, Transition<_>)> = Vec::new();
            let mut answers = Vec::new();
            for (at, name) in names.iter().enumerate() {
                let (version, record) = self.read(name)?;
                let step = decide(at, &record)?;
                match step.response().clone() {
                    Ok(answer) => answers.push(answer),
                    Err(refusal) => return Ok(Batch::Refused(at, refusal)),
                }
                looks.push(((version, record), step));
            }
            let swapped: Vec<RecordUpdate<'_>> = looks.iter().filter_map(|(look, step)| swapped(look, step)).collect();
            if swapped.is_empty() {
                return Ok(Batch::Done(answers, None));
            }
            if let Committed::Done(version) = self.commit_update(&swapped, &[], Remark::default())? {
                return Ok(Batch::Done(answers, Some(version)));
            }
            if !retry.backoff()? {
                return Ok(Batch::Outrun(looks.swap_remove(0).0.1.holders));
            }
        }
    }
}

fn swapped<'a, R>((version, before): &'a VersionedRecord, step: &'a Transition<R>) -> Option<RecordUpdate<'a>> {
    match step {
        Transition::Write { record, wake, expired, .. } => {
            Some(RecordUpdate { expect: *version, before, record, wake, expired })
        }
        Transition::Done(_) => None,
    }
}

/// Maximum number of consecutive tries lost to other writers before the retries fail with an error.
const MOST_LOST: u32 = 50_000;

/// Number of tries that may be lost without a rival, as when a directory moves; the deadline does not limit them.
const FEW: u32 = 3;

/// Maximum pause, which leaves room for some dozens of simultaneous tries.
const LONGEST: Duration = Duration::from_millis(250);

/// State of the tries to change one record, which other processes may change between our read and our commit.
///
/// Each conflict has a winner, so all processes together make progress. On a local store a lost try costs next to
/// nothing, and the next try follows at once. On a shared store a try is several exchanges with the store. Of forty
/// simultaneous tries, thirty-nine are in vain and delay the holder that all of them wait for. So a loser pauses for a
/// random time within a span that doubles each time. A release, renewal or confirmation has a single caller and
/// priority, so it does not pause. A mere try does not pause either: its next read most likely reports busy.
pub(crate) struct CasRetry<'a> {
    engine: &'a Engine,
    pub(super) key: &'a [u8],
    lost: u32,
    /// Start of this try on CLOCK_BOOTTIME.
    began: Duration,
    /// Time on CLOCK_BOOTTIME after which no further try follows.
    deadline: Duration,
    pub(super) has_priority: bool,
}

impl Engine {
    pub(crate) fn cas_retry<'a>(&'a self, key: &'a [u8]) -> CasRetry<'a> {
        let began = self.host.boottime();
        CasRetry { engine: self, key, lost: 0, began, deadline: Duration::MAX, has_priority: false }
    }

    pub(super) fn cas_retry_for<'a, R: Request>(&'a self, key: &'a [u8]) -> CasRetry<'a> {
        CasRetry { has_priority: R::HAS_PRIORITY, ..self.cas_retry(key) }
    }
}

impl CasRetry<'_> {
    pub(super) fn until(self, give_up_at: Duration) -> Self {
        CasRetry { deadline: give_up_at, ..self }
    }

    /// Counts a lost try and pauses if necessary. Returns true if there is time for another read, now.
    /// Fails if the number of lost tries exceeds any plausible number of rivals.
    pub(crate) fn backoff(&mut self) -> Result<bool> {
        self.lost += 1;
        if self.lost >= MOST_LOST {
            let what = format!("{} changes faster than it can be followed", self.engine.store().describe(self.key));
            return Err(Error::new(ErrorKind::System, what, "see what else is at work there, then try again"));
        }
        let host = self.engine.host();
        let now = host.boottime();
        if !self.has_priority && self.engine.store().scope() == Scope::Shared {
            let span = now.saturating_sub(self.began).saturating_mul(1 << self.lost.min(8)).min(LONGEST);
            let drawn = host.random()?.into_iter().fold(0, |drawn, byte| drawn ^ byte);
            let pause = span.mul_f64(f64::from(drawn) / 255.0).min(self.deadline.saturating_sub(now));
            host.sleep(pause);
        }
        self.began = host.boottime();
        Ok(self.began < self.deadline || self.lost < FEW)
    }
}

#[cfg(test)]
mod tests;
