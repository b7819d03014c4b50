//! The lifetime of a grant, and the leases that limit it.
//!
//! A host knows how long a lease has been in its record without a clock that others may set. The holder of a lease
//! counts its span on its own CLOCK_BOOTTIME, from before it writes the lease. So a host that has seen one lease for
//! its whole span on its own CLOCK_BOOTTIME knows that it is over for its holder. A waiting process remembers when it
//! first saw the lease, and leaves a [`Sighting`] in the record for the next caller. The host that started a lease
//! finds the start in the lease itself.
//!
//! A boot id does not prove that CLOCK_BOOTTIME is that of the sighting: virtual machines resumed from one snapshot
//! share the boot, and containers may have offsets. So a sighting contains the store's time too. It counts only while
//! both clocks have advanced alike since, and then by the lesser advance. After a step of the store's clock the host
//! counts from the beginning.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::line::checksum;
use super::text;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lifetime {
    #[default]
    WhileOwnerLives,
    /// While the owner lives, for at most this many milliseconds; the lease has not started yet.
    Ttl(u64),
    /// While the owner lives, until the lease is over.
    ExpiresAt(Lease),
    /// While the owner lives, by renewed leases of this many milliseconds; none has started yet.
    KeepalivePending(u64),
    /// While the owner lives, until the lease is over; the keeper renews the lease before that.
    Keepalive(Lease),
    /// Over: the process that renewed the grant saw its owner die.
    OwnerDied,
    UntilReleased,
    /// While an open file description has this lock, in whatever processes: `csalock lock --fd`.
    Descriptor(DescriptorLock),
}

/// A lock of flock(2), as the kernel lists it: proc_locks(5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescriptorLock {
    /// Device and inode, in the kernel's words.
    #[serde(with = "text")]
    pub place: String,
    /// The process that called flock(2), in the pid namespace of the owner. It has ended, and so the kernel lists it as 0
    /// outside of the first pid namespace.
    pub taker: i32,
}

impl DescriptorLock {
    /// Hosts number the devices of a file system that they share in different ways.
    pub fn is_of_same_file(&self, other: &DescriptorLock, is_same_host: bool) -> bool {
        let inode = |lock: &DescriptorLock| lock.place.rsplit(':').next().map(str::to_string);
        self.place == other.place || (!is_same_host && inode(self) == inode(other))
    }
}

impl Lifetime {
    /// Lease that limits this lifetime, if it has started.
    pub fn lease(&self) -> Option<&Lease> {
        match self {
            Lifetime::ExpiresAt(lease) | Lifetime::Keepalive(lease) => Some(lease),
            _ => None,
        }
    }
}

/// An end time on a clock that all users of the store share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub clock: LeaseClock,
    /// End on that clock, in milliseconds.
    pub ends: u64,
    /// End in milliseconds since 1970, on the starter's wall clock: for display, and for decisions after a reboot.
    pub wall: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseClock {
    /// CLOCK_BOOTTIME of one boot.
    Boot(#[serde(with = "text")] String),
    /// CLOCK_BOOTTIME of each host that sees the lease, because a user may set the clock of a file system. A host takes
    /// the lease for over after its whole span in the record. The end, on the clock of the
    /// store, is for display.
    FileSystem(LeaseStart),
    /// etcd's clock, for the lease with this id. Only etcd knows when that lease ends.
    Etcd(u64),
}

/// Start of a lease on its holder's host. No two leases have the same start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseStart {
    /// Boot of the host that started the lease ([`super::boot_of`]).
    pub boot: u64,
    /// Start in microseconds on that host's CLOCK_BOOTTIME.
    pub at: u64,
    /// Duration of the lease in milliseconds.
    pub span: u64,
}

/// Maximum number of sightings in a record. Further hosts add none, and rely on the existing sightings.
pub const MOST_SIGHTINGS: usize = 128;

/// Maximum difference between the advances of two clocks. Some file systems store times in steps of one or two seconds.
const TOLERANCE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReading {
    pub boottime: Duration,
    /// Time of the store since 1970.
    pub store: Duration,
}

/// A lease that a host saw in a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sighting {
    pub lease: Lease,
    /// Boot of the host that saw the lease ([`boot_of`]).
    pub boot: u64,
    /// Time on the clocks when the host saw the lease for the first time.
    pub at: ClockReading,
}

/// Number of a boot in leases: a digest of the boot id.
pub fn boot_of(boot: &str) -> u64 {
    checksum(boot.as_bytes())
}

impl ClockReading {
    /// Lesser advance of the two clocks from this moment to `now`; `None` if the clocks disagree.
    fn advance(&self, now: &ClockReading) -> Option<Duration> {
        let own = now.boottime.checked_sub(self.boottime)?;
        // The clocks may differ by a thousandth of the advance, because no quartz is worse.
        let agrees = now.store.abs_diff(self.store.saturating_add(own)) <= TOLERANCE + own / 1000;
        agrees.then(|| own.min(now.store.saturating_sub(self.store)))
    }
}

/// Time that a lease has certainly been in its record, by the lease itself and the sightings in the record. `None` if
/// this boot has not seen the lease yet.
pub fn age(lease: &Lease, seen: &[Sighting], boot: u64, now: &ClockReading) -> Option<Duration> {
    let LeaseClock::FileSystem(begun) = &lease.clock else { return None };
    let began = ClockReading {
        boottime: Duration::from_micros(begun.at),
        store: Duration::from_millis(lease.ends.saturating_sub(begun.span)),
    };
    let own = (begun.boot == boot).then_some(began);
    let seen = seen.iter().filter(|seen| seen.boot == boot && seen.lease == *lease).map(|seen| seen.at);
    own.into_iter().chain(seen).filter_map(|at| at.advance(now)).max()
}
