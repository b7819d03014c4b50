//! `status --watch`: redraws the table, or the details of one lock, at an interval, as top(1) does.

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use anyhow::Context as _;
use nix::errno::Errno;
use nix::sys::signal::Signal;

use super::details::Details;
use super::screen::Screen;
use super::select::select;
use crate::cli::Status;
use crate::command::context::Context;
use crate::error::{Error, ErrorKind};
use crate::exit::Exit;
use crate::name::{escape, is_path};
use crate::report::{LockTable, OutputStyle, wrapped};
use crate::run::timer::wait_readable;
use crate::signals::{self, Signals};
use crate::terminal;

/// Reason to draw again, or to stop drawing.
enum Event {
    /// The interval is over, or the user asked for a new look at the locks.
    Look,
    /// The user scrolls by this many lines and pages.
    Scroll(isize, isize),
    /// The user pressed Ctrl-Z.
    Stop,
    /// The user has seen enough.
    End(Exit),
}

pub(super) fn run(context: &Context, asked: &Status) -> anyhow::Result<Exit> {
    if !std::io::stdout().is_terminal() || crate::environment::is_dumb_terminal() {
        let what = "--watch draws on a terminal, and stdout is none that can be drawn on";
        return Err(Error::new(ErrorKind::InvalidInput, what, "use: while sleep 1; do csalock status; done").into());
    }
    let others = [Signal::SIGTSTP, Signal::SIGCONT, Signal::SIGWINCH];
    let signals = Signals::listen_also(context.inherited, &others)?;
    let mut details = Details::default();
    // Invalid arguments are reported before the first drawing.
    let mut view = View::of(context, asked, &mut details)?;
    let screen = Screen::open()?;
    let (mut top, mut looked, mut keys) = (0, context.host.boottime(), Vec::new());
    loop {
        let (lines, room) = view.lines(context, asked, &mut top);
        screen.draw(&lines)?;
        let left = (looked + asked.interval).saturating_sub(context.host.boottime());
        match next_event(&signals, left, &mut keys)? {
            Event::Look => screen.enter()?,
            Event::Scroll(lines, pages) => {
                top = top.saturating_add_signed(lines.saturating_add(pages.saturating_mul(room as isize)));
                continue;
            }
            Event::Stop => {
                screen.suspend();
                signals::stop();
                screen.enter()?;
            }
            Event::End(exit) => return Ok(exit),
        }
        view = View::of(context, asked, &mut details)?;
        looked = context.host.boottime();
    }
}

/// Waits at most this long for an event. `keys` are bytes of the keyboard that have no effect yet.
fn next_event(signals: &Signals, pause: Duration, keys: &mut Vec<u8>) -> anyhow::Result<Event> {
    let stdin = std::io::stdin();
    let keyboard = stdin.is_terminal();
    let watched = std::iter::once(signals.all_events()?).chain(keyboard.then_some(stdin.as_fd()));
    if keys.is_empty() {
        wait_readable(watched, Some(pause)).context("cannot wait for the terminal")?;
    }
    if let Some(came) = signals.next() {
        return Ok(match came.signal {
            Signal::SIGTSTP => Event::Stop,
            Signal::SIGCONT | Signal::SIGWINCH => Event::Look,
            signal => Event::End(Exit::Signal(signal)),
        });
    }
    if keyboard && keys.is_empty() && wait_readable([stdin.as_fd()], Some(Duration::ZERO)) == Ok(true) {
        let mut read = [0; 64];
        match nix::unistd::read(&stdin, &mut read) {
            Ok(length @ 1..) => keys.extend(&read[..length]),
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            // The terminal is gone.
            _ => return Ok(Event::End(Exit::Signal(Signal::SIGHUP))),
        }
    }
    Ok(typed(keys))
}

/// Removes the first key, and returns its effect. A terminal sends a sequence of bytes for an arrow or a page key.
fn typed(keys: &mut Vec<u8>) -> Event {
    let (length, event) = match keys.as_slice() {
        [0x1b, b'[' | b'O', b'A', ..] => (3, Event::Scroll(-1, 0)),
        [0x1b, b'[' | b'O', b'B', ..] => (3, Event::Scroll(1, 0)),
        [0x1b, b'[', b'5', b'~', ..] => (4, Event::Scroll(0, -1)),
        [0x1b, b'[', b'6', b'~', ..] => (4, Event::Scroll(0, 1)),
        [b'k', ..] => (1, Event::Scroll(-1, 0)),
        [b'j', ..] => (1, Event::Scroll(1, 0)),
        [b' ', ..] => (1, Event::Scroll(0, 1)),
        [b'q' | b'Q', ..] => (1, Event::End(Exit::Done)),
        // The sequence of another key is not a series of letters.
        [0x1b, others @ ..] => (1 + others.len(), Event::Look),
        others => (others.len().min(1), Event::Look),
    };
    keys.drain(..length);
    event
}

/// The locks at one moment.
struct View {
    table: LockTable,
    /// The lines about a lock, if only one is watched.
    block: Vec<String>,
    /// The error of an unreadable record, or the reason why no lock can be shown.
    trouble: Option<String>,
    failed: bool,
    style: OutputStyle,
}

impl View {
    /// Reads the locks. An error of the store may pass, so it is shown like anything else.
    fn of(context: &Context, asked: &Status, details: &mut Details) -> anyhow::Result<View> {
        let style = super::output_style(&asked.common, asked.utc);
        let table = || LockTable::new(style, &context.host.name(), context.host.wall());
        let mut view = View { table: table(), block: Vec::new(), trouble: None, failed: false, style };
        let looked = select(context, asked, &mut |seen| {
            match seen {
                Err(unreadable) => view.trouble = Some(unreadable.to_string()),
                Ok(seen) => {
                    view.table.add(seen.name, seen.status, seen.reporter);
                    if let Some(named) = seen.named.filter(|_| asked.names.len() == 1) {
                        view.block = details.lines(context, named, seen.status, seen.reporter, style, None);
                    }
                }
            }
            Ok(())
        });
        view.table.sort();
        match looked {
            Err(error) if crate::command::exit_of(&error) == ErrorKind::InvalidInput.into() => Err(error),
            Err(error) => Ok(View {
                trouble: Some(format!("{error:#}")),
                failed: true,
                table: table(),
                block: Vec::new(),
                ..view
            }),
            Ok(_) => Ok(view),
        }
    }

    /// Returns all lines of the screen, and the number of those that scroll. `top` is the first of these; it becomes
    /// smaller if the last line would not be at the bottom.
    fn lines(&self, context: &Context, asked: &Status, top: &mut usize) -> (Vec<String>, usize) {
        let (height, width) = terminal::size(std::io::stdout());
        let mut lines = vec![self.headline(context, asked)];
        lines.extend(self.trouble.iter().flat_map(|trouble| wrapped(trouble, width)));
        let (header, row) = self.table.lines();
        if self.block.is_empty() {
            lines.push(if self.style.colour { format!("\x1b[7m{header}\x1b[0m") } else { header });
        }
        let number = if self.block.is_empty() { self.table.len() } else { self.block.len() };
        let mut room = height.saturating_sub(lines.len());
        let is_long = number > room;
        room = room.saturating_sub(is_long.into());
        *top = (*top).min(number.saturating_sub(room));
        let shown = *top..number.min(*top + room);
        let what = if self.block.is_empty() { "locks" } else { "lines" };
        let place = is_long.then(|| format!("{what} {} to {} of {number}", shown.start + 1, shown.end));
        lines.extend(shown.map(|at| self.block.get(at).cloned().unwrap_or_else(|| row(at))));
        lines.extend(place);
        (lines, room)
    }

    fn headline(&self, context: &Context, asked: &Status) -> String {
        let now = self.style.zone.full(context.host.wall());
        let count = |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
        let (holders, waiters) = self.table.parties();
        let known = [count(self.table.len(), "lock"), count(holders, "holder"), count(waiters, "waiter")];
        let counts = if self.failed { "no answer".to_string() } else { known.join(", ") };
        let only_files = !asked.names.is_empty() && asked.names.iter().all(|name| is_path(name.as_bytes()));
        let store = context.store(&asked.common).ok().filter(|_| !only_files);
        let store = store.map_or(String::new(), |store| escape(store.url().as_bytes()));
        format!("{now}  {counts}  q quits  {store}")
    }
}
