//! Ctrl-Z while the child waits for the lock. The child erases its line on the terminal and stops. The shell takes the
//! terminal as soon as the supervisor has stopped, so the supervisor stops after the child.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::errno::Errno;
use nix::poll::{PollTimeout, poll};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::signals::{self, SigtstpHandler};

/// Number of milliseconds that the child has to stop.
const MOST_LOOKS: usize = 300;

static CHILD: AtomicI32 = AtomicI32::new(0);

/// Delays the effect of Ctrl-Z on this process until the child has stopped. Without a terminal, Ctrl-Z stays as it is.
pub(super) fn stop_after(child: Pid) -> Option<SigtstpHandler> {
    CHILD.store(child.as_raw(), Ordering::SeqCst);
    std::io::stderr().is_terminal().then(|| SigtstpHandler::call(stop_second)).flatten()
}

extern "C" fn stop_second(_signal: nix::libc::c_int) {
    let errno = Errno::last_raw();
    let child = Pid::from_raw(CHILD.load(Ordering::SeqCst));
    let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    for _ in 0..MOST_LOOKS {
        if waitid(Id::Pid(child), flags) != Ok(WaitStatus::StillAlive) {
            break;
        }
        let _ = poll(&mut [], PollTimeout::from(1u8));
    }
    signals::stop();
    Errno::set_raw(errno);
}
