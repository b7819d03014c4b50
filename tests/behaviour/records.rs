//! Invalid records: never free, never permanently busy, and changed by force alone.

use nix::libc;

use crate::sandbox::{Kind, Sandbox, csalock, skip, wait_until};
use crate::syscalls::tracer::{Fault, Point, trace, trace_overtaken};
use store::Call as StoreCall;

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

/// A record that was never changed is in its pointer. The commit that moves the pointer on empties it, even if another
/// process moves it on once more before that.
#[test]
fn a_pointer_that_moves_on_twice_has_no_words_of_the_holder_before() {
    if !cfg!(target_arch = "x86_64") {
        return skip("an overtaken commit", "only on x86-64 it is known how to stop before a call");
    }
    let hold: &[&str] = &["lock", "--forever", "-s", "--label", "hunter2", "x"];
    let join: &[&str] = &["lock", "--forever", "-s", "x"];
    for overtaken in [&["unlock", "--force", "x"][..], join] {
        let new = || {
            let sandbox = Sandbox::new(Kind::Directory);
            sandbox.csalock(hold).run();
            let command = sandbox.csalock(overtaken).into_command();
            (sandbox, command)
        };
        let (_other, command) = new();
        let number = libc::SYS_renameat2 as u64;
        let call = trace(command, None).made[0].iter().rposition(|made| made.number == number).unwrap();
        let (sandbox, command) = new();
        let store = sandbox.store();
        let point = Point { process: 0, call, number, fault: Fault::Overtaken };
        let run = trace_overtaken(command, point, move || {
            let mut other = std::process::Command::new(csalock());
            assert!(other.args(join).env_clear().env("CSALOCK_STORE", &store).status().unwrap().success());
        });
        assert!(run.status.success() && run.met.is_some_and(|met| met.number == number), "{}", run.stderr);
        sandbox.csalock(["unlock", "--force", "x"]).capture().exits(0);
        for entry in std::fs::read_dir(sandbox.path("store/x")).unwrap().map(Result::unwrap) {
            let bytes = std::fs::read(entry.path()).unwrap();
            assert!(!has_secret(&bytes), "{overtaken:?}: {:?}", entry.file_name());
        }
    }
}

/// A good record's bytes.
fn good(sandbox: &Sandbox) -> Vec<u8> {
    sandbox.csalock(["lock", "--forever", "x"]).run();
    // A swap, so that nothing that only a record's first version has is taken for granted.
    sandbox.csalock(["renew", "--ttl", "1h", "x"]).run();
    sandbox.open().read(StoreCall::default(), b"x").unwrap().unwrap().body
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
        assert!(done.stderr.contains("csalock unlock --force"), "{}", done.stderr);
    }
    sandbox.csalock(["status"]).capture().exits(65);
    assert_eq!(sandbox.stored(), before);
    // Other leftovers may be swept.
    sandbox.csalock(["gc"]).capture().exits(65);
    assert_eq!(sandbox.open().read(StoreCall::default(), b"x").unwrap().unwrap().body, body);
    sandbox.csalock(["run", "other", "true"]).run();
    let done = sandbox.csalock(["unlock", "--force", "x"]).capture();
    let place = done.stdout.strip_prefix("removed x: its record was unreadable; its bytes are kept in ");
    let kept = kept(sandbox, place.unwrap_or_else(|| panic!("{done:?}")).trim_end());
    assert!(kept.is_some_and(|kept| kept.ends_with(&[b"\n", body].concat())), "{done:?}");
    sandbox.csalock(["run", "-n", "x", "true"]).run();
    assert!(!sandbox.path("files/ran").exists());
}

fn has_secret(bytes: &[u8]) -> bool {
    bytes.windows(7).any(|window| window == b"hunter2")
}

/// The pid of the holder in the bytes of a record.
fn holder_in(bytes: &[u8]) -> i32 {
    lock::decode(bytes, 1).unwrap().holders[0].owner.processes[0].pid
}

/// The bytes in this place of the store.
fn kept(sandbox: &Sandbox, place: &str) -> Option<Vec<u8>> {
    let mut kept = None;
    let mut look = |at: &str, stored: store::Versioned| kept = (at == place).then_some(stored.body).or(kept.take());
    sandbox.open().scan(StoreCall::default(), &mut |at, stored| stored.map(|stored| look(at, stored))).unwrap();
    kept
}

/// The bytes of a record or an object as a version with one field more, or with the next format, writes them.
fn of_other_versions(bytes: &[u8]) -> [Vec<u8>; 2] {
    let (line, rest) = bytes.split_at(bytes.iter().position(|byte| *byte == b'\n').unwrap());
    let line = std::str::from_utf8(line).unwrap();
    let (begin, sealed) = line.split_once("\",").unwrap();
    let fields = format!("{},\"priority\":1}}", sealed.strip_suffix('}').unwrap());
    let sum = <sha2::Sha256 as sha2::Digest>::digest(&fields)
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect::<String>();
    let with_field = format!("{}{sum}\",{fields}", &begin[..begin.len() - 16]);
    [with_field, line.replacen(":3,", ":4,", 1)].map(|line| [line.as_bytes(), rest].concat())
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

    /// A fleet with two versions has no two holders, whatever a caller does that follows csalock's advice.
    fn a_record_of_another_version_is_a_live_lock(sandbox: &Sandbox) {
        sandbox.csalock(["lock", "--forever", "x"]).run();
        let good = sandbox.open().read(StoreCall::default(), b"x").unwrap().unwrap().body;
        for (body, why) in of_other_versions(&good).iter().zip(["this csalock does not know its form", "its format is 4"]) {
            sandbox.overwrite("x", body);
            let before = sandbox.stored();
            let process = holder_in(&good);
            let holder = &format!("held by pid {process} on ");
            for words in COMMANDS.iter().chain(&[&["unlock", "--force", "x"][..], &["unlock", "--force", "--end", "x"], &["status"]]) {
                let done = sandbox.csalock(*words).capture();
                let passed_over = *words == ["unlock", "--all"];
                assert!(done.code == Some(65) || passed_over && done.code == Some(0), "{words:?}: {done:?}");
                assert!(done.stdout.is_empty() || words[0] == "status", "{words:?}: {done:?}");
                for part in ["written by another version of csalock", why, holder, "update this csalock", &sandbox.store_place()] {
                    assert!(done.stderr.contains(part), "{words:?}: {part}: {}", done.stderr);
                }
                assert!(!done.stderr.contains("--force") && !done.stderr.contains("unreadable"), "{words:?}: {}", done.stderr);
                assert_eq!(sandbox.stored(), before, "{words:?}");
            }
            sandbox.csalock(["gc"]).capture().exits(65);
            assert_eq!(&sandbox.open().read(StoreCall::default(), b"x").unwrap().unwrap().body, body);
            sandbox.csalock(["run", "other", "true"]).run();
        }
        sandbox.overwrite("x", &good);
        sandbox.csalock(["unlock", "--force", "x"]).capture().exits(0);
    }

    fn a_value_of_another_version_is_kept(sandbox: &Sandbox) {
        sandbox.csalock(["put", "x", &"v".repeat(2000)]).run();
        let key = lock::Value::key(b"x", sandbox.record("x").unwrap().value.unwrap().write_id);
        let (key, good) = (String::from_utf8(key.clone()).unwrap(), sandbox.open().read(StoreCall::default(), &key).unwrap().unwrap().body);
        for body in of_other_versions(&good) {
            sandbox.overwrite(&key, &body);
            let done = sandbox.csalock(["get", "x"]).capture();
            done.exits(65);
            assert!(done.stderr.contains("written by another version of csalock"), "{done:?}");
            assert!(!done.stderr.contains("csalock del"), "{done:?}");
            // The writer of another version may be about to write the record that names it.
            sandbox.csalock(["gc"]).capture().exits(65);
            assert_eq!(sandbox.open().read(StoreCall::default(), key.as_bytes()).unwrap().unwrap().body, body);
        }
    }

    /// The history, which is private, has them; a record is for all users of the store.
    fn no_record_has_the_words_of_a_holder_that_has_ended(sandbox: &Sandbox) {
        const SECRET: [&str; 3] = ["sh", "-c", ": --password=hunter2; cat"];
        sandbox.script("dash", &format!(": hunter2; csalock put valued {}; :", "v".repeat(2000))).run();
        // A record of many holders gets pages of its own in SQLite, and they become free.
        let label = format!("hunter2 {}", "x".repeat(100));
        (0..25).for_each(|_| drop(sandbox.csalock(["lock", "--forever", "-s", "--label", &label, "crowd"]).capture()));
        sandbox.csalock(["unlock", "--force", "crowd"]).capture().exits(0);
        for name in ["once", "valued", "twice", "twice"] {
            sandbox.csalock([&["run", "--label", "hunter2", name][..], &SECRET].concat()).run();
        }
        // The next holder stays in the same record.
        let mut first = sandbox.csalock([&["run", "--label", "hunter2", "passed"][..], &SECRET].concat()).spawn();
        wait_until("the first holds", || sandbox.state("passed") == "held");
        let mut next = sandbox.waiter("passed", "cat");
        first.release();
        first.wait().exits(0);
        wait_until("the next holds", || sandbox.sight("passed")["holders"][0]["command"] == "dash -c cat");
        for ended in ["csalock lock --label hunter2 x; :", "csalock lock --label hunter2 --forever x; csalock unlock --force x; :"] {
            sandbox.script("dash", &format!(": hunter2; {ended}")).capture().exits(0);
            sandbox.csalock(["lock", "--forever", "x"]).capture().exits(0);
            sandbox.csalock(["unlock", "x"]).capture().exits(0);
        }
        let mut found = Vec::new();
        let mut look = |at: &str, body: &[u8]| found.extend(has_secret(body).then(|| at.to_string()));
        sandbox.open().scan(StoreCall::default(), &mut |at, stored| stored.map(|stored| look(at, &stored.body))).unwrap();
        if sandbox.is_of_files() {
            // The log of SQLite is emptied after some commits.
            (0..20).for_each(|number| sandbox.csalock(["run", &format!("other{number}"), "true"]).run());
            let files = sandbox.call("find", [sandbox.path("").as_os_str(), "-path".as_ref(), "*store*".as_ref(), "-type".as_ref(), "f".as_ref()]);
            let files = files.capture().stdout;
            assert!(files.contains("store"), "{files}");
            for file in files.lines().filter(|file| !file.contains("history")) {
                look(file, &std::fs::read(file).unwrap_or_default());
            }
        }
        assert!(found.is_empty(), "{found:?}");
        next.release();
        next.wait().exits(0);
    }

    fn what_force_moved_aside_stays_and_is_no_lock(sandbox: &Sandbox) {
        good(sandbox);
        sandbox.overwrite("x", b"garbage");
        sandbox.csalock(["unlock", "--force", "x"]).capture().exits(0);
        let listed = sandbox.csalock(["status"]).capture();
        assert_eq!((listed.code, listed.stdout.as_str()), (Some(0), ""));
        sandbox.csalock(["gc"]).env("CSALOCK_CLOCK", "+400d").run();
        assert_eq!(sandbox.internal(), 1);
    }

    fn a_record_with_two_exclusive_holders(sandbox: &Sandbox) {
        sandbox.csalock(["lock", "--forever", "-s", "x"]).run();
        sandbox.csalock(["lock", "--forever", "-s", "x"]).run();
        let mut record = sandbox.record("x").unwrap();
        record.holders.iter_mut().for_each(|grant| grant.mode = lock::Mode::Exclusive);
        is_refused_until_forced(sandbox, &lock::encode(&record), "it has two exclusive holders");
    }

    fn a_record_of_another_name(sandbox: &Sandbox) {
        sandbox.csalock(["lock", "--forever", "y"]).run();
        let of_y = sandbox.open().read(StoreCall::default(), b"y").unwrap().unwrap().body;
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
            let said = sandbox.csalock(["unlock", "--force", &name]).capture().stdout;
            assert!(said.starts_with(&format!("removed {name}: its record was unreadable")), "{said}");
            sandbox.csalock(["run", "-n", &name, "true"]).run();
        }
    }
}
