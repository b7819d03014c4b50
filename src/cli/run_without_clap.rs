//! A fast path for the command lines of nearly every cron job and script: `run`, `lock` and `unlock` with the few options
//! of `add_option`. `run` may take 1.25 times as long as flock(1), and clap's description of all options takes 0.12 to 0.15
//! of that time. This module returns nothing for any other command line, so clap alone refuses and explains. Its defaults
//! are the constants that clap uses; a test checks that both ways mean the same.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::options::whole;
use super::run::KILL_AFTER;
use super::{Cli, Command, Common, Lock, Run, Unlock};
use lock::duration::{parse_duration, parse_timeout};

/// `None` unless the arguments have the plain form. The first is the program's name.
pub fn read(arguments: &[OsString]) -> Option<Cli> {
    let verb = match arguments.get(1)?.to_str()? {
        "run" | "run-with-lock" => "run",
        "lock" => "lock",
        "unlock" => "unlock",
        _ => return None,
    };
    // `run` has all of these options.
    let mut run = Run { kill_after: parse_duration(KILL_AFTER).ok()?, ..Run::default() };
    let mut common = Common::default();
    let mut rest = arguments[2..].iter();
    while let Some(word) = rest.next() {
        if word.as_encoded_bytes().starts_with(b"-") {
            add_option(&mut common, &mut run, verb, word, &mut rest)?;
        } else {
            run.words.push(word.clone());
            // The words after the name belong to the command.
            if verb == "run" {
                run.words.extend(rest.by_ref().cloned());
            }
        }
    }
    let waiting = &run.taking.waiting;
    let is_contradiction = (common.quiet && common.verbose)
        || (waiting.nonblock && waiting.timeout.is_some())
        || (run.no_fork && run.max_hold.is_some());
    if run.words.is_empty() || is_contradiction {
        return None;
    }
    let command = match verb {
        "run" => Command::Run(run),
        "lock" => Command::Lock(Lock { taking: run.taking, names: run.words, ..Lock::default() }),
        _ => Command::Unlock(Unlock { kill_after: run.kill_after, names: run.words, ..Unlock::default() }),
    };
    Some(Cli { common, command })
}

/// Adds an option, whose value follows in the same word after `=`, or is the next of the words `rest`. Returns `None`
/// if the option is not plain.
fn add_option<'a>(
    common: &mut Common,
    run: &mut Run,
    verb: &str,
    word: &'a OsStr,
    rest: &mut impl Iterator<Item = &'a OsString>,
) -> Option<()> {
    let word = word.to_str()?;
    let (option, attached) = match word.split_once('=') {
        Some((option, value)) if word.starts_with("--") => (option, Some(OsStr::new(value))),
        _ => (word, None),
    };
    let mut value = || {
        let next = || rest.next().map(OsString::as_os_str).filter(|value| !value.as_bytes().starts_with(b"-"));
        attached.or_else(next)
    };
    let waiting = &mut run.taking.waiting;
    match (option, verb) {
        ("--store", _) => common.store = Some(value()?.to_os_string()),
        ("--max-hold", "run") => run.max_hold = Some(parse_duration(value()?.to_str()?).ok()?),
        ("-w" | "--timeout", "run" | "lock") => {
            waiting.timeout = Some(parse_timeout(value()?.to_str()?).ok()?);
        }
        ("--label", "run" | "lock") => waiting.label = Some(value()?.to_os_string()),
        ("-E" | "--conflict-exit-code", "run" | "lock") => {
            waiting.conflict_exit_code = Some(whole(0, u8::MAX)(value()?.to_str()?).ok()?);
        }
        _ if attached.is_some() => return None,
        ("-q" | "--quiet", _) => common.quiet = true,
        ("-v" | "--verbose", _) => common.verbose = true,
        ("-n" | "--nonblock", "run" | "lock") => waiting.nonblock = true,
        ("-s" | "--shared", "run" | "lock") => run.taking.shared = true,
        ("-F" | "--no-fork", "run") => run.no_fork = true,
        _ => return None,
    }
    Some(())
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
