//! Each way to end has a code of its own, the one that the table in the program gives it.

use std::collections::BTreeMap;

use csalock::exit::Exit;
use lock::error::ErrorKind;

use crate::sandbox::wait_until;

on_every_store! {
    fn each_outcome_has_a_code_of_its_own(sandbox: &Sandbox) {
        let _holder = sandbox.holder("held");
        sandbox.script("dash", "csalock lock dead; :").run();
        sandbox.csalock(["lock", "--forever", "bad"]).run();
        sandbox.overwrite("bad", b"nonsense");
        sandbox.file("files/plain", "");
        // A variable for other programs of Rust must not change an error.
        let code = |words: &[&str]| sandbox.csalock(words).env("RUST_BACKTRACE", "1").capture().code.unwrap() as u8;
        let mut found = BTreeMap::new();
        for (exit, words) in [
            (Exit::Done, &["run", "x", "true"][..]),
            (Exit::Failed(ErrorKind::InvalidInput), &["lock"]),
            (Exit::Failed(ErrorKind::Corrupt), &["lock", "bad"]),
            (Exit::Failed(ErrorKind::Unavailable), &["lock", "--store", "dir:/none/none", "x"]),
            (Exit::Failed(ErrorKind::Busy), &["lock", "-n", "held"]),
            (Exit::Failed(ErrorKind::Stale), &["lock", "--fail-on-stale", "dead"]),
            (Exit::Failed(ErrorKind::NotHeld), &["unlock", "x"]),
            (Exit::Failed(ErrorKind::NotOwner), &["unlock", "held"]),
            (Exit::Failed(ErrorKind::Deadlock), &["run", "x", "csalock", "run", "x", "true"]),
            (Exit::Failed(ErrorKind::Lost), &["run", "--ttl", "100ms", "x", "sleep", "60"]),
            (Exit::MaxHold, &["run", "--max-hold", "50ms", "x", "sleep", "60"]),
            (Exit::Failed(ErrorKind::CannotExecute), &["run", "x", "./plain"]),
            (Exit::Failed(ErrorKind::CommandNotFound), &["run", "x", "./none"]),
        ] {
            assert_eq!(code(words), exit.code(), "{words:?}");
            assert_eq!(found.insert(exit.code(), words), None);
        }
    }

    fn busy_differs_from_unreachable_and_from_the_status_of_the_command(sandbox: &Sandbox) {
        let _holder = sandbox.holder("x");
        wait_until("it is held", || sandbox.state("x") == "held");
        let busy = sandbox.csalock(["run", "-n", "x", "true"]).capture();
        assert_eq!((busy.code, busy.stderr.is_empty()), (Some(75), false));
        let own = sandbox.csalock(["run", "-n", "y", "dash", "-c", "exit 75"]).capture();
        assert_eq!((own.code, own.stderr.as_str()), (Some(75), ""));
        sandbox.csalock(["run", "-nE200", "x", "true"]).capture().exits(200);
    }

    fn help_and_version_are_done(sandbox: &Sandbox) {
        let version = format!("csalock {}\n", env!("CARGO_PKG_VERSION"));
        sandbox.csalock(["--version"]).stdout(version.clone()).run();
        let stores = "stores: dir, sqlite, etcd, etcds, postgres, postgresql, ssh
formats: records 3 (reads 2 too), sqlite 2, postgres 2, ssh 1
features: bundled-sqlite, etcd, postgres, sqlite, ssh
";
        sandbox.csalock(["-V", "-v"]).stdout(format!("{version}{stores}")).run();
        for words in [&["--help"][..], &["-h"], &["lock", "--help"], &["help"], &["help", "lock"], &["run", "-h"], &["run-with-lock", "--help"]] {
            let done = sandbox.csalock(words).capture();
            assert!(done.code == Some(0) && done.stdout.contains("Usage: csalock") && done.stderr.is_empty(), "{done:?}");
        }
    }

    fn an_invalid_number_is_named_with_the_expected_range(sandbox: &Sandbox) {
        for (words, option, value, least, most) in [
            (&["lock", "-j", "three", "x"][..], "--slots", "three", 1, 10_000),
            (&["lock", "-j", "0", "x"], "--slots", "0", 1, 10_000),
            (&["run", "-E", "256", "x", "true"], "--conflict-exit-code", "256", 0, 255),
            (&["lock", "--pid", "99999999999", "x"], "--pid", "99999999999", 1, 2_147_483_647),
            (&["history", "-n", "-", "x"], "--lines", "-", 1, u32::MAX.into()),
            (&["unlock", "--force", "--token", "t", "x"], "--token", "t", 0, u64::MAX),
            (&["put", "--if-version", "1x", "x", "value"], "--if-version", "1x", 0, u64::MAX),
        ] {
            let problem = if ["0", "256", "99999999999"].contains(&value) { "out of range" } else { "not a whole number" };
            let said = format!("csalock: {option}: {value} is {problem}; use {least} to {most}\n");
            sandbox.csalock(words).status(64).stderr(said).run();
        }
        assert!(!sandbox.store_exists());
    }
}
