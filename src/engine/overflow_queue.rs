//! The overflow of a long queue: joining a page, leaving it, and sealing it to fetch its waiters.

use super::Engine;
use crate::error::Result;
use crate::lock::{HandleHash, Page, Pages, QueuePosition, Record, Waiter};
use crate::store::{CommitResult, WriteOptions};

impl Engine {
    /// Adds a waiter to a page of a name's queue. Returns `None` if the page takes no more waiters.
    pub(super) fn enqueue(&self, name: &[u8], number: u64, entry: &Waiter) -> Result<Option<QueuePosition>> {
        let page = self.change_auxiliary(&Page::key(name, number), &mut |page: &Page| page.with(entry))?;
        let mut place = page.position(number, entry);
        if let Some(place) = &mut place
            && let Some(before) = number.checked_sub(1)
        {
            let (_, page) = self.auxiliary::<Page>(&Page::key(name, before))?;
            place.before.extend(page.waiters.iter().rev().map(Waiter::waits_where));
        }
        Ok(place)
    }

    /// Removes a waiter from a page. Returns `false` if it is gone, or must be removed from the place it is fetched to.
    pub(super) fn dequeue(&self, name: &[u8], number: u64, proof: &HandleHash) -> Result<bool> {
        let mut has_tried = false;
        let page = self.change_auxiliary(&Page::key(name, number), &mut |page: &Page| {
            let without = page.without(proof);
            has_tried |= without.is_some();
            without
        })?;
        // After a lost commit, another process may have sealed the page with the waiter on it.
        Ok(has_tried && !page.has(proof))
    }

    /// Seals a page and returns its waiters: no waiter joins or leaves it any more.
    pub(super) fn seal(&self, name: &[u8], number: u64) -> Result<Vec<Waiter>> {
        let page = self.change_auxiliary(&Page::key(name, number), &mut |page: &Page| {
            (!page.sealed).then(|| Page { sealed: true, waiters: page.waiters.clone() })
        })?;
        Ok(page.waiters)
    }

    /// Returns the record with its entire queue, for display.
    pub(super) fn whole(&self, mut record: Record) -> Result<Record> {
        for number in numbers(record.pages) {
            let (_, page) = self.auxiliary::<Page>(&Page::key(&record.name, number))?;
            for waiter in page.waiters {
                if record.waiter(&waiter.proof).is_none() {
                    record.waiters.push(waiter);
                }
            }
        }
        Ok(record)
    }

    /// Removes the fetched pages and returns their waiters. Pages that a killed process leaves do no harm.
    pub(super) fn remove_pages(&self, before: &Record, now: &Record) -> Result<Vec<Waiter>> {
        let mut fetched = Vec::new();
        for number in numbers(before.pages).filter(|number| now.pages.is_none_or(|pages| !pages.has(*number))) {
            let key = Page::key(&now.name, number);
            while let (Some(version), page) = self.auxiliary::<Page>(&key)? {
                if let CommitResult::Done(_) =
                    self.commit_beside(&key, Some(&version), None, WriteOptions::default())?
                {
                    fetched.extend(page.waiters);
                    break;
                }
            }
        }
        Ok(fetched)
    }
}

fn numbers(pages: Option<Pages>) -> impl Iterator<Item = u64> {
    pages.into_iter().flat_map(|pages| pages.first..=pages.last)
}
