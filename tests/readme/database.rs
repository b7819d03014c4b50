//! The blocks for PostgreSQL, with a server of their own.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::blocks::is_for_database;
use crate::home::Home;
use crate::page::blocks;

/// The user of the server if root runs the tests: PostgreSQL refuses root.
const NOBODY: u32 = 65534;

struct Server {
    child: Child,
    directory: TempDir,
}

/// Returns the directory of the server programs, if they are installed.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    versions.map(|version| version.path().join("bin")).find(|bin| bin.join("initdb").exists())
}

impl Server {
    fn start(programs: &std::path::Path) -> Server {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let data = directory.path().join("data");
        fs::create_dir(&data).unwrap();
        let is_root = nix::unistd::geteuid().is_root();
        if is_root {
            chown(&data, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let program = |name: &str| {
            let mut command = Command::new("setpriv");
            if is_root {
                command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
            }
            command.args(["--pdeathsig", "INT"]).arg(programs.join(name)).arg("-D").arg(&data);
            command.env_clear().env("LC_ALL", "C").current_dir(&data);
            command.stdin(Stdio::null()).stdout(Stdio::null());
            command
        };
        assert!(program("initdb").args(["-A", "trust", "-U", "test", "-N"]).status().unwrap().success());
        let mut command = program("postgres");
        command.args(["-c", "listen_addresses=", "-c", "fsync=off", "-k"]).arg(&data).stderr(Stdio::null());
        Server { child: command.spawn().unwrap(), directory }
    }

    /// Returns a script that is psql for this server.
    fn psql(&self) -> String {
        format!("exec /usr/bin/psql -h {}/data -U test -d postgres \"$@\"", self.directory.path().display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT);
        let _ = self.child.wait();
    }
}

#[test]
fn a_late_writer_does_not_change_the_row() {
    require!(harness::has_all(&["initdb", "psql", "setpriv"]));
    let programs = programs().expect("initdb is installed");
    let mut server = Server::start(&programs);
    let all = blocks("sh");
    let block = all.iter().find(|block| is_for_database(block)).unwrap();
    let home = Home::new();
    home.add_program("psql", &server.psql());
    while !home.run("sh", &[], "psql -qc 'SELECT 1'").status.success() {
        assert!(server.child.try_wait().unwrap().is_none(), "the server has ended");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    for shell in ["dash", "bash"] {
        let printed = home.script(shell, &block.text);
        assert!(printed.ends_with("refused\nthe second\n"), "{shell}: {printed}");
        home.script(shell, "psql -qc 'DROP TABLE reports'");
    }
}
