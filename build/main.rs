//! Passes `hot.ld` to the linker, which puts the functions that a usual run needs next to each other, and
//! `no-unwind-tables.ld`. Compiles the entry point of static programs, `src/start.c`. Lists the files that the program
//! carries.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

#[expect(clippy::disallowed_methods, clippy::print_stdout, reason = "this is how cargo and a build script communicate")]
fn main() {
    // The directory may differ from that in which this program was compiled.
    let project = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=src/start.c");
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        for argument in link_arguments(&project) {
            println!("cargo::rustc-link-arg-bins={argument}");
        }
    }
    let output = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    for folder in ["man", "completions"] {
        println!("cargo::rerun-if-changed={folder}");
        let items = carried(&project.join(folder)).expect("the folder can be read");
        fs::write(output.join(format!("{folder}.rs")), items).expect("OUT_DIR can be written");
    }
}

/// Returns the arguments for the linker, which make the program start faster. Warns if that is not possible.
#[expect(clippy::disallowed_methods, clippy::print_stdout, reason = "this is how cargo and a build script communicate")]
fn link_arguments(project: &Path) -> Vec<String> {
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let target =
        ["FEATURE", "ARCH", "ENV"].map(|part| env::var(format!("CARGO_CFG_TARGET_{part}")).unwrap_or_default());
    let [features, architecture, library] = target.each_ref().map(String::as_str);
    let mut arguments = Vec::new();
    // The linkers that Rust uses by default, GNU ld and LLD, know such scripts. Others may refuse them.
    let is_default = env::var_os("RUSTC_LINKER").is_none() && !flags.contains("fuse-ld");
    if is_default {
        arguments.push(format!("-T{}/build/hot.ld", project.display()));
    }
    let is_glibc = (architecture, library) == ("x86_64", "gnu");
    let is_static = features.split(',').any(|feature| feature == "crt-static");
    // Otherwise the program has to relocate itself before it can do anything else.
    let has_fixed_address = flags.contains("relocation-model=static");
    if is_static && is_glibc && has_fixed_address {
        arguments.extend(start_objects().iter().map(|object| object.display().to_string()));
        arguments.push("-Wl,-e,csalock_entry,-z,norelro,--wrap=_dl_early_allocate".to_string());
        // Each segment costs each process a mapping. Only LLD knows this flag, and can leave out all unwind tables.
        if is_default && !flags.contains("linker-features") && rust_has_lld() {
            arguments.push("-Wl,--no-rosegment".to_string());
            // A debugger needs the unwind tables to show who called a function.
            if env::var("DEBUG").is_ok_and(|debug| debug == "false") {
                arguments.push(format!("-T{}/build/no-unwind-tables.ld", project.display()));
            }
        }
    }
    if !is_static || (is_glibc && !has_fixed_address) {
        println!(
            "cargo::warning=without the flags of .cargo/config.toml (RUSTFLAGS replaces them), csalock starts slower"
        );
    }
    arguments
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

/// Returns true if this Rust has an LLD of its own, which it then uses for x86-64.
#[expect(clippy::disallowed_methods, reason = "this is how cargo and a build script communicate")]
fn rust_has_lld() -> bool {
    let rust = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let found = Command::new(rust).args(["--print", "sysroot"]).output();
    let sysroot = found.ok().and_then(|found| String::from_utf8(found.stdout).ok()).unwrap_or_default();
    Path::new(sysroot.trim()).join("lib/rustlib/x86_64-unknown-linux-gnu/bin/gcc-ld/ld.lld").exists()
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
