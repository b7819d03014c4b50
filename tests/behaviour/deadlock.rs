//! Waits that would never end: one of those in the cycle is told so at once, by name, and the others go on.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::etcd::fair::is_within;
use crate::sandbox::{Job, Sandbox, has, proc, shells, wait_until};

/// Tells all of them to go on. Returns the sorted exit codes, and what all of them said.
fn all_go(mut jobs: Vec<Job>) -> (Vec<i32>, String) {
    jobs.iter_mut().for_each(|job| job.tell("go"));
    let done: Vec<_> = jobs.into_iter().map(Job::wait).collect();
    let mut codes: Vec<_> = done.iter().map(|done| done.code.unwrap()).collect();
    codes.sort_unstable();
    (codes, done.into_iter().map(|done| done.stderr).collect())
}

/// Scripts that each hold one lock and then want the next one's, all at the same time.
fn cycle(sandbox: &Sandbox, names: &[&str], hold: &str, want: &str) -> (Vec<i32>, String) {
    let script =
        format!("hold() {{ {hold}; }}; want() {{ {want}; }}; hold $0 || exit 1; echo holds; read line; want $1");
    let next = |at: usize| names[(at + 1) % names.len()];
    let job = |at| sandbox.call("dash", ["-c", &script, names[at], next(at)]).spawn();
    let mut jobs: Vec<Job> = (0..names.len()).map(job).collect();
    jobs.iter_mut().for_each(|job| drop(job.lines(1)));
    all_go(jobs)
}

const LOCK: &str = "csalock lock $1 > /dev/null";
const RUN: &str = "csalock run $1 true";

/// A cycle breaks at one place, so one gets 84 and all others the lock that they wanted.
fn one_gives_up(sandbox: &Sandbox, names: &[&str], hold: &str, want: &str) -> String {
    let begun = Instant::now();
    let (codes, said) = cycle(sandbox, names, hold, want);
    let mut wanted = vec![0; names.len()];
    *wanted.last_mut().unwrap() = 84;
    assert_eq!(codes, wanted, "{said}");
    assert!(is_within(begun, Duration::from_secs(20)), "the wait ends before the timeout");
    assert_eq!(said.matches("waiting would never end").count(), 1, "{said}");
    for name in names {
        assert!(said.contains(&format!("lock {name} is held by pid ")), "{name} is named: {said}");
        assert!(sandbox.is_tidy(), "no note is left");
    }
    said
}

on_every_store! {
    fn a_script_under_a_program_that_holds_the_lock_and_only_starts_others(sandbox: &Sandbox) {
        sandbox.file("files/wants", "csalock lock -w inf x; echo $?");
        let clean = "env - PATH=\"$PATH\" CSALOCK_STORE=\"$CSALOCK_STORE\"";
        for command in ["timeout 60 dash ./wants", "timeout 60 nice dash ./wants", "timeout 60 csalock lock -w inf x || echo $?"] {
            let done = sandbox.script("dash", &format!("csalock run x {clean} {command}")).capture();
            assert_eq!(done.stdout, "84\n", "{command}: {done:?}");
        }
    }

    fn a_command_that_has_lost_its_variables_and_becomes_csalock_itself(sandbox: &Sandbox) {
        let clean = "env - PATH=\"$PATH\" CSALOCK_STORE=\"$CSALOCK_STORE\"";
        for (outer, inner) in [
            ("run", "run -w inf x true"),
            ("run", "run -n x true"),
            ("run", "run -F -w inf x true"),
            ("run", "run -w inf y csalock run -w inf x true"),
            ("run -F", "run -w inf x true"),
        ] {
            let done = sandbox.script("dash", &format!("exec csalock {outer} x {clean} csalock {inner}")).capture();
            assert_eq!((done.code, done.stdout.as_str()), (Some(84), ""), "{inner}: {done:?}");
            assert!(done.stderr.contains("the caller holds it already, so waiting would never end"), "{inner}: {done:?}");
        }
    }

    fn two_scripts_want_the_lock_of_each_other(sandbox: &Sandbox) {
        for (hold, want) in [(LOCK, LOCK), (LOCK, RUN)] {
            let said = one_gives_up(sandbox, &["a", "b"], hold, want);
            let line = said.lines().find(|line| line.contains("never end")).unwrap();
            let other = if line.starts_with("csalock: lock a ") { ("a", "b") } else { ("b", "a") };
            let command = |name: &str, next: &str| {
                format!("dash -c hold() {{ {hold}; }}; want() {{ {want}; }}; hold $0 || exit 1; echo holds; read line; want $1 {name} {next}")
            };
            assert_eq!(
                sandbox.plain(line),
                format!(
                    "csalock: lock {0} in store STORE: waiting would never end: lock {0} is held by pid PID on HOST (user USER) since TIME \
                     (AGE ago), while it lives: {1}, which waits: lock {2} is held by pid PID on HOST (user USER) since TIME \
                     (AGE ago), while it lives: {3}, the caller; release what you hold and try again, or acquire all of \
                     them at once",
                    other.0, command(other.0, other.1), other.1, command(other.1, other.0)
                )
            );
        }
    }

    fn one_is_told_within_a_second_and_a_half(sandbox: &Sandbox) {
        let is_soon = |_: u8| {
            let begun = Instant::now();
            cycle(sandbox, &["a", "b"], LOCK, LOCK);
            begun.elapsed() < Duration::from_millis(1500)
        };
        // A single try may take longer on a busy machine.
        assert!((0..10).any(is_soon));
    }

    fn an_unreadable_record_that_a_note_leads_to_hides_no_cycle(sandbox: &Sandbox) {
        sandbox.csalock(["lock", "--forever", "bad"]).run();
        let mut first = sandbox.script("dash", "csalock lock a; echo; csalock lock -w 600 bad; read go; csalock lock b; :").ready();
        wait_until("the wait is noted", || sandbox.internal() > 0);
        let waits = sandbox.record("bad").unwrap().waiters[0].process.pid;
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(waits), Signal::SIGKILL).unwrap();
        sandbox.overwrite("bad", b"garbage");
        let second = sandbox.script("dash", "csalock lock b; echo; csalock lock a; :").ready();
        first.tell("go");
        let said = [first.wait().stderr, second.wait().stderr].concat();
        assert_eq!(said.matches("waiting would never end").count(), 1, "{said}");
    }

    fn the_scripts_may_be_commands_under_their_locks(sandbox: &Sandbox) {
        let script = "csalock run $0 dash -c 'echo holds; read line; $2' - $1";
        for want in ["csalock run $1 true", "csalock lock $1 > /dev/null"] {
            let script = script.replace("$2", want);
            let mut jobs = [["a", "b"], ["b", "a"]].map(|names| sandbox.call("dash", [&["-c", &script], &names[..]].concat()).spawn());
            jobs.iter_mut().for_each(|job| drop(job.lines(1)));
            assert_eq!(all_go(jobs.into()).0, [0, 84], "{want}");
        }
    }

    fn cycles_of_three_and_five(sandbox: &Sandbox) {
        one_gives_up(sandbox, &["a", "b", "c"], LOCK, LOCK);
        one_gives_up(sandbox, &["a", "b", "c", "d", "e"], LOCK, LOCK);
        one_gives_up(sandbox, &["a", "b", "c", "d", "e"], LOCK, RUN);
    }

    fn a_cycle_through_substitutions_and_nested_locks(sandbox: &Sandbox) {
        one_gives_up(sandbox, &["a", "b"], "h=$(csalock lock --print-handle $1)", "h=$(csalock lock --print-handle $1)");
        // A command within waits for the innermost wanted lock.
        one_gives_up(sandbox, &["a", "b", "c"], LOCK, "csalock run inner-$1 csalock run $1 true");
    }

    fn a_cycle_among_shared_holders_and_slots(sandbox: &Sandbox) {
        one_gives_up(sandbox, &["a", "b"], "csalock lock -s $1 > /dev/null", LOCK);
        one_gives_up(sandbox, &["a", "b"], LOCK, "csalock lock -s $1 > /dev/null");
        one_gives_up(sandbox, &["a", "b"], "csalock lock -j 1 $1 > /dev/null", "csalock lock -j 1 $1 > /dev/null");
        one_gives_up(sandbox, &["a", "b"], "csalock lock $1 $1-too > /dev/null", "csalock lock $1 $1-too > /dev/null");
    }

    fn a_cycle_among_other_waiters_for_the_same_lock(sandbox: &Sandbox) {
        // This very process calls all of them, so more of its callers wait for both than notes exist.
        let script = "echo holds; read line; exec csalock run -w 30s $0 true";
        let hold = |share: &[&str], name: &str, next: &str| {
            sandbox.csalock([&["run"], share, &[name, "dash", "-c", script, next]].concat()).ready()
        };
        let jobs = [hold(&["-s"], "b", "a"), hold(&["-j", "3"], "a", "b")];
        let crowd: Vec<Job> =
            (0..24).map(|at| sandbox.csalock(["run", "-q", "-w", "60s", ["a", "b"][at % 2], "true"]).spawn()).collect();
        wait_until("all of them wait", || sandbox.waiters("a").len() + sandbox.waiters("b").len() == 24);
        assert_eq!(all_go(jobs.into()).0, [0, 84]);
        crowd.into_iter().for_each(|job| job.wait().exits(0));
    }

    fn a_script_may_have_become_the_waiter(sandbox: &Sandbox) {
        for want in ["exec csalock run -w 30s $1 true", "exec csalock run -F -w 30s $1 true"] {
            let (codes, said) = cycle(sandbox, &["a", "b"], LOCK, want);
            assert_eq!(codes, [0, 84], "{said}");
            let itself = format!("csalock lock -q $0 > /dev/null; {}", want.replace("$1", "-q $0"));
            sandbox.call("dash", ["-c", &itself, "c"]).status(84).run();
        }
    }

    fn a_script_may_wait_for_a_script_that_waits(sandbox: &Sandbox) {
        sandbox.file("files/child", "csalock run -w 30s $1 true");
        let wants = ["dash ./child $1", "env bash ./child $1", "setsid -w dash ./child $1", "csalock run $1 true | cat", "(csalock run $1 true | cat)"];
        for (at, want) in wants.into_iter().enumerate() {
            for ignored in ["", "trap '' INT; "] {
                // The pipeline's exit status is another one's.
                let own = ["a", "b"].map(|name| format!("{name}{at}{}", ignored.len()));
                let (codes, said) = cycle(sandbox, &[&own[0], &own[1]], &format!("{ignored}{LOCK}"), want);
                assert!(codes == [0, if want.contains('|') { 0 } else { 84 }], "{want}: {codes:?} {said}");
                assert_eq!(said.matches("waiting would never end").count(), 1, "{want}: {said}");
            }
        }
    }

    fn a_caller_that_does_not_wait_is_told_that_its_callers_lock_is_busy(sandbox: &Sandbox) {
        sandbox.file("files/child", "csalock lock -nq x; echo $?; csalock lock -q -w 20s x; echo $?");
        sandbox.script("dash", "csalock lock x > /dev/null; dash ./child").stdout("75\n84\n").run();
    }

    fn a_background_job_of_a_script_is_not_a_wait_of_the_script(sandbox: &Sandbox) {
        sandbox.file("files/child", "csalock run -q -w 30s $1 true; echo $? >> codes");
        let jobs = ["dash ./child x", "setsid dash ./child x", "{ dash ./child x; } | cat", "dash ./child x | cat"];
        for (at, job) in jobs.into_iter().enumerate() {
            for ignored in ["", "trap '' INT; "] {
                let script = format!("{ignored}csalock lock x > /dev/null; {job} & sleep 0.3; csalock unlock x; wait");
                sandbox.call("dash", ["-c", &script]).run();
                wait_until("all are done", || sandbox.read("files/codes").lines().count() == 2 * at + 1 + usize::from(!ignored.is_empty()));
                assert_eq!(sandbox.read("files/codes").replace("0\n", ""), "", "{job}");
            }
        }
    }

    fn a_background_job_that_is_interrupted_is_not_waited_for(sandbox: &Sandbox) {
        for shell in shells() {
            for job in [
                "timeout 60 csalock run -w 30s x true &",
                "timeout 60 csalock lock -w 30s y x > /dev/null &",
                "( trap 'exit 9' INT TERM; csalock run -w 30s x true ) &",
                "( sleep 0.1; exec csalock run -w 30s x true ) &",
            ] {
                let script = format!("csalock lock x > /dev/null; {job} sleep 0.5; csalock unlock x; wait $!; echo $?; csalock unlock -q y 2> /dev/null; :");
                let words: Vec<&str> = shell.split(' ').chain(["-c", &script]).collect();
                sandbox.call(words[0], &words[1..]).capture().prints(0, "0\n");
            }
        }
    }

    fn a_script_that_gets_no_processor_does_not_wait(sandbox: &Sandbox) {
        // It is stopped between its job and what it does next.
        for ignored in ["", "trap '' INT; "] {
            let job = "csalock run -w 30s x true; echo $? > code";
            let script = format!("{ignored}csalock lock x > /dev/null; ( {job} ) & kill -STOP $$; csalock unlock x; wait; cat code");
            let script = sandbox.script("dash", &script).spawn();
            wait_until("the job waits", || sandbox.waiters("x").len() == 1 && proc::stat(script.pid()).unwrap().0 == 'T');
            std::thread::sleep(Duration::from_millis(500));
            script.send(Signal::SIGCONT);
            script.wait().prints(0, "0\n");
        }
    }

    fn workers_of_one_script_are_told_apart(sandbox: &Sandbox) {
        // Six of them want the lock of another holder; one of these holds the lock that this one wants.
        let mut other = sandbox.call("dash", ["-c", "csalock lock y > /dev/null; echo holds; read line; csalock lock -w 30s x > /dev/null"]).ready();
        let holds = "csalock lock x > /dev/null; : > holds; while [ ! -e go ]; do sleep 0.01; done";
        let want = "csalock run -w 60s y true; echo $0 $? >> codes";
        let wants = format!("( {want} )");
        let script = format!("( {holds}; {}; csalock unlock x ) | {}", want.replace("$0", "last"), [&wants[..]; 5].join(" | "));
        let script = sandbox.script("dash", &script).spawn();
        wait_until("they wait", || sandbox.waiters("y").len() == 5 && sandbox.path("files/holds").exists());
        other.tell("go");
        wait_until("it waits", || sandbox.waiters("x").len() == 1);
        sandbox.file("files/go", "");
        let code = other.wait().code.unwrap();
        script.wait().exits(0);
        let codes = std::fs::read_to_string(sandbox.path("files/codes")).unwrap();
        assert_eq!(codes.matches(" 0\n").count(), if code == 0 { 5 } else { 6 }, "{code}: {codes}");
        assert_eq!(code == 0, codes.contains("last 84"), "{code}: {codes}");
    }

    fn a_slot_that_may_become_free_is_waited_for(sandbox: &Sandbox) {
        // One of the two holders waits for this caller, but the other one does not.
        let mut free = sandbox.csalock(["run", "-j", "2", "b", "cat"]).spawn();
        wait_until("it holds", || sandbox.holders("b").len() == 1);
        let script = "csalock lock $3 $0 > /dev/null || exit 1; echo holds; read line; exec csalock lock -w 20s $4 $1 > /dev/null";
        let with = |words: [&str; 5]| {
            let script = script.replace("$3", words[2]).replace("$4", words[3]);
            sandbox.call("dash", ["-c", &script, words[0], words[1]]).ready()
        };
        let mut first = with(["a", "b", "", "-j 2", ""]);
        let mut second = with(["b", "a", "-j 2", "", ""]);
        first.tell("go");
        wait_until("it waits for a place", || sandbox.waiters("b").len() == 1);
        second.tell("go");
        wait_until("the other waits for it", || sandbox.waiters("a").len() == 1);
        free.release();
        first.wait().exits(0);
        second.wait().exits(0);
    }

    fn the_callers_own_lock_is_refused_at_once(sandbox: &Sandbox) {
        for script in [
            "csalock lock x > /dev/null; csalock lock -w 20s x",
            "csalock lock x > /dev/null; csalock run -w 20s x true",
            "csalock lock x > /dev/null; csalock run -w 20s y csalock run -w 20s x true",
            "csalock run x csalock run -w 20s x true",
            "csalock run x csalock run y csalock run z csalock run -w 20s x true",
            "csalock run x dash -c 'csalock lock -w 20s x; exit'",
            "csalock run -s x csalock run -w 20s x true",
            "csalock run -j 1 x csalock run -w 20s -j 1 x true",
            "csalock lock x y > /dev/null; csalock lock -w 20s y z",
            "csalock run x --also y -- csalock run -w 20s z --also y -- true",
        ] {
            let begun = Instant::now();
            let done = sandbox.script("dash", script).capture();
            assert_eq!(done.code, Some(84), "{script}: {done:?}");
            assert!(is_within(begun, Duration::from_secs(10)), "{script}");
            assert!(done.stderr.contains("the caller holds it already, so waiting would never end: pid "), "{}", done.stderr);
            assert_eq!([sandbox.waiters("x"), sandbox.waiters("y")].concat(), [0; 0], "{script}");
            assert!(sandbox.is_tidy(), "{script}");
        }
    }

    fn another_thread_of_the_caller_may_release_the_lock(sandbox: &Sandbox) {
        require!(has("python3"));
        // The pause is several times the time after which a script is found to wait for its own lock.
        let program = "import subprocess, threading, time\n\
                       call = lambda *words: subprocess.run(['csalock', *words], capture_output=True, text=True)\n\
                       print(call('lock', 'x'))\n\
                       waits = threading.Thread(target=lambda: print(call('lock', '-w', '20s', 'x')))\n\
                       waits.start()\n\
                       while '\"waiters\":[{' not in call('status', '--json', 'x').stdout: time.sleep(0.01)\n\
                       time.sleep(1)\n\
                       call('unlock', 'x')\n\
                       waits.join()\n";
        let said = "CompletedProcess(args=['csalock', 'lock', 'x'], returncode=0, stdout='', stderr='')\n\
                    CompletedProcess(args=['csalock', 'lock', '-w', '20s', 'x'], returncode=0, stdout='', stderr='')\n";
        sandbox.call("python3", ["-c", program]).stdout(said).run();
    }

    fn a_background_process_is_not_part_of_a_cycle(sandbox: &Sandbox) {
        // The script itself does not wait for what it started in the background.
        let script = "csalock lock x > /dev/null; csalock run x touch done & \
                      while [ \"$(csalock status --json x | grep -c '\"waiters\":\\[{')\" = 0 ]; do sleep 0.01; done; \
                      csalock lock -w 50ms y > /dev/null; csalock unlock x y; wait; ls done";
        sandbox.script("dash", script).stdout("done\n").run();
        for job in ["(csalock run -w 20s a true; echo $? > code) &", "csalock lock -w 20s a > code; echo $? > code &",
                    "(csalock lock -w 20s a; echo $? > code) > /dev/null &", "{ csalock run -w 20s a true; echo $? > code; } &"] {
            let job = job.replace("csalock lock -w 20s a > code; echo $? > code &", "sh -c 'csalock lock -w 20s a; echo $? > code' > /dev/null &");
            let script = format!("csalock lock a > /dev/null; {job} sleep 0.3; csalock unlock a; wait; cat code");
            for start in ["dash -c \"$0\"", "dash -c \"$0\" & wait", "trap '' INT; dash -c \"$0\""] {
                let done = sandbox.call("dash", ["-c", start, &script]).capture();
                assert_eq!((done.code, done.stdout.as_str()), (Some(0), "0\n"), "{start} {script} {}", done.stderr);
            }
        }
        // A subshell in the background that waits for a waiter of the script is not a cycle either.
        let script = "csalock lock a > /dev/null; ( csalock lock -w 20s b > /dev/null; echo $? > subshell ) & \
                      while [ ! -e go ]; do sleep 0.01; done; csalock unlock a; wait; cat subshell";
        let mut other = sandbox.script("dash", "csalock lock b > /dev/null; echo holds; read line; csalock lock -w 20s a").ready();
        let script = sandbox.script("dash", script).spawn();
        wait_until("the subshell waits", || sandbox.waiters("b").len() == 1);
        other.tell("go");
        wait_until("and the other one as well", || sandbox.waiters("a").len() == 1);
        std::thread::sleep(Duration::from_millis(300));
        sandbox.file("files/go", "");
        other.wait().exits(0);
        script.wait().prints(0, "0\n");
        // Two readers of one script that do not stand in each other's way.
        sandbox.script("dash", "csalock lock -s x > /dev/null; csalock run -s x true; csalock lock -j 2 y > /dev/null; csalock run -j 2 y true").run();
    }

    fn a_waiter_behind_a_cycle_is_not_its_victim(sandbox: &Sandbox) {
        let script = "csalock lock $0 > /dev/null; echo holds; read line; csalock lock -w 20s $1 > /dev/null; code=$?; read line; exit $code";
        let mut jobs = [["a", "b"], ["b", "a"], ["c", "a"]].map(|names| sandbox.call("dash", [&["-c", script], &names[..]].concat()).ready());
        // The innocent one waits first, so that it is not chosen for being the last; and then it is the last.
        let [first, second, innocent] = &mut jobs;
        first.tell("go");
        wait_until("it waits", || sandbox.waiters("b").len() == 1);
        innocent.tell("go");
        wait_until("it waits", || sandbox.waiters("a").len() == 1);
        second.tell("go");
        wait_until("the cycle is gone", || sandbox.waiters("a").len() + sandbox.waiters("b").len() == 2);
        jobs.iter_mut().for_each(|job| job.tell("end"));
        assert_eq!(jobs.map(|job| job.wait().code.unwrap()), [0, 84, 0]);
    }

    fn ordered_locks_raise_no_deadlock_alarm(sandbox: &Sandbox) {
        // Every script acquires its names in one order, which is that of csalock too: n2 would come after n10. So no cycle
        // can arise.
        let seconds = crate::extent::choose(5, 60, 600);
        let script = "seed=$0; roll() { seed=$(( (seed * 1103515245 + 12345) % 2147483648 )); r=$(( seed / 65536 % $1 )); }
            while [ ! -e done ]; do
                roll 8; a=$((10 + r)); roll 8; b=$((10 + r)); roll 3; how=$r
                [ $a -le $b ] || { c=$a; a=$b; b=$c; }
                [ $a != $b ] || b=$((a + 8))
                case $how in
                0) csalock run n$a csalock run n$b true;;
                1) csalock lock n$a > /dev/null && csalock run -s n$b true; code=$?; csalock unlock n$a; [ $code = 0 ];;
                2) csalock run n$a --also n$b -- true;;
                esac || { echo $? >> alarms; exit 1; }
            done";
        let jobs: Vec<Job> = (1..9).map(|seed: u32| sandbox.call("dash", ["-c", script, &seed.to_string()]).spawn()).collect();
        std::thread::sleep(Duration::from_secs(seconds));
        sandbox.file("files/done", "");
        for job in jobs {
            let done = job.wait();
            assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{}", sandbox.read("files/alarms"));
        }
    }
}
