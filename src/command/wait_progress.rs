//! Reports a wait to people: the obstacle once and, on a terminal, the progress of the wait again and again.
//!
//! The progress is one line. Each drawing replaces the last, and the end of the wait erases it.
//!
//! The line must never delay a waiter that is granted the lock. So it has no thread and writes by its own non-blocking
//! descriptor; after Ctrl-S or a lost connection, drawings are dropped. Nothing is written while other processes are in
//! the foreground. The cursor rests at the start of the line. The terminal echoes ^C and ^Z there, so they disappear
//! with the line.

use std::io::IsTerminal;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;

use super::context::{LockRef, eprint_line};
use crate::cli::Common;
use crate::report::{Reporter, cut};
use crate::terminal;
use engine::{Engine, Progress};
use host::signals::{self, SigtstpHandler};
use lock::Grant;
use lock::duration::shown as span;
use lock::name::escape;

/// Interval between drawings of the line.
const TICK: Duration = Duration::from_millis(250);

/// Reports one wait. After the drop, only the messages that are printed once remain on the screen.
pub(super) struct WaitProgress<'a> {
    common: &'a Common,
    locks_file: bool,
    told: bool,
    told_outage: bool,
    /// Start of the wait on CLOCK_BOOTTIME.
    since: Option<Duration>,
    /// `None`: no line was needed yet. `Some(None)`: no line can be drawn.
    line: Option<Option<StatusLine>>,
    /// With its text, which may need a slow user database.
    holder: Option<(Grant, String)>,
}

impl<'a> WaitProgress<'a> {
    pub(super) fn new(common: &'a Common, locks_file: bool) -> WaitProgress<'a> {
        WaitProgress { common, locks_file, told: false, told_outage: false, since: None, line: None, holder: None }
    }

    /// Reports the wait for `target` whenever it starts or goes on; see [`engine::acquire_all`].
    pub(super) fn update(&mut self, target: &LockRef, engine: &Engine, waiting: &Progress<'_>) -> Option<Duration> {
        let (reporter, stderr) = (&Reporter::new(engine), std::io::stderr());
        let watched = !self.common.quiet && stderr.is_terminal();
        if watched && !self.told && terminal::would_get_sigttou(&stderr) {
            // If we were stopped, all waiters behind us would wait. The report can wait until we are in the foreground.
            return Some(TICK);
        }
        let told = if waiting.outage.is_some() { &mut self.told_outage } else { &mut self.told };
        if !std::mem::replace(told, true) && (watched || self.common.verbose) {
            let holder = waiting.record.holders.first();
            let who = match waiting.outage {
                Some(error) => error.message().to_string(),
                None => holder.map_or("others are before us".to_string(), |grant| reporter.holder(grant)),
            };
            let file = self.locks_file.then(|| reporter.file_lock(target, &waiting.record.holders)).flatten();
            let file = file.map(|file| format!("; its file is {file}")).unwrap_or_default();
            eprint_line(&format!("waiting for lock {}: {who}{file}", escape(&target.display_name)));
        }
        if !watched {
            return None;
        }
        let now = reporter.host.boottime();
        let waited = now.saturating_sub(*self.since.get_or_insert(now));
        // A short wait should end without a flicker.
        if waited >= TICK {
            self.line.get_or_insert_with(StatusLine::new).as_ref()?;
            let text = self.progress(reporter, waiting, waited);
            if let Some(Some(line)) = &mut self.line {
                line.show(&text);
            }
        }
        Some(TICK)
    }

    /// The beginning changes most, because the end may be cut off.
    fn progress(&mut self, reporter: &Reporter<'_>, waiting: &Progress<'_>, waited: Duration) -> String {
        let left =
            waiting.left.map(|left| format!(", {} left", whole(left + Duration::from_millis(999)))).unwrap_or_default();
        if let Some(error) = waiting.outage {
            return format!("waited {}{left}; {}", whole(waited), error.message());
        }
        let place = waiting.ahead + 1;
        // Only a reader of all overflow pages would know the length of a long queue.
        let place = match waiting.record.pages {
            None => format!("{place} of {}", waiting.record.waiters.len().max(place)),
            Some(_) => format!("number {place}"),
        };
        let holder = self.holder(reporter, &waiting.record.holders);
        format!("waited {}{left}; {place} in the queue; {holder}", whole(waited))
    }

    fn holder(&mut self, reporter: &Reporter<'_>, holders: &[Grant]) -> String {
        let Some(grant) = holders.first() else { return "no process holds it now".to_string() };
        if self.holder.as_ref().is_none_or(|(known, _)| known != grant) {
            let (owner, command) = (reporter.party(&grant.owner), escape(&grant.owner.command));
            self.holder = Some((grant.clone(), format!("{owner}: {command}")));
        }
        let held = reporter.host.wall().saturating_sub(Duration::from_millis(grant.since));
        let others = if holders.len() > 1 { format!("{} others and ", holders.len() - 1) } else { String::new() };
        let who = self.holder.as_ref().map(|(_, who)| who.as_str()).unwrap_or_default();
        format!("held {} by {others}{who}", whole(held))
    }
}

/// A time without fractions, which would only flicker.
fn whole(time: Duration) -> String {
    if time.as_secs() == 0 { "0s".to_string() } else { span(time) }
}

const SPINNER: [char; 4] = ['/', '-', '\\', '|'];

/// Erases the whole line, even if a terminal that became narrower has wrapped it.
const ERASE: &str = "\r\x1b[J";

/// A line is there to be erased.
static DRAWN: AtomicBool = AtomicBool::new(false);

struct StatusLine {
    terminal: OwnedFd,
    drawings: usize,
    /// Without this handler, the shell's message after Ctrl-Z would appear in the line.
    _stop: Option<SigtstpHandler>,
}

impl StatusLine {
    /// `None` if stderr is not our terminal, or if it cannot erase.
    fn new() -> Option<StatusLine> {
        // The foreground of another terminal cannot be determined.
        let drawable =
            rustix::termios::tcgetpgrp(std::io::stderr()).is_ok() && !engine::environment::is_dumb_terminal();
        let terminal = drawable.then(terminal::open_controlling_tty).flatten()?;
        Some(StatusLine { terminal, drawings: 0, _stop: SigtstpHandler::call(erase_and_stop) })
    }

    /// Draws the line if we are in the foreground.
    fn show(&mut self, text: &str) {
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
