//! The expiry time of the lease of a command, shared by three processes. The command acquires the lock, the supervisor
//! ends the command before that time, and the keeper renews the lease.
//!
//! The processes share the memory from before the fork. It has the expiry time on CLOCK_BOOTTIME in milliseconds, and
//! the leases that expire first, at that time. It also has a flag if the keeper had to kill the command, and the locks
//! that the command released itself.

#![expect(unsafe_code, reason = "memory that survives a fork as one and the same has to be mapped by hand")]

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};

use crate::engine::OpenLockSet;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::{Grant, Lease, LeaseClock};

/// Maximum number of leases, each with a [`lease_id`]; together with the other fields they fill a page.
const MOST_MARKS: usize = 501;

/// Number of locks in each word of [`Shared::released`].
const BITS: usize = u64::BITS as usize;

/// The expiry time of a lease in shared memory.
#[derive(Debug, Clone, Copy)]
pub struct SharedDeadline(&'static Shared);

#[derive(Debug)]
struct Shared {
    ends: AtomicU64,
    killed: AtomicU64,
    /// The number of marks in use, for the leases that expire at `ends`.
    first: AtomicU64,
    released: [AtomicU64; 8],
    marks: [AtomicU64; MOST_MARKS],
}

impl SharedDeadline {
    /// The value of `ends` before the expiry time is known.
    const UNKNOWN: u64 = 0;

    /// Allocates shared memory that is never freed.
    pub fn new() -> Result<SharedDeadline> {
        let failed = |errno: Errno| Error::new(ErrorKind::System, format!("cannot share memory: {}", errno.desc()), "");
        let size = NonZeroUsize::MIN.saturating_add(size_of::<Shared>() - 1);
        // SAFETY: the mapping is fresh, zeroed and page-aligned, and stays to the end of each process.
        let shared = unsafe {
            let (access, kind) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED);
            mmap_anonymous(None, size, access, kind).map_err(failed)?.cast::<Shared>().as_ref()
        };
        Ok(SharedDeadline(shared))
    }

    /// Sets the first expiry time of the leases of these grants, which have just started; no time was known before.
    pub fn start(self, opened: &OpenLockSet<'_>, grants: &[Grant]) {
        self.store(opened.lease_ends(grants));
        let leases = grants.iter().filter_map(|grant| grant.lifetime.lease()).zip(&self.0.marks);
        let count = leases.map(|(lease, mark)| mark.store(lease_id(lease), Ordering::SeqCst)).count();
        self.0.first.store(count as u64, Ordering::SeqCst);
    }

    /// Returns the earliest expiry time of this lease, if `start` had the lease and no `store` followed.
    pub fn expiry_of(self, lease: &Lease) -> Option<Duration> {
        let first = self.0.marks.iter().take(self.0.first.load(Ordering::SeqCst) as usize);
        let is_first = first.map(|known| known.load(Ordering::SeqCst)).any(|known| known == lease_id(lease));
        self.load().filter(|_| is_first)
    }

    /// Sets the expiry time; `None`: the lease does not expire.
    pub fn store(self, ends: Option<Duration>) {
        self.0.first.store(0, Ordering::SeqCst);
        let ends = ends.map_or(u64::MAX, |ends| (ends.as_millis() as u64).max(1));
        self.0.ends.store(ends, Ordering::SeqCst);
    }

    /// Returns the expiry time, if it exists and is known.
    pub fn load(self) -> Option<Duration> {
        match self.0.ends.load(Ordering::SeqCst) {
            SharedDeadline::UNKNOWN | u64::MAX => None,
            ends => Some(Duration::from_millis(ends)),
        }
    }

    /// Records that the keeper kills the command.
    pub fn set_killed(self) {
        self.0.killed.store(1, Ordering::SeqCst);
    }

    /// Records that the command released the lock with this index. Returns false if the index has no room.
    pub fn release(self, at: usize) -> bool {
        let word = self.0.released.get(at / BITS);
        word.map(|word| word.fetch_or(1 << (at % BITS), Ordering::SeqCst)).is_some()
    }

    /// Returns true if the command released the lock with this index.
    pub fn is_released(self, at: usize) -> bool {
        let word = self.0.released.get(at / BITS);
        word.is_some_and(|word| word.load(Ordering::SeqCst) & (1 << (at % BITS)) != 0)
    }

    /// Returns true if the keeper had to kill the command.
    pub fn was_killed(self) -> bool {
        self.0.killed.load(Ordering::SeqCst) != 0
    }
}

/// Returns the id that tells one holder's leases apart; leases on one clock with equal times are interchangeable.
fn lease_id(lease: &Lease) -> u64 {
    match lease.clock {
        LeaseClock::Etcd(id) => id,
        LeaseClock::Boot(_) => lease.ends,
        LeaseClock::FileSystem(begun) => begun.at,
    }
}
