//! Leases for stores whose users all run under one kernel. They count on the kernel's CLOCK_BOOTTIME, so neither a change
//! of the wall clock nor a time namespace affects them. After a reboot that clock starts again; only then the wall clock
//! counts.
//!
//! Containers may have boot ids of their own. Two boot ids mean one boot if the wall clock at its beginning is the same.

use std::time::Duration;

use super::Host;
use crate::error::Result;
use crate::lock::{Lease, LeaseClock};

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
