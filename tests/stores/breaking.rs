//! A change by another process between the read that a removal depends on and the removal itself.

use std::fs;
use std::sync::{Arc, Mutex};

use engine::{AcquireRequest, AcquireResult, Engine, WaitPolicy};
use host::{Host, Unix};
use lock::error::ErrorKind;
use lock::error::Result;
use lock::{HandleHash, NotHolder, Owner, Page};
use store::{Abilities, Call, CommitResult, Finding, Leases, Store, Upkeep, Versioned, Visit, WriteSet};

use crate::rig::{Effects, Kind, Rig};

type Interposed = Box<dyn FnOnce() + Send>;

/// A store of which another process changes something after the first read of "x".
struct Changing {
    store: Arc<dyn Store>,
    change: Mutex<Option<Interposed>>,
}

impl Store for Changing {
    fn read(&self, call: Call, name: &[u8]) -> Result<Option<Versioned>> {
        let found = self.store.read(call, name);
        if name == b"x"
            && let Some(change) = self.change.lock().unwrap().take()
        {
            change();
        }
        found
    }

    fn commit(&self, call: Call, set: &WriteSet<'_>) -> Result<CommitResult> {
        self.store.commit(call, set)
    }

    fn scan(&self, call: Call, visit: &mut Visit<'_>) -> Result<()> {
        self.store.scan(call, visit)
    }

    fn leases(&self) -> &dyn Leases {
        self.store.leases()
    }

    fn abilities(&self) -> Abilities {
        Abilities::of(self.store.scope())
    }
}

impl Upkeep for Changing {
    fn describe(&self, name: &[u8]) -> String {
        self.store.describe(name)
    }

    fn read_history(&self, call: Call, visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.store.read_history(call, visit)
    }

    fn diagnose(&self, call: Call) -> Vec<Finding> {
        self.store.diagnose(call)
    }
}

fn engine(rig: &Rig, change: Option<Interposed>) -> Engine {
    let store = Changing { store: rig.again(), change: Mutex::new(change) };
    Engine::new(Box::new(store), Arc::new(Unix::new()))
}

/// Another process takes "x" for itself. Returns what proves it.
fn take(engine: &Engine) -> HandleHash {
    let host = Unix::new();
    let process = host.this_process().unwrap();
    let party = Owner {
        domain: host.domain().unwrap(),
        processes: vec![process],
        host: "h".into(),
        uid: 0,
        command: Vec::new(),
        label: None,
        supervisor: None,
        outlives_lock: false,
        session: None,
    };
    let applicant = AcquireRequest::for_itself(engine.host().new_handle().unwrap(), party, process);
    match engine.acquire(b"x", &applicant, &WaitPolicy::NONE, None, &mut |_| None).unwrap() {
        AcquireResult::Granted(grants, None) => grants[0].proof,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn force_removes_no_lock_that_replaced_an_unreadable_record(rig: &Rig) {
    rig.put(b"x", None, b"garbage");
    let (other, taken) = (engine(rig, None), Arc::new(Mutex::new(None)));
    let proof = taken.clone();
    let change = move || {
        assert!(matches!(other.break_lock(b"x", None, None), Ok(Ok(Err(Some(_))))));
        *proof.lock().unwrap() = Some(take(&other));
    };
    let answer = engine(rig, Some(Box::new(change))).break_lock(b"x", None, None).unwrap();
    let Err(NotHolder { holders, ending: None, stale: None, .. }) = answer else { panic!("{answer:?}") };
    let held = engine(rig, None).inspect(b"x").unwrap().record.holders;
    let proofs = [&holders, &held].map(|grants| grants.iter().map(|grant| Some(grant.proof)).collect::<Vec<_>>());
    let taken = *taken.lock().unwrap();
    assert_eq!(proofs, [vec![taken], vec![taken]]);
    // Force breaks the record that it saw.
    let answer = engine(rig, None).break_lock(b"x", None, None).unwrap();
    assert!(matches!(&answer, Ok(Ok(broken)) if broken.len() == 1), "{answer:?}");
    assert!(!engine(rig, None).inspect(b"x").unwrap().is_held());
}

pub(crate) fn force_removes_an_unreadable_record_during_other_commands(rig: &Rig) {
    for replacement in [None, Some(&b"other garbage"[..])] {
        let version = rig.put(b"x", None, b"garbage");
        let store = rig.again();
        let change = move || {
            assert!(matches!(store.swap(b"x", Some(&version), replacement), Ok(CommitResult::Done(_))));
        };
        let answer = engine(rig, Some(Box::new(change))).break_lock(b"x", None, None);
        // Another process removed the record, or this one did and kept the bytes.
        let Ok(Ok(Err(place))) = answer else { panic!("{answer:?}") };
        assert_eq!(place.is_some(), replacement.is_some(), "{place:?}");
        assert_eq!(rig.store.read(Call::default(), b"x"), Ok(None));
    }
}

pub(crate) fn a_sweep_removes_no_page_that_replaced_an_orphaned_page(rig: &Rig) {
    let key = Page::key(b"x", 7);
    let page = |more: &str| format!("{{\"csalock-page\":3,\"name\":\"x%00{:016x}\",{more}", 7).into_bytes();
    let version = rig.put(&key, None, &page(""));
    let (store, written) = (rig.again(), key.clone());
    let change = move || {
        assert!(matches!(store.swap(&written, Some(&version), Some(&page("new"))), Ok(CommitResult::Done(_))));
    };
    engine(rig, Some(Box::new(change))).sweep(false).unwrap();
    assert!(rig.body(&key).is_some_and(|body| body.ends_with(b"new")));
    engine(rig, None).sweep(false).unwrap();
    assert_eq!(rig.body(&key), None);
}

/// Makes the record under "x" one whose bytes cannot even be read.
fn spoil(rig: &Rig) {
    if rig.kind == Kind::Sqlite {
        let database = rusqlite::Connection::open(rig.path()).unwrap();
        database.execute("UPDATE records_2 SET body = zeroblob(5000000) WHERE name = x'78'", []).unwrap();
        return;
    }
    for entry in fs::read_dir(rig.path().join("x")).unwrap().map(std::result::Result::unwrap) {
        fs::OpenOptions::new().write(true).open(entry.path()).unwrap().set_len(5 << 20).unwrap();
    }
}

pub(crate) fn an_error_about_a_record_bears_its_version(rig: &Rig) {
    let mut version = rig.put(b"x", None, b"one");
    for _ in 0..2 {
        spoil(rig);
        // A process need not read what it has written itself.
        let error = rig.again().read(Call::default(), b"x").unwrap_err();
        assert_eq!((error.kind(), error.version()), (ErrorKind::Corrupt, Some(version)));
        version = rig.put(b"x", Some(&version), b"two");
    }
    spoil(rig);
    assert_eq!(engine(rig, None).break_lock(b"x", None, None), Ok(Ok(Err(None))));
    assert_eq!(rig.store.read(Call::default(), b"x"), Ok(None));
}

pub(crate) fn a_sweep_passes_over_foreign_files(rig: &Rig) {
    rig.put(b"x", None, b"one");
    for number in 0..5 {
        let left = rig.path().join(format!("left-{number}"));
        fs::create_dir(&left).unwrap();
        fs::write(left.join("rec.0123456789abcdef01234567"), "").unwrap();
        fs::write(rig.path().join(format!("file-{number}")), "").unwrap();
    }
    let swept = rig.store.sweep(Call::default(), false).unwrap();
    assert_eq!((swept.removed, swept.passed_over.len()), (5, 5), "{swept:?}");
    for error in &swept.passed_over {
        assert!(error.kind() == ErrorKind::Corrupt && error.message().contains("/file-"), "{error}");
    }
    assert_eq!(fs::read_dir(rig.path()).unwrap().filter(|entry| entry.as_ref().unwrap().file_name() == "x").count(), 1);
    assert!((0..5).all(|number| !rig.path().join(format!("left-{number}")).exists()));
}
