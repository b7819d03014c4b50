//! Changes of several names by one commit, if the store supports batches. No crash can split a batch, so it needs no
//! provisional grants and no commit record.

use std::time::Duration;

use super::commit::{RecordUpdate, with_token};
use super::{AcquireRequest, Engine, VersionedRecord, WaitPolicy};
use crate::error::Result;
use crate::lock::{Acquire, Lifetime, Record, Request, Response, Transition};
use crate::store::Version;

/// Result of an attempt to change several records.
pub(super) enum Batch {
    /// All records are changed, or already were as required: the response for each of them.
    Done(Vec<Response>),
    /// No record is changed, because of the one with this index.
    Refused(usize, Response),
}

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
    ) -> Result<Batch> {
        names.iter().for_each(|name| self.leave_witness(name, &request.handle.proof()));
        let immediately = AcquireRequest { invocation: None, ..request.clone() };
        let mut terms = self.acquire_terms(&immediately, &WaitPolicy::NONE);
        let try_to_take = |terms: &Acquire| {
            // Each grant has its own lifetime, because each may be released alone.
            let mut begun: Vec<Option<Lifetime>> = vec![None; names.len()];
            let mut decide = |at: usize, record: &Record| {
                let refuse_stale = terms.refuse_stale && !held[at];
                let terms = Acquire { refuse_stale, ..terms.clone() };
                let lifetime = terms.lifetime.clone();
                let mut step = self.decide(record, &Request::Acquire(terms), None)?;
                if let Transition::Write { record, response: Some(Response::Granted(grant, _)), .. } = &mut step {
                    self.begin_grant(&lifetime, &mut begun[at], record, grant)?;
                }
                Ok(step)
            };
            self.commit_batch(names, &mut decide, &|response| matches!(response, Response::Granted(..)), give_up_at)
        };
        let mut taken = try_to_take(&terms)?;
        if let Some(called) = request.invocation.filter(|_| matches!(taken, Batch::Refused(..))) {
            // The holder may be a process that waits for this one.
            terms.entry.blocked_processes = self.host.blocked_callers(&called, false);
            taken = try_to_take(&terms)?;
        }
        if matches!(taken, Batch::Refused(..)) {
            let free = names.iter().zip(held).filter(|(_, held)| !**held);
            free.for_each(|(name, _)| self.remove_witness(name, &request.handle.proof()));
        }
        Ok(taken)
    }

    /// Decides about each name, and commits all changes as one batch if `accepts` is true for all responses. If other
    /// writers win until `give_up_at`, the first name is busy.
    pub(super) fn commit_batch(
        &self,
        names: &[&[u8]],
        decide: &mut dyn FnMut(usize, &Record) -> Result<Transition>,
        accepts: &dyn Fn(&Response) -> bool,
        give_up_at: Duration,
    ) -> Result<Batch> {
        let mut race = self.race(names[0]).until(give_up_at);
        // A caller that only tries waits for no process, and other waiters depend on a caller that holds a name.
        race.has_priority = true;
        loop {
            let mut looks: Vec<(VersionedRecord, Option<Transition>)> = Vec::new();
            let mut answers = Vec::new();
            for (at, name) in names.iter().enumerate() {
                let (version, record) = self.read(name)?;
                let step = decide(at, &record)?;
                let (response, step) = match step {
                    Transition::Done(outcome) => (outcome, None),
                    Transition::Write { response: Some(ref outcome), .. } => (outcome.clone(), Some(step)),
                    _ => (Response::Busy(record.holders.clone()), None),
                };
                if !accepts(&response) {
                    return Ok(Batch::Refused(at, response));
                }
                answers.push(response);
                looks.push(((version, record), step));
            }
            let swapped: Vec<RecordUpdate<'_>> =
                looks.iter().filter_map(|(look, step)| swapped(look, step.as_ref()?)).collect();
            if swapped.is_empty() {
                return Ok(Batch::Done(answers));
            }
            if let Some(version) = self.commit_update(&swapped, &[], None)? {
                let number = |outcome| with_token(outcome, &version);
                return Ok(Batch::Done(answers.into_iter().map(number).collect()));
            }
            if !race.backoff()? {
                let holders = looks.swap_remove(0).0.1.holders;
                return Ok(Batch::Refused(0, Response::Busy(holders)));
            }
        }
    }
}

fn swapped<'a>((version, before): &'a (Option<Version>, Record), step: &'a Transition) -> Option<RecordUpdate<'a>> {
    match step {
        Transition::Write { record, wake, over, .. } => {
            Some(RecordUpdate { expect: *version, before, record, wake, over })
        }
        _ => None,
    }
}
