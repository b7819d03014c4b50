//! Leases that this process requested, and whose keys are not stored yet.
//!
//! A lease is over when its key does not exist. To request it and to put that key would cost each acquisition two more
//! requests with a wait. The process therefore chooses the lease's id itself and requests the lease without waiting for
//! the answer. The next transaction of this process, which gives the lease its meaning, puts its key too. If etcd does
//! not know the lease by then, the process requests it again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Lease without its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) id: u64,
    /// Time to live for etcd, in seconds.
    pub(super) seconds: u64,
    /// Earliest end of the lease on CLOCK_BOOTTIME.
    pub(super) ends: Duration,
}

/// Knowledge of this process about leases.
#[derive(Debug, Default)]
pub(super) struct Leases {
    pending: Mutex<Vec<Pending>>,
    lasting: Mutex<Vec<(u64, Duration)>>,
}

impl Leases {
    fn all(&self) -> MutexGuard<'_, Vec<Pending>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lasting(&self) -> MutexGuard<'_, Vec<(u64, Duration)>> {
        self.lasting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a transaction found this lease's key. The lease counts as lasting until then, on CLOCK_BOOTTIME,
    /// despite later reads: stale reads would otherwise make the caller repeat the same transaction endlessly.
    pub(super) fn add_lasting(&self, id: u64, until: Duration) {
        self.lasting().push((id, until));
    }

    /// Returns true if a transaction found this lease's key a short while ago.
    pub(super) fn is_lasting(&self, id: u64, now: Duration) -> bool {
        let mut lasting = self.lasting();
        lasting.retain(|(_, until)| *until > now);
        lasting.iter().any(|(lasting, _)| *lasting == id)
    }

    pub(super) fn add(&self, pending: Pending) {
        self.all().push(pending);
    }

    /// Returns the pending leases that still last.
    pub(super) fn pending(&self, now: Duration) -> Vec<Pending> {
        let mut all = self.all();
        all.retain(|pending| pending.ends > now);
        all.clone()
    }

    /// Returns the end of this lease if its key is not stored.
    pub(super) fn ends(&self, id: u64) -> Option<Duration> {
        self.all().iter().find(|pending| pending.id == id).map(|pending| pending.ends)
    }

    /// Removes leases whose keys are stored or not needed any more.
    pub(super) fn settle(&self, settled: &[Pending]) {
        self.all().retain(|pending| !settled.contains(pending));
    }

    /// Removes a lease whose key is not needed any more. Returns true if its key was not stored.
    pub(super) fn forget(&self, id: u64) -> bool {
        self.lasting().retain(|(lasting, _)| *lasting != id);
        let mut all = self.all();
        let before = all.len();
        all.retain(|pending| pending.id != id);
        all.len() < before
    }
}
