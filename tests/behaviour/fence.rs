//! Files that are replaced under a token: a writer with an old token changes nothing, wherever it was stopped or killed.

mod interrupted;
mod storm;

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};

use nix::sys::signal::Signal;

use crate::sandbox::{Kind, Mount, Sandbox, has_namespaces, is_root, proc, wait_until};

/// Writes with a token, and returns the exit code.
fn write(sandbox: &Sandbox, token: u64, content: &str) -> Option<i32> {
    sandbox.csalock(["fence", "-q", "--token", &token.to_string(), "f"]).stdin(content).capture().code
}

fn shown(sandbox: &Sandbox) -> String {
    sandbox.csalock(["fence", "--show", "f"]).capture().line()
}

/// Returns the names in the directory of the file.
fn names(sandbox: &Sandbox) -> Vec<String> {
    let entries = std::fs::read_dir(sandbox.path("files")).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

on_every_store! {
    fn a_holder_replaces_a_file_and_a_former_holder_does_not(sandbox: &Sandbox) {
        let token = |name| sandbox.csalock(["run", name, "printenv", "CSALOCK_TOKEN"]).capture().line();
        let old = token("x");
        sandbox.csalock(["run", "x", "csalock", "fence", "f", "--", "echo", "one"]).run();
        assert_eq!(sandbox.read("files/f"), "one\n");
        let newer = shown(sandbox);
        assert!(old.parse::<u64>().unwrap() < newer.parse().unwrap());
        let refused = "csalock: SANDBOX/files/f is fenced off: token TOKEN is older than token TOKEN; a later \
                               holder of the lock has written it, so end this job\n";
        sandbox.csalock(["fence", "f"]).env("CSALOCK_TOKEN", &old).stdin("late").status(87).stderr(refused).run();
        sandbox.csalock(["fence", "-q", "f"]).env("CSALOCK_TOKEN", &old).stdin("late").status(87).run();
        sandbox.csalock(["fence", "--json", "f"]).env("CSALOCK_TOKEN", &old).stdin("late").status(87).stdout(
            "{\"lock\":\"SANDBOX/files/f\",\"reason\":\"fenced off\",\"message\":\"SANDBOX/files/f is fenced off: token \
             TOKEN is older than token TOKEN\",\"holders\":[],\"hint\":\"a later holder of the lock has written it, so \
             end this job\",\"exit_code\":87}\n").run();
        assert_eq!((sandbox.read("files/f"), shown(sandbox)), ("one\n".to_string(), newer.clone()));
        // The same holder may write again.
        sandbox.csalock(["fence", "f"]).env("CSALOCK_TOKEN", &newer).stdin("two").run();
        assert_eq!(sandbox.read("files/f"), "two");
        assert_eq!(names(sandbox), [".csalock", "f"]);
    }

    fn a_stopped_job_whose_lock_was_broken_overwrites_nothing(sandbox: &Sandbox) {
        let script = "csalock run --on-lost warn x sh -c 'echo in; read line; echo late | csalock fence -q f; echo $? > code'";
        let mut late = sandbox.script("dash", script).spawn();
        late.lines(1);
        assert_eq!(sandbox.csalock(["unlock", "--force", "-q", "x"]).capture().code, Some(0));
        sandbox.script("dash", "csalock run x sh -c 'echo new | csalock fence f'").run();
        late.tell("go");
        late.release();
        late.wait();
        assert_eq!((sandbox.read("files/code"), sandbox.read("files/f")), ("87\n".to_string(), "new\n".to_string()));
    }
}

/// A sandbox for what does not depend on the store of the locks: the mark is always beside the file.
fn sandbox() -> Sandbox {
    Sandbox::new(Kind::Directory)
}

#[test]
fn each_step_is_told() {
    let sandbox = &sandbox();
    let fence = |words: &[&str]| sandbox.csalock([&["fence"], words].concat()).stdin("text\n");
    fence(&["--show", "f"])
        .status(81)
        .stderr("csalock: SANDBOX/files/f has no token; `csalock fence` has not written it\n")
        .run();
    fence(&["-v", "--token", "5", "f"])
        .stderr("csalock: SANDBOX/files/f is replaced: 5 bytes, token TOKEN, token before none\n")
        .run();
    fence(&["--json", "--token", "7", "f"])
        .stdout("{\"file\":\"SANDBOX/files/f\",\"token\":TOKEN,\"before\":5,\"bytes\":5}\n")
        .run();
    fence(&["--show", "f"]).stdout("7\n").run();
    fence(&["--show", "--json", "f"])
        .stdout("{\"file\":\"SANDBOX/files/f\",\"token\":TOKEN,\"complete\":true}\n")
        .run();
    // A command whose output would be refused does not run.
    fence(&["-q", "--token", "6", "f", "--", "touch", "ran"]).status(87).run();
    assert_eq!(names(sandbox), [".csalock", "f"]);
}

#[test]
fn a_file_that_becomes_a_link_during_the_call_is_not_replaced() {
    let sandbox = &sandbox();
    sandbox.file("files/f", "old");
    let said = "csalock: SANDBOX/files/f is not a regular file; only a regular file can be replaced; name one\n";
    let command = ["fence", "--token", "2", "f", "--", "sh", "-c", "mv f real; ln -s real f; echo new"];
    sandbox.csalock(command).status(64).stderr(said).run();
    assert_eq!((sandbox.read("files/f"), names(sandbox)), ("old".to_string(), vec!["f".into(), "real".into()]));
}

#[test]
fn bad_input_changes_nothing() {
    let sandbox = &sandbox();
    sandbox.file("files/f", "old");
    std::fs::create_dir(sandbox.path("files/directory")).unwrap();
    nix::unistd::mkfifo(&sandbox.path("files/fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let before = names(sandbox);
    let hint = "run it under `csalock run`, which sets CSALOCK_TOKEN, or use --token N";
    for (words, code, said) in [
        (&["f"][..], 64, format!("fence: there is no token; {hint}")),
        (&["--token", "0", "f"], 64, format!("--token: 0 is out of range; use 1 to {}", u64::MAX)),
        (&["--token", "5", ""], 64, "the name of a file is not empty; name the file to replace".to_string()),
        (
            &["--token", "5", "directory"],
            64,
            "SANDBOX/files/directory is a directory; only a regular file can be replaced; name one".to_string(),
        ),
        (
            &["--token", "5", "/"],
            64,
            "/ names a directory; only a regular file can be replaced; name one".to_string(),
        ),
        (
            &["--token", "5", "/."],
            64,
            "/ is a directory; only a regular file can be replaced; name one".to_string(),
        ),
        (
            &["--token", "5", "new/"],
            64,
            "new/ names a directory; only a regular file can be replaced; name one".to_string(),
        ),
        (
            &["--token", "5", "fifo"],
            64,
            "SANDBOX/files/fifo is not a regular file; only a regular file can be replaced; name one".to_string(),
        ),
        (
            &["--token", "5", "/dev/null"],
            64,
            "/dev/null is not a regular file; only a regular file can be replaced; name one".to_string(),
        ),
        (
            &["--token", "5", "none/f"],
            69,
            "cannot find SANDBOX/files/none: No such file or directory; create its directory, or name another file"
                .to_string(),
        ),
        (
            &["--store", "dir:s", "--token", "5", "f"],
            64,
            "--store cannot be used with fence: the newest token is kept beside the file; leave it out".to_string(),
        ),
        (
            &["--show", "--token", "5", "f"],
            64,
            "the argument '--show' cannot be used with '--token <N>'; leave one of them out".to_string(),
        ),
        (
            &["--token", "5", "f", "x"],
            64,
            "unexpected argument 'x' found; use: csalock fence [OPTION]... FILE [-- COMMAND...]".to_string(),
        ),
        (&[], 64, "the following required arguments were not provided: <FILE>; use: csalock fence [OPTION]... FILE [-- COMMAND...]".to_string()),
    ] {
        let call = sandbox.csalock([&["fence"], words].concat()).stdin("new");
        call.status(code).stderr(format!("csalock: {said}\n")).run();
    }
    let wrong = format!("csalock: CSALOCK_TOKEN is \"x\", which is not a token; {hint}\n");
    sandbox.csalock(["fence", "f"]).env("CSALOCK_TOKEN", "x").stdin("new").status(64).stderr(wrong).run();
    let closed = sandbox.script("dash", "csalock fence --token 5 f <&-");
    closed.status(74).stderr("csalock: cannot read stdin: it is closed; the file was not replaced\n").run();
    assert_eq!((sandbox.read("files/f"), names(sandbox)), ("old".to_string(), before));
    assert!(std::fs::metadata(sandbox.path("files/fifo")).unwrap().file_type().is_fifo());
}

#[test]
fn a_command_that_fails_leaves_the_file() {
    let sandbox = &sandbox();
    assert_eq!(write(sandbox, 5, "old"), Some(0));
    for (command, code, said) in [
        (&["sh", "-c", "echo new; exit 3"][..], 3, ""),
        (&["sh", "-c", "echo new; kill -9 $$"], 137, ""),
        (&["./none"], 127, "csalock: cannot run ./none: No such file or directory; check the spelling and `$PATH`\n"),
        (
            &["./f"],
            126,
            "csalock: cannot run ./f: Permission denied; check that it is executable (`chmod +x`) and that its `#!` line names an existing program\n",
        ),
    ] {
        let words = [&["fence", "--token", "6", "f", "--"], command].concat();
        sandbox.csalock(words).status(code).stderr(said).run();
        assert_eq!((sandbox.read("files/f"), shown(sandbox)), ("old".to_string(), "5".to_string()), "{command:?}");
    }
    // All output counts, even that of processes that outlive the command.
    let script = "csalock fence --token 6 f -- sh -c 'head -c 3000000 /dev/zero; (read line; echo end) <pipe & '";
    nix::unistd::mkfifo(&sandbox.path("files/pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let job = sandbox.script("dash", script).spawn();
    std::fs::write(sandbox.path("files/pipe"), "line\n").unwrap();
    assert_eq!(job.wait().code, Some(0));
    assert_eq!(std::fs::read(sandbox.path("files/f")).unwrap().len(), 3_000_004);
    assert_eq!(names(sandbox), [".csalock", "f", "pipe"]);
}

#[test]
fn a_signal_ends_the_call_and_leaves_the_file() {
    let sandbox = &sandbox();
    assert_eq!(write(sandbox, 5, "old"), Some(0));
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let job = sandbox.csalock(["fence", "--token", "6", "f"]).spawn();
        wait_until("it reads stdin", || names(sandbox).len() == 3);
        job.send(signal);
        assert_eq!(job.wait().signal, Some(signal as i32));
        let job =
            sandbox.csalock(["fence", "--token", "6", "f", "--", "sh", "-c", "echo $$ > pid; exec sleep 1000"]).spawn();
        wait_until("the command runs", || sandbox.read("files/pid").ends_with('\n'));
        job.send(signal);
        assert_eq!(job.wait().code, Some(128 + signal as i32));
        assert!(!proc::lives(sandbox.read("files/pid").trim().parse().unwrap()));
        std::fs::remove_file(sandbox.path("files/pid")).unwrap();
        assert_eq!((sandbox.read("files/f"), names(sandbox)), ("old".to_string(), vec![".csalock".into(), "f".into()]));
    }
}

#[test]
fn mode_owner_and_links_stay() {
    let sandbox = &sandbox();
    let file = sandbox.file("files/f", "old");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
    if is_root("owners of files") {
        std::os::unix::fs::chown(&file, Some(1234), Some(4321)).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o4640)).unwrap();
    }
    let before = std::fs::metadata(&file).unwrap();
    symlink("f", sandbox.path("files/link")).unwrap();
    symlink("new", sandbox.path("files/dangling")).unwrap();
    sandbox.csalock(["fence", "--token", "5", "link"]).stdin("new").run();
    let after = std::fs::metadata(&file).unwrap();
    assert_eq!((after.mode(), after.uid(), after.gid()), (before.mode(), before.uid(), before.gid()));
    assert_eq!((sandbox.read("files/f"), shown(sandbox)), ("new".to_string(), "5".to_string()));
    sandbox.script("dash", "umask 026; echo x | csalock fence --token 5 dangling").run();
    assert_eq!(std::fs::metadata(sandbox.path("files/new")).unwrap().mode() & 0o7777, 0o640);
    let is_link = |name| std::fs::symlink_metadata(sandbox.path(name)).unwrap().is_symlink();
    assert!(is_link("files/link") && is_link("files/dangling"));
    assert_eq!(names(sandbox), [".csalock", "dangling", "f", "link", "new"]);
}

#[test]
fn names_of_files_may_be_long_and_strange() {
    let sandbox = &sandbox();
    for name in [&"x".repeat(255)[..], "a\nb", " ", "ü", "-", "--show", ".f", "a%00b"] {
        let path = format!("./{name}");
        sandbox.csalock(["fence", "--token", "5", &path]).stdin(name).run();
        sandbox.csalock(["fence", "-q", "--token", "4", &path]).stdin("late").status(87).run();
        assert_eq!(sandbox.read(&format!("files/{name}")), name);
    }
}

#[test]
fn other_users_are_told_what_they_lack() {
    if !is_root("other users") {
        return;
    }
    let sandbox = &sandbox();
    let (file, directory) = (sandbox.file("files/f", "old"), sandbox.path("files"));
    let mode = |path: &std::path::Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    let write = |user| sandbox.csalock(["fence", "--token", "5", "f"]).user(user).stdin("new");
    write(65534)
        .status(77)
        .stderr("csalock: cannot write SANDBOX/files/f: Permission denied; ask its owner for permission\n")
        .run();
    mode(&file, 0o666);
    assert_eq!((write(65534).capture().code, sandbox.read("files/f")), (Some(77), "old".to_string()));
    // In a directory with the sticky bit, only the owner of the file may replace it.
    mode(&directory, 0o1777);
    write(65534)
        .status(77)
        .stderr("csalock: cannot replace SANDBOX/files/f: Operation not permitted; ask its owner for permission\n")
        .run();
    assert_eq!((sandbox.read("files/f"), names(sandbox)), ("old".to_string(), vec!["f".to_string()]));
    sandbox
        .csalock(["fence", "--show", "f"])
        .status(81)
        .stderr("csalock: SANDBOX/files/f has no token; `csalock fence` has not written it\n")
        .run();
    write(0).run();
    assert_eq!(sandbox.read("files/f"), "new");
}

#[test]
fn a_full_disk_leaves_the_file() {
    if !has_namespaces("a full disk") {
        return;
    }
    let sandbox = &sandbox();
    let _mount = Mount::new(sandbox, "size=200k");
    let fence = |token: &str, bytes: usize| {
        sandbox.csalock(["fence", "--token", token, "mount/f"]).stdin("x".repeat(bytes)).capture()
    };
    assert_eq!(fence("5", 1000).code, Some(0));
    let done = fence("6", 1_000_000);
    assert_eq!(done.code, Some(74), "{done:?}");
    let said = "csalock: cannot write a draft in SANDBOX/files/mount: No space left on device; free some space";
    assert!(sandbox.plain(&done.stderr).starts_with(said), "{done:?}");
    assert_eq!(sandbox.read("files/mount/f"), "x".repeat(1000));
    assert_eq!(std::fs::read_dir(sandbox.path("files/mount")).unwrap().count(), 2);
    assert_eq!(fence("6", 2000).code, Some(0));
}

#[test]
fn an_unreadable_mark_refuses_every_writer() {
    let sandbox = &sandbox();
    assert_eq!(write(sandbox, 5, "old"), Some(0));
    let record =
        std::fs::read_dir(sandbox.path("files/.csalock/f%00fence")).unwrap().map(|entry| entry.unwrap().path());
    for path in record {
        std::fs::write(path, "nonsense").unwrap();
    }
    let said = "csalock: SANDBOX/files/.csalock/f%00fence: the fence mark is unreadable; nothing was changed; remove it if \
                the file is right\n";
    sandbox.csalock(["fence", "--token", "6", "f"]).stdin("new").status(65).stderr(said).run();
    assert_eq!(sandbox.read("files/f"), "old");
}

#[test]
fn gc_and_unlock_leave_the_mark() {
    let sandbox = &sandbox();
    assert_eq!(write(sandbox, 5, "old"), Some(0));
    for words in [&["gc", "--store", "./.csalock"][..], &["unlock", "--force", "--all", "-q", "--store", "./.csalock"]]
    {
        sandbox.csalock(words).capture();
    }
    sandbox.csalock(["run", "./f", "true"]).without("CSALOCK_STORE").run();
    assert_eq!(shown(sandbox), "5");
}
