//! Leases of a store, and those on the clock of one kernel.
//!
//! The latter count on the kernel's CLOCK_BOOTTIME, so neither a change of the wall clock nor a time namespace affects
//! them. After a reboot that clock starts again; only then the wall clock counts. Containers may have boot ids of their
//! own. Two boot ids mean one boot if the wall clock at its beginning is the same.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::host::Host;
use crate::lock::{Lease, LeaseClock, Sighting};

/// Leases on a clock that all users of a store share.
pub trait Leases {
    /// Grants a lease that ends `span` from now.
    fn grant(&self, span: Duration) -> Result<Lease>;

    /// Returns the time since 1970 on the store's clock. That clock may be set, so no lease ends by it.
    fn time(&self) -> Result<Duration>;

    /// Returns the minimum ttl of a lease for its holder; zero if it is over. An expired lease stays expired.
    fn ttl(&self, lease: &Lease) -> Result<Duration>;

    /// Returns true if a lease is over: like [`Leases::ttl`], but cheaper.
    fn is_expired(&self, lease: &Lease) -> Result<bool> {
        Ok(self.ttl(lease)?.is_zero())
    }

    /// Finds out about many leases at once, so that the next questions about them cost less.
    fn look_ahead(&self, _leases: &[&Lease]) -> Result<()> {
        Ok(())
    }

    /// Returns the time until this host treats a lease from a record with these sightings as over. If the store's clock
    /// may be set, that is later than for its holder.
    fn time_to_expiry(&self, lease: &Lease, _seen: &[Sighting]) -> Result<Duration> {
        self.ttl(lease)
    }

    /// Returns new sightings of these leases that the next caller on this host needs.
    fn new_sightings(&self, _leases: &[&Lease], _seen: &[Sighting]) -> Result<Vec<Sighting>> {
        Ok(Vec::new())
    }
}

/// Leases of a store whose users all run under one kernel: its clock counts.
pub(super) struct BootLeases(pub(super) Arc<dyn Host>);

impl Leases for BootLeases {
    fn grant(&self, span: Duration) -> Result<Lease> {
        lend(self.0.as_ref(), span)
    }

    fn time(&self) -> Result<Duration> {
        Ok(self.0.wall())
    }

    fn ttl(&self, lease: &Lease) -> Result<Duration> {
        remaining(self.0.as_ref(), lease)
    }
}

/// Maximum difference between the times that two processes compute for the beginning of one boot.
const SAME_BEGINNING: Duration = Duration::from_secs(1);

/// Returns a lease that ends `span` from now.
pub fn lend(host: &dyn Host, span: Duration) -> Result<Lease> {
    let ends = |now: Duration| u64::try_from(now.saturating_add(span).as_millis()).unwrap_or(u64::MAX);
    let boot = host.pid_space()?.boot;
    Ok(Lease { clock: LeaseClock::Boot(boot), ends: ends(kernel_time(host)?), wall: ends(host.wall()) })
}

/// Returns the time to live of a lease; zero if it has expired.
pub fn remaining(host: &dyn Host, lease: &Lease) -> Result<Duration> {
    let (kernel_time, wall) = (kernel_time(host)?, host.wall());
    let is_this_boot = matches!(&lease.clock, LeaseClock::Boot(boot) if *boot == host.pid_space()?.boot);
    let began = Duration::from_millis(lease.wall.saturating_sub(lease.ends));
    let (ends, now) = match is_this_boot || wall.saturating_sub(kernel_time).abs_diff(began) <= SAME_BEGINNING {
        true => (lease.ends, kernel_time),
        false => (lease.wall, wall),
    };
    Ok(Duration::from_millis(ends).saturating_sub(now))
}

/// Returns CLOCK_BOOTTIME as it is outside of all time namespaces.
fn kernel_time(host: &dyn Host) -> Result<Duration> {
    let offset = Duration::from_millis(host.boottime_offset()?.unsigned_abs());
    match host.boottime_offset()? {
        ..0 => Ok(host.boottime().saturating_add(offset)),
        _ => Ok(host.boottime().saturating_sub(offset)),
    }
}
