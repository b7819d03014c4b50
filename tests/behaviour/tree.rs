//! `run --tree`: the lock lasts as long as the last process that came from the command, and signals and limits reach all.

use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::sandbox::{Call, Job, Kind, Sandbox, has, has_namespaces, proc, skip, wait_until};

/// A script that waits for the file `go`, and writes its pid first. Its session is its own.
const LEFT: &str =
    "setsid dash -c 'echo $$ > new; mv new pid; while [ ! -e go ]; do sleep 0.01; done; echo end >> log' &";

/// The same, deaf to TERM.
const DEAF: &str = "setsid dash -c 'trap \"\" TERM; echo $$ > new; mv new pid; while :; do sleep 0.01; done' &";

/// A command that ends with 3 and leaves such a script behind.
fn leaving(sandbox: &Sandbox, options: &[&str], left: &str) -> (Job, i32) {
    let script = format!("dash -c \"{}\"; exit 3", left.replace('"', "\\\"").replace('$', "\\$"));
    let job = sandbox.csalock([&["run", "--tree"], options, &["x", "dash", "-c", &script]].concat()).spawn();
    wait_until("it runs", || sandbox.path("files/pid").exists());
    // The supervisor is the owner that lives.
    wait_until("the command has ended", || sandbox.holders("x") == [job.pid()]);
    (job, sandbox.read("files/pid").trim().parse().unwrap())
}

fn forget(sandbox: &Sandbox) {
    for file in ["pid", "go", "log"] {
        let _ = std::fs::remove_file(sandbox.path("files").join(file));
    }
}

on_every_kind_of_store! {
    fn the_lock_lasts_until_the_last_process_has_ended(sandbox: &Sandbox) {
        let (job, _) = leaving(sandbox, &[], LEFT);
        assert_eq!(sandbox.state("x"), "held");
        sandbox.csalock(["run", "-n", "x", "true"]).capture().exits(75);
        let next = sandbox.waiter("x", "echo next >> log");
        sandbox.file("files/go", "");
        job.wait().complains(3, "");
        next.wait().succeeds();
        assert_eq!((sandbox.read("files/log").as_str(), sandbox.state("x").as_str()), ("end\nnext\n", "free"));
    }

    fn a_signal_ends_what_the_command_left_and_the_status_is_that_of_the_command(sandbox: &Sandbox) {
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            // A shell makes jobs in the background deaf to INT.
            let left = LEFT.replace("setsid dash", "setsid env --default-signal=INT dash");
            let (job, left) = leaving(sandbox, &[], &left);
            job.send(signal);
            job.wait().complains(3, "");
            assert!(!proc::lives(left), "{signal}");
            assert_eq!(sandbox.state("x"), "free");
            forget(sandbox);
        }
    }

    fn what_the_command_left_is_killed_when_the_time_is_over(sandbox: &Sandbox) {
        let said = "csalock: the command was ended: it held lock x longer than --max-hold\n";
        let (job, left) = leaving(sandbox, &["--max-hold", "3s", "--kill-after", "50ms"], DEAF);
        job.wait().complains(137, said);
        assert_eq!((proc::lives(left), sandbox.state("x").as_str()), (false, "free"));
        // The command itself had ended with 3, but the run did not end by itself.
        let done = sandbox.csalock(["history", "--json", "x"]).capture();
        assert!(done.stdout.contains("\"exit_code\":137"), "{done:?}");
    }

    fn the_end_of_a_holder_is_that_of_all_its_processes(sandbox: &Sandbox) {
        for (deaf, kill_after) in [(false, "1h"), (true, "10ms")] {
            let (job, left) = leaving(sandbox, &[], if deaf { DEAF } else { LEFT });
            let done = sandbox.csalock(["unlock", "--force", "--end", "--kill-after", kill_after, "x"]).capture();
            let said = "csalock: lock x: the processes that its command left went on for 10ms, and were killed\n";
            assert_eq!((done.code, done.stderr.as_str()), (Some(0), if deaf { said } else { "" }), "{done:?}");
            assert_eq!((proc::lives(left), sandbox.state("x").as_str()), (false, "free"));
            job.wait().complains(3, "");
            forget(sandbox);
        }
    }

    fn another_copy_of_csalock_is_known_as_a_supervisor(sandbox: &Sandbox) {
        let copy = sandbox.path("copy/csalock");
        std::fs::create_dir_all(sandbox.path("copy")).unwrap();
        for is_replaced in [false, true] {
            // A file that this process writes is busy while a child of another test has its descriptor.
            sandbox.call("cp", [Path::new(env!("CARGO_BIN_EXE_csalock")), &copy]).run();
            let job = sandbox.call(&copy, ["run", "--tree", "x", "dash", "-c", &format!("{DEAF} exit 3")]).spawn();
            wait_until("it runs", || sandbox.path("files/pid").exists());
            wait_until("the command has ended", || sandbox.holders("x") == [job.pid()]);
            if is_replaced {
                std::fs::remove_file(&copy).unwrap();
            }
            let left: i32 = sandbox.read("files/pid").trim().parse().unwrap();
            sandbox.csalock(["unlock", "-q", "--force", "--end", "--kill-after", "10ms", "x"]).capture().exits(0);
            assert_eq!((proc::lives(left), sandbox.state("x").as_str()), (false, "free"));
            job.wait().complains(3, "");
            forget(sandbox);
        }
    }

    fn the_keeper_kills_what_the_command_left_if_the_supervisor_is_stopped(sandbox: &Sandbox) {
        let (job, left) = leaving(sandbox, &["--ttl", "4s"], DEAF);
        job.send(Signal::SIGSTOP);
        wait_until("it is killed", || !proc::lives(left));
        job.send(Signal::SIGCONT);
        // Its lease may be over by now, so it may have lost the lock besides.
        job.wait().exits(85);
    }

    fn a_keeper_of_another_lock_does_not_count(sandbox: &Sandbox) {
        let mut other = sandbox.script("dash", "echo $$; read line").ready();
        let owner = other.lines(1)[0].clone();
        sandbox.csalock(["run", "--tree", "x", "csalock", "lock", "--pid", &owner, "y"]).run();
        assert_eq!((sandbox.state("x").as_str(), sandbox.state("y").as_str()), ("free", "held"));
        other.tell("go");
        other.wait().exits(0);
    }
}

on_every_store_of_files! {
    fn a_signal_reaches_the_command_and_all_others(sandbox: &Sandbox) {
        let script = format!("trap 'exit 5' TERM; {LEFT} while :; do sleep 0.01; done");
        for lives in [true, false] {
            let mut job = sandbox.csalock(["run", "--tree", "x", "dash", "-c", &script]).spawn();
            wait_until("it runs", || sandbox.path("files/pid").exists());
            let left: i32 = sandbox.read("files/pid").trim().parse().unwrap();
            let command = sandbox.holders("x")[0];
            match lives {
                true => {
                    job.send(Signal::SIGTERM);
                    // The shell reports the end of its child.
                    job.wait().exits(5);
                }
                // Without its supervisor, the lock is that of the command alone.
                false => {
                    job.kill();
                    assert_eq!(sandbox.holders("x"), [command]);
                    kill(Pid::from_raw(command), Signal::SIGKILL).unwrap();
                    wait_until("it is stale", || sandbox.state("x") == "abandoned");
                    kill(Pid::from_raw(left), Signal::SIGKILL).unwrap();
                }
            }
            wait_until("the other has ended", || !proc::lives(left));
            sandbox.csalock(["run", "-q", "x", "true"]).run();
            forget(sandbox);
        }
    }

    fn other_signals_are_for_the_command_alone(sandbox: &Sandbox) {
        let script = format!("trap 'touch go' USR1; {LEFT} while [ ! -e go ]; do sleep 0.01; done; exit 4");
        let job = sandbox.csalock(["run", "--tree", "x", "dash", "-c", &script]).spawn();
        wait_until("it runs", || sandbox.path("files/pid").exists());
        job.send(Signal::SIGUSR1);
        job.wait().complains(4, "");
        assert_eq!(sandbox.read("files/log"), "end\n");
    }

    fn earlier_children_of_a_script_that_becomes_csalock_do_not_count(sandbox: &Sandbox) {
        sandbox.script("dash", "sleep 3600 & exec csalock run --tree x true").run();
    }

    fn what_goes_on_after_the_end_of_its_command_is_told(sandbox: &Sandbox) {
        let script = format!("{LEFT} while :; do sleep 0.01; done");
        let options: [&[&str]; 2] = [&[], &["--max-hold", "2s"]];
        for option in options {
            let job = sandbox.csalock([&["run"], option, &["x", "dash", "-c", &script]].concat()).spawn();
            wait_until("it runs", || sandbox.path("files/pid").exists());
            let left = sandbox.read("files/pid").trim().to_string();
            if option.is_empty() {
                job.send(Signal::SIGTERM);
            }
            let done = job.wait();
            assert_eq!(done.code, Some(if option.is_empty() { 143 } else { 124 }), "{done:?}");
            // On a busy machine a short sleep of its loop is named as well.
            let goes_on = "csalock: processes of the ended command go on without lock x: pid ";
            let is_named = done.stderr.contains(goes_on) && done.stderr.contains(&format!("pid {left}"));
            assert!(is_named && done.stderr.ends_with("; to end them too, use --tree\n"), "{done:?}");
            let ended = "csalock: the command was ended: it held lock x longer than --max-hold\n";
            assert_eq!(done.stderr.starts_with(ended), !option.is_empty(), "{done:?}");
            sandbox.file("files/go", "");
            wait_until("it has ended", || sandbox.read("files/log") == "end\n");
            forget(sandbox);
        }
        // A command that ends by itself is not looked at. The group of the call is killed at its end, and what the command
        // leaves must be in a session of its own by then.
        let script = format!("{LEFT} until [ -e pid ]; do sleep 0.01; done; exit 3");
        sandbox.csalock(["run", "x", "dash", "-c", &script]).capture().complains(3, "");
        sandbox.file("files/go", "");
        wait_until("it has ended", || sandbox.read("files/log") == "end\n");
    }
}

/// A script that ends when the file `fork` is there, and leaves another one, in sessions of their own. Each writes its pid
/// first.
const FORKING: &str = "setsid dash -c 'echo $$ > new; mv new first; while [ ! -e fork ]; do sleep 0.01; done; \
                       setsid dash -c \"echo \\$\\$ > new; mv new second; while [ ! -e go ]; do sleep 0.01; done\" &' &";

fn pid_in(sandbox: &Sandbox, file: &str) -> i32 {
    wait_until("a process wrote its pid", || sandbox.path("files").join(file).exists());
    sandbox.read(&format!("files/{file}")).trim().parse().unwrap()
}

#[test]
fn a_child_that_forks_and_ends_between_the_looks_of_the_supervisor_does_not_end_the_lock() {
    let sandbox = Sandbox::new(Kind::Directory);
    require!(has("strace"));
    if !std::path::Path::new("/proc/self/syscall").exists() {
        return skip("system calls", "this kernel does not show the system call of a process");
    }
    // Each wait for a child begins late, so the child can fork and end after the supervisor has found it.
    let late = ["-qq", "-o", "/dev/null", "-e", "trace=wait4", "-e", "inject=wait4:delay_enter=1000000"];
    let words = ["csalock", "run", "--tree", "x", "dash", "-c", FORKING];
    let mut job = sandbox.call("strace", [&late[..], &words[..]].concat()).spawn();
    let first = pid_in(&sandbox, "first");
    // The supervisor is the owner that lives.
    wait_until(
        "the command has ended",
        || matches!(sandbox.holders("x")[..], [pid] if proc::program(pid) == "csalock"),
    );
    let supervisor = sandbox.holders("x")[0];
    let waits_for = |pid: i32| {
        let call = std::fs::read_to_string(format!("/proc/{supervisor}/syscall")).unwrap_or_default();
        call.split(' ').nth(1) == Some(&format!("{pid:#x}"))
    };
    wait_until("the supervisor has found it", || waits_for(first));
    sandbox.file("files/fork", "");
    let second = pid_in(&sandbox, "second");
    wait_until("the supervisor looks for the other", || job.has_ended() || waits_for(second));
    assert!(!job.has_ended() && proc::stat(first).is_none());
    assert_eq!((sandbox.holders("x"), proc::lives(second)), (vec![supervisor], true));
    sandbox.file("files/go", "");
    job.wait().complains(0, "");
}

/// A job that a script started before it became csalock. It ends when the file `fork` is there, and leaves another one.
fn with_earlier_job<'a>(sandbox: &'a Sandbox, command: &str) -> Call<'a> {
    sandbox.script("dash", &format!("{FORKING} exec csalock run --tree x dash -c \"{command}\""))
}

#[test]
fn jobs_that_began_before_do_not_count_and_are_not_ended() {
    let sandbox = Sandbox::new(Kind::Directory);
    for signal in [None, Some(Signal::SIGTERM), Some(Signal::SIGUSR1), Some(Signal::SIGKILL)] {
        let waits = "trap 'exit 5' TERM; trap 'exit 6' USR1; touch runs; until [ -e end ]; do sleep 0.01; done; exit 3";
        let job = with_earlier_job(&sandbox, waits).spawn();
        wait_until("it runs", || sandbox.path("files/runs").exists());
        let first = pid_in(&sandbox, "first");
        sandbox.file("files/fork", "");
        let second = pid_in(&sandbox, "second");
        wait_until("the first has ended", || !proc::lives(first));
        match signal {
            None => _ = sandbox.file("files/end", ""),
            Some(Signal::SIGKILL) => kill(Pid::from_raw(sandbox.holders("x")[0]), Signal::SIGKILL).unwrap(),
            Some(signal) => job.send(signal),
        }
        let code = match signal {
            None => 3,
            Some(Signal::SIGTERM) => 5,
            Some(Signal::SIGUSR1) => 6,
            Some(_) => 137,
        };
        // A shell reports the end of its child.
        job.wait().exits(code);
        assert_eq!((sandbox.state("x").as_str(), proc::lives(second)), ("free", true), "{signal:?}");
        sandbox.file("files/go", "");
        wait_until("the second has ended", || !proc::lives(second));
        let _ = std::fs::remove_file(sandbox.path("files/end"));
        ["runs", "first", "second", "fork", "go"].iter().for_each(|file| forget_one(&sandbox, file));
    }
}

fn forget_one(sandbox: &Sandbox, file: &str) {
    std::fs::remove_file(sandbox.path("files").join(file)).unwrap();
}

#[test]
fn processes_that_join_a_container_do_not_count() {
    let sandbox = Sandbox::new(Kind::Directory);
    require!(has_namespaces("a pid namespace"));
    let alone = ["unshare", "-pf", "--kill-child", "--mount-proc"].map(str::to_string);
    let command = "touch runs; until [ -e end ]; do sleep 0.01; done; exit 3";
    let mut job = sandbox.csalock_by(&alone, &["run", "--tree", "x", "dash", "-c", command]).spawn();
    wait_until("it runs", || sandbox.path("files/runs").exists());
    let init = proc::children(job.pid())[0].to_string();
    // The first process of the container, csalock, adopts it.
    let joined = "setsid dash -c 'touch joined; while [ ! -e go ]; do sleep 0.01; done' & \
                  until [ -e joined ]; do sleep 0.01; done";
    sandbox.call("nsenter", ["-p", "-t", &init, "dash", "-c", joined]).spawn().wait().exits(0);
    sandbox.file("files/end", "");
    wait_until("the lock ends with the command", || job.has_ended());
    job.wait().complains(3, "");
    sandbox.file("files/go", "");
}

#[test]
fn a_tree_needs_a_supervisor() {
    let sandbox = Sandbox::new(crate::sandbox::Kind::Directory);
    let said = "csalock: the argument '--tree' cannot be used with '--no-fork'; leave one of them out\n";
    for words in [["--tree", "-F"], ["-F", "--tree"]] {
        let done = sandbox.csalock(["run"].iter().chain(&words).chain(&["x", "touch", "ran"])).capture();
        done.exits(64);
        assert!(done.stderr.contains("--tree") && done.stderr.contains("--no-fork"), "{}", done.stderr);
    }
    sandbox.csalock(["run", "--tree", "-F", "x", "touch", "ran"]).status(64).stderr(said).run();
    assert!(!sandbox.path("files/ran").exists());
}
