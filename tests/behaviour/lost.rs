//! Locks that are lost while their command runs, and locks that only look lost.

use std::time::Duration;

use host::{Host, Unix, WakeAddress};
use nix::sys::signal::Signal;
use store::Call as StoreCall;

use crate::sandbox::{Job, Kind, Sandbox, proc, wait_until};

const LOST: &str = "csalock: lost while the command ran: lock x: its record has no trace of the grant; what the command \
                    did after that was not guarded\n";

const REPLACED: &str = "csalock: lost while the command ran: lock x: its store was moved, replaced or removed, so other \
                        callers did not see the grant; what the command did after that was not guarded\n";

const NO_SUCCESS: &str = "csalock: the job of lock x has succeeded, but that could not be recorded, so it may run again: the lock \
                          was lost before; see `csalock history`\n";

/// More grants than a record remembers.
const MANY: usize = 6;

/// A command under lock x, after it has printed a line; it runs until its stdin ends.
fn running(sandbox: &Sandbox, options: &[&str], script: &str) -> Job {
    let script = format!("{script}; echo; cat > /dev/null; exit 3");
    sandbox.csalock([&["run"], options, &["x", "dash", "-c", &script]].concat()).ready()
}

/// Other commands that hold the lock, one after the other.
fn others(sandbox: &Sandbox) {
    (0..MANY).for_each(|_| sandbox.csalock(["run", "-q", "x", "true"]).run());
}

/// Removes the record without a lock, as `etcdctl del` or `rm` do.
fn remove_record(sandbox: &Sandbox) {
    let store = sandbox.open();
    let version = store.read(StoreCall::default(), b"x").unwrap().map(|stored| stored.version);
    store.commit(StoreCall::default(), &store::WriteSet::of(b"x", version.as_ref(), None)).unwrap();
}

#[track_caller]
fn is_lost(job: Job) {
    let done = job.wait();
    assert!(done.code == Some(85) && done.stderr.starts_with(LOST), "{done:?}");
}

/// Every keeper that pauses before it listens takes longer, so one quick end among many is enough.
#[test]
fn a_command_whose_lock_is_broken_at_once_is_ended_at_once() {
    let sandbox = Sandbox::new(Kind::Shared);
    let command = "env -u CSALOCK_HANDLE csalock unlock --force x > /dev/null; while :; do date +%s%N; done";
    let goes_on_for = || {
        let done = sandbox.csalock(["run", "x", "dash", "-c", command]).capture();
        assert_eq!(done.code, Some(85), "{}", done.stderr);
        let times: Vec<u64> = done.stdout.lines().filter_map(|line| line.parse().ok()).collect();
        times.last().zip(times.first()).map_or(0, |(last, first)| last - first)
    };
    let quick = Duration::from_millis(40).as_nanos() as u64;
    assert!((0..200).any(|_| goes_on_for() < quick), "it always goes on for more than 40 ms");
}

/// Only the exit status of the command is left of the grant.
#[track_caller]
fn is_not_lost(sandbox: &Sandbox, job: Job) {
    job.wait().complains(3, "");
    assert!(sandbox.record("x").is_none(), "{:?}", sandbox.record("x"));
}

on_every_kind_of_store! {
    fn a_command_whose_record_was_removed_has_lost_its_lock(sandbox: &Sandbox) {
        for options in [&[][..], &["--on-lost", "warn"], &["--ttl", "1h"]] {
            let job = running(sandbox, options, ":");
            remove_record(sandbox);
            is_lost(job);
            let job = running(sandbox, options, ":");
            remove_record(sandbox);
            others(sandbox);
            is_lost(job);
        }
    }

    fn a_command_has_lost_its_lock_though_a_later_holder_died(sandbox: &Sandbox) {
        for options in [&[][..], &["--on-lost", "warn"]] {
            let job = running(sandbox, options, ":");
            remove_record(sandbox);
            assert_eq!(sandbox.script("dash", "csalock lock x; kill -9 $$").capture().signal, Some(9));
            is_lost(job);
            sandbox.csalock(["run", "-q", "x", "true"]).run();
        }
    }

    fn a_success_under_a_lost_lock_is_not_recorded_though_a_later_holder_died(sandbox: &Sandbox) {
        let words = ["run", "--overdue", "1h", "--on-lost", "warn", "x", "dash", "-c", "echo; cat"];
        let job = sandbox.csalock(words).ready();
        remove_record(sandbox);
        assert_eq!(sandbox.script("dash", "csalock lock x; kill -9 $$").capture().signal, Some(9));
        job.wait().says(85, NO_SUCCESS);
        sandbox.csalock(["run", "-q", "x", "true"]).run();
    }

    fn a_command_whose_grant_was_edited_away_has_lost_its_lock(sandbox: &Sandbox) {
        let job = running(sandbox, &[], ":");
        sandbox.edit("x", |record| record.holders.clear());
        is_lost(job);
    }

    fn a_command_whose_lock_is_broken_is_ended_at_once(sandbox: &Sandbox) {
        for options in [&[][..], &["--ttl", "1h"]] {
            let mut job = running(sandbox, options, ":");
            sandbox.csalock(["unlock", "--force", "x"]).capture();
            others(sandbox);
            wait_until("it is ended", || job.has_ended());
            let done = job.wait();
            let ended = "until it was broken by --force; what the command did after that was not guarded\n\
                         csalock: the command was ended\n";
            assert!(done.code == Some(85) && done.stderr.contains(ended), "{done:?}");
        }
        let job = running(sandbox, &["--on-lost", "warn"], ":");
        sandbox.csalock(["unlock", "--force", "x"]).capture();
        others(sandbox);
        let done = job.wait();
        assert!(done.code == Some(85) && done.stderr.lines().count() == 1, "{done:?}");
        assert!(sandbox.record("x").is_none(), "it was told");
    }

    fn a_command_that_releases_its_lock_has_not_lost_it(sandbox: &Sandbox) {
        for release in ["csalock unlock x", "csalock put --unlock x value; csalock del x"] {
            for options in [&[][..], &["--ttl", "1h"]] {
                let job = running(sandbox, options, release);
                wait_until("the record need not keep it", || sandbox.record("x").is_none());
                others(sandbox);
                is_not_lost(sandbox, job);
            }
        }
    }

    fn a_release_is_remembered_until_a_stopped_supervisor_goes_on(sandbox: &Sandbox) {
        for (script, ends) in [("csalock unlock x", false), ("exit 3", true)] {
            let script = format!("echo; while [ ! -e go ]; do sleep 0.01; done; {script}; touch done");
            let mut job = running(sandbox, &[], &script);
            let command = sandbox.holders("x")[0];
            job.send(Signal::SIGSTOP);
            sandbox.file("files/go", "");
            match ends {
                false => wait_until("it is released", || sandbox.path("files/done").exists()),
                true => wait_until("it has ended", || !proc::lives(command)),
            }
            others(sandbox);
            job.send(Signal::SIGCONT);
            if ends {
                wait_until("its supervisor has ended", || job.has_ended());
            }
            is_not_lost(sandbox, job);
            let _ = ["go", "done"].map(|file| std::fs::remove_file(sandbox.path("files").join(file)));
        }
    }

    fn a_release_is_forgotten_with_its_supervisor(sandbox: &Sandbox) {
        let mut job = running(sandbox, &[], "echo; while [ ! -e go ]; do sleep 0.01; done; csalock unlock x; touch done");
        job.send(Signal::SIGSTOP);
        sandbox.file("files/go", "");
        wait_until("it is released", || sandbox.path("files/done").exists());
        job.kill();
        others(sandbox);
        assert!(sandbox.record("x").is_none(), "{:?}", sandbox.record("x"));
    }

    fn a_command_without_a_supervisor_releases_its_lock_and_goes_on(sandbox: &Sandbox) {
        let job = running(sandbox, &["-F"], "csalock unlock x");
        wait_until("the record need not keep it", || sandbox.record("x").is_none());
        others(sandbox);
        is_not_lost(sandbox, job);
    }
}

/// The number of times that a process has slept.
fn sleeps(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

on_every_store_of_files! {
    fn a_command_whose_store_was_moved_or_replaced_has_lost_its_lock(sandbox: &Sandbox) {
        let changes: &[&str] = match sandbox.kind() {
            Kind::Directory => &["mv store gone", "cp -a store new; rm -r store; mv new store", "rm -r store"],
            _ => &[
                "mv store gone", "rm store-wal store-shm", "rm store-wal", "rm store*", "cp store new; mv new store",
                "mkdir gone; mv store* gone",
            ],
        };
        for change in changes {
            for after in [":", "csalock run -n x true"] {
                sandbox.csalock(["run", "x", "true"]).run();
                let job = running(sandbox, &[], ":");
                let script = format!("cd ..; {change}; {after}; :");
                sandbox.script("dash", &script).capture();
                let done = job.wait();
                assert_eq!((done.code, done.stderr.as_str()), (Some(85), REPLACED), "{change} {after}");
                sandbox.script("dash", "cd ..; rm -rf store* gone new").run();
            }
        }
    }

    fn a_record_that_cannot_be_read_for_a_moment_is_no_loss(sandbox: &Sandbox) {
        let mut job = running(sandbox, &[], ":");
        let proof = sandbox.record("x").unwrap().holders[0].proof;
        let body = sandbox.open().read(StoreCall::default(), b"x").unwrap().unwrap().body;
        sandbox.overwrite("x", b"garbage\n");
        let before = sleeps(job.pid());
        assert!(Unix::new().wake(WakeAddress::Supervisor(&proof)), "the supervisor listens");
        wait_until("the supervisor has looked", || job.has_ended() || sleeps(job.pid()) > before);
        assert!(!job.has_ended());
        sandbox.overwrite("x", &body);
        is_not_lost(sandbox, job);
    }

    fn a_command_whose_store_was_removed_has_lost_its_lock(sandbox: &Sandbox) {
        // The store existed before the command began.
        sandbox.csalock(["put", "y", "value"]).run();
        for more in [false, true] {
            let job = running(sandbox, &[], ":");
            sandbox.script("dash", "rm -rf ../store*").run();
            if more {
                others(sandbox);
            }
            job.wait().complains(85, REPLACED);
        }
    }

    fn a_waiter_whose_store_was_removed_holds_and_releases_the_lock_of_the_new_store(sandbox: &Sandbox) {
        let holder = running(sandbox, &[], ":");
        let mut waiter = sandbox.csalock(["run", "x", "dash", "-c", "echo; cat > /dev/null; exit 3"]).spawn();
        wait_until("it waits", || sandbox.waiters("x").len() == 1);
        sandbox.script("dash", "rm -rf ../store*").run();
        let done = holder.wait();
        // The new record wakes the supervisor, which may end the command first.
        assert!(done.code == Some(85) && done.stderr.starts_with(REPLACED), "{done:?}");
        waiter.lines(1);
        assert_eq!(sandbox.state("x"), "held");
        is_not_lost(sandbox, waiter);
    }
}

#[test]
fn a_change_of_its_record_in_etcd_is_seen_at_once() {
    let Some(cluster) = crate::etcd::shared() else { return };
    let sandbox = Sandbox::at(cluster);
    // Long before the lease would be renewed.
    let began = std::time::Instant::now();
    let lease = "10m";
    let words = ["run", "x", "dash", "-c", "echo; exec sleep 600"];
    let mut job = sandbox.csalock(words).env("CSALOCK_LEASE", lease).ready();
    // Waiters change it, too, and end nothing.
    for _ in 0..2 {
        sandbox.csalock(["run", "-q", "-w", "1s", "x", "true"]).env("CSALOCK_LEASE", lease).status(75).run();
    }
    assert!(!job.has_ended());
    remove_record(&sandbox);
    sandbox.csalock(["run", "-q", "x", "true"]).env("CSALOCK_LEASE", lease).run();
    wait_until("it is ended", || job.has_ended());
    let done = job.wait();
    assert_eq!((done.code, done.stderr), (Some(85), format!("{LOST}csalock: the command was ended\n")));
    assert!(began.elapsed().as_secs() < 180);
}
