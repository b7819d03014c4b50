//! The renewal of leases, in the first thread of a keeper.
//!
//! If the store reports changes of records, the keeper sees at once, not only at the next renewal, that another host
//! acquires a lost lock.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::{KeeperConfig, drain, notify, retry_until_ok};
use crate::engine::{Engine, OpenLockSet};
use crate::error::Result;
use crate::lock::{EndReason, EndedGrant, Grant, Lease, Lifetime};
use crate::run::schedule::{LeaseSchedule, renewal_pause, retry_pause};
use crate::run::timer::{BoottimeTimer, wait_readable};
use crate::store::{StoreDeadline, Subscription, Topic};

enum RenewResult {
    /// The lock is held; `None` means that no lease limits it.
    Held(Known),
    GivenBack,
    /// The lock was lost; another process may hold it.
    Lost,
}

/// The lease that held a lock when it was last read, and the end of the lease on CLOCK_BOOTTIME.
type Known = Option<(Lease, Duration)>;

impl KeeperConfig<'_> {
    /// Renews each lease in good time. Returns when no lock is held any more, or the owners have `ended`.
    ///
    /// Each new end of the lease is stored, and then the `listeners` are notified. The eventfd `renew_now` starts a renewal.
    /// A keeper without a supervisor gives up, too, if the store stays silent for long after the lease is over.
    pub(super) fn renew_loop(
        &self,
        is_guarded: bool,
        renew_now: BorrowedFd<'_>,
        listeners: &[BorrowedFd<'_>],
        ended: &AtomicBool,
    ) {
        let timer = retry_until_ok(BoottimeTimer::new);
        let store_deadline = StoreDeadline::begin(None);
        let span = self.context.lease();
        let mut opened: Option<OpenLockSet<'_>> = None;
        let mut known: Vec<Known> = vec![None; self.targets.all.len()];
        let mut changes = Changes::new(self.context.host.boottime());
        let schedule = |ends| LeaseSchedule { ends, span };
        let mut next = self.shared_deadline.load().map_or(Duration::ZERO, |ends| schedule(ends).renewal());
        loop {
            timer.set(Some(next.min(changes.due())));
            let _ = wait_readable([renew_now, timer.as_fd()].into_iter().chain(changes.descriptors()), None);
            drain(renew_now);
            changes.take_notifications();
            if ended.load(SeqCst) {
                return;
            }
            let now = self.context.host.boottime();
            // A subscription comes before the read, so that no change is missed; but it must not delay a renewal.
            let first = Some(&mut changes).filter(|_| now < next);
            let (ends, is_held) = match self.renew(&mut opened, &mut known, first, &store_deadline) {
                Ok(renewed) => renewed,
                Err(_) => {
                    opened = None;
                    let now = self.context.host.boottime();
                    if !is_guarded && self.shared_deadline.load().is_some_and(|ends| now > schedule(ends).give_up()) {
                        return;
                    }
                    next = now + retry_pause(span);
                    changes.postpone(next);
                    continue;
                }
            };
            self.shared_deadline.store(ends);
            listeners.iter().for_each(|listener| notify(*listener));
            if !is_held {
                return;
            }
            let left = ends.map_or(span, |ends| ends.saturating_sub(now)).min(span);
            next = now + renewal_pause(left).max(Duration::from_millis(10));
            if opened.as_ref().is_some_and(|opened| changes.listen(opened, now)) {
                next = now;
            }
        }
    }

    /// Renews once each lease that is due. Returns the end of the first lease, if any, and true if a lock is held.
    fn renew<'a>(
        &'a self,
        opened: &mut Option<OpenLockSet<'a>>,
        known: &mut [Known],
        changes: Option<&mut Changes>,
        store_deadline: &StoreDeadline,
    ) -> Result<(Option<Duration>, bool)> {
        let opened = match opened {
            Some(opened) => opened,
            none => none.insert(self.targets.open(self.context)?),
        };
        changes.map(|changes| changes.listen(opened, self.context.host.boottime()));
        let (mut is_held, mut lost, mut first): (bool, Option<Duration>, Option<Duration>) = (false, None, None);
        for (at, ((target, engine), known)) in opened.each().zip(known).enumerate() {
            let has_lease = self.timed || engine.needs_leases();
            if !has_lease {
                continue;
            }
            let now = self.context.host.boottime();
            // A server that hangs must not keep us from the other stores until the lease is over.
            store_deadline.change(Some(now + self.context.lease() / 6));
            let ends = match self.keep(at, &target.name, engine, known)? {
                RenewResult::GivenBack => continue,
                RenewResult::Held(lease) => lease.map(|lease| known.insert(lease).1),
                RenewResult::Lost => Some(now),
            };
            // A command that goes on without the lock needs no keeper.
            if !self.kills && ends.is_some_and(|ends| ends <= now) {
                lost = ends;
                continue;
            }
            is_held = true;
            first = first.into_iter().chain(ends).min();
        }
        Ok((if is_held { first } else { lost }, is_held))
    }

    fn keep(&self, at: usize, name: &[u8], engine: &Engine, known: &Known) -> Result<RenewResult> {
        if self.shared_deadline.is_released(at) {
            return Ok(RenewResult::GivenBack);
        }
        let (now, span) = (self.context.host.boottime(), self.context.lease());
        let mine = |grant: &Grant| grant.proof == self.proof;
        let (_, record) = engine.read(name)?;
        match record.holders.iter().find(|grant| mine(grant)).map(|grant| grant.lifetime.clone()) {
            Some(Lifetime::Keepalive(lease)) => {
                let ends = match known {
                    Some((known, ends)) => Some(*ends).filter(|_| *known == lease),
                    None => self.shared_deadline.load(),
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
                Ok(RenewResult::Held(Some((lease, ends))))
            }
            Some(_) => Ok(RenewResult::Held(None)),
            None => self.ended(at, name, engine, record.ended_grants.into_iter().find(|ending| mine(&ending.grant))),
        }
    }

    /// Returns when a lease that another process requested ends, on CLOCK_BOOTTIME. The process that acquired the lock
    /// for us knows the time better than a store that counts in seconds.
    fn expiry_of(&self, at: usize, lease: &Lease, engine: &Engine) -> Result<Duration> {
        let now = self.context.host.boottime();
        self.shared_deadline.expiry_of(at, lease).map_or_else(|| Ok(now + engine.store().leases().ttl(lease)?), Ok)
    }

    /// Returns what it means that the record lacks our grant while the owners live: it was lost, unless its end is a
    /// release. The keeper tells the supervisor of a release if it can, so that the record need not keep it.
    fn ended(&self, at: usize, name: &[u8], engine: &Engine, ending: Option<EndedGrant>) -> Result<RenewResult> {
        let Some(ending) = ending.filter(|ending| ending.reason == EndReason::Released) else {
            return Ok(RenewResult::Lost);
        };
        if ending.is_owed() && self.shared_deadline.release(at) {
            let _ = engine.release(name, self.proof)?;
        }
        Ok(RenewResult::GivenBack)
    }
}

/// Maximum number of records that are subscribed to: each takes a connection.
const MOST: usize = 16;

/// Minimum time between two subscriptions, and before the first. Most commands have ended by then, and a record with a
/// busy queue changes all the time.
const PAUSE: Duration = Duration::from_secs(1);

/// Time until a store that could not start a subscription is asked again.
const RETRY: Duration = Duration::from_secs(20);

pub(super) struct Changes {
    subscriptions: Vec<Option<Box<dyn Subscription>>>,
    /// Earliest time of the next subscription, and when a subscription is due; on CLOCK_BOOTTIME.
    earliest: Duration,
    due: Duration,
}

impl Changes {
    pub(super) fn new(now: Duration) -> Changes {
        Changes { subscriptions: Vec::new(), earliest: now + PAUSE, due: now + PAUSE }
    }

    /// Returns when to [listen](Changes::listen) again, on CLOCK_BOOTTIME.
    pub(super) fn due(&self) -> Duration {
        self.due
    }

    /// Postpones all subscriptions until then, because the store does not answer.
    pub(super) fn postpone(&mut self, until: Duration) {
        self.due = self.due.max(until);
    }

    /// Returns the descriptors, each of which becomes readable when its record changes.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.subscriptions.iter().flatten().map(|subscription| subscription.descriptor())
    }

    /// Handles the notifications that have arrived. After the first one, a record needs a new subscription.
    pub(super) fn take_notifications(&mut self) {
        for subscription in &mut self.subscriptions {
            if subscription.take_if(|subscription| subscription.is_notified()).is_some() {
                self.due = self.earliest;
            }
        }
    }

    /// Subscribes to the records that have no subscription, if that is due. Returns true if a subscription started: the
    /// keeper must read the records again, because it is not notified of earlier changes.
    pub(super) fn listen(&mut self, opened: &OpenLockSet<'_>, now: Duration) -> bool {
        if now < self.due {
            return false;
        }
        let (mut begun, mut failed) = (false, false);
        let notifies = |engine: &Engine| engine.store().abilities().notifies;
        for (at, (target, engine)) in opened.each().take(MOST).enumerate().filter(|(_, (_, engine))| notifies(engine)) {
            self.subscriptions.resize_with(self.subscriptions.len().max(at + 1), || None);
            if self.subscriptions[at].is_none() {
                self.subscriptions[at] = engine.store().subscribe(Topic::Record(&target.name));
                begun |= self.subscriptions[at].is_some();
                failed |= self.subscriptions[at].is_none();
            }
        }
        self.earliest = now + PAUSE;
        self.due = if failed { now + RETRY } else { Duration::MAX };
        begun
    }
}
