//! When the lease ends by which a command holds, as several of our processes must know it: the one that takes the lock and
//! becomes the command, the guardian that ends the command before, and the keeper that renews.
//!
//! It is a number in memory that they share since before they forked, CLOCK_BOOTTIME in milliseconds; and beside it,
//! which lease that is, as long as it is the first, and whether the keeper had to kill the command.

#![expect(unsafe_code, reason = "memory that survives a fork as one and the same has to be mapped by hand")]

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lock::{Lease, LeaseClock};

/// The end of a lease.
#[derive(Debug, Clone, Copy)]
pub struct LeaseEnd {
    ends: &'static AtomicU64,
    /// [`mark`] of the lease, if it is the first.
    first: &'static AtomicU64,
    killed: &'static AtomicU64,
}

impl LeaseEnd {
    /// Not known yet.
    const UNKNOWN: u64 = 0;

    /// In memory of its own, that is never given back.
    ///
    /// # Errors
    ///
    /// When there is none left.
    pub fn new() -> Result<LeaseEnd> {
        let failed = |errno: Errno| Error::new(Exit::System, format!("cannot share memory: {}", errno.desc()), "");
        let size = NonZeroUsize::MIN.saturating_add(size_of::<[AtomicU64; 3]>() - 1);
        // SAFETY: a fresh mapping, all zeros, at the start of a page, that stays to the end of each process.
        let [ends, first, killed] = unsafe {
            let (access, kind) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED);
            mmap_anonymous(None, size, access, kind).map_err(failed)?.cast::<[AtomicU64; 3]>().as_ref()
        };
        Ok(LeaseEnd { ends, first, killed })
    }

    /// The first ends then, and is this one; `None`: there is no end.
    pub fn begin(self, first: Option<(Duration, &Lease)>) {
        self.set(first.map(|(ends, _)| ends));
        self.first.store(first.map_or(0, |(_, lease)| mark(lease)), Ordering::SeqCst);
    }

    /// When this lease ends, if it is the first and the last that we know of.
    pub fn of(self, lease: &Lease) -> Option<Duration> {
        self.get().filter(|_| self.first.load(Ordering::SeqCst) == mark(lease))
    }

    /// It ends then; `None`: there is no end.
    pub fn set(self, ends: Option<Duration>) {
        self.first.store(0, Ordering::SeqCst);
        let ends = ends.map_or(u64::MAX, |ends| (ends.as_millis() as u64).max(1));
        self.ends.store(ends, Ordering::SeqCst);
    }

    /// When it ends, if it does and that is known.
    pub fn get(self) -> Option<Duration> {
        match self.ends.load(Ordering::SeqCst) {
            LeaseEnd::UNKNOWN | u64::MAX => None,
            ends => Some(Duration::from_millis(ends)),
        }
    }

    /// The keeper kills the command.
    pub fn kills(self) {
        self.killed.store(1, Ordering::SeqCst);
    }

    /// Whether it did.
    pub fn has_killed(self) -> bool {
        self.killed.load(Ordering::SeqCst) != 0
    }
}

/// What parts the leases of one holder: on one clock, those that end at one time are as good as one.
fn mark(lease: &Lease) -> u64 {
    match lease.clock {
        LeaseClock::Etcd(id) => id,
        LeaseClock::Boot(_) | LeaseClock::FileSystem => lease.ends,
    }
}
