//! A waiter: an entry in the queue of a record, and the pages with the end of a long queue.

use std::num::NonZeroU32;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::text::{self, is_default};
use super::{Grant, HandleHash, Lease, Lifetime, Mode, Owner, PidDomain, ProcessId};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// Hash of the waiter's handle; the waiter's channel is derived from it.
    pub proof: HandleHash,
    pub mode: Mode,
    /// Number of slots that the waiter counts, with [`Mode::Slot`]; a grant makes it that of the record.
    #[serde(default, skip_serializing_if = "is_default")]
    pub slots: Option<NonZeroU32>,
    /// Owner of the future grant, shared like [`Grant::owner`].
    pub owner: Arc<Owner>,
    /// Process that waits; its death ends the wait.
    pub process: ProcessId,
    pub lifetime: Lifetime,
    /// If another process grants to this waiter, the waiter must confirm that. False only in records of older versions.
    #[serde(default, skip_serializing_if = "is_default")]
    pub needs_confirmation: bool,
    /// An end of the owner will release the grant ([`Grant::release_on_exit`]).
    #[serde(default, skip_serializing_if = "is_default")]
    pub release_on_exit: bool,
    #[serde(default, with = "text", skip_serializing_if = "is_default")]
    pub claim: Option<Vec<u8>>,
    /// A newer caller that asks for this takes the waiter's place ([`super::Replacement`]).
    #[serde(default, skip_serializing_if = "is_default")]
    pub latest_only: bool,
    /// Grants that the waiter works under, here or under other names; they do not end before this wait does.
    #[serde(default, skip_serializing_if = "is_default")]
    pub enclosing_grants: Vec<HandleHash>,
    /// Processes, innermost first, that continue only when this wait is over: the scripts that wait.
    #[serde(default, skip_serializing_if = "is_default")]
    pub blocked_processes: Vec<ProcessId>,
    /// Found frozen at its turn, and has not looked since.
    #[serde(default, skip_serializing_if = "is_default")]
    pub was_frozen: bool,
    /// Lease until which the waiter counts as alive, if other hosts cannot see its process.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lease: Option<Lease>,
    /// Time of arrival, in milliseconds since 1970 ([`Grant::since`]).
    pub since: u64,
}

impl Waiter {
    /// Entry of a process that waits for an exclusive lock, which this owner will hold while it lives.
    pub fn new(proof: HandleHash, owner: Owner, process: ProcessId) -> Waiter {
        Waiter { proof, owner: Arc::new(owner), process, ..Waiter::default() }
    }

    /// Entry of a waiter that has not confirmed its grant, without what only the waiter knows.
    pub(super) fn waiting_again(grant: Grant, process: ProcessId, slots: Option<u32>) -> Waiter {
        Waiter {
            mode: grant.mode,
            slots: if grant.mode == Mode::Slot { slots.and_then(NonZeroU32::new) } else { None },
            lease: grant.lifetime.lease().cloned(),
            lifetime: grant.lifetime,
            needs_confirmation: true,
            release_on_exit: grant.release_on_exit,
            claim: grant.claim,
            latest_only: grant.latest_only,
            since: grant.since.saturating_sub(grant.waited),
            ..Waiter::new(grant.proof, Arc::unwrap_or_clone(grant.owner), process)
        }
    }

    /// A damaged entry counts one slot.
    pub fn slot_count(&self) -> u32 {
        self.slots.map_or(1, NonZeroU32::get)
    }

    pub fn waits_where(&self) -> (PidDomain, ProcessId) {
        (self.owner.domain.clone(), self.process)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replacement {
    /// Handle hash of the newest caller.
    pub by: HandleHash,
    /// Handle hashes of the replaced waiters, oldest first.
    pub waiters: Vec<HandleHash>,
}

/// Place of a caller in the queue, as far as the caller knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueuePlace {
    #[default]
    Nowhere,
    InRecord,
    OnPage(QueuePosition),
    /// No room on the page with this number, so the entry needs another one.
    BesidePage(u64),
}

impl QueuePlace {
    /// Otherwise the store has not accepted the entry.
    pub fn is_queued(&self) -> bool {
        matches!(self, QueuePlace::InRecord | QueuePlace::OnPage(_))
    }

    pub fn on_page(&self) -> Option<&QueuePosition> {
        if let QueuePlace::OnPage(position) = self { Some(position) } else { None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePosition {
    pub page: u64,
    pub(crate) ahead: usize,
    /// Processes of those waiters and of the waiters on the previous page, nearest first.
    pub before: Vec<(PidDomain, ProcessId)>,
    pub(crate) entry: Waiter,
}

/// Numbers of the pages that the end of a long queue is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pages {
    /// Number of the page that is served next.
    pub first: u64,
    /// Number of the page that newcomers enter.
    pub last: u64,
}

impl Pages {
    pub fn has(&self, number: u64) -> bool {
        (self.first..=self.last).contains(&number)
    }
}

/// Maximum number of waiters on a page.
const ROOM: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Page {
    /// True while a process fetches the page.
    pub sealed: bool,
    /// Waiters in order of arrival.
    pub waiters: Vec<Waiter>,
}

impl Page {
    /// Store name of a page. A user cannot type this name, because it contains a NUL byte.
    pub fn key(name: &[u8], number: u64) -> Vec<u8> {
        [name, b"\0", format!("{number:016x}").as_bytes()].concat()
    }

    /// Lock name and page number of the page with this store name; `None` for other names.
    pub fn of_key(key: &[u8]) -> Option<(&[u8], u64)> {
        let nul = key.iter().position(|byte| *byte == 0).filter(|nul| *nul > 0)?;
        let number = u64::from_str_radix(std::str::from_utf8(&key[nul + 1..]).ok()?, 16).ok()?;
        Some((&key[..nul], number)).filter(|(name, number)| Page::key(name, *number) == key)
    }

    /// The entry replaces an older one of its waiter. `None` if the page has it already or takes no more waiters.
    pub fn with(&self, entry: &Waiter) -> Option<Page> {
        let mut next = self.clone();
        match next.waiters.iter_mut().find(|waiter| waiter.proof == entry.proof) {
            Some(known) => *known = entry.clone(),
            None if self.waiters.len() < ROOM => next.waiters.push(entry.clone()),
            None => {}
        }
        (!self.sealed && next != *self).then_some(next)
    }

    pub fn position(&self, number: u64, entry: &Waiter) -> Option<QueuePosition> {
        let at = self.waiters.iter().position(|waiter| waiter.proof == entry.proof)?;
        let before = self.waiters[..at].iter().rev().map(Waiter::waits_where).collect();
        Some(QueuePosition { page: number, ahead: at, before, entry: entry.clone() })
    }

    pub fn has(&self, proof: &HandleHash) -> bool {
        self.waiters.iter().any(|waiter| waiter.proof == *proof)
    }

    /// `None` if the waiter is not on the page or the page is sealed.
    pub fn without(&self, proof: &HandleHash) -> Option<Page> {
        let mut next = self.clone();
        next.waiters.retain(|waiter| waiter.proof != *proof);
        (!self.sealed && next != *self).then_some(next)
    }

    /// Maximum number of waiters on the pages before page `number`.
    pub(super) fn before(first: u64, number: u64) -> usize {
        ROOM * number.saturating_sub(first) as usize
    }
}
