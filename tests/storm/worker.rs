//! One of the workers: it does round after round, causes the faults of each, and checks that each ends.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::exclusion::boottime;
use crate::fault_points;
use crate::history::{self, History, Returned};
use crate::sandbox::proc::wait_for_end;
use crate::schedule::{Fault, Op, Round, Schedule, Shot, What};
use crate::script::{self, Words};
use crate::setup::Ground;

/// How much longer than it may a round can last on a machine that has other things to do, with its store away.
const GRACE: Duration = Duration::from_secs(60);

/// A storm is stuck after this time without progress of any worker.
const STANDSTILL: u64 = 60_000;

#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) rounds: AtomicUsize,
    pub(crate) killed: AtomicUsize,
    pub(crate) stopped: AtomicUsize,
    pub(crate) clocks: AtomicUsize,
    pub(crate) history: History,
    /// When a round ended that was not given up, on CLOCK_BOOTTIME.
    pub(crate) last_end: AtomicU64,
}

pub(crate) struct Worker<'a> {
    pub(crate) ground: &'a Ground,
    pub(crate) schedule: &'a Schedule,
    pub(crate) figures: &'a Figures,
    pub(crate) number: usize,
}

impl Worker<'_> {
    pub(crate) fn work(&self, over: &AtomicBool) {
        for number in 0.. {
            if over.load(Ordering::Relaxed) {
                return;
            }
            let round = self.schedule.round(self.number, number);
            std::thread::sleep(round.pause);
            self.run(&round, &format!("w{}.{number}", self.number));
        }
    }

    fn run(&self, round: &Round, who: &str) {
        if let What::Op(op, number) = round.what {
            return self.operate(round, op, number, who);
        }
        let Words { words, told } = script::words(round, self.number);
        let mut command = self.ground.command(&words, who, round.clock);
        if !told.is_empty() {
            command.env(crate::critical_section::TOLD, format!("who={who} asked={} {told}", boottime()));
        }
        command.stderr(append(self.ground, "said"));
        let begun = Instant::now();
        let child = command.spawn().unwrap_or_else(|error| panic!("{words:?}: {error}"));
        let mut running = Running { child, begun, limit: Duration::from_millis(round.lasts()) + GRACE };
        self.figures.rounds.fetch_add(1, Ordering::Relaxed);
        self.figures.clocks.fetch_add(usize::from(round.clock.is_some()), Ordering::Relaxed);
        if let Some(fault) = &round.fault {
            self.befall(&mut running, fault, who);
        }
        match running.end(round.takes_its_time(), &self.figures.last_end) {
            None => note(self.ground, "broken", &format!("{who} did not end: {round:?}")),
            Some(_) if words[0] == "dash" => {}
            Some(status) => {
                let shown = if words[0] == "csalock" { words[1..].join(" ") } else { words.join(" ") };
                note(self.ground, "codes", &format!("{who} {status} {shown}"));
            }
        }
    }

    /// One call with its result in the history; for a lock, its release too.
    fn operate(&self, round: &Round, op: Op, number: usize, who: &str) {
        let name = history::name(op, number);
        self.figures.rounds.fetch_add(1, Ordering::Relaxed);
        self.figures.clocks.fetch_add(usize::from(round.clock.is_some()), Ordering::Relaxed);
        let words = history::words(op, &name, who, self.number);
        let Some(returned) = self.call(round, round.fault.as_ref(), &words, who) else { return };
        let Some(held) = self.figures.history.add(op, &name, who, self.number, &returned) else { return };
        if let Op::Lock { stay } = op {
            std::thread::sleep(Duration::from_millis(stay.into()));
        }
        let words = format!("unlock -q --handle {} {name}", held.handle);
        if let Some(returned) = self.call(round, None, &words, who) {
            self.figures.history.add_unlock(&name, &held, &returned);
        }
    }

    fn call(&self, round: &Round, fault: Option<&Fault>, words: &str, who: &str) -> Option<Returned> {
        let words: Vec<String> = std::iter::once("csalock").chain(words.split(' ')).map(str::to_string).collect();
        let mut command = self.ground.command(&words, who, round.clock);
        let mut stdout = tempfile::tempfile().unwrap();
        command.stderr(append(self.ground, "said")).stdout(stdout.try_clone().unwrap());
        let (begun, from) = (Instant::now(), boottime());
        let child = command.spawn().unwrap_or_else(|error| panic!("{words:?}: {error}"));
        let mut running = Running { child, begun, limit: Duration::from_millis(round.lasts()) + GRACE };
        if let Some(fault) = fault {
            self.befall(&mut running, fault, who);
        }
        let Some(status) = running.end(false, &self.figures.last_end) else {
            note(self.ground, "broken", &format!("{who} did not end: {words:?}"));
            return None;
        };
        let until = boottime();
        let mut said = String::new();
        stdout.rewind().unwrap();
        stdout.read_to_string(&mut said).unwrap();
        Some(Returned { from, until, status, stdout: said })
    }

    fn befall(&self, running: &mut Running, fault: &Fault, who: &str) {
        if running.is_over_within(Duration::from_millis(fault.after.into())) {
            return;
        }
        let Some(victim) = fault_points::find(fault.aim, running.group(), &self.ground.place) else { return };
        match fault.what {
            Shot::Kill => {
                let is_sent = fault_points::send(victim, Signal::SIGKILL);
                self.figures.killed.fetch_add(usize::from(is_sent), Ordering::Relaxed);
                note(self.ground, "killed", who);
            }
            Shot::Stop(span) => {
                let is_sent = fault_points::send(victim, Signal::SIGSTOP);
                self.figures.stopped.fetch_add(usize::from(is_sent), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(span.into()));
                fault_points::send(victim, Signal::SIGCONT);
            }
        }
    }
}

/// A round's first process, and with it its process group.
struct Running {
    child: Child,
    begun: Instant,
    limit: Duration,
}

impl Running {
    fn group(&self) -> i32 {
        self.child.id() as i32
    }

    fn is_over_within(&mut self, span: Duration) -> bool {
        let until = self.begun + span;
        loop {
            if self.child.try_wait().unwrap().is_some() {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            wait_for_end(self.group(), left);
        }
    }

    /// Returns its status as a shell has it, when all of the group have ended. `None`: they do not end, though they
    /// should, or though no other process has blocked them for long.
    fn end(mut self, takes_its_time: bool, last_end: &AtomicU64) -> Option<i32> {
        let mut pause = Duration::from_millis(5);
        while !self.is_over_within(self.limit.saturating_sub(self.begun.elapsed()).max(pause)) || self.is_left() {
            let moves = takes_its_time && boottime() - last_end.load(Ordering::Relaxed) < STANDSTILL;
            if self.begun.elapsed() >= self.limit && !moves {
                let _ = killpg(Pid::from_raw(self.group()), Signal::SIGKILL);
                let _ = self.child.wait();
                return None;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(300));
        }
        last_end.store(boottime(), Ordering::Relaxed);
        let status = self.child.wait().unwrap();
        status.code().or(status.signal().map(|signal| 128 + signal))
    }

    fn is_left(&self) -> bool {
        fault_points::is_left(self.group())
    }
}

fn append(ground: &Ground, file: &str) -> File {
    OpenOptions::new().append(true).create(true).open(ground.place.join(file)).unwrap()
}

fn note(ground: &Ground, file: &str, line: &str) {
    append(ground, file).write_all(format!("{line}\n").as_bytes()).unwrap();
}
