//! The steps of a swap, and what of them is synced.
//!
//! [`Durability::Boot`]: nothing. [`Durability::Whole`]: the new record's file, before a pointer to it is put in place.
//! Names may then be lost, but no name leads to half a record.
//!
//! [`Durability::Lasting`]: the names as well, inner ones before outer ones, so that nothing can be seen before what it
//! leads to is on the disk:
//!
//! - a change: the record's file; the pointer is renamed; the record's directory, the store's, and the way to it
//!   ([`super::sync_parents`]). Only then the old record is removed;
//! - a birth: the embryo and the draft's directory; the draft is renamed onto the name; the rest as above;
//! - a removal that leaves a tombstone: as a change, without a file. The tombstone says that the record is gone, so
//!   what is removed after it need not be synced;
//! - a removal that leaves nothing: the token register and the store's directory, since the version number must not be
//!   lost with the record that had it; the pointer is removed; its directory. One without a pointer is as good as none,
//!   so that it goes away need not be synced.
//!
//! Where a sync fails after the pointer was renamed, the others see the new record, and a power cut may bring back the
//! old one: nothing of either was removed. The caller is told of the failure. "Conflict" is synced like a success when
//! our rename may have happened ([`Transition::was_it_us`]): the caller may find its own step in the record that it reads
//! next, and takes it for done.

use super::Directory;
use super::entry::{Entry, Listing};
use super::parked::Rest;
use super::pointer::{Pointer, Stage, UniqueId, after};
use super::root::{Root, used_up};
use crate::error::{Error, Result};
use crate::store::{CommitResult, Durability, Layout, Scope, Version, WriteOptions};

/// A removal of what is not there.
const NOTHING_TO_DO: CommitResult = CommitResult::Done(Version { number: 0, mark: 0 });

/// One try of a swap in a store that is open.
pub(super) struct Commit<'a> {
    pub(super) store: &'a Directory,
    pub(super) root: &'a Root,
    pub(super) keep: WriteOptions,
}

impl Commit<'_> {
    /// Tries it. `None`: the store's directory itself is gone.
    pub(super) fn swap(
        &self,
        name: &[u8],
        expect: Option<&Version>,
        body: Option<&[u8]>,
    ) -> Result<Option<CommitResult>> {
        let entry = self.store.entry(self.root, name);
        let seen = self.store.seen().take().zip(expect);
        let look = match seen.and_then(|(seen, expect)| seen.resume(&entry, expect)) {
            Some(look) => Some(look),
            None => entry.look()?,
        };
        let Some(look) = look else {
            return match (expect, body) {
                (None, Some(body)) => self.birth(&entry, body),
                (None, None) => self.settle(None).map(|()| Some(NOTHING_TO_DO)),
                (Some(_), _) => Ok(Some(CommitResult::Conflict)),
            };
        };
        let Some(pointer) = look.pointer else {
            // Pointerless for good: nobody can be using it.
            look.clear()?;
            return Ok(Some(CommitResult::Conflict));
        };
        if pointer.stage == Stage::Unnumbered {
            self.finish_create(&look, &pointer)?;
            return Ok(Some(CommitResult::Conflict));
        }
        let found = (pointer.stage != Stage::Tombstone).then_some(pointer.version());
        if found.as_ref() != expect {
            return Ok(Some(CommitResult::Conflict));
        }
        match body {
            Some(body) => self.change(&look, &pointer, body),
            None if pointer.stage == Stage::Tombstone => self.settle(Some(&look)).map(|()| NOTHING_TO_DO),
            None => self.remove(&look, &pointer),
        }
        .map(Some)
    }

    fn birth(&self, entry: &Entry<'_>, body: &[u8]) -> Result<Option<CommitResult>> {
        let unnumbered = Pointer { stage: Stage::Unnumbered, number: 0, ident: self.store.ident()? };
        let Some(look) = entry.create(&unnumbered, body, self.keep)? else { return Ok(None) };
        let Some(look) = look else { return Ok(Some(CommitResult::Conflict)) };
        let numbered = self.next_number().and_then(|number| {
            let born = Pointer { stage: Stage::Inline, number, ..unnumbered };
            Ok(look.advance(&unnumbered, &born)?.then_some(born))
        });
        match numbered {
            Ok(Some(born)) => {
                self.settle(Some(&look))?;
                Ok(Some(CommitResult::Done(born.version())))
            }
            // Nobody is to help along what we say that we could not store.
            Err(error) if look.remove_pointer(&unnumbered)? => look.remove_directory().and(Err(error)),
            _ => self.was_it_us(entry, unnumbered.ident).map(Some),
        }
    }

    fn change(&self, look: &Listing<'_>, pointer: &Pointer, body: &[u8]) -> Result<CommitResult> {
        let ident = self.store.ident()?;
        let next = Pointer { stage: Stage::Current, number: self.number_after(look, pointer, ident)?, ident };
        if look.replace(pointer, &next, body, self.keep)? {
            self.settle(Some(look))?;
            look.remove_records();
            return Ok(CommitResult::Done(next.version()));
        }
        let swap = self.was_it_us(look.entry, next.ident)?;
        if swap == CommitResult::Conflict {
            look.withdraw(&next);
        }
        Ok(swap)
    }

    fn remove(&self, look: &Listing<'_>, pointer: &Pointer) -> Result<CommitResult> {
        let rests = self.may_rest(look.entry)?;
        // Nothing will be left in the directory, so it needs no tombstone.
        if !rests && pointer.stage == Stage::Inline && look.may_remove_directory() {
            return self.remove_whole(look, pointer);
        }
        let end = Pointer { stage: Stage::Tombstone, ..*pointer };
        if !look.advance(pointer, &end)? {
            return Ok(CommitResult::Conflict);
        }
        self.settle(Some(look))?;
        if rests {
            look.remove_records();
        } else {
            self.purge(look, &end)?;
        }
        Ok(CommitResult::Done(end.version()))
    }

    /// Removes a record that is one file.
    fn remove_whole(&self, look: &Listing<'_>, pointer: &Pointer) -> Result<CommitResult> {
        self.raise_token(pointer.number)?;
        let removed = look.remove_pointer(pointer)?;
        if removed {
            // What somebody wrote who died before he pointed to it.
            look.remove_records();
        }
        if self.keep.durability == Durability::Durable {
            look.sync()?;
        }
        // Also if it was not there: that is what the repetition says when the reply was lost.
        self.remove_directories(look)?;
        Ok(if removed { CommitResult::Done(pointer.version()) } else { CommitResult::Conflict })
    }

    /// Whether this record may stay as a tombstone; if it takes another one's place, that one is buried.
    fn may_rest(&self, entry: &Entry<'_>) -> Result<bool> {
        let path = &self.store.path;
        let instead_of = match self.root.may_rest(entry, self.store.host.wall(), path)? {
            Rest::Yes => return Ok(true),
            Rest::No => return Ok(false),
            Rest::InsteadOf(others) => others,
        };
        for other in instead_of {
            let other = Entry::new(self.root, path, other);
            if let Some(look) = other.look()?
                && let Some(end) = look.pointer.filter(|pointer| pointer.stage == Stage::Tombstone)
            {
                self.purge(&look, &end)?;
            }
        }
        Ok(true)
    }

    /// Gives an embryo its version number, whoever made it.
    pub(super) fn finish_create(&self, look: &Listing<'_>, unnumbered: &Pointer) -> Result<()> {
        let number = self.next_number()?;
        look.advance(unnumbered, &Pointer { stage: Stage::Inline, number, ..*unnumbered }).map(drop)
    }

    /// After a rename that found nothing to rename: somebody helped our embryo along, or the reply was lost and what we saw
    /// was the answer to its repetition. (If others went on from there, the caller finds itself in the record.)
    fn was_it_us(&self, entry: &Entry<'_>, ident: UniqueId) -> Result<CommitResult> {
        let look = entry.look()?;
        self.settle(look.as_ref())?;
        let ours = look.and_then(|look| look.pointer);
        let ours = ours.filter(|pointer| pointer.ident == ident && pointer.stage != Stage::Unnumbered);
        Ok(ours.map_or(CommitResult::Conflict, |pointer| CommitResult::Done(pointer.version())))
    }

    /// Removes what a tombstone stands on. What cannot be removed now is left to the next one: the record is gone anyway.
    pub(super) fn purge(&self, look: &Listing<'_>, end: &Pointer) -> Result<()> {
        self.raise_token(end.number)?;
        if look.may_remove_directory() {
            look.remove(end)?;
            self.remove_directories(look)?;
        }
        Ok(())
    }

    fn remove_directories(&self, look: &Listing<'_>) -> Result<()> {
        look.remove_directory()?;
        if self.store.layout == Layout::Beside {
            self.root.remove_if_empty(&self.store.path);
        }
        Ok(())
    }

    /// The version number of a change. After a power cut a record may be at an earlier version than it was once, and the
    /// numbers above that were given out as tokens; but the clock is above them all.
    fn number_after(&self, look: &Listing<'_>, pointer: &Pointer, ident: UniqueId) -> Result<u64> {
        let next = after(pointer.number).ok_or_else(|| used_up(&look.entry.path()))?;
        let is_of_this_boot = pointer.ident.boot == ident.boot;
        if is_of_this_boot || self.root.scope == Scope::Shared { Ok(next) } else { Ok(next.max(self.next_number()?)) }
    }

    fn next_number(&self) -> Result<u64> {
        self.root.next_number(self.store.host.as_ref(), &self.store.path)
    }

    fn raise_token(&self, number: u64) -> Result<()> {
        self.root.raise_token(number, &self.store.path)?;
        if self.keep.durability == Durability::Durable {
            self.root.sync_token(&self.store.path)?;
        }
        Ok(())
    }

    /// Makes the names outlast a power cut that were renamed in there, if they are to.
    fn settle(&self, look: Option<&Listing<'_>>) -> Result<()> {
        if self.keep.durability < Durability::Durable {
            return Ok(());
        }
        look.map_or(Ok(()), Listing::sync)
            .and_then(|()| self.root.sync(&self.store.path))
            .map_err(Error::outcome_unknown)
    }
}
