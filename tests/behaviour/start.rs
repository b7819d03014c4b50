//! The start of the program, in any environment.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::programs::copy_program;
use crate::sandbox::{CSALOCK, Kind, Sandbox, is_root};

fn version(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn expected() -> (Option<i32>, String, String) {
    (Some(0), format!("csalock {}\n", env!("CARGO_PKG_VERSION")), String::new())
}

#[test]
fn the_program_starts_in_any_environment() {
    let mut command = Command::new(CSALOCK);
    command.arg("--version").env_clear();
    assert_eq!(version(&mut command), expected());
    // The name by which a program is called may be empty.
    assert_eq!(version(command.arg0("")), expected());
    command.envs((0..2_000).map(|number| (format!("VARIABLE{number}"), "x".repeat(50))));
    assert_eq!(version(&mut command), expected());
}

#[test]
fn the_program_starts_with_the_rights_of_another_user() {
    if !is_root("a program with the rights of another user") {
        return;
    }
    let sandbox = Sandbox::new(Kind::Directory);
    let program = sandbox.path("csalock-of-another");
    copy_program(Path::new(CSALOCK), &program, "755");
    set_permissions(sandbox.path(""), Permissions::from_mode(0o755)).unwrap();
    chown(&program, Some(65_533), Some(65_533)).unwrap();
    set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(version(Command::new(&program).arg("--version").uid(65_534).env_clear()), expected());
}
