//! The place of a storm: a sandbox, and a store on a small disk of its own, or on servers of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use host::Unix;
use store::Store;

use crate::critical_section::{self, STORM, TOLD};
use crate::etcd::{Cluster, Setup};
use crate::exclusion::Witness;
use crate::extent::{Extent, extent};
use crate::postgres::Server;
use crate::sandbox::{CLOCK, Done, Kind, Mount, Sandbox, csalock, has_namespaces};

/// Short, so that leases are renewed, and are over while servers are gone.
const LEASE: &str = "5s";

pub(crate) struct Ground {
    // It goes away before the sandbox that it is mounted in.
    pub(crate) disk: Option<Mount>,
    pub(crate) cluster: Option<Cluster>,
    pub(crate) postgres: Option<Server>,
    pub(crate) place: PathBuf,
    pub(crate) store: String,
    pub(crate) witness: Witness,
    search_path: String,
    kind: Kind,
    sandbox: Option<Sandbox>,
}

impl Ground {
    /// Returns `None` and skips the test where the store is not available. `long`: with a realistic number of servers.
    pub(crate) fn new(kind: Kind, long: bool) -> Option<Ground> {
        let cluster = match kind {
            Kind::Etcd => Some(Cluster::start(Setup {
                members: if long { 3 } else { 1 },
                arguments: vec!["--heartbeat-interval=100", "--election-timeout=1000"],
                ..Setup::default()
            })?),
            _ => None,
        };
        let postgres = if kind == Kind::Postgres { Some(Server::start(&["fsync=on"])?) } else { None };
        let sandbox = match (&cluster, &postgres) {
            (Some(cluster), _) => Sandbox::at(cluster),
            (_, Some(server)) => Sandbox::in_database(&server.url("")),
            _ => Sandbox::new(kind),
        };
        let small = || Mount::new(&sandbox, "size=6m,mode=0755");
        let disk = (sandbox.is_of_files() && has_namespaces("a disk that is full")).then(small);
        let store = if sandbox.is_of_files() { sandbox.store_at("files/mount/store") } else { sandbox.store() };
        std::fs::create_dir_all(sandbox.path("files/mount")).unwrap();
        std::fs::create_dir(sandbox.path("files/witness")).unwrap();
        let ground = Ground {
            disk,
            cluster,
            postgres,
            place: sandbox.path("files"),
            store,
            witness: Witness::new(&sandbox.path("files/witness")),
            search_path: sandbox.search_path(),
            kind,
            sandbox: Some(sandbox),
        };
        Some(ground)
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn command(&self, words: &[String], who: &str, clock: Option<&str>) -> Command {
        let program = if words[0] == "csalock" { csalock() } else { &words[0] };
        let mut command = Command::new("setsid");
        command.arg(program).args(&words[1..]).env_clear().current_dir(&self.place).stdin(Stdio::null());
        command.env("PATH", &self.search_path).env("LC_ALL", "C").env("HOME", &self.place);
        command.env("CSALOCK_STORE", &self.store).env("CSALOCK_LEASE", LEASE).env("CSALOCK_TRACE", self.trace());
        command
            .env("W", who)
            .env("SECTION", critical_section::words().join(" "))
            .env(TOLD, "")
            .env(STORM, std::process::id().to_string());
        command.envs(clock.map(|clock| (CLOCK, clock)));
        command.envs(crate::supervised::mark()).stdout(Stdio::null());
        command
    }

    pub(crate) fn csalock(&self, words: &[&str]) -> Done {
        let call = self.sandbox.as_ref().unwrap().csalock(words).env("CSALOCK_STORE", &self.store);
        call.env("CSALOCK_LEASE", LEASE).env("CSALOCK_TRACE", self.trace()).capture()
    }

    pub(crate) fn read(&self, file: &str) -> String {
        std::fs::read(self.place.join(file)).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default()
    }

    pub(crate) fn trace(&self) -> PathBuf {
        self.place.join("trace")
    }

    pub(crate) fn open(&self) -> Box<dyn Store> {
        let location = engine::location(self.store.as_ref(), Path::new("/")).unwrap();
        engine::stores::open(&location, &engine::environment::variable, Arc::new(Unix::new())).unwrap()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // The files of a failed long storm are kept for inspection.
        if std::thread::panicking() && extent() > Extent::Quick {
            println!("left as it was: {}", self.place.display());
            let (from, to) = (self.place.join("mount"), self.place.join("store as it was"));
            let _ = Command::new("cp").arg("-a").args([from, to]).status();
            std::mem::forget(self.sandbox.take());
            crate::supervised::keep_files();
        }
    }
}
