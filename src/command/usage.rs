//! What is wrong with what was typed, and what was meant by it.

use std::ffi::OsString;
use std::io::Write;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::cli::Cli;
use crate::exit::Exit;

/// Prints what clap found wrong, or was asked for.
pub(super) fn tell(error: clap::Error) -> Exit {
    let asked_for = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let error = if asked_for { error } else { advise(without_harm().unwrap_or(error)) };
    match error.print() {
        Err(_) => Exit::InputOutput,
        Ok(()) if asked_for && std::io::stdout().flush().is_ok() => Exit::Done,
        Ok(()) if asked_for => Exit::InputOutput,
        Ok(()) => Exit::Usage,
    }
}

/// What is wrong in the arguments, in which others than the caller may have chosen words, without what a terminal would
/// obey; `None` where that is nothing.
fn without_harm() -> Option<clap::Error> {
    let is_harmful = |word: &OsString| crate::name::needs_escaping(word.as_encoded_bytes());
    let words: Vec<_> = std::env::args_os().collect();
    words.iter().any(is_harmful).then_some(())?;
    let shown = words.into_iter().map(|word| match is_harmful(&word) {
        true => crate::name::escape(word.as_encoded_bytes()).into(),
        false => word,
    });
    Some(Cli::try_parse_from(shown).err().unwrap_or_else(|| clap::Error::new(ErrorKind::ValueValidation)))
}

/// With a tip of ours, where those who come from flock(1) go wrong.
fn advise(mut error: clap::Error) -> clap::Error {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => word.as_str(),
        _ => "",
    };
    let in_command = !std::env::args_os().nth(1).is_none_or(|word| word.as_encoded_bytes().starts_with(b"-"));
    let tip = match error.kind() {
        ErrorKind::InvalidSubcommand if error.get(ContextKind::SuggestedSubcommand).is_none() => {
            Some("a command is run under a lock by: csalock run-with-lock NAME COMMAND")
        }
        ErrorKind::UnknownArgument => match word(ContextKind::InvalidArg) {
            "-o" | "--close" => Some("leave it out: a command does not inherit the lock"),
            "-u" | "--unlock" => Some("a lock is given back by: csalock unlock NAME"),
            _ if !in_command => Some("options stand behind the command's name: csalock run-with-lock -n NAME COMMAND"),
            _ => None,
        },
        _ => return error,
    };
    if tip.is_some() {
        // Its usage is that of the option that it takes for the one that was meant.
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::Usage);
    }
    // Clap's own is to write `--` before it. For most commands this makes it the name of a lock, for `put` a value.
    if std::env::args_os().nth(1).is_none_or(|command| command != "put") {
        error.remove(ContextKind::Suggested);
    }
    tip.inspect(|tip| drop(error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![(*tip).into()]))));
    error
}
