//! The arguments of one call as they were typed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::error::ErrorKind;
use clap::{Arg, ValueEnum};

use crate::cli::{Cli, Color, Command};
use crate::command::run::command_line;
use crate::name::shell_quote;

/// Maximum length of a line that a hint shows, in bytes.
const LONGEST: usize = 500;

/// The arguments of one call.
pub(super) struct Line<'a> {
    /// All words; the first is the program's name.
    pub(super) words: &'a [OsString],
    /// Position of the first word that is not an option: the command.
    command_at: Option<usize>,
    pub(super) root: clap::Command,
}

impl<'a> Line<'a> {
    pub(super) fn new(words: &'a [OsString]) -> Line<'a> {
        let root = Cli::definition();
        let mut at = 1;
        while words.get(at).is_some_and(|word| is_option(word)) {
            at += width(&words[at], &root);
        }
        let command_at = words.get(at).is_some_and(|word| !is_dashed(word)).then_some(at);
        Line { words, command_at, root }
    }

    /// Returns the line as clap knew it when it refused this option: the command may come after the option.
    pub(super) fn until(self, option: &OsStr) -> Line<'a> {
        let at = self.find(option).unwrap_or(self.words.len());
        Line { command_at: self.command_at.filter(|command| *command < at), ..self }
    }

    /// Returns the definition of the command, or of the program if its command is missing or unknown.
    pub(super) fn definition(&self) -> &clap::Command {
        self.command_word().and_then(|word| self.root.find_subcommand(word)).unwrap_or(&self.root)
    }

    /// Returns the word in the place of the command.
    pub(super) fn command_word(&self) -> Option<&'a OsStr> {
        self.command_at.map(|at| self.words[at].as_os_str())
    }

    /// Returns the name of the command; that of the program if there is no command.
    pub(super) fn command(&self) -> &str {
        self.definition().get_name()
    }

    /// Returns true if the place of the command does not contain a command of csalock.
    pub(super) fn is_without_command(&self) -> bool {
        self.command() == self.root.get_name()
    }

    /// Returns the command as the beginning of a message: `lock: `, or nothing.
    pub(super) fn of_command(&self) -> String {
        if self.is_without_command() { String::new() } else { format!("{}: ", self.command()) }
    }

    /// Returns true if this word is among the arguments.
    pub(super) fn has(&self, word: &str) -> bool {
        self.words[1..].iter().any(|other| other == word)
    }

    /// Returns the value of `--color`.
    pub(super) fn color(&self) -> Color {
        let value = |at: usize| match self.words[at].to_str()?.strip_prefix("--color")? {
            "" => self.words.get(at + 1)?.to_str(),
            value => value.strip_prefix('='),
        };
        let last = (1..self.words.len()).rev().find_map(value);
        last.and_then(|value| Color::from_str(value, false).ok()).unwrap_or_default()
    }

    /// Returns the hint that shows how to call the command.
    pub(super) fn usage(&self) -> String {
        let usage = self.definition().clone().render_usage().to_string();
        let first = usage.trim_start_matches("Usage:").trim().lines().next().unwrap_or_default();
        format!("use: {first}")
    }

    /// Returns the hint that names the help of the command.
    pub(super) fn see_help(&self) -> String {
        let definition = self.definition();
        format!("see {} --help", definition.get_bin_name().unwrap_or(definition.get_name()))
    }

    /// Returns the hint to try these words, if csalock understands them.
    pub(super) fn try_words(&self, words: Vec<OsString>) -> Option<String> {
        let shown: Vec<String> = words[1..].iter().map(|word| shell_quote(word.as_bytes())).collect();
        let is_valid = match Cli::read(words) {
            Ok(cli) => !matches!(&cli.command, Command::Run(run) if run.common.json || command_line(run).is_err()),
            Err(error) => matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion),
        };
        let hint = format!("try: csalock {}", shown.join(" "));
        (is_valid && hint.len() <= LONGEST).then_some(hint)
    }

    /// Returns true if `--json` is among the options of a command that has documents.
    pub(super) fn asks_for_json(&self) -> bool {
        let mut options = self.words.iter().take_while(|word| *word != "--");
        !["run", "man", "completions"].contains(&self.command()) && options.any(|word| word == "--json")
    }

    /// Returns the words with another command, which options may follow.
    pub(super) fn with_command(&self, command: &str) -> Vec<OsString> {
        let mut words = self.words.to_vec();
        if let Some(at) = self.command_at {
            words.splice(at..=at, command.split(' ').map(OsString::from));
        }
        words
    }

    /// Returns the words without this option; from `-no` only the letter goes away.
    pub(super) fn without(&self, option: &OsStr) -> Vec<OsString> {
        let mut words = self.words.to_vec();
        let Some(at) = self.find(option) else { return words };
        if words[at] == option {
            words.remove(at);
        } else {
            let letters = words[at].as_bytes().iter().copied().filter(|letter| *letter != option.as_bytes()[1]);
            words[at] = OsString::from_vec(letters.collect());
        }
        words
    }

    /// Returns the position of the word that contains this option: `-dash` contains `-d`.
    pub(super) fn find(&self, option: &OsStr) -> Option<usize> {
        let letter = option.as_bytes().get(1).filter(|_| option.len() == 2);
        let contains = |word: &OsString| {
            let bytes = word.as_bytes();
            let is_cluster = bytes.starts_with(b"-") && !bytes.starts_with(b"--");
            bytes == option.as_bytes() || (is_cluster && letter.is_some_and(|letter| bytes.contains(letter)))
        };
        self.words[1..].iter().position(contains).map(|at| at + 1)
    }
}

/// Returns a line with these arguments of `run`.
pub(super) fn under_run(arguments: &[OsString]) -> Vec<OsString> {
    [&["csalock".into(), "run".into()], arguments].concat()
}

pub(super) fn is_dashed(word: &OsStr) -> bool {
    word.as_bytes().starts_with(b"-")
}

/// Returns true for an option; `-` means stdin, and `--` ends the options.
pub(super) fn is_option(word: &OsStr) -> bool {
    is_dashed(word) && word != "-" && word != "--"
}

/// Returns the number of words that this option takes: 2 if its value is the next word.
pub(super) fn width(option: &OsStr, command: &clap::Command) -> usize {
    let Some(option) = option.to_str() else { return 1 };
    let takes_value = |argument: &Arg| argument.get_action().takes_values();
    if let Some(name) = option.strip_prefix("--") {
        let is_it = |argument: &&Arg| {
            argument.get_long() == Some(name) || argument.get_all_aliases().unwrap_or_default().contains(&name)
        };
        return 1 + usize::from(command.get_arguments().find(is_it).is_some_and(takes_value));
    }
    let of = |letter: char| {
        let is_it = |argument: &&Arg| {
            argument.get_short() == Some(letter)
                || argument.get_all_short_aliases().unwrap_or_default().contains(&letter)
        };
        command.get_arguments().find(is_it)
    };
    let letters: Vec<char> = option.chars().skip(1).collect();
    let valued = letters.iter().position(|letter| of(*letter).is_some_and(takes_value));
    1 + usize::from(valued.is_some_and(|at| at + 1 == letters.len()))
}
