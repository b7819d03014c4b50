//! A real sshd for tests, with keys and a configuration of its own, and a connection that its clients share.

#![allow(dead_code, reason = "not every test crate uses all of it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::etcd::free_port;
use crate::programs::write_program;
use crate::supervised::{in_memory, spawn_for_all};

/// Maximum time for the start of a server.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Server {
    place: TempDir,
    address: String,
    port: u16,
    /// The words that run a program on its host.
    enter: Vec<String>,
    child: Mutex<Child>,
    master: Option<Mutex<Child>>,
}

pub(crate) fn is_installed() -> bool {
    harness::has_all(&["sshd", "ssh", "setpriv"])
}

fn sshd() -> Option<PathBuf> {
    ["/usr/sbin/sshd", "/usr/local/sbin/sshd"].map(PathBuf::from).into_iter().find(|path| path.exists())
}

/// One server for all tests of this process, whose clients share a connection. Each test that lacks it notes that for itself.
pub(crate) fn shared() -> Option<&'static Server> {
    static SHARED: OnceLock<Option<Server>> = OnceLock::new();
    if !is_installed() {
        return None;
    }
    SHARED.get_or_init(|| Some(Server::start("")?.with_master())).as_ref()
}

/// Starts a program, by these words before it, that ends with this process.
fn spawn(enter: &[String], program: &str, arguments: &[&str]) -> Child {
    let mut words = enter.iter().map(String::as_str).chain(["setpriv"]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words).args(["--pdeathsig", "KILL", program]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    spawn_for_all(command)
}

impl Server {
    /// Starts one with this line in front of the key in authorized_keys, and waits until it answers.
    pub(crate) fn start(restriction: &str) -> Option<Server> {
        Server::start_at(crate::etcd::Place { address: "127.0.0.1".into(), enter: Vec::new() }, restriction)
    }

    /// The same on a host.
    pub(crate) fn start_at(on: crate::etcd::Place, restriction: &str) -> Option<Server> {
        let crate::etcd::Place { address, enter } = on;
        if !is_installed() {
            return None;
        }
        let place = in_memory();
        let path = |name: &str| place.path().join(name).display().to_string();
        for key in ["host", "user"] {
            let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &path(key)]).status();
            assert!(made.unwrap().success());
        }
        let public = fs::read_to_string(path("user.pub")).unwrap();
        fs::write(path("authorized"), format!("{restriction} {public}").trim_start()).unwrap();
        let port = free_port();
        let known = fs::read_to_string(path("host.pub")).unwrap();
        fs::write(path("known"), format!("[{address}]:* {known}")).unwrap();
        let bin = Path::new(crate::supervised::csalock()).parent().unwrap();
        let settings = format!(
            "ListenAddress {address}:{port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\nUsePAM no\n\
             PermitRootLogin yes\nMaxSessions 1000\nMaxStartups 1000\nUseDNS no\nSetEnv PATH={}:/usr/bin:/bin HOME=/nonexistent\n",
            path("host"),
            path("authorized"),
            bin.display(),
        );
        fs::write(path("sshd_config"), settings).unwrap();
        let client = format!(
            "IdentityFile {}\nIdentitiesOnly yes\nUserKnownHostsFile {}\nGlobalKnownHostsFile none\nControlPath {}\n",
            path("user"),
            path("known"),
            path("control"),
        );
        fs::write(path("ssh_config"), client).unwrap();
        let ssh = format!("#!/bin/sh\nexec /usr/bin/ssh -F '{}' \"$@\"\n", path("ssh_config"));
        write_program(&place.path().join("ssh"), ssh.as_bytes());
        // As root, sshd wants its own directory.
        if nix::unistd::geteuid().is_root() {
            let _ = fs::create_dir_all("/run/sshd");
        }
        let child = Mutex::new(Server::run(place.path(), &enter));
        let server = Server { place, address, port, enter, child, master: None };
        server.await_answer();
        Some(server)
    }

    fn run(place: &Path, enter: &[String]) -> Child {
        let config = place.join("sshd_config").display().to_string();
        spawn(enter, &sshd().unwrap().display().to_string(), &["-D", "-f", &config])
    }

    /// Waits until it listens, on a host that this process may not reach.
    fn await_answer(&self) {
        let start = Instant::now();
        let sockets = format!("/proc/{}/net/tcp", self.child.lock().unwrap().id());
        let listens = format!(":{:04X} 00000000:0000 0A ", self.port);
        while !fs::read_to_string(&sockets).unwrap_or_default().contains(&listens) {
            assert!(start.elapsed() < PATIENCE, "sshd does not come up");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Opens the connection that all clients share from now on.
    pub(crate) fn with_master(mut self) -> Server {
        let port = self.port.to_string();
        let config = self.path("ssh_config").display().to_string();
        let master = spawn(&[], "ssh", &["-F", &config, "-M", "-N", "-p", &port, "127.0.0.1"]);
        let start = Instant::now();
        while !self.path("control").exists() {
            assert!(start.elapsed() < PATIENCE, "ssh does not connect");
            std::thread::sleep(Duration::from_millis(10));
        }
        self.master = Some(Mutex::new(master));
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// The program that replaces ssh(1), for `CSALOCK_SSH`.
    pub(crate) fn program(&self) -> PathBuf {
        self.path("ssh")
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self, directory: &str) -> String {
        format!("ssh://{}:{}{directory}", self.address, self.port)
    }

    fn processes(&self) -> Vec<Pid> {
        let mut all = vec![Pid::from_raw(self.child.lock().unwrap().id() as i32)];
        let mut at = 0;
        while at < all.len() {
            let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", all[at])).unwrap_or_default();
            all.extend(children.split_whitespace().map(|child| Pid::from_raw(child.parse().unwrap())));
            at += 1;
        }
        all
    }

    pub(crate) fn stop(&self, stands: bool) {
        let signal = if stands { Signal::SIGSTOP } else { Signal::SIGCONT };
        // The server first, so that it starts no further ones.
        for pid in self.processes() {
            let _ = kill(pid, signal);
        }
    }

    /// Kills the server and the processes of its connections, as the end of its host does.
    pub(crate) fn kill_all(&self) {
        let all = self.processes();
        self.kill();
        for pid in &all[1..] {
            let _ = kill(*pid, Signal::SIGKILL);
        }
    }

    /// Kills the server, but not the processes of its connections.
    pub(crate) fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn restart(&self) {
        *self.child.lock().unwrap() = Server::run(self.place.path(), &self.enter);
        self.await_answer();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for child in self.master.iter().chain([&self.child]) {
            let mut child = child.lock().unwrap();
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
