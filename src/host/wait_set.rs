//! Linux wait set: wake-up sockets, pidfds and the channel of the store.
//!
//! A datagram on an abstract unix(7) socket named after the waiter's handle hash wakes the waiter. Such a socket leaves
//! no file, needs no permission, has no inotify limit, and wakes only the granted waiter. Processes in other network
//! namespaces cannot reach that socket and notify through the store ([`crate::store::Subscription`]). A pidfd reports
//! the end of a process. The engine does not rely on any of these: it bounds every wait and reads the record again.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, bind, recv, sendto};
use nix::sys::time::TimeSpec;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::unix::is_released_by;
use super::{WaitSet, WaitSources, WakeReason, proc_stat};
use crate::error::{Error, ErrorKind, Result};
use crate::lock::{HandleHash, ProcessId};

/// Time that a wrapper whose command has ended gets to release the lock properly.
const RELEASE_GRACE: Duration = Duration::from_millis(4);

/// Maximum length of a queue of datagrams.
const MOST_RINGS: usize = 1024;

/// A socket that receives wake-ups.
#[derive(Debug)]
pub struct WakeSocket(OwnedFd);

/// The process to wake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeAddress<'a> {
    /// The waiter with this handle hash, until it is granted the lock.
    Waiter(&'a HandleHash),
    /// The supervisor of the command that holds the grant with this handle hash.
    Supervisor(&'a HandleHash),
}

impl WakeSocket {
    /// Binds the socket for wake-ups. Returns `None` if that fails; no caller relies on wake-ups.
    pub fn new(listener: WakeAddress<'_>) -> Option<WakeSocket> {
        let socket = socket()?;
        bind(socket.as_raw_fd(), &address(listener)?).ok().map(|()| WakeSocket(socket))
    }

    /// Returns true if a wake-up arrived since the last call.
    pub fn was_woken(&self) -> bool {
        let mut buffer = [0; 8];
        // The limit ends this loop even if wake-ups arrive faster than they are read.
        let receive = || recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()).ok();
        std::iter::from_fn(receive).take(MOST_RINGS).count() > 0
    }
}

impl AsFd for WakeSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub(super) struct LinuxWaitSet<'a> {
    bell: Option<WakeSocket>,
    interrupt: Option<BorrowedFd<'a>>,
    pidfds: Vec<(ProcessId, OwnedFd)>,
}

/// Wakes the process at this address. Returns true if a process listens there.
pub(super) fn wake(listener: WakeAddress<'_>) -> bool {
    let (Some(socket), Some(address)) = (socket(), address(listener)) else { return false };
    // A listener with a full queue wakes anyway.
    matches!(sendto(socket.as_raw_fd(), b"!", &address, MsgFlags::MSG_NOSIGNAL), Ok(_) | Err(Errno::EAGAIN))
}

fn socket() -> Option<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    nix::sys::socket::socket(AddressFamily::Unix, SockType::Datagram, flags, None).ok()
}

fn address(listener: WakeAddress<'_>) -> Option<UnixAddr> {
    let name = match listener {
        WakeAddress::Waiter(proof) => format!("csalock/{proof}"),
        WakeAddress::Supervisor(proof) => format!("csalock/guardian/{proof}"),
    };
    UnixAddr::new_abstract(name.as_bytes()).ok()
}

impl<'a> LinuxWaitSet<'a> {
    pub(super) fn new(proof: &HandleHash, interrupt: Option<BorrowedFd<'a>>) -> LinuxWaitSet<'a> {
        LinuxWaitSet { bell: WakeSocket::new(WakeAddress::Waiter(proof)), interrupt, pidfds: Vec::new() }
    }

    /// Watches exactly these processes from now on. Returns false if one of them has already ended.
    fn watch_processes(&mut self, processes: &[ProcessId]) -> bool {
        self.pidfds.retain(|(process, _)| processes.contains(process));
        for process in processes {
            if self.pidfds.iter().any(|(known, _)| known == process) {
                continue;
            }
            let Some(pid) = Pid::from_raw(process.pid) else { continue };
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(pidfd) => self.pidfds.push((*process, pidfd)),
                Err(rustix::io::Errno::SRCH) => return false,
                // On an old kernel, or without free descriptors, the bounded wait must suffice.
                Err(_) => continue,
            }
            // Only this check proves that the pidfd belongs to that process and not to a later user of the pid. If
            // /proc does not show the process, it has ended, which the pidfd reports, or it is hidden.
            if matches!(proc_stat::read(process.pid), Ok(Some(stat)) if stat.start != process.start) {
                return false;
            }
        }
        true
    }

    /// Returns which of wake-up, interrupt, processes and `elsewhere` are readable within `at_most`.
    fn listen(&self, at_most: Duration, elsewhere: Option<BorrowedFd<'_>>) -> Result<[bool; 4]> {
        let bell = self.bell.as_ref().map(AsFd::as_fd);
        let processes = self.pidfds.iter().map(|(_, pidfd)| pidfd.as_fd());
        let concerns = bell.map(|fd| (0, fd)).into_iter();
        let concerns = concerns.chain(self.interrupt.map(|fd| (1, fd))).chain(processes.map(|fd| (2, fd)));
        let concerns = concerns.chain(elsewhere.map(|fd| (3, fd)));
        let (whose, mut polled): (Vec<usize>, Vec<PollFd<'_>>) =
            concerns.map(|(whose, fd)| (whose, PollFd::new(fd, PollFlags::POLLIN))).unzip();
        let mut heard = [false; 4];
        match ppoll(&mut polled, Some(TimeSpec::from_duration(at_most)), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => {
                return Err(Error::new(ErrorKind::System, format!("cannot wait: {}", errno.desc()), "try again"));
            }
        }
        for (whose, polled) in whose.into_iter().zip(&polled) {
            heard[whose] |= polled.any().unwrap_or(false);
        }
        Ok(heard)
    }
}

impl WaitSet for LinuxWaitSet<'_> {
    fn wait(&mut self, signs: &mut WaitSources<'_>, at_most: Duration) -> Result<WakeReason> {
        if !self.watch_processes(signs.processes) {
            return Ok(WakeReason::LookAgain);
        }
        let elsewhere = signs.subscription.as_ref().map(|subscription| subscription.descriptor());
        let [mut rung, interrupted, ended, heard] = self.listen(at_most, elsewhere)?;
        if heard && signs.subscription.as_mut().is_some_and(|hearing| hearing.is_notified()) {
            *signs.subscription = None;
            rung = true;
        }
        if interrupted {
            return Ok(WakeReason::Interrupted);
        }
        if ended && !rung {
            let ended = std::mem::take(&mut self.pidfds);
            if ended.iter().any(|(process, _)| is_released_by(process, signs.supervisors)) {
                let elsewhere = signs.subscription.as_ref().map(|hearing| hearing.descriptor());
                self.listen(RELEASE_GRACE.min(at_most), elsewhere)?;
            }
        }
        let _ = self.bell.as_ref().map(WakeSocket::was_woken);
        Ok(if rung || ended { WakeReason::LookAgain } else { WakeReason::TimeOver })
    }
}
