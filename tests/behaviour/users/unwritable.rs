//! Files that users may read, in a directory where they may not write: the kernel's lock of the file excludes, and the
//! record is in a store of the user.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use super::{Anne, Bert, Carl, GROUP, Person, Root, file, place};
use crate::sandbox::{Call, Job, Kind, Sandbox, has, is_root, wait_until};

/// A user without a home directory or other places for a store. No other test has this user.
const STRANGER: u32 = 4199;

/// A file of root that its group may write and all may read, in a directory of root.
fn file_of_root(sandbox: &Sandbox) -> String {
    let path = place(sandbox, "shared", (0, 0, 0o755)).join("f");
    file(&path, (0, GROUP, 0o664));
    path.to_str().unwrap().to_string()
}

fn at_home<'a>(person: Person, sandbox: &'a Sandbox, arguments: &[&str]) -> Call<'a> {
    let home = place(sandbox, &format!("home-{}", person.uid()), (person.uid(), person.uid(), 0o700));
    person.csalock(sandbox, "", arguments).env("HOME", home).without("XDG_STATE_HOME")
}

fn code(person: Person, sandbox: &Sandbox, arguments: &[&str]) -> i32 {
    at_home(person, sandbox, arguments).capture().code.unwrap()
}

fn holder(person: Person, sandbox: &Sandbox, options: &[&str], file: &str) -> Job {
    let words = [&["run", "-w", "inf"], options, &[file, "dash", "-c", "echo; cat; :"]].concat();
    at_home(person, sandbox, &words).ready()
}

fn stranger<'a>(sandbox: &'a Sandbox, arguments: &[&str]) -> Call<'a> {
    let words = format!("setpriv --reuid={STRANGER} --regid={STRANGER} --clear-groups");
    let words: Vec<String> = words.split(' ').map(String::from).collect();
    let call = sandbox.csalock_by(&words, arguments).env("HOME", "/nonexistent");
    call.without("CSALOCK_STORE").without("XDG_STATE_HOME")
}

#[test]
fn a_user_who_may_not_write_beside_a_file_locks_the_file_itself() {
    require!(is_root("users") && has("setpriv"));
    let sandbox = Sandbox::new(Kind::Directory);
    let file = &*file_of_root(&sandbox);
    let told = "csalock: lock SANDBOX/shared/f is kept in store dir:SANDBOX/home-4103/.local/state/csalock, because this user may \
                not write beside the file; the file itself is locked too\n\
                csalock: lock SANDBOX/shared/f was acquired, token TOKEN\n";
    // Without one of these options too, because csalock could not lock the file otherwise. Only root's group may write it.
    for options in [&["--flock"][..], &[], &["--flock", "-s"], &["-F"]] {
        let words = [&["run", "-nv"], options, &[file, "echo", "in"]].concat();
        at_home(Carl, &sandbox, &words).stdout("in\n").stderr(told).run();
    }
    assert_eq!(code(Bert, &sandbox, &["run", "-n", "--fcntl", file, "true"]), 0);
    for options in [&["--flock"][..], &[]] {
        let job = holder(Carl, &sandbox, options, file);
        let by = "csalock: lock SANDBOX/shared/f is busy: its file is locked with flock(2), as flock(1) does it, by pid PID: ";
        assert_eq!(code(Carl, &sandbox, &["run", "-n", file, "true"]), 75);
        for person in [Bert, Root] {
            let done = at_home(person, &sandbox, &["run", "-n", "--flock", file, "true"]).capture();
            assert_eq!(done.code, Some(75), "{person:?} {done:?}");
            assert!(sandbox.plain(&done.stderr).starts_with(by), "{done:?}");
        }
        assert_eq!(Root.code_of(&sandbox, &["flock", "-n", file, "true"]), 1);
        // Root has the right to write there, and a lock of its own.
        // One read of the kernel's list can miss a lock while others come and go.
        let looks = (0..20).map(|_| at_home(Root, &sandbox, &["run", "-n", file, "echo", "in"]).capture());
        let done = looks.reduce(|done, next| if done.stderr.is_empty() { next } else { done }).unwrap();
        let said = "csalock: lock SANDBOX/shared/f was acquired, but its file is locked with flock(2), as flock(1) does it, by pid ";
        assert_eq!((done.code, &*done.stdout), (Some(0), "in\n"), "{done:?}");
        assert!(sandbox.plain(&done.stderr).starts_with(said), "{done:?}");
        assert!(done.stderr.ends_with("; `csalock run --flock` waits for that too\n"), "{done:?}");
        at_home(Root, &sandbox, &["run", file, "true"]).run();
        let lines = || at_home(Root, &sandbox, &["run", "-v", file, "true"]).capture().stderr.lines().count();
        assert!((0..20).any(|_| lines() == 2));
        assert_eq!(code(Carl, &sandbox, &["status", "-q", file]), 0);
        at_home(Carl, &sandbox, &["unlock", file]).capture().says(82, "held by pid ");
        job.wait().exits(0);
        assert_eq!(code(Carl, &sandbox, &["status", "-q", file]), 81);
        let past = at_home(Carl, &sandbox, &["history", file]).capture();
        assert!(past.stdout.contains("shared/f") && past.code == Some(0), "{past:?}");
    }
    // A second record in a directory counts neither slots nor runs of a job, and no file is made.
    for options in [&["--slots", "2"][..], &["--once-per", "day"], &["--busy", "latest"]] {
        let words = [&["run", "--flock", "-w", "1ms"], options, &[file, "true"]].concat();
        at_home(Carl, &sandbox, &words).capture().exits(77);
    }
    at_home(Carl, &sandbox, &["lock", file]).capture().exits(77);
    assert_eq!(code(Carl, &sandbox, &["run", &format!("{file}-other"), "true"]), 77);
    assert_eq!(sandbox.listing("shared").len(), 2);
}

#[test]
fn a_holder_beside_the_file_excludes_users_who_may_not_write_there() {
    require!(is_root("users") && has("setpriv"));
    let sandbox = Sandbox::new(Kind::Directory);
    let file = &*file_of_root(&sandbox);
    for options in [&[][..], &["--flock"]] {
        let job = holder(Root, &sandbox, options, file);
        for mode in [&["--flock"][..], &[], &["-s"]] {
            let words = [&["run", "-n"], mode, &[file, "true"]].concat();
            let done = at_home(Carl, &sandbox, &words).capture();
            assert!(done.code == Some(75) && done.stderr.contains("dash -c"), "{options:?} {mode:?} {done:?}");
        }
        let mut next = at_home(Carl, &sandbox, &["run", "-w", "inf", "--flock", file, "echo", "in"]).spawn();
        wait_until("its record is there", || code(Carl, &sandbox, &["status", "-q", file]) == 0);
        assert!(!next.has_ended());
        let waiter = at_home(Carl, &sandbox, &["run", "-w", "1h", file, "true"]).spawn();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(next.pid()), nix::sys::signal::Signal::SIGTERM).unwrap();
        assert_eq!(next.wait().seen_by_shell(), 143);
        job.wait().exits(0);
        waiter.wait().exits(0);
    }
    let shared = holder(Root, &sandbox, &["-s"], file);
    assert_eq!(code(Carl, &sandbox, &["run", "-ns", "--flock", file, "true"]), 0);
    assert_eq!(code(Carl, &sandbox, &["run", "-n", "--flock", file, "true"]), 75);
    shared.wait().exits(0);
}

#[test]
fn users_with_and_without_the_right_to_write_beside_a_file_lose_no_count() {
    require!(is_root("users") && has("setpriv"));
    let sandbox = Sandbox::new(Kind::Directory);
    let file = &*file_of_root(&sandbox);
    let count = sandbox.path("shared/count");
    super::file(&count, (0, GROUP, 0o666));
    let count = count.display();
    let script = sandbox.program("count", format!("#!/bin/sh\nn=$(cat {count}); echo $((n + 1)) > {count}\n"));
    let script = script.to_str().unwrap();
    let times = sandbox.many(20);
    let each = |person: Person, words: &str| {
        let words = format!("i=0; while [ $i -lt {times} ]; do i=$((i + 1)); {words} {file} {script} || exit; done");
        let home = place(&sandbox, &format!("home-{}", person.uid()), (person.uid(), person.uid(), 0o700));
        let call = person.call(&sandbox, &["dash", "-c", &words]).env("HOME", home).without("XDG_STATE_HOME");
        call.without("CSALOCK_STORE").spawn()
    };
    let jobs = [
        each(Anne, "csalock run -w inf --flock"),
        each(Carl, "csalock run -w inf"),
        each(Bert, "flock"),
        each(Root, "csalock run -w inf --flock"),
        each(Root, "csalock run -w inf --flock"),
    ];
    let all = jobs.len() * times;
    jobs.into_iter().for_each(|job| job.wait().succeeds());
    assert_eq!(sandbox.read("shared/count"), format!("{all}\n"));
}

#[test]
fn a_user_without_a_home_has_a_private_directory_in_tmp_for_files() {
    require!(is_root("users") && has("setpriv"));
    let sandbox = Sandbox::new(Kind::Directory);
    let file = &*file_of_root(&sandbox);
    let store = PathBuf::from(format!("/tmp/csalock-{STRANGER}"));
    let _ = std::fs::remove_dir_all(&store);
    let run = || stranger(&sandbox, &["run", "-n", "--flock", file, "echo", "in"]);
    stranger(&sandbox, &["status", "-q", file]).capture().exits(81);
    assert!(!store.exists());
    run().stdout("in\n").run();
    assert_eq!(std::fs::metadata(&store).unwrap().permissions().mode() & 0o7777, 0o700);
    let job = stranger(&sandbox, &["run", "--flock", file, "dash", "-c", "echo; cat; :"]).ready();
    stranger(&sandbox, &["status", "-q", file]).run();
    stranger(&sandbox, &["run", "-nq", "--flock", file, "true"]).status(75).run();
    job.wait().exits(0);
    // Its locks would not be those of a later call, so bare names have none there.
    stranger(&sandbox, &["run", "x", "true"]).capture().exits(77);
    let told = format!(
        "csalock: {} is not a directory of user {STRANGER} alone; remove it, or name a store with --store\n",
        store.display()
    );
    let refused = || run().status(77).stderr(&*told).run();
    std::fs::set_permissions(&store, PermissionsExt::from_mode(0o770)).unwrap();
    refused();
    std::fs::set_permissions(&store, PermissionsExt::from_mode(0o700)).unwrap();
    chown(&store, Some(Anne.uid()), None).unwrap();
    refused();
    std::fs::remove_dir_all(&store).unwrap();
    let elsewhere = place(&sandbox, "elsewhere", (STRANGER, STRANGER, 0o700));
    symlink(&elsewhere, &store).unwrap();
    refused();
    std::fs::remove_file(&store).unwrap();
    assert_eq!((sandbox.listing("elsewhere").len(), Path::new(&store).exists()), (1, false));
}
