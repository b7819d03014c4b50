//! Bounds on elapsed time that hold on a crowded machine, too.

use std::time::{Duration, Instant};

/// A span as long as this machine needs for what an idle one does in `span`: on an idle machine, `span` itself.
///
/// The measure is how many processes share a processor, now and on average in the last minute.
pub(crate) fn fair(span: Duration) -> Duration {
    span.mul_f64(crowding())
}

/// Whether no more time than this has passed, as [`fair`] counts it.
pub(crate) fn is_within(begun: Instant, span: Duration) -> bool {
    let elapsed = begun.elapsed();
    elapsed < span || elapsed < fair(span)
}

fn crowding() -> f64 {
    // "0.20 0.18 0.12 1/80 11206": averages of 1, 5 and 15 minutes; those that can run, of all; the last pid.
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let mut fields = load.split([' ', '/']);
    let average: f64 = fields.next().and_then(|field| field.parse().ok()).unwrap_or_default();
    let now: f64 = fields.nth(2).and_then(|field| field.parse().ok()).unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    (average.max(now) / processors).max(1.0)
}
