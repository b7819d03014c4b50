//! Leases of this process whose keys are not stored yet.
//!
//! A lease is over when its key does not exist. To request it and to put that key at once would cost each acquisition
//! two more round trips. The next transaction of this process, which gives the lease its meaning, therefore puts its key
//! too, and the request for the lease goes out together with that transaction. This process chooses the id of the lease.
//! If etcd has forgotten the lease by then, the process requests it again.

use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};

use super::Etcd;
use super::api::{Done, Granted, range};
use super::commit::{MOST_STEPS, SEEN_LASTING, ids};
use host::server_time;
use lock::error::Result;
use lock::{Lease, LeaseClock};
use store::{Call, Leases, guarded};

/// Minimum ttl of a lease in its last second, because etcd counts leases in seconds.
const LAST_SECOND: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) id: u64,
    /// Time to live for etcd, in seconds.
    pub(super) seconds: u64,
    /// Earliest end of the lease on CLOCK_BOOTTIME.
    pub(super) ends: Duration,
    pub(super) is_granted: bool,
}

impl Pending {
    /// No grant uses the lease yet, so its restart does no harm.
    pub(super) fn request(&self) -> Value {
        json!({"ID": self.id.to_string(), "TTL": self.seconds.to_string()})
    }
}

#[derive(Debug, Default)]
pub(super) struct KnownLeases {
    pending: Mutex<Vec<Pending>>,
    lasting: Mutex<Vec<(u64, Duration)>>,
}

impl KnownLeases {
    /// Records the leases whose keys a transaction found. They count as lasting until then, on CLOCK_BOOTTIME, despite
    /// later reads: stale reads would otherwise make the caller repeat the same transaction endlessly.
    pub(super) fn add_lasting(&self, ids: &[u64], found: &Done, until: Duration) {
        let lasting = ids.iter().zip(&found.responses).filter(|(_, response)| response.found().is_some());
        guarded(&self.lasting).extend(lasting.map(|(id, _)| (*id, until)));
    }

    /// This process is about to put the lease's key, or a transaction found it a short while ago.
    fn is_lasting(&self, id: u64, now: Duration) -> bool {
        let mut lasting = guarded(&self.lasting);
        lasting.retain(|(_, until)| *until > now);
        lasting.iter().any(|(lasting, _)| *lasting == id) || self.left_of_pending(id, now).is_some()
    }

    pub(super) fn pending(&self, now: Duration) -> Vec<Pending> {
        let mut all = guarded(&self.pending);
        all.retain(|pending| pending.ends > now);
        all.clone()
    }

    fn left_of_pending(&self, id: u64, now: Duration) -> Option<Duration> {
        self.pending(now).iter().find(|pending| pending.id == id).map(|pending| pending.ends - now)
    }

    pub(super) fn set_granted(&self, granted: &[Pending]) {
        for pending in guarded(&self.pending).iter_mut() {
            pending.is_granted |= granted.iter().any(|granted| granted.id == pending.id);
        }
    }

    pub(super) fn forget(&self, id: u64) {
        guarded(&self.lasting).retain(|(lasting, _)| *lasting != id);
        guarded(&self.pending).retain(|pending| pending.id != id);
    }
}

impl Leases for Etcd {
    fn grant(&self, _call: Call, span: Duration) -> Result<Lease> {
        let begun = self.client.host.boottime();
        // etcd requires an id above zero.
        let id = ((u128::from_ne_bytes(self.client.host.random()?) >> 65) as u64).max(1);
        let seconds = (span.as_secs() + u64::from(span.subsec_nanos() > 0)).max(1);
        let pending = Pending { id, seconds, ends: begun.saturating_add(span), is_granted: false };
        guarded(&self.leases.pending).push(pending);
        let wall = self.client.host.wall().saturating_add(Duration::from_secs(seconds)).as_millis() as u64;
        Ok(Lease { clock: LeaseClock::Etcd(id), ends: wall, wall })
    }

    fn time(&self, call: Call) -> Result<Duration> {
        // etcd's API has no clock, but each answer has a date. This key does not exist.
        self.at(call, &self.lease_key(0), true)?;
        self.client.date().map(server_time)
    }

    fn ttl(&self, call: Call, lease: &Lease) -> Result<Duration> {
        let LeaseClock::Etcd(id) = lease.clock else { return Ok(Duration::ZERO) };
        if let Some(left) = self.leases.left_of_pending(id, self.client.host.boottime()) {
            return Ok(left);
        }
        if self.is_expired(call, lease)? {
            return Ok(Duration::ZERO);
        }
        let granted: Granted = self.client.ask(call, "/v3/lease/timetolive", &json!({"ID": id.to_string()}))?;
        let seconds = u64::try_from(granted.ttl).unwrap_or_default();
        Ok(Duration::from_secs(seconds).max(LAST_SECOND))
    }

    fn is_expired(&self, call: Call, lease: &Lease) -> Result<bool> {
        let LeaseClock::Etcd(id) = lease.clock else { return Ok(true) };
        let is_lasting = self.leases.is_lasting(id, self.client.host.boottime());
        Ok(!is_lasting && self.at(call, &self.lease_key(id), true)?.0.is_none())
    }

    fn look_ahead(&self, call: Call, leases: &[&Lease]) -> Result<()> {
        let now = self.client.host.boottime();
        let mut unknown = ids(leases);
        unknown.retain(|id| !self.leases.is_lasting(*id, now));
        for unknown in unknown.chunks(MOST_STEPS) {
            let steps: Vec<_> = unknown.iter().map(|id| range(&self.lease_key(*id), true)).collect();
            let done: Done = self.client.ask(call, "/v3/kv/txn", &json!({"success": steps}))?;
            self.leases.add_lasting(unknown, &done, now.saturating_add(SEEN_LASTING));
        }
        Ok(())
    }
}
