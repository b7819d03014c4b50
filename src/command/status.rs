//! `csalock status`

mod screen;
mod select;
mod watch;

use std::io::{IsTerminal, Write};

use anyhow::Context as _;

use self::select::select;
use super::context::Context;
use crate::cli::Status;
use crate::engine::LockStatus;
use crate::error::Error;
use crate::exit::Exit;
use crate::name::escape;
use crate::report::{HEADER, OutputStyle, RefusalReport, Reporter, SightJson, WIDTH, json, table};

/// Writes the locks as they are found, so that a hundred thousand of them need no memory.
struct Page<'a> {
    asked: &'a Status,
    out: std::io::BufWriter<std::io::StdoutLock<'static>>,
    shown: usize,
}

pub(super) fn run(context: &Context, asked: &Status) -> anyhow::Result<Exit> {
    if asked.watch {
        return watch::run(context, asked);
    }
    let mut page = Page { asked, out: std::io::BufWriter::new(std::io::stdout().lock()), shown: 0 };
    let exit = select(context, asked, &mut |seen| match seen {
        Ok((name, status, reporter)) => page.show(name, status, reporter),
        Err(unreadable) => page.show_unreadable(&unreadable),
    })?;
    page.end()?;
    Ok(exit)
}

/// Returns true if the output is a terminal that may show colours.
pub(super) fn colour() -> bool {
    std::io::stdout().is_terminal() && !crate::environment::no_colour()
}

impl Page<'_> {
    fn show(&mut self, name: &[u8], status: &LockStatus, reporter: &Reporter<'_>) -> anyhow::Result<()> {
        let text = if self.asked.names_only {
            // A name that contains a newline would be two lines.
            format!("{}\n", escape(name))
        } else if self.asked.common.json {
            return self.write_document(&SightJson::new(name, status, reporter));
        } else if self.asked.common.quiet {
            return Ok(());
        } else {
            let header = if self.shown == 0 { format!("{HEADER}\n") } else { String::new() };
            header + &table(name, status, reporter, OutputStyle { colour: colour(), width: WIDTH })
        };
        self.shown += 1;
        self.out.write_all(text.as_bytes()).context("cannot write to stdout")
    }

    fn show_unreadable(&mut self, error: &Error) -> anyhow::Result<()> {
        self.asked.common.note_unless_json(error);
        match self.asked.common.json {
            true => self.write_document(&RefusalReport::from(error).json(error.kind().into(), None)),
            false => Ok(()),
        }
    }

    fn write_document(&mut self, document: &impl serde::Serialize) -> anyhow::Result<()> {
        let comma = if self.shown == 0 { "[" } else { "," };
        self.shown += 1;
        self.out.write_all(format!("{comma}{}", json(document)?).as_bytes()).context("cannot write to stdout")
    }

    fn end(&mut self) -> anyhow::Result<()> {
        if self.asked.common.json {
            let end = if self.shown == 0 { "[]\n" } else { "]\n" };
            self.out.write_all(end.as_bytes()).context("cannot write to stdout")?;
        }
        self.out.flush().context("cannot write to stdout")
    }
}
