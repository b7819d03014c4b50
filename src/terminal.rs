//! A person's terminal: how large it is, and whether it is ours to write on just now.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::getpgrp;
use rustix::termios::{LocalModes, tcgetattr, tcgetpgrp, tcgetwinsize};

/// The terminal that controls us, whatever it is called.
const OURS: &CStr = c"/dev/tty";

/// So many bytes a pipe takes at once, or none: pipe(7).
pub const PIPE_BUF: usize = 4096;

/// Rows and columns. Where nobody knows (a serial line), as terminals used to be.
pub fn size(terminal: impl AsFd) -> (usize, usize) {
    let known = tcgetwinsize(terminal).ok().filter(|size| size.ws_row > 0 && size.ws_col > 0);
    known.map_or((24, 80), |size| (size.ws_row.into(), size.ws_col.into()))
}

/// Whether this is the terminal that controls us, and we are in its foreground.
pub fn is_foreground(terminal: impl AsFd) -> bool {
    tcgetpgrp(terminal).is_ok_and(|front| front == getpgrp())
}

/// Whether to write there would stop us: we are in the background, and `stty tostop` holds.
pub fn would_get_sigttou(terminal: impl AsFd) -> bool {
    tcgetpgrp(&terminal).is_ok_and(|front| front != getpgrp())
        && tcgetattr(&terminal).is_ok_and(|modes| modes.local_modes.contains(LocalModes::TOSTOP))
}

/// Whether it takes more at once: not after Ctrl-S, nor when nobody reads what a lost connection would carry.
pub fn is_writable(terminal: impl AsFd) -> bool {
    is_writable_within(terminal, Duration::ZERO)
}

/// The same, of whatever is written to, with so much time: of a pipe, whether it takes [`PIPE_BUF`] bytes.
pub fn is_writable_within(whatever: impl AsFd, span: Duration) -> bool {
    let span = span.try_into().ok();
    poll(&mut [PollFd::new(&whatever, PollFlags::OUT)], span.as_ref()) == Ok(1)
}

/// Opens the terminal that controls us anew, to write what need not arrive: no write waits. Safe in a signal handler.
pub fn open_controlling_tty() -> Option<OwnedFd> {
    let mode = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(OURS, mode, Mode::empty()).ok()
}
