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
    let entries = entries.filter(|entry| entry.is_dir() || entry.extension().is_some_and(|kind| kind == "rs"));
    entries
        .filter(|entry| !entry.ends_with("tests.rs") && !entry.ends_with("model"))
        .flat_map(|entry| sources(&entry))
        .collect()
}

/// The modules of the program and the crates that a file names outside of comments and unit tests.
fn imports(file: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(file).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let is_part = |char: char| char.is_alphanumeric() || char == '_';
    let name = |rest: &str| rest.split(|char| !is_part(char)).next().unwrap().to_string();
    let first = |line: &str| line.trim_start().strip_prefix("use ").map(name);
    lines.flat_map(|line| line.split("crate::").skip(1).map(name).chain(first(line)).collect::<Vec<_>>()).collect()
}

/// The file and the folder of a module, or the folder of a crate.
fn sources_of(drawn: &str) -> Vec<PathBuf> {
    let file = in_project("src").join(format!("{drawn}.rs"));
    let folders = [file.with_extension(""), in_project("crates").join(drawn).join("src")];
    [file].into_iter().chain(folders).filter(|path| path.exists()).flat_map(|path| sources(&path)).collect()
}

#[test]
fn modules_import_only_from_below() {
    let drawn = drawn();
    let at = |module: &str| drawn.iter().position(|drawn| drawn == module);
    let mut seen = 0;
    for (row, module) in drawn.iter().enumerate() {
        for source in sources_of(module) {
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

#[test]
fn the_diagram_shows_every_crate_and_every_top_level_module() {
    let names = |folder: &str| {
        let entries = fs::read_dir(in_project(folder)).unwrap().map(|entry| entry.unwrap().path());
        let paths = entries.filter(|path| path.is_dir() || path.extension().is_some_and(|kind| kind == "rs"));
        paths.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect::<BTreeSet<_>>()
    };
    let all = &names("src") | &names("crates");
    let drawn: BTreeSet<String> = drawn().into_iter().collect();
    let wrong: Vec<String> = drawn.symmetric_difference(&all).cloned().collect();
    assert!(wrong.is_empty(), "ARCHITECTURE.md draws every module of src/ and every crate, and no other: {wrong:?}");
}

#[test]
fn every_crate_has_a_short_readme() {
    for entry in fs::read_dir(in_project("crates")).unwrap() {
        let path = entry.unwrap().path().join("README.md");
        let text = fs::read_to_string(&path).unwrap_or_default();
        assert!((5..=30).contains(&text.lines().count()), "{} has 5 to 30 lines", path.display());
    }
}

fn words(text: &str) -> BTreeSet<&str> {
    text.split(|char: char| !char.is_alphanumeric() && char != '_').collect()
}

/// The name of the item or field that a line makes public.
fn made_public(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub ")?;
    let kinds = ["fn ", "const fn ", "struct ", "enum ", "trait ", "const ", "static ", "type ", "mod "];
    let name = kinds.iter().find_map(|kind| rest.strip_prefix(kind)).or(rest.split_once(": ").map(|_| rest))?;
    name.split(|char: char| !char.is_alphanumeric() && char != '_').next()
}

/// Types in the signatures and fields in the structs that other parts use without naming them.
const UNNAMED: [&str; 5] = ["EngineState", "ReceivedSignal", "UniqueId", "starters", "is_left_behind"];

/// `locks` is for other programs.
#[test]
fn no_crate_makes_public_what_no_other_part_names() {
    let text = |paths: Vec<PathBuf>| paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect::<String>();
    let crates = fs::read_dir(in_project("crates")).unwrap().map(|entry| entry.unwrap().path());
    let crates: Vec<(PathBuf, String)> = crates.map(|path| (path.clone(), text(sources(&path.join("src"))))).collect();
    let program: String = ["src", "tests", "fuzz/fuzz_targets", "fuzz/properties"]
        .map(|folder| text(sources(&in_project(folder))))
        .concat();
    let mut unused = Vec::new();
    for (path, own) in crates.iter().filter(|(path, _)| !path.ends_with("locks")) {
        let others = crates.iter().filter(|(other, _)| other != path).map(|(_, text)| text.as_str());
        let named: BTreeSet<&str> = others.chain([program.as_str()]).flat_map(words).collect();
        let public =
            own.lines().filter_map(made_public).filter(|name| !named.contains(name) && !UNNAMED.contains(name));
        unused.extend(public.map(|name| format!("{}: {name}", path.display())));
    }
    assert!(unused.is_empty(), "make them pub(crate): {unused:#?}");
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
    let foreign = dependencies.filter(|line| !line.contains("path = ") && !line.contains("workspace = true"));
    for name in foreign.filter_map(|line| line.split_once(" = ")).map(|(name, _)| name) {
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
