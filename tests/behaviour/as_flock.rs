//! The program under the name `flock`: the same scripts with flock(1) of util-linux and with it have the same output and
//! the same exit codes.

use std::os::unix::fs::symlink;

use crate::sandbox::{Done, Kind, Sandbox, has, is_root, wait_until};

/// A sandbox in which the name is installed, before flock(1) in PATH, and files keep their locks beside them.
fn install(sandbox: &Sandbox) {
    symlink("csalock", sandbox.path("bin/flock")).unwrap();
}

fn both(script: &str) -> [Done; 2] {
    [false, true].map(|is_ours| {
        let sandbox = Sandbox::new(Kind::Directory);
        if is_ours {
            install(&sandbox);
        }
        let script = format!("{script}\n[ ! -e .csalock ] || echo left");
        sandbox.script("dash", &script).without("CSALOCK_STORE").env("SHELL", "/bin/bash").capture()
    })
}

/// These must be equal to the last byte.
const SAME: [&str; 38] = [
    "flock f echo hi",
    "flock f sh -c 'exit 7'",
    "flock f sh -c 'kill -9 $$'; echo $?",
    "flock f sh -c 'kill -TERM $$'; echo $?",
    "flock f no-such-command; echo $?",
    "flock f /; echo $?",
    "flock f -c 'echo ${BASH_VERSION%%.*}'",
    "flock f --command 'exit 3'",
    "flock -- f echo a",
    "flock -E 5 -n f flock -n -E 6 f echo no; echo $?",
    "flock f flock -n f echo no; echo $?",
    "flock f flock --nonblock f echo no; echo $?",
    "flock f flock --verbose -n f echo no | tail -1; echo $?",
    "flock f flock -w 0.1 --verbose f echo no 2>&1; echo $?",
    "flock f flock -w .1 -E77 f echo no; echo $?",
    "flock f flock -w 0 f echo no; echo $?",
    "flock f flock -w 5 -n f echo no; echo $?",
    "flock -s f flock -s -n f echo both",
    "flock -sn f flock -xn f echo no; echo $?",
    "flock -s f flock -ne f echo no; echo $?",
    "flock f flock -u f echo unlocked",
    "flock no/dir/f echo x; echo $?",
    "flock '' echo x 2> /dev/null; echo $?",
    "flock --nonb f echo n; flock --tim=1 f echo t; flock --timeout 1 f echo t; flock --conflict-exit-code=3 f echo E",
    "flock -F f sh -c 'echo F; exit 3'; echo $?; flock f true",
    "flock -o f echo o",
    "flock . echo directory; mkdir d; flock d echo directory",
    "flock f sh -c 'sleep 0.3 & echo bg'; flock -n f echo children-keep; echo $?; flock f echo later",
    "flock -o f sh -c 'sleep 0.3 & echo bg'; flock -n f echo o-does-not-keep",
    "flock -o f sh -c 'flock -w 9 f echo in & sleep 0.1; echo out'; flock f echo end",
    "umask 0; flock a true; umask 077; flock b true; stat -c '%a %s' a b",
    "ln -s to link; flock link true; ls",
    "printf 'echo no-shebang $1' > script; chmod +x script; flock f ./script 1",
    "echo in | flock f cat",
    "flock f sh -c 'echo $1 \"$2\"' sh --also '-n  x'",
    "flock g -- ; echo $?; flock g --also x; echo $?",
    "flock f sh -c 'flock g flock -n f true; echo $?; flock -n g echo g'",
    "flock -w 1 f echo w; flock -w1.5 f echo w; flock -xw 1 f echo w; echo left > f; flock f cat f",
];

/// The texts are ours, the exit codes those of flock(1).
const MISUSED: [&str; 16] = [
    "",
    "f",
    "-z f true",
    "--bogus f true",
    "--no f true",
    "--shared=1 f true",
    "-F -o f true",
    "f -c",
    "f -c a b",
    "-c 'echo a'",
    "-E 256 f true",
    "-E x f true",
    "-w abc f true",
    "-w",
    "99999999999",
    "-s",
];

#[test]
fn a_script_sees_no_difference_to_flock() {
    require!(has("flock") && has("bash"));
    for script in SAME {
        let [theirs, ours] = both(script);
        assert_eq!((&ours.stdout, &ours.stderr, ours.code), (&theirs.stdout, &theirs.stderr, theirs.code), "{script}");
    }
    for words in MISUSED {
        let [theirs, ours] = both(&format!("flock {words}; echo $?"));
        assert_eq!((&ours.stdout, ours.code), (&theirs.stdout, theirs.code), "{words}\n{ours:?}\n{theirs:?}");
        assert!(ours.stderr.starts_with("flock: "), "{words} {ours:?}");
    }
    let [theirs, ours] =
        both("flock --verbose -o f sh -c 'exit 4' | sed 's/[0-9.]\\{8\\}/N/'; flock --verbose f true | wc -l");
    assert_eq!((ours.stdout, ours.stderr), (theirs.stdout, theirs.stderr));
    for option in ["--help", "-h", "--version", "-V"] {
        let [theirs, ours] = both(&format!("flock {option} f true | cut -c1-5 | head -1; echo $?"));
        assert_eq!(ours.stderr, theirs.stderr);
        assert!(ours.stdout.starts_with(if option.contains('h') { "Usage" } else { "flock" }), "{ours:?}");
    }
}

#[test]
fn a_user_of_flock_and_a_script_with_the_name_exclude_each_other_and_the_name_has_a_record() {
    require!(has("flock"));
    let sandbox = Sandbox::new(Kind::Directory);
    install(&sandbox);
    let call = |program: &str, words: &[&str]| sandbox.call(program, words).without("CSALOCK_STORE");
    let ours = sandbox.path("bin/flock");
    let ours = ours.to_str().unwrap();
    let job = call("flock", &["f", "dash", "-c", "echo; cat; :"]).ready();
    call("/usr/bin/flock", &["-n", "f", "true"]).status(1).run();
    call("csalock", &["run", "-nq", "./f", "true"]).status(75).run();
    call("csalock", &["run", "-nq", "--flock", "./f", "true"]).status(75).run();
    let shown = call("csalock", &["status", "./f"]).capture().stdout;
    assert!(shown.contains("dash -c"), "{shown}");
    let next = call(ours, &["f", "echo", "next"]).spawn();
    wait_until("it waits", || call("csalock", &["status", "--json", "./f"]).capture().stdout.contains("\"echo next\""));
    job.wait().exits(0);
    assert_eq!(next.wait().line(), "next");
    let old = call("/usr/bin/flock", &["f", "dash", "-c", "echo; cat; :"]).ready();
    call(ours, &["-n", "f", "true"]).status(1).run();
    let mut next = call(ours, &["f", "dash", "-c", "echo $$; cat; :"]).spawn();
    wait_until("it waits", || call("csalock", &["status", "-q", "./f"]).capture().code == Some(0));
    old.wait().exits(0);
    next.lines(1);
    // The command keeps the file after the end of the program.
    next.kill();
    call(ours, &["-n", "f", "true"]).status(1).run();
    call("/usr/bin/flock", &["-n", "f", "true"]).status(1).run();
}

#[test]
fn without_a_place_for_a_record_the_kernels_lock_is_taken_alone() {
    require!(is_root("another user") && has("setpriv"));
    let sandbox = Sandbox::new(Kind::Directory);
    install(&sandbox);
    sandbox.file("files/f", "");
    sandbox.script("dash", "chmod 755 .. . && chmod 644 f").run();
    let call = |words: &str| {
        sandbox
            .script("dash", words)
            .without("CSALOCK_STORE")
            .without("XDG_STATE_HOME")
            .env("HOME", "/nonexistent")
            .user(4198)
    };
    let store = "/tmp/csalock-4198";
    let _ = std::fs::remove_dir_all(store);
    std::fs::create_dir(store).unwrap();
    for option in ["", "-F", "-o", "-s"] {
        call(&format!("flock {option} f dash -c 'flock -n f true; echo $?; exit 5'; echo $?; flock -n f echo free"))
            .stdout("1\n5\nfree\n")
            .run();
    }
    call("flock f flock -w 0.1 -E 9 f true").status(9).run();
    let done = call("flock --verbose f true").capture();
    assert!(done.code == Some(0) && done.stderr.contains("is not a directory of user 4198 alone"), "{done:?}");
    call("flock f no-such-command")
        .status(69)
        .stderr("flock: failed to execute no-such-command: No such file or directory\n")
        .run();
    call("flock missing true").status(66).stderr("flock: cannot open lock file missing: Permission denied\n").run();
    // In a directory whose files all users may remove, csalock keeps no record.
    sandbox.script("dash", "chmod 777 .").run();
    sandbox.call("flock", ["f", "echo", "in"]).without("CSALOCK_STORE").stdout("in\n").run();
    std::fs::remove_dir(store).unwrap();
}
