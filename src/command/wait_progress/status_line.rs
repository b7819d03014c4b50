//! The line that shows a person how the wait goes: drawn over and over in one place, and gone without a trace when the
//! wait ends.
//!
//! It must never hold up somebody who is granted the lock. So it has no thread, and writes to the terminal by a descriptor
//! of its own that takes what it can and never waits: after Ctrl-S, or when a connection is lost, drawings are missed.
//! Nothing is written while others have the terminal's foreground. The cursor rests at the line's beginning: there the
//! terminal echoes ^C and ^Z, which so go away with the line.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle, TermLike};
use nix::errno::Errno;

use crate::signals::{self, SigtstpHandler};
use crate::terminal;

/// All of the line, also where a terminal that became narrower has made two of it.
const ERASE: &str = "\r\x1b[J";

/// Whether there is something to erase.
static DRAWN: AtomicBool = AtomicBool::new(false);

pub(super) struct StatusLine {
    bar: ProgressBar,
    paper: LineBuffer,
    /// Else what the shell says after Ctrl-Z would stand in the line.
    _stop: Option<SigtstpHandler>,
}

/// Collects a drawing, so that it is one write.
#[derive(Debug, Clone)]
struct LineBuffer {
    terminal: Arc<OwnedFd>,
    drawing: Arc<Mutex<String>>,
}

impl StatusLine {
    /// `None` where stderr is no terminal of ours, or one that cannot erase.
    pub(super) fn new() -> Option<StatusLine> {
        // Another's terminal has a foreground that we cannot know.
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

    /// Draws it, if we are in front.
    pub(super) fn show(&self, text: String) {
        self.bar.set_message(text);
        // The tick draws all of it again.
        self.paper.take();
        self.bar.tick();
        let drawing = self.paper.take();
        if terminal::is_foreground(&self.paper.terminal) {
            DRAWN.store(true, Ordering::SeqCst);
            // Without the blanks up to the edge: they would wrap in a terminal that becomes narrower.
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

/// Takes the line away, unless others have the terminal now.
fn erase(terminal: impl AsFd) {
    if DRAWN.swap(false, Ordering::SeqCst) && terminal::is_foreground(&terminal) {
        let _ = nix::unistd::write(&terminal, ERASE.as_bytes());
    }
}

/// What Ctrl-Z does.
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
        // In the last column some terminals wrap already.
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

    // There is one line only.
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
