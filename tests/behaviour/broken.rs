//! Stores that are missing, read-only, full, not ours, in the way, or full of nonsense: the right code, a message that
//! names the path and what to do, and nothing changed.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::sandbox::{Done, Job, Mount, Sandbox, has_namespaces, is_root, wait_until};

const NOBODY: u32 = 65534;

/// A refusal with this code that names the path and a next step, and leaves everything under `files` as it was.
#[track_caller]
fn refused(sandbox: &Sandbox, done: &Done, codes: &[i32], path: &Path) {
    assert!(codes.contains(&done.code.unwrap_or(-1)) && done.stdout.is_empty(), "{codes:?} wanted: {done:?}");
    let path = path.display().to_string();
    assert!(
        done.stderr.contains(&path) && done.stderr.contains("; "),
        "it must name {path} and a cure: {}",
        done.stderr
    );
    assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    let _ = sandbox;
}

/// Every command that there is, on one name.
const COMMANDS: [&[&str]; 6] = [
    &["lock", "x"],
    &["unlock", "x"],
    &["run", "x", "touch", "ran"],
    &["run", "-F", "x", "touch", "ran"],
    &["status", "x"],
    &["renew", "--ttl", "1s", "x"],
];

#[track_caller]
fn every_command_refuses(sandbox: &Sandbox, store: &str, codes: &[i32], path: &Path) {
    let before = sandbox.listing("files");
    for words in COMMANDS {
        let done = sandbox.csalock(words).env("CSALOCK_STORE", store).capture();
        refused(sandbox, &done, codes, path);
    }
    assert_eq!(sandbox.listing("files"), before);
}

/// Returns the holder of the lock `held` and its handle. The test itself is not the holder, because a holder is refused at
/// once.
fn held_by_another(sandbox: &Sandbox, store: &str) -> (Job, String) {
    let holder = sandbox.call("cat", [""; 0]).spawn();
    let words = ["lock", "--print-handle", "--forever", "--pid", &holder.pid().to_string(), "held"];
    let handle = sandbox.csalock(words).env("CSALOCK_STORE", store).capture().line();
    (holder, handle)
}

on_every_store_of_files! {
    fn a_store_in_a_directory_that_is_missing_is_out_of_reach(sandbox: &Sandbox) {
        every_command_refuses(sandbox, &sandbox.store_at("files/none/store"), &[69], &sandbox.path("files/none"));
    }

    fn a_store_behind_a_file_is_out_of_reach(sandbox: &Sandbox) {
        sandbox.file("files/file", "data");
        every_command_refuses(sandbox, &sandbox.store_at("files/file/store"), &[69], &sandbox.path("files/file"));
    }

    fn a_foreign_directory_is_left_alone(sandbox: &Sandbox) {
        let place = sandbox.path("files/thing");
        if sandbox.is_directory() {
            sandbox.file("files/thing", "another program's data");
        } else {
            std::fs::create_dir(&place).unwrap();
        }
        every_command_refuses(sandbox, &sandbox.store_at("files/thing"), &[65, 69, 73], &place);
    }

    fn a_file_or_directory_of_another_program_is_not_a_store(sandbox: &Sandbox) {
        if sandbox.is_directory() {
            // A mistyped path leaves no files there. The usual content of a new disk, or a store, is accepted.
            for (place, thing) in [("files/one", "thing"), ("files/other", "inner/thing")] {
                std::fs::create_dir_all(sandbox.path(place).join(thing).parent().unwrap()).unwrap();
                sandbox.file(&format!("{place}/{thing}"), "another program's data");
                every_command_refuses(sandbox, &sandbox.store_at(place), &[65], &sandbox.path(place));
            }
            std::fs::create_dir_all(sandbox.path("files/disk/lost+found")).unwrap();
            sandbox.csalock(["run", "--store", &sandbox.store_at("files/disk"), "x", "true"]).run();
            std::fs::remove_dir_all(sandbox.path("files/disk/.work")).unwrap();
            sandbox.csalock(["run", "--store", &sandbox.store_at("files/disk"), "x", "true"]).run();
            return;
        }
        let place = sandbox.file("files/thing", "another program's data, and a lot of it, not a database".repeat(100));
        every_command_refuses(sandbox, &sandbox.store_at("files/thing"), &[65, 69, 73], &place);
        let before = sandbox.listing("files/thing");
        sandbox.csalock(["unlock", "--force", "x"]).env("CSALOCK_STORE", sandbox.store_at("files/thing")).capture();
        sandbox.csalock(["gc"]).env("CSALOCK_STORE", sandbox.store_at("files/thing")).capture();
        assert_eq!(sandbox.listing("files/thing"), before);
    }

    fn an_invalid_url_is_a_usage_error(sandbox: &Sandbox) {
        for url in ["dir:", "sqlite:", "mysql:x", "x", "", ":x"] {
            sandbox.csalock(["lock", "--store", url, "x"]).capture().prints(64, "");
        }
    }

    fn missing_permission_is_77(sandbox: &Sandbox) {
        require!(is_root("another user"));
        let place = sandbox.path("files/closed");
        std::fs::create_dir(&place).unwrap();
        std::fs::set_permissions(sandbox.path("files"), PermissionsExt::from_mode(0o755)).unwrap();
        let store = sandbox.store_at("files/closed/store");
        let call = |words: &[&str]| sandbox.csalock(words).env("CSALOCK_STORE", &store).user(NOBODY).capture();
        let before = sandbox.listing("files");
        refused(sandbox, &call(&["lock", "--forever", "x"]), &[77], &sandbox.path("files/closed/store"));
        refused(sandbox, &call(&["run", "x", "touch", "ran"]), &[77], &sandbox.path("files/closed/store"));
        std::fs::set_permissions(&place, PermissionsExt::from_mode(0o700)).unwrap();
        for words in COMMANDS {
            refused(sandbox, &call(words), &[77], &sandbox.path("files/closed/store"));
        }
        std::fs::set_permissions(&place, PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(before.len(), sandbox.listing("files").len());
        sandbox.csalock(["lock", "--forever", "x"]).env("CSALOCK_STORE", &store).capture().exits(0);
        let before = sandbox.listing("files");
        for words in [&["lock", "y"][..], &["lock", "-n", "x"], &["run", "y", "touch", "ran"], &["unlock", "--force", "x"]] {
            let done = call(words);
            // 84: it is this very test that holds the lock, under whatever user.
            assert!([75, 77, 84].contains(&done.code.unwrap()), "{words:?} {done:?}");
        }
        assert_eq!(sandbox.listing("files"), before);
    }

    fn a_store_that_others_may_tamper_with_is_refused(sandbox: &Sandbox) {
        require!(sandbox.is_directory());
        let place = sandbox.path("files/open");
        std::fs::create_dir(&place).unwrap();
        std::fs::set_permissions(&place, PermissionsExt::from_mode(0o777)).unwrap();
        every_command_refuses(sandbox, &sandbox.store_at("files/open"), &[77], &place);
        std::fs::set_permissions(&place, PermissionsExt::from_mode(0o1777)).unwrap();
        sandbox.csalock(["run", "x", "true"]).env("CSALOCK_STORE", sandbox.store_at("files/open")).run();
    }

    fn a_read_only_store_is_refused_and_can_be_looked_at(sandbox: &Sandbox) {
        require!(has_namespaces("a mount"));
        let mount = Mount::new(sandbox, "size=4m");
        let store = sandbox.store_at("files/mount/store");
        let call = |words: &[&str]| sandbox.csalock(words).env("CSALOCK_STORE", &store).capture();
        let (_holder, handle) = held_by_another(sandbox, &store);
        mount.again(sandbox, "ro");
        let before = sandbox.listing("files");
        for words in [&["lock", "x"][..], &["run", "x", "touch", "ran"], &["run", "-F", "x", "touch", "ran"],
                      &["unlock", "--handle", &handle, "held"], &["renew", "--ttl", "1h", "--handle", &handle, "held"]] {
            refused(sandbox, &call(words), &[73], &sandbox.path("files/mount/store"));
        }
        assert_eq!(call(&["status", "-1"]).line(), "held");
        assert_eq!(call(&["lock", "-n", "held"]).code, Some(75));
        assert_eq!(sandbox.listing("files"), before);
        mount.again(sandbox, "rw");
        assert_eq!(call(&["unlock", "--handle", &handle, "held"]).code, Some(0));
        mount.again(sandbox, "ro");
        let empty = sandbox.store_at("files/mount/other");
        let done = sandbox.csalock(["lock", "x"]).env("CSALOCK_STORE", &empty).capture();
        refused(sandbox, &done, &[73], &sandbox.path("files/mount/other"));
    }

    fn a_limit_on_the_size_of_files_is_reported(sandbox: &Sandbox) {
        for words in ["run x touch ran", "run -F x touch ran", "lock x"] {
            let done = sandbox.script("bash", &format!("(ulimit -f 0; csalock {words}; echo $?) 2>&1 | cat")).capture();
            assert!(done.stdout.contains("ulimit -f"), "{words}: {done:?}");
            assert!(done.stdout.ends_with("\n74\n") && done.stdout.starts_with("csalock: "), "{words}: {done:?}");
        }
        assert!(!sandbox.path("files/ran").exists());
        // And is the command's as it was.
        sandbox.csalock(["run", "x", "bash", "-c", "ulimit -f 0; trap - XFSZ; echo big > big; :"]).status(153).run();
    }

    fn a_removed_current_directory_is_an_error(sandbox: &Sandbox) {
        let script = "mkdir gone; cd gone; rmdir ../gone; csalock run ./x touch /tmp/csalock-test-ran; echo $?; \
                      csalock run --store dir:rel x true; echo $?; csalock run bare echo fine";
        let said = "csalock: ./x is in the current directory, which was removed; cd to one that exists\n\
                    csalock: rel is in the current directory, which was removed; cd to one that exists\n";
        sandbox.script("bash", script).stdout("69\n69\nfine\n").stderr(said).run();
    }

    fn a_full_store_loses_nothing_and_grants_nothing(sandbox: &Sandbox) {
        require!(has_namespaces("a mount"));
        let _mount = Mount::new(sandbox, "size=256k");
        let store = sandbox.store_at("files/mount/store");
        let call = |words: &[&str]| sandbox.csalock(words).env("CSALOCK_STORE", &store).capture();
        let (_holder, handle) = held_by_another(sandbox, &store);
        let filler = sandbox.path("files/mount/filler");
        sandbox.script("dash", "cat /dev/zero > mount/filler 2>/dev/null; :").run();
        for words in [&["lock", "x"][..], &["run", "x", "touch", "ran"], &["run", "-F", "x", "touch", "ran"]] {
            refused(sandbox, &call(words), &[74], &sandbox.path("files/mount/store"));
        }
        let waits = call(&["run", "-w", "50ms", "held", "touch", "ran"]);
        assert!([74, 75].contains(&waits.code.unwrap()), "{waits:?}");
        assert!(!sandbox.path("files/ran").exists());
        let sight = call(&["status", "--json", "held"]);
        assert!(sight.stdout.contains("\"state\":\"held\""), "{sight:?}");
        let given_back = call(&["unlock", "--handle", &handle, "held"]);
        std::fs::remove_file(filler).unwrap();
        if given_back.code != Some(0) {
            refused(sandbox, &given_back, &[74], &sandbox.path("files/mount/store"));
            assert_eq!(call(&["unlock", "--handle", &handle, "held"]).code, Some(0));
        }
        for name in ["held", "x"] {
            assert_eq!(call(&["run", "-n", name, "true"]).code, Some(0));
        }
        assert_eq!(call(&["status", "-1"]).line(), "");
    }

    fn a_store_without_inodes_is_explained(sandbox: &Sandbox) {
        require!(has_namespaces("a mount"));
        let _mount = Mount::new(sandbox, "size=1m,nr_inodes=30");
        let call = |words: &[&str]| sandbox.csalock(words).env("CSALOCK_STORE", sandbox.store_at("files/mount/store")).capture();
        assert_eq!(call(&["run", "x", "true"]).code, Some(0));
        sandbox.script("bash", "cd mount; i=0; while : > filler-$i; do i=$((i + 1)); done 2> /dev/null; :").run();
        let done = call(&["run", "x", "touch", "ran"]);
        refused(sandbox, &done, &[74], &sandbox.path("files/mount/store"));
        assert!(done.stderr.contains("free some space or inodes there"), "{done:?}");
        assert!(!sandbox.path("files/ran").exists());
    }

    fn a_store_that_fills_up_while_a_command_runs_gives_its_status_all_the_same(sandbox: &Sandbox) {
        require!(has_namespaces("a mount"));
        let _mount = Mount::new(sandbox, "size=256k");
        let store = sandbox.store_at("files/mount/store");
        let script = "cat /dev/zero > mount/filler 2>/dev/null; exit 7";
        sandbox.csalock(["run", "x", "-c", script]).env("CSALOCK_STORE", &store).capture().exits(7);
        std::fs::remove_file(sandbox.path("files/mount/filler")).unwrap();
        sandbox.csalock(["run", "-n", "x", "true"]).env("CSALOCK_STORE", &store).capture().exits(0);
    }
}

on_every_kind_of_store! {
    fn a_waiter_outlasts_a_store_that_rejects_writes_for_a_while(sandbox: &Sandbox) {
        if !sandbox.is_of_files() || !has_namespaces("a mount") {
            return;
        }
        let mount = Mount::new(sandbox, "size=256k");
        let store = sandbox.store_at("files/mount/store");
        let call = |words: &[&str]| sandbox.csalock(words).env("CSALOCK_STORE", &store);
        let waiter = |limit: &str| {
            let script = format!("csalock run -w {limit} x echo ran; echo $?");
            sandbox.script("dash", &script).env("CSALOCK_STORE", &store).spawn()
        };
        for is_full in [true, false] {
            // SQLite has its file open for writing, so the mount stays writable.
            if !is_full && !sandbox.is_directory() {
                continue;
            }
            let holder = call(&["run", "x", "sh", "-c", "echo holds; exec cat"]).spawn();
            wait_until("it holds", || holder.printed() == "holds\n");
            let (mut patient, hasty) = (waiter("60s"), waiter("3s"));
            wait_until("both wait", || call(&["status"]).capture().stdout.contains("  2        "));
            match is_full {
                true => sandbox.script("dash", "cat /dev/zero > mount/filler 2> /dev/null; :").run(),
                false => mount.again(sandbox, "ro"),
            }
            // Its script holds still, so a waiter leaves a note of that after a second.
            let done = hasty.wait();
            assert_eq!(done.stdout, "75\n", "{done:?}");
            assert!(!patient.has_ended(), "{}", patient.said());
            match is_full {
                true => std::fs::remove_file(sandbox.path("files/mount/filler")).unwrap(),
                false => mount.again(sandbox, "rw"),
            }
            holder.wait().exits(0);
            let done = patient.wait();
            assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("ran\n0\n", ""));
        }
    }
}
