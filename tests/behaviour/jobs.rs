//! Jobs: `run --once-per`, `run --overdue` and `csalock overdue`.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::sandbox::{CLOCK, Call, FILE_TIMES, Job, Sandbox, proc, still, wait_until};

/// The offset by which a clock shows this many minutes after 2026-11-21 12:00:00 in the zone of the sandbox.
fn noon_and(minutes: i64) -> String {
    let noon: i64 = still::noon().trim_end_matches('s').parse().unwrap();
    format!("{:+}s", noon + 60 * minutes)
}

/// A call at that time, on the clocks of host and store.
fn at(call: Call<'_>, minutes: i64) -> Call<'_> {
    call.with_clocks(&noon_and(minutes))
}

/// A slot that does not end while a test runs.
const LONG: &str = "--once-per=99999d";

fn runs(sandbox: &Sandbox) -> usize {
    sandbox.read("files/runs").lines().count()
}

on_every_kind_of_store! {
    fn a_job_runs_once_in_a_slot(sandbox: &Sandbox) {
        sandbox.csalock(["run", LONG, "job", "echo", "first"]).stdout("first\n").run();
        sandbox.csalock(["run", LONG, "job", "echo", "second"]).run();
        let said = "csalock: lock job in store STORE: its job has succeeded on HOST at TIME, in this slot; nothing was run\n";
        let done = sandbox.csalock(["run", "-v", LONG, "job", "echo", "third"]).capture();
        let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
        assert_eq!((done.code, done.stdout.as_str()), (Some(0), ""));
        assert_eq!(sandbox.plain(&done.stderr).replace(&format!(" on {host} at "), " on HOST at "), said);
        // The lock is a lock like any other.
        sandbox.csalock(["run", "job", "echo", "plain"]).stdout("plain\n").run();
        assert_eq!(sandbox.state("job"), "free");
        sandbox.csalock(["gc"]).capture();
        sandbox.csalock(["run", LONG, "job", "echo", "fourth"]).run();
    }

    fn a_run_without_slots_leaves_them_as_they_are(sandbox: &Sandbox) {
        sandbox.csalock(["run", LONG, "job", "true"]).run();
        sandbox.csalock(["run", "--overdue", "1h", "job", "echo", "runs"]).stdout("runs\n").run();
        sandbox.csalock(["run", LONG, "job", "echo", "again"]).run();
        let fails = || sandbox.csalock(["run", LONG, "--retries=0", "other", "false"]).capture().code;
        assert_eq!(fails(), Some(1));
        sandbox.csalock(["run", "--overdue", "1h", "other", "true"]).run();
        assert_eq!(fails(), Some(0));
    }

    fn each_slot_has_a_run(sandbox: &Sandbox) {
        let run = |minutes: i64, slot: &str| {
            at(sandbox.csalock(["run", "--once-per", slot, slot, "echo", "runs"]), minutes).capture().stdout
        };
        for (slot, minutes) in [("hour", 60), ("day", 12 * 60), ("week", 36 * 60), ("10m", 10), ("1d", 24 * 60)] {
            assert_eq!([run(0, slot), run(1, slot), run(minutes, slot), run(minutes, slot)], ["runs\n", "", "runs\n", ""], "{slot}");
            // A clock that is a little late does not bring an old slot back.
            let late = format!("{}s", noon_and(minutes).trim_end_matches('s').parse::<i64>().unwrap() - 30);
            let late = if late.starts_with('-') { late } else { format!("+{late}") };
            let done = sandbox.csalock(["run", "--once-per", slot, slot, "echo", "runs"]).with_clocks(&late).capture();
            assert_eq!(done.stdout, "", "{slot}");
        }
    }

    fn a_success_in_the_future_does_not_count(sandbox: &Sandbox) {
        let run = |minutes: i64, word: &str| {
            let words = ["run", "-n", "--once-per", "hour", "--overdue", "2h", "job", "echo", word];
            at(sandbox.csalock(words), minutes).capture()
        };
        let month = 30 * 24 * 60;
        assert_eq!([run(0, "first"), run(month, "ahead")].map(|done| done.stdout), ["first\n", "ahead\n"]);
        let overdue = |minutes: i64, words: &[&str]| at(sandbox.csalock([&["overdue"], words].concat()), minutes).capture();
        assert_eq!(overdue(60, &[]).code, Some(0), "it was promised at noon");
        let says = "its job last succeeded at TIME, in the future of the store's clock, so that does not count";
        let done = overdue(121, &[]);
        assert_eq!((done.code, sandbox.plain(&done.stdout)), (Some(86), format!("job: {says}, and must succeed once in 2h\n")));
        let document: Value = serde_json::from_str(&overdue(121, &["--json"]).stdout).unwrap();
        assert_eq!(document[0]["overdue"], true);
        let metrics = at(sandbox.csalock(["metrics"]), 121).capture().stdout;
        assert!(metrics.contains("csalock_success_in_future{") && !metrics.contains("csalock_last_success_"), "{metrics}");
        let done = run(121, "again");
        assert_eq!(done.stdout, "again\n");
        assert_eq!(sandbox.plain(&done.stderr), format!("csalock: lock job in store STORE: {says}; the job runs\n"));
        let done = run(122, "no");
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""));
        assert_eq!(overdue(122, &[]).code, Some(0));
        assert!(!at(sandbox.csalock(["metrics"]), 122).capture().stdout.contains("csalock_success_in_future{"));
        assert_eq!(run(180, "next").stdout, "next\n");
    }

    fn a_run_that_failed_is_repeated_but_not_for_ever(sandbox: &Sandbox) {
        let fails = |retries: &str| sandbox.csalock(["run", LONG, retries, "job", "false"]).capture().code;
        assert_eq!([fails("--retries=1"), fails("--retries=1")], [Some(1), Some(1)]);
        sandbox.csalock(["run", LONG, "--retries=1", "job", "echo", "runs"]).run();
        let done = sandbox.csalock(["run", "-v", LONG, "--retries=1", "job", "echo", "runs"]).capture();
        let said = "csalock: lock job was acquired, token TOKEN\n\
                    csalock: lock job in store STORE: its job has not succeeded in this slot after 2 runs; nothing was run\n";
        assert_eq!((done.code, sandbox.plain(&done.stderr).as_str()), (Some(0), said));
        sandbox.csalock(["run", LONG, "job", "echo", "runs"]).stdout("runs\n").run();
        sandbox.csalock(["run", LONG, "job", "echo", "again"]).run();
        sandbox.csalock(["run", LONG, "--retries=0", "other", "false"]).capture().exits(1);
        sandbox.csalock(["run", LONG, "--retries=0", "other", "echo", "again"]).run();
    }

    fn the_call_that_uses_up_the_last_run_says_so_once(sandbox: &Sandbox) {
        let run = |name: &str, retries: &str, command: &str| {
            let done = sandbox.csalock(["run", "-q", LONG, retries, name, "dash", "-c", command]).capture();
            (done.code, done.stdout.clone(), sandbox.plain(&done.stderr))
        };
        let says = |what: &str, name: &str| {
            format!("csalock: lock {name} in store STORE: {what} of its job in this slot failed, so it does not run \
                     again before the next slot; to run it now, use more --retries\n")
        };
        let silent = |code: i32| (Some(code), String::new(), String::new());
        assert_eq!(run("job", "--retries=1", "exit 3"), silent(3));
        assert_eq!(run("job", "--retries=1", "exit 3"), (Some(3), String::new(), says("all 2 runs", "job")));
        assert_eq!([run("job", "--retries=1", ":"), run("job", "--retries=1", ":")], [silent(0), silent(0)]);
        // More runs may fail, too.
        assert_eq!(run("job", "--retries=2", "exit 3"), (Some(3), String::new(), says("all 3 runs", "job")));
        assert_eq!(run("job", "--retries=2", ":"), silent(0));
        // The next call says it for a run that could not.
        assert_eq!(run("killed", "--retries=0", "kill -9 $PPID; sleep 1000").0, None);
        wait_until("it is free", || sandbox.state("killed") != "held");
        let done = run("killed", "--retries=0", "echo again").2;
        assert!(done.ends_with(&says("the only run", "killed")), "{done}");
        assert_eq!(run("killed", "--retries=0", ":"), silent(0));
        for _ in 0..6 {
            assert_eq!(run("inf", "--retries=inf", "exit 3"), silent(3));
        }
        assert_eq!(run("inf", "--retries=inf", "echo runs").1, "runs\n");
    }

    fn a_run_begins_no_earlier_than_retry_after(sandbox: &Sandbox) {
        let run = |minutes: i64, command: &str| {
            let words = ["run", "-v", LONG, "--retry-after=1h", "--retries=9", "job", "dash", "-c", command];
            at(sandbox.csalock(words), minutes).capture()
        };
        assert_eq!(run(0, "exit 3").code, Some(3));
        let done = run(59, "echo early");
        let said = "csalock: lock job was acquired, token TOKEN\n\
                    csalock: lock job in store STORE: its last run in this slot began at TIME, and the next may at \
                    TIME; nothing was run\n";
        assert_eq!((done.code, done.stdout.as_str(), sandbox.plain(&done.stderr).as_str()), (Some(0), "", said));
        let codes = [61, 62, 122].map(|minutes| run(minutes, "exit 3").code);
        assert_eq!(codes, [Some(3), Some(0), Some(3)]);
        // A clock that was ahead once delays no run.
        assert_eq!([run(9999, "exit 3").code, run(200, "exit 4").code], [Some(3), Some(4)]);
    }

    fn runs_used_of_runs_allowed_are_shown(sandbox: &Sandbox) {
        let fail = |name: &str, retries: &str| {
            sandbox.csalock(["run", LONG, retries, name, "false"]).capture().exits(1);
        };
        for _ in 0..2 {
            fail("few", "--retries=2");
        }
        fail("inf", "--retries=inf");
        let shown = sandbox.csalock(["overdue", "--all"]).capture();
        let lines = "few: its job has not succeeded yet, 2 of 3 runs used in the slot from TIME, its last run ended at TIME: exit 1\n\
                     inf: its job has not succeeded yet, 1 run used in the slot from TIME, its last run ended at TIME: exit 1\n";
        assert_eq!((shown.code, sandbox.plain(&shown.stdout).as_str()), (Some(0), lines));
        sandbox.csalock(["overdue"]).run();
        let document = sandbox.csalock(["overdue", "--all", "--json"]).capture().stdout;
        let document: Value = serde_json::from_str(&document).unwrap();
        let runs = |at: usize| (document[at]["runs"].clone(), document[at]["runs_allowed"].clone());
        assert_eq!([runs(0), runs(1)], [(json!(2), json!(3)), (json!(1), Value::Null)]);
        let status = sandbox.csalock(["status", "few"]).capture().stdout;
        assert!(status.contains("has not succeeded yet; 2 of 3 runs used in the slot from "), "{status}");
        let metrics = sandbox.csalock(["metrics"]).capture().stdout;
        let value = |begin: &str| {
            let line = metrics.lines().find(|line| line.starts_with(begin) && line.contains("\"few\""));
            line.and_then(|line| line.rsplit(' ').next())
        };
        let values = (value("csalock_slot_runs{"), value("csalock_slot_runs_allowed{"));
        assert_eq!(values, (Some("2"), Some("3")), "{metrics}");
        assert_eq!(metrics.matches("\ncsalock_slot_runs_allowed{").count(), 1);
        sandbox.csalock(["run", LONG, "few", "true"]).run();
        assert!(!sandbox.csalock(["overdue", "--all"]).capture().stdout.contains("few"));
    }

    fn a_command_dies_with_its_supervisor_and_is_repeated(sandbox: &Sandbox) {
        let mut job = sandbox.csalock(["run", LONG, "job", "dash", "-c", "echo $$; exec sleep 1000"]).spawn();
        let command: i32 = job.lines(1)[0].parse().unwrap();
        job.send(Signal::SIGKILL);
        job.wait();
        wait_until("the command is dead", || kill(Pid::from_raw(command), None).is_err());
        sandbox.csalock(["run", "-q", LONG, "job", "echo", "runs"]).capture().prints(0, "runs\n");
    }

    fn a_stopped_supervisor_keeps_the_lock_until_it_has_reported_the_success(sandbox: &Sandbox) {
        let mut job = sandbox.csalock(["run", LONG, "job", "dash", "-c", "echo $$; cat; echo run >> runs"]).spawn();
        let command: i32 = job.lines(1)[0].parse().unwrap();
        let waits = sandbox.csalock(["run", "-w", "inf", LONG, "job", "dash", "-c", "echo run >> runs"]).spawn();
        wait_until("it waits", || sandbox.waiters("job").len() == 1);
        job.send(Signal::SIGSTOP);
        job.release();
        wait_until("the command has ended", || !proc::lives(command));
        sandbox.csalock(["run", "-qn", LONG, "job", "dash", "-c", "echo run >> runs"]).status(75).run();
        assert_eq!((sandbox.state("job"), sandbox.holders("job")), ("held".to_string(), vec![job.pid()]));
        job.send(Signal::SIGCONT);
        assert_eq!([job.wait().code, waits.wait().code], [Some(0), Some(0)]);
        assert_eq!(runs(sandbox), 1);
    }

    fn a_job_whose_stopped_supervisor_was_killed_runs_again(sandbox: &Sandbox) {
        let mut job = sandbox.csalock(["run", LONG, "job", "dash", "-c", "echo $$; cat; :"]).spawn();
        let command: i32 = job.lines(1)[0].parse().unwrap();
        let waits = sandbox.csalock(["run", "-q", "-w", "inf", LONG, "job", "echo", "again"]).spawn();
        wait_until("it waits", || sandbox.waiters("job").len() == 1);
        job.send(Signal::SIGSTOP);
        job.release();
        wait_until("the command has ended", || !proc::lives(command));
        job.kill();
        waits.wait().prints(0, "again\n");
    }

    fn one_of_the_callers_that_come_at_once_complains(sandbox: &Sandbox) {
        let _holder = sandbox.holder("job");
        at(sandbox.csalock(["run", "-n", "--overdue", "1h", "job", "true"]), 0).run();
        for minutes in [61, 130] {
            let words = ["run", "-n", "--overdue", "1h", "job", "true"];
            let calls: Vec<Job> = (0..6).map(|_| at(sandbox.csalock(words), minutes).spawn()).collect();
            let mut codes: Vec<_> = calls.into_iter().map(|call| call.wait().code.unwrap()).collect();
            codes.sort();
            assert_eq!(codes, [0, 0, 0, 0, 0, 86]);
        }
    }

    fn a_command_that_releases_its_lock_has_no_success(sandbox: &Sandbox) {
        let words = ["run", LONG, "job", "dash", "-c", "csalock unlock \"$CSALOCK_NAME\""];
        let said = "csalock: the job of lock job has succeeded, but that could not be recorded, so it may run again: the command \
                    had released the lock itself; let csalock release it when the command ends\n";
        sandbox.csalock(words).stderr(said).run();
        sandbox.csalock(["run", LONG, "job", "echo", "again"]).stdout("again\n").run();
    }

    fn a_job_that_is_forgotten_while_it_runs_succeeds_in_its_slot(sandbox: &Sandbox) {
        let job = sandbox.csalock(["run", LONG, "--overdue=1h", "job", "dash", "-c", "echo; cat"]).ready();
        sandbox.csalock(["overdue", "--forget", "job"]).run();
        job.wait().exits(0);
        sandbox.csalock(["run", LONG, "job", "echo", "again"]).run();
        sandbox.csalock(["overdue", "job"]).capture().exits(81);
        sandbox.csalock(["overdue", "--forget", "job"]).run();
        assert!(sandbox.record("job").is_none());
        sandbox.csalock(["run", LONG, "job", "echo", "runs"]).stdout("runs\n").run();
    }

    fn many_callers_at_once_run_it_once(sandbox: &Sandbox) {
        let words = ["run", "-w", "inf", LONG, "job", "dash", "-c", "echo run >> runs"];
        let jobs: Vec<Job> = (0..8).map(|_| sandbox.csalock(words).spawn()).collect();
        assert!(jobs.into_iter().all(|job| job.wait().code == Some(0)));
        assert_eq!(runs(sandbox), 1);
    }

    fn killed_runs_are_repeated_until_one_succeeds(sandbox: &Sandbox) {
        // Each command dies before its last step, except the fourth.
        let script = "echo try >> tries; [ $(wc -l < tries) -gt 3 ] || kill -9 $$; echo run >> runs";
        let words = ["run", "-w", "inf", LONG, "job", "dash", "-c", script];
        let jobs: Vec<Job> = (0..8).map(|_| sandbox.csalock(words).spawn()).collect();
        let mut codes: Vec<_> = jobs.into_iter().map(|job| job.wait().code).collect();
        codes.sort();
        assert_eq!(codes, [[Some(0); 5].as_slice(), &[Some(137); 3]].concat());
        assert_eq!((runs(sandbox), sandbox.read("files/tries").lines().count()), (1, 4));
    }

    fn a_storm_with_kills_runs_the_job_once_in_each_slot(sandbox: &Sandbox) {
        // Some runs die with csalock, some alone, and some fail. A run is complete with its last line.
        let job = "echo try >> tries; case $(($(wc -l < tries) % 5)) in
                   1) kill -9 $PPID; exec sleep 1000;; 2) kill -9 $$;; 3) exit 1;; esac; echo $SLOT >> runs";
        // A worker goes on to the next slot after the job has succeeded in this one, and all workers have seen that: the clock
        // of the store is never behind a success by more than a minute.
        let slots = sandbox.many(20).max(4);
        let script = format!(
            "SLOT=0; export SLOT; while [ $SLOT -lt {slots} ]; do SLOT=$((SLOT + 1)); code=1; while [ $code != 0 ]; do
             {CLOCK}=$(({} + 600 * SLOT))s; {FILE_TIMES}=${CLOCK}; export {CLOCK} {FILE_TIMES}
             csalock run -q -w inf --once-per 10m --retries 1000 job dash -c '{job}'; code=$?
             case $code in 0|1|137) ;; *) echo $code >> codes;; esac; done
             echo >> seen.$SLOT; while [ $(wc -l < seen.$SLOT) -lt 8 ]; do sleep 0.01; done; done",
            noon_and(0).trim_start_matches('+').trim_end_matches('s')
        );
        let workers: Vec<Job> = (0..8).map(|_| sandbox.script("dash", &script).spawn()).collect();
        // Waiters of the same lock, which die while they wait or while they hold it. They have no second process, which
        // would leave the queue after its supervisor: on a slow machine these would become ever more.
        let others = "while [ ! -e done ]; do csalock run -Fq -w inf job true & wait=$!; sleep 0.01; kill -9 $wait; wait; done";
        let others: Vec<Job> = (0..2).map(|_| sandbox.script("dash", others).spawn()).collect();
        workers.into_iter().for_each(|worker| worker.wait().exits(0));
        sandbox.file("files/done", "");
        others.into_iter().for_each(|other| assert_eq!(other.wait().code, Some(0)));
        let expected: String = (1..=slots).map(|slot| format!("{slot}\n")).collect();
        assert_eq!((sandbox.read("files/runs"), sandbox.read("files/codes").as_str()), (expected, ""));
        assert!(sandbox.read("files/tries").lines().count() > slots);
    }

    fn a_busy_lock_is_silent_until_its_job_is_overdue(sandbox: &Sandbox) {
        let call = |minutes: i64| {
            let words = ["run", "-n", "--overdue", "1h", "job", "true"];
            let done = at(sandbox.csalock(words), minutes).capture();
            assert_eq!(done.stdout, "");
            (done.code.unwrap(), sandbox.plain(&done.stderr))
        };
        let overdue = |minutes: i64, words: &[&str]| {
            let done = at(sandbox.csalock(["overdue"].iter().chain(words)), minutes).capture();
            assert_eq!(done.stderr, "");
            (done.code.unwrap(), sandbox.plain(&done.stdout))
        };
        let silent = (0, String::new());
        assert_eq!(overdue(0, &[]), silent);
        let holder = sandbox.holder("job");
        // The promise begins with the first call.
        assert_eq!([call(0), call(59), overdue(59, &[])], [silent.clone(), silent.clone(), silent.clone()]);
        let (code, said) = call(61);
        assert!(code == 86 && said.starts_with("csalock: lock job in store STORE is busy: held by pid PID on HOST (user USER) since "), "{said}");
        assert!(said.contains("; its job has never succeeded, since TIME (AGE ago), and must succeed once in 1h; `csalock status "), "{said}");
        assert_eq!([call(62), call(120)], [silent.clone(), silent.clone()]);
        let listed = (86, "job: its job has never succeeded, since TIME (AGE ago), and must succeed once in 1h\n".to_string());
        assert_eq!([overdue(62, &[]), overdue(62, &["job"])], [listed.clone(), listed]);
        assert_eq!(overdue(62, &["-q"]), (86, String::new()));
        let all = (86, "job: its job has never succeeded, since TIME (AGE ago), and must succeed once in 1h, overdue since TIME\n".to_string());
        assert_eq!(overdue(62, &["--all"]), all);
        let said = "csalock: lock other in store STORE has no job that must succeed in time; give the name that `csalock run --overdue` has\n";
        let done = sandbox.csalock(["overdue", "other"]).capture();
        assert_eq!((done.code, done.stdout.as_str(), sandbox.plain(&done.stderr).as_str()), (Some(81), "", said));
        sandbox.csalock(["overdue", "-q", "other"]).status(81).run();
        sandbox.csalock(["overdue", "--json", "other"]).status(81).stdout("[]\n").run();
        assert_eq!(call(122).0, 86);
        holder.wait();
        assert_eq!(call(123), silent);
        assert_eq!([overdue(124, &[]), overdue(182, &[])], [silent.clone(), silent.clone()]);
        let all = (0, "job: its job last succeeded at TIME (AGE ago), and must succeed once in 1h, next by TIME\n".to_string());
        assert_eq!([overdue(124, &["--all"]), overdue(182, &["--all", "job"])], [all.clone(), all]);
        let (code, said) = overdue(182, &["--all", "--json"]);
        assert!(code == 0 && said.starts_with("[{\"name\":\"job\",\"overdue\":false,\"last_success\":"), "{said}");
        let (code, said) = overdue(184, &["--json"]);
        assert!(said.contains("\"overdue\":true,"), "{said}");
        let document: Value = serde_json::from_str(&at(sandbox.csalock(["overdue", "--json"]), 184).capture().stdout).unwrap();
        assert_eq!((code, document.as_array().unwrap().len(), &document[0]["name"], &document[0]["within"]), (86, 1, &json!("job"), &json!(3600.0)), "{said}");
        assert_eq!(document[0]["refused"], json!(0));
        let holder = sandbox.holder("job");
        let (code, said) = call(184);
        assert!(code == 86 && said.contains("; its job last succeeded at TIME (AGE ago), and must succeed once in 1h; "), "{said}");
        holder.wait();
        // A run that fails keeps no promise.
        let words = ["run", "--overdue", "1h", "job", "false"];
        at(sandbox.csalock(words), 185).capture().exits(1);
        let failed = "job: its job last succeeded at TIME (AGE ago), and must succeed once in 1h, its last run ended at TIME: exit 1\n";
        assert_eq!([overdue(186, &[]), overdue(186, &["job"])], [(86, failed.to_string()), (86, failed.to_string())]);
        let document: Value = serde_json::from_str(&at(sandbox.csalock(["overdue", "--json"]), 186).capture().stdout).unwrap();
        assert_eq!(document[0]["last_run"]["exit_code"], json!(1));
        sandbox.csalock(["overdue", "--forget", "job"]).run();
        assert_eq!(overdue(186, &[]), silent);
        let said = "csalock: lock job in store STORE has no job; nothing was changed\n";
        sandbox.csalock(["overdue", "--forget", "job"]).status(81).stderr(said).run();
        assert!(sandbox.record("job").is_none());
    }

    fn slots_of_a_zone_that_is_not_installed_are_refused(sandbox: &Sandbox) {
        let run = |zone: &str, slot: &str| {
            let call = sandbox.csalock(["run", "--once-per", slot, "job", "echo", "runs"]);
            call.env("TZ", zone).env("TZDIR", "/nowhere").capture()
        };
        let said = "csalock: --once-per: TZ says Europe/Belin, which is not an installed time zone; install tzdata, or set TZ \
                    right, alike on all hosts\n";
        for slot in ["hour", "day", "week"] {
            for zone in ["Europe/Belin", ":Europe/Belin"] {
                let done = run(zone, slot);
                assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (Some(64), "", said));
            }
        }
        assert!(!sandbox.store_exists());
        run("Europe/Belin", "1d").prints(0, "runs\n");
        sandbox.csalock(["overdue", "--forget", "job"]).run();
        for zone in ["", "UTC", ":Etc/UTC", "CET-1CEST,M3.5.0,M10.5.0/3", "<+03>-3"] {
            run(zone, "week").prints(0, "runs\n");
            sandbox.csalock(["overdue", "--forget", "job"]).run();
        }
    }

    fn wrong_options_are_refused(sandbox: &Sandbox) {
        for (words, said) in [
            (&["run", "--once-per", "month", "job", "true"][..],
             "--once-per: month is not a slot; use hour, day, week or a duration such as 10m"),
            (&["run", "--retries", "1", "job", "true"], "an option is missing; add --once-per <SLOT>"),
            (&["run", LONG, "job", "--also", "other", "true"], "--once-per is for one lock, and here are several; leave --also or --once-per out"),
            (&["run", "--overdue", "1d", "job", "--also=other", "--", "true"], "--overdue is for one lock, and here are several; leave --also or --overdue out"),
            (&["overdue", "--all", "--forget", "job"], "the argument '--all' cannot be used with '--forget'; leave one of them out"),
            (&["overdue", "--forget"], "the following required arguments were not provided: <NAME>...; use: csalock overdue [OPTION]... [NAME]..."),
        ] {
            sandbox.csalock(words).status(64).stderr(format!("csalock: {said}\n")).run();
        }
        for option in ["--no-fork", "--shared", "--slots=2", "--also=other"] {
            assert_eq!(sandbox.csalock(["run", LONG, option, "job", "true"]).capture().code, Some(64), "{option}");
        }
        assert!(!sandbox.store_exists());
    }
}
