//! Leases for stores whose users all run under one kernel. They count on CLOCK_BOOTTIME, so a change of the wall clock
//! does not affect them. After a reboot that clock starts again; only then the wall clock counts.

use std::time::Duration;

use super::Host;
use crate::error::Result;
use crate::lock::{Lease, LeaseClock};

/// Returns a lease that ends `span` from now.
pub fn lend(host: &dyn Host, span: Duration) -> Result<Lease> {
    let ends = |now: Duration| u64::try_from(now.saturating_add(span).as_millis()).unwrap_or(u64::MAX);
    Ok(Lease { clock: LeaseClock::Boot(host.pid_space()?.boot), ends: ends(host.boottime()), wall: ends(host.wall()) })
}

/// Returns the time to live of a lease; zero if it has expired.
pub fn remaining(host: &dyn Host, lease: &Lease) -> Result<Duration> {
    let this_boot = matches!(&lease.clock, LeaseClock::Boot(boot) if *boot == host.pid_space()?.boot);
    let (ends, now) = if this_boot { (lease.ends, host.boottime()) } else { (lease.wall, host.wall()) };
    Ok(Duration::from_millis(ends).saturating_sub(now))
}
