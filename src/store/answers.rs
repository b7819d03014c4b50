//! How many calls stores have answered in this process: by that a server that is slow is told from one that is silent.

use std::sync::atomic::{AtomicU64, Ordering};

static ANSWERS: AtomicU64 = AtomicU64::new(0);

/// Their number so far.
pub fn answers() -> u64 {
    ANSWERS.load(Ordering::Relaxed)
}

/// Counts this answer, and hands it on.
pub(super) fn answered<T>(answer: T) -> T {
    ANSWERS.fetch_add(1, Ordering::Relaxed);
    answer
}
