//! The owner of a script's locks, in every shell: the script, from any place in it.

use crate::sandbox::{Sandbox, has, proc, shells, wait_until};

/// Runs a script in every shell, each on a free lock; it must print exactly this.
fn in_every_shell(sandbox: &Sandbox, script: &str, printed: &str) {
    for shell in shells() {
        let done = sandbox.script(shell, script).capture();
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), (printed, ""), "{shell}: {script}");
        assert_eq!(sandbox.state("x"), "free", "{shell}: {script}");
        sandbox.csalock(["gc"]).capture();
    }
}

/// After the lock was taken: is it held, and may the script give it back?
const HELD_AND_MINE: &str = "csalock status x >/dev/null; echo $?; csalock unlock x; echo $?";

on_every_store! {
    fn a_lock_from_a_command_substitution_belongs_to_the_script(sandbox: &Sandbox) {
        in_every_shell(sandbox, &format!("h=$(csalock lock --print-handle x); {HELD_AND_MINE}; echo ${{#h}}"), "0\n0\n32\n");
        in_every_shell(sandbox, &format!("h=`csalock lock x`; {HELD_AND_MINE}"), "0\n0\n");
        in_every_shell(sandbox, &format!("h=$(echo $(csalock lock --print-handle x)); {HELD_AND_MINE}"), "0\n0\n");
        in_every_shell(sandbox, "h=$(csalock lock --print-handle x); (csalock unlock --handle $h x); echo $?", "0\n");
    }

    fn a_lock_from_a_pipeline_belongs_to_the_script(sandbox: &Sandbox) {
        in_every_shell(sandbox, &format!("csalock lock x | cat >/dev/null; {HELD_AND_MINE}"), "0\n0\n");
        in_every_shell(sandbox, &format!("echo | csalock lock x >/dev/null; {HELD_AND_MINE}"), "0\n0\n");
        in_every_shell(sandbox, &format!("echo | {{ csalock lock x; :; }} | cat >/dev/null; {HELD_AND_MINE}"), "0\n0\n");
        in_every_shell(sandbox, &format!("h=$(csalock lock --print-handle x | tr a-f A-F); {HELD_AND_MINE}"), "0\n0\n");
    }

    fn a_lock_from_a_subshell_or_a_function_belongs_to_the_script(sandbox: &Sandbox) {
        in_every_shell(sandbox, &format!("( csalock lock x >/dev/null; : ); {HELD_AND_MINE}"), "0\n0\n");
        in_every_shell(sandbox, &format!("(( csalock lock x >/dev/null ) ; : ); {HELD_AND_MINE}").replace("((", "( ("), "0\n0\n");
        in_every_shell(sandbox, &format!("f() {{ csalock lock x; }}; f >/dev/null; {HELD_AND_MINE}"), "0\n0\n");
        in_every_shell(sandbox, &format!("f() {{ csalock lock x; }}; h=$(f); {HELD_AND_MINE}"), "0\n0\n");
        in_every_shell(sandbox, &format!("eval 'csalock lock x >/dev/null'; {HELD_AND_MINE}"), "0\n0\n");
        in_every_shell(sandbox, "csalock lock x >/dev/null; ( csalock unlock x; : ); echo $?", "0\n");
    }

    fn a_lock_from_the_background_belongs_to_the_job(sandbox: &Sandbox) {
        in_every_shell(sandbox, &format!("csalock lock x >/dev/null & wait; {HELD_AND_MINE}"), "0\n0\n");
        in_every_shell(sandbox, &format!("{{ csalock lock x >/dev/null; }} & wait; {HELD_AND_MINE}"), "0\n0\n");
    }

    fn a_lock_from_a_trap_belongs_to_the_script(sandbox: &Sandbox) {
        let script = "trap 'csalock unlock x; echo $?' EXIT; csalock lock x >/dev/null; csalock status -1 x; exit 3";
        in_every_shell(sandbox, script, "x\n0\n");
        let script = "trap 'csalock unlock x; echo $?' USR1; csalock lock x >/dev/null; kill -USR1 $$; csalock status -1";
        in_every_shell(sandbox, script, "0\n");
    }

    fn background_jobs_of_one_script_are_different_owners(sandbox: &Sandbox) {
        let script = "rm -f go; ( csalock lock x >/dev/null; while [ ! -e go ]; do sleep 0.01; done; csalock unlock x; echo $? ) & \
                      while ! csalock status -q x >/dev/null; do sleep 0.01; done; \
                      ( csalock lock -n -q x; echo $?; csalock unlock -q x; echo $? ) & wait $!; \
                      csalock unlock -q x; echo $?; touch go; wait";
        in_every_shell(sandbox, script, "75\n82\n82\n0\n");
    }

    fn a_background_job_that_dies_leaves_its_lock_to_the_script_alone(sandbox: &Sandbox) {
        let script = "( csalock lock x >/dev/null; : ) & wait; ( csalock lock -n -q x; echo $? )";
        in_every_shell(sandbox, script, "84\n");
    }

    fn the_record_names_the_script(sandbox: &Sandbox) {
        let script = "h=$(csalock lock --print-handle x); echo $$; csalock status --json x";
        for shell in shells() {
            let done = sandbox.script(shell, script).capture();
            let (pid, sight) = done.stdout.split_once('\n').unwrap();
            let sight: serde_json::Value = serde_json::from_str(sight).unwrap();
            assert_eq!(sight[0]["holders"][0]["pid"].to_string(), pid, "{shell}");
            assert_eq!(sight[0]["holders"][0]["alive"], "yes", "{shell}");
            assert_eq!(sight[0]["holders"][0]["command"], format!("{shell} -c {script}"), "{shell}");
            sandbox.csalock(["gc"]).capture();
        }
    }

    fn the_lock_ends_with_the_script_however_that_ends(sandbox: &Sandbox) {
        for shell in shells() {
            for end in [":", "exit 3", "kill -9 $$", "kill -15 $$", "exec true", "set -e; false"] {
                let handle = sandbox.script(shell, &format!("h=$(csalock lock --print-handle x); echo $h; {end}; :")).capture().stdout;
                assert_eq!(handle.len(), 33, "{shell} {end}");
                assert_eq!(sandbox.state("x"), "free", "{shell} {end}");
                sandbox.csalock(["run", "-n", "x", "true"]).run();
                assert_eq!(sandbox.state("x"), "free", "{shell} {end}");
            }
        }
    }

    fn a_script_that_becomes_another_program_keeps_its_lock(sandbox: &Sandbox) {
        for shell in shells() {
            let job = sandbox.script(shell, "csalock lock x; echo; exec cat").ready();
            wait_until("it has become cat", || proc::program(job.pid()) == "cat");
            assert_eq!(sandbox.holders("x"), [job.pid()], "{shell}");
            assert_eq!(sandbox.state("x"), "held", "{shell}");
            job.wait();
            sandbox.csalock(["gc"]).capture();
        }
    }

    fn a_script_file_is_an_owner_as_well(sandbox: &Sandbox) {
        for shell in shells() {
            let text = format!("#!/usr/bin/env -S {shell}\nh=$(csalock lock --print-handle x)\n{HELD_AND_MINE}\n");
            sandbox.program("bin/script", text);
            sandbox.script("dash", "script; :").stdout("0\n0\n").run();
        }
    }

    fn a_script_within_a_script_is_its_own_owner_where_addresses_are_not_random(sandbox: &Sandbox) {
        require!(has("setarch"));
        let script = "if [ $1 = 1 ]; then csalock lock x > /dev/null; else dash ./script 1; csalock run -q -w 20s x true; echo $?; fi";
        sandbox.file("files/script", script);
        // A shell that is the first to export PWD would move its arguments.
        let files = sandbox.path("files");
        sandbox.call("setarch", ["-R", "dash", "./script", "0"]).env("PWD", files).stdout("0\n").run();
    }

    fn a_script_within_a_script_is_its_own_owner(sandbox: &Sandbox) {
        for shell in shells() {
            let script = format!("{shell} -c 'csalock lock x >/dev/null; :'; csalock status -q x >/dev/null; echo $?");
            sandbox.script("bash", &script).stdout("81\n").run();
            sandbox.csalock(["gc"]).capture();
        }
    }
}
