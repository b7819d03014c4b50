//! Leases as their holder sees them: when they end on our own clock, at the earliest; and giving back those that nobody
//! needs any more.
//!
//! The store says when a lease is over for everybody ([`crate::store::Store::until_over`]). Its holder counts on
//! CLOCK_BOOTTIME, from before it asked for the lease, so for the holder it is over first.

use std::sync::PoisonError;
use std::time::Duration;

use super::{AcquireRequest, Engine};
use crate::error::Result;
use crate::lock::{Grant, Lease, LeaseClock, Lifetime, MOST_SIGHTINGS, Prepare, Record, Request, Response};
use crate::store::Scope;

/// How long leases are that are renewed, where nothing else was said.
pub const LEASE: Duration = Duration::from_secs(60);

/// A lease that we asked for.
#[derive(Debug)]
pub(super) struct IssuedLease {
    lease: Lease,
    /// When it ends on CLOCK_BOOTTIME, at the earliest.
    ends: Duration,
    span: Duration,
}

impl Engine {
    /// A tenure that begins now.
    ///
    /// # Errors
    ///
    /// When the store's clock cannot be asked.
    pub fn start(&self, lifetime: &Lifetime) -> Result<Lifetime> {
        match lifetime {
            Lifetime::Ttl(span) => Ok(Lifetime::ExpiresAt(self.grant_lease(Duration::from_millis(*span))?)),
            Lifetime::KeepalivePending(span) => {
                Ok(Lifetime::Keepalive(self.grant_lease(Duration::from_millis(*span))?))
            }
            other => Ok(other.clone()),
        }
    }

    /// Begins the time of a grant in the record that is about to be written. What was `begun` for a try that somebody was
    /// faster than will do if it is fresh.
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

    /// When a tenure that was begun here ends on CLOCK_BOOTTIME, at the earliest. `None`: by no lease of ours.
    pub fn ends(&self, lifetime: &Lifetime) -> Option<Duration> {
        self.own(lifetime.lease()?, |lent| lent.ends)
    }

    /// How long leases are that are renewed.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// A lease that ends so long from now.
    pub(super) fn grant_lease(&self, span: Duration) -> Result<Lease> {
        let ends = self.host.boottime().saturating_add(span);
        let lease = self.store.grant_lease(span)?;
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.host.boottime();
        lent.retain(|lent| lent.ends > now);
        lent.push(IssuedLease { lease: lease.clone(), ends, span });
        Ok(lease)
    }

    /// Lets a tentative grant last for another lease if it has less than half of one, or one that nobody would renew, and
    /// says how soon to ask for that again; `None`: it has none. What cannot be had is missed when the grant is confirmed.
    pub(super) fn extend_if_short(&self, name: &[u8], request: &AcquireRequest, grant: &mut Grant) -> Option<Duration> {
        let lease = grant.lifetime.lease()?;
        let is_short = self.left_of_own(lease).is_none_or(|left| left < self.lease / 2);
        if (is_short || !matches!(grant.lifetime, Lifetime::Keepalive(_)))
            && let Ok(Response::Renewed(kept)) = self.extend(name, request)
        {
            *grant = kept;
        }
        Some(self.lease / 4)
    }

    fn extend(&self, name: &[u8], request: &AcquireRequest) -> Result<Response> {
        let proof = request.handle.proof();
        let lifetime = self.start(&Lifetime::KeepalivePending(self.lease.as_millis() as u64))?;
        let doubt = Prepare { proof, process: request.process, lifetime };
        self.apply(name, &Request::Prepare(self.credentials(Some(proof), Vec::new())?, doubt))
    }

    /// Whether a lease in a record was over when we read it. Whoever renews, or gives back, stores another record and
    /// ends his old lease then; so of a lease that is in the record no more its end says nothing, and we are only late.
    pub(super) fn lease_expired(&self, record: &Record, lease: &Lease) -> Result<bool> {
        let is_over = match lease.clock {
            LeaseClock::FileSystem(_) => self.store.time_to_expiry(lease, &record.sightings)?.is_zero(),
            LeaseClock::Boot(_) | LeaseClock::Etcd(_) => self.store.lease_expired(lease)?,
        };
        if !is_over || self.store.scope() == Scope::Local || !record.leases().any(|it| it == lease) {
            return Ok(is_over);
        }
        Ok(self.read(&record.name)?.1.leases().any(|it| it == lease))
    }

    /// How long a lease of ours has left.
    pub(super) fn left_of_own(&self, lease: &Lease) -> Option<Duration> {
        self.own(lease, |lent| lent.ends.saturating_sub(self.host.boottime()))
    }

    /// Whether a tenure that was begun here has only just begun.
    fn is_fresh(&self, lifetime: &Lifetime) -> bool {
        let now = self.host.boottime();
        let is_fresh = |lent: &IssuedLease| lent.ends.saturating_sub(now) >= lent.span / 10 * 9;
        lifetime.lease().and_then(|lease| self.own(lease, is_fresh)).unwrap_or(false)
    }

    fn own<T>(&self, lease: &Lease, of: impl FnOnce(&IssuedLease) -> T) -> Option<T> {
        let lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        lent.iter().find(|lent| lent.lease == *lease).map(of)
    }

    /// Gives back the leases of those who hold or wait no more.
    pub(super) fn end_leases(&self, before: &Record, now: &Record) {
        let now: Vec<&Lease> = now.leases().collect();
        before.leases().filter(|lease| !now.contains(lease)).for_each(|lease| self.store.revoke_lease(lease));
    }

    /// Writes into a record which of its leases this host has seen, if the next caller on this host could not find that out.
    /// That caller may not wait, and would count from the beginning. If nothing can be written, that caller does so.
    pub fn note_leases(&self, record: &Record) {
        let leases: Vec<&Lease> = record.leases().take(MOST_SIGHTINGS).collect();
        let sightings = self.store.new_sightings(&leases, &record.sightings).unwrap_or_default();
        if !sightings.is_empty() {
            let _ = self.apply(&record.name, &Request::Note(sightings));
        }
    }
}
