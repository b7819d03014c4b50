//! A host for tests: its clocks advance only during waits, and the test sets the liveness of processes.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::interface::{Host, Scope, Subscription, WakeAddress, WakeReason, WakeSet, Watched};
use lock::{HandleHash, Liveness, PidDomain, ProcessId, Result};

/// A host for tests. Clones are the same host.
#[derive(Clone)]
pub struct Fake(Arc<Mutex<State>>);

struct State {
    boottime: Duration,
    wall: Duration,
    boot: String,
    this: ProcessId,
    fates: BTreeMap<i32, Liveness>,
    blocked_callers: Vec<ProcessId>,
    interrupted: bool,
    draws: u128,
}

impl Fake {
    pub fn new(pid: i32) -> Fake {
        let this = ProcessId { pid, start: 1 };
        let state = State {
            boottime: Duration::from_secs(1000),
            wall: Duration::from_secs(1_700_000_000),
            boot: "boot-1".to_string(),
            this,
            fates: BTreeMap::from([(pid, Liveness::Alive)]),
            blocked_callers: Vec::new(),
            interrupted: false,
            draws: u128::from(pid as u32) << 64,
        };
        Fake(Arc::new(Mutex::new(state)))
    }

    pub fn pass(&self, span: Duration) {
        let mut state = self.state();
        state.boottime += span;
        state.wall += span;
    }

    /// No decision depends on the wall clock.
    pub fn set_wall(&self, wall: Duration) {
        self.state().wall = wall;
    }

    /// Simulates a reboot with a new boot id; the boot clock starts again.
    pub fn reboot(&self, boot: &str) {
        let mut state = self.state();
        state.boot = boot.to_string();
        state.boottime = Duration::ZERO;
    }

    /// Processes without a setting are dead.
    pub fn set_liveness(&self, pid: i32, liveness: Liveness) {
        self.state().fates.insert(pid, liveness);
    }

    /// They seem to continue only when the called process ends.
    pub fn set_blocked_callers(&self, pids: &[i32]) {
        self.state().blocked_callers = pids.iter().map(|pid| ProcessId { pid: *pid, start: 1 }).collect();
    }

    /// Simulates a pending signal that ends waits. No code reads it.
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

    fn domain(&self) -> Result<PidDomain> {
        let boot = self.state().boot.clone();
        Ok(PidDomain { machine: "machine".to_string(), boot, pids: "pids".to_string(), net: 1 })
    }

    fn name(&self) -> String {
        "fake".to_string()
    }

    fn uid(&self) -> u32 {
        0
    }

    fn this_process(&self) -> Result<ProcessId> {
        Ok(self.state().this)
    }

    fn process(&self, pid: i32) -> Result<Option<ProcessId>> {
        let lives = self.state().fates.get(&pid) == Some(&Liveness::Alive);
        Ok(lives.then_some(ProcessId { pid, start: 1 }))
    }

    fn blocked_callers(&self, _called: i32, _some_time_later: bool) -> Vec<ProcessId> {
        self.state().blocked_callers.clone()
    }

    fn liveness(&self, domain: &PidDomain, process: &ProcessId, reach: Scope) -> Liveness {
        let state = self.state();
        let (is_shared, is_here) = (reach == Scope::Shared, domain.boot == state.boot);
        match state.fates.get(&process.pid).copied().filter(|_| is_here) {
            Some(liveness) if liveness != Liveness::Dead => liveness,
            _ if is_shared && is_here => Liveness::Missing,
            _ if is_here || (!is_shared && domain.machine == "machine") => Liveness::Dead,
            _ => Liveness::Unknown,
        }
    }

    fn is_released_by(&self, _supervisor: &ProcessId, _home: &PidDomain, _process: &ProcessId) -> bool {
        false
    }

    fn sleep(&self, span: Duration) {
        self.pass(span);
    }

    fn is_interrupted(&self) -> bool {
        self.state().interrupted
    }

    fn leave_witness(&self, _key: &str, _text: &[u8]) {}

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

    fn wake_set<'a>(&self, _proof: &HandleHash, _interrupt: Vec<BorrowedFd<'a>>) -> Result<Box<dyn WakeSet + 'a>> {
        Ok(Box::new(self.clone()))
    }

    fn wake(&self, _listener: WakeAddress<'_>) -> bool {
        false
    }
}

impl WakeSet for Fake {
    fn wait(&mut self, _: &[Watched], _: &mut Option<Box<dyn Subscription>>, at_most: Duration) -> Result<WakeReason> {
        self.pass(at_most);
        Ok(WakeReason::TimeOver)
    }
}
