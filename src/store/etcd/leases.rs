//! Leases that we asked for, and whose keys nobody has stored yet.
//!
//! A lease is over when its key is gone. To ask for it, and to put that key, would cost each taking two requests more that
//! are waited for. So its number is ours to choose, it is asked for without waiting for the answer, and the next
//! transaction of this process, which is the one that makes it mean something, puts its key as well. If etcd does not
//! know the lease by then, it is asked for once more.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A lease without its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) id: u64,
    /// How long it is for etcd.
    pub(super) seconds: u64,
    /// When it ends on CLOCK_BOOTTIME, at the earliest.
    pub(super) ends: Duration,
}

/// What is known here about leases.
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
    /// whatever reads say: else a server whose reads are stale has the caller try the same transaction again and again.
    pub(super) fn add_lasting(&self, id: u64, until: Duration) {
        self.lasting().push((id, until));
    }

    /// Whether a transaction found this lease's key a short while ago.
    pub(super) fn is_lasting(&self, id: u64, now: Duration) -> bool {
        let mut lasting = self.lasting();
        lasting.retain(|(_, until)| *until > now);
        lasting.iter().any(|(lasting, _)| *lasting == id)
    }

    pub(super) fn add(&self, pending: Pending) {
        self.all().push(pending);
    }

    /// Those that still last.
    pub(super) fn pending(&self, now: Duration) -> Vec<Pending> {
        let mut all = self.all();
        all.retain(|pending| pending.ends > now);
        all.clone()
    }

    /// When this one ends, if its key is not stored.
    pub(super) fn ends(&self, id: u64) -> Option<Duration> {
        self.all().iter().find(|pending| pending.id == id).map(|pending| pending.ends)
    }

    /// These have their keys, or need none any more.
    pub(super) fn settle(&self, settled: &[Pending]) {
        self.all().retain(|pending| !settled.contains(pending));
    }

    /// This one needs no key any more. Whether it had none.
    pub(super) fn forget(&self, id: u64) -> bool {
        self.lasting().retain(|(lasting, _)| *lasting != id);
        let mut all = self.all();
        let before = all.len();
        all.retain(|pending| pending.id != id);
        all.len() < before
    }
}
