//! The grant that a caller's credentials prove, and the response to a caller that has none.

use super::ending::{EndReason, EndedGrant};
use super::facts::{Facts, Query};
use super::owner::ProcessId;
use super::protocol::{grant_status, is_decided, lease_expired, write};
use super::queue::effective_owner;
use super::record::{Grant, Record};
use super::request::{Credentials, NotHolder, Transition};

/// Grant that matches a caller's credentials.
pub(super) enum Match {
    /// The grant with this index is the caller's and valid.
    Grant(usize),
    Ended(EndedGrant),
    Nothing,
}

impl Match {
    pub(super) fn ending(self) -> Option<EndedGrant> {
        match self {
            Match::Ended(ending) => Some(ending),
            Match::Grant(_) | Match::Nothing => None,
        }
    }
}

/// Step for a request that only a holder may make.
pub(super) type Answer<T> = Transition<Result<T, NotHolder>>;

pub(super) fn find(record: &Record, credentials: &Credentials, facts: &Facts) -> Result<Match, Query> {
    for (at, grant) in record.holders.iter().enumerate() {
        if !is_mine(grant, credentials, facts)? {
            continue;
        }
        // The owner's liveness does not matter if the caller has the handle or is the owner. A wrapper releases the
        // lock for a command that has ended.
        let over = lease_expired(grant, facts)?;
        let late = EndedGrant { grant: grant.clone(), reason: EndReason::Expired };
        return Ok(if over { Match::Ended(late) } else { Match::Grant(at) });
    }
    let mine = |grant: &Grant| {
        credentials.proof == Some(grant.proof)
            || (credentials.space.contains(&grant.owner.domain)
                && grant.owner.processes.iter().any(|owner| credentials.owners.contains(owner)))
    };
    let ending = record.ended_grants.iter().rev().find(|ending| mine(&ending.grant));
    Ok(ending.cloned().map_or(Match::Nothing, Match::Ended))
}

fn is_mine(grant: &Grant, credentials: &Credentials, facts: &Facts) -> Result<bool, Query> {
    if credentials.proof == Some(grant.proof) || (credentials.claim.is_some() && credentials.claim == grant.claim) {
        return Ok(true);
    }
    let is_caller = |owner: &ProcessId| credentials.owners.contains(owner);
    let is_owned = credentials.space.contains(&grant.owner.domain)
        && match grant.owner.processes.first() {
            // A process that called this one lives.
            Some(innermost) if is_caller(innermost) => true,
            _ => effective_owner(&grant.owner, facts)?.is_some_and(|(owner, _)| is_caller(&owner)),
        };
    // An owner does not have a grant that it was not told of.
    Ok(is_owned && (grant.provisional.is_none() || is_decided(grant, facts)?))
}

/// Returns true if the caller is the process that must still learn of this ending. A script learns of an expired grant
/// from each of its calls, until it has the lock again.
pub(super) fn hears_of(record: &Record, credentials: &Credentials, ending: &EndedGrant) -> bool {
    let is_of_script = ending.grant.owner.supervisor.is_none();
    let is_for_claimant = credentials.supervises || (is_of_script && ending.reason != EndReason::Expired);
    is_for_claimant && ending.is_owed() && record.ended_grants.contains(ending)
}

pub(super) fn hear_of<T>(record: &Record, ending: EndedGrant, facts: &Facts) -> Result<Answer<T>, Query> {
    let mut next = record.clone();
    next.ended_grants.retain(|kept| *kept != ending);
    Ok(write(next, Err(not_holder(record, Some(ending), facts)?), Vec::new()))
}

/// Refuses a request because the caller's grant has ended, or because the record has none.
pub(super) fn refuse<T>(record: &Record, found: Match, facts: &Facts) -> Result<Answer<T>, Query> {
    Ok(Transition::Done(Err(not_holder(record, found.ending(), facts)?)))
}

/// Returns the response to a caller that does not hold the lock: how its grant ended, and the holders.
pub(super) fn not_holder(record: &Record, ending: Option<EndedGrant>, facts: &Facts) -> Result<NotHolder, Query> {
    let (mut holders, mut stale) = (Vec::new(), None);
    for grant in &record.holders {
        match grant_status(grant, facts)? {
            Ok(_) => holders.push(grant.clone()),
            Err(EndReason::Released) => {}
            Err(how) => stale = stale.or_else(|| Some(EndedGrant { grant: grant.clone(), reason: how })),
        }
    }
    Ok(NotHolder { holders, ending, stale, store_was_replaced: false })
}
