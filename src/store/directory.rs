//! The directory store: the default store, on any file system, even on an NFS mount that several hosts share.
//!
//! The file system must guarantee that rename(2) of a given source name happens once. So csalock never reuses a name
//! that it removed or renamed. A store looks like this:
//!
//! ```text
//! STORE/nightly/cur.17.IDENT        the record of "nightly" is at version 17; its bytes are in rec.IDENT
//! STORE/nightly/rec.IDENT           the bytes of the record, never changed
//! STORE/backup/born.16.IDENT        the record of "backup" was never changed: this file contains its bytes
//! STORE/.work/token.17              the highest version number of any removed record
//! STORE/.work/.new.IDENT/           a record that is being created
//! STORE/.work/.bell.HASH            the wake-up channel for other network namespaces ([`doorbell`])
//! STORE/.work/rest.nightly          the record of "nightly" may be parked
//! STORE/.work/history               the history of past grants ([`super::history_file`])
//! ```
//!
//! **Commit.** csalock writes `rec.NEW`, renames `cur.17.OLD` to `cur.18.NEW` and removes `rec.OLD`. ENOENT: another
//! process was faster, or the reply to the first try was lost. The caller reads again and sees whose commit it was.
//!
//! **Creation.** csalock prepares a directory with the record as `embryo.0.NEW` and renames it onto the name, which
//! fails if a record is there. Then it chooses the version number, above all earlier ones of this name because it is so
//! late, and renames `embryo.0.NEW` to `born.N.NEW`. Any process may number an unnumbered record (`embryo`).
//!
//! **Removal.** csalock raises `token`; then it removes `born.16.OLD`, which succeeds once, and the directory. A
//! changed record leaves several files. So csalock first renames `cur.17.OLD` to `end.17.OLD`, the tombstone, which
//! permits removing the rest. Any process may revive a tombstone: `end.17.OLD` becomes `cur.18.NEW`. For that purpose a
//! record of the store stays parked as a tombstone ([`parked`]).
//!
//! **Sweeping.** After a commit csalock removes every `rec` that it saw before: the writers of those files can no
//! longer succeed. A directory without a pointer (`cur`, `end`, `embryo`) can never get a pointer again and is removed.
//!
//! **Version numbers** begin at the clock in microseconds or above `token`, whichever is higher. So they never fall,
//! even if the clock is set back or a file is lost. They begin there anew with each boot, because a power cut may undo
//! changes that were not synced. A `.csalock` keeps no `token`, because its last record takes it along: there the clock
//! alone counts.
//!
//! **Power cuts.** Data that may end with the boot is not synced, and csalock detects a record that a power cut tore.
//! Data that must outlast a power cut is synced, in the order that [`swap`] describes.
//!
//! **Limits.** A stale directory listing, which NFS clients may have, costs a retry. Names that differ only in case
//! need a case-sensitive file system; elsewhere the second name is refused, because a record contains its name.

mod commit;
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

use self::commit::Commit;
use self::doorbell::Doorbell;
use self::entry::{CachedListing, Entry, Listing};
#[cfg(any(test, fuzzing))]
pub(crate) use self::entry::{file_name, name_of_file};
use self::pointer::{Pointer, Stage, UniqueId};
use self::root::Root;
use super::{
    CommitResult, Finding, Layout, Leases, Scope, Store, Subscription, Swept, Topic, Versioned, Visit, Write,
    WriteOptions, WriteSet,
};
use crate::error::{Error, ErrorKind, Result};
use crate::host::Host;
use crate::lock::{Lease, LeaseClock, Sighting};
use crate::name::escape_path;

/// Maximum number of times that other processes may overtake a read of one record before csalock reports an error.
const MOST_LOOKS: usize = 10_000;

/// A store in a directory.
pub struct Directory {
    path: PathBuf,
    layout: Layout,
    /// True if other hosts use the store, whatever its file system is.
    shared: bool,
    host: Arc<dyn Host>,
    root: Mutex<Option<Arc<Root>>>,
    /// The listing of the last read, which saves a commit of that version a new listing.
    seen: Mutex<Option<CachedListing>>,
    /// The known leases of a store that several hosts share.
    leases: lease::Seen,
}

impl Directory {
    /// Opens the store at this absolute path; if it does not exist, the first commit creates it.
    /// Fails if the path leads to something other than a store, or if other users could tamper with the store.
    pub fn open(path: &Path, layout: Layout, host: Arc<dyn Host>) -> Result<Directory> {
        Directory::new(path, layout, false, host)
    }

    /// Opens a store that other hosts use even if its file system looks local.
    /// Fails as [`Directory::open`] does.
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

    /// Returns the open store; `None` if it does not exist.
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
            // Another process may remove the empty directory before we open it.
            Root::create(&self.path, self.layout)?;
        }
        Err(Error::os(Errno::ENOENT, "open the store", &self.path))
    }

    /// Returns true and forgets the directory if it was removed, as `.csalock` is removed with its last record.
    fn was_removed(&self, root: &Root) -> bool {
        let removed = self.layout == Layout::Beside && root.is_gone();
        if removed {
            self.forget_root();
        }
        removed
    }

    /// Forgets the open directory, so that the next call opens it anew.
    fn forget_root(&self) {
        *self.root.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn seen(&self) -> MutexGuard<'_, Option<CachedListing>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time of the file system.
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
            // An unnumbered record has no version yet: the next commit numbers it and lists again.
            let Some(pointer) = look.pointer.filter(Pointer::is_in_use) else { return Ok(None) };
            let version = pointer.version();
            if let Some(body) = look.body(&pointer).map_err(|error| error.in_version(version))? {
                let this_boot = pointer::boot_tag(&self.host.domain()?.boot) == pointer.ident.boot;
                let may_be_torn = !this_boot && root.scope == Scope::Local;
                return Ok(Some((Versioned { version, body, may_be_torn }, look)));
            }
            // A record is removed only after its pointer moves on. A pointer that stays has lost its record.
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

    /// Makes one change.
    fn replace(&self, change: &Write<'_>) -> Result<CommitResult> {
        for _ in 0..MOST_LOOKS {
            let root = match (change.expect, change.body) {
                (None, Some(_)) => self.existing_or_new()?,
                _ => match self.existing()? {
                    Some(root) => root,
                    None => return Ok(CommitResult::Conflict),
                },
            };
            let commit = Commit { store: self, root: &root, keep: change.options };
            match commit.swap(change.name, change.expect.as_ref(), change.body) {
                Ok(Some(swap)) => return Ok(swap),
                Err(error) if !root.is_gone() => return Err(error),
                Ok(None) | Err(_) => self.forget_root(),
            }
        }
        Err(Error::os(Errno::ENOENT, "create a record in", &self.path))
    }

    /// Carries out the effects of a commit.
    fn carry_out(&self, set: &WriteSet<'_>) {
        if set.wake.is_empty() && set.closed.is_empty() && set.history.is_empty() {
            return;
        }
        let Ok(Some(root)) = self.existing() else { return };
        for (channel, _) in &set.wake {
            doorbell::ring(&root, channel);
        }
        set.closed.iter().for_each(|channel| doorbell::remove(&root, &self.path, channel));
        for line in &set.history {
            let _ = history::note(&root, line.as_bytes(), &set.limits, self.host.wall());
        }
    }

    /// Removes the remainder of one record; returns `false` if the entry is not a leftover.
    fn sweep_entry(&self, root: &Root, file_name: &[u8], resting: &[Vec<u8>], dry_run: bool) -> Result<bool> {
        let step = Commit { store: self, root, keep: WriteOptions::default() };
        let entry = Entry::new(root, &self.path, file_name.to_vec());
        let Some(look) = entry.look()? else {
            if !dry_run {
                // A process died just before this removal.
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
            // A numbered record is visible, and so is the state of its maker.
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
                // This user may not read the value; the record shows that it exists.
                Err(error) if error.kind() == ErrorKind::Denied && !entry::is_record(file_name) => Ok(()),
                Err(error) => visit(&escape_path(&entry.path()), Err(error)),
            }
        })
    }

    fn commit(&self, set: &WriteSet<'_>) -> Result<CommitResult> {
        let done = set.commit_alone(self, |change| self.replace(change))?;
        if done != CommitResult::Conflict {
            self.carry_out(set);
        }
        Ok(done)
    }

    fn leases(&self) -> &dyn Leases {
        self
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

    fn subscribe(&self, topic: Topic<'_>) -> Option<Box<dyn Subscription>> {
        let Topic::Channel(channel, _) = topic else { return None };
        // A FIFO does not reach other hosts, so in a shared store a waiter polls.
        let root = self.existing_or_new().ok().filter(|root| root.scope == Scope::Local)?;
        let doorbell = Doorbell::new(root, self.path.clone(), channel).ok()?;
        Some(Box::new(doorbell))
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

    fn read_history(&self, visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        // The history would be lost with the last record.
        if self.layout == Layout::Beside {
            return Ok(false);
        }
        let Some(root) = self.existing()? else { return Ok(true) };
        history::read(&root, &self.path, visit).map(|()| true)
    }
}

impl Leases for Directory {
    fn grant(&self, span: Duration) -> Result<Lease> {
        for _ in 0..MOST_LOOKS {
            let root = self.existing_or_new()?;
            match lease::lend(self.host.as_ref(), root.scope, span, || root.file_system_time(&self.path)) {
                Err(_) if root.is_gone() => self.forget_root(),
                lent => return lent,
            }
        }
        Err(Error::os(Errno::ENOENT, "open the store", &self.path))
    }

    fn ttl(&self, lease: &Lease) -> Result<Duration> {
        while let Some(root) = self.existing()? {
            match lease::remaining(self.host.as_ref(), lease, || root.file_system_time(&self.path)) {
                Err(_) if root.is_gone() => self.forget_root(),
                remaining => return remaining,
            }
        }
        Ok(Duration::ZERO)
    }

    fn is_expired(&self, lease: &Lease) -> Result<bool> {
        Ok(self.time_to_expiry(lease, &[])?.is_zero())
    }

    fn time_to_expiry(&self, lease: &Lease, seen: &[Sighting]) -> Result<Duration> {
        let LeaseClock::FileSystem(begun) = &lease.clock else { return self.ttl(lease) };
        self.leases.until_over(self.host.as_ref(), (lease, begun), seen, || self.time())
    }

    fn new_sightings(&self, leases: &[&Lease], seen: &[Sighting]) -> Result<Vec<Sighting>> {
        self.leases.to_note(self.host.as_ref(), leases, seen, || self.time())
    }
}
