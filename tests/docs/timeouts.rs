//! docs/dev/timeouts.md against the sources: each constant that is a time is there with its value.

use std::collections::BTreeSet;
use std::fs;

use super::architecture::sources;
use super::in_project;

/// The name and the value of a constant of this line: `PAUSE`, `25 ms`.
fn constant(line: &str) -> Option<(String, String)> {
    let (before, after) = line.split_once("const ")?;
    let (name, value) = after.split_once(": Duration = Duration::from_")?;
    let (unit, number) = value.strip_suffix(");")?.split_once('(')?;
    let unit = if unit == "secs" { "s" } else { "ms" };
    (before.is_empty() || before.starts_with("pub")).then(|| (name.to_string(), format!("{number} {unit}")))
}

#[test]
fn the_page_of_times_has_every_constant_with_its_value() {
    // The files of models have the time of a clock that stands still.
    let all = sources(&in_project("src")).into_iter().chain(sources(&in_project("crates")));
    let files = all.filter(|file| !file.ends_with("model.rs"));
    let text: String = files.map(|file| fs::read_to_string(file).unwrap()).collect();
    let found: BTreeSet<_> = text.lines().filter_map(constant).collect();
    let page = fs::read_to_string(in_project("docs/dev/timeouts.md")).unwrap();
    let rows = page.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
        let is_constant = name.chars().all(|char| char.is_ascii_uppercase() || char == '_');
        is_constant.then(|| (name.to_string(), rest.split(" |").next().unwrap().to_string()))
    });
    let shown: BTreeSet<_> = rows.collect();
    assert!(found.len() > 60, "{found:?}");
    assert_eq!(found.difference(&shown).collect::<Vec<_>>(), Vec::<&(String, String)>::new(), "add them to the page");
    assert_eq!(
        shown.difference(&found).collect::<Vec<_>>(),
        Vec::<&(String, String)>::new(),
        "remove them from the page"
    );
}
