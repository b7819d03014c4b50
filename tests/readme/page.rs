//! The pages of the documentation, and the fenced blocks in them.

use std::fs;

use crate::in_project;

pub(crate) struct Block {
    pub(crate) page: String,
    /// The word after the fence.
    pub(crate) kind: String,
    pub(crate) text: String,
}

/// README.md and the pages in docs/ and docs/dev/. The tests of the program's output own docs/screens.md.
pub(crate) fn pages() -> Vec<String> {
    let files = |folder: &str| {
        let names = fs::read_dir(in_project(folder)).unwrap().map(|entry| entry.unwrap().file_name());
        names.map(|name| format!("{folder}/{}", name.to_str().unwrap())).collect::<Vec<_>>()
    };
    let mut pages = [files("docs"), files("docs/dev")].concat();
    pages.retain(|page| page.ends_with(".md") && page != "docs/screens.md");
    pages.sort();
    pages.insert(0, "README.md".to_string());
    pages
}

pub(crate) fn read(page: &str) -> String {
    fs::read_to_string(in_project(page)).unwrap()
}

/// All blocks of a page, without the indentation of the list that they are in.
fn blocks_of(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, Block)> = None;
    for line in read(page).lines() {
        let indent = line.len() - line.trim_start().len();
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (None, Some(kind)) => {
                let block = Block { page: page.to_string(), kind: kind.to_string(), text: String::new() };
                open = Some((indent, block));
            }
            (Some(_), Some(_)) => blocks.extend(open.take().map(|(_, block)| block)),
            (Some((indent, block)), None) => block.text.extend([line.get(*indent..).unwrap_or(""), "\n"]),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{page}: a fence is not closed");
    blocks
}

pub(crate) fn all_blocks() -> Vec<Block> {
    pages().iter().flat_map(|page| blocks_of(page)).collect()
}

pub(crate) fn blocks(kind: &str) -> Vec<Block> {
    let blocks: Vec<Block> = all_blocks().into_iter().filter(|block| block.kind == kind).collect();
    assert!(!blocks.is_empty(), "no block is {kind}");
    blocks
}

#[test]
fn every_kind_of_block_has_a_test() {
    for block in all_blocks() {
        let kinds = ["sh", "console", "crontab", "anacrontab", "ini", "text", "yaml"];
        assert!(kinds.contains(&block.kind.as_str()), "{}: no test runs a block of kind {:?}", block.page, block.kind);
        let owners = match block.kind.as_str() {
            "console" => &["README.md"][..],
            "text" => &["README.md", "docs/recipes.md"],
            "yaml" => &["docs/kubernetes.md", "docs/monitoring.md"],
            _ => continue,
        };
        assert!(owners.contains(&block.page.as_str()), "{}: no test knows this block:\n{}", block.page, block.text);
    }
}
