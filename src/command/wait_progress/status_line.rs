//! The line that shows a person the progress of a wait. Each drawing replaces the last, and the end of the wait erases
//! it.
//!
//! The line must never delay a waiter that is granted the lock. So it has no thread and writes by its own non-blocking
//! descriptor; after Ctrl-S or a lost connection, drawings are dropped. Nothing is written while other processes are in
//! the foreground. The cursor rests at the start of the line. The terminal echoes ^C and ^Z there, so they disappear
//! with the line.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;

use crate::report::cut;
use crate::signals::{self, SigtstpHandler};
use crate::terminal;

const SPINNER: [char; 4] = ['/', '-', '\\', '|'];

/// Erases the whole line, even if a terminal that became narrower has wrapped it.
const ERASE: &str = "\r\x1b[J";

/// True if there is a line to erase.
static DRAWN: AtomicBool = AtomicBool::new(false);

pub(super) struct StatusLine {
    terminal: OwnedFd,
    drawings: usize,
    /// Without this handler, the shell's message after Ctrl-Z would appear in the line.
    _stop: Option<SigtstpHandler>,
}

impl StatusLine {
    /// Returns `None` if stderr is not our terminal, or if it cannot erase.
    pub(super) fn new() -> Option<StatusLine> {
        // The foreground of another terminal cannot be determined.
        let drawable = rustix::termios::tcgetpgrp(std::io::stderr()).is_ok() && !crate::environment::is_dumb_terminal();
        let terminal = drawable.then(terminal::open_controlling_tty).flatten()?;
        Some(StatusLine { terminal, drawings: 0, _stop: SigtstpHandler::call(erase_and_stop) })
    }

    /// Draws the line if we are in the foreground.
    pub(super) fn show(&mut self, text: &str) {
        // Some terminals wrap in the last column already.
        let width = terminal::size(&self.terminal).1.saturating_sub(1).max(1);
        let line = cut(&format!("{} {text}", SPINNER[self.drawings % SPINNER.len()]), width);
        self.drawings += 1;
        if terminal::is_foreground(&self.terminal) {
            DRAWN.store(true, Ordering::SeqCst);
            // A single write leaves no half of a line.
            let _ = nix::unistd::write(&self.terminal, format!("{ERASE}{line}\r").as_bytes());
        }
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        erase(&self.terminal);
    }
}

/// Erases the line, unless other processes have the terminal now.
fn erase(terminal: impl AsFd) {
    if DRAWN.swap(false, Ordering::SeqCst) && terminal::is_foreground(&terminal) {
        let _ = nix::unistd::write(&terminal, ERASE.as_bytes());
    }
}

/// Handles Ctrl-Z: erases the line and stops the process.
extern "C" fn erase_and_stop(_signal: nix::libc::c_int) {
    let errno = Errno::last_raw();
    if let Some(terminal) = terminal::open_controlling_tty() {
        erase(&terminal);
    }
    signals::stop();
    Errno::set_raw(errno);
}
