//! Far larger numbers than any real use.

use std::fs;
use std::path::Path;

use lock::{Handle, Mode, ProcessId};

use super::bounded;
use crate::extent::choose;
use crate::sandbox::{Kind, Sandbox};

fn many() -> usize {
    choose(2_000, 20_000, 1_000_000)
}

fn fill(place: &Path, name: impl Fn(usize) -> String) {
    (0..many()).for_each(|number| drop(fs::File::create(place.join(name(number))).unwrap()));
}

fn store(sandbox: &Sandbox) {
    sandbox.csalock(["lock", "--forever", "other"]).run();
}

#[test]
fn foreign_files_in_the_store_block_no_caller() {
    let sandbox = Sandbox::new(Kind::Directory);
    store(&sandbox);
    fill(&sandbox.store_path(), |number| format!("stranger-{number}"));
    assert_eq!(bounded(&sandbox, &["run", "-n", "x", "true"]).code, Some(0));
    let status = bounded(&sandbox, &["status", "-1"]);
    assert_eq!((status.code, status.stdout.as_str()), (Some(65), "other\n"));
    assert_eq!(status.stderr.lines().count(), many());
    assert_eq!(bounded(&sandbox, &["gc", "-q"]).code, Some(65));
}

#[test]
fn foreign_files_in_the_working_directory_block_no_caller() {
    let sandbox = Sandbox::new(Kind::Directory);
    store(&sandbox);
    sandbox.csalock(["run", "x", "true"]).run();
    let work = sandbox.path("store/.work");
    fill(&work, |number| match number % 4 {
        0 => format!("rest.stranger-{number}"),
        1 => format!("token.0{number}"),
        2 => format!(".new.{number}"),
        _ => format!("stranger-{number}"),
    });
    let script = "find $0 -name 'rest.*' -o -name '.new.*' | tr '\\n' '\\0' | xargs -0 touch -d '1 hour ago'";
    sandbox.call("bash", ["-c", script, &work.display().to_string()]).run();
    for words in [
        &["run", "-n", "x", "true"][..],
        &["run", "-n", "y", "true"],
        &["gc"],
        &["doctor"],
        &["run", "-n", "x", "true"],
    ] {
        let done = bounded(&sandbox, words);
        assert!(done.code == Some(0) || words == ["doctor"], "{words:?} {done:?}");
    }
    let is_draft = |entry: fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(b".new.");
    assert!(!fs::read_dir(&work).unwrap().any(|entry| is_draft(entry.unwrap())), "gc has swept the drafts of the dead");
}

#[test]
fn drafts_without_end_in_a_records_directory_are_cleared_away() {
    let sandbox = Sandbox::new(Kind::Directory);
    store(&sandbox);
    for place in ["x", "other"] {
        let place = sandbox.store_path().join(place);
        fs::create_dir_all(&place).unwrap();
        fill(&place, |number| format!("rec.00000001{number:016x}"));
    }
    // The name has no holder, because it has no pointer.
    assert_eq!(bounded(&sandbox, &["status", "-1"]).stdout, "other\n");
    assert_eq!(bounded(&sandbox, &["run", "-n", "x", "true"]).code, Some(0));
    assert_eq!(bounded(&sandbox, &["run", "-n", "other", "true"]).code, Some(75));
    assert_eq!(bounded(&sandbox, &["unlock", "other"]).code, Some(0));
    assert_eq!(bounded(&sandbox, &["run", "-n", "other", "true"]).code, Some(0));
}

#[test]
fn a_record_of_thousands_is_shown_and_queued_at_once() {
    let sandbox = Sandbox::new(Kind::Directory);
    sandbox.csalock(["lock", "--forever", "x"]).run();
    let parties = 2000;
    sandbox.edit("x", |record| {
        let mut grant = record.holders[0].clone();
        grant.mode = Mode::Shared;
        let one = |number: usize| {
            let mut secret = [0; 16];
            secret[..8].copy_from_slice(&number.to_le_bytes());
            let mut grant = lock::Grant { proof: Handle::new(secret).proof(), ..grant.clone() };
            // Each is another process that cannot be seen from here, so none is known to be dead.
            grant.owner_mut().domain.boot = "elsewhere".to_string();
            grant.owner_mut().domain.machine = "elsewhere".to_string();
            grant.owner_mut().processes = vec![ProcessId { pid: 1 + number as i32, start: number as u64 }];
            grant
        };
        record.holders = (0..parties).map(one).collect();
    });
    let status = bounded(&sandbox, &["status", "--json"]);
    assert_eq!((status.code, status.stdout.matches("\"pid\"").count()), (Some(0), parties));
    assert_eq!(bounded(&sandbox, &["run", "-n", "-q", "x", "touch", "ran"]).code, Some(75));
    assert_eq!(bounded(&sandbox, &["gc"]).code, Some(0));
    assert_eq!(bounded(&sandbox, &["lock", "-s", "-n", "x"]).code, Some(0));
    assert!(!sandbox.path("files/ran").exists());
}

#[test]
fn missing_pages_block_no_waiter() {
    let sandbox = Sandbox::new(Kind::Directory);
    sandbox.csalock(["lock", "--forever", "x"]).run();
    sandbox.edit("x", |record| record.pages = Some(lock::Pages { first: 7, last: 206 }));
    assert_eq!(bounded(&sandbox, &["status", "-1"]).stdout, "x\n");
    assert_eq!(bounded(&sandbox, &["unlock", "x"]).code, Some(0));
    assert_eq!(bounded(&sandbox, &["run", "-n", "x", "true"]).code, Some(0));
    assert!(sandbox.is_tidy());
}
