//! The lock of a descriptor: `csalock lock --fd 9` in the place of `flock 9`, in every idiom of scripts and in every shell.
//!
//! Each idiom is a script that prints what others see of the lock meanwhile. The real flock(1) must print the same.

use nix::sys::signal::Signal;

use crate::sandbox::{FIRST_PIDS, Job, Sandbox, csalock, has, has_namespaces, proc, shells, wait_until};

/// `look` tells whether flock(1) and two kinds of csalock get the file at once, and `await_free` waits until they do.
const PRELUDE: &str = "\
seen() { case $1 in 0) printf free;; 1|75|84) printf busy;; *) printf %s $1;; esac; }
look() { real_flock -n f true 9>&-; seen $?; csalock run -nq --flock ./f true 9>&-; seen $?; PLAIN; echo; }
await_free() { until real_flock -n f true 9>&-; do sleep 0.01; done; }
";

/// Name, script, and what it prints: `B` and `F` are the lines of a busy and of a free lock.
const IDIOMS: [(&str, &str, &str); 15] = [
    ("subshell", "( lock || exit; look; exit 7 ) 9> f; echo $?; look", "B7\nF"),
    ("braces", "{ lock; look; } 9> f; look", "BF"),
    ("exec", "exec 9> f; lock -n; look; exec 9>&-; look", "BF"),
    ("function with return", "g() { ( lock -n || exit 1; look; return 5 ) 9> f; }; g; echo $?; look", "B5\nF"),
    ("busy", "( lock; ( lock -n; seen $? ) 9> f; : ) 9> f; echo; look", "busy\nF"),
    ("set -e", "SHELL -e -c 'exec 9> f; lock -n; false; echo reached'; look", "F"),
    ("trap", "SHELL -c 'trap look EXIT; exec 9> f; lock -n; exit 3'; echo $?; look", "B3\nF"),
    ("exec of a program", "SHELL -c 'exec 9> f; lock -n; exec SHELL -c \". ./prelude; look\" 9>&9'; look", "BF"),
    (
        "background child keeps",
        "( lock -n; { until [ -e go ]; do sleep 0.01; done; } & ) 9> f; look; : > go; await_free; look",
        "BF",
    ),
    (
        "daemon keeps",
        "( lock -n; setsid sh -c ': > there; until [ -e go ]; do sleep 0.01; done' 9>&9 & ) 9> f; \
         until [ -e there ]; do sleep 0.01; done; look; : > go; await_free; look",
        "BF",
    ),
    ("killed", "SHELL -c 'exec 9> f; lock -n; look; kill -KILL $$'; echo $?; look", "B137\nF"),
    ("number reused", "exec 9> f; lock -n; look; exec 9> g; look", "BF"),
    ("again", "exec 9> f; lock -n; lock -n; echo $?; look", "0\nB"),
    (
        "converted",
        "exec 9> f; lock -s -n; real_flock -s -n f true 9>&-; echo $?; lock -x -n; real_flock -s -n f true 9>&-; echo $?; \
         lock -s -n; csalock run -nq -s --flock ./f true 9>&-; echo $?; look",
        "0\n1\n0\nB",
    ),
    ("unlocked", "exec 9> f; lock -n; unlock; echo $?; look; lock; look; unlock; unlock; echo $?; look", "0\nFB0\nF"),
];

/// Programs whose calls lock descriptor 9. The second is csalock by that name.
const LOCKERS: [&str; 3] = ["csalock", "flock", "real_flock"];

/// What the script prints in this shell, in which it locks the descriptor by this program.
fn printed(sandbox: &Sandbox, shell: &str, script: &str, locker: &str) -> String {
    for mark in ["files/go", "files/there"] {
        let _ = std::fs::remove_file(sandbox.path(mark));
    }
    // This shell closes a descriptor that exec has opened, but not one of a redirection.
    let pass = if shell == "mksh" { "9>&9 " } else { "" };
    let (lock, unlock) = match locker {
        "csalock" => ("csalock lock -q --fd 9 \"$@\"".to_string(), "csalock unlock --fd 9".to_string()),
        flock => (format!("{flock} \"$@\" 9"), format!("{flock} -u 9")),
    };
    let calls = format!("lock() {{ {pass}{lock}; }}\nunlock() {{ {pass}{unlock}; }}\n");
    // A caller without --flock asks only the record, which flock(1) does not know.
    let plain = if locker == "real_flock" { ":" } else { "csalock run -nq ./f true 9>&-; seen $?" };
    sandbox.file("files/prelude", format!("{}{calls}", PRELUDE.replace("PLAIN", plain)));
    let script = script.replace("SHELL -e -c '", "SHELL -e -c '. ./prelude; ");
    let script = script.replace("SHELL -c '", "SHELL -c '. ./prelude; ").replace("SHELL", shell);
    let done = sandbox.script(shell, &format!(". ./prelude; {script}")).capture();
    let complaints: Vec<&str> = done.stderr.lines().filter(|line| !line.contains("Killed")).collect();
    assert_eq!(complaints, [""; 0], "{shell}: {script}");
    done.stdout
        .replace("busybusybusy", "busy")
        .replace("busybusy", "busy")
        .replace("freefreefree", "free")
        .replace("freefree", "free")
}

/// Of exec and functions: this shell keeps copies of a descriptor that a function passes on, with flock(1) too.
const NOT_IN_MKSH: [&str; 2] = ["exec", "number reused"];

fn link_real_flock(sandbox: &Sandbox) {
    let real = ["/usr/bin/flock", "/bin/flock"].into_iter().find(|path| std::fs::exists(path).unwrap()).unwrap();
    std::os::unix::fs::symlink(real, sandbox.path("bin/real_flock")).unwrap();
    std::os::unix::fs::symlink(csalock(), sandbox.path("bin/flock")).unwrap();
}

/// A script that has locked the file by a descriptor, until its stdin ends.
fn holder(sandbox: &Sandbox, options: &str) -> Job {
    sandbox.script("bash", &format!("exec 9> f; csalock lock --fd 9 {options} || exit; echo; read line")).ready()
}

fn waiting(sandbox: &Sandbox) -> usize {
    sandbox.waiting(sandbox.path("files/f").to_str().unwrap())
}

/// A script that waits for the lock of a descriptor, and then prints this word.
fn waiter(sandbox: &Sandbox, word: &str) -> Job {
    let before = waiting(sandbox);
    let job = sandbox.script("dash", &format!("exec 9> f; csalock lock -w inf --fd 9; echo {word}")).spawn();
    wait_until("it waits", || waiting(sandbox) == before + 1);
    job
}

on_every_store_of_files! {
    fn every_idiom_of_a_descriptor_behaves_as_with_flock(sandbox: &Sandbox) {
        require!(has("flock"));
        link_real_flock(sandbox);
        for (name, script, expected) in IDIOMS {
            for shell in shells().filter(|shell| *shell != "mksh" || !NOT_IN_MKSH.contains(&name)) {
                for locker in LOCKERS {
                    let expected = expected.replace('B', "busy\n").replace('F', "free\n");
                    assert_eq!(printed(sandbox, shell, script, locker), expected, "{name}, {shell}, {locker}");
                }
            }
        }
    }

    fn a_descriptor_that_a_shell_closes_is_passed_on_explicitly(sandbox: &Sandbox) {
        for shell in shells() {
            // mksh keeps a copy of a descriptor that it has passed on, and closes it when it ends.
            let free = if shell == "mksh" { "csalock unlock --fd 9 9>&9" } else { "exec 9>&-" };
            let script = format!(
                "exec 9> f; csalock lock --fd 9 -n 9>&9; echo $?; csalock run -nq --flock ./f true; echo $?; \
                 {free}; csalock run -nq --flock ./f true; echo $?"
            );
            sandbox.script(shell, &script).stdout("0\n84\n0\n").run();
        }
        let not_open = "csalock: descriptor 9 is not open; open it first: exec 9> FILE; ksh and mksh pass it on only with 9>&9\n";
        for words in ["lock", "unlock"] {
            sandbox.csalock([words, "--fd", "9"]).status(64).stderr(not_open).run();
        }
    }

    fn the_holder_of_a_descriptor_is_known(sandbox: &Sandbox) {
        let job = holder(sandbox, "--label nightly");
        let sight = sandbox.sight("./f");
        assert_eq!(sight["state"], "held");
        let party = &sight["holders"][0];
        assert_eq!((party["pid"].as_i64(), &party["label"]), (Some(job.pid().into()), &"nightly".into()));
        assert_eq!((&party["alive"], &party["expires"]), (&"yes".into(), &serde_json::Value::Null));
        let page = sandbox.csalock(["status", "./f"]).capture().stdout;
        assert!(page.contains("\nuntil    the last process closes its descriptor\n"), "{page}");
        let busy = sandbox.csalock(["run", "-n", "./f", "true"]).capture();
        busy.says(75, "while a process has its descriptor, for \"nightly\": bash -c");
        let other = sandbox.csalock(["unlock", "./f"]).capture();
        other.says(82, "close its descriptor N, or release it with `csalock unlock --fd N`");
        sandbox.csalock(["unlock", "--all"]).run();
        assert_eq!(sandbox.holders("./f"), [job.pid()]);
        drop(job);
        wait_until("the lock is free", || sandbox.state("./f") == "free");
    }

    fn unlock_all_names_the_lock_of_a_descriptor_if_it_releases_none(sandbox: &Sandbox) {
        let left = "csalock: lock SANDBOX/files/f is that of a descriptor, which --all does not release; close it, or use \
                    `csalock unlock --fd N`\n";
        let script = "exec 9> f; csalock lock --fd 9; csalock unlock --all; csalock status -q ./f; echo $?";
        sandbox.script("dash", script).stdout("0\n").stderr(left).run();
        // The store is beside the file, and the script is elsewhere.
        let script = script.replace("csalock unlock", "cd /; csalock unlock").replace("./f", "$OLDPWD/f");
        sandbox.script("dash", &script).without("CSALOCK_STORE").stdout("0\n").stderr(left).run();
        let script = "exec 9> f; csalock lock --fd 9; csalock lock x; csalock unlock --all; csalock unlock --fd 9; csalock unlock --all";
        sandbox.script("dash", script).run();
    }

    fn the_processes_that_have_the_descriptor_are_named_when_the_script_has_ended(sandbox: &Sandbox) {
        // The group of the call is killed at its end.
        let script = "( csalock lock --fd 9 -n; setsid sh -c 'echo $$ > pid; exec sleep 1000' > out 2>&1 & ) 9> f; \
                      until [ -s pid ]; do sleep 0.01; done; cat pid";
        let child = sandbox.script("dash", script).capture().line();
        wait_until("it runs", || proc::program(child.parse().unwrap()) == "sleep");
        assert_eq!(sandbox.state("./f"), "held");
        assert_eq!(sandbox.sight("./f")["file_locked_by"][0]["pid"].to_string(), child);
        let busy = sandbox.csalock(["run", "-n", "./f", "true"]).capture();
        busy.says(75, &format!("its file is locked with flock(2), as flock(1) does it, by pid {child}: sleep 1000"));
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.parse().unwrap()), Signal::SIGKILL).unwrap();
        wait_until("the lock is free", || sandbox.state("./f") == "free");
        sandbox.csalock(["run", "-n", "./f", "true"]).run();
    }

    fn callers_wait_for_a_descriptor_in_order_of_arrival(sandbox: &Sandbox) {
        let first = holder(sandbox, "");
        let waiters = ["1", "2", "3"].map(|word| waiter(sandbox, word));
        let last = sandbox.csalock(["run", "-w", "inf", "./f", "echo", "4"]).spawn();
        wait_until("all wait", || waiting(sandbox) == 4);
        drop(first);
        for (job, word) in waiters.into_iter().chain([last]).zip(["1", "2", "3", "4"]) {
            job.wait().is(0, &format!("{word}\n"), "");
        }
        assert_eq!(sandbox.state("./f"), "free");
    }

    fn readers_share_a_file_by_descriptors_and_a_writer_has_it_alone(sandbox: &Sandbox) {
        let readers = [holder(sandbox, "-s"), holder(sandbox, "-s")];
        sandbox.csalock(["run", "-n", "-s", "--flock", "./f", "true"]).run();
        sandbox.csalock(["run", "-nq", "./f", "true"]).status(75).run();
        let [one, other] = readers;
        let next = waiter(sandbox, "in");
        drop(one);
        wait_until("one reader is left", || sandbox.holders("./f").len() == 1);
        drop(other);
        next.wait().is(0, "in\n", "");
    }

    fn a_descriptor_waits_for_users_of_flock_and_they_wait_for_it(sandbox: &Sandbox) {
        require!(has("flock"));
        let mut old = sandbox.call("flock", ["-F", "f", "cat"]).spawn();
        wait_until("its command runs", || proc::program(old.pid()) == "cat");
        let busy = "csalock: lock SANDBOX/files/f is busy: its file is locked with flock(2), as flock(1) does it, by pid \
                    PID: cat; wait longer with -w, or see lslocks(8)\n";
        for options in ["-n", "-v -n", "-w 0", "-w 10ms"] {
            let script = format!("exec 9> f; csalock lock {options} --fd 9");
            sandbox.script("dash", &script).status(75).stderr(busy).run();
            assert_eq!(sandbox.state("./f"), "free", "{options}");
        }
        let next = sandbox.script("dash", "exec 9> f; csalock lock --fd 9 -w inf; echo in; read line").spawn();
        wait_until("it waits", || sandbox.state("./f") == "held");
        old.release();
        old.wait().succeeds();
        let mut next = next;
        assert_eq!(next.lines(1), ["in"]);
        sandbox.call("flock", ["-n", "f", "true"]).status(1).run();
        let last = sandbox.call("flock", ["f", "echo", "last"]).spawn();
        next.release();
        last.wait().is(0, "last\n", "");
    }

    fn a_script_that_holds_the_file_is_told_so(sandbox: &Sandbox) {
        let script = "exec 9> f; csalock lock --fd 9; csalock run -w 1h ./f true; echo $?; csalock unlock ./f; echo $?";
        let done = sandbox.script("bash", script).capture();
        assert_eq!(done.stdout, "84\n82\n");
        assert_eq!(done.stderr.matches("csalock unlock --fd N").count(), 2, "{}", done.stderr);
    }

    fn a_script_waits_for_what_it_has_handed_on(sandbox: &Sandbox) {
        for gives in ["exec 9> f; csalock lock -n --fd 9; child 9>&9 & exec 9>&-", "( csalock lock -n --fd 9; child & ) 9> f"] {
            let script = format!(
                "child() {{ until [ -e go ]; do sleep 0.01; done; }}; {gives}
                 csalock run -nq ./f true; echo $?; csalock lock -nq --fd 8 8> f; echo $?
                 csalock run -w inf ./f echo in & until csalock status ./f | grep -q ^waiter; do sleep 0.01; done; : > go; wait; rm go"
            );
            sandbox.script("bash", &script).stdout("75\n75\nin\n").run();
        }
    }

    fn a_lock_that_cannot_be_seen_from_a_container_is_tried_by_the_next_caller(sandbox: &Sandbox) {
        let inside = |shell: &str, text: &str| sandbox.script(shell, text).env(FIRST_PIDS, "1");
        let holder = inside("bash", "exec 9> f; csalock lock --fd 9 || exit; echo; read line").ready();
        for words in [&["run", "-nq", "./f", "true"][..], &["run", "-q", "-w", "50ms", "--flock", "./f", "true"]] {
            sandbox.csalock(words).env(FIRST_PIDS, "1").status(75).run();
        }
        let next = sandbox.csalock(["run", "-w", "inf", "./f", "echo", "in"]).env(FIRST_PIDS, "1").spawn();
        wait_until("it waits", || waiting(sandbox) == 1);
        drop(holder);
        next.wait().is(0, "in\n", "");
        inside("bash", "exec 9> f; csalock lock -n --fd 9; exec 9>&-; csalock lock -n ./f").run();
    }

    fn a_lock_of_flock_gets_a_record_and_an_unrecorded_one_is_not_taken_for_it(sandbox: &Sandbox) {
        require!(has("flock"));
        link_real_flock(sandbox);
        let script = "exec 9> f; real_flock 9; csalock lock -n --fd 9 && echo in; real_flock -n f true; echo $?; read line";
        let mut holder = sandbox.script("bash", script).spawn();
        assert_eq!(holder.lines(2), ["in", "1"]);
        sandbox.csalock(["run", "-nq", "./f", "true"]).status(75).run();
        holder.release();
        holder.wait().exits(1);
        // Another caller has the record meanwhile.
        let mut other = sandbox.holder("./f");
        let script = "exec 9> f; real_flock 9; csalock lock -nq --fd 9; echo $?; csalock lock -w inf --fd 9; echo $?";
        let mut waiter = sandbox.script("bash", script).spawn();
        assert_eq!(waiter.lines(1), ["75"]);
        wait_until("it waits", || waiting(sandbox) == 1);
        other.release();
        assert_eq!(waiter.lines(2)[1], "0");
    }

    fn a_list_of_locks_that_is_hidden_does_not_free_a_descriptor(sandbox: &Sandbox) {
        require!(has_namespaces("mounts"));
        let holder = holder(sandbox, "");
        let hidden = "mount --bind /dev/null /proc/locks && csalock run -nq ./f true; echo $?";
        sandbox.call("unshare", ["-m", "dash", "-c", hidden]).stdout("75\n").run();
        drop(holder);
        sandbox.call("unshare", ["-m", "dash", "-c", hidden]).stdout("0\n").run();
    }

    fn in_a_container_the_removal_of_the_file_ends_no_wait_and_blocks_no_caller(sandbox: &Sandbox) {
        let inside = |text: &str| sandbox.script("bash", text).env(FIRST_PIDS, "1");
        let mut holder = inside("exec 9> f; csalock lock --fd 9; echo; read line; rm f; echo; read line").ready();
        let lock = "exec 9> f; csalock lock -n --fd 9 && echo";
        let next = inside("exec 9> f; csalock lock -w inf --fd 9 && echo next").spawn();
        wait_until("it waits", || waiting(sandbox) == 1);
        holder.tell("");
        holder.lines(1);
        // The kernel locks the removed file for both.
        drop(holder);
        next.wait().is(0, "next\n", "");
        inside(&format!("{lock} a; exec 9>&-; rm f; {lock} b; rm f; {lock} c")).stdout("a\nb\nc\n").run();
        inside(&format!("{lock} a; exec 9>&-; rm f; csalock run -n ./f echo b; csalock run -n --flock ./f echo c"))
            .stdout("a\nb\nc\n")
            .run();
    }

    fn in_a_container_callers_at_the_same_time_do_not_wait_for_each_other(sandbox: &Sandbox) {
        for _ in 0..10 {
            let call = "( csalock lock -q -w inf --fd 9 || exit; echo in ) 9> f";
            let jobs: Vec<Job> = (0..8).map(|_| sandbox.script("dash", call).env(FIRST_PIDS, "1").spawn()).collect();
            jobs.into_iter().for_each(|job| job.wait().is(0, "in\n", ""));
        }
    }

    fn a_file_without_a_name_is_locked_all_the_same(sandbox: &Sandbox) {
        let script = "exec 9> f; rm f; csalock lock --fd 9 -n && echo; read line";
        let mut holder = sandbox.script("bash", script).ready();
        let again = format!("exec 8> /proc/{}/fd/9; csalock lock --fd 8 -n; echo $?", holder.pid());
        let done = sandbox.script("bash", &again).capture();
        assert_eq!(done.stdout, "75\n");
        assert_eq!(done.stderr, "csalock: the descriptor's file is locked with flock(2); see lslocks(8)\n");
        holder.release();
        holder.wait().exits(1);
        let said = "csalock: descriptor 9 gets no record, because its file has no path\n";
        sandbox.script("dash", "exec 9> f; rm f; csalock lock -v --fd 9").stderr(said).run();
        assert!(!sandbox.store_exists());
    }

    fn no_user_of_a_file_loses_a_count(sandbox: &Sandbox) {
        require!(has("flock"));
        link_real_flock(sandbox);
        sandbox.file("files/f", "");
        sandbox.file("files/count", "0\n");
        let times = sandbox.many(50);
        let count = "n=$(cat count); echo $((n + 1)) > count";
        let each = |locked: &str| {
            let script = format!("i=0; while [ $i -lt {times} ]; do i=$((i + 1)); {locked} || exit; done");
            sandbox.script("dash", &script).spawn()
        };
        let by_descriptor = format!("( csalock lock -w inf --fd 9 && {count} ) 9> f");
        let ways = [
            by_descriptor.clone(),
            by_descriptor,
            format!("( real_flock 9 && {count} ) 9> f"),
            format!("( flock 9 && {count} ) 9> f"),
            format!("flock f dash -c '{count}'"),
            format!("csalock run --flock -w inf ./f dash -c '{count}'"),
        ];
        let jobs: Vec<Job> = ways.iter().map(|way| each(way)).collect();
        jobs.into_iter().for_each(|job| job.wait().succeeds());
        assert_eq!(sandbox.read("files/count"), format!("{}\n", ways.len() * times));
        // Callers that ask only the record, which flock(1) does not know.
        sandbox.file("files/count", "0\n");
        let plain = [
            format!("csalock run -w inf ./f dash -c '{count}'"),
            format!("csalock lock -w inf ./f && {count} && csalock unlock ./f"),
        ];
        let jobs: Vec<Job> = ways[..2].iter().chain(&plain).map(|way| each(way)).collect();
        jobs.into_iter().for_each(|job| job.wait().succeeds());
        assert_eq!(sandbox.read("files/count"), format!("{}\n", 4 * times));
        assert_eq!(sandbox.state("./f"), "free");
    }

    fn options_that_a_descriptor_cannot_have_are_refused(sandbox: &Sandbox) {
        for option in [&["--ttl", "1s"][..], &["--forever"], &["--pid", "1"], &["-j", "2"], &["--print-handle"], &["x"]] {
            let done = sandbox.csalock([&["lock", "--fd", "1"], option].concat()).capture();
            assert_eq!(done.code, Some(64), "{option:?}: {done:?}");
        }
        let done = sandbox.csalock(["lock", "--json", "--fd", "1"]).capture();
        assert!(done.code == Some(64) && done.stdout.contains("--fd has no handle to print"), "{done:?}");
        assert!(!sandbox.store_exists());
    }
}

on_every_shared_store! {
    fn a_descriptor_of_a_file_of_this_host_is_refused_where_other_hosts_use_the_store(sandbox: &Sandbox) {
        let refusal = format!(
            "csalock: flock(2) on SANDBOX/files/f excludes only this host, and other hosts share the store {}; lock the path \
             without --fd, or name a store of this host with --store\n",
            sandbox.plain(&sandbox.store())
        );
        sandbox.script("dash", "exec 9> f; csalock lock --fd 9").status(64).stderr(refusal).run();
        sandbox.script("dash", "exec 9> f; csalock unlock --fd 9").run();
        assert!(!sandbox.store_exists());
    }
}
