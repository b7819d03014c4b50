//! The README and the pages in docs/ are run: every block as it is printed, the table of flock lines, the lines of the
//! installation.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stderr, reason = "tests")]

#[macro_use]
extern crate harness;

mod blocks;
mod cgi;
mod cron;
mod database;
#[path = "../extent/mod.rs"]
mod extent;
mod home;
mod kubernetes;
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

fn in_project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn main() -> std::process::ExitCode {
    harness::main_without(env!("CARGO_TARGET_TMPDIR"), package::why_not)
}
