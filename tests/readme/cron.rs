//! Crontabs, anacrontabs and units of systemd.

use std::fs;
use std::process::Command;

use crate::home::{CSALOCK, Home, write};
use crate::page::blocks;
use harness::has;

/// The settings and the lines of a crontab.
fn parts(text: &str) -> (Vec<&str>, Vec<&str>) {
    let is_setting = |line: &&str| line.split(char::is_whitespace).next().is_some_and(|word| word.contains('='));
    text.lines().partition(is_setting)
}

/// Runs the command after this number of fields twice, as cron does.
fn run_twice(line: &str, fields: usize) {
    let mut rest = line;
    for _ in 0..fields {
        rest = rest.trim_start().split_once(char::is_whitespace).unwrap().1;
    }
    assert!(!rest.contains('%'), "cron ends the line there: {line}");
    let home = Home::new();
    for _ in 0..2 {
        let done = home.run("sh", &[], rest);
        assert!(done.status.success() && done.stderr.is_empty(), "{line}: {done:?}");
    }
    assert_eq!(home.locks(), "");
}

#[test]
fn every_crontab_line_runs_and_runs_again() {
    for block in blocks("crontab") {
        let (settings, lines) = parts(&block.text);
        for path in settings.iter().filter(|line| line.starts_with("PATH=")) {
            assert!(path.contains("/usr/local/bin"), "cron does not look there, where the archive puts csalock");
        }
        assert!(lines.len() > 1);
        lines.iter().for_each(|line| run_twice(line.trim(), 5));
    }
}

#[test]
fn every_anacrontab_line_runs_and_runs_again() {
    for block in blocks("anacrontab") {
        block.text.lines().for_each(|line| run_twice(line.trim(), 3));
    }
}

/// Each block is one file, whose path is in its first line.
#[test]
fn systemd_accepts_every_unit() {
    require!(has("systemd-analyze"));
    let root = tempfile::tempdir().unwrap();
    // The program is looked for, and must be executable. Some units of the system are named by every unit.
    write(&root.path().join("usr/bin/csalock"), "");
    fs::copy(CSALOCK, root.path().join("usr/bin/csalock")).unwrap();
    for target in ["sysinit", "basic", "shutdown", "timers", "time-set", "time-sync", "multi-user"] {
        let text = "[Unit]\nDescription=A target\n";
        write(&root.path().join(format!("usr/lib/systemd/system/{target}.target")), text);
    }
    let mut units = Vec::new();
    for block in blocks("ini") {
        let path = block.text.lines().next().unwrap().strip_prefix("# /").unwrap().to_string();
        write(&root.path().join(&path), &block.text);
        units.push(path.rsplit('/').next().unwrap().to_string());
    }
    assert!(units.len() > 2);
    let root_option = format!("--root={}", root.path().display());
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "--recursive-errors=yes", &root_option]).args(&units);
    let done = verify.output().unwrap();
    let said = [done.stdout, done.stderr].concat();
    assert!(done.status.success() && said.is_empty(), "{units:?}: {}", String::from_utf8_lossy(&said));
}

#[test]
fn the_units_treat_busy_as_success_and_a_deadlock_as_final() {
    let all: String = blocks("ini").into_iter().map(|block| block.text).collect();
    for setting in ["SuccessExitStatus=75\n", "RestartPreventExitStatus=84\n"] {
        assert!(all.contains(setting), "{setting}");
    }
}
