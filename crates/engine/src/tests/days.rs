//! Fourteen days of a job with one slot in an hour, in a store whose server goes away at any of its calls: no job runs
//! twice in a slot, and none is lost, without a message.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::*;
use lock::{BeginRun, ErrorKind, RunStart};
use store::{Abilities, Finding, Leases, Scope, Upkeep, Versioned, Visit, guarded};

const JOB: &[u8] = b"job";
const HOUR: u64 = 3_600_000;
const SLOTS: u64 = 14 * 24;

/// Numbers that look random, and are the same for the same seed.
struct Draws(Mutex<u64>);

impl Draws {
    fn below(&self, limit: u64) -> u64 {
        let mut state = guarded(&self.0);
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % limit
    }
}

/// A store whose server goes away before or after one of eight calls, for two minutes at most.
struct Restarting {
    memory: Memory,
    host: Fake,
    draws: Draws,
    back_at: Mutex<Duration>,
}

impl Restarting {
    fn call<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let is_away = || Error::new(ErrorKind::Unavailable, "the server is away", "").unreached();
        self.host.pass(Duration::from_millis(self.draws.below(300)));
        if self.host.boottime() < *guarded(&self.back_at) {
            self.host.pass(Duration::from_secs(1));
            return Err(is_away());
        }
        if self.draws.below(8) > 0 {
            return work();
        }
        if self.draws.below(2) == 0 {
            let _ = work();
        }
        *guarded(&self.back_at) = self.host.boottime() + Duration::from_secs(self.draws.below(120));
        Err(is_away())
    }
}

impl Store for Restarting {
    fn read(&self, call: store::Call, name: &[u8]) -> Result<Option<Versioned>> {
        self.call(|| self.memory.read(call, name))
    }

    fn scan(&self, call: store::Call, visit: &mut Visit<'_>) -> Result<()> {
        self.call(|| self.memory.scan(call, visit))
    }

    fn commit(&self, call: store::Call, set: &WriteSet<'_>) -> Result<CommitResult> {
        self.call(|| self.memory.commit(call, set))
    }

    fn leases(&self) -> &dyn Leases {
        self.memory.leases()
    }

    fn abilities(&self) -> Abilities {
        Abilities::of(Scope::Shared)
    }
}

impl Upkeep for Restarting {
    fn describe(&self, name: &[u8]) -> String {
        self.memory.describe(name)
    }

    fn diagnose(&self, _call: store::Call) -> Vec<Finding> {
        Vec::new()
    }
}

struct World {
    engine: Engine,
    host: Fake,
    draws: Draws,
    /// The fault: the success is reported once, and csalock exits with 0 whatever comes of that.
    reports_once: bool,
    /// Successful runs in each slot, and how many of their calls have said that the run may be repeated.
    successes: BTreeMap<u64, (u64, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Silent,
    Tells,
}

impl World {
    fn new(seed: u64, reports_once: bool) -> World {
        let host = Fake::new(1);
        let shared: Arc<dyn Host> = Arc::new(host.clone());
        let (draws, back_at) = (Draws(Mutex::new(seed)), Mutex::default());
        let store = Restarting { memory: Memory::new(shared.clone()), host: host.clone(), draws, back_at };
        World {
            engine: Engine::new(Box::new(store), shared),
            host,
            draws: Draws(Mutex::new(!seed)),
            reports_once,
            successes: BTreeMap::new(),
        }
    }

    fn now(&self) -> u64 {
        self.host.wall().as_millis() as u64
    }

    fn outlast<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        let done = self.engine.outlast_outages(JOB, &within(75), None, &mut |_| None, &mut |_| work())?;
        Ok(done.expect("no signal comes"))
    }

    /// What `csalock run --once-per 1h job` does in the process `pid`.
    fn run(&mut self, pid: i32, slot: u64) -> Call {
        let Ok(record) = self.outlast(|| self.engine.record(JOB)) else { return Call::Tells };
        if record.job.and_then(|job| job.success).is_some_and(|success| success.slot >= Some(slot)) {
            return Call::Silent;
        }
        self.host.set_liveness(pid, Liveness::Alive);
        let request = request(&self.engine, pid, Lifetime::WhileOwnerLives);
        let proof = request.handle.proof();
        let call = match self.engine.acquire(JOB, &request, &within(75), None, &mut |_| None) {
            Ok(AcquireResult::Granted(grants, _)) => self.under_grant(proof, slot, &grants[0].lifetime),
            _ => Call::Tells,
        };
        let _ = self.engine.release(JOB, proof);
        self.host.set_liveness(pid, Liveness::Dead);
        call
    }

    fn under_grant(&mut self, proof: HandleHash, slot: u64, lifetime: &Lifetime) -> Call {
        let begun = self.outlast(|| {
            let credentials = self.engine.by_proof(proof)?;
            let begin = BeginRun { credentials, slot: Some(slot), most: 9, pause: 0, promise: None, now: self.now() };
            self.engine.apply(JOB, &begin)
        });
        match begun {
            Ok(Ok(RunStart::Begun(_))) => {}
            Ok(Ok(RunStart::Done(_))) => return Call::Silent,
            _ => return Call::Tells,
        }
        let Some(ends) = self.run_command(proof, self.engine.ends(lifetime).unwrap()) else { return Call::Tells };
        let tries = std::cell::Cell::new(0);
        let go_on = || {
            self.host.pass(RETRY_INTERVAL);
            tries.set(tries.get() + 1);
            !self.reports_once && self.host.boottime() < ends
        };
        let is_on_record = matches!(self.engine.report_success(JOB, proof, true, &go_on), Ok(Ok(())));
        let (count, told) = self.successes.entry(slot).or_default();
        *count += 1;
        if is_on_record || self.reports_once {
            return Call::Silent;
        }
        *told += 1;
        Call::Tells
    }

    /// Runs the command for some minutes, while its keeper renews the lease. Returns the end of the lease, or `None` if
    /// the command was ended before that.
    fn run_command(&self, proof: HandleHash, mut ends: Duration) -> Option<Duration> {
        let until = self.host.boottime() + Duration::from_secs(1 + self.draws.below(240));
        while self.host.boottime() < until {
            self.host.pass(Duration::from_secs(1));
            if ends.saturating_sub(self.host.boottime()) < Duration::from_secs(40) {
                match self.engine.during(store::Call::until(ends)).renew(JOB, proof) {
                    Ok(Ok(grant)) => ends = self.engine.ends(&grant.lifetime)?,
                    Ok(Err(_)) => return None,
                    Err(_) => {}
                }
            }
            if ends.saturating_sub(self.host.boottime()) < Duration::from_secs(10) {
                return None;
            }
        }
        Some(ends)
    }

    /// Returns the slots in which something went wrong and no call told it.
    fn fourteen_days(mut self) -> Vec<u64> {
        let mut wrong = Vec::new();
        let mut pid = 100;
        for _ in 0..SLOTS {
            let slot = self.now() / HOUR * HOUR;
            let mut calls = Vec::new();
            for _ in 0..3 {
                pid += 1;
                calls.push(self.run(pid, slot));
                self.host.pass(Duration::from_secs(self.draws.below(120)));
            }
            let (count, told) = self.successes.get(&slot).copied().unwrap_or_default();
            // Each of the calls but the last one that ran has told that its run may be repeated.
            if count > told + 1 || (count == 0 && calls.contains(&Call::Silent)) {
                wrong.push(slot);
            }
            self.host.pass(Duration::from_millis((slot + HOUR).saturating_sub(self.now())));
        }
        assert!(self.successes.len() as u64 > SLOTS / 2, "{} jobs ran", self.successes.len());
        wrong
    }
}

#[test]
fn no_job_runs_twice_and_none_is_lost_in_fourteen_days_without_a_message() {
    for seed in 0..20 {
        assert_eq!(World::new(seed, false).fourteen_days(), [0; 0], "seed {seed}");
    }
}

#[test]
fn a_success_that_is_reported_once_is_found_lost_in_fourteen_days() {
    assert!((0..3).all(|seed| !World::new(seed, true).fourteen_days().is_empty()));
}
