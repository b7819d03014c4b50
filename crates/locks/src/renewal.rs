//! The threads of a guard: one renews its leases, one tells the program of a loss.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::error::{Error, ErrorKind, Result};
use engine::Engine;
use engine::lease_schedule::{LeaseSchedule, POLL_INTERVAL, renewal_pause, retry_pause};
use host::{WakeAddress, WakeSocket};
use lock::{Grant, HandleHash, Lifetime};
use store::{Scope, guarded};

/// Time that a program has to stop, of the time that `csalock run` gives a command between SIGTERM and SIGKILL.
const TO_STOP: Duration = Duration::from_secs(10);

/// The grants of a guard. The threads share it, and end when the guard does.
pub(crate) struct Held {
    pub(crate) engine: Arc<Engine>,
    pub(crate) names: Vec<Vec<u8>>,
    pub(crate) proof: HandleHash,
    /// `None` without a lease.
    lease: Mutex<Option<LeaseSchedule>>,
    /// A thread renews the lease. One with a time limit is only looked at.
    pub(crate) renews: bool,
    is_lost: AtomicBool,
    is_watched: AtomicBool,
    wanted: Mutex<Wanted>,
    is_wanted: Condvar,
}

/// The next task of the threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Work,
    /// Another process has changed the lock.
    RenewNow,
    End,
}

impl Held {
    pub(crate) fn new(engine: Arc<Engine>, names: Vec<Vec<u8>>, proof: HandleHash, grants: &[Grant]) -> Held {
        let lease = Mutex::new(schedule(&engine, grants));
        let renews = grants.iter().any(|grant| matches!(grant.lifetime, Lifetime::Keepalive(_)));
        let (is_lost, is_watched) = (AtomicBool::new(false), AtomicBool::new(false));
        Held {
            engine,
            names,
            proof,
            lease,
            renews,
            is_lost,
            is_watched,
            wanted: Mutex::new(Wanted::Work),
            is_wanted: Condvar::new(),
        }
    }

    /// Ends the threads, and tells if the locks are known to be lost.
    pub(crate) fn end(&self) -> bool {
        self.want(Wanted::End);
        if self.is_watched.load(SeqCst) {
            self.engine.host().wake(WakeAddress::Supervisor(&self.proof));
        }
        self.is_lost.load(SeqCst)
    }

    pub(crate) fn is_held(&self) -> lock::Result<bool> {
        let is_over = |lease: &LeaseSchedule| self.engine.host().boottime() >= lease.ends;
        if self.is_lost.load(SeqCst) || guarded(&self.lease).as_ref().is_some_and(is_over) {
            return Ok(false);
        }
        for name in &self.names {
            let status = self.engine.inspect(name)?;
            let ours = status.record.holders.iter().position(|grant| grant.proof == self.proof);
            if !ours.is_some_and(|at| status.holders[at].holds()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Starts a thread that renews the grants, or looks at them, until one of them is lost or the guard ends.
    pub(crate) fn keep(held: &Arc<Held>) -> Result<()> {
        let held = held.clone();
        let lease = held.engine.lease();
        spawn(move || {
            let mut pause = renewal_pause(lease);
            while !held.is_lost.load(SeqCst) && held.wait(pause) != Wanted::End {
                pause = if held.keep_once() { renewal_pause(lease) } else { retry_pause(lease) };
                held.engine.store().before_wait(held.engine.call(), true);
            }
        })
    }

    /// Returns true if the store has answered.
    fn keep_once(&self) -> bool {
        if !self.renews {
            let is_held = self.is_held();
            if is_held == Ok(false) {
                self.lose();
            }
            return is_held.is_ok();
        }
        let answers: Vec<_> = self.names.iter().map(|name| self.engine.renew(name, self.proof)).collect();
        if answers.iter().any(|answer| matches!(answer, Ok(Err(_)))) {
            self.lose();
        }
        let renewed: lock::Result<Vec<_>> = answers.into_iter().collect();
        let Ok(renewed) = renewed else { return false };
        let grants: Vec<Grant> = renewed.into_iter().flatten().collect();
        *guarded(&self.lease) = schedule(&self.engine, &grants);
        true
    }

    fn lose(&self) {
        self.is_lost.store(true, SeqCst);
        self.engine.host().wake(WakeAddress::Supervisor(&self.proof));
    }

    /// Starts a thread that calls `told` when the locks are lost, or are about to be. It must be in time although a
    /// store does not answer, so it calls none that other hosts share.
    pub(crate) fn watch(held: &Arc<Held>, told: impl FnOnce() + Send + 'static) -> Result<()> {
        let held = held.clone();
        let is_shared = held.engine.store().scope() == Scope::Shared;
        if !held.is_watched.swap(true, SeqCst) && is_shared && !held.renews {
            Held::keep(&held)?;
        }
        spawn(move || {
            // Another process that breaks the lock wakes it. Without a socket the thread looks each second.
            let socket = WakeSocket::new(WakeAddress::Supervisor(&held.proof));
            while *guarded(&held.wanted) != Wanted::End && !held.is_lost.load(SeqCst) {
                if held.is_due() || !is_shared && held.is_held() == Ok(false) {
                    held.is_lost.store(true, SeqCst);
                    break;
                }
                match &socket {
                    Some(socket) => {
                        let mut polled = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
                        let _ = ppoll(&mut polled, Some(TimeSpec::from_duration(held.next_look())), None);
                    }
                    None => _ = held.wait(POLL_INTERVAL),
                }
                if socket.as_ref().is_some_and(WakeSocket::was_woken) {
                    held.want(Wanted::RenewNow);
                }
            }
            if *guarded(&held.wanted) != Wanted::End {
                told();
            }
        })
    }

    /// When `csalock run` would end its command.
    fn due(&self) -> Option<Duration> {
        Some((*guarded(&self.lease))?.supervisor(TO_STOP).term)
    }

    fn is_due(&self) -> bool {
        self.due().is_some_and(|due| self.engine.host().boottime() >= due)
    }

    fn next_look(&self) -> Duration {
        let left = self.due().map(|due| due.saturating_sub(self.engine.host().boottime()));
        left.unwrap_or(Duration::MAX).min(renewal_pause(self.engine.lease()))
    }

    /// Pauses while there is nothing to do.
    fn wait(&self, pause: Duration) -> Wanted {
        let wanted = self.is_wanted.wait_timeout_while(guarded(&self.wanted), pause, |it| *it == Wanted::Work);
        let mut wanted = wanted.unwrap_or_else(PoisonError::into_inner).0;
        if *wanted == Wanted::RenewNow { std::mem::replace(&mut wanted, Wanted::Work) } else { *wanted }
    }

    fn want(&self, wanted: Wanted) {
        let mut now = guarded(&self.wanted);
        if *now != Wanted::End {
            *now = wanted;
        }
        self.is_wanted.notify_all();
    }
}

/// Of the lease that ends first.
fn schedule(engine: &Engine, grants: &[Grant]) -> Option<LeaseSchedule> {
    let ends = grants.iter().filter_map(|grant| engine.ends(&grant.lifetime)).min()?;
    Some(LeaseSchedule { ends, span: ends.saturating_sub(engine.host().boottime()) })
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<()> {
    let failed = |error| Error::new(ErrorKind::System, format!("cannot start a thread: {error}"));
    std::thread::Builder::new().spawn(work).map(drop).map_err(failed)
}
