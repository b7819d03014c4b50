//! The end of a long queue, in pages of its own.
//!
//! A record is replaced whole, so with a thousand waiters in it every step of every one of them would cost a thousand
//! times as much. Therefore the record bears only the first waiters. When these are too many it names a range of *pages*,
//! each stored under a name of its own, and newcomers enter the last of them. Whoever serves the queue and finds few
//! left in the record fetches the first page into it.
//!
//! - A page that is about to be fetched is **sealed** first: from then on nobody enters or leaves it, so everybody on it is
//!   fetched, and nobody is twice or lost.
//! - Who has entered a page looks at the record afterwards. If the page is not (any more) one of its pages, the entry
//!   counts for nothing, and he enters the queue anew.
//! - A page bears no grant. One that is unreadable or missing costs those on it their places, never anybody a lock.

use super::ask::QueuePosition;
use super::handle::HandleHash;
use super::record::Waiter;

/// How many waiters a page takes.
const ROOM: usize = 32;

/// A part of a name's queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// Whether it is being fetched.
    pub sealed: bool,
    /// Those who wait, in order of arrival.
    pub waiters: Vec<Waiter>,
}

/// What came of entering a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enqueued {
    /// The page is to become this one.
    Change(Page),
    /// It is all done already.
    Already(QueuePosition),
    /// It takes nobody more.
    Full,
}

impl Page {
    /// The name that a page is stored under: no name that anybody could type.
    pub fn key(name: &[u8], number: u64) -> Vec<u8> {
        [name, b"\0", format!("{number:016x}").as_bytes()].concat()
    }

    /// The name and number of the page that is stored under this name, if one is.
    pub fn of_key(key: &[u8]) -> Option<(&[u8], u64)> {
        let nul = key.iter().position(|byte| *byte == 0).filter(|nul| *nul > 0)?;
        let number = u64::from_str_radix(std::str::from_utf8(&key[nul + 1..]).ok()?, 16).ok()?;
        Some((&key[..nul], number)).filter(|(name, number)| Page::key(name, *number) == key)
    }

    /// Enters it, as page `number`, or replaces the entry that is already there.
    pub fn enqueue(&self, number: u64, entry: &Waiter) -> Enqueued {
        let Some(at) = self.waiters.iter().position(|waiter| waiter.proof == entry.proof) else {
            if self.sealed || self.waiters.len() >= ROOM {
                return Enqueued::Full;
            }
            let mut next = self.clone();
            next.waiters.push(entry.clone());
            return Enqueued::Change(next);
        };
        if !self.sealed && self.waiters[at] != *entry {
            let mut next = self.clone();
            next.waiters[at] = entry.clone();
            return Enqueued::Change(next);
        }
        let before = self.waiters[..at].iter().rev().map(Waiter::waits_where).collect();
        Enqueued::Already(QueuePosition { page: number, ahead: at, before, entry: entry.clone() })
    }

    /// The page without this waiter; `None` where he is not on it, or is being fetched.
    pub fn without(&self, proof: &HandleHash) -> Option<Page> {
        let mut next = self.clone();
        next.waiters.retain(|waiter| waiter.proof != *proof);
        (!self.sealed && next != *self).then_some(next)
    }

    /// How many waiters stand on the pages before this one, at most.
    pub(super) fn before(first: u64, number: u64) -> usize {
        ROOM * number.saturating_sub(first) as usize
    }
}
