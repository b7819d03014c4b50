//! `csalock status`: for people and for programs; and it changes nothing.

use serde_json::{Value, json};

use crate::sandbox::{Sandbox, wait_until};

/// The table without what differs from run to run, its columns kept.
fn table(text: &str) -> String {
    let columns = [15, 10, 8, 9, 9, 7, 8, 200];
    let plain = |line: &str| {
        let mut rest = line;
        let mut cells = Vec::new();
        for width in columns {
            let (cell, after) = rest.split_at(width.min(rest.len()));
            cells.push(cell.trim_end());
            rest = after;
        }
        if !matches!(cells[0], "NAME") {
            for (at, name) in [(2, "PID"), (3, "HOST"), (4, "USER"), (5, "AGE")] {
                cells[at] = if cells[at].is_empty() || cells[at] == "-" { cells[at] } else { name };
            }
        }
        cells.join("|")
    };
    text.lines().map(|line| plain(line) + "\n").collect()
}

const HEADER: &str = "NAME|STATE|PID|HOST|USER|SINCE|UNTIL|COMMAND\n";

#[track_caller]
fn shows(sandbox: &Sandbox, words: &[&str], code: i32, wanted: &str) {
    let done = sandbox.csalock(["status"].iter().chain(words)).capture();
    assert_eq!(
        (done.code, done.stderr.as_str(), table(&done.stdout)),
        (Some(code), "", wanted.to_string()),
        "{}",
        done.stdout
    );
    assert!(done.stdout.lines().all(|line| line.chars().count() <= 80), "{}", done.stdout);
}

/// A store with a held, a queued-for, a leased, a permanent, an expired and an abandoned lock.
fn scene(sandbox: &Sandbox) -> Vec<crate::sandbox::Job> {
    let held = sandbox.holder("held");
    let waiter = sandbox.waiter("held", "true");
    sandbox.csalock(["lock", "--forever", "--label", "for good", "permanent"]).run();
    sandbox.script("dash", "csalock lock abandoned; :").run();
    sandbox.csalock(["lock", "--ttl", "1ms", "expired"]).run();
    wait_until("it is over", || sandbox.state("expired") == "abandoned");
    vec![waiter, held]
}

on_every_store! {
    fn the_table_of_an_empty_store_is_empty(sandbox: &Sandbox) {
        sandbox.csalock(["status"]).run();
        sandbox.csalock(["list", "--json"]).stdout("[]\n").run();
        assert!(!sandbox.store_exists());
    }

    fn a_free_lock_is_81(sandbox: &Sandbox) {
        shows(sandbox, &["x"], 81, &format!("{HEADER}x|free|||||||\n").replace("|||||||", "||||||"));
        sandbox.csalock(["status", "-1", "x"]).status(81).stdout("x\n").run();
        assert!(!sandbox.store_exists());
    }

    fn the_table_fits_80_columns(sandbox: &Sandbox) {
        let _scene = scene(sandbox);
        shows(sandbox, &["held"], 0, &format!("{HEADER}held|held|PID|HOST|USER|AGE|alive|cat\n|waiting|PID|HOST|USER|AGE|-|dash -c true\n"));
        let done = sandbox.csalock(["status", "permanent"]).capture();
        assert!(table(&done.stdout).starts_with(&format!("{HEADER}permanent|held|PID|HOST|USER|AGE|forever|[for good]")), "{}", done.stdout);
        let done = sandbox.csalock(["status", "abandoned"]).capture();
        assert_eq!(done.code, Some(81));
        assert!(table(&done.stdout).starts_with(&format!("{HEADER}abandoned|dead|PID|HOST|USER|AGE|over|dash -c")), "{}", done.stdout);
        let done = sandbox.csalock(["status", "expired"]).capture();
        assert!(table(&done.stdout).starts_with(&format!("{HEADER}expired|expired|PID|HOST|USER|AGE|over|")), "{}", done.stdout);
        let done = sandbox.csalock(["status"]).capture();
        assert!(done.code == Some(0) && done.stdout.lines().all(|line| line.chars().count() <= 80), "{}", done.stdout);
        assert_eq!(done.stdout.matches("NAME").count(), 1);
    }

    fn long_names_stand_on_a_line_of_their_own(sandbox: &Sandbox) {
        let name = "a-rather-long-name-of-a-lock";
        let _holder = sandbox.holder(name);
        let done = sandbox.csalock(["status"]).capture();
        let lines: Vec<&str> = done.stdout.lines().collect();
        assert_eq!((lines.len(), lines[1]), (3, name));
        assert!(table(lines[2]).starts_with("|held|PID|HOST|USER|AGE|alive|cat"), "{}", done.stdout);
    }

    fn status_never_changes_the_store(sandbox: &Sandbox) {
        let _scene = scene(sandbox);
        // A wait that lasts leaves a note.
        let mut notes = 0;
        wait_until("there is one", || {
            let mut count = |stored: csalock::store::Versioned| notes += usize::from(csalock::lock::is_auxiliary(&stored.body));
            sandbox.open().scan(&mut |_, stored| stored.map(&mut count)).unwrap();
            notes > 0
        });
        sandbox.await_abandoned("abandoned");
        let before = sandbox.stored();
        for words in [&[][..], &["--json"], &["-1"], &["held"], &["none"], &["*"], &["--json", "held", "none", "abandoned"]] {
            sandbox.csalock(["status"].iter().chain(words)).capture();
        }
        sandbox.csalock(["gc", "--dry-run"]).capture();
        sandbox.csalock(["unlock", "-q", "held"]).status(82).run();
        sandbox.csalock(["lock", "-nq", "held"]).status(75).run();
        assert_eq!(sandbox.stored(), before);
    }

    fn names_alone_are_one_a_line(sandbox: &Sandbox) {
        let _scene = scene(sandbox);
        let names = sandbox.csalock(["status", "-1"]).capture().line();
        let mut names: Vec<&str> = names.lines().collect();
        names.sort_unstable();
        assert_eq!(names, ["abandoned", "expired", "held", "permanent"]);
        sandbox.csalock(["lock", "--forever", "two\nlines"]).run();
        sandbox.csalock(["status", "-1", "two*"]).stdout("two\\nlines\n").run();
    }

    fn patterns_pick_and_names_are_exact(sandbox: &Sandbox) {
        for name in ["one", "two", "three", "t*"] {
            sandbox.csalock(["lock", "--forever", name]).run();
        }
        let picked = |pattern: &str| {
            let done = sandbox.csalock(["status", "-1", pattern]).capture();
            let mut names: Vec<String> = done.stdout.lines().map(str::to_string).collect();
            names.sort_unstable();
            (done.code.unwrap(), names.join(" "))
        };
        assert_eq!(picked("t[wh]*"), (0, "three two".to_string()));
        assert_eq!(picked("?n?"), (0, "one".to_string()));
        assert_eq!(picked("*"), (0, "one t* three two".to_string()));
        assert_eq!(picked("t*"), (0, "t*".to_string()));
        assert_eq!(picked("z*"), (81, String::new()));
        assert_eq!(picked("on"), (81, "on".to_string()));
    }

    fn the_json_of_a_held_lock_is_exactly_this(sandbox: &Sandbox) {
        let _holder = sandbox.holder("x");
        let _waiter = sandbox.waiter("x", "true");
        let text = "[{\"name\":\"x\",\"state\":\"held\",\"mode\":\"exclusive\",\"slots\":null,\"token\":TOKEN,\"holders\":[\
                    {\"pid\":PID,\"host\":\"HOST\",\"user\":\"USER\",\"command\":\"cat\",\"label\":null,\"since\":\"TIME\",\
                    \"expires\":null,\"token\":TOKEN,\"alive\":\"yes\"}],\"waiters\":[{\"pid\":PID,\"host\":\"HOST\",\
                    \"user\":\"USER\",\"command\":\"dash -c true\",\"label\":null,\"since\":\"TIME\",\"expires\":null,\
                    \"token\":null,\"alive\":\"yes\"}]}]\n";
        sandbox.csalock(["status", "--json", "x"]).stdout(text).run();
        sandbox.csalock(["list", "--json"]).stdout(text).run();
    }

    fn the_json_of_each_state(sandbox: &Sandbox) {
        let _scene = scene(sandbox);
        let done = sandbox.csalock(["status", "--json", "held", "permanent", "abandoned", "expired", "none"]).capture();
        assert_eq!(done.code, Some(81));
        let found: Value = serde_json::from_str(&done.stdout).unwrap();
        let state = |at: usize| (found[at]["name"].clone(), found[at]["state"].clone(), found[at]["holders"][0]["alive"].clone());
        assert_eq!(state(0), (json!("held"), json!("held"), json!("yes")));
        assert_eq!(state(1), (json!("permanent"), json!("held"), json!("yes")));
        assert_eq!(state(2), (json!("abandoned"), json!("abandoned"), json!("no")));
        assert_eq!(state(3), (json!("expired"), json!("abandoned"), json!("yes")));
        assert_eq!(state(4), (json!("none"), json!("free"), Value::Null));
        assert_eq!(found[1]["holders"][0]["label"], "for good");
        assert!(found[3]["holders"][0]["expires"].is_string());
        let times = found.as_array().unwrap().iter().flat_map(|lock| lock["holders"].as_array().unwrap());
        for time in times.map(|holder| holder["since"].as_str().unwrap().to_string()) {
            assert!(time.len() == 24 && time.ends_with('Z') && &time[10..11] == "T", "{time}");
        }
    }

    fn colours_are_for_terminals(sandbox: &Sandbox) {
        let _scene = scene(sandbox);
        assert!(!sandbox.csalock(["status"]).capture().stdout.contains('\x1b'));
        if crate::sandbox::has("script") {
            let on_terminal = |env: &str| sandbox.script("dash", "script -qc 'csalock status' /dev/null").env("NO_COLOR", env).capture().stdout;
            assert!(on_terminal("").contains("\x1b["));
            assert!(!on_terminal("1").contains('\x1b'));
        }
    }

    fn a_missing_reader_causes_no_panic(sandbox: &Sandbox) {
        let _scene = scene(sandbox);
        let done = sandbox.script("bash", "csalock status --json > /dev/full; echo $?; csalock status | :; csalock --help > /dev/full; echo $?").capture();
        assert_eq!(done.stdout, "74\n74\n", "{done:?}");
        assert!(!done.stderr.contains("panic"), "{}", done.stderr);
        assert_eq!(done.stderr.matches("csalock: cannot write to stdout: ").count(), 2, "{}", done.stderr);
    }
}
