//! The end of an attempt: a response, or a deadline, interrupt or deadlock, after which the waiter leaves the queue.

use std::time::Duration;

use super::{AcquireAttempt, AcquireResult, STORE_CALL_TIMEOUT};
use crate::Engine;
use crate::facts::Witnessed;
use crate::history::Remark;
use host::end_abandoned;
use lock::{Cancel, Cycle, Error, ErrorKind, Grant, Lifetime, Record, Refusal, Result};
use store::{Call, WriteSet};

impl Engine {
    /// Ends a holder whose lease is over and which csalock has stopped, if that csalock is gone: no other process
    /// continues or ends the holder. Returns true if there was one: the caller reads the record again.
    pub(super) fn end_abandoned(&self, record: &Record) -> Result<bool> {
        for grant in &record.holders {
            if let Lifetime::Keepalive(lease) = &grant.lifetime
                && self.host.is_abandoned(grant)
                && self.lease_expired(record, lease)?
                && end_abandoned(grant)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl AcquireAttempt<'_> {
    /// Ends the attempt with this refusal. Returns `None` if the lock was granted in the meantime.
    pub(super) fn end_refused(&mut self, record: &Record, refusal: Refusal) -> Result<Option<AcquireResult>> {
        let me = self.terms.entry.proof;
        match &refusal {
            Refusal::Claimed(_) => {
                self.leave_if_possible()?;
            }
            // After a wait, this waiter is in the queue, where it would block the next one.
            Refusal::Deadlock(_) | Refusal::Stale(_) => {
                let is_queued = self.terms.place.on_page().is_some() || record.waiter(&me).is_some();
                if is_queued && self.leave_if_possible()?.is_some() {
                    return Ok(None);
                }
            }
            Refusal::Busy(_) if self.engine.end_abandoned(record)? => return Ok(None),
            Refusal::Busy(_) => self.engine.note_leases(record),
            // These callers are not in the queue: they have lost their place, or only confirm a grant.
            Refusal::Replaced(_) | Refusal::Lost => {}
        }
        Ok(Some(AcquireResult::Refused(0, refusal)))
    }

    /// The store may still have an entry or a grant of this caller, so its witness must stay: a waiter that gave up may
    /// be in the queue if the store refused its removal.
    pub(super) fn may_leave_entry(&self, ended: &Result<AcquireResult>) -> bool {
        match ended {
            Ok(AcquireResult::Refused(_, Refusal::Busy(_))) => self.terms.queue,
            Ok(AcquireResult::Refused(_, Refusal::Deadlock(_) | Refusal::Claimed(_) | Refusal::Stale(_))) => {
                self.terms.place.is_queued()
            }
            Ok(AcquireResult::Refused(_, Refusal::Replaced(_) | Refusal::Lost)) => false,
            Ok(AcquireResult::Granted(..) | AcquireResult::Interrupted) | Err(_) => true,
        }
    }

    /// Ends the attempt with busy if the store refused the waiter's entry at the deadline and the lock is still held.
    pub(super) fn after_refused_entry(&mut self, record: Record, error: Error) -> Result<AcquireResult> {
        if self.may_pass(&error)
            && self.clock.left(self.engine.host.boottime()) == Some(Duration::ZERO)
            && let Some(busy) = self.give_up(record)?
        {
            return Ok(busy);
        }
        Err(error)
    }

    /// Ends the attempt because of this deadlock. Returns `None` if the lock was granted in the meantime.
    pub(super) fn end_cycle(&mut self, cycle: Cycle, record: &Record) -> Result<Option<AcquireResult>> {
        if self.leave_if_possible()?.is_some() {
            return Ok(None);
        }
        self.retract();
        // The remaining waits may still form a cycle, and similar waits may be published now.
        self.wake(cycle.members.iter().chain(record.waiters.iter().map(|waiter| &waiter.proof)));
        Ok(Some(AcquireResult::Refused(0, Refusal::Deadlock(cycle.edges))))
    }

    /// Ends the wait at its deadline: returns busy, or `None` if the lock was granted in the meantime.
    pub(super) fn give_up(&mut self, record: Record) -> Result<Option<AcquireResult>> {
        if self.leave_if_possible()?.is_some() {
            return Ok(None);
        }
        self.engine.note_leases(&record);
        Ok(Some(AcquireResult::Refused(0, Refusal::Busy(record.holders))))
    }

    /// A process that was stopped or slow may have its grant only after the deadline.
    pub(super) fn is_late(&self, ended: &Result<AcquireResult>) -> bool {
        let Ok(AcquireResult::Granted(grants, _)) = ended else { return false };
        grants.iter().all(|grant| grant.proof == self.terms.entry.proof)
            && self.was_queued
            && self.clock.left(self.engine.host.boottime()) == Some(Duration::ZERO)
    }

    pub(super) fn give_back(&mut self) -> Result<AcquireResult> {
        self.engine.call = Call::until(self.engine.host.boottime().saturating_add(STORE_CALL_TIMEOUT));
        let _ = self.engine.release(self.name, self.terms.entry.proof)?;
        Ok(AcquireResult::Refused(0, Refusal::Busy(self.engine.read(self.name)?.1.holders)))
    }

    /// A full or read-only store changes no response: the next process that changes the record skips the ended waiter.
    pub(super) fn leave_if_possible(&mut self) -> Result<Option<Grant>> {
        match self.leave() {
            Err(error) if error.is_refused_change() => Ok(None),
            left => left,
        }
    }

    /// Leaves the queue. Returns the grant that the waiter has in the meantime. If other writers win until
    /// `give_up_at`, it ends its lease, where the store can do that: the next process then skips it, and any grant that
    /// it received.
    fn leave(&mut self) -> Result<Option<Grant>> {
        // A channel in the store would prevent the removal of a directory of records that is otherwise empty.
        self.subscription = None;
        let (engine, me) = (&self.engine, self.terms.entry.proof);
        let page = self.terms.place.on_page().map(|place| place.page);
        if let Some(page) = page
            && engine.dequeue(self.name, page, &me)?
        {
            // If the page had been moved into the record, this waiter has created it anew and is in the record too.
            let (_, record) = engine.read(self.name)?;
            if !record.has_entry(&me) {
                engine.remove_witness(Witnessed::Entry(self.name, &me));
                return Ok(None);
            }
        }
        let ask = Cancel { proof: me, page };
        let retry = engine.cas_retry_for::<Cancel>(self.name).until(self.give_up_at);
        if let Some(granted) = engine.try_apply(retry, &ask, Remark::default())? {
            return Ok(granted);
        }
        if let Some(lease) = &self.terms.entry.lease {
            let _ = engine.store.commit(engine.call, &WriteSet { ended: vec![lease], ..WriteSet::default() });
            if engine.store.leases().is_expired(engine.call, lease)? {
                let (_, record) = engine.read(self.name)?;
                return Ok(record.holder(&me).cloned());
            }
        }
        engine.apply(self.name, &ask)
    }

    /// Leaves the queue after the end of the script that called this process, or of the process of `--pid`.
    pub(super) fn end_without_owner(&mut self) -> Result<Option<AcquireResult>> {
        self.interrupted();
        let what = format!("lock {}: the process that was to own it has ended", self.engine.shell_arg(self.name));
        Err(Error::new(ErrorKind::InvalidInput, what, "nothing was acquired; name a running process with --pid"))
    }

    /// Gives up because of the interrupt. Entries that cannot be removed immediately end on their own.
    pub(super) fn interrupted(&mut self) -> AcquireResult {
        self.give_up_at = self.engine.host.boottime();
        self.engine.call = Call::until(self.give_up_at);
        // Without an answer, this attempt has committed nothing, and a silent store would only delay the end.
        if self.store_answered
            && let Ok(Some(_)) = self.leave()
        {
            // A grant arrived in the meantime.
            let _ = self.engine.release(self.name, self.terms.entry.proof);
        }
        AcquireResult::Interrupted
    }
}
