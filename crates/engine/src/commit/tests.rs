//! Tests with a shared store: rivals win as often as the test sets, and each attempt takes ten milliseconds.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use crate::tests::{request, take, within};
use crate::{AcquireRequest, AcquireResult, Released, ValueWrite, WaitPolicy, WriteResult};
use host::{Fake, Host};
use lock::{Lease, Lifetime, Liveness, Page, Record, Refusal, Release, SetValue, Value};
use store::{
    Abilities, Call, CommitResult, Finding, Leases, Memory, Store, Upkeep, Version, Versioned, Visit, WriteSet,
};

const TRY: Duration = Duration::from_millis(10);
const FOR_EVER: u32 = u32::MAX;
/// Instead of a number of rivals: the next commit is done, and only its reply is lost.
const LOST_REPLY: u32 = u32::MAX - 1;

struct Contended {
    memory: Memory,
    host: Fake,
    rivals: Arc<AtomicU32>,
    ended: Mutex<Vec<Lease>>,
    /// Runs once, after a commit under this name.
    interposed: Mutex<Option<(Vec<u8>, Interposed)>>,
    /// Modes of the bytes of values, in the order of their commits.
    modes: Modes,
}

/// Another writer. Returns the result of the commit that it comes after, or changes it.
type Interposed = Box<dyn FnOnce(&Memory, CommitResult) -> CommitResult + Send>;

impl Store for Contended {
    fn read(&self, call: Call, name: &[u8]) -> Result<Option<Versioned>> {
        self.memory.read(call, name)
    }

    fn commit(&self, call: Call, set: &WriteSet<'_>) -> Result<CommitResult> {
        self.ended.lock().unwrap().extend(set.ended.iter().map(|lease| (*lease).clone()));
        if set.change.is_none() {
            return Ok(CommitResult::Done(Version::default()));
        }
        self.host.pass(TRY);
        match self.rivals.load(Ordering::Relaxed) {
            0 => return self.commit_with_another(set),
            FOR_EVER => {}
            LOST_REPLY => {
                self.rivals.store(0, Ordering::Relaxed);
                self.memory.commit(call, set)?;
                return Ok(CommitResult::Unclear);
            }
            rivals => self.rivals.store(rivals - 1, Ordering::Relaxed),
        }
        Ok(CommitResult::Conflict(None))
    }

    fn scan(&self, call: Call, visit: &mut Visit<'_>) -> Result<()> {
        self.memory.scan(call, visit)
    }

    fn leases(&self) -> &dyn Leases {
        self
    }

    fn abilities(&self) -> Abilities {
        Abilities::of(Scope::Shared)
    }
}

impl Upkeep for Contended {
    fn describe(&self, name: &[u8]) -> String {
        self.memory.describe(name)
    }

    fn read_history(&self, call: Call, visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.memory.read_history(call, visit)
    }

    fn diagnose(&self, _call: Call) -> Vec<Finding> {
        Vec::new()
    }
}

impl Leases for Contended {
    fn grant(&self, _call: Call, span: Duration) -> Result<Lease> {
        self.memory.leases().grant(Call::default(), span)
    }

    fn time(&self, _call: Call) -> Result<Duration> {
        self.memory.leases().time(Call::default())
    }

    fn ttl(&self, _call: Call, lease: &Lease) -> Result<Duration> {
        let is_ended = self.ended.lock().unwrap().contains(lease);
        if is_ended { Ok(Duration::ZERO) } else { self.memory.leases().ttl(Call::default(), lease) }
    }
}

impl Contended {
    fn commit_with_another(&self, set: &WriteSet<'_>) -> Result<CommitResult> {
        let done = self.memory.commit(Call::default(), set)?;
        let Write { name, body, options, .. } = set.change.unwrap();
        if Value::of_key(name).is_some() && body.is_some() && done.is_done() {
            self.modes.lock().unwrap().push(options.mode);
        }
        let interposed = self.interposed.lock().unwrap().take_if(|(after, _)| after == name);
        Ok(match interposed {
            Some((_, change)) => change(&self.memory, done),
            None => done,
        })
    }
}

/// Returns an engine, a host with three live processes, and the number of commits that rivals win from now on.
fn contended() -> (Engine, Fake, Arc<AtomicU32>) {
    let (engine, host, rivals, _) = contended_by(None);
    (engine, host, rivals)
}

type Modes = Arc<Mutex<Vec<Option<u32>>>>;

fn contended_by(interposed: Option<(Vec<u8>, Interposed)>) -> (Engine, Fake, Arc<AtomicU32>, Modes) {
    let host = Fake::new(1);
    [2, 3].into_iter().for_each(|pid| host.set_liveness(pid, Liveness::Alive));
    let (shared, rivals): (Arc<dyn Host>, _) = (Arc::new(host.clone()), Arc::new(AtomicU32::new(0)));
    let memory = Memory::new(shared.clone());
    let modes = Modes::default();
    let store = Contended {
        memory,
        host: host.clone(),
        rivals: rivals.clone(),
        ended: Mutex::default(),
        interposed: Mutex::new(interposed),
        modes: modes.clone(),
    };
    (Engine::new(Box::new(store), shared), host, rivals, modes)
}

fn release(engine: &Engine, holder: &AcquireRequest) -> Released {
    let credentials = engine.by_proof(holder.handle.proof()).unwrap();
    engine.apply(b"x", &Release(credentials)).unwrap()
}

#[test]
fn a_caller_that_cannot_join_the_queue_gives_up_in_time() {
    let (engine, host, rivals) = contended();
    let holder = request(&engine, 1, Lifetime::WhileOwnerLives);
    assert!(matches!(take(&engine, &holder, WaitPolicy::NONE), AcquireResult::Granted(..)));
    rivals.store(FOR_EVER, Ordering::Relaxed);
    let before = host.boottime();
    let response = take(&engine, &request(&engine, 2, Lifetime::WhileOwnerLives), within(3));
    assert!(
        matches!(response, AcquireResult::Refused(_, Refusal::Busy(ref holders)) if holders.len() == 1),
        "{response:?}"
    );
    let waited = host.boottime() - before;
    assert!(waited >= Duration::from_secs(3) && waited < Duration::from_secs(4), "{waited:?}");
}

#[test]
fn a_waiter_that_cannot_leave_the_queue_ends_its_lease_and_is_passed_over() {
    let (engine, host, rivals) = contended();
    let holder = request(&engine, 1, Lifetime::WhileOwnerLives);
    assert!(matches!(take(&engine, &holder, WaitPolicy::NONE), AcquireResult::Granted(..)));
    let before = host.boottime();
    let mut in_queue = |_: &crate::Progress<'_>| {
        rivals.store(FOR_EVER, Ordering::Relaxed);
        None
    };
    let waiter = request(&engine, 2, Lifetime::WhileOwnerLives);
    let taken = engine.acquire(b"x", &waiter, &within(3), None, &mut in_queue).unwrap();
    assert!(matches!(taken, AcquireResult::Refused(_, Refusal::Busy(_))), "{taken:?}");
    let waited = host.boottime() - before;
    assert!(waited >= Duration::from_secs(3) && waited < Duration::from_secs(4), "{waited:?}");
    assert_eq!(engine.inspect(b"x").unwrap().record.waiters.len(), 1);
    rivals.store(0, Ordering::Relaxed);
    assert!(release(&engine, &holder).is_ok());
    let response = take(&engine, &request(&engine, 3, Lifetime::WhileOwnerLives), WaitPolicy::NONE);
    assert!(matches!(response, AcquireResult::Granted(..)), "{response:?}");
}

#[test]
fn a_release_has_priority_over_waiters() {
    let (engine, host, rivals) = contended();
    let holder = request(&engine, 1, Lifetime::WhileOwnerLives);
    assert!(matches!(take(&engine, &holder, WaitPolicy::NONE), AcquireResult::Granted(..)));
    rivals.store(9, Ordering::Relaxed);
    let before = host.boottime();
    assert!(release(&engine, &holder).is_ok());
    assert_eq!(host.boottime() - before, TRY * 10);
    rivals.store(9, Ordering::Relaxed);
    let before = host.boottime();
    let response = take(&engine, &request(&engine, 2, Lifetime::WhileOwnerLives), within(60));
    assert!(matches!(response, AcquireResult::Granted(..)) && host.boottime() - before > TRY * 10, "{response:?}");
}

const LONG_VALUE: [u8; 2000] = [b'v'; 2000];

fn put(engine: &Engine) -> Result<WriteResult> {
    let terms = SetValue {
        credentials: engine.credentials(None, Vec::new())?,
        value: None,
        precondition: None,
        require_lock: false,
        release: false,
        even_if_stale: false,
    };
    let wanted = ValueWrite { terms, bytes: Some(&LONG_VALUE), mode: None };
    let request = request(engine, 1, Lifetime::WhileOwnerLives);
    engine.write(b"x", &wanted, &request, &WaitPolicy::NONE, None, &mut |_| None)
}

#[test]
fn a_value_whose_bytes_were_not_stored_at_once_is_complete() {
    for rivals_at_first in [1, 3, LOST_REPLY] {
        let (engine, _, rivals) = contended();
        rivals.store(rivals_at_first, Ordering::Relaxed);
        assert!(matches!(put(&engine), Ok(WriteResult::Done(Ok(_)))));
        assert_eq!(engine.value(b"x").unwrap().unwrap().1, LONG_VALUE);
    }
}

#[test]
fn a_value_does_not_refer_to_bytes_of_another_writer() {
    let (engine, _, _) = contended();
    let key = Value::key(b"x", 1);
    engine.store().commit(Call::default(), &WriteSet::of(&key, None, Some(b"other"))).unwrap();
    assert_eq!(put(&engine).unwrap_err().kind(), ErrorKind::System);
    assert_eq!(engine.store().read(Call::default(), b"x"), Ok(None));
}

#[test]
fn a_value_that_another_writer_deleted_before_its_reply_was_lost_is_complete() {
    let delete = |memory: &Memory, done| {
        let CommitResult::Done(version) = done else { panic!("{done:?}") };
        let key = Value::key(b"x", 1);
        let bytes = memory.read(Call::default(), &key).unwrap().unwrap();
        memory.commit(Call::default(), &WriteSet::of(b"x", Some(&version), None)).unwrap();
        memory.commit(Call::default(), &WriteSet::of(&key, Some(&bytes.version), None)).unwrap();
        CommitResult::Unclear
    };
    let (engine, ..) = contended_by(Some((b"x".to_vec(), Box::new(delete))));
    assert!(matches!(put(&engine), Ok(WriteResult::Done(Ok(_)))));
    assert_eq!(engine.value(b"x").unwrap().unwrap().1, LONG_VALUE);
}

#[test]
fn a_value_gets_the_mode_that_another_writer_set_meanwhile() {
    let restrict = |memory: &Memory, done| {
        let other = Record { value: Some(Value::new(b"other", 9, Some(0o600))), ..Record::free(b"x") };
        memory.commit(Call::default(), &WriteSet::of(b"x", None, Some(&lock::encode(&other)))).unwrap();
        done
    };
    let (engine, _, _, modes) = contended_by(Some((Value::key(b"x", 1), Box::new(restrict))));
    assert!(matches!(put(&engine), Ok(WriteResult::Done(Ok(_)))));
    let (value, bytes) = engine.value(b"x").unwrap().unwrap();
    assert_eq!((value.mode, &bytes[..]), (Some(0o600), &LONG_VALUE[..]));
    assert_eq!(*modes.lock().unwrap(), [None, Some(0o600)]);
}

#[test]
fn a_waiter_on_a_page_that_was_sealed_before_has_not_left() {
    let key = Page::key(b"x", 7);
    let (other, ..) = contended();
    let waiter = request(&other, 2, Lifetime::WhileOwnerLives);
    let entry = other.acquire_terms(Scope::Shared, &waiter, &WaitPolicy::NONE).entry;
    let sealed = lock::encode_auxiliary(&key, &Page { sealed: true, waiters: vec![entry.clone()] });
    let page = key.clone();
    let seal = move |memory: &Memory, _| {
        memory.commit(Call::default(), &WriteSet::of(&page, None, Some(&sealed))).unwrap();
        CommitResult::Conflict(None)
    };
    let (engine, _, rivals, _) = contended_by(Some((key, Box::new(seal))));
    // The other process comes after a commit whose reply is not lost.
    rivals.store(LOST_REPLY, Ordering::Relaxed);
    engine.enqueue(b"x", 7, &entry).unwrap().unwrap();
    assert!(!engine.dequeue(b"x", 7, &waiter.handle.proof()).unwrap());
}

#[test]
fn claims_that_are_given_up_in_vain_stay_even_if_the_first_commit_was_lost() {
    for rivals_at_first in [0, 1, LOST_REPLY] {
        let (engine, host, rivals) = contended();
        let mut claim = request(&engine, 1, Lifetime::UntilReleased);
        Arc::make_mut(&mut claim.entry.owner).processes = Vec::new();
        claim.entry.claim = Some(b"id".to_vec());
        assert!(matches!(take(&engine, &claim, WaitPolicy::NONE), AcquireResult::Granted(..)));
        rivals.store(rivals_at_first, Ordering::Relaxed);
        // The id has no claim of y, so this process gives up neither claim.
        assert_eq!(engine.give_up_claims(&[b"x", b"y"], b"id"), Ok(false));
        host.set_liveness(1, Liveness::Dead);
        host.pass(engine.lease() * 2);
        assert_eq!(engine.claim_of(b"x").unwrap().and_then(|grant| grant.claim), Some(b"id".to_vec()));
    }
}
