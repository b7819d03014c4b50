//! Hints for users of flock(1) and of other tools: the arguments as they were probably meant.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::error::ErrorKind;

use crate::cli::{Cli, Command};
use crate::command::run::command_line;
use crate::name::shell_quote;

/// Maximum length of the arguments that a hint shows, in bytes.
const LONGEST_HINT: usize = 500;

/// Words that users of other tools type, after the command or option of csalock that they mean.
const EVERYDAY_WORDS: [(&str, &[&str]); 14] = [
    ("lock", &["acquire", "take", "grab", "hold"]),
    ("unlock", &["release", "free", "rm", "remove"]),
    ("unlock --force", &["break", "kill", "force", "steal"]),
    ("run", &["exec", "do", "with", "flock", "setlock"]),
    ("status", &["ls", "who", "info", "show", "ps", "locks", "holders"]),
    ("history", &["log", "logs", "past"]),
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
const EVERYDAY_OPTIONS: [(&str, &[&str]); 8] = [
    ("nonblock", &["--nowait", "--no-wait", "--try", "--no-block", "--immediate"]),
    ("timeout", &["-t", "--max-wait", "--wait-for"]),
    ("label", &["--reason", "--why", "--comment", "--message", "--description", "-m"]),
    ("lines", &["--last", "--tail", "--limit", "--count"]),
    ("all-stores", &["-a", "--all"]),
    ("ttl", &["--expire", "--expires", "--lease"]),
    ("force", &["-f"]),
    ("json", &["-o", "--output", "--format"]),
];

/// Options of flock(1) that csalock expresses in another way.
const FLOCK_OPTIONS: [(&[&str], &str); 4] = [
    (&["-o", "--close"], "leave it out, because a command does not inherit the lock"),
    (&["-u", "--unlock"], "use csalock unlock NAME"),
    (&["-c", "--command"], "use: csalock run NAME -c STRING"),
    (&["-V", "--version"], "use csalock --version"),
];

/// Commands that acquire a lock as flock(1) does.
const LIKE_FLOCK: [&str; 3] = ["csalock", "run", "lock"];

/// The arguments of one call as they were typed.
pub(super) struct Arguments<'a> {
    /// All words; the first is the program's name.
    pub(super) words: &'a [OsString],
    root: clap::Command,
    /// Position of the first word that is the name of a command.
    command_at: Option<usize>,
}

impl<'a> Arguments<'a> {
    pub(super) fn new(words: &'a [OsString]) -> Arguments<'a> {
        let root = Cli::definition();
        let command_at = (1..words.len()).find(|at| root.find_subcommand(&words[*at]).is_some());
        Arguments { words, root, command_at }
    }

    /// Returns the definition of the command, or of the program if no command is named.
    pub(super) fn definition(&self) -> &clap::Command {
        self.command_at.and_then(|at| self.root.find_subcommand(&self.words[at])).unwrap_or(&self.root)
    }

    /// Returns true if `--json` is among the options of a command that has documents.
    pub(super) fn ask_for_json(&self) -> bool {
        let mut options = self.words.iter().take_while(|word| *word != "--");
        !["run", "man", "completions"].contains(&self.definition().get_name()) && options.any(|word| word == "--json")
    }

    pub(super) fn see_help(&self) -> String {
        let definition = self.definition();
        format!("see {} --help", definition.get_bin_name().unwrap_or(definition.get_name()))
    }

    /// Returns the hint for a word of another tool in the place of the command.
    pub(super) fn instead_of_command(&self, typed: &OsStr) -> Option<String> {
        let (meant, _) = EVERYDAY_WORDS.iter().find(|(_, words)| words.iter().any(|word| *word == typed))?;
        let at = self.words.iter().position(|word| word == typed)?;
        let mut words = self.words.to_vec();
        words.splice(at..=at, meant.split(' ').map(OsString::from));
        try_words(words).or_else(|| Some(format!("use csalock {meant}")))
    }

    /// Returns the hint for an option of another tool, or for an option before the command to which it belongs.
    pub(super) fn instead_of_option(&self, typed: &OsStr) -> Option<String> {
        let command = self.definition();
        let flock = FLOCK_OPTIONS.iter().find(|(options, _)| options.iter().any(|option| *option == typed));
        if let Some((_, hint)) = flock
            && LIKE_FLOCK.contains(&command.get_name())
        {
            return Some((*hint).to_string());
        }
        let everyday = EVERYDAY_OPTIONS.iter().find(|(_, words)| words.iter().any(|word| *word == typed));
        if let Some((meant, _)) = everyday
            && command.get_arguments().any(|argument| argument.get_long() == Some(meant))
            && self.command_at.is_some()
        {
            return Some(format!("use --{meant}"));
        }
        match (self.command_at, self.words.iter().position(|word| word == typed)) {
            (Some(command), Some(option)) if option < command => {
                let mut words = self.words.to_vec();
                words[1..=command].rotate_right(1);
                try_words(words)
            }
            (None, _) => self.as_run(),
            _ => None,
        }
    }

    /// Returns the hint for arguments of flock(1): these arguments after `run`.
    pub(super) fn as_run(&self) -> Option<String> {
        if self.words.get(1)? == "help" {
            return None;
        }
        let hint = try_words([&["csalock".into(), "run".into()], &self.words[1..]].concat())?;
        Some(format!("to run a command under a lock, {hint}"))
    }
}

/// Returns the hint to try these words, if csalock understands them.
fn try_words(words: Vec<OsString>) -> Option<String> {
    let shown: Vec<String> = words[1..].iter().map(|word| shell_quote(word.as_bytes())).collect();
    let is_valid = match Cli::read(words) {
        Ok(cli) => !matches!(&cli.command, Command::Run(run) if run.common.json || command_line(run).is_err()),
        Err(error) => matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion),
    };
    let hint = format!("try: csalock {}", shown.join(" "));
    (is_valid && hint.len() <= LONGEST_HINT).then_some(hint)
}
