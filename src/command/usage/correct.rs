//! Hints: the arguments as they were probably meant.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::line::{Line, is_dashed, is_option, under_run, width};
use super::{listed, quoted, usage_error};
use crate::error::Error;

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
const EVERYDAY_OPTIONS: [(&str, &[&str]); 6] = [
    ("nonblock", &["--nowait", "--no-wait", "--try", "--no-block", "--immediate"]),
    ("timeout", &["-t", "--max-wait", "--wait-for"]),
    ("label", &["--reason", "--why", "--comment", "--message", "--description", "-m"]),
    ("lines", &["--last", "--tail", "--limit", "--count"]),
    ("all-stores", &["-a", "--all"]),
    ("ttl", &["--expire", "--expires", "--lease"]),
];

/// Options by which other programs choose JSON.
const FORMAT_OPTIONS: [&str; 4] = ["-o", "-f", "--output", "--format"];

impl Line<'_> {
    /// Returns the error for a command that does not exist.
    pub(super) fn unknown_command(&self, similar: &[String]) -> Error {
        let typed = self.command_word().unwrap_or_default();
        let problem = format!("unknown command {}", quoted(typed));
        let everyday = EVERYDAY_WORDS.iter().find(|(_, words)| words.iter().any(|word| *word == typed));
        let meant = everyday.map(|(meant, _)| (*meant).to_string()).or_else(|| self.misspelt(typed));
        let meant = meant.map_or_else(|| similar.to_vec(), |meant| vec![meant]);
        let next_step = match meant.as_slice() {
            [] => {
                let run = self.try_words(under_run(&self.words[1..]));
                run.map_or_else(|| self.see_help(), |run| format!("to run a command under a lock, {run}"))
            }
            [meant] => self.try_words(self.with_command(meant)).unwrap_or_else(|| format!("use csalock {meant}")),
            several => format!("use {}", listed(several, "or")),
        };
        usage_error(problem, next_step)
    }

    /// Returns the command with the same letters, in another order or case.
    fn misspelt(&self, typed: &OsStr) -> Option<String> {
        let letters = |word: &str| {
            let mut letters = word.to_ascii_lowercase().into_bytes();
            letters.sort_unstable();
            letters
        };
        let typed = typed.to_str()?;
        let mut names = self.root.get_subcommands().map(clap::Command::get_name);
        names.find(|name| *name != typed && letters(name) == letters(typed)).map(str::to_string)
    }

    /// Returns the error for an option that does not exist, or for a word too many.
    pub(super) fn unknown_argument(&self, typed: &OsStr, similar: &[String]) -> Error {
        if !is_dashed(typed) {
            let problem = format!("{}unexpected argument {}", self.of_command(), quoted(typed));
            return usage_error(problem, self.value_in_quotes(typed).unwrap_or_else(|| self.usage()));
        }
        let at = self.find(typed);
        let within = at.map(|at| &self.words[at]).filter(|word| *word != typed && !word.as_bytes().starts_with(b"--"));
        let within = within.map(|word| format!(" in {}", quoted(word))).unwrap_or_default();
        let problem = format!("{}unknown option {}{within}", self.of_command(), quoted(typed));
        let next_step = self
            .flock_option(typed)
            .or_else(|| self.json_option(typed))
            .or_else(|| self.everyday_option(typed))
            .or_else(|| self.command_first())
            .or_else(|| self.of_other_form(typed).map(|option| format!("use {option}")))
            .or_else(|| similar.first().map(|similar| format!("use {similar}")))
            .or_else(|| self.after_dashes(at?));
        usage_error(problem, next_step.unwrap_or_else(|| self.see_help()))
    }

    /// Returns the translation of an option of flock(1) that the command does not have.
    fn flock_option(&self, typed: &OsStr) -> Option<String> {
        let is_run = self.command() == "run";
        match typed.to_str()? {
            "-o" | "--close" if is_run || self.is_without_command() => {
                let rest = self.without(typed);
                let line = self.try_words(if is_run { rest } else { under_run(&rest[1..]) })?;
                Some(format!("leave it out, because a command does not inherit the lock; {line}"))
            }
            "-u" | "--unlock" if is_run || self.command() == "lock" || self.is_without_command() => {
                let mut words = self.words[1..].iter().filter(|word| !is_dashed(word));
                let name = words.find(|word| self.root.find_subcommand(word).is_none())?.clone();
                self.try_words(vec!["csalock".into(), "unlock".into(), name])
            }
            "-c" | "--command" if self.command() == "lock" => self.try_words(self.with_command("run")),
            "-V" | "--version" => Some("use csalock --version".to_string()),
            _ => None,
        }
    }

    /// Returns the option of the command for which other programs have this one.
    fn everyday_option(&self, typed: &OsStr) -> Option<String> {
        let (meant, _) = EVERYDAY_OPTIONS.iter().find(|(_, words)| words.iter().any(|word| *word == typed))?;
        let mut long = self.definition().get_arguments().filter_map(clap::Arg::get_long);
        long.any(|long| long == *meant).then(|| format!("use --{meant}"))
    }

    /// Returns the option of the command that is this letter in the other case, or that begins with this letter.
    fn of_other_form(&self, typed: &OsStr) -> Option<String> {
        let [b'-', letter] = *typed.as_bytes() else { return None };
        let other = if letter.is_ascii_lowercase() { letter.to_ascii_uppercase() } else { letter.to_ascii_lowercase() };
        let mut options = self.definition().get_arguments().filter(|option| !option.is_global_set());
        if options.any(|option| option.get_short() == Some(char::from(other))) {
            return Some(format!("-{}", char::from(other)));
        }
        let long = self.definition().get_arguments().filter_map(clap::Arg::get_long);
        let mut fitting = long.filter(|long| long.as_bytes().first() == Some(&letter));
        let first = fitting.next()?;
        fitting.next().is_none().then(|| format!("--{first}"))
    }

    /// Returns the translation of `-o json`, which many programs have.
    fn json_option(&self, typed: &OsStr) -> Option<String> {
        let is_format = FORMAT_OPTIONS.iter().any(|option| *option == typed);
        let has_json = self.words.iter().any(|word| word.as_bytes().ends_with(b"json"));
        (is_format && has_json).then(|| "use --json".to_string())
    }

    /// Returns a line for options that stand before the command, but belong after it.
    fn command_first(&self) -> Option<String> {
        if !self.is_without_command() {
            return None;
        }
        let at = (1..self.words.len()).find(|at| self.root.find_subcommand(&self.words[*at]).is_some());
        let moved = at.and_then(|at| {
            let command = std::slice::from_ref(&self.words[at]);
            self.try_words([&self.words[..1], command, &self.words[1..at], &self.words[at + 1..]].concat())
        });
        moved.or_else(|| self.try_words(under_run(&self.words[1..])))
    }

    /// Returns a line in which the word at this position is a name or a value.
    fn after_dashes(&self, at: usize) -> Option<String> {
        let what = if self.command() == "put" { "value" } else { "name" };
        // A name of one letter after the dash is less probable than a wrong option.
        if what == "name" && (self.words[at].as_bytes().starts_with(b"--") || self.words[at].len() == 2) {
            return None;
        }
        let (before, word, after) = (&self.words[..at], &self.words[at..=at], &self.words[at + 1..]);
        let dashes = &["--".into()][..];
        // Only `run` needs the order of its words.
        let words = if self.command() == "run" { [before, dashes, word, after] } else { [before, after, dashes, word] };
        self.try_words(words.concat()).map(|line| format!("for a {what} that begins with a dash, {line}"))
    }

    /// Returns a line in which all words of a value are one.
    fn value_in_quotes(&self, typed: &OsStr) -> Option<String> {
        let at = self.words.iter().rposition(|word| word == typed).filter(|_| self.command() == "put")?;
        let value = self.words[at - 1..].join(OsStr::new(" "));
        self.try_words([&self.words[..at - 1], &[value]].concat())
    }

    /// Returns a line in which the options after the name of `run` precede it. The last `count` words are the name and
    /// everything after it.
    pub(super) fn options_before_name(&self, count: usize) -> Option<String> {
        let (before, after) = self.words.split_at(self.words.len() - count);
        let (name, rest) = after.split_at(1);
        if let [dash_c, string @ ..] = rest
            && (dash_c == "-c" || dash_c == "--command")
            && string.len() > 1
            && !string.iter().any(|word| is_dashed(word))
        {
            let string = string.join(OsStr::new(" "));
            return self.try_words([before, name, &[dash_c.clone(), string]].concat());
        }
        let mut end = 0;
        while rest.get(end).is_some_and(|word| is_option(word)) {
            end += width(&rest[end], self.definition());
        }
        let (options, rest) = rest.split_at(end.min(rest.len()));
        if options.iter().any(|word| word == "--help" || word == "-h") {
            return self.try_words([before, &["--help".into()]].concat());
        }
        let dashes = before.len() - usize::from(before.last().is_some_and(|word| word == "--"));
        let words: [&[OsString]; 5] = [&before[..dashes], options, &before[dashes..], name, rest];
        self.try_words(words.concat())
    }
}
