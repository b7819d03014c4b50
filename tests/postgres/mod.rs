//! PostgreSQL as tests need it: real servers on free ports of the loopback, alone or behind pgbouncer in transaction
//! mode, killed, stopped and promoted. Their data are removed, however the tests end.
//!
//! Where PostgreSQL is not installed the tests that need it are skipped; with `CI=true` they fail.

#![allow(dead_code, reason = "each of the test programs that include this uses a part of it")]

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::etcd::fair::is_within;
use crate::etcd::{Place, free_port};
use crate::supervised::{in_memory, spawn_for_all};

/// The user of the servers if root runs the tests: they refuse root.
const NOBODY: u32 = 65534;

/// Time after which a server that does not answer never will.
const PATIENCE: Duration = Duration::from_secs(90);

/// A running server.
pub(crate) struct Server {
    address: String,
    port: u16,
    /// The words that run a program on its host.
    enter: Vec<String>,
    arguments: Vec<String>,
    child: Mutex<Option<Child>>,
    place: TempDir,
}

/// A pooler before a server.
pub(crate) struct Bouncer {
    port: u16,
    child: Mutex<Child>,
    _place: TempDir,
}

/// The directory of the programs of another version of PostgreSQL, to try it by hand.
const PROGRAMS: &str = "CSALOCK_TEST_POSTGRES";

/// Returns the directory of the server's programs, if they are installed with all that tests use beside them.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let installed = versions.map(|version| version.path().join("bin")).find(|bin| bin.join("initdb").exists());
    let chosen = std::env::var_os(PROGRAMS).map(PathBuf::from);
    let needed = ["psql", "pgbouncer", "openssl", "setpriv", "initdb"];
    let needed = if chosen.is_some() { &needed[..4] } else { &needed };
    if !harness::has_all(needed) {
        return None;
    }
    Some(chosen.or(installed).expect("initdb is installed"))
}

/// One server for all tests of this process. Each test that lacks it notes that for itself.
pub(crate) fn shared() -> Option<&'static Server> {
    static SHARED: OnceLock<Option<Server>> = OnceLock::new();
    programs()?;
    SHARED.get_or_init(|| Server::start(&[])).as_ref()
}

/// The pooler of the shared server.
pub(crate) fn shared_bouncer() -> Option<&'static Bouncer> {
    static SHARED: OnceLock<Option<Bouncer>> = OnceLock::new();
    let server = shared()?;
    SHARED.get_or_init(|| Some(Bouncer::start(server))).as_ref()
}

pub(crate) fn new_schema() -> String {
    static SCHEMAS: AtomicU32 = AtomicU32::new(0);
    format!("t{}", SCHEMAS.fetch_add(1, Ordering::Relaxed))
}

/// Returns a directory that the servers' user owns.
fn place() -> TempDir {
    let place = in_memory();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    if nix::unistd::geteuid().is_root() {
        chown(place.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    place
}

/// Returns a directory with the data of a new server; `None`: PostgreSQL is not installed. A copy takes a tenth of the
/// time of initdb(1).
fn new_data() -> Option<TempDir> {
    static FIRST: OnceLock<TempDir> = OnceLock::new();
    let bin = programs()?;
    let first = FIRST.get_or_init(|| {
        let place = place();
        let mut initdb = program(&bin.join("initdb"), place.path(), "KILL");
        initdb.args(["-A", "trust", "-U", "test", "-N", "-D"]).arg(place.path().join("data"));
        assert!(initdb.status().unwrap().success());
        place
    });
    let place = place();
    let copied = Command::new("cp").arg("-a").arg(first.path().join("data")).arg(place.path()).status();
    assert!(copied.unwrap().success());
    Some(place)
}

/// Returns a program that runs as the servers' user, and ends with the thread that starts it.
fn program(path: &Path, place: &Path, pdeathsig: &str) -> Command {
    program_on(&[], path, place, pdeathsig)
}

/// The same on a host, by the words that run a program there.
fn program_on(enter: &[String], path: &Path, place: &Path, pdeathsig: &str) -> Command {
    let mut words = enter.iter().map(String::as_str).chain(["setpriv"]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words);
    if nix::unistd::geteuid().is_root() {
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    }
    command.args(["--pdeathsig", pdeathsig]).arg(path).env_clear().env("LC_ALL", "C").current_dir(place);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

impl Server {
    /// Starts one with these settings, and waits until it answers. `None`: PostgreSQL is not installed.
    pub(crate) fn start(settings: &[&str]) -> Option<Server> {
        Server::start_with(settings, "")
    }

    /// Starts one on another host, which all hosts may use.
    pub(crate) fn start_at(on: Place, settings: &[&str]) -> Option<Server> {
        let place = new_data()?;
        let all = "local all all trust\nlocal replication all trust\nhost all all 0.0.0.0/0 trust\n";
        fs::write(place.path().join("data/pg_hba.conf"), all).unwrap();
        Some(Server::run_at(place, on, settings))
    }

    /// Starts one with TLS that uses these lines of pg_hba.conf for all users except `test`; none: it trusts all.
    pub(crate) fn start_with(settings: &[&str], hba: &str) -> Option<Server> {
        let place = new_data()?;
        if hba.is_empty() {
            return Some(Server::run(place, settings));
        }
        crate::etcd::make_certificates(place.path());
        let (key, certificate) = (place.path().join("server.key"), place.path().join("server.pem"));
        if nix::unistd::geteuid().is_root() {
            chown(&key, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let all = format!("local all test trust\nhost all test all trust\n{hba}");
        fs::write(place.path().join("data/pg_hba.conf"), all).unwrap();
        let tls = [
            "ssl=on".into(),
            format!("ssl_key_file={}", key.display()),
            format!("ssl_cert_file={}", certificate.display()),
        ];
        Some(Server::run(place, &settings.iter().copied().chain(tls.iter().map(String::as_str)).collect::<Vec<_>>()))
    }

    /// Starts a standby of this server, which follows it by this name.
    pub(crate) fn standby(&self, name: &str) -> Server {
        let place = place();
        let mut backup = program(&programs().unwrap().join("pg_basebackup"), place.path(), "KILL");
        // The socket is a file, so it is there in every network namespace.
        let primary =
            format!("host={} port={} user=test application_name={name}", self.place.path().display(), self.port);
        backup.args(["-d", &primary, "-R", "-X", "stream", "-c", "fast", "-D"]).arg(place.path().join("data"));
        assert!(backup.status().unwrap().success());
        Server::run(place, &[])
    }

    fn run(place: TempDir, settings: &[&str]) -> Server {
        Server::run_at(place, Place { address: "127.0.0.1".into(), enter: Vec::new() }, settings)
    }

    fn run_at(place: TempDir, on: Place, settings: &[&str]) -> Server {
        let Place { address, enter } = on;
        let port = free_port();
        let mut arguments = vec![format!("port={port}"), format!("listen_addresses={address}"), "fsync=off".into()];
        arguments.push(format!("unix_socket_directories={}", place.path().display()));
        arguments.extend(["max_connections=300".into(), "autovacuum=off".into()]);
        arguments.extend(settings.iter().map(|setting| setting.to_string()));
        let server = Server { address, port, enter, arguments, child: Mutex::default(), place };
        server.restart();
        server
    }

    /// Starts it again after it was killed.
    pub(crate) fn restart(&self) {
        let path = programs().unwrap().join("postgres");
        let mut command = program_on(&self.enter, &path, self.place.path(), "INT");
        command.arg("-D").arg(self.place.path().join("data"));
        command.args(self.arguments.iter().flat_map(|argument| ["-c", argument]));
        let log = fs::File::options().create(true).append(true).open(self.place.path().join("log")).unwrap();
        *self.child.lock().unwrap() = Some(spawn_for_all({
            command.stderr(log);
            command
        }));
        let begun = Instant::now();
        while !self.try_sql("SELECT 1").status.success() {
            assert!(is_within(begun, PATIENCE), "PostgreSQL does not come up: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.place.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The directory of the server.
    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.place.path().join(below)
    }

    pub(crate) fn url(&self, schema: &str) -> String {
        url(&self.address, self.port, schema)
    }

    pub(crate) fn psql(&self) -> Command {
        let mut psql = Command::new("psql");
        // The socket is a file, so it is there in every network namespace.
        psql.args(["-X", "-q", "-A", "-t", "-h"]).arg(self.place.path());
        psql.args(["-p", &self.port.to_string(), "-U", "test", "-v", "ON_ERROR_STOP=1", "-d", "postgres"]);
        psql
    }

    pub(crate) fn try_sql(&self, sql: &str) -> std::process::Output {
        self.psql().args(["-c", sql]).stdin(Stdio::null()).output().unwrap()
    }

    pub(crate) fn sql(&self, sql: &str) -> String {
        let output = self.try_sql(sql);
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_string()
    }

    /// Ends it at once, as a crash would.
    /// A session that has locked this table, which exists, until its stdin ends.
    pub(crate) fn lock_table(&self, table: &str, mode: &str) -> Child {
        let mut session = self.psql().stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let lock = format!("BEGIN; LOCK TABLE {table} IN {mode} MODE;\n");
        session.stdin.as_mut().unwrap().write_all(lock.as_bytes()).unwrap();
        let is_locked = format!("SELECT count(*) FROM pg_locks WHERE relation = '{table}'::regclass AND granted");
        let begun = Instant::now();
        while self.sql(&is_locked) == "0" {
            assert!(begun.elapsed() < PATIENCE, "{table} is not locked");
            std::thread::sleep(Duration::from_millis(10));
        }
        session
    }

    /// Ends a session.
    pub(crate) fn end(mut session: Child) {
        drop(session.stdin.take());
        session.wait().unwrap();
    }

    pub(crate) fn kill(&self) {
        if let Some(mut child) = self.child.lock().unwrap().take() {
            let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGQUIT);
            let _ = child.wait();
        }
    }

    /// Lets its standby take its place and address after a crash.
    pub(crate) fn fail_over(&self, standby: &Server) {
        self.kill();
        standby.kill();
        let [data, other] = [self, standby].map(|server| server.place.path().join("data"));
        fs::remove_dir_all(&data).unwrap();
        fs::rename(other, data).unwrap();
        self.restart();
        // The end of the recovery may cancel a query that runs on the standby.
        let begun = Instant::now();
        while !self.try_sql("SELECT pg_promote()").status.success()
            && self.try_sql("SELECT pg_is_in_recovery()").stdout != b"f\n"
        {
            assert!(begun.elapsed() < PATIENCE, "the standby is not promoted");
        }
    }

    /// Lets all of its processes stand still, or go on.
    pub(crate) fn stop(&self, stands: bool) {
        let signal = if stands { Signal::SIGSTOP } else { Signal::SIGCONT };
        let pid = self.child.lock().unwrap().as_ref().unwrap().id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        // The main process first, so that it starts no further ones.
        for pid in [pid.to_string()].iter().map(String::as_str).chain(children.split_whitespace()) {
            let _ = kill(Pid::from_raw(pid.parse().unwrap()), signal);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn url(address: &str, port: u16, schema: &str) -> String {
    format!("postgres://test@{address}:{port}/postgres?schema={schema}")
}

impl Bouncer {
    /// Starts one in transaction mode, with few connections to the server.
    pub(crate) fn start(server: &Server) -> Bouncer {
        let (place, port) = (place(), free_port());
        let users = place.path().join("users");
        fs::write(&users, "\"test\" \"\"\n").unwrap();
        let config = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = transaction\ndefault_pool_size = 3\n\
             max_client_conn = 500\nlog_connections = 0\nlog_disconnections = 0\n",
            server.port,
            users.display(),
        );
        let file = place.path().join("pgbouncer.ini");
        fs::write(&file, config).unwrap();
        let mut command = program(Path::new("/usr/sbin/pgbouncer"), place.path(), "KILL");
        command.arg("-q").arg(&file).stderr(Stdio::null());
        let bouncer = Bouncer { port, child: spawn_for_all(command).into(), _place: place };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(is_within(begun, PATIENCE), "pgbouncer does not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
        bouncer
    }

    /// The URL of a store behind it.
    pub(crate) fn url(&self, schema: &str) -> String {
        url("127.0.0.1", self.port, schema)
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        let _ = self.child.lock().unwrap().kill();
        let _ = self.child.lock().unwrap().wait();
    }
}
