//! Containers of one host: processes that share a store, but no network and no pids.

use std::net::IpAddr;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::sandbox::{CLOCK, Call, Job, Kind, Sandbox, has, has_namespaces, proc, skip, wait_until};

/// A call in namespaces of its own. `None`: only root can make them.
fn contained<'a>(sandbox: &'a Sandbox, words: &[&str]) -> Option<Call<'a>> {
    let alone = ["unshare", "-npf", "--kill-child", "--mount-proc", "dash", "-c", "\"$@\"; exit $?", "dash"];
    has_namespaces("namespaces").then(|| sandbox.csalock_by(&alone.map(str::to_string), words))
}

/// A waiter for lock x that looks by itself only after more than a minute.
fn waiter(sandbox: &Sandbox) -> Option<Job> {
    let before = sandbox.waiting("x");
    let words = ["run", "-w", "inf", "--backoff", "100s..100s", "x", "echo", "ran"];
    let job = contained(sandbox, &words)?.spawn();
    wait_until("it waits", || sandbox.waiting("x") == before + 1);
    Some(job)
}

/// The channels of waiters in the store or beside it.
fn channels(sandbox: &Sandbox) -> usize {
    sandbox.listing("").iter().filter(|line| line.contains("/.bell.")).count()
}

on_every_store_of_files! {
    fn each_waiter_is_woken_when_it_is_granted_the_lock(sandbox: &Sandbox) {
        let mut holder = sandbox.holder("x");
        let Some(waiters) = (0..5).map(|_| waiter(sandbox)).collect::<Option<Vec<Job>>>() else { return };
        wait_until("all waiters have channels", || channels(sandbox) == waiters.len());
        holder.release();
        for mut waiter in waiters {
            wait_until("it was woken", || waiter.has_ended());
            assert_eq!(waiter.wait().stdout, "ran\n");
        }
        assert_eq!(channels(sandbox), 0);
    }

    fn the_notification_channel_of_a_killed_waiter_is_removed(sandbox: &Sandbox) {
        require!(has_namespaces("a network namespace"));
        for name in ["x", "./file"] {
            let call = |by: &[String], words: &[&str]| {
                let call = sandbox.csalock_by(by, words);
                if name == "x" { call } else { call.without("CSALOCK_STORE") }
            };
            // Its death is seen from outside, where the pids are the same.
            let alone = ["unshare", "-n"].map(str::to_string);
            let holder = call(&[], &["run", name, "cat"]).spawn();
            wait_until("it is held", || call(&[], &["status", name]).capture().code == Some(0));
            let mut waiter = call(&alone, &["run", name, "true"]).spawn();
            wait_until("the waiter has a channel", || channels(sandbox) == 1);
            // Its child, which waits, dies with it.
            let children = proc::children(waiter.pid());
            waiter.kill();
            wait_until("it is gone", || !children.iter().any(|child| proc::lives(*child)));
            holder.wait().exits(0);
            assert_eq!(channels(sandbox), 0);
        }
        let rest = sandbox.listing("").into_iter().filter(|line| line.contains(".csalock") || line.contains("-waits"));
        assert_eq!(rest.collect::<Vec<_>>(), Vec::<String>::new());
    }

    fn gc_removes_a_notification_without_a_subscriber(sandbox: &Sandbox) {
        let mut holder = sandbox.holder("x");
        let Some(mut waiter) = waiter(sandbox) else { return };
        wait_until("the waiter has a channel", || channels(sandbox) == 1);
        sandbox.script("dash", "set -- $(find .. -name '.bell.*'); mkfifo ${1%/*}/.bell.old").run();
        let gc = sandbox.csalock(["gc", "-v"]).env(CLOCK, "+1h");
        gc.stderr("csalock: 1 leftovers of processes that died half-way\n").run();
        wait_until("the waiter listens again", || channels(sandbox) == 1);
        holder.release();
        wait_until("it was woken", || waiter.has_ended());
        assert_eq!(waiter.wait().stdout, "ran\n");
    }
}

fn end_of_lease(sandbox: &Sandbox) -> String {
    sandbox.sight("x")["holders"][0]["renewed_until"].to_string()
}

/// A container whose first process is this command, with short leases.
fn container<'a>(sandbox: &'a Sandbox, words: &[&str]) -> Option<Call<'a>> {
    let words = [&["-pf", "--kill-child", "--mount-proc"], words].concat();
    has_namespaces("namespaces").then(|| sandbox.call("unshare", words).env("CSALOCK_LEASE", "3s"))
}

on_every_store! {
    fn the_lock_of_a_killed_container_ends_with_its_lease(sandbox: &Sandbox) {
        for script in [&["csalock", "run", "x", "sh", "-c", "echo held; cat"][..], &["dash", "-c", "csalock lock x > lock.out; echo held; cat; :"]] {
            let Some(container) = container(sandbox, script) else { return };
            let mut holder = container.spawn();
            assert_eq!(holder.lines(1), ["held"]);
            // The keeper renews the lock of a container that lives.
            let first = end_of_lease(sandbox);
            wait_until("it is renewed", || !["null", &first].contains(&end_of_lease(sandbox).as_str()));
            sandbox.csalock(["run", "-nq", "x", "true"]).status(75).run();
            holder.kill();
            let next = sandbox.csalock(["run", "-w", "inf", "x", "echo", "ran"]).capture();
            assert_eq!((next.code, next.stdout.as_str()), (Some(0), "ran\n"), "{next:?}");
            assert!(next.stderr.ends_with(", which did not renew its lease\n"), "{next:?}");
        }
    }

    fn a_waiter_in_a_killed_container_lets_the_next_one_through(sandbox: &Sandbox) {
        let mut holder = sandbox.holder("x");
        let Some(container) = container(sandbox, &["csalock", "run", "-w", "inf", "x", "true"]) else { return };
        let mut waiter = container.spawn();
        wait_until("it waits", || sandbox.waiting("x") == 1);
        let last = sandbox.waiter("x", "echo ran");
        waiter.kill();
        holder.release();
        assert_eq!(last.wait().stdout, "ran\n");
    }

    fn the_waiters_of_a_killed_container_keep_no_lock_from_being_free(sandbox: &Sandbox) {
        let wait = "csalock run -w inf x true & csalock run -w inf x true & wait";
        let mut holder = sandbox.holder("x");
        let Some(inside) = container(sandbox, &["dash", "-c", wait]) else { return };
        let mut inside = inside.spawn();
        wait_until("both wait", || sandbox.waiting("x") == 2);
        inside.kill();
        holder.release();
        sandbox.csalock(["wait", "-w", "inf", "x"]).run();
        let shown = sandbox.csalock(["status"]).capture().stdout;
        assert!(shown.lines().last().is_some_and(|line| line.split_whitespace().nth(2) == Some("0")), "{shown}");
    }

    fn doctor_says_that_it_is_in_a_container(sandbox: &Sandbox) {
        let Some(doctor) = container(sandbox, &["csalock", "doctor"]) else { return };
        let done = doctor.capture();
        let words = done.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(sandbox.is_shared() || words.contains("this is a container: a holder renews a lease of 3s"), "{done:?}");
    }

    fn csalock_may_be_the_first_process_of_a_container(sandbox: &Sandbox) {
        let Some(call) = container(sandbox, &["csalock", "run", "x", "sh", "-c", "sleep 0.1 & exit 3"]) else { return };
        call.status(3).run();
        assert_eq!(sandbox.state("x"), "free");
        let script = "csalock lock x >/dev/null; csalock unlock x; echo $?";
        container(sandbox, &["dash", "-c", script]).unwrap().stdout("0\n").run();
        let mut holder = container(sandbox, &["csalock", "run", "x", "sh", "-c", "echo held; exec sleep 400"]).unwrap().spawn();
        assert_eq!(holder.lines(1), ["held"]);
        for first in proc::children(holder.pid()) {
            kill(Pid::from_raw(first), Signal::SIGTERM).unwrap();
        }
        // The kernel keeps the first process from ending by a signal of its own.
        holder.wait().exits(143);
        assert_eq!(sandbox.state("x"), "free");
    }
}

/// Calls csalock inside a container that `unshare` made.
fn inside<'a>(sandbox: &'a Sandbox, container: &Job, words: &[&str]) -> Call<'a> {
    let first = proc::children(container.pid())[0].to_string();
    let by = ["nsenter", "-t", &first, "-p", "-m"].map(str::to_string);
    sandbox.csalock_by(&by, words)
}

#[test]
fn the_first_process_of_a_container_is_not_ended_although_it_holds_the_lock() {
    require!(has("nsenter"));
    let sandbox = Sandbox::new(Kind::Directory);
    // The kernel keeps signals from a first process that does not handle them.
    let script = "trap 'touch asked' TERM; csalock lock x; echo; while read line; do :; done";
    let Some(container) = container(&sandbox, &["dash", "-c", script]) else { return };
    let container = container.ready();
    let before = sandbox.stored();
    let said = "csalock: lock x: pid 1 cannot be ended, csalock never ends pid 1: held by pid 1 on ";
    for (call, said) in [
        (&["unlock", "--force", "--end", "--kill-after", "1ms", "x"][..], said),
        (
            &["run", "--busy", "replace", "--kill-after", "1ms", "x", "true"],
            ", csalock never ends pid 1: held by pid 1 on ",
        ),
    ] {
        inside(&sandbox, &container, call).capture().says(77, said);
    }
    assert_eq!((sandbox.path("files/asked").exists(), sandbox.stored()), (false, before));
    container.wait().exits(0);
}

#[test]
fn the_command_of_csalock_as_first_process_is_ended() {
    require!(has("nsenter"));
    let sandbox = Sandbox::new(Kind::Directory);
    let script =
        "trap 'touch asked; until [ -e over ]; do sleep 0.01; done; exit 3' TERM; echo; while :; do sleep 0.01; done";
    let Some(container) = container(&sandbox, &["csalock", "run", "x", "dash", "-c", script]) else { return };
    let container = container.ready();
    let end = inside(&sandbox, &container, &["unlock", "--force", "--end", "--kill-after", "1h", "x"]).spawn();
    wait_until("it is asked", || sandbox.path("files/asked").exists());
    sandbox.file("files/over", "");
    container.wait().complains(3, "");
    // The kernel ends it with the container, if it does not see the end of the command before.
    assert_eq!(end.wait().stderr, "");
}

#[test]
fn a_database_that_is_mounted_without_its_directory_is_refused() {
    require!(has_namespaces("a mount"));
    let sandbox = Sandbox::new(Kind::Sqlite);
    let holder = sandbox.holder("x");
    sandbox.script("dash", "mkdir other && : > other/store").run();
    let script = "mount --bind \"$1\" other/store && CSALOCK_STORE=\"sqlite:$PWD/other/store\" csalock run -n x true";
    let call =
        sandbox.call("unshare", ["-m", "dash", "-c", script, "dash", &sandbox.store_path().display().to_string()]);
    call.capture().says(77, "is mounted without its log");
    holder.wait().exits(0);
}

#[test]
fn the_addresses_of_a_host_are_those_of_the_file() {
    if !std::fs::read_to_string("/etc/hosts").is_ok_and(|hosts| hosts.contains("localhost")) {
        return skip("addresses of a host", "/etc/hosts does not name localhost");
    }
    let found = host::addresses_of("localhost", Duration::from_secs(60)).unwrap();
    assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback), "{found:?}");
}

/// Calls a command with another program in place of getent(1).
fn with_getent(sandbox: &Sandbox, getent: &str, command: &str) -> (Option<i32>, String, String) {
    let script = format!(
        "cat > getent; chmod 755 getent; mount --bind getent /usr/bin/getent && {command}; code=$?; \
         grep -lxz '4[0]1' /proc/[0-9]*/cmdline 2> /dev/null; exit $code"
    );
    let done = sandbox.call("unshare", ["-m", "dash", "-c", &script]).stdin(getent).capture();
    (done.code, done.stdout, done.stderr)
}

#[test]
fn a_name_service_that_fails_is_named_and_not_left_running() {
    require!(has_namespaces("a mount"));
    let sandbox = Sandbox::new(Kind::Directory);
    let cure = "see the name service, or name the host by its address";
    for (getent, said, cure) in [
        ("#!/bin/sh\nexec sleep 401\n", "the name service does not answer", cure),
        (
            "#!/no/such/shell\n",
            "the name service cannot be asked: /usr/bin/getent: No such file or directory (os error 2)",
            cure,
        ),
        (
            "#!/bin/sh\nexit 2\n",
            "no host of that name is known",
            "see the spelling of the store's URL, and the name service",
        ),
    ] {
        let done = with_getent(&sandbox, getent, "csalock status --store etcd://etcd.invalid:1/x");
        let said = format!("csalock: etcd cannot be reached: etcd.invalid:1: {said}; {cure}\n");
        assert_eq!(done, (Some(69), String::new(), said));
    }
    // The name of a user is for display only, so a user without one may lock.
    sandbox.script("dash", "chmod 777 . && chmod 755 ..").run();
    let command = "setpriv --reuid 4101 csalock run --store dir:$PWD/others x true";
    assert_eq!(with_getent(&sandbox, "#!/bin/sh\nexec sleep 401\n", command), (Some(0), String::new(), String::new()));
}
