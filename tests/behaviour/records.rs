//! Invalid records: never free, never permanently busy, and changed by force alone.

use crate::sandbox::{Kind, Sandbox};

const COMMANDS: [&[&str]; 7] = [
    &["lock", "x"],
    &["unlock", "x"],
    &["unlock", "--all"],
    &["run", "x", "touch", "ran"],
    &["run", "-F", "x", "touch", "ran"],
    &["status", "x"],
    &["renew", "--ttl", "1s", "x"],
];

/// A file gets the mode of its store, and not that of the umask.
#[test]
fn the_umask_of_a_caller_hides_no_record() {
    let sandbox = Sandbox::new(Kind::Directory);
    let script = "umask 022; csalock run x true; umask 077; csalock lock --forever y; stat -c %a ../store/y/*";
    sandbox.script("dash", script).stdout("644\n").run();
}

/// A good record's bytes.
fn good(sandbox: &Sandbox) -> Vec<u8> {
    sandbox.csalock(["lock", "--forever", "x"]).run();
    // A swap, so that nothing that only a record's first version has is taken for granted.
    sandbox.csalock(["renew", "--ttl", "1h", "x"]).run();
    sandbox.open().read(b"x").unwrap().unwrap().body
}

#[track_caller]
fn is_refused_until_forced(sandbox: &Sandbox, body: &[u8], why: &str) {
    sandbox.overwrite("x", body);
    let before = sandbox.stored();
    for words in COMMANDS {
        let done = sandbox.csalock(words).capture();
        let passed_over = words == ["unlock", "--all"];
        assert!(done.code == Some(65) || passed_over && done.code == Some(0), "{words:?} {why}: {done:?}");
        assert!(done.stdout.is_empty() || words[0] == "status", "{words:?} {done:?}");
        let place = sandbox.store_place();
        assert!(done.stderr.contains(&place) && done.stderr.contains(why), "{words:?}: {}", done.stderr);
        assert!(
            done.stderr.contains("csalock unlock --force") || done.stderr.contains("use the csalock that wrote it"),
            "{}",
            done.stderr
        );
    }
    sandbox.csalock(["status"]).capture().exits(65);
    assert_eq!(sandbox.stored(), before);
    // Other leftovers may be swept.
    sandbox.csalock(["gc"]).capture().exits(65);
    assert_eq!(sandbox.open().read(b"x").unwrap().unwrap().body, body);
    sandbox.csalock(["run", "other", "true"]).run();
    sandbox.csalock(["unlock", "--force", "x"]).stdout("removed x: its record was unreadable\n").run();
    sandbox.csalock(["run", "-n", "x", "true"]).run();
    assert!(!sandbox.path("files/ran").exists());
}

on_every_store! {
    fn a_record_that_was_cut_short(sandbox: &Sandbox) {
        let good = good(sandbox);
        for length in [0, 1, 9, 10, 11, good.len() / 2, good.len() - 1] {
            is_refused_until_forced(sandbox, &good[..length], "is unreadable");
        }
    }

    fn a_record_with_a_bit_turned(sandbox: &Sandbox) {
        let good = good(sandbox);
        for at in [0, 12, good.len() / 3, good.len() / 2, good.len() - 3] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            is_refused_until_forced(sandbox, &bad, "is unreadable");
        }
    }

    fn a_record_that_is_garbage(sandbox: &Sandbox) {
        good(sandbox);
        for garbage in [&b"\0\0\0\0"[..], b"\xff\xfe", b"hello\n", &[b'x'; 100_000], b"{\"csalock\":2}\n", b"{\"csalock\":2,\"sum\":\"0\",\n"] {
            is_refused_until_forced(sandbox, garbage, "is unreadable");
        }
    }

    fn a_record_from_the_future(sandbox: &Sandbox) {
        let good = String::from_utf8(good(sandbox)).unwrap();
        is_refused_until_forced(sandbox, good.replace("{\"csalock\":2,", "{\"csalock\":3,").as_bytes(), "its format is 3");
    }

    fn a_record_with_two_exclusive_holders(sandbox: &Sandbox) {
        sandbox.csalock(["lock", "--forever", "-s", "x"]).run();
        sandbox.csalock(["lock", "--forever", "-s", "x"]).run();
        let mut record = sandbox.record("x").unwrap();
        record.holders.iter_mut().for_each(|grant| grant.mode = csalock::lock::Mode::Exclusive);
        is_refused_until_forced(sandbox, &csalock::lock::encode(&record), "it has two exclusive holders");
    }

    fn a_record_of_another_name(sandbox: &Sandbox) {
        sandbox.csalock(["lock", "--forever", "y"]).run();
        let of_y = sandbox.open().read(b"y").unwrap().unwrap().body;
        sandbox.csalock(["lock", "--forever", "x"]).run();
        sandbox.overwrite("x", &of_y);
        for words in [&["lock", "-n", "x"][..], &["unlock", "x"], &["status", "x"]] {
            sandbox.csalock(words).capture().exits(65);
        }
    }

    fn force_removes_any_object_in_the_place_of_a_record(sandbox: &Sandbox) {
        require!(sandbox.is_directory());
        for (number, spoil) in [
            "mv $r $STORE/$x/cur.5.6c5a0748d58b4039c56de127",
            "truncate -s 5M $r",
            "rm $r; mkdir $r",
            "csalock lock --forever other > /dev/null; cp $(ls -d $STORE/other/* | tail -n 1) $r",
            "rm $r; mkfifo $r",
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("x{number}");
            let script = format!("STORE=$0 x=$1; csalock lock --forever $x > /dev/null; r=$(ls -d $STORE/$x/* | tail -n 1); {spoil}");
            let store = sandbox.store_path().display().to_string();
            sandbox.call("bash", ["-c", &script, &store, &name]).run();
            assert_eq!(sandbox.csalock(["run", "-n", &name, "true"]).capture().code, Some(65), "{spoil}");
            let said = format!("removed {name}: its record was unreadable\n");
            sandbox.csalock(["unlock", "--force", &name]).stdout(said).run();
            sandbox.csalock(["run", "-n", &name, "true"]).run();
        }
    }
}
