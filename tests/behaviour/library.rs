//! What Rust programs get: `Locks` and `Supervisor`.

use std::sync::mpsc::channel;
use std::time::Duration;

use csalock::Locks;

use crate::sandbox::{Kind, Mount, PATIENCE, Sandbox, has, is_root, wait_until};

#[test]
fn a_guard_that_is_dropped_does_not_wait_for_a_file_system_that_hangs() {
    let sandbox = Sandbox::new(Kind::Shared);
    if !is_root("a frozen file system") || !has("fsfreeze") {
        return;
    }
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
