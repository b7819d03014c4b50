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
        let help = sandbox.csalock(["lock", "--help"]).capture();
        assert_eq!(sandbox.csalock(["lock", "x", "--help"]).capture(), help);
        assert_eq!(sandbox.csalock(["lock", "x", "-n", "--help", "y"]).capture(), help);
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
fn an_option_after_the_name_of_run_is_answered_with_the_usage() {
    let usage = "use: csalock run [OPTION]... NAME COMMAND [ARGUMENT]...";
    for (words, wrong) in [
        (&["run", "x", "-w", "5", "echo", "hi"][..], "-w"),
        (&["run", "x", "-w5", "-n", "echo", "a b"], "-w5"),
        (&["run", "--", "-x", "--ttl", "1m", "echo"], "--ttl"),
        (&["run", "x", "--label=$a", "echo", "*"], "'--label=$a'"),
        (&["run", "x", "--also", "y", "-n", "echo"], "-n"),
        (&["--store", "dir:a", "run", "x", "-n", "echo"], "-n"),
        (&["run-with-lock", "x", "-n", "echo"], "-n"),
        (&["run", "x", "--help"], "--help"),
        (&["run", "x", "--json", "echo"], "--json"),
    ] {
        check_usage_errors(&[(words, &format!("{wrong} comes after the name, where the command begins; {usage}"))]);
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

#[test]
fn a_value_of_put_that_looks_like_an_option_is_answered_with_dashes() {
    check_usage_errors(&[
        (
            &["put", "x", "--nope"],
            "unexpected argument '--nope' found; see csalock put --help; to pass '--nope' as a value, use '-- --nope'",
        ),
        (
            &["put", "x", "-dd", "-n"],
            "unexpected argument '-d' found; see csalock put --help; to pass '-d' as a value, use '-- -d'",
        ),
        (&["put", "x", "a", "b", "$c"], "unexpected argument 'b' found; use: csalock put [OPTION]... NAME [VALUE]"),
    ]);
}

#[test]
fn words_of_other_tools_are_answered_with_those_of_csalock() {
    check_usage_errors(&[
        (&["acquire", "x"], "unrecognized subcommand 'acquire'; try: csalock lock x"),
        (
            &["rnu", "x", "true"],
            "unrecognized subcommand 'rnu'; to run a command under a lock, try: csalock run rnu x true",
        ),
        (&["LOCK", "x"], "unrecognized subcommand 'LOCK'; to run a command under a lock, try: csalock run LOCK x"),
        (&["unlock", "-f", "x"], "unexpected argument '-f' found; use --force"),
        (
            &["status", "-w"],
            "unexpected argument '-w' found; see csalock status --help; to pass '-w' as a value, use '-- -w'",
        ),
        (&["lock", "-u", "x"], "unexpected argument '-u' found; use csalock unlock NAME"),
        (&["run", "-u", "x", "true"], "unexpected argument '-u' found; use csalock unlock NAME"),
        (
            &["history", "-n", "-3"],
            "unexpected argument '-3' found; see csalock history --help; to pass '-3' as a value, use '-- -3'",
        ),
        (&["release", "x", "y"], "unrecognized subcommand 'release'; try: csalock unlock x y"),
        (&["release"], "unrecognized subcommand 'release'; use csalock unlock"),
        (&["free", "x"], "unrecognized subcommand 'free'; try: csalock unlock x"),
        (&["rm", "x"], "unrecognized subcommand 'rm'; try: csalock unlock x"),
        (&["log", "deploy"], "unrecognized subcommand 'log'; try: csalock history deploy"),
        (&["exec", "-n", "x", "true"], "unrecognized subcommand 'exec'; try: csalock run -n x true"),
        (&["flock", "-n", "x", "true"], "unrecognized subcommand 'flock'; try: csalock run -n x true"),
        (&["run", "-V"], "unexpected argument '-V' found; use csalock --version"),
        (&["lock", "--version"], "unexpected argument '--version' found; use csalock --version"),
        (&["ls"], "unrecognized subcommand 'ls'; try: csalock status"),
        (&["who", "x"], "unrecognized subcommand 'who'; try: csalock status x"),
        (&["break", "x"], "unrecognized subcommand 'break'; try: csalock unlock --force x"),
        (&["kill", "x"], "unrecognized subcommand 'kill'; try: csalock unlock --force x"),
        (&["lock", "--nowait", "x"], "unexpected argument '--nowait' found; use --nonblock"),
        (&["lock", "--reason", "foo", "x"], "unexpected argument '--reason' found; use --label"),
        (&["lock", "-t", "5", "x"], "unexpected argument '-t' found; use --timeout"),
        (&["status", "-a"], "unexpected argument '-a' found; use --all-stores"),
        (&["history", "--last", "5"], "unexpected argument '--last' found; use --lines"),
        (&["show", "--nope"], "unrecognized subcommand 'show'; use csalock status"),
        (&["version"], "unrecognized subcommand 'version'; try: csalock --version"),
        (&["stauts", "x"], "unrecognized subcommand 'stauts'; some similar subcommands exist: 'audit', 'status'"),
        (&["help", "job"], "unrecognized subcommand 'job'; see csalock --help"),
        (&["job"], "unrecognized subcommand 'job'; see csalock --help"),
        (&["job", "true"], "unrecognized subcommand 'job'; to run a command under a lock, try: csalock run job true"),
        (
            &["-n", "job", "true"],
            "unexpected argument '-n' found; to run a command under a lock, try: csalock run -n job true",
        ),
        (&["-w", "5", "lock", "x"], "unexpected argument '-w' found; try: csalock lock -w 5 x"),
        (&["--force", "unlock", "x"], "unexpected argument '--force' found; try: csalock unlock --force x"),
        (
            &["-o", "job", "true"],
            "unexpected argument '-o' found; leave it out, because a command does not inherit the lock",
        ),
        (
            &["run", "-no", "job", "true"],
            "unexpected argument '-o' found; leave it out, because a command does not inherit the lock",
        ),
        (&["-u", "job"], "unexpected argument '-u' found; use csalock unlock NAME"),
        (&["run", "-u", "job"], "unexpected argument '-u' found; use csalock unlock NAME"),
        (&["lock", "x", "-c", "true"], "unexpected argument '-c' found; use: csalock run NAME -c STRING"),
        (&["status", "-o", "json"], "unexpected argument '-o' found; use --json"),
        (&["history", "--format=json"], "unexpected argument '--format' found; use --json"),
        (&["status", "-o"], "unexpected argument '-o' found; use --json"),
    ]);
    let sandbox = Sandbox::new(Kind::Directory);
    sandbox.csalock(["list", "-1"]).run();
}

#[test]
fn usage_errors_look_like_all_other_errors() {
    let long = "x".repeat(1000);
    check_usage_errors(&[
        (
            &["lock"],
            "the following required arguments were not provided: <NAME>...; use: csalock lock [OPTION]... NAME...",
        ),
        (
            &["run"],
            "the following required arguments were not provided: <NAME> [COMMAND]...; use: csalock run [OPTION]... NAME COMMAND [ARGUMENT]...",
        ),
        (
            &["unclaim"],
            "the following required arguments were not provided: --id <ID> <NAME>...; use: csalock unclaim [OPTION]... --id ID NAME...",
        ),
        (
            &["renew", "x"],
            "the following required arguments were not provided: --ttl <DURATION>; use: csalock renew [OPTION]... --ttl DURATION NAME...",
        ),
        (
            &["unlock", "--token", "5", "x"],
            "the following required arguments were not provided: --force; use: csalock unlock [OPTION]... NAME...",
        ),
        (&["-q"], "the command is missing; see csalock --help"),
        (
            &["lock", "-dash"],
            "unexpected argument '-d' found; see csalock lock --help; to pass '-d' as a value, use '-- -d'",
        ),
        (
            &["run", "-dash", "true"],
            "unexpected argument '-d' found; see csalock run --help; to pass '-d' as a value, use '-- -d'",
        ),
        (
            &["lock", "x", "--nope"],
            "unexpected argument '--nope' found; see csalock lock --help; to pass '--nope' as a value, use '-- --nope'",
        ),
        (
            &["lock", "--timout", "5", "x"],
            "unexpected argument '--timout' found; a similar argument exists: '--timeout'",
        ),
        (&["--nope"], "unexpected argument '--nope' found; use: csalock [OPTION]... COMMAND [ARGUMENT]..."),
        (&["get", "x", "y"], "unexpected argument 'y' found; use: csalock get [OPTION]... NAME"),
        (&["get"], "the following required arguments were not provided: <NAME>; use: csalock get [OPTION]... NAME"),
        (
            &["doctor", "x", &long],
            &format!("unexpected argument '{}...; use: csalock doctor [OPTION]... [NAME]", &long[..179]),
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
            "invalid value 'tcsh' for '<SHELL>' [possible values: bash, zsh, fish]; a similar value exists: 'zsh'",
        ),
        (&["status", "-q", "-v"], "the argument '--quiet' cannot be used with '--verbose'; leave one of them out"),
        (&["-q", "status", "-v"], "the argument '--verbose' cannot be used with '--quiet'; leave one of them out"),
        (&["lookup", "x", "--id", "1"], "the argument '[NAME]' cannot be used with '--id <ID>'; leave one of them out"),
        (
            &["status", "--store", "a", "--store", "b"],
            "the argument '--store <URL>' cannot be used multiple times; leave one of them out",
        ),
        (&["lock", "-j", "0", "x"], "--slots: 0 is out of range; use 1 to 10000"),
        (
            &["lock", "a\nb\x1b[2J", "-Zz"],
            "unexpected argument '-Z' found; see csalock lock --help; to pass '-Z' as a value, use '-- -Z'",
        ),
        (&["run", "--json", "x", "true"], "run has no result of its own that could be JSON; leave --json out"),
    ]);
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
    let store = sandbox.store();
    for (store, name, lease, code, said) in [
        (
            "dir:./s?shared=2",
            "x",
            "9s",
            64,
            format!("store dir:./s?shared=2: the only option of a directory is ?shared=1; {urls}"),
        ),
        ("sqlite:./s?x=1", "x", "9s", 64, format!("store sqlite:./s?x=1: it has no options; {urls}")),
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
