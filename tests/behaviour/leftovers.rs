//! A released lock leaves no file, no row and no directory.

use std::sync::Arc;
use std::time::Duration;

use csalock::engine::{AcquireRequest, AcquireResult, Engine, WaitPolicy};
use csalock::host::{Host, Unix};
use csalock::lock::{Owner, Release};

use crate::sandbox::Sandbox;

/// Returns the weight of a store: the number of files and directories by mode and size. Names differ in the parked
/// record and the highest token, so they do not count. The history may grow; other tests bound it.
fn weight(sandbox: &Sandbox) -> Vec<String> {
    let kind = |line: &String| line.split(' ').skip(1).take(2).collect::<Vec<_>>().join(" ");
    let sized = |line: &String| if line.contains("/end.") { "a tombstone".to_string() } else { kind(line) };
    let is_history =
        |line: &&String| line.contains("/store/.work/history ") || line.contains("/store/.work/history.1 ");
    if !sandbox.is_of_files() {
        return sandbox.stored();
    }
    let found = [sandbox.listing("store"), sandbox.listing("store-journal")].concat();
    let mut lines: Vec<String> = found.iter().filter(|line| !is_history(line)).map(sized).collect();
    lines.retain(|line| !line.is_empty());
    lines.sort();
    lines
}

on_every_store! {
    fn ten_thousand_acquisitions_leave_the_store_as_it_was(sandbox: &Sandbox) {
        sandbox.csalock(["run", "x", "true"]).run();
        sandbox.csalock(["run", "y", "true"]).run();
        let before = weight(sandbox);
        let host = Arc::new(Unix::new());
        let engine = Engine::new(sandbox.open(), host.clone());
        let process = host.this_process().unwrap();
        // The server may be busy with other tests.
        let patient = WaitPolicy { limit: Some(Duration::from_secs(60)), ..WaitPolicy::NONE };
        let party = Owner {
            domain: host.domain().unwrap(), processes: vec![process], supervisor: None, session: None, host: host.name(), uid: host.uid(), command: b"test".to_vec(), label: None,
        };
        for round in 0..sandbox.many(10_000) {
            let name = format!("lock {}", round % 100);
            let handle = engine.new_handle().unwrap();
            let applicant = AcquireRequest::for_itself(handle.clone(), party.clone(), process);
            let taken = engine.acquire(name.as_bytes(), &applicant, &patient, None, &mut |_| None).unwrap();
            assert!(matches!(taken, AcquireResult::Granted(..)), "{round} {taken:?}");
            let claimant = engine.by_proof(handle.proof()).unwrap();
            let given_back = engine.apply(name.as_bytes(), &Release(claimant)).unwrap();
            assert!(given_back.is_ok(), "{round} {given_back:?}");
        }
        assert_eq!(weight(sandbox), before);
        sandbox.csalock(["status", "-1"]).run();
    }

    fn hundreds_of_commands_leave_the_store_as_it_was(sandbox: &Sandbox) {
        sandbox.csalock(["run", "x", "true"]).run();
        sandbox.csalock(["run", "y", "true"]).run();
        let before = weight(sandbox);
        let times = sandbox.many(200);
        let script = format!(
            "i=0; while [ $i -lt {times} ]; do i=$((i + 1)); csalock run $i true; csalock lock $i >/dev/null; \
             csalock unlock $i; csalock run -F $i true; csalock run -n $i true; done"
        );
        sandbox.script("dash", &script).run();
        sandbox.csalock(["gc"]).capture();
        assert_eq!(weight(sandbox), before);
    }

    fn waiting_and_giving_up_leave_the_store_as_it_was(sandbox: &Sandbox) {
        sandbox.csalock(["run", "x", "true"]).run();
        sandbox.csalock(["run", "y", "true"]).run();
        let before = weight(sandbox);
        for _ in 0..sandbox.many(10) {
            let holder = sandbox.holder("x");
            let killed = &mut sandbox.waiter("x", "true");
            killed.kill();
            assert_eq!(sandbox.csalock(["run", "-w", "10ms", "x", "true"]).capture().code, Some(75));
            let waiter = sandbox.csalock(["run", "-w", "inf", "x", "true"]).spawn();
            assert_eq!((holder.wait().code, waiter.wait().code), (Some(0), Some(0)));
        }
        if sandbox.is_directory() {
            assert_eq!(weight(sandbox), before);
        } else {
            assert!(sandbox.is_tidy());
            // A database keeps the room that it once needed: four pages are enough for all that was ever in it at once.
            assert!(!sandbox.is_of_files() || std::fs::metadata(sandbox.store_path()).unwrap().len() <= 4 * 4096);
        }
    }
}
