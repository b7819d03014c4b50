//! One wait: what is said of oneself before it, what wakes from it, and the circle that it may be part of.

use std::time::Duration;

use super::Acquisition;
use crate::engine::deadlock::Published;
use crate::error::{Error, Result};
use crate::host::{WaitSet, WaitSources, WakeAddress, WakeReason};
use crate::lock::{Edge, Lease, PidDomain, ProcessId, Record, WaitEdges};
use crate::store::{Scope, Version};

/// A wait that is over so soon is in no circle; and after it even a shell on a busy machine has mostly begun what comes next.
pub(in crate::engine) const DEADLOCK_CHECK_DELAY: Duration = Duration::from_millis(100);

/// A wait that is so long leaves its note for those, too, who cannot ask: in another network namespace.
const LONG: Duration = Duration::from_secs(1);

/// A wait, as its onlooker sees it.
#[derive(Debug, Clone, Copy)]
pub struct Waiting<'a> {
    /// The record as last looked at.
    pub record: &'a Record,
    /// How many stand before us in the queue.
    pub ahead: usize,
    /// How long we are willing to go on; `None`: for ever.
    pub left: Option<Duration>,
    /// Why the store cannot be asked for the moment. The record is not known then.
    pub outage: Option<&'a Error>,
}

/// Is shown a wait whenever it begins or goes on, and says how soon it wants to be shown it again at the latest.
pub(in crate::engine) type Onlooker<'a> = dyn FnMut(&Waiting<'_>) -> Option<Duration> + 'a;

/// What comes after a wait.
pub(super) enum AfterWait {
    Look,
    Interrupted,
    /// This wait is part of this circle, and the one that is to end.
    GiveUp(Vec<Edge>),
}

impl<'a> Acquisition<'a> {
    /// Finds out what those who wait, or would have to, have to say of themselves. Whether that has changed.
    pub(super) fn prepare_to_wait(&mut self) -> Result<bool> {
        let (engine, entry) = (self.engine, &mut self.application.entry);
        let mut changed = false;
        // Who waits has time to look twice.
        if !self.application.queue
            && !std::mem::replace(&mut self.looked_for_caller, true)
            && let Some(within) = self.blocked_callers.immediately(&*engine.host)
        {
            entry.blocked_processes = within;
            changed = true;
        }
        // Where other hosts cannot see whether a waiter lives, it says so from time to time.
        let left = |lease: &Lease| engine.left_of_own(lease).unwrap_or_default();
        if self.application.queue
            && engine.store.scope() == Scope::Shared
            && entry.lease.as_ref().map_or(Duration::ZERO, left) < engine.lease / 2
        {
            match engine.grant_lease(engine.lease) {
                Ok(lease) => {
                    entry.lease = Some(lease);
                    changed = true;
                }
                // The next look tries again.
                Err(error) if error.is_refused_change() && self.is_queued => {}
                Err(error) => return Err(error),
            }
        }
        Ok(changed)
    }

    pub(super) fn listen(&mut self) -> Result<&mut Box<dyn WaitSet + 'a>> {
        Ok(match &mut self.wait_set {
            Some(wait_set) => wait_set,
            none => none.insert(self.engine.host.wait_set(&self.application.entry.proof, self.interrupt)?),
        })
    }

    pub(super) fn wait(
        &mut self,
        record: &Record,
        version: Option<&Version>,
        processes: &[(PidDomain, ProcessId)],
        end: Duration,
        show: &mut dyn FnMut() -> Option<Duration>,
    ) -> Result<AfterWait> {
        let engine = self.engine;
        let here = engine.host.domain()?;
        let visible = processes.iter().filter(|(domain, _)| here.shares_pids_with(domain));
        let visible: Vec<ProcessId> = visible.map(|(_, process)| *process).collect();
        // A process in another network namespace can ring us only through the store.
        let parties = record.holders.iter().map(|grant| &grant.owner);
        let parties = parties.chain(record.waiters.iter().map(|waiter| &waiter.owner));
        let supervisors: Vec<ProcessId> = parties.clone().filter_map(|owner| owner.supervisor).collect();
        let mut homes = parties.map(|party| &party.domain).chain(processes.iter().map(|(home, _)| home));
        let needs_bell = engine.store.can_notify() || homes.any(|home| home.net != here.net);
        if let Some(version) = version.filter(|_| self.subscription.is_none() && needs_bell) {
            self.subscription = engine.store.subscribe(&self.application.entry.proof.channel(), version);
            // We may have been granted the lock before the bell was there.
            let is_late = self.subscription.is_some() && !engine.store.can_notify();
            if is_late && engine.store.version(self.name)?.as_ref() != Some(version) {
                return Ok(AfterWait::Look);
            }
        }
        let look_around_at = *self.look_around_at.get_or_insert_with(|| engine.host.boottime() + DEADLOCK_CHECK_DELAY);
        let mut asked = false;
        loop {
            let now = engine.host.boottime();
            if now >= look_around_at && self.look_at_callers_again(now)? {
                return Ok(AfterWait::Look);
            }
            let may_be_in_circle =
                self.blocked_callers.is_known() && !WaitEdges::keys(&self.application.entry).is_empty();
            if may_be_in_circle && now >= self.next_look(look_around_at) {
                // A look that fails, as when no note can be written in a full store, is repeated and does not end the wait.
                match self.check_deadlock(record, asked || now >= look_around_at + LONG).unwrap_or_default() {
                    Some(links) if self.suspected_at.is_some() => return Ok(AfterWait::GiveUp(links)),
                    found => self.suspected_at = found.map(|_| now),
                }
            }
            let looks = [
                self.blocked_callers.next_look(look_around_at),
                may_be_in_circle.then(|| self.next_look(look_around_at)),
            ];
            let to_look = looks.into_iter().flatten().filter(|at| *at > now).map(|at| at - now).min();
            let at_most = [show(), to_look].into_iter().flatten().fold(end.saturating_sub(now), Duration::min);
            self.listen()?;
            let mut signs =
                WaitSources { processes: &visible, supervisors: &supervisors, subscription: &mut self.subscription };
            let Some(wait_set) = &mut self.wait_set else { continue };
            match wait_set.wait(&mut signs, at_most)? {
                WakeReason::Interrupted => return Ok(AfterWait::Interrupted),
                WakeReason::Asked => asked = true,
                WakeReason::TimeOver if engine.host.boottime() < end => {}
                WakeReason::LookAgain | WakeReason::TimeOver => return Ok(AfterWait::Look),
            }
        }
    }

    /// Looks again at whom this wait holds up. Whether that has changed.
    fn look_at_callers_again(&mut self, now: Duration) -> Result<bool> {
        let (engine, entry) = (self.engine, &mut self.application.entry);
        let mut within = entry.blocked_processes.clone();
        self.blocked_callers.look_again(&*engine.host, now, &mut within);
        if within == entry.blocked_processes {
            return Ok(false);
        }
        if self.noted.take().is_some() {
            // A note that stays is only a hint, and leads to what the entry says.
            let _ = engine.retract(self.name, entry);
        }
        entry.blocked_processes = within;
        Ok(true)
    }

    /// When to look around for a circle, if `first` is when to do so for the first time. Who is to end one looks twice: those
    /// who were asked meanwhile may find that they are held up no more.
    fn next_look(&self, first: Duration) -> Duration {
        self.suspected_at.map_or(first, |at| at + DEADLOCK_CHECK_DELAY)
    }

    /// The circle that this wait is part of, if it is the one who has to give up.
    ///
    /// Most waits are in none, so nothing is written down before there is a reason: somebody asks what we wait for, or
    /// those wait who hold what we wait for. These are asked, and then they look around as well. Whoever comes last asks
    /// those who were there before, so no circle is missed. Who cannot be asked, or not alone, leaves his note at once.
    fn check_deadlock(&mut self, record: &Record, note: bool) -> Result<Option<Vec<Edge>>> {
        let (engine, me) = (self.engine, self.application.entry.proof);
        let own = WaitEdges::keys(&self.application.entry);
        let can_be_asked = std::mem::replace(&mut self.can_be_asked, true) || self.listen()?.answer(&own);
        let mut note = note || !can_be_asked || engine.store.scope() == Scope::Shared;
        for key in record.holders.iter().flat_map(WaitEdges::keys_of_holder) {
            note |= own.contains(&key)
                || engine.host.wake(WakeAddress::OnBehalf(&key))
                || engine.store.read(&key)?.is_some();
        }
        if self.noted.map_or(note, |noted| noted != Published::Everywhere) {
            self.noted = Some(Published::Nowhere);
            self.noted = Some(engine.publish(self.name, &self.application.entry)?);
        }
        // Where it is not noted, those are who hold up the same for as long, and they look around.
        if self.noted.is_none_or(|noted| noted == Published::Nowhere) {
            return Ok(None);
        }
        let Some(circle) = engine.find_deadlock(self.name, &me)? else { return Ok(None) };
        if circle.victim != me {
            engine.host.wake(WakeAddress::Waiter(&circle.victim));
            return Ok(None);
        }
        // What is left may still be a circle.
        for member in circle.members.iter().filter(|member| **member != me) {
            engine.host.wake(WakeAddress::Waiter(member));
        }
        Ok(Some(circle.edges))
    }
}
