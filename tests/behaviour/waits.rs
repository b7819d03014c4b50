//! Waits while servers are away: every command that waits for a lock waits for its servers too, hears signals meanwhile,
//! and keeps no connection that others need; and a job that has succeeded runs once in its slot.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::etcd::fair::is_within;
use crate::postgres::Server;
use crate::renewed::keepers;
use crate::sandbox::{Job, Sandbox, proc, wait_until};
use crate::servers::{LEASE, Servers};
use crate::{postgres, ssh};

/// The longest time in which a busy machine hears a signal, below that of a call.
const SOON: Duration = Duration::from_secs(5);

/// A slot that does not end while a test runs.
const LONG: &str = "--once-per=99999d";

/// Every command and option that waits. NAME is another name in each.
const WAITING: [&str; 21] = [
    "run NAME true",
    "run --shared NAME true",
    "run --slots=2 NAME true",
    "run --ttl=1m NAME true",
    "run --tree NAME true",
    "run --no-fork NAME true",
    "run --reentrant NAME true",
    "run --busy=latest NAME true",
    "run --busy=replace NAME true",
    "run --once-per=99999d NAME true",
    "run --overdue=1h NAME true",
    "run NAME --also NAME.2 -- true",
    "lock --forever NAME",
    "lock --reentrant NAME",
    "lock --forever --print-handle NAME",
    "lock --forever NAME NAME.2",
    "wait NAME",
    "put NAME value",
    "del NAME",
    "get --lock --forever NAME",
    "claim --id=me NAME NAME.2",
];

fn each_server() -> impl Iterator<Item = (&'static str, Servers)> {
    let etcd = Servers::etcd(None, &[0]).map(|etcd| ("etcd", etcd));
    let postgres = Server::start(&[]).map(|server| ("PostgreSQL", Servers::Postgres(server)));
    let ssh = ssh::Server::start("").map(|server| ("ssh", Servers::Ssh(server)));
    [etcd, postgres, ssh].into_iter().flatten()
}

/// Starts all of the commands, each with a name of its own, and those of `--reentrant` under a grant that is over.
fn all(sandbox: &Sandbox) -> Vec<(&'static str, Job)> {
    let start = |(at, line): (usize, &'static str)| {
        let name = format!("n{at}");
        let mut words: Vec<String> = line.split(' ').map(|word| word.replace("NAME", &name)).collect();
        words.splice(1..1, ["-w".to_string(), "2m".to_string()]);
        let call = sandbox.csalock(words);
        let under = if line.contains("--reentrant") { call.env("CSALOCK_HANDLE", "0".repeat(32)) } else { call };
        (line, under.spawn())
    };
    WAITING.into_iter().enumerate().map(start).collect()
}

/// A control whose message tells that the servers are away.
fn await_outage(sandbox: &Sandbox) -> Job {
    let control = sandbox.csalock(["run", "-v", "-w", "2m", "control", "true"]).spawn();
    wait_until("the control has met the outage", || control.said().contains("waiting for lock control: "));
    control
}

#[test]
fn every_command_that_waits_waits_for_a_server_that_refuses_connections() {
    for (kind, servers) in each_server() {
        let sandbox = servers.sandbox();
        for name in ["x", "n18", "n19"] {
            sandbox.csalock(["put", name, "value"]).run();
        }
        servers.kill(0);
        let mut jobs = all(&sandbox);
        let control = await_outage(&sandbox);
        let begun = Instant::now();
        wait_until("all of them have met it", || begun.elapsed() > Duration::from_secs(2));
        for (line, job) in &mut jobs {
            assert!(!job.has_ended(), "{kind}: {line}: {}", job.said());
        }
        servers.restart(0);
        servers.await_health();
        control.wait().exits(0);
        for (line, job) in jobs {
            let done = job.wait();
            assert_eq!(done.code, Some(0), "{kind}: {line}: {done:?}");
        }
    }
}

#[test]
fn every_command_that_waits_hears_a_signal_while_the_server_is_silent() {
    for (kind, servers) in each_server() {
        let sandbox = servers.sandbox();
        sandbox.csalock(["run", "x", "true"]).run();
        servers.stop(0, true);
        let mut jobs = all(&sandbox);
        let begun = Instant::now();
        wait_until("all of them wait", || begun.elapsed() > Duration::from_secs(3));
        for (line, job) in &mut jobs {
            assert!(!job.has_ended(), "{kind}: {line}: {}", job.said());
            job.send(Signal::SIGTERM);
        }
        let sent = Instant::now();
        for (line, job) in jobs {
            let done = job.wait();
            assert_eq!(done.seen_by_shell(), 143, "{kind}: {line}: {done:?}");
            assert!(is_within(sent, SOON), "{kind}: {line}: {:?}", sent.elapsed());
        }
        servers.stop(0, false);
    }
}

#[test]
fn a_wait_for_a_held_lock_outlasts_a_restart_of_the_server() {
    for (kind, servers) in each_server() {
        let sandbox = servers.sandbox();
        let holder = sandbox.holder("x");
        let mut waiter = sandbox.csalock(["wait", "-v", "-w", "inf", "free", "x"]).spawn();
        wait_until("it waits for x", || waiter.said().contains("lock free is free"));
        servers.kill(0);
        let control = await_outage(&sandbox);
        assert!(!waiter.has_ended(), "{kind}: {}", waiter.said());
        servers.restart(0);
        servers.await_health();
        control.wait().exits(0);
        assert!(!waiter.has_ended(), "{kind}: {}", waiter.said());
        holder.wait().exits(0);
        waiter.wait().exits(0);
    }
}

#[test]
fn a_crowd_of_waits_leaves_connections_to_others() {
    let settings = ["max_connections=14", "superuser_reserved_connections=3", "max_wal_senders=0"];
    let Some(server) = postgres::Server::start(&settings) else { return };
    server.sql("CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app");
    let sandbox = Sandbox::in_database(&server.url("").replace("test@", "app@"));
    let holder = sandbox.holder("x");
    let waits: Vec<Job> = (0..12)
        .map(|_| {
            let wait = sandbox.csalock(["wait", "-v", "-w", "inf", "free", "x"]).spawn();
            wait_until("it waits for x", || wait.said().contains("lock free is free"));
            wait
        })
        .collect();
    // Each of them comes back for a moment again and again.
    let sessions =
        || server.sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'").parse::<usize>().unwrap();
    wait_until("the waits have left", || sessions() <= 5);
    let mut other = server.psql();
    other.args(["-U", "app", "-c", "SELECT 1"]);
    assert!((0..20).any(|_| other.output().unwrap().status.success()), "another application gets in");
    holder.wait().exits(0);
    waits.into_iter().for_each(|wait| wait.wait().exits(0));

    // The wait of a script looks for a deadlock after a while, which needs the server.
    let holder = sandbox.holder("x");
    let runs: Vec<Job> = (0..8).map(|_| sandbox.script("dash", "csalock run -s -w inf x true; :").spawn()).collect();
    let begun = Instant::now();
    wait_until("they have looked for a deadlock", || begun.elapsed() > Duration::from_secs(4));
    wait_until("the callers of run have left", || sessions() <= 5);
    holder.wait().exits(0);
    runs.into_iter().for_each(|run| run.wait().exits(0));
}

/// A job in its slot, whose command has ended with success while the server is away.
fn job_in_outage(sandbox: &Sandbox, servers: &Servers, lease: &str) -> Job {
    let words = ["run", LONG, "job", "dash", "-c", "echo $$; cat; echo run >> runs"];
    let mut job = sandbox.csalock(words).env("CSALOCK_LEASE", lease).spawn();
    let command: i32 = job.lines(1)[0].parse().unwrap();
    servers.kill(0);
    job.release();
    wait_until("the command has ended", || !proc::lives(command));
    job
}

fn run_again(sandbox: &Sandbox) -> usize {
    sandbox.csalock(["run", "-q", "-w", "2m", LONG, "job", "dash", "-c", "echo run >> runs"]).run();
    sandbox.read("files/runs").lines().count()
}

#[test]
fn a_job_whose_server_is_away_when_it_ends_runs_once_in_its_slot() {
    for (kind, servers) in each_server() {
        let sandbox = servers.sandbox();
        let mut job = job_in_outage(&sandbox, &servers, "2m");
        let ended = Instant::now();
        // Any other command ends after five seconds of silence.
        wait_until("it waits for the store", || ended.elapsed() > Duration::from_secs(7) || job.has_ended());
        assert!(!job.has_ended(), "{kind}: {}", job.said());
        servers.restart(0);
        servers.await_health();
        let done = job.wait();
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{kind}");
        assert_eq!(run_again(&sandbox), 1, "{kind}");
    }
}

#[test]
fn a_job_whose_server_stays_away_for_a_lease_says_so() {
    for (kind, servers) in each_server() {
        let sandbox = servers.sandbox();
        let job = job_in_outage(&sandbox, &servers, LEASE);
        let done = job.wait();
        let said = "csalock: the job of lock job has succeeded, but that could not be recorded, so it may run again: ";
        assert!(done.code == Some(85) && done.stderr.starts_with(said), "{kind}: {done:?}");
        // A keeper that still runs would record the success, because no other call has the lock.
        wait_until("the keeper has ended", || keepers(&sandbox).is_empty());
        servers.restart(0);
        servers.await_health();
        assert_eq!(run_again(&sandbox), 2, "{kind}");
    }
}

#[test]
fn a_keeper_records_the_success_if_a_signal_ends_csalock_meanwhile() {
    for (kind, servers) in each_server() {
        let sandbox = servers.sandbox();
        let mut job = job_in_outage(&sandbox, &servers, "2m");
        // A signal that comes before csalock has seen the end of the command is for the command.
        wait_until("it hears a signal", || {
            job.send(Signal::SIGTERM);
            job.has_ended()
        });
        let done = job.wait();
        let said = "csalock: the job of lock job has succeeded, but that could not be recorded, so it may run again: ";
        assert!(done.seen_by_shell() == 143 && done.stderr.starts_with(said), "{kind}: {done:?}");
        servers.restart(0);
        servers.await_health();
        wait_until("it is on record", || sandbox.sight("job")["job"]["last_success"].is_string());
        assert_eq!(run_again(&sandbox), 1, "{kind}");
    }
}
