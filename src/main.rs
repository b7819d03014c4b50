//! `csalock`: locks for shell scripts. csalock(1) is the manual, and ARCHITECTURE.md has the map of the sources.

use std::process::ExitCode;

/// musl's own allocator maps and unmaps memory for each record that is read in a crowd of waiters.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// Both C libraries call the functions of this section before `main` (System V ABI, "Initialization and Termination
/// Functions").
// SAFETY: the section contains pointers to functions of this type, and `observe` needs nothing of Rust's runtime.
#[expect(unsafe_code, reason = "Rust's runtime changes signals and descriptors before it calls `main`")]
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = host::signals::observe;

fn main() -> ExitCode {
    host::signals::ignore_file_size_limit();
    csalock::command::run(std::env::args_os().collect()).code().into()
}
