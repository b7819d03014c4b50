//! Linux wake set: wake-up sockets, pidfds and the channel of the store.
//!
//! A datagram on an abstract unix(7) socket named after the waiter's handle hash wakes the waiter. Such a socket leaves
//! no file, needs no permission, has no inotify limit, and wakes only the granted waiter. Processes in other network
//! namespaces cannot reach that socket and notify through the store ([`crate::Subscription`]). A pidfd reports
//! the end of a process. The engine does not rely on any of these: it bounds every wait and reads the record again.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use nix::time::ClockId;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::interface::{Subscription, WakeAddress, WakeReason, WakeSet, Watched};
use super::machine::now;
use super::processes;
use lock::{Error, ErrorKind, HandleHash, ProcessId, Result};

const MOST_WAKE_UPS: usize = 1024;

/// Number of wake-ups in a second after which each one costs a pause. A user who may read a record can send as many as
/// that user likes, and csalock reads the store after each.
const MANY_A_SECOND: u64 = 32;

const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct WakeSocket {
    socket: Arc<OwnedFd>,
    /// Current second on CLOCK_BOOTTIME.
    second: AtomicU64,
    in_second: AtomicU64,
}

/// If this process is a supervisor, its socket sends wake-ups as well as a new one.
static OF_SUPERVISOR: OnceLock<Weak<OwnedFd>> = OnceLock::new();

impl WakeSocket {
    /// Binds the socket for wake-ups. Returns `None` if that fails; no caller relies on wake-ups.
    pub fn new(listener: WakeAddress<'_>) -> Option<WakeSocket> {
        let socket = Arc::new(unbound().ok()?);
        rustix::net::bind(&socket, &address(listener).ok()?).ok()?;
        if matches!(listener, WakeAddress::Supervisor(_)) {
            let _ = OF_SUPERVISOR.set(Arc::downgrade(&socket));
        }
        Some(WakeSocket { socket, second: AtomicU64::new(0), in_second: AtomicU64::new(0) })
    }

    /// In a flood of wake-ups the call pauses first, so that they use little of a processor.
    pub fn was_woken(&self) -> bool {
        let mut buffer = [0; 8];
        let receive = || rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT).ok();
        // The limit ends this loop even if wake-ups arrive faster than they are read.
        let was_woken = std::iter::from_fn(receive).take(MOST_WAKE_UPS).count() > 0;
        if was_woken && self.is_flooded() {
            let _ = ppoll(&mut [], Some(TimeSpec::from_duration(PAUSE)), None);
        }
        was_woken
    }

    /// Counts a wake-up. Returns true if there were many in this second.
    fn is_flooded(&self) -> bool {
        let now = now(ClockId::CLOCK_BOOTTIME).as_secs();
        if self.second.swap(now, Relaxed) != now {
            self.in_second.store(0, Relaxed);
        }
        self.in_second.fetch_add(1, Relaxed) >= MANY_A_SECOND
    }
}

impl AsFd for WakeSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

pub(super) struct LinuxWakeSet<'a> {
    wake_socket: Option<WakeSocket>,
    interrupt: Vec<BorrowedFd<'a>>,
    pidfds: Vec<(ProcessId, OwnedFd)>,
}

pub(super) fn wake(listener: WakeAddress<'_>) -> bool {
    let send = || {
        let of_supervisor = OF_SUPERVISOR.get().and_then(Weak::upgrade);
        let socket = of_supervisor.map_or_else(|| unbound().map(Arc::new), Ok)?;
        rustix::net::sendto(&socket, b"!", SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &address(listener)?)
    };
    // A listener with a full queue wakes anyway.
    send().map_or_else(|error| error == rustix::io::Errno::AGAIN, |_| true)
}

fn unbound() -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

fn address(listener: WakeAddress<'_>) -> rustix::io::Result<SocketAddrUnix> {
    let name = match listener {
        WakeAddress::Waiter(proof) => format!("csalock/{proof}"),
        WakeAddress::Supervisor(proof) => format!("csalock/guardian/{proof}"),
    };
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

impl<'a> LinuxWakeSet<'a> {
    pub(super) fn new(proof: &HandleHash, interrupt: Vec<BorrowedFd<'a>>) -> LinuxWakeSet<'a> {
        LinuxWakeSet { wake_socket: WakeSocket::new(WakeAddress::Waiter(proof)), interrupt, pidfds: Vec::new() }
    }

    /// Watches exactly these processes from now on, or their supervisors. Returns false if one of them has already
    /// ended.
    ///
    /// A running supervisor wakes the waiter when its command ends, so the end of the supervisor itself is the event to
    /// watch. The end of the command would wake the waiter too early, for nothing.
    fn watch(&mut self, watched: &[Watched]) -> bool {
        let mut before = std::mem::take(&mut self.pidfds);
        for Watched { process, supervisor } in watched {
            let mut open = |process: &ProcessId| match before.iter().position(|(known, _)| known == process) {
                Some(at) => Ok(Some(before.swap_remove(at).1)),
                // On an old kernel or without free descriptors the bounded wait must suffice.
                None => match processes::pidfd_of(process.pid) {
                    Err(rustix::io::Errno::SRCH) => Err(()),
                    opened => Ok(opened.ok()),
                },
            };
            // Only a look at /proc after the opening proves that the pidfd belongs to that process and not to a later
            // user of the pid.
            if let Some(supervisor) = supervisor
                && let Ok(Some(pidfd)) = open(supervisor)
                && matches!(processes::read(supervisor.pid), Ok(Some(stat)) if stat.id() == *supervisor && stat.is_running())
            {
                self.pidfds.push((*supervisor, pidfd));
                continue;
            }
            let Ok(opened) = open(process) else { return false };
            // If /proc does not show the process, it has ended, which the pidfd reports, or it is hidden.
            if matches!(processes::read(process.pid), Ok(Some(stat)) if stat.start != process.start) {
                return false;
            }
            self.pidfds.extend(opened.map(|pidfd| (*process, pidfd)));
        }
        true
    }

    /// Which of wake-up, interrupt, processes and `elsewhere` are readable within `at_most`.
    fn listen(&self, at_most: Duration, elsewhere: Option<BorrowedFd<'_>>) -> Result<[bool; 4]> {
        let groups: [Vec<BorrowedFd<'_>>; 4] = [
            self.wake_socket.iter().map(AsFd::as_fd).collect(),
            self.interrupt.clone(),
            self.pidfds.iter().map(|(_, pidfd)| pidfd.as_fd()).collect(),
            elsewhere.into_iter().collect(),
        ];
        let mut polled: Vec<_> = groups.iter().flatten().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
        match ppoll(&mut polled, Some(TimeSpec::from_duration(at_most)), None) {
            Err(errno) if errno != Errno::EINTR => {
                Err(Error::new(ErrorKind::System, format!("cannot wait: {}", errno.desc()), "try again"))
            }
            _ => {
                let mut ready = polled.iter().map(|polled| polled.any().unwrap_or(false));
                Ok(groups.map(|group| ready.by_ref().take(group.len()).filter(|is_ready| *is_ready).count() > 0))
            }
        }
    }
}

impl WakeSet for LinuxWakeSet<'_> {
    fn wait(
        &mut self,
        watched: &[Watched],
        subscription: &mut Option<Box<dyn Subscription>>,
        at_most: Duration,
    ) -> Result<WakeReason> {
        if !self.watch(watched) {
            return Ok(WakeReason::LookAgain);
        }
        let elsewhere = subscription.as_ref().map(|channel| channel.descriptor());
        let [mut is_woken, interrupted, ended, notified] = self.listen(at_most, elsewhere)?;
        if notified && subscription.as_mut().is_some_and(|channel| channel.is_notified()) {
            *subscription = None;
            is_woken = true;
        }
        if interrupted {
            return Ok(WakeReason::Interrupted);
        }
        if is_woken {
            let _ = self.wake_socket.as_ref().map(WakeSocket::was_woken);
        }
        if ended {
            // An ended process stays readable, and the next wait must not report it again.
            self.pidfds.clear();
        }
        Ok(if is_woken || ended { WakeReason::LookAgain } else { WakeReason::TimeOver })
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::{Host as _, Unix};
    use lock::Handle;

    const NEVER: Duration = Duration::from_millis(50);

    /// Waits for the end of `true` with this supervisor; it is a zombie already.
    fn wait_for_zombie(supervisor: Option<ProcessId>) -> WakeReason {
        let mut command = Command::new("true").spawn().unwrap();
        let pidfd = processes::pidfd_of(command.id() as i32).unwrap();
        nix::poll::poll(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], nix::poll::PollTimeout::NONE).unwrap();
        let pid = command.id() as i32;
        let process = ProcessId { pid, start: processes::start_of(pid).unwrap() };
        let mut wake_set = LinuxWakeSet::new(&Handle::new([pid as u8; 16]).proof(), Vec::new());
        let watched = [Watched { process, supervisor }];
        let reason = wake_set.wait(&watched, &mut None, NEVER).unwrap();
        command.wait().unwrap();
        reason
    }

    #[test]
    fn the_end_of_a_command_is_left_to_its_supervisor_while_that_lives() {
        let this = Unix::new().this_process().unwrap();
        assert_eq!(wait_for_zombie(Some(this)), WakeReason::TimeOver);
        assert_eq!(wait_for_zombie(Some(ProcessId { start: this.start + 1, ..this })), WakeReason::LookAgain);
        assert_eq!(wait_for_zombie(None), WakeReason::LookAgain);
    }

    #[test]
    fn a_wake_up_reaches_its_address_and_no_other() {
        let [mine, other] = [1, 2].map(|byte| Handle::new([byte; 16]).proof());
        let socket = WakeSocket::new(WakeAddress::Waiter(&mine)).unwrap();
        assert!(!wake(WakeAddress::Waiter(&other)) && !wake(WakeAddress::Supervisor(&mine)) && !socket.was_woken());
        assert!(wake(WakeAddress::Waiter(&mine)) && wake(WakeAddress::Waiter(&mine)));
        assert!(socket.was_woken() && !socket.was_woken());
    }

    #[test]
    fn a_flood_of_wake_ups_is_heard_slowly() {
        let mine = Handle::new([3; 16]).proof();
        let socket = WakeSocket::new(WakeAddress::Waiter(&mine)).unwrap();
        let (began, mut heard) = (now(ClockId::CLOCK_BOOTTIME), 0);
        while heard < 4 * MANY_A_SECOND {
            assert!(wake(WakeAddress::Waiter(&mine)));
            heard += u64::from(socket.was_woken());
        }
        let ended = now(ClockId::CLOCK_BOOTTIME);
        let in_time = MANY_A_SECOND * (ended.as_secs() - began.as_secs() + 1);
        let took = ended.saturating_sub(began);
        assert!(took >= PAUSE * heard.saturating_sub(in_time) as u32, "{took:?}");
    }
}
