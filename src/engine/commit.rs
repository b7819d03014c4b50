//! Commits and their effects: the only place in which the engine changes a store.

use super::{Engine, values};
use crate::error::{Error, ErrorKind, Result};
use crate::host::WakeAddress;
use crate::lock::{self, EndReason, EndedGrant, Grant, HandleHash, Lease, Owner, Record, Response, Value, Waiter};
use crate::store::{CommitResult, Durability, Version, Write, WriteOptions};

/// The replacement of a record by its next version.
pub(super) struct RecordUpdate<'a> {
    /// The version that the store must have; `None` if it must have no record.
    pub(super) expect: Option<Version>,
    pub(super) before: &'a Record,
    pub(super) record: &'a Record,
    /// Waiters to wake after the commit.
    pub(super) wake: &'a [HandleHash],
    /// Leases whose expiry justifies the replacement.
    pub(super) over: &'a [Lease],
}

impl Engine {
    /// Commits these changes as one. `before` contains the records that some of them replace; the other changes are of
    /// auxiliary objects.
    #[cfg(debug_assertions)]
    pub(super) fn commit(&self, changes: &[Write<'_>], before: &[&Record]) -> Result<CommitResult> {
        self.trace.commit(self.store.as_ref(), self.host.as_ref(), changes, before)
    }

    /// Commits these changes as one.
    #[cfg(not(debug_assertions))]
    pub(super) fn commit(&self, changes: &[Write<'_>], _before: &[&Record]) -> Result<CommitResult> {
        self.store.commit_batch(changes)
    }

    /// Commits a change of the auxiliary object under this name.
    pub(super) fn commit_beside(
        &self,
        name: &[u8],
        expect: Option<&Version>,
        body: Option<&[u8]>,
        keep: WriteOptions,
    ) -> Result<CommitResult> {
        self.commit(&[Write { name, expect: expect.copied(), body, options: keep, over: &[] }], &[])
    }

    /// Removes the auxiliary object under this name, if it exists.
    pub(super) fn remove_auxiliary(&self, key: &[u8], durability: Durability) -> Result<()> {
        let keep = WriteOptions { durability, mode: None };
        while let Some(version) = self.store.version(key)? {
            if let CommitResult::Done(_) = self.commit_beside(key, Some(&version), None, keep)? {
                break;
            }
        }
        Ok(())
    }

    /// Commits records and auxiliary objects as one change, wakes the waiters concerned and logs the ended grants. `by`
    /// is the owner that broke them. Returns `None` if another writer committed first.
    pub(super) fn commit_update(
        &self,
        records: &[RecordUpdate<'_>],
        beside: &[Write<'_>],
        by: Option<&Owner>,
    ) -> Result<Option<Version>> {
        let mut bodies = Vec::new();
        for RecordUpdate { record, .. } in records {
            let body = (!record.is_removable()).then(|| lock::encode(record));
            self.check_size(&record.name, body.as_deref())?;
            bodies.push(body);
        }
        let mut changes = beside.to_vec();
        for (RecordUpdate { expect, before, record, over, .. }, body) in records.iter().zip(&bodies) {
            let keep = WriteOptions { durability: values::durability(before, record), mode: None };
            changes.push(Write { name: &record.name, expect: *expect, body: body.as_deref(), options: keep, over });
        }
        let before: Vec<&Record> = records.iter().map(|swapped| swapped.before).collect();
        // The next holder may end before the log is written. Its end must not seem to come first.
        let ended_at = self.host.wall();
        let CommitResult::Done(version) = self.commit(&changes, &before)? else { return Ok(None) };
        for RecordUpdate { before, record, wake, .. } in records {
            self.wake(before, wake);
            self.tell_supervisors(before, record);
            self.end_leases(before, record);
            self.remove_witnesses(before, record);
            // Leftovers of a failed removal do no harm, and the record is committed already.
            let _ = self.remove_leftovers(before, record);
            self.log_endings(before, record, by, ended_at);
        }
        self.store.flush();
        Ok(Some(version))
    }

    /// Fails if the record is too large to be read again.
    fn check_size(&self, name: &[u8], body: Option<&[u8]>) -> Result<()> {
        if body.is_none_or(|body| body.len() <= lock::MOST_BYTES) {
            return Ok(());
        }
        let what = format!("{} has no room for so many holders", self.store.describe(name));
        Err(Error::new(ErrorKind::System, what, "nothing was changed; try again when some of them are gone"))
    }

    /// Notifies the supervisor of a command that its grant has changed.
    pub(super) fn tell_supervisor(&self, proof: &HandleHash) {
        self.host.wake(WakeAddress::Supervisor(proof));
    }

    /// Notifies the supervisors of ended grants. A supervisor knows its own releases and sees its command die.
    fn tell_supervisors(&self, before: &Record, after: &Record) {
        let is_over = |grant: &&Grant| after.holders.iter().all(|other| other.proof != grant.proof);
        for grant in before.holders.iter().filter(is_over) {
            let ending = after.ended_grants.iter().rev().find(|ending| ending.grant.proof == grant.proof);
            let is_known = |ending: &EndedGrant| match ending.reason {
                EndReason::Died => true,
                EndReason::Released => ending.grant.owner.supervisor != grant.owner.supervisor,
                EndReason::Expired | EndReason::Broken => false,
            };
            if !ending.is_some_and(is_known) {
                self.tell_supervisor(&grant.proof);
            }
        }
    }

    /// Wakes these waiters of the record: directly on this host, otherwise through the store.
    fn wake(&self, before: &Record, wake: &[HandleHash]) {
        for proof in wake {
            let waiter = before.waiters.iter().find(|waiter| waiter.proof == *proof);
            if !self.host.wake(WakeAddress::Waiter(proof)) {
                self.store.notify(&proof.channel(), waiter.and_then(|waiter| waiter.lease.as_ref()));
            }
        }
    }

    /// Removes auxiliary objects that the new record no longer needs.
    fn remove_leftovers(&self, before: &Record, now: &Record) -> Result<()> {
        let fetched = self.remove_pages(before, now)?;
        self.remove_old_value(before, now)?;
        // A waiter that was granted the lock retracts its published edges itself.
        let is_there = |waiter: &&Waiter| {
            now.waiters.iter().any(|other| other.proof == waiter.proof)
                || now.holders.iter().any(|grant| grant.proof == waiter.proof)
        };
        for waiter in fetched.iter().filter(|waiter| !is_there(waiter)) {
            self.remove_witness(&now.name, &waiter.proof);
        }
        for waiter in before.waiters.iter().chain(&fetched).filter(|waiter| !is_there(waiter)) {
            self.store.remove_channel(&waiter.proof.channel());
            self.retract(&now.name, waiter)?;
        }
        Ok(())
    }

    /// Makes the engine log its commits to this file.
    #[cfg(debug_assertions)]
    #[must_use]
    pub fn tracing(self, path: std::path::PathBuf) -> Engine {
        Engine { trace: crate::trace::Trace::new(Some(path)), ..self }
    }
}

/// Adds the token to a response: the token of a new grant is the version under which the store has it.
pub(super) fn with_token(response: Response, version: &Version) -> Response {
    let numbered = |grant: Grant| Grant { token: grant.token.or(Some(version.number)), ..grant };
    match response {
        Response::Granted(grant, before) => Response::Granted(numbered(grant), before),
        Response::Busy(grants) => Response::Busy(grants.into_iter().map(numbered).collect()),
        Response::Written(Some(value), stale) => {
            let or_this = |known: Option<u64>| known.or(Some(version.number));
            let value = Value { version: or_this(value.version), token: or_this(value.token), ..value };
            Response::Written(Some(value), stale)
        }
        other => other,
    }
}
