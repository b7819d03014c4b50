//! Man pages, completions and pictures: generated, checked in, and compared here.
//!
//! `CSALOCK_BLESS=1 cargo test --profile checked --test docs` writes them again. `man/sections/` and
//! `completions/live/` have the parts that clap does not know.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stderr, reason = "tests")]

#[macro_use]
extern crate harness;

mod architecture;
mod completions;
mod man;
mod pictures;
mod security;
mod shells;
mod timeouts;

/// The examples in the documentation of the crate, as tests.
mod examples {
    harness::examples_in!("crates/locks/src");
}

use std::fs;
use std::path::{Path, PathBuf};

fn definition() -> clap::Command {
    csalock::cli::Cli::definition()
}

fn in_project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn the_man_pages_agree_with_the_command_line() {
    let bless = std::env::var_os("CSALOCK_BLESS").is_some();
    let mut drifted = Vec::new();
    for (path, text) in man::pages().into_iter().chain(completions::scripts()) {
        let path = in_project(&path);
        if fs::read_to_string(&path).ok().as_deref() != Some(text.as_str()) {
            if bless {
                fs::write(&path, text).unwrap();
            } else {
                drifted.push(path);
            }
        }
    }
    assert!(drifted.is_empty(), "out of date: {drifted:#?}\nrenew them with: CSALOCK_BLESS=1 cargo test --test docs");
}

#[test]
fn no_other_generated_file_is_checked_in() {
    for (folder, written) in [("man", man::pages()), ("completions", completions::scripts())] {
        for entry in fs::read_dir(in_project(folder)).unwrap().map(Result::unwrap) {
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            let known = entry.path().is_dir() || written.iter().any(|(made, _)| *made == path);
            assert!(known, "{path} is made from nothing any more; remove it");
        }
    }
}

fn main() -> std::process::ExitCode {
    harness::main(env!("CARGO_TARGET_TMPDIR"))
}
