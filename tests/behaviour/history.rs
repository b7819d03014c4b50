//! `csalock history`: what became of past grants; that it stays within its bounds; and that no lock depends on it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use serde_json::{Value, json};

use crate::etcd::fair::is_within;
use crate::sandbox::{CLOCK, Kind, Sandbox, still, wait_until};

#[track_caller]
fn past(sandbox: &Sandbox, words: &[&str]) -> Vec<Value> {
    let text = sandbox.csalock(["history", "--json"].iter().chain(words)).capture().line();
    serde_json::from_str::<Vec<Value>>(&text).unwrap()
}

/// Adds a grant of ten minutes to the history, and a lock that has its time.
fn past_grant(sandbox: &Sandbox, name: &str, from: &str) {
    let seconds = from.parse::<jiff::Timestamp>().unwrap().as_second();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    let at = |time: i64| format!("{:+}s", time - now);
    sandbox.csalock(["lock", "--forever", name]).env(CLOCK, at(seconds)).run();
    sandbox.csalock(["unlock", name]).env(CLOCK, at(seconds + 600)).run();
}

/// For each grant: its name, its end, and its command.
fn ends(grants: &[Value]) -> Vec<String> {
    let word = |value: &Value| value.as_str().unwrap_or("held").to_string();
    grants.iter().map(|past| ["name", "ended", "command"].map(|key| word(&past[key])).join(" ")).collect()
}

fn weight(sandbox: &Sandbox) -> u64 {
    sandbox.history_paths().iter().filter_map(|path| fs::metadata(path).ok()).map(|found| found.len()).sum()
}

/// The rows of a timeline in a pipe, without what differs from run to run: name, end, user and command.
fn table(text: &str) -> String {
    let row = |line: &str| {
        let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let holder: Vec<&str> = cells[cells.len() - 1].splitn(3, ' ').collect();
        format!("{}|{}|{}\n", cells[0], cells[4], holder.get(2).unwrap_or(&""))
    };
    text.lines().map(row).collect()
}

const HEADER: &str = "NAME|END|\n";

const EMPTY: &str = "csalock: the history of STORE shows no lock that was held\n";

on_every_store! {
    fn an_empty_history_is_shown_without_creating_files(sandbox: &Sandbox) {
        sandbox.csalock(["history"]).stderr(EMPTY).run();
        sandbox.csalock(["history", "-q", "x", "y*"]).capture().exits(81);
        sandbox.csalock(["history", "--json"]).stdout("[]\n").run();
        let said = "csalock: --until is before --since; exchange the two times\n";
        sandbox.csalock(["history", "--since", "2h", "--until", "3h"]).status(64).stderr(said).run();
        assert!(!sandbox.store_exists());
        assert!(sandbox.history_paths().iter().all(|path| !path.exists()));
    }

    fn the_json_of_a_released_lock_is_exactly_this(sandbox: &Sandbox) {
        sandbox.csalock(["run", "--label", "a label", "x", "true"]).run();
        sandbox.csalock(["history", "--json", "x"]).stdout(
            "[{\"name\":\"x\",\"pid\":PID,\"host\":\"HOST\",\"user\":\"USER\",\"command\":\"true\",\"label\":\"a label\",\
             \"mode\":\"exclusive\",\"slot\":null,\"token\":TOKEN,\"from\":\"TIME\",\"to\":\"TIME\",\"waited\":0.0,\
             \"ended\":\"released\",\"exit_code\":0,\"signal\":null,\"ran\":RAN,\"broken_by\":null,\"ended_by\":null}]\n",
        ).run();
    }

    fn the_end_of_each_command_of_run_is_shown(sandbox: &Sandbox) {
        let commands = [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("exit 137", 137)];
        for (command, code) in commands {
            let done = sandbox.csalock(["run", "job", "--also", "other", "--", "dash", "-c", command]).capture();
            assert_eq!(done.code.or(done.signal.map(|signal| 128 + signal)), Some(code), "{done:?}");
        }
        for name in ["job", "other"] {
            let grants = past(sandbox, &[name]);
            let ends: Vec<Value> = grants.iter().map(|past| json!([past["ended"], past["exit_code"], past["signal"]])).collect();
            let end = |code: u8, signal: Option<&str>| json!(["released", code, signal]);
            assert_eq!(ends, [end(0, None), end(3, None), end(137, Some("SIGKILL")), end(137, None)]);
            assert!(grants.iter().all(|past| past["ran"].as_f64().is_some()), "{grants:?}");
            let text = sandbox.csalock(["history", name]).capture().stdout;
            let rows: Vec<String> = table(&text).lines().skip(1).map(|row| row.split('|').nth(1).unwrap().to_string()).collect();
            assert_eq!(rows, ["released", "exit 3", "SIGKILL", "exit 137"], "{text}");
        }
        let status = sandbox.csalock(["status", "job"]).capture();
        assert_eq!(["  exit 137", "  SIGKILL", "  exit 3"].map(|end| status.stdout.matches(end).count()), [1; 3], "{status:?}");
        let status: Value = serde_json::from_str(&sandbox.csalock(["status", "--json", "job"]).capture().stdout).unwrap();
        let last = &status[0]["last_run"];
        assert_eq!(json!([last["ended"], last["exit_code"], last["signal"]]), json!(["released", 137, null]), "{status}");
        assert!(last["at"].is_string() && last["ran"].is_number(), "{status}");
    }

    fn a_command_that_cannot_be_executed_shows_its_exit(sandbox: &Sandbox) {
        let file = sandbox.file("files/no-program", "");
        sandbox.csalock(["run".as_ref(), "x".as_ref(), file.as_os_str()]).capture().exits(126);
        sandbox.csalock(["run", "x", "no-such-program"]).capture().exits(127);
        let ends: Vec<_> = past(sandbox, &["x"]).iter().map(|past| past["exit_code"].clone()).collect();
        assert_eq!(ends, [126, 127]);
    }

    fn an_end_that_no_supervisor_saw_is_unknown(sandbox: &Sandbox) {
        sandbox.csalock(["run", "-F", "x", "false"]).capture().exits(1);
        sandbox.script("dash", "csalock lock x; csalock unlock x; exit 3").capture().exits(3);
        sandbox.csalock(["run", "x", "dash", "-c", "csalock unlock x; exit 4"]).capture().exits(4);
        let grants = past(sandbox, &["x"]);
        let ends: Vec<Value> = grants.iter().map(|past| json!([past["ended"], past["exit_code"], past["ran"]])).collect();
        assert_eq!(ends, vec![json!(["released", null, null]); 3]);
        let status: Value = serde_json::from_str(&sandbox.csalock(["status", "--json", "x"]).capture().stdout).unwrap();
        assert!(status[0].get("last_run").is_none(), "{status}");
    }

    fn only_the_name_of_a_program_is_kept_if_the_call_or_the_environment_says_so(sandbox: &Sandbox) {
        let secret = |words: &[&str]| sandbox.csalock([words, &["dash", "-c", "csalock status --json x; : hunter2"]].concat());
        let held = secret(&["run", "--no-command", "--label", "why", "x"]).capture().stdout;
        assert!(held.contains("\"command\":\"dash\",\"label\":\"why\""), "{held}");
        secret(&["run", "x"]).env("CSALOCK_COMMAND", "label").capture().exits(0);
        let script = "csalock lock --no-command x; csalock unlock x; : hunter2";
        sandbox.script("dash", script).run();
        assert_eq!(ends(&past(sandbox, &["x"])), vec!["x released dash"; 3]);
        assert!(!format!("{:?}{:?}", sandbox.stored(), past(sandbox, &[])).contains("hunter2"));
        secret(&["run", "x"]).capture().exits(0);
        assert!(format!("{:?}", past(sandbox, &[])).contains("hunter2"));
        let said = "csalock: CSALOCK_COMMAND is \"no\", which is not \"label\"; set it right, or unset it\n";
        secret(&["run", "x"]).env("CSALOCK_COMMAND", "no").status(64).stderr(said).run();
    }

    fn the_pid_and_the_token_are_those_of_the_command(sandbox: &Sandbox) {
        let told = sandbox.csalock(["run", "x", "dash", "-c", "echo $$ $CSALOCK_TOKEN"]).capture().line();
        let past = &past(sandbox, &["x"])[0];
        assert_eq!(format!("{} {}", past["pid"], past["token"]), told);
    }

    fn a_killed_script_ended_at_the_time_of_its_detection(sandbox: &Sandbox) {
        let mut script = sandbox.script("dash", "csalock lock x; echo; read line").ready();
        assert_eq!(past(sandbox, &["x"])[0]["pid"], script.pid());
        assert_eq!(ends(&past(sandbox, &[])), ["x held dash -c csalock lock x; echo; read line"]);
        script.kill();
        let unnoticed = past(sandbox, &["x"]);
        assert_eq!((&unnoticed[0]["ended"], &unnoticed[0]["to"]), (&json!("ended"), &Value::Null));
        sandbox.csalock(["run", "-q", "x", "true"]).run();
        let noticed = past(sandbox, &["x"]);
        assert_eq!(ends(&noticed), ["x ended dash -c csalock lock x; echo; read line", "x released true"]);
        assert!(noticed[0]["to"].is_string() && noticed[0]["pid"] == script.pid());
    }

    fn gc_notices_as_well(sandbox: &Sandbox) {
        sandbox.script("dash", "csalock lock x > /dev/null; :").run();
        sandbox.csalock(["gc"]).capture();
        assert_eq!(ends(&past(sandbox, &[])), ["x ended dash -c csalock lock x > /dev/null; :"]);
    }

    fn a_command_that_replaced_csalock_has_released(sandbox: &Sandbox) {
        sandbox.csalock(["run", "-F", "x", "true"]).run();
        assert_eq!(ends(&past(sandbox, &[])), ["x released true"]);
        sandbox.csalock(["run", "x", "true"]).run();
        assert_eq!(ends(&past(sandbox, &[])), ["x released true", "x released true"]);
    }

    fn a_lease_that_is_over_ended_when_it_was_over(sandbox: &Sandbox) {
        sandbox.csalock(["lock", "--ttl", sandbox.lease("1ms"), "x"]).run();
        wait_until("it is over", || sandbox.state("x") == "abandoned");
        assert_eq!(past(sandbox, &[])[0]["ended"], "expired");
        std::thread::sleep(Duration::from_millis(1100));
        sandbox.csalock(["run", "-q", "x", "true"]).run();
        let grants = past(sandbox, &[]);
        assert_eq!((&grants[0]["ended"], &grants[1]["ended"]), (&json!("expired"), &json!("released")));
        assert!(grants[0]["to"].as_str() < grants[1]["from"].as_str(), "{grants:?}");
    }

    fn a_late_release_shows_which_holders_were_at_work_at_once(sandbox: &Sandbox) {
        let script = "csalock lock --ttl 50ms x; echo; read line; csalock unlock -q x; echo $?";
        let mut late = sandbox.script("dash", script).ready();
        wait_until("it is over", || sandbox.state("x") == "abandoned");
        sandbox.csalock(["run", "-q", "x", "true"]).run();
        assert!(past(sandbox, &[]).iter().all(|past| past["overlaps"].is_null()));
        late.tell("now");
        assert_eq!(late.lines(2)[1], "81");
        let grants = past(sandbox, &[]);
        assert_eq!(ends(&grants), ["x released true".to_string(), format!("x expired dash -c {script}")]);
        assert_eq!((&grants[0]["overlaps"], &grants[1]["overlaps"]), (&Value::Null, &json!(true)), "{grants:?}");
        assert!(grants[0]["to"].as_str() < grants[1]["to"].as_str(), "{grants:?}");
        let shown = sandbox.csalock(["history"]).capture().stdout;
        assert_eq!(shown.matches("worked on beside the next holder").count(), 1, "{shown}");
    }

    fn the_history_names_the_caller_that_broke_a_lock(sandbox: &Sandbox) {
        sandbox.csalock(["lock", "--forever", "x"]).run();
        let script = "csalock unlock --force x > /dev/null; echo $$";
        let breaker = sandbox.script("dash", script).capture().line();
        let grants = past(sandbox, &["x"]);
        assert_eq!((grants.len(), &grants[0]["ended"]), (1, &json!("broken")));
        let by = &grants[0]["broken_by"];
        assert_eq!((by["pid"].to_string(), &by["command"]), (breaker, &json!(format!("dash -c {script}"))));
        assert_eq!(by["user"], grants[0]["user"]);
        let shown = sandbox.csalock(["history"]).capture().line();
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[2].find("broken by"), lines[0].find("HOLDER"), "{shown}");
        assert!(lines[2].trim_start().starts_with(&format!("broken by {} ", by["pid"])), "{shown}");
    }

    fn the_next_holder_does_not_seem_to_end_first(sandbox: &Sandbox) {
        let script = "for n in 1 2 3 4 5 6 7 8; do csalock run -w inf x true; done";
        let jobs: Vec<_> = (0..8).map(|_| sandbox.script("dash", script).spawn()).collect();
        jobs.into_iter().for_each(|job| job.wait().exits(0));
        let tokens: Vec<u64> = past(sandbox, &["x"]).iter().map(|past| past["token"].as_u64().unwrap()).collect();
        assert!(tokens.len() == 64 && tokens.is_sorted(), "{tokens:?}");
    }

    fn the_timeline_shows_how_long_a_holder_waited(sandbox: &Sandbox) {
        let holder = sandbox.holder("x");
        let waiter = sandbox.waiter("x", "true");
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!((holder.wait().code, waiter.wait().code), (Some(0), Some(0)));
        let grants = past(sandbox, &["x"]);
        assert_eq!(ends(&grants), ["x released cat", "x released dash -c true"]);
        assert_eq!(grants[0]["waited"], 0.0);
        let waited = grants[1]["waited"].as_f64().unwrap();
        assert!((0.3..60.0).contains(&waited), "{waited}");
    }

    fn held_locks_come_last(sandbox: &Sandbox) {
        let _holder = sandbox.holder("x");
        sandbox.csalock(["run", "y", "true"]).run();
        assert_eq!(ends(&past(sandbox, &[])), ["y released true", "x held cat"]);
        let held = &past(sandbox, &["-n", "1"])[0];
        assert_eq!((&held["to"], &held["ended"]), (&Value::Null, &Value::Null));
    }

    fn a_pipe_gets_the_timeline_in_full(sandbox: &Sandbox) {
        let _holder = sandbox.holder("held");
        let long = format!("a-name\x1b[2J-{}", "x".repeat(200));
        sandbox.csalock(["run", &long, "true"]).run();
        sandbox.csalock(["run", "x", "true"]).run();
        let done = sandbox.csalock(["history", "x", "held"]).capture();
        let wanted = format!("{HEADER}x|released|true\nheld|held|cat\n");
        assert_eq!((done.code, done.stderr.as_str(), table(&done.stdout)), (Some(0), "", wanted), "{}", done.stdout);
        let all = sandbox.csalock(["history"]).capture().stdout;
        assert!(all.contains(&format!("\na-name\\u{{1b}}[2J-{}  ", "x".repeat(200))) && !all.contains('\x1b'), "{all}");
        let from = |words: &[&str]| {
            let line = sandbox.csalock(["history", "x"].iter().chain(words)).capture().line();
            line.split_whitespace().filter(|word| word.contains('T') && word.contains(':')).collect::<Vec<_>>().concat()
        };
        assert!(from(&[]).ends_with("+01:00") && from(&["--utc"]).ends_with('Z'), "{}", from(&[]));
    }

    fn a_time_selects_the_grants_that_stood_then(sandbox: &Sandbox) {
        // Days and minutes of the zone CET-1, which begins a day an hour earlier than UTC.
        for (name, from) in [("early", "2026-11-20T02:10:00Z"), ("late", "2026-11-20T23:30:00Z")] {
            past_grant(sandbox, name, from);
        }
        let names = |words: &[&str]| {
            let words = [&["history", "--json"], words, &["early", "late"]].concat();
            let text = sandbox.csalock(words).env(CLOCK, still::noon()).capture().line();
            let grants: Vec<Value> = serde_json::from_str(&text).unwrap();
            grants.iter().map(|past| past["name"].as_str().unwrap().to_string()).collect::<Vec<_>>().join(" ")
        };
        for (words, wanted) in [
            (&["--at", "2026-11-20 03:13"][..], "early"),
            (&["--at", "2026-11-20 03:13:05"], "early"),
            (&["--at", "2026-11-20T02:13:05Z"], "early"),
            (&["--at", "2026-11-20 02:13", "--utc"], "early"),
            (&["--at", "2026-11-20 02:13"], ""),
            // Ten minutes long, with the minutes in which it began and ended.
            (&["--at", "2026-11-20 03:09"], ""),
            (&["--at", "2026-11-20 03:10"], "early"),
            (&["--at", "2026-11-20 03:20"], "early"),
            (&["--at", "2026-11-20 03:21"], ""),
            (&["--at", "2026-11-20"], "early"),
            (&["--at", "2026-11-21"], "late"),
            (&["--at", "2026-11-20", "--utc"], "early late"),
            (&["--at", "yesterday 03:15"], "early"),
            (&["--at", "03:15"], ""),
            (&["--at", "00:35"], "late"),
            (&["--since", "2026-11-20 03:20"], "early late"),
            (&["--since", "2026-11-20 03:21"], "late"),
            (&["--since", "yesterday"], "early late"),
            (&["--since", "today"], "late"),
            (&["--until", "yesterday"], "early"),
            (&["--until", "2026-11-21 00:29"], "early"),
            (&["--until", "2026-11-21 00:30"], "early late"),
            (&["--since", "yesterday", "--until", "03:00"], "early late"),
            (&["--since", "12h"], "late"),
            // What is still to come was yesterday.
            (&["--since", "12:01"], "late"),
        ] {
            assert_eq!(names(words), wanted, "{words:?}");
        }
        let at = |words: &[&str]| sandbox.csalock(["history"].iter().chain(words)).env(CLOCK, still::noon());
        at(&["--at", "02:13"]).stderr("csalock: the history of STORE shows no lock that was held from TIME to TIME\n").run();
        at(&["--at", "02:13", "--json"]).stdout("[]\n").run();
        let no_time = "is not a time or a duration; use for example 12h, 02:13, yesterday, 2026-11-21, \"2026-11-21 02:13\" or \
                       2026-11-21T02:13:05Z";
        for (option, text, why) in [
            ("--since", "tomorrow", no_time), ("--until", "3am", no_time), ("--at", "25:00", no_time),
            ("--since", "0s", "is too short; use at least 1ms\n"),
            ("--at", "18", "is not clear; use 18:00 for a time of day, or 18s or 18h for a duration\n"),
        ] {
            let done = sandbox.csalock(["history", option, text]).capture();
            let wanted = format!("csalock: {option}: {text} {why}");
            assert!(done.code == Some(64) && done.stderr.starts_with(&wanted), "{wanted} {done:?}");
        }
        for words in [["--at", "02:13", "--since", "1h"], ["--until", "1h", "--at", "02:13"]] {
            assert_eq!(at(&words).capture().code, Some(64), "{words:?}");
        }
    }

    fn names_patterns_and_the_last_few(sandbox: &Sandbox) {
        for name in ["one", "two", "three", "t*"] {
            sandbox.csalock(["run", name, "true"]).run();
        }
        let names = |words: &[&str]| {
            let grants = past(sandbox, words);
            grants.iter().map(|past| past["name"].as_str().unwrap().to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(&[]), "one two three t*");
        assert_eq!(names(&["two"]), "two");
        assert_eq!(names(&["t[wh]*", "one"]), "one two three");
        assert_eq!(names(&["t*"]), "t*");
        sandbox.csalock(["history", "-q", "none", "z*"]).capture().exits(81);
        assert_eq!(names(&["-n", "2"]), "three t*");
        assert_eq!(names(&["--lines", "1", "?n*", "two"]), "two");
        assert_eq!(names(&["--since", "1h"]), "one two three t*");
        std::thread::sleep(Duration::from_millis(1100));
        assert_eq!(names(&["--since", "1s"]), "");
        sandbox.csalock(["history", "-n", "0"]).status(64).capture();
        let fifty = "i=0; while [ $i -lt 51 ]; do i=$((i + 1)); csalock run x true; done; csalock history x | wc -l; csalock history -n 60 x | wc -l";
        let said = "csalock: 1 earlier ones are left out; use -n or --since to see them\n";
        sandbox.script("dash", fifty).stdout("51\n52\n").stderr(said).run();
    }

    fn locks_of_files_have_none(sandbox: &Sandbox) {
        sandbox.csalock(["run", "./data", "true"]).without("CSALOCK_STORE").run();
        let why = "what is kept beside files goes away with the last lock; keep locks in a store of their own to have one: \
                   --store dir:PATH or CSALOCK_STORE\n";
        let call = sandbox.csalock(["history", "./data"]).without("CSALOCK_STORE").status(64);
        call.stderr(format!("csalock: lock SANDBOX/files/data has no history: {why}")).run();
        let store = format!("dir:{}", sandbox.path("files/.csalock").display());
        let call = sandbox.csalock(["history", "--store", &store]).status(64);
        call.stderr(format!("csalock: store dir:SANDBOX/files/.csalock has no history: {why}")).run();
        assert!(!sandbox.path("files/.csalock").exists());
        sandbox.csalock(["run", "./data", "true"]).run();
        assert_eq!(past(sandbox, &["./data"])[0]["name"], sandbox.path("files/data").display().to_string());
    }

    fn old_lines_are_not_shown_and_are_removed(sandbox: &Sandbox) {
        sandbox.csalock(["run", "x", "true"]).run();
        std::thread::sleep(Duration::from_millis(2100));
        let young = |words: &[&str]| sandbox.csalock(["history"].iter().chain(words)).env("CSALOCK_HISTORY_AGE", "1s");
        young(&[]).stderr(EMPTY).run();
        young(&["--json"]).stdout("[]\n").run();
        assert_eq!(ends(&past(sandbox, &[])), ["x released true"]);
        // Stores with a key for each line remove the lines now and then.
        wait_until("it goes", || {
            sandbox.csalock(["run", "y", "true"]).env("CSALOCK_HISTORY_AGE", "1s").run();
            let left = ends(&past(sandbox, &[]));
            assert!(!sandbox.is_of_files() || left == ["y released true"], "{left:?}");
            !left.contains(&"x released true".to_string())
        });
    }

    fn no_history_is_written_when_it_is_off(sandbox: &Sandbox) {
        sandbox.csalock(["run", "x", "true"]).env("CSALOCK_HISTORY", "0").run();
        sandbox.csalock(["run", "x", "true"]).env("CSALOCK_HISTORY_SIZE", "0").run();
        assert!(sandbox.history_paths().iter().all(|path| !path.exists()));
        sandbox.csalock(["run", "x", "true"]).env("CSALOCK_HISTORY", "1").run();
        let before = (sandbox.history_paths().map(|path| fs::read(path).ok()), past(sandbox, &[]));
        sandbox.csalock(["run", "x", "true"]).env("CSALOCK_HISTORY", "0").run();
        assert_eq!((sandbox.history_paths().map(|path| fs::read(path).ok()), past(sandbox, &[])), before);
        assert_eq!(past(sandbox, &[]).len(), 1);
        assert!(sandbox.csalock(["history"]).env("CSALOCK_HISTORY", "0").capture().stdout.contains("released"));
    }

    fn an_invalid_option_is_reported_here_and_releases_no_lock(sandbox: &Sandbox) {
        for (name, value, why) in [
            ("CSALOCK_HISTORY_SIZE", "1X", "is not a size; use for example 500000, 512K or 1M"),
            ("CSALOCK_HISTORY_AGE", "old", "is not a duration; use for example 250ms, 0.5s, 5m, 1h30m, 1d, or seconds"),
        ] {
            sandbox.csalock(["run", "x", "true"]).env(name, value).run();
            let call = sandbox.csalock(["history"]).env(name, value).status(64);
            call.stderr(format!("csalock: {name} is \"{value}\", which {why}; set it right, or unset it\n")).run();
        }
        assert_eq!(past(sandbox, &["x"]).len(), 2);
    }

    fn eight_at_once_lose_nothing(sandbox: &Sandbox) {
        let times = sandbox.many(25);
        let run = "csalock run -w inf $0 true || exit";
        let script = format!("i=0; while [ $i -lt {times} ]; do i=$((i + 1)); {run}; done");
        let shell = |number: usize| sandbox.call("dash", ["-c", &script, &format!("lock-{}", number % 5)]).spawn();
        let shells: Vec<_> = (0..8).map(shell).collect();
        shells.into_iter().for_each(|shell| shell.wait().succeeds());
        let grants = past(sandbox, &[]);
        // A server that does not answer within a moment is not waited for.
        let least = if sandbox.is_of_files() { 8 * times } else { 8 * times * 3 / 4 };
        assert!((least..=8 * times).contains(&grants.len()), "{}", grants.len());
        assert!(grants.iter().all(|past| past["ended"] == "released"));
        let mut which: Vec<String> = grants.iter().map(|past| format!("{} {}", past["name"], past["token"])).collect();
        which.sort();
        which.dedup();
        assert_eq!(which.len(), grants.len());
    }

    fn other_users_of_a_store_write_to_it_as_well(sandbox: &Sandbox) {
        require!(crate::sandbox::is_root("what two users write"));
        let place = sandbox.path("shared");
        fs::create_dir(&place).unwrap();
        fs::set_permissions(&place, PermissionsExt::from_mode(0o1777)).unwrap();
        if sandbox.is_directory() {
            fs::create_dir(place.join("store")).unwrap();
            fs::set_permissions(place.join("store"), PermissionsExt::from_mode(0o1777)).unwrap();
        }
        let store = sandbox.store_at("shared/store");
        for (user, name) in [(1234, "x"), (5678, "y"), (0, "z")] {
            let call = sandbox.call("dash", ["-c", "umask 000; exec csalock run $0 true", name]);
            call.env("CSALOCK_STORE", &store).user(user).run();
        }
        let done = sandbox.csalock(["history", "--json"]).env("CSALOCK_STORE", &store).capture();
        let grants: Vec<Value> = serde_json::from_str(&done.line()).unwrap();
        assert_eq!(ends(&grants), ["x released true", "y released true", "z released true"]);
    }
}

on_every_store_of_files! {
    fn the_size_of_the_history_is_bounded(sandbox: &Sandbox) {
        let script = "i=0; while [ $i -lt 60 ]; do i=$((i + 1)); csalock run x true; done";
        sandbox.script("dash", script).env("CSALOCK_HISTORY_SIZE", "4K").run();
        let weight = weight(sandbox);
        assert!(weight > 2048 && weight <= 4096, "{weight}");
        let kept = past(sandbox, &[]);
        assert!(kept.len() >= 6 && kept.len() < 60, "{}", kept.len());
        let tokens: Vec<u64> = kept.iter().map(|past| past["token"].as_u64().unwrap()).collect();
        assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
        sandbox.csalock(["run", "x", "true"]).env("CSALOCK_HISTORY_SIZE", "100").run();
        assert_eq!(past(sandbox, &[]).len(), kept.len());
    }

    fn no_history_ever_costs_a_lock_or_a_wait(sandbox: &Sandbox) {
        sandbox.csalock(["run", "x", "true"]).run();
        let [place, _] = sandbox.history_paths();
        let elsewhere = sandbox.file("elsewhere", "");
        let plants: [&dyn Fn(); 5] = [
            &|| std::os::unix::fs::symlink(&elsewhere, &place).unwrap(),
            &|| fs::hard_link(&elsewhere, &place).unwrap(),
            &|| nix::unistd::mkfifo(&place, Mode::S_IRWXU).unwrap(),
            &|| fs::create_dir(&place).unwrap(),
            &|| {
                fs::write(&place, "").unwrap();
                fs::set_permissions(&place, PermissionsExt::from_mode(0o000)).unwrap();
            },
        ];
        for plant in plants {
            let _ = fs::remove_file(&place).or_else(|_| fs::remove_dir(&place));
            plant();
            let began = Instant::now();
            sandbox.csalock(["run", "x", "dash", "-c", "exit 7"]).status(7).run();
            sandbox.csalock(["lock", "--forever", "y"]).run();
            sandbox.csalock(["unlock", "--force", "y"]).capture().exits(0);
            assert!(is_within(began, Duration::from_secs(20)));
            assert_eq!(fs::read(&elsewhere).unwrap(), b"");
        }
    }

    fn a_foreign_history_file_is_named(sandbox: &Sandbox) {
        sandbox.csalock(["run", "x", "true"]).run();
        let [place, _] = sandbox.history_paths();
        fs::remove_file(&place).unwrap();
        nix::unistd::mkfifo(&place, Mode::S_IRWXU).unwrap();
        let below = if sandbox.is_directory() { "STORE/.work/history" } else { "STORE-history" };
        let what = format!("csalock: {below} or its older generation is not a plain file, so there is no history; see who made it, and move it away\n");
        sandbox.csalock(["history"]).status(65).stderr(what).run();
    }

    fn a_limit_of_file_sizes_does_not_end_the_process(sandbox: &Sandbox) {
        let script = "i=0; while [ $i -lt 20 ]; do i=$((i + 1)); csalock run x dash -c 'exit 3'; [ $? = 3 ] || exit 1; done";
        // The records, and SQLite's log, are smaller.
        let limit = if sandbox.is_directory() { "ulimit -f 4" } else { "ulimit -f 256" };
        sandbox.script("dash", script).run();
        let [place, _] = sandbox.history_paths();
        let filled = if sandbox.is_directory() { 2048 } else { 256 * 512 };
        let text = fs::read(&place).unwrap();
        fs::write(&place, text.iter().cycle().take(filled).copied().collect::<Vec<u8>>()).unwrap();
        sandbox.script("dash", &format!("{limit}; {script}")).run();
        assert_eq!(fs::metadata(&place).unwrap().len(), filled as u64);
    }

    fn torn_lines_are_passed_by(sandbox: &Sandbox) {
        sandbox.csalock(["run", "x", "true"]).run();
        let [place, _] = sandbox.history_paths();
        let line = fs::read(&place).unwrap();
        fs::write(&place, [&line[..], b"\0\0\0\xff\n", &line[..40]].concat()).unwrap();
        sandbox.csalock(["run", "y", "true"]).run();
        assert_eq!(ends(&past(sandbox, &[])), ["x released true", "y released true"]);
    }

    fn eight_at_once_keep_to_the_bounds(sandbox: &Sandbox) {
        let script = "i=0; while [ $i -lt 25 ]; do i=$((i + 1)); csalock run -w inf $0 true || exit; done";
        let shell = |number: usize| {
            let call = sandbox.call("dash", ["-c", script, &format!("lock-{number}")]);
            call.env("CSALOCK_HISTORY_SIZE", "16K").spawn()
        };
        let shells: Vec<_> = (0..8).map(shell).collect();
        shells.into_iter().for_each(|shell| assert_eq!(shell.wait().code, Some(0)));
        let weight = weight(sandbox);
        // One line of each may come late.
        assert!(weight > 8 << 10 && weight <= (16 << 10) + 8 * 300, "{weight}");
        assert!(past(sandbox, &[]).len() > 30);
    }
}

#[test]
fn a_history_created_by_root_is_writable_for_its_user() {
    require!(crate::sandbox::is_root("what root writes into another's store"));
    for kind in [Kind::Directory, Kind::Sqlite] {
        let sandbox = Sandbox::new(kind);
        let place = sandbox.path("theirs");
        fs::create_dir(&place).unwrap();
        nix::unistd::chown(&place, Some(1234.into()), Some(1234.into())).unwrap();
        let store = sandbox.store_at("theirs/store");
        let run = |user| sandbox.csalock(["run", "x", "true"]).env("CSALOCK_STORE", &store).user(user).run();
        run(1234);
        let below = if sandbox.is_directory() { "theirs/store/.work/history" } else { "theirs/store-history" };
        fs::remove_file(sandbox.path(below)).unwrap();
        run(0);
        if sandbox.is_directory() {
            // The other files that root created there belong to root.
            sandbox.csalock(["run", "y", "true"]).env("CSALOCK_STORE", &store).user(1234).run();
        } else {
            run(1234);
        }
        let done = sandbox.csalock(["history", "--json"]).env("CSALOCK_STORE", &store).capture();
        assert_eq!(serde_json::from_str::<Vec<Value>>(&done.line()).unwrap().len(), 2, "{kind:?}");
    }
}
