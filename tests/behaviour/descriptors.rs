//! The state that a command under a lock inherits: descriptors, dispositions and masks, as without csalock.

use crate::sandbox::{Done, FIRST_PIDS, Sandbox, has};

/// Runs a shell line with `$WRAP` empty, then with ours in it, plain and with -F; all must say the same.
fn same_with_and_without_us(sandbox: &Sandbox, script: &str) -> String {
    let said = |wrap: &str| {
        let done = sandbox.script("bash", script).env("WRAP", wrap).capture();
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{script} {wrap}: {done:?}");
        done.stdout
    };
    let wanted = said("");
    for wrap in ["csalock run x", "csalock run -F x", "csalock run --ttl 1h x"] {
        assert_eq!(said(wrap), wanted, "{wrap}: {script}");
    }
    wanted
}

const OPEN: &str = "dash -c 'ls /proc/$$/fd > open; :'";

on_every_store! {
    fn no_descriptor_of_csalock_reaches_the_command(sandbox: &Sandbox) {
        same_with_and_without_us(sandbox, &format!("$WRAP {OPEN}; cat open"));
    }

    fn descriptors_of_the_caller_do(sandbox: &Sandbox) {
        let open = same_with_and_without_us(sandbox, &format!("$WRAP {OPEN} 7>seven 19</dev/null; cat open"));
        assert!(["7", "19"].iter().all(|number| open.lines().any(|line| line == *number)), "{open}");
    }

    fn closed_descriptors_stay_closed(sandbox: &Sandbox) {
        for closed in ["<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-"] {
            same_with_and_without_us(sandbox, &format!("$WRAP {OPEN} {closed}; cat open"));
        }
    }

    fn each_descriptor_refers_to_the_same_file(sandbox: &Sandbox) {
        let look = "dash -c 'readlink /proc/$$/fd/0 /proc/$$/fd/1 /proc/$$/fd/2 > links; :'";
        let links = same_with_and_without_us(sandbox, &format!("$WRAP {look} < /etc/passwd > out 2>> err; cat links"));
        assert_eq!(links.lines().next(), Some("/etc/passwd"));
    }

    fn stdin_is_the_commands_alone(sandbox: &Sandbox) {
        let script = "$WRAP dd bs=1 count=2 2>/dev/null; echo; cat";
        for wrap in ["csalock run x", "csalock run -F x"] {
            sandbox.script("bash", script).env("WRAP", wrap).stdin("abcd").stdout("ab\ncd").run();
        }
        sandbox.csalock(["run", "x", "cat"]).stdin([0, b'\n', b'x']).stdout("\0\nx").run();
    }

    fn ignored_signals_stay_ignored(sandbox: &Sandbox) {
        let all = same_with_and_without_us(sandbox, "env --ignore-signal $WRAP grep SigIgn /proc/self/status");
        assert_ne!(all, "SigIgn:\t0000000000000000\n");
        for signal in ["HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "PIPE", "CHLD", "ALRM", "TSTP"] {
            let script = format!("env --ignore-signal={signal} $WRAP grep SigIgn /proc/self/status");
            same_with_and_without_us(sandbox, &script);
        }
        same_with_and_without_us(sandbox, "env --default-signal $WRAP grep SigIgn /proc/self/status");
    }

    fn the_signal_mask_is_untouched(sandbox: &Sandbox) {
        // musl keeps signals 32 to 34 to itself, and no program that uses it can block them.
        let script = |line: &str| match cfg!(target_env = "musl") {
            true => format!("{line} | awk '/SigBlk/ {{ print substr($2, 1, 7), substr($2, 10) }}'"),
            false => line.to_string(),
        };
        for option in ["--block-signal", "--block-signal=TERM", "--block-signal=CHLD,USR1", "--default-signal=TERM"] {
            let line = format!("env {option} $WRAP grep -E 'SigBlk|SigCgt' /proc/self/status");
            same_with_and_without_us(sandbox, &script(&line));
        }
        // By a system call even the two signals can be blocked that C libraries keep for themselves.
        let block = "import ctypes, os, sys; ctypes.CDLL(None).syscall(14, 0, (ctypes.c_ulong * 1)(~0), None, 8); \
                     os.execvp(sys.argv[1], sys.argv[1:])";
        if cfg!(target_arch = "x86_64") && has("python3") {
            let line = script(&format!("python3 -c '{block}' $WRAP grep SigBlk /proc/self/status"));
            let mask = same_with_and_without_us(sandbox, &line);
            assert!(mask.ends_with("ffbfeff\n"), "{mask}");
        }
    }

    fn session_group_directory_and_umask_are_the_callers(sandbox: &Sandbox) {
        // The leader of the session may be outside of this pid namespace; then /proc shows 0 for it.
        let script = "umask 027; cd /usr; theirs=\"grep -e ^NSsid -e ^NSpgid\"; export theirs callers=\"$($theirs /proc/$$/status)\"; \
                      $WRAP dash -c 'pwd; umask; [ \"$($theirs /proc/$$/status)\" = \"$callers\" ] && echo same'";
        let said = same_with_and_without_us(sandbox, script);
        assert_eq!(said, "/usr\n0027\nsame\n");
    }

    fn the_environment_gets_six_variables_and_keeps_the_rest(sandbox: &Sandbox) {
        let script = "export ODD=$'\\xff\\n'; $WRAP env -0 | tr '\\0\\n' '\\n ' | grep -av '^CSALOCK_\\|^_=\\|^WRAP=' | sort";
        same_with_and_without_us(sandbox, script);
        let script = "csalock run x env | grep -a ^CSALOCK_ | cut -d= -f1 | sort";
        let five = "CSALOCK_HANDLE\nCSALOCK_NAME\nCSALOCK_OUTER_STORE\nCSALOCK_STORE\nCSALOCK_TOKEN\n";
        sandbox.script("bash", script).without(FIRST_PIDS).stdout(five).run();
    }

    fn resource_limits_are_the_callers(sandbox: &Sandbox) {
        same_with_and_without_us(sandbox, "ulimit -n 300 -c 0; $WRAP cat /proc/self/limits");
    }

    fn a_closed_stdout_is_an_error_like_a_full_disk(sandbox: &Sandbox) {
        sandbox.csalock(["run", "--overdue", "1ms", "job", "true"]).run();
        sandbox.csalock(["put", "value", "1"]).run();
        sandbox.csalock(["lock", "--forever", "held"]).run();
        sandbox.csalock(["claim", "claimed", "--id", "1"]).stdout("1\n").run();
        for call in ["status", "status held", "status --json", "history", "history --json", "overdue --all", "overdue --json", "metrics",
                     "get value", "get --json value", "lookup claimed", "gc --json", "renew --json --ttl 1m held", "--help", "--version", "man", "completions bash"] {
            for (to, problem) in [(">&-", "closed"), ("> /dev/full", "No space left on device")] {
                let done = sandbox.script("dash", &format!("csalock {call} {to}")).capture();
                let has_problem = done.stderr.starts_with("csalock: ") && done.stderr.contains("stdout") && done.stderr.contains(problem);
                assert!(done.code == Some(74) && has_problem && done.stderr.lines().count() == 1, "{call} {to}: {done:?}");
            }
        }
        // Without output, no stdout is necessary.
        for call in ["status -q held", "gc", "put value 2", "metrics --output metrics"] {
            sandbox.script("dash", &format!("csalock {call} >&-")).run();
        }
    }
}

on_every_store_of_files! {
    fn with_few_descriptors_the_command_runs_to_its_end_or_not_at_all(sandbox: &Sandbox) {
        for options in ["", "--max-hold 1m", "-w 1s", "--once-per day", "--ttl 1m"] {
            for limit in (3..16).chain([20]) {
                let store = sandbox.store_at(format!("store-{limit}{}", options.replace(' ', "")));
                let call = format!("ulimit -n {limit}; csalock run {options} x dash -c 'echo began; sleep 0.1; echo ended; exit 7'");
                let Done { code, stdout, stderr, .. } = sandbox.script("dash", &call).env("CSALOCK_STORE", &store).capture();
                let is_clear = stderr.starts_with("csalock: ") && (stderr.contains("open files") || stderr.contains("unable to open"));
                match code {
                    Some(7) => assert_eq!((stdout.as_str(), stderr.as_str()), ("began\nended\n", ""), "{limit} {options}"),
                    _ => assert!(code == Some(71) && stdout.is_empty() && is_clear && limit < 20, "{limit} {options}: {code:?} {stdout} {stderr}"),
                }
                // A failed release leaves the lock to the next caller.
                let state = sandbox.csalock(["status", "--store", &store, "x"]).capture().code;
                assert!(code != Some(7) || state == Some(81), "{limit} {options}: {state:?}");
            }
        }
    }
}
