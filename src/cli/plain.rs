//! A fast path for `csalock run NAME COMMAND...` without options, the form of nearly every cron line. Building clap's
//! description of all options costs more time than the lock itself. A test checks that both ways mean the same.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use super::{Busy, Cli, Command, Common, OnLost, Recurrence, Run, Taking, Waiting};
use crate::duration::Limit;

/// Returns the meaning of these arguments, of which the first is the program's name, if they have the plain form.
pub fn read(arguments: &[OsString]) -> Option<Cli> {
    let command = arguments.get(1)?;
    if command != "run" && command != "run-with-lock" {
        return None;
    }
    let words = arguments[2..].to_vec();
    if words.first()?.as_bytes().starts_with(b"-") {
        return None;
    }
    let common = Common::default();
    let waiting = Waiting {
        timeout: Limit(Some(Duration::from_secs(30))),
        nonblock: false,
        fail_on_stale: false,
        backoff: None,
        attempts: None,
        label: None,
        conflict_exit_code: None,
    };
    let taking =
        Taking { waiting, give_up_if: None, exclusive: false, shared: false, slots: None, ttl: None, forever: false };
    let run = Run {
        common,
        taking,
        no_fork: false,
        busy: Busy::Wait,
        flock: false,
        shell: None,
        max_hold: None,
        kill_after: Duration::from_secs(10),
        on_lost: OnLost::Kill,
        recurrence: Recurrence::default(),
        also: Vec::new(),
        words,
    };
    Some(Cli { common: Common::default(), command: Command::Run(run) })
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
        ] {
            let (plain, clap) = both(words);
            assert!(plain.is_some() && plain == clap, "{words:?}\n{plain:?}\n{clap:?}");
        }
    }

    #[test]
    fn every_other_form_is_left_to_clap() {
        for words in [
            &["csalock"][..],
            &["csalock", "run"],
            &["csalock", "run", "-n", "L", "true"],
            &["csalock", "run", "--", "L", "true"],
            &["csalock", "lock", "L"],
            &["csalock", "--version"],
        ] {
            assert_eq!(both(words).0, None, "{words:?}");
        }
    }
}
