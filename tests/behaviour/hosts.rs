//! Jobs on two hosts: namespaces with their own host name, machine id, boot id and processes.

use std::path::Path;

use nix::sys::signal::Signal;

use crate::sandbox::{CLOCK, Call, FILE_TIMES, Sandbox, has_namespaces, wait_until};

/// Makes the host whose name and directory follow, and runs the other words there. Process 1 of a pid namespace has
/// special rules, so the shell takes that place.
const ENTER: &str = r#"echo "$1" > /proc/sys/kernel/hostname
mount --bind "$2/boot_id" /proc/sys/kernel/random/boot_id
[ ! -e /etc/machine-id ] || mount --bind "$2/machine-id" /etc/machine-id
shift 2; "$@"; exit $?"#;

const LONG: &str = "--once-per=99999d";

/// A short lease, so that the other host need not wait long.
const LEASE: &str = "3s";

/// Writes the files of the host with this number in this directory. Returns the words that run a program there.
pub(crate) fn enter(own: &Path, host: u8) -> Vec<String> {
    std::fs::create_dir_all(own).unwrap();
    std::fs::write(own.join("boot_id"), format!("00000000-0000-4000-8000-00000000000{host}\n")).unwrap();
    std::fs::write(own.join("machine-id"), format!("{host:032}\n")).unwrap();
    let (name, own) = (format!("host{host}"), own.display().to_string());
    let words = ["unshare", "-mupf", "--kill-child", "--mount-proc", "dash", "-c", ENTER, "dash", &name, &own];
    words.map(str::to_string).to_vec()
}

fn on<'a>(sandbox: &'a Sandbox, host: u8, arguments: &[&str]) -> Call<'a> {
    let words = enter(&sandbox.path(format!("host{host}")), host);
    sandbox.csalock_by(&words, arguments).env("CSALOCK_LEASE", LEASE)
}

fn script_on<'a>(sandbox: &'a Sandbox, host: u8, script: &str) -> Call<'a> {
    let words = enter(&sandbox.path(format!("host{host}")), host);
    let words: Vec<&str> = words.iter().map(String::as_str).chain(["dash", "-c", script]).collect();
    sandbox.call(words[0], &words[1..]).env("CSALOCK_LEASE", LEASE)
}

on_every_shared_store! {
    fn a_job_runs_once_in_a_slot_on_two_hosts(sandbox: &Sandbox) {
        require!(has_namespaces("hosts"));
        let words = ["run", "-w", "inf", LONG, "job", "dash", "-c", "read name < /proc/sys/kernel/hostname; echo $name >> runs"];
        for job in [1, 2, 1, 2].map(|host| on(sandbox, host, &words).spawn()) {
            job.wait().succeeds();
        }
        let ran = sandbox.read("files/runs");
        assert!(ran == "host1\n" || ran == "host2\n", "{ran}");
        for host in [1, 2] {
            let done = on(sandbox, host, &["run", "-v", LONG, "job", "echo", "runs"]).capture();
            assert_eq!((done.code, done.stdout.as_str()), (Some(0), ""), "{done:?}");
            assert!(done.stderr.contains(&format!(": its job has succeeded on {} at ", ran.trim())), "{done:?}");
        }
        // Each host knows the success.
        for host in [1, 2] {
            on(sandbox, host, &["run", "-n", "--overdue", "1h", "job", "true"]).capture().succeeds();
        }
    }

    fn the_clock_of_the_store_says_which_slot_it_is(sandbox: &Sandbox) {
        require!(has_namespaces("hosts"));
        let words = ["run", "--once-per=1000d", "job", "echo", "runs"];
        let run = |host, clock: &str, store: &str| {
            on(sandbox, host, &words).env(CLOCK, clock).env(FILE_TIMES, store).capture().stdout
        };
        // Each host believes to be in a slot of its own.
        let runs_of = |store| [(1, "-1500d"), (2, "+1500d"), (1, "+0")].map(|(host, clock)| run(host, clock, store));
        assert_eq!(runs_of("+0"), ["runs\n", "", ""]);
        assert_eq!(runs_of("+1000d"), ["runs\n", "", ""]);
        // The clock of the store was ahead: the success of that time does not count.
        assert_eq!(runs_of("+0"), ["runs\n", "", ""]);
    }

    fn the_clock_of_the_store_says_which_job_is_overdue(sandbox: &Sandbox) {
        require!(has_namespaces("hosts"));
        let words = ["run", "-n", "--overdue", "1h", "job", "true"];
        let call = |host, words: &[&str], clock: &str, store: &str| {
            on(sandbox, host, words).env(CLOCK, clock).env(FILE_TIMES, store).capture()
        };
        assert_eq!(call(1, &words, "-10d", "+0").code, Some(0));
        let holder = on(sandbox, 1, &["run", "job", "dash", "-c", "echo; cat"]).ready();
        for (host, clock) in [(1, "-10d"), (2, "+10d")] {
            let done = [&words[..], &["overdue"]].map(|words| call(host, words, clock, "+0"));
            assert!(done.iter().all(|done| done.code == Some(0)), "{done:?}");
        }
        for (host, clock, code) in [(2, "-10d", 86), (1, "+10d", 0)] {
            let done = [call(host, &["overdue"], clock, "+2h"), call(host, &words, clock, "+2h")];
            // One of the callers complains.
            assert_eq!([done[0].code, done[1].code], [Some(86), Some(code)], "{done:?}");
            assert!(done[0].stdout.contains(" (2h"), "{done:?}");
        }
        holder.wait();
    }

    fn the_job_of_a_host_that_died_runs_on_another(sandbox: &Sandbox) {
        require!(has_namespaces("hosts"));
        let first = on(sandbox, 1, &["run", LONG, "job", "dash", "-c", "echo; sleep 1000; echo late >> runs"]).ready();
        let second = on(sandbox, 2, &["run", "-q", "-w", "inf", LONG, "job", "dash", "-c", "echo second >> runs"]).spawn();
        wait_until("the other host waits", || sandbox.record("job").is_some_and(|record| record.waiters.len() == 1));
        first.send(Signal::SIGKILL);
        first.wait();
        second.wait().succeeds();
        assert_eq!(sandbox.read("files/runs"), "second\n");
    }

    fn a_holder_on_another_host_ends_with_the_lease_that_it_has(sandbox: &Sandbox) {
        require!(has_namespaces("hosts"));
        let script = "trap 'echo ended >> log; exit 3' TERM; echo; while :; do sleep 0.01; done";
        let holder = on(sandbox, 1, &["run", "x", "dash", "-c", script]).ready();
        let next = on(sandbox, 2, &["run", "-q", "-w", "inf", "x", "dash", "-c", "echo next >> log"]).spawn();
        wait_until("the other host waits", || sandbox.record("x").is_some_and(|record| record.waiters.len() == 1));
        let done = on(sandbox, 2, &["unlock", "--force", "--end", "x"]).capture();
        assert!(done.code == Some(0) && done.stdout.starts_with("ended x: held by pid "), "{done:?}");
        let start = "csalock: lock x: its holder on host1 is asked to end, and has the lock until ";
        assert!(done.stderr.starts_with(start) && done.stderr.ends_with(" at the latest\n"), "{done:?}");
        next.wait().succeeds();
        let holder = holder.wait();
        assert_eq!(sandbox.read("files/log"), "ended\nnext\n", "{holder:?}");
        let why = "csalock: the command was ended: `csalock renew --ttl` or `csalock unlock --force --end` had limited the \
                   time of lock x\n";
        assert_eq!((holder.code, holder.stderr.as_str()), (Some(85), why), "{holder:?}");
        let document = on(sandbox, 2, &["history", "--json", "x"]).capture().line();
        let past: serde_json::Value = serde_json::from_str(&document).unwrap();
        let by = &past[0]["ended_by"];
        assert_eq!((&past[0]["host"], &by["host"], &by["reason"]), (&"host1".into(), &"host2".into(), &"end".into()), "{past}");
    }

    fn a_script_on_another_host_is_not_stopped_at_the_end_of_its_lease(sandbox: &Sandbox) {
        require!(has_namespaces("hosts"));
        let mut holder = script_on(sandbox, 1, "csalock lock x; echo $$; read line; echo went on").spawn();
        let pid = holder.lines(1)[0].clone();
        let done = on(sandbox, 2, &["unlock", "--force", "--end", "x"]).capture();
        let said = format!("\
csalock: lock x: its holder on host1 cannot be stopped from here, and has the lock until TIME at the latest
csalock: lock x: its lease is over, and pid {pid} on host1 (user {}) was not stopped, and may go on as if it held the lock
", nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name);
        assert_eq!((done.code, sandbox.plain(&done.stderr)), (Some(0), sandbox.plain(&said)), "{done:?}");
        assert!(done.stdout.starts_with(&format!("broke x: held by pid {pid} on host1 ")), "{done:?}");
        holder.tell("go");
        assert_eq!(holder.wait().stdout, format!("{pid}\nwent on\n"));
    }

    fn a_command_on_another_host_that_outlives_its_lock_is_not_said_to_have_ended(sandbox: &Sandbox) {
        require!(has_namespaces("hosts"));
        for json in [false, true] {
            let words = ["run", "-q", "--on-lost", "warn", "x", "dash", "-c", "echo $$; read line; echo went on"];
            let mut holder = on(sandbox, 1, &words).spawn();
            let pid = holder.lines(1)[0].clone();
            let end = ["unlock", "--force", "--end", "--json", "x"];
            let end: Vec<&str> = end.into_iter().filter(|word| json || *word != "--json").collect();
            let done = on(sandbox, 2, &end).capture();
            let said = format!("\
csalock: lock x: its holder on host1 goes on (--on-lost warn), and has the lock until TIME at the latest
csalock: lock x: its lease is over, and pid {pid} on host1 (user {}) was not stopped (--on-lost warn), and may go on as if it held the lock
", nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name);
            let said = if json { String::new() } else { sandbox.plain(&said) };
            assert_eq!((done.code, sandbox.plain(&done.stderr)), (Some(0), said), "{done:?}");
            let start = if json { "[{\"name\":\"x\",\"outcome\":\"broken\"," } else { "broke x: held by pid " };
            assert!(done.stdout.starts_with(start), "{done:?}");
            let shown = on(sandbox, 2, &["history", "-n", "1", "x"]).capture().line();
            assert!(shown.contains("\n") && shown.lines().any(|line| line.trim().starts_with("asked to end by ")), "{shown}");
            holder.tell("go");
            let done = holder.wait();
            assert_eq!((done.code, done.stdout), (Some(85), format!("{pid}\nwent on\n")));
        }
    }

    fn a_script_on_another_host_that_releases_before_the_end_of_its_lease_is_not_named(sandbox: &Sandbox) {
        require!(has_namespaces("hosts"));
        let script = "csalock lock x; echo; read line; csalock unlock x";
        let mut holder = script_on(sandbox, 1, script).env("CSALOCK_LEASE", "10m").ready();
        let ends = on(sandbox, 2, &["unlock", "--force", "--end", "x"]).env("CSALOCK_LEASE", "10m").spawn();
        wait_until("the lease is the last one", || {
            let record = sandbox.record("x");
            record.is_some_and(|record| matches!(record.holders[0].lifetime, lock::Lifetime::ExpiresAt(_)))
        });
        holder.tell("go");
        holder.wait().exits(0);
        let done = ends.wait();
        let said = "csalock: lock x: its holder on host1 cannot be stopped from here, and has the lock until TIME at the latest\n";
        assert_eq!((done.code, sandbox.plain(&done.stderr).as_str()), (Some(0), said), "{done:?}");
    }

    fn a_holder_on_another_host_without_a_short_lease_must_be_ended_there(sandbox: &Sandbox) {
        require!(has_namespaces("hosts"));
        for option in ["--forever", "--ttl=1h"] {
            let holder = on(sandbox, 1, &["run", option, "x", "dash", "-c", "echo; cat"]).ready();
            let before = sandbox.record("x").unwrap().holders;
            let done = on(sandbox, 2, &["unlock", "--force", "--end", "x"]).capture();
            let start = "csalock: lock x: its holder cannot be ended from here: pid ";
            let hint = ": dash -c echo; cat; on host1: csalock unlock --force --end x\n";
            assert!(done.stderr.starts_with(start) && done.stderr.ends_with(hint), "{done:?}");
            assert_eq!((done.code, done.stdout.as_str()), (Some(82), ""), "{done:?}");
            assert_eq!(sandbox.record("x").unwrap().holders, before);
            holder.wait().succeeds();
        }
    }

    fn the_newest_of_the_callers_on_two_hosts_waits(sandbox: &Sandbox) {
        require!(has_namespaces("hosts"));
        let mut holder = on(sandbox, 1, &["run", "job", "dash", "-c", "echo; cat"]).ready();
        let waits = |host: u8| {
            let before = sandbox.record("job").and_then(|record| record.waiters.first().map(|waiter| waiter.proof));
            let words = ["run", "-w", "inf", "--busy", "latest", "job", "dash", "-c", "echo runs"];
            let job = on(sandbox, host, &words).spawn();
            wait_until("it waits", || {
                let record = sandbox.record("job").unwrap();
                record.waiters.len() == 1 && Some(record.waiters[0].proof) != before
            });
            job
        };
        let [old, newer, newest] = [2, 1, 2].map(waits);
        for (replaced, host) in [(old, "host1"), (newer, "host2")] {
            let done = replaced.wait();
            assert_eq!((done.code, done.stdout.as_str()), (Some(75), ""), "{done:?}");
            assert!(done.stderr.contains(" a newer caller has taken the place in the queue: pid "), "{done:?}");
            assert!(done.stderr.contains(&format!(" on {host} (user ")) || done.stderr.contains(" on host2 (user "), "{done:?}");
        }
        holder.release();
        newest.wait().prints(0, "runs\n");
    }
}
