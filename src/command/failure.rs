//! Refusals and errors: one line on stderr or, with `--json`, one document on stdout.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use super::context::{Context, eprint_line, json_line, print_before, print_json};
use super::{exit_of, waiting};
use crate::cli::{Command, Common};
use crate::error::Error;
use crate::exit::Exit;
use crate::report::{RefusalReport, Reporter};

impl Common {
    pub(super) fn refuse(
        &self,
        refusal: &RefusalReport,
        exit: impl Into<Exit>,
        reporter: Option<&Reporter<'_>>,
    ) -> anyhow::Result<Exit> {
        let exit = exit.into();
        match self.json {
            true => print_json(&refusal.json(exit, reporter))?,
            false => self.note(&refusal.to_string()),
        }
        Ok(exit)
    }

    /// Prints a message for people. With `--json` the document says the same.
    pub(super) fn note_unless_json(&self, message: &impl Display) {
        if !self.json {
            self.note(&message.to_string());
        }
    }
}

pub(super) fn tell(context: &Context, command: &Command, error: &anyhow::Error) -> Exit {
    let exit = waiting(command).map_or_else(|| exit_of(error), |waiting| waiting.exit_of_failure(error));
    if !common(command).is_some_and(|common| common.json) || print_document(context, command, error, exit).is_err() {
        eprint_line(&format!("{error:#}"));
    }
    exit
}

fn print_document(context: &Context, command: &Command, error: &anyhow::Error, exit: Exit) -> anyhow::Result<()> {
    let text = format!("{error:#}");
    let refusal = match error.chain().find_map(|cause| cause.downcast_ref::<Error>()) {
        Some(known) => {
            let hint = known.hint();
            let message = text.strip_suffix(hint).and_then(|text| text.strip_suffix("; ")).unwrap_or(&text);
            RefusalReport::new(known.kind(), message, hint)
        }
        None => RefusalReport::new(super::kind_of(error), text, ""),
    };
    let refusal = match name(command) {
        Some(name) => refusal.about(name.as_bytes()),
        None => refusal,
    };
    // If stdout is what failed, it has no reader or no space.
    print_before(context, Duration::ZERO, &json_line(&refusal.json(exit, None))?)
}

fn common(command: &Command) -> Option<&Common> {
    Some(match command {
        Command::Run(_) | Command::Serve(_) | Command::Man(_) | Command::Completions(_) => return None,
        Command::Lock(asked) => &asked.common,
        Command::Unlock(asked) => &asked.common,
        Command::Status(asked) => &asked.common,
        Command::History(asked) => &asked.common,
        Command::Overdue(asked) => &asked.common,
        Command::Audit(asked) => &asked.common,
        Command::Metrics(asked) => &asked.common,
        Command::Renew(asked) => &asked.common,
        Command::Get(asked) => &asked.common,
        Command::Put(asked) => &asked.writing.common,
        Command::Del(asked) => &asked.writing.common,
        Command::Fence(asked) => &asked.common,
        Command::Claim(asked) => &asked.common,
        Command::Unclaim(asked) => &asked.common,
        Command::Lookup(asked) => &asked.common,
        Command::Gc(asked) => &asked.common,
        Command::Doctor(asked) => &asked.common,
    })
}

/// Returns the name that a command is about, if it is exactly one.
fn name(command: &Command) -> Option<&OsStr> {
    let names: &[OsString] = match command {
        Command::Lock(asked) => &asked.names,
        Command::Unlock(asked) => &asked.names,
        Command::Status(asked) => &asked.names,
        Command::History(asked) => &asked.names,
        Command::Overdue(asked) => &asked.names,
        Command::Audit(asked) => &asked.names,
        Command::Metrics(asked) => &asked.names,
        Command::Renew(asked) => &asked.names,
        Command::Get(asked) => std::slice::from_ref(&asked.name),
        Command::Put(asked) => std::slice::from_ref(&asked.name),
        Command::Del(asked) => std::slice::from_ref(&asked.name),
        Command::Fence(asked) => std::slice::from_ref(&asked.file),
        Command::Claim(asked) => &asked.names,
        Command::Unclaim(asked) => &asked.names,
        Command::Gc(asked) => &asked.names,
        Command::Run(_)
        | Command::Lookup(_)
        | Command::Doctor(_)
        | Command::Serve(_)
        | Command::Man(_)
        | Command::Completions(_) => &[],
    };
    match names {
        [name] => Some(name),
        _ => None,
    }
}
