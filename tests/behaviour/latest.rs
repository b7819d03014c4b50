//! `run --busy`: what a caller does while the lock is busy.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::Signal;

use crate::queue::{await_stop, waiter_that_stops_at_its_grant};
use crate::sandbox::{Job, Sandbox, has, wait_until};
use crate::storm::Dice;

/// Starts a caller that gives way to a newer one, and awaits its entry into the queue, at this place.
fn deploy(sandbox: &Sandbox, script: &str, place: usize) -> Job {
    let job = sandbox.csalock(["run", "--busy", "latest", "-w", "inf", "x", "dash", "-c", script]).spawn();
    wait_until("it waits", || sandbox.waiters("x").get(place) == Some(&waiting_process(&job)));
    job
}

/// The process that waits: the child that becomes the command. Another child is an ssh.
fn waiting_process(job: &Job) -> i32 {
    let children = crate::sandbox::proc::children(job.pid());
    children.into_iter().find(|pid| crate::sandbox::proc::program(*pid) != "ssh").unwrap_or_default()
}

const REPLACED: &str = "csalock: lock x in store STORE: a newer caller has taken the place in the queue: pid PID on HOST \
                        (user USER) has waited since TIME: dash -c echo 2; nothing was run; see `csalock status x`\n";

/// Number of callers of a storm, and of deployments by each.
const CALLERS: usize = 6;

on_every_store! {
    fn the_newest_caller_replaces_the_waiter_before(sandbox: &Sandbox) {
        let mut holder = sandbox.holder("x");
        let first = deploy(sandbox, "echo 1", 0);
        let second = deploy(sandbox, "echo 2", 0);
        let done = first.wait();
        assert_eq!((done.code, done.stdout.as_str()), (Some(75), ""));
        assert_eq!(sandbox.plain(&done.stderr), REPLACED);
        let third = deploy(sandbox, "echo 3", 0);
        second.wait().exits(75);
        assert_eq!(sandbox.waiters("x").len(), 1);
        holder.release();
        third.wait().is(0, "3\n", "");
        assert_eq!((sandbox.state("x"), sandbox.is_tidy()), ("free".to_string(), true));
    }

    fn other_waiters_keep_their_places(sandbox: &Sandbox) {
        let mut holder = sandbox.holder("x");
        let mut waiters = vec![sandbox.waiter("x", "echo 1 >> order")];
        let old = deploy(sandbox, "echo old >> order", 1);
        waiters.push(sandbox.waiter("x", "echo 3 >> order"));
        waiters.push(deploy(sandbox, "echo 2 >> order", 1));
        old.wait().exits(75);
        holder.release();
        waiters.into_iter().for_each(|waiter| assert_eq!(waiter.wait().code, Some(0)));
        assert_eq!(sandbox.read("files/order"), "1\n2\n3\n");
        assert_eq!(sandbox.state("x"), "free");
    }

    fn a_waiter_that_was_killed_does_not_stay(sandbox: &Sandbox) {
        let mut holder = sandbox.holder("x");
        deploy(sandbox, "echo 1", 0).kill();
        let new = deploy(sandbox, "echo 2", 0);
        assert_eq!(sandbox.record("x").unwrap().waiters.len(), 1);
        holder.release();
        assert_eq!(new.wait().stdout, "2\n");
    }

    fn a_replaced_waiter_that_was_stopped_does_not_run_after_its_successor(sandbox: &Sandbox) {
        let mut holder = sandbox.holder("x");
        let old = deploy(sandbox, "echo old >> order", 0);
        let both = [old.pid(), waiting_process(&old)].map(nix::unistd::Pid::from_raw);
        crate::sandbox::proc::stop(&both.map(nix::unistd::Pid::as_raw));
        let new = deploy(sandbox, "echo new >> order", 0);
        holder.release();
        new.wait().exits(0);
        // The second has ended already if it was to become the command.
        both.into_iter().for_each(|pid| _ = nix::sys::signal::kill(pid, Signal::SIGCONT));
        let done = old.wait();
        assert_eq!(done.code, Some(75));
        let unnamed = "csalock: lock x in store STORE: a newer caller has taken the place in the queue; nothing was run; see \
                       `csalock status x`\n";
        assert_eq!(sandbox.plain(&done.stderr), unnamed);
        assert_eq!(sandbox.read("files/order"), "new\n");
    }

    fn a_waiter_that_stopped_at_its_grant_does_not_run_after_a_newer_caller(sandbox: &Sandbox) {
        require!(sandbox.is_of_files() && has("strace"));
        let newest = ["run", "--busy", "latest", "x", "dash", "-c"];
        for comes_first in [false, true] {
            let holder = sandbox.holder("x");
            let (job, waiter) = waiter_that_stops_at_its_grant(sandbox, &[&newest[..], &["echo old >> order"]].concat());
            holder.wait().exits(0);
            await_stop(sandbox);
            let call = || sandbox.csalock([&newest[..], &["echo new >> order"]].concat());
            if comes_first {
                call().run();
            } else {
                sandbox.csalock(["run", "-w", "inf", "x", "true"]).run();
                call().run();
            }
            nix::sys::signal::kill(waiter, Signal::SIGCONT).unwrap();
            job.wait().exits(75);
        }
        assert_eq!(sandbox.read("files/order"), "new\nnew\n");
    }

    fn a_replaced_waiter_has_the_exit_code_of_a_busy_lock(sandbox: &Sandbox) {
        let holder = sandbox.holder("x");
        let words = ["run", "-q", "-F", "-E", "9", "--busy=latest", "-w", "inf", "x", "true"];
        let old = sandbox.csalock(words).spawn();
        wait_until("it waits", || sandbox.waiters("x") == [old.pid()]);
        let mut new = deploy(sandbox, "echo new", 0);
        let done = old.wait();
        assert_eq!((done.code, done.stderr.as_str()), (Some(9), ""));
        sandbox.csalock(["run", "-n", "x", "true"]).capture().exits(75);
        // On a busy machine the time may be over before the caller is in the queue. It then replaces no one.
        wait_until("a caller with a deadline has replaced the waiter", || {
            sandbox.csalock(["run", "-w", "20ms", "--busy", "latest", "x", "true"]).capture().says(75, " is busy: held by ");
            new.has_ended()
        });
        let replaced = new.wait();
        assert_eq!((replaced.code, replaced.stdout.as_str()), (Some(75), ""));
        holder.wait().exits(0);
        // A lock that is free is acquired like any other.
        sandbox.csalock(["run", "--busy", "latest", "x", "echo", "runs"]).stdout("runs\n").run();
        assert_eq!(sandbox.state("x"), "free");
    }

    fn skip_exits_with_0_and_wait_waits(sandbox: &Sandbox) {
        let mut holder = sandbox.holder("x");
        let done = sandbox.csalock(["run", "--busy", "skip", "x", "echo", "runs"]).capture();
        assert_eq!((done.code, done.stdout.as_str()), (Some(0), ""));
        assert!(done.stderr.starts_with("csalock: lock x in store "), "{}", done.stderr);
        sandbox.csalock(["run", "-q", "--busy", "skip", "-w", "0", "x", "echo", "runs"]).run();
        let waiter = sandbox.csalock(["run", "-w", "inf", "--busy", "wait", "x", "echo", "runs"]).spawn();
        wait_until("it waits", || sandbox.waiters("x").len() == 1);
        holder.release();
        assert_eq!(waiter.wait().stdout, "runs\n");
        sandbox.csalock(["run", "--busy", "skip", "x", "echo", "runs"]).stdout("runs\n").run();
    }

    fn a_replaced_run_is_silent_unless_its_job_is_overdue(sandbox: &Sandbox) {
        let mut holder = sandbox.holder("x");
        let words = ["run", "--overdue", "1h", "--busy", "latest", "-w", "inf", "x", "true"];
        let old = sandbox.csalock(words).spawn();
        wait_until("it waits", || sandbox.waiters("x").len() == 1);
        let new = deploy(sandbox, "true", 0);
        old.wait().succeeds();
        holder.release();
        new.wait().exits(0);
    }

    fn in_a_storm_never_more_than_one_of_them_waits(sandbox: &Sandbox) {
        let deploys = sandbox.many(12);
        let body = "exec 9>> witness; flock -n 9 || echo two >> broken; echo run >> runs";
        let script = format!(
            "i=0; while [ $i -lt {deploys} ]; do i=$((i + 1))
             csalock run -q --busy latest -w inf x dash -c '{body}'; echo $? >> codes; done"
        );
        let plain = format!("i=0; while [ $i -lt {deploys} ]; do i=$((i + 1)); csalock run -q -w inf x dash -c '{body}' || exit 1; done");
        let jobs: Vec<Job> = (0..CALLERS).map(|_| sandbox.script("dash", &script).spawn()).collect();
        let other = sandbox.script("dash", &plain).spawn();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watches = scope.spawn(|| {
                let (mut most, mut dice) = (0, Dice(0x9E37_79B9));
                while !ended.load(Ordering::Relaxed) {
                    let record = sandbox.record("x");
                    let waiting = record.iter().flat_map(|record| &record.waiters).filter(|waiter| waiter.latest_only);
                    let waiting: Vec<_> = waiting.map(|waiter| waiter.process).collect();
                    most = most.max(waiting.len());
                    // Some die while they wait. A waiter that was granted the lock in this moment dies before its command
                    // runs, or the command dies.
                    if let [one] = waiting[..]
                        && dice.roll(20) == 0
                        && crate::sandbox::proc::start_of(one.pid) == Some(one.start)
                    {
                        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(one.pid), Signal::SIGKILL);
                    }
                }
                most
            });
            let all_done: Vec<_> = jobs.into_iter().map(Job::wait).collect();
            ended.store(true, Ordering::Relaxed);
            for done in all_done {
                assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{done:?}");
            }
            assert!(watches.join().unwrap() <= 1, "more than one waits");
        });
        other.wait().exits(0);
        let codes = sandbox.read("files/codes");
        let of = |code: &str| codes.lines().filter(|line| *line == code).count();
        println!("{} ran, {} were replaced, {} were killed", of("0"), of("75"), of("137"));
        assert_eq!(of("0") + of("75") + of("137"), CALLERS * deploys);
        assert!(of("0") > 0, "{codes}");
        assert_eq!(sandbox.read("files/broken"), "");
    }
}

#[test]
fn busy_that_makes_no_sense_is_refused() {
    let sandbox = Sandbox::new(crate::sandbox::Kind::Directory);
    let said = "csalock: --busy latest is for one lock, and here are several; leave --also or --busy latest out\n";
    sandbox.csalock(["run", "--busy", "latest", "--also", "y", "x", "touch", "ran"]).status(64).stderr(said).run();
    sandbox
        .csalock(["run", "--busy", "latest", "x", "--also", "y", "--", "touch", "ran"])
        .status(64)
        .stderr(said)
        .run();
    for (option, shown) in [("-E4", "--conflict-exit-code <N>"), ("-w5", "--timeout <DURATION>")] {
        let said =
            format!("csalock: the argument '--busy skip' cannot be used with '{shown}'; leave one of them out\n");
        sandbox.csalock(["run", option, "--busy=skip", "x", "touch", "ran"]).status(64).stderr(&said).run();
    }
    for words in [["--busy", "latest", "-n"], ["--busy", "skip", "--nonblock"], ["--busy", "sometimes", "-q"]] {
        sandbox.csalock(["run"].iter().chain(&words).chain(&["x", "touch", "ran"])).capture().exits(64);
    }
    assert!(!sandbox.path("files/ran").exists() && !sandbox.store_exists());
}
