//! `csalock status`

use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;

use anyhow::Context;

use super::world::World;
use crate::cli::Status;
use crate::engine::{Engine, Sight};
use crate::error::Error;
use crate::exit::Exit;
use crate::glob;
use crate::name::shown;
use crate::report::{Colour, Reporter, SightJson, table};

/// Where the locks go as they are found, so that a hundred thousand of them need no memory.
struct Page<'a> {
    asked: &'a Status,
    out: std::io::BufWriter<std::io::StdoutLock<'static>>,
    shown: usize,
}

pub(super) fn run(world: &World, asked: &Status) -> anyhow::Result<Exit> {
    let mut page = Page { asked, out: std::io::BufWriter::new(std::io::stdout().lock()), shown: 0 };
    let mut unreadable: Option<Error> = None;
    let mut patterns: Vec<&[u8]> = Vec::new();
    let mut all_held = true;
    for typed in &asked.names {
        let target = match world.target(&asked.common, typed) {
            Err(error) if glob::is_pattern(typed.as_bytes()) && error.exit() == Exit::Unreachable => {
                patterns.push(typed.as_bytes());
                continue;
            }
            target => target?,
        };
        let engine = world.engine(&target.location)?;
        match engine.sight(&target.name) {
            Ok(sight) if glob::is_pattern(typed.as_bytes()) && sight.record.is_free() => {
                patterns.push(typed.as_bytes());
            }
            Ok(sight) => {
                all_held &= sight.is_held();
                page.show(&target.known_as, &sight, &reporter(&engine))?;
            }
            Err(error) if error.exit() == Exit::Corrupt => {
                asked.common.tell(&error.to_string());
                unreadable = Some(error);
            }
            Err(error) => return Err(error.into()),
        }
    }
    if asked.names.is_empty() || !patterns.is_empty() {
        let engine = world.engine(&world.store(&asked.common)?)?;
        let mut failed: Option<anyhow::Error> = None;
        let mut found_held = false;
        engine.each_sight(&mut |sight| {
            match sight {
                Ok(sight) => {
                    let name = sight.record.name.clone();
                    let wanted = patterns.is_empty() || patterns.iter().any(|pattern| glob::matches(pattern, &name));
                    if wanted && failed.is_none() && !sight.record.is_free() {
                        found_held |= sight.is_held();
                        failed = page.show(&name, &sight, &reporter(&engine)).err();
                    }
                }
                Err(error) => {
                    asked.common.tell(&error.to_string());
                    unreadable = Some(error);
                }
            }
            Ok(())
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        all_held &= found_held || patterns.is_empty();
    }
    page.end()?;
    Ok(match unreadable {
        Some(error) => error.exit(),
        None if all_held => Exit::Done,
        None => Exit::NotHeld,
    })
}

fn reporter(engine: &Engine) -> Reporter<'_> {
    Reporter { host: engine.host(), reach: engine.store().reach() }
}

impl Page<'_> {
    fn show(&mut self, name: &[u8], sight: &Sight, reporter: &Reporter<'_>) -> anyhow::Result<()> {
        let text = if self.asked.names_only {
            // A name with a newline in it would be two lines.
            format!("{}\n", shown(name))
        } else if self.asked.common.json {
            let comma = if self.shown == 0 { "[" } else { "," };
            format!("{comma}{}", serde_json::to_string(&SightJson::new(name, sight, reporter))?)
        } else {
            let terminal = std::io::stdout().is_terminal();
            let colour = if terminal && !crate::environment::no_colour() { Colour::Yes } else { Colour::No };
            table(name, sight, reporter, colour, self.shown == 0)
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
