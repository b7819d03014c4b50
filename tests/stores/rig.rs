//! A store to test, in a place of its own that goes away afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use csalock::host::{Fake, Host, Unix};
use csalock::store::{Directory, Layout, Memory, Sqlite, Store, Swap, Version};
use tempfile::TempDir;

/// The kinds of stores there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Memory,
    Directory,
    Beside,
    Sqlite,
}

impl Kind {
    pub(crate) const ALL: [Kind; 4] = [Kind::Memory, Kind::Directory, Kind::Beside, Kind::Sqlite];

    pub(crate) fn open(self, path: &Path, host: Arc<dyn Host>) -> Arc<dyn Store> {
        match self {
            Kind::Memory => Arc::new(Memory::new(host)),
            Kind::Directory => Arc::new(Directory::open(path, Layout::Own, host).unwrap()),
            Kind::Beside => Arc::new(Directory::open(path, Layout::Beside, host).unwrap()),
            Kind::Sqlite => Arc::new(Sqlite::open(path, host).unwrap()),
        }
    }
}

pub(crate) struct Rig {
    pub(crate) kind: Kind,
    pub(crate) store: Arc<dyn Store>,
    place: TempDir,
}

impl Rig {
    pub(crate) fn memory() -> Rig {
        Rig::new(Kind::Memory)
    }

    pub(crate) fn directory() -> Rig {
        Rig::new(Kind::Directory)
    }

    pub(crate) fn beside() -> Rig {
        Rig::new(Kind::Beside)
    }

    pub(crate) fn sqlite() -> Rig {
        Rig::new(Kind::Sqlite)
    }

    fn new(kind: Kind) -> Rig {
        // In memory where that is possible: thousands of syncs would test nothing but the disk.
        let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let store = kind.open(&path_in(&place), Arc::new(Unix::new()));
        Rig { kind, store, place }
    }

    /// Where the store is.
    pub(crate) fn path(&self) -> PathBuf {
        path_in(&self.place)
    }

    /// The directory that is for this test alone, with the store in it.
    pub(crate) fn around(&self) -> &Path {
        self.place.path()
    }

    /// The same store, as another user of it opens it.
    pub(crate) fn again(&self) -> Arc<dyn Store> {
        match self.kind {
            Kind::Memory => self.store.clone(),
            kind => kind.open(&self.path(), Arc::new(Unix::new())),
        }
    }

    /// The same kind of store on a host whose clocks the test sets.
    pub(crate) fn faked(&self) -> (Arc<dyn Store>, Fake) {
        let fake = Fake::new(1);
        (self.kind.open(&self.path(), Arc::new(fake.clone())), fake)
    }

    /// How many files and directories there are, and how many bytes.
    pub(crate) fn footprint(&self) -> (u64, u64) {
        footprint(self.place.path())
    }

    /// A swap that must succeed.
    pub(crate) fn put(&self, name: &[u8], expect: Option<&Version>, body: &[u8]) -> Version {
        stored(self.store.swap(name, expect, Some(body)).unwrap())
    }

    /// A removal that must succeed.
    pub(crate) fn remove(&self, name: &[u8], expect: &Version) {
        stored(self.store.swap(name, Some(expect), None).unwrap());
    }

    /// The body under `name`.
    pub(crate) fn body(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.store.read(name).unwrap().map(|stored| stored.body)
    }

    /// The bodies of all records, in order.
    pub(crate) fn bodies(&self) -> Vec<Vec<u8>> {
        let mut bodies = Vec::new();
        let mut visit = |place: &str, stored: csalock::error::Result<csalock::store::Stored>| {
            bodies.push(stored.unwrap_or_else(|error| panic!("{place}: {error}")).body);
            Ok(())
        };
        self.store.scan(&mut visit).unwrap();
        bodies.sort();
        bodies
    }
}

pub(crate) fn stored(swap: Swap) -> Version {
    match swap {
        Swap::Stored(version) => version,
        Swap::Conflict => panic!("a swap that nobody disturbed met a conflict"),
    }
}

fn path_in(place: &TempDir) -> PathBuf {
    place.path().join("store")
}

fn footprint(directory: &Path) -> (u64, u64) {
    fs::read_dir(directory).unwrap().map(Result::unwrap).fold((0, 0), |(entries, bytes), entry| {
        let (inner_entries, inner_bytes) = match entry.file_type().unwrap().is_dir() {
            true => footprint(&entry.path()),
            false => (0, entry.metadata().unwrap().len()),
        };
        (entries + 1 + inner_entries, bytes + inner_bytes)
    })
}
