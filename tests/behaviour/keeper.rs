//! On stores that other hosts may share, the keeper of a live owner renews a lease in the background, unnoticed.

use crate::sandbox::proc::{keepers, lives, program};
use crate::sandbox::{Kind, Sandbox, has, is_root, wait_until};

on_every_shared_store! {
    fn a_lease_that_could_not_be_renewed_for_lack_of_descriptors_is_refused(sandbox: &Sandbox) {
        let said = "csalock: a lock with a lease needs 20 open files for its renewal, and the limit is 19; raise the limit of open files (ulimit -n)\n";
        let with_limit = |limit, call: &str| {
            let done = sandbox.script("dash", &format!("ulimit -n {limit}; {call}")).env("CSALOCK_LEASE", "3s").capture();
            (done.code, done.stdout, done.stderr)
        };
        for call in ["csalock run x echo began", "csalock run -F x echo began", "csalock lock x"] {
            assert_eq!(with_limit(19, call), (Some(71), String::new(), said.to_string()), "{call}");
        }
        let calls = "csalock run x sleep 4 && csalock lock y && sleep 4 && csalock unlock y && csalock run -F z sleep 4";
        assert_eq!(with_limit(20, calls), (Some(0), String::new(), String::new()));
    }

    fn a_lease_that_is_renewed_is_never_seen_to_be_over(sandbox: &Sandbox) {
        let job = sandbox.script("dash", "csalock lock x; echo; cat; :").env("CSALOCK_LEASE", "3s").ready();
        let (mut ends, mut renewals) = (None, 0);
        wait_until("it was renewed three times", || {
            let sight = sandbox.sight("x");
            assert_eq!(sight["state"], "held", "{sight}");
            sandbox.csalock(["lock", "-qn", "--fail-on-stale", "x"]).capture().exits(75);
            let seen = sight["holders"][0]["renewed_until"].as_str().unwrap().to_string();
            let before = ends.replace(seen.clone());
            renewals += usize::from(before.is_some_and(|before| before != seen));
            renewals == 3
        });
        job.wait().exits(0);
    }

    fn a_lease_that_is_not_due_is_not_renewed_during_a_release(sandbox: &Sandbox) {
        let job = sandbox.script("dash", "csalock lock x y > /dev/null; csalock unlock x; echo; cat; :").ready();
        let before = sandbox.stored();
        for _ in 0..10 {
            assert_eq!(sandbox.state("y"), "held");
            assert_eq!(sandbox.stored(), before);
        }
        job.wait().exits(0);
    }

    fn the_keeper_of_a_script_and_its_parent_replace_each_other(sandbox: &Sandbox) {
        let mut job = sandbox.script("dash", "csalock lock x; echo; read line; csalock unlock x; echo $?; read line").env("CSALOCK_LEASE", "3s").ready();
        let of_sandbox = format!("CSALOCK_STORE={}", sandbox.store());
        let named = |name: &str| -> Vec<i32> {
            let all = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            let is_ours = |pid: &i32| {
                let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                environment.split(|byte| *byte == 0).any(|variable| variable == of_sandbox.as_bytes())
            };
            all.filter(|pid| program(*pid) == name && lives(*pid) && is_ours(pid)).collect()
        };
        let both = ["csalock-keeper", "csalock-parent"];
        for round in 0..4 {
            wait_until("there are both", || both.iter().all(|name| named(name).len() == 1));
            let [one, other] = both.map(|name| named(name)[0]);
            let killed = if round % 2 == 0 { one } else { other };
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(killed), nix::sys::signal::Signal::SIGKILL).unwrap();
            wait_until("it is replaced", || {
                let now: Vec<i32> = both.iter().flat_map(|name| named(name)).collect();
                now.len() == 2 && !now.contains(&killed)
            });
            let ends = || sandbox.sight("x")["holders"][0]["renewed_until"].to_string();
            let before = ends();
            wait_until("the lease is renewed", || ends() != before);
            sandbox.csalock(["lock", "-qn", "--fail-on-stale", "x"]).capture().exits(75);
        }
        job.tell("go");
        assert_eq!(job.lines(2)[1], "0");
        wait_until("both have ended", || both.iter().all(|name| named(name).is_empty()));
    }

    fn a_killed_keeper_is_replaced_and_a_finished_keeper_is_not(sandbox: &Sandbox) {
        let mut job = sandbox.csalock(["run", "x", "dash", "-c", "read line; csalock unlock x; echo; cat"]).spawn();
        wait_until("there is one", || keepers(job.pid()).len() == 1);
        let first = keepers(job.pid())[0];
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(first), nix::sys::signal::Signal::SIGKILL).unwrap();
        wait_until("there is another one", || keepers(job.pid()).iter().any(|pid| *pid != first));
        job.tell("go");
        job.lines(1);
        wait_until("it ends", || keepers(job.pid()).is_empty());
        job.wait().exits(0);
    }
}

#[test]
fn a_limit_of_processes_that_leaves_none_for_the_command_is_named() {
    require!(is_root("a limit of processes") && has("prlimit"));
    let sandbox = Sandbox::new(Kind::Directory);
    // No other test has processes of this user.
    let user = 4198;
    std::fs::create_dir(sandbox.path("mine")).unwrap();
    std::os::unix::fs::chown(sandbox.path("mine"), Some(user), Some(user)).unwrap();
    let words = ["--nproc=1:1", "csalock", "run", "x", "echo", "ran"];
    let done = sandbox.call("prlimit", words).env("CSALOCK_STORE", sandbox.store_at("mine/store")).user(user).capture();
    let said = "csalock: cannot start echo: Try again; raise the limit of processes (ulimit -u, or pids.max of its cgroup), \
                or try again later\n";
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (Some(71), "", said));
}

#[test]
fn a_keeper_for_which_there_is_no_process_is_named_and_nothing_is_run() {
    require!(is_root("a limit of processes") && has("prlimit"));
    let sandbox = Sandbox::new(Kind::Directory);
    // No other test has processes of this user.
    let user = 4199;
    std::fs::create_dir(sandbox.path("mine")).unwrap();
    std::os::unix::fs::chown(sandbox.path("mine"), Some(user), Some(user)).unwrap();
    let words = ["--nproc=2:2", "csalock", "run", "--ttl", "5s", "x", "echo", "ran"];
    let done = sandbox.call("prlimit", words).env("CSALOCK_STORE", sandbox.store_at("mine/store")).user(user).capture();
    let said = "csalock: the process that renews its lease could not start, so the command was not run; \
                see the limit of processes (ulimit -u) and the free memory, then try again\n";
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (Some(71), "", said));
    let free = sandbox.csalock(["run", "-n", "x", "true"]).env("CSALOCK_STORE", sandbox.store_at("mine/store"));
    free.user(user).capture().exits(0);
}

#[test]
fn a_lock_for_whose_keeper_there_is_no_process_is_not_held() {
    require!(is_root("a limit of processes") && has("prlimit"));
    let sandbox = Sandbox::new(Kind::Shared);
    // No other test has processes of this user.
    let user = 4197;
    std::fs::create_dir(sandbox.path("mine")).unwrap();
    std::os::unix::fs::chown(sandbox.path("mine"), Some(user), Some(user)).unwrap();
    for words in [&["lock", "x"][..], &["run", "-F", "x", "echo", "ran"]] {
        let words = [&["--nproc=2:2", "csalock"], words].concat();
        let call = sandbox.call("prlimit", words).env("CSALOCK_STORE", sandbox.store_at("mine/store"));
        let done = call.user(user).capture();
        let said = "csalock: cannot start a process in the background: Try again; raise the limit of processes \
                    (ulimit -u, or pids.max of its cgroup), or try again later\n";
        assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (Some(71), "", said));
        let free = sandbox.csalock(["status", "x"]).env("CSALOCK_STORE", sandbox.store_at("mine/store"));
        free.user(user).capture().exits(81);
    }
}
