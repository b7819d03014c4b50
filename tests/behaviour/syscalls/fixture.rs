//! The place of a scenario: a store, its holders and waiters, and the answers that they got.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use engine::{AcquireRequest, AcquireResult, Engine, LockStatus, WaitPolicy};
use host::{Host, Unix};
use lock::{Handle, HandleHash, Owner, ProcessId, Release};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use store::{Location, Store};

use super::tracer::TRACE;
use crate::sandbox::{Call, Job, Kind, Sandbox, wait_until};
use crate::supervised::spawn_for_all;

/// How long the leases are that the commands take.
pub(crate) const LEASE: &str = "12s";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Directory,
    /// Beside the files that are locked.
    Beside,
    /// A directory that other hosts are said to share.
    Shared,
    Sqlite,
    Etcd,
}

/// The state before the command is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// The store does not exist yet.
    NoStore,
    /// A live process holds the name; HANDLE proves it.
    Held(&'static str),
    /// The one who calls the command holds it.
    Mine(&'static str),
    /// A process held it and was killed.
    Left(&'static str),
    /// A process waits for the name.
    Waiter(&'static str),
    /// The holder releases the name as soon as the command waits for it.
    FreedSoon(&'static str),
    /// The name has the value "old".
    Value(&'static str),
    /// It has a value that is kept apart.
    LongValue(&'static str),
    /// It is claimed under this id.
    Claimed(&'static str, &'static str),
    /// In SQLite, the next commit is to be followed by the emptying of the log.
    FullLog,
}

pub(crate) struct Fixture {
    pub(crate) sandbox: Sandbox,
    pub(crate) place: Place,
    pub(crate) engine: Arc<Engine>,
    /// A holder: the name, the secret, and whether it is the caller.
    pub(crate) held: Vec<(&'static str, Handle)>,
    pub(crate) mine: Vec<(&'static str, Handle)>,
    pub(crate) waiters: Vec<(&'static str, Job)>,
    releasing: Option<std::thread::JoinHandle<Result<(), String>>>,
}

/// Two processes that never do anything: one lives as long as the tests do, the other is dead.
struct Others {
    living: ProcessId,
    dead: ProcessId,
}

impl Fixture {
    pub(crate) fn set(place: Place, before: &[Before]) -> Fixture {
        let sandbox = Sandbox::new(match place {
            Place::Directory | Place::Beside => Kind::Directory,
            Place::Shared => Kind::Shared,
            Place::Sqlite => Kind::Sqlite,
            Place::Etcd => Kind::Etcd,
        });
        let engine = Arc::new(engine(&sandbox, place));
        let mut fixture = Fixture {
            sandbox,
            place,
            engine,
            held: Vec::new(),
            mine: Vec::new(),
            waiters: Vec::new(),
            releasing: None,
        };
        if !before.contains(&Before::NoStore) {
            fixture.acquire_and_release();
        }
        before.iter().for_each(|before| fixture.prepare(*before));
        if place == Place::Sqlite && fixture.releasing.is_none() {
            // A command without other users of the database reads the log for a new index.
            fixture.engine = Arc::new(fixture.new_engine());
        }
        fixture
    }

    fn new_engine(&self) -> Engine {
        engine(&self.sandbox, self.place)
    }

    fn acquire_and_release(&self) {
        for name in ["y", "x"] {
            let handle = self.take(name, self.engine.host().this_process().unwrap());
            self.release(name, handle.proof()).unwrap();
        }
    }

    fn prepare(&mut self, before: Before) {
        match before {
            Before::NoStore => {}
            Before::Held(name) => self.held.push((name, self.take(name, others().living))),
            Before::Mine(name) => self.mine.push((name, self.take(name, self.engine.host().this_process().unwrap()))),
            Before::Left(name) => drop(self.take(name, others().dead)),
            Before::Waiter(name) => self.wait_for(name),
            Before::FreedSoon(name) => self.free_soon(name),
            Before::Value(name) => self.done(&["put", &self.typed(name), "old"]),
            Before::LongValue(name) => self.done(&["put", &self.typed(name), &"old ".repeat(1000)]),
            Before::Claimed(name, id) => self.done(&["claim", "--id", id, &self.typed(name)]),
            Before::FullLog if self.place == Place::Sqlite => self.fill_log(),
            Before::FullLog => {}
        }
    }

    fn fill_log(&self) {
        let database = rusqlite::Connection::open(self.store_path()).unwrap();
        let log = self.sandbox.path("store-wal");
        // A header, and eleven frames with one page each.
        while std::fs::metadata(&log).unwrap().len() < 32 + 11 * 4120 {
            database.execute("UPDATE records_2 SET version = version + 1 WHERE name = x''", []).unwrap();
        }
    }

    /// In the name of that process.
    fn take(&self, name: &str, owner: ProcessId) -> Handle {
        let host = self.engine.host();
        let handle = self.engine.host().new_handle().unwrap();
        let command = b"holder".to_vec();
        let party = Owner {
            domain: host.domain().unwrap(),
            processes: vec![owner],
            supervisor: None,
            outlives_lock: false,
            session: None,
            host: host.name(),
            uid: host.uid(),
            command,
            label: None,
        };
        let applicant = AcquireRequest::for_itself(handle.clone(), party, owner);
        // The server may be busy with other tests.
        let patient = WaitPolicy { limit: Some(Duration::from_secs(60)), ..WaitPolicy::NONE };
        let taken = self.engine.acquire(name.as_bytes(), &applicant, &patient, None, &mut |_| None).unwrap();
        assert!(matches!(taken, AcquireResult::Granted(..)), "{taken:?}");
        handle
    }

    pub(crate) fn release(&self, name: &str, proof: HandleHash) -> Result<(), String> {
        let claimant = self.engine.by_proof(proof).unwrap();
        match self.engine.apply(name.as_bytes(), &Release(claimant)) {
            Ok(Ok(_)) => Ok(()),
            other => Err(format!("{name} is not released: {other:?}")),
        }
    }

    fn wait_for(&mut self, name: &'static str) {
        let job = self.call(&["run", "-w", "inf", &self.typed(name), "true"]).spawn();
        wait_until("it waits", || !self.sight(name).unwrap().record.waiters.is_empty());
        self.waiters.push((name, job));
    }

    fn free_soon(&mut self, name: &'static str) {
        let at = self.held.iter().position(|(held, _)| *held == name).unwrap();
        let (_, handle) = self.held.remove(at);
        let (engine, before) = (self.engine.clone(), std::time::Instant::now());
        self.releasing = Some(std::thread::spawn(move || {
            let waits = || engine.inspect(name.as_bytes()).is_ok_and(|sight| !sight.record.waiters.is_empty());
            // If it never waits, it was killed before.
            while !waits() && before.elapsed() < std::time::Duration::from_millis(300) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            let claimant = engine.by_proof(handle.proof()).unwrap();
            match engine.apply(name.as_bytes(), &Release(claimant)) {
                Ok(Ok(_)) => Ok(()),
                other => Err(format!("{name} is not released: {other:?}")),
            }
        }));
    }

    /// Waits for the holder that frees a name soon.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        self.releasing.take().map_or(Ok(()), |releasing| releasing.join().unwrap())
    }

    #[track_caller]
    pub(crate) fn done(&self, words: &[&str]) {
        self.call(words).capture().exits(0);
    }

    /// `csalock` with these words, X and Y being names.
    pub(crate) fn call(&self, words: &[&str]) -> Call<'_> {
        let typed = words.iter().map(|word| match *word {
            "X" => self.typed("x"),
            "Y" => self.typed("y"),
            "HANDLE" => self.held[0].1.to_string(),
            word => word.to_string(),
        });
        let mut typed: Vec<String> = typed.collect();
        // A keeper without a channel polls when its renewal is due.
        let call = |typed: Vec<String>| {
            self.sandbox.csalock(typed).env("CSALOCK_LEASE", LEASE).env("CSALOCK_TRACE", self.trace())
        };
        if self.place != Place::Beside {
            return call(typed);
        }
        // The name does not select a store.
        if ["gc", "doctor", "status", "history", "lookup"].contains(&words[0]) {
            let store = self.sandbox.path("files/.csalock").display().to_string();
            typed.splice(1..1, ["--store".to_string(), store]);
        }
        call(typed).without("CSALOCK_STORE")
    }

    pub(crate) fn trace(&self) -> PathBuf {
        trace(&self.sandbox)
    }

    pub(crate) fn typed(&self, name: &str) -> String {
        if self.place == Place::Beside { format!("./{name}") } else { name.to_string() }
    }

    pub(crate) fn sight(&self, name: &str) -> lock::error::Result<LockStatus> {
        self.engine.inspect(name.as_bytes())
    }

    /// Drafts are swept when they are older than any draft in use.
    pub(crate) fn age_drafts(&self) {
        for place in [self.store_path(), self.store_path().join(".work")] {
            for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                let is_draft = [".new.", ".work.new.", ".clock.", ".dead"].iter().any(|draft| name.starts_with(draft));
                if is_draft {
                    let hour_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
                    std::fs::File::open(entry.path()).and_then(|file| file.set_modified(hour_ago)).unwrap();
                }
            }
        }
    }

    pub(crate) fn store_path(&self) -> PathBuf {
        self.sandbox.path(if self.place == Place::Beside { "files/.csalock" } else { "store" })
    }

    /// Returns the weight of the store: the number of files and directories by mode and size. Names differ in the
    /// parked record and the highest token, so they do not count.
    pub(crate) fn weight(&self) -> Vec<String> {
        if self.place == Place::Sqlite {
            let database = rusqlite::Connection::open(self.store_path()).unwrap();
            let ask = |question: &str| database.query_row(question, [], |row| row.get::<_, String>(0)).unwrap();
            let rows = ask("SELECT count(*) || ' rows' FROM (SELECT 1 FROM records_2 WHERE name <> x'')");
            let journal = self.sandbox.path("store-journal").exists();
            return vec![ask("PRAGMA integrity_check"), rows, format!("journal: {journal}")];
        }
        if self.place == Place::Etcd {
            return self.sandbox.stored();
        }
        let root = self.store_path().display().to_string();
        let kind = |line: String| {
            let of_history = line.starts_with(&format!("{root}/.work/history"));
            // The directory of what rests is as long as the name of what rests.
            let words: Vec<&str> = line.split(' ').skip(1).take(2).collect();
            match line.contains("/end.") {
                _ if of_history => None,
                true => Some("a tombstone".to_string()),
                false => Some(words.join(" ")),
            }
        };
        let mut lines: Vec<String> = self.sandbox.listing(self.store_path()).into_iter().filter_map(kind).collect();
        lines.sort();
        lines
    }
}

fn trace(sandbox: &Sandbox) -> PathBuf {
    sandbox.path(&TRACE[1..])
}

fn engine(sandbox: &Sandbox, place: Place) -> Engine {
    let host: Arc<dyn Host> = Arc::new(Unix::new());
    Engine::new(engine::trace::wrap(open(sandbox, place), &host, Some(trace(sandbox))), host)
}

pub(crate) fn open(sandbox: &Sandbox, place: Place) -> Box<dyn Store> {
    match place {
        Place::Beside => engine::stores::open(
            &Location::beside(&sandbox.path("files")),
            &engine::environment::variable,
            Arc::new(Unix::new()),
        )
        .unwrap(),
        _ => sandbox.open(),
    }
}

fn others() -> &'static Others {
    static OTHERS: OnceLock<Others> = OnceLock::new();
    OTHERS.get_or_init(|| {
        let idle = || {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", "sleep", "1000000"]);
            command.stdin(Stdio::null()).stdout(Stdio::null());
            spawn_for_all(command)
        };
        let process = |child: &Child| Unix::new().process(child.id() as i32).unwrap().unwrap();
        let (living, mut dead) = (idle(), idle());
        let others = Others { living: process(&living), dead: process(&dead) };
        kill(Pid::from_raw(others.dead.pid), Signal::SIGKILL).unwrap();
        dead.wait().unwrap();
        others
    })
}
