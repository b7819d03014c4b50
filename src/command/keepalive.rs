//! The keeper: a background process that renews leases. Shared stores need it: other hosts cannot see that an owner
//! lives.
//!
//! `lock` leaves a keeper behind. The keeper records the owner's end and ends then, or when no lock is held any more.
//! `run-with-lock` has a keeper while its command runs, even for a `--ttl` on this host's own store. So neither a
//! stopped or killed supervisor nor a silent store lets a second holder in while the command runs. The keeper goes on
//! without its supervisor and records when the command has ended. The supervisor never waits for the store while the
//! command runs, and ends the command before the lease ends. Both know the end of the lease by [`SharedDeadline`]. If
//! the supervisor cannot end the command, the keeper does. If the keeper dies, the supervisor starts another one.
//!
//! The first thread renews and may wait for the store. The second thread watches processes and clock and never waits.

mod changes;

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getppid, pipe2, read, write};
use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};

use self::changes::Changes;
use super::context::{Context, LockRef};
use super::lock_set::{LockSet, OpenLockSet};
use crate::boottime_timer::BoottimeTimer;
use crate::child::EventSource;
use crate::detach::{self, Detach};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::host::{WakeAddress, WakeSocket, is_at_work};
use crate::lock::{EndReason, EndedGrant, Grant, HandleHash, Lease, Lifetime, ProcessId, Request, Response};
use crate::shared_deadline::SharedDeadline;
use crate::store::Scope;

/// Interval between checks that the supervisor is at work, and between calls to a store that did not answer.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Number of lease lengths for which a keeper still calls a silent store after its lease is over.
const IN_VAIN: u32 = 4;

/// Exit status of a keeper that could not start.
const EXIT_FAILED: u8 = 1;

/// The locks that a keeper renews, and the owners that it watches.
pub(super) struct KeeperConfig<'a> {
    pub(super) context: &'a Context,
    pub(super) targets: &'a LockSet,
    pub(super) proof: HandleHash,
    /// The owners; the keeper's work ends when all of them have ended.
    pub(super) owners: Vec<ProcessId>,
    /// Publishes the end of the lease to the other processes that must know it.
    pub(super) shared_deadline: SharedDeadline,
    /// True if the keeper kills the owners before their lease ends.
    pub(super) kills: bool,
    /// True if each lock has a lease, even if its store belongs to this host alone.
    pub(super) timed: bool,
}

/// The keeper of a command, as its supervisor sees it.
pub(super) struct Keeper {
    hear: OwnedFd,
    tell: OwnedFd,
    pid: Cell<Option<Pid>>,
    /// True if the keeper ended by itself because no lease is left to renew.
    done: Cell<bool>,
}

/// State of an owner, as the keeper sees it.
enum OwnerState {
    /// The owner lives; the pidfd becomes readable when it ends.
    Here(OwnedFd),
    /// The owner has ended.
    Gone,
    /// The keeper cannot observe the owner now.
    Not,
}

impl OwnerState {
    fn pidfd(&self) -> Option<&OwnedFd> {
        match self {
            OwnerState::Here(pidfd) => Some(pidfd),
            OwnerState::Gone | OwnerState::Not => None,
        }
    }
}

/// Result of the renewal of one lock.
enum RenewResult {
    /// This lease holds the lock, at least until this time on CLOCK_BOOTTIME.
    Until(Lease, Duration),
    /// The lock is held, and no lease limits it.
    ForGood,
    /// The lock was released.
    GivenBack,
    /// The lock was lost; another process may hold it.
    Lost,
}

/// Result of the renewal of all locks.
enum RenewAllResult {
    /// Some locks are held. The time is the end of the first of their leases; `None` means that they have no lease.
    Held(Option<Duration>),
    /// No lock is held any more; all of them were released.
    GivenBack,
    /// No lock is held any more, and a lock was lost.
    Lost,
}

/// The lease that held a lock when it was last read, and the end of the lease on CLOCK_BOOTTIME.
type Known = Option<(Lease, Duration)>;

/// Starts a keeper for the holder of these grants if only a keeper can record that the owner died. Stores that other
/// hosts may share need it, unless the owner's life does not count.
pub(super) fn spawn_detached(keeping: &KeeperConfig<'_>, opened: &OpenLockSet<'_>, grants: &[Grant]) -> Result<()> {
    // Without an owner, no owner's death can end the grants.
    let has_lease = grants.iter().any(|grant| grant.lifetime.lease().is_some());
    if !opened.are_shared() || !has_lease || keeping.owners.is_empty() {
        return Ok(());
    }
    opened.start_leases(grants, keeping.shared_deadline);
    detach::spawn(c"csalock-keeper", Detach::Orphan, None, || keeping.run(None, None)).map(drop)
}

impl Keeper {
    /// Returns a keeper that has not started yet.
    pub(super) fn new() -> Result<Keeper> {
        let failed =
            |errno: nix::Error| Error::new(ErrorKind::System, format!("cannot make a pipe: {}", errno.desc()), "");
        let (hear, tell) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).map_err(failed)?;
        Ok(Keeper { hear, tell, pid: Cell::new(None), done: Cell::new(false) })
    }

    /// Starts the keeper unless it runs or has finished its work. Returns true if it runs or has finished.
    pub(super) fn ensure_running(&self, keeping: &KeeperConfig<'_>) -> bool {
        if self.pid.get().is_none() && !self.done.get() {
            let supervisor = Pid::this();
            let work = || keeping.run(Some(supervisor), Some(&self.tell));
            // If the keeper does not start, the supervisor ends the command before the lease ends.
            self.pid.set(detach::spawn(c"csalock-keeper", Detach::Child, Some(&self.tell), work).unwrap_or(None));
        }
        self.pid.get().is_some() || self.done.get()
    }

    /// Kills and reaps the keeper.
    pub(super) fn stop(&self) {
        if let Some(pid) = self.pid.take() {
            let _ = kill(pid, Signal::SIGKILL);
            let _ = waitpid(pid, None);
        }
    }
}

impl EventSource for Keeper {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.hear.as_fd())
    }

    fn drain(&self) -> bool {
        let came = drain(self.hear.as_fd());
        let status = self.pid.get().map(|pid| waitpid(pid, Some(WaitPidFlag::WNOHANG)));
        let ended = status.is_some_and(|status| status != Ok(WaitStatus::StillAlive));
        if ended {
            self.pid.set(None);
            self.done.set(matches!(status, Some(Ok(WaitStatus::Exited(_, 0)))));
        }
        came || ended
    }

    fn process(&self) -> Option<Pid> {
        self.pid.get()
    }
}

impl KeeperConfig<'_> {
    /// Renews the leases until no lock is held any more or the owners have ended.
    fn run(&self, supervisor: Option<Pid>, tell: Option<&OwnedFd>) {
        let pipe = || pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK);
        let ((hear, poke), (news, changed)) = (retry_until_ok(pipe), retry_until_ok(pipe));
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let renewing = || {
                let told = || {
                    for tell in [Some(&changed), tell].into_iter().flatten() {
                        let _ = write(tell, b"!");
                    }
                };
                self.renew_loop(supervisor.is_some(), hear.as_fd(), &told, &ended);
                if !ended.load(SeqCst) {
                    detach::leave();
                }
            };
            if std::thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, renewing).is_ok() {
                self.watch(supervisor, poke.as_fd(), news.as_fd(), &ended);
                detach::leave();
            }
            detach::exit_now(EXIT_FAILED)
        })
    }

    /// Watches the owners until they have `ended`, and then records their death.
    fn watch(&self, supervisor: Option<Pid>, poke: BorrowedFd<'_>, news: BorrowedFd<'_>, ended: &AtomicBool) {
        let mut owners: Vec<(&ProcessId, OwnerState)> =
            self.owners.iter().map(|owner| (owner, OwnerState::Not)).collect();
        let bell = WakeSocket::new(WakeAddress::Supervisor(&self.proof));
        if supervisor.is_some() {
            // The command may have renewed or released a lock before the wake-up socket existed.
            let _ = write(poke, b"!");
        }
        let timer = retry_until_ok(BoottimeTimer::new);
        let is_guarded = || supervisor.is_some_and(|guardian| getppid() == guardian);
        let mut terminated = false;
        let mut lease: Option<(Duration, Duration)> = None;
        loop {
            for (owner, seen) in owners.iter_mut().filter(|(_, seen)| matches!(seen, OwnerState::Not)) {
                *seen = self.look(owner);
            }
            owners.retain(|(_, seen)| match seen {
                OwnerState::Here(pidfd) => !is_readable(pidfd.as_fd()),
                OwnerState::Not => true,
                OwnerState::Gone => false,
            });
            if owners.is_empty() {
                break;
            }
            let alive: Vec<&OwnedFd> = owners.iter().filter_map(|(_, seen)| seen.pidfd()).collect();
            // The keeper polls the owners that it cannot watch.
            let look_again = (alive.len() < owners.len()).then(|| self.context.host.boottime() + POLL_INTERVAL);
            timer.set(look_again);
            let ends = self.shared_deadline.load().filter(|_| self.kills);
            if let Some(ends) = ends {
                let now = self.context.host.boottime();
                // The span is the lease's length at its last start, or the time that was left at the first reading.
                let (_, span) = *lease.insert(match lease {
                    Some(known) if known.0 == ends => known,
                    _ => (ends, ends.saturating_sub(now)),
                });
                let (term, end) = (ends.saturating_sub(span * 3 / 10), ends.saturating_sub(span / 20));
                if now >= end {
                    self.shared_deadline.set_killed();
                    alive.iter().for_each(|pidfd| signal(pidfd, rustix::process::Signal::KILL));
                } else if now >= term && !is_guarded() && !std::mem::replace(&mut terminated, true) {
                    alive.iter().for_each(|pidfd| signal(pidfd, rustix::process::Signal::TERM));
                    alive.iter().for_each(|pidfd| signal(pidfd, rustix::process::Signal::CONT));
                }
                let next = [term, end].into_iter().find(|at| *at > now).unwrap_or(now + POLL_INTERVAL);
                timer.set(Some(look_again.map_or(next, |look_again| look_again.min(next))));
            }
            let bell_fd = bell.as_ref().map(AsFd::as_fd);
            wait_for(alive.iter().map(|pidfd| pidfd.as_fd()).chain([news, timer.as_fd()]).chain(bell_fd), None);
            drain(news);
            if bell.as_ref().is_some_and(WakeSocket::was_woken) {
                let _ = write(poke, b"!");
            }
        }
        // The renewal loop must stop first: on a slow store it would starve a release.
        ended.store(true, SeqCst);
        // A running supervisor releases the locks itself, however long the store takes; then it ends the keeper.
        while is_guarded() && supervisor.is_some_and(|guardian| is_at_work(guardian.as_raw())) {
            wait_for([], Some(POLL_INTERVAL));
        }
        self.record_owner_death();
    }

    /// Returns an owner's state. An owner that cannot be observed is not dead: descriptors or memory may be exhausted.
    fn look(&self, owner: &ProcessId) -> OwnerState {
        let Some(pid) = rustix::process::Pid::from_raw(owner.pid) else { return OwnerState::Gone };
        let pidfd = pidfd_open(pid, PidfdFlags::empty());
        // Only this check after the open proves that the pidfd is the owner's and not that of the pid's next user.
        match (pidfd, self.context.host.process(owner.pid)) {
            (Err(rustix::io::Errno::SRCH), _) => OwnerState::Gone,
            (Ok(pidfd), Ok(Some(found))) if found == *owner => OwnerState::Here(pidfd),
            (_, Ok(Some(found))) if found == *owner => OwnerState::Not,
            (_, Ok(_)) => OwnerState::Gone,
            (_, Err(_)) if rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH) => OwnerState::Gone,
            (_, Err(_)) => OwnerState::Not,
        }
    }

    /// Records that the owners have ended, so that every process sees it and the next waiter is granted the lock.
    fn record_owner_death(&self) {
        let mourned = |(target, engine): (&LockRef, &Engine)| {
            engine.apply(&target.name, &Request::OwnerDied(engine.credentials(Some(self.proof), Vec::new())?)).map(drop)
        };
        while self.shared_deadline.load().is_some_and(|ends| self.context.host.boottime() < ends) {
            let opened = self.targets.open(self.context);
            let shared = |(_, engine): &(&LockRef, &Engine)| engine.store().scope() == Scope::Shared;
            if opened.is_ok_and(|opened| opened.each().filter(shared).map(mourned).filter(Result::is_err).count() == 0)
            {
                self.shared_deadline.store(None);
                break;
            }
            wait_for([], Some(POLL_INTERVAL));
        }
    }

    /// Renews each lease in good time. Returns when no lock is held any more, or the owners have `ended`.
    ///
    /// A keeper without a supervisor gives up, too, if the store stays silent for long after the lease is over.
    fn renew_loop(&self, is_guarded: bool, poke: BorrowedFd<'_>, told: &dyn Fn(), ended: &AtomicBool) {
        let timer = retry_until_ok(BoottimeTimer::new);
        let span = self.context.lease();
        let mut opened: Option<OpenLockSet<'_>> = None;
        let mut known: Vec<Known> = vec![None; self.targets.all.len()];
        let mut changes = Changes::new(self.context.host.boottime());
        let mut next = self.shared_deadline.load().map_or(Duration::ZERO, |ends| ends.saturating_sub(span * 2 / 3));
        loop {
            timer.set(Some(next.min(changes.due())));
            wait_for([poke, timer.as_fd()].into_iter().chain(changes.descriptors()), None);
            drain(poke);
            changes.hear();
            if ended.load(SeqCst) {
                return;
            }
            let now = self.context.host.boottime();
            let (ends, is_held) = match self.renew(&mut opened, &mut known) {
                Ok(RenewAllResult::Held(ends)) => (ends, true),
                Ok(RenewAllResult::GivenBack) => (None, false),
                Ok(RenewAllResult::Lost) => (Some(now), false),
                Err(_) => {
                    opened = None;
                    let now = self.context.host.boottime();
                    if !is_guarded && self.shared_deadline.load().is_some_and(|ends| now > ends + span * IN_VAIN) {
                        return;
                    }
                    next = now + span / 30;
                    changes.postpone(next);
                    continue;
                }
            };
            self.shared_deadline.store(ends);
            told();
            if !is_held {
                return;
            }
            let left = ends.map_or(span, |ends| ends.saturating_sub(now)).min(span);
            next = now + (left / 3).max(Duration::from_millis(10));
            if opened.as_ref().is_some_and(|opened| changes.listen(opened, now)) {
                next = now;
            }
        }
    }

    /// Renews once each lease that is due.
    fn renew<'a>(&'a self, opened: &mut Option<OpenLockSet<'a>>, known: &mut [Known]) -> Result<RenewAllResult> {
        let opened = match opened {
            Some(opened) => opened,
            none => none.insert(self.targets.open(self.context)?),
        };
        let (mut held, mut lost, mut first): (bool, bool, Option<Duration>) = (false, false, None);
        let has_lease = |(_, ((_, engine), _)): &(usize, ((&LockRef, &Engine), &mut Known))| {
            self.timed || engine.store().scope() == Scope::Shared
        };
        for (at, ((target, engine), known)) in opened.each().zip(known).enumerate().filter(has_lease) {
            let now = self.context.host.boottime();
            // A server that hangs must not keep us from the other stores until the lease is over.
            engine.store().set_deadline(Some(now + self.context.lease() / 6));
            let ends = match self.keep(at, &target.name, engine, known)? {
                RenewResult::GivenBack => continue,
                RenewResult::ForGood => None,
                RenewResult::Until(lease, ends) => Some(known.insert((lease, ends)).1),
                RenewResult::Lost => Some(now),
            };
            // A command that goes on without the lock needs no keeper.
            if !self.kills && ends.is_some_and(|ends| ends <= now) {
                lost = true;
                continue;
            }
            held = true;
            first = ends.map(|ends| first.map_or(ends, |first| first.min(ends))).or(first);
        }
        Ok(match (held, lost) {
            (true, _) => RenewAllResult::Held(first),
            (false, true) => RenewAllResult::Lost,
            (false, false) => RenewAllResult::GivenBack,
        })
    }

    fn keep(&self, at: usize, name: &[u8], engine: &Engine, known: &Known) -> Result<RenewResult> {
        if self.shared_deadline.is_released(at) {
            return Ok(RenewResult::GivenBack);
        }
        let now = self.context.host.boottime();
        let span = self.context.lease();
        let mine = |grant: &Grant| grant.proof == self.proof;
        let record = engine.inspect(name)?.record;
        match record.holders.into_iter().find(mine).map(|grant| grant.lifetime) {
            Some(Lifetime::Keepalive(lease)) => {
                let ends = match known {
                    Some((known, ends)) => Some(*ends).filter(|_| *known == lease),
                    None => self.shared_deadline.load(),
                };
                if let Some(ends) = ends.filter(|ends| ends.saturating_sub(now) > span * 2 / 3) {
                    return Ok(RenewResult::Until(lease, ends));
                }
                let lifetime = engine.start(&Lifetime::KeepalivePending(span.as_millis() as u64))?;
                match engine
                    .apply(name, &Request::Renew(engine.credentials(Some(self.proof), Vec::new())?, lifetime))?
                {
                    Response::Renewed(grant) => Ok(match (grant.lifetime.lease(), engine.ends(&grant.lifetime)) {
                        (Some(lease), Some(ends)) => RenewResult::Until(lease.clone(), ends),
                        _ => RenewResult::ForGood,
                    }),
                    Response::NotHeld(ending) | Response::NotOwner(_, ending) => self.ended(at, name, engine, ending),
                    _ => Ok(RenewResult::Lost),
                }
            }
            Some(Lifetime::ExpiresAt(lease)) => {
                let ends = match known {
                    Some((known, ends)) if *known == lease => *ends,
                    _ => self.expiry_of(&lease, engine)?,
                };
                Ok(RenewResult::Until(lease, ends))
            }
            Some(_) => Ok(RenewResult::ForGood),
            None => self.ended(at, name, engine, record.ended_grants.into_iter().find(|ending| mine(&ending.grant))),
        }
    }

    /// Returns when a lease that another process requested ends, on CLOCK_BOOTTIME. The process that acquired the lock
    /// for us knows the time better than a store that counts in seconds.
    fn expiry_of(&self, lease: &Lease, engine: &Engine) -> Result<Duration> {
        let now = self.context.host.boottime();
        self.shared_deadline.expiry_of(lease).map_or_else(|| Ok(now + engine.store().lease_ttl(lease)?), Ok)
    }

    /// Returns what it means that the record lacks our grant while the owners live: it was lost, unless its end is a
    /// release. The keeper tells the supervisor of a release if it can, so that the record need not keep it.
    fn ended(&self, at: usize, name: &[u8], engine: &Engine, ending: Option<EndedGrant>) -> Result<RenewResult> {
        let Some(ending) = ending.filter(|ending| ending.reason == EndReason::Released) else {
            return Ok(RenewResult::Lost);
        };
        if ending.is_owed() && self.shared_deadline.release(at) {
            engine.apply(name, &Request::Release(engine.supervisor(self.proof)?))?;
        }
        Ok(RenewResult::GivenBack)
    }
}

fn signal(pidfd: &OwnedFd, signal: rustix::process::Signal) {
    let _ = pidfd_send_signal(pidfd, signal);
}

fn is_readable(descriptor: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::new(descriptor, PollFlags::POLLIN)], PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

fn wait_for<'a>(descriptors: impl IntoIterator<Item = BorrowedFd<'a>>, at_most: Option<Duration>) {
    let mut polled: Vec<PollFd<'_>> = descriptors.into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    let at_most = at_most.map_or(PollTimeout::NONE, |span| PollTimeout::try_from(span).unwrap_or(PollTimeout::MAX));
    let _ = poll(&mut polled, at_most);
}

/// Retries `make` until it succeeds. The keeper cannot work without the result, and descriptors may be exhausted now.
fn retry_until_ok<T, E>(make: impl Fn() -> std::result::Result<T, E>) -> T {
    loop {
        match make() {
            Ok(made) => return made,
            Err(_) => wait_for([], Some(POLL_INTERVAL)),
        }
    }
}

/// Reads and discards all pending bytes. Returns true if there were any.
fn drain(descriptor: BorrowedFd<'_>) -> bool {
    let mut buffer = [0; 64];
    std::iter::from_fn(|| read(descriptor, &mut buffer).ok().filter(|length| *length > 0)).count() > 0
}
