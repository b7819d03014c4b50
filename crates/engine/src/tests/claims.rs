//! A claim of two names in a store whose calls fail: it exists wholly or not at all, and no answer is wrong.

use std::sync::Mutex;

use super::*;
use lock::error::ErrorKind;
use store::{Abilities, Finding, Leases, Scope, Upkeep, Versioned, Visit, guarded};

#[derive(Debug, Clone, Copy)]
struct Fault {
    /// Number of calls before it.
    at: usize,
    /// The later calls fail too.
    lasts: bool,
    /// The call is carried out before it fails.
    is_late: bool,
    /// The caller may try again.
    is_unreached: bool,
    /// Index of the calls that it hits in [`HITS`].
    hits: usize,
}

/// The calls that a fault hits, by their names: all of them, those of one record, or those of the commit record.
const HITS: [fn(&[u8]) -> bool; 4] = [|_| true, |name| name == b"x", |name| name == b"y", |name| name.contains(&0)];

#[derive(Default)]
struct State {
    calls: usize,
    fault: Option<Fault>,
    is_met: bool,
}

struct Failing(Memory, Arc<Mutex<State>>);

impl Failing {
    fn call<T>(&self, name: &[u8], work: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut state = guarded(&self.1);
        let number = state.calls;
        state.calls += 1;
        let is_hit =
            |fault: &Fault| HITS[fault.hits](name) && (number == fault.at || (fault.lasts && number > fault.at));
        let Some(fault) = state.fault.filter(is_hit) else { return work() };
        state.is_met = true;
        if fault.is_late {
            let _ = work();
        }
        let error = Error::new(ErrorKind::System, "too many open files", "");
        Err(if fault.is_unreached { error.unreached() } else { error })
    }
}

impl Store for Failing {
    fn read(&self, call: Call, name: &[u8]) -> Result<Option<Versioned>> {
        self.call(name, || self.0.read(call, name))
    }

    fn scan(&self, call: Call, visit: &mut Visit<'_>) -> Result<()> {
        self.0.scan(call, visit)
    }

    fn commit(&self, call: Call, set: &WriteSet<'_>) -> Result<CommitResult> {
        self.call(set.change.map_or(b"", |change| change.name), || self.0.commit(call, set))
    }

    fn leases(&self) -> &dyn Leases {
        self.0.leases()
    }

    fn abilities(&self) -> Abilities {
        Abilities::of(Scope::Local)
    }
}

impl Upkeep for Failing {
    fn describe(&self, name: &[u8]) -> String {
        self.0.describe(name)
    }

    fn diagnose(&self, _call: Call) -> Vec<Finding> {
        Vec::new()
    }
}

/// Returns false if the fault was not met.
fn is_claimed_wholly_or_not_at_all(fault: Fault) -> bool {
    let (host, state) = (Fake::new(1), Arc::new(Mutex::new(State::default())));
    host.set_liveness(2, Liveness::Alive);
    let shared: Arc<dyn Host> = Arc::new(host.clone());
    let engine = Engine::new(Box::new(Failing(Memory::new(shared.clone()), state.clone())), shared);
    let mut request = AcquireRequest { outlives_process: true, ..request(&engine, 2, Lifetime::UntilReleased) };
    request.entry.claim = Some(b"me".to_vec());
    Arc::make_mut(&mut request.entry.owner).processes.clear();
    guarded(&state).fault = Some(fault);
    let locks = [b"x", b"y"].map(|name| StoredLock { engine: &engine, name });
    let answer = acquire_all(&locks, &request, &within(1), None, &mut |_, _| None);
    host.set_liveness(2, Liveness::Dead);
    guarded(&state).fault = None;
    let [first, second] = locks.map(|lock| engine.claim_of(lock.name).unwrap().is_some());
    assert_eq!(first, second, "{fault:?}: {answer:?}");
    match &answer {
        Ok(answer) => assert_eq!(matches!(answer, AcquireResult::Granted(..)), first, "{fault:?}: {answer:?}"),
        Err(error) => assert!(!first || error.to_string().contains("may be claimed"), "{fault:?}: {error}"),
    }
    guarded(&state).is_met
}

#[test]
fn a_claim_of_two_names_is_never_half() {
    let mut at = 0;
    let mut is_met = true;
    while is_met {
        is_met = false;
        for bits in 0..32 {
            let (lasts, is_late, is_unreached) = (bits & 1 > 0, bits & 2 > 0, bits & 4 > 0);
            is_met |= is_claimed_wholly_or_not_at_all(Fault { at, lasts, is_late, is_unreached, hits: bits / 8 });
        }
        at += 1;
    }
    assert!(at > 10, "{at} calls");
}
