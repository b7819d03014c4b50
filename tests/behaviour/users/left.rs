//! The leftovers of a killed user that others need removed.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{Anne, Bert, Carl, GROUP, Person, Root, place};
use crate::sandbox::{CLOCK, Kind, Sandbox, has, is_root, wait_until};

const SOMETHING: &str = "0123456789abcdef01234567";

#[test]
fn files_of_root_in_the_store_of_a_user_belong_to_the_user() {
    require!(is_root("users") && has("setpriv"));
    let sandbox = Sandbox::new(Kind::Directory);
    place(&sandbox, "shared", (4101, 4101, 0o700));
    let store = sandbox.store_at("shared");
    for words in [&["run", "x", "true"][..], &["lock", "--forever", "y"], &["put", "z", "value"]] {
        assert_eq!(Root.code(&sandbox, &store, words), 0);
    }
    for words in [&["run", "x", "true"][..], &["unlock", "--force", "y"], &["put", "z", "other"], &["gc"]] {
        assert_eq!(Anne.code(&sandbox, &store, words), 0, "{words:?}");
    }
    // But not the file that she must not read.
    assert_eq!(Root.code(&sandbox, &store, &["put", "--mode", "600", "z", "secret"]), 0);
    assert_eq!(Anne.code(&sandbox, &store, &["get", "-q", "z"]), 77);
    assert_eq!(Anne.code(&sandbox, &store, &["del", "z"]), 0);
}

#[test]
fn root_changes_no_ownership_of_foreign_files() {
    require!(is_root("users") && has("setpriv") && has("strace"));
    use std::os::unix::fs::MetadataExt;
    let sandbox = Sandbox::new(Kind::Directory);
    let home = place(&sandbox, "home-of-anne", (4101, 4101, 0o755));
    let roots = place(&sandbox, "home-of-anne/roots", (0, 0, 0o700));
    std::fs::write(roots.join("secret"), "").unwrap();
    // Anne replaces the object that root has just created: root is stopped here after mkdir(2).
    let file = home.join("file");
    let strace = "strace -f -o /dev/null -e trace=mkdirat,mkdir -e inject=mkdirat,mkdir:delay_exit=3000000";
    let words: Vec<String> = strace.split(' ').map(str::to_string).collect();
    let call = sandbox.csalock_by(&words, &["run", file.to_str().unwrap(), "true"]).without("CSALOCK_STORE").spawn();
    wait_until("it is made", || !unborn(&home).is_empty());
    let made = unborn(&home).remove(0);
    std::fs::rename(&made, home.join("away")).unwrap();
    std::fs::rename(&roots, &made).unwrap();
    call.wait();
    let found = std::fs::metadata(made).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o7777), (0, 0o700));
}

#[test]
fn a_directory_that_only_a_dead_user_may_remove_blocks_no_other_user() {
    require!(is_root("users") && has("setpriv"));
    for (owner, group, mode) in [(0, GROUP, 0o3770), (0, 0, 0o1777)] {
        let sandbox = Sandbox::new(Kind::Directory);
        let shared = place(&sandbox, "shared", (owner, group, mode));
        let store = sandbox.store_at("shared");
        assert_eq!(Anne.code(&sandbox, &store, &["run", "other", "true"]), 0);
        let left = |name: &str, files: &[String]| {
            let directory = place(&sandbox, &format!("shared/.locks/{name}"), (4101, group, mode & 0o2777));
            for file in files {
                super::file(&directory.join(file), (4101, group, 0o644));
            }
        };
        // Anne was killed after she removed the pointer, or wrote a record too late.
        left("x", &[]);
        left("y", &[format!("rec.{SOMETHING}")]);
        for name in ["x", "y"] {
            assert_eq!(Bert.code(&sandbox, &store, &["gc"]), 0);
            let holder = Bert.holder(&sandbox, &store, name);
            for person in [Anne, Root, Bert] {
                assert_eq!(person.code(&sandbox, &store, &["run", "-n", name, "true"]), 75, "{person:?}");
            }
            drop(holder);
            for person in [Bert, Anne, Bert, Root, Bert, Anne] {
                assert_eq!(person.code(&sandbox, &store, &["put", name, "value"]), 0);
                let done = Root.csalock(&sandbox, &store, &["get", name]).capture();
                assert_eq!(done.line(), "value");
                assert_eq!(person.code(&sandbox, &store, &["del", name]), 0);
            }
        }
        // Every user of the store may sweep the leftovers of another user.
        left("x", &[]);
        left("y", &[format!("rec.{SOMETHING}")]);
        assert_eq!(Bert.code(&sandbox, &store, &["gc"]), 0);
        assert!(!shared.join(".locks/x").exists() && !shared.join(".locks/y").exists());
    }
}

#[test]
fn a_directory_in_the_place_of_a_record_blocks_neither_gc_nor_other_names() {
    require!(is_root("users") && has("setpriv"));
    // With the sticky bit, the records are in a directory of their own.
    for (mode, records) in [(0o3770, "shared/.locks"), (0o2770, "shared")] {
        let sandbox = Sandbox::new(Kind::Directory);
        place(&sandbox, "shared", (0, GROUP, mode));
        let store = sandbox.store_at("shared");
        assert_eq!(Anne.code(&sandbox, &store, &["run", "other", "true"]), 0);
        place(&sandbox, &format!("{records}/x"), (4101, GROUP, 0o2770));
        let inner = place(&sandbox, &format!("{records}/x/inner"), (4102, GROUP, 0o2770));
        for person in [Anne, Bert, Root] {
            assert_eq!(person.code(&sandbox, &store, &["gc"]), 0, "{person:?}");
            assert_eq!(person.code(&sandbox, &store, &["run", "-n", "other", "true"]), 0, "{person:?}");
            let refused = person.csalock(&sandbox, &store, &["run", "-n", "x", "true"]).capture();
            let said = format!("csalock: {} has inner in it, ", sandbox.path(records).join("x").display());
            assert!(refused.code == Some(65) && refused.stderr.starts_with(&said), "{person:?} {refused:?}");
        }
        std::fs::remove_dir(inner).unwrap();
        for person in [Bert, Anne, Root] {
            assert_eq!(person.code(&sandbox, &store, &["run", "-n", "x", "true"]), 0, "{person:?}");
        }
    }
}

#[test]
fn a_directory_of_a_dead_user_blocks_no_other_user_of_a_shared_store() {
    require!(is_root("users") && has("setpriv"));
    let sandbox = Sandbox::new(Kind::Directory);
    place(&sandbox, "shared", (0, 0, 0o1777));
    let store = format!("{}?shared=1", sandbox.store_at("shared"));
    assert_eq!(Anne.code(&sandbox, &store, &["run", "other", "true"]), 0);
    place(&sandbox, "shared/.locks/x", (4101, 0, 0o777));
    for person in [Bert, Carl, Bert, Anne, Bert] {
        assert_eq!(person.code(&sandbox, &store, &["run", "-n", "x", "true"]), 0, "{person:?}");
    }
    let holder = Bert.holder(&sandbox, &store, "x");
    for person in [Anne, Root, Bert] {
        assert_eq!(person.code(&sandbox, &store, &["run", "-n", "x", "true"]), 75, "{person:?}");
    }
    drop(holder);
}

#[test]
fn many_users_create_records_in_one_sticky_store_at_once() {
    require!(is_root("users") && has("setpriv"));
    let sandbox = Sandbox::new(Kind::Directory);
    place(&sandbox, "shared", (0, 0, 0o1777));
    let counter = place(&sandbox, "counter", (0, 0, 0o777)).join("counter");
    std::fs::write(&counter, "0\n").unwrap();
    std::fs::set_permissions(&counter, PermissionsExt::from_mode(0o666)).unwrap();
    let add = format!("read n < {0}; echo $((n + 1)) > {0}", counter.display());
    // One record of a store stays parked; the others are made and removed each time.
    assert_eq!(Root.code(&sandbox, &sandbox.store_at("shared"), &["run", "rests", "true"]), 0);
    let files = place(&sandbox, "files", (0, 0, 0o1777));
    // Beside a file, the directories of the records are made and removed, too.
    for (name, total) in [("x".to_string(), "72\n"), (files.join("file").display().to_string(), "144\n")] {
        let script =
            format!("i=0; while [ $i -lt 12 ]; do i=$((i + 1)); csalock run -w inf {name} -c '{add}' || exit; done");
        let jobs: Vec<_> = Person::ALL
            .into_iter()
            .chain([Anne, Bert])
            .map(|person| {
                let call = person.call(&sandbox, &["dash", "-c", &script]);
                match name.contains('/') {
                    true => call.without("CSALOCK_STORE").spawn(),
                    false => call.env("CSALOCK_STORE", sandbox.store_at("shared")).spawn(),
                }
            })
            .collect();
        jobs.into_iter().for_each(|job| job.wait().succeeds());
        assert_eq!(std::fs::read_to_string(&counter).unwrap(), total);
    }
}

#[test]
fn a_store_whose_sticky_bit_changes_keeps_its_locks() {
    require!(is_root("users") && has("setpriv"));
    for (before, after) in [(0o3770, 0o2770), (0o2770, 0o3770)] {
        for parameters in ["", "?shared=1"] {
            let sandbox = Sandbox::new(Kind::Directory);
            let shared = place(&sandbox, "shared", (0, GROUP, before));
            let store = format!("{}{parameters}", sandbox.store_at("shared"));
            keeps_its_lock(&sandbox, &store, "x", &shared, after);
            // A store without records has decided where they are, too.
            keeps_its_lock(&sandbox, &store, "x", &shared, before);
        }
        let sandbox = Sandbox::new(Kind::Directory);
        let shared = place(&sandbox, "shared", (0, GROUP, before));
        let file = shared.join("file").display().to_string();
        keeps_its_lock(&sandbox, "", &file, &shared.join(".csalock"), after);
    }
}

/// Checks that the mode of a store's directory may change while a lock is held.
fn keeps_its_lock(sandbox: &Sandbox, store: &str, name: &str, directory: &Path, mode: u32) {
    let holder = Anne.holder(sandbox, store, name);
    std::fs::set_permissions(directory, PermissionsExt::from_mode(mode)).unwrap();
    assert_eq!(Bert.code(sandbox, store, &["run", "-n", name, "true"]), 75, "{mode:o}");
    drop(holder);
    assert_eq!(Bert.code(sandbox, store, &["run", "-w", "60", name, "true"]), 0, "{mode:o}");
}

#[test]
fn the_directory_beside_a_file_in_a_sticky_directory_is_removed_by_its_maker() {
    require!(is_root("users") && has("setpriv"));
    let sandbox = Sandbox::new(Kind::Directory);
    let shared = place(&sandbox, "shared", (0, 0, 0o1777));
    let file = shared.join("file").display().to_string();
    let holder = Anne.holder(&sandbox, "", &file);
    assert_eq!(Bert.code(&sandbox, "", &["run", "-n", &file, "true"]), 75);
    assert_eq!(Bert.code(&sandbox, "", &["run", "-n", &format!("{file}-other"), "true"]), 0);
    assert!(shared.join(".csalock").exists());
    // Its command was killed too, and has the lock until it has ended.
    drop(holder);
    wait_until("the lock is free", || Anne.code(&sandbox, "", &["run", "-n", &file, "true"]) == 0);
    assert!(!shared.join(".csalock").exists());
}

#[test]
fn a_journal_that_only_a_dead_user_may_remove_is_named() {
    require!(is_root("users") && has("setpriv") && has("python3"));
    let sandbox = Sandbox::new(Kind::Sqlite);
    let file = place(&sandbox, "shared", (0, 0, 0o1777)).join("store");
    super::file(&file, (4101, 4101, 0o666));
    let store = sandbox.store_at("shared/store");
    assert_eq!(Anne.code(&sandbox, &store, &["put", "x", "value"]), 0);
    let script = format!(
        "import os, sqlite3\n\
         os.umask(0)\n\
         c = sqlite3.connect('{}', isolation_level=None)\n\
         c.execute('pragma cache_size = 1')\n\
         c.execute('begin immediate')\n\
         c.execute('create table junk (x)')\n\
         for i in range(2000): c.execute('insert into junk values (?)', ('x' * 500,))\n\
         os.kill(os.getpid(), 9)\n",
        file.display()
    );
    assert_eq!(Anne.call(&sandbox, &["python3", "-c", &script]).capture().signal, Some(9));
    for person in [Bert, Carl] {
        person.csalock(&sandbox, &store, &["run", "-n", "x", "true"]).capture().says(77, "user 4101 was killed");
    }
    // A user who may only read finds a file that is only partly changed.
    for (path, mode) in [(file.as_path(), 0o644), (file.parent().unwrap(), 0o755)] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }
    let done = Carl.csalock(&sandbox, &store, &["get", "x"]).capture();
    assert!(done.code == Some(77) && done.stdout.is_empty(), "{done:?}");
    for (path, mode) in [(file.as_path(), 0o666), (file.parent().unwrap(), 0o1777)] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }
    assert_eq!(Anne.csalock(&sandbox, &store, &["get", "x"]).capture().line(), "value");
    assert_eq!(Bert.csalock(&sandbox, &store, &["get", "x"]).capture().line(), "value");
}

/// The directories that are being made, or were left so, in this place.
fn unborn(place: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.file_name().unwrap().to_str().unwrap().contains(".new.")).collect()
}

#[test]
fn a_caller_is_not_refused_while_another_creates_the_directory() {
    require!(is_root("users") && has("setpriv") && has("strace"));
    let strace = "strace -qq -f -o /dev/null -e trace=fchmod -e inject=fchmod:delay_enter=60000000:when=1 csalock run";
    for (mode, other, is_beside) in [(0o1777, Carl, true), (0o2770, Bert, false), (0o1777, Carl, false)] {
        let sandbox = Sandbox::new(Kind::Directory);
        let shared = place(&sandbox, "shared", (0, GROUP, mode));
        let store = if is_beside { String::new() } else { sandbox.store_at("shared") };
        let name = |name: &str| if is_beside { shared.join(name).display().to_string() } else { name.to_string() };
        let slow = format!("{strace} {} true", name("g"));
        let slow = Anne.call(&sandbox, &slow.split(' ').collect::<Vec<_>>()).env("CSALOCK_STORE", &store);
        let slow = if is_beside { slow.without("CSALOCK_STORE") } else { slow }.spawn();
        wait_until("it makes a directory", || std::fs::read_dir(&shared).unwrap().count() == 1);
        // Others work, each with whatever they find.
        let mut holder = Anne.holder(&sandbox, &store, &name("f"));
        let mut waiter = other.csalock(&sandbox, &store, &["run", "-w", "inf", &name("f"), "echo", "mine"]).spawn();
        let status = || Anne.csalock(&sandbox, &store, &["status", "--json", &name("f")]).capture().stdout;
        wait_until("it waits", || waiter.has_ended() || !status().contains("\"waiters\":[]"));
        holder.release();
        let done = waiter.wait();
        assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (Some(0), "mine\n", ""), "{mode:o}");
        holder.wait().exits(0);
        // A process that is killed leaves an empty directory, which is swept when it is old.
        drop(slow);
        let left = unborn(&shared);
        assert_eq!(left.len(), 1, "{left:?}");
        let of_directories = sandbox.store_at(if is_beside { "shared/.csalock" } else { "shared" });
        let gc = || sandbox.csalock(["gc"]).env("CSALOCK_STORE", &of_directories);
        assert_eq!((gc().capture().code, unborn(&shared).len()), (Some(0), 1));
        let swept = gc().env(CLOCK, "+1h").capture();
        assert_eq!((swept.code, unborn(&shared).len()), (Some(0), 0), "{swept:?}");
    }
}
