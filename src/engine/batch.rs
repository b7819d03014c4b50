//! Several names as one change, where the store can make one of several swaps: no crash comes between, so nothing has to
//! be tentative and nothing to be decided.

use std::time::Duration;

use super::{AcquireRequest, Engine, RecordUpdate, VersionedRecord, WaitPolicy, with_token};
use crate::error::Result;
use crate::lock::{Acquire, EndedGrant, Grant, Lifetime, Record, Request, Response, Transition};
use crate::store::Version;

/// How an attempt to change several records ended.
pub(super) enum Batch {
    /// All of them are changed, or were as they ought to be: what is to be answered for each.
    Done(Vec<Response>),
    /// None of them, because of this one.
    Refused(usize, Response),
}

impl Engine {
    /// Whether so many names can be changed as one.
    pub(super) fn changes_at_once(&self, names: usize) -> bool {
        (2..=self.store.max_batch()).contains(&names)
    }

    /// Takes all of these names, some of which may be granted tentatively already (`held`), or none; for good, unless the
    /// applicant is tentative. Waits for nobody.
    pub(super) fn acquire_batch(
        &self,
        names: &[&[u8]],
        request: &AcquireRequest,
        held: &[bool],
        give_up_at: Duration,
    ) -> Result<Batch> {
        names.iter().for_each(|name| self.leave_witness(name, &request.handle.proof()));
        let immediately = AcquireRequest { invocation: None, ..request.clone() };
        let mut application = self.application(&immediately, &WaitPolicy::NONE);
        let try_to_take = |application: &Acquire| {
            // Each has its own, for each may be given back alone.
            let mut begun: Vec<Option<Lifetime>> = vec![None; names.len()];
            let mut decide = |at: usize, record: &Record| {
                let refuse_stale = application.refuse_stale && !held[at];
                let application = Acquire { refuse_stale, ..application.clone() };
                let lifetime = application.lifetime.clone();
                let mut step = self.decide(record, &Request::Acquire(application), None)?;
                if let Transition::Write { record, response: Some(Response::Granted(grant, _)), .. } = &mut step {
                    self.begin_grant(&lifetime, &mut begun[at], record, grant)?;
                }
                Ok(step)
            };
            self.commit_batch(names, &mut decide, &|response| matches!(response, Response::Granted(..)), give_up_at)
        };
        let mut taken = try_to_take(&application)?;
        if let Some(called) = request.invocation.filter(|_| matches!(taken, Batch::Refused(..))) {
            // It may be held by whoever waits for us.
            application.entry.blocked_processes = self.host.blocked_callers(&called, false);
            taken = try_to_take(&application)?;
        }
        if matches!(taken, Batch::Refused(..)) {
            let free = names.iter().zip(held).filter(|(_, held)| !**held);
            free.for_each(|(name, _)| self.remove_witness(name, &request.handle.proof()));
        }
        Ok(taken)
    }

    /// Decides about each of these names, and makes all changes as one if all answers are as `wanted`. If others are
    /// faster until it is too late, the first is busy.
    pub(super) fn commit_batch(
        &self,
        names: &[&[u8]],
        decide: &mut dyn FnMut(usize, &Record) -> Result<Transition>,
        query: &dyn Fn(&Response) -> bool,
        give_up_at: Duration,
    ) -> Result<Batch> {
        let mut race = self.race(names[0]).until(give_up_at);
        // Who tries waits for nobody, and who holds one of them already is waited for.
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
                if !query(&response) {
                    return Ok(Batch::Refused(at, response));
                }
                answers.push(response);
                looks.push(((version, record), step));
            }
            let swapped: Vec<RecordUpdate<'_>> =
                looks.iter().filter_map(|(look, step)| swapped(look, step.as_ref()?)).collect();
            let stored = match swapped.is_empty() {
                true => return Ok(Batch::Done(answers)),
                false => self.commit_update(&swapped, &[], None)?,
            };
            if let Some(version) = stored {
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

/// The grants in the order of the names, and from whom the last of them was taken, if somebody had not given it back.
pub(super) fn granted(outcomes: Vec<Response>) -> (Vec<Grant>, Option<(usize, EndedGrant)>) {
    let (mut grants, mut evicted) = (Vec::new(), None);
    for (at, response) in outcomes.into_iter().enumerate() {
        if let Response::Granted(grant, ending) = response {
            grants.push(grant);
            evicted = ending.map(|ending| (at, ending)).or(evicted);
        }
    }
    (grants, evicted)
}
