//! `csalock wait`: it returns when a lock is free, and neither takes it nor delays a caller that wants it.

use crate::sandbox::{has, wait_until};

const BUSY: &str = "csalock: lock x in store STORE is busy: held by pid PID on HOST (user USER) since TIME (AGE ago), while it lives: \
                    cat; wait longer with -w, or see `csalock status x`\n";

on_every_store! {
    fn a_free_lock_is_not_waited_for_and_nothing_is_created(sandbox: &Sandbox) {
        sandbox.csalock(["wait", "x"]).run();
        sandbox.csalock(["wait", "-n", "-v", "x"]).stderr("csalock: lock x is free\n").run();
        assert_eq!(sandbox.state("x"), "free");
        if sandbox.is_of_files() {
            assert!(!sandbox.store_exists());
        }
        sandbox.csalock(["wait", "--json", "x"]).stdout("[{\"name\":\"x\",\"outcome\":\"free\",\"holders\":[]}]\n").run();
    }

    fn a_held_lock_is_waited_for_without_a_place_in_its_queue(sandbox: &Sandbox) {
        let holder = sandbox.holder("x");
        for words in [&["wait", "-n", "x"][..], &["wait", "-w", "30ms", "y", "x"]] {
            sandbox.csalock(words).status(75).stderr(BUSY).run();
        }
        sandbox.csalock(["wait", "-nqE", "3", "x"]).status(3).run();
        let mut waiter = sandbox.csalock(["wait", "-w", "inf", "-v", "a", "x"]).spawn();
        wait_until("it waits for x", || waiter.said().contains("lock a is free"));
        assert_eq!((sandbox.waiters("x").len(), waiter.has_ended()), (0, false));
        holder.wait();
        waiter.wait().complains(0, "csalock: lock a is free\ncsalock: lock x is free\n");
        assert_eq!(sandbox.state("x"), "free");
    }

    fn a_lock_with_a_queue_is_not_free_before_its_last_waiter(sandbox: &Sandbox) {
        let holder = sandbox.holder("x");
        let mut next = sandbox.csalock(["run", "x", "sh", "-c", "echo in; read line"]).spawn();
        wait_until("it is in the queue", || sandbox.waiters("x").len() == 1);
        let mut waiter = sandbox.csalock(["wait", "-w", "inf", "x"]).spawn();
        holder.wait();
        next.lines(1);
        assert!(!waiter.has_ended());
        next.wait();
        waiter.wait().exits(0);
    }

    fn the_lock_of_another_program_on_a_file_is_waited_for_and_not_taken(sandbox: &Sandbox) {
        require!(has("python3"));
        sandbox.file("files/f", "");
        let lock = |call: &str, mode: &str| {
            let script = format!(
                "import fcntl, sys\nf = open('f', 'a')\nfcntl.{call}(f, fcntl.LOCK_{mode})\nprint(flush=True)\nsys.stdin.read()\n"
            );
            sandbox.file("files/lock", script);
            sandbox.call("python3", ["lock"]).ready()
        };
        for (option, call, program) in [("--flock", "flock", "flock(1)"), ("--fcntl", "lockf", "dpkg(1)")] {
            let name = option.trim_start_matches('-');
            let other = if option == "--flock" { "--fcntl" } else { "--flock" };
            let wait = |words: &[&str]| sandbox.csalock(["wait"].iter().chain(words).chain(&["./f"]));
            let busy = format!(
                "csalock: lock SANDBOX/files/f is busy: its file is locked with {name}(2), as {program} does it, by pid PID: \
                 python3 lock; wait longer with -w, or see lslocks(8)\n"
            );
            let free = "csalock: lock SANDBOX/files/f is free\n";
            wait(&["-nv", option]).stderr(free).run();
            for mode in ["EX", "SH"] {
                if mode == "SH" && call == "lockf" {
                    continue;
                }
                let job = lock(call, mode);
                for words in [&["-n", option][..], &["-w", "150ms", "--flock", "--fcntl"], &["-n"]] {
                    wait(words).status(75).stderr(&*busy).run();
                }
                wait(&["-nqE", "3", option]).status(3).run();
                wait(&["-n", other]).run();
                let json = wait(&["-n", "--json", option]).capture();
                assert!(json.code == Some(75) && json.stdout.contains("SANDBOX") || json.stdout.contains("python3"), "{json:?}");
                let mut both = [wait(&["-w", "inf", option]).spawn(), wait(&["-w", "inf"]).spawn()];
                wait_until("they wait", || both.iter().all(|job| job.pid() > 0));
                assert!(both.iter_mut().all(|job| !job.has_ended()));
                job.wait().exits(0);
                both.into_iter().for_each(|job| job.wait().exits(0));
            }
            let said = format!("csalock: {option} locks a file, and f is not a path; use ./f, or leave out {option}\n");
            sandbox.csalock(["wait", option, "f"]).status(64).stderr(said).run();
            sandbox.csalock(["wait", "-n", option, "./missing"]).run();
            let free = "[{\"name\":\"SANDBOX/files/f\",\"outcome\":\"free\",\"holders\":[]}]\n";
            wait(&["--json", option]).stdout(free).run();
        }
        assert!(!sandbox.path("files/missing").exists() && !sandbox.path("files/.csalock").exists());
    }

    fn a_wait_for_the_lock_of_the_caller_is_a_deadlock(sandbox: &Sandbox) {
        let done = sandbox.csalock(["run", "x", "csalock", "wait", "-w", "inf", "x"]).capture();
        assert_eq!(done.code, Some(84), "{done:?}");
        assert!(done.stderr.contains("waiting would never end"), "{}", done.stderr);
        sandbox.csalock(["run", "x", "csalock", "wait", "-nq", "x"]).capture().exits(75);
        sandbox.csalock(["run", "y", "csalock", "wait", "-w", "inf", "x"]).run();
    }

    fn a_lock_that_a_dead_holder_left_is_free(sandbox: &Sandbox) {
        sandbox.script("dash", "csalock lock x; kill -9 $$").capture();
        sandbox.await_abandoned("x");
        sandbox.csalock(["wait", "-n", "x"]).run();
        assert!(sandbox.record("x").is_some_and(|record| !record.holders.is_empty()));
    }
}
