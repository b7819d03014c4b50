//! `csaLock` and `csaUnlock`: the program under the names of CSA's functions.

use crate::sandbox::{Sandbox, wait_until};

/// A sandbox in which both names are installed, and files keep their locks beside them.
fn install(sandbox: &Sandbox) {
    for name in ["csaLock", "csaUnlock"] {
        std::os::unix::fs::symlink("csalock", sandbox.path("bin").join(name)).unwrap();
    }
    sandbox.file("files/data", "");
}

fn script<'a>(sandbox: &'a Sandbox, text: &str) -> crate::sandbox::Call<'a> {
    install(sandbox);
    sandbox.script("dash", text).without("CSALOCK_STORE")
}

#[test]
fn the_lock_is_the_files_and_the_scripts() {
    let sandbox = Sandbox::new(crate::sandbox::Kind::Directory);
    let text = "csaLock \"$PWD/data\" || exit; csalock status ./data > /dev/null; echo $?; (csaLock data); echo $?
                csaUnlock data; echo $?; csaUnlock ./data; echo $?; csalock status ./data > /dev/null; echo $?";
    let done = script(&sandbox, text).capture();
    assert_eq!(done.stdout, "0\n84\n0\n0\n81\n", "{done:?}");
    assert!(!sandbox.path("files/.csalock").exists());
}

#[test]
fn a_lock_of_csa_ends_with_the_script() {
    let sandbox = Sandbox::new(crate::sandbox::Kind::Directory);
    script(&sandbox, "csaLock data other || exit; exit 3").status(3).run();
    sandbox.script("dash", "csalock run -q -n ./data --also ./other -- true").without("CSALOCK_STORE").run();
}

#[test]
fn csa_waits_as_long_as_the_variable_says_and_prints_the_reason() {
    let sandbox = Sandbox::new(crate::sandbox::Kind::Directory);
    let mut holder = script(&sandbox, "csaLock data || exit; echo in; read line; csaUnlock data; read line").ready();
    for timeout in ["0", "50ms", "0.05"] {
        let call =
            sandbox.script("dash", "csaLock data || exit").without("CSALOCK_STORE").env("CSALOCK_TIMEOUT", timeout);
        let done = call.capture();
        assert_eq!((done.code, done.stdout.as_str()), (Some(75), ""), "{timeout}");
        assert!(
            done.stderr.starts_with("csalock: lock ") && done.stderr.contains("is busy: held by pid "),
            "{}",
            done.stderr
        );
    }
    let call =
        sandbox.script("dash", "csaLock data && echo mine").without("CSALOCK_STORE").env("CSALOCK_TIMEOUT", "inf");
    let waiter = call.spawn();
    let waiters = || {
        let said = sandbox.script("dash", "csalock status --json ./data").without("CSALOCK_STORE").capture().stdout;
        serde_json::from_str::<serde_json::Value>(&said).unwrap()[0]["waiters"].as_array().unwrap().len()
    };
    wait_until("it waits", || waiters() == 1);
    holder.tell("go");
    let done = waiter.wait();
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("mine\n", ""));
}

#[test]
fn a_lock_of_a_dead_script_is_taken_over_silently() {
    let sandbox = Sandbox::new(crate::sandbox::Kind::Directory);
    let mut holder = script(&sandbox, "csaLock data || exit; echo in; read line").ready();
    holder.kill();
    sandbox.script("dash", "csaLock data && csaUnlock data").without("CSALOCK_STORE").run();
}

#[test]
fn hints_name_the_variables_in_place_of_options() {
    let sandbox = Sandbox::new(crate::sandbox::Kind::Directory);
    let _holder = script(&sandbox, "csaLock data || exit; echo in; read line").ready();
    sandbox
        .script("dash", "csaUnlock data")
        .without("CSALOCK_STORE")
        .capture()
        .says(82, "; set the trap after the lock, or give its handle with CSALOCK_HANDLE\n");
    let store = sandbox.store_at("files/none/store");
    for text in ["csaLock data", "csaUnlock data"] {
        let done = sandbox.script("dash", text).env("CSALOCK_STORE", &store).capture();
        assert!(
            done.code == Some(69) && done.stderr.ends_with("; create it, or name another store with CSALOCK_STORE\n"),
            "{done:?}"
        );
    }
}

#[test]
fn contradictory_options_are_a_usage_error() {
    let sandbox = Sandbox::new(crate::sandbox::Kind::Directory);
    install(&sandbox);
    for (text, said) in [
        ("csaLock", "csalock: csaLock: FILE is missing; use: csaLock FILE...\n"),
        ("csaUnlock --", "csalock: csaUnlock: FILE is missing; use: csaUnlock FILE...\n"),
        (
            "csaLock -n data",
            "csalock: csaLock: unknown option -n; for files that begin with a dash, use: csaLock -- FILE...\n",
        ),
        (
            "CSALOCK_TIMEOUT=soon csaLock data",
            "csalock: CSALOCK_TIMEOUT: soon is not a duration; use for example 250ms, 0.5s, 5m, 1h30m, 1d, seconds, 0 or inf\n",
        ),
    ] {
        sandbox.script("dash", text).without("CSALOCK_STORE").status(64).stderr(said).run();
    }
    sandbox.script("dash", "csaLock -- -x && csaUnlock -- -x").without("CSALOCK_STORE").run();
    sandbox.script("dash", "csaLock ''").without("CSALOCK_STORE").capture().exits(64);
}

#[test]
fn help_is_printed() {
    let sandbox = Sandbox::new(crate::sandbox::Kind::Directory);
    let done = script(&sandbox, "csaLock --help; csaUnlock -h").capture();
    done.succeeds();
    let (lock, unlock) = done.stdout.split_at(done.stdout.len() / 2);
    assert!(lock == unlock && lock.starts_with("csaLock FILE... acquires the locks"), "{done:?}");
    assert!(done.stderr.is_empty() && lock.lines().all(|line| line.len() <= 85), "{done:?}");
}
