//! The blocks for a shell, in an empty home, as they are printed.

use std::process::Command;

use crate::home::Home;
use crate::page::{Block, blocks};
use harness::{has, has_namespaces};

/// The last words of a shell that is still there.
const STILL_OPEN: &str = "the terminal is open";

fn is_cgi(block: &Block) -> bool {
    block.text.contains("/usr/lib/cgi-bin/")
}

/// Whether a block needs a database server: another test starts one.
pub(crate) fn is_for_database(block: &Block) -> bool {
    block.text.contains("psql ")
}

/// Whether a block needs a server of S3: another test starts one.
pub(crate) fn is_for_s3(block: &Block) -> bool {
    block.text.contains("$S3_BUCKET")
}

/// Whether a block needs a server that another test starts.
fn is_for_server(block: &Block) -> bool {
    is_cgi(block) || is_for_database(block) || is_for_s3(block)
}

/// Whether the programs and rights that a block needs are here.
fn can_run(block: &Block) -> bool {
    let programs = ["etcd", "git", "perl", "flock", "sqlite3", "unshare"];
    // The words at the beginning of a line are commands.
    let needed = programs
        .iter()
        .filter(|program| block.text.lines().any(|line| line.trim_start().starts_with(&format!("{program} "))));
    needed.into_iter().all(|program| has(program))
        && (!block.text.contains("unshare --pid") || has_namespaces("a block with namespaces"))
}

#[test]
fn every_shell_block_runs() {
    let mut failed = Vec::new();
    for block in blocks("sh").iter().filter(|block| !is_for_server(block) && can_run(block)) {
        for shell in ["dash", "bash"] {
            let home = Home::new();
            let done = home.run(shell, &["-eu"], &block.text);
            let left = home.locks();
            if !done.status.success() || !left.is_empty() {
                let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
                failed.push(format!("{}: {shell}: {}; {left}\n{}\n{said}", block.page, done.status, block.text));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// A reader pastes a block into a terminal. If csalock refuses, or is not installed, the terminal stays open.
#[test]
fn no_shell_block_closes_the_terminal_of_its_reader() {
    for block in blocks("sh").iter().filter(|block| !is_cgi(block)) {
        for status in [1, 75, 127] {
            let home = Home::without_programs();
            for program in ["csalock", "csaLock", "csaUnlock", "etcd", "unshare", "perl"] {
                home.add_program(program, &format!("exit {status}"));
            }
            home.add_program("sleep", "");
            for shell in ["dash", "bash"] {
                let done = home.run(shell, &[], &format!("{}echo '{STILL_OPEN}'\n", block.text));
                let printed = String::from_utf8_lossy(&done.stdout);
                assert!(printed.ends_with(&format!("{STILL_OPEN}\n")), "{}: {shell}:\n{}", block.page, block.text);
            }
        }
    }
}

#[test]
fn a_block_that_needs_root_creates_scripts_only() {
    for block in blocks("sh").iter().filter(|block| is_cgi(block)) {
        let commands: Vec<&str> =
            block.text.split("\nCGI\n").map(|part| part.split("<<'CGI'").next().unwrap()).collect();
        assert_eq!(commands.len(), 2, "{}", block.text);
        for line in commands.iter().flat_map(|part| part.lines()) {
            let word = line.split(' ').next().unwrap();
            assert!(["install", "cat", "chmod"].contains(&word), "{line}");
        }
    }
}

#[test]
fn the_scripts_of_all_blocks_are_clean() {
    require!(has("shellcheck"));
    for block in blocks("sh") {
        for script in block.text.split("<<'").skip(1) {
            let (word, rest) = script.split_once("'\n").unwrap();
            let text = rest.split(&format!("\n{word}\n")).next().unwrap();
            if !text.starts_with("#!/bin/sh") {
                continue;
            }
            let home = Home::without_programs();
            let path = home.path().join("script");
            crate::home::write(&path, &format!("{text}\n"));
            let done = Command::new("shellcheck").args(["-s", "sh"]).arg(&path).output().unwrap();
            assert!(done.status.success(), "{}:\n{}", block.page, String::from_utf8_lossy(&done.stdout));
        }
    }
}

#[test]
fn old_and_new_users_of_a_file_both_count() {
    let all = blocks("sh");
    let block = all.iter().find(|block| block.text.contains("run --flock ./visits")).unwrap();
    if has("flock") {
        assert_eq!(Home::new().script("sh", &block.text), "2\n");
    }
}

#[test]
fn a_late_writer_is_refused() {
    let all = blocks("sh");
    let block = all.iter().find(|block| block.text.contains("./accept")).unwrap();
    if has("flock") {
        assert!(Home::new().script("sh", &block.text).ends_with("refused\nthe second\n"));
    }
}
