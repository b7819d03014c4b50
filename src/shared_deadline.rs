//! When the lease ends by which a command holds, as several of our processes must know it: the one that takes the lock and
//! becomes the command, the guardian that ends the command before, and the keeper that renews.
//!
//! It is a number in memory that they share since before they forked, CLOCK_BOOTTIME in milliseconds; and beside it,
//! of which leases it is the end, as long as those are the first; whether the keeper had to kill the command; and which locks
//! the command released itself.

#![expect(unsafe_code, reason = "memory that survives a fork as one and the same has to be mapped by hand")]

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lock::{Lease, LeaseClock};

/// So many leases are known by their [`mark`]s: together with the rest they fill a page.
const MOST_MARKS: usize = 501;

/// Each word of [`Shared::released`] stands for so many locks.
const BITS: usize = u64::BITS as usize;

/// The end of a lease.
#[derive(Debug, Clone, Copy)]
pub struct SharedDeadline(&'static Shared);

#[derive(Debug)]
struct Shared {
    ends: AtomicU64,
    killed: AtomicU64,
    /// How many of the marks are those of the leases that end there.
    first: AtomicU64,
    released: [AtomicU64; 8],
    marks: [AtomicU64; MOST_MARKS],
}

impl SharedDeadline {
    /// Not known yet.
    const UNKNOWN: u64 = 0;

    /// In memory of its own, that is never given back.
    ///
    /// # Errors
    ///
    /// When there is none left.
    pub fn new() -> Result<SharedDeadline> {
        let failed = |errno: Errno| Error::new(Exit::System, format!("cannot share memory: {}", errno.desc()), "");
        let size = NonZeroUsize::MIN.saturating_add(size_of::<Shared>() - 1);
        // SAFETY: a fresh mapping, all zeros, at the start of a page, that stays to the end of each process.
        let shared = unsafe {
            let (access, kind) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED);
            mmap_anonymous(None, size, access, kind).map_err(failed)?.cast::<Shared>().as_ref()
        };
        Ok(SharedDeadline(shared))
    }

    /// The first of these leases ends then, and none was known before; `None`: there is no end.
    pub fn start(self, ends: Option<Duration>, leases: &[&Lease]) {
        self.store(ends);
        let known = leases.iter().zip(&self.0.marks);
        let count = known.map(|(lease, known)| known.store(lease_id(lease), Ordering::SeqCst)).count();
        self.0.first.store(count as u64, Ordering::SeqCst);
    }

    /// When this lease ends, at the earliest, if it is one of the first and nothing was said since.
    pub fn expiry_of(self, lease: &Lease) -> Option<Duration> {
        let first = self.0.marks.iter().take(self.0.first.load(Ordering::SeqCst) as usize);
        let is_first = first.map(|known| known.load(Ordering::SeqCst)).any(|known| known == lease_id(lease));
        self.load().filter(|_| is_first)
    }

    /// It ends then; `None`: there is no end.
    pub fn store(self, ends: Option<Duration>) {
        self.0.first.store(0, Ordering::SeqCst);
        let ends = ends.map_or(u64::MAX, |ends| (ends.as_millis() as u64).max(1));
        self.0.ends.store(ends, Ordering::SeqCst);
    }

    /// When it ends, if it does and that is known.
    pub fn load(self) -> Option<Duration> {
        match self.0.ends.load(Ordering::SeqCst) {
            SharedDeadline::UNKNOWN | u64::MAX => None,
            ends => Some(Duration::from_millis(ends)),
        }
    }

    /// The keeper kills the command.
    pub fn set_killed(self) {
        self.0.killed.store(1, Ordering::SeqCst);
    }

    /// The keeper saw that the command released the lock with this index. Returns false if there is no room to say so.
    pub fn release(self, at: usize) -> bool {
        let word = self.0.released.get(at / BITS);
        word.map(|word| word.fetch_or(1 << (at % BITS), Ordering::SeqCst)).is_some()
    }

    /// The same of the first locks, so many.
    pub fn release_first(self, count: usize) {
        (0..count).all(|at| self.release(at));
    }

    /// Whether it saw that.
    pub fn is_released(self, at: usize) -> bool {
        let word = self.0.released.get(at / BITS);
        word.is_some_and(|word| word.load(Ordering::SeqCst) & (1 << (at % BITS)) != 0)
    }

    /// Whether the keeper had to kill the command.
    pub fn was_killed(self) -> bool {
        self.0.killed.load(Ordering::SeqCst) != 0
    }
}

/// What parts the leases of one holder: on one clock, those that end at one time are as good as one.
fn lease_id(lease: &Lease) -> u64 {
    match lease.clock {
        LeaseClock::Etcd(id) => id,
        LeaseClock::Boot(_) => lease.ends,
        LeaseClock::FileSystem(begun) => begun.at,
    }
}
