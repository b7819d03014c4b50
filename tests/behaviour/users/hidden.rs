//! A /proc that hides other users' processes (`hidepid`): who cannot be seen is never taken for dead.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use super::{Anne, Bert, GROUP, place};
use crate::programs::copy_program;
use crate::sandbox::{Call, Kind, Sandbox, has, has_namespaces, wait_until};

/// Bert, in a mount namespace whose /proc shows only his own processes.
fn bert_sees_no_process<'a>(sandbox: &'a Sandbox, store: &str, hiding: &str, arguments: &[&str]) -> Call<'a> {
    let script = format!("mount -t proc -o {hiding} proc /proc && exec \"$@\"");
    let words: Vec<String> = ["unshare", "-m", "sh", "-c", &script, "sh"].iter().map(ToString::to_string).collect();
    sandbox.csalock_by(&[words, Bert.words()].concat(), arguments).env("CSALOCK_STORE", store)
}

#[test]
fn an_unknown_process_does_not_count_as_dead() {
    require!(has_namespaces("users") && has("setpriv"));
    for hiding in ["hidepid=noaccess", "hidepid=invisible", "hidepid=ptraceable"] {
        let sandbox = Sandbox::new(Kind::Directory);
        place(&sandbox, "shared", (0, GROUP, 0o2770));
        let store = sandbox.store_at("shared");
        let mut holder = Anne.csalock(&sandbox, &store, &["run", "-F", "x", "sleep", "1000"]).spawn();
        wait_until("it is held", || Anne.code(&sandbox, &store, &["status", "-q", "x"]) == 0);
        bert_sees_no_process(&sandbox, &store, hiding, &["run", "-n", "x", "true"]).capture().exits(75);
        let done = bert_sees_no_process(&sandbox, &store, hiding, &["gc"]).capture();
        assert_eq!(done.code, Some(0), "{hiding} {done:?}");
        assert_eq!(Anne.code(&sandbox, &store, &["status", "-q", "x"]), 0, "{hiding}");
        // Waiters and later callers see her death all the same.
        let waiter = bert_sees_no_process(&sandbox, &store, hiding, &["run", "-w", "inf", "x", "echo", "mine"]).spawn();
        wait_until("it waits", || {
            let done = Anne.csalock(&sandbox, &store, &["status", "--json", "x"]).capture();
            !serde_json::from_str::<serde_json::Value>(&done.stdout).unwrap()[0]["waiters"]
                .as_array()
                .unwrap()
                .is_empty()
        });
        holder.kill();
        assert_eq!(waiter.wait().stdout, "mine\n", "{hiding}");
        let mut holder = Anne.csalock(&sandbox, &store, &["run", "-F", "y", "sleep", "1000"]).spawn();
        wait_until("it is held", || Anne.code(&sandbox, &store, &["status", "-q", "y"]) == 0);
        holder.kill();
        bert_sees_no_process(&sandbox, &store, hiding, &["run", "-n", "y", "true"]).capture().exits(0);
    }
}

#[test]
fn a_command_that_becomes_another_user_keeps_its_lease() {
    require!(has_namespaces("users") && has("setpriv"));
    let sandbox = Sandbox::new(Kind::Shared);
    place(&sandbox, "shared", (0, GROUP, 0o2770));
    let program = sandbox.path("sleep-of-anne");
    copy_program(Path::new("/bin/sleep"), &program, "755");
    chown(&program, Some(Anne.uid()), Some(Anne.uid())).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).unwrap();
    let store = sandbox.store_at("shared");
    let words = ["run", "x", program.to_str().unwrap(), "1000"];
    let run = bert_sees_no_process(&sandbox, &store, "hidepid=invisible", &words);
    let _job = run.env("CSALOCK_LEASE", "5s").spawn();
    let renewed = || {
        let done = sandbox.csalock(["status", "--store", &store, "--json", "x"]).capture();
        let status = serde_json::from_str::<serde_json::Value>(&done.stdout).unwrap_or_default();
        status[0]["holders"][0]["renewed_until"].as_str().map(str::to_string)
    };
    wait_until("it is held", || renewed().is_some());
    let mut ends = vec![renewed().unwrap()];
    wait_until("the lease is renewed often", || {
        let end = renewed().expect("the command runs");
        if ends.last() != Some(&end) {
            ends.push(end);
        }
        ends.len() == 5
    });
}
