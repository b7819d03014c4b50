//! Several names as one change, where the store can make one of several swaps: no crash comes between, so nothing has to
//! be tentative and nothing to be decided.

use std::time::Duration;

use super::{Applicant, Current, Engine, Patience, Swapped, with_token};
use crate::error::Result;
use crate::lock::{Application, Ask, Ending, Grant, Outcome, Record, Step, Tenure};
use crate::store::Version;

/// How an attempt to change several records ended.
pub(super) enum Together {
    /// All of them are changed, or were as they ought to be: what is to be answered for each.
    Done(Vec<Outcome>),
    /// None of them, because of this one.
    Refused(usize, Outcome),
}

impl Engine {
    /// Whether so many names can be changed as one.
    pub(super) fn changes_at_once(&self, names: usize) -> bool {
        (2..=self.store.most_at_once()).contains(&names)
    }

    /// Takes all of these names, some of which may be granted tentatively already (`held`), or none; for good, unless the
    /// applicant is tentative. Waits for nobody.
    pub(super) fn take_together(
        &self,
        names: &[&[u8]],
        applicant: &Applicant,
        held: &[bool],
        late_at: Duration,
    ) -> Result<Together> {
        names.iter().for_each(|name| self.leave_witness(name, &applicant.handle.proof()));
        let at_once = Applicant { called: None, ..applicant.clone() };
        let mut application = self.application(&at_once, &Patience::NONE);
        let try_to_take = |application: &Application| {
            // Each has its own, for each may be given back alone.
            let mut begun: Vec<Option<Tenure>> = vec![None; names.len()];
            let mut decide = |at: usize, record: &Record| {
                let refuse_stale = application.refuse_stale && !held[at];
                let application = Application { refuse_stale, ..application.clone() };
                let tenure = application.tenure.clone();
                let mut step = self.decide(record, &Ask::Take(application), None)?;
                if let Step::Write { record, outcome: Some(Outcome::Granted(grant, _)), .. } = &mut step {
                    self.begin_grant(&tenure, &mut begun[at], record, grant)?;
                }
                Ok(step)
            };
            self.change_together(names, &mut decide, &|outcome| matches!(outcome, Outcome::Granted(..)), late_at)
        };
        let mut taken = try_to_take(&application)?;
        if let Some(called) = applicant.called.filter(|_| matches!(taken, Together::Refused(..))) {
            // It may be held by whoever waits for us.
            application.entry.within = self.host.held_up_by(&called, false);
            taken = try_to_take(&application)?;
        }
        if matches!(taken, Together::Refused(..)) {
            let free = names.iter().zip(held).filter(|(_, held)| !**held);
            free.for_each(|(name, _)| self.remove_witness(name, &applicant.handle.proof()));
        }
        Ok(taken)
    }

    /// Decides about each of these names, and makes all changes as one if all answers are as `wanted`. If others are
    /// faster until it is too late, the first is busy.
    pub(super) fn change_together(
        &self,
        names: &[&[u8]],
        decide: &mut dyn FnMut(usize, &Record) -> Result<Step>,
        wanted: &dyn Fn(&Outcome) -> bool,
        late_at: Duration,
    ) -> Result<Together> {
        let mut race = self.race(names[0]).until(late_at);
        // Who tries waits for nobody, and who holds one of them already is waited for.
        race.has_right_of_way = true;
        loop {
            let mut looks: Vec<(Current, Option<Step>)> = Vec::new();
            let mut answers = Vec::new();
            for (at, name) in names.iter().enumerate() {
                let (version, record) = self.read(name)?;
                let step = decide(at, &record)?;
                let (outcome, step) = match step {
                    Step::Done(outcome) => (outcome, None),
                    Step::Write { outcome: Some(ref outcome), .. } => (outcome.clone(), Some(step)),
                    _ => (Outcome::Busy(record.holders.clone()), None),
                };
                if !wanted(&outcome) {
                    return Ok(Together::Refused(at, outcome));
                }
                answers.push(outcome);
                looks.push(((version, record), step));
            }
            let swapped: Vec<Swapped<'_>> =
                looks.iter().filter_map(|(look, step)| swapped(look, step.as_ref()?)).collect();
            let stored = match swapped.is_empty() {
                true => return Ok(Together::Done(answers)),
                false => self.swap_with(&swapped, &[], None)?,
            };
            if let Some(version) = stored {
                let number = |outcome| with_token(outcome, &version);
                return Ok(Together::Done(answers.into_iter().map(number).collect()));
            }
            if !race.lost()? {
                let holders = looks.swap_remove(0).0.1.holders;
                return Ok(Together::Refused(0, Outcome::Busy(holders)));
            }
        }
    }
}

fn swapped<'a>((version, before): &'a (Option<Version>, Record), step: &'a Step) -> Option<Swapped<'a>> {
    match step {
        Step::Write { record, wake, over, .. } => Some(Swapped { expect: *version, before, record, wake, over }),
        _ => None,
    }
}

/// The grants in the order of the names, and from whom the last of them was taken, if somebody had not given it back.
pub(super) fn granted(outcomes: Vec<Outcome>) -> (Vec<Grant>, Option<(usize, Ending)>) {
    let (mut grants, mut evicted) = (Vec::new(), None);
    for (at, outcome) in outcomes.into_iter().enumerate() {
        if let Outcome::Granted(grant, ending) = outcome {
            grants.push(grant);
            evicted = ending.map(|ending| (at, ending)).or(evicted);
        }
    }
    (grants, evicted)
}
