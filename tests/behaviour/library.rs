//! The API for Rust programs: `Locks`, `LockRequest` and `Guard`.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, UNIX_EPOCH};

use csalock_locks::{Acquired, ErrorKind, Guard, LockRequest, Locks, OpenOptions};

use crate::sandbox::{Kind, Mount, PATIENCE, Sandbox, has, has_namespaces, wait_until};

#[test]
fn a_guard_that_is_dropped_does_not_wait_for_a_hung_file_system() {
    let sandbox = Sandbox::new(Kind::Shared);
    require!(has_namespaces("a frozen file system") && has("fsfreeze"));
    let Some(mount) = Mount::ext4(&sandbox, "a frozen file system") else { return };
    let url = sandbox.store_at("files/mount/locks");
    let locks = Locks::open(&url).unwrap();
    let guard = locks.lock("x", Duration::ZERO).unwrap().held().unwrap();
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

#[test]
fn the_environment_counts_only_on_request() {
    let sandbox = Sandbox::new(Kind::Shared);
    let url = sandbox.store();
    let kind = |opened: csalock_locks::Result<Locks>| opened.map(drop).map_err(|error| error.kind());
    let short = OpenOptions::new().lease(Duration::from_secs(2));
    assert_eq!(kind(short.open(&url)), Err(ErrorKind::InvalidInput));
    let lease_of = |options: &OpenOptions| {
        let locks = options.open(&url).unwrap();
        let guard = locks.lock("x", Duration::ZERO).unwrap().held().unwrap();
        let ends = Duration::from_millis(sandbox.record("x").unwrap().holders[0].lifetime.lease().unwrap().wall);
        guard.release().unwrap();
        ends.saturating_sub(UNIX_EPOCH.elapsed().unwrap()).as_secs()
    };
    let default = lease_of(&OpenOptions::new());
    assert!((20..=60).contains(&default), "{default}");
    let long = lease_of(&OpenOptions::new().lease(Duration::from_secs(180)));
    assert!((61..=180).contains(&long), "{long}");
}

/// fork(2) in a program with threads, as a daemon does it.
#[test]
#[expect(unsafe_code, reason = "fork(2)")]
fn the_copy_of_a_forked_process_releases_nothing() {
    let sandbox = Sandbox::new(Kind::Directory);
    let locks = Locks::open(&sandbox.store()).unwrap();
    let guard = locks.lock("x", Duration::ZERO).unwrap().held().unwrap();
    // SAFETY: the child only drops the guard, which makes no call but getpid(2), and ends.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Child => {
            drop(guard);
            // SAFETY: this ends the child without its parent's clean-up.
            unsafe { nix::libc::_exit(0) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            nix::sys::wait::waitpid(child, None).unwrap();
            assert_eq!(guard.is_held(), Ok(true));
            guard.release().unwrap();
        }
    }
}

on_every_kind_of_store! {
    fn a_guard_holds_all_names_or_none(sandbox: &Sandbox) {
        let locks = Locks::open(&sandbox.store()).unwrap();
        let request = LockRequest::new(["b", "a", "b"]).label("month end");
        let holder = sandbox.holder("b");
        assert!(locks.acquire(&request).unwrap().held().is_none());
        assert_eq!((sandbox.state("a").as_str(), sandbox.state("b").as_str()), ("free", "held"));
        holder.wait().exits(0);
        let guard = locks.acquire(&request).unwrap().held().unwrap();
        assert_eq!((sandbox.state("a").as_str(), sandbox.state("b").as_str()), ("held", "held"));
        assert_eq!(sandbox.csalock(["lock", "-n", "a"]).capture().code, Some(75), "another thread may release it");
        let shown = sandbox.csalock(["status", "a"]).capture().stdout;
        assert!(shown.contains("month end") && shown.contains(&std::process::id().to_string()), "{shown}");
        assert!(guard.token() > 0);
        guard.release().unwrap();
        assert_eq!((sandbox.state("a").as_str(), sandbox.state("b").as_str()), ("free", "free"));
    }

    fn a_long_label_is_cut_like_on_the_command_line(sandbox: &Sandbox) {
        let locks = Locks::open(&sandbox.store()).unwrap();
        let guard = locks.acquire(&LockRequest::new(["x"]).label("é".repeat(1000))).unwrap().held().unwrap();
        let shown = sandbox.csalock(["status", "--json", "x"]).capture().stdout;
        assert!(shown.contains(&format!("\"{}...\"", "é".repeat(128))), "{shown}");
        guard.release().unwrap();
    }

    fn readers_share_and_slots_are_counted(sandbox: &Sandbox) {
        let locks = Locks::open(&sandbox.store()).unwrap();
        let readers = [0, 1].map(|_| locks.acquire(&LockRequest::new(["x"]).shared()).unwrap().held().unwrap());
        sandbox.csalock(["run", "-n", "-s", "x", "true"]).run();
        drop(readers);
        sandbox.csalock(["run", "-n", "x", "true"]).run();
        let places = [0, 1].map(|_| locks.acquire(&LockRequest::new(["x"]).slots(2)).unwrap().held().unwrap());
        assert_eq!(sandbox.holders("x").len(), 2);
        let error = locks.acquire(&LockRequest::new(["x"]).slots(3)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Deadlock, "another number waits for the slots of this process");
        drop(places);
        assert_eq!(sandbox.state("x"), "free");
    }

    fn a_time_limit_ends_a_guard(sandbox: &Sandbox) {
        let locks = Locks::open(&sandbox.store()).unwrap();
        let guard = locks.acquire(&LockRequest::new(["x"]).ttl(Duration::from_millis(700))).unwrap().held().unwrap();
        sandbox.csalock(["run", "-w", "60s", "x", "true"]).capture().exits(0);
        assert_eq!(guard.release().unwrap_err().kind(), ErrorKind::Lost);
    }

    fn a_request_waits_in_the_queue(sandbox: &Sandbox) {
        let locks = Locks::open(&sandbox.store()).unwrap();
        let mut holder = sandbox.holder("x");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| locks.lock("x", PATIENCE).unwrap().held().map(|guard| guard.release().unwrap()));
            wait_until("it waits", || sandbox.waiters("x").len() == 1);
            holder.release();
            assert_eq!(waits.join().unwrap(), Some(()));
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
        let _guard = locks.lock("x", Duration::ZERO).unwrap().held().unwrap();
        assert_eq!(kind(LockRequest::new(["x"]).wait(PATIENCE)), ErrorKind::Deadlock);
    }
    fn a_refusal_names_the_holder(sandbox: &Sandbox) {
        let locks = Locks::open(&sandbox.store()).unwrap();
        let holder = sandbox.csalock(["run", "--label", "month end", "x", "sh", "-c", "echo $PPID; cat"]).spawn();
        wait_until("it holds", || sandbox.state("x") == "held");
        let Acquired::Refused(refused) = locks.lock("x", Duration::ZERO).unwrap() else { panic!("two holders") };
        assert_eq!((refused.name(), refused.holders().len()), ("x", 1));
        let seen = &refused.holders()[0];
        assert_eq!((seen.label.as_deref(), seen.pid), (Some("month end"), sandbox.holders("x").first().map(|pid| *pid as u32)));
        assert!(seen.command.starts_with("sh -c") && seen.since.elapsed().unwrap() < PATIENCE, "{seen:?}");
        let host = &seen.host;
        assert_eq!(refused.to_string(), format!("lock x is busy: held by pid {} on {host} for \"month end\"", seen.pid.unwrap()));
        drop(holder);
        sandbox.csalock(["claim", "--id", "7", "y"]).capture().exits(0);
        let Acquired::Refused(refused) = locks.lock("y", Duration::ZERO).unwrap() else { panic!("it is claimed") };
        assert_eq!(refused.holders()[0].pid, None);
    }

    fn a_broken_lock_is_noticed(sandbox: &Sandbox) {
        let locks = Locks::open(&sandbox.store()).unwrap();
        let request = LockRequest::new(["x", "y"]);
        for request in [request.clone(), request.ttl(Duration::from_secs(3600))] {
            let guard = locks.acquire(&request).unwrap().held().unwrap();
            let (told, is_told) = channel();
            guard.on_lost(move || told.send(()).unwrap()).unwrap();
            assert_eq!(guard.is_held(), Ok(true));
            sandbox.csalock(["unlock", "-q", "--force", "y"]).capture().exits(0);
            assert_eq!(is_told.recv_timeout(PATIENCE), Ok(()), "not told");
            assert_eq!(guard.is_held(), Ok(false));
            assert_eq!(guard.release().unwrap_err().kind(), ErrorKind::Lost);
        }
        assert_eq!((sandbox.state("x").as_str(), sandbox.state("y").as_str()), ("free", "free"));
    }

    fn a_program_is_told_before_its_time_is_over(sandbox: &Sandbox) {
        let locks = Locks::open(&sandbox.store()).unwrap();
        let guard = locks.acquire(&LockRequest::new(["x"]).ttl(Duration::from_secs(5))).unwrap().held().unwrap();
        let (told, is_told) = channel();
        guard.on_lost(move || told.send(()).unwrap()).unwrap();
        assert_eq!(is_told.recv_timeout(PATIENCE), Ok(()));
        assert_eq!(guard.is_held(), Ok(false), "it counts as lost");
    }

    fn a_release_tells_nothing(sandbox: &Sandbox) {
        let locks = Locks::open(&sandbox.store()).unwrap();
        let (told, is_told) = channel::<()>();
        let guard = locks.lock("x", Duration::ZERO).unwrap().held().unwrap();
        guard.on_lost(move || told.send(()).unwrap()).unwrap();
        guard.release().unwrap();
        // The thread ends and drops its sender.
        assert_eq!(is_told.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
    }

    fn a_guard_outlives_the_value_that_made_it(sandbox: &Sandbox) {
        struct Worker(Guard);
        let worker = {
            let locks = Locks::open(&sandbox.store()).unwrap();
            Worker(locks.lock("x", Duration::ZERO).unwrap().held().unwrap())
        };
        assert_eq!(sandbox.state("x"), "held");
        std::thread::spawn(move || worker.0.release().unwrap()).join().unwrap();
        assert_eq!(sandbox.state("x"), "free");
    }
}
