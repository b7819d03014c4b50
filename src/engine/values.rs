//! Values: reading one, and writing or deleting it. The rules are in [`crate::lock`]'s `value.rs`; here is what they need of
//! the store: the bytes of those that are apart, and waiting for whoever holds the lock.

use std::os::fd::BorrowedFd;

use super::taking::Onlooker;
use super::{Applicant, Engine, Patience, Sight, Swapped, Taken, with_token};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lock::{self, Ask, Claimant, Fate, Grant, OnlyIf, Outcome, Party, Proof, Record, Step, Value, Writing};
use crate::store::{Change, Durability, Keep};

/// What is to be written, by whoever may.
#[derive(Debug, Clone)]
pub struct Wanted<'a> {
    /// Who says that he may.
    pub by: Claimant,
    /// The bytes; `None`: what is there is to be deleted.
    pub bytes: Option<&'a [u8]>,
    /// Who may read them, if not everybody who may read the store: the permission bits of a file.
    pub mode: Option<u32>,
    /// What must be so.
    pub only_if: Option<OnlyIf>,
    /// Only as the holder; else also where nobody holds the lock.
    pub as_holder: bool,
    /// And give back the lock.
    pub give_back: bool,
    /// Also when the grant is over, if nobody has had the lock since.
    pub even_if_stale: bool,
}

impl Engine {
    /// The value of a name and its bytes, if it has one.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked, or the value's bytes are missing.
    pub fn value(&self, name: &[u8]) -> Result<Option<(Value, Vec<u8>)>> {
        let mut missing = None;
        let mut race = self.race(name);
        loop {
            let (_, record) = self.read(name)?;
            let Some(mut value) = record.value else { return Ok(None) };
            if let Some(bytes) = value.within.take() {
                return Ok(Some((value, bytes)));
            }
            let key = Value::key(name, value.mark);
            let not_for_us = |error: Error| match (error.exit(), value.mode) {
                (Exit::Permission, Some(mode)) => {
                    let what = format!("the value of lock {} has mode {mode:04o}", crate::name::shown(name));
                    Error::new(Exit::Permission, what, "ask whoever wrote it")
                }
                _ => error,
            };
            if let Some(stored) = self.store.read(&key).map_err(not_for_us)? {
                let bytes = lock::decode_value(&stored.body).filter(|(_, bytes)| bytes.len() as u64 == value.size);
                let unreadable = || Error::corrupt(format!("{}: the value is unreadable", self.store.place(&key)));
                return Ok(Some((value, bytes.ok_or_else(unreadable)?.1)));
            }
            // Bytes go only after the record has gone on to others.
            if missing == Some(value.mark) {
                return Err(Error::corrupt(format!("{}: the value is missing", self.store.place(&key))));
            }
            missing = Some(value.mark);
            race.lost()?;
        }
    }

    /// Writes or deletes a value: at once where that can be, else when the applicant has been granted the lock, which is
    /// given back with that.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked or told.
    pub fn write(
        &self,
        name: &[u8],
        wanted: &Wanted<'_>,
        applicant: &Applicant,
        patience: &Patience,
        interrupt: Option<BorrowedFd<'_>>,
        onlooker: &mut Onlooker<'_>,
    ) -> Result<Taken> {
        let began = self.host.boottime();
        self.bound_by(patience);
        let mut write = || self.write_at_once(name, wanted, &applicant.party);
        let outcome = self.when_reached(name, patience, interrupt, onlooker, &mut write);
        self.store.bound(None);
        let outcome = match outcome {
            Err(_) if self.is_interrupted(interrupt) => return Ok(Taken::Interrupted),
            outcome => outcome?,
        };
        let Some(outcome) = outcome else { return Ok(Taken::Interrupted) };
        if patience.is_none() || !matches!(outcome, Outcome::Busy(_)) {
            return Ok(Taken::Answer(outcome));
        }
        let spent = self.host.boottime().saturating_sub(began);
        let patience = &Patience { limit: patience.limit.map(|limit| limit.saturating_sub(spent)), ..*patience };
        match self.take(name, applicant, patience, interrupt, onlooker)? {
            Taken::Answer(Outcome::Granted(..)) => {}
            refused => return Ok(refused),
        }
        let proof = applicant.handle.proof();
        let me = self.claimant(Some(proof), Vec::new())?;
        let granted = Wanted { by: me.clone(), as_holder: true, give_back: true, ..wanted.clone() };
        let written = self.write_at_once(name, &granted, &applicant.party);
        if !matches!(written, Ok(Outcome::Written(..))) {
            self.settle(name, &Ask::Release(me))?;
        }
        written.map(Taken::Answer)
    }

    /// The grant by which a name is claimed for good, if it is.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked.
    pub fn claim_of(&self, name: &[u8]) -> Result<Option<Grant>> {
        Ok(self.claim_in(&self.sight(name)?))
    }

    /// The same of what was seen.
    pub fn claim_in(&self, sight: &Sight) -> Option<Grant> {
        let mut held = sight.record.holders.iter().zip(&sight.holders).filter(|(_, standing)| standing.is_ok());
        let (grant, _) = held.find(|(grant, _)| grant.claim.is_some())?;
        let is_at_work = |process| self.fate(&sight.record, &grant.party.home, process) != Fate::Dead;
        // Somebody may be about to give it up: till then it is one.
        let may_come_to_nothing =
            grant.unconfirmed.as_ref().is_some_and(is_at_work) && !self.has_decided(&grant.proof).unwrap_or(false);
        (!may_come_to_nothing).then(|| grant.clone())
    }

    fn write_at_once(&self, name: &[u8], wanted: &Wanted<'_>, writer: &Party) -> Result<Outcome> {
        let random = self.host.random()?;
        let mark = u64::from_be_bytes(random[..8].try_into().unwrap_or_default());
        let mut writing = Writing {
            claimant: wanted.by.clone(),
            value: wanted.bytes.map(|bytes| Value::new(bytes, mark, wanted.mode)),
            only_if: wanted.only_if,
            as_holder: wanted.as_holder,
            give_back: wanted.give_back,
            even_if_stale: wanted.even_if_stale,
        };
        let mut stored = false;
        let key = Value::key(name, mark);
        let done = self.try_to_write(name, wanted, &mut writing, &mut stored, writer);
        // After an error it may have been written all the same; then somebody else's `gc` knows better.
        if stored && matches!(&done, Ok(outcome) if !matches!(outcome, Outcome::Written(..))) {
            self.remove_beside(&key, Durability::Boot)?;
            self.remove_witness_of_value(&key);
        }
        done
    }

    fn try_to_write(
        &self,
        name: &[u8],
        wanted: &Wanted<'_>,
        writing: &mut Writing,
        stored: &mut bool,
        writer: &Party,
    ) -> Result<Outcome> {
        let mut race = self.race(name);
        loop {
            let (version, record) = self.read(name)?;
            // What only some may read stays like that until somebody says otherwise.
            let mode = wanted.mode.or(record.value.as_ref().and_then(|value| value.mode));
            if let (Some(value), Some(bytes)) = (&mut writing.value, wanted.bytes)
                && value.mode != mode
            {
                *value = Value::new(bytes, value.mark, mode);
            }
            let step = self.decide(&record, &Ask::Write(writing.clone()), None)?;
            let (next, outcome, wake, over) = match step {
                Step::Write { record, outcome: Some(outcome), wake, over } => (record, outcome, wake, over),
                Step::Done(outcome) => {
                    if let Outcome::Busy(_) = outcome {
                        self.note_leases(&record);
                    }
                    return Ok(outcome);
                }
                _ => return Ok(Outcome::Busy(record.holders)),
            };
            let apart = match (&writing.value, wanted.bytes) {
                (Some(Value { within: None, mark, mode, .. }), Some(bytes)) if !*stored => {
                    let key = Value::key(name, *mark);
                    self.leave_witness_of_value(&key);
                    let body = lock::encode_value(&key, writer, bytes);
                    Some((key, body, Keep { durability: Durability::Lasting, mode: *mode }))
                }
                _ => None,
            };
            let beside: Vec<Change<'_>> = apart
                .iter()
                .map(|(key, body, keep)| Change { name: key, expect: None, body: Some(body), keep: *keep, over: &[] })
                .collect();
            if let [value] = &beside[..]
                && !self.changes_at_once(2)
            {
                *stored = true;
                self.commit(&[*value], &[])?;
                // That took its time.
                continue;
            }
            let swapped = Swapped { expect: version, before: &record, record: &next, wake: &wake, over: &over };
            if let Some(version) = self.swap_with(&[swapped], &beside, None)? {
                return Ok(with_token(outcome, &version));
            }
            writing.claimant.repeated = true;
            race.lost()?;
        }
    }

    /// Removes the bytes of a value that the record no longer names.
    pub(super) fn remove_old_value(&self, before: &Record, now: &Record) -> Result<()> {
        let apart = |record: &Record| record.value.as_ref().filter(|it| it.within.is_none()).map(|it| it.mark);
        match apart(before) {
            Some(mark) if apart(now) != Some(mark) => {
                let key = Value::key(&before.name, mark);
                self.remove_beside(&key, Durability::Boot)?;
                self.remove_witness_of_value(&key);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether these bytes were left by somebody who died before a record named them, or after.
    pub(super) fn is_left_value(&self, key: &[u8]) -> Result<bool> {
        let Some((name, mark)) = Value::of_key(key) else { return Ok(false) };
        let Some(stored) = self.store.read(key)? else { return Ok(false) };
        let writer = lock::decode_value(&stored.body).map(|(writer, _)| writer);
        let at_work = writer.is_some_and(|writer| self.may_be_writing(key, &writer));
        let (_, record) = self.read(name)?;
        Ok(!at_work && record.value.is_none_or(|value| value.mark != mark))
    }
}

/// What a power cut may do to a swap from one record to the other: values and claims must outlast it, and what bears them
/// must not be torn.
pub(super) fn durability(before: &Record, now: &Record) -> Durability {
    let claims = |record: &Record| -> Vec<(Proof, bool)> {
        let claims = record.holders.iter().filter(|grant| grant.claim.is_some());
        claims.map(|grant| (grant.proof, grant.unconfirmed.is_some())).collect()
    };
    if before.value != now.value || claims(before) != claims(now) {
        Durability::Lasting
    } else if now.value.is_some() || !claims(now).is_empty() {
        Durability::Whole
    } else {
        Durability::Boot
    }
}
