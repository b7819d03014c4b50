//! Leases of a store: on the clock of one kernel, or of each host that shares the store. etcd has leases of its own.
//!
//! **Local.** The leases count on the kernel's CLOCK_BOOTTIME, so neither a change of the wall clock nor a time namespace
//! affects them. After a reboot that clock starts again; only then the wall clock counts. Containers may have boot ids of
//! their own. Two boot ids mean one boot if the wall clock at its beginning is the same.
//!
//! **Shared.** Each host counts on its kernel's CLOCK_BOOTTIME, too ([`lock::age`]): a process in a time namespace
//! may renew a lease that others count. No clock that a user may set ends a lease: neither a host's wall clock nor the
//! store's time (that of an NFS server or of a database). csalock never compares clocks of two hosts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Call, guarded};
use host::Host;
use lock::{ClockReading, Lease, LeaseClock, LeaseStart, Result, Sighting, age, boot_of};

/// Leases on a clock that all users of a store share.
pub trait Leases {
    fn grant(&self, call: Call, span: Duration) -> Result<Lease>;

    /// Time since 1970 on the store's clock. That clock may be set, so no lease ends by it.
    fn time(&self, call: Call) -> Result<Duration>;

    /// Minimum ttl of a lease for its holder; zero if it is over. An expired lease stays expired.
    fn ttl(&self, call: Call, lease: &Lease) -> Result<Duration>;

    /// Whether other users may take the lease for over. May be cheaper than the others.
    fn is_expired(&self, call: Call, lease: &Lease) -> Result<bool> {
        Ok(self.time_to_expiry(call, lease, &[])?.is_zero())
    }

    /// Finds out about many leases at once, so that the next questions about them cost less.
    fn look_ahead(&self, _call: Call, _leases: &[&Lease]) -> Result<()> {
        Ok(())
    }

    /// Returns the time until this host treats a lease from a record with these sightings as over. If the store's clock
    /// may be set, that is later than for its holder.
    fn time_to_expiry(&self, call: Call, lease: &Lease, _seen: &[Sighting]) -> Result<Duration> {
        self.ttl(call, lease)
    }

    /// Sightings of these leases that the next caller on this host needs.
    fn new_sightings(&self, _call: Call, _leases: &[&Lease], _seen: &[Sighting]) -> Result<Vec<Sighting>> {
        Ok(Vec::new())
    }
}

/// Leases of a store whose users all run under one kernel: its clock counts.
pub struct BootLeases(pub Arc<dyn Host>);

impl Leases for BootLeases {
    fn grant(&self, _call: Call, span: Duration) -> Result<Lease> {
        lend_local(self.0.as_ref(), span)
    }

    fn time(&self, _call: Call) -> Result<Duration> {
        Ok(self.0.wall())
    }

    fn ttl(&self, _call: Call, lease: &Lease) -> Result<Duration> {
        remaining_local(self.0.as_ref(), lease)
    }
}

/// Maximum difference between the times that two processes compute for the beginning of one boot.
const SAME_BEGINNING: Duration = Duration::from_secs(1);

pub fn lend_local(host: &dyn Host, span: Duration) -> Result<Lease> {
    let ends = |now: Duration| u64::try_from(now.saturating_add(span).as_millis()).unwrap_or(u64::MAX);
    let boot = host.pid_space()?.boot;
    Ok(Lease { clock: LeaseClock::Boot(boot), ends: ends(kernel_time(host)?), wall: ends(host.wall()) })
}

/// Zero if the lease has expired.
pub fn remaining_local(host: &dyn Host, lease: &Lease) -> Result<Duration> {
    let (kernel_time, wall) = (kernel_time(host)?, host.wall());
    let is_this_boot = matches!(&lease.clock, LeaseClock::Boot(boot) if *boot == host.pid_space()?.boot);
    let began = Duration::from_millis(lease.wall.saturating_sub(lease.ends));
    let is_same_boot = is_this_boot || wall.saturating_sub(kernel_time).abs_diff(began) <= SAME_BEGINNING;
    let (ends, now) = if is_same_boot { (lease.ends, kernel_time) } else { (lease.wall, wall) };
    Ok(Duration::from_millis(ends).saturating_sub(now))
}

/// CLOCK_BOOTTIME as it is outside of all time namespaces.
fn kernel_time(host: &dyn Host) -> Result<Duration> {
    let offset = host.boottime_offset()?;
    let (now, amount) = (host.boottime(), Duration::from_millis(offset.unsigned_abs()));
    Ok(if offset < 0 { now.saturating_add(amount) } else { now.saturating_sub(amount) })
}

/// Maximum step between two times of a store that keeps whole seconds. FAT keeps every second one.
const COARSE_TICK: Duration = Duration::from_secs(2);

/// Maximum step between two times that a kernel gives to files, plus a millisecond for rounding.
const TICK: Duration = Duration::from_millis(11);

/// Number of remembered leases at which csalock forgets those that expired long ago.
const MANY: usize = 1024;

pub fn lend_shared(host: &dyn Host, span: Duration, store_time: impl FnOnce() -> Result<Duration>) -> Result<Lease> {
    let lease = lend_local(host, span)?;
    let begun = LeaseStart {
        boot: boot_of(&host.pid_space()?.boot),
        at: kernel_time(host)?.as_micros() as u64,
        span: span.as_millis() as u64,
    };
    let now = store_time()?;
    let ends = now.saturating_add(span).saturating_add(tick(now)).as_millis() as u64;
    Ok(Lease { clock: LeaseClock::FileSystem(begun), ends, ..lease })
}

/// Maximum amount by which the true time may be later than this time of the store.
fn tick(time: Duration) -> Duration {
    if time.subsec_nanos() == 0 { COARSE_TICK } else { TICK }
}

/// Minimum time to live of a lease, for its holder; zero if it has expired.
pub fn remaining_shared(
    host: &dyn Host,
    lease: &Lease,
    store_time: impl FnOnce() -> Result<Duration>,
) -> Result<Duration> {
    match &lease.clock {
        LeaseClock::FileSystem(begun) if begun.boot == boot_of(&host.pid_space()?.boot) => {
            let ends = Duration::from_micros(begun.at).saturating_add(span_of(begun));
            Ok(ends.saturating_sub(kernel_time(host)?))
        }
        // Another host started the lease for a grant of this host.
        LeaseClock::FileSystem(begun) => {
            // The expiry was rounded up, and the time may have been rounded down.
            let now = store_time()?;
            let latest = now.saturating_add(tick(now) * 2);
            Ok(Duration::from_millis(lease.ends).saturating_sub(latest).min(span_of(begun)))
        }
        // Another store's lease has expired, as any unknown lease has.
        LeaseClock::Etcd(_) => Ok(Duration::ZERO),
        LeaseClock::Boot(_) => remaining_local(host, lease),
    }
}

fn span_of(begun: &LeaseStart) -> Duration {
    Duration::from_millis(begun.span)
}

/// The times since which this process knows leases, on this host's clock.
#[derive(Default)]
pub struct Seen(Mutex<BTreeMap<Key, Since>>);

/// Values that no two leases share.
type Key = (u64, u64, u64, u64);

#[derive(Clone, Copy)]
struct Since {
    /// CLOCK_BOOTTIME at which the lease was certainly in its record.
    at: Duration,
    span: Duration,
    /// True if the next process of this host can determine that time too.
    is_noted: bool,
}

impl Seen {
    /// Returns the time until this host considers a lease expired, with these sightings in its record. Earlier time
    /// that cannot be proven does not count.
    pub fn until_over(
        &self,
        host: &dyn Host,
        lease: &Lease,
        sightings: &[Sighting],
        store_time: impl FnOnce() -> Result<Duration>,
    ) -> Result<Duration> {
        let LeaseClock::FileSystem(begun) = &lease.clock else { return remaining_shared(host, lease, store_time) };
        let Since { at, span, .. } = self.since(host, (lease, begun), sightings, store_time)?;
        Ok(at.saturating_add(span).saturating_sub(kernel_time(host)?))
    }

    /// Sightings of these leases that the next process of this host needs.
    pub fn to_note(
        &self,
        host: &dyn Host,
        leases: &[&Lease],
        sightings: &[Sighting],
        store_time: impl Fn() -> Result<Duration>,
    ) -> Result<Vec<Sighting>> {
        let mut unknown = Vec::new();
        for lease in leases {
            let LeaseClock::FileSystem(begun) = &lease.clock else { continue };
            let since = self.since(host, (lease, begun), sightings, &store_time)?;
            unknown.extend((!since.is_noted).then_some((*lease, since.at)));
        }
        if unknown.is_empty() {
            return Ok(Vec::new());
        }
        let (boot, now, store) = (boot_of(&host.pid_space()?.boot), kernel_time(host)?, store_time()?);
        let at = |at: Duration| ClockReading { boottime: at, store: store.saturating_sub(now.saturating_sub(at)) };
        Ok(unknown.into_iter().map(|(lease, seen)| Sighting { lease: lease.clone(), boot, at: at(seen) }).collect())
    }

    fn since(
        &self,
        host: &dyn Host,
        (lease, begun): (&Lease, &LeaseStart),
        sightings: &[Sighting],
        store_time: impl FnOnce() -> Result<Duration>,
    ) -> Result<Since> {
        let key = (begun.boot, begun.at, lease.ends, lease.wall);
        if let Some(known) = guarded(&self.0).get(&key) {
            return Ok(*known);
        }
        let (boot, now) = (boot_of(&host.pid_space()?.boot), kernel_time(host)?);
        let is_ours = begun.boot == boot || sightings.iter().any(|seen| seen.boot == boot && seen.lease == *lease);
        // A store that does not report its time proves nothing.
        let store = is_ours.then(|| store_time().ok()).flatten();
        let known = store.and_then(|store| age(lease, sightings, boot, &ClockReading { boottime: now, store }));
        let at = now.saturating_sub(known.unwrap_or_default());
        let since = Since { at, span: span_of(begun), is_noted: known.is_some() };
        let mut all = guarded(&self.0);
        if all.len() % MANY == MANY - 1 {
            all.retain(|_, known| known.at.saturating_add(known.span * 2) > now);
        }
        all.insert(key, since);
        Ok(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::Fake;

    const SECOND: Duration = Duration::from_secs(1);
    const HOUR: Duration = Duration::from_secs(3600);

    /// Returns a host of this boot that was started ten hours ago.
    fn host(boot: &str) -> Fake {
        let host = Fake::new(1);
        host.reboot(boot);
        host.pass(10 * HOUR);
        host
    }

    fn lease(host: &Fake, store: Duration) -> Lease {
        lend_shared(host, 60 * SECOND, || Ok(store)).unwrap()
    }

    fn left(seen: &Seen, host: &Fake, lease: &Lease, sightings: &[Sighting], store: Duration) -> Duration {
        seen.until_over(host, lease, sightings, || Ok(store)).unwrap()
    }

    fn noted(seen: &Seen, host: &Fake, lease: &Lease, store: Duration) -> Vec<Sighting> {
        seen.to_note(host, &[lease], &[], || Ok(store)).unwrap()
    }

    #[test]
    fn a_lease_of_another_host_expires_after_its_duration_under_observation() {
        let here = host("here");
        for store in [HOUR, 10 * HOUR, 20 * HOUR] {
            let (seen, lease) = (Seen::default(), lease(&host("there"), 10 * HOUR));
            assert_eq!(left(&seen, &here, &lease, &[], store), 60 * SECOND);
            here.pass(59 * SECOND);
            assert_eq!(left(&seen, &here, &lease, &[], store), SECOND);
            here.pass(SECOND);
            assert_eq!(left(&seen, &here, &lease, &[], store), Duration::ZERO);
        }
    }

    #[test]
    fn a_lease_that_was_renewed_is_counted_anew() {
        let (here, there, seen) = (host("here"), host("there"), Seen::default());
        let first = lease(&there, HOUR);
        left(&seen, &here, &first, &[], HOUR);
        here.pass(50 * SECOND);
        // The store's clock and the wall clock do not advance.
        there.pass(SECOND);
        there.set_wall(Duration::from_millis(first.wall).saturating_sub(60 * SECOND));
        let renewed = lease(&there, HOUR);
        assert_eq!((renewed.ends, renewed.wall), (first.ends, first.wall));
        assert_eq!(left(&seen, &here, &renewed, &[], HOUR), 60 * SECOND);
    }

    #[test]
    fn the_next_process_of_a_host_goes_on_counting() {
        let (here, lease) = (host("here"), lease(&host("there"), HOUR));
        let first = Seen::default();
        here.pass(SECOND);
        left(&first, &here, &lease, &[], HOUR);
        here.pass(10 * SECOND);
        let sightings = noted(&first, &here, &lease, HOUR + 10 * SECOND);
        assert_eq!(sightings.len(), 1);
        here.pass(20 * SECOND);
        let (second, now) = (Seen::default(), HOUR + 30 * SECOND);
        assert_eq!(left(&second, &here, &lease, &sightings, now), 30 * SECOND);
        assert_eq!(second.to_note(&here, &[&lease], &sightings, || Ok(now)).unwrap(), [], "it is noted already");
        here.pass(30 * SECOND);
        assert_eq!(left(&Seen::default(), &here, &lease, &sightings, now + 30 * SECOND), Duration::ZERO);
        assert_eq!(left(&Seen::default(), &host("elsewhere"), &lease, &sightings, now), 60 * SECOND);
    }

    #[test]
    fn a_host_counts_anew_after_a_step_of_the_stores_clock() {
        let (here, lease) = (host("here"), lease(&host("there"), 10 * HOUR));
        let sightings = noted(&Seen::default(), &here, &lease, 10 * HOUR);
        here.pass(61 * SECOND);
        for store in [HOUR, 20 * HOUR] {
            let seen = Seen::default();
            assert_eq!(left(&seen, &here, &lease, &sightings, store), 60 * SECOND);
            assert_eq!(seen.to_note(&here, &[&lease], &sightings, || Ok(store)).unwrap().len(), 1);
        }
    }

    #[test]
    fn a_holder_never_trusts_a_lease_beyond_its_end() {
        // The lease starts late in one second, and the read is late in another.
        let (here, lease) = (host("here"), lease(&host("there"), HOUR));
        let left = remaining_shared(&here, &lease, || Ok(HOUR + 10 * SECOND)).unwrap();
        assert!(left <= 60 * SECOND - 10 * SECOND - COARSE_TICK, "{left:?}");
    }

    #[test]
    fn the_host_that_began_a_lease_knows_its_age_and_a_clone_of_that_host_does_not() {
        let there = host("boot");
        let lease = lease(&there, HOUR);
        there.pass(60 * SECOND);
        let now = HOUR + 60 * SECOND;
        assert!(left(&Seen::default(), &there, &lease, &[], now) <= COARSE_TICK);
        assert_eq!(remaining_shared(&there, &lease, || panic!("the clock of the store")), Ok(Duration::ZERO));
        // The clone resumes from the same snapshot, a minute earlier than the other host.
        let clone = host("boot");
        clone.pass(60 * SECOND);
        assert_eq!(left(&Seen::default(), &clone, &lease, &[], HOUR), 60 * SECOND);
    }

    #[test]
    fn a_store_that_does_not_tell_its_time_proves_nothing() {
        let there = host("boot");
        let lease = lease(&there, HOUR);
        there.pass(HOUR);
        let silent = || Err(lock::error::Error::new(lock::error::ErrorKind::InputOutput, "no", ""));
        assert_eq!(Seen::default().until_over(&there, &lease, &[], silent), Ok(60 * SECOND));
    }

    #[test]
    fn a_lease_reported_in_whole_seconds_ends_later() {
        let lease = |store| lease(&host("there"), store).ends;
        assert_eq!(lease(HOUR), 3_662_000);
        assert_eq!(lease(HOUR + Duration::from_micros(500)), 3_660_011);
    }
}
