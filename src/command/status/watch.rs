//! `status --watch`: redraws the table at an interval, as top(1) does.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use anyhow::Context as _;
use nix::errno::Errno;
use nix::sys::signal::Signal;

use super::screen::Screen;
use super::select::select;
use crate::cli::Status;
use crate::command::context::Context;
use crate::duration::rfc3339;
use crate::engine::LockStatus;
use crate::error::{Error, ErrorKind};
use crate::exit::Exit;
use crate::lock::EndReason;
use crate::name::{escape, is_path};
use crate::report::{HEADER, OutputStyle, table, wrapped};
use crate::run::timer::wait_readable;
use crate::signals::{self, Signals};
use crate::terminal;

/// Reason to draw again, or to stop drawing.
enum Event {
    /// The interval is over, or the user asked for a new drawing.
    Look,
    /// The user pressed Ctrl-Z.
    Stop,
    /// The user has seen enough.
    End(Exit),
}

pub(super) fn run(context: &Context, asked: &Status) -> anyhow::Result<Exit> {
    if !std::io::stdout().is_terminal() || crate::environment::is_dumb_terminal() {
        let what = "--watch draws on a terminal, and stdout is none that can be drawn on";
        return Err(Error::new(ErrorKind::InvalidInput, what, "say: while sleep 1; do csalock status; done").into());
    }
    let others = [Signal::SIGTSTP, Signal::SIGCONT, Signal::SIGWINCH];
    let signals = Signals::listen_also(context.inherited, &others)?;
    // Invalid arguments are reported before the first drawing.
    let mut view = View::of(context, asked)?;
    let screen = Screen::open()?;
    loop {
        screen.draw(&view.lines(context, asked))?;
        match next_event(&signals, asked.interval)? {
            Event::Look => screen.enter()?,
            Event::Stop => {
                screen.suspend();
                signals::stop();
                screen.enter()?;
            }
            Event::End(exit) => return Ok(exit),
        }
        view = View::of(context, asked)?;
    }
}

fn next_event(signals: &Signals, pause: Duration) -> anyhow::Result<Event> {
    let stdin = std::io::stdin();
    let keyboard = stdin.is_terminal();
    let watched = std::iter::once(signals.as_fd()).chain(keyboard.then_some(stdin.as_fd()));
    wait_readable(watched, Some(pause)).context("cannot wait for the terminal")?;
    if let Some(came) = signals.next() {
        return Ok(match came.signal {
            Signal::SIGTSTP => Event::Stop,
            Signal::SIGCONT | Signal::SIGWINCH => Event::Look,
            signal => Event::End(Exit::Signal(signal)),
        });
    }
    if keyboard && wait_readable([stdin.as_fd()], Some(Duration::ZERO)) == Ok(true) {
        let mut keys = [0; 64];
        match nix::unistd::read(&stdin, &mut keys) {
            Ok(length) if keys[..length].iter().any(|key| matches!(key, b'q' | b'Q')) => {
                return Ok(Event::End(Exit::Done));
            }
            Ok(1..) | Err(Errno::EAGAIN | Errno::EINTR) => {}
            // The terminal is gone.
            _ => return Ok(Event::End(Exit::Signal(Signal::SIGHUP))),
        }
    }
    Ok(Event::Look)
}

/// The locks at one moment.
#[derive(Default)]
struct View {
    /// Locks that may fit on the screen: those with waiters first, then by name, so that rows keep their places.
    rows: BTreeMap<(bool, Vec<u8>), Row>,
    locks: usize,
    holders: usize,
    waiters: usize,
    /// Number of lines of all locks, without the extra lines of long names.
    entries: usize,
    /// The error of an unreadable record, or the reason why no lock can be shown.
    trouble: Option<String>,
    failed: bool,
}

struct Row {
    lines: Vec<String>,
    entries: usize,
}

impl View {
    /// Reads the locks. An error of the store may pass, so it is shown like anything else.
    fn of(context: &Context, asked: &Status) -> anyhow::Result<View> {
        let (height, width) = terminal::size(std::io::stdout());
        let style = OutputStyle { colour: super::colour(&asked.common), width };
        let mut view = View::default();
        let looked = select(context, asked, &mut |seen| {
            match seen {
                Err(unreadable) => view.trouble = Some(unreadable.to_string()),
                Ok((name, status, reporter)) => {
                    let row = |entries| {
                        let lines = table(name, status, reporter, style).lines().map(str::to_string).collect();
                        Row { lines, entries }
                    };
                    view.add(name, status, height, row);
                }
            }
            Ok(())
        });
        match looked {
            Err(error) if crate::command::exit_of(&error) == ErrorKind::InvalidInput.into() => Err(error),
            Err(error) => Ok(View { trouble: Some(format!("{error:#}")), failed: true, ..View::default() }),
            Ok(_) => Ok(view),
        }
    }

    fn add(&mut self, name: &[u8], status: &LockStatus, most: usize, row: impl FnOnce(usize) -> Row) {
        let holders = status.holders.iter().filter(|standing| **standing != Err(EndReason::Released)).count();
        let waiters = status.record.waiters.len();
        let entries = holders.max(1) + waiters;
        self.locks += 1;
        self.holders += holders;
        self.waiters += waiters;
        self.entries += entries;
        let key = (waiters == 0, name.to_vec());
        if self.rows.len() < most || self.rows.last_key_value().is_some_and(|(last, _)| key < *last) {
            self.rows.insert(key, row(entries));
        }
        if self.rows.len() > most {
            self.rows.pop_last();
        }
    }

    /// Returns all lines of the screen.
    fn lines(&self, context: &Context, asked: &Status) -> Vec<String> {
        let (height, width) = terminal::size(std::io::stdout());
        let mut lines = vec![self.headline(context, asked)];
        lines.extend(self.trouble.iter().flat_map(|trouble| wrapped(trouble, width)));
        lines.push(if super::colour(&asked.common) { format!("\x1b[7m{HEADER}\x1b[0m") } else { HEADER.to_string() });
        let room = height.saturating_sub(lines.len());
        // The flag marks a lock's lines that are entries: all lines except a name on its own line.
        let of_row = |row: &'_ Row| {
            let names = row.lines.len().saturating_sub(row.entries);
            let entries = row.lines.iter().enumerate().map(move |(at, line)| (line.clone(), at >= names));
            entries.collect::<Vec<_>>()
        };
        let mut body: Vec<(String, bool)> = self.rows.values().flat_map(of_row).take(room + 1).collect();
        let entries = |body: &[(String, bool)]| body.iter().filter(|(_, is_entry)| *is_entry).count();
        if body.len() > room || entries(&body) < self.entries {
            body.truncate(room.saturating_sub(1));
            let more = self.entries - entries(&body);
            body.push((format!("... and {more} more"), false));
        }
        lines.extend(body.into_iter().map(|(line, _)| line));
        lines
    }

    fn headline(&self, context: &Context, asked: &Status) -> String {
        let now = rfc3339(context.host.wall());
        let count = |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
        let known = [count(self.locks, "lock"), count(self.holders, "holder"), count(self.waiters, "waiter")];
        let counts = if self.failed { "nothing to be seen".to_string() } else { known.join(", ") };
        let only_files = !asked.names.is_empty() && asked.names.iter().all(|name| is_path(name.as_bytes()));
        let store = context.store(&asked.common).ok().filter(|_| !only_files);
        let store = store.map_or(String::new(), |store| escape(store.url().as_bytes()));
        format!("{now}  {counts}  {store}")
    }
}
