//! What is told about the processes that have locked the file of a lock, for which its holder waits.

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use super::{BUSY, holder, old_holder, waiter};
use crate::sandbox::{Kind, Sandbox, has, has_namespaces, is_root, wait_until};

on_every_store! {
    fn a_waiter_is_told_the_holder(sandbox: &Sandbox) {
        let mut old = old_holder(sandbox, "f");
        let next = waiter(sandbox, &["-v"], &["true"]);
        let said = "csalock: waiting for lock SANDBOX/files/f: its file is locked with flock(2), as flock(1) does it, by pid \
                    PID: cat\n";
        wait_until("it is told", || sandbox.plain(&next.said()) == said);
        old.release();
        let done = next.wait();
        assert_eq!(sandbox.plain(&done.stderr), format!("{said}csalock: lock SANDBOX/files/f was acquired, token TOKEN\n"));
    }

    fn status_shows_which_flock_user_has_the_file(sandbox: &Sandbox) {
        let shown = || {
            let done = sandbox.csalock(["status", "./f"]).capture();
            let file = done.stdout.lines().find(|line| line.starts_with("file "));
            file.map(|line| sandbox.plain(line))
        };
        let by_cat = Some("file     locked with flock(2), as flock(1) does it, by pid PID: cat".to_string());
        for options in [&[][..], &["-F"], &["--ttl", "1h"]] {
            let mut old = old_holder(sandbox, "f");
            assert_eq!(shown(), by_cat);
            let next = waiter(sandbox, options, &["dash", "-c", "csalock status ./f"]);
            assert_eq!(shown(), by_cat);
            old.release();
            // The holder's own lock of the file says nothing more.
            let done = next.wait();
            assert!(done.stdout.contains("\nholder ") && !done.stdout.contains("\nfile "), "{done:?}");
        }
        assert_eq!(shown(), None);
    }

    fn the_holder_of_the_file_is_named_beside_a_waiter_for_it(sandbox: &Sandbox) {
        let mut old = old_holder(sandbox, "f");
        let next = waiter(sandbox, &[], &["true"]);
        let held = "held by pid PID on HOST (user USER) since TIME (AGE ago), while it lives: true";
        let file = "its file is locked with flock(2), as flock(1) does it, by pid PID: cat";
        let busy = format!("csalock: lock SANDBOX/files/f in store STORE is busy: {held}; {file}; wait longer with -w, or see `csalock status SANDBOX/files/f`\n");
        for option in ["--flock", "--fcntl"] {
            sandbox.csalock(["run", option, "-n", "./f", "true"]).status(75).stderr(&busy).run();
        }
        let mut third = sandbox.csalock(["run", "--flock", "-vw", "inf", "./f", "true"]).spawn();
        let said = format!("csalock: waiting for lock SANDBOX/files/f: {}; {file}\n", &held["held by ".len()..]);
        wait_until("it is told", || sandbox.plain(&third.said()) == said);
        third.kill();
        let cat = old.pid();
        let free = format!("wait until pid {cat} unlocks the file, or end that process with `kill {cat}`");
        let other = sandbox.csalock(["unlock", "./f"]).capture();
        let said = format!("csalock: lock SANDBOX/files/f in store STORE belongs to another holder: {held}; {file}; this script never had it; set the trap after the lock, or give its handle with --handle\n");
        assert_eq!((other.code, sandbox.plain(&other.stderr)), (Some(82), sandbox.plain(&said)));
        let status = sandbox.csalock(["status", "./f"]).capture().stdout;
        assert!(status.ends_with(&format!("\nbreak    the holder may wait for the file: {free}\n")), "{status}");
        let locked = serde_json::json!([{"pid": cat, "command": "cat", "lock": "flock"}]);
        assert_eq!(sandbox.sight("./f")["file_locked_by"], locked);
        let broken = sandbox.csalock(["unlock", "--force", "./f"]).capture();
        let said = format!("csalock: lock SANDBOX/files/f: {}; see lslocks(8)\n", file.replace("is locked", "is still locked"));
        assert_eq!((broken.code, sandbox.plain(&broken.stderr)), (Some(0), said));
        old.release();
        next.wait().exits(85);
        // A script that has the file locked on a descriptor asks.
        let asks = sandbox.script("bash", "exec 9>g; flock 9; csalock status --json ./g; :").capture().stdout;
        let asks: Value = serde_json::from_str(&asks).unwrap();
        let commands: Vec<&Value> = asks[0]["file_locked_by"].as_array().unwrap().iter().map(|by| &by["command"]).collect();
        assert!(commands.len() == 1 && commands[0].as_str().unwrap().starts_with("bash"), "{asks}");
        // Nothing is said of the file while the holder of the lock has it.
        let mut job = holder(sandbox, &[]);
        let done = sandbox.csalock(["run", "--flock", "-n", "./f", "true"]).capture();
        assert!(done.code == Some(75) && !done.stderr.contains("its file"), "{done:?}");
        assert_eq!(sandbox.sight("./f")["file_locked_by"], Value::Null);
        let broken = sandbox.csalock(["unlock", "--force", "./f"]).capture();
        assert_eq!((broken.code, broken.stderr.as_str()), (Some(0), ""));
        job.release();
        job.wait();
    }

    fn status_shows_which_user_of_fcntl_has_the_file(sandbox: &Sandbox) {
        let shown = || {
            let done = sandbox.csalock(["status", "./f"]).capture();
            let file = done.stdout.lines().find(|line| line.starts_with("file "));
            file.map(|line| sandbox.plain(line))
        };
        let open = "import fcntl, struct, sys\nf = open('f', 'a')\n";
        let wait = "print('holds', flush=True)\nsys.stdin.read()\n";
        sandbox.file("files/posix", format!("{open}fcntl.lockf(f, fcntl.LOCK_EX)\n{wait}"));
        let whole = "struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0)";
        sandbox.file("files/ofd", format!("{open}fcntl.fcntl(f, fcntl.F_OFD_SETLK, {whole})\n{wait}"));
        for script in ["posix", "ofd"] {
            let mut other = sandbox.call("python3", [script]).ready();
            let by = format!("locked with fcntl(2), as dpkg(1) does it, by pid PID: python3 {script}");
            assert_eq!(shown(), Some(format!("file     {by}")));
            let said = format!("csalock: lock SANDBOX/files/f is busy: its file is {by}; wait longer with -w, or see lslocks(8)\n");
            sandbox.csalock(["run", "--fcntl", "-n", "./f", "true"]).status(75).stderr(&said).run();
            let words = ["run", "--fcntl", "-w", "inf", "./f", "csalock", "status", "./f"];
            let next = sandbox.csalock(words).spawn();
            wait_until("it has the lock", || sandbox.state("./f") == "held");
            assert_eq!(shown(), Some(format!("file     {by}")));
            let flock = old_holder(sandbox, "f");
            let both = "file     locked with flock(2), as flock(1) does it, by pid PID: cat; and ";
            assert_eq!(shown(), Some(format!("{both}{by}")));
            flock.wait().exits(0);
            other.release();
            // The holder's own lock of the file says nothing more.
            let done = next.wait();
            assert!(done.stdout.contains("\nholder ") && !done.stdout.contains("\nfile "), "{done:?}");
        }
        assert_eq!(shown(), None);
    }

    fn three_holders_are_named_and_the_others_counted(sandbox: &Sandbox) {
        let script = "exec 9> f; flock 9; for i in 1 2 3 4; do sleep 60 & done; echo ready; cat";
        let _old = sandbox.script("dash", script).ready();
        let done = sandbox.csalock(["run", "--flock", "-n", "./f", "true"]).capture();
        let said = sandbox.plain(&done.stderr);
        assert!(done.code == Some(75) && said.contains("; and pid PID: sleep 60; and "), "{said}");
        assert!(said.ends_with(" more; wait longer with -w, or see lslocks(8)\n"), "{said}");
    }

    fn a_holder_of_another_user_is_named_as_well(sandbox: &Sandbox) {
        require!(is_root("two users"));
        std::fs::set_permissions(sandbox.path("files"), PermissionsExt::from_mode(0o1777)).unwrap();
        let _old = old_holder(sandbox, "f");
        let done = sandbox.csalock(["run", "--flock", "-n", "./f", "true"]).without("CSALOCK_STORE").user(1234).capture();
        assert_eq!((done.code, sandbox.plain(&done.stderr).as_str()), (Some(75), BUSY));
    }
}

/// stat(2) shows another device for a file of the lower directory than /proc/locks.
#[test]
fn a_flock_user_is_seen_on_a_file_system_with_several_devices() {
    require!(has_namespaces("mounts") && has("flock"));
    let sandbox = Sandbox::new(Kind::Directory);
    let script = "mkdir low upper merged; : > low/f; mount -t tmpfs none upper; mkdir upper/d upper/work
                  mount -t overlay none -o lowerdir=low,upperdir=upper/d,workdir=upper/work merged || exit
                  cd merged; exec 9< f; flock 9; csalock run -n ./f true 9<&-; csalock wait -n --flock ./f 9<&-; echo $?
                  flock -u 9; csalock wait -n --flock ./f; echo $?";
    let call = sandbox.call("unshare", ["-m", "dash", "-c", script]).without("CSALOCK_STORE");
    let locked = "its file is locked with flock(2), as flock(1) does it, by pid PID: dash -c ";
    let done = call.capture();
    assert_eq!((done.code, &*done.stdout), (Some(0), "75\n0\n"), "{done:?}");
    let said = sandbox.plain(&done.stderr);
    assert!(said.starts_with(&format!("csalock: lock SANDBOX/files/merged/f was acquired, but {locked}")), "{said}");
    assert!(said.contains(&format!("\ncsalock: lock SANDBOX/files/merged/f is busy: {locked}")), "{said}");
}
