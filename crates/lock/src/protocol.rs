//! Every rule of locking in one pure function, which maps a record, a request and facts to a new record and a response.
//!
//! **The queue.** A request that does not fit at once enters the queue behind earlier waiters. Every change of a record
//! serves its queue. It evicts stale holders, then walks the waiters in order of arrival. The walk drops dead waiters,
//! grants to waiters that fit and stops at the first that does not. Mutex, readers-writer lock and semaphore are this
//! rule with three ways to fit, so readers never pass a waiting writer.
//!
//! **Stale grants.** A grant is over when its lease is over or when all processes it depends on are certainly dead.
//! *Unknown* is never dead.
//!
//! **Retries.** A reply can be lost after the store has committed, so a caller may repeat every request. A grant with
//! the caller's handle hash is the caller's grant. A release that finds its own ending in the record has succeeded.
//!
//! **Provisional grants** ([`Grant::provisional`]). A grant that another process made for a waiter ends with that
//! waiter, or with the script that the waiter acquires it for, until the waiter confirms. Otherwise a waiter killed
//! during the grant would leave its shell a lock that the shell does not know of. For several names, csalock confirms
//! all grants or none ([`super::CommitRecord`]).
//!
//! Each request has its own rule: `acquire.rs` has the rules for the start of a grant, `release.rs` those for its end,
//! `write.rs` those for values and `runs.rs` those for jobs. `queue.rs` serves the queue after each of them, and
//! `ending.rs` evicts holders before. Records and requests are data, in files that know none of these rules.
//!
//! The function never calls out. If a fact is missing, it returns a [`Query`]; the engine answers it and calls again.

use super::{EndReason, Facts, Grant, HandleHash, Lifetime, Liveness, Owner, Query, Record, Request, Transition};

/// Decides about one request by the rules in the module documentation.
/// Fails with the [`Query`] that the engine must answer in `facts` before it calls again.
pub fn decide<R: Request>(record: &Record, ask: &R, facts: &Facts) -> Result<Transition<R::Response>, Query> {
    let mut step = ask.rule(record, facts)?;
    if let Transition::Write { record: next, expired, .. } = &mut step {
        let known = facts.lease_expired.values().flatten();
        expired.extend(known.filter(|(_, is_over)| *is_over).map(|(lease, _)| lease.clone()));
        if !facts.replies_get_lost {
            next.forget_releases(record);
        }
    }
    Ok(step)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Valid, with this liveness of its effective owner.
    Holds(Liveness),
    /// Over, although the record still has it.
    Ended(EndReason),
}

impl Standing {
    pub fn of(grant: &Grant, facts: &Facts) -> Result<Standing, Query> {
        let over = lease_expired(grant, facts)?;
        if let Some(waiter) = &grant.provisional {
            let liveness = facts.liveness(&grant.owner.domain, waiter)?;
            let waits = liveness != Liveness::Dead && !over;
            let is_ownerless = waits && has_dead_owner(&grant.owner, &grant.lifetime, facts)?;
            if waits && !is_ownerless {
                return Ok(Standing::Holds(liveness));
            }
            if !facts.committed(&grant.proof)? {
                // The waiter died before it confirmed the grant, so its owner has lost nothing.
                return Ok(Standing::Ended(match liveness {
                    Liveness::Dead => EndReason::Released,
                    _ if is_ownerless => EndReason::Died,
                    _ => EndReason::Expired,
                }));
            }
            if grant.claim.is_some() {
                return Ok(Standing::Holds(Liveness::Unknown));
            }
        }
        if over {
            return Ok(Standing::Ended(EndReason::Expired));
        }
        if let Lifetime::Descriptor(lock) = &grant.lifetime {
            return Ok(match facts.descriptor(&grant.owner.domain, lock, None)? {
                // The close of a descriptor is the usual release of such a lock.
                Liveness::Dead => Standing::Ended(EndReason::Released),
                liveness => Standing::Holds(liveness),
            });
        }
        let liveness = match facts.effective_owner(&grant.owner)? {
            _ if grant.lifetime == Lifetime::OwnerDied => Liveness::Dead,
            Some((_, liveness)) => liveness,
            None if grant.owner.processes.is_empty() => Liveness::Unknown,
            None => Liveness::Dead,
        };
        Ok(match (liveness, &grant.lifetime) {
            (Liveness::Dead, Lifetime::UntilReleased) => Standing::Holds(Liveness::Dead),
            (Liveness::Dead, _) if grant.release_on_exit => Standing::Ended(EndReason::Released),
            (Liveness::Dead, _) => Standing::Ended(EndReason::Died),
            (liveness, _) => Standing::Holds(liveness),
        })
    }

    pub fn holds(self) -> bool {
        matches!(self, Standing::Holds(_))
    }

    pub fn end_reason(self) -> Option<EndReason> {
        if let Standing::Ended(reason) = self { Some(reason) } else { None }
    }
}

/// A script that has died needs no lock, but its waiter may be stopped, so that it never learns that.
pub(super) fn has_dead_owner(owner: &Owner, lifetime: &Lifetime, facts: &Facts) -> Result<bool, Query> {
    let needs_owner = *lifetime != Lifetime::UntilReleased && !owner.processes.is_empty();
    Ok(needs_owner && facts.effective_owner(owner)?.is_none())
}

/// A keepalive lease proves the owner's life only to hosts that cannot see the owner; other hosts check the process.
pub(super) fn lease_expired(grant: &Grant, facts: &Facts) -> Result<bool, Query> {
    match &grant.lifetime {
        Lifetime::Keepalive(lease) => Ok(!is_seen_alive(grant, facts)? && facts.lease_expired(lease)?),
        lifetime => lifetime.lease().map_or(Ok(false), |lease| facts.lease_expired(lease)),
    }
}

pub(super) fn is_seen_alive(grant: &Grant, facts: &Facts) -> Result<bool, Query> {
    Ok(facts.effective_owner(&grant.owner)?.is_some_and(|(_, liveness)| liveness.is_seen_alive()))
}

/// Returns true if a provisional grant is committed, so that it survives its waiter. The function queries the commit
/// record only after the waiter is dead or, for a claim, its lease is over.
pub(super) fn is_decided(grant: &Grant, facts: &Facts) -> Result<bool, Query> {
    let Some(waiter) = &grant.provisional else { return Ok(false) };
    let over = grant.claim.is_some() && lease_expired(grant, facts)?;
    Ok((over || facts.liveness(&grant.owner.domain, waiter)? == Liveness::Dead) && facts.committed(&grant.proof)?)
}

pub(super) fn write<R>(record: Record, response: R, wake: Vec<HandleHash>) -> Transition<R> {
    Transition::Write { record: Box::new(record), response, wake, expired: Vec::new() }
}

pub(super) fn write_if_changed<R>(
    before: &Record,
    record: Record,
    response: R,
    wake: Vec<HandleHash>,
) -> Transition<R> {
    if record == *before { Transition::Done(response) } else { write(record, response, wake) }
}

#[cfg(test)]
mod tests;
