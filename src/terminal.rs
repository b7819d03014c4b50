//! The terminal of the user: its size, and the permission to write on it at this moment.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::getpgrp;
use rustix::termios::{LocalModes, tcgetattr, tcgetpgrp, tcgetwinsize};

/// Number of bytes that a pipe takes completely or not at all: pipe(7).
pub const PIPE_BUF: usize = 4096;

/// Rows and columns, or 24 and 80 if the size is unknown (a serial line).
pub fn size(terminal: impl AsFd) -> (usize, usize) {
    let size = tcgetwinsize(terminal).ok().filter(|size| size.ws_row > 0 && size.ws_col > 0);
    size.map_or((24, 80), |size| (size.ws_row.into(), size.ws_col.into()))
}

/// This is the controlling terminal, and this process is in its foreground.
pub fn is_foreground(terminal: impl AsFd) -> bool {
    tcgetpgrp(terminal).is_ok_and(|front| front == getpgrp())
}

/// A write would stop this process, because it is in the background, and `stty tostop` is set.
pub fn would_get_sigttou(terminal: impl AsFd) -> bool {
    tcgetpgrp(&terminal).is_ok_and(|front| front != getpgrp())
        && tcgetattr(&terminal).is_ok_and(|modes| modes.local_modes.contains(LocalModes::TOSTOP))
}

/// Returns true if the descriptor becomes writable within `span`; a writable pipe takes [`PIPE_BUF`] bytes. Ctrl-S, or a
/// lost connection with a full buffer, blocks writes.
pub fn is_writable_within(whatever: impl AsFd, span: Duration) -> bool {
    let span = span.try_into().ok();
    poll(&mut [PollFd::new(&whatever, PollFlags::OUT)], span.as_ref()) == Ok(1)
}

/// Opens the controlling terminal again for optional output: writes never wait. Safe in a signal handler.
pub fn open_controlling_tty() -> Option<OwnedFd> {
    let mode = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(c"/dev/tty", mode, Mode::empty()).ok()
}
