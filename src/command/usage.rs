//! Usage errors: what clap says about the arguments, then the next step. They look like all other errors. The next step
//! for users of flock(1) and of other tools is the arguments as they were probably meant.

use std::error::Error as _;
use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;

use clap::ValueEnum;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::context::{eprint_line, print, print_json};
use super::run::command_line;
use crate::cli::{Cli, Color, Command, Run};
use crate::error::Error;
use crate::exit::Exit;
use crate::name::{difference, escape, is_slip, shell_quote};
use crate::report::RefusalReport;
use crate::run::exec::{is_assignment, is_program};

/// Maximum number of bytes or characters of a word that a message repeats.
const LONGEST_WORD: usize = 100;

/// Maximum length of the arguments that a hint shows, in bytes.
const LONGEST_HINT: usize = 500;

/// Words that users of other tools type, after the command or option of csalock that they mean.
const EVERYDAY_WORDS: [(&str, &[&str]); 15] = [
    ("lock", &["acquire", "take", "grab", "hold"]),
    ("unlock", &["release", "free", "rm", "remove"]),
    ("unlock --force", &["break", "force", "steal"]),
    ("unlock --force --end", &["kill", "terminate"]),
    ("run", &["exec", "do", "with", "flock", "setlock"]),
    ("status", &["ls", "who", "info", "show", "ps", "locks", "holders"]),
    ("history", &["log", "logs", "past", "hist"]),
    ("renew", &["extend", "refresh", "touch"]),
    ("get", &["read", "cat"]),
    ("put", &["set", "write"]),
    ("del", &["delete", "unset"]),
    ("lookup", &["find"]),
    ("gc", &["clean", "cleanup", "prune"]),
    ("doctor", &["check", "diagnose"]),
    ("--version", &["version"]),
];

/// Options that users of other tools type, after the option of csalock that they mean.
const EVERYDAY_OPTIONS: [(&str, &[&str]); 9] = [
    ("nonblock", &["--nowait", "--no-wait", "--try", "--no-block", "--immediate"]),
    ("timeout", &["-t", "--max-wait", "--wait-for"]),
    ("ttl", &["-t", "--expire", "--expires", "--lease"]),
    ("label", &["-l", "-m", "--reason", "--why", "--comment", "--message", "--description"]),
    ("lines", &["--last", "--tail", "--limit", "--count"]),
    ("all-stores", &["-a", "--all"]),
    ("all", &["-a"]),
    ("force", &["-f"]),
    ("json", &["-o", "--output", "--format"]),
];

/// Commands and options of earlier versions, before the next step for their users.
const REMOVED: [(&str, &str); 4] = [
    ("fence", "use CSALOCK_TOKEN as docs/fencing.md shows"),
    ("audit", "use csalock history"),
    ("--follow", "use watch csalock history"),
    ("--give-up-if", "use --timeout"),
];

/// Words that users type for what they want csalock to do, not as the name of a lock before a command.
const NOT_NAMES: [&str; 4] = ["help", "try", "test", "trylock"];

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

/// Returns the help of the command, with its description and rare options if it is the long one. clap's own long help takes three lines
/// for each option.
fn help(arguments: &Arguments<'_>, is_long: bool, output: &impl IsTerminal) -> String {
    let mut command = arguments.definition().clone();
    if is_long {
        let description = command.get_long_about().or(command.get_about()).cloned().unwrap_or_default();
        let end = command.get_after_long_help().or(command.get_after_help()).cloned().unwrap_or_default();
        command = command.about(description).after_help(end).mut_args(|argument| argument.hide_short_help(false));
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
    if let (ErrorKind::UnknownArgument, Some(error)) = (error.kind(), arguments.dashes_first()) {
        return error;
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
            let add = || format!("add {}", invalid.join(" "));
            return usage_error("an option is missing", arguments.completed(&invalid).unwrap_or_else(add));
        }
        ErrorKind::MissingRequiredArgument => arguments.completed(&invalid).unwrap_or_else(|| arguments.usage()),
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

fn shortened(text: &str) -> String {
    match text.char_indices().nth(LONGEST_WORD) {
        Some((end, _)) => escape(&text.as_bytes()[..end]) + "...",
        None => escape(text.as_bytes()),
    }
}

/// The arguments of one call as they were typed.
struct Arguments<'a> {
    /// All words; the first is the program's name.
    words: &'a [OsString],
    root: clap::Command,
    /// Position of the first word that is the name of a command.
    command_at: Option<usize>,
}

impl<'a> Arguments<'a> {
    fn new(words: &'a [OsString]) -> Arguments<'a> {
        let root = Cli::definition();
        let command_at = (1..words.len()).find(|at| root.find_subcommand(&words[*at]).is_some());
        Arguments { words, root, command_at }
    }

    fn definition(&self) -> &clap::Command {
        self.command_at.and_then(|at| self.root.find_subcommand(&self.words[at])).unwrap_or(&self.root)
    }

    /// Returns true if `--json` is among the options of a command that has documents.
    fn ask_for_json(&self) -> bool {
        let mut options = self.words.iter().take_while(|word| *word != "--");
        !["run", "man", "completions"].contains(&self.definition().get_name()) && options.any(|word| word == "--json")
    }

    fn see_help(&self) -> String {
        let definition = self.definition();
        format!("see {} --help", definition.get_bin_name().unwrap_or(definition.get_name()))
    }

    fn usage(&self) -> String {
        let usage = self.definition().clone().render_usage().to_string();
        format!("use: {}", usage.trim_start_matches("Usage:").trim().lines().next().unwrap_or_default())
    }

    /// Returns the hint to try these words with the missing options, which take no value, and with placeholders for
    /// other missing words.
    fn completed(&self, missing: &[String]) -> Option<String> {
        let (options, others): (Vec<_>, Vec<_>) = missing.iter().partition(|argument| argument.starts_with("--"));
        let at =
            self.command_at.filter(|_| !options.is_empty() && !options.iter().any(|option| option.contains(' ')))?;
        let mut words = self.words.to_vec();
        words.splice(at + 1..at + 1, options.iter().map(OsString::from));
        let placeholder = |other: &&String| OsString::from(other.trim_matches(['<', '>', '.']));
        words.extend(others.iter().map(placeholder));
        try_words(words)
    }

    fn instead_of_command(&self, typed: &OsStr) -> String {
        if let Some(hint) = instead_of_removed(typed) {
            return hint;
        }
        let everyday = EVERYDAY_WORDS.iter().find(|(_, words)| words.iter().any(|word| *word == typed));
        let mut names = self.root.get_subcommands().flat_map(clap::Command::get_name_and_visible_aliases);
        let meant = everyday.map(|(meant, _)| *meant).or_else(|| names.find(|name| is_misspelt(typed, name)));
        match (meant, self.words.iter().position(|word| word == typed)) {
            (Some(meant), Some(at)) => self.try_instead(at, meant).unwrap_or_else(|| format!("use csalock {meant}")),
            _ => self.as_run().unwrap_or_else(|| self.see_help()),
        }
    }

    /// Returns the hint to try these words with others in the place of this one.
    fn try_instead(&self, at: usize, meant: &str) -> Option<String> {
        let mut words = self.words.to_vec();
        words.splice(at..=at, meant.split(' ').map(OsString::from));
        try_words(words)
    }

    /// Returns the hint for an unknown option, or for a word too many.
    fn instead_of_argument(&self, typed: &OsStr) -> String {
        if let Some(hint) = instead_of_removed(typed) {
            return hint;
        }
        if !is_dashed(typed) {
            return self.value_in_quotes(typed).unwrap_or_else(|| self.usage());
        }
        let (run, perhaps) = match self.command_after_lock() {
            Some((program, hint)) if is_program(&program) && !self.is_misspelt_long(typed) => (Some(hint), None),
            other => (None, other.map(|(_, hint)| hint)),
        };
        run.or_else(|| self.flock_option(typed))
            .or_else(|| self.everyday_option(typed))
            .or_else(|| self.command_first())
            .or_else(|| self.misspelt_option(typed))
            .or(perhaps)
            .unwrap_or_else(|| match self.command_at {
                Some(_) if typed.as_bytes().get(1).is_some_and(u8::is_ascii_digit) => self.see_help(),
                Some(_) => format!("{}; put -- before a name or value that begins with a dash", self.see_help()),
                None => self.usage(),
            })
    }

    /// Returns the word after the name of `lock`, and the hint for a command that begins with it and has options.
    fn command_after_lock(&self) -> Option<(OsString, String)> {
        let at = self.command_at.filter(|_| self.definition().get_name() == "lock")?;
        let mut words = self.words.to_vec();
        words[at] = "run".into();
        let Ok(Cli { command: Command::Run(run), .. }) = Cli::read(words) else { return None };
        let [_, program, arguments @ ..] = run.words.as_slice() else { return None };
        let is_command = !is_dashed(program) && arguments.iter().any(|word| is_dashed(word));
        let hint = self.try_instead(at, "run").filter(|_| is_command)?;
        Some((program.clone(), format!("to run a command under a lock, {hint}")))
    }

    /// Returns the hint for an option of flock(1) that csalock expresses in another way.
    fn flock_option(&self, typed: &OsStr) -> Option<String> {
        let command = self.definition().get_name();
        let hint = match typed.to_str()? {
            "-V" | "--version" => "use csalock --version",
            _ if !["csalock", "run", "lock"].contains(&command) => return None,
            "-o" | "--close" => "leave it out, because a command does not inherit the lock",
            "-u" | "--unlock" => {
                let is_name = |word: &&OsString| !is_dashed(word) && self.root.find_subcommand(word).is_none();
                let name = self.words[1..].iter().find(is_name)?;
                return try_words(vec!["csalock".into(), "unlock".into(), name.clone()]);
            }
            "-c" | "--command" if command == "lock" => return self.try_instead(self.command_at?, "run"),
            "-c" | "--command" => {
                let string = self.words.iter().position(|word| word == typed).and_then(|at| self.words.get(at + 1));
                return Some(format!("use: csalock run NAME -c {}", string.map_or("STRING".into(), |it| quoted(it))));
            }
            "--force" => "to end the holder first, use csalock unlock --force --end NAME",
            _ => return None,
        };
        Some(hint.to_string())
    }

    fn everyday_option(&self, typed: &OsStr) -> Option<String> {
        let options: Vec<&str> = self.definition().get_arguments().filter_map(clap::Arg::get_long).collect();
        let mut meant = EVERYDAY_OPTIONS.iter().filter(|(meant, _)| options.contains(meant));
        let (meant, _) = meant.find(|(_, words)| words.iter().any(|word| *word == typed))?;
        let names_json = self.words.iter().any(|word| word.as_bytes().ends_with(b"json"));
        (*meant != "json" || names_json).then(|| format!("use --{meant}"))
    }

    /// Returns the hint for an option before the command to which it belongs, or without a command.
    fn command_first(&self) -> Option<String> {
        let Some(command) = self.command_at else { return self.as_run() };
        if command == 1 {
            return None;
        }
        let mut words = self.words.to_vec();
        words[1..=command].rotate_right(1);
        try_words(words)
    }

    /// Returns the error for `--` directly before the command, after which every word is a name, and none a command.
    fn dashes_first(&self) -> Option<Error> {
        let command = self.command_at.filter(|at| self.words[at - 1] == "--")?;
        let problem =
            format!("-- comes before the command {}, and may come only after it", quoted(&self.words[command]));
        let words = [&self.words[..command - 1], &self.words[command..]].concat();
        Some(usage_error(problem, try_words(words).unwrap_or_else(|| self.usage())))
    }

    fn misspelt_option(&self, typed: &OsStr) -> Option<String> {
        let options = self.definition().get_arguments();
        if let Some(long) = typed.to_str()?.strip_prefix("--") {
            let name = options.filter_map(clap::Arg::get_long).find(|name| is_misspelt(long.as_ref(), name))?;
            return Some(format!("use --{name}"));
        }
        let mut letters = options.filter_map(clap::Arg::get_short);
        let letter = letters.find(|letter| typed.eq_ignore_ascii_case(format!("-{letter}")))?;
        Some(format!("use -{letter}"))
    }

    fn is_misspelt_long(&self, typed: &OsStr) -> bool {
        typed.as_bytes().starts_with(b"--") && self.misspelt_option(typed).is_some()
    }

    /// Returns the hint for `put` with a value of several words.
    fn value_in_quotes(&self, typed: &OsStr) -> Option<String> {
        if self.definition().get_name() != "put" {
            return None;
        }
        let at = self.words.iter().rposition(|word| word == typed)? - 1;
        let value = self.words[at..].join(OsStr::new(" "));
        try_words([&self.words[..at], &[value]].concat())
    }

    /// Returns the hint in which the name of `run` comes after the options that follow it.
    fn name_after_options(&self, asked: &Run) -> Option<String> {
        let at = self.words.len() - asked.words.len();
        (at + 1..self.words.len()).find_map(|end| {
            let mut words = self.words.to_vec();
            words[at..=end].rotate_left(1);
            let hint = try_words(words.clone())?;
            match Cli::read(words) {
                // The name has become the value of an option.
                Ok(Cli { command: Command::Run(run), .. }) if run.words.first() != asked.words.first() => None,
                _ => Some(hint),
            }
        })
    }

    /// Returns the hint for arguments of flock(1): these arguments after `run`.
    fn as_run(&self) -> Option<String> {
        let first = self.words.get(1)?;
        if NOT_NAMES.iter().any(|word| word == first) {
            return None;
        }
        let mut words = [&["csalock".into(), "run".into()], &self.words[1..]].concat();
        if self.words.get(2).is_some_and(|word| is_assignment(word.as_bytes())) {
            words.insert(3, "env".into());
        }
        let hint = try_words(words)?;
        Some(format!("to run a command under a lock, {hint}"))
    }
}

fn instead_of_removed(typed: &OsStr) -> Option<String> {
    let (_, hint) = REMOVED.iter().find(|(word, _)| *word == typed)?;
    Some((*hint).to_string())
}

/// Returns the hint to try these words, if csalock understands them.
fn try_words(words: Vec<OsString>) -> Option<String> {
    let shown: Vec<String> = words[1..].iter().map(|word| shell_quote(word.as_bytes())).collect();
    let hint = format!("try: csalock {}", shown.join(" "));
    if hint.len() > LONGEST_HINT {
        return None;
    }
    let is_valid = match Cli::read(words) {
        Ok(cli) => !matches!(&cli.command, Command::Run(run) if run.common.json || command_line(run).is_err()),
        Err(error) => matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion),
    };
    is_valid.then_some(hint)
}

fn is_dashed(word: &OsStr) -> bool {
    word.as_bytes().starts_with(b"-")
}

/// Returns true if a typing error makes this word of the name: another case, the beginning alone, or one letter that is
/// wrong, missing, additional or swapped with the next.
fn is_misspelt(word: &OsStr, name: &str) -> bool {
    let word = word.as_bytes().to_ascii_lowercase();
    match difference(&word, name.as_bytes()) {
        ([], []) => true,
        ([], _) if word.len() > 2 && name.as_bytes().starts_with(&word) => true,
        (wrong, right) => word.len() > 1 && is_slip(wrong, right),
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

    #[test]
    fn only_typing_errors_are_misspelt_names() {
        for word in ["status", "STATUS", "stauts", "sttatus", "staus", "stetus", "stat", "tsatus", "statu"] {
            assert!(is_misspelt(word.as_ref(), "status"), "{word}");
        }
        for word in ["", "s", "st", "statutes", "tus", "sutats", "state"] {
            assert!(!is_misspelt(word.as_ref(), "status"), "{word}");
        }
        assert!(!is_misspelt("min-hold".as_ref(), "max-hold") && !is_misspelt("c".as_ref(), "gc"));
    }
}
