//! The README alone: its length, its order, its tables, the lines of the installation. And the lines of all pages.

use std::collections::BTreeMap;
use std::fs;

use harness::has;

use crate::home::Home;
use crate::in_project;
use crate::page::{all_blocks, blocks, read};

/// The words of the first screen that differ from run to run.
const VARIES: [&str; 8] = ["4711", "web1", "ann", "ann)", "2026-11-21", "02:13:20", "CET", "(1s"];

#[test]
fn the_first_screen_is_what_its_block_prints() {
    require!(has("script"));
    let of_readme = |kind: &str| blocks(kind).into_iter().find(|block| block.page == "README.md").unwrap().text;
    let home = Home::new();
    let block = of_readme("sh");
    let (lines, status) = block.split_once("csalock status").unwrap();
    let (_, rest) = status.split_once('\n').unwrap();
    assert!(rest.starts_with("csalock run nightly date"), "{rest}");
    // On a busy machine the command may be over before its status is shown.
    let lines = lines.replace("sleep 3", "sleep 300");
    fs::write(home.path().join("block"), format!("{lines}csalock status\ncsalock unlock --force nightly\n")).unwrap();
    let terminal = "NO_COLOR=1 script -qec 'stty cols 80; sh block' /dev/null";
    let printed = home.script("sh", terminal).replace("sleep 300", "sleep 3");
    // The store of root is not the default one here. The lines of a terminal are longer for longer names.
    let words: Vec<&str> = printed.split_whitespace().collect();
    let words: Vec<&str> = match words.iter().position(|word| *word == "store") {
        Some(at) => [&words[..at - 1], &words[at + 2..]].concat(),
        None => words,
    };
    let shown = of_readme("text");
    let shown: Vec<&str> = shown.split_whitespace().collect();
    assert!(shown.len() > 30 && words.len() > shown.len(), "{printed}");
    for (shown, word) in shown.iter().zip(words) {
        assert!(*shown == word || VARIES.contains(shown), "{shown} is {word}: {printed}");
    }
}

/// The pages are read on terminals, too.
#[test]
fn code_has_at_most_80_columns() {
    // The log of a server has no columns, and a string of YAML has one line.
    for block in all_blocks().iter().filter(|block| !["text", "yaml"].contains(&block.kind.as_str())) {
        let long: Vec<&str> = block.text.lines().filter(|line| line.chars().count() > 80).collect();
        assert_eq!(long, Vec::<&str>::new(), "{}", block.page);
    }
}

#[test]
fn no_recipe_is_on_two_pages() {
    let mut pages: BTreeMap<String, String> = BTreeMap::new();
    for block in all_blocks().into_iter().filter(|block| ["sh", "crontab"].contains(&block.kind.as_str())) {
        for line in block.text.lines().filter(|line| line.contains("csalock ") && line.len() > 40) {
            let page = pages.entry(line.trim().to_string()).or_insert_with(|| block.page.clone());
            assert_eq!(*page, block.page, "this line is on both pages: {line}");
        }
    }
    assert!(pages.len() > 30, "{pages:?}");
}

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
    for page in ["README", "docs/README", "docs/recipes", "docs/values", "docs/csa", "docs/containers", "docs/cron"] {
        let text = read(&format!("{page}.md"));
        let long = text.lines().filter(|line| line.chars().count() > 120 && !line.starts_with(['|', 'c']));
        assert_eq!(long.collect::<Vec<_>>(), Vec::<&str>::new(), "{page}");
    }
}

#[test]
fn every_flock_line_has_a_translation_that_runs() {
    let home = Home::new();
    home.add_program("cmd", "");
    let pages = ["README.md", "docs/recipes.md"].map(read);
    let tables = pages.iter().map(|page| page.split("| flock | csalock |\n").nth(1).unwrap());
    let rows: Vec<&str> = tables.flat_map(|rest| rest.split("\n\n").next().unwrap().lines().skip(1)).collect();
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
