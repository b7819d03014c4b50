//! A database with foreign contents, in its place, or beside it.

use rusqlite::Connection;

use super::{MOST_MEMORY, Outside, bounded, ends, plant};
use crate::sandbox::{Done, Kind, Sandbox, has_namespaces};

fn store(sandbox: &Sandbox) -> Outside<'_> {
    for name in ["other", "x"] {
        sandbox.csalock(["lock", "--forever", name]).run();
    }
    Outside::new(sandbox)
}

/// No caller gets in, and every caller is told the reason.
#[track_caller]
fn refuses(sandbox: &Sandbox, words: &[&str], code: i32, said: &str) -> Done {
    let done = bounded(sandbox, words);
    assert_eq!((done.code, sandbox.plain(&done.stderr)), (Some(code), format!("csalock: {said}\n")), "{words:?}");
    assert!(!sandbox.path("files/ran").exists());
    done
}

#[test]
fn a_foreign_object_in_place_of_a_journal_is_named() {
    for (make, behind) in
        [("mkfifo", "journal"), ("ln -s $OUT/file", "journal"), ("mkdir", "journal"), ("mkfifo", "wal")]
    {
        let sandbox = Sandbox::new(Kind::Sqlite);
        let outside = store(&sandbox);
        plant(&sandbox, &format!("rm -f $STORE-{behind}; {make} $STORE-{behind}"));
        let said = format!(
            "STORE-{behind} is not a file, so it is not a journal of the database; see who made it, and move it away"
        );
        for words in [&["run", "-n", "x", "touch", "ran"][..], &["status"], &["gc"], &["unlock", "--force", "x"]] {
            refuses(&sandbox, words, 65, &said);
        }
        bounded(&sandbox, &["doctor"]);
        outside.is_as_it_was(make);
    }
}

#[test]
fn a_foreign_object_in_place_of_the_database_is_named() {
    let sandbox = Sandbox::new(Kind::Sqlite);
    let outside = Outside::new(&sandbox);
    for (make, code, said) in [
        (
            "ln -s $OUT/file",
            77,
            "the database STORE is a symbolic link; links are not followed there; name the real file",
        ),
        ("mkfifo", 69, "STORE is not a file, so it is not a database; name a file, or use a dir: store"),
        ("mkdir", 69, "STORE is not a file, so it is not a database; name a file, or use a dir: store"),
    ] {
        plant(&sandbox, &format!("rm -rf $STORE; {make} $STORE"));
        for words in [&["run", "-n", "x", "touch", "ran"][..], &["status"], &["gc"], &["unlock", "--force", "x"]] {
            refuses(&sandbox, words, code, said);
        }
        outside.is_as_it_was(make);
    }
}

#[test]
fn a_foreign_object_in_place_of_history_or_channels_leads_nowhere() {
    for make in ["ln -s $OUT/history", "ln -s $OUT", "mkfifo", "mkdir", "ln -s none"] {
        let sandbox = Sandbox::new(Kind::Sqlite);
        let outside = store(&sandbox);
        plant(&sandbox, &format!("rm -f $STORE-history; {make} $STORE-history; {make} $STORE-waits"));
        assert_eq!(bounded(&sandbox, &["run", "-n", "y", "true"]).code, Some(0), "{make}");
        for words in [&["status"][..], &["history"], &["gc"], &["doctor"], &["lock", "-w", "50ms", "other"]] {
            bounded(&sandbox, words);
        }
        // Only a waiter in another network has a channel in a file.
        if has_namespaces("a network namespace") {
            let words = ["-n", "prlimit", MOST_MEMORY, "csalock", "lock", "-w", "200ms", "other"];
            let done = ends(sandbox.call("unshare", words), &words);
            assert_eq!(done.code, Some(75), "{make} {done:?}");
        }
        outside.is_as_it_was(make);
    }
}

/// An SQLite that believes this removes the named file when it rolls the journal back.
#[test]
fn a_journal_that_names_another_file_removes_nothing() {
    let sandbox = Sandbox::new(Kind::Sqlite);
    store(&sandbox);
    let precious = sandbox.file("precious", "mine");
    let database = std::fs::read(sandbox.store_path()).unwrap();
    let page = u32::from(u16::from_be_bytes([database[16], database[17]]));
    let magic = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
    let mut journal = magic.to_vec();
    for number in [0, 0, database.len() as u32 / page, 512, page] {
        journal.extend(number.to_be_bytes());
    }
    journal.resize(512, 0);
    let name = precious.to_str().unwrap().as_bytes();
    let sum: u32 = name.iter().map(|byte| u32::from(*byte)).sum();
    journal.extend((0x4000_0000 / page + 1).to_be_bytes());
    journal.extend(name);
    journal.extend((name.len() as u32).to_be_bytes());
    journal.extend(sum.to_be_bytes());
    journal.extend(magic);
    sandbox.file("store-journal", journal);
    for words in [&["status", "-q", "x"][..], &["run", "-n", "y", "true"], &["gc"], &["doctor"]] {
        bounded(&sandbox, words);
        assert_eq!(sandbox.read("precious"), "mine", "{words:?}");
    }
    assert_eq!(sandbox.state("x"), "held");
}

fn edit(sandbox: &Sandbox, sql: &str) {
    Connection::open(sandbox.store_path()).unwrap().execute_batch(sql).unwrap();
}

#[test]
fn invalid_rows_are_not_locks_and_the_others_are_shown() {
    let no_body = "STORE (row x) has no version, or no body of 4 MiB at most; nothing was changed; see who wrote it, then `csalock \
                   unlock --force x` removes it";
    for (sql, said) in [
        ("UPDATE records_2 SET body = zeroblob(5000000) WHERE name = x'78'", no_body),
        ("UPDATE records_2 SET body = NULL WHERE name = x'78'", no_body),
        ("UPDATE records_2 SET body = 7 WHERE name = x'78'", no_body),
        ("UPDATE records_2 SET version = -1 WHERE name = x'78'", no_body),
        ("UPDATE records_2 SET version = 'x' WHERE name = x'78'", no_body),
    ] {
        let sandbox = Sandbox::new(Kind::Sqlite);
        store(&sandbox);
        edit(&sandbox, sql);
        refuses(&sandbox, &["run", "-n", "x", "touch", "ran"], 65, said);
        let said = said.replace("--force x", "--force NAME");
        assert_eq!(refuses(&sandbox, &["status", "-1"], 65, &said).stdout, "other\n");
    }
}

#[test]
fn a_last_version_number_is_the_last() {
    let sandbox = Sandbox::new(Kind::Sqlite);
    store(&sandbox);
    edit(&sandbox, "UPDATE records_2 SET version = 9223372036854775807 WHERE name = x''");
    for words in [&["run", "-n", "y", "touch", "ran"][..], &["renew", "--ttl", "1h", "x"]] {
        let done = bounded(&sandbox, words);
        assert_eq!((done.code, done.stderr.contains("STORE")), (Some(65), false), "{done:?}");
    }
    assert!(!sandbox.path("files/ran").exists());
}

#[test]
fn no_planted_sql_runs_with_the_rights_of_the_caller() {
    let without_end = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT sum(x) FROM c";
    let sandbox = Sandbox::new(Kind::Sqlite);
    store(&sandbox);
    edit(
        &sandbox,
        &format!(
            "CREATE TRIGGER a BEFORE UPDATE ON records_2 BEGIN {without_end}; END;
         CREATE TRIGGER b AFTER INSERT ON records_2 BEGIN DELETE FROM records_2 WHERE name = x'78'; END;
         CREATE TRIGGER c BEFORE DELETE ON records_2 BEGIN {without_end}; END;"
        ),
    );
    assert_eq!(bounded(&sandbox, &["run", "-n", "y", "true"]).code, Some(0));
    assert_eq!(sandbox.state("x"), "held");
    let other = Sandbox::new(Kind::Sqlite);
    store(&other);
    edit(
        &other,
        &format!(
            "ALTER TABLE records_2 RENAME TO old; CREATE VIEW records_2 AS SELECT x AS name, x AS version, x AS body FROM ({})",
            without_end.replace("sum(x)", "sum(x) AS x")
        ),
    );
    for words in
        [&["run", "-n", "x", "touch", "ran"][..], &["status"], &["gc"], &["doctor"], &["unlock", "--force", "x"]]
    {
        let done = bounded(&other, words);
        assert!(matches!(done.code, Some(65)) || words == ["doctor"], "{words:?} {done:?}");
    }
    assert!(!other.path("files/ran").exists());
}
