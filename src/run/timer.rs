//! Waiting for descriptors, and a timer that continues while the machine is suspended: timerfd(2) on CLOCK_BOOTTIME.
//!
//! The timeouts of poll(2) stop during suspend, but leases expire meanwhile.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

pub fn boottime_timer() -> nix::Result<TimerFd> {
    TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)
}

/// Makes the timer readable from `at` on; `None`: never.
pub fn set_timer(timer: &TimerFd, at: Option<Duration>) {
    // A zero time would disable the timer.
    let at = at.map(|at| Expiration::OneShot(TimeSpec::from_duration(at.max(Duration::from_nanos(1)))));
    let _ = at.map_or_else(|| timer.unset(), |at| timer.set(at, TimerSetTimeFlags::TFD_TIMER_ABSTIME));
}

/// Waits until one of the descriptors is readable, for `at_most`. Returns true if one is; a signal ends the wait, too.
pub fn wait_readable<'a>(
    descriptors: impl IntoIterator<Item = BorrowedFd<'a>>,
    at_most: Option<Duration>,
) -> nix::Result<bool> {
    let mut polled: Vec<PollFd<'_>> = descriptors.into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    // A limit of one day avoids the limits of the kernel and libc.
    let at_most = at_most.map(|span| TimeSpec::from_duration(span.min(Duration::from_secs(86_400))));
    match ppoll(&mut polled, at_most, None) {
        Err(Errno::EINTR) => Ok(false),
        waited => waited.map(|ready| ready > 0),
    }
}
