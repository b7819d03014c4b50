//! `csalock`: locks for shell scripts. See csalock(1), and `src/lib.rs` for the map of the sources.

use std::process::ExitCode;

/// musl's allocator asks the kernel for every few pages, which is half of our start-up time.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    csalock::command::run().into()
}
