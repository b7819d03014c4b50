//! The lifetime of a grant, and the leases that limit it.

use serde::{Deserialize, Serialize};

use super::codec::text;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lifetime {
    /// The grant lasts while its owner lives.
    WhileOwnerLives,
    /// The grant lasts while its owner lives, for at most this many milliseconds; the lease has not started yet.
    Ttl(u64),
    /// The grant lasts while its owner lives, until the lease is over.
    ExpiresAt(Lease),
    /// The grant lasts while its owner lives, by renewed leases of this many milliseconds; none has started yet.
    KeepalivePending(u64),
    /// The grant lasts while its owner lives, until the lease is over; the keeper renews the lease before that.
    Keepalive(Lease),
    /// The grant is over: the process that renewed it saw its owner die.
    OwnerDied,
    /// The grant lasts until it is released.
    UntilReleased,
}

impl Lifetime {
    /// Returns the lease that limits this lifetime, if the lease has started.
    pub fn lease(&self) -> Option<&Lease> {
        match self {
            Lifetime::ExpiresAt(lease) | Lifetime::Keepalive(lease) => Some(lease),
            Lifetime::WhileOwnerLives
            | Lifetime::Ttl(_)
            | Lifetime::KeepalivePending(_)
            | Lifetime::OwnerDied
            | Lifetime::UntilReleased => None,
        }
    }
}

/// An end time on a clock that all users of the store share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Clock that the lease counts on.
    pub clock: LeaseClock,
    /// End on that clock, in milliseconds.
    pub ends: u64,
    /// End in milliseconds since 1970, on the starter's wall clock: for display, and for decisions after a reboot.
    pub wall: u64,
}

/// Clocks that a lease may count on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseClock {
    /// CLOCK_BOOTTIME of one boot.
    Boot(#[serde(with = "text")] String),
    /// CLOCK_BOOTTIME of each host that sees the lease, because a user may set the clock of a file system. A host takes
    /// the lease for over after it was in the record for its whole span. The end is on the clock by which the store's
    /// file system stamps new files.
    FileSystem(Begun),
    /// etcd's clock, for the lease with this id. Only etcd knows when that lease ends.
    Etcd(u64),
}

/// Start of a lease on its holder's host. No two leases have the same start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    /// Boot of the host that started the lease ([`super::boot_of`]).
    pub boot: u64,
    /// Start in microseconds on that host's CLOCK_BOOTTIME.
    pub at: u64,
    /// Duration of the lease in milliseconds.
    pub span: u64,
}
