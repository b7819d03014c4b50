//! The start of the program: its own entry point (`src/start.c`), and glibc's where that one gives up.

use std::ffi::CStr;
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use nix::libc;

use crate::programs::copy_program;
use crate::sandbox::{CSALOCK, Kind, Sandbox, is_root, skip};
use crate::syscalls::tracer::trace;

/// Returns true if csalock was built with an entry point of its own. The tests are linked with the same C library.
pub(crate) fn has_own_start() -> bool {
    if !cfg!(all(target_arch = "x86_64", target_env = "gnu", target_feature = "crt-static")) {
        return false;
    }
    // SAFETY: the function returns a constant string.
    #[expect(unsafe_code, reason = "only C knows the version of its library")]
    let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    let minor = version.to_str().ok().and_then(|version| version.strip_prefix("2.")?.parse().ok());
    minor.is_some_and(|minor: u32| (36..=41).contains(&minor))
}

fn version(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn expected() -> (Option<i32>, String, String) {
    (Some(0), format!("csalock {}\n", env!("CARGO_PKG_VERSION")), String::new())
}

/// glibc's own start reads the path of the program.
#[test]
fn the_start_does_less_than_that_of_glibc() {
    if !has_own_start() {
        return skip("the entry point", "this C library starts the program itself");
    }
    let reads_path = |variables: &[(&str, &str)]| {
        let mut command = Command::new(CSALOCK);
        command.arg("--version").env_clear().envs(variables.iter().copied());
        let traced = trace(command, None);
        assert!(traced.status.success(), "{traced:?}");
        traced.made.iter().flatten().any(|made| made.path == "/proc/self/exe")
    };
    assert!(!reads_path(&[]));
    assert!(!reads_path(&[("GLIBC_TUNABLE", "x"), ("XGLIBC_TUNABLES", "x")]));
    assert!(reads_path(&[("A", ""), ("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")]));
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
    assert_eq!(version(command.env("GLIBC_TUNABLES", "")), expected());
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
