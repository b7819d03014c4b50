//! `csalock status`

mod screen;
mod select;
mod watch;

use std::io::Write;

use anyhow::Context as _;

use self::select::select;
use super::context::Context;
use crate::cli::{Common, Status};
use crate::engine::LockStatus;
use crate::exit::Exit;
use crate::name::escape;
use crate::report::{HEADER, OutputStyle, Reporter, SightJson, WIDTH, json, table};

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
        Err(unreadable) => {
            asked.common.note(&unreadable.to_string());
            Ok(())
        }
    })?;
    page.end()?;
    Ok(exit)
}

/// Returns true if stdout gets colours: `--color` decides, then the environment, then stdout itself.
pub(super) fn colour(common: &Common) -> bool {
    common.color.is_for(&std::io::stdout())
}

impl Page<'_> {
    fn show(&mut self, name: &[u8], status: &LockStatus, reporter: &Reporter<'_>) -> anyhow::Result<()> {
        let text = if self.asked.names_only {
            // A name that contains a newline would be two lines.
            format!("{}\n", escape(name))
        } else if self.asked.common.json {
            let comma = if self.shown == 0 { "[" } else { "," };
            format!("{comma}{}", json(&SightJson::new(name, status, reporter))?)
        } else {
            let header = if self.shown == 0 { format!("{HEADER}\n") } else { String::new() };
            header + &table(name, status, reporter, OutputStyle { colour: colour(&self.asked.common), width: WIDTH })
        };
        self.shown += 1;
        self.out.write_all(text.as_bytes()).context("cannot write to stdout")
    }

    fn end(&mut self) -> anyhow::Result<()> {
        if self.asked.common.json {
            let end = if self.shown == 0 { "[]\n" } else { "]\n" };
            self.out.write_all(end.as_bytes()).context("cannot write to stdout")?;
        }
        self.out.flush().context("cannot write to stdout")
    }
}
