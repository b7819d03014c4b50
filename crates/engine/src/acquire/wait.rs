//! A single wait: the data that is published before it, the wake-up sources, and the cycle that it may be part of.

use std::time::Duration;

use super::{AcquireAttempt, AcquireResult};
use crate::VersionedRecord;
use crate::deadlock::{DEADLOCK_DELAY, SECOND_CHECK_DELAY};
use crate::wait_policy::{OnWait, Progress};
use host::signals::Interrupt;
use host::{WakeAddress, WakeReason, WakeSet, Watched};
use lock::{Awaited, Cycle, HandleHash, Lifetime, Owner, PidDomain, ProcessId, Record, Result, WaitEdges};
use store::{Topic, Version, guarded};

/// Covers the rounding of every clock, after the end of a lease.
const ROUNDING: Duration = Duration::from_millis(1);

/// Time between two looks of the next waiter at the lock of a descriptor.
const DESCRIPTOR_CHECK: Duration = Duration::from_millis(20);

fn watched(record: &Record, (domain, process): &(PidDomain, ProcessId)) -> Watched {
    let owner = record.owners().find(|owner| owner.domain == *domain && owner.processes.contains(process));
    Watched { process: *process, supervisor: owner.and_then(|owner| owner.supervisor) }
}

impl<'a> AcquireAttempt<'a> {
    /// Gathers what others must know of a waiter, or of a caller that would have to wait. True if that has changed.
    pub(super) fn refresh_entry(&mut self) -> Result<bool> {
        let (engine, entry) = (&self.engine, &mut self.terms.entry);
        let mut changed = false;
        // A waiter inspects its callers twice during the wait; a caller that does not wait does it only here.
        if !self.terms.queue
            && !std::mem::replace(&mut self.looked_for_caller, true)
            && let Some(blocked) = self.blocked_callers.immediately(&*engine.host)
        {
            entry.blocked_processes = blocked;
            changed = true;
        }
        // If others cannot see whether a waiter lives, the waiter renews a lease.
        let left = entry.lease.as_ref().and_then(|lease| engine.left_of_own(lease)).unwrap_or_default();
        if self.terms.queue && engine.needs_leases() && left < engine.lease / 2 {
            match engine.grant_lease(engine.lease) {
                Ok(lease) => {
                    entry.lease = Some(lease);
                    changed = true;
                }
                // The next pass of the loop tries again.
                Err(error) if error.is_refused_change() && self.terms.place.is_queued() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(changed)
    }

    pub(super) fn listen(&mut self) -> Result<&mut Box<dyn WakeSet + 'a>> {
        Ok(match &mut self.wake_set {
            Some(wake_set) => wake_set,
            none => {
                let interrupt = self.interrupt.map(Interrupt::descriptors).transpose()?.unwrap_or_default();
                none.insert(self.base.host.wake_set(&self.terms.entry.proof, interrupt)?)
            }
        })
    }

    /// Waits for these events, a wake-up, or the end of a pause of the policy. `None` if the record may have changed.
    pub(super) fn wait(
        &mut self,
        (version, record): VersionedRecord,
        awaited: &Awaited,
        on_wait: &mut OnWait<'_>,
    ) -> Result<Option<AcquireResult>> {
        let engine = self.engine.clone();
        self.retry = self.base.cas_retry(self.name).until(self.give_up_at);
        if engine.end_abandoned(&record)? {
            return Ok(None);
        }
        let Some(mut pause) = self.clock.next_pause(engine.host.boottime(), awaited.ahead) else {
            return self.give_up(record);
        };
        for lease in &awaited.leases {
            pause = pause.min(engine.store.leases().time_to_expiry(engine.call, lease, &record.sightings)? + ROUNDING);
        }
        if engine.needs_leases() {
            // A longer pause would let this waiter's lease expire, and others would consider it dead.
            pause = pause.min(engine.lease / 4);
        }
        if awaited.has_descriptor {
            pause = pause.min(DESCRIPTOR_CHECK);
        }
        let (clock, now) = (self.clock, engine.host.boottime());
        let end = now + engine.pause_for_others(pause, clock.left(now));
        let mut show = || {
            let left = clock.left(engine.host.boottime());
            on_wait(&Progress { record: &record, ahead: awaited.ahead, left, outage: None, call: engine.call })
        };
        self.wait_until(end, &record, version.as_ref(), &awaited.processes, &mut show)
    }

    /// Waits until `end` at most. Calls `show` at the start and after each deadlock check.
    fn wait_until(
        &mut self,
        end: Duration,
        record: &Record,
        version: Option<&Version>,
        processes: &[(PidDomain, ProcessId)],
        show: &mut dyn FnMut() -> Option<Duration>,
    ) -> Result<Option<AcquireResult>> {
        let engine = self.engine.clone();
        let here = engine.host.domain()?;
        let visible = processes.iter().filter(|(domain, _)| here.shares_pids_with(domain));
        let mut watched: Vec<Watched> = visible.map(|process| watched(record, process)).collect();
        match self.living_owners() {
            Some(owners) if owners.is_empty() => return self.end_without_owner(),
            owners => watched.extend(owners.into_iter().flatten()),
        }
        // A process in another network namespace can wake this waiter only through the store.
        let mut domains = record.owners().map(|owner| &owner.domain).chain(processes.iter().map(|(domain, _)| domain));
        let notifies = engine.store.abilities().notifies;
        let needs_channel = notifies || domains.any(|domain| domain.net != here.net);
        if let Some(version) = version.filter(|_| self.subscription.is_none() && needs_channel) {
            self.subscription =
                engine.store.subscribe(engine.call, Topic::Channel(&self.terms.entry.proof.channel(), *version));
            // The grant may have arrived before the subscription existed.
            let is_late = self.subscription.is_some() && !notifies;
            if is_late && engine.version(self.name)?.as_ref() != Some(version) {
                return Ok(None);
            }
        }
        let since = *self.waits_since.get_or_insert_with(|| {
            let holders = record.holders.iter().filter(|grant| here.shares_pids_with(&grant.owner.domain));
            let owners = holders.flat_map(|grant| grant.owner.processes.iter().copied()).collect();
            self.blocked_callers.begin(engine.host.boottime(), owners)
        });
        loop {
            let now = engine.host.boottime();
            if self.look_at_callers_again(now)? {
                return Ok(None);
            }
            if self.next_check(since).is_some_and(|at| now >= at) {
                // A failed check does not end the wait and is repeated; a full store, for example, may refuse an edge.
                match self.check_deadlock().unwrap_or_default() {
                    Some(cycle) if self.suspected_at.is_some() => return self.end_cycle(cycle, record),
                    found => self.suspected_at = found.map(|_| now),
                }
            }
            let looks = [self.blocked_callers.next_look(), self.next_check(since)];
            let to_look = looks.into_iter().flatten().filter(|at| *at > now).map(|at| at - now).min();
            let at_most = [show(), to_look].into_iter().flatten().fold(end.saturating_sub(now), Duration::min);
            self.listen()?;
            let Some(wake_set) = &mut self.wake_set else { continue };
            // The check may have called the store.
            engine.store.before_wait(engine.call, false);
            match wake_set.wait(&watched, &mut self.subscription, at_most)? {
                WakeReason::Interrupted => return Ok(Some(self.interrupted())),
                WakeReason::TimeOver if engine.host.boottime() < end => {}
                WakeReason::LookAgain | WakeReason::TimeOver => return Ok(None),
            }
        }
    }

    /// Processes that the grant will depend on, and that do not end with this one. `None` if it will depend on no other.
    fn living_owners(&self) -> Option<Vec<Watched>> {
        let entry = &self.terms.entry;
        let Owner { domain, processes, .. } = &*entry.owner;
        if processes.is_empty() || processes.contains(&entry.process) || entry.lifetime == Lifetime::UntilReleased {
            return None;
        }
        let lives = |process: &&ProcessId| {
            self.engine.host.liveness(domain, process, self.engine.store.scope()).may_live_here()
        };
        let living = processes.iter().filter(lives);
        Some(living.map(|process| Watched { process: *process, supervisor: None }).collect())
    }

    /// Inspects the callers that this wait blocks again. Returns true if they have changed.
    fn look_at_callers_again(&mut self, now: Duration) -> Result<bool> {
        let mut blocked = self.terms.entry.blocked_processes.clone();
        self.blocked_callers.look_again(&*self.engine.host, now, &mut blocked);
        if blocked == self.terms.entry.blocked_processes {
            return Ok(false);
        }
        self.retract();
        self.terms.entry.blocked_processes = blocked;
        Ok(true)
    }

    /// Time of the next deadlock check on CLOCK_BOOTTIME, if this wait may be part of a cycle.
    fn next_check(&self, since: Duration) -> Option<Duration> {
        let blocks_others = self.blocked_callers.is_known() && !WaitEdges::keys(&self.terms.entry).is_empty();
        blocks_others.then(|| self.suspected_at.map_or(since + DEADLOCK_DELAY, |at| at + SECOND_CHECK_DELAY))
    }

    /// Publishes this wait, then returns the cycle that it is part of, if it is the victim.
    ///
    /// All members do this in this order, so the last of them finds the whole cycle. It wakes the victim, and the
    /// victim wakes all members, which inspect their callers again.
    fn check_deadlock(&mut self) -> Result<Option<Cycle>> {
        let (engine, me) = (&self.engine, self.terms.entry.proof);
        let was_published = std::mem::replace(&mut self.is_published, true);
        // Enough similar waits are published already; they look for the cycle for this one.
        if !engine.publish(self.name, &self.terms.entry)? {
            self.is_published = was_published;
            return Ok(None);
        }
        let Some(cycle) = engine.find_deadlock(self.name, &me)? else { return Ok(None) };
        if cycle.victim != me {
            engine.host.wake(WakeAddress::Waiter(&cycle.victim));
            return Ok(None);
        }
        self.wake(cycle.members.iter());
        Ok(Some(cycle))
    }

    /// Makes these waiters of this host inspect their callers and check for a deadlock again.
    pub(super) fn wake<'b>(&self, waiters: impl Iterator<Item = &'b HandleHash>) {
        for waiter in waiters.filter(|waiter| **waiter != self.terms.entry.proof) {
            self.engine.host.wake(WakeAddress::Waiter(waiter));
        }
    }

    /// Leaves the edges of this wait, which has ended with a grant, to [`crate::Engine::retract_granted`].
    pub(super) fn retract_later(&mut self) {
        if std::mem::take(&mut self.is_published) {
            guarded(&self.engine.granted_waits).push((self.name.to_vec(), self.terms.entry.clone()));
        }
    }

    /// Removes the published edges of this wait. An edge that stays is only a hint, so it does no harm.
    pub(super) fn retract(&mut self) {
        if std::mem::take(&mut self.is_published) {
            let _ = self.engine.retract(self.name, &self.terms.entry);
        }
    }
}
