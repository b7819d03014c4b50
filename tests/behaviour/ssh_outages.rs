//! The store over ssh when its connection breaks, and what a client and a server may send each other.

use std::sync::atomic::Ordering;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cutting::cutting;
use crate::sandbox::{Call, Job, Kind, Sandbox, proc, wait_until};
use crate::ssh;

/// A program that takes the place of ssh(1): it runs the command of the last argument here, after `before`.
pub(crate) fn instead_of_ssh(sandbox: &Sandbox, name: &str, before: &str, after: &str) -> String {
    let text = format!("#!/bin/sh\nfor command do :; done\n{before}\nsh -c \"$command\" {after}\n");
    sandbox.program(&format!("files/{name}"), text).display().to_string()
}

/// `csalock` with these arguments, in the directory `store` of the sandbox, by this program.
fn by<'a>(sandbox: &'a Sandbox, program: &str, words: &[&str]) -> Call<'a> {
    let url = format!("ssh://there{}", sandbox.path("store").display());
    sandbox.csalock(words).env("CSALOCK_STORE", url).env("CSALOCK_SSH", program)
}

/// The server processes of csalock for the store of this sandbox.
fn servers(sandbox: &Sandbox) -> Vec<i32> {
    let store = format!("dir:{}", sandbox.path("store").display());
    let is_server = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        words.len() > 3 && words[1] == b"serve" && words[3] == store.as_bytes()
    };
    let processes = std::fs::read_dir("/proc").unwrap();
    processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter(is_server).collect()
}

fn with_ssh(test: impl FnOnce(&Sandbox)) {
    if ssh::shared().is_some() {
        test(&Sandbox::new(Kind::Ssh));
    }
}

#[test]
fn a_connection_that_is_cut_anywhere_loses_and_doubles_nothing() {
    let sandbox = Sandbox::new(Kind::Directory);
    let whole = instead_of_ssh(&sandbox, "whole", "", "");
    by(&sandbox, &whole, &["run", "x", "true"]).run();
    // The first connection ends after so many bytes of the server or of the client, later ones do not.
    for (direction, most) in [("from the server", 2600), ("from the client", 2600)] {
        for bytes in (0..most).step_by(if crate::extent::extent() > crate::extent::Extent::Quick { 13 } else { 173 }) {
            let name = format!("cut{}", direction.len());
            // A process in the background has another working directory.
            let count = "n=$(cat \"${0%/*}/n\" 2> /dev/null || echo 0); echo $((n + 1)) > \"${0%/*}/n\"; [ $n = 0 ] || exec sh -c \"$command\"";
            let cut = match direction {
                "from the client" => {
                    instead_of_ssh(&sandbox, &name, &format!("{count}\ndd bs=1 count={bytes} status=none |"), "")
                }
                _ => instead_of_ssh(&sandbox, &name, count, &format!("| dd bs=1 count={bytes} status=none")),
            };
            let done = by(&sandbox, &cut, &["run", "-w", "20s", "x", "dash", "-c", "echo run >> runs"]).capture();
            let runs = sandbox.read("files/runs").lines().count();
            // A process that has never had an answer gives up at once.
            let is_refused = done.code == Some(69) && runs == 0;
            assert!((done.code == Some(0) && runs == 1) || is_refused, "{direction} {bytes}: {done:?}, {runs} runs");
            // On a slow machine the release may not be done in time, and then the next caller says whose lock it takes over.
            by(&sandbox, &whole, &["run", "-q", "-w", "20s", "x", "true"]).run();
            ["n", "runs"].iter().for_each(|file| drop(std::fs::remove_file(sandbox.path("files").join(file))));
        }
    }
}

#[test]
fn a_connection_to_sshd_that_is_cut_in_a_message_loses_and_doubles_nothing() {
    let Some(server) = ssh::Server::start("") else { return };
    let sandbox = Sandbox::over_ssh(&server);
    let value = "v".repeat(1 << 20);
    sandbox.csalock(["put", "-q", "x", "-"]).stdin(&value).run();
    let step = if crate::extent::extent() > crate::extent::Extent::Quick { 50_000 } else { 400_000 };
    for is_answer in [false, true] {
        // The keys take the first thousands of bytes; then come a value and requests, or the value as it was.
        for after in (6_000..).step_by(step) {
            let (proxy, has_cut) = cutting(server.port(), after, is_answer);
            let url = sandbox.store().replace(&format!(":{}/", server.port()), &format!(":{proxy}/"));
            let count = sandbox.csalock(["get", "--json", "x"]).capture().stdout;
            let before = serde_json::from_str::<serde_json::Value>(&count).unwrap()["version"].as_u64().unwrap();
            let new = format!("{after}{value}")[..value.len()].to_string();
            let done =
                sandbox.csalock(["put", "-q", "-w", "50s", "x", "-"]).env("CSALOCK_STORE", url).stdin(&new).capture();
            let is_cut = has_cut.load(Ordering::SeqCst);
            let found = sandbox.csalock(["get", "--json", "x"]).capture().stdout;
            let found: serde_json::Value = serde_json::from_str(&found).unwrap();
            let version = found["version"].as_u64().unwrap();
            // A process that has never had an answer gives up at once.
            let is_refused = done.code == Some(69) && version == before;
            let is_done = done.code == Some(0) && version > before && found["value"].as_str() == Some(&new);
            assert!(is_done || is_refused && is_cut, "{is_answer} {after}: {done:?}, version {version} after {before}");
            if !is_cut {
                break;
            }
        }
    }
}

#[test]
fn claims_are_synced_where_they_are_kept() {
    require!(crate::sandbox::has("strace"));
    let sandbox = Sandbox::new(Kind::Directory);
    let program =
        instead_of_ssh(&sandbox, "traced", "exec strace -f -o log -e trace=fsync,fdatasync sh -c \"$command\"", "");
    let syncs = |words: &[&str]| {
        assert_eq!(by(&sandbox, &program, words).capture().code, Some(0), "{words:?}");
        sandbox.read("files/log").matches("sync(").count()
    };
    assert_eq!(syncs(&["run", "x", "true"]), 0);
    assert!(syncs(&["claim", "-q", "--id", "me", "y"]) > 0);
    assert!(syncs(&["put", "-q", "z", "value"]) > 0);
}

#[test]
fn a_holder_outlives_the_processes_of_its_connection() {
    with_ssh(|sandbox| {
        let lease = |call: Call<'_>| call.env("CSALOCK_LEASE", "6s").spawn();
        let mut holder = lease(sandbox.csalock(["run", "x", "dash", "-c", "echo; cat; echo end"]));
        holder.lines(1);
        let waiter = lease(sandbox.csalock(["run", "-w", "inf", "x", "echo", "next"]));
        wait_until("it waits", || sandbox.waiters("x").len() == 1);
        let found = servers(sandbox);
        assert!(!found.is_empty());
        found.iter().for_each(|pid| kill(Pid::from_raw(*pid), Signal::SIGKILL).unwrap_or(()));
        let renewed = || sandbox.sight("x")["holders"][0]["renewed_until"].to_string();
        let before = renewed();
        wait_until("the lease is renewed", || renewed() != before);
        holder.wait().is(0, "\nend\n", "");
        waiter.wait().is(0, "next\n", "");
    });
}

#[test]
fn processes_of_both_hosts_exclude_each_other_and_see_each_other_die() {
    with_ssh(|sandbox| {
        sandbox.csalock(["run", "x", "true"]).run();
        let here = format!("dir:{}", sandbox.path("store").display());
        let script = "i=0; while [ $i -lt 20 ]; do i=$((i + 1)); csalock run -q -w inf x dash -c \
                      'n=$(cat n 2> /dev/null || echo 0); sleep 0.001; echo $((n + 1)) > n' || echo failed; done";
        let there: Vec<Job> = (0..3).map(|_| sandbox.script("dash", script).spawn()).collect();
        let local: Vec<Job> =
            (0..3).map(|_| sandbox.script("dash", script).env("CSALOCK_STORE", &here).spawn()).collect();
        there.into_iter().chain(local).for_each(|job| assert_eq!(job.wait().stdout, ""));
        assert_eq!(sandbox.read("files/n"), "120\n");
        // A local holder without a supervisor has a lease, too, and its keeper records its death.
        for (holds, waits) in [(here.clone(), sandbox.store()), (sandbox.store(), here)] {
            let mut holder = sandbox
                .csalock(["run", "-F", "x", "dash", "-c", "echo; exec sleep 1000"])
                .env("CSALOCK_STORE", holds)
                .ready();
            let waiter =
                sandbox.csalock(["run", "-q", "-w", "inf", "x", "echo", "next"]).env("CSALOCK_STORE", waits).spawn();
            wait_until("it waits", || sandbox.waiters("x").len() == 1);
            holder.kill();
            assert_eq!(waiter.wait().stdout, "next\n");
        }
    });
}

#[test]
fn a_directory_in_use_is_not_shared_with_other_hosts() {
    let sandbox = Sandbox::new(Kind::Directory);
    let program = instead_of_ssh(&sandbox, "whole", "", "");
    let holder = sandbox.holder("x");
    let said = "csalock: ssh://thereSTORE: STORE has locks that are held or waited for, by processes that know this host \
                only; try again when no lock is held there\n";
    by(&sandbox, &program, &["run", "-n", "y", "true"]).status(75).stderr(said).run();
    holder.wait();
    by(&sandbox, &program, &["run", "-n", "y", "true"]).run();
}

#[test]
fn a_key_with_a_forced_command_can_lock_and_nothing_else() {
    let sandbox = Sandbox::new(Kind::Directory);
    let store = sandbox.path("store");
    let forced = format!("restrict,command=\"csalock serve --stdio dir:{}\"", store.display());
    let Some(server) = ssh::Server::start(&forced) else { return };
    let call = |words: &[&str]| {
        let call = sandbox.csalock(words).env("CSALOCK_STORE", server.url("/elsewhere"));
        call.env("CSALOCK_SSH", server.program().display().to_string())
    };
    call(&["run", "x", "echo", "locked"]).stdout("locked\n").run();
    assert!(store.join(".work").exists());
    let touched = sandbox.path("files/touched").display().to_string();
    let url = server.url("");
    let port = url.rsplit(':').next().unwrap();
    let done =
        sandbox.call(server.program(), ["-p", port, "127.0.0.1", "touch", &touched]).stdin("garbage\n").capture();
    let said = "csalock: serve: standard input is not a client of csalock; use the store ssh://HOST/PATH, which starts this \
                command; see csalock(7)\n";
    assert_eq!((done.code, done.stderr.as_str()), (Some(64), said));
    assert!(!std::path::Path::new(&touched).exists());
    // Nothing of a refused client stays.
    server.kill();
    let url = server.url("/elsewhere");
    let done = call(&["run", "-n", "x", "true"]).capture();
    assert!(done.code == Some(69) && done.stderr.starts_with(&format!("csalock: {url} cannot be reached: ssh: connect to host 127.0.0.1 port {port}: Connection refused; see that `ssh -p {port} 127.0.0.1 true` works")), "{done:?}");
    server.restart();
    call(&["run", "x", "echo", "locked"]).stdout("locked\n").run();
}

#[test]
fn troubles_of_a_connection_are_named() {
    let sandbox = Sandbox::new(Kind::Directory);
    let url = format!("ssh://there{}", sandbox.path("store").display());
    let hint = "see that `ssh there csalock --version` prints one line, and the shell there nothing else";
    for (script, code, said) in [
        (
            "exec cat /dev/null",
            69,
            format!(
                "{url} cannot be reached: the connection ended without an answer; see that `ssh there true` works without a question, then try again"
            ),
        ),
        (
            "echo 'a@there: Permission denied (publickey).' >&2; exit 255",
            77,
            format!(
                "{url} cannot be reached: a@there: Permission denied (publickey).; see that `ssh there true` works without a password: a key in its authorized_keys, and an agent or a key without a passphrase here"
            ),
        ),
        (
            "echo 'bash: line 1: csalock: command not found' >&2; exit 127",
            69,
            format!(
                "{url} cannot be reached: bash: line 1: csalock: command not found; install csalock on that host, where commands of ssh find it (/usr/bin or /usr/local/bin)"
            ),
        ),
        (
            "echo Welcome; exec sleep 100",
            69,
            format!("{url} cannot be reached: the answer is not that of csalock; {hint}"),
        ),
        (
            "echo '{\"csalock_serve\":99,\"program\":\"9.0\",\"session\":{\"Ok\":\"0000000000000000000000000000000000000000000000000000000000000000\"}}'; exec sleep 100",
            69,
            format!(
                "{url} cannot be reached: csalock 9.0 there speaks another protocol; install the same version on both hosts"
            ),
        ),
        // As csalock 0.2.0 answers.
        (
            "echo 'csalock: unknown command serve; see csalock --help' >&2; exit 64",
            69,
            format!(
                "{url} cannot be reached: csalock: unknown command serve; see csalock --help; install the same version of csalock on both hosts"
            ),
        ),
        (
            "exec sh -c 'csalock serve --stdio dir:/no/such/store'",
            69,
            format!(
                "{url}: cannot find /no/such: no such file or directory; create it, or name another store with --store"
            ),
        ),
    ] {
        let program = sandbox.program("files/odd", format!("#!/bin/sh\n{script}\n")).display().to_string();
        let done = by(&sandbox, &program, &["run", "-w", "1s", "x", "touch", "ran"]).capture();
        let lower = |text: &str| text.replace("No such file", "no such file");
        assert_eq!((done.code, lower(&done.stderr)), (Some(code), format!("csalock: {said}\n")), "{script}");
    }
    let done = by(&sandbox, "/no/such/ssh -v", &["run", "-w", "1s", "x", "touch", "ran"]).capture();
    assert_eq!(
        (done.code, done.stderr),
        (
            Some(69),
            format!(
                "csalock: {url} cannot be reached: cannot start '/no/such/ssh -v': No such file or directory; install an ssh client, or name its program, without arguments, in CSALOCK_SSH\n"
            )
        )
    );
    let silent = sandbox.program("files/silent", "#!/bin/sh\n").display().to_string();
    let call =
        by(&sandbox, &silent, &["run", "-n", "x", "touch", "ran"]).env("CSALOCK_STORE", "ssh://there:2222/locks");
    let hint = "see that `ssh -p 2222 there true` works without a question, then try again\n";
    assert!(call.capture().stderr.ends_with(hint));
    assert!(!sandbox.path("files/ran").exists() && !sandbox.path("store").exists());
}

/// Words of a login that also occur in messages of ssh(1) and of shells.
const BANNER: &str = "csalock: Permission denied, No such file, Bad user: not allowed, not found";

#[test]
fn the_words_of_a_login_end_no_wait_and_no_release() {
    let sandbox = Sandbox::new(Kind::Directory);
    // A shell that stays would print that its child was killed, as the last line.
    let before = format!("echo '{BANNER}' >&2; exec sh -c \"exec $command\"");
    let program = instead_of_ssh(&sandbox, "banner", &before, "");
    let mut holder = by(&sandbox, &program, &["run", "x", "dash", "-c", "echo; cat"]).spawn();
    holder.lines(1);
    let waiter = by(&sandbox, &program, &["run", "-w", "inf", "x", "echo", "next"]).spawn();
    let status = || by(&sandbox, &program, &["status", "--json", "x"]).capture().stdout;
    wait_until("it waits", || status().contains("\"waiters\":[{"));
    let found = servers(&sandbox);
    assert!(found.len() > 1, "{found:?}");
    found.iter().for_each(|pid| kill(Pid::from_raw(*pid), Signal::SIGKILL).unwrap_or(()));
    holder.wait().is(0, "\n", "");
    waiter.wait().is(0, "next\n", "");
}

#[test]
fn the_words_of_a_login_end_no_first_connection() {
    let sandbox = Sandbox::new(Kind::Directory);
    // The server process ends before its greeting three times.
    let before = format!(
        "echo '{BANNER}' >&2; n=$(cat \"${{0%/*}}/n\" 2> /dev/null || echo 0); echo $((n + 1)) > \"${{0%/*}}/n\"\n\
         [ $n -gt 2 ] || exit 255"
    );
    let program = instead_of_ssh(&sandbox, "banner", &before, "");
    by(&sandbox, &program, &["run", "-w", "inf", "x", "echo", "ran"]).stdout("ran\n").run();
}

#[test]
fn a_server_that_sends_without_end_exceeds_no_deadline() {
    let sandbox = Sandbox::new(Kind::Directory);
    let session = "0".repeat(64);
    let greeting = format!("{{\"csalock_serve\":1,\"program\":\"1\",\"session\":{{\"Ok\":\"{session}\"}}}}");
    for flood in ["yes '[0,\"notified\"]'", "yes '[0,\"done\"]'", "yes x | tr -d '\\n'"] {
        let text = format!("#!/bin/sh\necho '{greeting}'\n{flood}\n");
        let program = sandbox.program("files/flood", text).display().to_string();
        let done = by(&sandbox, &program, &["run", "-w", "1s", "x", "touch", "ran"]).capture();
        assert!(done.code == Some(69) && done.stderr.contains(" cannot be reached: "), "{flood}: {done:?}");
    }
    assert!(!sandbox.path("files/ran").exists());
    // A flood that reaches a waiter ends only its connection.
    let whole = instead_of_ssh(&sandbox, "whole", "", "");
    // A later connection is never told: its loop ends with the sandbox, and does not use up the time of other tests.
    let when_told = "rm -f told; (until [ -e told ] || ! [ -e whole ]; do sleep 0.01; done; \
                     [ -e told ] && exec yes '[0,\"notified\"]') &";
    let flooded = instead_of_ssh(&sandbox, "flooded", when_told, "");
    let holder = by(&sandbox, &whole, &["run", "x", "cat"]).spawn();
    wait_until("it is held", || by(&sandbox, &whole, &["status", "--json", "x"]).capture().stdout.contains("\"held\""));
    let waiter = by(&sandbox, &flooded, &["run", "-w", "1m", "x", "echo", "locked"]).spawn();
    let waits = || by(&sandbox, &whole, &["status", "--json", "x"]).capture().stdout.contains("\"waiters\":[{");
    wait_until("it waits", waits);
    std::fs::write(sandbox.path("files/told"), "").unwrap();
    wait_until("it has another connection", || !sandbox.path("files/told").exists());
    let (held, waited) = (holder.wait(), waiter.wait());
    assert!(held.code == Some(0) && waited.stdout == "locked\n", "{held:?}\n{waited:?}");
}

#[test]
fn a_server_ends_with_its_client_and_refuses_nonsense() {
    let sandbox = Sandbox::new(Kind::Directory);
    let store = format!("dir:{}", sandbox.path("store").display());
    let said = "csalock: serve: standard input is not a client of csalock; use the store ssh://HOST/PATH, which starts this \
                command; see csalock(7)\n";
    let long = "x".repeat(14 << 20);
    for garbage in ["garbage\n", "[1]\n", "[1,{\"read\":5}]\n", "[1,\"scan\",2]\n", "[-1,\"scan\"]\n", &long] {
        let done = sandbox.csalock(["serve", "--stdio", &store]).stdin(garbage).capture();
        assert_eq!((done.code, done.stderr.as_str()), (Some(64), said), "{:.20}", garbage);
    }
    // A channel's name cannot name another file.
    let requests = "[1,{\"subscribe\":\"../../x\"}]\n";
    sandbox.csalock(["serve", "--stdio", &store]).stdin(requests).capture().exits(64);
    sandbox.csalock(["serve", "--stdio", &store]).stdin("").capture();
    assert!(!sandbox.path("store").exists());
    let done = sandbox.csalock(["serve", "--stdio", "sqlite:db"]).stdin("").capture();
    assert!(done.stdout.contains("\"session\":{\"Err\":{"), "{done:?}");
    let said = "csalock: serve: the store is not a directory of records; use dir:PATH\n";
    assert_eq!((done.code, done.stderr.as_str()), (Some(64), said));
    let mut client = sandbox.csalock(["serve", "--stdio", &store]).ready();
    let server = client.pid();
    client.release();
    wait_until("it has ended", || !proc::lives(server));
}
