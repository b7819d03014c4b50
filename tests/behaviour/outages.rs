//! Stores that are unreachable for a while: a server that is gone or hangs, a cut network, a lost majority. A holder
//! whose lease cannot be renewed stops before the lease is over. The next holder gets in after that, and no caller
//! waits for the store beyond its timeout.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::etcd::between::{Between, Fate, as_it_was};
use crate::etcd::fair::{fair, is_within};
use crate::etcd::{Cluster, Setup};
use crate::sandbox::proc::{keepers, lives};
use crate::sandbox::{Call, Job, Network, Sandbox, wait_until};
use crate::servers::{
    ALIVE, BUSY, ENDED, LEASE, LEASE_SECONDS, NEXT, as_on_another_host, calm, has_noted, noted, uptime,
};
use crate::storm::members;

const SECOND: Duration = Duration::from_secs(1);

fn cluster_of(members: usize) -> Option<Cluster> {
    Cluster::start(Setup { members, arguments: calm(), ..Setup::default() })
}

fn csalock<'a>(sandbox: &'a Sandbox, words: &[&str]) -> Call<'a> {
    sandbox.csalock(words).env("CSALOCK_LEASE", LEASE)
}

/// A holder of lock x that notes its progress in `alive`.
fn holder(sandbox: &Sandbox, options: &[&str]) -> Job {
    let job = csalock(sandbox, &[&["run"], options, &["x", "dash", "-c", ALIVE]].concat()).spawn();
    wait_until("the holder holds", || has_noted(sandbox, "alive"));
    job
}

/// A waiter for lock x without a timeout that notes in `next` when it acquired.
fn waiter(sandbox: &Sandbox) -> Job {
    waiter_by(sandbox, &[])
}

/// Starts it with these words before its command line.
fn waiter_by(sandbox: &Sandbox, before: &[String]) -> Job {
    let words = ["run", "-w", "inf", "x", "dash", "-c", NEXT];
    let job = sandbox.csalock_by(before, &words).env("CSALOCK_LEASE", LEASE).spawn();
    wait_until("the waiter waits", || sandbox.waiters("x").len() == 1);
    job
}

#[track_caller]
fn await_end(mut job: Job) -> crate::sandbox::Done {
    // It may not end because its input does.
    wait_until("it ends", || job.has_ended());
    job.wait()
}

fn renewed_until(sandbox: &Sandbox) -> String {
    sandbox.sight("x")["holders"][0]["renewed_until"].as_str().unwrap_or("not renewed").to_string()
}

#[track_caller]
fn await_renewals(sandbox: &Sandbox, times: usize) {
    for _ in 0..times {
        let before = renewed_until(sandbox);
        wait_until("the lease is renewed", || renewed_until(sandbox) != before);
        assert_ne!(renewed_until(sandbox), "not renewed");
    }
}

#[test]
fn a_command_that_is_only_warned_goes_on_and_ends_with_85() {
    let Some((cluster, alone)) = cluster_of(1).zip(as_on_another_host()) else { return };
    let sandbox = Sandbox::at(&cluster);
    let holder = holder(&sandbox, &["--on-lost", "warn"]);
    let waiter = waiter_by(&sandbox, &alone);
    cluster.kill(0);
    let gone = uptime();
    wait_until("the lease is over", || uptime() > gone + LEASE_SECONDS);
    // The server restarts every lease from its beginning, and no keeper renews while all processes are stopped.
    holder.send(Signal::SIGSTOP);
    let keepers = keepers(holder.pid());
    keepers.iter().for_each(|pid| send(*pid, Signal::SIGSTOP));
    cluster.restart(0);
    await_end(waiter).exits(0);
    keepers.iter().for_each(|pid| send(*pid, Signal::SIGCONT));
    holder.send(Signal::SIGCONT);
    let next = noted(&sandbox, "next");
    wait_until("the holder is still there", || noted(&sandbox, "alive") > next);
    sandbox.file("files/over", "");
    await_end(holder).says(85, "csalock: lost while the command ran: lock x: ");
}

#[test]
fn a_command_is_ended_after_a_sleep_if_the_server_does_not_answer_then() {
    let Some(cluster) = cluster_of(1) else { return };
    let sandbox = Sandbox::at(&cluster);
    let holder = holder(&sandbox, &[]);
    let all: Vec<i32> = members(std::slice::from_ref(&holder)).into_iter().chain(keepers(holder.pid())).collect();
    // Its short-lived children come and go.
    let to_all = |signal| all.iter().for_each(|pid| _ = kill(Pid::from_raw(*pid), signal));
    to_all(Signal::SIGSTOP);
    cluster.stop(0, true);
    let slept = uptime();
    wait_until("the lease is long over", || uptime() > slept + LEASE_SECONDS + 2.0);
    to_all(Signal::SIGCONT);
    let done = await_end(holder);
    done.says(
        85,
        "csalock: lost while the command ran: lock x: its lease is over, and it could not be released: etcd ",
    );
    done.says(85, "\ncsalock: the command was ended\n");
}

fn send(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap();
}

#[test]
fn a_command_that_is_only_warned_ends_with_85_even_if_the_server_stays_away() {
    let Some(cluster) = cluster_of(1) else { return };
    let sandbox = Sandbox::at(&cluster);
    let holder = holder(&sandbox, &["--on-lost", "warn"]);
    cluster.stop(0, true);
    let gone = uptime();
    wait_until("the lease is over", || uptime() > gone + LEASE_SECONDS + 0.5);
    wait_until("the holder is still there", || noted(&sandbox, "alive") > gone + LEASE_SECONDS + 0.5);
    sandbox.file("files/over", "");
    let begun = Instant::now();
    await_end(holder).says(85, "csalock: lost while the command ran: lock x: its lease is over");
    assert!(is_within(begun, 2 * SECOND + BUSY), "{:?}", begun.elapsed());
}

/// A fault hits a cluster of three. The holder keeps the lock, and the waiter gets in afterwards.
fn nothing_is_lost_when(happens: impl FnOnce(&Cluster)) {
    let Some(cluster) = cluster_of(3) else { return };
    let sandbox = Sandbox::at(&cluster);
    // An election takes up to two seconds, and must fit between a renewal and the end of the command.
    let words = ["run", "x", "dash", "-c", ALIVE];
    let holder = sandbox.csalock(words).env("CSALOCK_LEASE", "15s").spawn();
    wait_until("the holder holds", || has_noted(&sandbox, "alive"));
    let waiter = waiter(&sandbox);
    await_renewals(&sandbox, 1);
    let before = sandbox.sight("x")["holders"][0]["token"].clone();
    happens(&cluster);
    await_renewals(&sandbox, 2);
    assert_eq!(sandbox.sight("x")["holders"][0]["token"], before);
    assert!(!has_noted(&sandbox, "next"));
    sandbox.file("files/over", "");
    await_end(holder).succeeds();
    // If the supervisor asks a server that hangs, the keeper is faster, and records the death of the command.
    await_end(waiter).exits(0);
    assert!(noted(&sandbox, "next") >= noted(&sandbox, "alive"));
}

fn a_follower(cluster: &Cluster) -> usize {
    (cluster.leader() + 1) % cluster.size()
}

cases! {
    fn a_cluster_loses_nothing_when_one_of_three_servers_is_killed() {
        nothing_is_lost_when(|cluster| cluster.kill(a_follower(cluster)))
    }
    fn a_cluster_loses_nothing_when_the_leader_is_killed() {
        nothing_is_lost_when(|cluster| cluster.kill(cluster.leader()))
    }
    fn a_cluster_loses_nothing_when_the_leader_hangs() {
        nothing_is_lost_when(|cluster| cluster.stop(cluster.leader(), true))
    }
}

fn stop_majority(cluster: &Cluster, stands: bool) {
    (0..2).for_each(|number| cluster.stop(number, stands));
}

#[test]
fn a_short_loss_of_the_majority_loses_nothing() {
    let Some(cluster) = cluster_of(3) else { return };
    let sandbox = Sandbox::at(&cluster);
    let words = ["run", "x", "dash", "-c", ALIVE];
    let holder = sandbox.csalock(words).env("CSALOCK_LEASE", "30s").spawn();
    wait_until("the holder holds", || has_noted(&sandbox, "alive"));
    let held = uptime();
    let waiter = waiter(&sandbox);
    let before = renewed_until(&sandbox);
    stop_majority(&cluster, true);
    // The first renewal is due after a third of the lease, and the command is ended after seven tenths of it.
    wait_until("a renewal is overdue", || uptime() > held + 11.0);
    stop_majority(&cluster, false);
    wait_until("the lease is renewed", || renewed_until(&sandbox) != before);
    assert!(!has_noted(&sandbox, "next"));
    sandbox.file("files/over", "");
    await_end(holder).succeeds();
    assert_eq!(await_end(waiter).code, Some(0));
    assert!(noted(&sandbox, "next") >= noted(&sandbox, "alive"));
}

#[test]
fn a_long_loss_of_the_majority_ends_the_command_before_the_next_begins() {
    let Some(cluster) = cluster_of(3) else { return };
    let sandbox = Sandbox::at(&cluster);
    let holder = holder(&sandbox, &[]);
    let waiter = waiter(&sandbox);
    stop_majority(&cluster, true);
    let gone = uptime();
    await_end(holder).says(85, ENDED);
    assert!(noted(&sandbox, "alive") < gone + LEASE_SECONDS);
    assert!(!has_noted(&sandbox, "next"));
    stop_majority(&cluster, false);
    assert_eq!(await_end(waiter).code, Some(0));
    assert!(noted(&sandbox, "next") >= noted(&sandbox, "alive"));
}

/// Each of these ends in its time, with one of these codes, and says why.
fn everything_ends_in_time(call: &dyn Fn(&[&str]) -> Job) {
    // One call to a store takes ten seconds at most where nothing else is said.
    let calls: [(&[&str], u64, &[i32]); 13] = [
        (&["lock", "-w", "2s", "x"], 3, &[69]),
        (&["lock", "-n", "x"], 1, &[69]),
        (&["lock", "-w", "2s", "x", "y"], 3, &[69]),
        (&["run", "-w", "2s", "x", "echo", "ran"], 3, &[69]),
        (&["run", "-n", "x", "echo", "ran"], 1, &[69]),
        (&["run", "-w", "2s", "x", "--also", "y", "--", "echo", "ran"], 3, &[69]),
        (&["get", "--lock", "-w", "2s", "x"], 3, &[69]),
        (&["claim", "-w", "2s", "--id", "me", "x", "y"], 3, &[69]),
        (&["put", "-w", "2s", "x", "value"], 3, &[69]),
        (&["get", "x"], 11, &[69]),
        (&["status", "x"], 11, &[69]),
        (&["status"], 11, &[69]),
        (&["unlock", "x"], 11, &[69]),
    ];
    let begun = Instant::now();
    let mut jobs: Vec<_> = calls.iter().map(|(words, limit, codes)| (call(words), words, *limit, codes)).collect();
    while !jobs.is_empty() {
        let mut ended = Vec::new();
        for at in (0..jobs.len()).rev() {
            let (job, words, limit, _) = &mut jobs[at];
            if job.has_ended() {
                ended.push(jobs.swap_remove(at));
            } else {
                // They are started at once, so each has to wait for the others.
                let late = begun.elapsed().saturating_sub(Duration::from_secs(*limit) + fair(BUSY));
                assert!(late.is_zero(), "{words:?} hangs: {:?}", job.said());
            }
        }
        for (job, words, _, codes) in ended {
            let done = job.wait();
            assert!(codes.contains(&done.code.unwrap()), "{words:?}: {done:?}");
            assert_eq!(done.stdout, "", "{words:?}");
            assert!(done.stderr.starts_with("csalock: "), "{words:?}: {done:?}");
            println!("{words:?}: {:.1} s", begun.elapsed().as_secs_f64());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn every_command_ends_in_time_if_the_server_hangs() {
    let Some(cluster) = cluster_of(1) else { return };
    let sandbox = Sandbox::at(&cluster);
    cluster.stop(0, true);
    everything_ends_in_time(&|words| csalock(&sandbox, words).spawn());
}

#[test]
fn every_command_ends_in_time_if_no_majority_of_three_servers_is_left() {
    let Some(cluster) = cluster_of(3) else { return };
    let sandbox = Sandbox::at(&cluster);
    stop_majority(&cluster, true);
    everything_ends_in_time(&|words| csalock(&sandbox, words).spawn());
}

#[test]
fn every_command_ends_in_time_if_the_server_accepts_no_connections() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let sandbox = Sandbox::at_servers(&[silent.local_addr().unwrap().to_string()]);
    everything_ends_in_time(&|words| csalock(&sandbox, words).spawn());
}

#[test]
fn every_command_ends_in_time_if_the_address_never_replies() {
    let Some(network) = Network::new(1) else { return };
    let sandbox = Sandbox::at_servers(&[format!("{}:2379", network.abyss(0))]);
    everything_ends_in_time(&|words| sandbox.csalock_by(&network.on(0), words).spawn());
}

/// A lock that is held permanently, on a server that then hangs.
fn busy_and_out_of_reach(ask: impl FnOnce(&Sandbox, &dyn Fn())) {
    let Some(cluster) = cluster_of(1) else { return };
    let sandbox = Sandbox::at(&cluster);
    let _holder = holder(&sandbox, &["--on-lost", "warn"]);
    ask(&sandbox, &|| cluster.stop(0, true));
}

#[test]
fn a_wait_ends_in_time_even_if_the_server_hangs_meanwhile() {
    busy_and_out_of_reach(|sandbox, stop| {
        let begun = Instant::now();
        let waiters: [&[&str]; 3] =
            [&["lock", "-w", "12s", "x"], &["run", "-w", "12s", "x", "true"], &["lock", "-w", "12s", "w", "x"]];
        let waiters = waiters.map(|words| csalock(sandbox, words).spawn());
        wait_until("all of them wait", || sandbox.waiters("x").len() == waiters.len());
        assert!(begun.elapsed() < 11 * SECOND, "this machine is too busy for this test");
        stop();
        for mut waiter in waiters {
            wait_until("it ends", || waiter.has_ended());
            assert!(is_within(begun, 13 * SECOND + BUSY), "{:?}", begun.elapsed());
            let done = waiter.wait();
            assert!(matches!(done.code, Some(69 | 75)), "{done:?}");
            println!("{:.1} s", begun.elapsed().as_secs_f64());
        }
    });
}

#[test]
fn an_interrupted_waiter_ends_soon_even_if_the_server_hangs() {
    busy_and_out_of_reach(|sandbox, stop| {
        let waiters: [&[&str]; 2] = [&["lock", "-w", "inf", "x"], &["run", "-w", "inf", "x", "true"]];
        let waiters = waiters.map(|words| csalock(sandbox, words).spawn());
        wait_until("both wait", || sandbox.waiters("x").len() == waiters.len());
        stop();
        // One who has not noticed yet, and one who asks the server again and again.
        for (mut waiter, after) in waiters.into_iter().zip([SECOND / 10, 3 * SECOND]) {
            std::thread::sleep(after);
            let begun = Instant::now();
            waiter.send(Signal::SIGTERM);
            wait_until("it ends", || waiter.has_ended());
            println!("{:.1} s", begun.elapsed().as_secs_f64());
            assert!(is_within(begun, 2 * SECOND + BUSY), "{:?}", begun.elapsed());
            let done = waiter.wait();
            assert_eq!(done.seen_by_shell(), 143, "{done:?}");
        }
    });
}

#[test]
fn a_caller_that_misreads_a_live_lease_does_not_get_the_lock() {
    let Some((cluster, alone)) = cluster_of(1).zip(as_on_another_host()) else { return };
    let sandbox = Sandbox::at(&cluster);
    // Reads of leases show them as they were before the lock was taken.
    let between = Between::and(&cluster.endpoints()[0], move |_, request| {
        let instead = as_it_was(request, "store/leases/", 1);
        Fate { instead, ..Fate::default() }
    });
    let stale = Sandbox::at_servers(&[between.address]);
    let holder = sandbox.csalock(["run", "x", "dash", "-c", ALIVE]).spawn();
    wait_until("the holder holds", || has_noted(&sandbox, "alive"));
    let calls: [(&[&str], i32); 5] = [
        (&["run", "-n", "x", "echo", "ran"], 75),
        (&["run", "-w", "2s", "x", "echo", "ran"], 75),
        (&["run", "-w", "2s", "x", "--also", "y", "--", "echo", "ran"], 75),
        (&["put", "-n", "x", "value"], 75),
        (&["gc"], 0),
    ];
    for (words, code) in calls {
        let begun = Instant::now();
        let done = stale.csalock_by(&alone, words).capture();
        assert_eq!((done.code, done.stdout.contains("ran")), (Some(code), false), "{words:?}: {done:?}");
        assert!(is_within(begun, 3 * SECOND + BUSY), "{words:?}: {:?}", begun.elapsed());
        assert_eq!(sandbox.state("x"), "held", "{words:?}");
    }
    sandbox.file("files/over", "");
    await_end(holder).succeeds();
}

#[test]
fn a_wait_without_a_deadline_outlasts_an_outage() {
    let Some(cluster) = cluster_of(1) else { return };
    let sandbox = Sandbox::at(&cluster);
    let script = sandbox.script("dash", "csalock lock x; echo; cat; csalock unlock x; echo $?").ready();
    let waiter = waiter(&sandbox);
    cluster.kill(0);
    let gone = uptime();
    wait_until("it has been gone for some seconds", || uptime() > gone + 3.0);
    assert!(lives(waiter.pid()));
    cluster.restart(0);
    cluster.await_health();
    let done = script.wait();
    assert_eq!(done.stdout.lines().last(), Some("0"), "{done:?}");
    await_end(waiter).succeeds();
    assert!(has_noted(&sandbox, "next"));
}

/// Callers who wait for a lock, each for one of its own.
const WAITS: [&[&str]; 6] = [
    &["lock", "-v", "-w", "WAIT", "a"],
    &["lock", "-v", "-w", "WAIT", "b", "c"],
    &["run", "-v", "-w", "WAIT", "d", "true"],
    &["get", "--lock", "-v", "-w", "WAIT", "e"],
    &["claim", "-v", "-w", "WAIT", "--id", "me", "f", "g"],
    &["put", "-v", "-w", "WAIT", "h", "value"],
];

fn waiting<'a>(sandbox: &'a Sandbox, words: &[&'a str], time: &'a str) -> Job {
    let words: Vec<_> = words.iter().map(|word| if *word == "WAIT" { time } else { word }).collect();
    sandbox.csalock(words).spawn()
}

#[test]
fn callers_that_wait_for_a_lock_wait_for_restarted_servers() {
    let Some(cluster) = cluster_of(1) else { return };
    let sandbox = Sandbox::at(&cluster);
    cluster.kill(0);
    let says = |name: &str| {
        let server = &cluster.endpoints()[0];
        let refused = "nothing listens there (connection refused)";
        format!("csalock: waiting for lock {name}: etcd cannot be reached: {server}: {refused}\n")
    };
    let waiters: Vec<_> = WAITS.iter().map(|words| waiting(&sandbox, words, "10m")).collect();
    for (waiter, name) in waiters.iter().zip(["a", "b", "d", "e", "f", "h"]) {
        wait_until("it says that it waits", || waiter.said() == says(name));
    }
    cluster.restart(0);
    for (waiter, words) in waiters.into_iter().zip(WAITS) {
        let done = await_end(waiter);
        // The value does not exist.
        let expected = if words[0] == "get" { 81 } else { 0 };
        assert_eq!(done.code, Some(expected), "{words:?}: {done:?}");
    }
    sandbox.csalock(["get", "h"]).stdout("value").run();
}

#[test]
fn a_wait_without_a_server_ends_in_time_and_other_commands_at_once() {
    let server = format!("127.0.0.1:{}", crate::etcd::free_port());
    let sandbox = Sandbox::at_servers(std::slice::from_ref(&server));
    let reason = format!("etcd cannot be reached: {server}: nothing listens there (connection refused)");
    let at_once: [&[&str]; 8] = [
        &["lock", "-n", "x"],
        &["run", "-w", "0", "x", "true"],
        &["lock", "-n", "x", "y"],
        &["put", "-n", "x", "value"],
        &["get", "x"],
        &["status"],
        &["unlock", "x"],
        &["renew", "--ttl", "5s", "x"],
    ];
    for words in at_once {
        let begun = Instant::now();
        sandbox.csalock(words).capture().says(69, &reason);
        // No call waits longer than a busy machine needs; the default timeout is 30 seconds.
        assert!(is_within(begun, 5 * BUSY), "{words:?}: {:?}", begun.elapsed());
    }
    let begun = Instant::now();
    let waiters: Vec<_> = WAITS.iter().map(|words| waiting(&sandbox, words, "2s")).collect();
    for (waiter, words) in waiters.into_iter().zip(WAITS) {
        let done = await_end(waiter);
        assert!(done.code == Some(69) && done.stderr.contains(&reason), "{words:?}: {done:?}");
        assert!((2 * SECOND..2 * SECOND + 5 * BUSY).contains(&begun.elapsed()), "{words:?}: {:?}", begun.elapsed());
    }
}

#[test]
fn a_wait_where_nothing_listens_is_interrupted_soon() {
    let sandbox = Sandbox::at_servers(&[format!("127.0.0.1:{}", crate::etcd::free_port())]);
    for words in WAITS {
        let waiter = waiting(&sandbox, words, "inf");
        wait_until("it says that it waits", || waiter.said().contains("nothing listens"));
        waiter.send(Signal::SIGTERM);
        let done = await_end(waiter);
        assert_eq!(done.seen_by_shell(), 143, "{words:?}: {done:?}");
    }
}

#[test]
fn a_wait_for_a_misconfigured_server_ends_at_once() {
    let Some(cluster) = crate::etcd::shared() else { return };
    let servers = [("etcd", "no-such-host.invalid:2379".to_string()), ("etcds", cluster.endpoints()[0].clone())];
    for (scheme, server) in servers {
        let sandbox = Sandbox::at_servers(&[]);
        let begun = Instant::now();
        let url = format!("{scheme}://{server}/store");
        sandbox.csalock(["lock", "-w", "10m", "--store", &url, "x"]).capture().says(69, &server);
        assert!(is_within(begun, 60 * SECOND), "{:?}", begun.elapsed());
    }
}

#[test]
fn a_caller_that_learns_of_its_grant_after_the_lease_does_not_hold() {
    let Some((cluster, alone)) = cluster_of(1).zip(as_on_another_host()) else { return };
    let sandbox = Sandbox::at(&cluster);
    for words in ["lock x", "run x echo ran"] {
        let (is_answered, is_kept) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
        let (answered, kept) = (is_answered.clone(), is_kept.clone());
        let between = Between::and(&cluster.endpoints()[0], move |path, _| {
            let (answered, kept) = (answered.clone(), kept.clone());
            let keep = move || {
                wait_until("it may go on", || !kept.load(Ordering::SeqCst));
                answered.store(true, Ordering::SeqCst);
            };
            Fate { then: path.ends_with("/txn").then(|| Box::new(keep) as _), ..Fate::default() }
        });
        let far = Sandbox::at_servers(std::slice::from_ref(&between.address));
        let script = format!("csalock {words}; echo ended with $?");
        let late = [far.script("dash", &script).env("CSALOCK_LEASE", LEASE).spawn()];
        wait_until("it holds", || sandbox.state("x") == "held");
        // It is suspended between the taking and the answer, for longer than the lease.
        let all = |late: &[Job; 1], signal| members(late).into_iter().for_each(|pid| send(pid, signal));
        all(&late, Signal::SIGSTOP);
        let next = sandbox.csalock_by(&alone, &["run", "-q", "-w", "inf", "x", "cat"]).spawn();
        wait_until("the next one holds", || sandbox.sight("x")["holders"][0]["command"] == "cat");
        is_kept.store(false, Ordering::SeqCst);
        wait_until("the answer is there", || is_answered.load(Ordering::SeqCst));
        all(&late, Signal::SIGCONT);
        wait_until("it has found out", || !late[0].printed().is_empty() || sandbox.waiters("x").len() == 1);
        // Either there was time to ask once more, and it waits; or it is told.
        let early = late[0].printed();
        println!("{words}: {early:?} {:?}", late[0].said());
        assert!(["", "ended with 85\n"].contains(&&early[..]), "{words}: {early:?} {:?}", late[0].said());
        next.wait().exits(0);
        let [late] = late;
        let done = late.wait();
        assert!(!early.is_empty() || done.stdout.ends_with("ended with 0\n"), "{words}: {done:?}");
        wait_until("it is free", || {
            sandbox.csalock(["gc"]).capture();
            sandbox.state("x") == "free"
        });
    }
}
