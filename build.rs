//! Lists the manual pages and completions, which the program contains, and finds the commit that it is built from.

use std::path::{Path, PathBuf};
use std::process::Command;
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
    println!("cargo::rerun-if-env-changed=CSALOCK_COMMIT");
    let commit = env::var("CSALOCK_COMMIT").ok().or_else(|| commit(&project)).map(|commit| format!(" ({commit})"));
    let version = env::var("CARGO_PKG_VERSION").expect("cargo sets it");
    println!("cargo::rustc-env=CSALOCK_VERSION={version}{}", commit.unwrap_or_default());
}

/// Returns the commit, if the project is the top directory of a git checkout. A build for tests is hardly optimized and
/// names no commit, because each commit would compile it anew.
#[expect(clippy::disallowed_methods, reason = "this is how cargo and a build script communicate")]
fn commit(project: &Path) -> Option<String> {
    if env::var("OPT_LEVEL").is_ok_and(|level| level == "0" || level == "1") {
        return None;
    }
    let words = ["rev-parse", "--show-prefix", "--git-path", "logs/HEAD", "--short=12", "HEAD"];
    let done =
        Command::new("git").args(words).current_dir(project).output().ok().filter(|done| done.status.success())?;
    let printed = String::from_utf8(done.stdout).ok()?;
    let (log, commit) = printed.trim_end().strip_prefix('\n')?.split_once('\n')?;
    if project.join(log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    Some(commit.to_string())
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
