//! The README alone: its length, its order, its tables, the lines of the installation.

use std::fs;

use crate::home::Home;
use crate::in_project;
use crate::page::{blocks, read};

#[test]
fn the_readme_is_short_and_in_order() {
    let readme = read("README.md");
    assert!(readme.lines().count() <= 160, "{} lines", readme.lines().count());
    let wanted = [
        "# csalock\n",
        "\n## Installation\n",
        "\n## From flock(1)\n",
        "\n## Recipes\n",
        "\n## More than one host\n",
        "\n## Exit codes\n",
        "\n## How fast it is\n",
        "\n## More\n",
    ];
    let found: Vec<usize> = wanted.iter().map(|title| readme.find(title).expect(title)).collect();
    assert!(found.is_sorted());
    assert_eq!(readme.matches("\n## ").count(), wanted.len() - 1);
    for page in ["README.md", "docs/recipes.md", "docs/values.md", "docs/csa.md", "docs/containers.md", "docs/cron.md"]
    {
        let text = read(page);
        let long = text.lines().filter(|line| line.chars().count() > 120 && !line.starts_with(['|', 'c']));
        assert_eq!(long.collect::<Vec<_>>(), Vec::<&str>::new(), "{page}");
    }
}

#[test]
fn every_flock_line_has_a_translation_that_runs() {
    let home = Home::new();
    home.add_program("cmd", "");
    let readme = read("README.md");
    let table = readme.split("| flock | csalock |\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let rows: Vec<&str> = table.lines().skip(1).collect();
    assert!(rows.len() > 8);
    for row in rows {
        let ours = row.split('|').nth(2).unwrap().split('`').nth(1).unwrap();
        assert!(ours.contains("csalock"), "{row}");
        assert_eq!(home.script("sh", ours), "", "{ours}");
    }
    assert_eq!(home.locks(), "");
}

#[test]
fn the_readme_has_one_test_command_and_ci_runs_it() {
    let readme: String = blocks("console").into_iter().map(|block| block.text).collect();
    assert_eq!(readme.lines().filter(|line| line.starts_with("cargo test")).count(), 1);
    assert_eq!(read("README.md").lines().filter(|line| line.starts_with("cargo test")).count(), 1);
    let ci = fs::read_to_string(in_project(".ci/run")).unwrap();
    assert!(ci.contains("^cargo test") && !ci.contains("\ncargo test"));
}

#[test]
fn the_figures_of_the_readme_are_those_of_the_page() {
    let figures = |page: &str| {
        let text = read(page);
        let (_, rest) = text.split_once("<!-- figures -->\n").expect(page);
        rest.split_once("<!-- end of figures -->\n").expect(page).0.to_string()
    };
    let (short, all) = (figures("README.md"), figures("docs/performance.md"));
    assert!(short.lines().filter(|line| line.starts_with('|')).count() > 5);
    for line in short.lines() {
        assert!(all.lines().any(|other| other == line), "`benches/versus --write` writes both: {line}");
    }
}
