//! The interface to a machine: its clocks, its identity, the liveness of its processes, and waiting.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use lock::{DescriptorLock, Grant, Handle, HandleHash, Liveness, PidDomain, PidSpace, ProcessId, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Every process that uses the store runs under this kernel, or ran under it before a reboot.
    Local,
    Shared,
}

pub trait Subscription {
    /// Becomes readable when a notification may have come.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// True after a notification or the end of the subscription; the caller then reads and subscribes anew.
    fn is_notified(&mut self) -> bool;
}

pub trait Host: Send + Sync {
    /// CLOCK_BOOTTIME, which counts suspend and cannot be set.
    fn boottime(&self) -> Duration;

    /// Milliseconds by which [`Host::boottime`] is ahead of the clock of the kernel, in a time namespace.
    fn boottime_offset(&self) -> Result<i64> {
        Ok(0)
    }

    /// Since 1970, for display and as the lower bound of new tokens.
    fn wall(&self) -> Duration;

    fn domain(&self) -> Result<PidDomain>;

    /// A part of the pid domain that needs fewer files to be read.
    fn pid_space(&self) -> Result<PidSpace> {
        self.domain().map(PidSpace::from)
    }

    /// Outside of the first pid and time namespaces: users of the same store may then not see if this process lives.
    fn is_in_container(&self) -> bool {
        false
    }

    fn name(&self) -> String;

    fn uid(&self) -> u32;

    fn this_process(&self) -> Result<ProcessId>;

    fn process(&self, pid: i32) -> Result<Option<ProcessId>>;

    /// Visible ones that may hold locks and continue only when this process ends, innermost first; `some_time_later` more
    /// precisely.
    fn blocked_callers(&self, called: i32, some_time_later: bool) -> Vec<ProcessId>;

    /// False only if the called process is certainly none of these processes and was called by none of them.
    fn may_be_called_by(&self, _called: i32, _processes: &[ProcessId]) -> bool {
        true
    }

    fn liveness(&self, domain: &PidDomain, process: &ProcessId, reach: Scope) -> Liveness;

    /// It has ended, and its running parent `supervisor`, which has not waited for it yet, is about to release.
    fn is_released_by(&self, supervisor: &ProcessId, domain: &PidDomain, process: &ProcessId) -> bool;

    /// Whether a process has this lock, which a process of this domain took.
    fn descriptor(&self, _domain: &PidDomain, _lock: &DescriptorLock, _reach: Scope) -> Liveness {
        Liveness::Unknown
    }

    /// Whether this process, which is seen here, has this lock; dead if it certainly has not.
    fn descriptor_of(&self, _process: &ProcessId, _lock: &DescriptorLock) -> Liveness {
        Liveness::Unknown
    }

    /// A process that is seen here, in a frozen control group.
    fn is_frozen(&self, _domain: &PidDomain, _process: &ProcessId) -> bool {
        false
    }

    /// Its command is stopped, and its supervisor and keeper were killed, which would end it with the lease.
    fn is_abandoned(&self, _grant: &Grant) -> bool {
        false
    }

    fn sleep(&self, span: Duration);

    /// A signal that ends the waits of this process is pending and unread.
    fn is_interrupted(&self) -> bool;

    /// Records in this machine's memory, until shutdown, that this machine wrote the entry with this key. The `text` is
    /// only for this user.
    fn leave_witness(&self, key: &str, text: &[u8]);

    /// No other machine has it, even if resumed from the same snapshot, if the entry is younger than the snapshot.
    fn has_witness(&self, key: &str, uid: u32) -> bool;

    fn remove_witness(&self, key: &str);

    /// Removes this user's witnesses of at least this age, for every store, and those for dead processes.
    fn remove_old_witnesses(&self, age: Duration);

    fn random(&self) -> Result<[u8; 16]>;

    fn new_handle(&self) -> Result<Handle> {
        Ok(Handle::new(self.random()?))
    }

    /// No other call returns this number, on no host. It may be guessed.
    fn unique_number(&self) -> Result<u64> {
        self.random().map(|random| u64::from_be_bytes(*random.first_chunk().unwrap_or(&[0; 8])))
    }

    /// From now on [`Host::wake`] with this handle hash reaches it. A readable `interrupt` ends its waits.
    fn wake_set<'a>(&self, proof: &HandleHash, interrupt: Vec<BorrowedFd<'a>>) -> Result<Box<dyn WakeSet + 'a>>;

    /// Tells if a process in reach listens. A wake-up can be lost, so no caller relies on it.
    fn wake(&self, listener: WakeAddress<'_>) -> bool;

    /// Lets woken processes run first: the kernel wakes a receiver on the CPU of the sender, which usually sleeps next.
    fn give_way(&self) {}
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeAddress<'a> {
    /// Until it is granted the lock.
    Waiter(&'a HandleHash),
    Supervisor(&'a HandleHash),
}

/// A waiter's wake-up sources. An event before a wait, but after the creation of the wake set, ends that wait.
pub trait WakeSet {
    /// Waits for the waiter's own wake-up socket, for the end of a watched process, for the waiter's channel in the store,
    /// for the interrupt, or until `at_most` is over. The subscription ends after a wake-up.
    fn wait(
        &mut self,
        watched: &[Watched],
        subscription: &mut Option<Box<dyn Subscription>>,
        at_most: Duration,
    ) -> Result<WakeReason>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watched {
    pub process: ProcessId,
    /// A parent that notices its end, and then changes the record and wakes the waiter.
    pub supervisor: Option<ProcessId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeReason {
    LookAgain,
    Interrupted,
    TimeOver,
}
