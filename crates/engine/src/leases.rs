//! Leases from the holder's view: their earliest end on the local clock.
//!
//! The store decides when a lease is over for every host ([`store::Leases::time_to_expiry`]). The holder counts
//! on CLOCK_BOOTTIME, from before its request for the lease, so for the holder the lease is over first.

use std::time::Duration;

use super::{AcquireRequest, Engine, EngineState, IssuedLease};
use lock::{Grant, HandleHash, Lease, Lifetime, MOST_SIGHTINGS, NotHolder, Note, Prepare, Record, RenewGrant, Result};
use store::{Scope, guarded};

impl EngineState {
    /// True if other users of the store may be unable to see whether an owner on this host lives, because they are on
    /// other hosts or outside of this container. Every grant then needs a lease.
    pub fn needs_leases(&self) -> bool {
        self.needs_leases_in(self.store.scope())
    }

    /// Like [`EngineState::needs_leases`], for a caller that knows the scope of the store.
    pub(super) fn needs_leases_in(&self, scope: Scope) -> bool {
        scope == Scope::Shared || self.host.is_in_container()
    }
}

impl Engine {
    /// Fails if the store's clock cannot be read.
    pub fn start(&self, lifetime: &Lifetime) -> Result<Lifetime> {
        match lifetime {
            Lifetime::Ttl(span) => Ok(Lifetime::ExpiresAt(self.grant_lease(Duration::from_millis(*span))?)),
            Lifetime::KeepalivePending(span) => {
                Ok(Lifetime::Keepalive(self.grant_lease(Duration::from_millis(*span))?))
            }
            other => Ok(other.clone()),
        }
    }

    /// Lasts as long as its owner, or as this process, if they renew it.
    pub(super) fn own_lease(&self) -> Lifetime {
        Lifetime::KeepalivePending(self.lease.as_millis() as u64)
    }

    /// `lifetime` is right if all users of the store see the owner; else the grant needs a lease.
    pub fn lifetime_in_store(&self, needs_leases: bool, lifetime: &Lifetime) -> Lifetime {
        match lifetime {
            Lifetime::WhileOwnerLives if needs_leases => self.own_lease(),
            lifetime => lifetime.clone(),
        }
    }

    /// Starts the lifetime of a grant in the record that is about to be written. A fresh lifetime in `begun`, from a
    /// try that lost to another writer, is used again.
    pub(super) fn begin_grant(
        &self,
        lifetime: &Lifetime,
        begun: &mut Option<Lifetime>,
        record: &mut Record,
        grant: &mut Grant,
    ) -> Result<()> {
        let known = begun.take().filter(|begun| self.is_fresh(begun));
        let now = known.map_or_else(|| self.start(lifetime), Ok)?;
        for holder in record.holders.iter_mut().filter(|holder| holder.proof == grant.proof) {
            holder.lifetime = now.clone();
        }
        grant.lifetime = now.clone();
        *begun = Some(now);
        Ok(())
    }

    /// Earliest end of a lifetime on CLOCK_BOOTTIME; `None` if it has no lease of this engine.
    pub fn ends(&self, lifetime: &Lifetime) -> Option<Duration> {
        self.own(lifetime.lease()?, |issued| issued.ends)
    }

    pub fn lease(&self) -> Duration {
        self.lease
    }

    pub(super) fn grant_lease(&self, span: Duration) -> Result<Lease> {
        let ends = self.host.boottime().saturating_add(span);
        let lease = self.store.leases().grant(self.call, span)?;
        let mut leases = guarded(&self.issued_leases);
        let now = self.host.boottime();
        leases.retain(|issued| issued.ends > now);
        leases.push(IssuedLease { lease: lease.clone(), ends, span });
        Ok(lease)
    }

    /// Extends a provisional grant if its lease has less than half left, or has no keeper. Returns the time until the
    /// next call, or `None` without a lease. The confirmation detects a failed extension.
    pub(super) fn extend_if_short(&self, name: &[u8], request: &AcquireRequest, grant: &mut Grant) -> Option<Duration> {
        let lease = grant.lifetime.lease()?;
        let is_short = self.left_of_own(lease).is_none_or(|left| left < self.lease / 2);
        if (is_short || !matches!(grant.lifetime, Lifetime::Keepalive(_)))
            && let Ok(Ok(kept)) = self.extend(name, request)
        {
            *grant = kept;
        }
        Some(self.lease / 4)
    }

    pub fn renew(&self, name: &[u8], proof: HandleHash) -> Result<std::result::Result<Grant, NotHolder>> {
        let lifetime = self.start(&self.own_lease())?;
        self.apply(name, &RenewGrant { credentials: self.by_proof(proof)?, lifetime, begins: false })
    }

    fn extend(&self, name: &[u8], request: &AcquireRequest) -> Result<std::result::Result<Grant, NotHolder>> {
        let proof = request.handle.proof();
        let lifetime = self.start(&self.own_lease())?;
        let credentials = self.by_proof(proof)?;
        self.apply(name, &Prepare { credentials, proof, process: request.entry.process, lifetime })
    }

    /// True if a lease in a record was over at the read. A renewal or release ends the old lease and stores another
    /// record: so if the lease has left the record, its end proves nothing, and our read was late.
    pub(super) fn lease_expired(&self, record: &Record, lease: &Lease) -> Result<bool> {
        let leases = self.store.leases();
        let is_over = if record.sightings.is_empty() {
            leases.is_expired(self.call, lease)?
        } else {
            leases.time_to_expiry(self.call, lease, &record.sightings)?.is_zero()
        };
        if !is_over || self.store.scope() == Scope::Local || !record.leases().any(|it| it == lease) {
            return Ok(is_over);
        }
        Ok(self.read(&record.name)?.1.leases().any(|it| it == lease))
    }

    pub(super) fn left_of_own(&self, lease: &Lease) -> Option<Duration> {
        self.own(lease, |issued| issued.ends.saturating_sub(self.host.boottime()))
    }

    fn is_fresh(&self, lifetime: &Lifetime) -> bool {
        let now = self.host.boottime();
        let is_fresh = |issued: &IssuedLease| issued.ends.saturating_sub(now) >= issued.span / 10 * 9;
        lifetime.lease().and_then(|lease| self.own(lease, is_fresh)).unwrap_or(false)
    }

    fn own<T>(&self, lease: &Lease, of: impl FnOnce(&IssuedLease) -> T) -> Option<T> {
        let leases = guarded(&self.issued_leases);
        leases.iter().find(|issued| issued.lease == *lease).map(of)
    }

    /// Adds sightings of the record's leases to it, if the next caller on this host could not find them out. A caller
    /// that does not wait would else count from the beginning, which it does if this write fails.
    pub fn note_leases(&self, record: &Record) {
        let leases: Vec<&Lease> = record.leases().take(MOST_SIGHTINGS).collect();
        let sightings = self.store.leases().new_sightings(self.call, &leases, &record.sightings).unwrap_or_default();
        if !sightings.is_empty() {
            let _ = self.apply(&record.name, &Note(sightings));
        }
    }
}
