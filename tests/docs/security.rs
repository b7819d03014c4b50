//! `SECURITY.md` names a test for each row of its tables. Each of them is there, and each test of users has its row.

use std::collections::BTreeSet;
use std::fs;

use super::in_project;

#[test]
fn every_row_about_users_is_a_test_and_every_test_has_its_row() {
    let text = fs::read_to_string(in_project("SECURITY.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_suffix("` |")?.rsplit_once('`'));
    let named: BTreeSet<String> = rows.map(|(_, name)| name.to_string()).collect();
    let folder = fs::read_dir(in_project("tests/behaviour/users")).unwrap().map(|entry| entry.unwrap().path());
    let files = folder.chain([in_project("tests/behaviour/users.rs")]);
    let mut tests = BTreeSet::new();
    for file in files {
        let source = fs::read_to_string(file).unwrap();
        let functions = source.split("#[test]\nfn ").skip(1);
        tests.extend(functions.map(|rest| rest.split('(').next().unwrap().to_string()));
    }
    assert!(tests.len() > 15, "{tests:?}");
    assert_eq!(named, tests);
}
