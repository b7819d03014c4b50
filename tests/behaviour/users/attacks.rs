//! The harm that one user of a shared store can do to the others, and its limits. (No lock of files can prevent that a
//! user breaks locks with `--force` or by changing files; see `SECURITY.md`.)

use std::os::unix::fs::symlink;

use super::{Anne, Bert, Carl, GROUP, Root, place};
use crate::sandbox::{CLOCK, Kind, Sandbox, has, is_root, wait_until};

fn shared() -> Option<(Sandbox, String)> {
    if !is_root("users") || !has("setpriv") {
        return None;
    }
    let sandbox = Sandbox::new(Kind::Directory);
    place(&sandbox, "shared", (0, GROUP, 0o2775));
    let store = sandbox.store_at("shared");
    Some((sandbox, store))
}

#[test]
fn the_visible_part_of_a_lock_does_not_open_it() {
    let Some((sandbox, store)) = shared() else { return };
    let handle = Anne.csalock(&sandbox, &store, &["lock", "--print-handle", "--forever", "x"]).capture().line();
    let seen = Carl.csalock(&sandbox, &store, &["status", "--json", "x"]).capture().line();
    assert!(!seen.contains(&handle));
    let files = sandbox.listing("shared").join("\n");
    assert!(!files.contains(&handle), "{files}");
    // The proof that the record keeps is not a handle.
    for word in files.split(|letter: char| !letter.is_ascii_hexdigit()).filter(|word| word.len() >= 32) {
        let code = Bert.code(&sandbox, &store, &["unlock", "--handle", &word[..32], "x"]);
        assert!(matches!(code, 64 | 81 | 82), "{code}");
    }
    assert_eq!(Bert.code(&sandbox, &store, &["status", "-q", "x"]), 0);
    // Every process with the handle and write permission can release it.
    assert_eq!(Carl.code(&sandbox, &store, &["unlock", "--handle", &handle, "x"]), 77);
    assert_eq!(Bert.code(&sandbox, &store, &["unlock", "--handle", &handle, "x"]), 0);
}

#[test]
fn a_break_names_its_caller_and_is_reported_to_the_holder() {
    let Some((sandbox, store)) = shared() else { return };
    let handle = Anne.csalock(&sandbox, &store, &["lock", "--print-handle", "--forever", "x"]).capture().line();
    assert_eq!(Bert.code(&sandbox, &store, &["unlock", "--force", "x"]), 0);
    Anne.csalock(&sandbox, &store, &["put", "--handle", &handle, "x", "value"])
        .capture()
        .says(82, "until it was broken by --force");
    let done = Bert.csalock(&sandbox, &store, &["history", "--json"]).capture();
    assert!(done.stdout.contains("4102") && done.stdout.contains("broken"), "{done:?}");
}

#[test]
fn a_flood_of_a_queue_or_a_store_ends_and_other_callers_go_on() {
    let Some((sandbox, store)) = shared() else { return };
    let mut holder = Anne.holder(&sandbox, &store, "x");
    let script = "i=0; while [ $i -lt 60 ]; do i=$((i + 1)); csalock run -w inf x true & done; wait";
    let mut flood = Bert.call(&sandbox, &["dash", "-c", script]).env("CSALOCK_STORE", &store).spawn();
    let waiting = || {
        let done = Anne.csalock(&sandbox, &store, &["status", "--json", "x"]).capture();
        serde_json::from_str::<serde_json::Value>(&done.stdout).unwrap()[0]["waiters"].as_array().unwrap().len()
    };
    wait_until("the flood is there", || waiting() >= 16);
    assert_eq!(Anne.code(&sandbox, &store, &["run", "-n", "other", "true"]), 0);
    assert_eq!(Anne.code(&sandbox, &store, &["run", "-n", "x", "true"]), 75);
    // The dead waiters of the flood block no caller.
    nix::sys::signal::killpg(nix::unistd::Pid::from_raw(flood.pid()), nix::sys::signal::Signal::SIGKILL).unwrap();
    flood.kill();
    let waiter = Anne.csalock(&sandbox, &store, &["run", "-w", "inf", "x", "echo", "mine"]).spawn();
    holder.release();
    assert_eq!(waiter.wait().stdout, "mine\n");
}

#[test]
fn a_reader_blocks_neither_history_nor_gc() {
    require!(is_root("users") && has("setpriv") && has("bash") && has("flock"));
    for kind in [Kind::Directory, Kind::Sqlite] {
        let sandbox = Sandbox::new(kind);
        let shared = place(&sandbox, "shared", (0, GROUP, 0o2775));
        let at = if kind == Kind::Directory { "shared" } else { "shared/db" };
        let store = sandbox.store_at(at);
        let runs = |number: usize| {
            for run in 0..number {
                let run = Anne.csalock(&sandbox, &store, &["run", &format!("n{run}"), "true"]);
                run.env("CSALOCK_HISTORY_SIZE", "4K").capture().exits(0);
            }
        };
        // The files are all there: the history was rotated.
        runs(20);
        let lock = "for f in $(find \"$1\"); do { exec {n}< $f; } 2> none && flock -n $n; done; echo; cat";
        let lock = lock.replace("none", "/dev/null");
        let words = ["bash", "-c", &lock, "bash", shared.to_str().unwrap()];
        let _reader = Carl.call(&sandbox, &words).ready();
        runs(40);
        let history = Anne.csalock(&sandbox, &store, &["history", "n39"]).capture();
        assert!(history.stdout.contains("n39"), "{kind:?} {history:?}");
        let lock = if kind == Kind::Directory { ".work/history.lock" } else { "db-history.lock" };
        assert_eq!(Carl.code_of(&sandbox, &["test", "-r", shared.join(lock).to_str().unwrap()]), 1);
        if kind == Kind::Directory {
            let draft = place(&sandbox, "shared/.work/.new.00", (Anne.uid(), GROUP, 0o2775));
            let swept = sandbox.csalock(["gc"]).env("CSALOCK_STORE", &store).env(CLOCK, "+1h").capture();
            assert_eq!((swept.code, draft.exists()), (Some(0), false), "{swept:?}");
        }
    }
}

#[test]
fn planted_links_never_lead_out_of_the_store() {
    let Some((sandbox, store)) = shared() else { return };
    let outside = place(&sandbox, "outside", (0, 0, 0o700));
    std::fs::write(outside.join("file"), "roots").unwrap();
    assert_eq!(Bert.code(&sandbox, &store, &["run", "other", "true"]), 0);
    let before = sandbox.listing("outside");
    let shared = sandbox.path("shared");
    symlink(&outside, shared.join("x")).unwrap();
    assert_ne!(Root.code(&sandbox, &store, &["run", "-n", "x", "true"]), 0);
    let history = shared.join(".work/history");
    std::fs::remove_file(&history).unwrap();
    symlink(outside.join("file"), &history).unwrap();
    assert_eq!(Root.code(&sandbox, &store, &["run", "-n", "y", "true"]), 0);
    std::fs::rename(shared.join(".work"), sandbox.path("work")).unwrap();
    symlink(&outside, shared.join(".work")).unwrap();
    for words in [&["run", "-n", "z", "true"][..], &["gc"], &["doctor"], &["history"]] {
        assert_ne!(Root.code(&sandbox, &store, words), 0, "{words:?}");
    }
    let beside = place(&sandbox, "beside", (4102, 4102, 0o755));
    symlink(&outside, beside.join(".csalock")).unwrap();
    assert_ne!(Root.code(&sandbox, "", &["run", "-n", beside.join("file").to_str().unwrap(), "true"]), 0);
    assert_eq!(sandbox.listing("outside"), before);
}

#[test]
fn replaced_files_are_not_a_free_lock() {
    let Some((sandbox, store)) = shared() else { return };
    let _holder = Anne.holder(&sandbox, &store, "x");
    let directory = sandbox.path("shared/x");
    let record = std::fs::read_dir(&directory).unwrap().next().unwrap().unwrap().path();
    let whole = std::fs::read(&record).unwrap();
    for replaced in [&b""[..], b"nonsense", &whole[..whole.len() / 2], &[b'x'; 100_000]] {
        std::fs::remove_file(&record).unwrap();
        std::fs::write(&record, replaced).unwrap();
        std::os::unix::fs::chown(&record, Some(4102), Some(GROUP)).unwrap();
        assert_eq!(Anne.code(&sandbox, &store, &["run", "-n", "x", "true"]), 65);
    }
    // A store that others cannot read is refused too.
    std::fs::set_permissions(&record, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
    assert_eq!(Anne.code(&sandbox, &store, &["run", "-n", "x", "true"]), 77);
    std::fs::write(&record, &whole).unwrap();
    std::fs::set_permissions(&record, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    assert_eq!(Anne.code(&sandbox, &store, &["run", "-n", "x", "true"]), 75);
}
