//! Many at once: never two in the lock, and everyone gets through.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::referee;
use crate::sandbox::{Job, Sandbox, is_thorough, proc, wait_until};

const PROCESSES: u64 = 24;

/// How often each counts.
fn rounds(sandbox: &Sandbox) -> u64 {
    match (sandbox.is_of_files(), is_thorough()) {
        (true, true) => 200,
        (true, false) => 25,
        (false, _) => 5,
    }
}

/// How many of those in the storm that is shot at, and for how long at least.
const TARGETS: usize = 16;
const SHOOTING: Duration = Duration::from_secs(2);

/// So many steps are the least that says anything.
const STEPS: usize = 50;

/// Read, increment, write, all by the shell itself; with a marker that only one can create.
const COUNT: &str = "(set -C; : > marker) 2>/dev/null || echo two at once >> broken; \
                     read n < counter; echo $((n + 1)) > counter; rm marker";

fn storm(sandbox: &Sandbox, round: &str) {
    sandbox.file("files/counter", "0\n");
    let rounds = rounds(sandbox);
    let script = format!("i=0; while [ $i -lt {rounds} ]; do i=$((i + 1)); {round} || exit 1; done");
    let jobs: Vec<Job> = (0..PROCESSES).map(|_| sandbox.script("dash", &script).spawn()).collect();
    for job in jobs {
        let done = job.wait();
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{done:?}");
    }
    assert_eq!(sandbox.read("files/broken"), "");
    assert_eq!(sandbox.read("files/counter"), format!("{}\n", PROCESSES * rounds));
    assert_eq!(sandbox.state("x"), "free");
}

/// Small random numbers that a printed seed brings back.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }
}

/// The pids of everybody in the process groups of these jobs.
pub(crate) fn members(jobs: &[Job]) -> Vec<i32> {
    let groups: Vec<String> = jobs.iter().map(|job| job.pid().to_string()).collect();
    let all =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    all.filter(|pid| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let group = text.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(2)).unwrap_or_default();
        groups.iter().any(|known| known == group)
    })
    .collect()
}

/// Runs scripts that the referee watches, and shoots at them.
fn refereed(sandbox: &Sandbox, script: &str) {
    let few = || sandbox.read("files/steps").lines().count() <= STEPS;
    shoot(sandbox, script, &few);
    let steps = referee::steps(sandbox);
    assert!(steps.len() > STEPS, "only {} steps", steps.len());
    assert_eq!(sandbox.csalock(["run", "-w", "5s", "-q", "x", "true"]).capture().code, Some(0));
    assert_eq!(sandbox.state("x"), "free");
    println!("{} steps", steps.len());
}

/// Runs the script many times side by side, kills, stops and continues processes of it at random, for a while and as long
/// as there were few steps; then lets all that are left finish. Says how many were killed.
fn shoot(sandbox: &Sandbox, script: &str, few: &dyn Fn() -> bool) -> usize {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    println!("seed {seed}");
    // Two storms at once would leave each other too little of the machine.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut dice = Dice(seed);
    let (name, place) = referee::place(sandbox);
    let begin = || sandbox.script("dash", script).env(name, &place).stdin("").spawn();
    let mut jobs: Vec<Job> = (0..TARGETS).map(|_| begin()).collect();
    let mut stopped: Vec<i32> = Vec::new();
    let begun = Instant::now();
    let mut killed = 0;
    while begun.elapsed() < SHOOTING || (few() && begun.elapsed() < SHOOTING * 30) {
        std::thread::sleep(Duration::from_millis(2));
        let victims = members(&jobs);
        if victims.is_empty() {
            continue;
        }
        let victim = victims[dice.roll(victims.len())];
        match dice.roll(4) {
            0 | 1 => {
                let _ = kill(Pid::from_raw(victim), Signal::SIGKILL);
                killed += 1;
            }
            2 => {
                let _ = kill(Pid::from_raw(victim), Signal::SIGSTOP);
                stopped.push(victim);
            }
            _ if stopped.is_empty() => {}
            _ => {
                let _ = kill(Pid::from_raw(stopped.swap_remove(dice.roll(stopped.len()))), Signal::SIGCONT);
            }
        }
        // The dead are replaced, so that the storm goes on.
        for at in 0..jobs.len() {
            if jobs[at].has_ended() && members(&jobs[at..=at]).is_empty() {
                jobs[at] = begin();
            }
        }
    }
    let all = |signal| {
        for pid in members(&jobs) {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    };
    std::fs::write(sandbox.path("files/over"), "").unwrap();
    wait_until("nobody is stopped", || {
        all(Signal::SIGCONT);
        members(&jobs).into_iter().all(|pid| !matches!(proc::stat(pid), Some(('T', _))))
    });
    wait_until("everyone left finishes", || members(&jobs).into_iter().all(|pid| !proc::lives(pid)));
    killed
}

/// Read, modify, write.
const COUNT_UP: &str = "n=$(csalock get -q --lock -w inf x); csalock put --unlock x $((n + 1))";

on_every_store! {
    fn twenty_four_processes_count_on_under_run_with_lock(sandbox: &Sandbox) {
        storm(sandbox, &format!("csalock run -w inf x dash -c '{COUNT}'"));
    }

    fn twenty_four_shells_count_on_with_lock_and_unlock(sandbox: &Sandbox) {
        storm(sandbox, &format!("csalock lock -w inf x >/dev/null && {{ {COUNT}; csalock unlock x; }}"));
    }

    fn under_run_with_lock_kills_and_stops_let_nobody_in_twice(sandbox: &Sandbox) {
        let command = referee::command().join(" ");
        refereed(sandbox, &format!("while [ ! -e over ]; do csalock run -w inf x {command} >/dev/null 2>&1; done"));
    }

    fn under_lock_and_unlock_kills_and_stops_let_nobody_in_twice(sandbox: &Sandbox) {
        // The referee takes the shell's place, so that what holds the lock is what is in it.
        let command = referee::command().join(" ");
        let round = format!("dash -c 'csalock lock -w inf x >/dev/null 2>&1 && exec {command} >/dev/null 2>&1'");
        refereed(sandbox, &format!("while [ ! -e over ]; do {round}; done"));
    }

    fn twenty_four_shells_count_on_in_a_value(sandbox: &Sandbox) {
        let rounds = rounds(sandbox);
        let script = format!("i=0; while [ $i -lt {rounds} ]; do i=$((i + 1)); {COUNT_UP} || exit 1; done");
        let jobs: Vec<Job> = (0..PROCESSES).map(|_| sandbox.script("dash", &script).spawn()).collect();
        for job in jobs {
            let done = job.wait();
            assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{done:?}");
        }
        sandbox.csalock(["get", "x"]).stdout((PROCESSES * rounds).to_string()).run();
        assert_eq!(sandbox.state("x"), "free");
    }

    fn a_value_counts_what_was_written_whoever_is_killed(sandbox: &Sandbox) {
        let round = format!("dash -c '{COUNT_UP} && echo >> done' 2> /dev/null");
        let few = || sandbox.read("files/done").len() <= STEPS;
        let killed = shoot(sandbox, &format!("while [ ! -e over ]; do {round}; done"), &few);
        let written = sandbox.read("files/done").len();
        let counted: usize = sandbox.csalock(["get", "x"]).capture().stdout.parse().unwrap();
        assert!((written..=written + killed).contains(&counted), "{written} written, {killed} killed, {counted} counted");
        println!("{written} written, {killed} killed, {counted} counted");
        sandbox.csalock(["del", "-qw", "5s", "x"]).run();
        assert!(sandbox.is_tidy());
    }

    fn a_pair_is_claimed_by_one_or_by_nobody_whoever_is_killed(sandbox: &Sandbox) {
        let count = if sandbox.is_of_files() { 500 } else { 150 };
        let script = format!(
            "i=0; while [ $i -lt {count} ]; do i=$((i + 1)); [ ! -e over ] || break; id=$$.$i
             csalock claim -qw inf --id $id mail$i user$i > /dev/null 2>&1 && echo $i $id >> won; done"
        );
        let few = || sandbox.read("files/won").lines().count() <= STEPS;
        let killed = shoot(sandbox, &script, &few);
        let said = sandbox.csalock(["status", "--json"]).capture().stdout;
        let claims: std::collections::HashMap<String, String> = serde_json::from_str::<Vec<serde_json::Value>>(&said).unwrap().into_iter()
            .filter(|sight| sight["state"] == "held")
            .map(|sight| (sight["name"].as_str().unwrap().into(), sight["holders"][0]["claim"].as_str().unwrap().into())).collect();
        for won in sandbox.read("files/won").lines() {
            let (pair, id) = won.split_once(' ').unwrap();
            assert_eq!(claims.get(&format!("mail{pair}")).map(String::as_str), Some(id), "{pair}");
        }
        let mut pairs = 0;
        for pair in 1..=count {
            let (mail, user) = (format!("mail{pair}"), format!("user{pair}"));
            assert_eq!(claims.get(&mail), claims.get(&user), "half of pair {pair}");
            let next = sandbox.csalock(["claim", "-q", "-n", "--id", "next", &user, &mail]).capture();
            assert_eq!(next.code, Some(if claims.contains_key(&mail) { 83 } else { 0 }), "pair {pair}");
            pairs += usize::from(claims.contains_key(&mail));
        }
        println!("{pairs} pairs claimed, {killed} killed");
    }
}
