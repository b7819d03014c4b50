//! `csalock gc`: removes what the dead left, and nothing else.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::sandbox::{Kind, Sandbox, proc, wait_until};

/// A name that ends with a slash means the files in the directory, as for `status`.
#[test]
fn gc_of_a_directory_cleans_the_store_beside_its_files() {
    let sandbox = Sandbox::new(Kind::Directory);
    let call = |words: &[&str]| sandbox.csalock(words).without("CSALOCK_STORE").capture();
    call(&["lock", "--forever", "./held"]).exits(0);
    sandbox.script("dash", "csalock lock ./dead; :").without("CSALOCK_STORE").capture().exits(0);
    for draft in [".new.6ba0f3d2c1", ".dead.new.6ba0f3d2c1"] {
        std::fs::create_dir(sandbox.path("files/.csalock").join(draft)).unwrap();
    }
    let listed = || sandbox.listing("files/.csalock").iter().filter(|line| line.contains(".new.")).count();
    wait_until("the script is dead", || {
        call(&["gc", "--dry-run", "./"]).stdout.starts_with("would remove dead: held by")
    });
    let said = call(&["gc", "./"]);
    assert!(said.code == Some(0) && said.stdout.starts_with("removed dead: held by pid "), "{said:?}");
    assert_eq!(listed(), 2, "they are young");
    sandbox.csalock(["gc", "./"]).without("CSALOCK_STORE").env("CSALOCK_CLOCK", "+1h").capture().exits(0);
    assert_eq!((listed(), call(&["status", "-q", "./held"]).code), (0, Some(0)));
}

const DIED: &str = "removed dead: held by pid PID on HOST (user USER) since TIME (AGE ago): dash -c csalock lock \
                    dead; :, which ended\n";

on_every_kind_of_store! {
    fn gc_removes_and_lists_the_grants_of_dead_holders(sandbox: &Sandbox) {
        let _holder = sandbox.holder("held");
        sandbox.csalock(["lock", "--forever", "permanent"]).run();
        sandbox.script("dash", "csalock lock --forever outlived; :").run();
        sandbox.script("dash", "csalock lock dead; :").run();
        sandbox.await_abandoned("dead");
        let before = sandbox.stored();
        sandbox.csalock(["gc", "--dry-run"]).stdout(DIED.replace("removed", "would remove")).run();
        assert_eq!(sandbox.stored(), before);
        sandbox.csalock(["gc"]).stdout(DIED).run();
        sandbox.csalock(["gc"]).run();
        for (name, state) in [("held", "held"), ("permanent", "held"), ("outlived", "held"), ("dead", "free")] {
            assert_eq!(sandbox.state(name), state, "{name}");
        }
    }

    fn gc_removes_dead_waiters(sandbox: &Sandbox) {
        let _holder = sandbox.holder("x");
        let waiter = sandbox.waiter("x", "true");
        // Its next look would put its entry right.
        proc::stop(&[waiter.pid()]);
        sandbox.edit("x", |record| record.waiters[0].process.start += 1);
        let living = sandbox.waiters("x").len();
        sandbox.csalock(["gc", "--dry-run"]).stdout("would remove x: waiters that died\n").run();
        sandbox.csalock(["gc"]).stdout("removed x: waiters that died\n").run();
        assert_eq!((living, sandbox.state("x").as_str()), (1, "held"));
        drop(waiter);
    }

    fn gc_grants_freed_locks_to_waiters(sandbox: &Sandbox) {
        let mut holder = sandbox.call("sleep", ["600"]).spawn();
        sandbox.csalock(["lock", "--pid", &holder.pid().to_string(), "x"]).run();
        let mut waiter = sandbox.waiter("x", "true");
        // A process that does not see for itself that the holder is dead waits in its place.
        let other = sandbox.call("sleep", ["600"]).spawn();
        sandbox.csalock(["lock", "--pid", &other.pid().to_string(), "other"]).run();
        let owner = sandbox.record("other").unwrap().holders[0].owner.clone();
        waiter.kill();
        sandbox.edit("x", |record| {
            record.waiters[0].process = owner.processes[0];
            record.waiters[0].owner = owner.clone();
        });
        holder.kill();
        if !sandbox.is_shared() {
            // Otherwise another caller may record the death of the owner and grant the lock.
            assert_eq!(sandbox.state("x"), "free");
        }
        sandbox.csalock(["gc"]).capture().exits(0);
        assert_eq!((sandbox.holders("x"), sandbox.state("x").as_str()), (vec![other.pid()], "held"));
    }

    fn old_witnesses_are_removed_where_hosts_share_the_store(sandbox: &Sandbox) {
        require!(sandbox.is_shared());
        // Another test may remove the old one, too.
        let [old, young] = ["old", "young"].map(|age| format!("/dev/shm/csalock-{age}-{:?}", sandbox.kind()));
        sandbox.call("touch", ["-d", "31 days ago", &old]).run();
        sandbox.call("touch", [&young]).run();
        sandbox.csalock(["gc"]).run();
        assert_eq!([old, young.clone()].map(|path| std::path::Path::new(&path).exists()), [false, true]);
        std::fs::remove_file(young).unwrap();
    }

    fn the_json_of_gc_lists_the_removed_grants(sandbox: &Sandbox) {
        sandbox.csalock(["gc", "--json"]).stdout("[]\n").run();
        sandbox.script("dash", "csalock lock dead; :").run();
        sandbox.await_abandoned("dead");
        let found: serde_json::Value = serde_json::from_str(&sandbox.csalock(["gc", "--json"]).capture().stdout).unwrap();
        assert_eq!((&found[0]["name"], &found[0]["outcome"]), (&"dead".into(), &"removed".into()));
        // A copy of this machine may run the process, and the document does not tell who said that it died.
        let alive = if sandbox.is_shared() { "unknown" } else { "no" };
        assert_eq!(found[0]["holders"][0]["alive"], alive);
    }

    fn an_unreadable_record_keeps_nothing_else_from_being_removed(sandbox: &Sandbox) {
        sandbox.csalock(["lock", "--forever", "bad"]).run();
        let script = "csalock lock dead; echo; csalock lock -w 600 bad; :";
        let mut job = sandbox.script("dash", script).ready();
        wait_until("the wait is noted", || sandbox.internal() > 0);
        // The note of this wait leads to the unreadable record.
        kill(Pid::from_raw(sandbox.record("bad").unwrap().waiters[0].process.pid), Signal::SIGKILL).unwrap();
        job.kill();
        sandbox.await_abandoned("dead");
        sandbox.overwrite("bad", b"garbage");
        let died = DIED.replace(" lock dead; :", &script["csalock".len()..]);
        let said = format!(
            "csalock: {}: a lock record is unreadable: it does not begin with {{\"csalock\":3; nothing was changed; see who \
             wrote it, then `csalock unlock --force NAME` removes it\n",
            sandbox.open().describe(b"bad")
        );
        let said = sandbox.plain(&said);
        let before = sandbox.stored();
        sandbox.csalock(["gc", "--dry-run"]).stdout(died.replace("removed", "would remove")).stderr(&said).status(65).run();
        assert_eq!(sandbox.stored(), before);
        sandbox.csalock(["gc"]).stdout(&died).stderr(&said).status(65).run();
        sandbox.csalock(["gc"]).stderr(&said).status(65).run();
        let healthy = sandbox.csalock(["doctor"]).capture();
        assert!(healthy.code == Some(0) && healthy.stdout.contains("Locks work here"), "{healthy:?}");
    }

    fn gc_does_nothing_on_a_missing_store(sandbox: &Sandbox) {
        sandbox.csalock(["gc"]).run();
        assert!(!sandbox.store_exists());
    }
}
