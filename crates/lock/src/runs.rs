//! Rules for the runs of a [job](super::job): begin, report success, complain.
//!
//! **Permission.** Only the holder begins a run or reports its success, so each run belongs to one grant. A run that
//! ends without such a report has failed, whatever the reason.

use serde::{Deserialize, Serialize};

use super::protocol::write_if_changed;
use super::release::{Answer, Match, find, refuse};
use super::{
    Credentials, Facts, HandleHash, JobState, NotHolder, Promise, Query, Record, Request, Runs, Success, Transition,
};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BeginRun {
    pub credentials: Credentials,
    /// Slot in which the job must succeed once, if it has slots.
    pub slot: Option<u64>,
    pub most: u32,
    /// Minimum time from the start of the last run of the slot to that of this run, in milliseconds.
    pub pause: u64,
    /// Length of the span in which the job must succeed at least once, in milliseconds.
    pub promise: Option<u64>,
    pub now: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunStart {
    /// A success here is the last one, which does not count because it lies in the future.
    Begun(Option<Success>),
    /// Success in this slot, or in a later one.
    Done(Success),
    /// This number of runs has begun in this slot; no more may.
    UsedUp(u32),
    /// Start of the last run of this slot, and time at which the next one may begin.
    TooEarly(u64, u64),
}

impl Request for BeginRun {
    type Response = Result<RunStart, NotHolder>;

    fn promises(response: &Self::Response) -> bool {
        response.is_ok()
    }

    fn rule(&self, record: &Record, facts: &Facts) -> Result<Answer<RunStart>, Query> {
        let found = find(record, &self.credentials, facts)?;
        let Match::Grant(at) = found else { return refuse(record, found, facts) };
        let proof = record.holders[at].proof;
        let before = record.job.clone().unwrap_or_default().as_of(self.now);
        let mut job = before.clone();
        if let Some(slot) = self.slot {
            if let Some(success) = before.success.filter(|success| success.slot >= Some(slot)) {
                return Ok(Transition::Done(Ok(RunStart::Done(success))));
            }
            job.runs = match before.runs.filter(|runs| runs.slot >= slot) {
                Some(runs) if runs.last == proof => Some(runs),
                Some(runs) if runs.count >= self.most => {
                    return Ok(Transition::Done(Ok(RunStart::UsedUp(runs.count))));
                }
                Some(runs) if runs.began.saturating_add(self.pause) > self.now => {
                    let next = runs.began.saturating_add(self.pause);
                    return Ok(Transition::Done(Ok(RunStart::TooEarly(runs.began, next))));
                }
                earlier => {
                    let (slot, count) = earlier.map_or((slot, 0), |runs| (runs.slot, runs.count));
                    Some(Runs { slot, count: count + 1, last: proof, began: self.now, most: self.most, told: None })
                }
            };
        }
        job.promise = self.promise.map(|span| job.promised(span, self.now)).or(job.promise);
        let doubtful = record.job.as_ref().and_then(|job| job.doubtful_success(self.now)).cloned();
        Ok(changed(record, job, Ok(RunStart::Begun(doubtful))))
    }
}

/// Asks whether to report that all runs of the newest slot have failed. One of the callers is told their number.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GiveUp {
    pub by: HandleHash,
    pub most: u32,
    pub now: u64,
}

impl Request for GiveUp {
    type Response = Option<u32>;

    fn rule(&self, record: &Record, _facts: &Facts) -> Result<Transition<Option<u32>>, Query> {
        let job = record.job.clone().unwrap_or_default().as_of(self.now);
        let Some(runs) = job.runs.clone() else { return Ok(Transition::Done(None)) };
        let is_running = record.holder(&runs.last).is_some();
        match runs.told {
            // The reply to this very request was lost, or another caller has reported it.
            Some(told) => Ok(Transition::Done((told == self.by).then_some(runs.count))),
            None if is_running || runs.count < self.most => Ok(Transition::Done(None)),
            None => {
                let count = runs.count;
                let runs = Some(Runs { told: Some(self.by), ..runs });
                Ok(changed(record, JobState { runs, ..job }, Some(count)))
            }
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReportSuccess {
    pub credentials: Credentials,
    /// Counts for the slot in which the run began.
    pub in_slot: bool,
    pub at: u64,
    pub host: String,
}

impl Request for ReportSuccess {
    type Response = Result<(), NotHolder>;

    fn rule(&self, record: &Record, facts: &Facts) -> Result<Answer<()>, Query> {
        let found = find(record, &self.credentials, facts)?;
        let Match::Grant(_) = found else { return refuse(record, found, facts) };
        let mut job = record.job.clone().unwrap_or_default().as_of(self.at);
        let mut slot = job.success.and_then(|earlier| earlier.slot);
        if self.in_slot {
            slot = slot.max(job.runs.take().map(|runs| runs.slot));
        }
        job.success = Some(Success { at: self.at, slot, host: self.host.clone() });
        job.promise = job.promise.map(|promise| Promise { complained: None, by: None, refused: 0, ..promise });
        Ok(changed(record, job, Ok(())))
    }
}

/// Counts a call that did not get the lock, records its promise, and asks whether to complain that the job has not
/// succeeded within this span, in milliseconds. Any caller may ask.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Complain {
    pub by: HandleHash,
    pub span: u64,
    pub now: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Complaint {
    Kept,
    /// Broken, and an earlier caller complained within one span before now.
    Told,
    /// Broken, and this caller is to complain.
    Due,
}

impl Request for Complain {
    type Response = Complaint;

    fn rule(&self, record: &Record, _facts: &Facts) -> Result<Transition<Complaint>, Query> {
        let mut job = record.job.clone().unwrap_or_default().as_of(self.now);
        let mut promise = job.promised(self.span, self.now);
        promise.refused = promise.refused.saturating_add(1);
        job.promise = Some(promise);
        if !job.is_overdue(self.now) {
            return Ok(changed(record, job, Complaint::Kept));
        }
        match promise.complained {
            // The reply to this very request was lost.
            Some(_) if promise.by == Some(self.by) => return Ok(Transition::Done(Complaint::Due)),
            Some(at) if self.now.saturating_sub(at) < self.span => return Ok(changed(record, job, Complaint::Told)),
            _ => {}
        }
        job.promise = Some(Promise { complained: Some(self.now), by: Some(self.by), ..promise });
        Ok(changed(record, job, Complaint::Due))
    }
}

/// Removes all of the job but a run that holds the lock: its success counts for its slot. False if there is no job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ForgetJob;

impl Request for ForgetJob {
    type Response = bool;

    fn rule(&self, record: &Record, _facts: &Facts) -> Result<Transition<bool>, Query> {
        let Some(job) = record.job.clone() else { return Ok(Transition::Done(false)) };
        let is_held = |runs: &Runs| record.holders.iter().any(|grant| grant.proof == runs.last);
        Ok(changed(record, JobState { runs: job.runs.filter(is_held), ..JobState::default() }, true))
    }
}

fn changed<R>(record: &Record, job: JobState, response: R) -> Transition<R> {
    let job = (job != JobState::default()).then_some(job);
    write_if_changed(record, Record { job, ..record.clone() }, response, Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Handle;

    #[test]
    fn one_of_the_callers_of_one_moment_complains_and_its_repeated_request_has_the_same_answer() {
        let mut record = Record::default();
        let mut complain = |caller: u8, now: u64| {
            let request = Complain { by: Handle::new([caller; 16]).proof(), span: 100, now };
            match request.rule(&record, &Facts::default()) {
                Ok(Transition::Write { record: written, response, .. }) => {
                    record = *written;
                    response
                }
                Ok(Transition::Done(response)) => response,
                Err(query) => panic!("{query:?}"),
            }
        };
        assert_eq!([complain(1, 0), complain(2, 99)], [Complaint::Kept; 2]);
        let at_once = [1, 1, 2, 3].map(|caller| complain(caller, 100));
        assert_eq!(at_once, [Complaint::Due, Complaint::Due, Complaint::Told, Complaint::Told]);
        assert_eq!(
            [complain(2, 199), complain(2, 200), complain(3, 200)],
            [Complaint::Told, Complaint::Due, Complaint::Told]
        );
    }
}
