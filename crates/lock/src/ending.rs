//! The end of grants: which grants are over, and which processes must still learn of an ending.

use super::protocol::is_decided;
use super::{
    Acquire, EndReason, EndedGrant, Facts, Grant, Lifetime, Mode, PidDomain, ProcessId, Query, Record, Standing,
};

/// Ends the grants that are over, and settles earlier endings. A holder may sleep beyond the end of its renewed lease:
/// such a grant ends only if it is meant, or if a waiter needs its place.
pub(super) fn evict(
    record: &mut Record,
    facts: &Facts,
    is_meant: &dyn Fn(&Grant) -> bool,
) -> Result<Vec<EndedGrant>, Query> {
    let mut evicted = Vec::new();
    let mut at = 0;
    while at < record.holders.len() {
        match Standing::of(&record.holders[at], facts)? {
            Standing::Holds(_) => {
                let grant = &mut record.holders[at];
                if is_decided(grant, facts)? {
                    grant.provisional = None;
                    if grant.claim.is_some() {
                        grant.lifetime = Lifetime::UntilReleased;
                    }
                }
                at += 1;
            }
            Standing::Ended(_) if is_expired(&record.holders[at], facts)? && !is_meant(&record.holders[at]) => at += 1,
            Standing::Ended(how) => {
                let grant = end(record, at, how);
                evicted.push(EndedGrant { grant, reason: how });
            }
        }
    }
    settle_endings(record, facts)?;
    Ok(evicted)
}

/// Ends the grants of descriptors that cannot hold the file beside a caller that has it.
pub(super) fn end_descriptors(record: &mut Record, caller: &Acquire) {
    let excludes = |grant: &Grant| {
        let shares = caller.entry.mode == Mode::Shared && grant.mode == Mode::Shared;
        caller.has_file && matches!(grant.lifetime, Lifetime::Descriptor(_)) && !shares
    };
    while let Some(at) = record.holders.iter().position(excludes) {
        end(record, at, EndReason::Released);
    }
}

/// An expired holder has not renewed its lease, and may sleep.
pub(super) fn is_expired(grant: &Grant, facts: &Facts) -> Result<bool, Query> {
    let is_renewed = grant.provisional.is_none() && matches!(grant.lifetime, Lifetime::Keepalive(_));
    Ok(is_renewed && Standing::of(grant, facts)? == Standing::Ended(EndReason::Expired))
}

/// An ending is owed to its supervisor or owner. Marks the endings that no process is left to read, and those of
/// owners that have had the lock again.
fn settle_endings(record: &mut Record, facts: &Facts) -> Result<(), Query> {
    let mut endings = std::mem::take(&mut record.ended_grants);
    for at in 0..endings.len() {
        let owner = &endings[at].grant.owner;
        // A dead supervisor will not ask for the ending.
        if let Some(supervisor) = &owner.supervisor
            && !facts.liveness(&owner.domain, supervisor)?.may_live_here()
        {
            endings[at].grant.owner_mut().supervisor = None;
        }
        let EndedGrant { grant, reason } = &endings[at];
        let is_of_owner = matches!(reason, EndReason::Broken | EndReason::Expired);
        if is_of_owner && grant.owner.supervisor.is_none() && endings[at].is_owed() {
            let later = record.holders.iter().chain(endings[at + 1..].iter().map(|ending| &ending.grant));
            let is_awaited = facts.effective_owner(&grant.owner)?.is_some_and(|(process, liveness)| {
                let is_again = |later: &Grant| has_owner(later, &grant.owner.domain, &process);
                liveness.may_live_here() && !later.into_iter().any(is_again)
            });
            if !is_awaited {
                endings[at].grant.lifetime = Lifetime::OwnerDied;
            }
        }
    }
    record.ended_grants = endings;
    Ok(())
}

/// A process that was not told of its grant yet is not an owner.
fn has_owner(grant: &Grant, domain: &PidDomain, process: &ProcessId) -> bool {
    let owner = &grant.owner;
    grant.provisional.is_none() && owner.domain.shares_pids_with(domain) && owner.processes.contains(process)
}

pub(super) fn end(record: &mut Record, at: usize, how: EndReason) -> Grant {
    let grant = record.holders.remove(at);
    record.ended_grants.push(EndedGrant { grant: grant.clone(), reason: how });
    grant
}
