//! Usage errors: what clap says about the arguments, then the next step. They look like all other errors.

mod hints;

use std::error::Error as _;
use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Write};

use clap::ValueEnum;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use self::hints::Arguments;
use super::context::{eprint_line, print, print_json};
use crate::cli::{Color, Run};
use crate::error::Error;
use crate::exit::Exit;
use crate::name::{escape, shell_quote};
use crate::report::RefusalReport;

/// Maximum number of bytes or characters of a word that a message repeats.
const LONGEST_WORD: usize = 100;

/// Prints the error that clap found in these arguments, or the help that the caller requested.
pub(super) fn tell(error: clap::Error, words: &[OsString]) -> anyhow::Result<Exit> {
    let arguments = Arguments::new(words);
    let usage_error = crate::ErrorKind::InvalidInput.into();
    match error.kind() {
        ErrorKind::DisplayVersion => print(error.render().to_string()).map(|()| Exit::Done),
        ErrorKind::DisplayHelp => {
            let is_long = words.iter().any(|word| word == "--help" || word == "help");
            print(help(&arguments, is_long, &std::io::stdout())).map(|()| Exit::Done)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let mut stderr = std::io::stderr();
            let text = help(&arguments, false, &stderr);
            // If stderr is gone, no other place is left for the help.
            let _ = stderr.write_all(text.as_bytes());
            Ok(usage_error)
        }
        _ => {
            let error = describe(error, &arguments);
            let document = || print_json(&RefusalReport::from(&error).json(usage_error, None));
            if !arguments.ask_for_json() || document().is_err() {
                eprint_line(&error.to_string());
            }
            Ok(usage_error)
        }
    }
}

/// Returns a word as a shell reads it, and shortens a long word.
pub(super) fn quoted(word: &OsStr) -> String {
    let bytes = word.as_encoded_bytes();
    match bytes.get(..LONGEST_WORD) {
        Some(begin) if bytes.len() > LONGEST_WORD => shell_quote(begin) + "...",
        _ => shell_quote(bytes),
    }
}

/// Returns the help of the command, with its description if it is the long one. clap's own long help takes three lines
/// for each option.
fn help(arguments: &Arguments<'_>, is_long: bool, output: &impl IsTerminal) -> String {
    let mut command = arguments.definition().clone();
    if let Some(description) = command.get_long_about().cloned()
        && is_long
    {
        command = command.about(description);
    }
    let help = command.render_help();
    if color(arguments.words).is_for(output) { help.ansi().to_string() } else { help.to_string() }
}

/// Returns the value of `--color` in arguments that clap has not read to their end.
fn color(words: &[OsString]) -> Color {
    let value = |at: usize| match words[at].to_str()?.strip_prefix("--color")? {
        "" => words.get(at + 1)?.to_str(),
        value => value.strip_prefix('='),
    };
    let last = (1..words.len()).rev().find_map(value);
    last.and_then(|value| Color::from_str(value, false).ok()).unwrap_or_default()
}

/// Returns the usage error for a problem after the name in the arguments of `run`, with the corrected line if there is one.
pub(super) fn after_name(error: Error, asked: &Run, words: &[OsString]) -> Error {
    match Arguments::new(words).name_after_options(asked) {
        Some(corrected) => usage_error(error.message(), corrected),
        None => error,
    }
}

/// Returns the problem in the words of clap, and the next step.
fn describe(mut error: clap::Error, arguments: &Arguments<'_>) -> Error {
    let invalid = texts(&error, ContextKind::InvalidArg);
    let first = invalid.first().map(String::as_str).unwrap_or_default();
    if error.kind() == ErrorKind::ValueValidation {
        let option = first.split(' ').next().unwrap_or_default();
        let value = quoted(texts(&error, ContextKind::InvalidValue).concat().as_ref());
        let why = error.source().map(ToString::to_string).unwrap_or_default();
        return usage_error(format!("{option}: {value} {why}"), "");
    }
    let unknown_command = texts(&error, ContextKind::InvalidSubcommand).concat();
    // clap repeats words whole, and deletes control sequences in them.
    for kind in [ContextKind::InvalidArg, ContextKind::InvalidValue, ContextKind::InvalidSubcommand] {
        if let Some(ContextValue::String(word)) = error.get(kind) {
            let word = shortened(word);
            error.insert(kind, ContextValue::String(word));
        }
    }
    let rendered = error.render().to_string();
    let problem = one_line(rendered.split("\n\n").next().unwrap_or_default());
    let next_step = match error.kind() {
        ErrorKind::UnknownArgument => arguments.instead_of_argument(first.as_ref()),
        ErrorKind::InvalidSubcommand => arguments.instead_of_command(unknown_command.as_ref()),
        // clap lists all commands.
        ErrorKind::MissingSubcommand => return usage_error("the command is missing", arguments.see_help()),
        ErrorKind::ArgumentConflict => "leave one of them out".to_string(),
        ErrorKind::MissingRequiredArgument if invalid.iter().all(|argument| argument.starts_with("--")) => {
            format!("add {}", invalid.join(" "))
        }
        ErrorKind::MissingRequiredArgument => arguments.usage(),
        ErrorKind::InvalidUtf8 => "only names, values, labels, paths and commands may be other bytes".to_string(),
        _ => arguments.see_help(),
    };
    usage_error(problem.trim_start_matches("error: "), next_step)
}

fn usage_error(problem: impl Into<String>, next_step: impl Into<String>) -> Error {
    Error::new(crate::ErrorKind::InvalidInput, problem, next_step)
}

/// Returns a context of the error as a list of texts; empty if the error does not have it.
fn texts(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

fn one_line(paragraph: &str) -> String {
    paragraph.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Returns a word without control characters, and not too long.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(LONGEST_WORD) {
        Some((end, _)) => escape(&text.as_bytes()[..end]) + "...",
        None => escape(text.as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_word_is_short_and_harmless() {
        assert_eq!(quoted("a\u{1b}[2J".as_ref()), "$'a\\x1b[2J'");
        assert_eq!(quoted("x".repeat(101).as_ref()), format!("{}...", "x".repeat(100)));
        assert_eq!(quoted("é".repeat(100).as_ref()), format!("'{}'...", "é".repeat(50)));
        assert_eq!(shortened("a\u{1b}[2J"), "a\\u{1b}[2J");
        assert_eq!(shortened(&"é".repeat(101)), format!("{}...", "é".repeat(100)));
    }
}
