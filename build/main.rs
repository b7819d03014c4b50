//! Passes `hot.ld` to the linker, which puts the functions that a usual run needs next to each other. Lists the pages of the
//! manual, which the program carries.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

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
    println!("cargo::rerun-if-changed=man");
    let output = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    fs::write(output.join("pages.rs"), pages().expect("man/ can be read")).expect("OUT_DIR can be written");
}

/// Returns the names and texts of all pages as a Rust expression, in the order of the names.
fn pages() -> io::Result<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("man");
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?;
    paths.retain(|path| path.is_file());
    paths.sort();
    let entry = |path: &PathBuf| format!("({:?}, include_str!({path:?})),\n", path.file_name().unwrap_or_default());
    Ok(format!("&[\n{}]\n", paths.iter().map(entry).collect::<String>()))
}
