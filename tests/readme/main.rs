//! The README and the pages in docs/ are run: every block as it is printed, the table of flock lines, the lines of the
//! installation.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stderr, reason = "tests")]

mod blocks;
mod cgi;
mod cron;
mod database;
#[path = "../extent/mod.rs"]
mod extent;
mod home;
mod links;
mod monitoring;
mod musl;
mod package;
mod page;
#[path = "../programs/mod.rs"]
mod programs;
mod readme;
mod s3;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn in_project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Whether a program is installed. In CI it must be.
fn have(program: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", "PATH=$PATH:/usr/sbin:/sbin; command -v \"$0\"", program])
        .stdout(Stdio::null())
        .status()
        .unwrap()
        .success();
    assert!(found || std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{program} is missing; .ci/run installs it");
    if !found {
        eprintln!("SKIPPED: {program} is not installed here");
    }
    found
}

/// Whether the test may make namespaces and files of other users.
fn is_root(reason: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: {reason}: only root can do this");
    }
    root
}
