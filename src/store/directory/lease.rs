//! Leases of a directory: on CLOCK_BOOTTIME where one kernel uses it; where several hosts may, on the clock that the file
//! system stamps fresh files with, which on NFS is the server's. Neither compares clocks of two hosts.

use std::time::Duration;

use crate::error::Result;
use crate::host::{Host, boot_lease};
use crate::lock::{Lease, LeaseClock};
use crate::store::Reach;

/// A lease that ends `span` from now. `file_system_time` is asked only if it counts.
pub(super) fn lend(
    host: &dyn Host,
    reach: Reach,
    span: Duration,
    file_system_time: impl FnOnce() -> Result<Duration>,
) -> Result<Lease> {
    let lease = boot_lease::lend(host, span)?;
    if reach == Reach::ThisHost {
        return Ok(lease);
    }
    let ends = file_system_time()?.saturating_add(span).as_millis() as u64;
    Ok(Lease { clock: LeaseClock::FileSystem, ends, ..lease })
}

/// How long a lease has left; zero when it is over.
pub(super) fn remaining(
    host: &dyn Host,
    lease: &Lease,
    file_system_time: impl FnOnce() -> Result<Duration>,
) -> Result<Duration> {
    match lease.clock {
        LeaseClock::FileSystem => Ok(Duration::from_millis(lease.ends).saturating_sub(file_system_time()?)),
        // Another store's lease is over, as any is that nobody knows.
        LeaseClock::Etcd(_) => Ok(Duration::ZERO),
        LeaseClock::Boot(_) => boot_lease::remaining(host, lease),
    }
}
