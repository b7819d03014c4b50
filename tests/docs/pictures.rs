//! The pictures in docs/pictures are those that its script draws of the data there, and pages show them.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::in_project;

/// A chart like those that `benches/versus picture` writes.
const CHART: &str = r#"{"kind": "chart", "title": "A <chart>",
    "x": {"text": "shells", "log": true, "ticks": [1, 1000]}, "y": {"text": "ms"},
    "series": {"flock": [[1, 2.5], [1000, 7]], "csalock": [[1, 3], [1000, 12.5]]}, "notes": ["of no machine"]}"#;

fn draw(to: &Path, files: &[&Path]) {
    let mut script = Command::new(in_project("docs/pictures/make"));
    let done = script.arg("--to").arg(to).args(files).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

/// The names of the files in docs/pictures that end so, without that end.
fn names(end: &str) -> Vec<String> {
    let files = fs::read_dir(in_project("docs/pictures")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter_map(|name| Some(name.strip_suffix(end)?.to_string())).collect();
    names.sort();
    names
}

#[test]
fn the_pictures_are_those_of_the_script() {
    require!(harness::has("python3"));
    let folder = tempfile::tempdir().unwrap();
    draw(folder.path(), &[]);
    assert!(names(".json").len() > 1);
    assert_eq!(names(".json"), names(".svg"), "docs/pictures/make draws them");
    for name in names(".svg") {
        let file = format!("{name}.svg");
        let drawn = fs::read_to_string(folder.path().join(&file)).unwrap();
        let committed = fs::read_to_string(in_project("docs/pictures").join(&file)).unwrap();
        assert!(drawn == committed, "docs/pictures/{file} is out of date; renew it with: docs/pictures/make");
    }
}

#[test]
fn a_chart_has_its_axes_and_its_series() {
    require!(harness::has("python3"));
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("chart.json");
    fs::write(&data, CHART).unwrap();
    draw(folder.path(), &[&data]);
    let drawn = fs::read_to_string(folder.path().join("chart.svg")).unwrap();
    for text in ["A &lt;chart&gt;", ">shells<", ">1,000<", ">ms<", ">20<", ">flock<", ">csalock<", ">of no machine<"] {
        assert!(drawn.contains(text), "{text}: {drawn}");
    }
}

#[test]
fn a_page_shows_each_picture() {
    let pages = fs::read_dir(in_project("docs")).unwrap().map(|entry| entry.unwrap().path());
    let text: String = pages.filter(|page| page.is_file()).map(|page| fs::read_to_string(page).unwrap()).collect();
    for name in names(".svg") {
        assert!(text.contains(&format!("](pictures/{name}.svg)")), "no page of docs/ shows pictures/{name}.svg");
    }
}
