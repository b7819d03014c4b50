//! Changes of several names by one commit, if the store supports batches. No crash can split a batch, so it needs no
//! provisional grants and no commit record.

use std::time::Duration;

use super::commit::{Committed, RecordUpdate};
use super::{AcquireRequest, Engine, VersionedRecord, WaitPolicy};
use crate::error::Result;
use crate::lock::{Acquire, AcquireStep, EndedGrant, Grant, Lifetime, Record, Refusal, Transition};
use crate::store::Version;

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
    /// Returns true if the store can change this number of names by one commit.
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
        let mut race = self.race(names[0]).until(give_up_at);
        // A caller that only tries waits for no process, and other waiters depend on a caller that holds a name.
        race.has_priority = true;
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
            if let Committed::Done(version) = self.commit_update(&swapped, &[], None)? {
                return Ok(Batch::Done(answers, Some(version)));
            }
            if !race.backoff()? {
                return Ok(Batch::Outrun(looks.swap_remove(0).0.1.holders));
            }
        }
    }
}

fn swapped<'a, R>((version, before): &'a VersionedRecord, step: &'a Transition<R>) -> Option<RecordUpdate<'a>> {
    match step {
        Transition::Write { record, wake, over, .. } => {
            Some(RecordUpdate { expect: *version, before, record, wake, over })
        }
        Transition::Done(_) => None,
    }
}
