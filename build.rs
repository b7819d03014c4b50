//! Lists the manual pages and completions, which the program contains.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

#[expect(clippy::disallowed_methods, reason = "this is how cargo and a build script communicate")]
fn main() {
    // The directory may differ from that in which this program was compiled.
    let project = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
    let output = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    println!("cargo::rerun-if-changed=build.rs");
    let mut lists = String::new();
    for (folder, name) in [("man", "MAN_PAGES"), ("man/text", "PLAIN_PAGES"), ("completions", "COMPLETIONS")] {
        println!("cargo::rerun-if-changed={folder}");
        lists += &list(&project.join(folder), name).expect("the folder can be read");
    }
    fs::write(output.join("files.rs"), lists).expect("OUT_DIR can be written");
}

/// Returns the files of a folder as a Rust constant: their names and contents, sorted by name.
fn list(folder: &Path, name: &str) -> io::Result<String> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?;
    paths.retain(|path| path.is_file());
    paths.sort();
    let mut list = String::new();
    for path in paths {
        list += &format!("({:?}, include_str!({path:?})),\n", path.file_name().unwrap_or_default());
    }
    Ok(format!("pub(crate) const {name}: &[(&str, &str)] = &[\n{list}];\n"))
}
