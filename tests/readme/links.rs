//! Links between the pages.

use crate::in_project;
use crate::page::{pages, read};

/// The anchor of a heading, as the usual forges make it.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase().replace(' ', "-");
    kept.chars().filter(|char| char.is_alphanumeric() || "-_".contains(*char)).collect()
}

fn headings(page: &str) -> Vec<String> {
    let text = read(page);
    let titles = text.lines().filter(|line| line.starts_with('#'));
    titles.map(|line| anchor(line.trim_start_matches('#').trim())).collect()
}

/// The pages and headings to which a text links.
pub(crate) fn targets(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap());
    targets.filter(|target| !target.starts_with("http"))
}

#[test]
fn every_link_leads_to_a_page_and_a_heading() {
    let mut seen = 0;
    let others = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "tests/README.md"];
    let others = others.map(String::from);
    for page in pages().into_iter().chain(others) {
        for target in targets(&read(&page)) {
            seen += 1;
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let folder = in_project(&page).parent().unwrap().to_path_buf();
            let path = if file.is_empty() { in_project(&page) } else { folder.join(file) };
            assert!(path.is_file(), "{page}: {target}: there is no such page");
            let path = path.canonicalize().unwrap();
            let path = path.strip_prefix(in_project("").canonicalize().unwrap()).unwrap().to_str().unwrap().to_string();
            assert!(heading.is_empty() || headings(&path).iter().any(|found| found == heading), "{page}: {target}");
        }
    }
    assert!(seen > 20, "{seen}");
}
