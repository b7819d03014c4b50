//! A host for tests: its clocks stand still until somebody waits, and processes live and die as the test says.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Called, Host, Listener, Signs, Vigil, Woken};
use crate::error::Result;
use crate::lock::{Fate, Home, Process, Proof};
use crate::store::Reach;

/// A host for tests. Clones are the same host.
#[derive(Clone)]
pub struct Fake(Arc<Mutex<State>>);

struct State {
    boottime: Duration,
    wall: Duration,
    boot: String,
    this: Process,
    fates: BTreeMap<i32, Fate>,
    held_up: Vec<Process>,
    interrupted: bool,
    draws: u128,
}

impl Fake {
    /// A host on which only the process with this pid lives.
    pub fn new(pid: i32) -> Fake {
        let this = Process { pid, start: 1 };
        let state = State {
            boottime: Duration::from_secs(1000),
            wall: Duration::from_secs(1_700_000_000),
            boot: "boot-1".to_string(),
            this,
            fates: BTreeMap::from([(pid, Fate::Alive)]),
            held_up: Vec::new(),
            interrupted: false,
            draws: u128::from(pid as u32) << 64,
        };
        Fake(Arc::new(Mutex::new(state)))
    }

    /// Lets time go by.
    pub fn pass(&self, span: Duration) {
        let mut state = self.state();
        state.boottime += span;
        state.wall += span;
    }

    /// Sets the wall clock, which must matter to nobody.
    pub fn set_wall(&self, wall: Duration) {
        self.state().wall = wall;
    }

    /// Reboots: another boot, the boot clock at its beginning.
    pub fn reboot(&self, boot: &str) {
        let mut state = self.state();
        state.boot = boot.to_string();
        state.boottime = Duration::ZERO;
    }

    /// Says what becomes of the process with this pid. Who is not spoken of is dead.
    pub fn set_fate(&self, pid: i32, fate: Fate) {
        self.state().fates.insert(pid, fate);
    }

    /// Says who seems to go on only when the process that somebody called ends.
    pub fn set_held_up(&self, pids: &[i32]) {
        self.state().held_up = pids.iter().map(|pid| Process { pid: *pid, start: 1 }).collect();
    }

    /// Sends a signal that ends waits. Nothing ever hears it.
    pub fn interrupt(&self) {
        self.state().interrupted = true;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Host for Fake {
    fn boottime(&self) -> Duration {
        self.state().boottime
    }

    fn wall(&self) -> Duration {
        self.state().wall
    }

    fn home(&self) -> Result<Home> {
        let boot = self.state().boot.clone();
        Ok(Home { machine: "machine".to_string(), boot, pids: "pids".to_string(), net: 1 })
    }

    fn name(&self) -> String {
        "fake".to_string()
    }

    fn uid(&self) -> u32 {
        0
    }

    fn this_process(&self) -> Result<Process> {
        Ok(self.state().this)
    }

    fn process(&self, pid: i32) -> Result<Option<Process>> {
        let lives = self.state().fates.get(&pid) == Some(&Fate::Alive);
        Ok(lives.then_some(Process { pid, start: 1 }))
    }

    fn held_up_by(&self, _called: &Called, _some_time_later: bool) -> Vec<Process> {
        self.state().held_up.clone()
    }

    fn fate(&self, home: &Home, process: &Process, reach: Reach) -> Fate {
        let state = self.state();
        let (is_shared, is_here) = (reach == Reach::ManyHosts, home.boot == state.boot);
        match state.fates.get(&process.pid).copied().filter(|_| is_here) {
            Some(fate) if fate != Fate::Dead => fate,
            _ if is_shared && is_here => Fate::Missing,
            _ if is_here || (!is_shared && home.machine == "machine") => Fate::Dead,
            _ => Fate::Unknown,
        }
    }

    fn is_released_by(&self, _supervisor: &Process, _home: &Home, _process: &Process) -> bool {
        false
    }

    fn sleep(&self, span: Duration) {
        self.pass(span);
    }

    fn is_interrupted(&self) -> bool {
        self.state().interrupted
    }

    fn leave_witness(&self, _key: &str) {}

    fn has_witness(&self, _key: &str, _uid: u32) -> bool {
        false
    }

    fn remove_witness(&self, _key: &str) {}

    fn remove_old_witnesses(&self, _age: Duration) {}

    fn random(&self) -> Result<[u8; 16]> {
        let mut state = self.state();
        state.draws += 1;
        Ok(state.draws.to_be_bytes())
    }

    fn vigil<'a>(&self, _proof: &Proof, _interrupt: Option<BorrowedFd<'a>>) -> Result<Box<dyn Vigil + 'a>> {
        Ok(Box::new(self.clone()))
    }

    fn ring(&self, _listener: Listener<'_>) -> bool {
        false
    }
}

impl Vigil for Fake {
    fn wait(&mut self, _signs: &mut Signs<'_>, at_most: Duration) -> Result<Woken> {
        self.pass(at_most);
        Ok(Woken::TimeOver)
    }

    fn answer(&mut self, _keys: &[Vec<u8>]) -> bool {
        true
    }
}
