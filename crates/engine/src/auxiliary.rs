//! Auxiliary objects: wait edges, commit records, bytes of external values, and the pages of a long queue.

use super::Engine;
use lock::error::{Error, ErrorKind, Result};
use lock::{self, Auxiliary, HandleHash, Page, Pages, QueuePosition, Record, WaitEdges, Waiter};
use store::{CommitResult, Durability, Version, WriteOptions};

impl Engine {
    /// The auxiliary object under this key, and its version; a missing or damaged object is empty.
    /// Fails if another version of csalock wrote it, unless it is only a hint.
    pub(super) fn auxiliary<T: Auxiliary + Default>(&self, key: &[u8]) -> Result<(Option<Version>, T)> {
        let Some(stored) = self.store.read(self.call, key)? else { return Ok((None, T::default())) };
        let found = match lock::decode_auxiliary(&stored.body) {
            Err(error) if T::KIND != WaitEdges::KIND => return Err(error.in_place(&self.store.describe(key))),
            found => found.ok().flatten(),
        };
        Ok((Some(stored.version), found.unwrap_or_default()))
    }

    /// Replaces an object, unless `change` returns `None`, and returns it. The store does not keep an empty one.
    pub(super) fn change_auxiliary<T: Auxiliary + Default + PartialEq>(
        &self,
        key: &[u8],
        change: &mut dyn FnMut(&T) -> Option<T>,
    ) -> Result<T> {
        let mut retry = self.cas_retry(key);
        loop {
            let (version, found) = self.auxiliary(key)?;
            let Some(next) = change(&found) else { return Ok(found) };
            let body = (next != T::default()).then(|| lock::encode_auxiliary(key, &next));
            if version.is_none() && body.is_none() {
                return Ok(next);
            }
            match self.commit_beside(key, version.as_ref(), body.as_deref(), WriteOptions::default())? {
                CommitResult::Done(_) => return Ok(next),
                CommitResult::Conflict(_) | CommitResult::Unclear => retry.backoff()?,
            };
        }
    }

    /// Compare-and-swap, even if a reply is lost. `None` if another process changed the object.
    pub(super) fn write_auxiliary(
        &self,
        key: &[u8],
        expect: Option<Version>,
        body: &[u8],
        options: WriteOptions,
    ) -> Result<Option<Version>> {
        let mut retry = self.cas_retry(key);
        loop {
            if let CommitResult::Done(stored) = self.commit_beside(key, expect.as_ref(), Some(body), options)? {
                return Ok(Some(stored));
            }
            match self.store.read(self.call, key)? {
                // The store has our write, and only the reply was lost.
                Some(stored) if stored.body == body => return Ok(Some(stored.version)),
                // No other caller wrote: the commit failed because its directory was missing, so try again.
                found if found.as_ref().map(|stored| stored.version) == expect => {
                    retry.backoff()?;
                }
                _ => return Ok(None),
            }
        }
    }

    /// Writes an auxiliary object that no other process knows.
    /// Fails if another process has written an object under this key nevertheless.
    pub(super) fn create_auxiliary(&self, key: &[u8], body: &[u8], options: WriteOptions) -> Result<()> {
        let foreign = || {
            let what = format!("{} is an object of another process", self.store.describe(key));
            Error::new(ErrorKind::System, what, "try again")
        };
        self.write_auxiliary(key, None, body, options)?.map(drop).ok_or_else(foreign)
    }

    pub(super) fn remove_auxiliary(&self, key: &[u8], durability: Durability) -> Result<()> {
        let keep = WriteOptions { durability, mode: None };
        while let Some(version) = self.version(key)? {
            if let CommitResult::Done(_) = self.commit_beside(key, Some(&version), None, keep)? {
                break;
            }
        }
        Ok(())
    }
}

/// Overflow of a long queue: a waiter joins a page, leaves it, or is fetched from it.
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
