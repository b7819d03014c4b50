//! A waiter's ears on a real host.
//!
//! A waiter is woken by a datagram on an abstract unix(7) socket named after its proof: no file that could be left
//! over, no permission that could be missing, no limit of inotify instances, and only the one that was granted wakes.
//! Processes in other network namespaces cannot reach that socket and ring through the store ([`crate::store::Subscription`]).
//! Ends of processes are seen by pidfd.
//! None of them is relied upon: the engine bounds every wait and looks again.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sha2::{Digest, Sha256};

use super::unix::is_released_by;
use super::{WaitSet, WaitSources, WakeReason, proc_stat};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lock::{HandleHash, ProcessId};

/// So long we let a wrapper that saw its command end give the lock back in good order.
const RELEASE_GRACE: Duration = Duration::from_millis(4);

/// No queue of datagrams is longer.
const MOST_RINGS: usize = 1024;

/// Where somebody can be rung.
#[derive(Debug)]
pub struct WakeSocket(UnixDatagram);

/// Who it is that listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeAddress<'a> {
    /// The waiter with this proof, until it is granted what it waits for.
    Waiter(&'a HandleHash),
    /// The guardian of the command that holds by this proof.
    Supervisor(&'a HandleHash),
    /// Whoever waits on behalf of somebody: one of [`crate::lock::WaitEdges::keys`].
    OnBehalf(&'a [u8]),
}

impl WakeSocket {
    /// From now on, who rings is heard. `None` where that is not to be had: nobody relies on it.
    pub fn new(listener: WakeAddress<'_>) -> Option<WakeSocket> {
        let bell = address(listener).and_then(|address| UnixDatagram::bind_addr(&address)).ok()?;
        bell.set_nonblocking(true).ok().map(|()| WakeSocket(bell))
    }

    /// Whether it rang since it was last asked.
    pub fn was_woken(&self) -> bool {
        let mut buffer = [0; 8];
        // Whoever rings faster than we listen does not keep us listening.
        std::iter::from_fn(|| self.0.recv(&mut buffer).ok()).take(MOST_RINGS).count() > 0
    }
}

impl AsFd for WakeSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub(super) struct LinuxWaitSet<'a> {
    bell: Option<WakeSocket>,
    /// Those by which others ask what we wait for.
    asked: Vec<WakeSocket>,
    interrupt: Option<BorrowedFd<'a>>,
    pidfds: Vec<(ProcessId, OwnedFd)>,
}

/// Wakes whoever listens there. Whether anybody does.
pub(super) fn wake(listener: WakeAddress<'_>) -> bool {
    let rung = || -> std::io::Result<()> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to_addr(b"!", &address(listener)?).map(drop)
    };
    // Whose queue is full will wake anyway.
    rung().map_or_else(|error| error.kind() == std::io::ErrorKind::WouldBlock, |()| true)
}

fn address(listener: WakeAddress<'_>) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(match listener {
        WakeAddress::Waiter(proof) => format!("csalock/{proof}"),
        WakeAddress::Supervisor(proof) => format!("csalock/guardian/{proof}"),
        // An address has room for a hundred bytes.
        WakeAddress::OnBehalf(key) => {
            let hash = Sha256::digest(key);
            let hash = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect::<String>();
            format!("csalock/waits/{hash}")
        }
    })
}

impl<'a> LinuxWaitSet<'a> {
    pub(super) fn new(proof: &HandleHash, interrupt: Option<BorrowedFd<'a>>) -> LinuxWaitSet<'a> {
        LinuxWaitSet {
            bell: WakeSocket::new(WakeAddress::Waiter(proof)),
            asked: Vec::new(),
            interrupt,
            pidfds: Vec::new(),
        }
    }

    /// Begins to watch these processes and no others. `false`: one of them has already ended.
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
                // An old kernel, or no descriptors left: the bounded wait must do.
                Err(_) => continue,
            }
            // Only after this is the pidfd known to be that process's, and not its pid's next user's. A process that
            // /proc does not show has ended, which the pidfd tells, or is hidden.
            if matches!(proc_stat::read(process.pid), Ok(Some(stat)) if stat.start != process.start) {
                return false;
            }
        }
        true
    }

    fn drain(&self) {
        let _ = self.bell.as_ref().map(WakeSocket::was_woken);
    }

    /// Which of bell, interrupt, processes, questions and `elsewhere` have something to say within `at_most`.
    fn listen(&self, at_most: Duration, elsewhere: Option<BorrowedFd<'_>>) -> Result<[bool; 5]> {
        let bell = self.bell.as_ref().map(AsFd::as_fd);
        let processes = self.pidfds.iter().map(|(_, pidfd)| pidfd.as_fd());
        let concerns = bell.map(|fd| (0, fd)).into_iter();
        let concerns = concerns.chain(self.interrupt.map(|fd| (1, fd))).chain(processes.map(|fd| (2, fd)));
        let concerns = concerns.chain(self.asked.iter().map(|bell| (3, bell.as_fd())));
        let concerns = concerns.chain(elsewhere.map(|fd| (4, fd)));
        let (whose, mut polled): (Vec<usize>, Vec<PollFd<'_>>) =
            concerns.map(|(whose, fd)| (whose, PollFd::new(fd, PollFlags::POLLIN))).unzip();
        let mut heard = [false; 5];
        match ppoll(&mut polled, Some(TimeSpec::from_duration(at_most)), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => {
                return Err(Error::new(Exit::System, format!("cannot wait: {}", errno.desc()), "try again"));
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
        let [mut rung, interrupted, ended, asked, heard] = self.listen(at_most, elsewhere)?;
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
        if asked && !rung && !ended {
            self.asked.iter().for_each(|bell| {
                let _ = bell.was_woken();
            });
            return Ok(WakeReason::Asked);
        }
        self.drain();
        Ok(if rung || ended { WakeReason::LookAgain } else { WakeReason::TimeOver })
    }

    fn answer(&mut self, keys: &[Vec<u8>]) -> bool {
        self.asked = keys.iter().filter_map(|key| WakeSocket::new(WakeAddress::OnBehalf(key))).collect();
        self.asked.len() == keys.len()
    }
}
