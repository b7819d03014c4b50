//! A real sshd for tests, with keys and a configuration of its own, and a connection that its clients share.

#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]
#![allow(dead_code, reason = "not every test crate uses all of it")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::supervised::{in_memory, spawn_for_all};

/// Maximum time for the start of a server.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running sshd. Its files go away with it.
pub(crate) struct Server {
    place: TempDir,
    port: u16,
    child: Mutex<Child>,
    master: Option<Mutex<Child>>,
}

/// Whether sshd and ssh are installed.
pub(crate) fn is_installed() -> bool {
    let is_there = sshd().is_some() && Command::new("ssh").arg("-V").stderr(Stdio::null()).status().is_ok();
    if !is_there {
        assert!(
            std::env::var_os("CI").is_none_or(|ci| ci != "true"),
            "openssh-server and openssh-client must be installed"
        );
        eprintln!("SKIPPED: sshd is not installed (Debian: openssh-server, openssh-client)");
    }
    is_there
}

fn sshd() -> Option<PathBuf> {
    ["/usr/sbin/sshd", "/usr/local/sbin/sshd"].map(PathBuf::from).into_iter().find(|path| path.exists())
}

/// One server for all tests of this process, whose clients share a connection.
pub(crate) fn shared() -> Option<&'static Server> {
    static SHARED: OnceLock<Option<Server>> = OnceLock::new();
    SHARED.get_or_init(|| Some(Server::start("")?.with_master())).as_ref()
}

/// Starts a program that ends with this process.
fn spawn(program: &str, arguments: &[&str]) -> Child {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    spawn_for_all(command)
}

impl Server {
    /// Starts one with this line in front of the key in authorized_keys, and waits until it answers.
    pub(crate) fn start(restriction: &str) -> Option<Server> {
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
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let known = fs::read_to_string(path("host.pub")).unwrap();
        fs::write(path("known"), format!("[127.0.0.1]:{port} {known}")).unwrap();
        let bin = Path::new(env!("CARGO_BIN_EXE_csalock")).parent().unwrap();
        let settings = format!(
            "ListenAddress 127.0.0.1:{port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\nUsePAM no\n\
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
        fs::write(path("ssh"), format!("#!/bin/sh\nexec /usr/bin/ssh -F '{}' \"$@\"\n", path("ssh_config"))).unwrap();
        fs::set_permissions(path("ssh"), fs::Permissions::from_mode(0o755)).unwrap();
        // As root, sshd wants its own directory.
        if nix::unistd::geteuid().is_root() {
            let _ = fs::create_dir_all("/run/sshd");
        }
        let child = Server::run(place.path());
        let server = Server { place, port, child: Mutex::new(child), master: None };
        server.await_answer();
        Some(server)
    }

    fn run(place: &Path) -> Child {
        let config = place.join("sshd_config").display().to_string();
        spawn(&sshd().unwrap().display().to_string(), &["-D", "-f", &config])
    }

    fn await_answer(&self) {
        let start = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(start.elapsed() < PATIENCE, "sshd does not come up");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Opens the connection that all clients share from now on.
    pub(crate) fn with_master(mut self) -> Server {
        let port = self.port.to_string();
        let config = self.path("ssh_config").display().to_string();
        let master = spawn("ssh", &["-F", &config, "-M", "-N", "-p", &port, "127.0.0.1"]);
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

    /// The URL of the store in a directory.
    pub(crate) fn url(&self, directory: &str) -> String {
        format!("ssh://127.0.0.1:{}{directory}", self.port)
    }

    /// Kills the server, but not the processes of its connections.
    pub(crate) fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Starts it again after it was killed.
    pub(crate) fn restart(&self) {
        *self.child.lock().unwrap() = Server::run(self.place.path());
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
