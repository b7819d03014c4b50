//! A single wait: the data that is published before it, the wake-up sources, and the cycle that it may be part of.

use std::time::Duration;

use super::Acquisition;
use crate::engine::Engine;
use crate::engine::deadlock::Published;
use crate::engine::wait_policy::WaitClock;
use crate::error::{Error, Result};
use crate::host::{WaitSet, WaitSources, WakeAddress, WakeReason};
use crate::lock::{Edge, Lease, PidDomain, ProcessId, Record, Sighting, WaitEdges};
use crate::store::{Scope, Topic, Version};

/// Delay of deadlock checks: shorter waits form no cycle, and even busy shells mostly run their next command by then.
pub(in crate::engine) const DEADLOCK_CHECK_DELAY: Duration = Duration::from_millis(100);

/// Duration after which a wait publishes its edges for processes in other network namespaces, which cannot ask.
const LONG: Duration = Duration::from_secs(1);

/// Time past the end of a lease that covers the rounding of every clock.
const ROUNDING: Duration = Duration::from_millis(1);

/// Progress of a wait, for its callback.
#[derive(Debug, Clone, Copy)]
pub struct Waiting<'a> {
    /// The record as last read.
    pub record: &'a Record,
    /// Number of waiters ahead in the queue.
    pub ahead: usize,
    /// Remaining time of the wait; `None` means no limit.
    pub left: Option<Duration>,
    /// Reason why the store cannot be read at the moment. The record is unknown then.
    pub outage: Option<&'a Error>,
}

/// Callback at the start and at each continuation of a wait. Returns the maximum time until its next call.
pub(in crate::engine) type Onlooker<'a> = dyn FnMut(&Waiting<'_>) -> Option<Duration> + 'a;

/// Next step after a wait.
pub(super) enum AfterWait {
    /// The record may have changed.
    Look,
    /// The policy ends the wait.
    TimeOver,
    /// The interrupt ended the wait.
    Interrupted,
    /// This wait is the victim of the cycle with these edges.
    GiveUp(Vec<Edge>),
}

impl Engine {
    /// Returns the maximum pause with `ahead` waiters in front, or `None` if the policy ends the wait.
    fn pause(
        &self,
        clock: &mut WaitClock,
        ahead: usize,
        leases: &[Lease],
        seen: &[Sighting],
    ) -> Result<Option<Duration>> {
        let Some(mut pause) = clock.next_pause(self.host.boottime(), ahead) else { return Ok(None) };
        for lease in leases {
            pause = pause.min(self.store.leases().time_to_expiry(lease, seen)? + ROUNDING);
        }
        // A longer pause would let this waiter's lease expire, and other hosts would consider it dead.
        Ok(Some(if self.store.scope() == Scope::Shared { pause.min(self.lease / 4) } else { pause }))
    }
}

impl<'a> Acquisition<'a> {
    /// Gathers the data that a waiter, or a caller that would have to wait, publishes. Returns true if it has changed.
    pub(super) fn prepare_to_wait(&mut self) -> Result<bool> {
        let (engine, entry) = (self.engine, &mut self.application.entry);
        let mut changed = false;
        // A waiter has time to inspect its callers twice, so only a caller that does not wait does so here.
        if !self.application.queue
            && !std::mem::replace(&mut self.looked_for_caller, true)
            && let Some(within) = self.blocked_callers.immediately(&*engine.host)
        {
            entry.blocked_processes = within;
            changed = true;
        }
        // Other hosts cannot see whether a waiter lives, so the waiter renews a lease.
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
                // The next pass of the loop tries again.
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

    /// Waits for one of these processes and leases to end, for a wake-up, or for the end of the pause that the policy
    /// allows.
    pub(super) fn wait(
        &mut self,
        (version, record): (&Option<Version>, &Record),
        processes: &[(PidDomain, ProcessId)],
        leases: &[Lease],
        ahead: usize,
        clock: &mut WaitClock,
        on_wait: &mut Onlooker<'_>,
    ) -> Result<AfterWait> {
        let engine = self.engine;
        let Some(pause) = engine.pause(clock, ahead, leases, &record.sightings)? else {
            return Ok(AfterWait::TimeOver);
        };
        let end = engine.host.boottime() + pause;
        let mut show = || {
            let left = clock.left(engine.host.boottime());
            on_wait(&Waiting { record, ahead, left, outage: None })
        };
        self.wait_until(end, record, version.as_ref(), processes, &mut show)
    }

    /// Waits until `end` at most. Calls `show` at the start and after each deadlock check.
    fn wait_until(
        &mut self,
        end: Duration,
        record: &Record,
        version: Option<&Version>,
        processes: &[(PidDomain, ProcessId)],
        show: &mut dyn FnMut() -> Option<Duration>,
    ) -> Result<AfterWait> {
        let engine = self.engine;
        let here = engine.host.domain()?;
        let visible = processes.iter().filter(|(domain, _)| here.shares_pids_with(domain));
        let visible: Vec<ProcessId> = visible.map(|(_, process)| *process).collect();
        // A process in another network namespace can wake this waiter only through the store.
        let parties = record.holders.iter().map(|grant| &grant.owner);
        let parties = parties.chain(record.waiters.iter().map(|waiter| &waiter.owner));
        let supervisors: Vec<ProcessId> = parties.clone().filter_map(|owner| owner.supervisor).collect();
        let mut homes = parties.map(|party| &party.domain).chain(processes.iter().map(|(home, _)| home));
        let notifies = engine.store.abilities().notifies;
        let needs_bell = notifies || homes.any(|home| home.net != here.net);
        if let Some(version) = version.filter(|_| self.subscription.is_none() && needs_bell) {
            self.subscription =
                engine.store.subscribe(Topic::Channel(&self.application.entry.proof.channel(), *version));
            // The grant may have arrived before the subscription existed.
            let is_late = self.subscription.is_some() && !notifies;
            if is_late && engine.version(self.name)?.as_ref() != Some(version) {
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
                // A failed check does not end the wait and is repeated; a full store, for example, may refuse an edge.
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

    /// Inspects the callers that this wait blocks again. Returns true if they have changed.
    fn look_at_callers_again(&mut self, now: Duration) -> Result<bool> {
        let (engine, entry) = (self.engine, &mut self.application.entry);
        let mut within = entry.blocked_processes.clone();
        self.blocked_callers.look_again(&*engine.host, now, &mut within);
        if within == entry.blocked_processes {
            return Ok(false);
        }
        if self.noted.take().is_some() {
            // An edge that stays is only a hint, and leads to the current entry.
            let _ = engine.retract(self.name, entry);
        }
        entry.blocked_processes = within;
        Ok(true)
    }

    /// Returns the time of the next deadlock check on CLOCK_BOOTTIME; `first` is the time of the first one. A victim
    /// checks twice: the processes that it asked may find that they are no longer blocked.
    fn next_look(&self, first: Duration) -> Duration {
        self.suspected_at.map_or(first, |at| at + DEADLOCK_CHECK_DELAY)
    }

    /// Returns the edges of the cycle that this wait is part of, if this wait is the victim.
    ///
    /// Most waits are in no cycle, so a wait publishes its edges only if a process asks for them or its holders wait.
    /// It asks those holders, and they check for a cycle too. The last waiter asks the earlier ones, so no cycle is
    /// missed. A wait that cannot be asked, or shares its keys, publishes immediately.
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
        // Unpublished edges repeat those of waits that block the same processes for as long and check for cycles.
        if self.noted.is_none_or(|noted| noted == Published::Nowhere) {
            return Ok(None);
        }
        let Some(circle) = engine.find_deadlock(self.name, &me)? else { return Ok(None) };
        if circle.victim != me {
            engine.host.wake(WakeAddress::Waiter(&circle.victim));
            return Ok(None);
        }
        // The remaining waits may still form a cycle.
        for member in circle.members.iter().filter(|member| **member != me) {
            engine.host.wake(WakeAddress::Waiter(member));
        }
        Ok(Some(circle.edges))
    }
}
