//! Notifications from a foreign process.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sandbox::{Kind, Sandbox, wait_until};

/// Number of notifications.
const RINGS: usize = 20_000;

#[test]
fn a_flood_of_notifications_grants_no_lock_and_hides_no_grant() {
    let sandbox = Sandbox::new(Kind::Directory);
    let mut holder = sandbox.holder("x");
    let mut waiter = sandbox.waiter("x", "echo in");
    let proof = sandbox.record("x").unwrap().waiters[0].proof;
    let address = SocketAddr::from_abstract_name(format!("csalock/{proof}")).unwrap();
    let socket = UnixDatagram::unbound().unwrap();
    socket.set_nonblocking(true).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let _ = socket.send_to_addr(b"not yet", &address);
            }
        });
        (0..RINGS).for_each(|_| drop(socket.send_to_addr(b"not yet", &address)));
        assert!(!waiter.has_ended() && waiter.printed().is_empty());
        assert_eq!(sandbox.waiting("x"), 1);
        holder.release();
        wait_until("the waiter has it", || waiter.printed() == "in\n" || waiter.has_ended());
        over.store(true, Ordering::Relaxed);
    });
    waiter.wait().prints(0, "in\n");
}
