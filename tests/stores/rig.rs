//! A store to test, in a place of its own that goes away afterwards.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use conformance::footprint_of_files;
pub(crate) use conformance::{Effects, stored};
use directory::Directory;
use host::{Host, Unix};
use sqlite::Sqlite;
use store::{Layout, Location, Memory, Store, UrlLease};
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
    /// The place of the store: a path, or for etcd a URL.
    path: PathBuf,
    around: PathBuf,
    rig: conformance::Rig,
}

impl Deref for Rig {
    type Target = conformance::Rig;

    fn deref(&self) -> &conformance::Rig {
        &self.rig
    }
}

/// The place of a store: see [`Rig`].
struct Place {
    kind: Kind,
    path: PathBuf,
    around: TempDir,
    /// A store in memory is there once.
    memory: OnceLock<Arc<dyn Store>>,
}

impl conformance::Place for Place {
    fn open(&self, host: Arc<dyn Host>) -> Arc<dyn Store> {
        self.kind.open(&self.path, host)
    }

    fn again(&self) -> Arc<dyn Store> {
        let open = || self.open(Arc::new(Unix::new()));
        if self.kind == Kind::Memory { self.memory.get_or_init(open).clone() } else { open() }
    }

    fn open_shared(&self, host: Arc<dyn Host>) -> Option<Arc<dyn Store>> {
        let shared = Location::Directory {
            path: self.path.clone(),
            layout: Layout::Own,
            shared: true,
            lease: UrlLease::default(),
        };
        (self.kind == Kind::Directory).then(|| engine::stores::open(&shared, &|_| None, host).unwrap().into())
    }

    /// How many files and directories there are, and how many bytes; or keys, and bytes of these and their values.
    fn footprint(&self) -> (u64, u64) {
        if self.kind == Kind::Etcd {
            let prefix = self.path.to_str().unwrap().rsplit('/').next().unwrap();
            let ours = etcd::shared().unwrap().ctl(&["get", "--prefix", &format!("{prefix}/"), "--hex"]);
            return (ours.lines().filter(|line| !line.is_empty()).count() as u64, ours.len() as u64);
        }
        if self.kind == Kind::Postgres {
            return postgres_footprint(self.path.to_str().unwrap().rsplit('=').next().unwrap());
        }
        footprint_of_files(self.around.path())
    }

    fn shown(&self) -> Option<&str> {
        let shown = if self.is_on_server() { &self.path } else { self.around.path() };
        (self.kind != Kind::Memory).then(|| shown.to_str().unwrap())
    }

    fn path(&self) -> Option<&Path> {
        (self.kind != Kind::Memory && !self.is_on_server()).then_some(&self.path)
    }

    fn is_on_server(&self) -> bool {
        matches!(self.kind, Kind::Etcd | Kind::Postgres | Kind::Ssh)
    }

    fn keeps_history(&self) -> bool {
        self.kind != Kind::Beside
    }
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

    fn at(kind: Kind, around: TempDir, path: PathBuf) -> Rig {
        let (of_store, of_test) = (path.clone(), around.path().to_path_buf());
        let place = Place { kind, path, around, memory: OnceLock::new() };
        Rig { kind, path: of_store, around: of_test, rig: conformance::Rig::new(place) }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Waits for what the dead had asked for and a server has not done yet.
    pub(crate) fn await_last_words(&self) {
        if self.place.is_on_server() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The directory that is for this test alone, with the store in it.
    pub(crate) fn around(&self) -> &Path {
        &self.around
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
