//! The keeper: a process in the background that renews the leases by which somebody holds, where other hosts may share the
//! store and so cannot see that he lives.
//!
//! `lock` leaves one behind. It ends when the owner does, and says so in the record; or when nothing is held any more.
//!
//! `run-with-lock` has one as long as its command runs, also for a `--ttl` on this host's own store. So neither a guardian
//! that is stopped or killed nor a store that does not answer lets a second holder in while the command runs: the keeper
//! goes on without its guardian and says when the command has ended; the guardian, who never waits for the store while the
//! command runs, ends the command before the lease does, which both know by [`SharedDeadline`]; and where the guardian is not
//! there to do it, the keeper does. It starts another keeper should this one die.
//!
//! One thread renews, and may have to wait for the store; the other watches processes and clock, and never does.

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
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::host::{WakeAddress, WakeSocket, is_at_work};
use crate::lock::{EndReason, EndedGrant, Grant, HandleHash, Lease, Lifetime, ProcessId, Request, Response};
use crate::shared_deadline::SharedDeadline;
use crate::store::Scope;

/// So often it is looked at whether a guardian is at work, and a store is told again that did not answer.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Number of leases for which a keeper asks a store in vain that does not answer, after its lease is over.
const IN_VAIN: u32 = 4;

/// The status of a keeper that could not begin.
const EXIT_FAILED: u8 = 1;

/// What is kept, and for whom.
pub(super) struct KeeperConfig<'a> {
    pub(super) context: &'a Context,
    pub(super) targets: &'a LockSet,
    pub(super) proof: HandleHash,
    /// The end of all of them is the end of it.
    pub(super) owners: Vec<ProcessId>,
    /// Where others who must know it see when the lease ends.
    pub(super) shared_deadline: SharedDeadline,
    /// Whether the owners end before their lease does.
    pub(super) kills: bool,
    /// Whether each lock has a lease, also where its store is this host's alone.
    pub(super) timed: bool,
}

/// The keeper of a command, as its guardian has it.
pub(super) struct Keeper {
    hear: OwnedFd,
    tell: OwnedFd,
    pid: Cell<Option<Pid>>,
    /// It ended by itself: there is nothing to renew any more.
    done: Cell<bool>,
}

/// How it stands with an owner.
enum OwnerState {
    /// It is there, and this becomes readable when it ends.
    Here(OwnedFd),
    /// It has ended.
    Gone,
    /// We cannot see it now.
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

/// How it stands with one lock.
enum RenewResult {
    /// It is held by this lease, until then at least.
    Until(Lease, Duration),
    /// It is held, and no lease ends that.
    ForGood,
    /// It was given back.
    GivenBack,
    /// Somebody else may have it.
    Lost,
}

/// How it stands with all of them.
enum RenewAllResult {
    /// Some are held. When the first of their leases ends, if any of them does.
    Held(Option<Duration>),
    /// None is held any more: they were given back.
    GivenBack,
    /// None is held any more, and one was lost.
    Lost,
}

/// The lease by which we last saw a lock held, and when it ends.
type Known = Option<(Lease, Duration)>;

/// Leaves a keeper behind for whoever holds these grants, where only that can say that the owner died: on stores that other
/// hosts may share, unless the owner's life does not count.
pub(super) fn spawn_detached(keeping: &KeeperConfig<'_>, opened: &OpenLockSet<'_>, grants: &[Grant]) -> Result<()> {
    // Without an owner its end ends nothing.
    let has_lease = grants.iter().any(|grant| grant.lifetime.lease().is_some());
    if !opened.are_shared() || !has_lease || keeping.owners.is_empty() {
        return Ok(());
    }
    opened.start_leases(grants, keeping.shared_deadline);
    detach::spawn(c"csalock-keeper", Detach::Orphan, None, || keeping.run(None, None)).map(drop)
}

impl Keeper {
    /// One that is not there yet.
    pub(super) fn new() -> Result<Keeper> {
        let failed = |errno: nix::Error| Error::new(Exit::System, format!("cannot make a pipe: {}", errno.desc()), "");
        let (hear, tell) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).map_err(failed)?;
        Ok(Keeper { hear, tell, pid: Cell::new(None), done: Cell::new(false) })
    }

    /// Starts it, unless it is there or has done its work. Whether that is so now.
    pub(super) fn ensure_running(&self, keeping: &KeeperConfig<'_>) -> bool {
        if self.pid.get().is_none() && !self.done.get() {
            let supervisor = Pid::this();
            let work = || keeping.run(Some(supervisor), Some(&self.tell));
            // Without one the command is ended before its lease is.
            self.pid.set(detach::spawn(c"csalock-keeper", Detach::Child, Some(&self.tell), work).unwrap_or(None));
        }
        self.pid.get().is_some() || self.done.get()
    }

    /// Ends it.
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
    /// Renews until everything is over.
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

    /// Watches the owners until they have `ended`, and then says so.
    fn watch(&self, supervisor: Option<Pid>, poke: BorrowedFd<'_>, news: BorrowedFd<'_>, ended: &AtomicBool) {
        let mut owners: Vec<(&ProcessId, OwnerState)> =
            self.owners.iter().map(|owner| (owner, OwnerState::Not)).collect();
        let bell = WakeSocket::new(WakeAddress::Supervisor(&self.proof));
        if supervisor.is_some() {
            // The command may have renewed or given back before anybody could be rung.
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
            // Whom we cannot watch we look after.
            let look_again = (alive.len() < owners.len()).then(|| self.context.host.boottime() + POLL_INTERVAL);
            timer.set(look_again);
            let ends = self.shared_deadline.load().filter(|_| self.kills);
            if let Some(ends) = ends {
                let now = self.context.host.boottime();
                // How long it was when it was last begun, or when we first saw it.
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
        // Where the store is slow, whoever renews on and on is always faster than whoever wants to give back.
        ended.store(true, SeqCst);
        // A guardian that runs gives back itself, however long the store takes; then it ends us.
        while is_guarded() && supervisor.is_some_and(|guardian| is_at_work(guardian.as_raw())) {
            wait_for([], Some(POLL_INTERVAL));
        }
        self.record_owner_death();
    }

    /// Who cannot be seen is not dead: there may be no descriptors left, or no memory.
    fn look(&self, owner: &ProcessId) -> OwnerState {
        let Some(pid) = rustix::process::Pid::from_raw(owner.pid) else { return OwnerState::Gone };
        let pidfd = pidfd_open(pid, PidfdFlags::empty());
        // Only after this is it known to be that process's, and not its pid's next user's.
        match (pidfd, self.context.host.process(owner.pid)) {
            (Err(rustix::io::Errno::SRCH), _) => OwnerState::Gone,
            (Ok(pidfd), Ok(Some(found))) if found == *owner => OwnerState::Here(pidfd),
            (_, Ok(Some(found))) if found == *owner => OwnerState::Not,
            (_, Ok(_)) => OwnerState::Gone,
            (_, Err(_)) if rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH) => OwnerState::Gone,
            (_, Err(_)) => OwnerState::Not,
        }
    }

    /// Says that the owners have ended: then everybody sees it, and whoever waits gets the lock.
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

    /// Renews in good time, again and again. Returns when nothing is held any more, or the owners have `ended`.
    ///
    /// A keeper without a guardian also gives up when the store has not answered for long after the lease was over.
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

    /// Renews once what is due.
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
            // A server that stands still must not keep us from the others until the lease is over.
            engine.store().set_deadline(Some(now + self.context.lease() / 6));
            let ends = match self.keep(at, &target.name, engine, known)? {
                RenewResult::GivenBack => continue,
                RenewResult::ForGood => None,
                RenewResult::Until(lease, ends) => Some(known.insert((lease, ends)).1),
                RenewResult::Lost => Some(now),
            };
            // Whoever goes on without it needs nobody who looks on.
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

    /// When a lease ends that somebody else asked for. Whoever took the lock for us knows it better than a store that counts
    /// in seconds.
    fn expiry_of(&self, lease: &Lease, engine: &Engine) -> Result<Duration> {
        let now = self.context.host.boottime();
        self.shared_deadline.expiry_of(lease).map_or_else(|| Ok(now + engine.store().lease_ttl(lease)?), Ok)
    }

    /// What it means that the record has no grant of ours, while the owners live: it was lost, unless its end says that it was
    /// released. Of that the supervisor hears by us, if it can, so that the record need not keep it.
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

/// Makes what the keeper cannot do without, as soon as it can be had: there may be too many open files just now.
fn retry_until_ok<T, E>(make: impl Fn() -> std::result::Result<T, E>) -> T {
    loop {
        match make() {
            Ok(made) => return made,
            Err(_) => wait_for([], Some(POLL_INTERVAL)),
        }
    }
}

/// Whether there was anything to read.
fn drain(descriptor: BorrowedFd<'_>) -> bool {
    let mut buffer = [0; 64];
    std::iter::from_fn(|| read(descriptor, &mut buffer).ok().filter(|length| *length > 0)).count() > 0
}
