//! Passes `hot.ld` to the linker, which puts the functions that a usual run needs next to each other. Compiles the entry
//! point of static programs, `src/start.c`. Lists the files that the program carries.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

#[expect(clippy::disallowed_methods, clippy::print_stdout, reason = "this is how cargo and a build script communicate")]
fn main() {
    println!("cargo::rerun-if-changed=build/hot.ld");
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let is_linux = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux");
    // The linkers that Rust uses by default, GNU ld and LLD, know such scripts. Others may refuse them.
    let is_default = env::var_os("RUSTC_LINKER").is_none()
        && !["fuse-ld", "linker-features"].iter().any(|flag| flags.contains(flag));
    // The directory may differ from that in which this program was compiled.
    let project = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
    if is_linux && is_default {
        println!("cargo::rustc-link-arg-bins=-T{}/build/hot.ld", project.display());
    }
    let features = env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    let is_static = features.split(',').any(|feature| feature == "crt-static");
    println!("cargo::rerun-if-changed=src/start.c");
    let is_x86_64_glibc = env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|name| name == "x86_64")
        && env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|name| name == "gnu");
    // Otherwise the program has to relocate itself before it can do anything else.
    if is_linux && is_static && is_x86_64_glibc && flags.contains("relocation-model=static") {
        for object in start_objects() {
            println!("cargo::rustc-link-arg-bins={}", object.display());
        }
        println!("cargo::rustc-link-arg-bins=-Wl,-e,csalock_entry");
        // Each segment costs each process a mapping. There is no table that relocation fills in, so none to protect. On this
        // target, Rust's default linker is LLD; GNU ld does not know the second flag.
        if is_default {
            println!("cargo::rustc-link-arg-bins=-Wl,-z,norelro,--no-rosegment");
        }
    }
    if is_linux && !is_static {
        println!(
            "cargo::warning=without the flags of .cargo/config.toml (RUSTFLAGS replaces them), csalock starts slower"
        );
    }
    let output = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    for folder in ["man", "completions"] {
        println!("cargo::rerun-if-changed={folder}");
        let items = carried(&project.join(folder)).expect("the folder can be read");
        fs::write(output.join(format!("{folder}.rs")), items).expect("OUT_DIR can be written");
    }
}

/// Compiles `src/start.c` so that it calls no function of the C library but those that it names.
fn start_objects() -> Vec<PathBuf> {
    cc::Build::new()
        .file("src/start.c")
        .flags(["-fno-builtin", "-fno-stack-protector"])
        .flag_if_supported("-fno-tree-loop-distribute-patterns")
        .pic(false)
        .compile_intermediates()
}

/// Returns the files of a folder as Rust items: each has a name of its own for hot.ld, and `ALL` lists them by file name.
fn carried(folder: &Path) -> io::Result<String> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?;
    paths.retain(|path| path.is_file());
    paths.sort();
    let (mut items, mut list) = (String::new(), String::new());
    for (number, path) in paths.iter().enumerate() {
        let size = fs::metadata(path)?.len();
        items += &format!("static FILE_{number}: [u8; {size}] = *include_bytes!({path:?});\n");
        list += &format!("({:?}, &FILE_{number}),\n", path.file_name().unwrap_or_default());
    }
    Ok(format!("{items}pub(crate) const ALL: &[(&str, &[u8])] = &[\n{list}];\n"))
}
