//! Leases: rows with an end on the server's clock.
//!
//! The transaction that stores a record with a new lease also stores its row, so a lease costs no round trip. Before
//! that, only this process knows it. A row of another server or timeline lasts until it was started anew, for its whole
//! span: a promoted standby has another clock. No other change makes a lease longer, so an expired lease stays expired.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use super::session::array;
use super::{Postgres, number};
use crate::error::Result;
use crate::host::server_time;
use crate::lock::{Lease, LeaseClock};
use crate::store::{Leases, guarded};

const LOOK: &str = "SELECT id, (CASE WHEN server = (SELECT $.origin()) THEN ceil(1000 * extract(epoch FROM ends - clock_timestamp())) \
                    END)::bigint, (1000 * extract(epoch FROM span))::bigint FROM $.leases WHERE id = ANY ($1::bigint[])";
const RESTART: &str = "UPDATE $.leases SET ends = clock_timestamp() + span, server = (SELECT $.origin()) \
                       WHERE id = ANY ($1::bigint[]) AND server <> (SELECT $.origin())";
const TIME: &str = "SELECT floor(1000 * extract(epoch FROM clock_timestamp()))::bigint";

/// Time for which the result of a look ahead counts.
const SEEN_LASTING: Duration = Duration::from_secs(1);

/// Lease whose row is not stored yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    pub(super) id: u64,
    /// Time to live, in milliseconds.
    pub(super) span: u64,
    /// Earliest end on CLOCK_BOOTTIME.
    ends: Duration,
}

/// Knowledge of this process about leases.
#[derive(Debug, Default)]
pub(super) struct KnownLeases {
    pending: Mutex<Vec<Pending>>,
    /// Leases that lasted at a look ahead, and until when that counts.
    lasting: Mutex<Vec<(u64, Duration)>>,
}

impl KnownLeases {
    /// Returns the pending leases that still last.
    pub(super) fn pending(&self, now: Duration) -> Vec<Pending> {
        let mut all = guarded(&self.pending);
        all.retain(|pending| pending.ends > now);
        all.clone()
    }

    /// Forgets the leases that a commit stored or ended.
    pub(super) fn settle(&self, granted: &[Pending], ended: &[u64]) {
        let is_granted = |id| granted.iter().any(|lease| lease.id == id);
        guarded(&self.pending).retain(|lease| !is_granted(lease.id) && !ended.contains(&lease.id));
        guarded(&self.lasting).retain(|(id, _)| !ended.contains(id));
    }
}

/// Returns the ids of these leases. A lease on another clock counts as over in this store.
pub(super) fn ids(leases: &[&Lease]) -> Vec<u64> {
    let ids = leases.iter().filter_map(|lease| if let LeaseClock::Etcd(id) = lease.clock { Some(id) } else { None });
    ids.collect::<BTreeSet<_>>().into_iter().collect()
}

impl Postgres {
    /// Returns the ttl of each of these leases that is not over.
    fn look(&self, ids: &[u64]) -> Result<Vec<(u64, Duration)>> {
        let parameter = || vec![array(ids.iter().map(|id| Some(id.to_be_bytes())), false)];
        let Some(rows) = self.query(LOOK, &parameter())? else { return Ok(Vec::new()) };
        if rows.iter().any(|row| number(row, 1).is_none()) {
            let _ = self.call(RESTART, &parameter());
        }
        let ttl =
            |row| (number(row, 0).unwrap_or_default() as u64, number(row, 1).or(number(row, 2)).unwrap_or_default());
        let lasting = rows.iter().map(ttl).filter(|(_, left)| *left > 0);
        Ok(lasting.map(|(id, left)| (id, Duration::from_millis(left as u64))).collect())
    }
}

impl Leases for Postgres {
    fn grant(&self, span: Duration) -> Result<Lease> {
        let host = &self.client.host;
        let begun = host.boottime();
        let id = (u128::from_ne_bytes(host.random()?) >> 65) as u64;
        let pending = Pending { id, span: span.as_millis() as u64, ends: begun.saturating_add(span) };
        guarded(&self.leases.pending).push(pending);
        let wall = host.wall().saturating_add(span).as_millis() as u64;
        Ok(Lease { clock: LeaseClock::Etcd(id), ends: wall, wall })
    }

    fn time(&self) -> Result<Duration> {
        let rows = self.query(TIME, &[])?.unwrap_or_default();
        let time = rows.first().and_then(|row| number(row, 0)).ok_or_else(|| self.nonsense())?;
        Ok(server_time(Duration::from_millis(time.unsigned_abs())))
    }

    fn ttl(&self, lease: &Lease) -> Result<Duration> {
        let LeaseClock::Etcd(id) = lease.clock else { return Ok(Duration::ZERO) };
        let now = self.client.host.boottime();
        let pending = self.leases.pending(now).into_iter().find(|pending| pending.id == id);
        if let Some(pending) = pending {
            return Ok(pending.ends.saturating_sub(now));
        }
        Ok(self.look(&[id])?.first().map_or(Duration::ZERO, |(_, left)| *left))
    }

    fn is_expired(&self, lease: &Lease) -> Result<bool> {
        let now = self.client.host.boottime();
        let is_lasting = |(id, until): &(u64, Duration)| lease.clock == LeaseClock::Etcd(*id) && *until > now;
        Ok(!guarded(&self.leases.lasting).iter().any(is_lasting) && self.ttl(lease)?.is_zero())
    }

    fn look_ahead(&self, leases: &[&Lease]) -> Result<()> {
        let now = self.client.host.boottime();
        let seen = self.look(&ids(leases))?;
        let mut lasting = guarded(&self.leases.lasting);
        lasting.retain(|(_, until)| *until > now);
        lasting.extend(seen.iter().map(|(id, left)| (*id, now + SEEN_LASTING.min(*left))));
        Ok(())
    }
}
