//! More waiters than a record takes: the end of the queue is on pages of its own, which callers do not notice.

use nix::sys::signal::Signal;

use crate::etcd::fair::is_within;
use crate::sandbox::proc::stat_field;
use crate::sandbox::{Job, Sandbox, wait_until};

/// Enough for the record itself and two pages.
const CROWD: usize = 51;

/// Waiters that stand in the queue one behind the other, each of which adds its number to a file when it is its turn.
fn crowd(sandbox: &Sandbox, count: usize) -> Vec<Job> {
    (0..count).map(|number| sandbox.waiter("x", &format!("echo {number} >> order"))).collect()
}

/// The last of some waiters, which is itself the process in the queue and then runs the script.
fn exec_waiter(sandbox: &Sandbox, name: &str, script: &str, before: usize) -> Job {
    let job = sandbox.csalock(["run", "-F", "-w", "inf", name, "dash", "-c", script]).spawn();
    wait_until("it waits", || sandbox.waiting(name) == before + 1);
    job
}

fn order(sandbox: &Sandbox) -> Vec<usize> {
    sandbox.read("files/order").lines().map(|line| line.parse().unwrap()).collect()
}

on_every_store! {
    fn waiters_are_granted_in_order_of_arrival(sandbox: &Sandbox) {
        let mut holder = sandbox.holder("x");
        let waiters = crowd(sandbox, CROWD);
        let sight = sandbox.sight("x");
        let pids: Vec<i32> = sandbox.waiters("x");
        assert_eq!((pids.len(), sight["state"].as_str()), (CROWD, Some("held")));
        sandbox.csalock(["run", "-n", "x", "true"]).capture().exits(75);
        holder.release();
        waiters.into_iter().for_each(|waiter| waiter.wait().succeeds());
        assert_eq!(order(sandbox), (0..CROWD).collect::<Vec<_>>());
        assert_eq!(sandbox.state("x"), "free");
        assert!(sandbox.is_tidy());
    }

    fn dead_waiters_and_waiters_that_give_up_leave_no_gap(sandbox: &Sandbox) {
        let mut holder = sandbox.holder("x");
        let mut waiters = crowd(sandbox, CROWD);
        // One waiter of three is killed, one is asked to end, and one stays: in the record and on the pages.
        for (number, waiter) in waiters.iter_mut().enumerate() {
            match number % 3 {
                0 => waiter.kill(),
                1 => waiter.send(Signal::SIGTERM),
                _ => {}
            }
        }
        // A waiter without time to leave stays in the queue, known to be dead, until its turn.
        let is_there = |waiter: &&serde_json::Value| waiter["alive"] != "no";
        let there = || sandbox.sight("x")["waiters"].as_array().unwrap().iter().filter(is_there).count();
        wait_until("both kinds are gone", || there() == CROWD / 3);
        let late = crowd(sandbox, 2);
        holder.release();
        for (number, waiter) in waiters.into_iter().enumerate() {
            let done = waiter.wait();
            if number % 3 == 2 {
                assert_eq!(done.code, Some(0));
            }
        }
        let stayed: Vec<usize> = (0..CROWD).filter(|number| number % 3 == 2).chain([0, 1]).collect();
        late.into_iter().for_each(|waiter| waiter.wait().exits(0));
        assert_eq!(order(sandbox), stayed);
        assert!(sandbox.is_tidy());
    }

    fn a_timeout_far_behind_is_a_timeout(sandbox: &Sandbox) {
        let mut holder = sandbox.holder("x");
        let waiters = crowd(sandbox, 25);
        sandbox.csalock(["run", "-w", "100ms", "x", "true"]).capture().exits(75);
        assert_eq!(sandbox.waiters("x").len(), 25);
        holder.release();
        waiters.into_iter().for_each(|waiter| waiter.wait().exits(0));
    }

    fn the_first_waiter_of_a_page_sees_all_before_it_killed(sandbox: &Sandbox) {
        let mut holder = sandbox.csalock(["run", "-F", "x", "cat"]).spawn();
        wait_until("it holds", || sandbox.state("x") == "held");
        let wait = |number| exec_waiter(sandbox, "x", &format!("echo {number} >> order"), number);
        let mut waiters: Vec<Job> = (0..50).map(wait).collect();
        let last = waiters.split_off(48);
        let begun = std::time::Instant::now();
        waiters.iter_mut().for_each(Job::kill);
        holder.kill();
        last.into_iter().for_each(|waiter| waiter.wait().exits(0));
        assert!(is_within(begun, std::time::Duration::from_secs(5)), "no waiter needs its next poll: {:?}", begun.elapsed());
        assert_eq!(order(sandbox), [48, 49]);
    }

    fn a_dead_waiter_is_known_to_be_dead_at_any_position(sandbox: &Sandbox) {
        let _holder = sandbox.holder("x");
        let mut waiters: Vec<Job> = (0..20).map(|number| exec_waiter(sandbox, "x", "true", number)).collect();
        // In the record, and on a page.
        for dead in [5, 18] {
            waiters[dead].kill();
            wait_until("it is dead", || waiters[dead].has_ended());
            let sight = sandbox.sight("x");
            assert_eq!(sight["waiters"][dead]["alive"], "no", "{sight}");
        }
        // The waiters behind them sleep.
        let ticks = |job: &Job| [14, 15].map(|field| stat_field(job.pid(), field).unwrap()).iter().sum::<i64>();
        for behind in [6, 19] {
            let before = ticks(&waiters[behind]);
            std::thread::sleep(std::time::Duration::from_millis(500));
            let spent = ticks(&waiters[behind]) - before;
            assert!(spent < 10, "{spent} hundredths of a second of half a one");
        }
        waiters.iter_mut().filter_map(|job| (!job.has_ended()).then_some(job)).for_each(Job::kill);
    }

    fn a_caller_of_several_locks_keeps_its_position_on_a_page(sandbox: &Sandbox) {
        // It loses A while it waits for B; then it stands on a page of A, with the handle of the grant that it lost.
        let mut b = sandbox.holder("B");
        let several = sandbox.csalock(["run", "-w", "inf", "A", "--also", "B", "--", "true"]).spawn();
        wait_until("it keeps A", || sandbox.state("A") == "held" && sandbox.waiters("B").len() == 1);
        let mut waiters: Vec<Job> = (0..18).map(|number| exec_waiter(sandbox, "A", "cat", number)).collect();
        sandbox.csalock(["unlock", "--force", "A"]).capture().exits(0);
        b.release();
        wait_until("it waits for A", || sandbox.waiters("A").len() == 18);
        let begun = std::time::Instant::now();
        waiters.iter_mut().for_each(Job::kill);
        several.wait().exits(0);
        assert!(is_within(begun, std::time::Duration::from_secs(5)), "{:?}", begun.elapsed());
    }

    fn scripts_in_a_crowd_see_their_cycle(sandbox: &Sandbox) {
        let mut holder = sandbox.csalock(["run", "x", "dash", "-c", "echo in; read line; csalock run -w 20s y true"]).ready();
        let mut waiters = crowd(sandbox, 20);
        let mut other = sandbox.script("dash", "csalock lock y > /dev/null; csalock lock -w 20s x > /dev/null").spawn();
        wait_until("it waits", || sandbox.waiters("x").len() == 21);
        holder.tell("go");
        let codes = [holder.wait().code.unwrap(), { waiters.drain(..).for_each(|waiter| drop(waiter.wait())); other.release(); other.wait().code.unwrap() }];
        assert_eq!(codes, [84, 0]);
    }

    fn a_crowd_under_one_lock_sees_its_cycle(sandbox: &Sandbox) {
        let script = "echo in; read line; for n in 1 2 3 4 5 6 7 8; do csalock run -qw 60s x true & jobs=\"$jobs $!\"; done; \
                      for job in $jobs; do wait $job; echo $?; done";
        let mut crowd = sandbox.csalock(["run", "y", "dash", "-c", script]).ready();
        let other = "csalock lock x > /dev/null; echo in; csalock lock -w 60s y > /dev/null";
        let other = sandbox.script("dash", other).ready();
        wait_until("it waits", || sandbox.waiters("y").len() == 1);
        let begun = std::time::Instant::now();
        crowd.tell("go");
        assert_eq!(crowd.wait().stdout, format!("in\n{}", "84\n".repeat(8)));
        other.wait().exits(0);
        assert!(is_within(begun, std::time::Duration::from_secs(20)), "the wait ends before the timeout");
        assert!(sandbox.is_tidy());
    }

    fn a_crowd_that_is_all_over_the_place_loses_no_step(sandbox: &Sandbox) {
        sandbox.file("files/counter", "0\n");
        let crowd = sandbox.many(50).max(20);
        let script = "i=0; while [ $i -lt 6 ]; do i=$((i + 1)); \
                      csalock run -w inf x dash -c 'read n < counter; echo $((n + 1)) > counter' || exit 1; done";
        let jobs: Vec<Job> = (0..crowd).map(|_| sandbox.script("dash", script).spawn()).collect();
        jobs.into_iter().for_each(|job| job.wait().succeeds());
        assert_eq!(sandbox.read("files/counter"), format!("{}\n", 6 * crowd));
        assert_eq!(sandbox.state("x"), "free");
        assert!(sandbox.is_tidy());
    }
}

mod witnesses {
    use crate::sandbox::has_namespaces;

    on_every_shared_store! {
        fn the_dead_leave_no_witness_wherever_they_stood(sandbox: &Sandbox) {
            require!(has_namespaces("a /dev/shm of its own"));
            // The last waiter dies first: a waiter removes the dead in front of it, and must not die during that. The
            // holder has ended before the last command begins, so no other process still cleans up after it.
            let script = "mount -t tmpfs none /dev/shm || exit 9; csalock run x dash -c 'touch held; exec sleep 600' & \
                          until test -e held; do sleep 0.05; done; for n in $(seq 20); do csalock run -F -w inf x true & jobs=\"$! $jobs\"; \
                          until csalock status --json x | grep -o '\"pid\"' | wc -l | grep -qx $((n + 1)); do sleep 0.02; done; done; \
                          ls /dev/shm | grep -c csalock; kill -9 $jobs; kill %1; wait; csalock run -q -w 60s x true; ls /dev/shm | grep -c csalock";
            let done = sandbox.call("unshare", ["-m", "--propagation", "private", "bash", "-c", script]).capture();
            // A holder and a waiter each have one.
            assert_eq!(done.stdout, "21\n0\n", "{done:?}");
        }
    }
}
