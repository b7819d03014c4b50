//! `status --watch`: redraws the table, or the details of one lock, at an interval, until a signal ends it.

use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;

use anyhow::Context as _;

use super::Details;
use super::select::select;
use crate::cli::Status;
use crate::command::context::Context;
use crate::error::{Error, ErrorKind};
use crate::exit::Exit;
use crate::name::{escape, is_path};
use crate::report::{LockTable, OutputStyle, cut, wrapped};
use crate::terminal;

pub(super) fn run(context: &Context, asked: &Status) -> anyhow::Result<Exit> {
    if !std::io::stdout().is_terminal() || crate::environment::is_dumb_terminal() {
        let what = "--watch draws on a terminal, and stdout is none that can be drawn on";
        return Err(Error::new(ErrorKind::InvalidInput, what, "use: while sleep 1; do csalock status; done").into());
    }
    let mut details = Details::default();
    // Invalid arguments are reported before the first drawing.
    let mut view = View::of(context, asked, &mut details)?;
    // From here on the rows of the terminal are overwritten; what was printed before moves up.
    write(&"\n".repeat(terminal::size(std::io::stdout()).0))?;
    loop {
        draw(&view.lines(context, asked))?;
        context.host.sleep(asked.interval);
        view = View::of(context, asked, &mut details)?;
    }
}

/// Draws the lines from the top, and erases everything else. The lines overwrite the old ones, so that nothing flickers.
fn draw(lines: &[String]) -> anyhow::Result<()> {
    let columns = terminal::size(std::io::stdout()).1;
    let lines: String = lines.iter().map(|line| cut(line, columns) + "\x1b[K\r\n").collect();
    write(&format!("\x1b[H{lines}\x1b[J"))
}

fn write(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).context("cannot write to stdout")
}

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

    /// Returns the lines that fit the terminal, above the row of the cursor.
    fn lines(&self, context: &Context, asked: &Status) -> Vec<String> {
        let (height, width) = terminal::size(std::io::stdout());
        let mut lines = vec![self.headline(context, asked)];
        lines.extend(self.trouble.iter().flat_map(|trouble| wrapped(trouble, width)));
        if self.block.is_empty() {
            let (header, row) = self.table.lines();
            lines.push(if self.style.colour { format!("\x1b[7m{header}\x1b[0m") } else { header });
            lines.extend((0..self.table.len()).map(row));
        } else {
            lines.extend(self.block.iter().cloned());
        }
        let room = height.saturating_sub(1);
        if lines.len() > room {
            let hidden = lines.len() - room.saturating_sub(1);
            lines.truncate(room.saturating_sub(1));
            lines.push(format!("{hidden} more lines: csalock status"));
        }
        lines
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
        format!("{now}  {counts}  {store}")
    }
}
