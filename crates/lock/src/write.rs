//! Rules for writing a value.
//!
//! **Permission.** The holder may write unless other holders share the lock. Any caller may write, in one commit, if
//! the lock has no holder and no waiter. A stale holder may write with `--even-if-stale` if no holder came since.
//!
//! **A caller that had the lock** is not any caller: what it writes depends on what it read. It writes under its grant
//! or not at all, so the record keeps the ending of a grant until its owner has learned of it or has died. A process
//! that a dead script left behind ([`Orphan`]) writes nothing if a dead script of its session lost the lock, or if the
//! record may have forgotten that.

use serde::{Deserialize, Serialize};

use super::ending::{end, evict};
use super::protocol::write;
use super::queue::grant_waiting;
use super::release::{Match, find, not_holder};
use super::{
    Credentials, EndReason, EndedGrant, Facts, Grant, HandleHash, Liveness, NotHolder, Orphan, PidSpace, ProcessId,
    Query, Record, Request, Standing, Transition, Value,
};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SetValue {
    pub credentials: Credentials,
    /// New value without its version and token; `None` to delete the value.
    pub value: Option<Value>,
    pub precondition: Option<Precondition>,
    /// Only the holder may write; otherwise a write is allowed even if the lock has no holder.
    pub require_lock: bool,
    pub release: bool,
    /// A grant that is over is enough, as long as the lock has had no holder since.
    pub even_if_stale: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Precondition {
    Absent,
    Version(u64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// New value, or the deleted one. `None` if an earlier try deleted it.
    pub value: Option<Value>,
    /// Ending of the writer's grant, if it was over.
    pub stale: Option<EndedGrant>,
    pub under: Option<HandleHash>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteRefusal {
    Busy(Vec<Grant>),
    Shared(Vec<Grant>),
    /// Current value, for which the precondition does not hold.
    VersionMismatch(Option<Value>),
    NoValue,
    NotHolder(NotHolder),
    /// The writer believes that it holds the lock, but its grant has ended. These grants hold the lock now.
    Lost(Vec<Grant>, EndedGrant),
    /// The script of the writer has ended, and it may have had the lock. These grants hold the lock now.
    Orphaned(Vec<Grant>),
}

impl Request for SetValue {
    type Response = Result<Written, WriteRefusal>;

    fn rule(&self, record: &Record, facts: &Facts) -> Result<Step, Query> {
        let written_before = || Transition::Done(Ok(Written { value: record.value.clone(), stale: None, under: None }));
        let (mut next, mut wake) = (record.clone(), Vec::new());
        let (mut mine, mut stale) = (None, None);
        match find(record, &self.credentials, facts)? {
            Match::Grant(_) if self.credentials.repeated && !self.release && self.is_in(record) => {
                return Ok(written_before());
            }
            Match::Grant(at) => mine = Some(at),
            Match::Ended(ending) if ending.reason != EndReason::Released => {
                let may = self.even_if_stale && ending.reason != EndReason::Broken;
                if !may || !is_unheld_since(&mut next, &ending, facts)? {
                    let now = not_holder(record, None, facts)?;
                    return Ok(refused(WriteRefusal::Lost(now.holders, ending)));
                }
                wake = grant_waiting(&mut next, facts)?;
                stale = Some(ending);
            }
            found => {
                if self.credentials.repeated
                    && (self.is_in(record) || (self.release && matches!(found, Match::Ended(_))))
                {
                    return Ok(written_before());
                }
                if self.require_lock {
                    return Ok(refused(WriteRefusal::NotHolder(not_holder(record, found.ending(), facts)?)));
                }
                evict(&mut next, facts, &|_| true)?;
                wake = grant_waiting(&mut next, facts)?;
                if let Some(orphan) = &self.credentials.orphan
                    && let Some(refusal) = refusal_of_orphan(orphan, &next, &self.credentials.space, facts)?
                {
                    return Ok(refused(refusal));
                }
            }
        }
        if !is_met(self.precondition, record.value.as_ref()) {
            return Ok(refused(WriteRefusal::VersionMismatch(record.value.clone())));
        }
        let Some(written) = self.value.clone().or_else(|| record.value.clone()) else {
            return Ok(refused(WriteRefusal::NoValue));
        };
        let others = other_holders(&next, mine, facts)?;
        if !others.is_empty() {
            return Ok(refused(refusal_beside(others, mine.is_some(), stale)));
        }
        let before = record.value.as_ref().and_then(|value| value.version);
        let token = mine.and_then(|at| next.holders[at].token);
        next.value = self.value.as_ref().map(|_| Value { version: before.map(|it| it + 1), token, ..written.clone() });
        if let (Some(at), true) = (mine, self.release) {
            end(&mut next, at, EndReason::Released);
            wake = grant_waiting(&mut next, facts)?;
        }
        let under = mine.map(|at| record.holders[at].proof);
        let written = next.value.clone().unwrap_or(written);
        Ok(write(next, Ok(Written { value: Some(written), stale, under }), wake))
    }

    fn promises(response: &Self::Response) -> bool {
        matches!(response, Ok(_) | Err(WriteRefusal::VersionMismatch(Some(_))))
    }

    fn repeat(&mut self) {
        self.credentials.repeated = true;
    }

    fn with_tokens(response: Self::Response, version: u64) -> Self::Response {
        let or_this = |known: Option<u64>| known.or(Some(version));
        let with_token = |value: Value| Value { version: or_this(value.version), token: or_this(value.token), ..value };
        response.map(|written| Written { value: written.value.map(with_token), ..written })
    }
}

type Step = Transition<<SetValue as Request>::Response>;

fn refused(refusal: WriteRefusal) -> Step {
    Transition::Done(Err(refusal))
}

/// A stale writer must not wait for the lock and then write what it read under the lock that it lost.
fn refusal_beside(others: Vec<Grant>, is_holder: bool, stale: Option<EndedGrant>) -> WriteRefusal {
    match stale {
        Some(ending) => WriteRefusal::Lost(others, ending),
        None if is_holder => WriteRefusal::Shared(others),
        None => WriteRefusal::Busy(others),
    }
}

fn other_holders(record: &Record, mine: Option<usize>, facts: &Facts) -> Result<Vec<Grant>, Query> {
    let mut others = Vec::new();
    for (at, grant) in record.holders.iter().enumerate() {
        // A shared holder that is gone does not prevent the write.
        if Some(at) != mine && Standing::of(grant, facts)?.holds() {
            others.push(grant.clone());
        }
    }
    Ok(others)
}

/// Refusal of a process whose script has ended, if the script had the lock or may have had it.
fn refusal_of_orphan(
    orphan: &Orphan,
    record: &Record,
    space: &PidSpace,
    facts: &Facts,
) -> Result<Option<WriteRefusal>, Query> {
    for ending in record.ended_grants.iter().rev() {
        let owner = &ending.grant.owner;
        let may_be_of_script = ending.reason != EndReason::Released
            && space.contains(&owner.domain)
            && owner.session == Some(orphan.session);
        let lives = |found: Option<(ProcessId, Liveness)>| found.is_some_and(|(_, liveness)| liveness.may_live_here());
        if may_be_of_script && !lives(facts.effective_owner(owner)?) {
            return Ok(Some(WriteRefusal::Lost(not_holder(record, None, facts)?.holders, ending.clone())));
        }
    }
    // The clock of another host proves nothing about the order.
    let is_later =
        |ending: &EndedGrant| !space.contains(&ending.grant.owner.domain) || ending.grant.since > orphan.since;
    let is_unclear = record.may_have_forgotten() && record.ended_grants.iter().all(is_later);
    Ok(if is_unclear { Some(WriteRefusal::Orphaned(not_holder(record, None, facts)?.holders)) } else { None })
}

/// Evicts stale grants. Since this grant, the lock has had no holder, and no write has left a younger token.
fn is_unheld_since(record: &mut Record, ending: &EndedGrant, facts: &Facts) -> Result<bool, Query> {
    evict(record, facts, &|_| true)?;
    let last = record.ended_grants.iter().max_by_key(|other| other.grant.token);
    let written_since = record.value.as_ref().is_some_and(|value| value.token > ending.grant.token);
    let is_last = last.is_none_or(|last| last.grant.proof == ending.grant.proof);
    Ok(record.holders.is_empty() && is_last && !written_since)
}

impl SetValue {
    /// An earlier try of this write has committed, and only its reply was lost.
    fn is_in(&self, record: &Record) -> bool {
        match (&self.value, &record.value) {
            (Some(written), Some(value)) => written.write_id == value.write_id,
            (wanted, value) => wanted.is_none() && value.is_none(),
        }
    }
}

fn is_met(precondition: Option<Precondition>, value: Option<&Value>) -> bool {
    match precondition {
        None => true,
        Some(Precondition::Absent) => value.is_none(),
        Some(Precondition::Version(version)) => value.is_some_and(|value| value.version == Some(version)),
    }
}

#[cfg(test)]
mod tests;
