//! Leases: each host counts them on its own clock ([`crate::store::leases`]), so they need no rows. The store's time is
//! that of the server; it only shows whether a clock of this host is the one of an earlier sighting.

use std::sync::Mutex;
use std::time::Duration;

use super::{Postgres, number};
use crate::error::Result;
use crate::host::{Host, server_time};
use crate::lock::{Lease, LeaseClock, Sighting};
use crate::store::leases::{Seen, lend_shared, remaining_shared};
use crate::store::{Leases, guarded};

const TIME: &str = "SELECT floor(1000 * extract(epoch FROM clock_timestamp()))::bigint";

/// Time for which the server's time in an answer counts: in steps of this host's clock, it is that much older.
const TIME_LASTS: Duration = Duration::from_secs(5);

/// Knowledge of this process about leases, and the server's time.
#[derive(Default)]
pub(super) struct KnownLeases {
    seen: Seen,
    /// CLOCK_BOOTTIME of an answer, and the server's time in it.
    time: Mutex<Option<(Duration, Duration)>>,
}

impl KnownLeases {
    /// Notes the server's time in an answer that has just come, in milliseconds since 1970.
    pub(super) fn note_time(&self, host: &dyn Host, time: Option<i64>) {
        let time = time.map(|time| server_time(Duration::from_millis(time.unsigned_abs())));
        *guarded(&self.time) = time.map(|time| (host.boottime(), time));
    }

    /// Returns the server's time now, by a recent answer.
    fn time(&self, host: &dyn Host) -> Option<Duration> {
        let (at, time) = (*guarded(&self.time))?;
        let since = host.boottime().saturating_sub(at);
        (since < TIME_LASTS).then(|| time + since)
    }
}

impl Postgres {
    /// Returns the server's time, which the last answer may have shown.
    fn recent_time(&self) -> Result<Duration> {
        self.leases.time(&*self.client.host).map_or_else(|| self.time(), Ok)
    }
}

impl Leases for Postgres {
    fn grant(&self, span: Duration) -> Result<Lease> {
        lend_shared(&*self.client.host, span, || self.recent_time())
    }

    fn time(&self) -> Result<Duration> {
        let rows = self.query(TIME, &[])?.unwrap_or_default();
        let time = rows.first().and_then(|row| number(row, 0)).ok_or_else(|| self.nonsense())?;
        self.leases.note_time(&*self.client.host, Some(time));
        Ok(server_time(Duration::from_millis(time.unsigned_abs())))
    }

    fn ttl(&self, lease: &Lease) -> Result<Duration> {
        remaining_shared(&*self.client.host, lease, || self.recent_time())
    }

    fn is_expired(&self, lease: &Lease) -> Result<bool> {
        Ok(self.time_to_expiry(lease, &[])?.is_zero())
    }

    fn time_to_expiry(&self, lease: &Lease, seen: &[Sighting]) -> Result<Duration> {
        let LeaseClock::FileSystem(begun) = &lease.clock else { return self.ttl(lease) };
        self.leases.seen.until_over(&*self.client.host, (lease, begun), seen, || self.recent_time())
    }

    fn new_sightings(&self, leases: &[&Lease], seen: &[Sighting]) -> Result<Vec<Sighting>> {
        self.leases.seen.to_note(&*self.client.host, leases, seen, || self.recent_time())
    }
}
