//! The command line itself: options in every place, the words of usage errors, durations, colours.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::sandbox::{Kind, Sandbox, has};

/// Compares the stderr of usage errors, which leave no store behind.
#[track_caller]
fn check_usage_errors(errors: &[(&[&str], &str)]) {
    let sandbox = Sandbox::new(Kind::Directory);
    for (words, said) in errors {
        sandbox.csalock(*words).status(64).stderr(format!("csalock: {said}\n")).run();
    }
    assert!(!sandbox.store_exists());
}

on_every_store! {
    fn options_may_stand_anywhere(sandbox: &Sandbox) {
        sandbox.csalock(["lock", "--forever", "deploy", "--timeout", "5"]).run();
        let _holder = sandbox.holder("held");
        sandbox.csalock(["lock", "-qE3", "held", "-n"]).status(3).run();
        sandbox.csalock(["-q", "lock", "held", "-w0"]).status(75).run();
        let json = sandbox.csalock(["status", "--json", "deploy"]).capture().stdout;
        for words in [["status", "deploy", "--json"], ["--json", "status", "deploy"]] {
            assert_eq!(sandbox.csalock(words).capture().stdout, json);
        }
        sandbox.csalock(["status", "deploy", "-1"]).stdout("deploy\n").run();
        for force in [&["unlock", "deploy", "--force", "-q"][..], &["--quiet", "unlock", "deploy", "--force"]] {
            assert_eq!(sandbox.csalock(force).capture().code, Some(0));
            sandbox.csalock(["lock", "--forever", "deploy"]).run();
        }
        let help = sandbox.csalock(["lock", "--help"]).capture().stdout;
        for words in [&["lock", "x", "--help"][..], &["lock", "x", "-n", "--help", "y"]] {
            sandbox.csalock(words).stdout(&help).run();
        }
        sandbox.csalock(["lock", "--", "--help", "-n"]).run();
        let names = sandbox.csalock(["status", "-1"]).capture().stdout;
        assert_eq!(names.lines().collect::<BTreeSet<_>>(), BTreeSet::from(["--help", "-n", "deploy", "held"]));
    }

    fn the_store_may_precede_the_command(sandbox: &Sandbox) {
        let other = sandbox.store_at("other");
        sandbox.csalock(["--store", &other, "lock", "--forever", "x"]).run();
        sandbox.csalock([&format!("--store={other}"), "--color", "never", "status", "-1"]).stdout("x\n").run();
        // The option after the command counts.
        sandbox.csalock(["--store", &sandbox.store(), "status", "-1", "--store", &other]).stdout("x\n").run();
        sandbox.csalock(["status", "-1"]).run();
        let script = "csalock --store $0 run -w 5 y echo ran; csalock -v --store $0 run y true";
        let done = sandbox.call("dash", ["-c", script, &other]).capture();
        assert_eq!((done.stdout.as_str(), sandbox.plain(&done.stderr).as_str()), ("ran\n", "csalock: lock y was acquired, token TOKEN\n"));
        assert!(!sandbox.store_exists());
    }

    fn only_run_and_put_take_words_literally(sandbox: &Sandbox) {
        sandbox.csalock(["run", "x", "echo", "-w", "5", "--json", "--", "--help"]).stdout("-w 5 --json -- --help\n").run();
        sandbox.csalock(["run", "x", "--", "echo", "-n"]).stdout("").run();
        sandbox.csalock(["run", "-n", "x", "--also", "y", "echo", "--also"]).stdout("--also\n").run();
        sandbox.csalock(["run", "x", "--also=y", "-c", "echo $CSALOCK_NAME"]).stdout("x\n").run();
        sandbox.csalock(["put", "x", "-5"]).run();
        sandbox.csalock(["get", "x"]).stdout("-5").run();
        sandbox.csalock(["put", "x", "--nonblock"]).stdin("from stdin").run();
        sandbox.csalock(["get", "x"]).stdout("from stdin").run();
        sandbox.csalock(["put", "x", "value", "--nonblock"]).run();
        sandbox.csalock(["get", "x"]).stdout("value").run();
        sandbox.csalock(["put", "x", "--", "--nonblock"]).run();
        sandbox.csalock(["get", "x"]).stdout("--nonblock").run();
    }

    fn durations_have_fractions_and_days(sandbox: &Sandbox) {
        for (typed, least, most) in [("1.5h", 5340, 5400), ("1d", 86_340, 86_400), ("90.5", 30, 91)] {
            let done = sandbox.csalock(["lock", "--json", "--ttl", typed, typed]).capture();
            let found: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
            let expires: jiff::Timestamp = found["expires"].as_str().unwrap().parse().unwrap();
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let left = expires.as_second() - now.as_secs() as i64;
            assert!((least..=most).contains(&left), "{typed}: {left}");
        }
        let _holder = sandbox.holder("x");
        for timeout in ["0.01s", "0.0001m", ".01", "1ms"] {
            assert_eq!(sandbox.csalock(["lock", "x", "-w", timeout]).capture().code, Some(75), "{timeout}");
        }
    }
}

#[test]
fn an_option_after_the_name_of_run_is_refused() {
    let usage = "use: csalock run [OPTION]... NAME COMMAND [ARGUMENT]...";
    for (words, wrong) in [
        (&["run", "x", "-w", "5", "echo", "hi"][..], "-w"),
        (&["run", "x", "--label=$a", "echo", "*"], "'--label=$a'"),
        (&["--store", "dir:a", "run", "x", "-n", "echo"], "-n"),
        (&["run", "x", "--help"], "--help"),
    ] {
        let said = format!("{wrong} comes after the name, where the command begins; {usage}");
        check_usage_errors(&[(words, &said)]);
    }
    let one = "-c after the name: exactly one STRING must follow; use: csalock run [OPTION]... NAME -c STRING";
    check_usage_errors(&[
        (&["run", "x", "-c", "echo", "hi"], one),
        (&["run", "x", "-c"], one),
        (&["run", "x"], &format!("the command is missing; {usage}")),
        (&["run", "x", "--also"], &format!("--also: the name is missing; {usage}")),
        (&["run", "-c", "true", "x", "true"], &format!("-c STRING and a command cannot both be run; {usage}")),
    ]);
}

/// Compares the stderr of calls with an unknown word in the place of the command.
#[track_caller]
fn check_unknown_commands(calls: &[(&[&str], &str)]) {
    for (words, next_step) in calls {
        let typed = words.iter().find(|word| **word != "help").unwrap().escape_default();
        check_usage_errors(&[(words, &format!("unrecognized subcommand '{typed}'; {next_step}"))]);
    }
}

#[test]
fn an_unknown_command_is_answered_with_the_one_that_is_meant() {
    check_unknown_commands(&[
        (&["stauts", "x"], "use csalock status"),
        (&["unlok"], "use csalock unlock"),
        (&["help", "a\n\n\x1b[2Jb"], "see csalock --help"),
        (&["job"], "see csalock --help"),
        (&["job", "no-such-program"], "see csalock --help"),
        (&["job", "true"], "to run a command under a lock, try: csalock run job true"),
        // A program counts for more than a similar word.
        (&["statu", "echo", "a b"], "to run a command under a lock, try: csalock run statu echo 'a b'"),
    ]);
}

#[test]
fn a_removed_command_or_option_is_answered_with_what_to_use() {
    check_unknown_commands(&[
        (&["fence", "file"], "use CSALOCK_TOKEN as docs/fencing.md shows"),
        (&["audit"], "use csalock history"),
    ]);
    check_unknown_arguments(&[
        (&["history", "--follow"], "--follow", "use watch csalock history"),
        (&["run", "--give-up-if=10m", "x", "true"], "--give-up-if", "use --timeout"),
        (&["lock", "--attempts", "3", "x"], "--attempts", "use --timeout"),
        (&["status", "-W", "--interval", "5s"], "--interval", "use watch -n"),
    ]);
}

/// Compares the stderr of calls with an unknown argument.
#[track_caller]
fn check_unknown_arguments(calls: &[(&[&str], &str, &str)]) {
    for (words, argument, next_step) in calls {
        check_usage_errors(&[(words, &format!("unexpected argument '{argument}' found; {next_step}"))]);
    }
}

#[test]
fn an_unknown_option_is_answered_with_the_one_that_is_meant() {
    let dashes = "put -- before a name or value that begins with a dash";
    let lock = &format!("see csalock lock --help; {dashes}");
    let run = &format!("see csalock run --help; {dashes}");
    let put = &format!("see csalock put --help; {dashes}");
    check_unknown_arguments(&[
        (&["lock", "--timout", "5", "x"], "--timout", "use --timeout"),
        (&["unlock", "--forc", "x"], "--forc", "use --force"),
        (&["status", "-o"], "-o", &format!("see csalock status --help; {dashes}")),
        (&["-n", "job", "true"], "-n", "to run a command under a lock, try: csalock run -n job true"),
        (&["-n", "job", "no-such-program"], "-n", "use: csalock [OPTION]... COMMAND [ARGUMENT]..."),
        (&["run", "-j", "-1", "x", "true"], "-1", "see csalock run --help"),
        (&["--nope"], "--nope", "use: csalock [OPTION]... COMMAND [ARGUMENT]..."),
        (&["history", "-n", "-3"], "-3", "see csalock history --help"),
        (&["lock", "-dash"], "-d", lock),
        (&["lock", "a\nb\x1b[2J", "-Zz"], "-Z", lock),
        (&["run", "-dash", "true"], "-d", run),
        (&["put", "x", "-dd", "-n"], "-d", put),
        (&["get", "x", "y"], "y", "use: csalock get [OPTION]... NAME"),
    ]);
    let sandbox = Sandbox::new(Kind::Directory);
    sandbox.csalock(["list", "-1"]).run();
}

#[test]
fn a_command_after_the_name_of_lock_is_answered_with_run() {
    let run = |line: &str| format!("to run a command under a lock, try: csalock run {line}");
    check_unknown_arguments(&[
        (&["lock", "-w", "5", "job", "ls", "--sort=a b"], "--sort", &run("-w 5 job ls '--sort=a b'")),
        // These options would be those of flock(1), and of csalock.
        (&["lock", "job", "sort", "-u", "x"], "-u", &run("job sort -u x")),
        (&["lock", "job", "sh", "-c", "a; b"], "-c", &run("job sh -c 'a; b'")),
        (
            &["--store", "dir:a", "lock", "job", "ls", "-a"],
            "-a",
            &run("job ls -a").replace("csalock run", "csalock --store dir:a run"),
        ),
    ]);
    // Several names are what lock is for.
    let sandbox = Sandbox::new(Kind::Directory);
    let said = "csalock: `ls` was taken as the name of a lock; to run it: csalock run job ls true\n";
    let script = "csalock lock job ls -w 5 true && csalock status -1";
    sandbox.script("dash", script).stdout("job\nls\ntrue\n").stderr(said).run();
    // The store knows these names now.
    sandbox.script("dash", script).stdout("job\nls\ntrue\n").run();
    sandbox.csalock(["lock", "-q", "a", "true"]).run();
    sandbox.program("files/backup", "");
    let said = "csalock: `./backup` was taken as the name of a lock; to run it: csalock run b ./backup\n";
    sandbox.csalock(["lock", "b", "./backup"]).stderr(said).run();
}

#[test]
fn an_option_may_be_given_twice_and_the_last_value_counts() {
    let sandbox = Sandbox::new(Kind::Directory);
    let _holder = sandbox.holder("held");
    sandbox.csalock(["run", "-n", "-n", "-qq", "held", "true"]).status(75).run();
    sandbox.csalock(["lock", "-n", "-E3", "-E", "4", "-q", "held"]).status(4).run();
    sandbox
        .csalock(["run", "--also", "a", "--also", "b", "x", "-c", "csalock status -1 a b x"])
        .stdout("a\nb\nx\n")
        .run();
}

#[test]
fn usage_errors_look_like_all_other_errors() {
    let absent = "the following required arguments were not provided:";
    let long = "x".repeat(1000);
    check_usage_errors(&[
        (&["lock"], &format!("{absent} <NAME>...; use: csalock lock [OPTION]... NAME...")),
        (&["run"], &format!("{absent} <NAME> [COMMAND]...; use: csalock run [OPTION]... NAME COMMAND [ARGUMENT]...")),
        (&["unclaim"], &format!("{absent} --id <ID> <NAME>...; use: csalock unclaim [OPTION]... --id ID NAME...")),
        (&["renew", "x"], "an option is missing; add --ttl <DURATION>"),
        (&["unclaim", "x"], "an option is missing; add --id <ID>"),
        (&["unlock", "--token", "5", "x"], "an option is missing; add --force"),
        (&["unlock", "--end"], &format!("{absent} --force <NAME>...; use: csalock unlock [OPTION]... NAME...")),
        (&["get"], &format!("{absent} <NAME>; use: csalock get [OPTION]... NAME")),
        (&["-q"], "the command is missing; see csalock --help"),
        (
            &["doctor", "x", &long],
            &format!("unexpected argument '{}...' found; use: csalock doctor [OPTION]... [NAME]", &long[..100]),
        ),
        (
            &["lock", "--timeout"],
            "a value is required for '--timeout <DURATION>' but none was supplied; see csalock lock --help",
        ),
        (
            &["lock", "--json=3", "x"],
            "unexpected value '3' for '--json' found; no more were expected; see csalock lock --help",
        ),
        (
            &["run", "--on-lost", "cry", "x", "true"],
            "invalid value 'cry' for '--on-lost <WHAT>' [possible values: kill, warn]; see csalock run --help",
        ),
        (
            &["status", "--color", "red"],
            "invalid value 'red' for '--color <WHEN>' [possible values: auto, always, never]; see csalock status --help",
        ),
        (
            &["completions", "tcsh"],
            "invalid value 'tcsh' for '<SHELL>' [possible values: bash, zsh, fish]; see csalock completions --help",
        ),
        (&["status", "-q", "-v"], "the argument '--quiet' cannot be used with '--verbose'; leave one of them out"),
        (&["-q", "status", "-v"], "the argument '--verbose' cannot be used with '--quiet'; leave one of them out"),
        (&["lookup", "x", "--id", "1"], "the argument '[NAME]' cannot be used with '--id <ID>'; leave one of them out"),
        (&["lock", "-j", "0", "x"], "--slots: 0 is out of range; use 1 to 10000"),
        (&["run", "--json", "x", "true"], "run has no result of its own that could be JSON; leave --json out"),
    ]);
    let sandbox = Sandbox::new(Kind::Directory);
    for (option, name) in [("-1", "--names-only"), ("-W", "--watch")] {
        let refused = sandbox.csalock(["--json", "status", option]).capture();
        assert!(refused.code == Some(64) && refused.stdout.contains(&format!("'--json' cannot be used with '{name}'")));
    }
    let call = sandbox.script("bash", "csalock lock --ttl $'\\xff' x").status(64);
    call.stderr(
        "csalock: invalid UTF-8 was detected in one or more arguments; \
         only names, values, labels, paths and commands may be other bytes\n",
    )
    .run();
}

#[test]
fn an_invalid_duration_is_answered_with_its_mistake() {
    let examples = "use for example 250ms, 0.5s, 5m, 1h30m, 1d, seconds, 0 or inf";
    let lengths = "use for example 250ms, 0.5s, 5m, 1h30m, 1d, or seconds";
    for (option, value, said) in [
        ("--timeout", "5M", format!("is not a duration, because M is not a unit, minutes are m; {examples}")),
        ("--timeout", "soon", format!("is not a duration; {examples}")),
        ("--timeout", "-5", format!("is not a duration; {examples}")),
        ("--timeout", "9999999999999", "is longer than 300 years; use inf for no limit".to_string()),
        ("--ttl", "1H", format!("is not a duration, because H is not a unit, hours are h; {lengths}")),
        ("--ttl", "1y", format!("is not a duration, because y is not a unit; {lengths}")),
        ("--ttl", "0", "is too short; use at least 1ms".to_string()),
        ("--ttl", "400000d", "is longer than 300 years; leave it out for no limit".to_string()),
        ("--backoff", "1s", "is not a range; use MIN..MAX, for example 50ms..2s".to_string()),
        ("--backoff", "2s..1s", "is not a range; use a MAX that is not below MIN".to_string()),
        (
            "--backoff",
            "1S..2s",
            format!("is not a range, because MIN is not a duration, because S is not a unit, seconds are s; {lengths}"),
        ),
    ] {
        check_usage_errors(&[(&["lock", &format!("{option}={value}"), "x"], &format!("{option}: {value} {said}"))]);
    }
}

#[test]
fn a_wrong_store_or_lease_is_answered_with_the_next_step() {
    let sandbox = Sandbox::new(Kind::Shared);
    sandbox.file("files/plain", "");
    let urls = "use dir:PATH, sqlite:PATH, ssh://HOST/PATH, postgres://HOST/DATABASE, etcd://HOST/PREFIX or etcds://HOST/PREFIX";
    let lengths = "use for example 250ms, 0.5s, 5m, 1h30m, 1d, or seconds";
    let leases = "a lease takes three seconds at least; without the option, $CSALOCK_LEASE or 60s";
    let store = sandbox.store();
    for (store, name, lease, code, said) in [
        (
            "dir:./s?shared=2",
            "x",
            "9s",
            64,
            format!("store dir:./s?shared=2: the options of a directory are ?shared=1 and ?lease=DURATION; {urls}"),
        ),
        ("sqlite:./s?x=1", "x", "9s", 64, format!("store sqlite:./s?x=1: its only option is ?lease=DURATION; {urls}")),
        (
            "dir:./s?lease=2s&shared=1",
            "x",
            "9s",
            64,
            format!("store dir:./s?lease=2s&shared=1: its lease is \"2s\", which is less than three seconds; {leases}"),
        ),
        (
            "postgres://u@h/d?lease=1H",
            "x",
            "9s",
            64,
            format!(
                "store postgres://...@h/d?...: its lease is \"1H\", which is not a duration, because H is not a unit, \
                 hours are h; {lengths}; {leases}"
            ),
        ),
        (
            "etcd://h/p?lease=",
            "x",
            "9s",
            64,
            format!("store etcd://h/p?...: its lease is \"\", which is not a duration; {lengths}; {leases}"),
        ),
        (
            &store,
            "x",
            "1H",
            64,
            format!(
                "CSALOCK_LEASE is \"1H\", which is not a duration, because H is not a unit, hours are h; {lengths}; \
                 a lease takes three seconds at least; without the variable, 60s"
            ),
        ),
        (
            &store,
            "x",
            "2s",
            64,
            "CSALOCK_LEASE is \"2s\", which is less than three seconds; make it longer, or unset it for 60s"
                .to_string(),
        ),
        (
            "",
            "plain/x",
            "9s",
            69,
            "cannot find SANDBOX/files/plain/x: Not a directory; a file stands where a directory belongs; name a place in a \
             directory"
                .to_string(),
        ),
    ] {
        let words = ["run", "--store", store, name, "true"];
        let words = words.iter().filter(|word| !store.is_empty() || !matches!(**word, "--store" | ""));
        let call = sandbox.csalock(words).without("CSALOCK_STORE").env("CSALOCK_LEASE", lease);
        call.status(code).stderr(format!("csalock: {said}\n")).run();
    }
}

#[test]
fn without_a_command_there_is_short_help() {
    let sandbox = Sandbox::new(Kind::Directory);
    let help = sandbox.csalock(["-h"]).capture();
    assert!(help.code == Some(0) && help.stderr.is_empty() && help.stdout.starts_with("Locks for shell scripts that "));
    let nothing: [&str; 0] = [];
    sandbox.csalock(nothing).status(64).stderr(help.stdout).run();
}

#[test]
fn the_option_decides_colours_and_then_the_environment() {
    let sandbox = Sandbox::new(Kind::Directory);
    sandbox.csalock(["lock", "--forever", "x"]).run();
    let coloured = |words: &[&str], variables: &[(&str, &str)]| {
        let call = variables.iter().fold(sandbox.csalock(words), |call, (name, value)| call.env(name, value));
        call.capture().stdout.contains("\x1b[")
    };
    let all = [("NO_COLOR", "1"), ("TERM", "dumb"), ("CLICOLOR_FORCE", "1")];
    for command in [&["status"][..], &["history"], &["doctor"], &["status", "-h"], &["--help"]] {
        let with = |option: &'static str| [command, &[option]].concat();
        assert!(!coloured(command, &[]) && !coloured(&with("--color=auto"), &[]), "{command:?}");
        assert!(coloured(&with("--color=always"), &all[..2]), "{command:?}");
        assert!(!coloured(&with("--color=never"), &all[2..]), "{command:?}");
        assert!(coloured(command, &all[2..]) && coloured(command, &all[1..]), "{command:?}");
        assert!(!coloured(command, &all) && !coloured(command, &[("CLICOLOR_FORCE", "0")]), "{command:?}");
    }
    assert!(coloured(&["--color", "always", "status"], &[]));
    if has("script") {
        let on_terminal = |kind: &str| {
            sandbox.script("dash", "script -qc 'csalock status' /dev/null").env("TERM", kind).capture().stdout
        };
        assert!(on_terminal("xterm").contains("\x1b[") && !on_terminal("dumb").contains('\x1b'));
    }
}
