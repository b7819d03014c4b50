//! A store to test, in a place of its own that goes away afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use directory::Directory;
use host::{Fake, Host, Unix};
use lock::Lease;
use lock::history::HistoryLimits;
use sqlite::Sqlite;
use store::{Call, CommitResult, Layout, LinesOfHistory, Memory, Store, Version, Write, WriteOptions, WriteSet};
use tempfile::TempDir;

use crate::{etcd, postgres, ssh};

/// The parameters of a process that uses a store: its kind and its place.
pub(crate) const KIND: &str = "CSALOCK_TEST_KIND";
pub(crate) const STORE: &str = "CSALOCK_TEST_STORE";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Memory,
    Directory,
    Beside,
    Sqlite,
    Etcd,
    Postgres,
    Ssh,
}

impl Kind {
    pub(crate) const ALL: [Kind; 7] =
        [Kind::Memory, Kind::Directory, Kind::Beside, Kind::Sqlite, Kind::Etcd, Kind::Postgres, Kind::Ssh];

    pub(crate) fn open(self, path: &Path, host: Arc<dyn Host>) -> Arc<dyn Store> {
        match self {
            Kind::Memory => Arc::new(Memory::new(host)),
            Kind::Directory => Arc::new(Directory::open(path, Layout::Own, host).unwrap()),
            Kind::Beside => Arc::new(Directory::open(path, Layout::Beside, host).unwrap()),
            Kind::Sqlite => Arc::new(Sqlite::open(path, host).unwrap()),
            Kind::Etcd | Kind::Postgres | Kind::Ssh => {
                let location = engine::location(path.as_os_str(), "/").unwrap();
                // The path of a store behind ssh is beside the program that reaches it.
                let url_path =
                    Path::new(path.to_str().unwrap().trim_start_matches("ssh://").split_once('/').unwrap().1);
                let ssh = Path::new("/").join(url_path).with_file_name("ssh");
                let variables = |name: &str| (name == "CSALOCK_SSH").then(|| ssh.clone().into());
                engine::stores::open(&location, &variables, host).unwrap().into()
            }
        }
    }
}

pub(crate) struct Rig {
    pub(crate) kind: Kind,
    pub(crate) store: Arc<dyn Store>,
    place: TempDir,
    /// The place of the store: a path, or for etcd a URL.
    path: PathBuf,
}

impl Rig {
    pub(crate) fn memory() -> Option<Rig> {
        Some(Rig::new(Kind::Memory, None))
    }

    pub(crate) fn directory() -> Option<Rig> {
        Some(Rig::new(Kind::Directory, None))
    }

    pub(crate) fn beside() -> Option<Rig> {
        Some(Rig::new(Kind::Beside, None))
    }

    pub(crate) fn sqlite() -> Option<Rig> {
        Some(Rig::new(Kind::Sqlite, None))
    }

    pub(crate) fn etcd() -> Option<Rig> {
        let url = etcd::shared()?.url(&etcd::new_prefix());
        Some(Rig::new(Kind::Etcd, Some(url.into())))
    }

    pub(crate) fn postgres() -> Option<Rig> {
        Some(Rig::new(Kind::Postgres, Some(postgres::shared()?.url(&postgres::new_schema()).into())))
    }

    /// The same behind pgbouncer.
    pub(crate) fn pooled() -> Option<Rig> {
        Some(Rig::new(Kind::Postgres, Some(postgres::shared_bouncer()?.url(&postgres::new_schema()).into())))
    }

    pub(crate) fn ssh() -> Option<Rig> {
        let server = ssh::shared()?;
        let place = crate::supervised::in_memory();
        // Processes that the tests start find it there, too.
        std::os::unix::fs::symlink(server.program(), place.path().join("ssh")).unwrap();
        let url = server.url(&place.path().join("store").display().to_string());
        Some(Rig::at(Kind::Ssh, place, url.into()))
    }

    fn new(kind: Kind, url: Option<PathBuf>) -> Rig {
        let place = crate::supervised::in_memory();
        let path = url.unwrap_or_else(|| place.path().join("store"));
        Rig::at(kind, place, path)
    }

    fn at(kind: Kind, place: TempDir, path: PathBuf) -> Rig {
        let store = kind.open(&path, Arc::new(Unix::new()));
        Rig { kind, store, place, path }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// The name in the place of each of its records.
    pub(crate) fn is_in(&self) -> &Path {
        if self.is_on_servers() { &self.path } else { self.around() }
    }

    /// Waits for what the dead had asked for and a server has not done yet.
    pub(crate) fn await_last_words(&self) {
        if self.is_on_servers() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub(crate) fn is_on_servers(&self) -> bool {
        matches!(self.kind, Kind::Etcd | Kind::Postgres | Kind::Ssh)
    }

    /// Number of acquisitions after which leftovers would show.
    pub(crate) fn many(&self) -> u32 {
        if self.is_on_servers() { 1000 } else { 10_000 }
    }

    /// The directory that is for this test alone, with the store in it.
    pub(crate) fn around(&self) -> &Path {
        self.place.path()
    }

    pub(crate) fn again(&self) -> Arc<dyn Store> {
        match self.kind {
            Kind::Memory => self.store.clone(),
            kind => kind.open(&self.path(), Arc::new(Unix::new())),
        }
    }

    /// Opens the same kind of store on a host whose clocks the test sets.
    pub(crate) fn faked(&self) -> (Arc<dyn Store>, Fake) {
        let fake = Fake::new(1);
        (self.kind.open(&self.path(), Arc::new(fake.clone())), fake)
    }

    /// How many files and directories there are, and how many bytes; or keys, and bytes of these and their values.
    pub(crate) fn footprint(&self) -> (u64, u64) {
        if self.kind == Kind::Etcd {
            let prefix = self.path.to_str().unwrap().rsplit('/').next().unwrap();
            let ours = etcd::shared().unwrap().ctl(&["get", "--prefix", &format!("{prefix}/"), "--hex"]);
            return (ours.lines().filter(|line| !line.is_empty()).count() as u64, ours.len() as u64);
        }
        if self.kind == Kind::Postgres {
            return postgres_footprint(self.path.to_str().unwrap().rsplit('=').next().unwrap());
        }
        footprint(self.place.path())
    }

    /// A swap that must succeed.
    pub(crate) fn put(&self, name: &[u8], expect: Option<&Version>, body: &[u8]) -> Version {
        match self.store.swap(name, expect, Some(body)).unwrap() {
            // A request that took a server long was repeated and met the first commit.
            CommitResult::Conflict(Some(now)) if self.is_on_servers() && now.body == body => now.version,
            done => stored(done),
        }
    }

    pub(crate) fn remove(&self, name: &[u8], expect: &Version) {
        stored(self.store.swap(name, Some(expect), None).unwrap());
    }

    pub(crate) fn body(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.store.read(Call::default(), name).unwrap().map(|stored| stored.body)
    }

    pub(crate) fn bodies(&self) -> Vec<Vec<u8>> {
        let mut bodies = Vec::new();
        let mut visit = |place: &str, stored: lock::error::Result<store::Versioned>| {
            bodies.push(stored.unwrap_or_else(|error| panic!("{place}: {error}")).body);
            Ok(())
        };
        self.store.scan(Call::default(), &mut visit).unwrap();
        bodies.sort();
        bodies
    }
}

pub(crate) fn stored(swap: CommitResult) -> Version {
    match swap {
        CommitResult::Done(version) => version,
        CommitResult::Conflict(_) => panic!("an undisturbed commit met a conflict"),
    }
}

/// How many tables and rows there are, and how many bytes of records.
fn postgres_footprint(schema: &str) -> (u64, u64) {
    let number = |sql: &str| postgres::shared().unwrap().sql(&sql.replace('$', schema)).parse::<u64>().unwrap();
    let tables = number("SELECT count(*) FROM pg_class WHERE relnamespace::regnamespace::text = '$'");
    let rows = |table: &str| number(&format!("SELECT count(*) FROM $.{table}"));
    match tables {
        0 => (0, 0),
        _ => (
            tables + ["records", "removed", "history"].into_iter().map(rows).sum::<u64>(),
            number("SELECT coalesce(sum(octet_length(body)), 0) FROM $.records"),
        ),
    }
}

fn footprint(directory: &Path) -> (u64, u64) {
    fs::read_dir(directory).unwrap().map(Result::unwrap).fold((0, 0), |(entries, bytes), entry| {
        let (inner_entries, inner_bytes) = match entry.file_type().unwrap().is_dir() {
            true => footprint(&entry.path()),
            // The log of a database grows and shrinks, up to its limit.
            false if entry.file_name().as_encoded_bytes().ends_with(b"-wal") => (0, 0),
            false => (0, entry.metadata().unwrap().len()),
        };
        (entries + 1 + inner_entries, bytes + inner_bytes)
    })
}

/// Commits of one change or of one effect, and versions.
pub(crate) trait Effects: Store {
    fn commit_and_finish(&self, set: &WriteSet<'_>) -> lock::error::Result<CommitResult> {
        let done = Store::commit(self, Call::default(), set)?;
        if done.is_done() {
            self.finish(Call::default(), set);
        }
        Ok(done)
    }

    fn swap(&self, name: &[u8], expect: Option<&Version>, body: Option<&[u8]>) -> lock::error::Result<CommitResult> {
        self.swap_with(name, expect, body, WriteOptions::default())
    }

    fn swap_with(
        &self,
        name: &[u8],
        expect: Option<&Version>,
        body: Option<&[u8]>,
        options: WriteOptions,
    ) -> lock::error::Result<CommitResult> {
        self.commit_and_finish(&WriteSet::from(Write { name, expect: expect.copied(), body, options }))
    }

    fn wake(&self, channel: &[u8], lease: &Lease) {
        stored(
            self.commit_and_finish(&WriteSet { wake: vec![(channel.to_vec(), Some(lease))], ..WriteSet::default() })
                .unwrap(),
        );
    }

    fn end_lease(&self, lease: &Lease) {
        stored(self.commit_and_finish(&WriteSet { ended: vec![lease], ..WriteSet::default() }).unwrap());
    }

    fn append_history(&self, line: &str, limits: &HistoryLimits) {
        let set = WriteSet {
            history: LinesOfHistory::new(|| vec![line.to_string()]),
            limits: *limits,
            ..WriteSet::default()
        };
        stored(self.commit_and_finish(&set).unwrap());
    }

    fn version(&self, name: &[u8]) -> Option<Version> {
        self.read(Call::default(), name).unwrap().map(|stored| stored.version)
    }
}

impl<S: Store + ?Sized> Effects for S {}
