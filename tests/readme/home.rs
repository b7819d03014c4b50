//! An empty home, and programs for it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::programs::write_program;

/// The program that is tested.
pub(crate) const CSALOCK: &str = env!("CARGO_BIN_EXE_csalock");

pub(crate) struct Home(TempDir);

impl Home {
    /// With csalock under all of its names.
    pub(crate) fn new() -> Home {
        let home = Home::without_programs();
        for name in ["csalock", "csaLock", "csaUnlock"] {
            symlink(CSALOCK, home.program(name)).unwrap();
        }
        home
    }

    pub(crate) fn without_programs() -> Home {
        let home = Home(tempfile::tempdir().unwrap());
        for directory in ["home", "bin"] {
            fs::create_dir(home.0.path().join(directory)).unwrap();
        }
        home
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("home")
    }

    fn program(&self, name: &str) -> PathBuf {
        self.0.path().join("bin").join(name)
    }

    pub(crate) fn add_program(&self, name: &str, text: &str) {
        write_program(&self.program(name), format!("#!/bin/sh\n{text}\n").as_bytes());
    }

    /// Runs a script here, in an environment as empty as cron's.
    pub(crate) fn run(&self, shell: &str, options: &[&str], text: &str) -> Output {
        let script = self.0.path().join("script");
        fs::write(&script, text).unwrap();
        let mut command = Command::new(shell);
        command.args(options).arg(&script).current_dir(self.path()).stdin(Stdio::null());
        command.env_clear().env("HOME", self.path());
        command.env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", self.program("").display()));
        if nix::unistd::geteuid().is_root() {
            // Root's default store is the machine's.
            command.env("CSALOCK_STORE", format!("dir:{}", self.0.path().join("store").display()));
        }
        command.output().unwrap()
    }

    /// Runs a script in which every command must succeed, and returns what it printed.
    pub(crate) fn script(&self, shell: &str, text: &str) -> String {
        let done = self.run(shell, &["-eu"], text);
        let printed = String::from_utf8_lossy(&done.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{shell}: {}\n{text}\n{printed}{complaint}", done.status);
        printed
    }

    /// The locks that are left, in the store and beside files.
    pub(crate) fn locks(&self) -> String {
        self.script("sh", "csalock status -1; ls -d .csalock 2> /dev/null || :")
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let pids = ["n1.pid", "n2.pid", "n3.pid"].map(|file| fs::read_to_string(self.path().join(file)));
        for pid in pids.into_iter().flatten().filter_map(|pid| pid.trim().parse().ok()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

pub(crate) fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}
