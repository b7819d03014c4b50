//! Acquisition of a lock, including the wait for it.

mod wait;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use self::wait::AfterWait;
use super::blocked_callers::BlockedCallers;
use super::deadlock::Published;
use super::wait_policy::WaitClock;
use super::{AcquireRequest, Engine, RecordUpdate, WaitPolicy, with_token};
use crate::error::{Error, ErrorKind, Result};
use crate::host::WaitSet;
use crate::lock::{Acquire, Grant, HandleHash, Lease, Lifetime, Record, Request, Response, Sighting, Transition};
use crate::store::{Scope, Subscription};

pub use wait::Waiting;
pub(super) use wait::{DEADLOCK_CHECK_DELAY, Onlooker};

/// Maximum duration of one store call after the first answer or outage: a waiter hears no interrupt during the call.
const STORE_CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum time after the deadline for leaving the queue, or for acquiring a lock that is granted already.
pub(super) const CANCEL_GRACE: Duration = Duration::from_millis(500);

/// Time past the end of a lease that covers the rounding of every clock.
const ROUNDING: Duration = Duration::from_millis(1);

/// Result of an attempt to acquire a lock.
#[derive(Debug)]
pub enum AcquireResult {
    /// The attempt ended with this response.
    Answer(Response),
    /// The attempt ended by an interrupt. The caller holds nothing, and the queue has no entry of it.
    Interrupted,
}

impl Engine {
    /// Acquires a lock and waits for it as long as `policy` allows.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read or written. If the lock is acquired nevertheless, its grant ends with the
    /// caller.
    pub fn acquire(
        &self,
        name: &[u8],
        request: &AcquireRequest,
        policy: &WaitPolicy,
        interrupt: Option<BorrowedFd<'_>>,
        on_wait: &mut Onlooker<'_>,
    ) -> Result<AcquireResult> {
        let mut clock = policy.begin(self.host.boottime(), self.must_poll());
        let mut attempt = Acquisition {
            engine: self,
            name,
            give_up_at: clock.deadline().map_or(Duration::MAX, |deadline| deadline.saturating_add(CANCEL_GRACE)),
            application: self.application(request, policy),
            begun: None,
            wait_set: None,
            subscription: None,
            interrupt,
            blocked_callers: BlockedCallers::new(request.invocation),
            looked_for_caller: false,
            look_around_at: None,
            suspected_at: None,
            can_be_asked: false,
            noted: None,
            in_touch: false,
            was_out_of_reach: false,
            is_queued: false,
        };
        self.store.set_deadline(Some(clock.deadline().unwrap_or(Duration::MAX)));
        self.leave_witness(name, &request.handle.proof());
        let taken = attempt.run_through_outages(&mut clock, on_wait);
        // A waiter that gave up may still be in the queue, if the store refused its removal.
        let may_be_there = match &taken {
            Ok(AcquireResult::Answer(Response::Busy(_))) => !policy.is_none(),
            Ok(AcquireResult::Answer(response)) => matches!(response, Response::Granted(..)),
            _ => true,
        };
        if !may_be_there {
            self.remove_witness(name, &request.handle.proof());
        }
        if attempt.noted.is_some() {
            // An edge that stays points to a wait that no longer exists, so it does no harm.
            let _ = self.retract(name, &attempt.application.entry);
        }
        self.store.set_deadline(None);
        taken
    }

    /// Confirms a provisional grant permanently. Returns `None` if the grant was lost in the meantime.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read or written.
    pub fn confirm(&self, name: &[u8], request: &AcquireRequest) -> Result<Option<Grant>> {
        let for_good = AcquireRequest {
            provisional: false,
            confirming: true,
            refuse_stale: false,
            invocation: None,
            ..request.clone()
        };
        match self.acquire(name, &for_good, &WaitPolicy::NONE, None, &mut |_| None)? {
            AcquireResult::Answer(Response::Granted(grant, _)) => Ok(Some(grant)),
            _ => Ok(None),
        }
    }

    /// Limits the store calls to the time that `policy` allows from now.
    pub fn bound_by(&self, policy: &WaitPolicy) {
        let until = policy.limit.map_or(Duration::MAX, |limit| self.host.boottime().saturating_add(limit));
        self.store.set_deadline(Some(until));
    }

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
            pause = pause.min(self.store.time_to_expiry(lease, seen)? + ROUNDING);
        }
        // A longer pause would let this waiter's lease expire, and other hosts would consider it dead.
        Ok(Some(if self.store.scope() == Scope::Shared { pause.min(self.lease / 4) } else { pause }))
    }

    /// Returns true if a signal arrived and the caller wants to handle it.
    pub(super) fn is_interrupted(&self, interrupt: Option<BorrowedFd<'_>>) -> bool {
        interrupt.is_some() && self.host.is_interrupted()
    }

    /// Returns true if other hosts cannot wake a waiter of this store.
    fn must_poll(&self) -> bool {
        self.store.scope() == Scope::Shared && !self.store.can_notify()
    }
}

/// State of one attempt to acquire a lock.
struct Acquisition<'a> {
    engine: &'a Engine,
    name: &'a [u8],
    application: Acquire,
    /// Time on CLOCK_BOOTTIME after which no further CAS retry follows.
    give_up_at: Duration,
    /// The lifetime that was started for a grant whose commit lost to another writer.
    begun: Option<Lifetime>,
    wait_set: Option<Box<dyn WaitSet + 'a>>,
    subscription: Option<Box<dyn Subscription>>,
    interrupt: Option<BorrowedFd<'a>>,
    /// The callers that this wait blocks, and whether a first inspection has happened.
    blocked_callers: BlockedCallers,
    looked_for_caller: bool,
    /// Time of the first deadlock check on CLOCK_BOOTTIME.
    look_around_at: Option<Duration>,
    /// Time at which a check found this wait to be the victim of a cycle, on CLOCK_BOOTTIME.
    suspected_at: Option<Duration>,
    /// True if this wait listens for processes that ask what it waits for.
    can_be_asked: bool,
    /// The extent to which this wait's edges are published; `None` if no other process needs them.
    noted: Option<Published>,
    /// True if the store has answered before.
    in_touch: bool,
    /// True if the store has failed to answer before.
    was_out_of_reach: bool,
    /// True if the store has accepted this waiter into the queue.
    is_queued: bool,
}

impl<'a> Acquisition<'a> {
    /// Runs the attempt and continues it after outages. A shared store may stop answering for a while. A full or
    /// read-only store ends the attempt, unless this waiter is already in the queue.
    fn run_through_outages(&mut self, clock: &mut WaitClock, on_wait: &mut Onlooker<'_>) -> Result<AcquireResult> {
        loop {
            let error = match self.run(clock, on_wait) {
                // The signal ended a wait for the store, which can report this only as an error.
                Err(_) if self.engine.is_interrupted(self.interrupt) => return Ok(self.interrupted()),
                Err(error) if self.may_pass(&error) => error,
                taken => return taken,
            };
            self.was_out_of_reach = true;
            let (engine, name) = (self.engine, self.name);
            if engine.outlast(name, error, clock, &mut **self.listen()?, on_wait)? {
                return Ok(self.interrupted());
            }
        }
    }

    fn may_pass(&self, error: &Error) -> bool {
        let is_out_of_reach = error.kind() == ErrorKind::Unavailable;
        let answers_again = self.in_touch || error.is_unreached();
        (is_out_of_reach && answers_again && self.engine.store.scope() == Scope::Shared)
            || (error.is_refused_change() && self.is_queued)
    }

    fn run(&mut self, clock: &mut WaitClock, on_wait: &mut Onlooker<'_>) -> Result<AcquireResult> {
        let engine = self.engine;
        let mut current = None;
        let mut race = engine.race(self.name).until(self.give_up_at);
        loop {
            if (self.in_touch || self.was_out_of_reach) && engine.store.scope() == Scope::Shared {
                let soon = engine.host.boottime().saturating_add(STORE_CALL_TIMEOUT);
                engine.store.set_deadline(Some(clock.deadline().map_or(soon, |deadline| deadline.min(soon))));
            }
            let (version, record) = match current.take() {
                Some(current) => current,
                None => engine.read(self.name)?,
            };
            self.in_touch = true;
            let policy = clock.left(engine.host.boottime());
            let mut step = engine.decide(&record, &Request::Acquire(self.application.clone()), policy)?;
            match &mut step {
                Transition::Write { record, response: Some(Response::Granted(grant, _)), .. } => {
                    self.begin(record, grant)?;
                }
                Transition::Done(response) if !matches!(response, Response::Busy(_)) => {}
                // The blocking holder may be our own caller.
                _ if self.prepare_to_wait()? => {
                    current = Some((version, record));
                    continue;
                }
                _ => {}
            }
            match step {
                Transition::Done(outcome) => {
                    // Another process has claimed the name, possibly under the same id.
                    if let Response::Claimed(grant) | Response::Granted(grant, _) = &outcome
                        && grant.proof != self.application.entry.proof
                    {
                        self.leave_if_possible()?;
                    }
                    // A cycle that is detected only during the wait finds this waiter in the queue.
                    if let Response::Deadlock(_) = outcome
                        && (self.application.position.is_some() || is_waiting(&record, &self.application.entry.proof))
                        && let Response::GrantedMeanwhile(_) = self.leave_if_possible()?
                    {
                        continue;
                    }
                    if let Response::Busy(_) = outcome {
                        engine.note_leases(&record);
                    }
                    return Ok(AcquireResult::Answer(outcome));
                }
                Transition::Write { record: mut next, response: outcome, wake, over } => {
                    if outcome.is_none() {
                        // A queued waiter can receive a wake-up at any time, so it listens before it joins the queue.
                        self.listen()?;
                    }
                    race.has_priority = !self.application.queue || holds(&record, &self.application.entry.proof);
                    let swapped =
                        RecordUpdate { expect: version, before: &record, record: &next, wake: &wake, over: &over };
                    let stored = engine.commit_update(&[swapped], &[], None);
                    if let Err(error) = &stored
                        && outcome.is_none()
                        && self.may_pass(error)
                        && clock.left(engine.host.boottime()) == Some(Duration::ZERO)
                        && let Some(busy) = self.give_up(record.clone())?
                    {
                        // The store refused the waiter's entry, and the lock is still busy.
                        return Ok(busy);
                    }
                    match (stored?, outcome) {
                        (Some(version), Some(outcome)) => {
                            return Ok(AcquireResult::Answer(with_token(outcome, &version)));
                        }
                        (Some(version), None) => {
                            self.is_queued = true;
                            // A grant in the record that ends before the next read must keep its token.
                            crate::lock::number(&mut next, version.number);
                            current = Some((Some(version), next));
                        }
                        (None, _) if race.backoff()? => {}
                        (None, _) => {
                            if let Some(busy) = self.give_up(record)? {
                                return Ok(busy);
                            }
                        }
                    }
                }
                Transition::Enqueue(page) => {
                    self.listen()?;
                    if let Some(place) = self.application.position.take().filter(|place| place.page != page) {
                        engine.dequeue(self.name, place.page, &self.application.entry.proof)?;
                    }
                    self.application.position = engine.enqueue(self.name, page, &self.application.entry)?;
                    self.application.full = self.application.position.is_none().then_some(page);
                }
                Transition::Wait { processes, leases, ahead } => {
                    let Some(pause) = engine.pause(clock, ahead, &leases, &record.sightings)? else {
                        match self.give_up(record)? {
                            Some(busy) => return Ok(busy),
                            None => continue,
                        }
                    };
                    let end = engine.host.boottime() + pause;
                    let mut show = || {
                        let left = clock.left(engine.host.boottime());
                        on_wait(&Waiting { record: &record, ahead, left, outage: None })
                    };
                    match self.wait(&record, version.as_ref(), &processes, end, &mut show)? {
                        AfterWait::Look => race = engine.race(self.name).until(self.give_up_at),
                        AfterWait::Interrupted => return Ok(self.interrupted()),
                        AfterWait::GiveUp(links) => match self.leave_if_possible()? {
                            Response::GrantedMeanwhile(_) => continue,
                            _ => return Ok(AcquireResult::Answer(Response::Deadlock(links))),
                        },
                    }
                }
            }
        }
    }

    /// Starts the lifetime of a grant just before its commit.
    fn begin(&mut self, record: &mut Record, grant: &mut Grant) -> Result<()> {
        self.engine.begin_grant(&self.application.lifetime, &mut self.begun, record, grant)
    }

    /// Ends the wait at its deadline: returns busy, or `None` if the lock was granted in the meantime.
    fn give_up(&mut self, record: Record) -> Result<Option<AcquireResult>> {
        match self.leave_if_possible()? {
            Response::GrantedMeanwhile(_) => Ok(None),
            _ => {
                self.engine.note_leases(&record);
                Ok(Some(AcquireResult::Answer(Response::Busy(record.holders))))
            }
        }
    }

    /// Leaves the queue. A full or read-only store does not change the response: the next process that changes the
    /// record skips a waiter that has ended.
    fn leave_if_possible(&mut self) -> Result<Response> {
        match self.leave() {
            Err(error) if error.is_refused_change() => Ok(Response::Cancelled),
            left => left,
        }
    }

    /// Leaves the queue. If other writers win until `give_up_at`, the waiter revokes its lease, where the store can do
    /// that. The next process then skips the waiter and any grant that it received.
    fn leave(&mut self) -> Result<Response> {
        // A channel in the store would prevent the removal of a directory of records that is otherwise empty.
        self.subscription = None;
        let (engine, me) = (self.engine, self.application.entry.proof);
        let page = self.application.position.as_ref().map(|place| place.page);
        if let Some(page) = page
            && engine.dequeue(self.name, page, &me)?
        {
            // A page that was refilled into the record and removed is created anew if its last waiter joins it once more.
            // That waiter stands in the record too.
            let (_, record) = engine.read(self.name)?;
            if !is_waiting(&record, &me) && !holds(&record, &me) {
                engine.remove_witness(self.name, &me);
                return Ok(Response::Cancelled);
            }
        }
        let ask = Request::Cancel(me, page);
        if let Some(response) = engine.try_apply(engine.race_for(self.name, &ask).until(self.give_up_at), &ask, None)? {
            return Ok(response);
        }
        if let Some(lease) = &self.application.entry.lease {
            engine.store.revoke_lease(lease);
            if engine.store.lease_expired(lease)? {
                let (_, record) = engine.read(self.name)?;
                let granted = record.holders.into_iter().find(|grant| grant.proof == me);
                return Ok(granted.map_or(Response::Cancelled, Response::GrantedMeanwhile));
            }
        }
        engine.apply(self.name, &ask)
    }

    /// Gives up because of the interrupt. Entries that cannot be removed immediately end on their own.
    fn interrupted(&mut self) -> AcquireResult {
        self.give_up_at = self.engine.host.boottime();
        self.engine.store.set_deadline(Some(self.give_up_at));
        let _ = self.abandon();
        AcquireResult::Interrupted
    }

    /// Leaves the queue, and releases a grant that arrived in the meantime.
    fn abandon(&mut self) -> Result<()> {
        if let Response::GrantedMeanwhile(_) = self.leave()? {
            let credentials = self.engine.supervisor(self.application.entry.proof)?;
            self.engine.apply(self.name, &Request::Release(credentials))?;
        }
        Ok(())
    }
}

fn holds(record: &Record, proof: &HandleHash) -> bool {
    record.holders.iter().any(|grant| grant.proof == *proof)
}

fn is_waiting(record: &Record, proof: &HandleHash) -> bool {
    record.waiters.iter().any(|waiter| waiter.proof == *proof)
}
