//! A store that many hosts share, in which others are faster as often as the test says, and a try takes ten milliseconds.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use crate::engine::tests::{applicant, take, within};
use crate::engine::{Applicant, Patience, Taken};
use crate::history::Limits;
use crate::host::{Fake, Host};
use crate::lock::{Fate, Lease, Outcome, Tenure};
use crate::store::{Finding, Keep, Memory, Store, Stored, Swap, Version, Visit};

const TRY: Duration = Duration::from_millis(10);
const FOR_EVER: u32 = u32::MAX;

struct Contended {
    memory: Memory,
    host: Fake,
    rivals: Arc<AtomicU32>,
    ended: Mutex<Vec<Lease>>,
}

impl Store for Contended {
    fn read(&self, name: &[u8]) -> Result<Option<Stored>> {
        self.memory.read(name)
    }

    fn swap_kept(&self, name: &[u8], expect: Option<&Version>, body: Option<&[u8]>, keep: Keep) -> Result<Swap> {
        self.host.pass(TRY);
        match self.rivals.load(Ordering::Relaxed) {
            0 => return self.memory.swap_kept(name, expect, body, keep),
            FOR_EVER => {}
            rivals => self.rivals.store(rivals - 1, Ordering::Relaxed),
        }
        Ok(Swap::Conflict)
    }

    fn scan(&self, visit: &mut Visit<'_>) -> Result<()> {
        self.memory.scan(visit)
    }

    fn lend(&self, span: Duration) -> Result<Lease> {
        self.memory.lend(span)
    }

    fn remaining(&self, lease: &Lease) -> Result<Duration> {
        let is_ended = self.ended.lock().unwrap().contains(lease);
        if is_ended { Ok(Duration::ZERO) } else { self.memory.remaining(lease) }
    }

    fn end(&self, lease: &Lease) {
        self.ended.lock().unwrap().push(lease.clone());
    }

    fn reach(&self) -> Reach {
        Reach::ManyHosts
    }

    fn place(&self, name: &[u8]) -> String {
        self.memory.place(name)
    }

    fn examine(&self) -> Vec<Finding> {
        Vec::new()
    }

    fn remember(&self, line: &[u8], limits: &Limits) {
        self.memory.remember(line, limits);
    }

    fn remembered(&self, visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.memory.remembered(visit)
    }
}

/// Three processes of one host, all alive; and how often others are faster from now on.
fn contended() -> (Engine, Fake, Arc<AtomicU32>) {
    let host = Fake::new(1);
    [2, 3].into_iter().for_each(|pid| host.set_fate(pid, Fate::Alive));
    let (shared, rivals): (Arc<dyn Host>, _) = (Arc::new(host.clone()), Arc::new(AtomicU32::new(0)));
    let memory = Memory::new(shared.clone());
    let store = Contended { memory, host: host.clone(), rivals: rivals.clone(), ended: Mutex::default() };
    (Engine::new(Box::new(store), shared), host, rivals)
}

fn release(engine: &Engine, holder: &Applicant) -> Outcome {
    let claimant = engine.claimant(Some(holder.handle.proof()), Vec::new()).unwrap();
    engine.settle(b"x", &Ask::Release(claimant)).unwrap()
}

#[test]
fn who_does_not_even_get_into_the_queue_gives_up_in_time() {
    let (engine, host, rivals) = contended();
    let holder = applicant(&engine, 1, Tenure::OwnerLives);
    assert!(matches!(take(&engine, &holder, Patience::NONE), Outcome::Granted(..)));
    rivals.store(FOR_EVER, Ordering::Relaxed);
    let before = host.boottime();
    let outcome = take(&engine, &applicant(&engine, 2, Tenure::OwnerLives), within(3));
    assert!(matches!(outcome, Outcome::Busy(ref holders) if holders.len() == 1), "{outcome:?}");
    let waited = host.boottime() - before;
    assert!(waited >= Duration::from_secs(3) && waited < Duration::from_secs(4), "{waited:?}");
}

#[test]
fn who_cannot_leave_the_queue_ends_his_lease_and_is_passed_over() {
    let (engine, host, rivals) = contended();
    let holder = applicant(&engine, 1, Tenure::OwnerLives);
    assert!(matches!(take(&engine, &holder, Patience::NONE), Outcome::Granted(..)));
    let before = host.boottime();
    let mut in_queue = |_: &crate::engine::Waiting<'_>| {
        rivals.store(FOR_EVER, Ordering::Relaxed);
        None
    };
    let waiter = applicant(&engine, 2, Tenure::OwnerLives);
    let taken = engine.take(b"x", &waiter, &within(3), None, &mut in_queue).unwrap();
    assert!(matches!(taken, Taken::Answer(Outcome::Busy(_))), "{taken:?}");
    let waited = host.boottime() - before;
    assert!(waited >= Duration::from_secs(3) && waited < Duration::from_secs(4), "{waited:?}");
    assert_eq!(engine.sight(b"x").unwrap().record.waiters.len(), 1);
    rivals.store(0, Ordering::Relaxed);
    assert!(matches!(release(&engine, &holder), Outcome::Released(_)));
    let outcome = take(&engine, &applicant(&engine, 3, Tenure::OwnerLives), Patience::NONE);
    assert!(matches!(outcome, Outcome::Granted(..)), "{outcome:?}");
}

#[test]
fn who_gives_back_has_the_right_of_way_and_who_waits_makes_way() {
    let (engine, host, rivals) = contended();
    let holder = applicant(&engine, 1, Tenure::OwnerLives);
    assert!(matches!(take(&engine, &holder, Patience::NONE), Outcome::Granted(..)));
    rivals.store(9, Ordering::Relaxed);
    let before = host.boottime();
    assert!(matches!(release(&engine, &holder), Outcome::Released(_)));
    assert_eq!(host.boottime() - before, TRY * 10);
    rivals.store(9, Ordering::Relaxed);
    let before = host.boottime();
    let outcome = take(&engine, &applicant(&engine, 2, Tenure::OwnerLives), within(60));
    assert!(matches!(outcome, Outcome::Granted(..)) && host.boottime() - before > TRY * 10, "{outcome:?}");
}
