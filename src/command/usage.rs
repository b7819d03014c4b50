//! Usage errors: the mistake in the arguments, then the next step. They look like all other errors.

mod correct;
mod help;
mod line;

use std::error::Error as _;
use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue, ErrorKind};

use self::line::Line;
use super::context::eprint_line;
use crate::cli::Run;
use crate::error::Error;
use crate::exit::Exit;
use crate::name::shell_quote;
use crate::report::RefusalReport;

/// Maximum number of bytes of a word that a message repeats.
const LONGEST_WORD: usize = 100;

/// Usage of `csalock run`, as hints show it.
const RUN_USAGE: &str = "use: csalock run [OPTION]... NAME COMMAND [ARGUMENT]...";

/// Prints the error that clap found in these arguments, or the help that the caller requested.
pub(super) fn tell(error: &clap::Error, words: &[OsString]) -> anyhow::Result<Exit> {
    let line = Line::new(words);
    let usage_error = crate::ErrorKind::InvalidInput.into();
    match error.kind() {
        ErrorKind::DisplayVersion => super::context::print(error.render().to_string()).map(|()| Exit::Done),
        ErrorKind::DisplayHelp => help::print(&line).map(|()| Exit::Done),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            help::eprint_short(&line);
            Ok(usage_error)
        }
        _ => {
            let has_document = line.asks_for_json();
            let error = describe(error, line);
            let document = || super::context::print_json(&RefusalReport::from(&error).json(usage_error, None));
            if !has_document || document().is_err() {
                eprint_line(&error.to_string());
            }
            Ok(usage_error)
        }
    }
}

/// Returns the usage error for a problem after the name in the arguments of `run`.
pub(super) fn after_name(problem: &str, asked: &Run, words: &[OsString]) -> Error {
    let corrected = Line::new(words).options_before_name(asked.words.len());
    usage_error(problem, corrected.unwrap_or_else(|| RUN_USAGE.to_string()))
}

/// Returns a word as a shell reads it, and shortens a long word.
pub(super) fn quoted(word: &OsStr) -> String {
    let bytes = word.as_encoded_bytes();
    match bytes.get(..LONGEST_WORD) {
        Some(begin) if bytes.len() > LONGEST_WORD => shell_quote(begin) + "...",
        _ => shell_quote(bytes),
    }
}

fn usage_error(problem: impl Into<String>, next_step: impl Into<String>) -> Error {
    Error::new(crate::ErrorKind::InvalidInput, problem, next_step)
}

/// Returns the problem and the next step for each kind of error that clap can find.
fn describe(error: &clap::Error, line: Line<'_>) -> Error {
    let invalid = texts(error, ContextKind::InvalidArg);
    // An argument as clap shows it, such as `--timeout <DURATION>`; and the option alone.
    let argument = plains(&invalid).join(" and ");
    let option = argument.split(' ').next().unwrap_or_default();
    let value = quoted(texts(error, ContextKind::InvalidValue).concat().as_ref());
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let typed = OsString::from(invalid.concat());
            line.until(&typed).unknown_argument(&typed, &similar(error))
        }
        ErrorKind::InvalidSubcommand => line.unknown_command(&similar(error)),
        ErrorKind::InvalidValue if value == "''" => {
            usage_error(format!("{option}: the value is missing"), format!("use {argument}"))
        }
        ErrorKind::InvalidValue => {
            let valid = texts(error, ContextKind::ValidValue);
            usage_error(format!("{option}: invalid value {value}"), format!("use {}", listed(&valid, "or")))
        }
        ErrorKind::ValueValidation => {
            let why = error.source().map(ToString::to_string).unwrap_or_default();
            usage_error(format!("{option}: {value} {why}"), "")
        }
        ErrorKind::TooManyValues => {
            usage_error(format!("{option}: unexpected value {value}"), format!("use {option} without a value"))
        }
        ErrorKind::TooFewValues | ErrorKind::WrongNumberOfValues => {
            usage_error(format!("{option}: wrong number of values"), line.see_help())
        }
        ErrorKind::NoEquals => usage_error(format!("{option}: the value must follow ="), format!("use {option}=VALUE")),
        ErrorKind::ArgumentConflict => conflict(&argument, &plains(&texts(error, ContextKind::PriorArg))),
        ErrorKind::MissingRequiredArgument => missing(&line, &plains(&invalid)),
        ErrorKind::MissingSubcommand => usage_error("the command is missing", line.see_help()),
        ErrorKind::InvalidUtf8 => {
            let problem = format!("{}an argument is not valid UTF-8", line.of_command());
            usage_error(problem, "only names, values, labels, paths and commands may be other bytes")
        }
        // The other kinds are requests for help, and failures of the output, which clap does not write here.
        _ => usage_error("invalid arguments", line.see_help()),
    }
}

fn conflict(argument: &str, others: &[String]) -> Error {
    match others {
        [other] if other == argument => {
            let option = argument.split(' ').next().unwrap_or_default();
            usage_error(format!("{option} is given more than once"), "use it once")
        }
        _ => {
            let problem = format!("{argument} cannot be used with {}", listed(others, "and"));
            usage_error(problem, "leave out one of them")
        }
    }
}

fn missing(line: &Line<'_>, arguments: &[String]) -> Error {
    let are = if arguments.len() == 1 { "is" } else { "are" };
    let list = listed(arguments, "and");
    let are_options = arguments.iter().all(|argument| argument.starts_with("--"));
    let next_step = if are_options { format!("add {list}") } else { line.usage() };
    usage_error(format!("{}{list} {are} missing", line.of_command()), next_step)
}

/// Returns a context of the error as a list of texts; empty if the error does not have it.
fn texts(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

/// Returns the options or commands that clap finds similar to the unknown one.
fn similar(error: &clap::Error) -> Vec<String> {
    [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand].iter().flat_map(|kind| texts(error, *kind)).collect()
}

/// Returns arguments as the manual shows them: `--timeout DURATION`, `NAME`.
fn plains(shown: &[String]) -> Vec<String> {
    shown.iter().map(|shown| shown.replace(['<', '>', '[', ']'], "").replace("...", "")).collect()
}

/// Returns a list as prose: `a, b or c`.
fn listed(items: &[String], last: &str) -> String {
    match items {
        [] => "other arguments".to_string(),
        [item] => item.clone(),
        [items @ .., item] => format!("{} {last} {item}", items.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the message for an error of this kind with these contexts.
    fn said(kind: ErrorKind, contexts: &[(ContextKind, &str)]) -> String {
        let mut error = clap::Error::new(kind);
        for (context, text) in contexts {
            error.insert(*context, ContextValue::String((*text).to_string()));
        }
        let words: Vec<OsString> = ["csalock", "lock", "-zed", "x"].map(OsString::from).into();
        describe(&error, Line::new(&words)).to_string()
    }

    #[test]
    fn each_kind_of_error_has_its_words() {
        use ContextKind::{InvalidArg, InvalidValue, PriorArg, SuggestedArg, ValidValue};
        let slots = (InvalidArg, "--slots <N>");
        for (kind, contexts, message) in [
            (ErrorKind::InvalidValue, &[slots, (InvalidValue, "")][..], "--slots: the value is missing; use --slots N"),
            (
                ErrorKind::InvalidValue,
                &[slots, (InvalidValue, "a b"), (ValidValue, "c")],
                "--slots: invalid value 'a b'; use c",
            ),
            (
                ErrorKind::UnknownArgument,
                &[(InvalidArg, "-z")],
                "lock: unknown option -z in -zed; for a name that begins with a dash, try: csalock lock x -- -zed",
            ),
            (
                ErrorKind::UnknownArgument,
                &[(InvalidArg, "--slot"), (SuggestedArg, "--slots")],
                "lock: unknown option --slot; use --slots",
            ),
            (
                ErrorKind::UnknownArgument,
                &[(InvalidArg, "word")],
                "lock: unexpected argument word; use: csalock lock [OPTION]... NAME...",
            ),
            (ErrorKind::InvalidSubcommand, &[], "unknown command lock; see csalock lock --help"),
            (ErrorKind::NoEquals, &[slots], "--slots: the value must follow =; use --slots=VALUE"),
            (ErrorKind::ValueValidation, &[slots, (InvalidValue, "0")], "--slots: 0 "),
            (
                ErrorKind::TooManyValues,
                &[(InvalidArg, "--json"), (InvalidValue, "1")],
                "--json: unexpected value 1; use --json without a value",
            ),
            (ErrorKind::TooFewValues, &[slots], "--slots: wrong number of values; see csalock lock --help"),
            (ErrorKind::WrongNumberOfValues, &[slots], "--slots: wrong number of values; see csalock lock --help"),
            (
                ErrorKind::ArgumentConflict,
                &[slots, (PriorArg, "--slots <N>")],
                "--slots is given more than once; use it once",
            ),
            (
                ErrorKind::ArgumentConflict,
                &[slots, (PriorArg, "--ttl <DURATION>")],
                "--slots N cannot be used with --ttl DURATION; leave out one of them",
            ),
            (
                ErrorKind::ArgumentConflict,
                &[slots],
                "--slots N cannot be used with other arguments; leave out one of them",
            ),
            (ErrorKind::MissingRequiredArgument, &[slots], "lock: --slots N is missing; add --slots N"),
            (
                ErrorKind::MissingRequiredArgument,
                &[(InvalidArg, "<NAME>...")],
                "lock: NAME is missing; use: csalock lock [OPTION]... NAME...",
            ),
            (ErrorKind::MissingSubcommand, &[], "the command is missing; see csalock lock --help"),
            (
                ErrorKind::InvalidUtf8,
                &[],
                "lock: an argument is not valid UTF-8; only names, values, labels, paths and commands may be other bytes",
            ),
            (ErrorKind::DisplayHelp, &[], "invalid arguments; see csalock lock --help"),
            (ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, &[], "invalid arguments; see csalock lock --help"),
            (ErrorKind::DisplayVersion, &[], "invalid arguments; see csalock lock --help"),
            (ErrorKind::Io, &[], "invalid arguments; see csalock lock --help"),
            (ErrorKind::Format, &[], "invalid arguments; see csalock lock --help"),
        ] {
            assert_eq!(said(kind, contexts), message, "{kind:?}");
        }
    }

    #[test]
    fn a_repeated_word_is_short_and_harmless() {
        assert_eq!(quoted("a\u{1b}[2J".as_ref()), "$'a\\x1b[2J'");
        assert_eq!(quoted("x".repeat(101).as_ref()), format!("{}...", "x".repeat(100)));
        assert_eq!(quoted("é".repeat(100).as_ref()), format!("'{}'...", "é".repeat(50)));
    }
}
