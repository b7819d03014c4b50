//! Rules for an existing grant: which grant a caller's credentials prove, then release, renew, prepare for a commit
//! record, break, and the removal of stale entries.

use super::ending::{end, evict};
use super::protocol::{is_decided, lease_expired, write, write_if_changed};
use super::queue::{grant, grant_in_order, grant_waiting, lives};
use super::{
    AskToEnd, Break, Credentials, EndReason, EndedGrant, Facts, Grant, HandleHash, Lifetime, MOST_SIGHTINGS, NotHolder,
    Note, OwnerDied, Prepare, ProcessId, Query, Record, Release, RenewGrant, Request, Sighting, Standing, Sweep,
    Transition, Waiter, is_gone,
};

pub(super) enum Match {
    /// Index of the caller's grant, which is valid.
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

pub(super) type Answer<T> = Transition<Result<T, NotHolder>>;

pub(super) fn find(record: &Record, credentials: &Credentials, facts: &Facts) -> Result<Match, Query> {
    let mut late = None;
    for (at, grant) in record.holders.iter().enumerate() {
        if !is_mine(grant, credentials, facts)? {
            continue;
        }
        // The owner's liveness does not matter here: a wrapper releases the lock for a command that has ended.
        if !lease_expired(grant, facts)? {
            return Ok(Match::Grant(at));
        }
        late = late.or_else(|| Some(EndedGrant { grant: grant.clone(), reason: EndReason::Expired }));
    }
    if let Some(late) = late {
        return Ok(Match::Ended(late));
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
    if let Lifetime::Descriptor(lock) = &grant.lifetime {
        // An unlock by name would leave the file locked by flock(2).
        return Ok(credentials.space.contains(&grant.owner.domain)
            && credentials.descriptor.as_ref().is_some_and(|own| {
                let is_unnamed = own.taker == 0 && grant.owner.processes.iter().any(is_caller);
                own.place == lock.place && (own.taker == lock.taker || is_unnamed)
            }));
    }
    let is_owned = credentials.space.contains(&grant.owner.domain)
        && match grant.owner.processes.first() {
            // A process that called this one lives.
            Some(innermost) if is_caller(innermost) => true,
            _ => facts.effective_owner(&grant.owner)?.is_some_and(|(owner, _)| is_caller(&owner)),
        };
    // An owner does not have a grant that it was not told of.
    Ok(is_owned && (grant.provisional.is_none() || is_decided(grant, facts)?))
}

/// Returns true if the caller is the process that must still learn of this ending. A script learns of an expired grant
/// from each of its calls, until it has the lock again.
fn hears_of(record: &Record, credentials: &Credentials, ending: &EndedGrant) -> bool {
    let is_of_script = ending.grant.owner.supervisor.is_none();
    let is_for_claimant = credentials.supervises || (is_of_script && ending.reason != EndReason::Expired);
    is_for_claimant && ending.is_owed() && record.ended_grants.contains(ending)
}

pub(super) fn refuse<T>(record: &Record, found: Match, facts: &Facts) -> Result<Answer<T>, Query> {
    Ok(Transition::Done(Err(not_holder(record, found.ending(), facts)?)))
}

/// Response to a caller that does not hold the lock: how its grant ended, and the holders.
pub(super) fn not_holder(record: &Record, ending: Option<EndedGrant>, facts: &Facts) -> Result<NotHolder, Query> {
    let (mut holders, mut stale) = (Vec::new(), None);
    for grant in &record.holders {
        match Standing::of(grant, facts)? {
            Standing::Holds(_) => holders.push(grant.clone()),
            Standing::Ended(EndReason::Released) => {}
            Standing::Ended(how) => stale = stale.or_else(|| Some(EndedGrant { grant: grant.clone(), reason: how })),
        }
    }
    Ok(NotHolder { holders, ending, stale, store_was_replaced: false })
}

impl Request for Release {
    type Response = Result<Grant, NotHolder>;

    fn rule(&self, record: &Record, facts: &Facts) -> Result<Answer<Grant>, Query> {
        let Release(credentials) = self;
        match find(record, credentials, facts)? {
            Match::Grant(at) => {
                let mut next = record.clone();
                if credentials.supervises {
                    next.holders[at].owner_mut().supervisor = None;
                }
                let grant = end(&mut next, at, EndReason::Released);
                let wake = grant_waiting(&mut next, facts)?;
                Ok(write(next, Ok(grant), wake))
            }
            Match::Ended(ending) if hears_of(record, credentials, &ending) => {
                let mut next = record.clone();
                next.ended_grants.retain(|kept| *kept != ending);
                Ok(write(next, Err(not_holder(record, Some(ending), facts)?), Vec::new()))
            }
            // A trap at the end of a script may release a lock that the script has released before.
            Match::Ended(ending)
                if ending.reason == EndReason::Released && (credentials.repeated || !credentials.owners.is_empty()) =>
            {
                Ok(Transition::Done(Ok(ending.grant)))
            }
            other => match record.waiters.iter().position(|waiter| credentials.proof == Some(waiter.proof)) {
                Some(at) => remove_returned_waiter(record, at, facts),
                None => refuse(record, other, facts),
            },
        }
    }

    fn repeat(&mut self) {
        self.0.repeated = true;
    }

    fn ended(response: &Self::Response, _next: &Record) -> Vec<HandleHash> {
        response.iter().map(|grant| grant.proof).collect()
    }
}

/// Removes a waiter that believes that it has the lock: its grant was taken back while it was stopped.
fn remove_returned_waiter(record: &Record, at: usize, facts: &Facts) -> Result<Answer<Grant>, Query> {
    let mut next = record.clone();
    let ended = EndedGrant { grant: grant(next.waiters.remove(at), 0, None, facts)?, reason: EndReason::Expired };
    let wake = grant_waiting(&mut next, facts)?;
    Ok(write(next, Err(not_holder(record, Some(ended), facts)?), wake))
}

impl Request for RenewGrant {
    type Response = Result<Grant, NotHolder>;

    /// Restarts a keepalive lease even if it is over: no other caller has acquired the lock yet, and the first commit
    /// wins. A grant with a fixed time limit keeps that limit.
    fn rule(&self, record: &Record, facts: &Facts) -> Result<Answer<Grant>, Query> {
        let RenewGrant { credentials, lifetime, begins } = self;
        let is_keepalive = |lifetime: &Lifetime| matches!(lifetime, Lifetime::Keepalive(_));
        let restarts = is_keepalive(lifetime);
        let own = record.holders.iter().position(|grant| credentials.proof == Some(grant.proof));
        let at = match own {
            Some(at) if restarts && is_keepalive(&record.holders[at].lifetime) => at,
            Some(at) if restarts => return Ok(Transition::Done(Ok(record.holders[at].clone()))),
            _ => match find(record, credentials, facts)? {
                Match::Grant(at) if !restarts => at,
                found => return refuse(record, found, facts),
            },
        };
        let mut next = record.clone();
        next.holders[at].lifetime = lifetime.clone();
        if *begins {
            next.holders[at].begin(facts.wall);
        }
        let grant = next.holders[at].clone();
        // Waiters that watch an old keepalive lease read the record when it would end, so they need no wake-up.
        let head = if restarts { None } else { next.waiters.first().map(|head| head.proof) };
        Ok(write(next, Ok(grant), head.into_iter().collect()))
    }

    fn changed(response: &Self::Response) -> Option<HandleHash> {
        changed(response)
    }
}

/// A keeper itself renews a keepalive lease, so it needs no notification of that.
fn changed(response: &Result<Grant, NotHolder>) -> Option<HandleHash> {
    let grant = response.as_ref().ok()?;
    (!matches!(grant.lifetime, Lifetime::Keepalive(_))).then_some(grant.proof)
}

impl Request for OwnerDied {
    /// Grant in its new state, with which it stays in the record until another caller needs the lock.
    type Response = Result<Grant, NotHolder>;

    fn rule(&self, record: &Record, facts: &Facts) -> Result<Answer<Grant>, Query> {
        let found = find(record, &self.0, facts)?;
        let Match::Grant(at) = found else { return refuse(record, found, facts) };
        let mut next = record.clone();
        next.holders[at].lifetime = Lifetime::OwnerDied;
        let grant = next.holders[at].clone();
        // Without waiters the grant stays in the record, so that the next caller sees how it ended.
        let is_wanted = !next.waiters.is_empty() || next.pages.is_some();
        let wake = if is_wanted { grant_waiting(&mut next, facts)? } else { Vec::new() };
        Ok(write(next, Ok(grant), wake))
    }

    fn ended(response: &Self::Response, next: &Record) -> Vec<HandleHash> {
        Release::ended(response, next)
    }
}

impl Request for Prepare {
    type Response = Result<Grant, NotHolder>;

    fn rule(&self, record: &Record, facts: &Facts) -> Result<Answer<Grant>, Query> {
        let found = find(record, &self.credentials, facts)?;
        let Match::Grant(at) = found else { return refuse(record, found, facts) };
        let mut next = record.clone();
        let grant = &mut next.holders[at];
        grant.proof = self.proof;
        grant.provisional = Some(self.process);
        grant.lifetime = self.lifetime.clone();
        let prepared = grant.clone();
        Ok(write(next, Ok(prepared), Vec::new()))
    }

    fn changed(response: &Self::Response) -> Option<HandleHash> {
        changed(response)
    }
}

impl Request for Break {
    type Response = Result<Vec<EndedGrant>, NotHolder>;

    /// Breaks only grants that the caller saw. If the reply is lost, a retry does not break the next holder's grant.
    fn rule(&self, record: &Record, facts: &Facts) -> Result<Answer<Vec<EndedGrant>>, Query> {
        let Break(proofs) = self;
        let mut next = record.clone();
        let is_meant =
            |ending: &&EndedGrant| ending.reason != EndReason::Released && proofs.contains(&ending.grant.proof);
        // Eviction comes first, because it would drop the ending of a broken grant whose owner is dead.
        let evicted = evict(&mut next, facts, &|grant| proofs.contains(&grant.proof))?;
        let mut broken: Vec<EndedGrant> = evicted.iter().filter(is_meant).cloned().collect();
        while let Some(at) = next.holders.iter().position(|grant| proofs.contains(&grant.proof)) {
            broken.push(EndedGrant { grant: end(&mut next, at, EndReason::Broken), reason: EndReason::Broken });
        }
        if !broken.is_empty() {
            let wake = grant_in_order(&mut next, facts, None)?;
            return Ok(write(next, Ok(broken), wake));
        }
        let earlier: Vec<EndedGrant> = record.ended_grants.iter().filter(is_meant).cloned().collect();
        if !earlier.is_empty() {
            return Ok(Transition::Done(Ok(earlier)));
        }
        refuse(record, Match::Nothing, facts)
    }

    fn ended(response: &Self::Response, next: &Record) -> Vec<HandleHash> {
        if !next.is_removable() {
            return Vec::new();
        }
        response.iter().flatten().map(|ending| ending.grant.proof).collect()
    }
}

impl Request for AskToEnd {
    type Response = Option<HandleHash>;

    /// Keeps the lease, whose end the holder knows: the holder then ends its command before that, as for `--ttl`. A
    /// shorter lease could end before the holder has read it.
    fn rule(&self, record: &Record, _facts: &Facts) -> Result<Transition<Option<HandleHash>>, Query> {
        let (mut next, mut ended) = (record.clone(), None);
        if let Some(grant) = next.holders.iter_mut().find(|grant| grant.proof == self.proof) {
            grant.end_request = self.request.clone().or(grant.end_request.take());
            if let Lifetime::Keepalive(lease) = &grant.lifetime
                && self.ends_renewal
            {
                grant.lifetime = Lifetime::ExpiresAt(lease.clone());
                ended = Some(grant.proof);
            }
        }
        let watcher = ended.and(next.waiters.first()).map(|head| head.proof);
        Ok(write_if_changed(record, next, ended, watcher.into_iter().collect()))
    }

    fn changed(response: &Self::Response) -> Option<HandleHash> {
        *response
    }
}

impl Request for Sweep {
    type Response = (Vec<EndedGrant>, Vec<Waiter>);

    const HAS_PRIORITY: bool = false;

    fn rule(&self, record: &Record, facts: &Facts) -> Result<Transition<Self::Response>, Query> {
        // The commit writes a copied record anew, here.
        let mut next = Record { is_copy: false, ..record.clone() };
        let evicted = evict(&mut next, facts, &|_| true)?;
        let mut dropped = Vec::new();
        for waiter in std::mem::take(&mut next.waiters) {
            if is_gone(&waiter, facts)? { &mut dropped } else { &mut next.waiters }.push(waiter);
        }
        let mut wake = grant_waiting(&mut next, facts)?;
        for waiter in &dropped {
            wake.extend(lives(waiter, facts)?.then_some(waiter.proof));
        }
        Ok(write_if_changed(record, next, (evicted, dropped), wake))
    }
}

impl Request for Note {
    type Response = ();

    fn rule(&self, record: &Record, _facts: &Facts) -> Result<Transition<()>, Query> {
        let room = MOST_SIGHTINGS.saturating_sub(record.sightings.len());
        let still = self.0.iter().filter(|seen| record.leases().any(|lease| *lease == seen.lease));
        let new: Vec<Sighting> = still.take(room).cloned().collect();
        if new.is_empty() {
            return Ok(Transition::Done(()));
        }
        let mut next = record.clone();
        next.sightings.extend(new);
        Ok(write(next, (), Vec::new()))
    }
}
