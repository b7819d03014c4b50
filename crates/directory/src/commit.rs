//! The steps of a commit, and the data that each durability syncs. [`super::layout`] explains the names: pointers, stages,
//! drafts and tombstones.
//!
//! [`Durability::Volatile`]: nothing. [`Durability::Atomic`]: the new record's file, before a pointer to it is put in
//! place. Names may then be lost, but no name leads to half a record.
//!
//! [`Durability::Durable`]: the names too, inner before outer ones, so that a name is visible only when its target is
//! on disk:
//!
//! - a change: the record's file; the pointer is renamed; the record's directory, the store's, and the path to it
//!   ([`super::work`]). Only then csalock removes the old record;
//! - a creation: the unnumbered record and the draft's directory; the draft is renamed onto the name; the rest as
//!   above;
//! - a removal: as a change, without a file. The tombstone says that the record is gone. Before the tombstone is
//!   removed, the token file and the store's directory are synced, because the number must outlast the record. A
//!   directory without a pointer means the same as a missing one, so later removals need not be synced.
//!
//! If a sync fails after the rename of the pointer, others see the new record, and a power cut may restore the old one.
//! Neither was removed, and the caller gets the error. A conflict is synced like a success if our rename may have
//! happened ([`Commit::outcome_of_rename`]). The caller may find its own commit in its next read, and treat it as done.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::stat::Mode;

use super::layout::{NEW, Pointer, Stage, UniqueId, next_version};
use super::read::{Entry, Listing};
use super::root::{Root, stranger_in};
use super::work::used_up;
use super::{Directory, sys};
use host::Host;
use lock::error::{Error, ErrorKind, Result};
use lock::name::escape_path;
use store::{CommitResult, Durability, Layout, Scope, Version, Versioned, WriteOptions, guarded};

/// Maximum number of pointers that are emptied after other processes have moved them on. Each of those is a commit.
const MOST_EMPTIED: usize = 100;

pub(super) struct Commit<'a> {
    pub(super) store: &'a Directory,
    pub(super) entry: &'a Entry,
    pub(super) options: WriteOptions,
}

impl Commit<'_> {
    /// Replaces the version `expect`, or no record, by the record `body`, or by none. It may fail if the store's directory
    /// itself is gone; [`Directory`] then opens the store again.
    pub(super) fn run(&self, expect: Option<&Version>, body: Option<&[u8]>) -> Result<CommitResult> {
        let nothing_to_do = CommitResult::Done(Version::default());
        let Some(listing) = self.list(expect, body)? else {
            return match (expect, body) {
                (None, Some(body)) => self.create(body),
                // An earlier try removed the record, and its reply was lost.
                (None, None) => self.sync_names(None).map(|()| nothing_to_do),
                (Some(_), _) => Ok(CommitResult::Conflict(None)),
            };
        };
        let Some(pointer) = listing.pointer else {
            // The directory never gets a pointer again, so no process can be using it.
            listing.clear()?;
            return Ok(CommitResult::Conflict(None));
        };
        if pointer.stage == Stage::Unnumbered {
            // Another process has created this record and not numbered it, which any process may do.
            listing.number(&pointer, self.host())?;
            return Ok(CommitResult::Conflict(None));
        }
        if listing.version().as_ref() != expect {
            return Ok(self.conflict(Some(listing)));
        }
        match body {
            Some(body) => self.change(listing, &pointer, body),
            None if pointer.stage == Stage::Tombstone => self.sync_names(Some(&listing)).map(|()| nothing_to_do),
            None => self.remove(listing, &pointer),
        }
    }

    /// Reuse of a listing is as safe as a pause after it: the rename fails if another process was faster. A removal of
    /// nothing renames nothing.
    fn list(&self, expect: Option<&Version>, body: Option<&[u8]>) -> Result<Option<Listing>> {
        let renames = expect.is_some() || body.is_some();
        if let Some((entry, listing)) = guarded(&self.store.seen).take()
            && renames
            && entry.is(self.entry)
            && listing.as_ref().and_then(Listing::version).as_ref() == expect
        {
            return Ok(listing);
        }
        self.entry.list()
    }

    fn create(&self, body: &[u8]) -> Result<CommitResult> {
        let unnumbered = self.pointer(Stage::Unnumbered, 0)?;
        let Some(listing) = self.create_unnumbered(&unnumbered, body)? else { return Ok(CommitResult::Unclear) };
        match listing.number(&unnumbered, self.host()) {
            Ok(Some(numbered)) => {
                self.sync_names(Some(&listing))?;
                self.store.keep_listing(listing.moved_to(numbered, Some(body)));
                Ok(CommitResult::Done(numbered.version()))
            }
            // We report a failure, so we withdraw the record: else another process would number it and it would stand.
            Err(error) => match listing.remove_pointer(&unnumbered) {
                Ok(true) => listing.remove_directory().and(Err(error)),
                Ok(false) => self.outcome_of_creation(&unnumbered),
                Err(error) => Err(error.outcome_unknown()),
            },
            Ok(None) => self.outcome_of_creation(&unnumbered),
        }
    }

    /// `None` if another process was faster.
    fn create_unnumbered(&self, unnumbered: &Pointer, body: &[u8]) -> Result<Option<Listing>> {
        let Entry { root, file_name } = self.entry;
        let drafts = match root.drafts() {
            Err(errno @ (Errno::ENOTDIR | Errno::ELOOP)) => return Err(root.no_work(errno)),
            drafts => drafts,
        };
        match drafts.and_then(|drafts| self.put_in_place(drafts, unnumbered, body)) {
            Ok(directory) => {
                let mut listing = Listing::of(self.entry.clone(), directory);
                listing.pointer = Some(*unnumbered);
                Ok(Some(listing))
            }
            // The name exists, or the reply to our own rename was lost and this error answers the repetition. csalock
            // never removes a directory with foreign files only.
            Err(Errno::EEXIST | Errno::ENOTEMPTY) => {
                let found = sys::open_directory(&root.directory, file_name.as_os_str()).and_then(stranger_in);
                let Ok(Some(stranger)) = found else { return Ok(None) };
                let what = format!("{} has {stranger} in it, which is not a record", escape_path(&self.entry.path()));
                Err(Error::new(ErrorKind::Corrupt, what, "move it away"))
            }
            Err(Errno::ENOENT | Errno::ESTALE) if !root.is_gone() => Ok(None),
            Err(errno) => Err(self.entry.failed("create the record")(errno)),
        }
    }

    fn put_in_place(&self, drafts: &OwnedFd, unnumbered: &Pointer, body: &[u8]) -> nix::Result<OwnedFd> {
        let Entry { root, file_name } = self.entry;
        let draft = format!("{NEW}{}", unnumbered.ident);
        let made = sys::make_directory(drafts, draft.as_str(), root.inner_mode, root.ownership);
        let put = made.and_then(|directory| {
            let mut put = self.write(&directory, &unnumbered.name(), body);
            // The target of a name must be on disk before the name is.
            if self.options.durability == Durability::Durable {
                put = put.and_then(|()| sys::sync_directory(&directory));
            }
            put = put.and_then(|()| sys::rename(drafts, draft.as_str(), &root.directory, file_name.as_os_str()));
            if put.is_err() {
                // This removes only our own file: if the rename happened after all, other processes use the directory.
                let _ = sys::remove_file(&directory, unnumbered.name().as_str());
            }
            put.map(|()| directory)
        });
        if put.is_err() {
            let _ = sys::remove_directory(drafts, draft.as_str());
        }
        put
    }

    /// The mode is never wider than the final one, and a file with a restricted mode keeps its writer as the owner.
    fn write(&self, directory: &OwnedFd, name: &str, body: &[u8]) -> nix::Result<()> {
        let Root { uncached, file_mode, ownership, place, .. } = **self.root();
        let (mode, ownership) = match self.options.mode {
            Some(mode) => (Mode::from_bits_truncate(mode) & file_mode, ownership.without_owner()),
            None => (file_mode, ownership),
        };
        let synced = self.options.durability >= Durability::Atomic;
        let bytes = [body, place.to_string().as_bytes()].concat();
        sys::create_file(directory, name, (uncached, mode, ownership), &bytes, synced)
    }

    /// Replaces a record, or revives a tombstone, which has no version: `run` was called to create the record.
    fn change(&self, listing: Listing, pointer: &Pointer, body: &[u8]) -> Result<CommitResult> {
        let number = self.number_after(pointer)?;
        if self.is_overtaken(&listing, pointer) {
            return Ok(self.conflict(self.entry.list()?));
        }
        let next = self.pointer(Stage::Current, number)?;
        match self.write(&listing.directory, &next.ident.record(), body) {
            Ok(()) => {}
            Err(Errno::ENOENT | Errno::ESTALE) => return Ok(self.conflict(self.entry.list()?)),
            Err(errno) => {
                listing.withdraw(next.ident);
                return Err(self.entry.failed("write the record")(errno));
            }
        }
        // On an error the rename may have happened, and then the file is needed. Otherwise the next commit removes it.
        if listing.advance(pointer, &next)? {
            self.forget_inline(&listing, pointer, &next);
            self.sync_names(Some(&listing))?;
            self.store.keep_listing(listing.moved_to(next, Some(body)));
            return Ok(CommitResult::Done(next.version()));
        }
        // The reply to our rename may have been lost.
        let done = self.outcome_of_rename(next.ident)?;
        if !done.is_done() {
            listing.withdraw(next.ident);
        }
        Ok(done)
    }

    fn remove(&self, mut listing: Listing, pointer: &Pointer) -> Result<CommitResult> {
        let end = Pointer { stage: Stage::Tombstone, ..*pointer };
        let removed = listing.advance(pointer, &end)?;
        if !removed {
            let now = self.entry.list()?;
            // The tombstone is ours if the reply to our rename was lost, or another process's. The caller reads again.
            if now.as_ref().is_none_or(|now| now.pointer != Some(end)) {
                return Ok(self.conflict(now));
            }
        }
        self.sync_names(Some(&listing))?;
        listing.remove_replaced();
        // A store that keeps no tombstone costs time, but the record is gone.
        if self.park().unwrap_or(false) {
            self.forget_inline(&listing, pointer, &end);
            let mut listing = listing.moved_to(end, None);
            listing.remove_replaced();
            self.store.keep_listing(listing);
        } else if let Err(error) = listing.purge(&end, self.options.durability)
            // The record is gone, whatever stays of its directory. A failed sync must be reported all the same.
            && self.options.durability == Durability::Durable
        {
            return Err(error);
        }
        Ok(if removed { CommitResult::Done(end.version()) } else { self.conflict(None) })
    }

    /// Empties a pointer that contained the record itself: its holder ends long before the name does, and its command may
    /// contain a password. A process that is reading the record has opened the file by its former name. On a shared store
    /// the record is removed with its last holder.
    fn forget_inline(&self, listing: &Listing, before: &Pointer, now: &Pointer) {
        if before.stage != Stage::Inline || self.root().scope == Scope::Shared || self.empty(listing, now) {
            return;
        }
        for _ in 0..MOST_EMPTIED {
            // Another process has moved the pointer on, and the bytes with it.
            let Ok(Some(listing)) = self.entry.list() else { return };
            let Some(now @ Pointer { stage: Stage::Current | Stage::Tombstone, .. }) = listing.pointer else { return };
            if self.empty(&listing, &now) {
                return;
            }
        }
    }

    /// `false` if the pointer is gone.
    fn empty(&self, listing: &Listing, pointer: &Pointer) -> bool {
        let Ok(draft) = self.store.ident() else { return true };
        sys::replace_by_empty(&listing.directory, &pointer.name(), &draft.record(), self.root().ownership)
    }

    /// Parks this record as a tombstone, and purges those that it replaces. Returns `false` if the record may not stay and
    /// the caller must purge it: in a shared store, listings of other hosts may be stale, and an auxiliary object is seldom
    /// needed twice. The sweep removes what stays of the others.
    fn park(&self) -> Result<bool> {
        let root = self.root();
        if root.layout == Layout::Beside || root.scope == Scope::Shared || !self.entry.is_record() {
            return Ok(false);
        }
        let Some(replaced) = root.park(self.entry.file_name.as_bytes(), self.host().wall())? else { return Ok(false) };
        for other in replaced {
            if let Ok(Some(listing)) = Entry::new(root, other).list()
                && let Some(end) = listing.pointer.filter(|pointer| pointer.stage == Stage::Tombstone)
            {
                let _ = listing.purge(&end, self.options.durability);
            }
        }
        Ok(true)
    }

    /// Another process may have numbered our record, and others may have gone on from there.
    fn outcome_of_creation(&self, unnumbered: &Pointer) -> Result<CommitResult> {
        let done = self.outcome_of_rename(unnumbered.ident)?;
        Ok(if done.is_done() { done } else { CommitResult::Unclear })
    }

    /// Our rename may have happened although it found no source: another process has numbered our record, or the reply was
    /// lost. (If others went on from there, the caller finds itself in the record.)
    fn outcome_of_rename(&self, ident: UniqueId) -> Result<CommitResult> {
        let listing = self.entry.list()?;
        self.sync_names(listing.as_ref())?;
        match listing.as_ref().and_then(|listing| listing.pointer) {
            Some(pointer) if pointer.ident == ident && pointer.stage != Stage::Unnumbered => {
                Ok(CommitResult::Done(pointer.version()))
            }
            _ => Ok(self.conflict(listing)),
        }
    }

    /// A conflict with the record that this listing shows saves the caller a read. On a shared store a lost reply may hide
    /// that the change was made.
    fn conflict(&self, listing: Option<Listing>) -> CommitResult {
        if self.root().scope != Scope::Local {
            return CommitResult::Unclear;
        }
        if let Some(mut listing) = listing
            && let Some(pointer) = listing.pointer.filter(Pointer::is_in_use)
            && let Ok(Some(found)) = listing.read_record(&pointer, self.host())
        {
            self.store.keep_listing(listing);
            return CommitResult::Conflict(Some(found));
        }
        CommitResult::Conflict(None)
    }

    /// A look costs less than a file that is created in vain. A free record seldom has a rival, and on a shared store a look
    /// costs a request.
    fn is_overtaken(&self, listing: &Listing, pointer: &Pointer) -> bool {
        pointer.is_in_use()
            && self.root().scope == Scope::Local
            && sys::is_there(&listing.directory, Path::new(&pointer.name())) == Ok(false)
    }

    /// After a power cut a record may be at an earlier version than before, and the numbers above it were issued as tokens.
    /// The clock is above them all.
    fn number_after(&self, pointer: &Pointer) -> Result<u64> {
        let next = next_version(pointer.number).ok_or_else(|| used_up(&self.entry.path()))?;
        if pointer.ident.boot == self.store.boot()? || self.root().scope == Scope::Shared {
            return Ok(next);
        }
        Ok(next.max(self.root().next_number(self.host())?))
    }

    fn sync_names(&self, listing: Option<&Listing>) -> Result<()> {
        if self.options.durability < Durability::Durable {
            return Ok(());
        }
        let synced = listing.map_or(Ok(()), |listing| sys::sync_directory(&listing.directory));
        let synced = synced.map_err(self.entry.failed("sync the record's directory"));
        synced.and_then(|()| self.root().sync()).map_err(Error::outcome_unknown)
    }

    fn pointer(&self, stage: Stage, number: u64) -> Result<Pointer> {
        Ok(Pointer { stage, number, ident: self.store.ident()? })
    }

    fn root(&self) -> &Arc<Root> {
        &self.entry.root
    }

    fn host(&self) -> &dyn Host {
        self.store.host.as_ref()
    }
}

/// The steps that change the names in a record's directory. Of those that remove, `withdraw` removes our file that no
/// pointer names, `remove_replaced` the files that we replaced, `purge` the directory of a tombstone, and `clear` a
/// directory without a pointer.
impl Listing {
    /// The compare-and-swap of this store: only one process can rename a name that exists. `false` if another was faster.
    fn advance(&self, from: &Pointer, to: &Pointer) -> Result<bool> {
        match sys::rename(&self.directory, from.name().as_str(), &self.directory, to.name().as_str()) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(false),
            Err(errno) => Err(self.entry.failed("change the record")(errno)),
        }
    }

    /// `None` if another process was faster.
    pub(super) fn number(&self, unnumbered: &Pointer, host: &dyn Host) -> Result<Option<Pointer>> {
        let number = self.entry.root.next_number(host)?;
        let numbered = Pointer { stage: Stage::Inline, number, ..*unnumbered };
        Ok(self.advance(unnumbered, &numbered)?.then_some(numbered))
    }

    /// The listing after a commit, provided that no other process commits.
    fn moved_to(mut self, pointer: Pointer, body: Option<&[u8]>) -> Listing {
        self.replaced.append(&mut self.records);
        if pointer.stage == Stage::Current {
            self.records.push(pointer.ident);
        }
        self.pointer = Some(pointer);
        self.stored = body.map(|body| Versioned::new(pointer.version(), body.to_vec()));
        self
    }

    fn withdraw(&self, ident: UniqueId) {
        let _ = sys::remove_file(&self.directory, ident.record().as_str());
        // If the record was removed meanwhile, our draft kept its directory from being removed.
        let _ = self.remove_directory();
    }

    /// `false` if another process was faster.
    fn remove_pointer(&self, pointer: &Pointer) -> Result<bool> {
        sys::remove_file(&self.directory, pointer.name().as_str()).map_err(self.entry.failed("remove the record"))
    }

    /// Removes the directory of a tombstone. The next process removes what stays: the record is gone anyway.
    ///
    /// The records of a listing from before the removal go first. A listing that shows the tombstone may also show the
    /// record of a process that is reviving it: that process can no longer succeed once the tombstone is gone, so the
    /// records follow the tombstone. If another process was faster, they stay.
    pub(super) fn purge(&self, end: &Pointer, durability: Durability) -> Result<()> {
        let root = &self.entry.root;
        root.raise_token(end.number)?;
        if durability == Durability::Durable {
            root.sync_token()?;
        }
        if self.pointer != Some(*end) {
            self.remove_all(&self.records);
            self.remove_pointer(end)?;
            self.remove_directory()?;
        } else if self.remove_pointer(end)? {
            self.remove_all(&self.records);
            self.remove_directory()?;
        }
        root.remove_if_empty();
        Ok(())
    }

    pub(super) fn clear(&self) -> Result<()> {
        for record in &self.records {
            let name = record.record();
            match sys::remove_file(&self.directory, name.as_str()) {
                Ok(_) => {}
                Err(Errno::ENOTEMPTY | Errno::EEXIST) => {
                    let path = escape_path(&self.entry.path().join(name));
                    let what = format!("{path} is a directory with something in it, where a record belongs");
                    return Err(Error::new(ErrorKind::Corrupt, what, "see who made it, and move it away"));
                }
                // No later process could remove the directory, if a file stayed in it.
                Err(errno) => return Err(self.entry.failed("clear the record's directory")(errno)),
            }
        }
        for name in &self.silly_renames {
            let _ = sys::remove_file(&self.directory, name.as_slice());
        }
        self.remove_directory()
    }

    pub(super) fn remove_replaced(&mut self) {
        let replaced = std::mem::take(&mut self.replaced);
        self.remove_all(&replaced);
    }

    /// Removes records that were there before the pointer was renamed. Their writers can no longer succeed: the pointer
    /// that they must rename is gone. The next commit or the sweep removes a file that stays.
    fn remove_all(&self, records: &[UniqueId]) {
        for record in records {
            let _ = sys::remove_file(&self.directory, record.record().as_str());
        }
    }

    fn remove_directory(&self) -> Result<()> {
        match sys::remove_directory(&self.entry.root.directory, self.entry.file_name.as_os_str()) {
            // Another process uses the directory and removes it later.
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => Ok(()),
            removed => removed.map(drop).map_err(self.entry.failed("remove the record's directory")),
        }
    }
}
