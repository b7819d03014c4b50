//! The start of the program: its own entry point (`src/start.c`), and glibc's where that one gives up.

use std::ffi::CStr;
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use nix::libc;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::programs::copy_program;
use crate::sandbox::{Kind, Sandbox, csalock, is_root, skip};
use crate::syscalls::tracer::trace;

/// Type of an entry of the auxiliary vector that counts for nothing.
const AT_IGNORE: i64 = 1;

/// Returns true if csalock was built with an entry point of its own. The tests are linked with the same C library.
pub(crate) fn has_own_start() -> bool {
    if !cfg!(all(target_arch = "x86_64", target_env = "gnu", target_feature = "crt-static")) {
        return false;
    }
    // SAFETY: the functions return a constant string, and a number that the kernel has given.
    #[expect(unsafe_code, reason = "only C knows the version of its library")]
    let (version, frame) =
        unsafe { (CStr::from_ptr(libc::gnu_get_libc_version()), libc::getauxval(libc::AT_MINSIGSTKSZ)) };
    let minor = version.to_str().ok().and_then(|version| version.strip_prefix("2.")?.parse().ok());
    frame != 0 && minor.is_some_and(|minor: u32| (36..=41).contains(&minor))
}

/// Runs the program with this entry of its auxiliary vector hidden. Returns true if it reads a link, as glibc's own start
/// does.
#[expect(unsafe_code, reason = "the child asks to be traced before it executes the program")]
fn reads_a_link_without(entry: u64) -> bool {
    let mut command = Command::new(csalock());
    command.arg("--version").env_clear().stdout(Stdio::null());
    // SAFETY: the closure only makes a system call.
    let mut child = unsafe { command.pre_exec(|| Ok(ptrace::traceme()?)) }.spawn().unwrap();
    let pid = Pid::from_raw(child.id() as i32);
    assert_eq!(waitpid(pid, None), Ok(WaitStatus::Stopped(pid, Signal::SIGTRAP)));
    let word = |at: u64| ptrace::read(pid, at as *mut _).unwrap() as u64;
    // Behind the number of arguments, two lists end with a zero; then come the pairs.
    let mut at = ptrace::getregs(pid).unwrap().rsp + 8;
    for _ in 0..2 {
        while word(at) != 0 {
            at += 8;
        }
        at += 8;
    }
    while word(at) != entry {
        assert_ne!(word(at), 0, "the kernel gives no entry {entry}");
        at += 16;
    }
    ptrace::write(pid, at as *mut _, AT_IGNORE).unwrap();
    let mut reads = false;
    loop {
        ptrace::syscall(pid, None).unwrap();
        if waitpid(pid, None) != Ok(WaitStatus::Stopped(pid, Signal::SIGTRAP)) {
            break;
        }
        let call = ptrace::getregs(pid).unwrap().orig_rax as i64;
        reads |= [libc::SYS_readlink, libc::SYS_readlinkat].contains(&call);
    }
    let _ = child.wait();
    reads
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
        let mut command = Command::new(csalock());
        command.arg("--version").env_clear().envs(variables.iter().copied());
        let traced = trace(command, None);
        assert!(traced.status.success(), "{traced:?}");
        traced.made.iter().flatten().any(|made| made.path == "/proc/self/exe")
    };
    assert!(!reads_path(&[]));
    assert!(!reads_path(&[("GLIBC_TUNABLE", "x"), ("XGLIBC_TUNABLES", "x")]));
    assert!(reads_path(&[("A", ""), ("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")]));
}

/// Without it, glibc would keep a size of 0 and abort when a library asks for it.
#[test]
fn glibc_starts_the_program_if_the_kernel_gives_no_size_of_signal_frames() {
    if !has_own_start() {
        return skip("the entry point", "this C library starts the program itself");
    }
    assert!(!reads_a_link_without(libc::AT_PLATFORM));
    assert!(reads_a_link_without(libc::AT_MINSIGSTKSZ));
}

#[test]
fn the_program_starts_in_any_environment() {
    let mut command = Command::new(csalock());
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
    copy_program(Path::new(csalock()), &program, "755");
    set_permissions(sandbox.path(""), Permissions::from_mode(0o755)).unwrap();
    chown(&program, Some(65_533), Some(65_533)).unwrap();
    set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(version(Command::new(&program).arg("--version").uid(65_534).env_clear()), expected());
}
