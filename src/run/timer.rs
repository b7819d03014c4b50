//! Waiting for descriptors, and a timer that continues while the machine is suspended: timerfd(2) on CLOCK_BOOTTIME.
//!
//! The timeouts of poll(2) stop during suspend, but leases expire meanwhile.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, pidfd_open};

use crate::error::{Error, ErrorKind, Result};

#[derive(Debug)]
pub struct BoottimeTimer(TimerFd);

impl BoottimeTimer {
    pub fn new() -> Result<BoottimeTimer> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let failed =
            |errno: nix::Error| Error::new(ErrorKind::System, format!("cannot set a timer: {}", errno.desc()), "");
        TimerFd::new(ClockId::CLOCK_BOOTTIME, flags).map(BoottimeTimer).map_err(failed)
    }

    /// Makes the timer readable from `at` on; `None`: never.
    pub fn set(&self, at: Option<Duration>) {
        let _ = match at {
            // A zero time would disable the timer.
            Some(at) => self.0.set(
                Expiration::OneShot(TimeSpec::from_duration(at.max(Duration::from_nanos(1)))),
                TimerSetTimeFlags::TFD_TIMER_ABSTIME,
            ),
            None => self.0.unset(),
        };
    }
}

impl AsFd for BoottimeTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// `None` if the kernel has no pidfds, or the process has ended.
pub fn pidfd_of(process: Pid) -> Option<OwnedFd> {
    pidfd_open(rustix::process::Pid::from_raw(process.as_raw())?, PidfdFlags::empty()).ok()
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
