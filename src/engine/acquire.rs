//! Taking a lock, with all the waiting that this may need.

mod wait;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use self::wait::AfterWait;
use super::blocked_callers::BlockedCallers;
use super::deadlock::Published;
use super::wait_policy::WaitClock;
use super::{AcquireRequest, Engine, RecordUpdate, WaitPolicy, with_token};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::host::WaitSet;
use crate::lock::{Acquire, Grant, HandleHash, Lease, Lifetime, Record, Request, Response, Sighting, Transition};
use crate::store::{Scope, Subscription};

pub use wait::Waiting;
pub(super) use wait::{DEADLOCK_CHECK_DELAY, Onlooker};

/// So long a waiter asks a store that answered before, or did not: while he asks, he does not hear the interrupt.
const STORE_CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// So long after his time somebody who waited may go on trying to leave the queue, or to get what is granted already.
pub(super) const CANCEL_GRACE: Duration = Duration::from_millis(500);

/// A lease that is over by this much is over on every clock that rounds.
const ROUNDING: Duration = Duration::from_millis(1);

/// How an attempt to take a lock ended.
#[derive(Debug)]
pub enum AcquireResult {
    /// With this answer.
    Answer(Response),
    /// Not at all: the interrupt came. Nothing is held, nothing is queued.
    Interrupted,
}

impl Engine {
    /// Takes a lock, waiting for it as long as `patience` lasts.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked or told. Should the lock be taken all the same, then by a grant that dies with the
    /// applicant.
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
        // A waiter that gave up may still be in the queue, if the store did not take that.
        let may_be_there = match &taken {
            Ok(AcquireResult::Answer(Response::Busy(_))) => !policy.is_none(),
            Ok(AcquireResult::Answer(response)) => matches!(response, Response::Granted(..)),
            _ => true,
        };
        if !may_be_there {
            self.remove_witness(name, &request.handle.proof());
        }
        if attempt.noted.is_some() {
            // A note that stays leads to a wait that is no more, and misleads nobody.
            let _ = self.retract(name, &attempt.application.entry);
        }
        self.store.set_deadline(None);
        taken
    }

    /// Takes for good what was granted tentatively. `None`: it was lost meanwhile.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked or told.
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

    /// Asks the store no longer than somebody is patient who begins now.
    pub fn bound_by(&self, policy: &WaitPolicy) {
        let until = policy.limit.map_or(Duration::MAX, |limit| self.host.boottime().saturating_add(limit));
        self.store.set_deadline(Some(until));
    }

    /// How long to wait at most with so many ahead; `None` when patience is over.
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
        // Else others would take us for dead.
        Ok(Some(if self.store.scope() == Scope::Shared { pause.min(self.lease / 4) } else { pause }))
    }

    /// Whether a signal came, for a caller who wants to hear it.
    pub(super) fn is_interrupted(&self, interrupt: Option<BorrowedFd<'_>>) -> bool {
        interrupt.is_some() && self.host.is_interrupted()
    }

    /// Whether nobody can wake a waiter from another host.
    fn must_poll(&self) -> bool {
        self.store.scope() == Scope::Shared && !self.store.can_notify()
    }
}

/// One attempt to take a lock.
struct Acquisition<'a> {
    engine: &'a Engine,
    name: &'a [u8],
    application: Acquire,
    /// When there is no time left to be overtaken, on CLOCK_BOOTTIME.
    give_up_at: Duration,
    /// The tenure that was begun for a grant that somebody was faster than.
    begun: Option<Lifetime>,
    wait_set: Option<Box<dyn WaitSet + 'a>>,
    subscription: Option<Box<dyn Subscription>>,
    interrupt: Option<BorrowedFd<'a>>,
    /// Whom this wait holds up, and whether we have looked at all.
    blocked_callers: BlockedCallers,
    looked_for_caller: bool,
    /// When to look around for a circle, on CLOCK_BOOTTIME.
    look_around_at: Option<Duration>,
    /// When we were seen to be the one who ends a circle.
    suspected_at: Option<Duration>,
    /// Whether we listen for those who want to know what we wait for.
    can_be_asked: bool,
    /// Where others can find this wait by its notes; `None`: nobody needs to.
    noted: Option<Published>,
    /// Whether the store has answered before.
    in_touch: bool,
    /// Whether the store has not answered before.
    was_out_of_reach: bool,
    /// Whether the store has put us into the queue.
    is_queued: bool,
}

impl<'a> Acquisition<'a> {
    /// Goes on when a store that many hosts share does not answer for a while; and when a store
    /// is full or read-only for a while after it put us into the queue.
    fn run_through_outages(&mut self, clock: &mut WaitClock, on_wait: &mut Onlooker<'_>) -> Result<AcquireResult> {
        loop {
            let error = match self.run(clock, on_wait) {
                // The signal ended a wait for the store, which has no other way to say so.
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
        let is_out_of_reach = error.exit() == Exit::Unreachable;
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
                // It may be our own caller who is in our way.
                _ if self.prepare_to_wait()? => {
                    current = Some((version, record));
                    continue;
                }
                _ => {}
            }
            match step {
                Transition::Done(outcome) => {
                    // Somebody else has claimed it; perhaps under our id.
                    if let Response::Claimed(grant) | Response::Granted(grant, _) = &outcome
                        && grant.proof != self.application.entry.proof
                    {
                        self.leave_if_possible()?;
                    }
                    // What was seen only while we waited: then we are in the queue.
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
                        // Who is in the queue can be rung, so we listen before we are.
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
                        // The store did not take what a waiter says of itself, and the lock is busy all the same.
                        return Ok(busy);
                    }
                    match (stored?, outcome) {
                        (Some(version), Some(outcome)) => {
                            return Ok(AcquireResult::Answer(with_token(outcome, &version)));
                        }
                        (Some(version), None) => {
                            self.is_queued = true;
                            // A grant in it that ends before the record is read again must keep its token.
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

    /// The time of a grant begins now, before it is written.
    fn begin(&mut self, record: &mut Record, grant: &mut Grant) -> Result<()> {
        self.engine.begin_grant(&self.application.lifetime, &mut self.begun, record, grant)
    }

    /// Our time is over: it is busy, unless it was granted meanwhile.
    fn give_up(&mut self, record: Record) -> Result<Option<AcquireResult>> {
        match self.leave_if_possible()? {
            Response::GrantedMeanwhile(_) => Ok(None),
            _ => {
                self.engine.note_leases(&record);
                Ok(Some(AcquireResult::Answer(Response::Busy(record.holders))))
            }
        }
    }

    /// Leaves the queue. A store that is full or read-only changes nothing about the answer: the next process that changes
    /// the record passes over a waiter that has ended.
    fn leave_if_possible(&mut self) -> Result<Response> {
        match self.leave() {
            Err(error) if error.is_refused_change() => Ok(Response::Cancelled),
            left => left,
        }
    }

    /// Leaves the queue. Where others are faster until it is late, by the end of the waiter's lease, if that can be had:
    /// whoever comes next passes over him and what was granted to him.
    fn leave(&mut self) -> Result<Response> {
        // A bell in the store would keep a directory of records from going away with the last of them.
        self.subscription = None;
        let (engine, me) = (self.engine, self.application.entry.proof);
        let page = self.application.position.as_ref().map(|place| place.page);
        if let Some(page) = page
            && engine.dequeue(self.name, page, &me)?
        {
            engine.remove_witness(self.name, &me);
            return Ok(Response::Cancelled);
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

    /// Gives up because the interrupt came. What cannot be said at once ends by itself.
    fn interrupted(&mut self) -> AcquireResult {
        self.give_up_at = self.engine.host.boottime();
        self.engine.store.set_deadline(Some(self.give_up_at));
        let _ = self.abandon();
        AcquireResult::Interrupted
    }

    /// Leaves the queue, and gives back what was granted in the meantime.
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
