//! The answers of the commands: what they print, where, and the next step that they name.

use serde_json::Value;

use crate::sandbox::{Job, Kind, Sandbox, has, installed, steps};

on_every_kind_of_store! {
    fn verbose_lock_names_token_owner_and_store(sandbox: &Sandbox) {
        let script = "csalock lock -v x ./file; csalock lock -v --print-handle --forever y; :";
        let owner = format!("owner pid PID (dash -c {script}), store {}", sandbox.plain(&sandbox.store()));
        let said = format!("csalock: lock SANDBOX/files/file was acquired, token TOKEN, {owner}\n\
                            csalock: lock x was acquired, token TOKEN, {owner}\ncsalock: lock y was acquired, token TOKEN, {owner}\n");
        sandbox.script("dash", script).stdout("HANDLE\n").stderr(said).run();
    }

    fn a_verbose_takeover_is_reported_with_the_new_owner(sandbox: &Sandbox) {
        sandbox.script("dash", "csalock lock x; :").run();
        sandbox.await_abandoned("x");
        let said = format!("csalock: lock x was held before by pid PID on HOST (user USER) since TIME (AGE ago): dash -c csalock lock x; :, \
                            which ended\ncsalock: lock x was acquired, token TOKEN, owner pid PID (TEST), store {}\n",
                           sandbox.plain(&sandbox.store()));
        sandbox.csalock(["lock", "-v", "x"]).stderr(said).run();
    }

    fn the_number_of_an_open_file_is_warned_of(sandbox: &Sandbox) {
        sandbox.file("files/a b", "");
        let warning = |name: &str, file: &str| format!(
            "csalock: lock {name} is not the lock of descriptor {name}, which is open on SANDBOX/files/{file}; to lock that file, use \
             `csalock lock --fd {name}`\n"
        );
        let script = "exec 9> 'a b'; csalock lock 9; csalock status -1; csalock unlock 9";
        for shell in installed(["dash", "bash", "zsh", "busybox sh"]) {
            sandbox.script(shell, script).stdout("9\n").stderr(warning("9", "a b")).run();
        }
        sandbox.script("dash", "( csalock lock 8 || exit 1; csalock unlock 8; ) 8> file").stderr(warning("8", "file")).run();
        sandbox.script("dash", "(csalock lock 9; csalock unlock 9) 9< .").stderr(warning("9", "").replace("files/;", "files;")).run();
        for script in [
            "exec 9> file; csalock lock -q 9; csalock unlock 9",
            "exec 9> file; csalock lock 8; csalock unlock 8; csalock lock 09x; csalock unlock 09x",
            "exec 9> /dev/null; csalock lock 9; csalock unlock 9",
            "exec 9> gone; rm gone; csalock lock 9; csalock unlock 9",
            "csalock lock 0 1 2 9; csalock unlock 0 1 2 9",
            "exec 9> file; csalock lock ./9; csalock unlock ./9",
            "exec 9> file; csalock run 9 true",
        ] {
            sandbox.script("dash", script).run();
        }
    }

    fn a_signal_during_lock_leaves_no_doubt(sandbox: &Sandbox) {
        require!(has("strace"));
        let calls = match sandbox.kind() {
            Kind::Directory | Kind::Shared => ["renameat", "close"],
            Kind::Sqlite => ["pwrite64", "close"],
            Kind::Etcd | Kind::Postgres | Kind::Ssh => ["sendto", "close"],
        };
        for option in ["", "--print-handle"] {
            let (mut held, mut free) = (0, 0);
            for call in calls {
                for step in steps() {
                    let script = format!("strace -D -o trace -e inject={call}:signal=TERM:when={step} csalock lock {option} x > out
                                          echo $?; read line");
                    let mut job = sandbox.script("dash", &script).spawn();
                    let code = job.lines(1)[0].clone();
                    let is_held = sandbox.state("x") == "held";
                    assert!((code == "0") == is_held && ["0", "143"].contains(&&code[..]), "{call} {step}: {code} {is_held}");
                    *(if is_held { &mut held } else { &mut free }) += 1;
                    job.kill();
                    sandbox.csalock(["run", "-q", "x", "true"]).run();
                    if sandbox.read("files/trace").matches(&format!("{call}(")).count() < step {
                        break;
                    }
                }
            }
            assert!(held > 1, "{held} {free}");
        }
    }
}

/// A script that holds the lock x until its stdin ends.
const HOLDER: &str = "csalock lock x; echo; cat; :";

/// The holder in the words of messages.
const HELD: &str =
    "held by pid PID on HOST (user USER) since TIME (AGE ago), while it lives: dash -c csalock lock x; echo; cat; :";

/// The holder as documents show it.
const HOLDER_JSON: &str = "{\"pid\":PID,\"host\":\"HOST\",\"user\":\"USER\",\"command\":\"dash -c csalock lock x; echo; cat; :\",\
                           \"label\":null,\"since\":\"TIME\",\"expires\":null,\"token\":TOKEN,\"alive\":\"yes\"}";

fn holding(sandbox: &Sandbox) -> Job {
    sandbox.script("dash", HOLDER).ready()
}

fn refusal(lock: &str, reason: &str, message: &str, holders: &str, hint: &str, exit_code: i32) -> String {
    let hint = if hint.is_empty() { "null".to_string() } else { format!("\"{hint}\"") };
    format!(
        "{{\"lock\":{lock},\"reason\":\"{reason}\",\"message\":\"{message}\",\"holders\":[{holders}],\"hint\":{hint},\
         \"exit_code\":{exit_code}}}\n"
    )
}

mod json {
    use super::*;

    on_every_kind_of_store! {
        fn a_refusal_is_a_document(sandbox: &Sandbox) {
            let _job = holding(sandbox);
            let busy = |code| {
                let (message, hint) = (format!("lock x in store STORE is busy: {HELD}"), "wait longer with -w, or see `csalock status x`");
                refusal("\"x\"", "busy", &message, HOLDER_JSON, hint, code)
            };
            for words in [&["lock", "--json", "-n", "x"][..], &["lock", "--json", "-nq", "x"], &["get", "--lock", "--json", "-n", "x"],
                          &["put", "--json", "-n", "x", "value"], &["claim", "--json", "-n", "x"]] {
                sandbox.csalock(words).status(75).stdout(busy(75)).run();
            }
            sandbox.csalock(["lock", "--json", "-n", "-E", "3", "x"]).status(3).stdout(busy(3)).run();
            let message = format!("lock x in store STORE belongs to another holder: {HELD}");
            let said = |trap: &str| {
                let hint = format!("this script never had it; {trap}give its handle with --handle");
                let fields = format!("\"message\":\"{message}\",\"hint\":\"{hint}\",\"exit_code\":82");
                format!("[{{\"name\":\"x\",\"outcome\":\"not the owner\",\"holders\":[{HOLDER_JSON}],{fields}}}]\n")
            };
            sandbox.csalock(["unlock", "--json", "x"]).status(82).stdout(said("set the trap after the lock, or ")).run();
            sandbox.csalock(["renew", "--json", "--ttl", "1h", "x"]).status(82).stdout(said("")).run();
            sandbox.csalock(["unclaim", "--json", "--id", "1", "y"]).status(81).stdout(
                "[{\"name\":\"y\",\"outcome\":\"not held\",\"holders\":[],\"message\":\"y in store STORE is not claimed\",\"hint\":\"nothing was given up\",\
                 \"exit_code\":81}]\n").run();
        }

        fn a_refused_value_is_a_document(sandbox: &Sandbox) {
            let document = |reason, message: &str, hint, code| refusal("\"v\"", reason, message, "", hint, code);
            let said = document("not held", "lock v in store STORE guards no value", "", 81);
            for words in [&["get", "--json", "v"][..], &["del", "--json", "v"]] {
                sandbox.csalock(words).status(81).stdout(&said).run();
            }
            sandbox.csalock(["put", "v", "1"]).run();
            let said = document("not unique", "lock v in store STORE guards a value already, with version TOKEN and 1 byte",
                                "see it with `csalock get v`", 83);
            let done = sandbox.csalock(["put", "--json", "--if-absent", "v", "2"]).capture();
            let version = sandbox.sight("v")["value"]["version"].to_string();
            let plain = done.stdout.replace(&format!("version {version} "), "version TOKEN ");
            let plain = sandbox.plain(&plain);
            assert_eq!((done.code, plain, done.stderr.as_str()), (Some(83), said, ""));
            // A refused reader of a missing value holds the lock, and gets its handle.
            let hint = "the lock is held now, so write one or give it back";
            let said = refusal("\"w\"", "not held", "lock w in store STORE guards no value", "", hint, 81);
            let said = said.replace("}\n", ",\"handle\":\"HANDLE\",\"token\":TOKEN}\n");
            sandbox.csalock(["get", "--lock", "--json", "w"]).status(81).stdout(said).run();
            assert_eq!(sandbox.state("w"), "held");
        }

        fn a_refused_claim_is_a_document(sandbox: &Sandbox) {
            sandbox.csalock(["claim", "--id", "7", "x"]).stdout("7\n").run();
            let taken = "{\"taken\":[{\"name\":\"x\",\"id\":\"7\"}],";
            let said = refusal("\"x\"", "not unique", "x in store STORE is claimed under id 7", "", "nothing was claimed", 83);
            sandbox.csalock(["claim", "--json", "x"]).status(83).stdout(said.replacen('{', taken, 1)).run();
            let said = refusal("\"y\"", "not held", "y in store STORE is not claimed", "", "", 81);
            sandbox.csalock(["lookup", "--json", "y"]).status(81).stdout(said).run();
            let said = refusal("null", "not held", "nothing is claimed under id 8", "", "", 81);
            sandbox.csalock(["lookup", "--json", "--id", "8"]).status(81).stdout(&said).run();
            sandbox.csalock(["unclaim", "--json", "--id", "8", "--all"]).status(81).stdout(said).run();
        }

        fn an_error_is_a_document(sandbox: &Sandbox) {
            let (message, hint) = ("--force --all would end the locks of all users", "name the locks, or use '*', which is every lock of the store except claims");
            let said = refusal("\"x\"", "usage error", message, "", hint, 64);
            sandbox.csalock(["unlock", "--json", "--force", "--all", "x"]).status(64).stdout(said).run();
            let hint = "see csalock lock --help; put -- before a name or value that begins with a dash";
            let said = refusal("null", "usage error", "unexpected argument '--nope' found", "", hint, 64);
            sandbox.csalock(["--json", "lock", "x", "--nope"]).status(64).stdout(&said).run();
            sandbox.csalock(["lock", "x", "--nope", "--json"]).status(64).stdout(&said).run();
            let said = "csalock: unexpected argument '--nope' found; see csalock lock --help; put -- before a name or value that begins with a dash\n";
            sandbox.csalock(["lock", "--nope", "--", "--json"]).status(64).stderr(said).run();
            let said = "csalock: unexpected argument '--nope' found; see csalock run --help; put -- before a name or value that begins with a dash\n";
            sandbox.csalock(["run", "--json", "--nope", "x", "true"]).status(64).stderr(said).run();
            let (message, hint) = ("cannot find SANDBOX/files/./none: No such file or directory",
                "a name with a slash is the path of a file; create its directory, or write name: before a name");
            for words in [&["lock"][..], &["unlock"], &["status"], &["history"], &["renew", "--ttl", "1s"], &["get"], &["put"], &["del"], &["claim"],
                          &["unclaim", "--id", "1"], &["gc"]] {
                let said = refusal("\"./none/x\"", "usage error", message, "", hint, 64);
                sandbox.csalock([words, &["--json", "./none/x"]].concat()).stdin("").status(64).stdout(&said).run();
                sandbox.csalock([words, &["./none/x"]].concat()).stdin("").status(64).stderr(format!("csalock: {message}; {hint}\n")).run();
            }
            let done = sandbox.csalock(["doctor", "--json", "./none/x"]).capture();
            assert!(done.code == Some(64) && done.stdout.contains(hint) && done.stderr.is_empty(), "{done:?}");
            let said = "csalock: run has no result of its own that could be JSON; leave --json out\n";
            sandbox.csalock(["run", "--json", "x", "true"]).status(64).stderr(said).run();
        }

        fn an_error_without_a_reader_of_the_document_is_told_on_stderr(sandbox: &Sandbox) {
            let _job = holding(sandbox);
            let done = sandbox.script("dash", "csalock status --json > /dev/full; echo $?; csalock lock --json -n x > /dev/full; echo $?").capture();
            assert_eq!(done.stdout, "74\n74\n", "{done:?}");
            let said = "csalock: cannot write to stdout: No space left on device (os error 28)\n";
            assert_eq!(done.stderr, said.repeat(2));
        }

        fn an_unreadable_record_is_an_entry_of_each_list(sandbox: &Sandbox) {
            sandbox.csalock(["lock", "--forever", "bad"]).run();
            sandbox.abandon("dead", &[]);
            sandbox.await_abandoned("dead");
            sandbox.overwrite("bad", b"garbage");
            for (words, least) in [(&["status", "--json"][..], 2), (&["history", "--json"], 2), (&["gc", "--json"], 2), (&["unlock", "--json", "--force", "*"], 1)] {
                let done = sandbox.csalock(words).capture();
                let found: Vec<Value> = serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error} {words:?} {done:?}"));
                let bad: Vec<&Value> = found.iter().filter(|entry| entry["reason"] == "unreadable").collect();
                assert_eq!((done.code, done.stderr.as_str(), bad.len()), (Some(65), "", 1), "{words:?} {done:?}");
                assert!(found.len() >= least, "{words:?} {done:?}");
                let hint = bad[0]["hint"].as_str().unwrap();
                assert!(bad[0]["exit_code"] == 65 && hint.contains("`csalock unlock --force "), "{words:?} {bad:?}");
            }
        }
    }
}

mod reports {
    use super::*;

    on_every_kind_of_store! {
        fn quiet_status_prints_nothing(sandbox: &Sandbox) {
            let _job = holding(sandbox);
            sandbox.csalock(["status", "-q"]).run();
            sandbox.csalock(["status", "-q", "x"]).run();
            sandbox.csalock(["status", "--quiet", "x", "none"]).status(81).run();
            // These are asked for.
            sandbox.csalock(["status", "-q", "-1"]).stdout("x\n").run();
            assert!(sandbox.csalock(["status", "-q", "--json", "x"]).capture().stdout.starts_with("[{\"name\":\"x\""));
        }

        fn force_is_suggested_only_where_it_may_be_right(sandbox: &Sandbox) {
            let job = holding(sandbox);
            let said = |held: &str, hint: &str| format!("csalock: lock x in store STORE belongs to another holder: {held}; {hint}\n");
            let never = "this script never had it; set the trap after the lock, or give its handle with --handle";
            let handle = |or: &str| format!("give its handle with --handle, or {or}");
            let force = "break it with `csalock unlock --force x`";
            sandbox.csalock(["unlock", "x"]).status(82).stderr(said(HELD, never)).run();
            // A process of another pid namespace.
            sandbox.edit("x", |record| record.holders[0].owner_mut().domain.pids = "elsewhere".to_string());
            let lease = "while it lives (its lease ends at TIME unless it is renewed)";
            let unseen = if sandbox.is_shared() { HELD.replace("while it lives", lease) } else { HELD.to_string() };
            let hint = if sandbox.is_shared() { never.to_string() } else { handle(force) };
            sandbox.csalock(["unlock", "x"]).status(82).stderr(said(&unseen, &hint)).run();
            sandbox.csalock(["unlock", "-q", "--force", "x"]).capture();
            drop(job);
            let _job = sandbox.script("dash", "csalock lock --forever x; echo; cat; :").ready();
            let held = HELD.replace("while it lives", "until it is released").replace("lock x;", "lock --forever x;");
            sandbox.csalock(["unlock", "x"]).status(82).stderr(said(&held, &handle(force))).run();
            let busy = format!("csalock: lock x in store STORE is busy: {held}; wait longer with -w, or {force} if it is not needed any more\n");
            sandbox.csalock(["lock", "-n", "x"]).status(75).stderr(busy).run();
        }

        fn gc_collects_what_it_is_told_to(sandbox: &Sandbox) {
            let removed = |name: &str, done: &str| format!(
                "{done} {name}: held by pid PID on HOST (user USER) since TIME (AGE ago): dash -c for x in a1 a2 b './f'; do csalock lock \
                 $x; done, which ended\n"
            );
            sandbox.script("dash", "for x in a1 a2 b './f'; do csalock lock $x; done").run();
            sandbox.await_abandoned("b");
            sandbox.await_abandoned("a1");
            let file = sandbox.plain(&sandbox.path("files/f").display().to_string());
            sandbox.csalock(["gc", "--dry-run", "b", "./f", "none"]).stdout(removed("b", "would remove") + &removed(&file, "would remove")).run();
            sandbox.csalock(["gc", "b", "./f"]).stdout(removed("b", "removed") + &removed(&file, "removed")).run();
            sandbox.csalock(["gc", "b", "none"]).run();
            let done = sandbox.csalock(["gc", "--dry-run", "--json", "a*"]).capture();
            let found: Vec<Value> = serde_json::from_str(&done.stdout).unwrap();
            let mut outcomes: Vec<String> = found.iter().map(|entry| format!("{} {}", entry["name"], entry["outcome"])).collect();
            outcomes.sort();
            assert_eq!(outcomes, ["\"a1\" \"would remove\"", "\"a2\" \"would remove\""]);
            assert_eq!(sandbox.csalock(["gc", "a?"]).capture().stdout.lines().count(), 2);
            let _job = holding(sandbox);
            sandbox.csalock(["gc", "x"]).run();
            assert_eq!(sandbox.state("x"), "held");
        }

        fn history_reports_an_unknown_name(sandbox: &Sandbox) {
            let said = |name: &str| format!("csalock: store STORE has no history of {name}; see `csalock history`\n");
            sandbox.csalock(["run", "x", "true"]).run();
            sandbox.csalock(["history", "none"]).status(81).stderr(said("none")).run();
            let done = sandbox.csalock(["history", "x", "n*", "none"]).capture();
            assert_eq!((done.code, sandbox.plain(&done.stderr)), (Some(81), said("n*") + &said("none")));
            assert!(done.stdout.contains("true"), "{done:?}");
            sandbox.csalock(["history", "-q", "none"]).status(81).run();
            let document = refusal("\"none\"", "not held", "store STORE has no history of none", "", "see `csalock history`", 81);
            sandbox.csalock(["history", "--json", "none"]).status(81).stdout(format!("[{}]\n", document.trim_end())).run();
            sandbox.csalock(["history", "--json", "x", "x*"]).capture().exits(0);
            // A lock that is held for the first time is known.
            let _job = sandbox.holder("y");
            sandbox.csalock(["history", "y"]).capture().exits(0);
        }

        fn the_json_of_get_has_the_value(sandbox: &Sandbox) {
            let value = |sandbox: &Sandbox, words: &[&str]| -> Value {
                serde_json::from_str(&sandbox.csalock([&["get", "--json"], words].concat()).capture().stdout).unwrap()
            };
            for text in ["", "text", "two\nlines\n", "\u{e4}\u{1f600}\0\x1b[1m"] {
                sandbox.csalock(["put", "x"]).stdin(text).run();
                let found = value(sandbox, &["x"]);
                assert_eq!((&found["value"], found["bytes"].as_u64()), (&text.into(), Some(text.len() as u64)));
                assert!(found.get("value_base64").is_none(), "{found}");
            }
            sandbox.csalock(["put", "x"]).stdin(b"\xff\x00a").run();
            let found = value(sandbox, &["--lock", "x"]);
            assert_eq!((&found["value_base64"], found.get("value")), (&"/wBh".into(), None), "{found}");
            assert_eq!(found["handle"].as_str().map(str::len), Some(32));
            // A caller that writes knows the value.
            let text = sandbox.csalock(["put", "--json", "x", "more"]).capture().stdout;
            assert!(!text.contains("value"), "{text}");
        }

        fn the_times_of_documents_have_milliseconds(sandbox: &Sandbox) {
            let _job = holding(sandbox);
            sandbox.csalock(["run", "y", "true"]).run();
            let is_time = |value: &Value| {
                let text = value.as_str().unwrap_or_default();
                text.len() == 24 && text.as_bytes()[19] == b'.' && text.ends_with('Z')
            };
            let parse = |words: &[&str]| -> Value { serde_json::from_str(&sandbox.csalock(words).capture().stdout).unwrap() };
            assert!(is_time(&parse(&["status", "--json", "x"])[0]["holders"][0]["since"]));
            assert!(is_time(&parse(&["lock", "--json", "--ttl", "1h", "z"])["expires"]));
            assert!(is_time(&parse(&["status", "--json", "z"])[0]["holders"][0]["expires"]));
            let past = parse(&["history", "--json", "y"]);
            assert!(is_time(&past[0]["from"]) && is_time(&past[0]["to"]), "{past}");
        }
    }
}

mod stores {
    use super::*;
    use crate::sandbox::{PROMPT, Screen, has_namespaces};

    on_every_kind_of_store! {
        fn a_refusal_names_a_store_that_is_chosen(sandbox: &Sandbox) {
            let other = sandbox.store_at("other");
            let store = sandbox.plain(&other.replace("/other", "/OTHER")).replace("OTHER", "other");
            let held = |words: &str| HELD.replace("csalock lock x;", &format!("csalock lock {words};"));
            let _job = sandbox.script("dash", "csalock lock --store $OTHER x; echo; cat; :").env("OTHER", &other).ready();
            let said = format!("csalock: lock x in store {store} is busy: {}; wait longer with -w, or see `csalock status --store {} x`\n",
                               held("--store $OTHER x"), sandbox.plain(&lock::name::shell_quote(other.as_bytes())));
            sandbox.csalock(["lock", "--store", &other, "-n", "x"]).status(75).stderr(&said).run();
            // The store of a file's lock is chosen as well, unless it is beside the file.
            let _file = sandbox.script("dash", "csalock lock ./f; echo; cat; :").spawn();
            crate::sandbox::wait_until("it is held", || sandbox.csalock(["status", "-q", "./f"]).capture().code == Some(0));
            let said = format!("csalock: lock SANDBOX/files/f in store STORE is busy: {}; wait longer with -w, or see `csalock status SANDBOX/files/f`\n",
                               held("./f"));
            sandbox.csalock(["lock", "-n", "./f"]).status(75).stderr(said).run();
        }

        fn get_ends_its_line_on_a_terminal(sandbox: &Sandbox) {
            let Some(screen) = Screen::new(sandbox, 80, 10) else { return };
            screen.line("csalock put x text; csalock get x; printf 'line\\n' | csalock put y; csalock get y; csalock get x > file; cat file; echo");
            let text = screen.done();
            assert!(text.ends_with("echo\ntext\nline\ntext\n") || text.ends_with("\ntext\nline\ntext\n"), "{text}");
            screen.line("clear; csalock get x; csalock put z ''; csalock get z");
            assert_eq!(screen.becomes("the value", |text| text.ends_with(PROMPT) && text.starts_with("text\n")), format!("text\n{PROMPT}"));
        }
    }

    /// Runs a script as root with a default store of its own, in which `$USER` runs its arguments as another user.
    fn with_default_stores(sandbox: &Sandbox, script: &str) -> crate::sandbox::Done {
        let home = sandbox.path("home").display().to_string();
        std::os::unix::fs::chown(&home, Some(8), Some(8)).unwrap();
        let user = "setpriv --reuid 8 --regid 8 --clear-groups env HOME=/var/mail";
        let script =
            format!("mount -t tmpfs none /var/lib && mount --bind {home} /var/mail || exit; USER='{user}'; {script}");
        let call = sandbox.call("unshare", ["-m", "dash", "-c", &script]);
        call.without("CSALOCK_STORE").without("XDG_STATE_HOME").without("HOME").capture()
    }

    #[test]
    fn a_default_store_is_not_named() {
        require!(has_namespaces("the default store of root") && has("setpriv"));
        let sandbox = Sandbox::new(Kind::Directory);
        let done = with_default_stores(
            &sandbox,
            "
            for as in '' \"$USER\"; do
                $as csalock lock --forever x; $as csalock lock -n x; $as csalock run y csalock lock -n x
                $as csalock unlock none
            done",
        );
        let said: Vec<&str> = done.stderr.lines().map(|line| line.split(": pid ").next().unwrap()).collect();
        let of_one = ["csalock: lock x: the caller holds it already, so waiting would never end"; 2];
        let of_one = [&of_one[..], &["csalock: lock none is not held; see `csalock status none`"]].concat();
        assert_eq!(said, [of_one.clone(), of_one].concat(), "{done:?}");
    }
}
