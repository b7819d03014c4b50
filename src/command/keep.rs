//! The keeper: a process in the background that renews the leases by which somebody holds, where other hosts may share the
//! store and so cannot see that he lives.
//!
//! `lock` leaves one behind. It ends when the owner does, and says so in the record; or when nothing is held any more.
//!
//! `run-with-lock` has one as long as its command runs, also for a `--ttl` on this host's own store. So neither a guardian
//! that is stopped or killed nor a store that does not answer lets a second holder in while the command runs: the keeper
//! goes on without its guardian and says when the command has ended; the guardian, who never waits for the store while the
//! command runs, ends the command before the lease does, which both know by [`LeaseEnd`]; and where the guardian is not
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
use super::targets::{Opened, Targets};
use super::world::{Target, World};
use crate::background::{self, Parent};
use crate::boot_timer::BootTimer;
use crate::child::News;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::host::{Bell, Listener, is_at_work};
use crate::lease_end::LeaseEnd;
use crate::lock::{Ask, Ended, Ending, Grant, Lease, Outcome, Process, Proof, Tenure};
use crate::store::Reach;

/// So often it is looked at whether a guardian is at work, and a store is told again that did not answer.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Number of leases for which a keeper asks a store in vain that does not answer, after its lease is over.
const IN_VAIN: u32 = 4;

/// The status of a keeper that could not begin.
const UNDONE: u8 = 1;

/// What is kept, and for whom.
pub(super) struct Keeping<'a> {
    pub(super) world: &'a World,
    pub(super) targets: &'a Targets,
    pub(super) proof: Proof,
    /// The end of all of them is the end of it.
    pub(super) owners: Vec<Process>,
    /// Where others who must know it see when the lease ends.
    pub(super) lease_end: LeaseEnd,
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
enum Seen {
    /// It is there, and this becomes readable when it ends.
    Here(OwnedFd),
    /// It has ended.
    Gone,
    /// We cannot see it now.
    Not,
}

impl Seen {
    fn pidfd(&self) -> Option<&OwnedFd> {
        match self {
            Seen::Here(pidfd) => Some(pidfd),
            Seen::Gone | Seen::Not => None,
        }
    }
}

/// How it stands with one lock.
enum Kept {
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
enum AllKept {
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
pub(super) fn leave_behind(keeping: &Keeping<'_>, opened: &Opened<'_>, grants: &[Grant]) -> Result<()> {
    // Without an owner its end ends nothing.
    let has_lease = grants.iter().any(|grant| grant.tenure.lease().is_some());
    if !opened.are_shared() || !has_lease || keeping.owners.is_empty() {
        return Ok(());
    }
    opened.begin_leases(grants, keeping.lease_end);
    background::spawn(c"csalock-keeper", Parent::Nobody, None, || keeping.run(None, None)).map(drop)
}

impl Keeper {
    /// One that is not there yet.
    pub(super) fn new() -> Result<Keeper> {
        let failed = |errno: nix::Error| Error::new(Exit::System, format!("cannot make a pipe: {}", errno.desc()), "");
        let (hear, tell) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).map_err(failed)?;
        Ok(Keeper { hear, tell, pid: Cell::new(None), done: Cell::new(false) })
    }

    /// Starts it, unless it is there or has done its work. Whether that is so now.
    pub(super) fn be_there(&self, keeping: &Keeping<'_>) -> bool {
        if self.pid.get().is_none() && !self.done.get() {
            let guardian = Pid::this();
            let work = || keeping.run(Some(guardian), Some(&self.tell));
            // Without one the command is ended before its lease is.
            self.pid.set(background::spawn(c"csalock-keeper", Parent::Us, Some(&self.tell), work).unwrap_or(None));
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

impl News for Keeper {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.hear.as_fd())
    }

    fn came(&self) -> bool {
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

impl Keeping<'_> {
    /// Renews until everything is over.
    fn run(&self, guardian: Option<Pid>, tell: Option<&OwnedFd>) {
        let pipe = || pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK);
        let ((hear, poke), (news, changed)) = (insist(pipe), insist(pipe));
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let renewing = || {
                let told = || {
                    for tell in [Some(&changed), tell].into_iter().flatten() {
                        let _ = write(tell, b"!");
                    }
                };
                self.renew_on_and_on(guardian.is_some(), hear.as_fd(), &told, &ended);
                if !ended.load(SeqCst) {
                    background::leave();
                }
            };
            if std::thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, renewing).is_ok() {
                self.watch(guardian, poke.as_fd(), news.as_fd(), &ended);
                background::leave();
            }
            background::leave_with(UNDONE)
        })
    }

    /// Watches the owners until they have `ended`, and then says so.
    fn watch(&self, guardian: Option<Pid>, poke: BorrowedFd<'_>, news: BorrowedFd<'_>, ended: &AtomicBool) {
        let mut owners: Vec<(&Process, Seen)> = self.owners.iter().map(|owner| (owner, Seen::Not)).collect();
        let bell = Bell::new(Listener::Guardian(&self.proof));
        if guardian.is_some() {
            // The command may have renewed or given back before anybody could be rung.
            let _ = write(poke, b"!");
        }
        let timer = insist(BootTimer::new);
        let is_guarded = || guardian.is_some_and(|guardian| getppid() == guardian);
        let mut terminated = false;
        let mut lease: Option<(Duration, Duration)> = None;
        loop {
            for (owner, seen) in owners.iter_mut().filter(|(_, seen)| matches!(seen, Seen::Not)) {
                *seen = self.look(owner);
            }
            owners.retain(|(_, seen)| match seen {
                Seen::Here(pidfd) => !is_readable(pidfd.as_fd()),
                Seen::Not => true,
                Seen::Gone => false,
            });
            if owners.is_empty() {
                break;
            }
            let alive: Vec<&OwnedFd> = owners.iter().filter_map(|(_, seen)| seen.pidfd()).collect();
            // Whom we cannot watch we look after.
            let look_again = (alive.len() < owners.len()).then(|| self.world.host.boottime() + LAST_WORDS);
            timer.set(look_again);
            let ends = self.lease_end.get().filter(|_| self.kills);
            if let Some(ends) = ends {
                let now = self.world.host.boottime();
                // How long it was when it was last begun, or when we first saw it.
                let (_, span) = *lease.insert(match lease {
                    Some(known) if known.0 == ends => known,
                    _ => (ends, ends.saturating_sub(now)),
                });
                let (term, end) = (ends.saturating_sub(span * 3 / 10), ends.saturating_sub(span / 20));
                if now >= end {
                    self.lease_end.kills();
                    alive.iter().for_each(|pidfd| signal(pidfd, rustix::process::Signal::KILL));
                } else if now >= term && !is_guarded() && !std::mem::replace(&mut terminated, true) {
                    alive.iter().for_each(|pidfd| signal(pidfd, rustix::process::Signal::TERM));
                    alive.iter().for_each(|pidfd| signal(pidfd, rustix::process::Signal::CONT));
                }
                let next = [term, end].into_iter().find(|at| *at > now).unwrap_or(now + LAST_WORDS);
                timer.set(Some(look_again.map_or(next, |look_again| look_again.min(next))));
            }
            let bell_fd = bell.as_ref().map(AsFd::as_fd);
            wait_for(alive.iter().map(|pidfd| pidfd.as_fd()).chain([news, timer.as_fd()]).chain(bell_fd), None);
            drain(news);
            if bell.as_ref().is_some_and(Bell::rang) {
                let _ = write(poke, b"!");
            }
        }
        // Where the store is slow, whoever renews on and on is always faster than whoever wants to give back.
        ended.store(true, SeqCst);
        // A guardian that runs gives back itself, however long the store takes; then it ends us.
        while is_guarded() && guardian.is_some_and(|guardian| is_at_work(guardian.as_raw())) {
            wait_for([], Some(LAST_WORDS));
        }
        self.mourn();
    }

    /// Who cannot be seen is not dead: there may be no descriptors left, or no memory.
    fn look(&self, owner: &Process) -> Seen {
        let Some(pid) = rustix::process::Pid::from_raw(owner.pid) else { return Seen::Gone };
        let pidfd = pidfd_open(pid, PidfdFlags::empty());
        // Only after this is it known to be that process's, and not its pid's next user's.
        match (pidfd, self.world.host.process(owner.pid)) {
            (Err(rustix::io::Errno::SRCH), _) => Seen::Gone,
            (Ok(pidfd), Ok(Some(found))) if found == *owner => Seen::Here(pidfd),
            (_, Ok(Some(found))) if found == *owner => Seen::Not,
            (_, Ok(_)) => Seen::Gone,
            (_, Err(_)) if rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH) => Seen::Gone,
            (_, Err(_)) => Seen::Not,
        }
    }

    /// Says that the owners have ended: then everybody sees it, and whoever waits gets the lock.
    fn mourn(&self) {
        let mourned = |(target, engine): (&Target, &Engine)| {
            engine.settle(&target.name, &Ask::Mourn(engine.claimant(Some(self.proof), Vec::new())?)).map(drop)
        };
        while self.lease_end.get().is_some_and(|ends| self.world.host.boottime() < ends) {
            let opened = self.targets.open(self.world);
            let shared = |(_, engine): &(&Target, &Engine)| engine.store().reach() == Reach::ManyHosts;
            if opened.is_ok_and(|opened| opened.each().filter(shared).map(mourned).filter(Result::is_err).count() == 0)
            {
                self.lease_end.set(None);
                break;
            }
            wait_for([], Some(LAST_WORDS));
        }
    }

    /// Renews in good time, again and again. Returns when nothing is held any more, or the owners have `ended`.
    ///
    /// A keeper without a guardian also gives up when the store has not answered for long after the lease was over.
    fn renew_on_and_on(&self, is_guarded: bool, poke: BorrowedFd<'_>, told: &dyn Fn(), ended: &AtomicBool) {
        let timer = insist(BootTimer::new);
        let span = self.world.lease();
        let mut opened: Option<Opened<'_>> = None;
        let mut known: Vec<Known> = vec![None; self.targets.all.len()];
        let mut changes = Changes::new(self.world.host.boottime());
        let mut next = self.lease_end.get().map_or(Duration::ZERO, |ends| ends.saturating_sub(span * 2 / 3));
        loop {
            timer.set(Some(next.min(changes.due())));
            wait_for([poke, timer.as_fd()].into_iter().chain(changes.descriptors()), None);
            drain(poke);
            changes.hear();
            if ended.load(SeqCst) {
                return;
            }
            let now = self.world.host.boottime();
            let (ends, is_held) = match self.renew(&mut opened, &mut known) {
                Ok(AllKept::Held(ends)) => (ends, true),
                Ok(AllKept::GivenBack) => (None, false),
                Ok(AllKept::Lost) => (Some(now), false),
                Err(_) => {
                    opened = None;
                    let now = self.world.host.boottime();
                    if !is_guarded && self.lease_end.get().is_some_and(|ends| now > ends + span * IN_VAIN) {
                        return;
                    }
                    next = now + span / 30;
                    changes.postpone(next);
                    continue;
                }
            };
            self.lease_end.set(ends);
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
    fn renew<'a>(&'a self, opened: &mut Option<Opened<'a>>, known: &mut [Known]) -> Result<AllKept> {
        let opened = match opened {
            Some(opened) => opened,
            none => none.insert(self.targets.open(self.world)?),
        };
        let (mut held, mut lost, mut first): (bool, bool, Option<Duration>) = (false, false, None);
        let has_lease = |(_, ((_, engine), _)): &(usize, ((&Target, &Engine), &mut Known))| {
            self.timed || engine.store().reach() == Reach::ManyHosts
        };
        for (at, ((target, engine), known)) in opened.each().zip(known).enumerate().filter(has_lease) {
            let now = self.world.host.boottime();
            // A server that stands still must not keep us from the others until the lease is over.
            engine.store().bound(Some(now + self.world.lease() / 6));
            let ends = match self.keep(at, &target.name, engine, known)? {
                Kept::GivenBack => continue,
                Kept::ForGood => None,
                Kept::Until(lease, ends) => Some(known.insert((lease, ends)).1),
                Kept::Lost => Some(now),
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
            (true, _) => AllKept::Held(first),
            (false, true) => AllKept::Lost,
            (false, false) => AllKept::GivenBack,
        })
    }

    fn keep(&self, at: usize, name: &[u8], engine: &Engine, known: &Known) -> Result<Kept> {
        if self.lease_end.is_released(at) {
            return Ok(Kept::GivenBack);
        }
        let now = self.world.host.boottime();
        let span = self.world.lease();
        let mine = |grant: &Grant| grant.proof == self.proof;
        let record = engine.sight(name)?.record;
        match record.holders.into_iter().find(mine).map(|grant| grant.tenure) {
            Some(Tenure::Renewed(lease)) => {
                let ends = match known {
                    Some((known, ends)) => Some(*ends).filter(|_| *known == lease),
                    None => self.lease_end.get(),
                };
                if let Some(ends) = ends.filter(|ends| ends.saturating_sub(now) > span * 2 / 3) {
                    return Ok(Kept::Until(lease, ends));
                }
                let tenure = engine.begin(&Tenure::Renewing(span.as_millis() as u64))?;
                match engine.settle(name, &Ask::Renew(engine.claimant(Some(self.proof), Vec::new())?, tenure))? {
                    Outcome::Renewed(grant) => Ok(match (grant.tenure.lease(), engine.ends(&grant.tenure)) {
                        (Some(lease), Some(ends)) => Kept::Until(lease.clone(), ends),
                        _ => Kept::ForGood,
                    }),
                    Outcome::NotHeld(ending) | Outcome::NotOwner(_, ending) => self.ended(at, name, engine, ending),
                    _ => Ok(Kept::Lost),
                }
            }
            Some(Tenure::Until(lease)) => {
                let ends = match known {
                    Some((known, ends)) if *known == lease => *ends,
                    _ => self.end_of(&lease, engine)?,
                };
                Ok(Kept::Until(lease, ends))
            }
            Some(_) => Ok(Kept::ForGood),
            None => self.ended(at, name, engine, record.endings.into_iter().find(|ending| mine(&ending.grant))),
        }
    }

    /// When a lease ends that somebody else asked for. Whoever took the lock for us knows it better than a store that counts
    /// in seconds.
    fn end_of(&self, lease: &Lease, engine: &Engine) -> Result<Duration> {
        let now = self.world.host.boottime();
        self.lease_end.of(lease).map_or_else(|| Ok(now + engine.store().remaining(lease)?), Ok)
    }

    /// What it means that the record has no grant of ours, while the owners live: it was lost, unless its end says that it was
    /// released. Of that the supervisor hears by us, if it can, so that the record need not keep it.
    fn ended(&self, at: usize, name: &[u8], engine: &Engine, ending: Option<Ending>) -> Result<Kept> {
        let Some(ending) = ending.filter(|ending| ending.how == Ended::Released) else { return Ok(Kept::Lost) };
        if ending.is_owed() && self.lease_end.release(at) {
            engine.settle(name, &Ask::Release(engine.supervisor(self.proof)?))?;
        }
        Ok(Kept::GivenBack)
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
fn insist<T, E>(make: impl Fn() -> std::result::Result<T, E>) -> T {
    loop {
        match make() {
            Ok(made) => return made,
            Err(_) => wait_for([], Some(LAST_WORDS)),
        }
    }
}

/// Whether there was anything to read.
fn drain(descriptor: BorrowedFd<'_>) -> bool {
    let mut buffer = [0; 64];
    std::iter::from_fn(|| read(descriptor, &mut buffer).ok().filter(|length| *length > 0)).count() > 0
}
