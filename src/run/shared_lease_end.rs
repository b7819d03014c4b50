//! The expiry time of the lease of a command, shared by two processes: the supervisor ends the command before that time,
//! and the keeper renews the lease.
//!
//! The processes share the memory from before the fork. All times in it are milliseconds on CLOCK_BOOTTIME.

#![expect(unsafe_code, reason = "memory that survives a fork as one and the same has to be mapped by hand")]

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::signal::Signal;

use crate::engine::OpenLockSet;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::{Grant, Lease, LeaseClock};
use crate::run::lease_schedule::{LeaseSchedule, Pause, PauseStep, STOP_CHECK_INTERVAL, StopTimes};

/// Maximum number of locks; together with the other fields they fill a page.
const MOST_LOCKS: usize = 507;

const RELEASED: u64 = u64::MAX;

#[derive(Debug)]
pub struct SharedLeaseEnd {
    ends: AtomicU64,
    killed: AtomicU64,
    /// 1 while the record lacks the success of the command in its slot.
    unrecorded: AtomicU64,
    /// While csalock has stopped the command: the time until which at most. Otherwise 0.
    paused_until: AtomicU64,
    /// 1 while the leases in `locks` expire at `ends`, the earliest of them.
    is_first: AtomicU64,
    /// For each lock, the [`lease_id`] of its first lease or [`RELEASED`].
    locks: [AtomicU64; MOST_LOCKS],
}

impl SharedLeaseEnd {
    const UNKNOWN: u64 = 0;

    /// Allocates shared memory that is never freed.
    pub fn new() -> Result<&'static SharedLeaseEnd> {
        let failed = |errno: Errno| Error::new(ErrorKind::System, format!("cannot share memory: {}", errno.desc()), "");
        let size = NonZeroUsize::MIN.saturating_add(size_of::<SharedLeaseEnd>() - 1);
        // SAFETY: the mapping is fresh, zeroed and page-aligned, and stays to the end of each process.
        let shared = unsafe {
            let (access, kind) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED);
            mmap_anonymous(None, size, access, kind).map_err(failed)?.cast::<SharedLeaseEnd>().as_ref()
        };
        Ok(shared)
    }

    /// These grants have just started; no time was known before.
    pub fn start(&self, opened: &OpenLockSet<'_>, grants: &[Grant]) {
        self.store(opened.lease_ends(grants));
        for (lock, grant) in self.locks.iter().zip(grants) {
            lock.store(grant.lifetime.lease().map_or(0, lease_id), Ordering::SeqCst);
        }
        self.is_first.store(1, Ordering::SeqCst);
    }

    /// `None` unless `start` had this lease and no other time followed.
    pub fn expiry_of(&self, at: usize, lease: &Lease) -> Option<Duration> {
        let is_first = self.is_first.load(Ordering::SeqCst) == 1 && self.lock(at) == Some(lease_id(lease));
        self.load().filter(|_| is_first)
    }

    /// `None`: the lease does not expire.
    pub fn store(&self, ends: Option<Duration>) {
        let ends = ends.map_or(u64::MAX, |ends| (ends.as_millis() as u64).max(1));
        if ends != self.ends.load(Ordering::SeqCst) {
            self.is_first.store(0, Ordering::SeqCst);
            self.ends.store(ends, Ordering::SeqCst);
        }
    }

    /// `None` if it does not expire or is not known.
    pub fn load(&self) -> Option<Duration> {
        match self.ends.load(Ordering::SeqCst) {
            SharedLeaseEnd::UNKNOWN | u64::MAX => None,
            ends => Some(Duration::from_millis(ends)),
        }
    }

    pub fn set_killed(&self) {
        self.killed.store(1, Ordering::SeqCst);
    }

    /// Notes whether the command has succeeded in its slot and the record lacks that.
    pub fn set_unrecorded(&self, is_unrecorded: bool) {
        self.unrecorded.store(is_unrecorded.into(), Ordering::SeqCst);
    }

    pub fn is_unrecorded(&self) -> bool {
        self.unrecorded.load(Ordering::SeqCst) != 0
    }

    /// Records that the command released the lock with this index. Returns false if the index has no room.
    pub fn release(&self, at: usize) -> bool {
        self.locks.get(at).map(|lock| lock.store(RELEASED, Ordering::SeqCst)).is_some()
    }

    /// Ends the pause. Returns true if one of the processes had stopped the command.
    pub fn end_pause(&self) -> bool {
        self.paused_until.swap(0, Ordering::SeqCst) != 0
    }

    pub fn is_released(&self, at: usize) -> bool {
        self.lock(at) == Some(RELEASED)
    }

    fn lock(&self, at: usize) -> Option<u64> {
        self.locks.get(at).map(|lock| lock.load(Ordering::SeqCst))
    }

    /// A keeper had to kill the command.
    pub fn was_killed(&self) -> bool {
        self.killed.load(Ordering::SeqCst) != 0
    }
}

/// Each of the two processes stops and continues the command itself, because the other one may have been killed.
#[derive(Debug, Default)]
pub struct CommandPause {
    pause: Option<Pause>,
    has_stopped: bool,
}

impl CommandPause {
    /// Returns the signal that the command must get now, and the time of the next call while it must not run. `lease` has
    /// the limits at which this process acts, or is `None` if no lease ends; `is_stopped` tells if the command is stopped.
    pub fn step(
        &mut self,
        shared: &SharedLeaseEnd,
        lease: Option<(LeaseSchedule, StopTimes)>,
        now: Duration,
        is_stopped: impl FnOnce() -> bool,
    ) -> (Option<Signal>, Option<Duration>) {
        let paused_until = Duration::from_millis(shared.paused_until.load(Ordering::SeqCst));
        let mut pause = self.pause.or_else(|| lease.and_then(|(lease, due)| lease.pause(due, now)));
        if let Some(pause) = &mut pause {
            // The other process may have more patience.
            pause.until = pause.until.max(paused_until);
        }
        let step = pause.map(|pause| lease.map_or(PauseStep::Resume, |(lease, _)| pause.step(lease.ends, now)));
        self.pause = pause.filter(|_| step != Some(PauseStep::Resume));
        match (step, pause) {
            (Some(PauseStep::Wait), Some(pause)) => {
                // A command that a user has stopped stays stopped afterwards.
                let stop = (!is_stopped()).then_some(Signal::SIGSTOP);
                if stop.is_some() {
                    self.has_stopped = true;
                    shared.paused_until.store(pause.until.as_millis() as u64, Ordering::SeqCst);
                }
                (stop, Some(pause.until.min(now + STOP_CHECK_INTERVAL)))
            }
            (Some(PauseStep::End), _) => {
                shared.end_pause();
                (None, None)
            }
            _ if lease.is_none_or(|(_, due)| now < due.term) => {
                let was_stopped = shared.end_pause() | std::mem::take(&mut self.has_stopped);
                (was_stopped.then_some(Signal::SIGCONT), None)
            }
            // The other process may have stopped the command.
            _ => (None, Some(paused_until).filter(|until| *until > now)),
        }
    }
}

/// Tells one holder's leases apart; leases on one clock with equal times are interchangeable.
fn lease_id(lease: &Lease) -> u64 {
    match lease.clock {
        LeaseClock::Etcd(id) => id,
        LeaseClock::Boot(_) => lease.ends,
        LeaseClock::FileSystem(begun) => begun.at,
    }
}
