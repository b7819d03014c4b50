//! A value that a script read under its lock is never written after that lock has ended, however the script, its grant
//! and its `csalock put` come to their ends.

use std::fs::OpenOptions;
use std::io::Write;

use nix::sys::stat::Mode;

use crate::sandbox::{Done, Job, Sandbox, proc, wait_until};

/// Creates a pipe for the stdin of a `put`. The `put` has read its value, and looks for its caller, once the pipe is
/// closed.
fn pipe(sandbox: &Sandbox) -> std::fs::File {
    let path = sandbox.path("files/line");
    nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn kill_script(script: &mut Job) {
    let is_put = |pid: i32| proc::command(pid).starts_with("csalock put");
    wait_until("put reads its stdin", || proc::in_group(script.pid()).into_iter().any(is_put));
    script.kill();
}

/// Lets other scripts add one to the value under the lock. They end with this command.
fn count(sandbox: &Sandbox, times: usize, end: &str) {
    for _ in 0..times {
        let script = format!("n=$(csalock get -q --lock x); csalock put -q x $((n + 1)); {end}");
        sandbox.call("setsid", ["-w", "dash", "-c", &script]).run();
    }
}

/// Sends the value to an orphaned `put`, and returns what the `put` says.
fn send(mut pipe: std::fs::File, value: &str, script: Job) -> String {
    pipe.write_all(value.as_bytes()).unwrap();
    drop(pipe);
    wait_until("put ends", || proc::in_group(script.pid()).is_empty());
    script.said()
}

fn value(sandbox: &Sandbox) -> String {
    sandbox.csalock(["get", "x"]).capture().stdout
}

on_every_store! {
    fn the_put_of_a_killed_script_writes_nothing(sandbox: &Sandbox) {
        for (others, end) in [(0, ":"), (3, "csalock unlock x"), (6, "csalock unlock x"), (3, ":"), (6, ":")] {
            sandbox.csalock(["put", "x", "10"]).run();
            let pipe = pipe(sandbox);
            let mut script = sandbox.script("bash", "n=$(csalock get --lock x); echo $n; csalock put x - < line; :").ready();
            kill_script(&mut script);
            count(sandbox, others, end);
            let said = send(pipe, "11", script);
            assert!(said.starts_with("csalock: nothing was written, because "), "{others} {end}: {said:?}");
            assert_eq!(value(sandbox), (10 + others).to_string(), "{others} {end}");
            std::fs::remove_file(sandbox.path("files/line")).unwrap();
        }
    }

    fn the_subshell_of_a_killed_script_writes_nothing(sandbox: &Sandbox) {
        sandbox.csalock(["put", "x", "10"]).run();
        let pipe = pipe(sandbox);
        let text = "csalock get --lock x; echo; ( csalock put x - < line; echo $? ) & wait; :";
        let mut script = sandbox.script("dash", text).ready();
        kill_script(&mut script);
        count(sandbox, 2, ":");
        let said = send(pipe, "11", script);
        assert!(said.starts_with("csalock: nothing was written, because lock x "), "{said:?}");
        assert_eq!(value(sandbox), "12");
    }

    fn the_put_that_a_script_without_a_lock_left_behind_writes(sandbox: &Sandbox) {
        sandbox.csalock(["put", "x", "10"]).run();
        count(sandbox, 6, ":");
        let pipe = pipe(sandbox);
        let mut script = sandbox.script("dash", "echo in; ( csalock put x - < line ); :").ready();
        kill_script(&mut script);
        assert_eq!(send(pipe, "new", script), "");
        assert_eq!(value(sandbox), "new");
    }

    fn a_script_learns_of_the_end_of_its_grant_however_many_held_the_lock_since(sandbox: &Sandbox) {
        let lease = sandbox.lease("50ms");
        for (option, after) in [(format!("--ttl {lease}"), 1), (format!("--ttl {lease}"), 6), (String::new(), 6)] {
            sandbox.csalock(["put", "x", "10"]).run();
            let text = format!(
                "n=$(csalock get --lock {option} x); echo in; read line; csalock put -q x $((n + 1)); echo $?
                 csalock put -q --unlock x late; echo $?; csalock del -q x; echo $?"
            );
            let mut script = sandbox.script("dash", &text).ready();
            if option.is_empty() {
                sandbox.csalock(["unlock", "--force", "x"]).capture();
            }
            wait_until("the grant is over", || sandbox.state("x") != "held");
            count(sandbox, after, ":");
            script.tell("go");
            assert_eq!(script.wait().stdout, "in\n82\n82\n82\n", "{option} {after}");
            assert_eq!(value(sandbox), (10 + after).to_string(), "{option} {after}");
        }
        sandbox.csalock(["del", "x"]).run();
        assert!(sandbox.is_tidy());
    }

    fn a_script_that_had_the_lock_again_is_any_caller_after_its_release(sandbox: &Sandbox) {
        let script = format!(
            "over() {{ while csalock status -q x > /dev/null; do :; done; }}
             n=$(csalock lock --ttl {} --print-handle x); over; csalock put -q x a; echo $?
             for n in 1 2 3 4 5 6; do setsid -w csalock run -q x true; done
             n=$(csalock lock --print-handle x); csalock unlock x
             for n in 1 2 3 4 5 6; do setsid -w csalock run -q x true; done
             csalock put x b; echo $? $(csalock get x)",
            sandbox.lease("50ms")
        );
        sandbox.script("dash", &script).stdout("82\n0 b\n").run();
    }

    fn a_handle_in_the_environment_is_the_only_right_to_write(sandbox: &Sandbox) {
        let handle = sandbox.script("dash", "csalock lock --forever --print-handle x; :").capture().line();
        let put = |name: &str| -> Done {
            sandbox.csalock(["put", "-q", name, "0"]).env("CSALOCK_HANDLE", &handle).capture()
        };
        assert_eq!(put("x").code, Some(0));
        sandbox.csalock(["unlock", "--force", "x"]).capture();
        count(sandbox, 6, ":");
        assert_eq!((put("x").code, put("y").code), (Some(81), Some(81)));
        assert_eq!(value(sandbox), "6");
        // The handle that `run` passes on is for the names that it has locked.
        sandbox.csalock(["run", "y", "csalock", "put", "x", "2"]).run();
        assert_eq!(value(sandbox), "2");
        let script = "csalock unlock --force x > /dev/null; for n in 1 2 3 4 5 6; do setsid -w env -u CSALOCK_HANDLE \
                      -u CSALOCK_NAME csalock run -q x true; done; csalock put -q x late; echo $?";
        let done = sandbox.csalock(["run", "-q", "--on-lost", "warn", "x", "dash", "-c", script]).capture();
        assert_eq!((done.code, done.stdout.as_str(), value(sandbox).as_str()), (Some(85), "82\n", "2"), "{done:?}");
    }
}
