//! The answers of the commands: what they print, where, and the next step that they name.

use crate::sandbox::{Kind, has, steps};

/// The warning about an owner that ends with the call.
fn ends_with_call(name: &str, command: &str) -> String {
    format!(
        "csalock: lock {name} ends with this call, because its owner does nothing more: pid PID ({command}); use `csalock run \
         {name} COMMAND`, or name its parent as the owner with --pid $PPID (in a Makefile: $$PPID)\n"
    )
}

on_every_kind_of_store! {
    fn verbose_lock_names_token_owner_and_store(sandbox: &Sandbox) {
        let script = "csalock lock -v x ./file; csalock lock -v --print-handle --forever y; :";
        let owner = format!("owner pid PID (dash -c {script}), store {}", sandbox.plain(&sandbox.store()));
        let said = format!("csalock: lock SANDBOX/files/file is taken, token TOKEN, {owner}\n\
                            csalock: lock x is taken, token TOKEN, {owner}\ncsalock: lock y is taken, token TOKEN, {owner}\n");
        sandbox.script("dash", script).stdout("HANDLE\n").stderr(said).run();
    }

    fn a_verbose_takeover_is_reported_with_the_new_owner(sandbox: &Sandbox) {
        sandbox.script("dash", "csalock lock x; :").run();
        sandbox.await_abandoned("x");
        let said = format!("csalock: lock x was taken over from pid PID on HOST (user USER) since TIME (AGE ago): dash -c csalock lock x; :, \
                            which died without releasing it\ncsalock: lock x is taken, token TOKEN, owner pid PID (TEST), store {}\n",
                           sandbox.plain(&sandbox.store()));
        sandbox.csalock(["lock", "-v", "x"]).stderr(said).run();
    }

    fn a_shell_that_ends_with_the_call_is_warned_of(sandbox: &Sandbox) {
        for shell in ["dash", "bash", "mksh", "busybox sh"] {
            let text = "csalock lock x || exit 1";
            sandbox.script(shell, text).stderr(ends_with_call("x", &format!("{shell} -c {text}"))).run();
            sandbox.csalock(["run", "-q", "x", "true"]).run();
            sandbox.script(shell, "csalock lock -q x || exit 1").run();
            sandbox.csalock(["run", "-q", "x", "true"]).run();
            // These locks do not end with the call, or the shell goes on.
            sandbox.script(shell, "csalock lock x || exit 1; csalock unlock x").run();
            sandbox.script(shell, "csalock lock x && csalock unlock x").run();
            sandbox.script(shell, "csalock lock --forever x || exit 1").run();
            sandbox.csalock(["unlock", "-q", "--force", "x"]).capture();
            sandbox.script(shell, "csalock lock --pid $PPID x || exit 1").run();
            sandbox.csalock(["unlock", "x"]).run();
        }
    }

    fn make_perl_and_python_are_warned_where_a_shell_is_the_owner(sandbox: &Sandbox) {
        let held = "csalock status x && ! csalock status y && exit 0 || exit 1";
        if has("make") {
            // Make runs a plain command itself. It owns the lock until it ends.
            sandbox.file("files/Makefile", format!("all:\n\t@csalock lock x\n\t@csalock lock y || exit 1\n\
                                                    \t@csalock lock \"$$NAME\" && :\n\t@({held}) > /dev/null\n"));
            let said = ends_with_call("y", "/bin/sh -c csalock lock y || exit 1");
            sandbox.call("make", ["-s"]).env("NAME", "z").stderr(said).run();
            sandbox.csalock(["gc"]).capture();
        }
        let calls = ["csalock lock x", "csalock lock y || exit 1", "csalock lock z 2>&1"];
        let said = ends_with_call("y", "sh -c csalock lock y || exit 1");
        let then = format!("({held}) > /dev/null");
        if has("perl") {
            let script = calls.iter().map(|call| format!("system(\"{call}\");")).collect::<String>();
            sandbox.call("perl", ["-e", &format!("{script} exit(system(\"{then}\") >> 8)")]).stderr(&said).run();
            sandbox.csalock(["gc"]).capture();
        }
        if has("python3") {
            let script = calls.iter().map(|call| format!("os.system('{call}');")).collect::<String>();
            let script = format!("import os, sys; {script} sys.exit(os.system('{then}') >> 8)");
            sandbox.call("python3", ["-c", &script]).stderr(&said).run();
        }
    }

    fn the_number_of_an_open_file_is_warned_of(sandbox: &Sandbox) {
        sandbox.file("files/a b", "");
        let warning = |name: &str, file: &str, quoted: &str| format!(
            "csalock: lock {name} is not the lock of descriptor {name}, which is open on SANDBOX/files/{file}; to lock that file, use \
             `csalock lock {quoted}`\n"
        );
        let script = "exec 9> 'a b'; csalock lock 9; csalock status -1; csalock unlock 9";
        for shell in ["dash", "bash", "zsh", "busybox sh"] {
            sandbox.script(shell, script).stdout("9\n").stderr(warning("9", "a b", "'SANDBOX/files/a b'")).run();
        }
        sandbox.script("dash", "( csalock lock 8 || exit 1; csalock unlock 8; ) 8> file").stderr(warning("8", "file", "SANDBOX/files/file")).run();
        sandbox.script("dash", "(csalock lock 9; csalock unlock 9) 9< .").stderr(warning("9", "", "SANDBOX/files").replace("files/;", "files;")).run();
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
        if !has("strace") {
            return;
        }
        let calls = match sandbox.kind() {
            Kind::Directory | Kind::Shared => ["renameat", "close"],
            Kind::Sqlite => ["pwrite64", "close"],
            Kind::Etcd => ["sendto", "close"],
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
