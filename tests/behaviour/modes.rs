//! Exclusive, shared and slots: one queue, and no waiter passes another one unless it fits.

use crate::referee;
use crate::sandbox::{Job, Sandbox, has, wait_until};

/// A holder in this mode until it is told to end.
fn holder(sandbox: &Sandbox, mode: &[&str]) -> Job {
    let words = [&["run"], mode, &["x", "sh", "-c", "echo in $CSALOCK_SLOT; read line; :"]].concat();
    sandbox.csalock(words).spawn()
}

fn holding(sandbox: &Sandbox, mode: &[&str]) -> Job {
    let mut job = holder(sandbox, mode);
    job.lines(1);
    job
}

/// Starts a waiter in this mode and returns it once it is in the queue behind this many others.
fn waiting(sandbox: &Sandbox, mode: &[&str], before: usize) -> Job {
    let job = holder(sandbox, mode);
    wait_until("it waits", || sandbox.waiters("x").len() == before + 1);
    job
}

fn is_in(job: &Job) -> bool {
    !job.printed().is_empty()
}

on_every_store! {
    fn a_refused_caller_leaves_no_number_of_slots(sandbox: &Sandbox) {
        let mut reader = sandbox.script("dash", "csalock lock -s x && echo held; read line").ready();
        sandbox.script("dash", "csalock lock -s x; :").run();
        // The caller removes the dead reader, so it writes the record.
        sandbox.csalock(["run", "-n", "-j", "3", "x", "true"]).capture().exits(75);
        assert_eq!(sandbox.sight("x")["slots"], serde_json::Value::Null);
        reader.tell("end");
    }

    fn a_command_sees_no_slot_of_an_outer_lock(sandbox: &Sandbox) {
        let inner = "echo $CSALOCK_NAME ${CSALOCK_SLOT-none} ${CSALOCK_OUTER-none} $CSALOCK_HANDLE";
        let outer = format!("echo $CSALOCK_NAME $CSALOCK_SLOT; csalock run b sh -c '{inner}'");
        let done = sandbox.csalock(["run", "-j", "4", "a", "sh", "-c", &outer]).capture();
        let lines: Vec<Vec<&str>> = done.stdout.lines().map(|line| line.split(' ').collect()).collect();
        assert_eq!((lines[0].as_slice(), &lines[1][..2], lines[1].len()), (&["a", "0"][..], &["b", "none"][..], 4), "{done:?}");
        // Variables without a handle in the environment do not stand for a lock.
        let call = sandbox.csalock(["run", "b", "sh", "-c", inner]).env("CSALOCK_SLOT", "7");
        let done = call.env("CSALOCK_OUTER", "0".repeat(64)).capture();
        assert!(done.stdout.starts_with("b none none "), "{done:?}");
    }

    fn readers_hold_a_lock_together_and_a_writer_alone(sandbox: &Sandbox) {
        let (mut first, mut second) = (holding(sandbox, &["-s"]), holding(sandbox, &["--shared"]));
        assert_eq!(sandbox.holders("x").len(), 2);
        assert_eq!(sandbox.sight("x")["mode"], "shared");
        sandbox.csalock(["run", "-s", "-n", "x", "true"]).run();
        sandbox.csalock(["run", "-n", "x", "true"]).capture().exits(75);
        let mut writer = waiting(sandbox, &["-x"], 0);
        first.release();
        wait_until("one reader is left", || sandbox.holders("x").len() == 1);
        assert!(!is_in(&writer));
        second.release();
        writer.lines(1);
        sandbox.csalock(["run", "-s", "-n", "x", "true"]).capture().exits(75);
        assert_eq!(sandbox.sight("x")["mode"], "exclusive");
        writer.wait().exits(0);
    }

    fn a_reader_never_passes_a_waiting_writer(sandbox: &Sandbox) {
        let mut reader = holding(sandbox, &["-s"]);
        let mut writer = waiting(sandbox, &[], 0);
        let mut late: Vec<Job> = (1..4).map(|before| waiting(sandbox, &["-s"], before)).collect();
        sandbox.csalock(["run", "-s", "-n", "x", "true"]).capture().exits(75);
        reader.release();
        writer.lines(1);
        assert!(late.iter().all(|job| !is_in(job)));
        writer.release();
        // And then all readers that stand in a row get in at once.
        for job in &mut late {
            job.lines(1);
        }
        assert_eq!(sandbox.holders("x").len(), 3);
        late.into_iter().for_each(|job| job.wait().exits(0));
    }

    fn a_writer_that_gives_up_admits_the_readers_behind_it(sandbox: &Sandbox) {
        let mut reader = holding(sandbox, &["-s"]);
        let mut writer = waiting(sandbox, &[], 0);
        let mut late = waiting(sandbox, &["-s"], 1);
        writer.kill();
        late.lines(1);
        for job in [reader, late] {
            job.wait().exits(0);
        }
        reader = holding(sandbox, &["-s"]);
        reader.release();
    }

    fn a_lock_has_as_many_holders_as_slots(sandbox: &Sandbox) {
        let mut jobs: Vec<Job> = (0..3).map(|_| holding(sandbox, &["-j", "3"])).collect();
        let told: Vec<String> = jobs.iter().map(Job::printed).collect();
        assert_eq!(told, ["in 0\n", "in 1\n", "in 2\n"]);
        sandbox.csalock(["run", "-n", "--slots", "3", "x", "true"]).capture().exits(75);
        // The lowest free one is given again.
        let mut last = waiting(sandbox, &["-j", "3"], 0);
        jobs[1].release();
        assert_eq!(last.lines(1), ["in 1"]);
        let sight = sandbox.sight("x");
        assert_eq!((&sight["mode"], &sight["slots"]), (&"slots".into(), &3.into()));
        let slots: Vec<_> = sight["holders"].as_array().unwrap().iter().map(|holder| holder["slot"].clone()).collect();
        assert_eq!(slots, [0, 2, 1]);
        jobs.push(last);
        jobs.iter_mut().for_each(Job::release);
    }

    fn another_number_of_slots_counts_when_the_holders_are_gone(sandbox: &Sandbox) {
        let mut former: Vec<Job> = (0..2).map(|_| holding(sandbox, &["-j", "3"])).collect();
        for words in [&["run", "-n", "-j", "4", "x", "true"][..], &["lock", "-n", "-j", "4", "x"]] {
            let done = sandbox.csalock(words).capture();
            assert!(done.stderr.contains("; it has 3 slots now, and the caller's 4 count when the holders are gone; "), "{done:?}");
            done.exits(75);
        }
        let mut later = waiting(sandbox, &["-j", "4"], 0);
        // A slot of the former number is free, but the waiter came first.
        let mut last = waiting(sandbox, &["-j", "3"], 1);
        former.pop().unwrap().wait().exits(0);
        wait_until("one holder is left", || sandbox.holders("x").len() == 1);
        assert!(!is_in(&later) && !is_in(&last));
        let sight = sandbox.sight("x");
        let waits: Vec<_> = sight["waiters"].as_array().unwrap().iter().map(|waiter| waiter["slots"].clone()).collect();
        assert_eq!((&sight["slots"], waits), (&3.into(), vec![4.into(), 3.into()]));
        if has("script") {
            let shown = sandbox.call("script", ["-qec", "csalock status x", "/dev/null"]).capture().stdout;
            assert!(shown.contains("2 of 3 slots free") && shown.contains(" (of 4 slots) "), "{shown}");
        }
        former.pop().unwrap().wait().exits(0);
        later.lines(1);
        assert_eq!((&sandbox.sight("x")["slots"], is_in(&last)), (&4.into(), false));
        later.release();
        last.lines(1);
        assert_eq!(sandbox.sight("x")["slots"], 3);
        last.wait().exits(0);
        sandbox.csalock(["run", "-n", "-j", "2", "x", "true"]).run();
    }

    fn status_tells_modes_and_free_slots(sandbox: &Sandbox) {
        let mut jobs: Vec<Job> = (0..2).map(|_| holding(sandbox, &["-j", "3"])).collect();
        let mut writer = waiting(sandbox, &[], 0);
        let mut reader = waiting(sandbox, &["-s"], 1);
        let mut counter = waiting(sandbox, &["-j", "3"], 2);
        let shown = sandbox.csalock(["status"]).capture().stdout;
        let cells: Vec<&str> = shown.lines().nth(1).unwrap().split_whitespace().take(4).collect();
        let pid = format!("{}+1", sandbox.holders("x")[0]);
        assert_eq!(cells, ["x", "2/3", "3", &pid], "{shown}");
        jobs.iter_mut().chain([&mut writer, &mut reader, &mut counter]).for_each(Job::kill);
    }

    fn modes_exclude_each_other_on_the_command_line(sandbox: &Sandbox) {
        // As with flock(1), the last of -s and -x counts.
        let mut job = holding(sandbox, &["-x", "-s"]);
        sandbox.csalock(["run", "-n", "-x", "-s", "x", "true"]).run();
        sandbox.csalock(["run", "-n", "-s", "-e", "x", "true"]).capture().exits(75);
        job.release();
        for words in [["-s", "-j", "2"], ["-x", "-j", "2"], ["-n", "-j", "0"], ["-n", "-j", "x"], ["-n", "-j", "-1"]] {
            let done = sandbox.csalock([&["run"], &words[..], &["x", "true"]].concat()).capture();
            assert_eq!((done.code, done.stdout.as_str()), (Some(64), ""), "{words:?}");
            assert!(done.stderr.starts_with("csalock: "), "{}", done.stderr);
        }
    }

    fn slots_are_never_given_twice(sandbox: &Sandbox) {
        let times = sandbox.many(25);
        let script = format!(
            "i=0; while [ $i -lt {times} ]; do i=$((i + 1)); \
             csalock run -j 3 x dash -c 'mkdir slot.$CSALOCK_SLOT || echo twice >> broken; rmdir slot.$CSALOCK_SLOT' \
             || exit 1; done"
        );
        let jobs: Vec<Job> = (0..8).map(|_| sandbox.script("dash", &script).spawn()).collect();
        jobs.into_iter().for_each(|job| job.wait().succeeds());
        assert_eq!(sandbox.read("files/broken"), "");
        assert_eq!(sandbox.state("x"), "free");
    }

    fn writers_among_readers_lose_no_step(sandbox: &Sandbox) {
        let (name, place) = referee::place(sandbox);
        let words = referee::command().join("' '");
        let times = sandbox.many(15);
        let script = format!(
            "i=0; while [ $i -lt {times} ]; do i=$((i + 1)); \
             csalock run -s x sh -c '[ ! -e marker ]' || echo seen >> broken; \
             csalock run x '{words}' > /dev/null || exit 1; done"
        );
        let jobs: Vec<Job> = (0..6).map(|_| sandbox.script("dash", &script).env(name, &place).spawn()).collect();
        jobs.into_iter().for_each(|job| job.wait().exits(0));
        assert_eq!(referee::steps(sandbox).len(), 6 * times);
    }
}
