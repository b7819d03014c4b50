//! Owners beyond shells: programs that only start others, cron, a web server; and processes that are not what they were.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::etcd::free_port;
use crate::sandbox::{Job, Sandbox, has, has_namespaces, is_root, skip, wait_until};

const ORPHAN: &str = "csalock: the process that called csalock has ended, so the lock would have no owner; name the owner with \
                      --pid PID, or keep the lock until it is released with --forever\n";

const NO_OWNER: &str = "csalock: csalock was called only by programs that end with it, so no process would own the lock; name the \
                        owner with --pid PID, or keep the lock until it is released with --forever\n";

const HELD_AND_MINE: &str = "csalock status x >/dev/null; echo $?; csalock unlock x; echo $?";

/// One GET of a CGI: what the script printed.
fn get(port: u16, path: &str) -> String {
    let mut answer = String::new();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
    let _ = stream.read_to_string(&mut answer);
    answer.replace('\r', "").split_once("\n\n").map(|(_, body)| body.to_string()).unwrap_or_default()
}

/// Scripts that lock, under a web server; the server runs for as long as the job lives.
fn cgi(sandbox: &Sandbox, serve: impl Fn(&Sandbox, u16) -> Job) {
    std::fs::create_dir_all(sandbox.path("www/cgi-bin")).unwrap();
    let head = format!(
        "#!/bin/dash\nexport PATH='{}' CSALOCK_STORE='{}'\nprintf 'Content-Type: text/plain\\r\\n\\r\\n'\n",
        sandbox.search_path(),
        sandbox.store()
    );
    let script = "h=$(csalock lock --print-handle x); echo $$; csalock status --json x; csalock unlock x; echo $?";
    sandbox.program("www/cgi-bin/fair", format!("{head}{script}\n"));
    sandbox.program("www/cgi-bin/dies", format!("{head}csalock lock x\nkill -9 $$\n"));
    sandbox.program(
        "www/cgi-bin/slow",
        format!("{head}csalock lock x; touch holds; while [ ! -e go ]; do sleep 0.01; done\n"),
    );
    let port = free_port();
    let _server = serve(sandbox, port);
    wait_until("the web server answers", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    for _ in 0..3 {
        let body = get(port, "/cgi-bin/fair");
        let lines: Vec<&str> = body.lines().collect();
        let sight: serde_json::Value = serde_json::from_str(lines[1]).unwrap();
        assert_eq!((sight[0]["holders"][0]["pid"].to_string().as_str(), lines[2]), (lines[0], "0"), "{body}");
    }
    get(port, "/cgi-bin/dies");
    wait_until("the script is dead", || sandbox.state("x") == "free");
    let body = get(port, "/cgi-bin/fair");
    assert!(body.ends_with("\n0\n"), "{body}");
    let request = std::thread::spawn(move || get(port, "/cgi-bin/slow"));
    wait_until("the script holds", || sandbox.path("www/cgi-bin/holds").exists());
    sandbox.csalock(["lock", "-n", "x"]).capture().exits(75);
    sandbox.csalock(["unlock", "x"]).capture().exits(82);
    sandbox.file("www/cgi-bin/go", "");
    request.join().unwrap();
    sandbox.csalock(["run", "-q", "x", "true"]).run();
}

on_every_store! {
    fn programs_that_start_others_are_stepped_over(sandbox: &Sandbox) {
        for starter in ["env", "env -u NONE", "timeout 60", "timeout --foreground 60", "nice", "nohup", "setsid", "setsid -w",
                        "stdbuf -o0", "ionice", "taskset 3", "setpriv --no-new-privs", "env timeout 60 nice", "flock file",
                        "busybox env", "busybox timeout 60", "busybox setsid", "strace -o /dev/null", "command", "exec 3<&-;"] {
            if !starter.starts_with("command") && !starter.starts_with("exec") && !has(starter.split(' ').next().unwrap()) {
                continue;
            }
            let script = format!("{starter} csalock lock x >/dev/null; {HELD_AND_MINE}");
            let done = sandbox.script("dash", &script).capture();
            assert_eq!((done.stdout.as_str(), done.stderr.replace("nohup: ignoring input\n", "")), ("0\n0\n", String::new()), "{starter}");
        }
    }

    fn programs_with_csalock_as_an_argument_are_stepped_over(sandbox: &Sandbox) {
        for wrapper in ["tini -s -- csalock lock x", "dumb-init csalock lock x", "parallel --will-cite csalock lock ::: x",
                        "bwrap --dev-bind / / csalock lock x", "gosu root csalock lock x",
                        "su root -s /bin/sh -c \"exec $(command -v csalock) lock x\"",
                        "su root -s /bin/bash -c \"$(command -v csalock) lock x 2>&1\"", "dash -c 'csalock lock x > /dev/null'",
                        "su root -s /bin/dash -c \"A=1 $(command -v csalock) lock x\"",
                        "parallel --will-cite 'csalock lock {} > /dev/null' ::: x"] {
            let program = wrapper.split(' ').next().unwrap();
            if !has(program) || (["bwrap", "gosu", "su"].contains(&program) && !is_root(program)) {
                continue;
            }
            sandbox.script("dash", &format!("{wrapper} >/dev/null; {HELD_AND_MINE}")).stdout("0\n0\n").run();
        }
    }

    fn a_wrapper_program_that_goes_on_is_the_owner_as_long_as_it_lives(sandbox: &Sandbox) {
        require!(has("python3"));
        let wrapper = "import subprocess, sys; subprocess.call(sys.argv[1:]); sys.stdin.read()";
        let begin = format!("mkfifo end; python3 -c '{wrapper}' csalock lock --print-handle x < end > handle & exec 9> end");
        let end = "csalock unlock -q x; echo $?; exec 9>&-; wait; csalock unlock x; echo $?";
        let script = format!("{begin}; while [ ! -s handle ]; do sleep 0.01; done; {end}");
        sandbox.script("dash", &script).stdout("82\n0\n").run();
    }

    fn a_fork_of_another_program_than_a_shell_is_an_owner_of_its_own(sandbox: &Sandbox) {
        // As a server does that has workers, and cron(8).
        let server = "import os, subprocess\nif os.fork() == 0:\n    subprocess.call(['csalock', 'lock', 'x'])\n    os._exit(0)\n\
                      os.wait()\nsubprocess.call(['csalock', 'status', '--json', 'x'])\n";
        let done = sandbox.call("python3", ["-c", server]).capture();
        assert!(done.stdout.contains("\"state\":\"free\""), "{done:?}");
    }

    fn a_program_that_may_go_on_is_the_caller(sandbox: &Sandbox) {
        sandbox.program("files/wrapper", "#!/bin/bash\n\"$@\"\n:\n");
        let system = "import os; os.system('$(command -v csalock) lock x')";
        for caller in ["bash -c 'csalock lock x; :'", "bash -c 'csalock lock x && :'", "./wrapper csalock lock x",
                       &format!("python3 -c \"{system}\""), "perl -e 'system qw( csalock lock x )'",
                       "busybox sh -c 'csalock lock x\n:'"] {
            if !caller.starts_with("./") && !has(caller.split(' ').next().unwrap()) {
                continue;
            }
            sandbox.script("dash", &format!("{caller} >/dev/null; csalock status -q x >/dev/null; echo $?")).stdout("81\n").run();
            sandbox.csalock(["run", "-q", "x", "true"]).run();
        }
    }

    fn a_caller_under_wrapper_programs_alone_has_no_owner(sandbox: &Sandbox) {
        require!(has("tini") && has_namespaces("a pid namespace"));
        for words in [&["tini", "--", "csalock", "lock", "x"][..], &["csalock", "lock", "x"]] {
            let words = [&["-pf", "--mount-proc"], words].concat();
            sandbox.call("unshare", words).status(64).stderr(NO_OWNER).run();
        }
        assert_eq!(sandbox.state("x"), "free");
    }

    fn a_session_that_was_begun_for_the_call_is_warned_of(sandbox: &Sandbox) {
        // Like a server that runs one command in a session of its own: sshd(8).
        let server = "import os, subprocess; subprocess.call(['sh', '-c', os.environ['COMMAND']], start_new_session=True)";
        let serve = |command: &str| sandbox.call("python3", ["-c", server]).env("COMMAND", command);
        let done = serve("csalock lock x").capture();
        let pid: u32 = done.stderr.split(' ').nth(6).and_then(|pid| pid.parse().ok()).unwrap_or_else(|| panic!("{done:?}"));
        let warning = format!(
            "csalock: lock x ends with process {pid} (python3 -c {server}), maybe right after this call; name another owner \
             with --pid PID, or keep the lock until it is released with --forever\n"
        );
        assert_eq!((done.code, done.stderr), (Some(0), warning));
        assert_eq!(sandbox.state("x"), "free");
        serve("csalock lock -q y").run();
        serve("csalock lock --forever z").run();
        serve("csalock lock v > /dev/null; csalock unlock v").run();
    }

    fn xargs_and_find_are_stepped_over(sandbox: &Sandbox) {
        sandbox.script("dash", &format!("echo x | xargs csalock lock >/dev/null; {HELD_AND_MINE}")).stdout("0\n0\n").run();
        sandbox.script("dash", &format!("find . -maxdepth 0 -exec csalock lock x ';' >/dev/null; {HELD_AND_MINE}")).stdout("0\n0\n").run();
    }

    fn a_script_that_is_called_like_a_starter_is_a_script(sandbox: &Sandbox) {
        for name in ["find", "env", "script", "timeout", "systemd-backup"] {
            sandbox.program(&format!("files/{name}"), "#!/bin/sh\ncsalock lock x > /dev/null\nkill -9 $$\n");
            let done = sandbox.script("bash", &format!("./{name}; csalock status -q x >/dev/null; echo $?")).capture();
            assert_eq!(done.stdout, "81\n", "{name}");
            sandbox.csalock(["run", "-q", "x", "true"]).run();
        }
    }

    fn sudo_is_stepped_over(sandbox: &Sandbox) {
        require!(has("sudo"));
        if sandbox.call("sudo", ["-n", "true"]).capture().code != Some(0) {
            return skip("sudo", "it asks for a password here");
        }
        let script = format!("sudo -n --preserve-env=PATH,CSALOCK_STORE $(command -v csalock) lock x >/dev/null; {HELD_AND_MINE}");
        sandbox.script("dash", &script).stdout("0\n0\n").run();
        let script = format!("h=$(sudo -n --preserve-env=CSALOCK_STORE $(command -v csalock) lock --print-handle x); {HELD_AND_MINE}");
        sandbox.script("bash", &script).stdout("0\n0\n").run();
    }

    fn a_cron_job_has_next_to_no_environment(sandbox: &Sandbox) {
        let script = format!("PATH={}; cd /; h=$(csalock lock --print-handle --store {} x); csalock status --store {} -1; csalock unlock --store {} x; echo $?",
            sandbox.search_path(), sandbox.store(), sandbox.store(), sandbox.store());
        sandbox.call("env", ["-i", "setsid", "-w", "/bin/sh", "-c", &script]).stdout("x\n0\n").run();
        let closed = format!("exec <&- 2>&-; {script}");
        sandbox.call("env", ["-i", "setsid", "-w", "/bin/sh", "-c", &closed]).stdout("x\n0\n").run();
    }

    fn cron_and_login_shell_agree_on_the_default_store(sandbox: &Sandbox) {
        require!(has_namespaces("the default store of root"));
        let script = "mount -t tmpfs none /var/lib || exit; \
                      env -i $(command -v csalock) lock --forever x; \
                      env -u CSALOCK_STORE HOME=/nowhere csalock status -1; ls -ld /var/lib/csalock | cut -c1-10";
        sandbox.call("unshare", ["-m", "dash", "-c", script]).stdout("x\ndrwxr-xr-x\n").run();
    }

    fn a_user_has_a_store_of_their_own(sandbox: &Sandbox) {
        require!(is_root("another user"));
        let nobody = 65534;
        for below in ["home", "state"] {
            std::os::unix::fs::chown(sandbox.path(below), Some(nobody), Some(nobody)).unwrap();
        }
        let call = |words: &[&str]| sandbox.csalock(words).without("CSALOCK_STORE").user(nobody);
        call(&["lock", "--forever", "x"]).capture().exits(0);
        call(&["status", "-1"]).stdout("x\n").run();
        assert!(sandbox.path("state/csalock").is_dir());
        call(&["lock", "--forever", "y"]).without("XDG_STATE_HOME").run();
        call(&["status", "-1"]).without("XDG_STATE_HOME").stdout("y\n").run();
        assert!(sandbox.path("home/.local/state/csalock").is_dir());
    }

    fn a_cgi_script_under_busybox_httpd(sandbox: &Sandbox) {
        require!(has("busybox"));
        cgi(sandbox, |sandbox, port| {
            let root = sandbox.path("www").display().to_string();
            sandbox.call("busybox", ["httpd", "-f", "-p", &format!("127.0.0.1:{port}"), "-h", &root]).spawn()
        });
    }

    fn a_caller_that_has_ended_owns_nothing(sandbox: &Sandbox) {
        // The inner shell becomes csalock when the outer one is gone.
        let inner = "while grep -q \"^PPid:.$OUTER\\$\" /proc/$$/status; do sleep 0.01; done; exec csalock lock $OPTIONS x > said 2>&1";
        let outer = format!("OUTER=$$ setsid dash -c '{inner}' &");
        let verbose = format!("csalock: lock x was acquired, token TOKEN, no owner, store {}\n", sandbox.plain(&sandbox.store()));
        for (options, wanted) in [("", ORPHAN), ("--print-handle --ttl 1h", "HANDLE\n"), ("-v --forever", &verbose)] {
            let _group = sandbox.script("dash", &outer).env("OPTIONS", options).stdin("").spawn();
            wait_until("csalock has spoken", || sandbox.read("files/said").ends_with('\n'));
            assert_eq!(sandbox.plain(&sandbox.read("files/said")), wanted, "{options}");
            assert_eq!(sandbox.state("x"), if options.is_empty() { "free" } else { "held" });
            // It lasts, although no owner lives.
            let code = sandbox.csalock(["run", "-q", "-w", "1s", "x", "true"]).capture().code;
            assert_eq!(code, Some(if options.is_empty() { 0 } else { 75 }), "{options}");
            sandbox.csalock(["unlock", "--force", "x"]).capture();
            std::fs::remove_file(sandbox.path("files/said")).unwrap();
        }
        // The handle of a lock with a time limit can release it, if it was printed. A script that was killed leaves none.
        let _group = sandbox.script("dash", &outer).env("OPTIONS", "--ttl 1h").stdin("").spawn();
        wait_until("csalock has spoken", || sandbox.read("files/said").ends_with('\n'));
        assert_eq!((sandbox.read("files/said").as_str(), sandbox.state("x").as_str()), (ORPHAN, "free"));
    }
}
