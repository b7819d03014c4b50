//! Passes `hot.ld` to the linker, which puts the functions that a usual run needs next to each other.

use std::env;

#[expect(clippy::disallowed_methods, clippy::print_stdout, reason = "this is how cargo and a build script communicate")]
fn main() {
    println!("cargo::rerun-if-changed=build/hot.ld");
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let is_linux = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux");
    // The linkers that Rust uses by default, GNU ld and LLD, know such scripts. Others may refuse them.
    let is_default = env::var_os("RUSTC_LINKER").is_none() && !flags.contains("fuse-ld");
    if is_linux && is_default {
        println!("cargo::rustc-link-arg-bins=-T{}/build/hot.ld", env!("CARGO_MANIFEST_DIR"));
    }
    let features = env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    if is_linux && !features.split(',').any(|feature| feature == "crt-static") {
        println!(
            "cargo::warning=without the flags of .cargo/config.toml (RUSTFLAGS replaces them), csalock starts slower"
        );
    }
}
