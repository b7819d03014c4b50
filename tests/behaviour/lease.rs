//! Locks that end by time, on a clock that cannot be set.

use std::time::{Duration, Instant};

use lock::{EndReason, EndedGrant, Grant, Lifetime};
use nix::sys::signal::Signal;

use crate::etcd::fair::fair;
use crate::sandbox::{CLOCK, Sandbox, proc, skip, wait_until};

/// A day back or forth, on the wall clock alone.
const DAYS: [&str; 2] = ["-10d", "+10d"];

/// `csalock` with a wall clock that is wrong by this much.
fn at<'a>(sandbox: &'a Sandbox, offset: &str, words: &[&str]) -> crate::sandbox::Call<'a> {
    sandbox.csalock(words).env(CLOCK, offset)
}

/// The lock of a script that lives on, for this long.
fn leased(sandbox: &Sandbox, span: &str) -> (crate::sandbox::Job, String) {
    let script = format!("csalock lock --print-handle --ttl {span} x; echo; cat; :");
    let mut job = sandbox.script("dash", &script).spawn();
    // It is held permanently once `lock` has ended.
    let handle = job.lines(2)[0].clone();
    (job, handle)
}

on_every_kind_of_store! {
    fn the_next_caller_after_a_lease_acquires_and_is_told_the_last_holder(sandbox: &Sandbox) {
        let (_job, _) = leased(sandbox, "1s");
        let said = "csalock: lock x was taken over from pid PID on HOST (user USER) since TIME (AGE ago): dash -c csalock lock --print-handle --ttl 1s x; echo; cat; :, which let its time run out\n";
        sandbox.csalock(["lock", "-n", "x"]).capture().exits(75);
        sandbox.csalock(["run", "-w", "inf", "x", "echo", "ran"]).stdout("ran\n").stderr(said).run();
        assert_eq!(sandbox.state("x"), "free");
    }

    fn a_late_caller_changes_nothing_while_another_holds(sandbox: &Sandbox) {
        let script = "csalock lock --print-handle --ttl 50ms x; read go; csalock unlock x; echo $?; csalock renew --ttl 1h x; echo $?; cat; :";
        let mut job = sandbox.script("dash", script).spawn();
        let handle = job.lines(1)[0].clone();
        let holder = sandbox.holder("x");
        let before = sandbox.sight("x");
        job.tell("go");
        assert_eq!(job.lines(3)[1..], ["82", "82"]);
        for words in [&["unlock", "--handle", &handle, "x"][..], &["renew", "--ttl", "1h", "--handle", &handle, "x"]] {
            sandbox.csalock(words).capture().says(82, "which let its time run out");
        }
        assert_eq!(sandbox.sight("x"), before);
        drop(holder);
    }

    fn a_late_caller_is_told_that_the_lock_is_not_held(sandbox: &Sandbox) {
        let (_job, handle) = leased(sandbox, "50ms");
        wait_until("it is over", || sandbox.state("x") == "abandoned");
        // The history has the late release.
        let record = || sandbox.stored().into_iter().filter(|line| line.contains("/store/x")).collect::<Vec<_>>();
        let before = record();
        for words in [&["unlock", "--handle", &handle, "x"][..], &["renew", "--ttl", "1h", "--handle", &handle, "x"]] {
            sandbox.csalock(words).capture().says(81, "which let its time run out");
        }
        if sandbox.is_directory() || sandbox.is_shared() {
            assert_eq!(record(), before);
        }
        sandbox.csalock(["run", "-q", "-n", "x", "true"]).run();
        sandbox.csalock(["unlock", "--handle", &handle, "x"]).capture().exits(81);
    }

    fn a_stale_lock_can_be_refused(sandbox: &Sandbox) {
        let (_job, _) = leased(sandbox, "50ms");
        wait_until("it is over", || sandbox.state("x") == "abandoned");
        let said = "csalock: lock x in store STORE is stale: it was left by pid PID on HOST (user USER) since TIME (AGE ago): dash -c csalock lock --print-handle --ttl 50ms x; echo; cat; :, which let its time run out; take it over without \
                    --fail-on-stale, or remove it with `csalock unlock --force x`\n";
        sandbox.csalock(["lock", "--fail-on-stale", "x"]).status(80).stderr(said).run();
    }

    fn a_lease_ends_with_its_owner_too(sandbox: &Sandbox) {
        sandbox.script("dash", "csalock lock --ttl 1h x; :").run();
        assert_eq!(sandbox.state("x"), "free");
    }

    fn a_lock_without_an_owner_ends_by_itself(sandbox: &Sandbox) {
        let span = sandbox.lease("1s");
        let handle = sandbox.script("dash", &format!("csalock lock --forever --ttl {span} --print-handle x; :")).capture().line();
        let busy = sandbox.csalock(["lock", "-n", "x"]).capture();
        assert!(busy.code == Some(75) && busy.stderr.contains("held by a caller on "), "{busy:?}");
        let sight = sandbox.sight("x");
        assert_eq!((&sight["state"], &sight["holders"][0]["pid"]), (&"held".into(), &serde_json::Value::Null));
        sandbox.csalock(["run", "-w", "inf", "-q", "x", "true"]).run();
        sandbox.csalock(["unlock", "--handle", &handle, "x"]).capture().exits(81);
        sandbox.script("dash", "csalock lock --forever --ttl 1h y; :").run();
        sandbox.csalock(["unlock", "y"]).capture().says(82, "or break it with `csalock unlock --force y`");
        sandbox.csalock(["unlock", "--force", "--end", "y"]).capture().exits(0);
        assert_eq!(sandbox.state("y"), "free");
        let said = "csalock: the lock of run ends with its command or with --ttl; leave --forever or --ttl out\n";
        sandbox.csalock(["run", "--forever", "--ttl", "1h", "x", "true"]).status(64).stderr(said).run();
    }

    fn a_wait_does_not_shorten_the_lease(sandbox: &Sandbox) {
        let mut holder = sandbox.holder("x");
        let mut job = sandbox.script("dash", "csalock lock -w inf --ttl 2s x; csalock status --json x; cat; :").spawn();
        wait_until("it waits", || sandbox.waiters("x").len() == 1);
        let begun = std::time::Instant::now();
        wait_until("some of the time is over", || begun.elapsed().as_millis() > 1500);
        holder.release();
        let begun = std::time::Instant::now();
        job.lines(1);
        wait_until("it is over", || sandbox.state("x") != "held");
        assert!(begun.elapsed().as_millis() >= 1400, "{:?}", begun.elapsed());
    }

    fn renewing_counts_from_now(sandbox: &Sandbox) {
        let script = "csalock lock --ttl 1s x >/dev/null; csalock renew --ttl 1h x; echo $?; cat; :";
        let mut job = sandbox.script("dash", script).spawn();
        assert_eq!(job.lines(1), ["0"]);
        let expires = sandbox.sight("x")["holders"][0]["expires"].clone();
        sandbox.csalock(["run", "-w", "1500ms", "x", "true"]).capture().exits(75);
        assert_eq!(sandbox.sight("x")["holders"][0]["expires"], expires);
    }

    fn renewing_makes_a_lease_shorter_as_well(sandbox: &Sandbox) {
        let (_job, handle) = leased(sandbox, "1h");
        let waiter = sandbox.waiter("x", "echo ran");
        sandbox.csalock(["renew", "--ttl", "50ms", "--handle", &handle, "x"]).run();
        assert_eq!(waiter.wait().stdout, "ran\n");
    }

    fn renewing_is_the_holders_alone(sandbox: &Sandbox) {
        let (_job, _) = leased(sandbox, "1h");
        let before = sandbox.sight("x");
        sandbox.csalock(["renew", "--ttl", "2h", "x"]).capture().exits(82);
        sandbox.csalock(["renew", "--ttl", "2h", "none"]).capture().exits(81);
        assert_eq!(sandbox.sight("x"), before);
    }

    fn a_command_is_ended_before_its_lease_is_over(sandbox: &Sandbox) {
        let said = "csalock: the command was ended before the --ttl of lock x was over\n";
        // A busy machine kills it too late if a tenth of this is short.
        sandbox.csalock(["run", "--ttl", "5s", "x", "sleep", "60"]).status(85).stderr(said).run();
        let deaf = "trap '' TERM; while [ ! -e over ]; do sleep 0.01; done; touch survived";
        sandbox.csalock(["run", "--ttl", "5s", "x", "-c", deaf]).status(85).stderr(said).run();
        sandbox.file("files/over", "");
        assert_eq!(sandbox.state("x"), "free");
        assert!(!sandbox.path("files/survived").exists());
        sandbox.csalock(["run", "--ttl", "1h", "x", "-c", "exit 4"]).status(4).run();
    }

    fn a_command_whose_supervisor_comes_too_late_is_ended_though_its_lease_is_forgotten(sandbox: &Sandbox) {
        let script = "touch runs; while [ ! -e over ]; do sleep 0.01; done; touch survived";
        let job = sandbox.csalock(["run", "--ttl", "1s", "x", "-c", script]).spawn();
        wait_until("it runs", || sandbox.path("files/runs").exists());
        job.send(Signal::SIGSTOP);
        wait_until("it is over", || sandbox.state("x") != "held");
        (0..20).for_each(|_| sandbox.csalock(["run", "-q", "x", "true"]).run());
        job.send(Signal::SIGCONT);
        let pid = job.pid();
        wait_until("it is ended", || proc::stat(pid).is_none_or(|(state, _)| state == 'Z'));
        sandbox.file("files/over", "");
        let done = job.wait();
        assert_eq!((done.code, sandbox.state("x").as_str()), (Some(85), "free"), "{done:?}");
        assert!(!sandbox.path("files/survived").exists());
    }

    fn a_stopped_supervisor_lets_no_command_outlive_its_lease(sandbox: &Sandbox) {
        let script = "touch runs; while [ ! -e over ]; do sleep 0.01; done; touch survived";
        for options in [&["--ttl", "2s"][..], &["--ttl", "2s", "--kill-after", "9s", "--max-hold", "9s"]] {
            let job = sandbox.csalock([&["run", "-q"], options, &["x", "-c", script]].concat()).spawn();
            wait_until("it runs", || sandbox.path("files/runs").exists());
            job.send(Signal::SIGSTOP);
            // The remainder is removed as soon as another caller is admitted.
            let next = format!(
                "for child in $(cat /proc/{0}/task/{0}/children); do cat /proc/$child/stat; done 2> /dev/null | \
                 grep -v -e ') Z ' -e '(csalock-keeper)' -e '(ssh)'; :",
                job.pid()
            );
            sandbox.csalock(["run", "-q", "-w", "20s", "x", "sh", "-c", &next]).stdout("").run();
            job.send(Signal::SIGCONT);
            sandbox.file("files/over", "");
            let done = job.wait();
            assert_eq!((done.code, sandbox.state("x").as_str()), (Some(85), "free"), "{done:?}");
            assert!(!sandbox.path("files/survived").exists());
            ["runs", "over"].iter().for_each(|file| std::fs::remove_file(sandbox.path("files").join(file)).unwrap());
        }
    }

    fn an_immediate_renewal_is_noticed(sandbox: &Sandbox) {
        require!(crate::sandbox::has("strace"));
        // A lease that a loaded machine can keep; one that is not heard of would end much later.
        // Before the keeper looks for the first time, and before the supervisor could listen.
        for (late, options) in [("-f -e inject=setsid:delay_exit=200000", "--ttl 10s"), ("-e inject=bind:delay_enter=200000", "")] {
            let script = "echo $$ > begun; csalock renew -q --ttl 2s x; mv begun pid; exec sleep 30";
            let run = format!("exec strace -D -qq -o trace {late} csalock run -q {options} x dash -c '{script}'");
            let job = sandbox.script("dash", &run).spawn();
            wait_until("it has renewed", || sandbox.path("files/pid").exists());
            let next = "grep -v ') Z ' /proc/$(cat pid)/stat 2> /dev/null; :";
            sandbox.csalock(["run", "-q", "-w", "20s", "x", "sh", "-c", next]).stdout("").run();
            assert_eq!(job.wait().code, Some(85), "{late}");
            std::fs::remove_file(sandbox.path("files/pid")).unwrap();
        }
    }

    fn a_keeper_with_hardly_any_descriptors_ends_all_the_same(sandbox: &Sandbox) {
        for most in 8..14 {
            let script = format!("ulimit -n {most}; exec csalock run -q --ttl 3s x sh -c 'touch runs; exec sleep 60'");
            let job = sandbox.script("dash", &script).spawn();
            // If it runs at all.
            let runs = || sandbox.path("files/runs").exists();
            wait_until("it runs or was refused", || runs() || !proc::lives(job.pid()));
            let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", job.pid())).unwrap_or_default();
            let children: Vec<i32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
            job.send(Signal::SIGKILL);
            wait_until("the command and its keeper end", || !children.iter().any(|pid| proc::lives(*pid)));
            let _ = std::fs::remove_file(sandbox.path("files/runs"));
        }
    }

    fn a_command_that_became_another_users_is_reported_as_not_ended(sandbox: &Sandbox) {
        let other = 65534;
        require!(crate::sandbox::is_root("a command that changes its user"));
        // By setpriv(1), as others do by sudo: saved and real user are root's then.
        sandbox.script("dash", "cp $(command -v setpriv) root && chmod 4755 root && chmod 777 . && chmod 755 ..").run();
        let ids = sandbox.call("./root", ["--reuid", "0", "--regid", "0", "--clear-groups", "id", "-u"]).user(other).capture();
        if ids.stdout != "0\n" {
            return skip("setuid", "files have no setuid bit here");
        }
        let words = ["run", "--store", "dir:store", "--max-hold", "100ms", "--kill-after"];
        let root = ["./root", "--reuid", "0", "--regid", "0", "--clear-groups", "sleep", "1"];
        let said = "csalock: the command could not be ended when its time under lock x was over: it runs as another user\n";
        for kill_after in ["100ms", "1m"] {
            let words = [&words[..], &[kill_after, "x"], &root].concat();
            sandbox.csalock(words).user(other).status(124).stderr(said).run();
        }
    }

    fn a_supervisor_that_was_stopped_reports_the_actions_of_its_keeper(sandbox: &Sandbox) {
        // Otherwise only its supervisor could end a command without a time limit.
        require!(sandbox.is_shared());
        let script = "touch runs; while [ ! -e begin ]; do sleep 0.01; done; csalock renew --ttl 3s x; touch renewed; while :; do sleep 0.01; done";
        let job = sandbox.csalock(["run", "x", "-c", script]).spawn();
        wait_until("it runs", || sandbox.path("files/runs").exists());
        job.send(Signal::SIGSTOP);
        sandbox.file("files/begin", "");
        wait_until("it is over", || sandbox.path("files/renewed").exists() && sandbox.state("x") != "held");
        job.send(Signal::SIGCONT);
        let done = job.wait();
        assert!(done.code == Some(85) && done.stderr.starts_with("csalock: the command was ended"), "{done:?}");
    }

    fn a_supervisor_that_sees_the_end_late_returns_the_status(sandbox: &Sandbox) {
        // Whether it ended in time, or gave its lock back in time.
        for script in ["exit 7", "csalock unlock x; while [ ! -e over ]; do sleep 0.01; done; exit 7"] {
            let job = sandbox.csalock(["run", "--ttl", "3s", "x", "-c", &format!("touch runs; while [ ! -e begin ]; do sleep 0.01; done; {script}")]).spawn();
            wait_until("it runs", || sandbox.path("files/runs").exists());
            job.send(Signal::SIGSTOP);
            let begun = Instant::now();
            sandbox.file("files/begin", "");
            wait_until("it is free", || sandbox.state("x") != "held");
            (0..20).for_each(|_| sandbox.csalock(["run", "-q", "x", "true"]).run());
            wait_until("its time would be over", || begun.elapsed().as_secs() >= 4);
            sandbox.file("files/over", "");
            job.send(Signal::SIGCONT);
            job.wait().complains(7, "");
            ["runs", "begin", "over"].iter().for_each(|file| std::fs::remove_file(sandbox.path("files").join(file)).unwrap());
        }
    }

    fn a_command_that_renews_its_lease_goes_on(sandbox: &Sandbox) {
        let (span, longer) = if sandbox.is_shared() { ("3s", "3.1") } else { ("1s", "1.1") };
        let script = format!("csalock renew --ttl 1h x; sleep {longer}; echo done");
        sandbox.csalock(["run", "--ttl", span, "x", "-c", &script]).stdout("done\n").run();
    }

    fn a_command_that_shortens_its_own_lease_is_ended_before_it_is_over(sandbox: &Sandbox) {
        // The rest of the lease must be enough for the release; a crowded machine needs a longer one. It may stand still
        // during some tries, and a release that is always late fails.
        let shortest = Duration::from_secs(if sandbox.is_shared() { 3 } else { 1 });
        let said = "csalock: the command was ended before the --ttl of lock x was over\n";
        let of_others = "csalock: the command was ended: `csalock renew --ttl` or `csalock unlock --force --end` had limited \
                         the time of lock x\n";
        for (options, said) in [(&["--ttl", "1h"][..], said), (&["--forever"], of_others), (&["-q"], "")] {
            let run = || {
                let span = fair(shortest).as_secs_f64().ceil();
                let script = format!("trap 'exit 9' TERM; csalock renew --ttl {span}s x; while :; do sleep 0.01; done");
                sandbox.csalock([&["run"], options, &["x", "bash", "-c", &script]].concat()).capture()
            };
            let released = || {
                let done = run();
                let endings = sandbox.csalock(["history", "--json", "x"]).capture().stdout;
                let endings: serde_json::Value = serde_json::from_str(&endings).unwrap();
                let ended = endings.as_array().unwrap().last().unwrap()["ended"].clone();
                if ended != "released" {
                    // The next try would report that it takes the lock over.
                    sandbox.csalock(["run", "-q", "x", "true"]).capture();
                }
                (ended == "released").then_some(done)
            };
            std::iter::repeat_with(released).take(3).flatten().next().expect("a release in time").complains(85, said);
            assert_eq!(sandbox.state("x"), "free", "{options:?}");
        }
    }

    fn a_command_that_released_its_lock_is_left_alone(sandbox: &Sandbox) {
        // A store that needs as long for this as the lease lasts says nothing about it.
        for span in [1, 3, 9, 27] {
            let script = format!("csalock unlock x && echo gave it back; sleep {span}.1; exit 3");
            let done = sandbox.csalock(["run", "--ttl", &format!("{span}s"), "x", "-c", &script]).capture();
            if done.code != Some(85) {
                assert_eq!((done.code, &*done.stdout, &*done.stderr), (Some(3), "gave it back\n", ""));
                return;
            }
        }
        panic!("it never gave it back in time");
    }

    fn a_leased_command_does_not_outlive_its_supervisor(sandbox: &Sandbox) {
        let mut job = sandbox.csalock(["run", "--ttl", "1h", "x", "cat"]).spawn();
        wait_until("it holds", || sandbox.state("x") == "held");
        let command = sandbox.holders("x")[0];
        job.kill();
        wait_until("the command is gone as well", || !crate::sandbox::proc::lives(command));
        sandbox.csalock(["run", "-nq", "x", "true"]).run();
        // Without a lease it holds its lock while it runs.
        let script = "> runs; while [ ! -e go ]; do sleep 0.01; done";
        let mut job = sandbox.csalock(["run", "x", "sh", "-c", script]).spawn();
        // Killed between grant and exec, it would take the command with it.
        wait_until("the command runs", || sandbox.path("files/runs").exists());
        job.kill();
        sandbox.csalock(["run", "-n", "x", "true"]).capture().exits(75);
        sandbox.file("files/go", "");
        sandbox.csalock(["run", "-q", "x", "true"]).run();
    }

    fn a_stale_lock_is_refused_even_after_another_caller_granted_it(sandbox: &Sandbox) {
        sandbox.csalock(["lock", "--forever", "x"]).run();
        let waiter = sandbox.csalock(["lock", "--fail-on-stale", "x"]).spawn();
        wait_until("it waits", || sandbox.waiters("x").len() == 1);
        proc::stop(&[waiter.pid()]);
        // A caller on another host does not see that, and finds that the holder has died.
        sandbox.edit("x", |record| {
            let (dead, waiter) = (record.holders.remove(0), record.waiters.remove(0));
            let mut grant = Grant { proof: waiter.proof, owner: waiter.owner, ..dead.clone() };
            grant.provisional = Some(waiter.process);
            grant.lifetime = waiter.lease.map_or(waiter.lifetime, Lifetime::ExpiresAt);
            record.ended_grants.push(EndedGrant { grant: dead, reason: EndReason::Died });
            record.holders.push(grant);
        });
        waiter.send(Signal::SIGCONT);
        let done = waiter.wait();
        assert_eq!((done.code, done.stdout.as_str()), (Some(80), ""), "{done:?}");
        let stale = format!("lock x in store {} is stale: it was left by pid ", sandbox.store());
        assert!(done.stderr.contains(&stale), "{}", done.stderr);
        assert_eq!(sandbox.state("x"), "free");
    }

    fn a_waiter_that_refuses_a_stale_lock_leaves_the_queue(sandbox: &Sandbox) {
        let mut holder = sandbox.csalock(["run", "x", "sleep", "60"]).spawn();
        wait_until("it holds", || sandbox.state("x") == "held");
        let command = nix::unistd::Pid::from_raw(sandbox.holders("x")[0]);
        let waiter = sandbox.csalock(["lock", "-w", "inf", "--fail-on-stale", "x"]).spawn();
        wait_until("it waits", || sandbox.waiters("x").len() == 1);
        holder.kill();
        nix::sys::signal::kill(command, nix::sys::signal::Signal::SIGKILL).unwrap();
        waiter.wait().exits(80);
        let record = sandbox.record("x");
        assert!(record.as_ref().is_none_or(|record| record.waiters.is_empty()), "{record:?}");
        sandbox.csalock(["run", "-q", "x", "true"]).run();
    }

    fn a_waiter_that_is_stopped_keeps_its_grant_until_its_lease_ends(sandbox: &Sandbox) {
        let holder = sandbox.holder("x");
        let words = ["run", "--ttl", "4s", "x", "dash", "-c", "echo stopped >> order"];
        let stopped = sandbox.csalock(words).env("CSALOCK_LEASE", "4s").spawn();
        wait_until("it waits", || sandbox.waiters("x").len() == 1);
        let both = [stopped.pid(), sandbox.waiters("x")[0]];
        let send = |signal| both.map(|pid| nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap());
        send(Signal::SIGSTOP);
        wait_until("both are stopped", || both.iter().all(|pid| matches!(proc::stat(*pid), Some(('T', _)))));
        holder.wait().exits(0);
        let next = sandbox.csalock(["run", "-q", "x", "dash", "-c", "echo in >> order; cat; echo out >> order"]).spawn();
        wait_until("the next one has it", || sandbox.path("files/order").exists());
        send(Signal::SIGCONT);
        wait_until("it waits again", || sandbox.waiters("x") == both[1..]);
        assert_eq!((next.wait().code, stopped.wait().code), (Some(0), Some(0)));
        assert_eq!(sandbox.read("files/order"), "in\nout\nstopped\n");
    }

    fn a_command_that_outlives_its_lease_is_reported(sandbox: &Sandbox) {
        let script = "while [ ! -e go ]; do sleep 0.01; done; echo done; exit 3";
        let job = sandbox.csalock(["run", "--ttl", "1s", "--on-lost", "warn", "x", "-c", script]).spawn();
        wait_until("it is over", || sandbox.state("x") == "abandoned");
        sandbox.csalock(["run", "-nq", "x", "true"]).run();
        sandbox.file("files/go", "");
        let done = job.wait();
        assert_eq!((done.code, done.stdout.as_str()), (Some(85), "done\n"));
        assert!(done.stderr.starts_with("csalock: lost while the command ran: lock x: "), "{}", done.stderr);
    }

    fn the_clock_of_these_tests_moves_the_wall_clock(sandbox: &Sandbox) {
        let years = [("behind", "-1000d"), ("ahead", "+1000d")].map(|(name, offset)| -> i32 {
            let shown = at(sandbox, offset, &["lock", "--json", "--ttl", "1h", name]).capture().stdout;
            shown.split_once("\"expires\":\"").unwrap().1[..4].parse().unwrap()
        });
        assert!((5..7).contains(&(years[1] - years[0])), "{years:?}");
    }

    fn the_wall_clock_ends_no_lease(sandbox: &Sandbox) {
        let (_job, _) = leased(sandbox, "1h");
        for offset in DAYS {
            assert_eq!(at(sandbox, offset, &["lock", "-n", "x"]).capture().code, Some(75), "{offset}");
            let shown = at(sandbox, offset, &["status", "--json", "x"]).capture().stdout;
            assert!(shown.contains("\"state\":\"held\""), "{offset} {shown}");
            at(sandbox, offset, &["gc"]).run();
        }
    }

    fn the_wall_clock_keeps_no_lease(sandbox: &Sandbox) {
        for offset in DAYS {
            let handle = at(sandbox, offset, &["lock", "--ttl", "100ms", "x"]).capture();
            assert_eq!(handle.code, Some(0), "{handle:?}");
            assert_eq!(at(sandbox, offset, &["run", "-w", "30s", "x", "true"]).capture().code, Some(0), "{offset}");
            let (_job, _) = leased(sandbox, "100ms");
            assert_eq!(at(sandbox, offset, &["run", "-w", "30s", "x", "true"]).capture().code, Some(0), "{offset}");
        }
    }

    fn the_wall_clock_changes_no_wait_and_no_order(sandbox: &Sandbox) {
        let mut holder = sandbox.holder("x");
        for offset in DAYS {
            assert_eq!(at(sandbox, offset, &["run", "-w", "50ms", "x", "true"]).capture().code, Some(75), "{offset}");
        }
        let mut waiters = Vec::new();
        for (number, offset) in ["+10d", "-10d", "+0d", "-20d"].iter().enumerate() {
            let script = format!("echo {number} >> order");
            waiters.push(at(sandbox, offset, &["run", "-w", "60s", "x", "dash", "-c", &script]).spawn());
            wait_until("it waits", || sandbox.waiters("x").len() == number + 1);
        }
        holder.release();
        waiters.into_iter().for_each(|waiter| assert_eq!(waiter.wait().code, Some(0)));
        assert_eq!(sandbox.read("files/order"), "0\n1\n2\n3\n");
    }

    fn tokens_grow_though_the_wall_clock_falls(sandbox: &Sandbox) {
        let token = |offset| -> u64 {
            let token = at(sandbox, offset, &["run", "x", "dash", "-c", "echo $CSALOCK_TOKEN"]).capture();
            // A directory keeps the end of the record that was used last, and with it the number.
            at(sandbox, offset, &["run", "y", "true"]).run();
            token.line().parse().unwrap()
        };
        let tokens = ["+0d", "+10d", "-10d", "-20d", "+0d"].map(token);
        assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
    }
}
