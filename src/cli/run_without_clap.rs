//! A fast path for the command lines of nearly every cron job and script: `run`, `lock` and `unlock` with the few options
//! of `Options`. The promised time of `run` (1.25 of flock's) demands it beside clap, whose description of all options
//! costs another 0.12 to 0.15 of flock's time. This module returns nothing for any other command line, so clap alone
//! refuses and explains. Its defaults are the constants that clap uses; a test checks that both ways mean the same.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use super::run::KILL_AFTER;
use super::{Busy, Cli, Command, Common, Lock, OnLost, Recurrence, Run, Taking, Unlock, Waiting};
use crate::duration::{Limit, parse_duration, parse_timeout};

/// Commands whose command lines this module reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Run,
    Lock,
    Unlock,
}

/// Options that many command lines have.
#[derive(Default)]
struct Options {
    quiet: bool,
    verbose: bool,
    nonblock: bool,
    shared: bool,
    no_fork: bool,
    store: Option<OsString>,
    max_hold: Option<Duration>,
    timeout: Option<Limit>,
    label: Option<OsString>,
    conflict_exit_code: Option<u8>,
}

/// `None` unless the arguments have the plain form. The first is the program's name.
pub fn read(arguments: &[OsString]) -> Option<Cli> {
    let verb = match arguments.get(1)?.to_str()? {
        "run" | "run-with-lock" => Verb::Run,
        "lock" => Verb::Lock,
        "unlock" => Verb::Unlock,
        _ => return None,
    };
    let (mut options, mut names, mut rest) = (Options::default(), Vec::new(), arguments[2..].iter());
    while let Some(word) = rest.next() {
        if word.as_encoded_bytes().starts_with(b"-") {
            options.add(verb, word, &mut rest)?;
        } else {
            names.push(word.clone());
            // The words after the name belong to the command.
            if verb == Verb::Run {
                names.extend(rest.by_ref().cloned());
            }
        }
    }
    let Options { quiet, verbose, nonblock, no_fork, .. } = options;
    let excludes = [(quiet, verbose), (nonblock, options.timeout.is_some()), (no_fork, options.max_hold.is_some())];
    if names.is_empty() || excludes.contains(&(true, true)) {
        return None;
    }
    let common = Common { quiet, verbose, store: options.store.take(), ..Common::default() };
    let command = match verb {
        Verb::Run => Command::Run(run(options, names, common)?),
        Verb::Lock => {
            let (print_handle, reentrant) = (false, false);
            Command::Lock(Lock { taking: options.taking()?, pid: None, print_handle, reentrant, names, common })
        }
        Verb::Unlock => Command::Unlock(Unlock {
            handle: None,
            all: false,
            force: false,
            end: false,
            kill_after: parse_duration(KILL_AFTER).ok()?,
            token: None,
            reentrant: false,
            names,
            common,
        }),
    };
    Some(Cli { common: Common::default(), command })
}

impl Options {
    /// Adds an option, whose value follows in the same word after `=`, or is the next of the words `rest`. Returns `None`
    /// if the option is not plain.
    fn add<'a>(&mut self, verb: Verb, word: &'a OsStr, rest: &mut impl Iterator<Item = &'a OsString>) -> Option<()> {
        let (option, attached) = split(word);
        let mut value = || {
            attached.or_else(|| {
                let next: &'a OsStr = rest.next()?;
                Some(next).filter(|value| !value.as_encoded_bytes().starts_with(b"-"))
            })
        };
        match (option.to_str()?, verb) {
            ("--store", _) => self.store = Some(value()?.to_os_string()),
            ("--max-hold", Verb::Run) => self.max_hold = Some(parse_duration(value()?.to_str()?).ok()?),
            ("-w" | "--timeout", Verb::Run | Verb::Lock) => {
                self.timeout = Some(parse_timeout(value()?.to_str()?).ok()?);
            }
            ("--label", Verb::Run | Verb::Lock) => self.label = Some(value()?.to_os_string()),
            ("-E" | "--conflict-exit-code", Verb::Run | Verb::Lock) => {
                self.conflict_exit_code = Some(exit_code(value()?)?);
            }
            _ if attached.is_some() => return None,
            ("-q" | "--quiet", _) => self.quiet = true,
            ("-v" | "--verbose", _) => self.verbose = true,
            ("-n" | "--nonblock", Verb::Run | Verb::Lock) => self.nonblock = true,
            ("-s" | "--shared", Verb::Run | Verb::Lock) => self.shared = true,
            ("-F" | "--no-fork", Verb::Run) => self.no_fork = true,
            _ => return None,
        }
        Some(())
    }

    fn taking(self) -> Option<Taking> {
        let waiting = Waiting {
            timeout: self.timeout,
            nonblock: self.nonblock,
            fail_on_stale: false,
            backoff: None,
            label: self.label,
            no_command: false,
            conflict_exit_code: self.conflict_exit_code,
        };
        Some(Taking { waiting, exclusive: false, shared: self.shared, slots: None, ttl: None, forever: false })
    }
}

/// Splits a word of the form `--NAME=VALUE`.
fn split(word: &OsStr) -> (&OsStr, Option<&OsStr>) {
    let bytes = word.as_bytes();
    match bytes.iter().position(|byte| *byte == b'=').filter(|_| bytes.starts_with(b"--")) {
        Some(at) => (OsStr::from_bytes(&bytes[..at]), Some(OsStr::from_bytes(&bytes[at + 1..]))),
        None => (word, None),
    }
}

fn run(options: Options, words: Vec<OsString>, common: Common) -> Option<Run> {
    let Options { no_fork, max_hold, .. } = options;
    Some(Run {
        common,
        no_fork,
        taking: options.taking()?,
        busy: Busy::Wait,
        flock: false,
        fcntl: false,
        reentrant: false,
        shell: None,
        max_hold,
        kill_after: parse_duration(KILL_AFTER).ok()?,
        tree: false,
        on_lost: OnLost::Kill,
        recurrence: Recurrence::default(),
        also: Vec::new(),
        words,
    })
}

/// Decimal digits only.
fn exit_code(text: &OsStr) -> Option<u8> {
    text.to_str().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(words: &[&str]) -> (Option<String>, Option<String>) {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let clap = Cli::read(words.clone()).ok();
        (read(&words).map(|cli| format!("{cli:?}")), clap.map(|cli| format!("{cli:?}")))
    }

    #[test]
    fn the_plain_form_agrees_with_clap() {
        for words in [
            &["csalock", "run", "L", "true"][..],
            &["csalock", "run-with-lock", "L", "sh", "-c", "exit 1", "--", "-n"],
            &["csalock", "run", "./a b", "--", "-x", "--store", "dir:x"],
            &["csalock", "run", "L", "-c", "true"],
            &["csalock", "run", "L"],
            &["csalock", "run", "L", ""],
            &["csalock", "run", "-n", "-q", "-E", "0", "L", "true"],
            &["csalock", "run", "-F", "-w", "inf", "--label", "a b", "L", "-w", "1"],
            &["csalock", "lock", "L"],
            &["csalock", "lock", "-w", "1h30m", "./a", "-v", "b", ""],
            &["csalock", "unlock", "L", "-q", "help"],
            &["csalock", "run", "--nonblock", "--store=dir:a=b", "--quiet", "--no-fork", "L", "true"],
            &["csalock", "lock", "--timeout=5", "--shared", "--label=x", "--conflict-exit-code=3", "L"],
            &["csalock", "unlock", "--verbose", "--store=", "L"],
            &["csalock", "run", "-n", "-n", "--label=a", "--label", "b", "L", "true"],
        ] {
            let (plain, clap) = both(words);
            assert!(plain.is_some() && plain == clap, "{words:?}\n{plain:?}\n{clap:?}");
        }
    }

    #[test]
    fn random_command_lines_mean_the_same_to_clap() {
        let vocabulary = [
            "L",
            "./x",
            "",
            "help",
            "30",
            "0",
            "inf",
            "1h30m",
            "5M",
            "256",
            "+1",
            "007",
            "-1",
            "-",
            "--",
            "-n",
            "-q",
            "-v",
            "-F",
            "-w",
            "-E",
            "--label",
            "--timeout",
            "--timeout=5",
            "--nonblock",
            "--quiet",
            "--quiet=1",
            "--store=dir:x",
            "--label=",
            "--no-fork",
            "-w5",
            "-nq",
            "-s",
            "-x",
            "-c",
            "--force",
            "--also",
            "--store",
            "dir:x",
            "--max-hold",
            "--busy",
            "skip",
        ];
        let mut dice = fastrand::Rng::with_seed(7);
        let mut plain_ones = 0;
        for _ in 0..100_000 {
            let verb = ["run", "lock", "unlock"][dice.usize(..3)];
            let words = (0..dice.usize(1..6)).map(|_| vocabulary[dice.usize(..vocabulary.len())]);
            let words: Vec<OsString> = ["csalock", verb].into_iter().chain(words).map(OsString::from).collect();
            let Some(plain) = read(&words) else { continue };
            let clap = Cli::read(words.clone()).ok();
            assert_eq!(Some(format!("{plain:?}")), clap.map(|cli| format!("{cli:?}")), "{words:?}");
            plain_ones += 1;
            if plain_ones == 5_000 {
                return;
            }
        }
        panic!("only {plain_ones} of the command lines are plain");
    }

    #[test]
    fn every_other_form_is_left_to_clap() {
        for words in [
            &["csalock"][..],
            &["csalock", "run"],
            &["csalock", "run", "--", "L", "true"],
            &["csalock", "run", "-w", "5", "-n", "L", "true"],
            &["csalock", "run", "--busy", "skip", "-E", "4", "L", "true"],
            &["csalock", "lock", "-F", "L"],
            &["csalock", "lock", "-w"],
            &["csalock", "unlock", "-n", "L"],
            &["csalock", "status", "L"],
            &["csalock", "--version"],
        ] {
            assert_eq!(both(words).0, None, "{words:?}");
        }
    }
}
