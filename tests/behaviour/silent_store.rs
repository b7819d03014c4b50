//! A store that other hosts share, and that does not answer any more when the command has ended.

use crate::sandbox::{Kind, Sandbox, has, has_namespaces, is_root, wait_until};

/// Makes the supervisor hang as it changes the store, as a dead NFS server would. (It can be killed then too, but its
/// end is not visible while strace holds it.)
const HANG: &str = "strace -qq -f -p $PPID -e trace=unlinkat -e inject=unlinkat:delay_enter=9s -o trace 2> strace &
                    while grep -q 'TracerPid:.0$' /proc/$PPID/status; do sleep 0.02; done
                    exit 3";

#[test]
fn a_silent_store_does_not_hide_the_status_of_the_command() {
    require!(has("strace") && is_root("to trace its parent"));
    let sandbox = Sandbox::new(Kind::Directory);
    let store = format!("{}?shared=1", sandbox.store());
    let said = "csalock: lock x could not be released: the store does not answer; it is released when that answers \
                again, and at the latest its lease ends it\n";
    sandbox.csalock(["run", "--store", &store, "x", "sh", "-c", HANG]).status(3).stderr(said).run();
    // Its keeper lives on, and does it.
    wait_until("the lock is released", || {
        sandbox.csalock(["status", "--store", &store, "x"]).capture().code == Some(81)
    });
}

/// Takes x, makes the thread of the keeper hang that is to give it back, and ends.
const DIE: &str = "csalock lock -q x
                   for p in /proc/[0-9]*; do
                       read -r name < $p/comm && [ \"$name\" = csalock-keeper ] && grep -q \"$TMPDIR\" $p/environ &&
                           keeper=${p#/proc/}
                   done
                   strace -qq -p $keeper -e trace=unlinkat,renameat -e inject=unlinkat,renameat:delay_enter=15s \
                       -o trace 2> strace &
                   while grep -q 'TracerPid:.0$' /proc/$keeper/status; do sleep 0.02; done";

#[test]
fn a_keeper_that_cannot_release_for_a_dead_owner_does_not_renew() {
    require!(has("strace") && has_namespaces("to trace, and for a pid namespace"));
    let sandbox = Sandbox::new(Kind::Directory);
    let store = format!("{}?shared=1", sandbox.store());
    let of_its_own = sandbox.path("").display().to_string();
    let taken = sandbox.script("sh", DIE).env("CSALOCK_STORE", &store).env("CSALOCK_LEASE", "3s");
    let taken = taken.env("TMPDIR", &of_its_own).capture();
    assert_eq!(taken.code, Some(0), "{taken:?}");
    // As on another host, from which the death of the owner is not visible.
    let words = ["--pid", "--fork", "--mount-proc", "csalock", "run", "-q", "-w", "9s", "x", "true"];
    let next = sandbox.call("unshare", words).env("CSALOCK_STORE", &store).env("CSALOCK_LEASE", "3s").capture();
    assert_eq!(next.code, Some(0), "{next:?}");
}

/// Makes each call of the supervisor take as long as with a slow server.
const SLOW: &str = "strace -qq -f -p $PPID -e trace=%file,getdents64 \
                        -e inject=%file,getdents64:delay_enter=600ms -o trace 2> strace &
                    while grep -q 'TracerPid:.0$' /proc/$PPID/status; do sleep 0.02; done
                    exit 3";

#[test]
fn a_lock_in_a_slow_store_is_released_after_any_delay() {
    require!(has("strace") && is_root("to trace its parent"));
    let sandbox = Sandbox::new(Kind::Directory);
    let store = format!("{}?shared=1", sandbox.store());
    let begun = std::time::Instant::now();
    sandbox.csalock(["run", "--store", &store, "x", "sh", "-c", SLOW]).status(3).run();
    assert!(begun.elapsed() > std::time::Duration::from_secs(6), "it was not slow: {:?}", begun.elapsed());
    sandbox.csalock(["status", "--store", &store, "x"]).capture().exits(81);
    let history = sandbox.csalock(["history", "--store", &store]).capture();
    // The record's directory is opened once, to read the record and to remove it.
    let opened = sandbox.read("files/trace").lines().filter(|line| line.contains("\"x\", O_RDONLY")).count();
    assert_eq!(opened, 1);
    assert!(history.stdout.contains("exit 3"), "{history:?}");
}
