//! A waiter's ears on a real host.
//!
//! A waiter is woken by a datagram on an abstract unix(7) socket named after its proof: no file that could be left
//! over, no permission that could be missing, no limit of inotify instances, and only the one that was granted wakes.
//! Processes in other network namespaces cannot reach that socket and ring through the store ([`crate::store::Hearing`]).
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
use super::{Signs, Vigil, Woken, proc_stat};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lock::{Process, Proof};

/// So long we let a wrapper that saw its command end give the lock back in good order.
const LAST_WORDS: Duration = Duration::from_millis(4);

/// No queue of datagrams is longer.
const MOST_RINGS: usize = 1024;

/// Where somebody can be rung.
#[derive(Debug)]
pub struct Bell(UnixDatagram);

/// Who it is that listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listener<'a> {
    /// The waiter with this proof, until it is granted what it waits for.
    Waiter(&'a Proof),
    /// The guardian of the command that holds by this proof.
    Guardian(&'a Proof),
    /// Whoever waits on behalf of somebody: one of [`crate::lock::Waits::keys`].
    OnBehalf(&'a [u8]),
}

impl Bell {
    /// From now on, who rings is heard. `None` where that is not to be had: nobody relies on it.
    pub fn new(listener: Listener<'_>) -> Option<Bell> {
        let bell = address(listener).and_then(|address| UnixDatagram::bind_addr(&address)).ok()?;
        bell.set_nonblocking(true).ok().map(|()| Bell(bell))
    }

    /// Whether it rang since it was last asked.
    pub fn rang(&self) -> bool {
        let mut buffer = [0; 8];
        // Whoever rings faster than we listen does not keep us listening.
        std::iter::from_fn(|| self.0.recv(&mut buffer).ok()).take(MOST_RINGS).count() > 0
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub(super) struct Ears<'a> {
    bell: Option<Bell>,
    /// Those by which others ask what we wait for.
    asked: Vec<Bell>,
    interrupt: Option<BorrowedFd<'a>>,
    pidfds: Vec<(Process, OwnedFd)>,
}

/// Wakes whoever listens there. Whether anybody does.
pub(super) fn ring(listener: Listener<'_>) -> bool {
    let rung = || -> std::io::Result<()> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to_addr(b"!", &address(listener)?).map(drop)
    };
    // Whose queue is full will wake anyway.
    rung().map_or_else(|error| error.kind() == std::io::ErrorKind::WouldBlock, |()| true)
}

fn address(listener: Listener<'_>) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(match listener {
        Listener::Waiter(proof) => format!("csalock/{proof}"),
        Listener::Guardian(proof) => format!("csalock/guardian/{proof}"),
        // An address has room for a hundred bytes.
        Listener::OnBehalf(key) => {
            let hash = Sha256::digest(key);
            let hash = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect::<String>();
            format!("csalock/waits/{hash}")
        }
    })
}

impl<'a> Ears<'a> {
    pub(super) fn new(proof: &Proof, interrupt: Option<BorrowedFd<'a>>) -> Ears<'a> {
        Ears { bell: Bell::new(Listener::Waiter(proof)), asked: Vec::new(), interrupt, pidfds: Vec::new() }
    }

    /// Begins to watch these processes and no others. `false`: one of them has already ended.
    fn watch_processes(&mut self, processes: &[Process]) -> bool {
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
        let _ = self.bell.as_ref().map(Bell::rang);
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

impl Vigil for Ears<'_> {
    fn wait(&mut self, signs: &mut Signs<'_>, at_most: Duration) -> Result<Woken> {
        if !self.watch_processes(signs.processes) {
            return Ok(Woken::LookAgain);
        }
        let elsewhere = signs.hearing.as_ref().map(|hearing| hearing.descriptor());
        let [mut rung, interrupted, ended, asked, heard] = self.listen(at_most, elsewhere)?;
        if heard && signs.hearing.as_mut().is_some_and(|hearing| hearing.rang()) {
            *signs.hearing = None;
            rung = true;
        }
        if interrupted {
            return Ok(Woken::Interrupted);
        }
        if ended && !rung {
            let ended = std::mem::take(&mut self.pidfds);
            if ended.iter().any(|(process, _)| is_released_by(process, signs.supervisors)) {
                let elsewhere = signs.hearing.as_ref().map(|hearing| hearing.descriptor());
                self.listen(LAST_WORDS.min(at_most), elsewhere)?;
            }
        }
        if asked && !rung && !ended {
            self.asked.iter().for_each(|bell| {
                let _ = bell.rang();
            });
            return Ok(Woken::Asked);
        }
        self.drain();
        Ok(if rung || ended { Woken::LookAgain } else { Woken::TimeOver })
    }

    fn answer(&mut self, keys: &[Vec<u8>]) -> bool {
        self.asked = keys.iter().filter_map(|key| Bell::new(Listener::OnBehalf(key))).collect();
        self.asked.len() == keys.len()
    }
}
