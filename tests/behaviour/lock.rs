//! `csalock lock`: its output, and its refusals.

use crate::sandbox::{Sandbox, wait_until};

fn members(value: &serde_json::Value) -> Vec<&str> {
    let mut members: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    members.sort_unstable();
    members
}

/// A script that holds the lock until its stdin ends.
fn holding(sandbox: &Sandbox, options: &str) -> crate::sandbox::Job {
    sandbox.script("dash", &format!("csalock lock {options} x; echo; cat; :")).ready()
}

on_every_kind_of_store! {
    fn lock_prints_nothing_or_only_the_handle(sandbox: &Sandbox) {
        sandbox.csalock(["lock", "x"]).run();
        sandbox.csalock(["lock", "--print-handle", "y"]).stdout("HANDLE\n").run();
        for name in ["x", "y"] {
            assert_eq!(sandbox.state(name), "held");
        }
    }

    fn handles_are_unique(sandbox: &Sandbox) {
        let handle = |number: u32| sandbox.csalock(["lock", "--print-handle", &number.to_string()]).capture().line();
        let handles: std::collections::BTreeSet<String> = (0..50).map(handle).collect();
        assert_eq!(handles.len(), 50);
    }

    fn the_json_of_lock_is_one_document(sandbox: &Sandbox) {
        let text = "{\"name\":\"x\",\"handle\":\"HANDLE\",\"token\":TOKEN,\"expires\":null,\"took_over\":null}\n";
        sandbox.csalock(["lock", "--json", "x"]).stdout(text).run();
        let text = "{\"name\":\"y\",\"handle\":\"HANDLE\",\"token\":TOKEN,\"expires\":\"TIME\",\"took_over\":null}\n";
        sandbox.csalock(["lock", "--json", "--ttl", "1h", "y"]).stdout(text).run();
    }

    fn the_json_of_lock_names_the_evicted_holder(sandbox: &Sandbox) {
        sandbox.script("dash", "csalock lock --label why x; :").run();
        sandbox.await_abandoned("x");
        let done = sandbox.csalock(["lock", "--json", "x"]).capture();
        let found: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        let evicted = &found["took_over"];
        assert_eq!((&evicted["how"], &evicted["alive"], &evicted["label"]), (&"ended".into(), &"no".into(), &"why".into()));
        assert_eq!(evicted["command"], "dash -c csalock lock --label why x; :");
        let wanted = ["alive", "command", "expires", "host", "how", "label", "pid", "since", "token", "user"];
        let mut told = members(evicted);
        told.retain(|member| !sandbox.is_shared() || *member != "renewed_until");
        assert_eq!(told, wanted);
        assert!(found["token"].as_u64() > evicted["token"].as_u64());
    }

    fn a_caller_that_takes_over_is_told_the_last_holder(sandbox: &Sandbox) {
        sandbox.script("dash", "csalock lock x; :").run();
        let said = |told: &str| sandbox.plain(told).lines().next().unwrap_or_default().to_string();
        let done = sandbox.csalock(["lock", "-v", "x"]).capture();
        let before = "csalock: lock x was held before by pid PID on HOST (user USER) since TIME (AGE ago): dash -c csalock lock x; :, which ended";
        assert_eq!((done.code, said(&done.stderr).as_str()), (Some(0), before));
        // The test holds it now.
        sandbox.csalock(["unlock", "x"]).run();
        sandbox.script("dash", "csalock lock x; kill -9 $$").capture();
        sandbox.csalock(["lock", "x"]).run();
    }

    fn busy_names_the_holder_and_the_next_step(sandbox: &Sandbox) {
        let _job = holding(sandbox, "--label 'the reason'");
        let said = "csalock: lock x in store STORE is busy: held by pid PID on HOST (user USER) since TIME (AGE ago), while it lives, for \
                    \"the reason\": dash -c csalock lock --label 'the reason' x; echo; cat; :; wait longer with -w, or see \
                    `csalock status x`\n";
        for options in ["-n", "-w0", "--nonblock", "-w10ms", "--timeout=0.01", "--wait=0", "--nb"] {
            sandbox.csalock(["lock", options, "x"]).status(75).stderr(said).run();
        }
        sandbox.csalock(["lock", "-q", "-n", "x"]).status(75).run();
        sandbox.csalock(["lock", "-n", "-E", "3", "x"]).status(3).stderr(said).run();
        assert!(sandbox.waiters("x").is_empty());
    }

    fn the_last_of_two_timeouts_counts(sandbox: &Sandbox) {
        let mut job = holding(sandbox, "");
        sandbox.csalock(["lock", "-w", "inf", "-n", "x"]).capture().exits(75);
        let waiter = sandbox.csalock(["lock", "-n", "-w", "inf", "x"]).spawn();
        wait_until("it waits", || sandbox.waiters("x").len() == 1);
        job.release();
        waiter.wait().exits(0);
    }

    fn forever_survives_its_owner(sandbox: &Sandbox) {
        let handle = sandbox.script("dash", "csalock lock --forever --print-handle x; :").capture().line();
        // A copy of this machine may run it where hosts share the store.
        let ended = if sandbox.is_shared() { "is not here" } else { "has ended" };
        let said = format!("csalock: lock x in store STORE is busy: held by pid PID on HOST (user USER) since TIME (AGE ago), until it is \
                    released, though its process {ended}: dash -c csalock lock --forever --print-handle x; :; wait longer with -w, or break it with `csalock unlock --force x` if it is not \
                    needed any more\n");
        sandbox.csalock(["lock", "-n", "x"]).status(75).stderr(said).run();
        assert_eq!(sandbox.sight("x")["holders"][0]["alive"], "no");
        sandbox.csalock(["unlock", "--handle", &handle, "x"]).run();
        assert_eq!(sandbox.state("x"), "free");
    }

    fn a_stale_lock_can_be_refused(sandbox: &Sandbox) {
        sandbox.script("dash", "csalock lock x; :").run();
        sandbox.await_abandoned("x");
        let before = sandbox.stored();
        let said = "csalock: lock x in store STORE is stale: it was left by pid PID on HOST (user USER) since TIME (AGE ago): dash -c csalock lock x; :, which ended; take it over without \
                    --fail-on-stale, or remove it with `csalock unlock --force x`\n";
        sandbox.csalock(["lock", "--fail-on-stale", "x"]).status(80).stderr(said).run();
        sandbox.csalock(["run", "--fail-on-stale", "x", "true"]).status(80).stderr(said).run();
        assert_eq!(sandbox.stored(), before);
        sandbox.csalock(["lock", "--fail-on-stale", "y"]).run();
    }

    fn another_process_can_be_made_the_owner(sandbox: &Sandbox) {
        let mut sleeper = sandbox.call("sleep", ["60"]).spawn();
        let pid = sleeper.pid().to_string();
        // A process that has just been executed has no command line yet.
        wait_until("it sleeps", || !std::fs::read(format!("/proc/{pid}/cmdline")).unwrap().is_empty());
        sandbox.csalock(["lock", "--pid", &pid, "x"]).run();
        let sight = sandbox.sight("x");
        assert_eq!(sight["holders"][0]["pid"].to_string(), pid);
        assert_eq!(sight["holders"][0]["command"], "sleep 60");
        sleeper.kill();
        assert_eq!(sandbox.state("x"), "free");
        let said = format!("csalock: process {pid} does not exist; --pid names the process that owns the lock\n");
        sandbox.csalock(["lock", "--pid", &pid, "y"]).status(64).stderr(said).run();
    }

    fn a_handle_that_cannot_be_printed_releases_the_lock(sandbox: &Sandbox) {
        let done = sandbox.script("bash", "csalock lock --print-handle x > /dev/full; echo $?").capture();
        assert_eq!(done.stdout, "74\n");
        assert_eq!(
            done.stderr,
            "csalock: lock x was released: cannot write to stdout: No space left on device (os error 28)\n"
        );
        assert_eq!(sandbox.state("x"), "free");
        let done = sandbox.script("bash", "trap '' PIPE; exec 8> >(:); wait $!; csalock lock --print-handle x >&8; echo $? >&2").capture();
        assert_eq!((sandbox.state("x").as_str(), done.code), ("free", Some(0)), "{done:?}");
    }

    fn odd_durations_are_usage_errors(sandbox: &Sandbox) {
        for options in [["--ttl", "0"], ["--ttl", "-1"], ["--ttl", "1x"], ["-w", "-1"], ["-w", "soon"], ["--ttl", "inf"], ["--ttl", "5M"],
                        ["-w", ""], ["--backoff", "1s"], ["--backoff", "2s..1s"], ["-E", "256"]] {
            sandbox.csalock(["lock", options[0], options[1], "x"]).capture().prints(64, "");
        }
        assert!(!sandbox.store_exists());
    }

    fn lock_needs_stdout_only_for_the_handle(sandbox: &Sandbox) {
        sandbox.script("dash", "csalock lock --forever y >&-; csalock lock --forever z > /dev/full").run();
        assert_eq!([sandbox.state("y"), sandbox.state("z")], ["held", "held"]);
        let said = "csalock: stdout is closed, so the handle would be lost; send it to /dev/null if you do not need it\n";
        sandbox.script("dash", "csalock lock --print-handle --forever x >&-").status(74).stderr(said).run();
        assert_eq!(sandbox.state("x"), "free");
    }

    fn a_reader_that_does_not_read_the_output_blocks_no_caller(sandbox: &Sandbox) {
        // A full pipe without a reader.
        let full = "mkfifo full; exec 7<>full; dd if=/dev/zero of=full bs=65536 count=1 oflag=nonblock 2> /dev/null;";
        let nobody = "cannot write to stdout: no process reads it\n";
        let script = format!("{full} csalock lock --print-handle -w 1s x >&7");
        let said = format!("csalock: lock x was released: {nobody}");
        sandbox.script("dash", &script).status(74).stderr(said).run();
        let script = format!("rm full; {full} csalock claim -w 1s x >&7");
        sandbox.script("dash", &script).status(74).stderr(format!("csalock: nothing was claimed: {nobody}")).run();
        assert_eq!(sandbox.state("x"), "free");
        // The message about the last holder has no reader then.
        sandbox.script("dash", "csalock lock x > /dev/null; :").run();
        sandbox.await_abandoned("x");
        sandbox.script("dash", &format!("rm full; {full} csalock run -w 1s x echo ran 2>&7")).stdout("ran\n").run();
    }

    fn a_lock_call_killed_before_its_output_does_not_end_the_owner(sandbox: &Sandbox) {
        let script = "mkfifo full; exec 7<>full; dd if=/dev/zero of=full bs=65536 count=1 oflag=nonblock 2> /dev/null
                      csalock lock --print-handle --pid $$ x >&7 & echo $!; read line; kill -9 $!; wait; echo killed; read line";
        let mut owner = sandbox.script("dash", script).ready();
        wait_until("it is granted", || sandbox.state("x") == "held");
        owner.tell("now");
        assert_eq!(owner.lines(2)[1], "killed");
        if !sandbox.is_shared() {
            assert_eq!(sandbox.state("x"), "free");
        }
        sandbox.csalock(["lock", "-w", "60s", "--fail-on-stale", "x"]).run();
        owner.kill();
    }

    fn options_that_contradict_are_usage_errors(sandbox: &Sandbox) {
        for words in [&["lock", "--ttl", "0", "--forever", "x"][..], &["lock", "-q", "-v", "x"], &["lock"],
                      &["run", "-F", "--ttl", "1s", "x", "true"], &["unlock"],
                      &["renew", "x"], &["lock", "--no-such", "x"], &["lock", "-Z", "x"], &["run", "-Z", "x", "true"], &["run", "x", "-n", "true"], &["run", "x", "-c"],
                      &["no-such"], &[], &["unlock", "--force", "--handle", "00", "x"]] {
            sandbox.csalock(words).capture().prints(64, "");
        }
        assert!(!sandbox.store_exists());
    }

    fn attached_values_of_short_options_are_values(sandbox: &Sandbox) {
        sandbox.csalock(["run", "-w5", "x", "csalock", "status", "-1"]).stdout("x\n").run();
        sandbox.csalock(["run", "-xw5s", "-E9", "--", "-w5", "csalock", "status", "-1"]).stdout("-w5\n").run();
    }
}
