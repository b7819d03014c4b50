//! The README is run: every shell block, the crontab, the table of flock lines, the lines of "Try it" and "Install".

#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stderr, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

const README: &str = include_str!("../README.md");

/// The fenced blocks of one kind.
fn blocks(kind: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut open: Option<(bool, String)> = None;
    for line in README.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(info)) => open = Some((info == kind, String::new())),
            (Some(_), Some(_)) => blocks.extend(open.take().and_then(|(wanted, text)| wanted.then_some(text))),
            (Some((_, text)), None) => text.extend([line, "\n"]),
            (None, None) => {}
        }
    }
    assert!(!blocks.is_empty(), "no block is {kind}");
    blocks
}

/// A home where nothing has happened yet.
struct Home(TempDir);

impl Home {
    fn new() -> Home {
        let home = Home(tempfile::tempdir().unwrap());
        fs::create_dir(home.path().join("bin")).unwrap();
        // The commands that the recipes guard.
        for program in ["bin/cmd", "bin/fetch-mirror"] {
            fs::write(home.path().join(program), "#!/bin/sh\n").unwrap();
            fs::set_permissions(home.path().join(program), fs::Permissions::from_mode(0o755)).unwrap();
        }
        for name in ["csaLock", "csaUnlock"] {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_csalock"), home.path().join("bin").join(name)).unwrap();
        }
        fs::write(home.path().join("accounts"), "b\na\n").unwrap();
        fs::write(home.path().join("customers"), "a\n").unwrap();
        home
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs this program here, in an environment as empty as cron's.
    fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let binary = Path::new(env!("CARGO_BIN_EXE_csalock")).parent().unwrap().display();
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.path()).env_clear().env("HOME", self.path());
        command.env("PATH", format!("{binary}:{}:/usr/local/bin:/usr/bin:/bin", self.path().join("bin").display()));
        if nix::unistd::geteuid().is_root() {
            // Root's default store is the machine's.
            command.env("CSALOCK_STORE", format!("dir:{}/store", self.path().display()));
        }
        command.output().unwrap()
    }

    /// Runs a script that has to succeed, and says what it printed.
    fn script(&self, shell: &str, text: &str) -> String {
        fs::write(self.path().join("script"), text).unwrap();
        let done = self.run(shell, &["-eu", "script"]);
        let printed = String::from_utf8_lossy(&done.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{shell}: {}\n{text}\n{printed}{complaint}", done.status);
        printed
    }
}

impl Drop for Home {
    /// Ends the servers of a script that failed before it ended them.
    fn drop(&mut self) {
        let pids = ["n1.pid", "n2.pid", "n3.pid"].map(|file| fs::read_to_string(self.path().join(file)));
        for pid in pids.into_iter().flatten() {
            let _ = Command::new("kill").args(["-KILL", pid.trim()]).stderr(std::process::Stdio::null()).status();
        }
    }
}

fn has_etcd() -> bool {
    let has = Command::new("etcd").arg("--version").output().is_ok();
    assert!(has || std::env::var_os("CI").is_none_or(|ci| ci != "true"), "etcd-server must be installed");
    if !has {
        eprintln!("SKIPPED: the README's etcd: it is not installed here");
    }
    has
}

#[test]
fn every_shell_block_runs() {
    for shell in ["dash", "bash"] {
        for block in blocks("sh") {
            let home = Home::new();
            if block.contains("etcd --name") && !has_etcd() {
                continue;
            }
            home.script(shell, &block);
            let left = home.script("sh", "csalock status -1; ls -d .csalock 2> /dev/null || :");
            assert_eq!(left, "", "{shell} leaves locks behind:\n{block}");
        }
    }
}

#[test]
fn every_crontab_line_runs_and_runs_again() {
    let home = Home::new();
    let crontab = blocks("crontab").concat();
    let (settings, lines): (Vec<&str>, Vec<&str>) = crontab.lines().partition(|line| line.starts_with("PATH="));
    assert!(settings[0].contains("/usr/local/bin"), "cron does not look there, and we are installed there");
    for line in lines {
        let command = line.splitn(6, |char: char| char.is_whitespace()).nth(5).unwrap();
        for _ in 0..2 {
            assert_eq!(home.script("sh", command), "");
        }
    }
}

#[test]
fn every_flock_line_has_a_translation_that_runs() {
    let home = Home::new();
    // The figures have rows of commands, too.
    let text = README.split("<!-- figures -->").next().unwrap();
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| `")).collect();
    assert!(rows.len() > 5);
    for row in rows {
        let ours = row.split('|').nth(2).unwrap().split('`').nth(1).unwrap();
        assert!(ours.contains("csalock"), "{row}");
        assert_eq!(home.script("sh", ours), "");
    }
}

#[test]
fn the_first_line_of_the_readme_is_the_description() {
    let lines = blocks("console").concat();
    let run: Vec<&str> = lines.lines().filter_map(|line| line.strip_prefix("cargo run --release -- ")).collect();
    assert_eq!(run.len(), 1);
    assert_eq!(Home::new().script("sh", &format!("csalock {}", run[0])), "no other command says this now\n");
}

#[test]
fn the_readme_has_one_test_command_and_ci_runs_it() {
    let lines = blocks("console").concat();
    assert_eq!(lines.lines().filter(|line| line.starts_with("cargo test")).count(), 1);
    let ci = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci/run")).unwrap();
    assert!(ci.contains("^cargo test") && !ci.contains("\ncargo test"));
}

#[test]
fn packaged_files_exist() {
    let home = Home::new();
    let project = env!("CARGO_MANIFEST_DIR");
    let lines = blocks("console").concat();
    let installs: Vec<&str> = lines.lines().filter(|line| line.starts_with("install ")).collect();
    assert_eq!(installs.len(), 4);
    for line in installs {
        let line = line.replace(" /usr", &format!(" {}/usr", home.path().display()));
        home.script("sh", &format!("cd '{project}' && {line}"));
    }
    home.script("sh", "test -f usr/local/share/man/man1/csalock-lock.1");
}

#[test]
fn the_table_looks_as_it_is_shown() {
    let shown = blocks("text").concat();
    let real = Home::new().script("sh", "csalock lock nightly > /dev/null; csalock status");
    let header = |text: &str| text.lines().next().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    assert_eq!(header(&shown), header(&real));
}

#[test]
fn the_counter_counts() {
    let home = Home::new();
    let recipe = blocks("sh").into_iter().find(|block| block.contains("counter.cgi")).unwrap();
    assert!(home.script("sh", &recipe).ends_with("You are visitor 1.\n"));
    assert!(home.script("sh", "./counter.cgi").ends_with("You are visitor 2.\n"));
}
