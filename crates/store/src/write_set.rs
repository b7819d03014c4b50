//! Commits: what they write, under which conditions and with which effects.

use std::cell::LazyCell;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

use super::{Call, Leases, Version, Versioned};
use lock::history::HistoryLimits;
use lock::{Lease, Result};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitResult {
    /// The store committed this version. After a removal, the version does not refer to a record.
    Done(Version),
    /// Another caller was faster, and nothing was changed. The record that the change conflicts with, if the store returns
    /// it.
    Conflict(Option<Versioned>),
    /// A conflict, or the reply to our own success was lost. The caller must read again and first look for its own step
    /// in the record.
    Unclear,
}

impl CommitResult {
    pub fn is_done(&self) -> bool {
        matches!(self, CommitResult::Done(_))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub enum Durability {
    /// A power cut may undo the commit or tear the record. The record is valid for this boot only.
    #[default]
    Volatile,
    /// A power cut may undo the commit, but leaves either the old record or the new one.
    Atomic,
    /// A power cut has no effect after the commit has returned.
    Durable,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WriteOptions {
    pub durability: Durability,
    /// Permission bits of the record's file, at most. `None`: every user who may read the store may read the record.
    pub mode: Option<u32>,
}

#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    pub name: &'a [u8],
    /// Expected version; `None` means no record.
    pub expect: Option<Version>,
    /// New bytes, or `None` for a removal.
    pub body: Option<&'a [u8]>,
    pub options: WriteOptions,
}

/// A commit: the change of a record, its conditions, and effects.
///
/// The effects follow a successful commit, and nothing that is correct depends on them: a process that dies in between
/// loses them. A store carries them out with the change, or when the commit is finished ([`super::Store::finish`]).
#[derive(Default)]
pub struct WriteSet<'a> {
    /// `None` for a commit of effects alone.
    pub change: Option<Write<'a>>,
    /// Leases that must be over, or else the result is a conflict.
    pub expired: Vec<&'a Lease>,
    /// Leases that no record refers to after this commit.
    pub ended: Vec<&'a Lease>,
    /// Channels of waiters to wake, each with the waiter's lease: traces in the store end with that lease.
    pub wake: Vec<(Vec<u8>, Option<&'a Lease>)>,
    /// Channels that dead waiters may have left in the store.
    pub closed: Vec<Vec<u8>>,
    /// Lines of history, each with its newline.
    pub history: LinesOfHistory<'a>,
    pub limits: HistoryLimits,
}

/// Lines of history that are made when a store asks for them, which some stores do after the change.
pub struct LinesOfHistory<'a>(LazyCell<Vec<String>, Box<dyn FnOnce() -> Vec<String> + 'a>>);

impl<'a> LinesOfHistory<'a> {
    pub fn new(make: impl FnOnce() -> Vec<String> + 'a) -> LinesOfHistory<'a> {
        LinesOfHistory(LazyCell::new(Box::new(make)))
    }
}

impl Default for LinesOfHistory<'_> {
    fn default() -> Self {
        LinesOfHistory::new(Vec::new)
    }
}

impl Deref for LinesOfHistory<'_> {
    type Target = Vec<String>;

    fn deref(&self) -> &Vec<String> {
        &self.0
    }
}

impl<'a> WriteSet<'a> {
    pub fn of(name: &'a [u8], expect: Option<&Version>, body: Option<&'a [u8]>) -> WriteSet<'a> {
        WriteSet::from(Write { name, expect: expect.copied(), body, options: WriteOptions::default() })
    }

    /// Checks the leases first, because an expired lease cannot come back. The effects follow later.
    pub fn commit_alone(
        &self,
        call: Call,
        leases: &dyn Leases,
        replace: impl FnOnce(&Write<'a>) -> Result<CommitResult>,
    ) -> Result<CommitResult> {
        if !self.leases_are_over(call, leases)? {
            return Ok(CommitResult::Conflict(None));
        }
        self.change.as_ref().map_or(Ok(CommitResult::Done(Version::default())), replace)
    }

    pub fn leases_are_over(&self, call: Call, leases: &dyn Leases) -> Result<bool> {
        self.expired.iter().try_fold(true, |are_over, lease| Ok(are_over && leases.is_expired(call, lease)?))
    }
}

impl<'a> From<Write<'a>> for WriteSet<'a> {
    fn from(change: Write<'a>) -> WriteSet<'a> {
        WriteSet { change: Some(change), ..WriteSet::default() }
    }
}
