//! The expiry time of the lease of a command, shared by two processes: the supervisor ends the command before that time,
//! and the keeper renews the lease.
//!
//! The processes share the memory from before the fork. All times in it are milliseconds on CLOCK_BOOTTIME.

#![expect(unsafe_code, reason = "memory that survives a fork as one and the same has to be mapped by hand")]

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::signal::Signal;

use engine::lease_schedule::{LeaseSchedule, Pause, PauseStep, STOP_CHECK_INTERVAL, StopTimes};
use lock::error::{Error, ErrorKind, Result};

/// Maximum number of locks; together with the other fields they fit into a page.
const MOST_LOCKS: usize = 4000;

#[derive(Debug)]
pub struct SharedLeaseEnd {
    /// 0 if the lease does not expire, or its end is not known.
    ends: AtomicU64,
    /// A keeper had to kill the command.
    pub was_killed: AtomicBool,
    /// The record lacks the success of the command in its slot.
    pub is_unrecorded: AtomicBool,
    /// While csalock has stopped the command: the time until which at most. Otherwise 0.
    paused_until: AtomicU64,
    /// The locks that the command is known to have released.
    released: [AtomicBool; MOST_LOCKS],
}

impl SharedLeaseEnd {
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

    /// `None`: the lease does not expire.
    pub fn store(&self, ends: Option<Duration>) {
        self.ends.store(ends.map_or(0, |ends| (ends.as_millis() as u64).max(1)), Ordering::SeqCst);
    }

    /// `None` if it does not expire or is not known.
    pub fn load(&self) -> Option<Duration> {
        let ends = self.ends.load(Ordering::SeqCst);
        (ends > 0).then(|| Duration::from_millis(ends))
    }

    /// Records that the command released the lock with this index. Returns false if the index has no room.
    pub fn release(&self, at: usize) -> bool {
        self.released.get(at).map(|released| released.store(true, Ordering::SeqCst)).is_some()
    }

    /// Ends the pause. Returns true if one of the processes had stopped the command.
    pub fn end_pause(&self) -> bool {
        self.paused_until.swap(0, Ordering::SeqCst) != 0
    }

    pub fn is_released(&self, at: usize) -> bool {
        self.released.get(at).is_some_and(|released| released.load(Ordering::SeqCst))
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
