//! `csalock`: locks for shell scripts. csalock(1) is the manual, and `src/lib.rs` has the map of the sources.

#![no_main]
#![expect(unsafe_code, reason = "the entry point that C defines; Rust's own costs a tenth of a run")]

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

#[global_allocator]
static HEAP: csalock::heap::Heap = csalock::heap::Heap::empty();

/// The entry point of the C runtime. Rust's runtime would read /proc/self/maps and install a handler that names a stack
/// overflow before it calls its `main`.
// SAFETY: no other symbol of the program has this name, and the signature is that of C.
#[unsafe(no_mangle)]
#[expect(clippy::disallowed_methods, reason = "main alone exits")]
extern "C" fn main(count: c_int, words: *const *const c_char) -> c_int {
    // SAFETY: C passes `count` strings that stay valid until the process ends.
    let word = |at| unsafe { CStr::from_ptr(*words.add(at)) };
    let arguments: Vec<OsString> =
        (0..count as usize).map(|at| OsStr::from_bytes(word(at).to_bytes()).to_os_string()).collect();
    csalock::startup_state::record();
    let exit = csalock::command::run(arguments);
    // Stdout is flushed there.
    std::process::exit(exit.code().into())
}
