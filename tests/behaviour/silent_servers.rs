//! Servers that accept and are silent, that are full, or whose tables are locked: waiters hear signals and go on, and
//! nothing that csalock started outlives it.

use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::etcd::fair::is_within;
use crate::postgres::Server;
use crate::sandbox::{Call, Job, Kind, Sandbox, wait_until};
use crate::ssh_outages::instead_of_ssh;

/// The longest time in which a busy machine hears a signal, far below that of a call.
const SOON: Duration = Duration::from_secs(5);

/// A server that accepts nobody, and the URLs of stores in it.
fn silent() -> (TcpListener, [String; 2]) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (
        listener,
        ["postgres://u@127.0.0.1:PORT/d", "etcd://127.0.0.1:PORT/p"].map(|url| url.replace("PORT", &port.to_string())),
    )
}

#[track_caller]
fn assert_heard(call: Call<'_>, what: &str, mut is_connected: impl FnMut() -> bool) {
    let mut job = call.spawn();
    wait_until("it has connected", &mut is_connected);
    // The store is open after that time, and its first call waits for an answer.
    let begun = Instant::now();
    wait_until("the call waits", || begun.elapsed() > Duration::from_secs(3) || job.has_ended());
    let sent = Instant::now();
    job.send(Signal::SIGTERM);
    let done = job.wait();
    assert_eq!((done.seen_by_shell(), done.stdout.as_str()), (143, ""), "{what}: {done:?}");
    assert!(is_within(sent, SOON), "{what}: {:?}", sent.elapsed());
}

#[test]
fn a_waiter_hears_signals_while_a_server_is_silent() {
    let sandbox = Sandbox::new(Kind::Directory);
    let (listener, urls) = silent();
    listener.set_nonblocking(true).unwrap();
    for url in &urls {
        let mut accepted = Vec::new();
        let call = sandbox.csalock(["run", "-w", "60", "--store", url, "x", "echo", "ran"]);
        assert_heard(call, url, || {
            accepted.extend(listener.accept());
            !accepted.is_empty()
        });
    }
}

#[test]
fn a_command_that_only_looks_hears_signals_while_a_server_is_silent() {
    let sandbox = Sandbox::new(Kind::Directory);
    std::thread::scope(|scope| {
        for command in ["doctor", "gc", "history", "metrics", "status"] {
            for at in 0..2 {
                let sandbox = &sandbox;
                scope.spawn(move || {
                    let (listener, urls) = silent();
                    listener.set_nonblocking(true).unwrap();
                    let mut accepted = Vec::new();
                    assert_heard(sandbox.csalock([command, "--store", &urls[at]]), command, || {
                        accepted.extend(listener.accept());
                        !accepted.is_empty()
                    });
                });
            }
        }
    });
}

fn running(program: &str) -> usize {
    let lines =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| std::fs::read(entry.ok()?.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(program)).count()
}

#[test]
fn an_ssh_that_does_not_connect_ends_with_csalock() {
    let sandbox = Sandbox::new(Kind::Directory);
    let program = sandbox.program("files/hung", "#!/bin/sh\nwhile :; do sleep 1; done\n").display().to_string();
    let store = format!("ssh://there{}", sandbox.path("store").display());
    let call = |words: &[&str]| sandbox.csalock(words).env("CSALOCK_STORE", &store).env("CSALOCK_SSH", &program);
    call(&["run", "-n", "x", "true"]).capture().exits(69);
    assert_eq!(running(&program), 0);
    for words in [&["run", "-w", "60", "x", "true"][..], &["doctor"]] {
        assert_heard(call(words), "ssh", || running(&program) > 0);
        wait_until("it has ended", || running(&program) == 0);
    }
}

#[test]
fn ssh_has_the_signals_that_csalock_was_started_with() {
    let sandbox = Sandbox::new(Kind::Directory);
    let signals = "grep -E 'Sig(Blk|Ign|Cgt)' /proc/self/status";
    let seen = sandbox.path("files/seen").display().to_string();
    let program = instead_of_ssh(&sandbox, "seeing", &format!("{signals} > {seen}\nexec"), "");
    let call = sandbox.csalock(["run", "-n", "x", "sh", "-c", signals]);
    let store = format!("ssh://there{}", sandbox.path("store").display());
    let by_command = call.env("CSALOCK_STORE", &store).env("CSALOCK_SSH", program).capture().stdout;
    assert_eq!(std::fs::read_to_string(seen).unwrap(), by_command);
    assert!(by_command.starts_with("SigBlk:\t0000000000000000\n"), "{by_command}");
}

#[test]
fn a_login_script_may_print_much() {
    let sandbox = Sandbox::new(Kind::Directory);
    let much = "head -c 300000 /dev/zero | tr '\\0' x >&2";
    let program = instead_of_ssh(&sandbox, "noisy", &format!("{much}\nexec"), "");
    let store = format!("ssh://there{}", sandbox.path("store").display());
    let begun = Instant::now();
    let done =
        sandbox.csalock(["run", "-n", "x", "echo", "ran"]).env("CSALOCK_STORE", &store).env("CSALOCK_SSH", program);
    assert_eq!(done.capture().line(), "ran");
    assert!(is_within(begun, SOON), "{:?}", begun.elapsed());
}

#[test]
fn a_caller_waits_for_a_table_that_is_locked_for_longer_than_a_call() {
    let Some(server) = Server::start(&[]) else { return };
    let sandbox = Sandbox::in_database(&server.url(""));
    sandbox.csalock(["run", "x", "true"]).run();
    let blocker = server.lock_table("store.records", "ACCESS EXCLUSIVE");
    let begun = Instant::now();
    let job = sandbox.csalock(["run", "-w", "inf", "y", "echo", "ran"]).spawn();
    let refusals = || server.log().matches("canceling statement due to lock timeout").count();
    // The first call lasts ten seconds, and the login that preceded it is no answer.
    wait_until("its first call is over", || begun.elapsed() > Duration::from_secs(12) && refusals() >= 3);
    assert_eq!(server.sql("SELECT count(*) <= 2 FROM pg_stat_activity WHERE application_name = 'csalock'"), "t");
    Server::end(blocker);
    assert_eq!(job.wait().line(), "ran");
}

/// A server with eight connections for the user `app`.
fn small_server() -> Option<Server> {
    let settings =
        ["max_connections=11", "superuser_reserved_connections=3", "max_wal_senders=0", "log_connections=on"];
    let server = Server::start(&settings)?;
    server.sql("CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app");
    Some(server)
}

fn connections(server: &Server) -> usize {
    server.sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'").parse().unwrap()
}

/// Takes so many connections of the user `app`.
fn occupy(server: &Server, number: usize) -> Vec<Child> {
    let connect = || {
        let mut idle = server.psql();
        idle.args(["-U", "app"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut idle: Vec<_> = (0..number).map(|_| connect()).collect();
    wait_until("they are taken", || {
        // A process of the server that has just ended its session has its place a moment longer.
        for one in &mut idle {
            if one.try_wait().unwrap().is_some() {
                *one = connect();
            }
        }
        connections(server) == number
    });
    idle
}

#[test]
fn a_held_lock_has_no_connection_between_its_renewals() {
    let Some(server) = small_server() else { return };
    let sandbox = Sandbox::in_database(&server.url("").replace("test@", "app@"));
    let run = ["run", "x", "sh", "-c", "echo; read line"];
    let mut job = sandbox.csalock(run).env("CSALOCK_LEASE", "9s").ready();
    let script = sandbox.script("dash", "csalock lock y; echo; read line; csalock unlock y");
    let mut script = script.env("CSALOCK_LEASE", "9s").ready();
    let ends = || ["x", "y"].map(|name| sandbox.sight(name)["holders"][0]["renewed_until"].to_string());
    for _ in 0..2 {
        let before = ends();
        wait_until("both are renewed", || ends().iter().zip(&before).all(|(now, before)| now != before));
        wait_until("both have left", || connections(&server) == 0);
    }
    [&mut job, &mut script].into_iter().for_each(|holder| holder.tell("end"));
    assert_eq!((job.wait().code, script.wait().code), (Some(0), Some(0)));
    assert_eq!(["x", "y"].map(|name| sandbox.state(name)), ["free", "free"]);
}

#[test]
fn a_guard_of_the_library_has_no_connection_between_its_renewals() {
    let Some(server) = small_server() else { return };
    let sandbox = Sandbox::in_database(&server.url("").replace("test@", "app@"));
    let words = ["renewed::holder_by_the_library", "--exact", "--ignored", "--nocapture"];
    let job = sandbox.call(std::env::current_exe().unwrap(), words).env("CSALOCK_LEASE", "9s").spawn();
    wait_until("it holds", || sandbox.state("x") == "held");
    let ends = || sandbox.sight("x")["holders"][0]["renewed_until"].to_string();
    let before = ends();
    wait_until("it is renewed", || ends() != before);
    wait_until("it has left", || connections(&server) == 0);
    job.wait().exits(0);
}

/// A server half of whose connections for the user `app` are taken, which is crowded for a caller, and lock x of the
/// sandbox is held there.
fn crowded(server: &Server, sandbox: &Sandbox) -> (Job, Vec<Child>) {
    let holder = sandbox.csalock(["run", "x", "sh", "-c", "echo; cat"]).env("CSALOCK_LEASE", LONG).ready();
    wait_until("the holder has left", || connections(server) == 0);
    (holder, occupy(server, 4))
}

/// A lease that is not renewed during a test.
const LONG: &str = "1000s";

#[test]
fn a_waiter_on_a_crowded_server_looks_seldom_and_leaves_between_its_looks() {
    let Some(server) = small_server() else { return };
    let sandbox = Sandbox::in_database(&server.url("").replace("test@", "app@"));
    let (holder, idle) = crowded(&server, &sandbox);
    let logins = || server.log().matches("connection authorized: user=app").count();
    for words in [&["wait", "-w", "inf", "x"][..], &["run", "-w", "inf", "--backoff", "10ms..10ms", "x", "true"]] {
        let (before, begun) = (logins(), Instant::now());
        let waiter = sandbox.csalock(words).env("CSALOCK_LEASE", LONG).spawn();
        wait_until("it has looked again and again", || logins() >= before + 5);
        // Three pauses of one and a half seconds are the least.
        assert!(begun.elapsed() > Duration::from_secs(4), "{words:?}: {:?}", begun.elapsed());
        drop(waiter);
    }
    idle.into_iter().for_each(Server::end);
    holder.wait().exits(0);
}

#[test]
fn a_waiter_on_a_crowded_server_leaves_after_its_search_for_a_deadlock() {
    let Some(server) = small_server() else { return };
    let sandbox = Sandbox::in_database(&server.url("").replace("test@", "app@"));
    let (holder, idle) = crowded(&server, &sandbox);
    let words = ["run", "y", "csalock", "run", "-w", "inf", "--backoff", "200s..200s", "x", "true"];
    let waiter = sandbox.csalock(words).env("CSALOCK_LEASE", LONG).spawn();
    wait_until("its wait is published", || sandbox.internal() > 0);
    wait_until("it has left", || connections(&server) == 4);
    idle.into_iter().for_each(Server::end);
    [holder, waiter].into_iter().for_each(|job| job.wait().exits(0));
}

#[test]
fn a_renewal_and_a_release_wait_for_a_free_place_on_the_server() {
    let Some(server) = small_server() else { return };
    let sandbox = Sandbox::in_database(&server.url("").replace("test@", "app@"));
    let refusals = || {
        server.log().matches("remaining connection slots").count() + server.log().matches("too many clients").count()
    };
    let run = ["run", "x", "sh", "-c", "echo; read line"];
    let mut job = sandbox.csalock(run).env("CSALOCK_LEASE", "30s").ready();
    let ends = || sandbox.sight("x")["holders"][0]["renewed_until"].to_string();
    let before = ends();
    wait_until("it has left", || connections(&server) == 0);
    for is_release in [false, true] {
        let idle = occupy(&server, 8);
        let refused = refusals();
        if is_release {
            job.tell("end");
        }
        wait_until("it finds no place", || refusals() > refused);
        idle.into_iter().for_each(Server::end);
        if !is_release {
            wait_until("it is renewed", || ends() != before);
            wait_until("it has left again", || connections(&server) == 0);
        }
    }
    let done = job.wait();
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    assert_eq!(sandbox.state("x"), "free");
}

#[test]
fn a_crowd_takes_turns_although_the_server_has_few_connections() {
    let Some(server) = small_server() else { return };
    let sandbox = Sandbox::in_database(&server.url("").replace("test@", "app@"));
    sandbox.csalock(["run", "x", "true"]).run();
    sandbox.file("files/count", "0\n");
    let count = "read n < count; sleep 0.05; echo $((n + 1)) > count";
    let callers: Vec<_> = (0..16)
        .map(|_| sandbox.csalock(["run", "-w", "inf", "x", "dash", "-c", count]).env("CSALOCK_LEASE", "9s").spawn())
        .collect();
    callers.into_iter().for_each(|caller| caller.wait().exits(0));
    assert_eq!(sandbox.read("files/count"), "16\n");
    wait_until("the callers have left", || connections(&server) == 0);
    let idle = occupy(&server, 8);
    let done = sandbox.csalock(["run", "-n", "x", "true"]).capture();
    done.exits(69);
    assert!(done.stderr.contains("too many clients") || done.stderr.contains("remaining connection slots"), "{done:?}");
    idle.into_iter().for_each(Server::end);
}
