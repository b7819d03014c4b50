//! `csalock status`: for people and for programs; and it changes nothing.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use crate::sandbox::{Kind, Sandbox, wait_until};
use store::Call as StoreCall;

/// The rows of a table in a pipe, without what differs from run to run.
fn table(sandbox: &Sandbox, text: &str) -> String {
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name;
    let row = |line: &str| {
        let mut cells: Vec<String> = line.splitn(2, "  ").map(|cell| cell.trim().to_string()).collect();
        while cells.len() < 9 {
            let Some(last) = cells.pop() else { break };
            match last.split_once("  ") {
                Some((cell, rest)) => cells.extend([cell.to_string(), rest.trim_start().to_string()]),
                None => {
                    cells.push(last);
                    break;
                }
            }
        }
        for (at, cell) in cells.iter_mut().enumerate() {
            let pid = cell.trim_start_matches(|char: char| char.is_ascii_digit()).to_string();
            match at {
                3 if pid.len() < cell.len() => *cell = format!("PID{pid}"),
                4 if *cell == host => *cell = "HOST".to_string(),
                5 if *cell == user => *cell = "USER".to_string(),
                6 | 7 if is_time(cell) => *cell = "TIME".to_string(),
                _ => {}
            }
        }
        cells.join("|") + "\n"
    };
    sandbox.plain(&text.lines().map(row).collect::<String>())
}

/// Whether this is a time with date and offset.
fn is_time(text: &str) -> bool {
    let shape: String = text.chars().map(|char| if char.is_ascii_digit() { '0' } else { char }).collect();
    shape == "0000-00-00T00:00:00+00:00" && text.ends_with("+01:00")
}

const HEADER: &str = "NAME|STATE|WAITERS|PID|HOST|USER|SINCE|UNTIL|COMMAND\n";

#[track_caller]
fn shows(sandbox: &Sandbox, words: &[&str], code: i32, wanted: &str) {
    let done = sandbox.csalock(["status"].iter().chain(words)).capture();
    let found = (done.code, done.stderr.as_str(), table(sandbox, &done.stdout));
    assert_eq!(found, (Some(code), "", wanted.to_string()), "{}", done.stdout);
}

/// A store with a held, a queued-for, a leased, a permanent, an expired and an abandoned lock.
fn scene(sandbox: &Sandbox) -> Vec<crate::sandbox::Job> {
    let held = sandbox.holder("held");
    let waiter = sandbox.waiter("held", "true");
    sandbox.csalock(["lock", "--forever", "--label", "for good", "permanent"]).run();
    sandbox.script("dash", "csalock lock ended; :").run();
    sandbox.abandon("abandoned", &[]);
    sandbox.await_abandoned("abandoned");
    sandbox.csalock(["lock", "--ttl", "1ms", "expired"]).run();
    wait_until("it is over", || sandbox.state("expired") == "abandoned");
    vec![waiter, held]
}

on_every_store! {
    fn an_empty_store_is_named(sandbox: &Sandbox) {
        let store = sandbox.plain(&sandbox.store());
        let empty = format!("csalock: store {store} has no locks; see `csalock status --all-stores` for others, and `csalock status DIRECTORY/` for files\n");
        sandbox.csalock(["status"]).stderr(&empty).run();
        sandbox.csalock(["status", "-q"]).run();
        // Programs see that by themselves.
        sandbox.csalock(["status", "-1"]).run();
        sandbox.csalock(["list", "--json"]).stdout("[]\n").run();
        sandbox.csalock(["status", "z*"]).status(81).run();
        assert!(!sandbox.store_exists());
        sandbox.csalock(["run", "x", "true"]).env("CSALOCK_HISTORY", "0").run();
        sandbox.csalock(["list"]).stderr(&empty).run();
        sandbox.csalock(["run", "x", "true"]).run();
        let past = |option: &str| empty.replace(
            &format!("store {store} has no locks"),
            &format!("no lock is held in {store}; `csalock history{option}` shows past holders"),
        );
        sandbox.csalock(["status"]).stderr(past("")).run();
        let quoted = sandbox.plain(&lock::name::shell_quote(sandbox.store().as_bytes()));
        let other = sandbox.csalock(["status", "--store", &sandbox.store()]).without("CSALOCK_STORE");
        other.stderr(past(&format!(" --store {quoted}"))).run();
        sandbox.csalock(["status", "-q"]).run();
        sandbox.csalock(["status", "-1"]).run();
        sandbox.csalock(["list", "--json"]).stdout("[]\n").run();
    }

    fn a_free_lock_is_81(sandbox: &Sandbox) {
        shows(sandbox, &["x", "y"], 81, &format!("{HEADER}x|free|0|-|-|-|-|-|-\ny|free|0|-|-|-|-|-|-\n"));
        sandbox.csalock(["status", "-1", "x"]).status(81).stdout("x\n").run();
        assert!(!sandbox.store_exists());
    }

    fn each_lock_is_one_row_and_they_are_sorted(sandbox: &Sandbox) {
        let _scene = scene(sandbox);
        let held = "held|held|1|PID|HOST|USER|TIME|alive|cat\n";
        let abandoned = "abandoned|dead|0|PID|HOST|USER|TIME|over|sh -c echo $$; exec cat\n";
        let expired = "expired|expired|0|PID|HOST|USER|TIME|over|TEST\n";
        let permanent = "permanent|held|0|PID|HOST|USER|TIME|forever|[for good] TEST\n";
        shows(sandbox, &["held*"], 0, &format!("{HEADER}{held}"));
        shows(sandbox, &["abandoned*"], 81, &format!("{HEADER}{abandoned}"));
        shows(sandbox, &["permanent", "held"], 0, &format!("{HEADER}{held}{permanent}"));
        shows(sandbox, &[], 0, &format!("{HEADER}{abandoned}{expired}{held}{permanent}"));
        shows(sandbox, &["*e*d"], 0, &format!("{HEADER}{abandoned}{expired}{held}"));
    }

    fn a_pipe_gets_everything_in_full(sandbox: &Sandbox) {
        let (name, label) = ("n".repeat(300), "l".repeat(200));
        sandbox.csalock(["lock", "--ttl", "1h", "--label", &label, &name]).capture().exits(0);
        shows(sandbox, &[], 0, &format!("{HEADER}{name}|held|0|PID|HOST|USER|TIME|TIME|[{label}] TEST\n"));
        let utc = sandbox.csalock(["status", "--utc"]).capture().line();
        assert_eq!(utc.matches("Z  ").count(), 2, "{utc}");
    }

    fn status_never_changes_the_store(sandbox: &Sandbox) {
        let _scene = scene(sandbox);
        // A wait of a script that lasts leaves a note.
        let _waits = sandbox.script("dash", "csalock run held true; :").spawn();
        let mut notes = 0;
        wait_until("there is one", || {
            let mut count = |stored: store::Versioned| notes += usize::from(lock::is_auxiliary(&stored.body));
            sandbox.open().scan(StoreCall::default(), &mut |_, stored| stored.map(&mut count)).unwrap();
            notes > 0
        });
        sandbox.await_abandoned("abandoned");
        let before = sandbox.stored();
        for words in [&[][..], &["--json"], &["-1"], &["held"], &["none"], &["*"], &["--json", "held", "none", "abandoned"]] {
            sandbox.csalock(["status"].iter().chain(words)).capture();
        }
        for words in ["gc --dry-run", "history", "history --json", "history held", "history a*", "history -n 1"] {
            sandbox.csalock(words.split(' ')).capture();
        }
        sandbox.csalock(["unlock", "-q", "held"]).status(82).run();
        sandbox.csalock(["lock", "-nq", "held"]).status(75).run();
        assert_eq!(sandbox.stored(), before);
    }

    fn a_pipe_gets_all_about_one_lock(sandbox: &Sandbox) {
        let _scene = scene(sandbox);
        let shown = sandbox.csalock(["status", "held"]).capture().stdout;
        for part in ["lock     held\n", "\nwaiters  1\n         1.  ", "\nbreak    `csalock unlock --force --end held` ends the holder and then the lock\n"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert_eq!(sandbox.csalock(["status", "held", "permanent"]).capture().stdout.lines().count(), 3);
    }

    fn names_alone_are_one_a_line(sandbox: &Sandbox) {
        let _scene = scene(sandbox);
        let names = sandbox.csalock(["status", "-1"]).capture().line();
        assert_eq!(names, "abandoned\nexpired\nheld\npermanent");
        sandbox.csalock(["lock", "--forever", "two\nlines"]).run();
        sandbox.csalock(["status", "-1", "two*"]).stdout("two\\nlines\n").run();
    }

    fn patterns_pick_and_names_are_exact(sandbox: &Sandbox) {
        for name in ["one", "two", "three", "t*"] {
            sandbox.csalock(["lock", "--forever", name]).run();
        }
        let picked = |pattern: &str| {
            let done = sandbox.csalock(["status", "-1", pattern]).capture();
            (done.code.unwrap(), done.stdout.lines().collect::<Vec<_>>().join(" "))
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

    fn one_lock_on_a_terminal_is_shown_with_what_to_do(sandbox: &Sandbox) {
        require!(crate::sandbox::has("script"));
        // A terminal whose size is unknown has 80 columns.
        let facts = |name: &str, code: i32| {
            let words = ["-q", "-e", "-c", &format!("csalock status --color never {name}"), "/dev/null"];
            let done = sandbox.call("script", words).capture();
            assert_eq!((done.code, done.stderr.as_str()), (Some(code), ""), "{done:?}");
            let text = sandbox.plain(&done.stdout.replace("\r\n", "\n").replace("\n         ", " "));
            // Leases are those of stores that hosts share, and ages differ.
            let lines = text.lines().map(|line| {
                let line = line.replace("; until then its lease is renewed, now to TIME", "");
                match line.split_once(", for ") {
                    Some((since, _)) if line.starts_with("since") => format!("{since}, for AGE"),
                    _ => line,
                }
            });
            lines.filter(|line| !line.starts_with("store  ") && !line.starts_with("command  ")).collect::<Vec<_>>()
        };
        let _holder = sandbox.holder("x");
        let pid = sandbox.holders("x")[0];
        let advice = "break    `csalock unlock --force --end x` ends the holder and then the lock";
        let alive = ["lock     x", "state    held", "holder   pid PID on HOST (user USER)", "since    TIME, for AGE",
                     "until    its process ends", advice];
        assert_eq!(facts("x", 0), alive);
        let holder = nix::unistd::Pid::from_raw(pid);
        kill(holder, Signal::SIGSTOP).unwrap();
        let advice = format!("break    `kill -CONT {pid}` continues the holder; `csalock unlock --force --end x` ends it and the lock");
        let stopped = ["lock     x", "state    held", "holder   pid PID on HOST (user USER), stopped", "since    TIME, for AGE",
                       "until    its process ends", &advice];
        wait_until("it is stopped", || facts("x", 0) == stopped);
        assert!(table(sandbox, &sandbox.csalock(["status", "x", "none"]).capture().stdout).contains("x|held,stopped|0|"));
        sandbox.csalock(["lock", "-n", "x"]).capture().says(75, " while it lives, now stopped: cat; ");
        kill(holder, Signal::SIGCONT).unwrap();
        wait_until("it goes on", || facts("x", 0) == alive);
        sandbox.csalock(["lock", "--forever", "kept"]).run();
        let wanted = ["lock     kept", "state    held", "holder   pid PID on HOST (user USER)", "since    TIME, for AGE",
                      "until    it is released",
                      "break    the lock stays until it is released, even if its holder is gone; \
                       `csalock unlock --force kept` ends it"];
        assert_eq!(facts("kept", 0), wanted);
        sandbox.csalock(["claim", "--id", "my id", "port"]).stdout("my id\n").run();
        let wanted = ["lock     port", "state    claimed", "holder   user USER on HOST", "claim    id my id",
                      "since    TIME, for AGE", "until    it is released",
                      "break    a claim is permanent; `csalock unclaim --id 'my id' port` gives it up"];
        let facts_of_claim: Vec<String> =
            facts("port", 0).iter().map(|line| if line.starts_with("holder") { wanted[2].into() } else { line.clone() }).collect();
        assert_eq!(facts_of_claim, wanted);
        sandbox.script("dash", "csalock lock 'one word'; :").run();
        assert_eq!(facts("\"one word\"", 81), ["lock     one word", "state    free"]);
        sandbox.abandon("two words", &[]);
        sandbox.await_abandoned("two words");
        let wanted = ["lock     two words", "state    stale", "holder   pid PID on HOST (user USER), which is dead",
                      "since    TIME, for AGE", "until    its process ended",
                      "break    not necessary: the next caller takes the lock over; \
                       `csalock unlock --force 'two words'` removes it now"];
        assert_eq!(facts("\"two words\"", 81), wanted);
        sandbox.csalock(["lock", "--forever", "-j", "2", "pair"]).run();
        sandbox.abandon("pair", &["-j", "2"]);
        let advice = "the next caller takes the lock over; `csalock unlock --force --token ";
        wait_until("one slot is stale", || facts("pair", 0).iter().any(|line| line.contains(advice)));
        assert_eq!(facts("none", 81), ["lock     none", "state    free"]);
        sandbox.edit("kept", |record| {
            for grant in &mut record.holders {
                grant.owner_mut().domain.machine = "another".to_string();
                grant.owner_mut().domain.boot = "another boot".to_string();
                grant.lifetime = lock::Lifetime::WhileOwnerLives;
            }
        });
        let pid = sandbox.holders("kept")[0];
        let kill = format!("break    in its container: `kill {pid}` ends the holder and the lock; csalock cannot see from here whether the \
                            holder lives; if it does not, `csalock unlock --force kept` ends the lock");
        let wanted = ["lock     kept", "state    held", "holder   pid PID on HOST (user USER), not visible from here",
                      "since    TIME, for AGE", "until    its process ends", &kill];
        assert_eq!(facts("kept", 0), wanted);
        sandbox.edit_in("kept", |store, record| {
            for grant in &mut record.holders {
                grant.owner_mut().host = "web1".to_string();
                grant.lifetime = lock::Lifetime::Keepalive(store.leases().grant(StoreCall::default(), Duration::from_secs(3600)).unwrap());
            }
        });
        let end = |what: &str| format!(
            "break    `csalock unlock --force --end kept` ends {what}; csalock cannot see from here whether the holder lives; \
             if it does not, `csalock unlock --force kept` ends the lock at once"
        );
        let of_script = end("the lock, with the lease at TIME at the latest, but does not stop the holder");
        assert_eq!(facts("kept", 0).last(), Some(&of_script));
        sandbox.edit("kept", |record| {
            for grant in &mut record.holders {
                let owner = grant.owner_mut();
                owner.supervisor = owner.processes.first().copied();
            }
        });
        let of_command = end("the holder and the lock, with the lease at TIME at the latest");
        assert_eq!(facts("kept", 0).last(), Some(&of_command));
        let row = sandbox.csalock(["status", "kept", "none"]).capture().stdout;
        let is_until = |word: &str| word.contains(':') && word.ends_with('?');
        assert!(row.lines().any(|line| line.contains("web1") && line.split_whitespace().any(is_until)), "{row}");
        let said = " since TIME (AGE ago), while it lives (its lease ends at TIME unless it is renewed): ";
        let done = sandbox.csalock(["lock", "-n", "kept"]).capture();
        assert!(done.code == Some(75) && sandbox.plain(&done.stderr).contains(said), "{done:?}");
    }

    fn a_missing_reader_causes_no_panic(sandbox: &Sandbox) {
        let _scene = scene(sandbox);
        let done = sandbox.script("bash", "csalock status --json > /dev/full; echo $?; csalock status | :; csalock --help > /dev/full; echo $?").capture();
        assert_eq!(done.stdout, "74\n74\n", "{done:?}");
        assert!(!done.stderr.contains("panic"), "{}", done.stderr);
        assert_eq!(done.stderr.matches("csalock: cannot write to stdout: ").count(), 2, "{}", done.stderr);
    }
}

on_every_store_of_files! {
    fn a_directory_means_the_locks_of_its_files(sandbox: &Sandbox) {
        std::fs::create_dir(sandbox.path("files/below")).unwrap();
        let lock = |name: &str| sandbox.csalock(["lock", "--forever", name]);
        let rows = format!("{HEADER}SANDBOX/files/a|held|0|PID|HOST|USER|TIME|forever|TEST\n\
                            SANDBOX/files/b|held|0|PID|HOST|USER|TIME|forever|TEST\n");
        let status = |directory: &str| sandbox.csalock(["status", directory]);
        let empty = "csalock: no file in SANDBOX/files/below has a lock; the lock of the directory itself is shown by \
                     `csalock status SANDBOX/files/below`\n";
        for name in ["./b", "./a", "./below/c"] {
            lock(name).without("CSALOCK_STORE").run();
            lock(name).run();
        }
        for store in [Some(sandbox.store()), None] {
            let call = |directory: &str| match &store {
                Some(_) => status(directory),
                None => status(directory).without("CSALOCK_STORE"),
            };
            for directory in ["./", "../files/", &format!("{}/", sandbox.path("files").display())] {
                let done = call(directory).capture();
                assert_eq!((done.code, table(sandbox, &done.stdout)), (Some(0), rows.clone()), "{directory} {store:?}");
            }
            sandbox.csalock(["unlock", "--force", "./below/c"]).env("CSALOCK_STORE", store.as_deref().unwrap_or("")).capture();
            call("below/").status(81).stderr(empty).run();
        }
        let done = sandbox.csalock(["status", "none/"]).status(69);
        done.stderr("csalock: cannot find SANDBOX/files/none/: No such file or directory; name a directory that exists\n").run();
    }
}

#[test]
fn a_store_with_several_leases_is_listed_once() {
    let sandbox = Sandbox::new(Kind::Directory);
    let store = sandbox.store();
    let stores = format!("{store}?lease=3m {store}?lease=1h {store}");
    let words = ["run", "x", "csalock", "status", "--json", "--all-stores", "x"];
    let listed = sandbox.csalock(words).env("CSALOCK_STORES", &stores).capture();
    let found: Vec<Value> = serde_json::from_str(&listed.stdout).unwrap_or_else(|error| panic!("{error}: {listed:?}"));
    assert_eq!(found.len(), 1, "{listed:?}");
    let metrics = sandbox.csalock(["metrics", "--store", &format!("{store}?lease=3m")]).capture();
    assert!(metrics.stdout.contains(&format!("csalock_up{{store=\"{store}\"}} 1\n")), "{metrics:?}");
}

#[test]
fn all_stores_are_listed_and_one_that_cannot_be_read_is_reported() {
    let [first, second, empty] = [Kind::Directory, Kind::Sqlite, Kind::Directory].map(Sandbox::new);
    for sandbox in [&first, &second] {
        sandbox.csalock(["lock", "--forever", "b"]).run();
        sandbox.csalock(["lock", "--forever", "a"]).run();
    }
    let wrong = first.file("wrong", "no database".repeat(1000)).display().to_string();
    let stores = format!("{}  sqlite:{wrong} {} {} redis:x", first.store(), second.store(), empty.store());
    let call = |words: &[&str]| {
        let done =
            first.csalock(["status", "--all-stores"].iter().chain(words)).env("CSALOCK_STORES", &stores).capture();
        // The stores of this user and of root are those of the machine, if root runs the tests.
        let said = done
            .stderr
            .lines()
            .filter(|line| !line.contains("/csalock has no locks") && !line.contains("/csalock; `csalock history"))
            .map(|line| line.to_string() + "\n");
        (done.code, done.stdout.clone(), said.collect::<String>())
    };
    let (code, text, said) = call(&[]);
    let sections: Vec<(String, String)> = text
        .split("\n\n")
        .map(|section| {
            let (url, rows) = section.split_once(":\n").unwrap();
            (url.to_string(), table(&first, rows))
        })
        .filter(|(url, _)| !url.ends_with("/csalock"))
        .collect();
    let row = "held|0|PID|HOST|USER|TIME|forever|TEST\n";
    let rows = format!("{HEADER}a|{row}b|{row}");
    assert_eq!(sections, [(first.store(), rows.clone()), (second.store(), rows)], "{text}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(lines[0].contains(&wrong) && lines[0].contains("not a database"), "{said}");
    assert_eq!(lines[1], format!("csalock: store {} has no locks", empty.store()));
    assert!(lines[2].starts_with("csalock: store redis:x: "), "{said}");
    assert_eq!(code, Some(65), "the first failure decides");
    let (_, text, _) = call(&["--json"]);
    let found: Vec<Value> = serde_json::from_str(&text).unwrap();
    let ours = found.iter().filter(|lock| lock["store"] != "dir:/var/lib/csalock");
    let found: Vec<(&Value, &Value)> = ours.map(|lock| (&lock["name"], &lock["store"])).collect();
    let [one, two] = [first.store(), second.store()].map(Value::from);
    assert_eq!(found, [(&json!("a"), &one), (&json!("a"), &two), (&json!("b"), &one), (&json!("b"), &two)]);
    let (_, text, _) = call(&["--json", "b", "x*"]);
    let found: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(
        found.iter().map(|lock| (&lock["name"], &lock["store"])).collect::<Vec<_>>(),
        [(&json!("b"), &one), (&json!("b"), &two)]
    );
    let sound = empty.csalock(["status", "--all-stores", "no-such-lock"]).env("CSALOCK_STORES", first.store());
    let said = "csalock: no store that is known here has a lock no-such-lock; the lock of a file is shown by \
                `csalock status ./no-such-lock`\n";
    sound.status(81).stderr(said).run();
    empty.csalock(["status", "-q", "--all-stores", "b"]).env("CSALOCK_STORES", first.store()).run();
    for words in [&["-1"][..], &["-W"]] {
        assert_eq!(call(words).0, Some(64), "{words:?}");
    }
}
