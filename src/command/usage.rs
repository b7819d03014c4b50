//! Usage errors: the mistake in the arguments, and a tip about the probable intent.

use std::ffi::OsString;
use std::io::Write;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::context::eprint_line;
use crate::cli::Cli;
use crate::exit::Exit;

/// Prints the error that clap found in these arguments, or the help that the caller requested.
pub(super) fn tell(error: clap::Error, words: &[OsString]) -> Exit {
    let asked_for = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let error = if asked_for { error } else { advise(without_harm(words).unwrap_or(error), words) };
    match error.print().and_then(|()| std::io::stdout().flush()) {
        Err(error) => {
            if error.kind() != std::io::ErrorKind::BrokenPipe {
                eprint_line(&format!("cannot write to stdout: {error}"));
            }
            crate::ErrorKind::InputOutput.into()
        }
        Ok(()) if asked_for => Exit::Done,
        Ok(()) => crate::ErrorKind::InvalidInput.into(),
    }
}

/// Returns the error in the arguments, with control characters escaped, because other users may have chosen words.
/// `None` means that no argument needs escaping.
fn without_harm(words: &[OsString]) -> Option<clap::Error> {
    let must_escape = |word: &OsString| crate::name::needs_escaping(word.as_encoded_bytes());
    words.iter().any(must_escape).then_some(())?;
    let shown = words.iter().map(|word| match must_escape(word) {
        true => crate::name::escape(word.as_encoded_bytes()).into(),
        false => word.clone(),
    });
    Some(Cli::try_parse_from(shown).err().unwrap_or_else(|| clap::Error::new(ErrorKind::ValueValidation)))
}

/// Adds our own tip if a user of flock(1) typically makes this mistake.
fn advise(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => word.as_str(),
        _ => "",
    };
    let in_command = !words.get(1).is_none_or(|word| word.as_encoded_bytes().starts_with(b"-"));
    let tip = match error.kind() {
        ErrorKind::InvalidSubcommand if error.get(ContextKind::SuggestedSubcommand).is_none() => {
            Some("a command is run under a lock by: csalock run-with-lock NAME COMMAND")
        }
        ErrorKind::UnknownArgument => match word(ContextKind::InvalidArg) {
            "-o" | "--close" => Some("leave it out: a command does not inherit the lock"),
            "-u" | "--unlock" => Some("a lock is released by: csalock unlock NAME"),
            _ if !in_command => Some("options stand behind the command's name: csalock run-with-lock -n NAME COMMAND"),
            _ => None,
        },
        _ => return error,
    };
    if tip.is_some() {
        // The usage belongs to the option that clap assumes was meant.
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::Usage);
    }
    // Clap suggests `--` before the word. For most commands this makes it the name of a lock, for `put` a value.
    if words.get(1).is_none_or(|command| command != "put") {
        error.remove(ContextKind::Suggested);
    }
    tip.inspect(|tip| drop(error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![(*tip).into()]))));
    error
}
