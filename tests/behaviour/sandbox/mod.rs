//! The place of a test: a directory of its own, a store, an environment without variables of csalock.

mod call;
mod job;
mod mount;
mod network;
mod plain;
pub(crate) mod proc;
mod screen;
pub(crate) mod still;

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::etcd::fair::is_within;
use crate::extent::{Extent, extent, turn};
use crate::programs::write_program;
use crate::{etcd, postgres, ssh};

use engine::Engine;
use host::Unix;
use lock::{Lifetime, Record};
use serde_json::Value;
use store::{Call as StoreCall, CommitResult, Store, WriteSet};

pub(crate) use crate::supervised::csalock;
pub(crate) use call::{Call, Done};
pub(crate) use harness::{has, has_namespaces, is_root, skip};
pub(crate) use job::Job;
pub(crate) use mount::Mount;
pub(crate) use network::{ALONE, Network};
pub(crate) use screen::{PROMPT, Screen};

/// The variable that moves the wall clock of csalock in builds for tests: a sign and a duration.
pub(crate) const CLOCK: &str = "CSALOCK_CLOCK";

/// The variable that moves the times of files and servers in the same way, as if the clock of the server had been set.
pub(crate) const FILE_TIMES: &str = "CSALOCK_FILE_TIMES";

/// The variable with the pid namespace that counts as the kernel's first one: the tests may run in a container.
pub(crate) const FIRST_PIDS: &str = "CSALOCK_FIRST_PIDS";

/// Returns the number of the pid namespace of the tests.
pub(crate) fn pid_namespace() -> String {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").unwrap().ino().to_string()
}

/// The zone of all calls, an hour east of UTC.
pub(crate) const ZONE: &str = "CET-1";

/// Returns the shells that scripts are tried in, as far as they are installed.
pub(crate) fn shells() -> impl Iterator<Item = &'static str> {
    installed(["dash", "bash", "zsh", "mksh", "busybox sh"])
}

/// Returns the commands whose programs are installed.
pub(crate) fn installed<const N: usize>(commands: [&str; N]) -> impl Iterator<Item = &str> {
    commands.into_iter().filter(|command| has(command.split(' ').next().unwrap_or_default()))
}

/// Maximum time that a test waits for a condition.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The beginning of the name of each sandbox, which has six characters.
pub(crate) const PREFIX: &str = "S";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Directory,
    Sqlite,
    /// A directory that other hosts are said to share.
    Shared,
    Etcd,
    Postgres,
    Ssh,
}

pub(crate) struct Sandbox {
    directory: tempfile::TempDir,
    kind: Kind,
    /// Returns the URL before and after the name of a store.
    around: (String, &'static str),
    jobs: AtomicU32,
}

impl Sandbox {
    /// Runs a test in a sandbox, if its kind of store is available.
    pub(crate) fn with(kind: Kind, test: impl FnOnce(&Sandbox)) {
        let is_there = match kind {
            Kind::Etcd => etcd::shared().is_some(),
            Kind::Postgres => postgres::shared().is_some(),
            Kind::Ssh => ssh::shared().is_some(),
            Kind::Directory | Kind::Sqlite | Kind::Shared => true,
        };
        let is_local = matches!(kind, Kind::Directory | Kind::Sqlite);
        if is_there && (is_local || can_leave_witnesses()) {
            test(&Sandbox::new(kind));
        }
    }

    /// With a store of this kind that does not exist yet.
    pub(crate) fn new(kind: Kind) -> Sandbox {
        let own = |scheme: &str, after| Sandbox::with_store(kind, |place| (format!("{scheme}:{place}/"), after));
        match kind {
            Kind::Directory => own("dir", ""),
            Kind::Shared => own("dir", "?shared=1"),
            Kind::Sqlite => own("sqlite", ""),
            Kind::Etcd => {
                let url = etcd::shared().unwrap().url(&format!("{}/", etcd::new_prefix().replace(' ', "-")));
                Sandbox::with_store(kind, |_| (url, ""))
            }
            Kind::Postgres => {
                Sandbox::in_database(&postgres::shared().unwrap().url(&format!("{}_", postgres::new_schema())))
            }
            Kind::Ssh => Sandbox::over_ssh(ssh::shared().unwrap()),
        }
    }

    /// With a store at this URL, which ends in the beginning of a schema.
    pub(crate) fn in_database(url: &str) -> Sandbox {
        Sandbox::with_store(Kind::Postgres, |_| (url.to_string(), ""))
    }

    /// With a store that this sshd serves.
    pub(crate) fn over_ssh(server: &ssh::Server) -> Sandbox {
        let sandbox = Sandbox::with_store(Kind::Ssh, |place| (server.url(&format!("{place}/")), ""));
        std::os::unix::fs::symlink(server.program(), sandbox.path("bin/ssh")).unwrap();
        sandbox
    }

    /// With a store in this cluster, which is the test's own.
    pub(crate) fn at(cluster: &etcd::Cluster) -> Sandbox {
        Sandbox::at_servers(&cluster.endpoints())
    }

    /// With a store at these servers, or what passes for such.
    pub(crate) fn at_servers(endpoints: &[String]) -> Sandbox {
        Sandbox::with_store(Kind::Etcd, |_| (format!("etcd://{}/", endpoints.join(",")), ""))
    }

    fn with_store(kind: Kind, around: impl FnOnce(&str) -> (String, &'static str)) -> Sandbox {
        // Short, because screens and tables have a width.
        let directory = tempfile::Builder::new().prefix(PREFIX).rand_bytes(5).tempdir().unwrap();
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let around = around(&directory.path().display().to_string());
        let sandbox = Sandbox { directory, kind, around, jobs: AtomicU32::new(0) };
        for made in ["bin", "home", "state", "files"] {
            std::fs::create_dir(sandbox.path(made)).unwrap();
        }
        std::os::unix::fs::symlink(csalock(), sandbox.path("bin/csalock")).unwrap();
        sandbox
    }

    pub(crate) fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(below)
    }

    /// A store of this sandbox's kind at another place.
    pub(crate) fn store_at(&self, place: impl AsRef<Path>) -> String {
        let (before, after) = &self.around;
        if self.kind == Kind::Postgres {
            let is_plain = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit();
            let schema = place.as_ref().display().to_string().replace(|char| !is_plain(char), "_");
            return format!("{before}{schema}");
        }
        format!("{before}{}{after}", place.as_ref().display())
    }

    pub(crate) fn store(&self) -> String {
        self.store_at("store")
    }

    /// Returns the path of the store, if it is a file.
    pub(crate) fn store_path(&self) -> PathBuf {
        assert!(self.is_of_files(), "servers have no path");
        self.path("store")
    }

    /// As messages name the store.
    pub(crate) fn store_place(&self) -> String {
        if self.is_of_files() { self.store_path().display().to_string() } else { self.store() }
    }

    /// Whether any file of the store exists.
    pub(crate) fn store_exists(&self) -> bool {
        match self.kind {
            Kind::Etcd => {
                let prefix = self.store();
                let prefix = prefix.splitn(4, '/').last().unwrap();
                let keys = etcd::shared().unwrap().ctl(&["get", "--prefix", "--keys-only", prefix]);
                // That something came to be there, and went, is all that these tell.
                keys.lines().any(|key| !key.is_empty() && !key.contains("/births/"))
            }
            Kind::Postgres => {
                let store = self.store();
                let schema = store.rsplit('=').next().unwrap();
                let count = |table: &str| format!("(SELECT count(*) FROM {schema}.{table})");
                let rows = format!("SELECT {} + {} + {}", count("records"), count("leases"), count("history"));
                let output = postgres::shared().unwrap().try_sql(&rows);
                !matches!(&output.stdout[..], b"" | b"0\n")
            }
            _ => self.path("store").exists(),
        }
    }

    /// Returns the paths of its history and of the older generation.
    pub(crate) fn history_paths(&self) -> [PathBuf; 2] {
        let below = if self.is_directory() { "store/.work/history" } else { "store-history" };
        [self.path(below), self.path(format!("{below}.1"))]
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn is_directory(&self) -> bool {
        matches!(self.kind, Kind::Directory | Kind::Shared)
    }

    pub(crate) fn is_of_files(&self) -> bool {
        !matches!(self.kind, Kind::Etcd | Kind::Postgres | Kind::Ssh)
    }

    /// Whether other hosts may share the store, as far as it knows.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.kind, Kind::Shared | Kind::Etcd | Kind::Postgres | Kind::Ssh)
    }

    /// A lease, as an option's argument, that is over as soon as can be waited for. etcd counts in seconds.
    pub(crate) fn lease(&self, of_files: &'static str) -> &'static str {
        if self.is_of_files() { of_files } else { "1s" }
    }

    /// Returns the number of repetitions in a test: a tenth where each takes replies of a server, and a fraction of
    /// hundreds in a quick run.
    pub(crate) fn many(&self, of_files: usize) -> usize {
        let of_this = if self.is_of_files() { of_files } else { of_files.div_ceil(10) };
        match of_this {
            1_000.. if extent() == Extent::Quick => of_this.div_ceil(10),
            100.. if extent() == Extent::Quick => of_this.div_ceil(3),
            _ => of_this,
        }
    }

    /// Everything that is stored, so that it can be seen whether anything changed; but no history.
    pub(crate) fn stored(&self) -> Vec<String> {
        if !self.is_shared() {
            return self.listing("store");
        }
        let mut lines = Vec::new();
        let mut add = |place: &str, stored: store::Versioned| {
            lines.push(format!("{place} {:?} {}", stored.version, String::from_utf8_lossy(&stored.body)));
        };
        self.open().scan(StoreCall::default(), &mut |place, stored| stored.map(|stored| add(place, stored))).unwrap();
        lines.sort();
        lines
    }

    /// Waits until the death of the owner of a lock is visible and recorded.
    pub(crate) fn await_abandoned(&self, name: &str) {
        wait_until("it is not held any more", || self.state(name) != "held");
        if self.is_shared() {
            let is_said = |record: Record| record.holders.iter().all(|grant| grant.lifetime == Lifetime::OwnerDied);
            wait_until("it is said that its owner died", || self.record(name).is_none_or(is_said));
        }
    }

    pub(crate) fn record(&self, name: &str) -> Option<Record> {
        let found = self.open().read(StoreCall::default(), name.as_bytes()).unwrap()?;
        Some(lock::decode(&found.body, found.version.number).unwrap())
    }

    /// Writes a file and says where it is.
    pub(crate) fn file(&self, below: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(below);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Writes a program and says where it is.
    pub(crate) fn program(&self, below: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(below);
        write_program(&path, content.as_ref());
        path
    }

    pub(crate) fn read(&self, below: &str) -> String {
        std::fs::read_to_string(self.path(below)).unwrap_or_default()
    }

    /// `csalock` with these arguments.
    pub(crate) fn csalock<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Call<'_> {
        self.call(Path::new("csalock"), arguments)
    }

    /// `csalock` with these arguments, run by other words: in another place.
    pub(crate) fn csalock_by(&self, words: &[String], arguments: &[&str]) -> Call<'_> {
        let all: Vec<&str> =
            words.iter().map(String::as_str).chain(["csalock"]).chain(arguments.iter().copied()).collect();
        self.call(all[0], &all[1..])
    }

    /// A script in this shell. `$0` is the shell's name.
    pub(crate) fn script(&self, shell: &str, text: &str) -> Call<'_> {
        let words: Vec<&str> = shell.split(' ').chain(["-c", text]).collect();
        self.call(Path::new(words[0]), &words[1..])
    }

    pub(crate) fn call<S: AsRef<OsStr>>(
        &self,
        program: impl AsRef<Path>,
        arguments: impl IntoIterator<Item = S>,
    ) -> Call<'_> {
        let mut command = Command::new(self.found(program.as_ref()));
        if program.as_ref() != "csalock" {
            command.arg0(program.as_ref());
        }
        command.args(arguments).env_clear().current_dir(self.path("files"));
        command.env("PATH", self.search_path()).env("LC_ALL", "C").env("TZ", ZONE).env("CSALOCK_STORE", self.store());
        command.env("HOME", self.path("home")).env("XDG_STATE_HOME", self.path("state"));
        command.envs(crate::supervised::mark()).env(FIRST_PIDS, pid_namespace());
        Call::new(self, command)
    }

    pub(crate) fn search_path(&self) -> String {
        format!("{}:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", self.path("bin").display())
    }

    /// Returns the path of a program. With a name and a new PATH, the standard library would fork, which costs more.
    fn found(&self, program: &Path) -> PathBuf {
        match program.to_str() {
            Some("csalock") => self.path("bin/csalock"),
            Some(name) if !name.contains('/') => {
                let search_path = self.search_path();
                let mut candidates = search_path.split(':').map(|directory| Path::new(directory).join(name));
                candidates.find(|path| path.is_file()).unwrap_or_else(|| program.to_path_buf())
            }
            _ => program.to_path_buf(),
        }
    }

    /// A holder of the lock until its stdin ends.
    pub(crate) fn holder(&self, name: &str) -> Job {
        let job = self.csalock(["run", "-w", "inf", name, "cat"]).spawn();
        wait_until("the holder holds", || self.sight(name)["holders"][0]["command"] == "cat");
        job
    }

    /// Leaves a lock of `run` whose csalock was killed, and the command, too.
    pub(crate) fn abandon(&self, name: &str, options: &[&str]) {
        let words = [&["run"], options, &[name, "sh", "-c", "echo $$; exec cat"]].concat();
        let mut job = self.csalock(words).spawn();
        let command = job.lines(1)[0].parse().unwrap();
        job.kill();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(command), nix::sys::signal::Signal::SIGKILL).unwrap();
        wait_until("the command has ended", || !proc::lives(command));
    }

    /// A waiter for the lock that then runs the script.
    pub(crate) fn waiter(&self, name: &str, script: &str) -> Job {
        let before = self.waiting(name);
        let job = self.csalock(["run", "-w", "inf", name, "dash", "-c", script]).spawn();
        wait_until("the waiter waits", || self.waiting(name) == before + 1);
        job
    }

    /// Returns the JSON status of one lock.
    pub(crate) fn sight(&self, name: impl AsRef<OsStr>) -> Value {
        let arguments = [OsStr::new("status"), OsStr::new("--json"), name.as_ref()];
        let done = self.csalock(arguments).capture();
        assert!(matches!(done.code, Some(0 | 81)), "{done:?}");
        serde_json::from_str::<Value>(&done.stdout).unwrap()[0].clone()
    }

    pub(crate) fn state(&self, name: &str) -> String {
        self.sight(name)["state"].as_str().unwrap().to_string()
    }

    pub(crate) fn holders(&self, name: &str) -> Vec<i32> {
        pids(&self.sight(name)["holders"])
    }

    pub(crate) fn waiters(&self, name: &str) -> Vec<i32> {
        pids(&self.sight(name)["waiters"])
    }

    /// How many wait, as the library sees it: in crowds that is cheaper.
    pub(crate) fn waiting(&self, name: &str) -> usize {
        let engine = Engine::new(self.open(), Arc::new(Unix::new()));
        engine.inspect(name.as_bytes()).unwrap().record.waiters.len()
    }

    /// Whether no auxiliary object is left, and no record except those of live holders.
    pub(crate) fn is_tidy(&self) -> bool {
        self.csalock(["gc"]).capture();
        self.internal() == 0 && self.csalock(["status", "-1"]).capture().stdout.is_empty()
    }

    /// Returns the number of pages, notes, commit records and values.
    pub(crate) fn internal(&self) -> usize {
        let mut internal = 0;
        let mut count = |stored: store::Versioned| internal += usize::from(lock::is_auxiliary(&stored.body));
        self.open().scan(StoreCall::default(), &mut |_, stored| stored.map(&mut count)).unwrap();
        internal
    }

    /// Everything under a place: path, kind, mode, size, content, and the time of its last change.
    pub(crate) fn listing(&self, below: impl AsRef<Path>) -> Vec<String> {
        let mut lines = Vec::new();
        list(&self.path(below), &mut lines);
        lines.sort();
        lines
    }

    pub(crate) fn open(&self) -> Box<dyn Store> {
        let location = engine::location(self.store().as_ref(), Path::new("/")).unwrap();
        let variable = |name: &str| match (name, self.kind) {
            ("CSALOCK_SSH", Kind::Ssh) => Some(self.path("bin/ssh").into()),
            _ => engine::environment::variable(name),
        };
        engine::stores::open(&location, &variable, Arc::new(Unix::new())).unwrap()
    }

    /// Changes a record without csalock.
    pub(crate) fn edit(&self, name: &str, change: impl Fn(&mut Record)) {
        self.edit_in(name, |_, record| change(record));
    }

    /// Changes a record, with access to the leases of its store.
    pub(crate) fn edit_in(&self, name: &str, change: impl Fn(&dyn Store, &mut Record)) {
        let store = self.open();
        let found = store.read(StoreCall::default(), name.as_bytes()).unwrap().unwrap();
        let mut record = lock::decode(&found.body, found.version.number).unwrap();
        change(&*store, &mut record);
        let body = lock::encode(&record);
        assert!(matches!(
            store.commit(StoreCall::default(), &WriteSet::of(name.as_bytes(), Some(&found.version), Some(&body))),
            Ok(CommitResult::Done(_))
        ));
    }

    /// Puts bytes in a record's place.
    pub(crate) fn overwrite(&self, name: &str, body: &[u8]) {
        let store = self.open();
        let found = store.read(StoreCall::default(), name.as_bytes()).unwrap().map(|found| found.version);
        assert!(matches!(
            store.commit(StoreCall::default(), &WriteSet::of(name.as_bytes(), found.as_ref(), Some(body))),
            Ok(CommitResult::Done(_))
        ));
    }

    /// Text as [`Call::stdout`] has it.
    pub(crate) fn plain(&self, text: &str) -> String {
        plain::plain(text, self)
    }

    fn next_job(&self) -> u32 {
        self.jobs.fetch_add(1, Ordering::Relaxed) + 1
    }
}

fn pids(parties: &Value) -> Vec<i32> {
    parties.as_array().unwrap().iter().map(|party| party["pid"].as_i64().unwrap_or(0) as i32).collect()
}

fn list(path: &Path, lines: &mut Vec<String>) {
    use std::os::unix::fs::MetadataExt;
    let Ok(found) = std::fs::symlink_metadata(path) else { return };
    let content = if found.is_file() { std::fs::read(path).unwrap_or_default() } else { Vec::new() };
    let content = String::from_utf8_lossy(&content).into_owned();
    let changed = (found.mtime(), found.mtime_nsec());
    lines.push(format!("{} {:o} {} {changed:?} {content:?}", path.display(), found.mode(), found.len()));
    if found.is_dir() {
        std::fs::read_dir(path).unwrap().for_each(|entry| list(&entry.unwrap().path(), lines));
    }
}

/// Returns true if a process can leave a witness of its life, by which others know on a shared store that it is dead.
fn can_leave_witnesses() -> bool {
    let is_writable = nix::unistd::access("/dev/shm", nix::unistd::AccessFlags::W_OK).is_ok();
    if !is_writable {
        skip("shared stores", "/dev/shm is missing, or this user cannot write in it");
    }
    is_writable
}

/// Waits for something that must come true. Never for a time.
pub(crate) fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    wait_until_or_show(what, is_so, String::new);
}

/// Waits until something is so. The panic of a test that waits in vain shows the evidence.
pub(crate) fn wait_until_or_show(what: &str, mut is_so: impl FnMut() -> bool, evidence: impl Fn() -> String) {
    let begun = Instant::now();
    while !is_so() {
        assert!(is_within(begun, PATIENCE), "waited in vain until {what}: {}", evidence());
        // A longer wait polls less often: most polls start a process, and other tests run meanwhile.
        std::thread::sleep((begun.elapsed() / 20).clamp(Duration::from_millis(2), Duration::from_millis(50)));
    }
}

/// The steps, from the first on, at which a command is killed: one in three, and each of them where there is time, as
/// in `syscalls.rs`.
pub(crate) fn steps() -> impl Iterator<Item = usize> {
    let (first, every) = if extent() > Extent::Quick { (1, 1) } else { (1 + turn() % 3, 3) };
    (first..).step_by(every)
}
