//! A process is more than its pid: pids that came round, other boots, other hosts, other namespaces.

use std::path::Path;
use std::time::Duration;

use lock::{Lifetime, Record};
use store::Call as StoreCall;

use crate::programs::copy_program;
use crate::sandbox::{Sandbox, has, has_namespaces, proc, wait_until};

/// A lock that a living process holds, so that only what is changed about it can make it look dead.
fn held(sandbox: &Sandbox, options: &[&str]) -> crate::sandbox::Job {
    let job = sandbox.call("sleep", ["600"]).spawn();
    let pid = job.pid().to_string();
    sandbox.csalock([&["lock"], options, &["--pid", &pid, "x"]].concat()).run();
    job
}

#[track_caller]
fn is_dead(sandbox: &Sandbox, change: impl Fn(&mut Record)) {
    let job = held(sandbox, &[]);
    sandbox.edit("x", change);
    assert_eq!(sandbox.state("x"), "free");
    sandbox.csalock(["lock", "--fail-on-stale", "x"]).capture().exits(80);
    let waiter = sandbox.csalock(["run", "-n", "x", "true"]).capture();
    assert_eq!(waiter.code, Some(0));
    assert_eq!(waiter.stderr, "");
    drop(job);
}

#[track_caller]
fn is_not_dead_for_sure(sandbox: &Sandbox, change: impl Fn(&mut Record)) {
    let job = held(sandbox, if sandbox.is_shared() { &["--forever"] } else { &[] });
    sandbox.edit("x", change);
    if sandbox.is_shared() {
        // A keeper would record the death of the owner. This lease has no keeper.
        sandbox.edit_in("x", |store, record| {
            record.holders[0].lifetime =
                Lifetime::ExpiresAt(store.leases().grant(StoreCall::default(), Duration::from_secs(3600)).unwrap());
        });
    }
    let before = sandbox.stored();
    let sight = sandbox.sight("x");
    assert_eq!((&sight["state"], &sight["holders"][0]["alive"]), (&"held".into(), &"unknown".into()));
    drop(job);
    sandbox.csalock(["lock", "-n", "x"]).capture().exits(75);
    sandbox.csalock(["run", "-w", "20ms", "--fail-on-stale", "y", "true"]).capture().exits(0);
    sandbox.csalock(["unlock", "x"]).capture().exits(82);
    sandbox.csalock(["gc"]).run();
    if sandbox.is_directory() {
        let of_x = |listing: Vec<String>| listing.into_iter().filter(|line| line.contains("/x/")).collect::<Vec<_>>();
        assert_eq!(of_x(sandbox.stored()), of_x(before));
    }
    sandbox.csalock(["unlock", "--force", "x"]).capture().exits(0);
    assert_eq!(sandbox.state("x"), "free");
}

fn elsewhere(record: &mut Record) {
    let home = &mut record.holders[0].owner_mut().domain;
    (home.machine, home.boot) = ("0123456789abcdef@elsewhere".into(), "00000000-0000-4000-8000-000000000000".into());
}

on_every_kind_of_store! {
    fn the_same_pid_with_another_start_time_is_another_process(sandbox: &Sandbox) {
        is_dead(sandbox, |record| record.holders[0].owner_mut().processes[0].start += 1);
        is_dead(sandbox, |record| record.holders[0].owner_mut().processes[0].start -= 1);
    }

    fn the_same_pid_of_an_earlier_boot_is_dead_where_no_clone_of_the_machine_may_run(sandbox: &Sandbox) {
        let earlier = |record: &mut Record| record.holders[0].owner_mut().domain.boot = "00000000-0000-4000-8000-000000000000".into();
        if sandbox.is_shared() { is_not_dead_for_sure(sandbox, earlier) } else { is_dead(sandbox, earlier) }
    }

    fn a_process_that_is_not_here_may_run_on_a_machine_from_the_same_snapshot(sandbox: &Sandbox) {
        require!(sandbox.is_shared());
        // Such a machine has the same boot and other secrets, and no memory of what was written after the snapshot.
        is_not_dead_for_sure(sandbox, |record| {
            let grant = &mut record.holders[0];
            grant.proof = lock::Handle::new([7; 16]).proof();
            grant.owner_mut().processes[0].start += 1;
        });
    }

    fn a_zombie_is_dead_under_any_parent(sandbox: &Sandbox) {
        copy_program(Path::new("/bin/cat"), &sandbox.path("files/csalock-nightly"), "755");
        // After the exec of another program the shell waits for no process.
        let dies = "until grep -q nightly /proc/$PPID/comm; do sleep 0.01; done; csalock lock x > /dev/null; kill -9 $$";
        let mut job = sandbox.script("dash", &format!("dash -c '{dies}' & echo $!; exec ./csalock-nightly")).spawn();
        let owner: i32 = job.lines(1)[0].parse().unwrap();
        wait_until("it is a zombie", || proc::stat(owner).is_some_and(|(state, _)| state == 'Z'));
        sandbox.await_abandoned("x");
        sandbox.csalock(["run", "-q", "-n", "x", "true"]).run();
        assert_eq!(proc::stat(owner), Some(('Z', job.pid())));
    }

    fn a_process_on_another_host_is_not_dead_for_sure(sandbox: &Sandbox) {
        is_not_dead_for_sure(sandbox, elsewhere);
    }

    fn a_process_in_another_pid_namespace_is_not_dead_for_sure(sandbox: &Sandbox) {
        is_not_dead_for_sure(sandbox, |record| record.holders[0].owner_mut().domain.pids = "1.1".into());
    }

    fn an_owner_elsewhere_ends_with_its_lease(sandbox: &Sandbox) {
        sandbox.csalock(["lock", "--ttl", "100ms", "x"]).run();
        sandbox.edit("x", elsewhere);
        sandbox.csalock(["run", "-w", "inf", "x", "true"]).capture().says(0, ", which let its time run out");
    }

    fn a_waiter_of_another_start_time_is_passed_over(sandbox: &Sandbox) {
        let mut holder = sandbox.holder("x");
        let first = sandbox.waiter("x", "echo first");
        sandbox.edit("x", |record| record.waiters[0].process.start += 1);
        let second = sandbox.waiter("x", "echo second; cat");
        holder.release();
        wait_until("the second runs", || second.printed() == "second\n");
        second.wait().exits(0);
        // It finds that it is not in the queue any more, and joins again.
        assert_eq!(first.wait().stdout, "first\n");
    }

    fn a_real_other_pid_namespace(sandbox: &Sandbox) {
        require!(has_namespaces("a pid namespace"));
        let script = "csalock lock x; csalock status --json x; cat; :";
        let mut job = sandbox.call("unshare", ["-p", "-f", "--mount-proc", "dash", "-c", script]).spawn();
        let inside: serde_json::Value = serde_json::from_str(&job.lines(1)[0]).unwrap();
        assert_eq!((&inside[0]["holders"][0]["pid"], &inside[0]["holders"][0]["alive"]), (&1.into(), &"yes".into()));
        let outside = sandbox.sight("x");
        assert_eq!((&outside["state"], &outside["holders"][0]["alive"]), (&"held".into(), &"unknown".into()));
        sandbox.csalock(["lock", "-n", "x"]).capture().exits(75);
        sandbox.csalock(["unlock", "x"]).capture().exits(82);
        job.wait();
        sandbox.csalock(["lock", "-n", "x"]).capture().exits(75);
        sandbox.csalock(["unlock", "--force", "x"]).capture().exits(0);
    }

    fn a_proc_of_another_pid_namespace_proves_no_death(sandbox: &Sandbox) {
        require!(has_namespaces("a pid namespace"));
        let script = "csalock lock --print-handle --shared --forever x; csalock run --shared x cat; :";
        let mut job = sandbox.call("unshare", ["-p", "-f", "--kill-child", "--mount-proc", "dash", "-c", script]).spawn();
        let handle = job.lines(1).remove(0);
        wait_until("both hold", || sandbox.holders("x").len() == 2);
        let inside = proc::children(job.pid())[0].to_string();
        // The pids of the holders, and the /proc of the namespace outside, which has others.
        let by: Vec<String> = ["nsenter", "-p", "-t", &inside].iter().map(ToString::to_string).collect();
        for (arguments, holders) in [
            (&["gc"][..], 2),
            (&["renew", "--ttl", "1h", "--handle", &handle, "x"], 2),
            (&["unlock", "--handle", &handle, "x"], 1),
            (&["gc"], 1),
        ] {
            sandbox.csalock_by(&by, arguments).run();
            assert_eq!(sandbox.holders("x").len(), holders, "{arguments:?}");
        }
        let said = "csalock: /proc is not that of this pid namespace, so no process could tell which others live; mount it \
                    (unshare --mount-proc)\n";
        sandbox.csalock_by(&by, &["run", "-n", "x", "true"]).status(71).stderr(said).run();
        sandbox.csalock_by(&by, &["lock", "-n", "--pid", "1", "y"]).status(71).stderr(said).run();
        sandbox.csalock(["lock", "-n", "x"]).capture().exits(75);
        job.wait();
    }

    fn a_lock_is_handed_over_between_namespaces(sandbox: &Sandbox) {
        require!(has_namespaces("namespaces"));
        let mut holder = sandbox.holder("x");
        // Another network namespace cannot reach a server on the loopback of this host.
        let network = if sandbox.is_of_files() { &["-n"][..] } else { &[] };
        let run = ["--mount-proc", "csalock", "run", "-w", "inf", "x", "sh", "-c", "echo ran; cat"];
        let other = sandbox.call("unshare", [&["-p", "-f"], network, &run].concat()).spawn();
        wait_until("it waits", || sandbox.waiters("x").len() == 1);
        let third = sandbox.waiter("x", "echo third");
        holder.release();
        wait_until("it runs", || other.printed() == "ran\n");
        other.wait().exits(0);
        assert_eq!(third.wait().stdout, "third\n");
    }

    fn the_first_process_of_a_container_reaps_adopted_processes(sandbox: &Sandbox) {
        require!(has_namespaces("a pid namespace") && has("setsid"));
        // The command is not the parent of the daemon, so only the first process of the container can wait for it.
        let daemon = "setsid dash -c 'csalock lock x >/dev/null; echo $$ > daemon; kill -9 $$'";
        let is_there = "[ ! -s daemon ] || [ -e /proc/$(cat daemon) ]";
        let script = format!("( {daemon} & )\nn=0\nwhile {{ {is_there}; }} && [ $((n += 1)) -lt 2000 ]; do sleep 0.01; done\n\
            if {is_there}; then cat /proc/[0-9]*/stat; fi");
        let command = ["-p", "-f", "--mount-proc", "--kill-child", "csalock", "run", "main", "dash", "-c", &script];
        sandbox.call("unshare", command).run();
    }

    fn the_first_process_of_a_container_does_not_own_the_locks_of_orphans(sandbox: &Sandbox) {
        require!(has_namespaces("a pid namespace") && has("python3"));
        sandbox.file("files/orphan.py", "import os, time\n\
            os.setpgid(0, 0)\n\
            if os.fork(): os._exit(0)\n\
            while os.getppid() != 1: time.sleep(0.001)\n\
            os.dup2(os.open('said', os.O_WRONLY | os.O_CREAT), 2)\n\
            os.execvp('csalock', ['csalock', 'lock', 'x'])\n");
        let script = "python3 orphan.py; while [ ! -s said ]; do sleep 0.01; done; cat said; csalock status -1; :";
        let said = "csalock: the process that called csalock has ended, so the lock would have no owner; name the owner with --pid \
                    PID, or keep the lock until it is released with --forever\n";
        sandbox.call("unshare", ["-p", "-f", "--mount-proc", "dash", "-c", script]).stdout(said).run();
    }

    fn a_process_that_adopts_orphans_does_not_own_their_locks(sandbox: &Sandbox) {
        require!(has("python3"));
        // A shell that dies before csalock has seen it, below a process that is not an init and adopts its children.
        sandbox.file("files/adopt.py", "import ctypes, os, time\n\
            ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n\
            us = os.getpid()\n\
            if os.fork() == 0:\n\
            \x20   os.setsid()\n\
            \x20   if os.fork(): os._exit(0)\n\
            \x20   while os.getppid() != us: time.sleep(0.001)\n\
            \x20   os.execvp('csalock', ['csalock', 'lock', 'x'])\n\
            os.wait()\n\
            print(os.waitstatus_to_exitcode(os.wait()[1]))\n");
        let said = "csalock: the process that called csalock has ended, so the lock would have no owner; name the owner with --pid \
                    PID, or keep the lock until it is released with --forever\n";
        sandbox.call("python3", ["adopt.py"]).stdout("64\n").stderr(said).run();
        sandbox.csalock(["status", "-1"]).run();
        // A process with a session of its own is not an orphan for that reason.
        sandbox.script("dash", "setsid csalock lock x > handle; csalock unlock x").run();
    }
}
