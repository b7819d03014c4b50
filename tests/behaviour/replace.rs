//! `run --busy replace`: the caller ends the holder that it finds, and takes its place.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::sandbox::{Job, Kind, Sandbox, is_root, proc, wait_until};

/// A holder that ends with 7 when it gets TERM.
fn holder(sandbox: &Sandbox, options: &[&str], at_term: &str) -> Job {
    let script = format!("trap '{at_term}' TERM; echo $$; while :; do sleep 0.01; done");
    sandbox.csalock([&["run", "-q"], options, &["x", "dash", "-c", &script]].concat()).ready()
}

fn replaces<'a>(sandbox: &'a Sandbox, options: &[&str], script: &str) -> crate::sandbox::Call<'a> {
    sandbox.csalock([&["run", "--busy", "replace", "-w", "inf"], options, &["x", "dash", "-c", script]].concat())
}

const ASKED: &str =
    "csalock: lock x: asked its holder to end: pid PID on HOST (user USER) since TIME (AGE ago), while it lives";

/// The lines of a message, as they are the same in each store and in each run.
fn plain(sandbox: &Sandbox, said: &str) -> String {
    let text = sandbox.plain(said);
    // The end of a lease shows only while the holder is not seen.
    assert!(text.starts_with(ASKED), "{text}");
    // On a busy machine, a short sleep of the holder may go on for long enough to be named.
    let is_steady =
        |line: &&str| !line.starts_with("csalock: processes of the ended holder go on without lock x: pid ");
    text.lines().filter(is_steady).map(|line| line.split(':').take(3).collect::<Vec<_>>().join(":") + "\n").collect()
}

tests_on! {
    [directory Directory] [sqlite Sqlite] [shared Shared]

    fn the_holder_is_ended_and_the_caller_takes_its_place(sandbox: &Sandbox) {
        let old = holder(sandbox, &[], "exit 7");
        let done = replaces(sandbox, &[], "echo new").capture();
        done.prints(0, "new\n");
        assert_eq!(plain(sandbox, &done.stderr).lines().count(), 1, "{}", done.stderr);
        old.wait().complains(7, "");
        // A free lock is acquired like any other.
        replaces(sandbox, &[], "echo again").stdout("again\n").run();
        assert_eq!((sandbox.state("x"), sandbox.is_tidy()), ("free".to_string(), true));
    }

    fn the_history_names_the_caller_that_replaced_a_holder(sandbox: &Sandbox) {
        let script = "trap 'csalock unlock x; exit 7' TERM; csalock lock x; echo; while :; do sleep 0.01; done";
        for exit in [Some(7), None] {
            let old = if exit.is_some() { holder(sandbox, &[], "exit 7") } else { sandbox.script("dash", script).ready() };
            let done = replaces(sandbox, &["-q", "--label", "version 2"], "echo $$").capture();
            old.wait().exits(7);
            let document = sandbox.csalock(["history", "--json", "-n", "2", "x"]).capture().line();
            let past: serde_json::Value = serde_json::from_str(&document).unwrap();
            let (past, new) = (&past[0], &past[1]);
            let wanted = serde_json::json!({
                "pid": done.line().parse::<i32>().unwrap(), "host": past["host"], "user": past["user"],
                "command": "dash -c echo $$", "label": "version 2", "reason": "replace"
            });
            assert_eq!(past["ended_by"], wanted, "{past}");
            assert_eq!((&past["ended"], &past["exit_code"]), (&"released".into(), &exit.into()), "{past}");
            assert_eq!((&new["pid"], &new["ended_by"]), (&wanted["pid"], &serde_json::Value::Null), "{new}");
            let shown = sandbox.csalock(["history", "-n", "2", "x"]).capture().line();
            let row = format!("replaced by {} {} [version 2] dash -c echo $$", done.line(), past["user"].as_str().unwrap());
            assert_eq!(shown.lines().nth(2).map(str::trim), Some(row.as_str()), "{shown}");
        }
    }

    fn what_goes_on_after_the_end_of_its_holder_is_told(sandbox: &Sandbox) {
        let start = "sleep 3600 < /dev/null > /dev/null 2>&1 & echo $!; wait";
        let mut old = sandbox.csalock(["run", "-q", "x", "dash", "-c", start]).spawn();
        let left: i32 = old.lines(1)[0].parse().unwrap();
        let done = replaces(sandbox, &[], "echo new").capture();
        let said = format!(
            "csalock: processes of the ended holder go on without lock x: pid {left}; kill them if they do harm; \
             `csalock run --tree` ends them too"
        );
        assert_eq!((done.code, done.stderr.lines().nth(1)), (Some(0), Some(said.as_str())), "{done:?}");
        assert!(proc::lives(left));
        kill(Pid::from_raw(left), Signal::SIGKILL).unwrap();
    }

    fn a_deaf_command_is_killed_and_csalock_releases_its_lock(sandbox: &Sandbox) {
        let old = holder(sandbox, &[], "");
        let done = replaces(sandbox, &["--kill-after", "100ms"], "echo new").capture();
        done.prints(0, "new\n");
        assert!(done.stderr.contains(" went on for 100ms, and was killed\n"), "{}", done.stderr);
        old.wait().complains(137, "");
    }

    fn a_stopped_command_and_its_stopped_supervisor_are_ended(sandbox: &Sandbox) {
        let mut old = holder(sandbox, &[], "exit 7");
        let command: i32 = old.lines(1)[0].parse().unwrap();
        for pid in [old.pid(), command] {
            kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
        }
        replaces(sandbox, &["-q"], "echo new").stdout("new\n").run();
        old.wait().complains(7, "");
    }

    fn a_command_without_its_supervisor_is_ended(sandbox: &Sandbox) {
        let mut old = holder(sandbox, &[], "exit 7");
        let command: i32 = old.lines(1)[0].parse().unwrap();
        old.kill();
        replaces(sandbox, &["-q"], "echo new").stdout("new\n").run();
        assert!(!proc::lives(command));
        let old = sandbox.csalock(["run", "-F", "x", "dash", "-c", "echo; exec sleep 60"]).ready();
        replaces(sandbox, &["-q"], "echo new").stdout("new\n").run();
        assert_eq!(old.wait().signal, Some(Signal::SIGTERM as i32));
    }

    fn a_script_that_holds_the_lock_is_ended(sandbox: &Sandbox) {
        let script = "trap 'csalock unlock x; exit 7' TERM; csalock lock x; echo; while :; do sleep 0.01; done";
        let old = sandbox.script("dash", script).ready();
        replaces(sandbox, &["-q"], "echo new").stdout("new\n").run();
        old.wait().exits(7);
        let deaf = sandbox.script("dash", "trap '' TERM; csalock lock x; echo; while :; do sleep 0.01; done").ready();
        replaces(sandbox, &["-q", "--kill-after", "100ms"], "echo new").capture().prints(0, "new\n");
        assert_eq!(deaf.wait().signal, Some(Signal::SIGKILL as i32));
    }

    fn what_the_command_of_a_tree_left_is_ended(sandbox: &Sandbox) {
        let script = "setsid dash -c 'trap \"\" TERM; echo $$; while :; do sleep 0.01; done' & exit 3";
        let mut old = sandbox.csalock(["run", "-q", "--tree", "x", "dash", "-c", script]).ready();
        let left: i32 = old.lines(1)[0].parse().unwrap();
        wait_until("the command has ended", || sandbox.holders("x") == [old.pid()]);
        replaces(sandbox, &["-q", "--kill-after", "100ms"], "echo new").stdout("new\n").run();
        assert!(!proc::lives(left));
        old.wait().complains(3, "");
    }

    fn no_process_that_called_the_caller_is_ended(sandbox: &Sandbox) {
        let script = "csalock lock x; dash -c 'csalock run -q --busy replace -w inf x touch ran; echo $?'; echo goes on";
        sandbox.script("dash", script).stdout("84\ngoes on\n").run();
        assert!(!sandbox.path("files/ran").exists());
    }

    fn a_waiter_that_came_before_runs_before_and_is_not_ended(sandbox: &Sandbox) {
        let old = holder(sandbox, &[], "exit 7");
        let before = sandbox.waiter("x", "sleep 1; echo before >> order");
        let new = replaces(sandbox, &["-q", "--kill-after", "50ms"], "echo new >> order").spawn();
        // On a busy machine it may be killed first.
        assert!(matches!(old.wait().code, Some(7 | 137)));
        before.wait().succeeds();
        new.wait().succeeds();
        assert_eq!(sandbox.read("files/order"), "before\nnew\n");
    }

    fn the_newest_of_several_wins(sandbox: &Sandbox) {
        let old = holder(sandbox, &[], "");
        let first = replaces(sandbox, &["-q"], "echo 1").spawn();
        wait_until("it waits", || sandbox.waiters("x").len() == 1);
        let second = replaces(sandbox, &["-q", "--kill-after", "50ms"], "echo 2").spawn();
        first.wait().complains(75, "");
        second.wait().is(0, "2\n", "");
        old.wait().exits(137);
    }

    fn in_a_storm_two_never_hold_the_lock(sandbox: &Sandbox) {
        // Without --tree, a child of an ended command keeps the lock of flock(1) beside the next one.
        let body = "exec 9>> witness; flock -n 9 || echo two >> broken; echo run >> runs; sleep 0.02";
        let script = format!(
            "i=0; while [ $i -lt 10 ]; do i=$((i + 1))
             csalock run -q --tree --busy replace --kill-after 10ms -w inf x dash -c '{body}'; echo $? >> codes; done"
        );
        let plain = format!("i=0; while [ $i -lt 5 ]; do i=$((i + 1)); csalock run -q --tree -w inf x dash -c '{body}'; done; :");
        let jobs: Vec<Job> = [&script, &script, &script, &script, &plain].map(|text| sandbox.script("dash", text).spawn()).into();
        jobs.into_iter().for_each(|job| job.wait().exits(0));
        let codes = sandbox.read("files/codes");
        // It ran, was ended by TERM or KILL, while it waited too, or was replaced.
        assert!(codes.lines().all(|code| ["0", "75", "143", "137"].contains(&code)), "{codes}");
        assert!(codes.lines().any(|code| code == "0"), "{codes}");
        assert_eq!((sandbox.read("files/broken").as_str(), sandbox.state("x").as_str()), ("", "free"));
    }

    fn a_holder_that_cannot_be_ended_is_named_and_nothing_changes(sandbox: &Sandbox) {
        let old = holder(sandbox, &[], "exit 7");
        sandbox.edit("x", |record| {
            let mut owner = (*record.holders[0].owner).clone();
            owner.domain.boot = "another".to_string();
            owner.domain.machine = "0@another".to_string();
            record.holders[0].owner = owner.into();
        });
        let before = sandbox.stored();
        let done = replaces(sandbox, &[], "touch ran").capture();
        let said = sandbox.plain(&done.stderr);
        assert_eq!(done.code, Some(75), "{said}");
        assert!(said.starts_with("csalock: lock x in store STORE cannot be replaced, that process cannot be seen from here: held by "), "{said}");
        assert!(said.ends_with("; end it where it runs, or wait for it with --busy latest\n"), "{said}");
        replaces(sandbox, &["-E", "9"], "touch ran").capture().exits(9);
        assert_eq!(sandbox.stored(), before);
        assert!(proc::lives(old.pid()) && !sandbox.path("files/ran").exists());
    }

    fn a_lock_that_only_a_release_ends_is_not_replaced(sandbox: &Sandbox) {
        sandbox.csalock(["lock", "--forever", "x"]).run();
        let done = replaces(sandbox, &[], "touch ran").capture();
        done.says(75, "cannot be replaced, only a release ends that: held by ");
        done.says(75, "; release it with `csalock unlock --force x`, or wait for it with --busy latest\n");
        assert!(!sandbox.path("files/ran").exists());
    }
}

#[test]
fn a_holder_of_another_user_is_not_ended() {
    require!(is_root("a holder of another user"));
    let sandbox = Sandbox::new(Kind::Directory);
    let user = 65534;
    sandbox.script("dash", "chmod 777 . && chmod 755 .. && mkdir ../all && chmod 1777 ../all").run();
    let store = sandbox.store_at("all");
    let call = |words: &[&str], user: u32| sandbox.csalock(words).env("CSALOCK_STORE", &store).user(user);
    for (holder, caller) in [(0, user), (user, 0)] {
        let old = call(&["run", "x", "dash", "-c", "echo; cat"], holder).ready();
        let done = call(&["run", "--busy", "replace", "x", "touch", "ran"], caller).capture();
        done.says(77, "cannot be replaced, that process is of another user: held by ");
        done.says(77, "; end it as its user, or wait for it with --busy latest\n");
        old.wait().exits(0);
    }
    assert!(!sandbox.path("files/ran").exists());
}

#[test]
fn a_replacement_that_makes_no_sense_is_refused() {
    let sandbox = Sandbox::new(Kind::Directory);
    let run = |words: &[&str]| sandbox.csalock([&["run", "--busy", "replace"], words].concat());
    let said = "csalock: --busy replace is for one lock, and here are several; leave --also or --busy replace out\n";
    run(&["--also", "y", "x", "touch", "ran"]).status(64).stderr(said).run();
    let said = "csalock: --busy replace ends the holder, and a lock with slots may have several; leave --slots or \
                --busy replace out\n";
    run(&["-j", "2", "x", "touch", "ran"]).status(64).stderr(said).run();
    run(&["-n", "x", "touch", "ran"]).capture().exits(64);
    assert!(!sandbox.path("files/ran").exists() && !sandbox.store_exists());
}
