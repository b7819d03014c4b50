//! Reading, writing and deleting values. The rules are in [`lock`]'s `value.rs`. This module adds the store
//! operations: the bytes of external values, and the wait for the holder.

use super::commit::Committed;
use super::facts::Witnessed;
use super::history::Remark;
use super::wait_policy::OnWait;
use super::{AcquireRequest, AcquireResult, Engine, LockStatus, WaitPolicy};
use host::signals::Interrupt;
use lock::error::{Error, ErrorKind, Result};
use lock::{
    self, Grant, Liveness, Owner, Record, Refusal, Release, Request as _, SetValue, Transition, Value, WriteRefusal,
    Written,
};
use store::{Durability, WriteOptions};

#[derive(Debug, Clone)]
pub struct ValueWrite<'a> {
    /// The write without its value.
    pub terms: SetValue,
    /// `None` deletes the value.
    pub bytes: Option<&'a [u8]>,
    /// File permission bits that limit the readers of the bytes; without them, every reader of the store may read them.
    pub mode: Option<u32>,
}

#[derive(Debug)]
pub enum WriteResult {
    Done(WriteResponse),
    NotAcquired(Refusal),
    Interrupted,
}

type WriteResponse = std::result::Result<Written, WriteRefusal>;

impl Engine {
    /// Fails if the store cannot be read, or if the value's bytes are missing.
    pub fn value(&self, name: &[u8]) -> Result<Option<(Value, Vec<u8>)>> {
        let mut missing = None;
        let mut retry = self.cas_retry(name);
        loop {
            let (_, record) = self.read(name)?;
            let Some(mut value) = record.value else { return Ok(None) };
            self.settle()?;
            if let Some(bytes) = value.inline.take() {
                return Ok(Some((value, bytes)));
            }
            let key = Value::key(name, value.write_id);
            let not_for_us = |error: Error| match (error.kind(), value.mode) {
                (ErrorKind::Denied, Some(mode)) => {
                    let what = format!("the value of lock {} has mode {mode:04o}", lock::name::escape(name));
                    Error::new(ErrorKind::Denied, what, "ask the user who wrote it")
                }
                _ => error,
            };
            if let Some(stored) = self.store.read(self.call, &key).map_err(not_for_us)? {
                let found =
                    lock::decode_value(&stored.body).map_err(|error| error.in_place(&self.store.describe(&key)))?;
                let bytes = found.filter(|(_, bytes)| bytes.len() as u64 == value.size);
                return Ok(Some((value, bytes.ok_or_else(|| self.unusable_value(name, &key, "unreadable"))?.1)));
            }
            // The record changes before the bytes are removed, so a second miss for the same record is an error.
            if missing == Some(value.write_id) {
                return Err(self.unusable_value(name, &key, "missing"));
            }
            missing = Some(value.write_id);
            retry.backoff()?;
        }
    }

    fn unusable_value(&self, name: &[u8], key: &[u8], state: &str) -> Error {
        let what = format!("{}: the value is {state}", self.store.describe(key));
        let lock = self.shell_arg(name);
        let cure = format!("nothing was changed; `csalock del {lock}` deletes it, `csalock put {lock}` writes it anew");
        Error::new(ErrorKind::Corrupt, what, cure)
    }

    /// Writes or deletes a value: immediately if possible, otherwise after the caller has been granted the lock. The
    /// write then releases that lock.
    pub fn write(
        &self,
        name: &[u8],
        wanted: &ValueWrite<'_>,
        request: &AcquireRequest,
        policy: &WaitPolicy,
        interrupt: Option<&dyn Interrupt>,
        on_wait: &mut OnWait<'_>,
    ) -> Result<WriteResult> {
        let end = policy.end(self.host.boottime());
        let mut write = |engine: &Engine| engine.write_at_once(name, wanted, &request.entry.owner);
        let outcome = self.outlast_outages(name, policy, interrupt, on_wait, &mut write)?;
        let Some(outcome) = outcome else { return Ok(WriteResult::Interrupted) };
        if policy.is_none() || !matches!(outcome, Err(WriteRefusal::Busy(_))) {
            return Ok(WriteResult::Done(outcome));
        }
        match self.acquire(name, request, &policy.rest(end, self.host.boottime()), interrupt, on_wait)? {
            AcquireResult::Granted(..) => {}
            AcquireResult::Refused(_, refusal) => return Ok(WriteResult::NotAcquired(refusal)),
            AcquireResult::Interrupted => return Ok(WriteResult::Interrupted),
        }
        let proof = request.handle.proof();
        let me = self.by_proof(proof)?;
        let terms = SetValue { credentials: me.clone(), require_lock: true, release: true, ..wanted.terms.clone() };
        let granted = ValueWrite { terms, ..*wanted };
        let written = self.write_at_once(name, &granted, &request.entry.owner);
        if !matches!(written, Ok(Ok(_))) {
            let _ = self.apply(name, &Release(me))?;
        }
        written.map(WriteResult::Done)
    }

    /// A claim that is found has been settled: it stands.
    pub fn claim_of(&self, name: &[u8]) -> Result<Option<Grant>> {
        let claim = self.claim_in(&self.inspect(name)?);
        claim.map(|grant| self.settle().map(|()| grant)).transpose()
    }

    pub fn claim_in(&self, status: &LockStatus) -> Option<Grant> {
        let mut held = status.record.holders.iter().zip(&status.holders).filter(|(_, standing)| standing.holds());
        let (grant, _) = held.find(|(grant, _)| grant.claim.is_some())?;
        let is_at_work = |process| self.liveness(&status.record, &grant.owner.domain, process) != Liveness::Dead;
        // A provisional claim with a commit record is about to be given up; until then it counts as a claim.
        let may_come_to_nothing =
            grant.provisional.as_ref().is_some_and(is_at_work) && !self.has_committed(&grant.proof).unwrap_or(false);
        (!may_come_to_nothing).then(|| grant.clone())
    }

    fn write_at_once(&self, name: &[u8], wanted: &ValueWrite<'_>, writer: &Owner) -> Result<WriteResponse> {
        let write_id = self.host.unique_number()?;
        let value = wanted.bytes.map(|bytes| Value::new(bytes, write_id, wanted.mode));
        let mut writing = SetValue { value, ..wanted.terms.clone() };
        let mut stored = false;
        let done = self.try_to_write(name, wanted, &mut writing, &mut stored, writer);
        // After an error the write may have happened nevertheless; a later `gc` decides that with more information.
        if stored && matches!(done, Ok(Err(_))) {
            self.remove_external(&Value::key(name, write_id))?;
        }
        // A write that may be done must not happen again after that of another caller.
        done.map_err(|error| if writing.credentials.repeated { error.not_repeatable() } else { error })
    }

    fn try_to_write(
        &self,
        name: &[u8],
        wanted: &ValueWrite<'_>,
        writing: &mut SetValue,
        stored: &mut bool,
        writer: &Owner,
    ) -> Result<WriteResponse> {
        let mut retry = self.cas_retry(name);
        // True if the store has the external bytes, with the right mode.
        let mut is_complete = false;
        loop {
            let (version, record) = self.read(name)?;
            // The mode of an existing value stays until a writer sets another one.
            let mode = wanted.mode.or(record.value.as_ref().and_then(|value| value.mode));
            if let (Some(value), Some(bytes)) = (&mut writing.value, wanted.bytes)
                && value.mode != mode
            {
                if std::mem::take(&mut is_complete) {
                    self.remove_external(&Value::key(name, value.write_id))?;
                }
                *value = Value::new(bytes, value.write_id, mode);
            }
            let (next, response, wake, expired) = match self.decide(&record, writing, None)? {
                Transition::Write { record, response, wake, expired } => (record, response, wake, expired),
                Transition::Done(outcome) => {
                    if let Err(WriteRefusal::Busy(_)) = outcome {
                        self.note_leases(&record);
                    }
                    return Ok(outcome);
                }
            };
            if !is_complete && let Some((key, body, options)) = self.external(name, writing, wanted.bytes, writer) {
                (*stored, is_complete) = (true, true);
                self.create_auxiliary(&key, &body, options)?;
                // The write of the bytes took time, so the record is read again.
                continue;
            }
            let was_repeated = std::mem::replace(&mut writing.credentials.repeated, true);
            match self.commit_update((version, &record), &next, &wake, &expired, Remark::default())? {
                Committed::Done(version) => return Ok(SetValue::with_tokens(response, version.number)),
                Committed::Conflict(_) => writing.credentials.repeated = was_repeated,
                Committed::Unclear => {}
            }
            // The next read may find no trace of the grant that this read has found.
            if let Some(under) = response.ok().and_then(|written| written.under) {
                (writing.credentials.proof, writing.require_lock) = (Some(under), true);
            }
            // If only the reply was lost, another writer may have replaced this value and removed its bytes.
            is_complete = false;
            retry.backoff()?;
        }
    }

    /// Key, body and options of the bytes of an external value. Leaves a witness of them.
    fn external(
        &self,
        name: &[u8],
        writing: &SetValue,
        bytes: Option<&[u8]>,
        writer: &Owner,
    ) -> Option<(Vec<u8>, Vec<u8>, WriteOptions)> {
        let value = writing.value.as_ref().filter(|value| value.inline.is_none())?;
        let key = Value::key(name, value.write_id);
        // The writer counts as a process. Its command may contain a password, and the value outlasts it.
        let writer = Owner { command: Vec::new(), label: None, ..writer.clone() };
        let body = lock::encode_value(&key, &writer, bytes?);
        self.leave_witness(self.store.scope(), Witnessed::Value(&key));
        Some((key, body, WriteOptions { durability: Durability::Durable, mode: value.mode }))
    }

    pub(super) fn remove_old_value(&self, before: &Record, now: &Record) -> Result<()> {
        let external = |record: &Record| record.value.as_ref().filter(|it| it.inline.is_none()).map(|it| it.write_id);
        let old = external(before).filter(|write_id| external(now) != Some(*write_id));
        old.map_or(Ok(()), |write_id| self.remove_external(&Value::key(&before.name, write_id)))
    }

    fn remove_external(&self, key: &[u8]) -> Result<()> {
        self.remove_auxiliary(key, Durability::Volatile)?;
        self.remove_witness(Witnessed::Value(key));
        Ok(())
    }

    /// No record references these bytes, and their writer can no longer make a record do so.
    pub(super) fn is_orphaned_value(&self, key: &[u8]) -> Result<bool> {
        let Some((name, write_id)) = Value::of_key(key) else { return Ok(false) };
        let Some(stored) = self.store.read(self.call, key)? else { return Ok(false) };
        let found = lock::decode_value(&stored.body).map_err(|error| error.in_place(&self.store.describe(key)))?;
        let writer = found.map(|(writer, _)| writer);
        let at_work = writer.is_some_and(|writer| self.may_be_writing(key, &writer));
        let (_, record) = self.read(name)?;
        Ok(!at_work && record.value.is_none_or(|value| value.write_id != write_id))
    }
}
