//! The process of a keeper: one thread renews and may wait for the store; the other watches the owners and the end of
//! the lease, and never waits.
//!
//! If the store reports changes of records, the keeper sees at once, not only at the next renewal, that another host
//! acquires a lost lock.

use std::iter::once;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use nix::sys::timerfd::TimerFd;
use nix::unistd::{Pid, getppid};
use rustix::process::{Signal, pidfd_send_signal};

use super::{Keeper, KeeperConfig, drain, new_event, notify, pause, retry_until_ok};
use crate::run::detach;
use crate::run::shared_lease_end::CommandPause;
use crate::run::timer::{boottime_timer, set_timer, wait_readable};
use engine::cleaners::CleanerGuard;
use engine::lease_schedule::{
    IDLE_BEFORE_REST, LeaseSchedule, POLL_INTERVAL, STOP_CHECK_INTERVAL, SUBSCRIPTION_PAUSE, SUBSCRIPTION_RETRY,
    StopTimes, next_look, retry_pause, settling_pause,
};
use engine::{Engine, OpenLockSet};
use host::{WakeAddress, WakeSocket, is_at_work, is_stopped, liveness_of, pidfd_of, send};
use lock::{EndReason, EndedGrant, Lease, Lifetime, Liveness, OwnerDied, ProcessId, Result};
use store::{Call, Subscription, Topic};

/// Maximum number of records that are subscribed to: each takes a connection.
const MOST_SUBSCRIPTIONS: usize = 16;

/// Owners that have not ended, each with a pidfd that becomes readable at its end, if the keeper can observe it now.
type Owners<'a> = Vec<(&'a ProcessId, Option<OwnedFd>)>;

/// Of a keeper without a supervisor, with its pidfd.
type Parent = (Pid, Option<OwnedFd>);

/// Lease as the watching thread knows it, and its steps against the owners.
#[derive(Default)]
struct LeaseWatch {
    supervisor: Option<Pid>,
    lease: Option<LeaseSchedule>,
    /// They have received SIGTERM.
    terminated: bool,
    pause: CommandPause,
}

impl KeeperConfig<'_> {
    /// Renews the leases until no lock is held any more or the owners have ended. With a `keeper`, the `parent` is its
    /// supervisor, which is notified of each new end. A wake-up at its socket, or at one of this process, reports a
    /// change. A keeper that is late may have missed a change. The call returns only when the parent of a keeper
    /// without a supervisor has ended.
    pub(super) fn run(&self, parent: Pid, keeper: Option<&Keeper<'_>>, is_late: bool) {
        let supervisor = keeper.map(|_| parent);
        let wake_socket = keeper.and_then(|keeper| keeper.wake_socket);
        // Most commands end soon, and their supervisor then ends a keeper that has hardly begun. A change, for example a
        // break of the lock, does not wait.
        let rest = self.shared_lease_end.load().filter(|_| supervisor.is_some() && !is_late);
        if let Some(ends) = rest {
            let pause = settling_pause(ends.saturating_sub(self.context.host.boottime()));
            let _ = wait_readable(wake_socket.map(AsFd::as_fd), Some(pause));
        }
        let [renew_now, changed] = [(); 2].map(|()| retry_until_ok(new_event));
        // Descriptors may be scarce, and without these the keeper could not end the owners. The renewal comes later.
        let timer = retry_until_ok(boottime_timer);
        let mut owners: Owners<'_> = self.owners.iter().map(|owner| (owner, None)).collect();
        owners.retain_mut(|(owner, pidfd)| self.is_alive(owner, pidfd));
        let own = wake_socket.is_none().then(|| WakeSocket::new(WakeAddress::Supervisor(&self.proof))).flatten();
        let listeners: Vec<&OwnedFd> = once(&changed).chain(keeper.map(|keeper| &keeper.lease_changed)).collect();
        let parent = keeper.is_none().then(|| (parent, pidfd_of(parent.as_raw()).ok()));
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let renew = || {
                self.renew_loop(supervisor.is_some(), &renew_now, &listeners, &ended);
                if !ended.load(SeqCst) {
                    detach::exit_now(0);
                }
            };
            if std::thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, renew).is_ok() {
                if is_late {
                    notify(&renew_now);
                }
                let wake_socket = wake_socket.or(own.as_ref());
                if !self.watch((&parent, supervisor), owners, &timer, wake_socket, &renew_now, &changed) {
                    ended.store(true, SeqCst);
                    notify(&renew_now);
                    return;
                }
                // The renewal loop stops first, because on a slow store it would starve a release. But a success that is
                // not on record yet needs the lock, even if the supervisor is stopped for long.
                ended.store(!self.is_reported, SeqCst);
                // A running supervisor releases the locks itself, however long that takes; then it ends the keeper.
                while has_parent(supervisor) && (self.is_reported || is_at_work(getppid().as_raw())) {
                    pause();
                }
                ended.store(true, SeqCst);
                self.record_owner_death();
                detach::exit_now(0);
            }
            // Without its thread the keeper could renew nothing.
            detach::exit_now(1)
        })
    }

    /// Ends the owners before their lease ends. Returns true when all have ended, false if the parent has ended before.
    fn watch(
        &self,
        (parent, supervisor): (&Option<Parent>, Option<Pid>),
        mut owners: Owners<'_>,
        timer: &TimerFd,
        wake_socket: Option<&WakeSocket>,
        renew_now: &OwnedFd,
        lease_changed: &OwnedFd,
    ) -> bool {
        let mut lease_watch = LeaseWatch { supervisor, ..LeaseWatch::default() };
        loop {
            owners.retain_mut(|(owner, pidfd)| self.is_alive(owner, pidfd));
            if owners.is_empty() {
                return true;
            }
            if parent.as_ref().is_some_and(|(parent, _)| !has_parent(Some(*parent))) {
                return false;
            }
            // The keeper polls the owners that it cannot watch.
            let is_watched = |(_, pidfd): &(&ProcessId, Option<OwnedFd>)| pidfd.is_some();
            let look_again = (!owners.iter().all(is_watched)).then(|| self.context.host.boottime() + POLL_INTERVAL);
            let next_step = self.enforce_lease(&mut lease_watch, &owners);
            set_timer(timer, [look_again, next_step].into_iter().flatten().min());
            let pidfds = owners.iter().filter_map(|(_, pidfd)| Some(pidfd.as_ref()?.as_fd()));
            let parent_fd = parent.as_ref().and_then(|(_, pidfd)| pidfd.as_ref());
            let others = wake_socket.map(AsFd::as_fd).into_iter().chain(parent_fd.map(AsFd::as_fd));
            let _ = wait_readable(pidfds.chain([lease_changed.as_fd(), timer.as_fd()]).chain(others), None);
            drain(lease_changed);
            if wake_socket.is_some_and(WakeSocket::was_woken) {
                notify(renew_now);
            }
        }
    }

    /// While the supervisor lives, it sends SIGTERM itself. Returns the time of the next step; `None` if no lease ends.
    fn enforce_lease(&self, watch: &mut LeaseWatch, owners: &Owners<'_>) -> Option<Duration> {
        let Some(ends) = self.shared_lease_end.load().filter(|_| self.kills) else {
            return self.pause(watch, owners, None);
        };
        let now = self.context.host.boottime();
        // A keeper that replaces another one may see only now that the lease is over.
        let known = watch.lease.or((ends <= now).then_some(LeaseSchedule { ends, span: self.lease }));
        let lease = *watch.lease.insert(LeaseSchedule::seen(known, ends, now));
        let StopTimes { term, kill, .. } = lease.keeper();
        if let Some(next_check) = self.pause(watch, owners, Some(lease)) {
            return Some(next_check);
        }
        if now >= kill {
            self.shared_lease_end.was_killed.store(true, SeqCst);
            self.signal(owners, Signal::KILL);
        } else if now >= term && !watch.terminated && !has_parent(watch.supervisor) {
            watch.terminated = true;
            self.signal(owners, Signal::TERM);
            self.signal(owners, Signal::CONT);
        }
        Some([term, kill].into_iter().find(|at| *at > now).unwrap_or(now + STOP_CHECK_INTERVAL))
    }

    /// Stops the owners while their lease may be over unnoticed, and continues them then. Returns the time of the next check
    /// while they must not run. While the supervisor lives, it acts first. A lease with a time limit is never renewed.
    fn pause(&self, watch: &mut LeaseWatch, owners: &Owners<'_>, lease: Option<LeaseSchedule>) -> Option<Duration> {
        // The parent of a command that had no supervisor would see that it stops: sudo(8) then stops itself.
        if self.timed || watch.terminated || watch.supervisor.is_none() {
            return None;
        }
        let is_supervised = has_parent(watch.supervisor);
        let due = |due: StopTimes| if is_supervised { StopTimes { term: due.kill, ..due } } else { due };
        let lease = lease.map(|lease| (lease, due(lease.keeper())));
        let all_stopped = || owners.iter().all(|(owner, _)| is_stopped(owner.pid));
        let is_stopped = || self.tree.map_or_else(all_stopped, |tree| tree.is_stopped(None));
        let (signal, next_check) =
            watch.pause.step(self.shared_lease_end, lease, self.context.host.boottime(), is_stopped);
        signal.and_then(|signal| Signal::from_named_raw(signal as i32)).inspect(|signal| self.signal(owners, *signal));
        next_check
    }

    fn signal(&self, owners: &Owners<'_>, signal: Signal) {
        // The supervisor of a tree is an owner, too, but none of its processes.
        for (owner, pidfd) in owners.iter().filter(|(owner, _)| self.tree.is_none_or(|tree| tree.supervisor != **owner))
        {
            let _ = match pidfd {
                Some(pidfd) => pidfd_send_signal(pidfd, signal).is_ok(),
                // Linux before 5.3, and some sandboxes.
                None => send(owner, signal.as_raw()).is_ok(),
            };
        }
        if let Some(tree) = self.tree {
            tree.send(signal.as_raw(), None);
        }
    }

    /// False if it has ended. An owner that cannot be observed is not dead: descriptors may be exhausted, and `hidepid`
    /// hides a command that has become another user's.
    fn is_alive(&self, owner: &ProcessId, pidfd: &mut Option<OwnedFd>) -> bool {
        if pidfd.is_none() {
            let opened = pidfd_of(owner.pid);
            // Only this check after the open proves that the pidfd is the owner's and not that of the pid's next user.
            if liveness_of(owner) == Liveness::Dead {
                return false;
            }
            *pidfd = opened.ok();
        }
        pidfd.as_ref().is_none_or(|pidfd| wait_readable([pidfd.as_fd()], Some(Duration::ZERO)) != Ok(true))
    }

    /// Records that the owners have ended, so that every process sees it and the next waiter is granted the lock.
    fn record_owner_death(&self) {
        while self.shared_lease_end.load().is_some_and(|ends| self.context.host.boottime() < ends) {
            let opened = self.targets.open(self.context);
            // All locks are tried, even if one of them fails.
            let record = |opened: OpenLockSet<'_>| {
                self.record_success(&opened)?;
                let leased = opened.each().filter(|(_, engine)| engine.needs_leases());
                let recorded = leased.map(|(target, engine)| {
                    let died = OwnerDied(engine.by_proof(self.proof)?);
                    engine.apply(&target.name, &died).map(drop)
                });
                recorded.fold(Ok(()), Result::and)
            };
            if opened.and_then(record).is_ok() {
                self.shared_lease_end.store(None);
                break;
            }
            pause();
        }
    }

    /// Renews each lease in good time. Returns when no lock is held any more, or the owners have `ended`.
    ///
    /// Each new end of the lease is stored, and then the `listeners` are notified. The eventfd `renew_now` starts a renewal.
    /// A keeper without a supervisor gives up, too, if the store stays silent for long after the lease is over.
    fn renew_loop(&self, had_supervisor: bool, renew_now: &OwnedFd, listeners: &[&OwnedFd], ended: &AtomicBool) {
        let timer = retry_until_ok(boottime_timer);
        let span = self.lease;
        let mut opened: Option<OpenLockSet<'_>> = None;
        let mut cleaners: Option<CleanerGuard> = None;
        let mut known: Vec<Known> = vec![None; self.targets.all.len()];
        let mut changes = Changes::new(self.context.host.boottime());
        let schedule = |ends| LeaseSchedule { ends, span };
        let mut next = self.shared_lease_end.load().map_or(Duration::ZERO, |ends| schedule(ends).renewal());
        loop {
            set_timer(&timer, Some(next.min(changes.due)));
            let _ = wait_readable([renew_now.as_fd(), timer.as_fd()].into_iter().chain(changes.descriptors()), None);
            drain(renew_now);
            changes.take_notifications();
            if ended.load(SeqCst) {
                return;
            }
            let now = self.context.host.boottime();
            // After a sleep both threads run at once. A renewal would save a command that the other one must kill.
            let missed = |ends: Duration| now >= schedule(ends).keeper().kill;
            if self.kills && !had_supervisor && self.shared_lease_end.load().is_some_and(missed) {
                next = now + retry_pause(span);
                changes.due = changes.due.max(next);
                continue;
            }
            // A subscription comes before the read, so that no change is missed; but it must not delay a renewal.
            let first = (now < next).then_some(&mut changes);
            let (ends, is_held) = match self.renew(&mut opened, &mut known, first) {
                Ok(renewed) => renewed,
                Err(_) => {
                    opened = None;
                    let now = self.context.host.boottime();
                    if !had_supervisor
                        && self.shared_lease_end.load().is_some_and(|ends| now > schedule(ends).give_up())
                    {
                        return;
                    }
                    next = now + retry_pause(span);
                    changes.due = changes.due.max(next);
                    continue;
                }
            };
            self.shared_lease_end.store(ends);
            listeners.iter().for_each(|listener| notify(listener));
            if !is_held {
                return;
            }
            let Some(opened) = &opened else { continue };
            cleaners.get_or_insert_with(|| CleanerGuard::of(opened.each().map(|(_, engine)| engine))).protect();
            next = next_look(ends, span, now);
            if changes.listen(opened, now) {
                next = now;
            }
            if next > now + IDLE_BEFORE_REST {
                opened.rest();
            }
        }
    }

    /// Renews once each lease that is due. Returns the end of the first lease, if any, and true if a lock is held.
    fn renew<'a>(
        &'a self,
        opened: &mut Option<OpenLockSet<'a>>,
        known: &mut [Known],
        changes: Option<&mut Changes>,
    ) -> Result<(Option<Duration>, bool)> {
        let opened = match opened {
            Some(opened) => opened,
            none => none.insert(self.targets.open(self.context)?),
        };
        changes.map(|changes| changes.listen(opened, self.context.host.boottime()));
        let (mut is_held, mut lost, mut first): (bool, Option<Duration>, Option<Duration>) = (false, None, None);
        let mut failed = None;
        for (at, ((target, engine), known)) in opened.each().zip(known).enumerate() {
            let has_lease = self.timed || engine.needs_leases();
            if !has_lease {
                continue;
            }
            let now = self.context.host.boottime();
            // A server that hangs must not keep us from the other stores until the lease is over.
            let engine = engine.during(Call::until(now + engine.lease() / 6));
            let ends = match self.keep(at, &target.name, &engine, known) {
                Ok(RenewResult::GivenBack) => continue,
                Ok(RenewResult::Held(lease)) => lease.map(|lease| known.insert(lease).1),
                Ok(RenewResult::Lost) => Some(now),
                Err(error) => {
                    failed = Some(error);
                    continue;
                }
            };
            // A command that goes on without the lock needs no keeper.
            if !self.kills && ends.is_some_and(|ends| ends <= now) {
                lost = ends;
                continue;
            }
            is_held = true;
            first = first.into_iter().chain(ends).min();
        }
        let is_lost = self.kills && first.is_some_and(|ends| ends <= self.context.host.boottime());
        match failed.filter(|_| !is_lost) {
            Some(error) => {
                // The keeper of a script gives up long after this time, and must not while it renews the other locks.
                if !self.kills && first.is_some() {
                    self.shared_lease_end.store(first);
                }
                Err(error)
            }
            None => Ok((if is_held { first } else { lost }, is_held)),
        }
    }

    fn keep(&self, at: usize, name: &[u8], engine: &Engine, known: &Known) -> Result<RenewResult> {
        if self.shared_lease_end.is_released(at) {
            return Ok(RenewResult::GivenBack);
        }
        let (now, span) = (self.context.host.boottime(), engine.lease());
        let (_, record) = engine.read(name)?;
        match record.holder(&self.proof).map(|grant| grant.lifetime.clone()) {
            Some(Lifetime::Keepalive(lease)) => {
                let ends = match known {
                    Some((known, ends)) => (*known == lease).then_some(*ends),
                    None => self.shared_lease_end.load(),
                };
                if let Some(ends) = ends.filter(|ends| now < LeaseSchedule { ends: *ends, span }.renewal()) {
                    return Ok(RenewResult::Held(Some((lease, ends))));
                }
                match engine.renew(name, self.proof)? {
                    Ok(grant) => {
                        let ends = engine.ends(&grant.lifetime);
                        Ok(RenewResult::Held(grant.lifetime.lease().cloned().zip(ends)))
                    }
                    Err(not_holder) => self.ended(at, name, engine, not_holder.ending),
                }
            }
            Some(Lifetime::ExpiresAt(lease)) => {
                let ends = match known {
                    Some((known, ends)) if *known == lease => *ends,
                    _ => self.expiry_of(at, &lease, engine)?,
                };
                // A time limit does not come back, and a paused command must not wait for that.
                Ok(if ends <= now { RenewResult::Lost } else { RenewResult::Held(Some((lease, ends))) })
            }
            Some(_) => Ok(RenewResult::Held(None)),
            None => {
                let ending = record.ended_grants.into_iter().find(|ending| ending.grant.proof == self.proof);
                self.ended(at, name, engine, ending)
            }
        }
    }

    /// On CLOCK_BOOTTIME. The process that acquired the lock knows the time better than a store that counts in seconds.
    fn expiry_of(&self, at: usize, lease: &Lease, engine: &Engine) -> Result<Duration> {
        engine.settle()?;
        match self.first_leases.get(at) {
            Some(Some((first, ends))) if first == lease => Ok(*ends),
            _ => Ok(self.context.host.boottime() + engine.store().leases().ttl(engine.call(), lease)?),
        }
    }

    /// Returns what it means that the record lacks our grant while the owners live: it was lost, unless its end is a
    /// release. The keeper tells the supervisor of a release if it can, so that the record need not keep it.
    fn ended(&self, at: usize, name: &[u8], engine: &Engine, ending: Option<EndedGrant>) -> Result<RenewResult> {
        let Some(ending) = ending.filter(|ending| ending.reason == EndReason::Released) else {
            return Ok(RenewResult::Lost);
        };
        if ending.is_owed() && self.shared_lease_end.release(at) {
            let _ = engine.release(name, self.proof)?;
        }
        Ok(RenewResult::GivenBack)
    }
}

fn has_parent(parent: Option<Pid>) -> bool {
    parent == Some(getppid())
}

enum RenewResult {
    /// `None` means that no lease limits it.
    Held(Known),
    GivenBack,
    /// Another process may hold it.
    Lost,
}

/// A lease that held a lock when it was last read, and its end on CLOCK_BOOTTIME.
type Known = Option<(Lease, Duration)>;

struct Changes {
    subscriptions: [Option<Box<dyn Subscription>>; MOST_SUBSCRIPTIONS],
    /// Earliest time of the next subscription, and when a subscription is due; on CLOCK_BOOTTIME.
    earliest: Duration,
    due: Duration,
}

impl Changes {
    fn new(now: Duration) -> Changes {
        Changes { subscriptions: Default::default(), earliest: now + SUBSCRIPTION_PAUSE, due: now + SUBSCRIPTION_PAUSE }
    }

    fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.subscriptions.iter().flatten().map(|subscription| subscription.descriptor())
    }

    /// Handles the notifications that have arrived. After the first one, a record needs a new subscription.
    fn take_notifications(&mut self) {
        for subscription in &mut self.subscriptions {
            if subscription.take_if(|subscription| subscription.is_notified()).is_some() {
                self.due = self.earliest;
            }
        }
    }

    /// After the start of a subscription the keeper reads the records again: it is not notified of earlier changes.
    fn listen(&mut self, opened: &OpenLockSet<'_>, now: Duration) -> bool {
        if now < self.due {
            return false;
        }
        let (mut begun, mut failed) = (false, false);
        let notifies = |engine: &Engine| engine.store().abilities().notifies;
        for (at, (target, engine)) in
            opened.each().take(MOST_SUBSCRIPTIONS).enumerate().filter(|(_, (_, engine))| notifies(engine))
        {
            let subscription = &mut self.subscriptions[at];
            if subscription.is_none() {
                *subscription = engine.store().subscribe(Call::default(), Topic::Record(&target.name));
                begun |= subscription.is_some();
                failed |= subscription.is_none();
            }
        }
        self.earliest = now + SUBSCRIPTION_PAUSE;
        self.due = if failed { now + SUBSCRIPTION_RETRY } else { Duration::MAX };
        begun
    }
}
