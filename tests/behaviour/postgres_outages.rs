//! PostgreSQL servers that are killed, stopped and restarted under commands that hold and wait, and behind a pooler.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::etcd::fair::is_within;
use crate::postgres::{Bouncer, Server};
use crate::sandbox::{ALONE, FILE_TIMES, Sandbox, has_namespaces, is_root, proc, wait_until};
use crate::servers::LEASE;

#[test]
fn a_restart_of_the_server_ends_no_command_and_callers_wait_for_it() {
    let Some(server) = Server::start(&[]) else { return };
    let sandbox = Sandbox::in_database(&server.url(""));
    let holder = sandbox.holder("x");
    let waiter = sandbox.waiter("x", "exit 7");
    server.kill();
    let late = sandbox.csalock(["run", "-w", "inf", "y", "true"]).spawn();
    server.restart();
    late.wait().exits(0);
    assert_eq!(sandbox.holders("x"), [sandbox.sight("x")["holders"][0]["pid"].as_i64().unwrap() as i32]);
    assert_eq!((holder.wait().code, waiter.wait().code), (Some(0), Some(7)));
}

#[test]
fn an_answer_about_claims_values_and_jobs_waits_for_the_synchronous_standby() {
    let Some(primary) = Server::start(&["synchronous_standby_names=s1"]) else { return };
    let standby = primary.standby("s1");
    let sandbox = Sandbox::in_database(&primary.url(""));
    let answers: [(&[&str], i32); 8] = [
        (&["claim", "--id", "me", "name"], 0),
        (&["claim", "--id", "me", "name", "other"], 0),
        (&["claim", "--id", "you", "name"], 83),
        (&["lookup", "name"], 0),
        (&["lookup", "--id", "me"], 0),
        (&["get", "x"], 0),
        (&["put", "--if-absent", "x", "w"], 83),
        (&["run", "-n", "--once-per", "99999d", "job", "touch", "ran"], 0),
    ];
    for words in [answers[0].0, answers[1].0, &["put", "x", "v"], answers[7].0] {
        assert_eq!(sandbox.csalock(words).capture().code, Some(0), "{words:?}");
    }
    std::fs::remove_file(sandbox.path("files/ran")).unwrap();
    standby.stop(true);
    // These promise nothing that could be lost.
    for (words, code) in [(["lookup", "unknown"], 81), (["get", "unknown"], 81), (["status", "name"], 0)] {
        assert_eq!(sandbox.csalock(words).capture().code, Some(code), "{words:?}");
    }
    let calls = answers.map(|(words, _)| sandbox.csalock(words).spawn());
    let done = calls.map(|call| call.wait());
    standby.stop(false);
    for (done, (words, _)) in done.iter().zip(answers) {
        assert!(done.code == Some(69) && done.stdout.is_empty(), "{words:?}: {done:?}");
    }
    for (words, code) in answers {
        let call = || sandbox.csalock(words).capture();
        wait_until("the standby answers", || call().code != Some(69));
        assert_eq!(call().code, Some(code), "{words:?}");
    }
    assert!(!sandbox.path("files/ran").exists());
}

#[test]
fn waiters_behind_a_pooler_and_beyond_hosts_take_turns() {
    require!(has_namespaces("another pid namespace"));
    let Some(server) = Server::start(&[]) else { return };
    let bouncer = Bouncer::start(&server);
    for (is_pooled, url) in [(false, server.url("direct_")), (true, bouncer.url("pooled_"))] {
        let sandbox = Sandbox::in_database(&url);
        let count = "read n < count; sleep 0.01; echo $((n + 1)) > count";
        sandbox.file("files/count", "0\n");
        let words = ["run", "-w", "inf", "x", "dash", "-c", count];
        let alone = ALONE.map(str::to_string);
        let callers: Vec<_> = (0..8)
            .map(|number| match number % 2 {
                0 => sandbox.csalock(words).spawn(),
                _ => sandbox.csalock_by(&alone, &words).spawn(),
            })
            .collect();
        for caller in callers {
            assert_eq!(caller.wait().code, Some(0), "pooled: {is_pooled}");
        }
        assert_eq!(sandbox.read("files/count"), "8\n");
    }
}

#[test]
fn a_waiter_on_another_host_is_woken_by_the_server() {
    require!(has_namespaces("another network namespace"));
    let Some(server) = Server::start(&[]) else { return };
    // The socket is a file, so it is there in every network namespace.
    let socket = server.path("").display().to_string().replace('/', "%2F");
    let url = format!("postgres://test@{socket}:{}/postgres?schema=woken_", server.port());
    let sandbox = Sandbox::in_database(&url);
    let mut holder = sandbox.holder("x");
    let elsewhere = ["unshare", "-n"].map(str::to_string);
    // It polls so rarely that it would not end in time.
    let words = ["run", "-w", "inf", "--backoff", "10m..10m", "x", "true"];
    let mut waiter = sandbox.csalock_by(&elsewhere, &words).env("CSALOCK_LEASE", "1h").spawn();
    let listens = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%; LISTEN %' AND pid <> pg_backend_pid()";
    wait_until("it listens", || server.sql(listens) == "1");
    wait_until("it waits", || sandbox.waiters("x").len() == 1);
    holder.release();
    wait_until("it has its turn", || waiter.has_ended());
    assert_eq!((holder.wait().code, waiter.wait().code), (Some(0), Some(0)));
}

#[test]
fn a_step_of_the_servers_clock_neither_ends_a_lease_nor_keeps_the_lock_of_a_dead_host() {
    require!(is_root("another pid namespace"));
    let Some(server) = Server::start(&[]) else { return };
    let sandbox = Sandbox::in_database(&server.url(""));
    let alone = ALONE.map(str::to_string);
    let mut holder = sandbox.csalock_by(&alone, &["run", "x", "sleep", "1000"]).env("CSALOCK_LEASE", LEASE).spawn();
    wait_until("it holds", || sandbox.holders("x").len() == 1);
    let call = |words: &[&str], step: &str| {
        sandbox.csalock_by(&alone, words).env(FILE_TIMES, step).env("CSALOCK_LEASE", LEASE).capture()
    };
    for step in ["+1h", "-1h", "+0"] {
        assert_eq!(call(&["run", "-q", "-n", "x", "true"], step).code, Some(75), "{step}");
    }
    holder.kill();
    let begun = Instant::now();
    call(&["run", "-q", "-w", "60s", "x", "echo", "ran"], "-1h").prints(0, "ran\n");
    assert!(is_within(begun, Duration::from_secs(20)), "{:?}", begun.elapsed());
}

#[test]
fn a_run_makes_one_connection_but_shares_none_with_a_child_that_was_killed_while_using_it() {
    let Some(server) = Server::start(&["log_connections=on"]) else { return };
    let sandbox = Sandbox::in_database(&server.url(""));
    sandbox.csalock(["run", "x", "true"]).run();
    let connections =
        || server.log().matches("connection authorized: user=test database=postgres application_name=csalock").count();
    // On a busy machine the keeper, too, may make one.
    let makes_one = || {
        let before = connections();
        sandbox.csalock(["run", "x", "true"]).run();
        connections() == before + 1
    };
    assert!((0..20).any(|_| makes_one()));

    // The child waits for the answer to its commit.
    let blocker = server.lock_table("store.removed", "EXCLUSIVE");
    // A child whose call has taken too long makes another one.
    let waits = || server.sql("SELECT count(*) FROM pg_locks WHERE NOT granted") != "0";
    let before = connections();
    let job = sandbox.csalock(["run", "x", "echo", "ran"]).spawn();
    wait_until("the child waits for the server", waits);
    let child = proc::children(job.pid())[0];
    kill(Pid::from_raw(child), Signal::SIGKILL).unwrap();
    wait_until("the supervisor has a connection of its own", || connections() > before + 1);
    Server::end(blocker);
    let done = job.wait();
    assert_eq!((done.seen_by_shell(), done.stdout.as_str()), (137, ""), "{done:?}");
    sandbox.csalock(["run", "-q", "-w", "50s", "x", "true"]).run();
    assert!(sandbox.is_tidy());
}

#[test]
fn each_process_has_an_encrypted_connection_of_its_own() {
    let Some(server) = Server::start_with(&["log_connections=on"], "hostssl all all all trust\n") else { return };
    let sandbox = Sandbox::in_database(&server.url("").replace("schema=", "sslmode=require&schema="));
    let encrypted = || server.log().matches("SSL enabled (protocol").count();
    sandbox.csalock(["run", "x", "true"]).run();
    let before = encrypted();
    let holder = sandbox.csalock(["run", "x", "sh", "-c", "> held; sleep 3.5"]).env("CSALOCK_LEASE", "3s").spawn();
    // Otherwise the second supervisor might be the first one to have the lock, and end before its keeper connects.
    wait_until("it is held", || sandbox.path("files/held").exists());
    let waiter = sandbox.csalock(["run", "y", "sh", "-c", "csalock run -w inf x echo next"]).spawn();
    let held = holder.wait();
    assert_eq!((held.code, held.stderr.as_str()), (Some(0), ""));
    assert_eq!(waiter.wait().stdout, "next\n");
    // Three supervisors, and the keepers of the two that hold a lock for more than a lease.
    assert!(encrypted() >= before + 5, "each process has its own: {}", server.log());
    assert_eq!((sandbox.state("x").as_str(), sandbox.state("y").as_str()), ("free", "free"));
}
