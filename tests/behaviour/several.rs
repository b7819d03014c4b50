//! Several names at once: all of them or none, whatever the order they are named in.

use nix::errno::Errno;
use nix::libc;

use crate::sandbox::{Job, Kind, Sandbox, has, has_namespaces, skip, steps, wait_until};
use crate::syscalls::tracer::{Fault, Made, Point, trace};

/// A holder of these names until it is told to end.
fn holder(sandbox: &Sandbox, names: &[&str]) -> Job {
    let (first, others) = names.split_first().unwrap();
    let mut words = vec!["run", *first];
    others.iter().for_each(|name| words.extend(["--also", *name]));
    words.extend(["--", "sh", "-c", "echo in; read line; :"]);
    sandbox.csalock(words).spawn()
}

fn holding(sandbox: &Sandbox, names: &[&str]) -> Job {
    let mut job = holder(sandbox, names);
    job.lines(1);
    job
}

fn states(sandbox: &Sandbox, names: &[&str]) -> Vec<String> {
    names.iter().map(|name| sandbox.state(name)).collect()
}

/// A caller that wants both names and keeps a while it waits for b; and the holder of b, which does this when it is
/// released.
fn keeping_a(sandbox: &Sandbox, words: &str, then: &str) -> (Job, Job) {
    let b = sandbox.csalock(["run", "b", "sh", "-c", &format!("echo in; read line; {then}")]).ready();
    let both = sandbox.script("dash", &format!("csalock {words}; exit $?")).spawn();
    wait_until("it keeps a", || sandbox.state("a") == "held" && sandbox.waiters("b").len() == 1);
    (both, b)
}

/// The supervisor releases each lock once, even if it first lacks a descriptor for one of them.
#[test]
fn a_release_that_lacks_a_descriptor_once_is_no_loss_of_the_other_lock() {
    if !cfg!(target_arch = "x86_64") {
        return skip("a call that fails", "only on x86-64 it is known how to make it fail");
    }
    let sandbox = Sandbox::new(Kind::Directory);
    let run = |point| trace(sandbox.csalock(["run", "x", "--also", "y", "true"]).into_command(), point);
    run(None);
    let calls = run(None).made;
    let (number, fault) = (libc::SYS_openat as u64, Fault::Fails(Errno::EMFILE));
    let opens_x = |made: &Made| made.number == number && made.path == "x";
    let call = calls[0].iter().rposition(opens_x).expect("the release opens the directory of the record");
    let disturbed = run(Some(Point { process: 0, call, number, fault }));
    assert!(disturbed.met.as_ref().is_some_and(opens_x), "{:?}", disturbed.met);
    assert_eq!((disturbed.status.code(), disturbed.stderr.as_str()), (Some(0), ""));
    assert_eq!(states(&sandbox, &["x", "y"]), ["free", "free"]);
}

on_every_store! {
    fn several_names_are_acquired_all_or_none(sandbox: &Sandbox) {
        let other = holding(sandbox, &["b"]);
        for words in [
            &["lock", "-n", "a", "b", "c"][..],
            &["lock", "-w", "50ms", "c", "b", "a"],
            &["run", "-n", "a", "--also", "c", "--also=b", "true"],
            &["run", "--also", "b", "-n", "a", "true"],
        ] {
            let done = sandbox.csalock(words).capture();
            assert_eq!((done.code, done.stdout.as_str()), (Some(75), ""), "{words:?}");
            assert!(sandbox.plain(&done.stderr).starts_with("csalock: lock b in store STORE is busy: held by pid "), "{}", done.stderr);
            assert_eq!(states(sandbox, &["a", "b", "c"]), ["free", "held", "free"]);
        }
        other.wait().exits(0);
        let script = "h=$(csalock lock --print-handle c a b) && csalock status -1 | sort && csalock unlock --handle $h a b c && csalock status -1";
        sandbox.script("dash", script).stdout("a\nb\nc\n").run();
    }

    /// Before the name, clap refuses such a value.
    fn an_option_is_not_taken_for_the_value_of_an_option_after_the_name(sandbox: &Sandbox) {
        for words in [
            &["run", "a", "--also", "-n", "touch", "ran"][..],
            &["run", "a", "--also", "b", "--also", "--", "touch", "ran"],
            &["run", "a", "--also"],
            &["run", "--also", "-n", "a", "touch", "ran"],
            &["run", "a", "-c", "-n"],
            &["run", "a", "--also", "b", "-c", "-n"],
            &["run", "-c", "-n", "a"],
        ] {
            let done = sandbox.csalock(words).capture();
            assert!(done.code == Some(64) && done.stderr.lines().count() == 1, "{words:?} {done:?}");
        }
        assert!(!sandbox.path("files/ran").exists());
        sandbox.csalock(["run", "a", "--also=-n", "--", "csalock", "status", "-1"]).stdout("-n\na\n").run();
    }

    fn one_handle_proves_all_grants_and_releases_some(sandbox: &Sandbox) {
        let script = "h=$(csalock lock --print-handle a b c)
                      env - PATH=\"$PATH\" CSALOCK_STORE=\"$CSALOCK_STORE\" CSALOCK_HANDLE=$h setsid -w csalock unlock b
                      csalock status -1 | sort; echo; csalock unlock a; csalock status -1; echo; csalock unlock --all; csalock status -1";
        sandbox.script("dash", script).stdout("a\nc\n\nc\n\n").run();
    }

    fn a_name_given_twice_is_acquired_once(sandbox: &Sandbox) {
        sandbox.script("dash", "csalock lock a a b a > /dev/null; csalock status -1 | sort; csalock unlock a b").stdout("a\nb\n").run();
        sandbox.csalock(["run", "a", "--also", "a", "--", "csalock", "status", "-1"]).stdout("a\n").run();
    }

    fn the_json_of_several_has_all_names(sandbox: &Sandbox) {
        let said = sandbox.script("dash", "csalock lock --json b a").capture().stdout;
        let json: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(json["names"], serde_json::json!(["a", "b"]));
        assert!(json.get("name").is_none());
        assert_eq!((&json["expires"], &json["took_over"]), (&serde_json::Value::Null, &serde_json::Value::Null));
        let tokens: Vec<u64> = json["tokens"].as_array().unwrap().iter().map(|token| token.as_u64().unwrap()).collect();
        assert_eq!(json["token"].as_u64(), tokens.iter().max().copied());
        assert_eq!(json["handle"].as_str().unwrap().len(), 32);
    }

    fn the_command_is_told_the_first_name(sandbox: &Sandbox) {
        let said = sandbox.csalock(["run", "z", "--also", "a", "--", "sh", "-c", "echo $CSALOCK_NAME; csalock unlock a z && csalock status -1"]);
        said.stdout("z\n").run();
    }

    fn a_waiter_for_several_keeps_the_names_before_the_one_it_waits_for(sandbox: &Sandbox) {
        for order in [["a", "b", "c"], ["c", "b", "a"]] {
            let mut other = holding(sandbox, &["b"]);
            let mut both = holder(sandbox, &order);
            wait_until("it waits for b", || sandbox.waiters("b").len() == 1);
            assert_eq!(states(sandbox, &["a", "b", "c"]), ["held", "held", "free"]);
            sandbox.csalock(["run", "-n", "c", "true"]).run();
            other.release();
            both.lines(1);
            assert_eq!(states(sandbox, &["a", "b", "c"]), ["held", "held", "held"]);
            both.wait().exits(0);
        }
    }

    fn several_locks_are_acquired_in_the_end_though_others_are_always_faster(sandbox: &Sandbox) {
        // One of the two is nearly always taken.
        let script = "while [ ! -e done ]; do csalock run $0 sleep 0.02; done";
        let busy: Vec<Job> = ["a", "a", "b", "b"].iter().map(|name| {
            sandbox.call("dash", ["-c", script, *name]).spawn()
        }).collect();
        for _ in 0..3 {
            sandbox.csalock(["run", "-w", "20s", "b", "--also", "a", "true"]).run();
        }
        sandbox.file("files/done", "");
        busy.into_iter().for_each(|job| job.wait().exits(0));
    }

    fn opposite_orders_never_block_each_other(sandbox: &Sandbox) {
        let times = sandbox.many(100).max(20);
        let script = format!(
            "i=0; while [ $i -lt {times} ]; do i=$((i + 1)); h=$(csalock lock --print-handle $0 $1) || exit; \
             csalock unlock $0 $1 || exit; csalock run $1 --also $0 true || exit; done"
        );
        let jobs: Vec<Job> = [["a", "b"], ["b", "a"]].iter().map(|order| {
            sandbox.call("dash", [&["-c", script.as_str()], &order[..]].concat()).spawn()
        }).collect();
        jobs.into_iter().for_each(|job| job.wait().succeeds());
        assert_eq!(states(sandbox, &["a", "b"]), ["free", "free"]);
    }

    fn the_leases_begin_when_all_locks_are_acquired(sandbox: &Sandbox) {
        let mut other = holding(sandbox, &["b"]);
        let both = sandbox.csalock(["run", "--ttl", "2s", "a", "--also", "b", "--", "sh", "-c", "csalock status --json a b"]).spawn();
        wait_until("it waits for b", || sandbox.waiters("b").len() == 1);
        other.release();
        let done = both.wait();
        assert_eq!(done.code, Some(0), "{done:?}");
        let sights: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        let ends = |at: usize| sights[at]["holders"][0]["expires"].as_str().unwrap()[..19].to_string();
        assert!(!ends(0).is_empty() && !ends(1).is_empty());
    }

    fn locks_kept_during_a_wait_outlast_any_lease(sandbox: &Sandbox) {
        for words in ["lock -w inf --ttl 400ms a b > handle", "run -w inf --ttl 400ms a --also b -- true"] {
            let (both, mut b) = keeping_a(sandbox, words, ":");
            sandbox.csalock(["run", "-q", "-w", "2500ms", "a", "true"]).status(75).run();
            b.release();
            both.wait().succeeds();
            sandbox.csalock(["run", "-q", "-w", "5s", "a", "true"]).run();
        }
    }

    fn a_waiter_that_loses_a_kept_lock_continues_to_wait(sandbox: &Sandbox) {
        for words in ["lock -w inf a b > handle", "run -w inf a --also b -- true"] {
            let (both, mut b) = keeping_a(sandbox, words, ":");
            sandbox.csalock(["unlock", "--force", "a"]).capture().exits(0);
            let mut a = holding(sandbox, &["a"]);
            b.release();
            wait_until("it waits for a", || sandbox.waiters("a").len() == 1);
            a.release();
            both.wait().succeeds();
            sandbox.csalock(["run", "-qn", "a", "--also", "b", "true"]).run();
        }
    }

    fn a_caller_that_keeps_a_lock_during_its_wait_may_be_in_a_cycle(sandbox: &Sandbox) {
        let (both, b) = keeping_a(sandbox, "run -w inf --ttl 1h a --also b -- true", "csalock run -w 20s a true; exit $?");
        b.wait().exits(84);
        both.wait().exits(0);
    }

    fn unlock_all_releases_all_grants_of_the_caller(sandbox: &Sandbox) {
        let script = "csalock lock a b ./file > /dev/null
                      mkdir -p other gone; csalock lock ./other/file ./gone/file > /dev/null; rm -r gone
                      dash -c 'csalock lock ./other/theirs; echo; read line' < end > began & until [ -s began ]; do sleep 0.01; done
                      (cd /; csalock unlock --all; echo $?)
                      csalock status -1 | grep -v theirs; csalock status ./file > /dev/null; echo $?; csalock status ./other/file > /dev/null; echo $?
                      csalock status ./other/theirs > /dev/null; echo $?; echo > end; wait
                      csalock lock ./other/file; csalock unlock --all ./other/file; csalock status ./other/file > /dev/null; echo $?";
        let script = &format!("mkfifo end; exec 8<> end; {script}; rm end");
        // With a chosen store, the locks of files are in it too.
        sandbox.script("dash", script).stdout("0\n81\n81\n0\n81\n").run();
        // Root's own default store is the machine's.
        let own = format!("mount -t tmpfs none /var/lib || exit; {script}");
        let is_root = nix::unistd::geteuid().is_root();
        if is_root && !has_namespaces("the default store of root") {
            return;
        }
        let call = if is_root { sandbox.call("unshare", ["-m", "dash", "-c", &own]) } else { sandbox.script("dash", script) };
        let created = "csalock: created the store dir:SANDBOX/state/csalock, where XDG_STATE_HOME says; cron may not have this \
                       variable, so set CSALOCK_STORE in both\n";
        call.without("CSALOCK_STORE").stdout("0\n81\n81\n0\n81\n").stderr(if is_root { "" } else { created }).run();
    }

    fn unlock_all_leaves_the_lock_that_the_script_was_started_under(sandbox: &Sandbox) {
        sandbox.program("files/child", "#!/bin/sh\ncsalock lock inner > /dev/null\ncsalock unlock --all\n");
        let script = "csalock run outer sh -c './child; csalock status -1; :'";
        sandbox.script("dash", script).stdout("outer\n").run();
    }

    fn unlock_all_leaves_the_enclosing_lock_even_if_the_script_is_the_command(sandbox: &Sandbox) {
        for run in ["run outer --also other --", "run -F outer"] {
            let script = format!("csalock {run} sh -c 'csalock lock inner > /dev/null; csalock unlock --all; csalock status -1 inner outer; :'");
            let said = sandbox.script("dash", &script).capture();
            assert_eq!(said.stdout, "inner\nouter\n", "{run}");
            let script = format!("csalock {run} sh -c 'csalock lock inner > /dev/null; csalock unlock --all; csalock status inner > /dev/null; echo $?; csalock status outer > /dev/null; echo $?'");
            let said = sandbox.script("dash", &script).capture();
            assert_eq!(said.stdout, "81\n0\n", "{run}");
        }
    }

    fn unlock_all_releases_every_grant_of_the_script_and_of_no_other(sandbox: &Sandbox) {
        let script = "csalock lock -s r; csalock lock -s r; csalock lock -j 2 q; csalock lock -j 2 q; csalock status -1 | sort; csalock unlock --all; csalock status -1";
        sandbox.script("dash", script).stdout("q\nr\n").run();
        let script = "csalock lock a > /dev/null; (csalock lock b > /dev/null; csalock unlock --all; csalock status -1) & wait";
        sandbox.script("dash", script).stdout("a\n").run();
        sandbox.script("dash", "csalock unlock --all").run();
    }

    fn a_caller_killed_during_its_wait_keeps_no_lock(sandbox: &Sandbox) {
        let busy = "while [ ! -e done ]; do csalock run -w inf $0 sleep 0.005; done";
        let busy: Vec<Job> = ["a", "b", "a", "b"].iter().map(|name| sandbox.call("dash", ["-c", busy, *name]).spawn()).collect();
        for round in 0..15 {
            let script = "csalock lock -w inf a b > /dev/null & sleep $0; kill -9 $!; wait $!; echo $?; read line";
            let mut job = sandbox.call("dash", ["-c", script, &format!("0.0{:02}", 7 * round % 100)]).spawn();
            let code = job.lines(1)[0].clone();
            let holds = |name: &str| sandbox.holders(name).contains(&job.pid());
            if code == "137" {
                wait_until("the script holds both or neither", || holds("a") == holds("b"));
            }
            drop(job);
        }
        sandbox.file("files/done", "");
        busy.into_iter().for_each(|job| job.wait().exits(0));
    }

    fn a_caller_killed_at_any_step_has_all_or_none(sandbox: &Sandbox) {
        require!(has("strace"));
        // An action that changes locks of others, or that runs now and then meanwhile.
        let calls = match sandbox.kind() {
            Kind::Directory | Kind::Shared => ["renameat", "unlinkat"],
            Kind::Sqlite => ["unlink", "fcntl"],
            Kind::Etcd | Kind::Postgres | Kind::Ssh => ["sendto", "write"],
        };
        let (mut all, mut none) = (0, 0);
        for (call, option) in calls.iter().flat_map(|call| [(call, ""), (call, "--print-handle")]) {
            for step in steps() {
                let script = format!("strace -D -o trace -e inject={call}:signal=KILL:when={step} csalock lock -q {option} b c a > handle 2>&1
                                      echo $?; read line");
                let mut job = sandbox.script("dash", &script).spawn();
                let code = job.lines(1)[0].clone();
                let held: Vec<bool> = ["a", "b", "c"].iter().map(|name| {
                    let sight = sandbox.sight(name);
                    sight["holders"][0]["pid"] == job.pid() && sight["state"] == "held"
                }).collect();
                assert!(held.iter().all(|each| *each == held[0]), "killed at {call} {step}: {code} {held:?}");
                *(if held[0] { &mut all } else { &mut none }) += 1;
                // The next caller is not blocked.
                let next = sandbox.csalock(["run", "-q", "-n", "a", "--also", "b", "--also", "c", "true"]).capture();
                assert_eq!(next.code, Some(if held[0] { 75 } else { 0 }), "killed at {call} {step}: {next:?}");
                job.kill();
                if code != "137" {
                    assert_eq!(code, "0");
                    break;
                }
            }
        }
        // On etcd, only two requests follow the commit.
        let least = if sandbox.is_of_files() { 3 } else { 2 };
        assert!(all >= least && none > 2, "{all} {none}");
        assert!(sandbox.is_tidy());
    }

    fn odd_values_are_usage_errors(sandbox: &Sandbox) {
        for words in [&["run", "a", "--also"][..], &["run", "a", "--also", "b"], &["run", "a", "--also", "", "true"], &["lock", "a", ""]] {
            let done = sandbox.csalock(words).capture();
            assert_eq!((done.code, done.stdout.as_str()), (Some(64), ""), "{words:?}");
            assert!(done.stderr.starts_with("csalock: "), "{words:?} {}", done.stderr);
        }
        assert_eq!(states(sandbox, &["a", "b"]), ["free", "free"]);
    }
}

#[test]
fn stores_that_some_callers_know_by_another_path_are_taken_in_one_order() {
    require!(has_namespaces("bind mounts"));
    let sandbox = Sandbox::new(Kind::Directory);
    ["m", "z", "a"].iter().for_each(|name| std::fs::create_dir(sandbox.path(format!("files/{name}"))).unwrap());
    ["m/f", "z/g"].iter().for_each(|name| drop(sandbox.file(&format!("files/{name}"), "")));
    let script = |second: &str| {
        format!(
            "mount --bind z a || exit; for round in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do \
             csalock run -q -w 60s $PWD/m/f --also $PWD/{second} -- sleep 0.005 || exit; done"
        )
    };
    let begun = std::time::Instant::now();
    let alone = ["unshare", "-m", "dash", "-c"].map(str::to_string);
    let jobs: Vec<_> = ["z/g", "a/g"]
        .iter()
        .cycle()
        .take(6)
        .map(|second| {
            let words = [&alone[1..], &[script(second)]].concat();
            sandbox.call(&alone[0], &words).without("CSALOCK_STORE").spawn()
        })
        .collect();
    jobs.into_iter().for_each(|job| job.wait().exits(0));
    println!("{:?}", begun.elapsed());
}
