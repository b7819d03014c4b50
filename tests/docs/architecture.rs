//! ARCHITECTURE.md and docs/dev/reasons.md against the sources: modules, length, dependencies.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::in_project;

fn read(path: &str) -> String {
    fs::read_to_string(in_project(path)).unwrap()
}

/// The modules in the layer diagram, from top to bottom: the words in its second column.
fn drawn() -> Vec<String> {
    let text = read("ARCHITECTURE.md");
    let diagram = text.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    diagram.lines().map(|line| line[10..].split_whitespace().next().unwrap().to_string()).collect()
}

/// The source files below a path, without those of tests.
pub(super) fn sources(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_path_buf()];
    }
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|entry| !entry.ends_with("tests.rs")).flat_map(|entry| sources(&entry)).collect()
}

/// The top-level modules that a file names outside of comments and unit tests.
fn imports(file: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(file).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let name = |rest: &str| rest.split(|char: char| !char.is_alphanumeric() && char != '_').next().unwrap().to_string();
    lines.flat_map(|line| line.split("crate::").skip(1).map(name).collect::<Vec<_>>()).collect()
}

#[test]
fn modules_import_only_from_below() {
    let drawn = drawn();
    let at = |module: &str| drawn.iter().position(|drawn| drawn == module);
    let mut seen = 0;
    for (row, module) in drawn.iter().enumerate() {
        let file = in_project("src").join(format!("{module}.rs"));
        for source in sources(&file).into_iter().chain(sources_in_folder(&file)) {
            for import in imports(&source) {
                let Some(below) = at(&import) else { continue };
                seen += 1;
                assert!(
                    below >= row,
                    "{} imports {import}, which ARCHITECTURE.md draws above {module}",
                    source.display()
                );
            }
        }
    }
    assert!(seen > 200, "the imports are found: {seen}");
}

fn sources_in_folder(file: &Path) -> Vec<PathBuf> {
    let folder = file.with_extension("");
    if folder.is_dir() { sources(&folder) } else { Vec::new() }
}

#[test]
fn the_diagram_shows_every_top_level_module() {
    let modules: BTreeSet<String> = fs::read_dir(in_project("src"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir() || path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    let drawn: BTreeSet<String> = drawn().into_iter().collect();
    let wrong: Vec<String> = drawn.symmetric_difference(&modules).cloned().collect();
    assert!(wrong.is_empty(), "ARCHITECTURE.md draws every top-level module of src/ and no other: {wrong:?}");
}

#[test]
fn architecture_is_short() {
    let text = read("ARCHITECTURE.md");
    assert!(text.lines().count() <= 160, "ARCHITECTURE.md has at most 160 lines");
    let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 120).collect();
    assert!(long.is_empty(), "lines of ARCHITECTURE.md have at most 120 characters: {long:#?}");
}

#[test]
fn every_dependency_has_a_reason() {
    let text = read("docs/dev/reasons.md");
    let manifest = read("Cargo.toml");
    let dependencies =
        manifest.split("dependencies]").skip(1).flat_map(|part| part.split("\n[").next().unwrap().lines());
    for name in dependencies.filter_map(|line| line.split_once(" = ")).map(|(name, _)| name) {
        assert!(text.contains(name), "docs/dev/reasons.md gives a reason for {name}");
    }
}

#[test]
fn the_tests_of_promises_exist() {
    let text = read("docs/dev/proof.md");
    let table = text.split("## Promises of PostgreSQL and ssh").nth(1).unwrap().split("\n## ").next().unwrap();
    let named: Vec<&str> = table.split('`').filter(|word| word.contains("::")).collect();
    let all: String =
        sources(&in_project("tests")).iter().map(|path| fs::read_to_string(path).unwrap_or_default()).collect();
    assert!(named.len() > 15, "{named:?}");
    for name in named {
        let function = name.rsplit("::").next().unwrap();
        assert!(all.contains(&format!("fn {function}(")), "docs/dev/proof.md names {name}, which does not exist");
    }
}
