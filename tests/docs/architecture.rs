//! ARCHITECTURE.md and docs/reasons.md against the sources: modules, length, dependencies.

use std::collections::BTreeSet;
use std::fs;

use super::in_project;

fn read(path: &str) -> String {
    fs::read_to_string(in_project(path)).unwrap()
}

/// The modules in the layer diagram: the words in its second column.
fn drawn() -> BTreeSet<String> {
    let text = read("ARCHITECTURE.md");
    let diagram = text.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    diagram.lines().map(|line| line[10..].split_whitespace().next().unwrap().to_string()).collect()
}

#[test]
fn the_diagram_shows_every_top_level_module() {
    let modules: BTreeSet<String> = fs::read_dir(in_project("src"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir() || path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    let wrong: Vec<String> = drawn().symmetric_difference(&modules).cloned().collect();
    assert!(wrong.is_empty(), "ARCHITECTURE.md draws every top-level module of src/ and no other: {wrong:?}");
}

#[test]
fn architecture_is_short() {
    let text = read("ARCHITECTURE.md");
    assert!(text.lines().count() <= 155, "ARCHITECTURE.md has at most 155 lines");
    let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 120).collect();
    assert!(long.is_empty(), "lines of ARCHITECTURE.md have at most 120 characters: {long:#?}");
}

#[test]
fn every_dependency_has_a_reason() {
    let text = read("docs/reasons.md");
    let manifest = read("Cargo.toml");
    let dependencies =
        manifest.split("dependencies]").skip(1).flat_map(|part| part.split("\n[").next().unwrap().lines());
    for name in dependencies.filter_map(|line| line.split_once(" = ")).map(|(name, _)| name) {
        assert!(text.contains(name), "docs/reasons.md gives a reason for {name}");
    }
}
