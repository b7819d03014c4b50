//! The end of a long queue, in pages of its own.
//!
//! A commit replaces a whole record, so with a thousand waiters in it each of their steps would cost a thousand times
//! as much. Therefore the record contains only the first waiters. If there are more, it names a range of *pages*, each
//! under its own name, and newcomers enter the last. A process that serves a queue with few waiters left in the record
//! fetches the first page into it.
//!
//! - csalock **seals** a page before a fetch. No waiter enters or leaves a sealed page, so the fetch moves each waiter
//!   exactly once.
//! - After a waiter enters a page, it reads the record. If the page is not (any more) among the record's pages, the
//!   entry is void, and the waiter enters the queue again.
//! - A page contains no grant. A bad or missing page costs its waiters their positions, but costs no holder a lock.

use serde::{Deserialize, Serialize};

use super::handle::HandleHash;
use super::record::Waiter;
use super::request::QueuePosition;

/// Maximum number of waiters on a page.
const ROOM: usize = 16;

/// Numbers of the pages that the end of a long queue is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pages {
    /// Number of the page that is served next.
    pub first: u64,
    /// Number of the page that newcomers enter.
    pub last: u64,
}

impl Pages {
    /// Returns true if the range contains the page with this number.
    pub fn has(&self, number: u64) -> bool {
        (self.first..=self.last).contains(&number)
    }
}

/// Part of a lock's queue.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Page {
    /// True while a process fetches the page.
    pub sealed: bool,
    /// Waiters in order of arrival.
    pub waiters: Vec<Waiter>,
}

impl Page {
    /// Returns the store name of a page. A user cannot type this name, because it contains a NUL byte.
    pub fn key(name: &[u8], number: u64) -> Vec<u8> {
        [name, b"\0", format!("{number:016x}").as_bytes()].concat()
    }

    /// Returns the lock name and page number of the page with this store name, or `None` for other names.
    pub fn of_key(key: &[u8]) -> Option<(&[u8], u64)> {
        let nul = key.iter().position(|byte| *byte == 0).filter(|nul| *nul > 0)?;
        let number = u64::from_str_radix(std::str::from_utf8(&key[nul + 1..]).ok()?, 16).ok()?;
        Some((&key[..nul], number)).filter(|(name, number)| Page::key(name, *number) == key)
    }

    /// Returns the page with this entry, which replaces an older one of the waiter, or `None` if the page has it already or
    /// takes no more waiters.
    pub fn with(&self, entry: &Waiter) -> Option<Page> {
        let mut next = self.clone();
        match next.waiters.iter_mut().find(|waiter| waiter.proof == entry.proof) {
            Some(known) => *known = entry.clone(),
            None if self.waiters.len() < ROOM => next.waiters.push(entry.clone()),
            None => {}
        }
        (!self.sealed && next != *self).then_some(next)
    }

    /// Returns the position of this entry on the page, which is page `number`, or `None` if its waiter is not there.
    pub fn position(&self, number: u64, entry: &Waiter) -> Option<QueuePosition> {
        let at = self.waiters.iter().position(|waiter| waiter.proof == entry.proof)?;
        let before = self.waiters[..at].iter().rev().map(Waiter::waits_where).collect();
        Some(QueuePosition { page: number, ahead: at, before, entry: entry.clone() })
    }

    pub fn has(&self, proof: &HandleHash) -> bool {
        self.waiters.iter().any(|waiter| waiter.proof == *proof)
    }

    /// Returns the page without this waiter, or `None` if the waiter is not on the page or the page is sealed.
    pub fn without(&self, proof: &HandleHash) -> Option<Page> {
        let mut next = self.clone();
        next.waiters.retain(|waiter| waiter.proof != *proof);
        (!self.sealed && next != *self).then_some(next)
    }

    /// Returns the maximum number of waiters on the pages before page `number`.
    pub(super) fn before(first: u64, number: u64) -> usize {
        ROOM * number.saturating_sub(first) as usize
    }
}
