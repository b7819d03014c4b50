//! Every name is itself, or a usage error; and every spelling of a file is one lock.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use crate::sandbox::{is_root, wait_until};

/// Names that a careless store would take for one another, or for a path.
fn odd_names() -> Vec<Vec<u8>> {
    let odd = b"a|A|a | a|a\n|\n|a\nb|...|.a|-|--|-a|-n|%|%41|%61|a%2Fb|a%2fb|%00|\xff|\xfe|\xff\xfe|\xc3\xa4|\
        a\xcc\x88|*|?|[a]|~|$HOME|`id`|'|\"|\\|a\\|\x01|\x7f|\x1b[2J|.work|.csalock|cur.1|new.1|a;b|\
        x'; DROP TABLE records; --";
    let mut names: Vec<Vec<u8>> = odd.split(|byte| *byte == b'|').map(<[u8]>::to_vec).collect();
    for length in [127, 128, 200, 201, 255, 256, 1023, 1024] {
        names.push(vec![b'n'; length]);
    }
    for last in [b'1', b'2'] {
        names.push([&[b'n'; 1023][..], &[last]].concat());
        names.push([&[b'\xff'; 1023][..], &[last]].concat());
    }
    names
}

fn words<'a>(before: &[&'a str], name: &'a [u8]) -> Vec<&'a OsStr> {
    before.iter().map(|word| OsStr::new(*word)).chain([OsStr::from_bytes(name)]).collect()
}

#[test]
fn a_dot_means_the_directory() {
    let sandbox = crate::sandbox::Sandbox::new(crate::sandbox::Kind::Directory);
    let script =
        "mkdir d; csalock lock ./d && cd d && csalock status -q . && echo held; csalock unlock . && mkdir e && cd e
csalock lock .. && csalock status -q \"${PWD%/*}\" && echo held";
    sandbox.script("dash", script).without("CSALOCK_STORE").stdout("held\nheld\n").run();
}

on_every_store! {
    fn a_name_that_looks_like_a_path_locks_no_file(sandbox: &Sandbox) {
        let path = sandbox.path("files/new");
        let name = format!("name:{}", path.display());
        sandbox.csalock(["run", "-q", &name, "true"]).without("CSALOCK_STORE").run();
        sandbox.csalock(["run", "--flock", &name, "true"]).capture().says(64, "is not a path");
        assert!(!path.exists());
    }

    fn an_option_may_come_after_a_name(sandbox: &Sandbox) {
        sandbox.csalock(["lock", "job", "--forever", "--", "other"]).run();
        let held = |words: &[&str], code| {
            sandbox.csalock(words).capture().exits(code);
        };
        held(&["lock", "job", "-n", "-E", "9"], 9);
        held(&["status", "job", "-q", "other"], 0);
        held(&["history", "job", "-n", "1"], 0);
        held(&["renew", "job", "--ttl", "1h", "--json"], 0);
        held(&["status", "job", "--no-such"], 64);
        held(&["unlock", "job", "--force", "other"], 0);
        held(&["status", "job", "other"], 81);
        sandbox.csalock(["run", "-n", "job", "true"]).run();
        // A caller that wants this store names it.
        let script = "csalock lock -- job --ttl > /dev/null; csalock status -1 -- --ttl; csalock lock -n -- --ttl";
        let done = sandbox.script("dash", script).capture();
        assert_eq!((done.code, done.stdout.as_str()), (Some(84), "--ttl\n"), "{done:?}");
        assert!(done.stderr.contains("; leave this call out, or give it --reentrant"), "{}", done.stderr);
    }

    fn the_library_locks_the_same_file_as_the_command(sandbox: &Sandbox) {
        let file = sandbox.file("files/file", "");
        let link = sandbox.path("files/link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let locks = csalock_locks::Locks::open(&sandbox.store()).unwrap();
        let guard = locks.lock(link.to_str().unwrap(), std::time::Duration::ZERO).unwrap().held().unwrap();
        let call = |name: &std::path::Path| sandbox.csalock([OsStr::new("status"), OsStr::new("-q"), name.as_os_str()]).capture();
        assert_eq!([call(&file).code, call(&link).code], [Some(0); 2]);
        guard.release().unwrap();
        assert_eq!(call(&file).code, Some(81));
    }

    fn hints_name_the_store_that_was_named(sandbox: &Sandbox) {
        let store = sandbox.store_at("files/other");
        let call = |words: &[&str]| sandbox.csalock([&[words[0], "--store", &store], &words[1..]].concat()).capture();
        let _holder = sandbox.csalock(["run", "--store", &store, "x", "cat"]).spawn();
        crate::sandbox::wait_until("it holds", || call(&["status", "-q", "x"]).code == Some(0));
        let said = call(&["lock", "-n", "x"]).stderr;
        // A shell would take a question mark for a pattern.
        let quoted = if store.contains('?') { format!("'{store}'") } else { store.clone() };
        assert!(said.contains(&format!("see `csalock status --store {quoted} x`")), "{said}");
    }

    fn the_hint_for_an_unreadable_record_is_a_command_that_removes_it(sandbox: &Sandbox) {
        let (store, name) = (sandbox.store(), "it's -bad");
        for options in [&[][..], &["--store", &store]] {
            sandbox.csalock(["lock", "--forever", "-n", name]).run();
            sandbox.overwrite(name, b"garbage");
            let call = |words: &[&str]| {
                let call = sandbox.csalock([words, options, &[name]].concat());
                if options.is_empty() { call } else { call.without("CSALOCK_STORE") }
            };
            let said = call(&["lock", "-n"]).capture().stderr;
            let hint = said.split('`').nth(1).unwrap();
            assert_eq!(hint.contains("--store"), !options.is_empty(), "{said}");
            let hint = sandbox.script("dash", hint);
            let done = if options.is_empty() { hint } else { hint.without("CSALOCK_STORE") }.capture();
            assert_eq!((done.code, call(&["status", "-q"]).capture().code), (Some(0), Some(81)), "{said}{done:?}");
        }
        if sandbox.is_directory() {
            let script = "csalock lock --forever ./file > /dev/null; for f in $(ls -d .csalock/file/* | tail -n 1); do echo garbage > $f; done
                          csalock lock -n ./file; eval \"$(csalock lock -n ./file 2>&1 | cut -d '`' -f 2)\"; csalock status -q ./file > /dev/null; echo $?";
            let done = sandbox.script("dash", script).without("CSALOCK_STORE").capture();
            assert!(done.stdout.contains("its record was unreadable; its bytes are kept in ") && done.stdout.ends_with("\n81\n"), "{done:?}");
        }
    }

    fn no_two_names_are_one_lock(sandbox: &Sandbox) {
        let names = odd_names();
        for name in &names {
            let done = sandbox.csalock(words(&["lock", "--forever", "-n", "--"], name)).capture();
            assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{:?}", OsStr::from_bytes(name));
        }
        let listed = sandbox.csalock(["status", "-1"]).capture().stdout;
        let distinct: std::collections::BTreeSet<&str> = listed.lines().collect();
        assert_eq!(distinct.len(), names.len(), "{listed}");
        for (at, name) in names.iter().enumerate() {
            assert_eq!(sandbox.csalock(words(&["lock", "-nq", "--"], name)).capture().code, Some(75), "{name:?}");
            sandbox.csalock(words(&["unlock", "--"], name)).run();
            assert_eq!(sandbox.csalock(words(&["unlock", "--"], name)).capture().code, Some(0), "again: {name:?}");
            let left = sandbox.csalock(["status", "-1"]).capture().stdout.lines().count();
            assert_eq!(left, names.len() - at - 1, "{name:?}");
        }
    }

    fn the_empty_name_and_long_names_are_usage_errors(sandbox: &Sandbox) {
        for command in [&["lock"][..], &["unlock"], &["status"], &["renew", "--ttl", "1s"]] {
            let said = "csalock: a lock's name is not empty; a name is 1 to 1024 bytes, anything but NUL\n";
            sandbox.csalock(words(command, b"")).status(64).stderr(said).run();
            let said = "csalock: a name of 1025 bytes is too long; a name is 1 to 1024 bytes, anything but NUL\n";
            sandbox.csalock(words(command, &[b'n'; 1025])).status(64).stderr(said).run();
        }
        sandbox.csalock(["run", "", "true"]).capture().exits(64);
        sandbox.csalock([&"n".repeat(1025)[..]].iter().fold(vec!["run"], |mut all, name| { all.push(name); all.push("true"); all })).capture().exits(64);
        assert!(!sandbox.store_exists());
    }

    fn every_odd_name_can_be_locked_and_is_passed_to_the_command(sandbox: &Sandbox) {
        for name in odd_names() {
            let mut all = words(&["run", "--"], &name);
            all.extend(["dash", "-c", "printf %s \"$CSALOCK_NAME\" > name"].map(OsStr::new));
            sandbox.csalock(all).run();
            assert_eq!(std::fs::read(sandbox.path("files/name")).unwrap(), name);
        }
    }

    fn control_characters_are_never_shown_as_they_are(sandbox: &Sandbox) {
        for name in [&b"a\x1b[2Jb\n"[..], b"a\r", b"\xc2\x9b", b"\xe2\x80\xae"] {
            sandbox.csalock(words(&["lock", "--forever", "--label", "\x1b]0;x\x07", "--"], name)).run();
            let label_and_name = sandbox.csalock(["status"]).capture();
            let busy = sandbox.csalock(words(&["run", "-n", "--"], name).into_iter().chain([OsStr::new("true")])).capture();
            for text in [label_and_name.stdout, busy.stderr] {
                let bad = |char: char| char != '\n' && char.is_control() || char == '\u{202e}';
                assert!(!text.is_empty() && !text.contains(bad), "{text:?}");
            }
            sandbox.csalock(words(&["unlock", "--"], name)).run();
        }
    }

    fn every_spelling_of_a_file_is_one_lock(sandbox: &Sandbox) {
        let files = sandbox.path("files");
        std::fs::create_dir(files.join("real")).unwrap();
        sandbox.file("files/real/file", "");
        symlink("real", files.join("link")).unwrap();
        symlink("real/file", files.join("straight")).unwrap();
        symlink("link/../straight", files.join("round")).unwrap();
        symlink("real/new", files.join("dangling")).unwrap();
        let whole = files.join("real/file").display().to_string();
        for store in ["beside", "chosen"] {
            let call = |name: &str, command: &str| {
                let options = if command == "lock" { &["-n", "--forever"][..] } else { &["-q"] };
                // With a store that was chosen, a path begins with a slash or a dot.
                let is_plain = store == "beside" || name.starts_with(['/', '.']);
                let name = if is_plain { name.to_string() } else { format!("./{name}") };
                let call = sandbox.csalock([&[command], options, &[&name]].concat());
                if store == "beside" { call.without("CSALOCK_STORE") } else { call }
            };
            for taken in ["real/file", whole.as_str()] {
                call(taken, "lock").capture().exits(0);
                for other in ["./real/file", "link/file", "./straight", "./round", "real/../link//./file", &whole] {
                    assert_eq!(call(other, "lock").capture().code, Some(75), "{store} {taken} {other}");
                    let is_plain = store == "beside" || other.starts_with(['/', '.']);
                    let other = if is_plain { other.to_string() } else { format!("./{other}") };
                    let shown = sandbox.csalock(["status", "-1", &other]);
                    let shown = if store == "beside" { shown.without("CSALOCK_STORE") } else { shown };
                    shown.stdout("SANDBOX/files/real/file\n").run();
                }
                call("./round", "unlock").capture().exits(0);
            }
            call("./dangling", "lock").capture().exits(0);
            call("link/new", "lock").capture().exits(75);
            call("real/new", "unlock").capture().exits(0);
        }
        assert!(!sandbox.path("files/real/.csalock").exists());
    }

    fn a_file_and_a_bare_name_are_two_locks(sandbox: &Sandbox) {
        sandbox.csalock(["lock", "file"]).run();
        sandbox.csalock(["lock", "./file"]).run();
        sandbox.csalock(["lock", "./file"]).without("CSALOCK_STORE").run();
        sandbox.csalock(["lock", "../files/..file"]).run();
    }

    fn a_word_with_a_slash_is_refused_where_a_store_was_chosen(sandbox: &Sandbox) {
        let said = "csalock: src/x may be a file or a name; use ./src/x for the file, or name:src/x for the name in the store\n";
        sandbox.script("dash", "mkdir -p a/src b/src").run();
        for words in [&["lock"][..], &["unlock"], &["status"], &["wait"], &["get"], &["put"], &["claim"], &["gc"]] {
            sandbox.csalock([words, &["src/x"]].concat()).stdin("").status(64).stderr(said).run();
        }
        let two = |word: &str| {
            let script = format!("cd a; csalock lock {word}; cd ../b; csalock run -n {word} echo in 2> said; echo $?");
            sandbox.script("dash", &script).capture().stdout
        };
        assert_eq!([two("./src/x"), two("name:src/x")], ["in\n0\n", "84\n"]);
        // Under `run` no store was chosen for files, and beside the file as ever.
        sandbox.script("dash", "cd a; csalock run -q n csalock run -n src/x echo in").without("CSALOCK_STORE").stdout("in\n").run();
    }

    fn a_literal_name_is_that_name_in_every_command(sandbox: &Sandbox) {
        for name in ["src/x", "./x", "/tmp/x", "name:x", ".", "*", "plain"] {
            let literal = &format!("name:{name}");
            let script = format!("csalock lock '{literal}'; csalock status -1 '{literal}'; csalock unlock '{literal}'; csalock status -q '{literal}'; echo $?");
            sandbox.script("dash", &script).stdout(format!("{name}\n81\n")).run();
            sandbox.csalock(["run", literal, "dash", "-c", "csalock status -1 \"$CSALOCK_NAME\""]).stdout(format!("{name}\n")).run();
            sandbox.csalock(["put", literal, "a"]).run();
            sandbox.csalock(["get", literal]).stdout("a").run();
            let _job = sandbox.csalock(["run", literal, "cat"]).spawn();
            wait_until("it is held", || sandbox.csalock(["status", "-q", literal]).capture().code == Some(0));
            let busy = sandbox.csalock(["lock", "-n", literal]).capture();
            let see = if ["plain", "/tmp/x", "*"].contains(&name) { name } else { literal };
            let hint = format!("see `csalock status {}`", lock::name::shell_quote(see.as_bytes()));
            assert!(busy.code == Some(75) && busy.stderr.contains(&hint), "{hint} {busy:?}");
        }
    }

    fn a_name_that_is_a_file_too_is_told_with_verbose(sandbox: &Sandbox) {
        sandbox.file("files/data.csv", "");
        sandbox.csalock(["run", "data.csv", "true"]).run();
        for command in [&["lock", "-v"][..], &["run", "-v", "-n", "--reentrant"]] {
            let done = sandbox.csalock([command, &["data.csv", "true"][..if command[0] == "lock" { 1 } else { 2 }]].concat()).capture();
            assert!(done.stderr.starts_with("csalock: data.csv is a name; the file is ./data.csv\n"), "{done:?}");
            sandbox.csalock(["unlock", "-q", "data.csv"]).capture();
        }
        let done = sandbox.csalock(["lock", "-v", "./data.csv"]).capture();
        assert!(!done.stderr.contains("is a name"), "{done:?}");
    }

    fn a_file_in_a_directory_that_is_not_there_is_a_usage_error(sandbox: &Sandbox) {
        sandbox.csalock(["lock", "none/file"]).without("CSALOCK_STORE").capture().says(64, &sandbox.path("files/none").display().to_string());
    }

    fn a_file_has_one_lock_even_under_another_lock(sandbox: &Sandbox) {
        let held = sandbox.path("held");
        let script = format!("touch {}; exec cat", held.display());
        let holder = sandbox.csalock(["run", "./file", "dash", "-c", &script]).without("CSALOCK_STORE").spawn();
        wait_until("it is held", || held.exists());
        let try_it = "csalock run -nq ./file true; echo $?";
        let nested = format!("csalock run other dash -c '{try_it}'");
        // The store that the outer lock is in was chosen for that one.
        for script in [try_it, &nested] {
            let words = ["run", "--store", &sandbox.store(), "nightly", "dash", "-c", script];
            sandbox.csalock(words).without("CSALOCK_STORE").stdout("75\n").run();
        }
        // The same holds for a store that the caller names, even if it is the same one.
        let chosen = format!("export CSALOCK_STORE=\"{}\"; {try_it}; csalock run nightly sh -c '{try_it}'", sandbox.store());
        let outside = sandbox.script("dash", &chosen).capture().stdout;
        let words = ["run", "--store", &sandbox.store(), "other", "dash", "-c", &chosen];
        sandbox.csalock(words).without("CSALOCK_STORE").stdout(outside).run();
        // It was chosen for everything.
        sandbox.csalock(["run", "nightly", "dash", "-c", try_it]).stdout("0\n").run();
        drop(holder);
        // Its own lock a command finds, wherever that is.
        let renew = "csalock renew --ttl 1h ./file";
        let store = sandbox.store();
        sandbox.csalock(["run", "--store", &store, "./file", "dash", "-c", renew]).without("CSALOCK_STORE").run();
    }

    fn a_store_is_chosen_under_any_name(sandbox: &Sandbox) {
        // Paths that resemble the store of a file, or the store that a command inherits.
        let here = sandbox.path("files").display().to_string();
        for store in [format!("dir:{here}/.csalock"), format!("dir:{here}/./locks"), "dir:././locks".into(), "./here/./locks".into()] {
            let script = format!("mkdir -p here; export CSALOCK_STORE='{store}'; csalock lock job ./file > /dev/null; \
                                  csalock status -1 --store '{store}' | sed s,.*/,, | sort; csalock unlock job ./file");
            sandbox.script("dash", &script).stdout("file\njob\n").run();
        }
    }

    fn the_store_beside_a_file_has_the_mode_and_group_of_its_directory(sandbox: &Sandbox) {
        let directory = sandbox.path("files/shared");
        std::fs::create_dir(&directory).unwrap();
        for mode in [0o700, 0o755, 0o770, 0o2775, 0o1777] {
            if is_root("another group") {
                std::os::unix::fs::chown(&directory, None, Some(12)).unwrap();
            }
            std::fs::set_permissions(&directory, PermissionsExt::from_mode(mode)).unwrap();
            sandbox.csalock(["lock", "shared/a"]).without("CSALOCK_STORE").run();
            sandbox.csalock(["lock", "shared/b"]).without("CSALOCK_STORE").run();
            let (wanted, found) = (std::fs::metadata(&directory).unwrap(), std::fs::metadata(directory.join(".csalock")).unwrap());
            assert_eq!((format!("{:o}", found.mode() & 0o7777), found.gid()), (format!("{mode:o}"), wanted.gid()));
            sandbox.csalock(["unlock", "shared/a"]).without("CSALOCK_STORE").run();
            assert!(directory.join(".csalock").exists());
            sandbox.csalock(["unlock", "shared/b"]).without("CSALOCK_STORE").run();
            assert!(!directory.join(".csalock").exists(), "{mode:o}");
        }
    }

    fn a_command_under_a_files_lock_finds_its_lock_again(sandbox: &Sandbox) {
        let script = "csalock status -1 \"$CSALOCK_NAME\"; csalock unlock \"$CSALOCK_NAME\"; echo $?; csalock status -1 ./file; echo $?";
        let printed = "SANDBOX/files/file\n0\nSANDBOX/files/file\n81\n";
        sandbox.csalock(["run", "./file", "-c", script]).without("CSALOCK_STORE").stdout(printed).run();
        sandbox.csalock(["run", "./file", "-c", script]).stdout(printed).run();
        assert!(!sandbox.path("files/.csalock").exists());
    }

    fn files_with_odd_names_are_locks_of_their_own(sandbox: &Sandbox) {
        let long = "n".repeat(255);
        for name in ["a\nb", " ", "%2F", ".csalock", "\u{1b}", &long] {
            let path = OsString::from_vec([b"./", name.as_bytes()].concat());
            let call = |command: &str, options: &str| sandbox.csalock([OsStr::new(command), OsStr::new(options), &path]).without("CSALOCK_STORE");
            assert_eq!(call("lock", "--forever").capture().code, Some(0), "{name:?}");
            assert_eq!(call("lock", "-nq").capture().code, Some(75), "{name:?}");
            assert_eq!(call("unlock", "-v").capture().code, Some(0), "{name:?}");
            assert!(!sandbox.path("files/.csalock").exists(), "{name:?}");
        }
    }
}
