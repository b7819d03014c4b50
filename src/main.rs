//! `csalock`: locks for shell scripts. csalock(1) is the manual, and ARCHITECTURE.md has the map of the sources.

use std::process::ExitCode;

/// musl's own allocator maps and unmaps memory for each record that is read in a crowd of waiters.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    host::signals::ignore_file_size_limit();
    csalock::command::run(std::env::args_os().collect()).code().into()
}
