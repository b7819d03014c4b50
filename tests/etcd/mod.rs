//! etcd as tests need it: real servers on free ports of the loopback, alone or three of them, with TLS, with users,
//! killed and stopped. The supervisor of the tests ends them and removes their data, however the tests end.
//!
//! Where etcd is not installed the tests that need it are skipped; with `CI=true` they fail.

#![allow(dead_code, reason = "each of the test programs that include this uses a part of it")]

pub(crate) mod between;
#[path = "../fair/mod.rs"]
pub(crate) mod fair;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use self::fair::is_within;
use crate::supervised::{in_memory, spawn_for_all};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};
use tempfile::TempDir;

/// Time after which a server that does not answer never will.
const PATIENCE: Duration = Duration::from_secs(90);

/// Number of attempts to start a cluster.
const STARTS: usize = 5;

/// Number of bytes of a log that a failure shows.
const LOG: usize = 2000;

/// The properties of a cluster.
#[derive(Debug, Clone, Default)]
pub(crate) struct Setup {
    /// How many members: 0 is 1.
    pub(crate) members: usize,
    pub(crate) tls: bool,
    /// Whether it wants a certificate from its clients.
    pub(crate) client_certificates: bool,
    /// The password of `root`, if users have to log in.
    pub(crate) root: Option<&'static str>,
    /// Further arguments of each of them.
    pub(crate) arguments: Vec<&'static str>,
    /// The host of each member; the others are on the loopback of this one.
    pub(crate) places: Vec<Place>,
    /// The words that run etcdctl where it reaches all of them.
    pub(crate) reach: Vec<String>,
}

/// The place of a server.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) address: String,
    /// The words that run a program there.
    pub(crate) enter: Vec<String>,
}

pub(crate) struct Cluster {
    setup: Setup,
    members: Vec<Member>,
    place: TempDir,
}

struct Member {
    name: String,
    client: String,
    peer: String,
    child: Mutex<Option<Child>>,
}

impl Member {
    fn has_ended(&self) -> bool {
        self.child.lock().unwrap().as_mut().is_some_and(|child| child.try_wait().unwrap().is_some())
    }
}

/// Whether etcd is installed, and what its clusters need.
pub(crate) fn is_installed() -> bool {
    harness::has_all(&["etcd", "etcdctl", "openssl"])
}

/// One server for all tests of this process. Each test that lacks it notes that for itself.
pub(crate) fn shared() -> Option<&'static Cluster> {
    static SHARED: OnceLock<Option<Cluster>> = OnceLock::new();
    if !is_installed() {
        return None;
    }
    SHARED.get_or_init(|| Cluster::start(Setup::default())).as_ref()
}

pub(crate) fn new_prefix() -> String {
    static PREFIXES: AtomicU32 = AtomicU32::new(0);
    format!("test {}", PREFIXES.fetch_add(1, Ordering::Relaxed))
}

/// Returns a port that is free, and reserves it for as long as this process lives: a server that a test kills and starts
/// again must find its port free, however many sockets the other tests open meanwhile. The reservation is a socket that is
/// bound but does not listen. The kernel does not give its port to a socket that asks for any port, but gives it to a
/// server that asks for this port with `SO_REUSEADDR` (socket(7)), as all servers here do.
pub(crate) fn free_port() -> u16 {
    static RESERVED: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());
    let reserved = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    set_socket_reuseaddr(&reserved, true).unwrap();
    bind(&reserved, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = SocketAddr::try_from(getsockname(&reserved).unwrap()).unwrap().port();
    RESERVED.lock().unwrap().push(reserved);
    port
}

impl Cluster {
    /// Starts one, and waits until it can be written to. `None`: etcd is not installed.
    pub(crate) fn start(setup: Setup) -> Option<Cluster> {
        if !is_installed() {
            return None;
        }
        // Another process may take a port between its choice and its use; the member then ends.
        let is_used = |log: &String| log.contains("address already in use");
        let start = |_| Cluster::try_start(setup.clone());
        let started = (1..STARTS).map(start).find(|started| !started.as_ref().is_err_and(is_used));
        let cluster = started.unwrap_or_else(|| start(STARTS)).unwrap_or_else(|log| panic!("etcd ended: {log}"));
        if let Some(password) = cluster.setup.root {
            for words in [&["user", "add", &format!("root:{password}")][..], &["user", "grant-role", "root", "root"]] {
                cluster.ctl_as(None, words);
            }
            cluster.ctl_as(None, &["auth", "enable"]);
        }
        Some(cluster)
    }

    /// Starts one on ports that are free now. Returns the ends of the logs if a member ended.
    fn try_start(setup: Setup) -> Result<Cluster, String> {
        let place = in_memory();
        if setup.tls {
            make_certificates(place.path());
        }
        let member = |number: usize| {
            let address = setup.places.get(number).map_or("127.0.0.1", |place| &place.address);
            Member {
                name: format!("m{number}"),
                client: format!("{address}:{}", free_port()),
                peer: format!("{address}:{}", free_port()),
                child: Mutex::default(),
            }
        };
        let members = (0..setup.members.max(1)).map(member).collect();
        let cluster = Cluster { setup, members, place };
        (0..cluster.members.len()).for_each(|number| cluster.run(number, "new"));
        match cluster.is_healthy_unless(|| cluster.members.iter().any(Member::has_ended)) {
            true => Ok(cluster),
            false => Err(cluster.logs()),
        }
    }

    fn logs(&self) -> String {
        let end = |member: &Member| {
            let log = std::fs::read(self.path(&format!("{}.log", member.name))).unwrap_or_default();
            let end = String::from_utf8_lossy(&log[log.len().saturating_sub(LOG)..]).into_owned();
            format!("\n{}: {end}", member.name)
        };
        self.members.iter().map(end).collect()
    }

    fn scheme(&self) -> &'static str {
        if self.setup.tls { "https" } else { "http" }
    }

    fn run(&self, number: usize, state: &str) {
        let member = &self.members[number];
        let client = format!("{}://{}", self.scheme(), member.client);
        let peer = format!("http://{}", member.peer);
        let all: Vec<String> =
            self.members.iter().map(|other| format!("{}=http://{}", other.name, other.peer)).collect();
        // It dies with the thread that started it, so that thread must not end before this process does.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        command.args(self.setup.places.get(number).iter().flat_map(|place| &place.enter));
        // A server that got no time for seconds on a crowded machine would say something about that machine only.
        if nix::unistd::geteuid().is_root() {
            command.args(["nice", "-n", "-10"]);
        }
        command.args(["etcd", "--name", &member.name, "--log-level", "error"]);
        command.arg("--data-dir").arg(self.path(&member.name));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &all.join(","), "--initial-cluster-state", state]);
        command.args(["--heartbeat-interval", "20", "--election-timeout", "200"]);
        if self.setup.tls {
            command.arg("--cert-file").arg(self.path("server.pem")).arg("--key-file").arg(self.path("server.key"));
        }
        if self.setup.client_certificates {
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(self.path("ca.pem"));
        }
        command.args(&self.setup.arguments);
        let log = std::fs::File::options().create(true).append(true).open(self.path(&format!("{}.log", member.name)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.unwrap());
        *member.child.lock().unwrap() = Some(spawn_for_all(command));
    }

    pub(crate) fn await_health(&self) {
        assert!(self.is_healthy_unless(|| false));
    }

    /// Waits until it can be written to and returns true, or until it is hopeless and returns false.
    fn is_healthy_unless(&self, is_hopeless: impl Fn() -> bool) -> bool {
        let start = Instant::now();
        while !is_hopeless() {
            let output = self.try_ctl(None, &["endpoint", "health"]);
            let answer = String::from_utf8_lossy(&output.stderr);
            if output.status.success() || answer.contains("is healthy") {
                return true;
            }
            assert!(is_within(start, PATIENCE), "etcd does not come up: {answer}{}", self.logs());
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| member.client.clone()).collect()
    }

    pub(crate) fn url(&self, prefix: &str) -> String {
        self.url_at(&self.endpoints(), prefix)
    }

    /// Opens it with other servers.
    pub(crate) fn url_at(&self, endpoints: &[String], prefix: &str) -> String {
        format!("{}://{}/{prefix}", if self.setup.tls { "etcds" } else { "etcd" }, endpoints.join(","))
    }

    /// A file of its own: `ca.pem`, `server.pem`, `client.pem`, `client.key`.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    pub(crate) fn ctl(&self, words: &[&str]) -> String {
        self.ctl_as(self.setup.root.map(|password| ("root", password)), words)
    }

    fn ctl_as(&self, user: Option<(&str, &str)>, words: &[&str]) -> String {
        let output = self.try_ctl(user, words);
        assert!(output.status.success(), "etcdctl {words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub(crate) fn post(&self, path: &str, question: &serde_json::Value) -> serde_json::Value {
        let (server, body) = (&self.members[0].client, question.to_string());
        let head = format!("POST {path} HTTP/1.0\r\nHost: {server}\r\nContent-Length: {}", body.len());
        let mut stream = TcpStream::connect(server).unwrap();
        write!(stream, "{head}\r\n\r\n{body}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1)
            .unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    fn try_ctl(&self, user: Option<(&str, &str)>, words: &[&str]) -> Output {
        let program: Vec<_> = self.setup.reach.iter().map(String::as_str).chain(["etcdctl"]).collect();
        let mut command = Command::new(program[0]);
        command.args(&program[1..]);
        let endpoints: Vec<_> =
            self.members.iter().map(|member| format!("{}://{}", self.scheme(), member.client)).collect();
        command.env("ETCDCTL_API", "3").arg("--endpoints").arg(endpoints.join(","));
        command.args(["--dial-timeout", "1s", "--command-timeout", "3s"]);
        if self.setup.tls {
            command.arg("--cacert").arg(self.path("ca.pem"));
            command.arg("--cert").arg(self.path("client.pem")).arg("--key").arg(self.path("client.key"));
        }
        if let Some((user, password)) = user {
            command.arg("--user").arg(format!("{user}:{password}"));
        }
        command.args(words).output().unwrap()
    }

    pub(crate) fn leader(&self) -> usize {
        let start = Instant::now();
        loop {
            let output = self.try_ctl(self.setup.root.map(|password| ("root", password)), &["endpoint", "status"]);
            // One line each: endpoint, id, version, size, is leader, ...
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                let columns: Vec<&str> = line.split(", ").collect();
                if columns.get(4) == Some(&"true") {
                    let leads = |member: &Member| columns[0].ends_with(&member.client);
                    return self.members.iter().position(leads).unwrap();
                }
            }
            assert!(is_within(start, PATIENCE), "the cluster has no leader");
        }
    }

    pub(crate) fn kill(&self, number: usize) {
        if let Some(mut child) = self.members[number].child.lock().unwrap().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub(crate) fn restart(&self, number: usize) {
        self.run(number, "existing");
    }

    pub(crate) fn size(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn stop(&self, number: usize, stands: bool) {
        let pid = self.members[number].child.lock().unwrap().as_ref().unwrap().id();
        kill(Pid::from_raw(pid as i32), if stands { Signal::SIGSTOP } else { Signal::SIGCONT }).unwrap();
    }

    pub(crate) fn add_user(&self, user: &str, password: &str, prefix: &str) {
        self.add_user_with_permission(user, password, "readwrite", prefix);
    }

    /// Adds a user with a role of the same name: `read`, `write` or `readwrite`.
    pub(crate) fn add_user_with_permission(&self, user: &str, password: &str, what: &str, prefix: &str) {
        self.insist(&["role", "add", user]);
        self.insist(&["role", "grant-permission", user, "--prefix=true", what, prefix]);
        self.insist(&["user", "add", &format!("{user}:{password}")]);
        self.insist(&["user", "grant-role", user, user]);
    }

    /// Until it is done, whether it was seen to be or not: on a busy machine a leader may lose its followers time and again.
    fn insist(&self, words: &[&str]) {
        for tries_left in (0..20).rev() {
            let output = self.try_ctl(self.setup.root.map(|password| ("root", password)), words);
            let said = String::from_utf8_lossy(&output.stderr);
            if output.status.success() || said.contains("already") {
                return;
            }
            assert!(tries_left > 0, "etcdctl {words:?}: {said}");
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|number| self.kill(number));
    }
}

/// An authority, its certificates for `server` (this host) and `client` (an arbitrary user), and an unknown authority.
pub(crate) fn make_certificates(place: &Path) {
    let script = r#"
        set -e
        key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"; }
        for ca in ca unknown_authority; do
            key $ca
            openssl req -x509 -new -key $ca.key -days 2 -subj "/O=csalock $ca" -out $ca.pem
        done
        sign() {
            key "$1"
            openssl req -new -key "$1.key" -subj "/O=csalock $1" -out "$1.csr"
            names=IP:127.0.0.1,DNS:localhost
            printf 'basicConstraints=CA:FALSE\nsubjectAltName=%s\nextendedKeyUsage=%s\n' $names "$2" > "$1.ext"
            openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile "$1.ext" \
                -out "$1.pem"
        }
        # etcd is a client of itself.
        sign server serverAuth,clientAuth
        sign client clientAuth
    "#;
    let output = Command::new("sh").args(["-c", script]).current_dir(place).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
