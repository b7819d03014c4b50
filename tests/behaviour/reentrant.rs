//! `--reentrant`: a caller that runs under a lock does not acquire it again, and a caller that only has its variables does.

use crate::sandbox::wait_until;

/// Calls that acquire `x` unless their caller runs under it, and print `in` then.
const RUN: &str = "csalock run --reentrant -n x echo in";
const LOCK: &str = "csalock lock --reentrant -n x && echo in && csalock unlock --reentrant x";

on_every_store! {
    fn a_caller_under_the_lock_does_not_acquire_it_again(sandbox: &Sandbox) {
        for call in [RUN, LOCK] {
            sandbox.csalock(["run", "x", "sh", "-c", call]).stdout("in\n").run();
            let nested = format!("csalock run y sh -c '{call}'");
            sandbox.csalock(["run", "x", "sh", "-c", &nested]).stdout("in\n").run();
        }
        // The environment is that of the outer call, and the exit status that of the command.
        let inner = "echo $CSALOCK_NAME $CSALOCK_HANDLE $CSALOCK_TOKEN; exit 7";
        let script = format!("{}; csalock run --reentrant x -c '{inner}'; echo $?; csalock status -q x; echo $?", inner.replace("; exit 7", ""));
        let done = sandbox.csalock(["run", "x", "sh", "-c", &script]).capture();
        let lines: Vec<&str> = done.stdout.lines().collect();
        assert_eq!((lines[0], lines[2]), (lines[1], "7"), "{done:?}");
        assert_eq!(lines[3], "0", "the lock stays: {done:?}");
        assert_eq!(sandbox.state("x"), "free");
    }

    fn a_script_that_holds_the_lock_does_not_acquire_it_again(sandbox: &Sandbox) {
        let lock = "csalock lock --reentrant -n x && echo in";
        for call in [RUN, lock, &format!("dash -c '{RUN}'"), &format!("dash -c '{lock}; :'")] {
            let script = format!("csalock lock x; {call}; csalock status -q x; echo $?; csalock unlock x; csalock status -q x; echo $?");
            sandbox.script("dash", &script).stdout("in\n0\n81\n").run();
        }
        let said = |mode: &str| sandbox.script("dash", &format!("csalock lock {mode} x; csalock lock --reentrant x; csalock lock x; :")).capture();
        said("-x").says(0, "; leave this call out, or give it --reentrant\n");
        said("-s").says(0, "; release it first with `csalock unlock x`\n");
        // A part of the script in the background holds its own lock.
        let script = "(csalock lock x; touch held; exec sleep 60) & until [ -e held ]; do sleep 0.01; done; csalock lock --reentrant -nq x; echo $?";
        sandbox.script("dash", &format!("{script}; kill $!")).stdout("75\n").run();
    }

    fn a_caller_that_is_not_under_the_lock_acquires_it(sandbox: &Sandbox) {
        for call in [RUN, LOCK] {
            sandbox.script("dash", call).stdout("in\n").run();
            sandbox.csalock(["run", "y", "sh", "-c", call]).stdout("in\n").run();
            let mut holder = sandbox.holder("x");
            sandbox.script("dash", call).capture().exits(75);
            sandbox.csalock(["run", "y", "sh", "-c", call]).capture().exits(75);
            holder.release();
            holder.wait();
        }
    }

    fn a_daemon_that_outlived_the_command_does_not_run_under_its_lock(sandbox: &Sandbox) {
        for call in [RUN, LOCK] {
            let daemon = format!("touch begun; read go < go; {{ {call}; echo $?; }} > said; mv said done");
            sandbox.script("dash", "mkfifo go").run();
            // The group of the call is killed at its end, and the daemon must have left it by then.
            let script = format!("setsid -f sh -c '{daemon}' > /dev/null 2>&1; until [ -e begun ]; do sleep 0.01; done");
            sandbox.csalock(["run", "-q", "x", "sh", "-c", &script]).run();
            let holder = sandbox.holder("x");
            sandbox.script("dash", "echo > go").run();
            wait_until("the daemon has called", || sandbox.path("files/done").exists());
            assert_eq!(std::fs::read_to_string(sandbox.path("files/done")).unwrap(), "75\n", "{call}");
            holder.wait();
            sandbox.script("dash", "rm go done begun").run();
        }
    }

    fn a_dead_holder_whose_grant_is_still_recorded_holds_nothing(sandbox: &Sandbox) {
        // The command and its csalock die together, so the record keeps the grant until the next caller removes it.
        // The group of the call is killed at its end, and the daemon must have left it by then.
        let daemon = "touch begun; until [ -e go ]; do sleep 0.01; done\n\
                      csalock run --reentrant x sh -c 'echo $CSALOCK_TOKEN' > said\nmv said done\n";
        sandbox.file("files/daemon", daemon);
        let script = "setsid -f sh ./daemon > /dev/null 2>&1; until [ -e begun ]; do sleep 0.01; done; echo $CSALOCK_TOKEN; kill -9 $PPID $$";
        let dead = sandbox.csalock(["run", "x", "sh", "-c", script]).capture().stdout;
        sandbox.await_abandoned("x");
        sandbox.script("dash", "touch go").run();
        wait_until("the daemon has called", || sandbox.path("files/done").exists());
        let said = std::fs::read_to_string(sandbox.path("files/done")).unwrap();
        assert!(!said.is_empty() && said != dead, "the daemon has a grant of its own: {said} {dead}");
    }

    fn a_weaker_mode_does_not_count(sandbox: &Sandbox) {
        for (outer, inner, code) in [
            ("-x", "-x", 0), ("-x", "-s", 0), ("-x", "-j2", 0), ("-s", "-s", 0), ("-s", "-x", 84),
            ("-j1", "-j1", 0), ("-j1", "-j5", 0), ("-j5", "-j1", 84), ("-j1", "-x", 84), ("-j1", "-s", 84),
        ] {
            for command in ["run --reentrant -n", "lock --reentrant -n"] {
                let call = format!("csalock {command} {inner} x {}; echo $?", if command.starts_with("run") { "true" } else { "" });
                let done = sandbox.csalock(["run", outer, "x", "sh", "-c", &call]).capture();
                assert_eq!(done.stdout, format!("{code}\n"), "{outer} {call}: {done:?}");
            }
        }
    }

    fn of_several_locks_those_that_the_caller_does_not_run_under_are_acquired(sandbox: &Sandbox) {
        let call = "csalock run --reentrant -n x --also z -- sh -c 'echo $CSALOCK_NAME'; csalock lock --reentrant y x z; \
                    for n in x y z; do csalock status -q $n; echo $?; done; csalock unlock --reentrant y x z; csalock status -q x; echo $?";
        let done = sandbox.csalock(["run", "x", "sh", "-c", call]).capture();
        assert_eq!(done.stdout, "z\n0\n0\n0\n0\n", "{done:?}");
        assert_eq!([sandbox.state("y"), sandbox.state("z")], ["free", "free"]);
        let holder = sandbox.holder("z");
        let call = "csalock run --reentrant -n x --also z -- true; echo $?";
        let done = sandbox.csalock(["run", "-q", "x", "sh", "-c", call]).capture();
        assert_eq!(done.stdout, "75\n", "{done:?}");
        holder.wait();
    }

    fn unlock_releases_what_the_script_has_acquired_and_leaves_the_lock_around_it(sandbox: &Sandbox) {
        let held = "for n in x y; do csalock status -q $n; echo $?; done";
        let script = format!("csalock lock --reentrant x y; csalock unlock --reentrant x y; {held}; csalock unlock x; {held}");
        let done = sandbox.csalock(["run", "x", "sh", "-c", &script]).capture();
        assert_eq!(done.stdout, "0\n81\n81\n81\n", "{done:?}");
        sandbox.csalock(["unlock", "--reentrant", "x"]).capture().exits(81);
        for words in [&["lock", "--reentrant", "--print-handle", "x"][..], &["run", "--reentrant", "--ttl", "9", "x", "true"]] {
            sandbox.csalock(words).capture().exits(64);
        }
        let done = sandbox.csalock(["lock", "--reentrant", "--json", "x"]).capture();
        assert_eq!((done.code, done.stderr.as_str()), (Some(64), ""), "{done:?}");
    }
}
