//! `csalock`: locks for shell scripts. csalock(1) is the manual, and `src/lib.rs` has the map of the sources.

use std::process::ExitCode;

/// musl's allocator calls the kernel every few pages, which takes half of the start-up time.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    csalock::command::run().into()
}
