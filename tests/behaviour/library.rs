//! The API for Rust programs: `Locks`, `LockRequest` and `Guard`.

use std::sync::mpsc::channel;
use std::time::Duration;

use csalock_locks::{ErrorKind, LockRequest, Locks};

use crate::sandbox::{Kind, Mount, PATIENCE, Sandbox, has, has_namespaces, wait_until};

#[test]
fn a_guard_that_is_dropped_does_not_wait_for_a_hung_file_system() {
    let sandbox = Sandbox::new(Kind::Shared);
    require!(has_namespaces("a frozen file system") && has("fsfreeze"));
    let Some(mount) = Mount::ext4(&sandbox, "a frozen file system") else { return };
    let url = sandbox.store_at("files/mount/locks");
    let locks = Locks::open(&url).unwrap();
    let guard = locks.lock("x", Duration::ZERO).unwrap().unwrap();
    let (done, is_done) = channel();
    std::thread::scope(|scope| {
        let frozen = mount.freeze();
        scope.spawn(move || {
            drop(guard);
            done.send(()).unwrap();
        });
        let came = is_done.recv_timeout(PATIENCE);
        drop(frozen);
        assert_eq!(came, Ok(()), "the guard was still being dropped");
    });
    // The release goes on meanwhile.
    wait_until("the lock is free", || sandbox.csalock(["status", "--store", &url, "x"]).capture().code == Some(81));
}

on_every_kind_of_store! {
    fn a_guard_holds_all_names_or_none(sandbox: &Sandbox) {
        let locks = Locks::open(&sandbox.store()).unwrap();
        let request = LockRequest::new(["b", "a", "b"]).label("month end");
        let holder = sandbox.holder("b");
        assert!(locks.acquire(&request).unwrap().is_none());
        assert_eq!((sandbox.state("a").as_str(), sandbox.state("b").as_str()), ("free", "held"));
        holder.wait().exits(0);
        let guard = locks.acquire(&request).unwrap().unwrap();
        assert_eq!((sandbox.state("a").as_str(), sandbox.state("b").as_str()), ("held", "held"));
        assert_eq!(sandbox.csalock(["lock", "-n", "a"]).capture().code, Some(75), "another thread may release it");
        let shown = sandbox.csalock(["status", "a"]).capture().stdout;
        assert!(shown.contains("month end") && shown.contains(&std::process::id().to_string()), "{shown}");
        assert!(guard.token() > 0 && guard.release().unwrap());
        assert_eq!((sandbox.state("a").as_str(), sandbox.state("b").as_str()), ("free", "free"));
    }

    fn a_long_label_is_cut_like_on_the_command_line(sandbox: &Sandbox) {
        let locks = Locks::open(&sandbox.store()).unwrap();
        let guard = locks.acquire(&LockRequest::new(["x"]).label("é".repeat(1000))).unwrap().unwrap();
        let shown = sandbox.csalock(["status", "--json", "x"]).capture().stdout;
        assert!(shown.contains(&format!("\"{}...\"", "é".repeat(128))), "{shown}");
        assert!(guard.release().unwrap());
    }

    fn readers_share_and_slots_are_counted(sandbox: &Sandbox) {
        let locks = Locks::open(&sandbox.store()).unwrap();
        let readers = [0, 1].map(|_| locks.acquire(&LockRequest::new(["x"]).shared()).unwrap().unwrap());
        sandbox.csalock(["run", "-n", "-s", "x", "true"]).run();
        drop(readers);
        sandbox.csalock(["run", "-n", "x", "true"]).run();
        let places = [0, 1].map(|_| locks.acquire(&LockRequest::new(["x"]).slots(2)).unwrap().unwrap());
        assert_eq!(sandbox.holders("x").len(), 2);
        let error = locks.acquire(&LockRequest::new(["x"]).slots(3)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Deadlock, "another number waits for the slots of this process");
        drop(places);
        assert_eq!(sandbox.state("x"), "free");
    }

    fn a_time_limit_ends_a_guard(sandbox: &Sandbox) {
        let locks = Locks::open(&sandbox.store()).unwrap();
        let guard = locks.acquire(&LockRequest::new(["x"]).ttl(Duration::from_millis(700))).unwrap().unwrap();
        sandbox.csalock(["run", "-w", "60s", "x", "true"]).capture().exits(0);
        assert!(!guard.release().unwrap());
    }

    fn a_request_waits_in_the_queue(sandbox: &Sandbox) {
        let locks = Locks::open(&sandbox.store()).unwrap();
        let mut holder = sandbox.holder("x");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| locks.lock("x", PATIENCE).unwrap().map(|guard| guard.release().unwrap()));
            wait_until("it waits", || sandbox.waiters("x").len() == 1);
            holder.release();
            assert_eq!(waits.join().unwrap(), Some(true));
        });
        holder.wait().exits(0);
    }

    fn a_request_that_can_never_be_granted_is_an_error(sandbox: &Sandbox) {
        let locks = Locks::open(&sandbox.store()).unwrap();
        let kind = |request: LockRequest| locks.acquire(&request).unwrap_err().kind();
        let nothing: [&str; 0] = [];
        assert_eq!(kind(LockRequest::new(nothing)), ErrorKind::InvalidInput);
        assert_eq!(kind(LockRequest::new([""])), ErrorKind::InvalidInput);
        assert_eq!([0, 10_001].map(|slots| kind(LockRequest::new(["x"]).slots(slots))), [ErrorKind::InvalidInput; 2]);
        assert_eq!(kind(LockRequest::new(["x"]).ttl(Duration::ZERO)), ErrorKind::InvalidInput);
        let _guard = locks.lock("x", Duration::ZERO).unwrap().unwrap();
        assert_eq!(kind(LockRequest::new(["x"]).wait(PATIENCE)), ErrorKind::Deadlock);
    }
}
