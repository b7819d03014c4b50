//! `csalock run --flock`: users of flock(1) and ours exclude each other.

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use crate::overlaps::{faults, grants};
use crate::sandbox::{Job, Kind, Sandbox, is_root, proc, wait_until};

mod helper;
mod told;

const BUSY: &str = "csalock: lock SANDBOX/files/f is busy: its file is locked with flock(2), as flock(1) does it, by pid \
                    PID: cat; wait longer with -w, or see lslocks(8)\n";

const SIGNALS: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// Returns the number of holders of flock(2) on it, and of its waiters. Locks that change meanwhile may be missing.
fn flocks(sandbox: &Sandbox, file: &str) -> (usize, usize) {
    let inode = std::fs::metadata(sandbox.path("files").join(file)).map_or(0, |found| found.ino());
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    let ours = |line: &&str| line.contains(" FLOCK ") && line.contains(&format!(":{inode} "));
    // Each only once: a line that moves while it is looked at comes again, under another number.
    let lines = locks.lines().filter(ours).filter_map(|line| line.split_once(": ").map(|(_, lock)| lock));
    let (waiting, holding): (BTreeSet<&str>, BTreeSet<&str>) = lines.partition(|line| line.contains("->"));
    (holding.len(), waiting.len())
}

/// An old user, who holds the file until its stdin ends.
fn old_holder(sandbox: &Sandbox, file: &str) -> Job {
    let (before, _) = flocks(sandbox, file);
    let job = sandbox.call("flock", ["-F", file, "cat"]).spawn();
    wait_until("the old one holds", || flocks(sandbox, file).0 == before + 1);
    wait_until("its command runs", || proc::program(job.pid()) == "cat");
    job
}

/// One of ours, who holds `./f` with these options until its stdin ends.
fn holder(sandbox: &Sandbox, options: &[&str]) -> Job {
    let words = ["run", "--flock"].iter().chain(options).chain(&["./f", "dash", "-c", "echo $$; cat"]);
    sandbox.csalock(words).ready()
}

/// One of ours, who has the lock of `./f` and waits for the file.
fn waiter(sandbox: &Sandbox, options: &[&str], command: &[&str]) -> Job {
    let words = ["run", "--flock", "-w", "inf"].iter().chain(options).chain(&["./f"]).chain(command);
    let job = sandbox.csalock(words).spawn();
    wait_until("it waits for the file", || flocks(sandbox, "f").1 == 1);
    job
}

/// Waits until the lease of a waiter for the file has ended at four later times, as this field of its status says.
fn await_renewals(sandbox: &Sandbox, waiter: &mut Job, field: &str) {
    let until = || sandbox.sight("./f")["holders"][0][field].to_string();
    for _ in 0..4 {
        let before = until();
        assert_ne!(before, "null", "the grant has a lease");
        wait_until("the lease is renewed", || waiter.has_ended() || until() != before);
        assert!(!waiter.has_ended(), "{}", waiter.said());
    }
}

/// Milliseconds since 1970.
fn now() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64
}

fn time(field: &Value) -> i64 {
    field.as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_millisecond()
}

/// Whether a flock user gets the file at once.
fn is_free(sandbox: &Sandbox, file: &str) -> bool {
    let code = sandbox.call("flock", ["-n", file, "true"]).capture().code;
    assert!(matches!(code, Some(0 | 1)), "{code:?}");
    code == Some(0)
}

on_every_store! {
    fn a_flock_user_blocks_csalock_until_it_ends(sandbox: &Sandbox) {
        let mut old = old_holder(sandbox, "f");
        for options in [&["-n"][..], &["-w", "0"], &["-w", "10ms"], &["-n", "-F"], &["-w", "10ms", "-F"]] {
            let words = ["run", "--flock"].iter().chain(options).chain(&["./f", "touch", "ran"]);
            sandbox.csalock(words).status(75).stderr(BUSY).run();
            assert_eq!(sandbox.state("./f"), "free");
        }
        sandbox.csalock(["run", "--flock", "-nq", "./f", "touch", "ran"]).status(75).run();
        sandbox.csalock(["run", "--flock", "-n", "-E", "9", "./f", "touch", "ran"]).status(9).stderr(BUSY).run();
        assert!(!sandbox.path("files/ran").exists());
        let next = waiter(sandbox, &[], &["echo", "in"]);
        assert_eq!(sandbox.state("./f"), "held");
        old.release();
        next.wait().is(0, "in\n", "");
        assert!(is_free(sandbox, "f"));
    }

    fn csalock_blocks_a_flock_user_until_it_ends(sandbox: &Sandbox) {
        for options in [&[][..], &["-F"]] {
            let mut job = holder(sandbox, options);
            assert!(!is_free(sandbox, "f"));
            sandbox.call("flock", ["-n", "-s", "f", "true"]).status(1).run();
            let old = sandbox.call("flock", ["f", "echo", "in"]).spawn();
            wait_until("the old one waits", || flocks(sandbox, "f").1 == 1);
            job.release();
            assert_eq!(old.wait().line(), "in");
            job.wait().exits(0);
            assert!(is_free(sandbox, "f"));
        }
    }

    fn csalock_callers_wait_in_their_own_queue(sandbox: &Sandbox) {
        let mut job = holder(sandbox, &[]);
        let words = ["run", "--flock", "-w", "inf", "./f", "echo", "in"];
        let next = sandbox.csalock(words).spawn();
        wait_until("the next one waits", || sandbox.waiters("./f").len() == 1);
        wait_until("one holds and none waits for the file", || flocks(sandbox, "f") == (1, 0));
        job.release();
        assert_eq!(next.wait().line(), "in");
    }

    fn no_process_loses_a_count(sandbox: &Sandbox) {
        sandbox.file("files/f", "0\n");
        let times = sandbox.many(50);
        let count = "n=$(cat f); echo $((n + 1)) > f";
        let each = |wrap: &str| {
            let each = format!("{wrap} dash -c '{count}' || exit");
            let script = format!("i=0; while [ $i -lt {times} ]; do i=$((i + 1)); {each}; done");
            sandbox.script("dash", &script).spawn()
        };
        let jobs: Vec<Job> = (0..4).flat_map(|_| [each("csalock run --flock -w inf ./f"), each("flock f")]).collect();
        jobs.into_iter().for_each(|job| job.wait().succeeds());
        assert_eq!(sandbox.read("files/f"), format!("{}\n", 8 * times));
        assert_eq!(sandbox.state("./f"), "free");
    }

    fn a_job_whose_supervisor_was_killed_blocks_flock_users_until_it_ends(sandbox: &Sandbox) {
        let mut job = holder(sandbox, &[]);
        job.kill();
        assert!(!is_free(sandbox, "f"));
        sandbox.csalock(["run", "-n", "./f", "true"]).capture().exits(75);
        job.release();
        wait_until("the file is free", || is_free(sandbox, "f"));
        sandbox.csalock(["run", "--flock", "-nq", "./f", "true"]).capture().exits(0);
    }

    fn the_file_is_free_when_all_processes_are_killed(sandbox: &Sandbox) {
        let mut job = holder(sandbox, &[]);
        killpg(Pid::from_raw(job.pid()), Signal::SIGKILL).unwrap();
        wait_until("the supervisor has ended", || job.has_ended());
        wait_until("the file is free", || is_free(sandbox, "f"));
        sandbox.csalock(["run", "--flock", "-nq", "./f", "true"]).capture().exits(0);
    }

    fn a_user_of_fcntl_and_csalock_exclude_each_other(sandbox: &Sandbox) {
        // As dpkg does it: a traditional record lock on the whole file.
        let open = "import fcntl, sys\nf = open('f', 'a')\n";
        let hold = format!("{open}fcntl.lockf(f, fcntl.LOCK_EX)\nprint('holds', flush=True)\nsys.stdin.read()\n");
        let attempt = format!("{open}try: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\nexcept OSError: print('busy')\nelse: print('free')\n");
        sandbox.file("files/hold", hold);
        sandbox.file("files/attempt", attempt);
        let is_held = || sandbox.call("python3", ["attempt"]).capture().stdout == "busy\n";
        let mut other = sandbox.call("python3", ["hold"]).ready();
        for option in ["-n", "-nF"] {
            let said = "csalock: lock SANDBOX/files/f is busy: its file is locked with fcntl(2), as dpkg(1) does it, by pid PID: python3 hold; wait longer with -w, or see lslocks(8)\n";
            sandbox.csalock(["run", "--fcntl", option, "./f", "touch", "ran"]).status(75).stderr(said).run();
        }
        assert!(!sandbox.path("files/ran").exists());
        // flock(2) is another lock.
        sandbox.csalock(["run", "--flock", "-n", "./f", "echo", "in"]).stdout("in\n").run();
        let mut next = sandbox.csalock(["run", "--fcntl", "--flock", "-w", "inf", "./f", "dash", "-c", "echo $$; cat; :"]).spawn();
        wait_until("it has the lock and waits for the file", || sandbox.state("./f") == "held");
        other.release();
        let command: i32 = next.lines(1)[0].parse().unwrap();
        assert!(is_held() && !is_free(sandbox, "f"));
        // The command keeps the file if its supervisor is killed.
        next.kill();
        assert!(is_held());
        next.release();
        wait_until("the command has ended", || !proc::lives(command));
        wait_until("the file is free", || !is_held());
        std::fs::create_dir(sandbox.path("files/d")).unwrap();
        let said = "csalock: --fcntl locks a file, and SANDBOX/files/d is a directory; name a file in it, or use --flock\n";
        for words in [&["run", "--fcntl", "./d", "touch", "ran"][..], &["run", "--flock", "--fcntl", "./d/", "touch", "ran"]] {
            sandbox.csalock(words).status(64).stderr(said).run();
        }
        sandbox.csalock(["run", "--flock", "./d", "true"]).run();
        let said = "csalock: --fcntl locks a file, and x is not a path; use ./x, or leave out --fcntl\n";
        sandbox.csalock(["run", "--fcntl", "x", "touch", "ran"]).status(64).stderr(said).run();
    }

    fn a_background_process_of_the_command_blocks_no_caller(sandbox: &Sandbox) {
        let mut job = sandbox.csalock(["run", "--flock", "./f", "dash", "-c", "sleep 60 & echo $!; exit 4"]).spawn();
        let child: i32 = job.lines(1)[0].parse().unwrap();
        wait_until("the command has ended", || job.has_ended());
        assert!(proc::lives(child) && has_open(sandbox, child, "f"));
        assert!(is_free(sandbox, "f"));
        job.wait().exits(4);
    }

    fn the_lock_of_a_killed_job_without_a_supervisor_ends(sandbox: &Sandbox) {
        for options in [&["-F"][..], &["-w1"]] {
            let words = ["run", "--flock"].iter().chain(options).chain(&["./f", "dash", "-c", "sleep 60 & echo $!; cat"]);
            let mut job = sandbox.csalock(words).spawn();
            let child: i32 = job.lines(1)[0].parse().unwrap();
            let command = sandbox.holders("./f")[0];
            if options != ["-F"] {
                job.kill();
            }
            job.release();
            wait_until("the command has ended", || !proc::lives(command));
            assert!(!is_free(sandbox, "f"));
            sandbox.csalock(["run", "--flock", "-n", "./f", "true"]).capture().says(75, &format!(" by pid {child}: sleep 60; "));
            kill(Pid::from_raw(child), Signal::SIGKILL).unwrap();
            wait_until("the file is free", || is_free(sandbox, "f"));
        }
    }

    fn a_signal_ends_the_wait_and_nothing_is_held(sandbox: &Sandbox) {
        let _old = old_holder(sandbox, "f");
        for signal in SIGNALS {
            for options in [&[][..], &["-F"]] {
                let options = options.join(" ");
                let script = format!("ulimit -c 0; exec csalock run --flock {options} -w inf ./f touch ran");
                let job = sandbox.script("dash", &script).spawn();
                wait_until("it waits for the file", || flocks(sandbox, "f").1 == 1);
                job.send(signal);
                let done = job.wait();
                let found = (done.seen_by_shell(), done.stdout.as_str(), done.stderr.as_str());
                assert_eq!(found, (128 + signal as i32, "", ""), "{signal}");
                assert_eq!(sandbox.state("./f"), "free", "{signal}");
                wait_until("no process waits for the file", || flocks(sandbox, "f") == (1, 0));
            }
        }
        assert!(!sandbox.path("files/ran").exists());
    }

    fn children_that_the_caller_had_before_do_not_end_the_wait(sandbox: &Sandbox) {
        let mut old = old_holder(sandbox, "f");
        let script = "cat < pipe & exec csalock run --flock -F -w inf ./f echo in";
        nix::unistd::mkfifo(&sandbox.path("files/pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut job = sandbox.script("dash", script).spawn();
        wait_until("it waits for the file", || flocks(sandbox, "f").1 == 1);
        std::fs::write(sandbox.path("files/pipe"), "").unwrap();
        let children = format!("/proc/{0}/task/{0}/children", job.pid());
        let zombie = |child: &str| matches!(proc::stat(child.parse().unwrap()), Some(('Z', _)));
        wait_until("the earlier child has ended", || std::fs::read_to_string(&children).unwrap().split_whitespace().any(zombie));
        assert!(!job.has_ended());
        old.release();
        assert_eq!(job.wait().line(), "in");
    }

    fn a_waiter_that_is_killed_leaves_nothing(sandbox: &Sandbox) {
        let old = old_holder(sandbox, "f");
        for (options, whom) in [(&[][..], "supervisor"), (&[], "command"), (&["-F"], "supervisor")] {
            let mut job = waiter(sandbox, options, &["touch", "ran"]);
            let pid = if whom == "command" { sandbox.holders("./f")[0] } else { job.pid() };
            kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
            wait_until("it has ended", || job.has_ended());
            wait_until("no process waits", || flocks(sandbox, "f") == (1, 0));
            wait_until("the lock is free", || sandbox.state("./f") != "held");
        }
        old.wait().exits(0);
        sandbox.csalock(["run", "--flock", "-nq", "./f", "true"]).capture().exits(0);
        assert!(!sandbox.path("files/ran").exists());
    }

    fn another_process_waits_for_the_file_after_the_helper_was_killed(sandbox: &Sandbox) {
        let mut old = old_holder(sandbox, "f");
        let next = waiter(sandbox, &[], &["echo", "ran"]);
        // The first child sleeps until it becomes the command.
        let waits = || proc::children(next.pid()).get(1).copied();
        let first = waits().unwrap();
        kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
        wait_until("another one waits", || waits().is_some_and(|pid| pid != first) && flocks(sandbox, "f").1 == 1);
        old.release();
        next.wait().is(0, "ran\n", "");
    }

    fn a_wait_for_the_file_shortens_neither_lease_nor_max_hold(sandbox: &Sandbox) {
        let mut old = old_holder(sandbox, "f");
        let mut next = waiter(sandbox, &["--ttl", "2s", "--max-hold", "1s"], &["csalock", "status", "-1", "./f"]);
        await_renewals(sandbox, &mut next, "expires");
        old.release();
        assert_eq!(next.wait().line(), sandbox.path("files/f").display().to_string());
    }

    fn a_command_gets_its_whole_lease_after_a_wait_for_the_file(sandbox: &Sandbox) {
        let mut old = old_holder(sandbox, "f");
        // Less is left of the first lease after the wait than a command needs to be started.
        let next = waiter(sandbox, &["--ttl", "4s"], &["echo", "ran"]);
        let begun = std::time::Instant::now();
        wait_until("most of the first lease is over", || begun.elapsed().as_millis() > 3200);
        old.release();
        next.wait().is(0, "ran\n", "");
    }

    fn a_break_ends_the_wait_for_the_file_at_once(sandbox: &Sandbox) {
        let old = old_holder(sandbox, "f");
        for options in [&[][..], &["-F"], &["--ttl", "1h"]] {
            let next = waiter(sandbox, options, &["touch", "ran"]);
            sandbox.csalock(["unlock", "--force", "./f"]).capture().exits(0);
            // The file stays locked meanwhile.
            let done = next.wait();
            let said = "csalock: lost during the wait for its file: lock SANDBOX/files/f: it was held by pid PID on HOST (user USER) \
                        since TIME (AGE ago), until it was broken by --force; the command was not run\n";
            assert_eq!((done.code, sandbox.plain(&done.stderr).as_str()), (Some(85), said), "{options:?}");
        }
        old.wait().exits(0);
        assert!(!sandbox.path("files/ran").exists() && is_free(sandbox, "f"));
    }

    fn the_history_names_the_call_that_ended_a_waiter_for_the_file(sandbox: &Sandbox) {
        let _old = old_holder(sandbox, "f");
        for (words, reason) in [
            (&["unlock", "--force", "--end", "./f"][..], "end"),
            (&["run", "--busy", "replace", "-w", "inf", "./f", "true"], "replace"),
        ] {
            let next = waiter(sandbox, &[], &["touch", "ran"]);
            let mut ends = sandbox.csalock(words).spawn();
            assert_eq!(next.wait().seen_by_shell(), 128 + Signal::SIGTERM as i32);
            wait_until("it has ended", || ends.has_ended());
            ends.wait().exits(0);
            let text = sandbox.csalock(["history", "--json"]).capture().line();
            let past: Vec<Value> = serde_json::from_str(&text).unwrap();
            let ended = past.iter().rev().find(|past| past["command"] == "touch ran").unwrap();
            assert_eq!((&ended["ended"], &ended["exit_code"]), (&"released".into(), &Value::Null), "{text}");
            assert_eq!(ended["ended_by"]["reason"], reason, "{text}");
        }
        assert!(!sandbox.path("files/ran").exists());
    }

    fn a_call_that_did_not_get_the_file_is_no_run_in_the_history(sandbox: &Sandbox) {
        let _old = old_holder(sandbox, "f");
        for option in ["-n", "-w10ms", "-nF", "-Fw10ms"] {
            sandbox.csalock(["run", "--flock", option, "./f", "touch", "ran"]).status(75).stderr(BUSY).run();
        }
        let next = waiter(sandbox, &[], &["touch", "ran"]);
        next.send(Signal::SIGTERM);
        assert_eq!(next.wait().seen_by_shell(), 128 + Signal::SIGTERM as i32);
        sandbox.csalock(["history", "--json"]).stdout("[]\n").run();
        assert!(!sandbox.path("files/ran").exists());
    }

    fn the_wait_for_the_file_counts_as_a_wait_and_not_as_a_hold(sandbox: &Sandbox) {
        for options in [&[][..], &["-F"], &["--ttl", "1h"]] {
            let mut old = old_holder(sandbox, "f");
            let next = waiter(sandbox, options, &["csalock", "status", "--json", "./f"]);
            let granted = time(&sandbox.sight("./f")["holders"][0]["since"]);
            wait_until("a millisecond has passed", || now() > granted);
            let ends = now();
            old.release();
            let seen: Value = serde_json::from_str(&next.wait().line()).unwrap();
            assert!(time(&seen[0]["holders"][0]["since"]) >= ends, "{seen}");
            // Without a supervisor, the next caller notices the end.
            sandbox.csalock(["run", "--flock", "./f", "true"]).run();
            let text = sandbox.csalock(["history", "--json", "-n", "2"]).capture().line();
            let past: Vec<Value> = serde_json::from_str(&text).unwrap();
            let [from, to] = ["from", "to"].map(|field| time(&past[0][field]));
            let came = from - (past[0]["waited"].as_f64().unwrap() * 1000.0).round() as i64;
            assert!(from >= ends && to >= from && came < ends, "{options:?} {ends} {text}");
        }
    }

    fn a_wait_of_one_that_shares_the_lock_does_not_overlap(sandbox: &Sandbox) {
        let mut old = old_holder(sandbox, "f");
        let next = waiter(sandbox, &["-s"], &["true"]);
        sandbox.csalock(["run", "-s", "./f", "true"]).run();
        old.release();
        next.wait().exits(0);
        let grants = grants(sandbox);
        assert_eq!((grants.len(), faults(&grants)), (2, Vec::new()));
    }

    fn a_missing_file_is_created_and_an_existing_file_stays_as_it_is(sandbox: &Sandbox) {
        sandbox.script("dash", "umask 027; csalock run --flock ./new true; csalock run --flock -F ./newer true").run();
        for made in ["files/new", "files/newer"] {
            let found = std::fs::metadata(sandbox.path(made)).unwrap();
            assert_eq!((found.mode() & 0o7777, found.len()), (0o640, 0), "{made}");
        }
        sandbox.file("files/f", "content");
        sandbox.csalock(["run", "--flock", "./f", "true"]).run();
        assert_eq!(sandbox.read("files/f"), "content");
    }

    fn a_file_that_was_replaced_is_locked_anew(sandbox: &Sandbox) {
        let mut first = old_holder(sandbox, "f");
        let inside = waiter(sandbox, &[], &["dash", "-c", "flock -n f true; echo $?"]);
        std::fs::rename(sandbox.file("files/new", "new"), sandbox.path("files/f")).unwrap();
        let mut second = old_holder(sandbox, "f");
        first.release();
        wait_until("it waits for the new file", || flocks(sandbox, "f") == (1, 1));
        std::fs::remove_file(sandbox.path("files/f")).unwrap();
        second.release();
        assert_eq!(inside.wait().line(), "1");
        assert!(is_free(sandbox, "f"));
    }

    fn the_locked_file_is_the_file_of_the_name(sandbox: &Sandbox) {
        std::fs::create_dir(sandbox.path("files/real")).unwrap();
        symlink("real/f", sandbox.path("files/link")).unwrap();
        for (name, file) in [("./link", "real/f"), ("./link", "link"), ("./real/../real//f", "real/f"), ("./real", "real")] {
            let inside = format!("flock -n {file} true; echo $?");
            sandbox.csalock(["run", "--flock", name, "-c", &inside]).stdout("1\n").run();
        }
    }

    fn holders_that_share_the_lock_share_the_file(sandbox: &Sandbox) {
        let inside = "flock -n -s f true; echo $?; flock -n f true; echo $?";
        for option in ["-s", "-j2"] {
            sandbox.csalock(["run", "--flock", option, "./f", "-c", inside]).stdout("0\n1\n").run();
        }
        let old = sandbox.call("flock", ["-F", "-s", "f", "cat"]).spawn();
        wait_until("the old one holds", || flocks(sandbox, "f").0 == 1);
        sandbox.csalock(["run", "--flock", "-n", "-s", "./f", "true"]).run();
        sandbox.csalock(["run", "--flock", "-n", "./f", "true"]).status(75).stderr(BUSY).run();
        old.wait().exits(0);
    }

    fn the_files_among_several_names_are_locked(sandbox: &Sandbox) {
        sandbox.file("files/f", "");
        std::fs::hard_link(sandbox.path("files/f"), sandbox.path("files/too")).unwrap();
        let inside = "for f in f g too; do flock -n $f true; echo $?; done";
        let words = ["run", "--flock", "x", "--also", "./f", "--also", "./g", "--also", "./too", "--", "dash", "-c", inside];
        sandbox.csalock(words).stdout("1\n1\n1\n").run();
        let old = old_holder(sandbox, "g");
        let words = ["run", "--flock", "-n", "x", "--also", "./f", "--also", "./g", "--", "true"];
        sandbox.csalock(words).status(75).stderr(BUSY.replace("files/f", "files/g")).run();
        assert!(is_free(sandbox, "f") && ["x", "./f", "./g"].iter().all(|name| sandbox.state(name) == "free"));
        old.wait().exits(0);
    }

    fn a_pipe_is_not_waited_for(sandbox: &Sandbox) {
        nix::unistd::mkfifo(&sandbox.path("files/f"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        sandbox.csalock(["run", "--flock", "./f", "echo", "in"]).stdout("in\n").run();
    }

    fn a_bare_name_has_no_file(sandbox: &Sandbox) {
        let said = "csalock: --flock locks a file, and x is not a path; use ./x, or leave out --flock\n";
        sandbox.csalock(["run", "--flock", "x", "touch", "ran"]).status(64).stderr(said).run();
        let said = "csalock: --flock locks a file, and a b is not a path; use ./'a b', or leave out --flock\n";
        sandbox.csalock(["run", "-F", "--flock", "a b", "touch", "ran"]).status(64).stderr(said).run();
        assert!(!sandbox.path("files/ran").exists() && !sandbox.store_exists());
    }

    fn a_file_that_cannot_be_opened_is_an_error_and_the_lock_is_released(sandbox: &Sandbox) {
        require!(is_root("a file of another user"));
        std::fs::set_permissions(sandbox.path("files"), PermissionsExt::from_mode(0o1777)).unwrap();
        let file = sandbox.file("files/f", "");
        std::fs::set_permissions(file, PermissionsExt::from_mode(0o600)).unwrap();
        let said = "csalock: cannot open SANDBOX/files/f: Permission denied; flock(2) must be able to read it; ask its owner, \
                    or leave out --flock\n";
        for options in [&[][..], &["-F"]] {
            let words = ["run", "--flock"].iter().chain(options).chain(&["./f", "true"]);
            sandbox.csalock(words).without("CSALOCK_STORE").user(1234).status(77).stderr(said).run();
        }
        assert!(!sandbox.path("files/.csalock").exists());
    }

    fn a_command_that_cannot_be_run_leaves_the_file_free(sandbox: &Sandbox) {
        let said = "csalock: cannot run no-such-command: No such file or directory; check the spelling and `$PATH`; a function of the shell needs `csalock lock`\n";
        for options in [&[][..], &["-F"]] {
            let words = ["run", "--flock"].iter().chain(options).chain(&["./f", "no-such-command"]);
            sandbox.csalock(words).status(127).stderr(said).run();
            assert!(sandbox.state("./f") == "free" && is_free(sandbox, "f"));
        }
    }

    fn one_descriptor_is_inherited_and_out_of_the_way(sandbox: &Sandbox) {
        let open = |limit: u32, words: &str| -> Vec<u32> {
            let look = format!("ulimit -n {limit}; csalock run {words} dash -c 'ls /proc/$$/fd > open; :'");
            sandbox.script("dash", &look).run();
            sandbox.read("files/open").lines().map(|number| number.parse().unwrap()).collect()
        };
        for words in ["--flock ./f", "--flock -F ./f"] {
            for (limit, least) in [(1000, 200), (100, 10)] {
                let (usual, found) = (open(limit, "./f"), open(limit, words));
                let more: Vec<&u32> = found.iter().filter(|number| !usual.contains(number)).collect();
                assert!(matches!(more[..], [one] if *one >= least) && found.len() == usual.len() + 1, "{usual:?} {found:?}");
            }
        }
    }
}

fn has_open(sandbox: &Sandbox, pid: i32, file: &str) -> bool {
    let wanted = sandbox.path("files").join(file);
    let mut descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map(|entry| entry.unwrap().path());
    descriptors.any(|link| std::fs::read_link(link).is_ok_and(|to| to == wanted))
}

mod shared_stores {
    use super::{await_renewals, flocks, old_holder, wait_until};
    use crate::sandbox::has;

    on_every_shared_store! {
        fn a_slow_keeper_does_not_hold_the_file(sandbox: &Sandbox) {
            require!(has("strace"));
            // Each prctl(2), of which only a keeper makes some after the end of its parent, takes half a second.
            let script = "strace -f -qq -o /dev/null -e trace=prctl --inject=prctl:delay_enter=500000 \
                          dash -c 'echo $$ > pid; exec csalock run -F --flock ./f no-such-command 2> said' & \
                          strace=$!; until [ -s pid ]; do sleep 0.01; done; csalock=$(cat pid); \
                          until [ ! -e /proc/$csalock ] || grep -q '^State:.Z' /proc/$csalock/status; do sleep 0.02; done; \
                          cat said; flock -n f echo free; wait $strace";
            let done = sandbox.script("dash", script).capture();
            let said = "csalock: cannot run no-such-command: No such file or directory; check the spelling and `$PATH`; a function of the shell needs `csalock lock`\nfree\n";
            assert_eq!(done.stdout, said);
        }

        fn a_lease_is_renewed_during_a_wait_for_the_file(sandbox: &Sandbox) {
            let mut old = old_holder(sandbox, "f");
            let words = ["run", "--flock", "-w", "inf", "./f", "echo", "ran"];
            let mut next = sandbox.csalock(words).env("CSALOCK_LEASE", "3s").spawn();
            wait_until("it waits for the file", || flocks(sandbox, "f").1 == 1);
            await_renewals(sandbox, &mut next, "renewed_until");
            old.release();
            next.wait().is(0, "ran\n", "");
        }
    }
}

#[test]
fn a_signal_that_comes_with_the_end_of_the_other_lock_ends_the_wait() {
    let sandbox = Sandbox::new(Kind::Directory);
    for options in [&[][..], &["-F"]] {
        let mut old = old_holder(&sandbox, "f");
        let job = waiter(&sandbox, options, &["touch", "ran"]);
        job.send(Signal::SIGSTOP);
        old.release();
        let has_lock = |pid: &i32| proc::stat(*pid).is_some_and(|(state, _)| state == 'Z');
        wait_until("the helper has the lock", || proc::children(job.pid()).iter().any(has_lock));
        job.send(Signal::SIGTERM);
        job.send(Signal::SIGCONT);
        assert_eq!(job.wait().seen_by_shell(), 143);
        assert!(!sandbox.path("files/ran").exists());
        old.wait().exits(0);
    }
}
