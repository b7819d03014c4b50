//! Times that may be wrong: in builds for tests, the wall clock and the times of files and servers can be moved.

use std::time::Duration;

/// Seconds by which this process sees the wall clock, and the times of files and servers, later than they are, in builds
/// for tests.
#[cfg(debug_assertions)]
pub static OFFSETS: std::sync::OnceLock<[i64; 2]> = std::sync::OnceLock::new();

pub(super) fn wall(time: Duration) -> Duration {
    #[cfg(debug_assertions)]
    let time = moved(time, 0);
    time
}

/// Returns the time of a file, since 1970, from its seconds and nanoseconds. All comparisons with a clock use it.
pub fn file_time(seconds: i64, nanoseconds: i64) -> Duration {
    let time = Duration::new(seconds.max(0) as u64, nanoseconds.max(0) as u32);
    #[cfg(debug_assertions)]
    let time = moved(time, 1);
    time
}

/// Returns a time of a server as this process sees it, in builds for tests moved as the times of files.
pub fn server_time(time: Duration) -> Duration {
    #[cfg(debug_assertions)]
    let time = moved(time, 1);
    time
}

#[cfg(debug_assertions)]
fn moved(time: Duration, clock: usize) -> Duration {
    let by = OFFSETS.get().map_or(0, |offsets| offsets[clock]);
    Duration::new(time.as_secs().saturating_add_signed(by), time.subsec_nanos())
}
