//! `csalock run`: what the command gets, and what its status becomes.

use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::sandbox::{Kind, Sandbox, has, wait_until};

const BUSY: &str = "csalock: lock x in store STORE is busy: held by pid PID on HOST (user USER) since TIME (AGE ago), while it lives: \
                    cat; wait longer with -w, or see `csalock status x`\n";

fn cannot_run(sandbox: &crate::sandbox::Sandbox, command: &str, code: i32, said: &str) {
    sandbox.csalock(["run", "x", command]).status(code).stderr(said).run();
    sandbox.csalock(["run", "-F", "x", command]).status(code).stderr(said).run();
    assert_eq!(sandbox.state("x"), "free");
}

on_every_store! {
    fn a_supervisor_that_was_stopped_while_others_held_the_lock_has_lost_nothing(sandbox: &Sandbox) {
        let mut job = sandbox.csalock(["run", "x", "sh", "-c", "echo in; read line; exit 3"]).ready();
        job.send(Signal::SIGSTOP);
        job.release();
        for _ in 0..6 {
            sandbox.csalock(["run", "-q", "-w", "20s", "x", "true"]).run();
        }
        let _other = sandbox.holder("x");
        job.send(Signal::SIGCONT);
        job.wait().complains(3, "");
    }

    fn every_exit_status_of_the_command_is_ours(sandbox: &Sandbox) {
        for code in 0..=255 {
            sandbox.csalock(["run", "x", "dash", "-c", &format!("exit {code}")]).status(code).run();
        }
    }

    fn a_command_that_a_signal_ended_is_128_and_the_signal(sandbox: &Sandbox) {
        let stops_or_is_ignored = [17, 18, 19, 20, 21, 22, 23, 28, 32, 33];
        for signal in (1..=64).filter(|signal| !stops_or_is_ignored.contains(signal)) {
            let script = format!("ulimit -c 0; kill -{signal} $$; sleep 9");
            sandbox.csalock(["run", "x", "dash", "-c", &script]).status(128 + signal).run();
        }
    }

    fn a_command_that_is_not_there_is_127(sandbox: &Sandbox) {
        for (command, why) in [
            ("no-such-command", "No such file or directory"),
            ("./none", "No such file or directory"),
            ("/etc/passwd/x", "Not a directory"),
        ] {
            let said = format!("csalock: cannot run {command}: {why}; check the spelling and `$PATH`; a function of the shell needs `csalock lock`\n");
            cannot_run(sandbox, command, 127, &said);
        }
        assert_eq!(sandbox.state("x"), "free");
    }

    fn an_error_of_a_command_names_its_cause(sandbox: &Sandbox) {
        sandbox.program("files/orphan", "#!/no/such/interpreter\n");
        sandbox.program("files/windows", "#!/bin/sh\r\necho\r\n");
        std::os::unix::fs::symlink("loop", sandbox.path("files/loop")).unwrap();
        for (command, code, said) in [
            ("./orphan", 127, "No such file or directory; its interpreter does not exist: check its `#!` line"),
            (
                "./windows",
                127,
                "No such file or directory; its first line ends with a carriage return; \
                 remove those of all lines (dos2unix, or sed -i 's/\\r$//')",
            ),
            ("./loop", 126, "Too many symbolic links encountered; check its path"),
            ("FOO=1", 127, "No such file or directory; to set a variable, use: env FOO=1 COMMAND"),
        ] {
            let said = format!("csalock: cannot run {command}: {said}\n");
            cannot_run(sandbox, command, code, &said);
        }
    }

    fn a_command_that_cannot_be_executed_is_126(sandbox: &Sandbox) {
        sandbox.file("files/plain", "exit 0\n");
        sandbox.file("bin/tools", "exit 0\n");
        std::fs::create_dir(sandbox.path("files/tools")).unwrap();
        for (command, hint) in [
            ("./plain", "check that it is executable (`chmod +x`) and that its `#!` line names an existing program"),
            ("tools", "check that it is executable (`chmod +x`) and that its `#!` line names an existing program"),
            ("/etc", "it is a directory; name a program"),
        ] {
            let said = format!("csalock: cannot run {command}: Permission denied; {hint}\n");
            cannot_run(sandbox, command, 126, &said);
        }
        assert_eq!(sandbox.state("x"), "free");
    }

    fn a_script_without_a_first_line_is_the_shells(sandbox: &Sandbox) {
        sandbox.program("bin/script", "printf '<%s>' \"$0\" \"$@\"; exit 7\n");
        let said = format!("<{}><a b><>", sandbox.path("bin/script").display());
        let said = said.replace(&sandbox.path("").display().to_string(), "SANDBOX/");
        sandbox.csalock(["run", "x", "script", "a b", ""]).status(7).stdout(&said).run();
        sandbox.csalock(["run", "-F", "x", "script", "a b", ""]).status(7).stdout(&said).run();
    }

    fn arguments_reach_the_command_byte_for_byte(sandbox: &Sandbox) {
        let words: [&[u8]; 9] =
            [b"", b" ", b"a b", b"line\nline\n", b"\xff\xfe\x01", b"--", b"-w", b"$HOME `id` * \"'", "ü".as_bytes()];
        let script = b"cat /proc/$$/cmdline > cmdline; :";
        let command: Vec<&[u8]> = [&b"dash"[..], b"-c", script, b"dash"].into_iter().chain(words).collect();
        for before in [&["run", "x"][..], &["run", "x", "--"], &["run", "-F", "x"], &["run", "--", "x", "--"]] {
            let before = before.iter().map(|word| word.as_bytes());
            let all: Vec<_> = before.chain(command.iter().copied()).map(std::ffi::OsStr::from_bytes).collect();
            sandbox.csalock(all).run();
            let wanted = [command.join(&0), vec![0]].concat();
            assert_eq!(std::fs::read(sandbox.path("files/cmdline")).unwrap(), wanted);
        }
    }

    fn options_behind_the_name_are_the_commands(sandbox: &Sandbox) {
        sandbox.csalock(["run", "x", "echo", "-n", "--", "-w", "5"]).stdout("-- -w 5").run();
        sandbox.csalock(["run", "x", "--", "echo", "-c", "--json"]).stdout("-c --json\n").run();
    }

    fn a_string_for_the_shell_comes_before_or_after_the_name(sandbox: &Sandbox) {
        sandbox.csalock(["run", "-c", "echo $((1 + 1)); exit 3", "x"]).stdout("2\n").status(3).run();
        sandbox.csalock(["run", "x", "-c", "echo $((1 + 1)); exit 3"]).stdout("2\n").status(3).run();
        sandbox.csalock(["run", "-F", "x", "-c", "echo $0 $#"]).stdout("/bin/sh 0\n").run();
    }

    fn a_name_or_a_command_that_is_missing_is_a_usage_error(sandbox: &Sandbox) {
        let cure = "use: csalock run [OPTION]... NAME COMMAND [ARGUMENT]...\n";
        let missing = format!("csalock: the command is missing; {cure}");
        sandbox.csalock(["run", "x"]).status(64).stderr(&missing).run();
        sandbox.csalock(["run", "x", "--"]).status(64).stderr(&missing).run();
        let both = format!("csalock: -c STRING and a command cannot both be run; {cure}");
        sandbox.csalock(["run", "-c", "true", "x", "true"]).status(64).stderr(&both).run();
        let empty = format!("csalock: the command's name is empty; {cure}");
        sandbox.csalock(["run", "x", ""]).status(64).stderr(&empty).run();
        sandbox.csalock(["run"]).capture().exits(64);
        assert!(!sandbox.store_exists());
    }

    fn a_busy_lock_is_75_and_the_command_does_not_run(sandbox: &Sandbox) {
        let _holder = sandbox.holder("x");
        for options in [&["-n"][..], &["-w", "0"], &["-w", "10ms"], &["-w", "10ms", "--backoff", "1ms..1ms"]] {
            let words = ["run"].iter().chain(options).chain(&["x", "touch", "ran"]);
            sandbox.csalock(words).status(75).stderr(BUSY).run();
        }
        sandbox.csalock(["run", "-nq", "x", "touch", "ran"]).status(75).run();
        sandbox.csalock(["run", "-n", "-E", "9", "x", "touch", "ran"]).status(9).stderr(BUSY).run();
        sandbox.csalock(["run", "-nF", "-E0", "x", "touch", "ran"]).status(0).stderr(BUSY).run();
        assert!(!sandbox.path("files/ran").exists());
        assert!(sandbox.waiters("x").is_empty());
    }

    fn the_command_knows_its_lock(sandbox: &Sandbox) {
        // A dot before the path distinguishes that store from a chosen store.
        let script = "echo $CSALOCK_NAME $CSALOCK_HANDLE token $CSALOCK_TOKEN ${CSALOCK_STORE%%/./*}/${CSALOCK_STORE##*/./}";
        let said = format!("x HANDLE token TOKEN {}\n", sandbox.plain(&sandbox.store()));
        sandbox.csalock(["run", "x", "-c", script]).stdout(&said).run();
        sandbox.csalock(["run", "-F", "x", "-c", script]).stdout(&said).run();
    }

    fn the_record_names_the_command_itself(sandbox: &Sandbox) {
        let script = "echo $$; csalock status --json $CSALOCK_NAME; :";
        for fork in ["--label=tidy up", "-F"] {
            let done = sandbox.csalock(["run", fork, "x", "dash", "-c", script]).capture();
            let (pid, sight) = done.stdout.split_once('\n').unwrap();
            let sight: serde_json::Value = serde_json::from_str(sight).unwrap();
            let holder = &sight[0]["holders"][0];
            assert_eq!(holder["pid"].to_string(), pid);
            assert_eq!(holder["command"], format!("dash -c {script}"));
            assert_eq!(holder["label"].as_str(), (fork != "-F").then_some("tidy up"));
        }
    }

    fn tokens_grow_from_grant_to_grant(sandbox: &Sandbox) {
        let token = |_| -> u64 { sandbox.csalock(["run", "x", "-c", "echo $CSALOCK_TOKEN"]).capture().line().parse().unwrap() };
        let tokens: Vec<u64> = (0..20).map(token).collect();
        assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
    }

    fn the_lock_ends_with_the_command_and_not_with_its_children(sandbox: &Sandbox) {
        let mut job = sandbox.csalock(["run", "x", "-c", "sleep 60 & echo $!; exit 4"]).spawn();
        let child: i32 = job.lines(1)[0].parse().unwrap();
        wait_until("the command has ended", || job.has_ended());
        assert!(crate::sandbox::proc::lives(child));
        assert_eq!(sandbox.state("x"), "free");
        job.wait().exits(4);
    }

    fn a_lock_within_the_same_lock_would_never_come(sandbox: &Sandbox) {
        let said = "csalock: lock x in store STORE: the caller holds it already, so waiting would never end: pid PID on HOST (user USER) \
                    since TIME (AGE ago), while it lives: /bin/sh -c csalock run x true; leave this call out, \
                    or give it --reentrant\n";
        sandbox.csalock(["run", "x", "-c", "csalock run x true"]).status(84).stderr(said).run();
    }

    fn the_command_may_give_the_lock_back_itself(sandbox: &Sandbox) {
        let script = "csalock unlock x; csalock status x >/dev/null; echo $?; exit 3";
        sandbox.csalock(["run", "x", "-c", script]).stdout("81\n").status(3).run();
    }

    fn a_lock_that_is_broken_while_the_command_runs_is_lost(sandbox: &Sandbox) {
        let said = "csalock: lost while the command ran: lock x: it was held by pid PID on HOST (user USER) since TIME (AGE \
                    ago), until it was broken by --force; what the command did after that was not guarded\ncsalock: the \
                    command was ended\n";
        for options in [&[][..], &["--ttl", "6s"]] {
            let mut job = sandbox.csalock([&["run"], options, &["x", "cat"]].concat()).spawn();
            job.tell("begun");
            job.lines(1);
            sandbox.csalock(["unlock", "--force", "x"]).capture().exits(0);
            wait_until("it is ended", || job.has_ended());
            let done = job.wait();
            assert_eq!((done.code, sandbox.plain(&done.stderr).as_str()), (Some(85), said));
            assert_eq!(sandbox.state("x"), "free");
        }
    }

    fn a_command_that_holds_too_long_is_ended(sandbox: &Sandbox) {
        let said = "csalock: the command was ended: it held lock x longer than --max-hold\n";
        sandbox.csalock(["run", "--max-hold", "50ms", "x", "sleep", "60"]).status(124).stderr(said).run();
        let deaf = "trap '' TERM; exec sleep 60";
        let options = ["run", "--max-hold", "1s", "--kill-after", "50ms", "x", "-c", deaf];
        sandbox.csalock(options).status(137).stderr(said).run();
        sandbox.csalock(["run", "--max-hold", "60s", "x", "-c", "exit 5"]).status(5).run();
        assert_eq!(sandbox.state("x"), "free");
    }

    fn a_stopped_command_that_holds_too_long_is_ended_as_well(sandbox: &Sandbox) {
        let said = "csalock: the command was ended: it held lock x longer than --max-hold\n";
        let stops = ["run", "--max-hold", "50ms", "x", "-c", "kill -STOP $$; sleep 60"];
        sandbox.csalock(stops).status(124).stderr(said).run();
    }

    fn the_time_that_the_command_used_is_counted(sandbox: &Sandbox) {
        // In ticks: 14 is the time of the process itself, 16 that of the children that were reaped.
        let burns = "while read -r stat < /proc/$$/stat; set -- $stat; [ ${14} -lt 30 ]; do :; done";
        let script = format!("csalock run x dash -c '{burns}'; read -r stat < /proc/$$/stat; set -- $stat; [ ${{16}} -ge 20 ]");
        sandbox.script("dash", &script).run();
    }

    fn the_long_name_means_the_same(sandbox: &Sandbox) {
        sandbox.csalock(["run-with-lock", "x", "echo", "done"]).stdout("done\n").run();
    }

    fn verbose_output_goes_to_stderr(sandbox: &Sandbox) {
        let said = "csalock: lock x was acquired, token TOKEN\n";
        sandbox.csalock(["run", "-v", "x", "echo", "done"]).stdout("done\n").stderr(said).run();
    }
}

#[test]
fn both_times_of_a_command_pass_while_csalock_is_stopped_and_it_is_still_asked_first() {
    let sandbox = Sandbox::new(Kind::Directory);
    let asked = "trap 'touch asked; until [ -e over ]; do sleep 0.01; done; exit 7' TERM; touch runs; \
                 while :; do sleep 0.01; done";
    let job = sandbox.csalock(["run", "--max-hold", "4s", "--kill-after", "3s", "x", "dash", "-c", asked]).spawn();
    wait_until("it runs", || sandbox.path("files/runs").exists());
    job.send(Signal::SIGSTOP);
    let begun = Instant::now();
    wait_until("both times are over", || begun.elapsed() > Duration::from_millis(7100));
    job.send(Signal::SIGCONT);
    wait_until("it is asked", || sandbox.path("files/asked").exists());
    sandbox.file("files/over", "");
    job.wait().complains(124, "csalock: the command was ended: it held lock x longer than --max-hold\n");
}

#[test]
fn a_command_that_cannot_be_told_to_start_is_reported() {
    let sandbox = Sandbox::new(Kind::Directory);
    require!(has("strace"));
    for (fault, what) in [
        (["recvmsg:error=ENOMEM", "sendto:error=ENOBUFS"], "Out of memory"),
        (["recvmsg:retval=0", "sendto:error=ENOBUFS"], "I/O error"),
    ] {
        let options = ["-f", "-qq", "-o", "/dev/null"];
        let [fault, also] = fault.map(|fault| format!("inject={fault}"));
        let words = ["-e", &fault, "-e", &also, "csalock", "run", "x", "touch", "ran"];
        let said = format!("csalock: cannot run touch: {what}; try again\n");
        sandbox.call("strace", [&options[..], &words[..]].concat()).status(126).stderr(said).run();
        assert_eq!((sandbox.state("x").as_str(), sandbox.path("files/ran").exists()), ("free", false));
    }
    // The number of an exit means nothing if the command was executed.
    sandbox.csalock(["run", "x", "dash", "-c", "exit 12"]).status(12).stderr("").run();
}

#[test]
fn a_child_that_cannot_wait_for_its_start_ends_the_wait_for_the_lock() {
    require!(has("strace"));
    let sandbox = Sandbox::new(Kind::Directory);
    let holder = sandbox.holder("x");
    let fault = ["-f", "-qq", "-o", "/dev/null", "-e", "inject=recvmsg:error=ENOMEM"];
    let words = [&fault[..], &["csalock", "run", "-w", "inf", "x", "touch", "ran"]].concat();
    sandbox.call("strace", words).status(126).stderr("csalock: cannot run touch: Out of memory; try again\n").run();
    assert_eq!((sandbox.waiters("x").len(), sandbox.path("files/ran").exists()), (0, false));
    holder.wait().exits(0);
}
