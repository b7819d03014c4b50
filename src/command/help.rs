//! The help, and errors in the arguments: what clap says about them, then the next step, in the form of all other errors.
//! Then `csalock man` and `csalock completions`, which print files that the program carries. A page of the manual is there
//! as plain text, too, for a pipe and for a host without man(1).

use std::error::Error as _;
use std::ffi::OsString;
use std::fs::File;
use std::io::{IsTerminal, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{self, Stdio};

use clap::ValueEnum;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use rustix::fs::{MemfdFlags, memfd_create};

use super::context::{LONGEST_WORD, eprint_line, print, print_json, quoted};
use super::run::command_line;
use crate::cli::{Cli, Color, Command, Completions, Man, Shell};
use crate::exit::Exit;
use crate::report::RefusalReport;
use crate::run::exec::is_program;
use engine::stores::{built_in, formats};
use lock::error::Error;
use lock::name::{escape, shell_quote};

/// Maximum length of a hint that repeats the arguments, in bytes.
const LONGEST_HINT: usize = 500;

/// Commands and options of earlier versions, before the next step for their users.
const REMOVED: [(&str, &str); 6] = [
    ("fence", "use CSALOCK_TOKEN as docs/fencing.md shows"),
    ("audit", "use csalock history"),
    ("--follow", "use watch csalock history"),
    ("--give-up-if", "use --timeout"),
    ("--attempts", "use --timeout"),
    ("--interval", "use watch -n"),
];

/// Prints the error that clap found in these arguments, or the help that the caller requested.
pub(super) fn tell(error: clap::Error, words: &[OsString]) -> anyhow::Result<Exit> {
    let arguments = Arguments::new(words);
    let usage_error = lock::error::ErrorKind::InvalidInput.into();
    match error.kind() {
        ErrorKind::DisplayVersion => {
            let is_long = words.iter().any(|word| ["-v", "--verbose", "-Vv", "-vV"].iter().any(|long| word == long));
            let more = format!("stores: {}\nformats: {}\nfeatures: {}\n", built_in().join(", "), formats(), features());
            print(format!("{}{}", error.render(), if is_long { &more } else { "" })).map(|()| Exit::Done)
        }
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

/// Features of cargo that this program was built with.
fn features() -> String {
    let known = [
        ("bundled-sqlite", cfg!(feature = "bundled-sqlite")),
        ("etcd", cfg!(feature = "etcd")),
        ("postgres", cfg!(feature = "postgres")),
        ("sqlite", cfg!(feature = "sqlite")),
        ("ssh", cfg!(feature = "ssh")),
    ];
    let built = known.into_iter().filter_map(|(feature, is_on)| is_on.then_some(feature)).collect::<Vec<_>>();
    if built.is_empty() { "none".to_string() } else { built.join(", ") }
}

/// The long help has the description and rare options too. clap's own long help takes three lines for each option.
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

/// clap has not read these arguments to their end.
fn color(words: &[OsString]) -> Color {
    let value = |at: usize| match words[at].to_str()?.strip_prefix("--color")? {
        "" => words.get(at + 1)?.to_str(),
        value => value.strip_prefix('='),
    };
    let last = (1..words.len()).rev().find_map(value);
    last.and_then(|value| Color::from_str(value, false).ok()).unwrap_or_default()
}

/// The problem is in the words of clap.
fn describe(mut error: clap::Error, arguments: &Arguments<'_>) -> Error {
    let invalid = texts(&error, ContextKind::InvalidArg);
    let first = invalid.first().map(String::as_str).unwrap_or_default();
    if error.kind() == ErrorKind::ValueValidation {
        let option = first.split(' ').next().unwrap_or_default();
        let value = quoted(texts(&error, ContextKind::InvalidValue).concat().as_ref());
        let why = error.source().map(ToString::to_string).unwrap_or_default();
        return Error::invalid(format!("{option}: {value} {why}"), "");
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
    let problem = rendered.lines().take_while(|line| !line.is_empty()).map(str::trim).collect::<Vec<_>>().join(" ");
    let next_step = match error.kind() {
        ErrorKind::UnknownArgument => {
            let suggested = texts(&error, ContextKind::SuggestedArg).pop().map(|option| format!("use {option}"));
            arguments.instead_of(first, suggested).unwrap_or_else(|| arguments.after_argument(first))
        }
        ErrorKind::InvalidSubcommand => {
            let suggested = texts(&error, ContextKind::SuggestedSubcommand).pop();
            let suggested = suggested.map(|name| format!("use csalock {name}"));
            arguments.instead_of(&unknown_command, suggested).unwrap_or_else(|| arguments.see_help())
        }
        // clap lists all commands.
        ErrorKind::MissingSubcommand => return Error::invalid("the command is missing", arguments.see_help()),
        ErrorKind::ArgumentConflict => "leave one of them out".to_string(),
        ErrorKind::MissingRequiredArgument if invalid.iter().all(|argument| argument.starts_with("--")) => {
            return Error::invalid("an option is missing", format!("add {}", invalid.join(" ")));
        }
        ErrorKind::MissingRequiredArgument => arguments.usage(),
        ErrorKind::InvalidUtf8 => "only names, values, labels, paths and commands may be other bytes".to_string(),
        _ => arguments.see_help(),
    };
    Error::invalid(problem.trim_start_matches("error: "), next_step)
}

/// Empty if the error does not have this context.
fn texts(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(LONGEST_WORD) {
        Some((end, _)) => escape(&text.as_bytes()[..end]) + "...",
        None => escape(text.as_bytes()),
    }
}

/// As they were typed.
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

    /// Some commands have no documents.
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

    /// Hint for an unknown command or argument; `suggested` is that of clap.
    fn instead_of(&self, typed: &str, suggested: Option<String>) -> Option<String> {
        let removed = REMOVED.iter().find(|(word, _)| *word == typed).map(|(_, hint)| hint.to_string());
        removed.or_else(|| self.as_run()).or(suggested)
    }

    /// Hint for an unknown option, or for a word too many.
    fn after_argument(&self, typed: &str) -> String {
        match typed.strip_prefix('-').filter(|_| self.command_at.is_some()) {
            None => self.usage(),
            Some(option) if option.starts_with(|first: char| first.is_ascii_digit()) => self.see_help(),
            Some(_) => format!("{}; put -- before a name or value that begins with a dash", self.see_help()),
        }
    }

    /// Hint for arguments of flock(1), and for a command after the name of `lock`: these arguments after `run`, if they
    /// name a program.
    fn as_run(&self) -> Option<String> {
        let mut words = self.words.to_vec();
        match self.command_at {
            None => words.insert(1, "run".into()),
            Some(at) if self.definition().get_name() == "lock" => words[at] = "run".into(),
            Some(_) => return None,
        }
        let shown: Vec<String> = words[1..].iter().map(|word| shell_quote(word.as_bytes())).collect();
        let hint = format!("to run a command under a lock, try: csalock {}", shown.join(" "));
        let Ok(Cli { common, command: Command::Run(run) }) = Cli::read(words) else { return None };
        let [_, program, ..] = run.words.as_slice() else { return None };
        (is_program(program) && !common.json && command_line(&run).is_ok() && hint.len() <= LONGEST_HINT)
            .then_some(hint)
    }
}

pub(super) fn man(options: &Man) -> anyhow::Result<Exit> {
    let wanted = options.page.as_deref().unwrap_or("csalock");
    let (file, page) = find(wanted).ok_or_else(|| unknown(wanted))?;
    if options.roff {
        print(page)?;
        return Ok(Exit::Done);
    }
    if std::io::stdout().is_terminal() {
        show(page);
    }
    let plain = format!("{file}.txt");
    print(files::PLAIN_PAGES.iter().find(|(name, _)| *name == plain).map_or(page, |(_, plain)| plain))?;
    Ok(Exit::Done)
}

/// `wanted` is a command, a page with or without its section, or `7` for csalock(7).
fn find(wanted: &str) -> Option<(&'static str, &'static str)> {
    let is_it = |&&(file, _): &&(&str, &str)| {
        let page = file.rsplit_once('.').map_or(file, |(page, _)| page);
        let short = [page.strip_prefix("csalock-"), file.strip_prefix("csalock.")];
        file == wanted || page == wanted || short.contains(&Some(wanted))
    };
    let (file, text) = files::MAN_PAGES.iter().find(is_it)?;
    // The page of another name of a command consists of a reference.
    match text.strip_prefix(".so man1/") {
        Some(file) => find(file.trim()),
        None => Some((file, text)),
    }
}

fn unknown(wanted: &str) -> Error {
    let files = files::MAN_PAGES.iter();
    let pages: Vec<&str> = files.map(|(file, _)| file.trim_end_matches(".1").trim_start_matches("csalock-")).collect();
    let what = format!("the manual has no page {}", shell_quote(wanted.as_bytes()));
    Error::invalid(what, format!("use one of: {}", pages.join(", ")))
}

/// Becomes the program that shows the page. Returns if this host has none.
fn show(page: &str) {
    // Other programs named man do not read stdin.
    let version = process::Command::new("man").arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output();
    if version.is_ok_and(|done| done.status.success() && done.stdout.starts_with(b"man "))
        && let Ok(source) = open(page)
    {
        let _ = process::Command::new("man").args(["-l", "-"]).stdin(source).exec();
    }
}

/// The file has no name: man-db may change its user, and then could not open a file of ours.
fn open(page: &str) -> std::io::Result<File> {
    let mut file = File::from(memfd_create("csalock-man", MemfdFlags::CLOEXEC)?);
    file.write_all(page.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

pub(super) fn completions(options: &Completions) -> anyhow::Result<Exit> {
    let file = match options.shell {
        Shell::Bash => "csalock.bash",
        Shell::Zsh => "_csalock",
        Shell::Fish => "csalock.fish",
    };
    print(files::COMPLETIONS.iter().find(|(name, _)| *name == file).map_or("", |(_, text)| text))?;
    Ok(Exit::Done)
}

/// Each file with its name.
mod files {
    include!(concat!(env!("OUT_DIR"), "/files.rs"));
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
