//! Many callers at once: never two in the lock, and all get through. `tests/storm` adds faults.

use crate::extent::{Extent, extent};
use crate::sandbox::{Job, Sandbox};

const PROCESSES: u64 = 24;

fn rounds(sandbox: &Sandbox) -> u64 {
    match (sandbox.is_of_files(), extent() > Extent::Quick) {
        (true, true) => 200,
        (true, false) => 6,
        (false, _) => 2,
    }
}

/// Read, increment, write, all by the shell itself; with a marker that only one can create.
const COUNT: &str = "(set -C; : > marker) 2>/dev/null || echo two at once >> broken; \
                     read n < counter; echo $((n + 1)) > counter; rm marker";

fn storm(sandbox: &Sandbox, round: &str) {
    sandbox.file("files/counter", "0\n");
    let rounds = rounds(sandbox);
    let script = format!("i=0; while [ $i -lt {rounds} ]; do i=$((i + 1)); {round} || exit 1; done");
    let jobs: Vec<Job> = (0..PROCESSES).map(|_| sandbox.script("dash", &script).spawn()).collect();
    jobs.into_iter().for_each(|job| job.wait().succeeds());
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

/// Read, modify, write.
const COUNT_UP: &str = "n=$(csalock get -q --lock -w inf x); csalock put --unlock x $((n + 1))";

on_every_store! {
    fn twenty_four_processes_count_on_under_run_with_lock(sandbox: &Sandbox) {
        storm(sandbox, &format!("csalock run -w inf x dash -c '{COUNT}'"));
    }

    fn twenty_four_shells_count_on_with_lock_and_unlock(sandbox: &Sandbox) {
        storm(sandbox, &format!("csalock lock -w inf x >/dev/null && {{ {COUNT}; csalock unlock x; }}"));
    }

    fn twenty_four_shells_count_on_in_a_value(sandbox: &Sandbox) {
        let rounds = rounds(sandbox);
        let script = format!("i=0; while [ $i -lt {rounds} ]; do i=$((i + 1)); {COUNT_UP} || exit 1; done");
        let jobs: Vec<Job> = (0..PROCESSES).map(|_| sandbox.script("dash", &script).spawn()).collect();
        jobs.into_iter().for_each(|job| job.wait().succeeds());
        sandbox.csalock(["get", "x"]).stdout((PROCESSES * rounds).to_string()).run();
        assert_eq!(sandbox.state("x"), "free");
    }
}
