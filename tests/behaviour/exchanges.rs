//! Every exchange with etcd is cut: before the request arrives, after it has arrived, or in the middle of the reply;
//! once or permanently; and the process is killed at each of these points. The invariants are those after every system
//! call. No lease is left when the longest of them has expired.
//!
//! `CSALOCK_TESTS=hours` tries all of them. The others take a sample of the cuts that end, as `syscalls.rs` does, and the
//! test prints its number of cuts.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::etcd;
use crate::etcd::between::{Between, Fate, Where};
use crate::etcd::fair::fair;
use crate::extent::{is_complete, turn};
use crate::sandbox::wait_until;
use crate::syscalls::fixture::{Fixture, Place};
use crate::syscalls::invariants::{self, Mishap};
use crate::syscalls::scenarios;
use crate::syscalls::scenarios::Scenario;
use crate::syscalls::tracer::{Pids, Traced, trace_with};

/// A sample has so many cuts of each scenario.
const SAMPLE: usize = 2;

/// The extent of a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// This exchange, and none that comes after it.
    Once,
    /// From now on all of them.
    FromNowOn,
    /// The processes are killed.
    Killed,
}

/// The exchange, counted from 0, and what happens there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    exchange: usize,
    at: Where,
    what: What,
}

/// A proxy that cuts the traffic between the program and the server.
struct Cutter {
    between: Between,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    asked: Vec<String>,
    cut: Option<Cut>,
    met: bool,
    pids: Pids,
}

impl Cutter {
    fn before(server: &str) -> Cutter {
        let state: Arc<Mutex<State>> = Arc::default();
        let judge = state.clone();
        let between = Between::and(server, move |path, _| {
            let mut state = judge.lock().unwrap();
            let Some(Cut { at, what, .. }) = state.meet(path) else { return Fate::default() };
            let pids = state.pids.clone();
            let then = (what == What::Killed).then(|| Box::new(move || kill_all(&pids)) as _);
            Fate { cut: Some(at), then, ..Fate::default() }
        });
        Cutter { between, state }
    }

    fn set(&self, cut: Option<Cut>) -> Pids {
        let mut state = self.state.lock().unwrap();
        *state = State { cut, ..State::default() };
        state.pids.clone()
    }

    fn asked(&self) -> Vec<String> {
        self.state.lock().unwrap().asked.clone()
    }
}

impl State {
    fn meet(&mut self, path: &str) -> Option<Cut> {
        let number = self.asked.len();
        self.asked.push(path.to_string());
        let cut = self.cut?;
        let is_met = number == cut.exchange || (number > cut.exchange && cut.what == What::FromNowOn);
        self.met |= is_met;
        is_met.then_some(cut)
    }
}

fn kill_all(pids: &Pids) {
    pids.lock().unwrap().iter().for_each(|pid| {
        let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
    });
}

#[test]
fn every_exchange_may_be_cut() {
    let Some(cluster) = etcd::shared() else { return };
    let cutter = Cutter::before(&cluster.endpoints()[0]);
    let (mut tried, mut failures, mut stores) = (0, Vec::new(), Vec::new());
    let begun = Instant::now();
    for scenario in scenarios() {
        let (undisturbed, verdict) = play(&cutter, scenario, None, "", &mut stores);
        if let Err(why) = verdict {
            failures.push(format!("{}: nothing happens: {why}\n{undisturbed:#?}", scenario.name));
            continue;
        }
        let mut cuts = cuts(&cutter.asked());
        if !is_complete() {
            // A call that waits for a missing server takes long.
            cuts.retain(|cut| cut.what != What::FromNowOn);
            let (every, first) = (cuts.len().div_ceil(SAMPLE).max(1), turn() / 3);
            cuts = cuts.into_iter().skip(first % every).step_by(every).collect();
        }
        let (before, began) = (failures.len(), Instant::now());
        for cut in &cuts {
            let (run, verdict) = play(&cutter, scenario, Some(*cut), &undisturbed.stdout, &mut stores);
            if let Err(why) = verdict {
                let asked = cutter.asked();
                let said = format!("{:?} {:?} {:?}", run.status, run.stdout, run.stderr);
                failures.push(format!("{}: {cut:?} of {asked:?}: {why}\n  {said}", scenario.name));
                println!("{}", failures[failures.len() - 1]);
            }
        }
        tried += cuts.len();
        println!("{}: {} cuts, {} failed, {:?}", scenario.name, cuts.len(), failures.len() - before, began.elapsed());
    }
    println!("{tried} cuts in {:?}, {} failed", begun.elapsed(), failures.len());
    assert!(failures.is_empty(), "{} of {tried}:\n{}", failures.len(), failures.join("\n\n"));
    // A lease that could not be released must expire.
    for store in stores.into_iter().filter(|_| is_complete()) {
        let is_lent = || cluster.ctl(&["get", "--prefix", &store, "-w", "json"]).contains("\"lease\"");
        wait_until("the last lease is over", || !is_lent());
    }
}

/// Each exchange of a command with each mishap.
fn cuts(asked: &[String]) -> Vec<Cut> {
    let mut cuts = Vec::new();
    for exchange in 0..asked.len() {
        for at in [Where::BeforeSending, Where::AfterSending, Where::InTheReply] {
            for what in [What::Once, What::FromNowOn, What::Killed] {
                // The position in the reply matters only to a client that asks again.
                if what != What::Once && at == Where::InTheReply {
                    continue;
                }
                cuts.push(Cut { exchange, at, what });
            }
        }
    }
    cuts
}

fn play(
    cutter: &Cutter,
    scenario: &Scenario,
    cut: Option<Cut>,
    undisturbed: &str,
    stores: &mut Vec<String>,
) -> (Traced, Result<(), String>) {
    let mut fixture = Fixture::set(Place::Etcd, scenario.before);
    let prefix = fixture.sandbox.store().splitn(4, '/').last().unwrap().to_string();
    let weight = Vec::new();
    let pids = cutter.set(cut);
    let mut words = scenario.words.to_vec();
    if ["lock", "run", "put", "del", "claim"].contains(&words[0]) && !words.contains(&"-w") {
        // A server that is gone is not waited for any longer. One that is busy with other tests answers in time.
        let is_gone = cut.is_some_and(|cut| cut.what == What::FromNowOn);
        words.splice(1..1, ["-w", if is_gone { "3s" } else { "1m" }]);
    }
    let run = trace_with(
        fixture.call(&words).env("CSALOCK_STORE", format!("etcd://{}/{prefix}", cutter.between.address)).into_command(),
        None,
        pids,
    );
    // The leases of these scenarios last an hour, so no test waits for them.
    if !scenario.words.contains(&"--ttl") {
        stores.push(prefix);
    }
    // A process in the background finds the server again.
    let cut = cut.filter(|_| {
        let mut state = cutter.state.lock().unwrap();
        state.cut = None;
        state.met
    });
    let mishap = match cut.map(|cut| cut.what) {
        Some(What::Killed) => Mishap::Killed,
        Some(_) => Mishap::Failed,
        None => Mishap::None,
    };
    let begun = Instant::now();
    let undisturbed = cut.is_some().then_some(undisturbed);
    let verdict = invariants::check(&mut fixture, scenario, mishap, &run, &weight, undisturbed);
    let took = begun.elapsed();
    let verdict = match verdict {
        Ok(()) if took > fair(Duration::from_secs(60)) => Err(format!("its aftermath took {took:?}")),
        verdict => verdict,
    };
    (run, verdict)
}
