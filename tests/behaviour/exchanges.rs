//! Every exchange with etcd cut: before the request is there, after it has arrived, in the middle of the reply; once, or
//! from then on for ever; and the process killed at each of these. What must be true afterwards is what must be true
//! after every system call, and no lease is left when the longest of them is over.
//!
//! A sample, all or every of them, as `CSALOCK_SYSCALLS` says: see `syscalls.rs`. `all` has about 2,400 cuts.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::etcd;
use crate::sandbox::wait_until;
use crate::syscalls::aftermath::{self, Mishap};
use crate::syscalls::scenarios::Scenario;
use crate::syscalls::stage::{Place, Stage};
use crate::syscalls::tracer::{Pids, Traced, trace_with};
use crate::syscalls::{Extent, extent, scenarios};

/// A sample has so many cuts of each scenario.
const SAMPLE: usize = 2;

/// Where an exchange is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    BeforeSending,
    AfterSending,
    InTheReply,
}

/// What is cut.
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

/// What stands between the program and the server.
struct Between {
    address: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// What was asked: the path of each request.
    asked: Vec<String>,
    cut: Option<Cut>,
    met: bool,
    pids: Pids,
}

impl Between {
    fn and(server: &str) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let between = Between { address: listener.local_addr().unwrap().to_string(), state: Arc::default() };
        let (server, state) = (server.to_string(), between.state.clone());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (server, state) = (server.clone(), state.clone());
                std::thread::spawn(move || {
                    let client = client.unwrap();
                    let Ok(behind) = TcpStream::connect(&server) else { return };
                    // Whatever went wrong, both of them are to see that it is over.
                    let _ = pass(&client, &behind, &state);
                    let _ = (client.shutdown(Shutdown::Both), behind.shutdown(Shutdown::Both));
                });
            }
        });
        between
    }

    /// Begins anew.
    fn set(&self, cut: Option<Cut>) -> Pids {
        let mut state = self.state.lock().unwrap();
        *state = State { cut, ..State::default() };
        state.pids.clone()
    }

    fn asked(&self) -> Vec<String> {
        self.state.lock().unwrap().asked.clone()
    }
}

/// Passes requests and replies on, one after the other, up to the cut. `None`: it is over.
fn pass(mut client: &TcpStream, mut behind: &TcpStream, state: &Mutex<State>) -> Option<()> {
    let (mut requests, mut replies) = (Vec::new(), Vec::new());
    loop {
        let request = message(client, &mut requests)?;
        let path = String::from_utf8_lossy(&request).split(' ').nth(1).unwrap_or_default().to_string();
        let cut = state.lock().unwrap().meet(&path);
        if let Some(Cut { at: Where::BeforeSending, what, .. }) = cut {
            return happens(what, state);
        }
        behind.write_all(&request).ok()?;
        if path.ends_with("/watch") && cut.is_none() {
            return stream(client, behind);
        }
        let reply = message(behind, &mut replies)?;
        match cut {
            Some(Cut { at: Where::InTheReply, what, .. }) => {
                let _ = client.write_all(&reply[..reply.len() / 2]);
                return happens(what, state);
            }
            Some(Cut { what, .. }) => return happens(what, state),
            None => client.write_all(&reply).ok()?,
        }
    }
}

impl State {
    /// What is to happen in this exchange.
    fn meet(&mut self, path: &str) -> Option<Cut> {
        let number = self.asked.len();
        self.asked.push(path.to_string());
        let cut = self.cut?;
        let is_met = number == cut.exchange || (number > cut.exchange && cut.what == What::FromNowOn);
        self.met |= is_met;
        is_met.then_some(cut)
    }
}

fn happens(what: What, state: &Mutex<State>) -> Option<()> {
    if what == What::Killed {
        let pids = state.lock().unwrap().pids.clone();
        pids.lock().unwrap().iter().for_each(|pid| {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        });
    }
    None
}

/// A watch has no end: what comes is passed on as it comes.
fn stream(client: &TcpStream, behind: &TcpStream) -> Option<()> {
    let (mut from, mut to) = (behind.try_clone().ok()?, client.try_clone().ok()?);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    });
    let (mut from, mut to) = (client, behind);
    std::io::copy(&mut from, &mut to).ok().map(drop)
}

/// One message of HTTP, with what it bears.
fn message(mut from: &TcpStream, buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        if let Some(length) = length(buffer) {
            return Some(buffer.drain(..length).collect());
        }
        let mut bytes = [0; 65536];
        match from.read(&mut bytes) {
            Ok(read @ 1..) => buffer.extend_from_slice(&bytes[..read]),
            _ => return None,
        }
    }
}

/// How long the first message is, if all of it is there.
fn length(buffer: &[u8]) -> Option<usize> {
    let head = buffer.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&buffer[..head]).to_ascii_lowercase();
    if text.contains("transfer-encoding: chunked") {
        return buffer[head..].windows(5).position(|five| five == b"0\r\n\r\n").map(|end| head + end + 5);
    }
    let body =
        text.split("content-length: ").nth(1).and_then(|rest| rest.split('\r').next()?.parse().ok()).unwrap_or(0);
    (buffer.len() >= head + body).then_some(head + body)
}

#[test]
fn every_exchange_may_be_cut() {
    let Some(cluster) = etcd::shared() else { return };
    let (extent, part) = extent();
    let between = Between::and(&cluster.endpoints()[0]);
    let (mut tried, mut failures, mut known, mut stores) = (0, Vec::new(), HashSet::new(), Vec::new());
    let begun = Instant::now();
    for scenario in scenarios(extent, &part).filter(|scenario| scenario.name != "doctor") {
        let (undisturbed, verdict) = play(&between, scenario, None, "", &mut stores);
        if let Err(why) = verdict {
            failures.push(format!("{}: nothing happens: {why}\n{undisturbed:#?}", scenario.name));
            continue;
        }
        let mut cuts = cuts(scenario, &between.asked(), extent, &mut known);
        if extent == Extent::Sample {
            // Who waits for a server that is gone takes his time.
            cuts.retain(|cut| cut.what != What::FromNowOn);
            let (every, first) = (cuts.len().div_ceil(SAMPLE).max(1), std::process::id() as usize / 3);
            cuts = cuts.into_iter().skip(first % every).step_by(every).collect();
        }
        let (before, began) = (failures.len(), Instant::now());
        for cut in &cuts {
            let (run, verdict) = play(&between, scenario, Some(*cut), &undisturbed.stdout, &mut stores);
            if let Err(why) = verdict {
                let asked = between.asked();
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
    // A lease that nobody could give back takes its time.
    for store in stores.into_iter().filter(|_| extent != Extent::Sample) {
        let is_lent = || cluster.ctl(&["get", "--prefix", &store, "-w", "json"]).contains("\"lease\"");
        wait_until("the last lease is over", || !is_lent());
    }
}

/// Each exchange of a command with each mishap: once for each path that the command asks for, unless every one is wanted.
fn cuts(scenario: &Scenario, asked: &[String], extent: Extent, known: &mut HashSet<String>) -> Vec<Cut> {
    let mut cuts = Vec::new();
    for (exchange, _) in asked.iter().enumerate() {
        for at in [Where::BeforeSending, Where::AfterSending, Where::InTheReply] {
            for what in [What::Once, What::FromNowOn, What::Killed] {
                // Whether the reply had begun makes a difference only to who asks again.
                if what != What::Once && at == Where::InTheReply {
                    continue;
                }
                // Who reaches nobody any more waits for it for seconds.
                let key = format!("{} {:?} {}", scenario.words[0], at, asked[exchange]);
                if extent != Extent::Every && what == What::FromNowOn && !known.insert(key) {
                    continue;
                }
                cuts.push(Cut { exchange, at, what });
            }
        }
    }
    cuts
}

fn play(
    between: &Between,
    scenario: &Scenario,
    cut: Option<Cut>,
    undisturbed: &str,
    stores: &mut Vec<String>,
) -> (Traced, Result<(), String>) {
    let mut stage = Stage::set(Place::Etcd, scenario.before);
    let prefix = stage.sandbox.store().splitn(4, '/').last().unwrap().to_string();
    let weight = Vec::new();
    let pids = between.set(cut);
    let mut words = scenario.words.to_vec();
    if ["lock", "run", "put", "del", "claim"].contains(&words[0]) && !words.contains(&"-w") {
        // A server that is gone is not waited for any longer.
        words.splice(1..1, ["-w", "3s"]);
    }
    let run = trace_with(
        stage.call(&words).env("CSALOCK_STORE", format!("etcd://{}/{prefix}", between.address)).into_command(),
        None,
        pids,
    );
    stores.push(prefix);
    // Whoever is left in the background finds the server again.
    let cut = cut.filter(|_| {
        let mut state = between.state.lock().unwrap();
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
    let verdict = aftermath::check(&mut stage, scenario, mishap, &run, &weight, undisturbed);
    let took = begun.elapsed();
    let verdict = match verdict {
        Ok(()) if took > Duration::from_secs(60) => Err(format!("its aftermath took {took:?}")),
        verdict => verdict,
    };
    (run, verdict)
}
