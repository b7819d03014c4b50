//! An alarm clock that goes on while the machine is suspended: timerfd(2) on CLOCK_BOOTTIME.
//!
//! The time limits of poll(2) do not: after a night's sleep they are as far away as before, but leases are over.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::error::{Error, Result};
use crate::exit::Exit;

/// An alarm clock.
#[derive(Debug)]
pub struct BoottimeTimer(TimerFd);

impl BoottimeTimer {
    /// One that is not set.
    ///
    /// # Errors
    ///
    /// When the system has no descriptors left.
    pub fn new() -> Result<BoottimeTimer> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let failed = |errno: nix::Error| Error::new(Exit::System, format!("cannot set a timer: {}", errno.desc()), "");
        TimerFd::new(ClockId::CLOCK_BOOTTIME, flags).map(BoottimeTimer).map_err(failed)
    }

    /// From then on it is readable; `None`: never.
    pub fn set(&self, at: Option<Duration>) {
        let _ = match at {
            // All zeros would mean never.
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
