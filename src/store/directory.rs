//! The directory store: the default, on any file system, also an NFS mount that several hosts share.
//!
//! It needs one thing of the file system: that rename(2) of a given source name happens once. So nothing that is ever
//! removed or renamed has a name that could be used again. A store looks like this:
//!
//! ```text
//! STORE/nightly/cur.17.IDENT        the record of "nightly" is at version 17, and is what rec.IDENT says
//! STORE/nightly/rec.IDENT           its bytes, never changed
//! STORE/backup/born.16.IDENT        the record of "backup" was never changed: its bytes are in here
//! STORE/.work/token.17              the highest version number of any record that was removed
//! STORE/.work/.new.IDENT/           a record about to be born
//! STORE/.work/.bell.PROOF            where a waiter is rung from another network namespace ([`doorbell`])
//! STORE/.work/rest.nightly          the record of "nightly" may rest where it is
//! STORE/.work/history               how past grants ended ([`super::history_file`])
//! ```
//!
//! **Swap.** Write `rec.NEW`, rename `cur.17.OLD` to `cur.18.NEW`, remove `rec.OLD`. ENOENT: somebody was faster, or the
//! reply to our first try was lost; either way the caller reads again and sees whose step it was.
//!
//! **Birth.** Prepare a directory with the record in it as `embryo.0.NEW`, rename it onto the name (which fails if a record
//! is there), and only then choose the version number and rename `embryo.0.NEW` to `born.N.NEW`: chosen that late it is
//! above everything that anybody had under this name before. Whoever meets an embryo helps it along.
//!
//! **Death.** Raise `token`; then remove `born.16.OLD`, which like a rename happens once, and the directory. A record that
//! was changed leaves more than one file: then `cur.17.OLD` is first renamed to `end.17.OLD`, the tombstone that says that
//! the rest may be removed. Whoever meets a tombstone may revive it: `end.17.OLD` to `cur.18.NEW`. One record of a store
//! stays as a tombstone for just that ([`rest`]).
//!
//! **Sweeping.** Who has swapped removes every `rec` that it saw before the swap: whoever wrote one can no longer succeed.
//! A directory without any pointer (`cur`, `end`, `embryo`) can never get one again and is removed.
//!
//! **Version numbers** begin at the clock in microseconds or above `token`, whatever is higher, so that neither a clock
//! set back nor a lost file makes them fall; and they begin there anew with each boot, for a power cut may have taken back
//! changes that were not synced. A `.csalock` beside a file keeps no `token`, for it goes away with its last
//! record: there the clock alone remembers.
//!
//! **Power cuts.** What dies with the boot is not synced, and a record that a power cut tore is taken for what it is.
//! What is to outlast it is synced, in the order that [`swap`] tells.
//!
//! **Limits.** A stale directory listing, as NFS clients may have one, costs a retry. Names that differ only in case
//! need a file system that tells them apart (else the second is refused, for a record bears its name).

mod doorbell;
mod entry;
mod foreign_directory;
mod health;
mod high_water_mark;
mod history;
mod lease;
mod ownership;
mod parked;
pub(crate) mod pointer;
mod root;
mod swap;
mod sync_parents;
#[cfg(not(test))]
mod sys;

#[cfg(test)]
mod model;
#[cfg(test)]
#[path = "directory/model/sys.rs"]
mod sys;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;

use self::doorbell::Doorbell;
use self::entry::{CachedListing, Entry, Listing};
#[cfg(any(test, fuzzing))]
pub(crate) use self::entry::{file_name, name_of_file};
use self::pointer::{Pointer, Stage, UniqueId};
use self::root::Root;
use self::swap::Commit;
use super::{
    CommitResult, Finding, Layout, Scope, Store, Subscription, Swept, Version, Versioned, Visit, WriteOptions,
};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::history::Limits;
use crate::host::Host;
use crate::lock::{Lease, LeaseClock, Sighting};
use crate::name::escape_path;

/// So often a look at one record may be overtaken by others before we say that something is wrong.
const MOST_LOOKS: usize = 10_000;

/// A directory of records.
pub struct Directory {
    path: PathBuf,
    layout: Layout,
    /// Other hosts use it, whatever its file system is.
    shared: bool,
    host: Arc<dyn Host>,
    root: Mutex<Option<Arc<Root>>>,
    /// The look of the last read: a change of what was read need not look again.
    seen: Mutex<Option<CachedListing>>,
    /// The leases of a store that several hosts share.
    leases: lease::Seen,
}

impl Directory {
    /// Opens the store at this absolute path, if there is one; the first swap will create it otherwise.
    ///
    /// # Errors
    ///
    /// When something is there that is no store, or that other users could tamper with.
    pub fn open(path: &Path, layout: Layout, host: Arc<dyn Host>) -> Result<Directory> {
        Directory::new(path, layout, false, host)
    }

    /// The same, of one that other hosts use although its file system does not look like that.
    ///
    /// # Errors
    ///
    /// As [`Directory::open`].
    pub fn open_shared(path: &Path, layout: Layout, host: Arc<dyn Host>) -> Result<Directory> {
        Directory::new(path, layout, true, host)
    }

    fn new(path: &Path, layout: Layout, shared: bool, host: Arc<dyn Host>) -> Result<Directory> {
        let store = Directory {
            path: path.to_path_buf(),
            layout,
            shared,
            host,
            root: Mutex::default(),
            seen: Mutex::default(),
            leases: lease::Seen::default(),
        };
        store.existing()?;
        Ok(store)
    }

    /// The open store, or `None` while there is none.
    fn existing(&self) -> Result<Option<Arc<Root>>> {
        let mut known = self.root.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_none() {
            let mut root = Root::open(&self.path, self.layout)?;
            if let Some(root) = root.as_mut().filter(|_| self.shared) {
                root.scope = Scope::Shared;
            }
            *known = root.map(Arc::new);
        }
        Ok(known.clone())
    }

    fn existing_or_new(&self) -> Result<Arc<Root>> {
        for _ in 0..MOST_LOOKS {
            if let Some(root) = self.existing()? {
                return Ok(root);
            }
            // Somebody else may remove it, empty as it is, before we open it.
            Root::create(&self.path, self.layout)?;
        }
        Err(Error::os(Errno::ENOENT, "open the store", &self.path))
    }

    /// Whether the directory went away under us, as `.csalock` does with its last record. The next look finds a new one.
    fn was_removed(&self, root: &Root) -> bool {
        let removed = self.layout == Layout::Beside && root.is_gone();
        if removed {
            self.forget_root();
        }
        removed
    }

    /// Forgets the directory that was open, to look for it anew.
    fn forget_root(&self) {
        *self.root.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn seen(&self) -> MutexGuard<'_, Option<CachedListing>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time of the file system.
    fn time(&self) -> Result<Duration> {
        let gone = || Error::os(Errno::ENOENT, "ask for the time of the file system of", &self.path);
        self.existing()?.ok_or_else(gone)?.file_system_time(&self.path)
    }

    fn entry<'a>(&'a self, root: &'a Root, name: &[u8]) -> Entry<'a> {
        Entry::new(root, &self.path, entry::file_name(name))
    }

    fn ident(&self) -> Result<UniqueId> {
        let mark = u64::from_be_bytes(self.host.random()?[..8].try_into().unwrap_or_default());
        Ok(UniqueId { boot: pointer::boot_tag(&self.host.domain()?.boot), mark })
    }

    fn stored<'a>(&self, root: &Root, entry: &'a Entry<'a>) -> Result<Option<(Versioned, Listing<'a>)>> {
        let mut missing: Option<Pointer> = None;
        for _ in 0..MOST_LOOKS {
            let Some(look) = entry.look()? else { return Ok(None) };
            // An embryo has no version number yet: whoever wants to swap will help it along and look again.
            let Some(pointer) = look.pointer.filter(Pointer::is_in_use) else { return Ok(None) };
            let version = pointer.version();
            if let Some(body) = look.body(&pointer).map_err(|error| error.in_version(version))? {
                let this_boot = pointer::boot_tag(&self.host.domain()?.boot) == pointer.ident.boot;
                let may_be_torn = !this_boot && root.scope == Scope::Local;
                return Ok(Some((Versioned { version, body, may_be_torn }, look)));
            }
            // A record is removed only after its pointer moved on. A pointer that is still there was left without one.
            if missing == Some(pointer) && root.scope == Scope::Local {
                break;
            }
            missing = Some(pointer);
        }
        let error = Error::corrupt(format!("{} points to a record that is missing", escape_path(&entry.path())));
        Err(match missing {
            Some(pointer) => error.in_version(pointer.version()),
            None => error,
        })
    }

    /// Removes what is left of one record, if it is a leftover. `false`: it is not one.
    fn sweep_entry(&self, root: &Root, file_name: &[u8], resting: &[Vec<u8>], dry_run: bool) -> Result<bool> {
        let step = Commit { store: self, root, keep: WriteOptions::default() };
        let entry = Entry::new(root, &self.path, file_name.to_vec());
        let Some(look) = entry.look()? else {
            if !dry_run {
                // Its maker died just before this.
                foreign_directory::remove_empty(&root.directory, entry::os(file_name));
            }
            return Ok(false);
        };
        let stage = look.pointer.map(|pointer| pointer.stage);
        let rests = stage == Some(Stage::Tombstone) && resting.iter().any(|name| name == file_name);
        if rests || matches!(stage, Some(Stage::Inline | Stage::Current)) {
            return Ok(false);
        }
        match look.pointer {
            _ if dry_run => {}
            // Its record can be seen then, and what became of its maker.
            Some(unnumbered) if unnumbered.stage == Stage::Unnumbered => step.finish_create(&look, &unnumbered)?,
            Some(end) => step.purge(&look, &end)?,
            None => look.clear()?,
        }
        Ok(true)
    }
}

impl Store for Directory {
    fn read(&self, name: &[u8]) -> Result<Option<Versioned>> {
        for _ in 0..MOST_LOOKS {
            let Some(root) = self.existing()? else { return Ok(None) };
            let entry = self.entry(&root, name);
            if let Some((stored, look)) = self.stored(&root, &entry)? {
                *self.seen() = look.keep();
                return Ok(Some(stored));
            }
            if !self.was_removed(&root) {
                return Ok(None);
            }
        }
        Err(Error::os(Errno::ENOENT, "read from", &self.path))
    }

    fn version(&self, name: &[u8]) -> Result<Option<Version>> {
        let Some(root) = self.existing()? else { return Ok(None) };
        let pointer = self.entry(&root, name).look()?.and_then(|look| look.pointer);
        Ok(pointer.filter(Pointer::is_in_use).map(|pointer| pointer.version()))
    }

    fn commit_with(
        &self,
        name: &[u8],
        expect: Option<&Version>,
        body: Option<&[u8]>,
        keep: WriteOptions,
    ) -> Result<CommitResult> {
        for _ in 0..MOST_LOOKS {
            let root = match (expect, body) {
                (None, Some(_)) => self.existing_or_new()?,
                _ => match self.existing()? {
                    Some(root) => root,
                    None => return Ok(CommitResult::Conflict),
                },
            };
            match (Commit { store: self, root: &root, keep }).swap(name, expect, body) {
                Ok(Some(swap)) => return Ok(swap),
                Err(error) if !root.is_gone() => return Err(error),
                Ok(None) | Err(_) => self.forget_root(),
            }
        }
        Err(Error::os(Errno::ENOENT, "create a record in", &self.path))
    }

    fn scan(&self, visit: &mut Visit<'_>) -> Result<()> {
        let Some(mut root) = self.existing()? else { return Ok(()) };
        while self.was_removed(&root) {
            let Some(new) = self.existing()? else { return Ok(()) };
            root = new;
        }
        root.each_entry(&self.path, &mut |file_name| {
            let entry = Entry::new(&root, &self.path, file_name.to_vec());
            match self.stored(&root, &entry) {
                Ok(None) => Ok(()),
                Ok(Some((stored, _))) => visit(&escape_path(&entry.path()), Ok(stored)),
                // A value that is not for us. Its record says that it is there.
                Err(error) if error.exit() == Exit::Permission && !entry::is_record(file_name) => Ok(()),
                Err(error) => visit(&escape_path(&entry.path()), Err(error)),
            }
        })
    }

    fn grant_lease(&self, span: Duration) -> Result<Lease> {
        for _ in 0..MOST_LOOKS {
            let root = self.existing_or_new()?;
            match lease::lend(self.host.as_ref(), root.scope, span, || root.file_system_time(&self.path)) {
                Err(_) if root.is_gone() => self.forget_root(),
                lent => return lent,
            }
        }
        Err(Error::os(Errno::ENOENT, "open the store", &self.path))
    }

    fn lease_ttl(&self, lease: &Lease) -> Result<Duration> {
        while let Some(root) = self.existing()? {
            match lease::remaining(self.host.as_ref(), lease, || root.file_system_time(&self.path)) {
                Err(_) if root.is_gone() => self.forget_root(),
                remaining => return remaining,
            }
        }
        Ok(Duration::ZERO)
    }

    fn lease_expired(&self, lease: &Lease) -> Result<bool> {
        Ok(self.time_to_expiry(lease, &[])?.is_zero())
    }

    fn time_to_expiry(&self, lease: &Lease, seen: &[Sighting]) -> Result<Duration> {
        let LeaseClock::FileSystem(begun) = &lease.clock else { return self.lease_ttl(lease) };
        self.leases.until_over(self.host.as_ref(), (lease, begun), seen, || self.time())
    }

    fn new_sightings(&self, leases: &[&Lease], seen: &[Sighting]) -> Result<Vec<Sighting>> {
        self.leases.to_note(self.host.as_ref(), leases, seen, || self.time())
    }

    fn scope(&self) -> Scope {
        match self.existing() {
            Ok(Some(root)) => root.scope,
            _ if self.shared => Scope::Shared,
            _ => root::reach_of(self.path.ancestors()),
        }
    }

    fn describe(&self, name: &[u8]) -> String {
        escape_path(&self.path.join(entry::os(&entry::file_name(name))))
    }

    fn notify(&self, bell: &[u8], _lease: Option<&Lease>) {
        if let Ok(Some(root)) = self.existing() {
            doorbell::ring(&root, bell);
        }
    }

    fn subscribe(&self, bell: &[u8], _since: &Version) -> Option<Box<dyn Subscription>> {
        // A FIFO reaches no other host, so there a waiter polls.
        let root = self.existing_or_new().ok().filter(|root| root.scope == Scope::Local)?;
        let doorbell = Doorbell::new(root, self.path.clone(), bell).ok()?;
        Some(Box::new(doorbell))
    }

    fn remove_channel(&self, bell: &[u8]) {
        if let Ok(Some(root)) = self.existing() {
            doorbell::remove(&root, &self.path, bell);
        }
    }

    fn diagnose(&self) -> Vec<Finding> {
        self.findings()
    }

    fn sweep(&self, dry_run: bool) -> Result<Swept> {
        let now = self.host.wall();
        let mut swept = Swept::default();
        if self.layout == Layout::Beside {
            swept.removed += root::sweep_beside(&self.path, now, dry_run);
        }
        let Some(root) = self.existing()? else { return Ok(swept) };
        if self.layout != Layout::Beside {
            swept.removed += root.sweep_work(now, dry_run, &self.path)?;
        }
        let resting = root.resting(&self.path)?;
        swept.removed += root.sweep_drafts(now, dry_run, &self.path)?;
        root.each_entry(&self.path, &mut |file_name| {
            match self.sweep_entry(&root, file_name, &resting, dry_run) {
                Ok(removed) => swept.removed += u64::from(removed),
                Err(error) => swept.pass_over(error)?,
            }
            Ok(())
        })?;
        if self.layout == Layout::Beside && !dry_run {
            root.remove_if_empty(&self.path);
        }
        Ok(swept)
    }

    fn append_history(&self, line: &[u8], limits: &Limits) {
        if let Ok(Some(root)) = self.existing() {
            let _ = history::note(&root, line, limits, self.host.wall());
        }
    }

    fn read_history(&self, visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        // It would have to go with the last record.
        if self.layout == Layout::Beside {
            return Ok(false);
        }
        let Some(root) = self.existing()? else { return Ok(true) };
        history::read(&root, &self.path, visit).map(|()| true)
    }
}
