//! Programs that a test makes and then executes.
//!
//! Linux does not execute a file that a process has open for writing (ETXTBSY). A test that wrote the file itself would
//! share its descriptor with each process that another test of the suite starts at that moment, until that process
//! executes its own program. So a child of the test writes the file.

#![allow(dead_code, reason = "not every test crate uses all of it")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Copies a program, with this mode.
pub(crate) fn copy_program(from: &Path, to: &Path, mode: &str) {
    let done = Command::new("install").args(["-m", mode]).args([from, to]).status().unwrap();
    assert!(done.success(), "{}: {done}", to.display());
}

/// Writes a program that every user may execute.
pub(crate) fn write_program(to: &Path, content: &[u8]) {
    let mut command = Command::new("sh");
    command.args(["-c", "rm -f \"$0\" && cat > \"$0\" && chmod 755 \"$0\""]).arg(to);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(content).unwrap();
    assert!(child.wait().unwrap().success(), "{}", to.display());
}
