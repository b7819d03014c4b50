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
//! STORE/.work/rest.nightly          the record of "nightly" is parked ([`register`])
//! STORE/.work/history               the history of past grants ([`super::history_file`])
//! ```
//!
//! If STORE had the sticky bit when it was new, all this is in the directory `STORE/.locks`, which does not have it.
//!
//! **Commit.** csalock writes `rec.NEW`, renames `cur.17.OLD` to `cur.18.NEW` and removes `rec.OLD`. ENOENT: another
//! process was faster, or the reply to the first try was lost. The caller reads again and sees whose commit it was. A
//! process that expects to commit soon creates `rec.NEW` in advance, and may use the file only while `cur.17.OLD` stands.
//!
//! **Creation.** csalock prepares a directory with the record as `embryo.0.NEW` and renames it onto the name, which
//! fails if a record is there. Then it chooses the version number, above all earlier ones of this name because it is so
//! late, and renames `embryo.0.NEW` to `born.N.NEW`. Any process may number an unnumbered record (`embryo`).
//!
//! **Removal.** csalock renames `cur.17.OLD` to `end.17.OLD`, the tombstone. Any process may revive a tombstone:
//! `end.17.OLD` becomes `cur.18.NEW`. For that purpose a record of the store stays parked as a tombstone. The others
//! are removed: csalock raises `token`, and then it removes `rec.OLD`, `end.17.OLD` and the directory. A process that
//! removes the tombstone of another process removes `end.17.OLD` first, because a `rec` may be the record that revives it.
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

mod checks;
mod commit;
mod doorbell;
mod entry;
mod file_name;
mod health;
mod lease;
mod listing;
mod opened;
mod ownership;
pub(crate) mod pointer;
mod register;
mod root;
mod sweep;
mod sync;
#[cfg(not(test))]
mod sys;

#[cfg(test)]
mod model;
#[cfg(test)]
#[path = "directory/model/sys.rs"]
mod sys;
mod work;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::stat::stat;

use self::commit::Commit;
use self::doorbell::Doorbell;
use self::entry::Entry;
pub(crate) use self::file_name::file_name;
#[cfg(any(test, fuzzing))]
pub(crate) use self::file_name::name_of_file;
use self::listing::Listing;
use self::pointer::UniqueId;
pub use self::root::MARK;
use self::root::Root;
use self::work::WORK;
use super::history_file::{HistoryFile, watch};
use super::observed::Seen;
use super::{
    CommitResult, Finding, HistoryCursor, Layout, Leases, Scope, Store, Subscription, Swept, Topic, Versioned, Visit,
    WriteSet, guarded,
};
use crate::error::{Error, ErrorKind, Result};
use crate::host::Host;
use crate::name::escape_path;

/// Maximum number of times that other processes may overtake a call before csalock reports an error.
const MOST_LOOKS: usize = 10_000;

/// Name of the history file in the working directory.
const HISTORY: &str = "history";

/// A store in a directory.
pub struct Directory {
    path: PathBuf,
    layout: Layout,
    /// True if other hosts use the store, whatever its file system is.
    shared: bool,
    host: Arc<dyn Host>,
    root: Mutex<Option<Arc<Root>>>,
    /// Device and number of the directory that this process committed to last.
    committed_in: Mutex<Option<(u64, u64)>>,
    /// The scope of a store that does not exist yet, by the file system of its next ancestor.
    future_scope: OnceLock<Scope>,
    /// The place and the listing of the last read or commit, which save a commit of that version, or of no record, a new
    /// listing.
    seen: Mutex<Option<(Entry, Option<Listing>)>>,
    /// The known leases of a store that several hosts share.
    leases: Seen,
}

impl Directory {
    /// Opens the store at this absolute path; if it does not exist, the first commit creates it.
    /// Fails if the path leads to something other than a store, or if other users could tamper with the store.
    pub fn open(path: &Path, layout: Layout, host: Arc<dyn Host>) -> Result<Directory> {
        Directory::open_as(path, layout, false, host)
    }

    /// Opens a store that other hosts use, even if its file system looks local, if `shared` is true.
    pub(super) fn open_as(path: &Path, layout: Layout, shared: bool, host: Arc<dyn Host>) -> Result<Directory> {
        let store = Directory {
            path: path.to_path_buf(),
            layout,
            shared,
            host,
            root: Mutex::default(),
            committed_in: Mutex::default(),
            future_scope: OnceLock::new(),
            seen: Mutex::default(),
            leases: Seen::default(),
        };
        store.existing()?;
        Ok(store)
    }

    /// Returns the time of the file system.
    fn file_system_time(&self) -> Result<Duration> {
        let gone = || Error::os(Errno::ENOENT, "ask for the time of the file system of", &self.path);
        self.existing()?.ok_or_else(gone)?.file_system_time()
    }

    /// Keeps a listing for the next commit.
    fn expect_no_change(&self, look: Listing) {
        *guarded(&self.seen) = Some((look.entry.clone(), Some(look)));
    }

    /// Returns the record in this place if it has not changed since this process read it.
    fn unchanged(&self, entry: &Entry) -> Option<Versioned> {
        match &*guarded(&self.seen) {
            Some((place, Some(look))) if place.is(entry) => look.unchanged_record(),
            _ => None,
        }
    }

    fn ident(&self) -> Result<UniqueId> {
        Ok(UniqueId { boot: self.boot()?, mark: self.host.unique_number()? })
    }

    /// Returns the tag of this boot.
    fn boot(&self) -> Result<u32> {
        Ok(pointer::boot_tag(&self.host.pid_space()?.boot))
    }

    /// Carries out the effects of a commit.
    pub(super) fn carry_out(&self, set: &WriteSet<'_>) {
        if set.wake.is_empty() && set.closed.is_empty() && set.history.is_empty() {
            return;
        }
        let Ok(Some(root)) = self.existing() else { return };
        for (channel, _) in &set.wake {
            doorbell::ring(&root, channel);
        }
        set.closed.iter().for_each(|channel| doorbell::remove(&root, channel));
        // The history of a `.csalock` would be lost with the last record.
        if self.layout != Layout::Beside
            && let Ok(work) = root.drafts()
        {
            for line in set.history.iter() {
                let _ = history_file(work).append(line.as_bytes(), &set.limits, self.host.wall());
            }
        }
    }
}

impl Store for Directory {
    fn read(&self, name: &[u8]) -> Result<Option<Versioned>> {
        for _ in 0..MOST_LOOKS {
            let Some(root) = self.existing()? else { return Ok(None) };
            let entry = Entry::new(&root, file_name::file_name(name));
            if let Some(stored) = self.unchanged(&entry) {
                return Ok(Some(stored));
            }
            let (stored, look) = entry.stored(self.host.as_ref())?;
            // A record that is there, or was, is in a directory of the store.
            if look.is_some() || !self.was_removed(&root) {
                *guarded(&self.seen) = Some((entry, look));
                return Ok(stored);
            }
        }
        Err(self.is_missing())
    }

    fn scan(&self, visit: &mut Visit<'_>) -> Result<()> {
        let Some(mut root) = self.existing()? else { return Ok(()) };
        while self.was_removed(&root) {
            let Some(new) = self.existing()? else { return Ok(()) };
            root = new;
        }
        root.each_entry(&mut |file_name| {
            let entry = Entry::new(&root, file_name.to_vec());
            match entry.stored(self.host.as_ref()) {
                Ok((None, _)) => Ok(()),
                Ok((Some(stored), _)) => visit(&escape_path(&entry.path()), Ok(stored)),
                // This user may not read the value; the record shows that it exists.
                Err(error) if error.kind() == ErrorKind::Denied && !entry.is_record() => Ok(()),
                Err(error) => visit(&escape_path(&entry.path()), Err(error)),
            }
        })
    }

    fn commit(&self, set: &WriteSet<'_>) -> Result<CommitResult> {
        set.commit_alone(self, |change| {
            let swap = self.in_store(change.expect.is_none() && change.body.is_some(), |root| {
                let commit = Commit { store: self, root, keep: change.options };
                let done = commit.swap(change.name, change.expect.as_ref(), change.body)?;
                if done.is_done() {
                    *guarded(&self.committed_in) = Some(root.id);
                }
                Ok(done)
            });
            Ok(swap?.unwrap_or(CommitResult::Conflict(None)))
        })
    }

    fn finish(&self, set: &WriteSet<'_>) {
        if let Some((_, Some(look))) = &mut *guarded(&self.seen) {
            look.remove_replaced();
        }
        self.carry_out(set);
    }

    fn leases(&self) -> &dyn Leases {
        self
    }

    fn is_replaced(&self) -> bool {
        guarded(&self.committed_in).is_some_and(|id| match stat(&self.path) {
            Ok(found) => (found.st_dev, found.st_ino) != id,
            Err(errno) => matches!(errno, Errno::ENOENT | Errno::ENOTDIR),
        })
    }

    fn scope(&self) -> Scope {
        match &*guarded(&self.root) {
            Some(root) => root.scope,
            None if self.shared || self.layout == Layout::Served => Scope::Shared,
            None => *self.future_scope.get_or_init(|| root::reach_of(self.path.ancestors())),
        }
    }

    fn describe(&self, name: &[u8]) -> String {
        escape_path(&self.records().join(sys::os(&file_name::file_name(name))))
    }

    fn subscribe(&self, topic: Topic<'_>) -> Option<Box<dyn Subscription>> {
        if matches!(topic, Topic::History) {
            return watch(&self.existing().ok()??.path.join(WORK).join(HISTORY));
        }
        let Topic::Channel(channel, _) = topic else { return None };
        // A FIFO does not reach other hosts, so in a store on a network file system a waiter polls.
        let root = self.existing_or_new().ok().filter(|root| root.has_bells)?;
        let doorbell = Doorbell::new(root, channel).ok()?;
        Some(Box::new(doorbell))
    }

    fn diagnose(&self) -> Vec<Finding> {
        self.findings()
    }

    fn sweep(&self, dry_run: bool) -> Result<Swept> {
        self.sweep_leftovers(dry_run)
    }

    fn read_new_history(&self, cursor: &mut HistoryCursor, visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        if self.layout == Layout::Beside {
            return Ok(false);
        }
        let Some(root) = self.existing()? else { return Ok(true) };
        if let Some(work) = root.existing_drafts()? {
            history_file(&work).read(&mut cursor.files, &root.path.join(WORK).join(HISTORY), visit)?;
        }
        Ok(true)
    }
}

fn history_file(work: &OwnedFd) -> HistoryFile<'_> {
    HistoryFile { at: work.as_fd(), name: HISTORY.into(), like: "..".into() }
}
