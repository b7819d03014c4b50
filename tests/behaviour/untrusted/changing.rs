//! Objects that change between a check and its use: another process exchanges files of csalock for a link that leads
//! out of the store, and back, as fast as possible, while commands run.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{Outside, SECRET, bounded, bounded_beside, plant};
use crate::extent::choose;
use crate::sandbox::{Done, Kind, Sandbox, wait_until};
use store::Call as StoreCall;

/// Returns the number of commands that run meanwhile.
fn commands() -> usize {
    choose(40, 400, 10_000)
}

/// Exchanges two paths until `work` is through.
fn while_exchanged(one: &Path, other: &Path, mut work: impl FnMut(usize)) {
    let (through, exchanges) = (AtomicBool::new(false), AtomicUsize::new(0));
    let exchange = || renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).is_ok();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !through.load(Ordering::Relaxed) || exchanges.load(Ordering::Relaxed) % 2 == 1 {
                let exchanged = exchange();
                exchanges.fetch_add(usize::from(exchanged), Ordering::Relaxed);
                if !exchanged && through.load(Ordering::Relaxed) {
                    break;
                }
                // About the duration of a command's step, so that every step is hit.
                (0..exchanges.load(Ordering::Relaxed) % 7 * 1000).for_each(|_| std::hint::spin_loop());
            }
        });
        let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (0..commands()).for_each(&mut work);
            let before = exchanges.load(Ordering::Relaxed);
            wait_until("it was exchanged", || exchanges.load(Ordering::Relaxed) > before + 2);
        }));
        through.store(true, Ordering::Relaxed);
        if let Err(panic) = tried {
            std::panic::resume_unwind(panic);
        }
    });
    assert!(exchanges.into_inner() > commands(), "it was exchanged too seldom to try anything");
}

/// A store elsewhere, in which `x` is free, and a holder with a secret has `bait`.
fn bait(sandbox: &Sandbox) -> PathBuf {
    plant(
        sandbox,
        &format!(
            "mkdir $OUT/store; export CSALOCK_STORE=dir:$OUT/store; csalock lock --forever --label {SECRET} bait > /dev/null; \
         csalock put x {SECRET}"
        ),
    );
    sandbox.path("outside/store")
}

/// No process is inside, and no content from outside was shown.
#[track_caller]
fn is_no_lock(sandbox: &Sandbox, done: &Done, codes: &[i32]) {
    assert!(codes.contains(&done.code.unwrap()), "{done:?}");
    assert!(!sandbox.path("files/ran").exists(), "{done:?}");
}

#[test]
fn a_record_that_is_exchanged_for_a_link_never_leads_to_another_lock() {
    let sandbox = Sandbox::new(Kind::Directory);
    let mut outside = Outside::new(&sandbox);
    let bait = bait(&sandbox);
    outside.before = sandbox.listing("outside");
    plant(&sandbox, "csalock lock --forever x > /dev/null; csalock lock --forever other > /dev/null");
    let record = std::fs::read_dir(sandbox.path("store/x")).unwrap().next().unwrap().unwrap().path();
    let free = std::fs::read_dir(bait.join("x")).unwrap().next().unwrap().unwrap().path();
    let looks: [&[&str]; 4] = [&["run", "-n", "x", "touch", "ran"], &["status"], &["get", "x"], &["lock", "-n", "x"]];
    let changes: [&[&str]; 4] =
        [&["run", "-n", "x", "touch", "ran"], &["put", "x", "mine"], &["gc"], &["lock", "-n", "x"]];
    // The record first, for to change it is to give it another name.
    for (ours, leads_to, link, commands) in
        [(record, free, "link", [looks, looks]), (sandbox.path("store/x"), bait.join("x"), "link2", [looks, changes])]
    {
        symlink(&leads_to, sandbox.path(link)).unwrap();
        while_exchanged(&ours, &sandbox.path(link), |number| {
            let words = commands[number / 4 % 2][number % 4];
            let done = bounded(&sandbox, words);
            // Held, unreadable at this moment, or not there; and the value is written by the one who holds.
            is_no_lock(&sandbox, &done, &[0, 65, 75, 81, 82, 84]);
            assert!(!matches!(words[0], "run" | "lock") || done.code != Some(0), "{words:?} {done:?}");
        });
        std::fs::remove_file(sandbox.path(link)).unwrap();
        assert_eq!(sandbox.state("x"), "held");
        outside.is_as_it_was("an exchange");
    }
}

#[test]
fn a_working_directory_that_is_exchanged_for_a_link_leads_nowhere() {
    let sandbox = Sandbox::new(Kind::Directory);
    let outside = Outside::new(&sandbox);
    plant(&sandbox, "csalock run a true; csalock run b true; ln -s $OUT $STORE/../link");
    while_exchanged(&sandbox.path("store/.work"), &sandbox.path("link"), |number| {
        let words: &[&str] = [&["run", "-n", "y", "true"][..], &["put", "z", "1"], &["history"], &["gc"]][number % 4];
        let done = bounded(&sandbox, words);
        assert!(matches!(done.code, Some(0 | 65)), "{words:?} {done:?}");
    });
    outside.is_as_it_was("an exchange");
    // A lock whose release met the link is still there, with a dead holder.
    let taken = sandbox.csalock(["run", "-n", "y", "true"]).capture();
    assert_eq!((taken.code, taken.stdout.as_str()), (Some(0), ""), "{taken:?}");
    assert!(taken.stderr.is_empty() || taken.stderr.ends_with(", which ended without releasing it\n"), "{taken:?}");
    sandbox.csalock(["run", "-n", "never used", "true"]).run();
}

#[test]
fn a_store_beside_a_file_that_is_exchanged_for_a_link_leads_nowhere() {
    let sandbox = Sandbox::new(Kind::Directory);
    let outside = Outside::new(&sandbox);
    plant(&sandbox, "unset CSALOCK_STORE; touch file; csalock lock --forever ./file > /dev/null; ln -s $OUT link");
    while_exchanged(&sandbox.path("files/.csalock"), &sandbox.path("files/link"), |number| {
        let words: &[&str] = [
            &["run", "-n", "./file", "touch", "ran"][..],
            &["status", "./file"],
            &["lock", "-n", "./other"],
            &["unlock", "./other"],
        ][number % 4];
        let done = bounded_beside(&sandbox, words);
        is_no_lock(&sandbox, &done, &[0, 65, 69, 75, 77, 81, 82, 84]);
        assert!(words[2..] != ["./file", "touch", "ran"] || done.code != Some(0), "{done:?}");
    });
    outside.is_as_it_was("an exchange");
}

#[test]
fn a_record_whose_directory_is_moved_away_is_not_read_from_there() {
    let sandbox = Sandbox::new(Kind::Directory);
    sandbox.csalock(["lock", "--forever", "x"]).run();
    let (store, place) = (sandbox.open(), sandbox.store_path().join("x"));
    for _ in 0..2 {
        assert!(store.read(StoreCall::default(), b"x").unwrap().is_some());
    }
    std::fs::rename(&place, sandbox.path("moved")).unwrap();
    assert!(store.read(StoreCall::default(), b"x").unwrap().is_none());
    sandbox.csalock(["run", "-n", "x", "true"]).run();
}
