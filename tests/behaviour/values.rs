//! Values under a lock: read, written and deleted by permitted callers, and never past the lock.

use std::os::unix::fs::PermissionsExt;

use crate::sandbox::{Done, Job, Kind, Sandbox, wait_until};

/// A holder of the lock until it is told to end; its handle is in `files/handle`.
fn holder(sandbox: &Sandbox, options: &str, name: &str) -> Job {
    let script = format!(
        "csalock lock --print-handle {options} {name} > handle && echo in && read line; csalock unlock -q {name}; :"
    );
    sandbox.script("dash", &script).ready()
}

fn get(sandbox: &Sandbox, name: &str) -> Option<String> {
    let done = sandbox.csalock(["get", "-q", name]).capture();
    assert!(matches!(done.code, Some(0 | 81)) && done.stderr.is_empty(), "{done:?}");
    (done.code == Some(0)).then_some(done.stdout)
}

fn version(sandbox: &Sandbox, name: &str) -> u64 {
    sandbox.sight(name)["value"]["version"].as_u64().unwrap()
}

fn put(sandbox: &Sandbox, words: &[&str]) -> Done {
    sandbox.csalock([&["put"], words].concat()).capture()
}

fn code(sandbox: &Sandbox, words: &[&str]) -> Option<i32> {
    put(sandbox, words).code
}

on_every_store! {
    fn a_value_exists_until_its_deletion(sandbox: &Sandbox) {
        sandbox.csalock(["get", "x"]).status(81).stderr("csalock: lock x in store STORE guards no value\n").run();
        sandbox.csalock(["del", "x"]).status(81).stderr("csalock: lock x in store STORE guards no value\n").run();
        sandbox.csalock(["put", "x", "one"]).run();
        sandbox.csalock(["get", "x"]).stdout("one").run();
        sandbox.csalock(["run", "x", "true"]).run();
        sandbox.csalock(["gc"]).run();
        sandbox.csalock(["put", "x", "two words\n"]).run();
        sandbox.csalock(["get", "x"]).stdout("two words\n").run();
        sandbox.csalock(["del", "x"]).run();
        sandbox.csalock(["get", "-q", "x"]).status(81).run();
        assert!(sandbox.is_tidy());
    }

    fn of_callers_that_delete_a_value_at_once_one_is_told(sandbox: &Sandbox) {
        let script = "csalock put -q x new
                      for i in 1 2 3 4 5 6; do { csalock del -q x; echo $? >> codes; } & done; wait
                      grep -c '^0$' codes; rm codes";
        for _ in 0..sandbox.many(12) {
            sandbox.script("dash", script).stdout("1\n").run();
        }
    }

    fn versions_grow_by_one_and_never_come_back(sandbox: &Sandbox) {
        let mut before = 0;
        for round in 0..3 {
            sandbox.csalock(["put", "x", "first"]).run();
            let first = version(sandbox, "x");
            assert!(first > before, "{round}");
            for number in 1..=3 {
                sandbox.csalock(["run", "x", "csalock", "put", "x", "next"]).run();
                assert_eq!(version(sandbox, "x"), first + number);
            }
            before = first + 3;
            let said = sandbox.csalock(["del", "--json", "x"]).capture().stdout;
            assert!(said.starts_with(&format!("{{\"name\":\"x\",\"version\":{before},\"bytes\":4,\"token\":")), "{said}");
            sandbox.csalock(["gc"]).run();
        }
    }

    fn bytes_are_exact(sandbox: &Sandbox) {
        let million: Vec<u8> = (0..1u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let values: [&[u8]; 8] = [b"", b"\0", b"a\0b\n\n", b"\xff\xfe %=,\"\\", &[b'x'; 1024], &[b'y'; 1025], b"\n", &million];
        for bytes in values {
            for words in [&["put", "x"][..], &["put", "x", "-"]] {
                sandbox.csalock(words).stdin(bytes).run();
                let file = sandbox.path("files/got");
                sandbox.script("dash", "csalock get x > got").run();
                assert_eq!(std::fs::read(file).unwrap(), bytes);
                assert_eq!(sandbox.sight("x")["value"]["bytes"], bytes.len());
            }
        }
        let before = version(sandbox, "x");
        let done = sandbox.csalock(["put", "x"]).stdin([&million[..], b"!"].concat()).capture();
        assert_eq!((done.code, version(sandbox, "x")), (Some(64), before));
        assert_eq!(done.stderr, "csalock: the value for lock x has more than 1048576 bytes; keep it in a file, and the file's \
                                 name in the value\n");
        for word in ["", "-5", "-0.5", "a b", "\n", "x"] {
            sandbox.csalock(["put", "x", word]).run();
            assert_eq!(get(sandbox, "x").as_deref(), Some(word));
        }
        for word in ["--", "-w", "-n", "-", "--nonblock", "--no-such", "--unlock=x"] {
            for words in [["put", "x", "--", word], ["put", "--", "x", word]] {
                sandbox.csalock(words).stdin("in").run();
                assert_eq!(get(sandbox, "x").as_deref(), Some(if word == "-" { "in" } else { word }));
            }
        }
        sandbox.csalock(["del", "x"]).run();
        assert!(sandbox.is_tidy());
    }

    fn an_option_is_never_the_value(sandbox: &Sandbox) {
        let options = [
            "-n", "--nonblock", "--nb", "--nonblocking", "-w5", "--timeout=5", "--wait=5", "--fail-on-stale",
            "--backoff=1s..2s", "--label=x", "-E9", "--conflict-exit-code=9", "-q", "--quiet", "-v", "--verbose", "--json",
            "--mode=644", "--if-version=0",
        ];
        for option in options {
            sandbox.csalock(["del", "-q", "x"]).capture();
            let done = sandbox.csalock(["put", "x", option]).stdin("from stdin").capture();
            let (wanted, code) = if option == "--if-version=0" { (None, 80) } else { (Some("from stdin"), 0) };
            assert_eq!((get(sandbox, "x").as_deref(), done.code), (wanted, Some(code)), "{option} {done:?}");
        }
        sandbox.csalock(["put", "x", "old"]).run();
        for (words, code) in [
            (&["--unlock"][..], 81),
            (&["--unlock", "--even-if-stale"], 81),
            (&["--if-absent"], 83),
            (&["--handle=00000000000000000000000000000000"], 81),
        ] {
            let done = sandbox.csalock([&["put", "x"], words].concat()).stdin("new").capture();
            assert_eq!((get(sandbox, "x").as_deref(), done.code), (Some("old"), Some(code)), "{words:?} {done:?}");
        }
    }

    fn a_value_that_cannot_be_read_or_written_changes_nothing(sandbox: &Sandbox) {
        for (words, exit) in [
            (&["put", "x", "a", "b"][..], 64),
            (&["put", "x", "--no-such"], 64),
            (&["put", "x", "-w"], 64),
            (&["put", "x", "--even-if-stale"], 64),
            (&["put", "--if-absent", "--if-version", "3", "x", "a"], 64),
            (&["put", "--even-if-stale", "x", "a"], 64),
            (&["put", "--mode", "777", "x", "a"], 64),
            (&["put", "--mode", "x", "x", "a"], 64),
            (&["put", "", "a"], 64),
            (&["get", "x", "y"], 64),
            (&["get", "-n", "x"], 64),
            (&["put"], 64),
        ] {
            let done = sandbox.csalock(words).capture();
            assert_eq!((done.code, done.stdout.as_str()), (Some(exit), ""), "{words:?}");
            assert!(done.stderr.starts_with("csalock: "), "{words:?} {}", done.stderr);
        }
        for script in ["csalock put x <&-", "csalock put x < .", "csalock get x >&-", "csalock get --lock x >&-"] {
            sandbox.script("dash", script).capture().exits(74);
        }
        assert_eq!((get(sandbox, "x"), sandbox.state("x").as_str()), (None, "free"));
    }

    fn a_reader_that_goes_away_is_not_an_error(sandbox: &Sandbox) {
        sandbox.csalock(["put", "x"]).stdin([b'x'; 1 << 20]).run();
        let script = "{ csalock get x; echo $? >&2; } | head -c 3";
        sandbox.script("dash", script).stdout("xxx").stderr("141\n").run();
        let script = "{ csalock get --lock x; echo $? >&2; } | head -c 3; csalock status x > /dev/null; echo $? >&2";
        sandbox.script("dash", script).stdout("xxx").stderr("141\n81\n").run();
        sandbox.script("dash", "csalock get x | { sleep 0.1; wc -c; }").stdout("1048576\n").run();
    }

    fn no_caller_writes_past_a_lock(sandbox: &Sandbox) {
        sandbox.csalock(["put", "x", "old"]).run();
        let mut other = holder(sandbox, "", "x");
        for words in [&["put", "-n", "x", "new"][..], &["put", "-w", "50ms", "x", "new"], &["del", "-n", "x"]] {
            let done = sandbox.csalock(words).capture();
            assert_eq!(done.code, Some(75), "{words:?}");
            assert!(sandbox.plain(&done.stderr).starts_with("csalock: lock x in store STORE is busy: held by pid "), "{}", done.stderr);
        }
        assert_eq!(code(sandbox, &["-qE", "9", "-n", "x", "new"]), Some(9));
        let waiter = sandbox.csalock(["put", "-w", "inf", "x", "new"]).spawn();
        wait_until("put waits", || sandbox.waiters("x").len() == 1);
        assert_eq!(get(sandbox, "x").as_deref(), Some("old"));
        other.release();
        waiter.wait().exits(0);
        assert_eq!((get(sandbox, "x").as_deref(), sandbox.state("x").as_str()), (Some("new"), "free"));
    }

    fn the_holder_writes_and_keeps_or_releases_the_lock(sandbox: &Sandbox) {
        let script = "csalock lock x > /dev/null; csalock put x 1; csalock status x > /dev/null && csalock get x && csalock put --unlock x 2
                      csalock status x > /dev/null; echo $? $(csalock get x)
                      csalock get --lock x; csalock del x; csalock status x > /dev/null && csalock put x 3 && csalock del --unlock x
                      csalock status x > /dev/null; echo $?; csalock get -q x; echo $?";
        sandbox.script("dash", script).stdout("181 2\n281\n81\n").run();
        // By the handle, from anywhere.
        let mut other = holder(sandbox, "", "x");
        let handle = sandbox.read("files/handle");
        let handle = handle.trim();
        assert_eq!(code(sandbox, &["-n", "--handle", handle, "x", "by handle"]), Some(0));
        sandbox.csalock(["put", "-n", "x", "by environment"]).env("CSALOCK_HANDLE", handle).run();
        assert_eq!(get(sandbox, "x").as_deref(), Some("by environment"));
        let wrong = put(sandbox, &["--handle", &"0".repeat(32), "x", "wrong"]);
        assert_eq!(wrong.code, Some(82), "{wrong:?}");
        sandbox.csalock(["put", "--unlock", "--handle", handle, "x", "last"]).run();
        assert_eq!((get(sandbox, "x").as_deref(), sandbox.state("x").as_str()), (Some("last"), "free"));
        other.release();
        // A lock of another name gives no right to this one, and does not block it.
        sandbox.csalock(["run", "y", "csalock", "put", "x", "under y"]).run();
        assert_eq!(get(sandbox, "x").as_deref(), Some("under y"));
    }

    fn put_unlock_without_the_lock_writes_nothing(sandbox: &Sandbox) {
        let done = put(sandbox, &["--unlock", "x", "a"]);
        let said = "csalock: nothing was written, because lock x in store STORE is not held; take it first with `csalock get --lock x`\n";
        assert_eq!((done.code, sandbox.plain(&done.stderr).as_str()), (Some(81), said));
        let _other = holder(sandbox, "", "x");
        let done = put(sandbox, &["--unlock", "x", "a"]);
        assert_eq!(done.code, Some(82));
        assert!(sandbox.plain(&done.stderr).starts_with("csalock: lock x in store STORE belongs to another holder: held by pid "), "{}", done.stderr);
        assert_eq!(get(sandbox, "x"), None);
    }

    fn readers_that_share_a_lock_do_not_write(sandbox: &Sandbox) {
        let mut other = holder(sandbox, "-s", "x");
        let script = "csalock lock -s x > /dev/null; csalock put -w 20s x a; echo $?; read line; csalock put x b; echo $?";
        let mut one = sandbox.script("dash", script).spawn();
        assert_eq!(one.lines(1), ["75"]);
        other.release();
        wait_until("the other reader is gone", || sandbox.holders("x").len() == 1);
        one.tell("go");
        let done = one.wait();
        assert_eq!(done.stdout, "75\n0\n");
        let said = "csalock: nothing was written, because you share lock x in store STORE: held by pid ";
        assert!(sandbox.plain(&done.stderr).starts_with(said) && done.stderr.ends_with("; release it, and acquire it exclusively\n"), "{}", done.stderr);
        // A dead caller blocks no other.
        let script = "csalock lock -s x > /dev/null; csalock put --unlock x c; echo $?";
        let mut dead = holder(sandbox, "-s", "x");
        let mut one = sandbox.script("dash", &script.replace("csalock put", "echo in; read line; csalock put")).ready();
        dead.kill();
        one.tell("go");
        assert_eq!(one.wait().stdout, "in\n0\n");
        assert_eq!(get(sandbox, "x").as_deref(), Some("c"));
    }

    fn a_holder_whose_time_is_over_writes_nothing(sandbox: &Sandbox) {
        let script = "over() { while csalock status -q x > /dev/null; do sleep 0.01; done; }
                      csalock put x old; csalock lock --ttl 50ms x > /dev/null; over
                      csalock put --unlock x new; echo $?; csalock put x new; echo $?; csalock del x; echo $?; csalock get x; echo
                      csalock put --unlock --even-if-stale x new; echo $? $(csalock get x)";
        let done = sandbox.script("dash", script).capture();
        assert_eq!(done.stdout, "82\n82\n82\nold\n0 new\n");
        let said = "csalock: nothing was written, because lock x in store STORE was held by pid ";
        let plain = sandbox.plain(&done.stderr);
        let lines: Vec<_> = plain.lines().collect();
        let (written, refused) = lines.split_last().unwrap();
        assert!(refused.iter().all(|line| line.starts_with(said) && line.contains("let its time run out")), "{}", done.stderr);
        let stale = "csalock: lock x was stale: it was held by pid ";
        let why = ", which let its time run out; the value was written for --even-if-stale";
        assert!(refused.len() == 3 && written.starts_with(stale) && written.ends_with(why), "{}", done.stderr);
        assert!(done.stderr.contains("use --even-if-stale, if no other caller has had it since"), "{}", done.stderr);
        // Another caller has had it since.
        let script = "over() { while csalock status -q x > /dev/null; do sleep 0.01; done; }
                      csalock lock --ttl 50ms x > /dev/null; over; setsid -w csalock run x true
                      csalock put --unlock --even-if-stale x newer; echo $?
                      csalock lock --ttl 50ms x > /dev/null; over
                      setsid -w csalock run x sh -c 'echo in; read line' < line > in &
                      : > line; csalock put -q --unlock --even-if-stale x newer; echo $?";
        nix::unistd::mkfifo(&sandbox.path("files/line"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let done = sandbox.script("dash", &script.replace(": > line;", "exec 3> line; until grep -q in in; do sleep 0.01; done;")).capture();
        assert_eq!((done.stdout.as_str(), get(sandbox, "x").as_deref()), ("82\n82\n", Some("new")), "{done:?}");
        assert!(done.stderr.contains("; take it again before you read and write\n"), "{}", done.stderr);
    }

    fn a_brief_write_counts_as_a_grant(sandbox: &Sandbox) {
        let script = "over() { while csalock status -q x > /dev/null; do sleep 0.01; done; }
                      csalock put x old; csalock lock --ttl 50ms x > /dev/null; over
                      setsid -w sh -c 'csalock put x foreign; :'
                      csalock put -q --unlock --even-if-stale x late; echo $? $(csalock get x)
                      csalock del -q --unlock --even-if-stale x; echo $? $(csalock get x)
                      csalock lock --forever x > /dev/null; csalock unlock --force x > /dev/null
                      csalock put -q --unlock --even-if-stale x late; echo $? $(csalock get x)";
        sandbox.script("dash", script).stdout("82 foreign\n82 foreign\n82 foreign\n").run();
    }

    fn a_caller_that_acquired_the_lock_again_may_write(sandbox: &Sandbox) {
        let script = "over() { while csalock status -q x > /dev/null; do sleep 0.01; done; }
                      csalock lock --ttl 50ms x > /dev/null; over
                      csalock lock x > /dev/null 2>&1; csalock put x a; echo $?
                      csalock unlock x; csalock put x b; echo $?";
        sandbox.script("dash", script).stdout("0\n0\n").run();
    }

    fn a_value_is_written_only_if_unchanged(sandbox: &Sandbox) {
        let done = put(sandbox, &["--if-version", "7", "x", "a"]);
        let said = "csalock: the value of lock x in store STORE is not at version 7 any more: there is none; read it again with `csalock get x`\n";
        assert_eq!((done.code, sandbox.plain(&done.stderr).as_str()), (Some(80), said));
        assert_eq!(code(sandbox, &["--if-absent", "x", "a"]), Some(0));
        let first = version(sandbox, "x");
        let done = put(sandbox, &["--if-absent", "x", "b"]);
        let said = format!("csalock: lock x in store STORE guards a value already, with version {first} and 1 byte; see it with `csalock get x`\n");
        assert_eq!((done.code, sandbox.plain(&done.stderr)), (Some(83), said));
        assert_eq!(code(sandbox, &["--if-version", &first.to_string(), "x", "bc"]), Some(0));
        let done = put(sandbox, &["--if-version", &first.to_string(), "x", "d"]);
        let said = format!("csalock: the value of lock x in store STORE is not at version {first} any more: it has version {} and 2 bytes; read it \
                            again with `csalock get x`\n", first + 1);
        assert_eq!((done.code, sandbox.plain(&done.stderr)), (Some(80), said));
        sandbox.csalock(["del", "-q", "--if-version", &first.to_string(), "x"]).status(80).run();
        assert_eq!(get(sandbox, "x").as_deref(), Some("bc"));
        sandbox.csalock(["del", "--if-version", &(first + 1).to_string(), "x"]).run();
        assert_eq!(get(sandbox, "x"), None);
    }

    fn get_lock_acquires_the_lock_even_without_a_value(sandbox: &Sandbox) {
        let script = "n=$(csalock get --lock x); echo $? $n; csalock put --unlock x $((n + 1)); n=$(csalock get --lock x); echo $? $n
                      csalock status x > /dev/null; echo $?";
        let said = "csalock: lock x in store STORE guards no value; the lock is held now, so write one or give it back\n";
        sandbox.script("dash", script).stdout("81\n0 1\n0\n").stderr(said).run();
        let _other = holder(sandbox, "", "x");
        sandbox.csalock(["get", "--lock", "-n", "x"]).capture().prints(75, "");
        assert_eq!(sandbox.csalock(["get", "x"]).capture().stdout, "1", "to read it needs no lock");
    }

    fn get_lock_may_acquire_for_another_process(sandbox: &Sandbox) {
        let mut owner = sandbox.call("sleep", ["600"]).spawn();
        let pid = owner.pid().to_string();
        sandbox.csalock(["put", "x", "a"]).run();
        sandbox.csalock(["get", "--lock", "--pid", &pid, "x"]).stdout("a").run();
        assert_eq!((sandbox.holders("x"), sandbox.state("x").as_str()), (vec![owner.pid()], "held"));
        assert_eq!(sandbox.script("dash", "csalock unlock x; :").capture().stderr.matches("sleep 600").count(), 1);
        owner.kill();
        sandbox.await_abandoned("x");
        let said = "csalock: --pid cannot be used without --lock; add --lock, or leave it out\n";
        sandbox.csalock(["get", "--pid", &pid, "x"]).status(64).stderr(said).run();
        sandbox.csalock(["get", "--lock", "--pid", "0", "x"]).capture().exits(64);
    }

    fn a_get_that_was_killed_before_it_printed_the_value_leaves_no_right_to_write(sandbox: &Sandbox) {
        require!(crate::sandbox::has("strace"));
        sandbox.csalock(["put", "x", "41"]).run();
        let script = "n=$(strace -qq -D -o trace -e trace=write -e inject=write:signal=KILL csalock get --lock x)
                      csalock put -q --unlock x $((n + 1)); echo $? $n; csalock get x; csalock run -q -n x echo";
        let done = sandbox.script("dash", script).capture();
        let lines: Vec<&str> = done.stdout.lines().collect();
        assert!(matches!(lines[..], ["81" | "82", "41"]), "{done:?}");
    }

    fn the_json_of_a_value_has_version_bytes_and_token(sandbox: &Sandbox) {
        let json = |words: &[&str]| -> serde_json::Value {
            serde_json::from_str(&sandbox.csalock(words).capture().stdout).unwrap()
        };
        let first = json(&["put", "--json", "x", "abc"]);
        assert_eq!((&first["name"], &first["bytes"]), (&"x".into(), &3.into()));
        let mut read = json(&["get", "--json", "x"]);
        assert_eq!(read.as_object_mut().unwrap().remove("value"), Some("abc".into()));
        assert_eq!(first, read);
        assert_eq!(first.as_object().unwrap().len(), 4);
        let script = "csalock get --lock --json x; csalock put --json x de; csalock unlock x";
        let said = sandbox.script("dash", script).capture().stdout;
        let said: Vec<serde_json::Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(said[0]["version"], first["version"]);
        assert_eq!(said[0]["handle"].as_str().unwrap().len(), 32);
        assert!(said[0]["token"].as_u64() > first["token"].as_u64());
        assert_eq!(said[1]["version"].as_u64(), first["version"].as_u64().map(|version| version + 1));
        assert_eq!(said[1]["token"], said[0]["token"], "written under that grant");
        sandbox.csalock(["put", "x", "f"]).run();
        assert!(json(&["get", "--json", "x"])["token"].as_u64() > said[1]["token"].as_u64());
    }

    fn status_shows_the_value(sandbox: &Sandbox) {
        sandbox.csalock(["put", "x", "abc"]).run();
        let version = version(sandbox, "x");
        let header = "NAME  STATE  WAITERS  PID  HOST  USER  SINCE  UNTIL  COMMAND\n";
        let row = format!("x     free   0        -    -     -     -      -      (value: version {version} and 3 bytes)\n");
        sandbox.csalock(["status", "x"]).capture().exits(81);
        sandbox.csalock(["status"]).stdout(format!("{header}{row}")).run();
        assert_eq!(sandbox.sight("x")["value"], serde_json::json!({"version": version, "bytes": 3, "token": version}));
        assert_eq!(sandbox.sight("y")["value"], serde_json::Value::Null);
    }

    fn a_value_beside_a_file_stays_there(sandbox: &Sandbox) {
        let call = |words: &[&str]| sandbox.csalock(words).without("CSALOCK_STORE").capture();
        assert_eq!(call(&["put", "./file", "a"]).code, Some(0));
        assert_eq!(call(&["get", "./../files/file"]).stdout, "a");
        assert!(sandbox.path("files/.csalock/file").exists());
        assert_eq!(call(&["put", "./file", &"b".repeat(5000)]).code, Some(0));
        assert_eq!(call(&["del", "./file"]).code, Some(0));
        assert!(!sandbox.path("files/.csalock").exists());
    }

    fn leftovers_of_killed_processes_are_swept(sandbox: &Sandbox) {
        let long = "x".repeat(5000);
        sandbox.csalock(["put", "x", &long]).run();
        let old = version(sandbox, "x");
        let calls = match sandbox.kind() {
            Kind::Directory | Kind::Shared => "renameat",
            Kind::Sqlite => "fcntl",
            Kind::Etcd | Kind::Postgres | Kind::Ssh => "sendto",
        };
        require!(crate::sandbox::has("strace"));
        let (mut before, mut after) = (0, 0);
        for step in 1.. {
            let inject = format!("inject={calls}:signal=KILL:when={step}");
            let done = sandbox.call("strace", ["-qq", "-o", "trace", "-e", &inject, "csalock", "put", "x", &long]).capture();
            assert_eq!(get(sandbox, "x").as_deref(), Some(long.as_str()), "{step}");
            *(if version(sandbox, "x") == old { &mut before } else { &mut after }) += 1;
            if done.code == Some(0) {
                break;
            }
        }
        assert!(before > 1 && after >= 1, "{before} {after}");
        sandbox.csalock(["del", "x"]).run();
        assert!(sandbox.is_tidy());
    }
}

/// The users of the store that may read a value.
#[test]
fn a_mode_is_never_wider_than_requested() {
    let sandbox = Sandbox::new(crate::sandbox::Kind::Directory);
    std::fs::create_dir(sandbox.store_path()).unwrap();
    std::fs::set_permissions(sandbox.store_path(), PermissionsExt::from_mode(0o755)).unwrap();
    let trace = |words: &str| {
        let script = format!(
            "umask 022; exec strace -f -qq -o trace -e trace=openat,open,fchmod,chmod,fchmodat csalock put {words}"
        );
        sandbox.script("dash", &script).run();
        sandbox.read("files/trace")
    };
    let modes = || -> Vec<u32> {
        let apart = std::fs::read_dir(sandbox.store_path()).unwrap().map(|entry| entry.unwrap().path());
        let apart = apart.filter(|path| path.to_string_lossy().contains("%00value"));
        let files =
            apart.flat_map(|path| std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().metadata().unwrap()));
        files.map(|found| found.permissions().mode() & 0o777).collect()
    };
    sandbox.csalock(["put", "x", "open"]).run();
    assert!(modes().is_empty(), "short ones are in the record");
    require!(crate::sandbox::has("strace"));
    // The second was not told, and is as private as the first.
    for words in ["--mode 0600 x secret", "x 'secret too'"] {
        let trace = trace(words);
        assert!(trace.lines().any(|line| line.contains("O_CREAT") && line.contains("0600)")), "{trace}");
        assert_eq!(modes(), [0o600]);
        let stored: Vec<String> = sandbox.listing("store");
        let readable = stored.iter().filter(|line| line.contains("secret")).all(|line| line.contains(" 100600 "));
        assert!(readable, "{stored:?}");
    }
    assert_eq!(sandbox.sight("x")["value"]["mode"], "0600");
    trace("--mode 0640 x less");
    assert_eq!(modes(), [0o640]);
    sandbox.csalock(["del", "x"]).run();
    assert!(sandbox.is_tidy());
}

#[test]
fn another_user_sees_that_a_value_exists_but_not_its_content() {
    require!(crate::sandbox::is_root("a value that another user may not read"));
    let sandbox = Sandbox::new(crate::sandbox::Kind::Directory);
    std::fs::create_dir(sandbox.store_path()).unwrap();
    std::fs::set_permissions(sandbox.store_path(), PermissionsExt::from_mode(0o755)).unwrap();
    sandbox.csalock(["put", "--mode", "600", "x", "secret"]).run();
    let done = sandbox.csalock(["get", "x"]).user(65534).capture();
    let said = "csalock: the value of lock x has mode 0600; ask the user who wrote it\n";
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (Some(77), "", said));
    for words in
        [&["status", "x"][..], &["status"], &["status", "--json"], &["lookup", "-q", "--id", "1"], &["gc", "--dry-run"]]
    {
        let done = sandbox.csalock(words).user(65534).capture();
        assert!(matches!(done.code, Some(0 | 81)) && done.stderr.is_empty(), "{words:?} {done:?}");
        assert!(words[0] != "status" || done.stdout.contains("0600"), "{words:?} {done:?}");
    }
}

#[test]
fn a_database_has_one_mode() {
    let sandbox = Sandbox::new(crate::sandbox::Kind::Sqlite);
    sandbox.csalock(["put", "--mode", "600", "x", "secret"]).run();
    assert_eq!(std::fs::metadata(sandbox.store_path()).unwrap().permissions().mode() & 0o777, 0o600);
    sandbox.csalock(["put", "--mode", "600", "x", "secret"]).run();
    std::fs::set_permissions(sandbox.store_path(), PermissionsExt::from_mode(0o644)).unwrap();
    let done = sandbox.csalock(["put", "--mode", "600", "x", "changed"]).capture();
    done.exits(77);
    assert!(done.stderr.contains("0644") || done.stderr.contains(" 644"), "{}", done.stderr);
    assert_eq!(sandbox.csalock(["get", "x"]).capture().stdout, "secret");
    // The log contains values too.
    std::fs::set_permissions(sandbox.store_path(), PermissionsExt::from_mode(0o600)).unwrap();
    sandbox.csalock(["put", "--mode", "600", "x", "changed"]).run();
    let log = sandbox.store_path().with_file_name("store-wal");
    assert_eq!(std::fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::set_permissions(&log, PermissionsExt::from_mode(0o644)).unwrap();
    sandbox.csalock(["put", "--mode", "600", "x", "secret"]).capture().says(77, "store-wal has mode 0644");
}

#[test]
fn the_hint_for_an_unusable_value_is_a_command_that_deletes_it() {
    let sandbox = Sandbox::new(crate::sandbox::Kind::Directory);
    for (damage, state) in [("for g in $f/*; do echo garbage > $g; done", "unreadable"), ("rm -r $f", "missing")] {
        sandbox.script("dash", "seq 20000 | csalock put x").run();
        sandbox.script("dash", &format!("for f in ../store/*value*; do {damage}; done")).run();
        let done = sandbox.csalock(["get", "x"]).capture();
        assert!(done.code == Some(65) && done.stderr.contains(&format!("the value is {state}; ")), "{}", done.stderr);
        sandbox.script("dash", done.stderr.split('`').nth(1).unwrap()).run();
        assert_eq!(get(&sandbox, "x"), None);
    }
}
