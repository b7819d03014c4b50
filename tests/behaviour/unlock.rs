//! `csalock unlock`: who may, and what those are told who may not.

use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::sandbox::proc::lives;
use crate::sandbox::{Kind, Sandbox, csalock, skip, wait_until};
use crate::syscalls::tracer::{Fault, Point, trace, trace_overtaken};
use store::Call as StoreCall;

const HOLDS_X: &str = "dash -c csalock lock --print-handle x; cat; :";

fn end(pid: i32) {
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
}

fn holding(sandbox: &Sandbox) -> (crate::sandbox::Job, String) {
    let mut job = sandbox.script("dash", "csalock lock --print-handle x; cat; :").spawn();
    let handle = job.lines(1)[0].clone();
    // The grant is provisional until `lock` has ended.
    wait_until("the script owns it", || sandbox.sight("x")["holders"][0]["alive"] == "yes");
    (job, handle)
}

#[test]
fn force_names_the_holder_that_came_after_its_look_at_the_lock() {
    if !cfg!(target_arch = "x86_64") {
        return skip("a lock that changes hands", "only on x86-64 it is known how to stop before a call");
    }
    let sandbox = Sandbox::new(Kind::Directory);
    let hold = ["lock", "--forever", "--print-handle", "x"];
    let force = || sandbox.csalock(["unlock", "--force", "x"]).into_command();
    sandbox.csalock(hold).capture();
    let calls = trace(force(), None).made;
    let call = calls[0].iter().position(|made| made.number == libc::SYS_renameat as u64).unwrap();
    let point = Point { process: 0, call, number: libc::SYS_renameat as u64, fault: Fault::Overtaken };
    let handle = sandbox.csalock(hold).capture().stdout;
    let store = sandbox.store();
    let run = trace_overtaken(force(), point, move || {
        for words in [&["unlock", "--handle", handle.trim(), "x"][..], &["lock", "--forever", "x"]] {
            let mut other = std::process::Command::new(csalock());
            assert!(other.args(words).env_clear().env("CSALOCK_STORE", &store).status().unwrap().success());
        }
    });
    let said = "csalock: lock x in store STORE has changed hands meanwhile: held by pid PID on HOST (user USER) since TIME \
                (AGE ago), until it is released: ";
    assert!(sandbox.plain(&run.stderr).starts_with(said), "{run:?}");
    let hint = "; check `csalock status x`, and use --force again to break that too\n";
    assert!(run.stderr.ends_with(hint) && run.status.code() == Some(82), "{run:?}");
}

#[test]
fn the_hint_at_a_similar_name_finds_the_same_store() {
    let sandbox = Sandbox::new(Kind::Directory);
    let said = |name: &str, right: &str, see: &str| {
        format!(
            "csalock: lock {name} is not held; check the name, because lock {right} is held: see `csalock status {see}`\n"
        )
    };
    sandbox.csalock(["lock", "--forever", "./accounts"]).without("CSALOCK_STORE").run();
    let file = "SANDBOX/files/accounts";
    let call = sandbox.csalock(["unlock", "--force", "./acounts"]).without("CSALOCK_STORE").status(81);
    call.stderr(said("SANDBOX/files/acounts", file, file)).run();
    let other = sandbox.store_at("other");
    sandbox.csalock(["--store", &other, "lock", "--forever", "two words"]).run();
    let call = sandbox.csalock(["--store", &other, "unlock", "--force", "two word"]).status(81);
    let see = "--store dir:SANDBOX/other 'two words'";
    call.stderr(said("two word in store dir:SANDBOX/other", "two words", see)).run();
}

on_every_kind_of_store! {
    fn a_handle_may_come_from_a_file_or_a_descriptor(sandbox: &Sandbox) {
        let lock = || sandbox.script("dash", "csalock lock --forever --print-handle x > handle; :").run();
        lock();
        sandbox.csalock(["put", "--handle", "@handle", "x", "a"]).run();
        sandbox.csalock(["renew", "--ttl", "1h", "--handle=@handle", "x"]).run();
        sandbox.csalock(["unlock", "--handle", "@handle", "x"]).run();
        lock();
        sandbox.script("dash", "csalock unlock --handle @/dev/fd/3 x 3< handle").run();
        lock();
        let said = "csalock: cannot read the handle from none: No such file or directory (os error 2); name a readable file \
                    after the @\n";
        sandbox.csalock(["unlock", "--handle", "@none", "x"]).status(74).stderr(said).run();
        sandbox.file("files/wrong", "nothing\n");
        let said = "csalock: there is no handle in wrong; a handle is the 32 hex digits that `csalock lock --print-handle` \
                    printed\n";
        sandbox.csalock(["unlock", "--handle", "@wrong", "x"]).status(64).stderr(said).run();
        sandbox.csalock(["unlock", "--handle", "@/dev/zero", "x"]).status(64).capture();
        assert_eq!(sandbox.state("x"), "held");
    }

    fn a_later_caller_is_told_which_holder_died_with_the_lock(sandbox: &Sandbox) {
        sandbox.script("dash", "csalock lock x > /dev/null; kill -9 $$").capture();
        let said = sandbox.csalock(["unlock", "x"]).capture();
        assert_eq!(said.code, Some(81));
        let start = "csalock: lock x in store STORE is not held any more: it was held by pid ";
        assert!(sandbox.plain(&said.stderr).starts_with(start) && said.stderr.contains(", which ended; take it again"), "{said:?}");
    }

    fn the_owner_may_release(sandbox: &Sandbox) {
        let script = "csalock lock x >/dev/null && csalock unlock x && csalock status --json x";
        let free = "[{\"name\":\"x\",\"state\":\"free\",\"mode\":null,\"slots\":null,\"token\":null,\"holders\":[],\
                    \"waiters\":[]}]\n";
        sandbox.script("dash", script).stdout(free).status(81).run();
    }

    fn a_process_with_the_handle_may_release(sandbox: &Sandbox) {
        let (_job, handle) = holding(sandbox);
        sandbox.csalock(["unlock", "--handle", &handle, "x"]).run();
        let (_job, handle) = holding(sandbox);
        sandbox.csalock(["unlock", "x"]).env("CSALOCK_HANDLE", &handle).run();
        let (_job, handle) = holding(sandbox);
        sandbox.csalock(["unlock", "--handle", &format!(" {handle}\n"), "x"]).run();
        assert_eq!(sandbox.state("x"), "free");
    }

    fn another_process_may_not_release(sandbox: &Sandbox) {
        let (_job, _) = holding(sandbox);
        let before = sandbox.sight("x");
        let said = format!(
            "csalock: lock x in store STORE belongs to another holder: held by pid PID on HOST (user USER) since TIME (AGE ago), while it lives: \
             {HOLDS_X}; this script never had it; set the trap after the lock, or give its handle with --handle\n"
        );
        sandbox.csalock(["unlock", "x"]).status(82).stderr(&said).run();
        sandbox.csalock(["unlock", "-q", "x"]).status(82).run();
        assert_eq!(sandbox.sight("x"), before);
    }

    fn a_handle_of_another_lock_is_reported_as_such(sandbox: &Sandbox) {
        let (_job, handle) = holding(sandbox);
        // A keeper may renew the lease meanwhile.
        let sight = || {
            let mut sight = sandbox.sight("x");
            sight["holders"][0]["renewed_until"].take();
            sight
        };
        let before = sight();
        let wrong = "0".repeat(32);
        let said = format!(
            "csalock: lock x in store STORE was not taken with this handle: held by pid PID on HOST (user USER) since TIME (AGE ago), while \
             it lives: {HOLDS_X}; give the handle that `csalock lock --print-handle` printed for it, or none if your \
             script took it\n"
        );
        for (command, rest) in [(&["unlock"][..], &["x"][..]), (&["renew", "--ttl", "1h"], &["x"]), (&["put"], &["x", "text"])] {
            let words = [command, &["--handle", &wrong], rest].concat();
            sandbox.csalock(&words).status(82).stderr(&said).run();
        }
        for (value, named) in
            [(wrong.as_str(), "the handle in CSALOCK_HANDLE"), ("zz", "CSALOCK_HANDLE, which is not a handle")]
        {
            let said = said.replace("this handle", named);
            for words in [&["unlock", "x"][..], &["renew", "--ttl", "1h", "x"], &["put", "--unlock", "x", "text"]] {
                sandbox.csalock(words).env("CSALOCK_HANDLE", value).status(82).stderr(&said).run();
            }
            let script = format!("csalock lock own > /dev/null; CSALOCK_HANDLE={value} csalock unlock own");
            sandbox.script("dash", &script).run();
        }
        assert_eq!(sight(), before);
        sandbox.csalock(["unlock", "--handle", &handle, "x"]).run();
    }

    fn a_free_lock_cannot_be_released_but_its_last_holder_may_repeat_it(sandbox: &Sandbox) {
        let said = "csalock: lock x in store STORE is not held; see `csalock status x`\n";
        sandbox.csalock(["unlock", "x"]).status(81).stderr(said).run();
        assert!(!sandbox.store_exists());
        sandbox.script("dash", "csalock lock x >/dev/null; csalock unlock x; csalock unlock x && csalock unlock x").run();
        // Another script has released it, and this one holds another lock.
        sandbox.script("dash", "csalock lock y; csalock unlock x").status(81).stderr(said).run();
        let mut other = sandbox.script("dash", "csalock lock x; csalock unlock x; echo; read line; csalock unlock x").ready();
        let holder = sandbox.holder("x");
        other.release();
        other.wait().complains(0, "");
        assert_eq!(sandbox.state("x"), "held");
        drop(holder);
    }

    fn a_handle_of_an_earlier_grant_is_worth_nothing(sandbox: &Sandbox) {
        let (mut job, old) = holding(sandbox);
        sandbox.csalock(["unlock", "--handle", &old, "x"]).run();
        job.release();
        let (_job, _) = holding(sandbox);
        sandbox.csalock(["unlock", "--handle", &old, "x"]).capture().exits(82);
        assert_eq!(sandbox.state("x"), "held");
    }

    fn an_invalid_handle_is_a_usage_error(sandbox: &Sandbox) {
        let (_job, handle) = holding(sandbox);
        for wrong in ["", "x", &handle[1..], &format!("{handle}0"), "--handle"] {
            sandbox.csalock(["unlock", &format!("--handle={wrong}"), "x"]).capture().exits(64);
        }
        assert_eq!(sandbox.state("x"), "held");
    }

    fn force_breaks_a_lock_and_names_its_holder(sandbox: &Sandbox) {
        let (_job, _) = holding(sandbox);
        let said =
            format!("broke x: held by pid PID on HOST (user USER) since TIME (AGE ago), while it lives: {HOLDS_X}\n");
        let left = "csalock: lock x: pid PID on HOST (user USER) was not stopped, and may go on as if it held the lock\n";
        sandbox.csalock(["unlock", "--force", "x"]).stdout(&said).stderr(left).run();
        assert_eq!(sandbox.state("x"), "free");
        let said = "csalock: lock x in store STORE is not held; see `csalock status x`\n";
        sandbox.csalock(["unlock", "--force", "x"]).status(81).stderr(said).run();
    }

    fn a_break_says_that_a_command_outlives_its_lock(sandbox: &Sandbox) {
        let mut holder = sandbox.csalock(["run", "-q", "--on-lost", "warn", "x", "dash", "-c", "echo $$; cat; echo goes on"]).spawn();
        let pid = holder.lines(1)[0].clone();
        let done = sandbox.csalock(["unlock", "--force", "x"]).capture();
        done.says(0, &format!("csalock: lock x: pid {pid} on "));
        done.says(0, " was not stopped (--on-lost warn), and may go on as if it held the lock\n");
        let done = holder.wait();
        assert_eq!((done.code, done.stdout), (Some(85), format!("{pid}\ngoes on\n")));
    }

    fn the_next_holder_comes_only_when_the_command_that_was_asked_to_end_has_ended(sandbox: &Sandbox) {
        let script = "trap 'echo ending >> log; while [ ! -e go ]; do sleep 0.01; done; echo ended >> log; exit 3' TERM
                      echo; while :; do sleep 0.01; done";
        let holder = sandbox.csalock(["run", "x", "dash", "-c", script]).ready();
        let waiter = sandbox.waiter("x", "echo next >> log");
        let ends = sandbox.csalock(["unlock", "--force", "--end", "--kill-after", "1h", "x"]).spawn();
        let log = || std::fs::read_to_string(sandbox.path("files/log")).unwrap_or_default();
        wait_until("it is asked to end", || log() == "ending\n");
        let sight = sandbox.sight("x");
        assert_eq!((&sight["state"], sight["waiters"].as_array().unwrap().len()), (&"held".into(), 1), "{sight}");
        sandbox.file("files/go", "");
        let done = ends.wait();
        let start = "ended x: held by pid PID on HOST (user USER) since TIME (AGE ago): dash -c trap ";
        assert!(sandbox.plain(&done.stdout).starts_with(start), "{done:?}");
        assert_eq!((done.code, done.stdout.lines().count(), done.stderr.as_str()), (Some(0), 1, ""), "{done:?}");
        let holder = holder.wait();
        assert_eq!((holder.code, holder.stderr.as_str()), (Some(3), ""), "{holder:?}");
        waiter.wait().succeeds();
        assert_eq!(log(), "ending\nended\nnext\n");
    }

    fn what_goes_on_after_the_end_of_its_holder_is_told(sandbox: &Sandbox) {
        let start = "sleep 3600 < /dev/null > /dev/null 2>&1 & echo $!; wait";
        let tree = "; `csalock run --tree` ends them too";
        for (holder, hint) in [
            (sandbox.csalock(["run", "x", "dash", "-c", start]), tree),
            (sandbox.csalock(["run", "-F", "x", "dash", "-c", start]), ""),
            (sandbox.script("dash", &format!("csalock lock x; {start}")), ""),
        ] {
            let mut holder = holder.spawn();
            let left: i32 = holder.lines(1)[0].parse().unwrap();
            let done = sandbox.csalock(["unlock", "--force", "--end", "x"]).capture();
            let said = format!(
                "csalock: processes of the ended holder go on without lock x: pid {left}; kill them if they do harm{hint}\n"
            );
            assert_eq!((done.code, done.stderr), (Some(0), said));
            assert!(done.stdout.starts_with("ended x: held by pid ") && lives(left), "{}", done.stdout);
            end(left);
            assert_eq!(holder.wait().stderr, "");
        }
        for quiet in ["--quiet", "--json"] {
            let mut holder = sandbox.script("dash", &format!("csalock lock x; {start}")).spawn();
            let left: i32 = holder.lines(1)[0].parse().unwrap();
            sandbox.csalock(["unlock", "--force", "--end", quiet, "x"]).capture().complains(0, "");
            end(left);
        }
    }

    fn the_history_names_the_call_that_ended_a_holder(sandbox: &Sandbox) {
        let wait = "echo; exec sleep 60";
        for (holder, ended) in [
            (sandbox.csalock(["run", "x", "dash", "-c", wait]), "released"),
            (sandbox.csalock(["run", "-F", "x", "dash", "-c", wait]), "released"),
            (sandbox.script("dash", "csalock lock x; echo; read line"), "ended"),
            (sandbox.script("dash", "trap 'csalock unlock x; exit' TERM; csalock lock x; echo; while :; do sleep 0.01; done"), "released"),
        ] {
            let holder = holder.ready();
            let script = "csalock unlock --force --end x > /dev/null; echo $$";
            let done = sandbox.script("dash", script).capture();
            let (pid, user) = (done.line(), holder.wait());
            let document = sandbox.csalock(["history", "--json", "-n", "1", "x"]).capture().line();
            let past: serde_json::Value = serde_json::from_str(&document).unwrap();
            let (past, by) = (&past[0], &past[0]["ended_by"]);
            assert_eq!((&past["ended"], &past["broken_by"]), (&ended.into(), &serde_json::Value::Null), "{past} {user:?}");
            let wanted = serde_json::json!({
                "pid": pid.parse::<i32>().unwrap(), "host": past["host"], "user": past["user"],
                "command": format!("dash -c {script}"), "label": null, "reason": "end"
            });
            assert_eq!(*by, wanted, "{past}");
            let shown = sandbox.csalock(["history", "-n", "1", "x"]).capture().line();
            let lines: Vec<&str> = shown.lines().collect();
            assert_eq!(lines[2].find("ended by"), lines[0].find("HOLDER"), "{shown}");
            assert!(lines[2].trim_start().starts_with(&format!("ended by {pid} ")), "{shown}");
        }
        // The next grant of the same lock ends by itself.
        sandbox.csalock(["run", "x", "true"]).run();
        let document = sandbox.csalock(["history", "--json", "-n", "1", "x"]).capture().line();
        assert!(document.ends_with(",\"broken_by\":null,\"ended_by\":null}]"), "{document}");
    }

    fn a_mistyped_name_is_answered_with_the_held_lock_that_is_meant(sandbox: &Sandbox) {
        let holder = sandbox.holder("nightly");
        sandbox.csalock(["lock", "--forever", "job1"]).run();
        let calls = [&["unlock"][..], &["unlock", "--force"], &["unlock", "--force", "--end"], &["renew", "--ttl", "1h"]];
        for typed in ["nightlyy", "nihgtly", "Nightly"] {
            let said = format!("csalock: lock {typed} in store STORE is not held; check the name, because lock nightly is held: \
                                see `csalock status nightly`\n");
            for words in calls {
                sandbox.csalock([words, &[typed]].concat()).status(81).stderr(&said).run();
            }
        }
        let not_held = |typed: &str| {
            let said = format!("csalock: lock {typed} in store STORE is not held; see `csalock status {typed}`\n");
            sandbox.csalock(["unlock", "--force", typed]).status(81).stderr(said).run();
        };
        ["job2", "job", "job12", "night", "y"].into_iter().for_each(not_held);
        assert_eq!((sandbox.state("nightly"), sandbox.state("job1")), ("held".to_string(), "held".to_string()));
        holder.wait().exits(0);
        not_held("nightlyy");
    }

    fn a_holder_that_does_not_end_is_killed(sandbox: &Sandbox) {
        // On a busy machine, a process that it starts would go on for long enough to be named.
        let script = "trap '' TERM; csalock lock x; echo; read line";
        let job = sandbox.script("dash", script).ready();
        let pid = sandbox.sight("x")["holders"][0]["pid"].clone();
        let done = sandbox.csalock(["unlock", "--force", "--end", "--kill-after", "1ms", "--json", "x"]).capture();
        let document: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        let result = (done.code, &document[0]["outcome"], &document[0]["holders"][0]["pid"], done.stderr.as_str());
        assert_eq!(result, (Some(0), &"ended".into(), &pid, ""), "{done:?}");
        assert_eq!((job.wait().signal, sandbox.state("x").as_str()), (Some(9), "free"));
        let _job = sandbox.script("dash", script).ready();
        let said = "csalock: lock x: pid PID went on for 1ms, and was killed\n";
        let done = sandbox.csalock(["unlock", "--force", "--end", "--kill-after", "1ms", "x"]).capture();
        let plain = done.stderr.split_once(" pid ").and_then(|(start, rest)| {
            rest.split_once(' ').map(|(_, rest)| format!("{start} pid PID {rest}"))
        });
        assert_eq!((done.code, plain.as_deref()), (Some(0), Some(said)), "{done:?}");
    }

    fn a_caller_does_not_end_itself_nor_a_holder_that_is_not_meant(sandbox: &Sandbox) {
        let nested = "dash -c 'dash -c \"csalock unlock --force --end x; echo \\$?\"; :'";
        for call in ["csalock unlock --force --end x; echo $?", nested] {
            let script = format!("csalock lock -q x; {call}; csalock status x > /dev/null; echo $?");
            let done = sandbox.script("dash", &script).capture();
            assert_eq!((done.code, done.stdout.as_str()), (Some(0), "64\n0\n"), "{done:?}");
            assert!(done.stderr.contains(" cannot be ended, that process is the caller itself: held by "), "{done:?}");
            assert!(done.stderr.ends_with("; release it with `csalock unlock x`\n"), "{done:?}");
        }
        let said = "csalock: lock y in store STORE is not held; see `csalock status y`\n";
        sandbox.csalock(["unlock", "--force", "--end", "y"]).status(81).stderr(said).run();
        let holder = sandbox.holder("y");
        sandbox.csalock(["unlock", "--force", "--end", "--token", "1", "y"]).capture().exits(81);
        assert_eq!(sandbox.state("y"), "held");
        // A holder without a process has nothing that could be ended.
        sandbox.csalock(["claim", "--id", "7", "claimed"]).stdout("7\n").run();
        sandbox.csalock(["unlock", "--force", "--end", "claimed"]).capture().exits(0);
        assert_eq!(sandbox.state("claimed"), "free");
        for words in [&["--end", "y"][..], &["--force", "--all", "--end"], &["--force", "--kill-after", "1s", "y"]] {
            sandbox.csalock([&["unlock"], words].concat()).capture().prints(64, "");
        }
        drop(holder);
    }

    fn a_waiter_is_told_that_the_lock_was_broken(sandbox: &Sandbox) {
        let (_job, _) = holding(sandbox);
        let waiter = sandbox.waiter("x", "true");
        sandbox.csalock(["unlock", "-q", "--force", "x"]).capture();
        let done = waiter.wait();
        // A record keeps no command of a holder that has ended.
        let before = "csalock: lock x was held before by pid PID on HOST (user USER) since TIME (AGE ago), until it was broken \
                      by --force\n";
        assert_eq!((done.code, sandbox.plain(&done.stderr).as_str()), (Some(0), before));
    }

    fn force_removes_the_grants_of_dead_holders_and_names_them(sandbox: &Sandbox) {
        sandbox.script("dash", "csalock lock dead; :").run();
        sandbox.await_abandoned("dead");
        let said = "removed dead: held by pid PID on HOST (user USER) since TIME (AGE ago): dash -c csalock lock dead; :, which \
                    ended\n";
        sandbox.csalock(["unlock", "--force", "dead"]).stdout(said).run();
        assert!(sandbox.state("dead") == "free" && sandbox.record("dead").is_none_or(|record| record.holders.is_empty()));
        sandbox.csalock(["gc"]).run();
        let said = "csalock: lock dead in store STORE is not held; see `csalock status dead`\n";
        sandbox.csalock(["unlock", "--force", "dead"]).status(81).stderr(said).run();
        sandbox.script("dash", "csalock lock dead; :").run();
        sandbox.await_abandoned("dead");
        let document = sandbox.csalock(["unlock", "--force", "--json", "dead"]).capture().line();
        assert!(document.starts_with("[{\"name\":\"dead\",\"outcome\":\"removed\","), "{document}");
    }

    fn force_with_a_token_breaks_that_grant_alone(sandbox: &Sandbox) {
        let hold = |label: &str| sandbox.csalock(["lock", "--forever", "-s", "--label", label, "x"]).run();
        hold("first");
        hold("second");
        let held = |token: u64, label: &str| {
            let since = "held by pid PID on HOST (user USER) since TIME (AGE ago), until it is released";
            format!("with token TOKEN it is {since}, for \"{label}\": TEST").replace("TOKEN", &token.to_string())
        };
        let tokens: Vec<u64> = sandbox.record("x").unwrap().holders.iter().map(|grant| grant.token.unwrap()).collect();
        for wrong in [0, tokens[1] + 1, u64::MAX] {
            let done = sandbox.csalock(["unlock", "--force", "--token", &wrong.to_string(), "x"]).capture();
            assert_eq!((done.code, done.stdout.as_str()), (Some(81), ""), "{done:?}");
            let said = format!(
                "csalock: lock x in store STORE is not held with token {wrong}: {}; and {}; check `csalock status x`\n",
                held(tokens[0], "first"),
                held(tokens[1], "second")
            );
            assert_eq!(sandbox.plain(&done.stderr), sandbox.plain(&said));
        }
        let broken = "broke x: held by pid PID on HOST (user USER) since TIME (AGE ago), until it is released, for \"first\": TEST\n";
        sandbox.csalock(["unlock", "--force", "--token", &tokens[0].to_string(), "x"]).stdout(broken).run();
        let left: Vec<_> = sandbox.record("x").unwrap().holders.iter().map(|grant| grant.token).collect();
        assert_eq!(left, [Some(tokens[1])]);
        // The token of a grant that ended does not name the next one.
        let done = sandbox.csalock(["unlock", "--json", "--force", "--token", &tokens[0].to_string(), "x"]).capture();
        let found: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        assert_eq!((done.code, &found[0]["outcome"], &found[0]["holders"][0]["token"]),
                   (Some(81), &"not held".into(), &tokens[1].into()), "{done:?}");
        sandbox.overwrite("x", b"garbage");
        sandbox.csalock(["unlock", "--force", "--token", "1", "x"]).capture().exits(65);
        assert_eq!(sandbox.open().read(StoreCall::default(), b"x").unwrap().unwrap().body, b"garbage");
    }

    fn force_with_a_star_breaks_every_lock_of_the_store(sandbox: &Sandbox) {
        sandbox.csalock(["unlock", "--force", "*"]).run();
        assert!(!sandbox.store_exists());
        let _holder = sandbox.holder("held");
        sandbox.csalock(["lock", "--forever", "permanent"]).run();
        sandbox.script("dash", "csalock lock dead; :").run();
        sandbox.await_abandoned("dead");
        sandbox.csalock(["claim", "--id", "7", "claimed"]).stdout("7\n").run();
        sandbox.csalock(["put", "guarded", "text"]).run();
        sandbox.csalock(["lock", "--forever", "bad"]).run();
        sandbox.overwrite("bad", b"garbage");
        let done = sandbox.csalock(["unlock", "--force", "*"]).capture();
        let mut broken: Vec<_> = done.stdout.lines().filter_map(|line| line.split_once(": held by pid ")).collect();
        broken.sort_unstable();
        let names: Vec<_> = broken.iter().map(|(name, _)| *name).collect();
        assert_eq!((done.code, names), (Some(65), vec!["broke held", "broke permanent", "removed dead"]), "{done:?}");
        assert!(broken[2].1.ends_with(", which ended"), "{done:?}");
        // On a busy machine, the command of the holder may still run.
        let mut said = done.stderr.lines().filter(|line| !line.starts_with("csalock: lock held: its command on "));
        assert!(said.next().is_some_and(|line| line.starts_with("csalock: passed over: ")), "{done:?}");
        assert_eq!(said.next(), None, "{done:?}");
        assert_eq!(sandbox.open().read(StoreCall::default(), b"bad").unwrap().unwrap().body, b"garbage");
        sandbox.csalock(["lookup", "claimed"]).stdout("7\n").run();
        sandbox.csalock(["get", "guarded"]).stdout("text").run();
        sandbox.csalock(["unlock", "--force", "-q", "bad"]).capture().exits(0);
        sandbox.csalock(["unlock", "--force", "*"]).run();
        sandbox.csalock(["unlock", "--force", "*", "--json"]).stdout("[]\n").run();
    }

    fn force_refuses_an_ambiguous_request(sandbox: &Sandbox) {
        let (_job, _) = holding(sandbox);
        let said = "csalock: --force --all would end the locks of all users; name the locks, or use '*', which is every lock of \
                    the store except claims\n";
        for words in [&["--force", "--all"][..], &["--force", "--all", "x"]] {
            sandbox.csalock([&["unlock"], words].concat()).status(64).stderr(said).run();
        }
        let said = "csalock: a token belongs to one name, and y is another; unlock one name at a time\n";
        sandbox.csalock(["unlock", "--force", "--token", "1", "x", "y"]).status(64).stderr(said).run();
        for words in [&["--token", "1", "x"][..], &["--force", "--all", "--token", "1"], &["--force", "--token", "-1", "x"]] {
            sandbox.csalock([&["unlock"], words].concat()).capture().prints(64, "");
        }
        assert_eq!(sandbox.state("x"), "held");
    }

    fn the_holder_of_a_broken_lock_is_told(sandbox: &Sandbox) {
        let script = "csalock lock x; echo; read go; csalock unlock x";
        let mut job = sandbox.script("dash", script).ready();
        let _next = sandbox.waiter("x", "echo $$; cat");
        sandbox.csalock(["unlock", "--force", "x"]).capture().exits(0);
        job.tell("go");
        job.wait().says(82, ", until it was broken by --force");
        assert_eq!(sandbox.state("x"), "held");
    }

    fn a_broken_lock_goes_to_the_first_waiter(sandbox: &Sandbox) {
        let _holder = sandbox.holder("x");
        let waiter = sandbox.waiter("x", "echo ran");
        sandbox.csalock(["unlock", "--force", "x"]).capture().exits(0);
        assert_eq!(waiter.wait().stdout, "ran\n");
    }

    fn several_locks_are_released_in_one_call(sandbox: &Sandbox) {
        let script = "for x in a b c; do csalock lock $x >/dev/null; done; csalock unlock a c; csalock status -1";
        sandbox.script("dash", script).stdout("b\n").run();
        let script = "csalock lock a >/dev/null; csalock unlock none a; echo $?; csalock status -1 a >/dev/null; echo $?";
        let said = "csalock: lock none in store STORE is not held; see `csalock status none`\n";
        sandbox.script("dash", script).stdout("81\n81\n").stderr(said).run();
    }

    fn the_json_of_unlock_has_the_result_for_each_name(sandbox: &Sandbox) {
        let script = "csalock lock x >/dev/null; csalock unlock --json x none";
        let released = "{\"name\":\"x\",\"outcome\":\"released\",\"holders\":[{\"pid\":PID,\"host\":\"HOST\",\"user\":\"USER\",\
                        \"command\":\"COMMAND\",\"label\":null,\"since\":\"TIME\",\"expires\":null,\"token\":TOKEN,\"alive\":\"yes\"}]}";
        let none = "{\"name\":\"none\",\"outcome\":\"not held\",\"holders\":[],\"message\":\"lock none in store STORE is not held\",\
                    \"hint\":\"see `csalock status none`\",\"exit_code\":81}";
        let said = format!("[{},{none}]\n", released.replace("COMMAND", &format!("dash -c {script}")));
        sandbox.script("dash", script).stdout(said).status(81).run();
    }

    fn the_record_keeps_no_handle(sandbox: &Sandbox) {
        let (_job, handle) = holding(sandbox);
        let listing = sandbox.stored().join("\n");
        assert!(listing.contains("cat") && !listing.contains(&handle));
        let shown = sandbox.csalock(["status", "--json"]).capture().stdout;
        assert!(!shown.contains(&handle), "{shown}");
    }
}
