//! The line that shows a person the progress of a wait. Each drawing replaces the last, and the end of the wait erases
//! it.
//!
//! The line must never delay a waiter that is granted the lock. So it has no thread and writes by its own non-blocking
//! descriptor; after Ctrl-S or a lost connection, drawings are dropped. Nothing is written while other processes are in
//! the foreground. The cursor rests at the start of the line. The terminal echoes ^C and ^Z there, so they disappear
//! with the line.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle, TermLike};
use nix::errno::Errno;

use crate::signals::{self, SigtstpHandler};
use crate::terminal;

/// Erases the whole line, even if a terminal that became narrower has wrapped it.
const ERASE: &str = "\r\x1b[J";

/// True if there is a line to erase.
static DRAWN: AtomicBool = AtomicBool::new(false);

pub(super) struct StatusLine {
    bar: ProgressBar,
    paper: LineBuffer,
    /// Without this handler, the shell's message after Ctrl-Z would appear in the line.
    _stop: Option<SigtstpHandler>,
}

/// Collects a drawing, so that it is a single write.
#[derive(Debug, Clone)]
struct LineBuffer {
    terminal: Arc<OwnedFd>,
    drawing: Arc<Mutex<String>>,
}

impl StatusLine {
    /// Returns `None` if stderr is not our terminal, or if it cannot erase.
    pub(super) fn new() -> Option<StatusLine> {
        // The foreground of another terminal cannot be determined.
        let drawable = rustix::termios::tcgetpgrp(std::io::stderr()).is_ok() && !crate::environment::is_dumb_terminal();
        let terminal = Arc::new(drawable.then(terminal::open_controlling_tty).flatten()?);
        let paper = LineBuffer { terminal, drawing: Arc::default() };
        let style =
            ProgressStyle::with_template("{spinner} {wide_msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::term_like(Box::new(paper.clone())))
            .with_style(style.tick_chars("|/-\\ "))
            .with_finish(ProgressFinish::AndClear);
        Some(StatusLine { bar, paper, _stop: SigtstpHandler::call(erase_and_stop) })
    }

    /// Draws the line if we are in the foreground.
    pub(super) fn show(&self, text: String) {
        self.bar.set_message(text);
        // The tick draws the whole line again.
        self.paper.take();
        self.bar.tick();
        let drawing = self.paper.take();
        if terminal::is_foreground(&self.paper.terminal) {
            DRAWN.store(true, Ordering::SeqCst);
            // The blanks up to the edge are left out: they would wrap in a terminal that becomes narrower.
            let _ = nix::unistd::write(&self.paper.terminal, format!("{}\r", drawing.trim_end()).as_bytes());
        }
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        erase(&self.paper.terminal);
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

impl LineBuffer {
    fn take(&self) -> String {
        std::mem::take(&mut self.drawing.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, text: &str) -> std::io::Result<()> {
        self.drawing.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
        Ok(())
    }
}

impl TermLike for LineBuffer {
    fn width(&self) -> u16 {
        // Some terminals wrap in the last column already.
        terminal::size(&self.terminal).1.saturating_sub(1).max(1).try_into().unwrap_or(u16::MAX)
    }

    fn write_str(&self, text: &str) -> std::io::Result<()> {
        self.add(text)
    }

    fn write_line(&self, text: &str) -> std::io::Result<()> {
        self.add(text)
    }

    fn clear_line(&self) -> std::io::Result<()> {
        self.add(ERASE)
    }

    // The drawing has only one line.
    fn move_cursor_up(&self, _: usize) -> std::io::Result<()> {
        Ok(())
    }

    fn move_cursor_down(&self, _: usize) -> std::io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> std::io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> std::io::Result<()> {
        Ok(())
    }

    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }
}
