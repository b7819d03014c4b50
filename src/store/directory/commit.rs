//! The steps of a commit, and the data that each durability syncs.
//!
//! [`Durability::Volatile`]: nothing. [`Durability::Atomic`]: the new record's file, before a pointer to it is put in
//! place. Names may then be lost, but no name leads to half a record.
//!
//! [`Durability::Durable`]: the names too, inner before outer ones, so that a name is visible only when its target is
//! on disk:
//!
//! - a change: the record's file; the pointer is renamed; the record's directory, the store's, and the path to it
//!   ([`super::sync`]). Only then csalock removes the old record;
//! - a creation: the unnumbered record and the draft's directory; the draft is renamed onto the name; the rest as
//!   above;
//! - a removal: as a change, without a file. The tombstone says that the record is gone. Before the tombstone is
//!   removed, the register and the store's directory are synced, because the number must outlast the record. A
//!   directory without a pointer equals none, so later removals need not be synced.
//!
//! If a sync fails after the rename of the pointer, others see the new record, and a power cut may restore the old one.
//! Neither was removed, and the caller gets the error. A conflict is synced like a success if our rename may have
//! happened ([`Commit::was_it_us`]). The caller may find its own commit in its next read, and treat it as done.

use std::sync::Arc;

use super::Directory;
use super::entry::Entry;
use super::file_name::file_name;
use super::listing::Listing;
use super::pointer::{Pointer, Stage, UniqueId, after};
use super::root::Root;
use super::work::used_up;
use crate::error::{Error, Result};
use crate::store::{CommitResult, Durability, Layout, Scope, Version, WriteOptions, guarded};

/// One attempt to commit in an open store.
pub(super) struct Commit<'a> {
    pub(super) store: &'a Directory,
    pub(super) root: &'a Arc<Root>,
    pub(super) keep: WriteOptions,
}

impl Commit<'_> {
    /// Runs the attempt. It may fail if the store's directory itself is gone.
    pub(super) fn swap(&self, name: &[u8], expect: Option<&Version>, body: Option<&[u8]>) -> Result<CommitResult> {
        let entry = Entry::new(self.root, file_name(name));
        let nothing_to_do = CommitResult::Done(Version::default());
        // Reuse of a listing is as safe as a pause after it: the rename fails if another process was faster. A removal
        // of nothing renames nothing.
        let renames = expect.is_some() || body.is_some();
        let version = |look: &Option<Listing>| look.as_ref().and_then(Listing::version);
        let look = match guarded(&self.store.seen).take() {
            Some((place, look)) if renames && place.is(&entry) && version(&look).as_ref() == expect => look,
            _ => entry.look()?,
        };
        let Some(look) = look else {
            return match (expect, body) {
                (None, Some(body)) => self.birth(&entry, body),
                (None, None) => self.settle(None).map(|()| nothing_to_do),
                (Some(_), _) => Ok(CommitResult::Conflict(None)),
            };
        };
        let Some(pointer) = look.pointer else {
            // The directory never gets a pointer again, so no process can be using it.
            look.clear()?;
            return Ok(CommitResult::Conflict(None));
        };
        if pointer.stage == Stage::Unnumbered {
            self.finish_create(&look, &pointer)?;
            return Ok(CommitResult::Conflict(None));
        }
        if look.version().as_ref() != expect {
            return Ok(self.conflict(Some(look)));
        }
        match body {
            Some(body) => self.change(look, &pointer, body),
            None if pointer.stage == Stage::Tombstone => self.settle(Some(&look)).map(|()| nothing_to_do),
            None => self.remove(look, &pointer),
        }
    }

    fn birth(&self, entry: &Entry, body: &[u8]) -> Result<CommitResult> {
        let unnumbered = Pointer { stage: Stage::Unnumbered, number: 0, ident: self.store.ident()? };
        let Some(look) = entry.create(&unnumbered, body, self.keep)? else { return Ok(CommitResult::Conflict(None)) };
        let numbered = self.next_number().and_then(|number| {
            let born = Pointer { stage: Stage::Inline, number, ..unnumbered };
            Ok(look.advance(&unnumbered, &born)?.then_some(born))
        });
        match numbered {
            Ok(Some(born)) => {
                self.settle(Some(&look))?;
                self.store.expect_no_change(look.after(born));
                Ok(CommitResult::Done(born.version()))
            }
            // No process may number a record whose creation we report as failed.
            Err(error) if look.remove_pointer(&unnumbered)? => look.remove_directory().and(Err(error)),
            _ => self.was_it_us(entry, unnumbered.ident),
        }
    }

    fn change(&self, look: Listing, pointer: &Pointer, body: &[u8]) -> Result<CommitResult> {
        let number = self.number_after(&look, pointer)?;
        let Some(ident) = look.write(|| self.store.ident(), body, self.keep)? else {
            return Ok(self.conflict(look.entry.look()?));
        };
        let next = Pointer { stage: Stage::Current, number, ident };
        // On an error the rename may have happened, and then the file is needed. Otherwise the next commit removes it.
        if look.advance(pointer, &next)? {
            self.settle(Some(&look))?;
            self.store.expect_no_change(look.after(next));
            return Ok(CommitResult::Done(next.version()));
        }
        // The reply to our rename may have been lost.
        let swap = self.was_it_us(&look.entry, next.ident)?;
        if !swap.is_done() {
            look.withdraw(next.ident);
        }
        Ok(swap)
    }

    fn remove(&self, mut look: Listing, pointer: &Pointer) -> Result<CommitResult> {
        let end = Pointer { stage: Stage::Tombstone, ..*pointer };
        let removed = look.advance(pointer, &end)?;
        if !removed {
            let now = look.entry.look()?;
            // If the reply to our rename was lost, our tombstone is there.
            if now.as_ref().is_none_or(|now| now.pointer != Some(end)) {
                return Ok(self.conflict(now));
            }
        }
        self.settle(Some(&look))?;
        look.remove_replaced();
        // A register that cannot be used costs time, but the record is gone.
        if self.is_parked(&look.entry).unwrap_or(false) {
            let mut look = look.after(end);
            look.remove_replaced();
            self.store.expect_no_change(look);
        } else if let Err(error) = self.purge(&look, &end)
            // The record is gone, whatever stays of its directory. A failed sync must be reported all the same.
            && self.keep.durability == Durability::Durable
        {
            return Err(error);
        }
        Ok(if removed { CommitResult::Done(end.version()) } else { CommitResult::Conflict(None) })
    }

    /// Returns true if this record stays as a tombstone, and purges those that it replaces. In a shared store, listings
    /// of other hosts may be stale; an auxiliary object is seldom needed twice. The sweep removes what
    /// stays of the others.
    fn is_parked(&self, entry: &Entry) -> Result<bool> {
        if self.store.layout == Layout::Beside || self.root.scope == Scope::Shared || !entry.is_record() {
            return Ok(false);
        }
        let Some(replaced) = self.root.park(entry, self.store.host.wall())? else { return Ok(false) };
        for other in replaced {
            if let Ok(Some(look)) = Entry::new(self.root, other).look()
                && let Some(end) = look.pointer.filter(|pointer| pointer.stage == Stage::Tombstone)
            {
                let _ = self.purge(&look, &end);
            }
        }
        Ok(true)
    }

    /// Gives an unnumbered record its version number, even if another process created it.
    pub(super) fn finish_create(&self, look: &Listing, unnumbered: &Pointer) -> Result<()> {
        let number = self.next_number()?;
        look.advance(unnumbered, &Pointer { stage: Stage::Inline, number, ..*unnumbered }).map(drop)
    }

    /// Decides if our rename happened although it found no source. Another process may have numbered our record, or the
    /// reply was lost. (If others went on from there, the caller finds itself in the record.)
    fn was_it_us(&self, entry: &Entry, ident: UniqueId) -> Result<CommitResult> {
        let look = entry.look()?;
        self.settle(look.as_ref())?;
        let ours = look.as_ref().and_then(|look| look.pointer);
        let ours = ours.filter(|pointer| pointer.ident == ident && pointer.stage != Stage::Unnumbered);
        let Some(pointer) = ours else {
            return Ok(self.conflict(look));
        };
        Ok(CommitResult::Done(pointer.version()))
    }

    /// Returns a conflict with the record that this listing shows, which saves the caller a read. On a shared store a lost
    /// reply may hide that the change was made.
    fn conflict(&self, look: Option<Listing>) -> CommitResult {
        let Some(mut look) = look.filter(|_| self.root.scope == Scope::Local) else {
            return CommitResult::Conflict(None);
        };
        let pointer = look.pointer.filter(Pointer::is_in_use);
        let found = pointer.and_then(|pointer| look.read_record(&pointer, self.store.host.as_ref()).ok().flatten());
        if found.is_some() {
            self.store.expect_no_change(look);
        }
        CommitResult::Conflict(found)
    }

    /// Removes the directory of a tombstone. The next process removes what stays: the record is gone anyway.
    pub(super) fn purge(&self, look: &Listing, end: &Pointer) -> Result<()> {
        self.root.raise_token(end.number)?;
        if self.keep.durability == Durability::Durable {
            self.root.sync_token()?;
        }
        look.remove(end)?;
        self.root.remove_if_empty();
        Ok(())
    }

    /// Returns the version number of a change. After a power cut a record may be at an earlier version than before, and
    /// the numbers above it were issued as tokens. The clock is above them all.
    fn number_after(&self, look: &Listing, pointer: &Pointer) -> Result<u64> {
        let next = after(pointer.number).ok_or_else(|| used_up(&look.entry.path()))?;
        let is_of_this_boot = pointer.ident.boot == self.store.boot()?;
        if is_of_this_boot || self.root.scope == Scope::Shared { Ok(next) } else { Ok(next.max(self.next_number()?)) }
    }

    fn next_number(&self) -> Result<u64> {
        self.root.next_number(self.store.host.as_ref())
    }

    /// Syncs the names that were renamed in the directory, if they must outlast a power cut.
    fn settle(&self, look: Option<&Listing>) -> Result<()> {
        if self.keep.durability < Durability::Durable {
            return Ok(());
        }
        look.map_or(Ok(()), Listing::sync).and_then(|()| self.root.sync()).map_err(Error::outcome_unknown)
    }
}
