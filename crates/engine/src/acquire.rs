//! The attempt to acquire one lock: the caller's request ([`AcquireRequest`]), its terms, on which `lock` decides
//! ([`Acquire`]), and the loop that reads, decides, and commits or waits ([`AcquireAttempt`]).

mod end;
mod wait;

use std::fs::File;
use std::time::Duration;

use super::commit::{CasRetry, Committed};
use super::deadlock::BlockedCallers;
use super::facts::Witnessed;
use super::history::Remark;
use super::wait_policy::{OnWait, WaitClock};
use super::{Engine, VersionedRecord, WaitPolicy};
use host::signals::Interrupt;
use host::{WakeSet, try_flock};
use lock::error::{Error, ErrorKind, Result};
use lock::{
    self, Acquire, AcquireStep, EndedGrant, Grant, Handle, HandleHash, Lease, Lifetime, Liveness, Mode, Owner, Phase,
    ProcessId, QueuePlace, Record, Refusal, Request as _, Transition, Waiter,
};
use store::{Call, Scope, Subscription, Version, is_on_network};

/// Maximum duration of a store call after the first answer or outage. Signals are not handled during the call.
const STORE_CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum time after the deadline for leaving the queue, or for acquiring a lock that is granted already.
pub(super) const CANCEL_GRACE: Duration = Duration::from_millis(500);

/// How an attempt ended to acquire one lock, or several (`acquire_all`). Indices count the locks of the call.
#[derive(Debug)]
pub enum AcquireResult {
    /// The call holds all locks: the grants in the order of the locks, and the last grant before them that its holder
    /// did not release, with its index. A provisional caller has yet to [confirm](super::confirm_all) them.
    Granted(Vec<Grant>, Option<(usize, EndedGrant)>),
    /// Nothing is held, because of the lock with this index.
    Refused(usize, Refusal),
    /// Nothing is held, because of the interrupt; what the stores did not remove ends by itself.
    Interrupted,
}

impl Engine {
    /// Waits as long as `policy` allows. Fails if the store cannot be read or written; a grant then ends with the
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
        let clock = policy.begin(self.host.boottime(), polls);
        let give_up_at = clock.deadline.map_or(Duration::MAX, |deadline| deadline.saturating_add(CANCEL_GRACE));
        let until = Some(clock.deadline.unwrap_or(Duration::MAX));
        let mut attempt = AcquireAttempt {
            base: self,
            engine: self.during(Call { until, interruptible: interrupt.is_some() }),
            name,
            terms: self.acquire_terms(scope, request, policy),
            clock,
            give_up_at,
            known: None,
            retry: self.cas_retry(name).until(give_up_at),
            begun: None,
            wake_set: None,
            subscription: None,
            interrupt,
            blocked_callers: BlockedCallers::new(request.called),
            looked_for_caller: false,
            was_queued: false,
            waits_since: None,
            suspected_at: None,
            is_published: false,
            store_answered: false,
            store_failed: false,
            file: None,
        };
        let witnessed = request.handle.proof();
        self.leave_witness(scope, Witnessed::Entry(name, &witnessed));
        if request.outlives_process {
            self.leave_directory(&request.entry.owner);
        }
        let mut ended = attempt.run(on_wait);
        attempt.engine.call.interruptible = false;
        if attempt.is_late(&ended) {
            ended = attempt.give_back();
        }
        if !attempt.may_leave_entry(&ended) {
            self.remove_witness(Witnessed::Entry(name, &witnessed));
        }
        let entry = &attempt.terms.entry;
        // Without a lease, a supervisor removes the published edges of this wait later, while the command runs.
        let retracts_later = entry.owner.supervisor.is_some() && entry.lifetime == Lifetime::WhileOwnerLives;
        match &ended {
            Ok(AcquireResult::Granted(..)) if retracts_later => attempt.retract_later(),
            _ => attempt.retract(),
        }
        ended
    }

    /// Makes a provisional grant permanent. `None` if the grant was lost in the meantime.
    pub(crate) fn confirm(&self, name: &[u8], request: &AcquireRequest) -> Result<Option<Grant>> {
        let confirmation =
            AcquireRequest { phase: Phase::Confirm, refuse_stale: false, called: None, ..request.clone() };
        match self.acquire(name, &confirmation, &WaitPolicy::NONE, None, &mut |_| None)? {
            AcquireResult::Granted(mut grants, _) => Ok(grants.pop()),
            AcquireResult::Refused(..) | AcquireResult::Interrupted => Ok(None),
        }
    }

    /// The terms on which the rules decide, in a store with the scope `scope`. The caller asks the store for that once,
    /// because each answer costs three system calls while a directory does not exist.
    pub(super) fn acquire_terms(&self, scope: Scope, request: &AcquireRequest, policy: &WaitPolicy) -> Acquire {
        let needs_leases = self.needs_leases_in(scope);
        let lifetime = if request.phase == Phase::Provisional && needs_leases {
            // Not all users of the store can see whether the process of a provisional grant lives.
            self.own_lease()
        } else {
            self.lifetime_in_store(needs_leases, &request.entry.lifetime)
        };
        let since = self.host.wall().as_millis() as u64;
        let entry = Waiter { lifetime, since, ..request.entry.clone() };
        Acquire {
            queue: !policy.is_none(),
            refuse_stale: request.refuse_stale,
            phase: request.phase,
            ..Acquire::new(entry)
        }
    }

    pub(super) fn is_interrupted(&self, interrupt: Option<&dyn Interrupt>) -> bool {
        interrupt.is_some() && self.host.is_interrupted()
    }
}

#[derive(Debug, Clone)]
pub struct AcquireRequest {
    pub handle: Handle,
    /// Its lifetime is that of the grant if all users of the store can see the owner.
    pub entry: Waiter,
    /// The grant ends with its owner, which outlives the process that acquires it, and not with that process. The process
    /// has to confirm a grant that it waited for.
    pub outlives_process: bool,
    pub refuse_stale: bool,
    pub phase: Phase,
    /// Pid of this process, if its caller waits for it; a wait derives [`Waiter::blocked_processes`] from it.
    pub called: Option<i32>,
}

impl AcquireRequest {
    /// A request for an exclusive lock, which lasts as long as `process` lives.
    pub fn for_itself(handle: Handle, owner: Owner, process: ProcessId) -> AcquireRequest {
        // A waiter that stops before it can start must not keep the lock.
        let entry = Waiter { needs_confirmation: true, ..Waiter::new(handle.proof(), owner, process) };
        let phase = Phase::Direct;
        AcquireRequest { handle, entry, outlives_process: false, refuse_stale: false, phase, called: None }
    }
}

struct AcquireAttempt<'a> {
    base: &'a Engine,
    /// `base`, with the limits of the present calls of the store.
    engine: Engine,
    name: &'a [u8],
    terms: Acquire,
    clock: WaitClock,
    /// Time on CLOCK_BOOTTIME after which no further CAS retry follows.
    give_up_at: Duration,
    /// Left or found by the last commit; a step without it reads the store.
    known: Option<VersionedRecord>,
    retry: CasRetry<'a>,
    /// Lifetime of a grant whose commit lost to another writer.
    begun: Option<Lifetime>,
    wake_set: Option<Box<dyn WakeSet + 'a>>,
    subscription: Option<Box<dyn Subscription>>,
    interrupt: Option<&'a dyn Interrupt>,
    blocked_callers: BlockedCallers,
    looked_for_caller: bool,
    was_queued: bool,
    /// Start of the wait on CLOCK_BOOTTIME.
    waits_since: Option<Duration>,
    /// Time at which a check found this wait to be the victim of a cycle, on CLOCK_BOOTTIME.
    suspected_at: Option<Duration>,
    /// Edges of this wait may be published.
    is_published: bool,
    store_answered: bool,
    /// A store call has failed, and may succeed later.
    store_failed: bool,
    /// Locked by flock(2), for [`Acquire::has_file`].
    file: Option<File>,
}

impl AcquireAttempt<'_> {
    /// Makes steps until the attempt ends. It goes on after outages, because a shared store may stop answering for a
    /// while. A full or read-only store ends the attempt, unless this waiter is already in the queue.
    fn run(&mut self, on_wait: &mut OnWait<'_>) -> Result<AcquireResult> {
        loop {
            let error = match self.step(on_wait) {
                Ok(None) => continue,
                Ok(Some(end)) => return Ok(end),
                // The signal ended a wait for the store, which can report this only as an error.
                Err(_) if self.engine.is_interrupted(self.interrupt) => return Ok(self.interrupted()),
                Err(error) if self.may_pass(&error) => error,
                Err(error) => return Err(error),
            };
            self.store_failed = true;
            self.retry = self.base.cas_retry(self.name).until(self.give_up_at);
            let (engine, name, mut clock) = (self.engine.clone(), self.name, self.clock);
            if engine.wait_out_outage(name, error, &mut clock, &mut **self.listen()?, on_wait)? {
                return Ok(self.interrupted());
            }
            self.clock = clock;
        }
    }

    /// One round: reads the record, decides, and then commits or waits. `None` if another step has to follow.
    fn step(&mut self, on_wait: &mut OnWait<'_>) -> Result<Option<AcquireResult>> {
        self.limit_store_calls();
        let (version, record) = self.known.take().map_or_else(|| self.engine.read(self.name), Ok)?;
        self.store_answered = true;
        self.try_file(&record)?;
        match self.decide(&record)? {
            Transition::Write { record: next, response, wake, expired } => {
                self.commit((version, record), *next, response, &wake, &expired)
            }
            Transition::Done(AcquireStep::Granted(grant, before)) => {
                // A claim under the same id makes the place in the queue useless.
                if grant.proof != self.terms.entry.proof {
                    self.leave_if_possible()?;
                }
                Ok(Some(granted(*grant, before)))
            }
            Transition::Done(AcquireStep::Refused(refusal)) => self.end_refused(&record, refusal),
            Transition::Done(AcquireStep::Enqueue(page)) => self.enqueue(page).map(|()| None),
            Transition::Done(AcquireStep::Wait(awaited)) => self.wait((version, record), &awaited, on_wait),
        }
    }

    /// Tries to lock the file if a descriptor is in the way whose lock cannot be seen from here. Only a caller that is next
    /// does so, and it keeps the file until it has the lock: a try that were given back could make another process fail.
    /// It lets go of the file if another caller is before it, which may wait for the file.
    fn try_file(&mut self, record: &Record) -> Result<()> {
        let (engine, me) = (&self.engine, self.terms.entry.proof);
        let is_next = record.waiters.first().is_none_or(|first| first.proof == me);
        let mut unseen = Vec::new();
        for grant in &record.holders {
            let domain = &grant.owner.domain;
            if let Lifetime::Descriptor(lock) = &grant.lifetime
                && engine.host.descriptor(domain, lock, engine.store.scope()) == Liveness::Unknown
            {
                let here = engine.host.pid_space()?;
                unseen.push((lock, domain.boot == here.boot, here.contains(domain)));
            }
        }
        let path = engine.file_of(self.name).filter(|_| is_next && !unseen.is_empty());
        // flock(2) on a file of this host says nothing of another host.
        let path = path.filter(|path| unseen.iter().all(|(_, is_here, _)| *is_here) || is_on_network(path));
        let Some(path) = path else {
            (self.file, self.terms.has_file) = (None, false);
            return Ok(());
        };
        if self.file.is_some() {
            return Ok(());
        }
        // A holder that sees these processes and this path may have removed its file, after which flock(2) locks another.
        self.file = try_flock(&path, self.terms.entry.mode != Mode::Shared)
            .filter(|(_, own)| unseen.iter().all(|(lock, here, near)| *near || lock.is_of_same_file(own, *here)))
            .map(|(file, _)| file);
        let is_removed = unseen.iter().all(|(.., near)| *near) && path.try_exists().is_ok_and(|exists| !exists);
        self.terms.has_file = self.file.is_some() || is_removed;
        Ok(())
    }

    fn may_pass(&self, error: &Error) -> bool {
        let is_out_of_reach = error.kind() == ErrorKind::Unavailable;
        let answers_again = self.store_answered || error.is_unreached;
        (is_out_of_reach && answers_again && self.engine.store.scope() == Scope::Shared)
            || (error.is_refused_change() && self.terms.place.is_queued())
    }

    /// Limits the next store calls. The first calls may take as long as the whole wait.
    fn limit_store_calls(&mut self) {
        if (self.store_answered || self.store_failed) && self.engine.store.scope() == Scope::Shared {
            let soon = self.engine.host.boottime().saturating_add(STORE_CALL_TIMEOUT);
            self.engine.call.until = Some(self.clock.deadline.map_or(soon, |deadline| deadline.min(soon)));
        }
    }

    /// Decides about the record. The lifetime of a new grant starts here; a caller that must wait prepares its entry.
    fn decide(&mut self, record: &Record) -> Result<Transition<AcquireStep>> {
        loop {
            let time_left = self.clock.left(self.engine.host.boottime());
            let mut step = self.engine.decide(record, &self.terms, time_left)?;
            match &mut step {
                Transition::Write { record, response: AcquireStep::Granted(grant, _), .. } => {
                    self.engine.begin_grant(&self.terms.entry.lifetime, &mut self.begun, record, grant)?;
                }
                Transition::Done(AcquireStep::Granted(..)) => {}
                Transition::Done(AcquireStep::Refused(refusal)) if !matches!(refusal, Refusal::Busy(_)) => {}
                // The blocking holder may be our own caller.
                _ if self.refresh_entry()? => {
                    self.limit_store_calls();
                    continue;
                }
                _ => {}
            }
            return Ok(step);
        }
    }

    /// Commits the next record, and ends the attempt if that is its last step.
    fn commit(
        &mut self,
        (expect, before): VersionedRecord,
        next: Record,
        step: AcquireStep,
        wake: &[HandleHash],
        expired: &[Lease],
    ) -> Result<Option<AcquireResult>> {
        let enters_queue = matches!(step, AcquireStep::Wait(_));
        if enters_queue {
            self.was_queued = true;
            // A queued waiter can receive a wake-up at any time, so it listens before it joins the queue.
            self.listen()?;
        }
        // A caller that does not queue reads busy next, and a caller that confirms its grant has no rival.
        self.retry.has_priority = !self.terms.queue || before.holder(&self.terms.entry.proof).is_some();
        match self.engine.commit_update((expect, &before), &next, wake, expired, Remark::default()) {
            Ok(Committed::Done(version)) => Ok(self.after_commit(version, next, step)),
            Ok(lost @ (Committed::Conflict(_) | Committed::Unclear)) => {
                // A loser on a shared store pauses first, so this record would be old: read again.
                let is_new = self.engine.store.scope() == Scope::Local;
                self.known = if let Committed::Conflict(found) = lost { found.filter(|_| is_new) } else { None };
                if self.retry.backoff()? { Ok(None) } else { self.give_up(before) }
            }
            Err(error) if enters_queue => self.after_refused_entry(before, error).map(Some),
            Err(error) => Err(error),
        }
    }

    /// Ends the attempt after a commit, or keeps the record to go on with.
    fn after_commit(&mut self, version: Version, now: Record, step: AcquireStep) -> Option<AcquireResult> {
        match Acquire::with_tokens(step, version.number) {
            AcquireStep::Granted(grant, before) => Some(granted(*grant, before)),
            AcquireStep::Refused(refusal) => Some(AcquireResult::Refused(0, refusal)),
            AcquireStep::Enqueue(_) | AcquireStep::Wait(_) => {
                if now.waiter(&self.terms.entry.proof).is_some() {
                    self.terms.place = QueuePlace::InRecord;
                }
                self.known = Some((Some(version), lock::committed(&now, version.number)));
                None
            }
        }
    }

    fn enqueue(&mut self, page: u64) -> Result<()> {
        self.was_queued = true;
        self.listen()?;
        let (engine, name, entry) = (&self.engine, self.name, &self.terms.entry);
        if let Some(before) = self.terms.place.on_page()
            && before.page != page
        {
            engine.dequeue(name, before.page, &entry.proof)?;
        }
        self.terms.place = engine.enqueue(name, page, entry)?.map_or(QueuePlace::BesidePage(page), QueuePlace::OnPage);
        Ok(())
    }
}

fn granted(grant: Grant, before: Option<Box<EndedGrant>>) -> AcquireResult {
    AcquireResult::Granted(vec![grant], before.map(|ending| (0, *ending)))
}
