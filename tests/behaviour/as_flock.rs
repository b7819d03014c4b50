//! The program under the name `flock`: the same scripts with flock(1) of util-linux and with it have the same output and
//! the same exit codes.

use std::os::unix::fs::symlink;

use crate::sandbox::{Done, Kind, Sandbox, has, is_root, shells, wait_until};

/// A sandbox in which the name is installed, before flock(1) in PATH, and files keep their locks beside them.
pub(crate) fn install(sandbox: &Sandbox) {
    symlink("csalock", sandbox.path("bin/flock")).unwrap();
}

fn both(shell: &str, script: &str) -> [Done; 2] {
    [false, true].map(|is_ours| {
        let sandbox = Sandbox::new(Kind::Directory);
        if is_ours {
            install(&sandbox);
        }
        // The next caller removes what a descriptor that was closed left of a record.
        let script = format!("{script}\nexec 9>&- 8>&-; for file in f g h; do [ ! -e $file ] || flock $file true; done; [ ! -e .csalock ] || ls -R .csalock");
        sandbox.script(shell, &script).without("CSALOCK_STORE").env("SHELL", "/bin/bash").capture()
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
    "flock f sh -c '(until [ -e go ]; do sleep 0.01; done) & echo bg'; flock -n f echo kept; echo $?; > go; flock f echo later",
    "flock -o f sh -c '(until [ -e go ]; do sleep 0.01; done) & echo bg'; flock -n f echo free; > go",
    "flock -o f sh -c 'flock -w 60 f echo in > in & sleep 0.1; echo out'; until [ -s in ]; do sleep 0.01; done; cat in",
    "umask 0; flock a true; umask 077; flock b true; stat -c '%a %s' a b",
    "ln -s to link; flock link true; ls",
    "printf 'echo no-shebang $1' > script; chmod +x script; flock f ./script 1",
    "echo in | flock f cat",
    "flock f sh -c 'echo $1 \"$2\"' sh --also '-n  x'",
    "flock g -- ; echo $?; flock g --also x; echo $?",
    "flock f sh -c 'flock g flock -n f true; echo $?; flock -n g echo g'",
    "flock -w 1 f echo w; flock -w1.5 f echo w; flock -xw 1 f echo w; echo left > f; flock f cat f",
];

/// With a descriptor.
const DESCRIPTORS: [&str; 18] = [
    "exec 9> g; flock -n 9; echo $?; flock -n g echo no; echo $?; flock -u 9; echo $?; flock -n g echo yes",
    "( flock 9; echo in; exit 7 ) 9> g; echo $?; flock -n g echo free",
    "{ flock -n 9; echo $?; flock -n g true; echo $?; } 9> g; flock -n g echo free",
    "flock 99; echo $?; flock -n 99; echo $?; flock -u 99; echo $?",
    "exec 9> g; flock -s 9; flock -ns g echo s; flock -x 9; flock -ns g true; echo $?; flock -s 9; flock -ns g echo s",
    "exec 9> g; flock 9; (until [ -e go ]; do sleep 0.01; done) & exec 9>&-; flock -n g true; echo $?; > go; flock g echo later",
    "exec 9> g 8> g; flock 9; flock -n 8; echo $?; flock -n -E 4 8; echo $?; flock --verbose -n 8 2>&1; flock -w 0.1 8; echo $?",
    "exec 9> g 8> g; flock -s 9; flock -s -n 8; echo $?; flock -x -n 8; echo $?; flock -u 9; flock -x -n 8; echo $?",
    "exec 9> g; flock 9; exec 9>&-; rm g; exec 9> g; flock -n 9; echo $?",
    "exec 9< .; flock 9; flock -n . true; echo $?",
    "exec 9> g; flock 9; rm g; flock -n 9; echo $?; flock -n g echo another",
    "exec 9> g; flock -u 9; echo $?; flock -n g echo free",
    "f() { flock 9 || return 9; echo f; return 3; }; f 9> g; echo $?; flock -n g echo free",
    "sh -c 'set -e; trap \"echo trap\" EXIT; exec 9> g; flock 9; false; echo no'; echo $?; flock -n g echo free",
    "exec 2> /dev/null; sh -c 'exec 9> g; flock 9; kill -9 $$'; flock g echo free",
    "exec 9> g; flock 9; exec 9> h; flock -n g echo free; flock -n 9; flock -n h true; echo $?",
    "exec 9> g; flock 9; flock -n 9; echo $?; flock 9; echo $?; flock -u g flock -n g true; echo $?",
    "exec 9> g; flock 9; flock -w 0.1 g echo no; echo $?; flock -n g -c 'echo no'; echo $?",
];

/// The texts are ours, the exit codes those of flock(1).
const MISUSED: [&str; 17] = [
    "",
    "f",
    "-z f true",
    "-v f true",
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
    let of_shells = shells().flat_map(|shell| DESCRIPTORS.map(|script| (shell, script)));
    for (shell, script) in SAME.map(|script| ("dash", script)).into_iter().chain(of_shells) {
        let [theirs, ours] = both(shell, script);
        assert_eq!(
            (&ours.stdout, &ours.stderr, ours.code),
            (&theirs.stdout, &theirs.stderr, theirs.code),
            "{shell}: {script}"
        );
    }
    for words in MISUSED {
        let [theirs, ours] = both("dash", &format!("flock {words}; echo $?"));
        assert_eq!((&ours.stdout, ours.code), (&theirs.stdout, theirs.code), "{words}\n{ours:?}\n{theirs:?}");
        assert!(ours.stderr.starts_with("flock: "), "{words} {ours:?}");
    }
    let [theirs, ours] =
        both("dash", "flock --verbose -o f sh -c 'exit 4' | sed 's/[0-9.]\\{8\\}/N/'; flock --verbose f true | wc -l");
    assert_eq!((ours.stdout, ours.stderr), (theirs.stdout, theirs.stderr));
    for option in ["--help", "-h", "--version", "-V"] {
        let [theirs, ours] = both("dash", &format!("flock {option} f true | cut -c1-5 | head -1; echo $?"));
        assert_eq!(ours.stderr, theirs.stderr);
        assert!(ours.stdout.starts_with(if option.contains('h') { "Lock " } else { "flock" }), "{ours:?}");
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
