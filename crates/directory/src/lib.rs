//! The directory store: the default store, on any file system, even on an NFS mount that several hosts share.
//!
//! [`layout`] has a drawing of the directory and the protocol: each change of a record is one rename(2) of a name that is
//! never used again. It must not know what a lock is, and the file system must guarantee no more than this rename.
//!
//! **Leases.** A local store counts on CLOCK_BOOTTIME, a shared store on CLOCK_BOOTTIME of each host ([`store::leases`]).
//! The store's time is the file system's, on NFS the server's.

mod channel;
mod commit;
pub mod layout;
#[cfg(test)]
mod model;
mod read;
mod root;
mod sweep;
#[cfg(not(test))]
mod sys;
#[cfg(test)]
#[path = "model/sys.rs"]
mod sys;
mod work;

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::stat::stat;
use nix::sys::statfs::statfs;

use self::channel::Channel;
use self::commit::Commit;
use self::layout::{HISTORY, UniqueId, WORK, file_name};
use self::read::{Entry, Listing};
pub use self::root::MARK;
use self::root::Root;
use host::Host;
use lock::name::escape_path;
use lock::{Error, ErrorKind, Lease, Result, Sighting};
use store::history_file::HistoryFile;
use store::leases::{self, Seen, lend_shared, remaining_shared};
use store::mount::network;
use store::{
    Abilities, Call, CommitResult, Finding, Layout, Leases, Scope, Store, Subscription, Swept, Topic, Upkeep,
    Versioned, Visit, WriteSet, guarded, health,
};

/// Maximum number of times that other processes may overtake a call before csalock reports an error.
const MOST_LOOKS: usize = 10_000;

pub struct Directory {
    path: PathBuf,
    layout: Layout,
    /// Other hosts use the store, whatever its file system is.
    shared: bool,
    host: Arc<dyn Host>,
    root: Mutex<Option<Arc<Root>>>,
    /// Device and number of the directory that this process committed to last.
    committed_in: Mutex<Option<(u64, u64)>>,
    /// The place and the listing of the last read or commit, which save a commit of that version, or of no record, a new
    /// listing. Without it, `csalock run` of a free lock makes 18 more system calls, and reads the record that it wrote.
    seen: Mutex<Option<(Entry, Option<Listing>)>>,
    leases: Seen,
}

impl Directory {
    /// Opens the store at this absolute path; if it does not exist, the first commit creates it.
    /// Fails if the path leads to something other than a store, or if other users could tamper with the store.
    pub fn open(path: &Path, layout: Layout, host: Arc<dyn Host>) -> Result<Directory> {
        Directory::open_as(path, layout, false, host)
    }

    /// Opens a store that other hosts use, even if its file system looks local, if `shared` is true.
    pub fn open_as(path: &Path, layout: Layout, shared: bool, host: Arc<dyn Host>) -> Result<Directory> {
        let store = Directory {
            path: path.to_path_buf(),
            layout,
            shared,
            host,
            root: Mutex::default(),
            committed_in: Mutex::default(),
            seen: Mutex::default(),
            leases: Seen::default(),
        };
        store.existing()?;
        Ok(store)
    }

    fn keep_listing(&self, listing: Listing) {
        *guarded(&self.seen) = Some((listing.entry.clone(), Some(listing)));
    }

    fn ident(&self) -> Result<UniqueId> {
        Ok(UniqueId { boot: self.boot()?, mark: self.host.unique_number()? })
    }

    fn boot(&self) -> Result<u32> {
        Ok(layout::boot_tag(&self.host.pid_space()?.boot))
    }

    fn existing(&self) -> Result<Option<Arc<Root>>> {
        self.opened(false)
    }

    fn existing_or_new(&self) -> Result<Arc<Root>> {
        for _ in 0..MOST_LOOKS {
            if let Some(root) = self.opened(true)? {
                return Ok(root);
            }
            // Another process may remove the empty directory before we open it.
            Root::create(&self.path, self.layout)?;
        }
        Err(self.is_missing())
    }

    fn opened(&self, create: bool) -> Result<Option<Arc<Root>>> {
        let mut known = guarded(&self.root);
        if known.is_none()
            && let Some(mut root) = Root::open(&self.path, self.layout, create)?
        {
            if self.shared {
                root.scope = Scope::Shared;
                root.has_channels = false;
            }
            *known = Some(Arc::new(root));
        }
        Ok(known.clone())
    }

    /// Makes a call in the store, and repeats a call that failed because the store was removed, as `.csalock` is removed
    /// with its last record. Returns `None` if the store does not exist and is not to be created.
    fn in_store<T>(&self, create: bool, call: impl Fn(&Arc<Root>) -> Result<T>) -> Result<Option<T>> {
        for _ in 0..MOST_LOOKS {
            let root = if create { Some(self.existing_or_new()?) } else { self.existing()? };
            let Some(root) = root else { return Ok(None) };
            match call(&root) {
                Err(_) if root.is_gone() => *guarded(&self.root) = None,
                done => return done.map(Some),
            }
        }
        Err(self.is_missing())
    }

    fn file_system_time(&self) -> Result<Duration> {
        self.in_store(false, |root| root.file_system_time())?.ok_or_else(|| self.is_missing())
    }

    fn is_missing(&self) -> Error {
        Error::os(Errno::ENOENT, "open the store", &self.path)
    }

    fn records(&self) -> PathBuf {
        self.existing().ok().flatten().map_or_else(|| self.path.clone(), |root| root.path.clone())
    }

    fn scope(&self) -> Scope {
        match &*guarded(&self.root) {
            Some(root) => root.scope,
            None if self.shared || self.layout == Layout::Served => Scope::Shared,
            // The file system will be that of the first directory above it.
            None => match self.path.ancestors().find_map(|above| statfs(above).ok()) {
                Some(found) if network(found.filesystem_type()).is_some() => Scope::Shared,
                _ => Scope::Local,
            },
        }
    }

    pub fn carry_out(&self, set: &WriteSet<'_>) {
        if set.wake.is_empty() && set.closed.is_empty() && set.history.is_empty() {
            return;
        }
        let Ok(Some(root)) = self.existing() else { return };
        for (channel, _) in &set.wake {
            channel::notify(&root, channel);
        }
        for channel in set.closed.iter() {
            channel::remove(&root, channel);
        }
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
    fn read(&self, call: Call, name: &[u8]) -> Result<Option<Versioned>> {
        let stored = self.in_store(false, |root| {
            let entry = Entry::new(root, file_name(name));
            if let Some((place, Some(listing))) = &*guarded(&self.seen)
                && place.is(&entry)
                && let Some(stored) = listing.unchanged_record()
            {
                return Ok(Some(stored.clone()));
            }
            let (stored, listing) = entry.stored(call, self.host.as_ref())?;
            // A record that is there, or was, is in a directory of the store.
            if listing.is_none() && root.is_gone() {
                return Err(self.is_missing());
            }
            *guarded(&self.seen) = Some((entry, listing));
            Ok(stored)
        });
        Ok(stored?.flatten())
    }

    fn scan(&self, call: Call, visit: &mut Visit<'_>) -> Result<()> {
        let root = self.in_store(false, |root| if root.is_gone() { Err(self.is_missing()) } else { Ok(root.clone()) });
        let Some(root) = root? else { return Ok(()) };
        root.each_entry(&mut |file_name| {
            let entry = Entry::new(&root, file_name.to_vec());
            match entry.stored(call, self.host.as_ref()) {
                Ok((None, _)) => Ok(()),
                Ok((Some(stored), _)) => visit(&escape_path(&entry.path()), Ok(stored)),
                // This user may not read the value; the record shows that it exists.
                Err(error) if error.kind() == ErrorKind::Denied && !entry.is_record() => Ok(()),
                Err(error) => visit(&escape_path(&entry.path()), Err(error)),
            }
        })
    }

    fn commit(&self, call: Call, set: &WriteSet<'_>) -> Result<CommitResult> {
        set.commit_alone(call, self, |change| {
            let done = self.in_store(change.expect.is_none() && change.body.is_some(), |root| {
                let entry = Entry::new(root, file_name(change.name));
                let commit = Commit { store: self, entry: &entry, options: change.options };
                let done = commit.run(change.expect.as_ref(), change.body)?;
                if done.is_done() {
                    *guarded(&self.committed_in) = Some(root.id);
                }
                Ok(done)
            });
            Ok(done?.unwrap_or(CommitResult::Unclear))
        })
    }

    fn finish(&self, _call: Call, set: &WriteSet<'_>) {
        if let Some((_, Some(listing))) = &mut *guarded(&self.seen) {
            listing.remove_replaced();
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

    fn abilities(&self) -> Abilities {
        Abilities::of(self.scope())
    }

    fn subscribe(&self, _call: Call, topic: Topic<'_>) -> Option<Box<dyn Subscription>> {
        match topic {
            Topic::Channel(id, _) => {
                // A FIFO does not reach other hosts, so in a store on a network file system a waiter polls.
                let root = self.existing_or_new().ok().filter(|root| root.has_channels)?;
                Some(Box::new(Channel::new(root, id).ok()?))
            }
            Topic::Record(_) => None,
        }
    }
}

impl Upkeep for Directory {
    fn describe(&self, name: &[u8]) -> String {
        escape_path(&self.records().join(OsStr::from_bytes(&file_name(name))))
    }

    fn answers(&self) -> u64 {
        sys::answers()
    }

    fn cleaned_directory(&self) -> Option<PathBuf> {
        health::is_cleaned(&self.path).then(|| self.records())
    }

    fn read_history(&self, _call: Call, visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        if self.layout == Layout::Beside {
            return Ok(false);
        }
        let Some(root) = self.existing()? else { return Ok(true) };
        if let Some(work) = root.existing_drafts()? {
            history_file(&work).read(&root.path.join(WORK).join(HISTORY), visit)?;
        }
        Ok(true)
    }

    fn sweep(&self, _call: Call, dry_run: bool) -> Result<Swept> {
        self.sweep_leftovers(dry_run)
    }

    fn diagnose(&self, _call: Call) -> Vec<Finding> {
        let what = match self.layout {
            Layout::Beside => "the locks of the files beside it, in",
            _ => "directory of records,",
        };
        health::of_files(what, &self.path, self.existing().map(|root| root.is_some()))
    }
}

fn history_file(work: &OwnedFd) -> HistoryFile<'_> {
    HistoryFile { at: work.as_fd(), name: HISTORY.into(), like: "..".into() }
}

impl Leases for Directory {
    fn grant(&self, _call: Call, span: Duration) -> Result<Lease> {
        let lent = self.in_store(true, |root| match root.scope {
            Scope::Local => leases::lend_local(self.host.as_ref(), span),
            Scope::Shared => lend_shared(self.host.as_ref(), span, || root.file_system_time()),
        });
        lent?.ok_or_else(|| self.is_missing())
    }

    fn time(&self, _call: Call) -> Result<Duration> {
        // Under one kernel, files have the times of its clock.
        if self.scope() == Scope::Local {
            return Ok(self.host.wall());
        }
        self.in_store(true, |root| root.file_system_time())?.ok_or_else(|| self.is_missing())
    }

    fn ttl(&self, _call: Call, lease: &Lease) -> Result<Duration> {
        let left = self.in_store(false, |root| remaining_shared(self.host.as_ref(), lease, || root.file_system_time()));
        left.map(Option::unwrap_or_default)
    }

    fn time_to_expiry(&self, _call: Call, lease: &Lease, seen: &[Sighting]) -> Result<Duration> {
        self.leases.until_over(self.host.as_ref(), lease, seen, || self.file_system_time())
    }

    fn new_sightings(&self, _call: Call, leases: &[&Lease], seen: &[Sighting]) -> Result<Vec<Sighting>> {
        self.leases.to_note(self.host.as_ref(), leases, seen, || self.file_system_time())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::{Directory, Root, guarded};
    use crate::sys;
    use host::{Fake, Host as _, Unix};
    use lock::error::ErrorKind;
    use store::{Call, CommitResult, Layout, Scope, Store as _, Upkeep as _, WriteSet};

    /// A process that creates a store behind ssh(1) may be killed between the directory and its name.
    #[test]
    fn a_served_store_that_was_never_finished_is_swept() {
        let place = tempfile::tempdir().unwrap();
        let host = Fake::new(1);
        let store = |host: &Fake| {
            Directory::open_as(&place.path().join("store"), Layout::Served, true, Arc::new(host.clone())).unwrap()
        };
        for draft in ["store.new.0123456789abcdef", "other.new.0123456789abcdef"] {
            std::fs::create_dir(place.path().join(draft)).unwrap();
        }
        host.set_wall(Unix::new().wall());
        assert_eq!(store(&host).sweep(Call::default(), false).unwrap().removed, 0, "it is young");
        host.set_wall(Unix::new().wall() + Duration::from_secs(61));
        assert_eq!(store(&host).sweep(Call::default(), false).unwrap().removed, 1);
        let left: Vec<_> = std::fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["other.new.0123456789abcdef"]);
    }

    /// A name on FUSE may be old, so it is a conflict until the deadline of the call, or for half a minute.
    #[test]
    fn an_old_name_is_looked_at_again_until_the_deadline() {
        let place = tempfile::tempdir().unwrap();
        let host = Fake::new(1);
        let store = Directory::open(&place.path().join("store"), Layout::Own, Arc::new(host.clone())).unwrap();
        let written = WriteSet::of(b"x", None, Some(b"one\n"));
        let CommitResult::Done(version) = store.commit(Call::default(), &written).unwrap() else { panic!() };
        assert!(store.commit(Call::default(), &WriteSet::of(b"x", Some(&version), Some(b"two\n"))).unwrap().is_done());
        let on_fuse = |host: &Fake| {
            let store = Directory::open(&place.path().join("store"), Layout::Own, Arc::new(host.clone())).unwrap();
            let root = Root::open(&store.path, Layout::Own, false).unwrap().unwrap();
            *guarded(&store.root) = Some(Arc::new(Root { scope: Scope::Shared, has_old_names: true, ..root }));
            store
        };
        assert_eq!(on_fuse(&host).read(Call::default(), b"x").unwrap().unwrap().body, b"two\n");
        for entry in std::fs::read_dir(place.path().join("store/x")).unwrap().map(Result::unwrap) {
            if entry.file_name().to_string_lossy().starts_with("rec.") {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
        let began = host.boottime();
        let call = Call::until(began + Duration::from_secs(5));
        assert_eq!(on_fuse(&host).read(call, b"x").unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!((host.boottime() - began).as_secs(), 5);
        let began = host.boottime();
        let error = on_fuse(&host).read(Call::default(), b"x").unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.version().is_some(), "{error}");
        assert_eq!((host.boottime() - began).as_secs(), 30);
    }

    #[test]
    fn the_time_of_a_fresh_file_cannot_be_chosen_by_a_user() {
        let file = tempfile::tempfile().unwrap();
        let wrong = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(2_147_415_594);
        file.set_times(std::fs::FileTimes::new().set_modified(wrong)).unwrap();
        let found = nix::sys::stat::fstat(&file).unwrap();
        assert_eq!(found.st_mtime, 2_147_415_594);
        assert!(sys::changed(&found) < Duration::from_secs(2_147_415_594));
    }
}
