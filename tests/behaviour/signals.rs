//! Signals: to us, to the command, to both; and what is left when the one or the other dies of them.

use nix::libc;
use nix::sys::signal::Signal;

use crate::sandbox::{Sandbox, has, has_namespaces, proc, wait_until};

const FORWARDED: [(Signal, &str); 6] = [
    (Signal::SIGTERM, "TERM"),
    (Signal::SIGINT, "INT"),
    (Signal::SIGHUP, "HUP"),
    (Signal::SIGQUIT, "QUIT"),
    (Signal::SIGUSR1, "USR1"),
    (Signal::SIGUSR2, "USR2"),
];

/// Those signals whose effect is to end a process, or none. SIGABRT comes from the watchdog of systemd, SIGWINCH stops
/// Apache, 37 is SIGRTMIN+3.
const OTHERS: [i32; 11] = [
    libc::SIGABRT,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGPWR,
    libc::SIGIO,
    libc::SIGSEGV,
    libc::SIGURG,
    libc::SIGWINCH,
    37,
    64,
];

fn send(sandbox: &Sandbox, pid: i32, signal: i32) {
    sandbox.script("bash", &format!("kill -{signal} {pid}")).run();
}

fn stop(pid: i32) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
    wait_until("it is stopped", || matches!(proc::stat(pid), Some(('T', _))));
}

on_every_store! {
    fn a_child_of_the_caller_that_ends_ends_no_wait(sandbox: &Sandbox) {
        nix::unistd::mkfifo(&sandbox.path("files/pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        for run in ["run", "run -F"] {
            let mut holder = sandbox.holder("x");
            let script = format!("sh -c 'read line < pipe; :' & exec csalock {run} -w inf x echo mine");
            let waiter = sandbox.script("dash", &script).spawn();
            wait_until("it waits", || sandbox.waiters("x").len() == 1);
            sandbox.file("files/pipe", "go\n");
            sandbox.csalock(["run", "-w", "200ms", "x", "true"]).capture().exits(75);
            holder.release();
            waiter.wait().prints(0, "mine\n");
        }
    }

    fn signals_reach_the_command_and_csalock_waits_for_it(sandbox: &Sandbox) {
        for (signal, name) in FORWARDED {
            let script = format!("trap 'kill $!; echo {name}; exit 3' {name}; sleep 60 & echo ready; wait");
            let job = sandbox.csalock(["run", "x", "dash", "-c", &script]).ready();
            job.send(signal);
            let done = job.wait();
            assert_eq!((done.code, done.stdout), (Some(3), format!("ready\n{name}\n")), "{name}");
        }
    }

    fn every_other_signal_reaches_the_command_too(sandbox: &Sandbox) {
        require!(has("bash"));
        let traps: String = OTHERS.map(|signal| format!("trap 'echo {signal}' {signal}; ")).concat();
        let script = format!("{traps}trap 'kill $!; exit 3' TERM; echo ready; while :; do sleep 60 & wait; kill $!; done");
        let mut job = sandbox.csalock(["run", "x", "bash", "-c", &script]).ready();
        for (at, signal) in OTHERS.into_iter().enumerate() {
            send(sandbox, job.pid(), signal);
            assert_eq!(job.lines(at + 2)[at + 1], signal.to_string());
        }
        job.send(Signal::SIGTERM);
        job.wait().exits(3);
        assert_eq!(sandbox.state("x"), "free");
    }

    fn the_first_process_of_a_container_passes_every_signal_on(sandbox: &Sandbox) {
        require!(has_namespaces("pids") && has("bash"));
        for signal in OTHERS {
            let script = format!("trap 'kill $!; echo {signal}; exit 3' {signal}; sleep 60 & kill -{signal} 1; wait");
            let words = ["unshare", "-pf", "--mount-proc", "--kill-child"].map(str::to_string);
            sandbox.csalock_by(&words, &["run", "-q", "x", "bash", "-c", &script]).capture().prints(3, &format!("{signal}\n"));
        }
    }

    fn a_signal_from_an_alarm_of_the_caller_reaches_the_command(sandbox: &Sandbox) {
        require!(has("perl"));
        // The kernel sends it to csalock alone, as it sends those of a terminal to all.
        let script = "exec perl -e 'alarm 1; exec @ARGV' csalock run x perl -e '$SIG{ALRM} = sub { exit 3 }; sleep 60'";
        let done = sandbox.script("dash", script).capture();
        // On a busy machine the signal comes before the command.
        assert!(done.code == Some(3) || done.seen_by_shell() == 142, "{done:?}");
        assert_eq!(sandbox.state("x"), "free");
    }

    fn a_command_that_dies_of_a_forwarded_signal_is_128_and_the_signal(sandbox: &Sandbox) {
        for (signal, name) in FORWARDED {
            let job = sandbox.csalock(["run", "x", "dash", "-c", "ulimit -c 0; echo ready; exec sleep 60"]).ready();
            job.send(signal);
            assert_eq!(job.wait().code, Some(128 + signal as i32), "{name}");
            assert_eq!(sandbox.state("x"), "free");
        }
    }

    fn a_command_that_ignores_a_signal_is_waited_for(sandbox: &Sandbox) {
        let mut job = sandbox.csalock(["run", "x", "dash", "-c", "trap '' TERM; echo ready; cat; exit 6"]).ready();
        job.send(Signal::SIGTERM);
        job.tell("still here");
        assert_eq!(job.lines(2)[1], "still here");
        job.wait().exits(6);
    }

    fn a_signal_that_was_ignored_from_the_start_is_not_forwarded(sandbox: &Sandbox) {
        let script = "trap '' HUP; exec csalock run x dash -c 'echo ready; cat; exit 6'";
        let mut job = sandbox.script("dash", script).ready();
        job.send(Signal::SIGHUP);
        job.tell("still here");
        assert_eq!(job.lines(2)[1], "still here");
        job.wait().exits(6);
    }

    fn a_job_whose_supervisor_was_killed_keeps_its_lock_until_it_ends(sandbox: &Sandbox) {
        let mut job = sandbox.csalock(["run", "x", "dash", "-c", "echo $$; cat; echo end >> log"]).spawn();
        let command: i32 = job.lines(1)[0].parse().unwrap();
        job.kill();
        let sight = sandbox.sight("x");
        assert_eq!((&sight["state"], &sight["holders"][0]["pid"]), (&"held".into(), &command.into()));
        sandbox.csalock(["run", "-n", "x", "true"]).capture().exits(75);
        let next = sandbox.waiter("x", "echo next >> log");
        job.release();
        next.wait().exits(0);
        assert_eq!(sandbox.read("files/log"), "end\nnext\n");
    }

    fn a_supervisor_that_is_stopped_releases_when_it_goes_on(sandbox: &Sandbox) {
        let mut job = sandbox.csalock(["run", "x", "dash", "-c", "echo $$; cat; exit 5"]).spawn();
        let command: i32 = job.lines(1)[0].parse().unwrap();
        job.send(Signal::SIGSTOP);
        job.release();
        wait_until("the command has ended", || !proc::lives(command));
        let next = sandbox.holder("x");
        job.send(Signal::SIGCONT);
        job.wait().exits(5);
        assert_eq!(sandbox.state("x"), "held");
        next.wait().exits(0);
        assert_eq!(sandbox.state("x"), "free");
    }

    fn a_waiter_leaves_the_queue_when_a_signal_ends_it(sandbox: &Sandbox) {
        let _holder = sandbox.holder("x");
        for (signal, name) in FORWARDED {
            for words in [&["run", "-w", "inf", "x", "touch", "ran"][..], &["run", "-F", "-w", "inf", "x", "touch", "ran"],
                          &["lock", "-w", "inf", "x"]] {
                let script = format!("ulimit -c 0; exec csalock {}", words.join(" "));
                let job = sandbox.script("dash", &script).spawn();
                wait_until("it waits", || sandbox.waiters("x").len() == 1);
                job.send(signal);
                let done = job.wait();
                let found = (done.signal, done.stdout.as_str(), done.stderr.as_str());
                assert_eq!(found, (Some(signal as i32), "", ""), "{name}");
                assert!(sandbox.waiters("x").is_empty(), "{name}");
            }
        }
        assert!(!sandbox.path("files/ran").exists());
    }

    fn every_other_signal_ends_a_wait_unless_it_has_no_effect_or_is_ignored(sandbox: &Sandbox) {
        require!(has("bash"));
        let holder = sandbox.holder("x");
        let waiter = |ignored: i32, words: &str| {
            let script = format!("ulimit -c 0; trap '' {ignored}; exec csalock {words}");
            let waiter = sandbox.script("bash", &script).spawn();
            wait_until("it waits", || sandbox.waiters("x").len() == 1);
            waiter
        };
        for words in ["run -w inf x touch ran", "run -F -w inf x touch ran", "lock -w inf x"] {
            for signal in [libc::SIGALRM, libc::SIGPWR, 37] {
                let waiter = waiter(libc::SIGVTALRM, words);
                send(sandbox, waiter.pid(), signal);
                let done = waiter.wait();
                let found = (done.signal, done.stdout.as_str(), done.stderr.as_str());
                assert_eq!(found, (Some(signal), "", ""), "{words}");
                assert!(sandbox.waiters("x").is_empty(), "{words}: {signal}");
            }
        }
        assert!(!sandbox.path("files/ran").exists());
        let waiter = waiter(libc::SIGALRM, "run -q -w inf x echo ran");
        for signal in [libc::SIGALRM, libc::SIGWINCH, libc::SIGURG] {
            send(sandbox, waiter.pid(), signal);
        }
        holder.wait().exits(0);
        waiter.wait().prints(0, "ran\n");
    }

    fn a_waiter_whose_supervisor_is_killed_never_runs_its_command(sandbox: &Sandbox) {
        for state in ["as it is", "without signals", "stopped"] {
            // Elsewhere the child leaves the queue before it ends, for which it must go on.
            if state == "stopped" && (!sandbox.is_of_files() || sandbox.is_shared()) {
                continue;
            }
            let holder = sandbox.holder("x");
            let ignored = if state == "without signals" { "trap '' TERM HUP INT; " } else { "" };
            let mut waiter = sandbox.script("dash", &format!("{ignored}exec csalock run -w inf x touch ran")).spawn();
            wait_until("it waits", || sandbox.waiters("x").len() == 1);
            let parked = sandbox.waiters("x")[0];
            assert_ne!(parked, waiter.pid());
            if state == "stopped" {
                stop(parked);
            }
            waiter.kill();
            wait_until("the parked child is gone", || !proc::lives(parked));
            holder.wait().exits(0);
            sandbox.csalock(["run", "x", "true"]).run();
            assert!(!sandbox.path("files/ran").exists(), "{state}");
            assert_eq!(sandbox.state("x"), "free", "{state}");
        }
    }

    fn a_waiter_whose_parked_child_is_stopped_ends_by_a_signal(sandbox: &Sandbox) {
        // Elsewhere no child is parked.
        require!(sandbox.is_of_files() && !sandbox.is_shared());
        for signal in [Signal::SIGTERM, Signal::SIGINT] {
            let holder = sandbox.holder("x");
            let waiter = sandbox.waiter("x", "touch ran");
            let parked = sandbox.waiters("x")[0];
            stop(parked);
            holder.wait().exits(0);
            assert_eq!(sandbox.state("x"), "free");
            waiter.send(signal);
            assert_eq!(waiter.wait().signal, Some(signal as i32));
            assert_eq!((sandbox.state("x"), proc::lives(parked)), ("free".to_string(), false));
        }
        assert!(!sandbox.path("files/ran").exists());
    }

    fn a_waiter_whose_parked_child_is_killed_gives_up(sandbox: &Sandbox) {
        let holder = sandbox.holder("x");
        let waiter = sandbox.waiter("x", "touch ran");
        let parked = nix::unistd::Pid::from_raw(sandbox.waiters("x")[0]);
        nix::sys::signal::kill(parked, Signal::SIGKILL).unwrap();
        waiter.wait().exits(137);
        // A real-time signal, which has no name.
        let waiter = sandbox.waiter("x", "touch ran");
        sandbox.script("bash", &format!("kill -35 {}", sandbox.waiters("x")[0])).run();
        waiter.wait().exits(163);
        assert!(sandbox.waiters("x").is_empty());
        holder.wait().exits(0);
        assert!(!sandbox.path("files/ran").exists());
    }
}
