//! Job control on a real terminal: Ctrl-C, Ctrl-Z, fg, and reading from it.

use crate::sandbox::{Sandbox, has};

/// Plays an interactive bash on a pseudo-terminal: each line is typed when what stands before its tab was seen.
const PLAYER: &str = r#"
import os, pty, select, sys, time
pid, terminal = pty.fork()
if pid == 0:
    os.environ["PS1"] = "ready> "
    os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
seen = ""
for line in sys.stdin.read().splitlines():
    wanted, typed = line.split("\t")
    deadline = time.time() + 30
    while wanted not in seen:
        if time.time() > deadline or not select.select([terminal], [], [], 30)[0]:
            sys.exit("waited in vain for %r; saw %r" % (wanted, seen))
        data = os.read(terminal, 4096).decode(errors="replace")
        sys.stdout.write(data)
        seen += data
    seen = seen[seen.index(wanted) + len(wanted):]
    os.write(terminal, typed.encode().decode("unicode_escape").encode())
try:
    while True:
        data = os.read(terminal, 4096)
        if not data: break
        sys.stdout.write(data.decode(errors="replace"))
except OSError:
    pass
"#;

fn play(sandbox: &Sandbox, lines: &[(&str, &str)]) -> String {
    let lines: String = lines.iter().map(|(wanted, typed)| format!("{wanted}\t{typed}\n")).collect();
    let done = sandbox.call("python3", ["-c", PLAYER]).env("TERM", "dumb").stdin(lines).capture();
    assert_eq!(done.code, Some(0), "{done:?}");
    done.stdout.replace('\r', "")
}

on_every_store! {
    fn ctrl_c_ends_the_command_and_the_shell_sees_it(sandbox: &Sandbox) {
        if !has("python3") {
            return;
        }
        let seen = play(sandbox, &[
            ("ready> ", "csalock run x dash -c 'echo beg''un; exec sleep 60'\\n"),
            ("begun", "\\x03"),
            ("ready> ", "echo status=$?; csalock status x >/dev/null; echo held=$?\\n"),
            ("held=81", "exit\\n"),
        ]);
        assert!(seen.contains("status=130\n"), "{seen}");
    }

    fn ctrl_c_ends_a_loop_around_us(sandbox: &Sandbox) {
        if !has("python3") {
            return;
        }
        let seen = play(sandbox, &[
            ("ready> ", "for i in 1 2 3; do csalock run x dash -c 'echo beg''un; exec sleep 60'; done\\n"),
            ("begun", "\\x03"),
            ("ready> ", "echo ov''er\\n"),
            ("over", "exit\\n"),
        ]);
        assert_eq!(seen.matches("begun").count(), 1, "{seen}");
    }

    fn ctrl_c_ends_a_wait(sandbox: &Sandbox) {
        if !has("python3") {
            return;
        }
        let _holder = sandbox.holder("x");
        let seen = play(sandbox, &[
            ("ready> ", "csalock run -w inf x true\\n"),
            ("waiting for lock x", "\\x03"),
            ("ready> ", "echo status=$?\\n"),
            ("status=130", "csalock lock -w inf x\\n"),
            ("waiting for lock x", "\\x03"),
            ("ready> ", "echo next=$?\\n"),
            ("next=130", "exit\\n"),
        ]);
        assert!(seen.contains("waiting for lock x: pid "), "{seen}");
        assert!(sandbox.waiters("x").is_empty());
    }

    fn a_command_that_survives_ctrl_c_is_waited_for(sandbox: &Sandbox) {
        if !has("python3") {
            return;
        }
        play(sandbox, &[
            ("ready> ", "csalock run x dash -c 'trap \"echo caug\"ht INT; echo beg''un; until read line; do :; done; exit 4'\\n"),
            ("begun", "\\x03"),
            ("caught", "one\\n"),
            ("ready> ", "echo status=$?\\n"),
            ("status=4", "exit\\n"),
        ]);
    }

    fn ctrl_z_stops_and_fg_goes_on(sandbox: &Sandbox) {
        if !has("python3") {
            return;
        }
        // A command that reads might yet swallow what is typed after the wrapper alone is seen to have stopped.
        play(sandbox, &[
            ("ready> ", "csalock run x dash -c 'echo beg''un; while [ ! -e go ]; do sleep 0.02; done; exit 5'\\n"),
            ("begun", "\\x1a"),
            ("Stopped", ""),
            ("ready> ", "touch go; csalock status x >/dev/null; echo held=$?\\n"),
            ("held=0", "fg; echo status=$?\\n"),
            ("status=5", "exit\\n"),
        ]);
    }

    fn in_the_background_it_runs_and_can_be_brought_back(sandbox: &Sandbox) {
        if !has("python3") {
            return;
        }
        play(sandbox, &[
            ("ready> ", "csalock run x dash -c 'read line; echo got:$line; exit 6' &\\n"),
            ("ready> ", "while ! jobs -l | grep -q Stopped; do sleep 0.01; done; fg\\n"),
            ("csalock run x", "word\\n"),
            ("got:word", "echo status=$?\\n"),
            ("status=6", "exit\\n"),
        ]);
    }

    fn the_command_sees_the_terminal(sandbox: &Sandbox) {
        if !has("python3") {
            return;
        }
        play(sandbox, &[
            ("ready> ", "csalock run x dash -c 'test -t 0 && test -t 1 && test -t 2 && echo is-a-t''ty; stty -a | grep -o isig'\\n"),
            ("is-a-tty", "exit\\n"),
        ]);
    }
}
