//! The attempt to acquire one lock: the caller's request ([`AcquireRequest`]), its terms, on which `lock` decides
//! ([`Acquire`]), and the loop that reads, decides, and commits or waits ([`AcquireAttempt`]).

mod end;
mod wait;

use std::num::NonZeroU32;
use std::ops::ControlFlow;
use std::time::Duration;

use self::wait::AfterWait;
pub(super) use self::wait::OnWait;
pub use self::wait::Waiting;
use super::commit::CasRetry;
use super::commit::{Committed, RecordUpdate};
use super::deadlock::BlockedCallers;
use super::history::Remark;
use super::wait_policy::WaitClock;
use super::{Engine, VersionedRecord, WaitPolicy};
use crate::error::{Error, ErrorKind, Result};
use crate::host::{Invocation, WakeSet};
use crate::lock::{
    self, Acquire, AcquireStep, EndedGrant, Grant, Handle, HandleHash, Lifetime, Mode, Owner, Phase, ProcessId,
    QueuePlace, Record, Refusal, Request as _, Transition, Waiter,
};
use crate::signals::Interrupt;
use crate::store::{Scope, SignalsEndCalls, StoreDeadline, Subscription, Version};

/// Maximum duration of a store call after the first answer or outage. Signals are not handled during the call.
const STORE_CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum time after the deadline for leaving the queue, or for acquiring a lock that is granted already.
pub(super) const CANCEL_GRACE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub enum AcquireResult {
    /// The caller has the lock. The ending is that of the previous holder, if that holder did not release the lock.
    Granted(Box<Grant>, Option<Box<EndedGrant>>),
    Refused(Refusal),
    /// The attempt ended by an interrupt. The caller holds nothing; what the store did not remove ends by itself.
    Interrupted,
}

impl Engine {
    /// Acquires a lock and waits for it as long as `policy` allows.
    /// Fails if the store cannot be read or written. If the lock is acquired nevertheless, its grant ends with the
    /// caller.
    pub fn acquire(
        &self,
        name: &[u8],
        request: &AcquireRequest,
        policy: &WaitPolicy,
        interrupt: Option<&dyn Interrupt>,
        on_wait: &mut OnWait<'_>,
    ) -> Result<AcquireResult> {
        let scope = self.store.scope();
        // Without notifications, other hosts cannot wake a waiter of this store.
        let polls = scope == Scope::Shared && !self.store.abilities().notifies;
        let mut clock = policy.begin(self.host.boottime(), polls);
        let mut attempt = AcquireAttempt {
            engine: self,
            name,
            give_up_at: clock.deadline().map_or(Duration::MAX, |deadline| deadline.saturating_add(CANCEL_GRACE)),
            terms: self.acquire_terms(scope, request, policy),
            begun: None,
            wake_set: None,
            subscription: None,
            interrupt,
            blocked_callers: BlockedCallers::new(request.invocation),
            looked_for_caller: false,
            was_queued: false,
            waits_since: None,
            suspected_at: None,
            is_published: false,
            store_answered: false,
            store_failed: false,
            store_deadline: StoreDeadline::begin(Some(clock.deadline().unwrap_or(Duration::MAX))),
        };
        self.leave_witness(scope, name, &request.handle.proof());
        let calls = SignalsEndCalls::begin(interrupt.is_some());
        let mut taken = attempt.run_through_outages(&mut clock, on_wait);
        drop(calls);
        if attempt.is_late(&taken, &clock) {
            taken = attempt.give_back();
        }
        if !attempt.may_leave_entry(&taken) {
            self.remove_witness(name, &request.handle.proof());
        }
        let entry = &attempt.terms.entry;
        // Without a lease, the supervisor of a command has time for that while the command runs.
        let can_wait = entry.owner.supervisor.is_some() && entry.lifetime == Lifetime::WhileOwnerLives;
        match &taken {
            Ok(AcquireResult::Granted(..)) if can_wait => attempt.retract_later(),
            _ => attempt.retract(),
        }
        taken
    }

    /// Confirms a provisional grant permanently. Returns `None` if the grant was lost in the meantime.
    pub fn confirm(&self, name: &[u8], request: &AcquireRequest) -> Result<Option<Grant>> {
        let confirmation =
            AcquireRequest { phase: Phase::Confirm, refuse_stale: false, invocation: None, ..request.clone() };
        let taken = self.acquire(name, &confirmation, &WaitPolicy::NONE, None, &mut |_| None)?;
        Ok(if let AcquireResult::Granted(grant, _) = taken { Some(*grant) } else { None })
    }

    pub(super) fn is_interrupted(&self, interrupt: Option<&dyn Interrupt>) -> bool {
        interrupt.is_some() && self.host.is_interrupted()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndsWith {
    /// The grant ends with the process that acquires it. Its end without a release leaves a stale lock.
    Process,
    /// The grant ends with the process that acquires it, and that end is a normal release.
    Exit,
    /// The grant ends with its owner, which outlives the process. The process has to confirm a grant that it waited for.
    Owner,
}

#[derive(Debug, Clone)]
pub struct AcquireRequest {
    pub handle: Handle,
    pub mode: Mode,
    pub owner: Owner,
    pub process: ProcessId,
    /// The end of the grant if no process releases it.
    pub ends_with: EndsWith,
    pub claim: Option<Vec<u8>>,
    /// True if a newer request of this kind takes the place of this one in the queue.
    pub latest_only: bool,
    pub lifetime: Lifetime,
    pub slots: Option<u32>,
    /// True if the request fails when the holder ended without a release.
    pub refuse_stale: bool,
    pub phase: Phase,
    /// The grants that do not end before this wait: the enclosing grants of the caller, and its own while it acquires
    /// several names in order.
    pub enclosing_grants: Vec<HandleHash>,
    /// The process whose caller waits for it; a wait derives [`Waiter::blocked_processes`] from it.
    pub invocation: Option<Invocation>,
}

impl AcquireRequest {
    /// Creates the request of a process that acquires an exclusive lock for itself, for as long as it lives.
    pub fn for_itself(handle: Handle, owner: Owner, process: ProcessId) -> AcquireRequest {
        AcquireRequest {
            handle,
            mode: Mode::Exclusive,
            owner,
            process,
            ends_with: EndsWith::Process,
            claim: None,
            latest_only: false,
            lifetime: Lifetime::WhileOwnerLives,
            slots: None,
            refuse_stale: false,
            phase: Phase::Direct,
            enclosing_grants: Vec::new(),
            invocation: None,
        }
    }
}

impl Engine {
    /// Returns the terms of a request for the rules of locking, in a store with the scope `scope`. The caller asks the
    /// store once, because each answer costs three system calls while a directory does not exist.
    pub(super) fn acquire_terms(&self, scope: Scope, request: &AcquireRequest, policy: &WaitPolicy) -> Acquire {
        let needs_leases = self.needs_leases_in(scope);
        let lifetime = match request.phase == Phase::Provisional && needs_leases {
            // Not all users of the store can see whether the process of a provisional grant lives.
            true => Lifetime::KeepalivePending(self.lease.as_millis() as u64),
            false => self.lifetime_in_store(needs_leases, &request.lifetime),
        };
        let entry = Waiter {
            mode: request.mode,
            slots: request.slots.and_then(NonZeroU32::new),
            lifetime,
            // A waiter that stops before it can start must not keep the lock.
            needs_confirmation: true,
            release_on_exit: request.ends_with == EndsWith::Exit,
            claim: request.claim.clone(),
            latest_only: request.latest_only,
            enclosing_grants: request.enclosing_grants.clone(),
            since: self.host.wall().as_millis() as u64,
            ..Waiter::new(request.handle.proof(), request.owner.clone(), request.process)
        };
        Acquire {
            queue: !policy.is_none(),
            refuse_stale: request.refuse_stale,
            phase: request.phase,
            ..Acquire::new(entry)
        }
    }
}

struct AcquireAttempt<'a> {
    engine: &'a Engine,
    name: &'a [u8],
    terms: Acquire,
    /// Time on CLOCK_BOOTTIME after which no further CAS retry follows.
    give_up_at: Duration,
    /// The lifetime that was started for a grant whose commit lost to another writer.
    begun: Option<Lifetime>,
    wake_set: Option<Box<dyn WakeSet + 'a>>,
    subscription: Option<Box<dyn Subscription>>,
    interrupt: Option<&'a dyn Interrupt>,
    /// The callers that this wait blocks, and whether a first inspection has happened.
    blocked_callers: BlockedCallers,
    looked_for_caller: bool,
    /// True if the attempt has entered the queue.
    was_queued: bool,
    /// Start of the wait on CLOCK_BOOTTIME.
    waits_since: Option<Duration>,
    /// Time at which a check found this wait to be the victim of a cycle, on CLOCK_BOOTTIME.
    suspected_at: Option<Duration>,
    /// True if edges of this wait may be published.
    is_published: bool,
    store_answered: bool,
    /// True if a store call has failed and may succeed later.
    store_failed: bool,
    store_deadline: StoreDeadline,
}

impl<'a> AcquireAttempt<'a> {
    /// Runs the attempt and continues it after outages. A shared store may stop answering for a while. A full or
    /// read-only store ends the attempt, unless this waiter is already in the queue.
    fn run_through_outages(&mut self, clock: &mut WaitClock, on_wait: &mut OnWait<'_>) -> Result<AcquireResult> {
        loop {
            let error = match self.run(clock, on_wait) {
                // The signal ended a wait for the store, which can report this only as an error.
                Err(_) if self.engine.is_interrupted(self.interrupt) => return Ok(self.interrupted()),
                Err(error) if self.may_pass(&error) => error,
                taken => return taken,
            };
            self.store_failed = true;
            let (engine, name) = (self.engine, self.name);
            if engine.wait_out_outage(name, error, clock, &mut **self.listen()?, on_wait)? {
                return Ok(self.interrupted());
            }
        }
    }

    fn may_pass(&self, error: &Error) -> bool {
        let is_out_of_reach = error.kind() == ErrorKind::Unavailable;
        let answers_again = self.store_answered || error.is_unreached();
        (is_out_of_reach && answers_again && self.engine.store.scope() == Scope::Shared)
            || (error.is_refused_change() && self.terms.place.is_queued())
    }

    /// Reads the record, decides, and then commits or waits, until the attempt ends.
    fn run(&mut self, clock: &mut WaitClock, on_wait: &mut OnWait<'_>) -> Result<AcquireResult> {
        let engine = self.engine;
        // The record as the last commit left or found it. A step without such a record reads the store.
        let mut known = None;
        let mut retry = engine.cas_retry(self.name).until(self.give_up_at);
        loop {
            self.limit_store_calls(clock);
            let (version, record) = known.take().map_or_else(|| engine.read(self.name), Ok)?;
            self.store_answered = true;
            let end = match self.decide(&record, clock)? {
                Transition::Done(AcquireStep::Granted(grant, before)) => Some(self.found_grant(grant, before)?),
                Transition::Done(AcquireStep::Refused(refusal)) => self.end_refused(&record, refusal)?,
                Transition::Write { record: next, response: step, wake, expired } => {
                    let enters_queue = matches!(step, AcquireStep::Again);
                    if enters_queue {
                        self.was_queued = true;
                        // A queued waiter can receive a wake-up at any time, so it listens before it joins the queue.
                        self.listen()?;
                    }
                    let update = RecordUpdate {
                        expect: version,
                        before: &record,
                        record: &next,
                        wake: &wake,
                        expired: &expired,
                    };
                    match self.commit(update, &mut retry) {
                        Ok(Committed::Done(version)) => match self.after_commit(version, *next, step) {
                            ControlFlow::Break(end) => Some(end),
                            ControlFlow::Continue(now) => {
                                known = Some(now);
                                None
                            }
                        },
                        Ok(Committed::Conflict(found)) => {
                            // On a shared store, the next try reads after its pause.
                            known = found.filter(|_| engine.store.scope() == Scope::Local);
                            self.after_lost_commit(record, &mut retry)?
                        }
                        Err(error) if enters_queue => Some(self.after_refused_entry(record, error, clock)?),
                        Err(error) => return Err(error),
                    }
                }
                // The rules return this step only with a write.
                Transition::Done(AcquireStep::Again) => None,
                Transition::Done(AcquireStep::Enqueue(page)) => self.enqueue(page).map(|()| None)?,
                Transition::Done(AcquireStep::Wait { processes, leases, ahead }) => {
                    let after = self.wait((&version, &record), &processes, &leases, ahead, clock, on_wait)?;
                    if let AfterWait::ReadAgain = after {
                        retry = engine.cas_retry(self.name).until(self.give_up_at);
                    }
                    self.after_wait(after, record)?
                }
            };
            if let Some(end) = end {
                return Ok(end);
            }
        }
    }

    /// Limits the next store calls. The first calls may take as long as the whole wait.
    fn limit_store_calls(&self, clock: &WaitClock) {
        let store = &self.engine.store;
        if (self.store_answered || self.store_failed) && store.scope() == Scope::Shared {
            let soon = self.engine.host.boottime().saturating_add(STORE_CALL_TIMEOUT);
            self.store_deadline.change(Some(clock.deadline().map_or(soon, |deadline| deadline.min(soon))));
        }
    }

    /// Decides about the record. A new grant starts its lifetime, and a caller that must wait prepares to do so.
    fn decide(&mut self, record: &Record, clock: &WaitClock) -> Result<Transition<AcquireStep>> {
        loop {
            let time_left = clock.left(self.engine.host.boottime());
            let mut step = self.engine.decide(record, &self.terms, time_left)?;
            match &mut step {
                Transition::Write { record, response: AcquireStep::Granted(grant, _), .. } => {
                    self.engine.begin_grant(&self.terms.entry.lifetime, &mut self.begun, record, grant)?;
                }
                Transition::Done(AcquireStep::Granted(..)) => {}
                Transition::Done(AcquireStep::Refused(refusal)) if !matches!(refusal, Refusal::Busy(_)) => {}
                // The blocking holder may be our own caller.
                _ if self.refresh_entry()? => {
                    self.limit_store_calls(clock);
                    continue;
                }
                _ => {}
            }
            return Ok(step);
        }
    }

    fn commit(&mut self, update: RecordUpdate<'_>, retry: &mut CasRetry<'_>) -> Result<Committed> {
        // A caller that does not queue reads busy next, and a caller that confirms its grant has no rival.
        retry.has_priority = !self.terms.queue || update.before.holder(&self.terms.entry.proof).is_some();
        self.engine.commit_update(&[update], &[], Remark::default())
    }

    /// Ends the attempt after a commit, or returns the record to go on with.
    fn after_commit(
        &mut self,
        version: Version,
        now: Record,
        step: AcquireStep,
    ) -> ControlFlow<AcquireResult, VersionedRecord> {
        match Acquire::with_tokens(step, version.number) {
            AcquireStep::Granted(grant, before) => ControlFlow::Break(AcquireResult::Granted(grant, before)),
            AcquireStep::Refused(refusal) => ControlFlow::Break(AcquireResult::Refused(refusal)),
            AcquireStep::Again | AcquireStep::Enqueue(_) | AcquireStep::Wait { .. } => {
                if now.waiter(&self.terms.entry.proof).is_some() {
                    self.terms.place = QueuePlace::InRecord;
                }
                ControlFlow::Continue((Some(version), lock::committed(now, version.number)))
            }
        }
    }

    fn enqueue(&mut self, page: u64) -> Result<()> {
        self.was_queued = true;
        self.listen()?;
        let (engine, name, entry) = (self.engine, self.name, &self.terms.entry);
        if let Some(before) = self.terms.place.on_page()
            && before.page != page
        {
            engine.dequeue(name, before.page, &entry.proof)?;
        }
        self.terms.place = engine.enqueue(name, page, entry)?.map_or(QueuePlace::BesidePage(page), QueuePlace::OnPage);
        Ok(())
    }
}
