//! Programs that remove old files from /tmp: a lock in a store there is protected from them while csalock runs, and
//! doctor warns.

use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use tempfile::TempDir;

use crate::sandbox::{Call, Done, Job, Kind, Sandbox, has, is_root, wait_until};

/// A directory in /tmp, wherever the sandbox is.
fn in_tmp() -> TempDir {
    let directory = tempfile::Builder::new().prefix("csalock-cleaned").tempdir_in("/tmp").unwrap();
    std::fs::create_dir(directory.path().join("locks")).unwrap();
    directory
}

/// Whether a cleaner skips the directory, because another process has a lock on it.
fn is_skipped(directory: &Path) -> bool {
    let Ok(file) = std::fs::File::open(directory) else { return false };
    Flock::lock(file, FlockArg::LockExclusiveNonblock).is_err_and(|(_, errno)| errno == Errno::EWOULDBLOCK)
}

/// The lock of each kind of store in a directory, as words of a command line, and the directory with its records.
fn locks(place: &Path) -> [(Vec<String>, PathBuf); 4] {
    let path = place.join("locks").display().to_string();
    let store = |url: String| vec!["--store".to_string(), url, "x".to_string()];
    [
        (store(format!("dir:{path}/dir")), place.join("locks/dir")),
        (store(format!("dir:{path}/shared?shared=1")), place.join("locks/shared")),
        (store(format!("sqlite:{path}/db")), place.join("locks")),
        (vec![format!("{path}/file")], place.join("locks/.csalock")),
    ]
}

fn csalock(sandbox: &Sandbox, command: &[&str], lock: &[String], rest: &[&str]) -> Done {
    call(sandbox, command, lock, rest).capture()
}

fn call<'a>(sandbox: &'a Sandbox, command: &[&str], lock: &[String], rest: &[&str]) -> Call<'a> {
    let lock = lock.iter().map(String::as_str);
    sandbox.csalock(command.iter().copied().chain(lock).chain(rest.iter().copied())).without("CSALOCK_STORE")
}

fn holder(sandbox: &Sandbox, lock: &[String]) -> Job {
    call(sandbox, &["run"], lock, &["dash", "-c", "echo in; read -r line"]).ready()
}

#[test]
fn a_held_lock_protects_its_store_from_cleaners_of_tmp() {
    let sandbox = Sandbox::new(Kind::Directory);
    for at in 0..4 {
        let place = in_tmp();
        let (lock, directory) = locks(place.path())[at].clone();
        let [mut first, mut second] = [holder(&sandbox, &[&["-s".to_string()], &lock[..]].concat()), {
            holder(&sandbox, &[&["-s".to_string()], &lock[..]].concat())
        }];
        wait_until("the store is protected", || is_skipped(&directory));
        first.release();
        wait_until("the other holder protects it", || is_skipped(&directory));
        second.release();
        wait_until("no holder is left", || !is_skipped(&directory));
    }
}

/// Age 0 removes everything that is not locked.
#[test]
fn systemd_tmpfiles_leaves_the_records_of_a_held_lock() {
    require!(has("systemd-tmpfiles") && is_root("a cleaner"));
    let sandbox = Sandbox::new(Kind::Directory);
    for at in [0, 1, 3] {
        let place = in_tmp();
        let (lock, directory) = locks(place.path())[at].clone();
        let mut job = holder(&sandbox, &lock);
        wait_until("the store is protected", || is_skipped(&directory));
        let line = format!("d {} 0755 root root 0\n", place.path().display());
        let rules = sandbox.file("files/clean.conf", line);
        sandbox.call("systemd-tmpfiles", ["--clean", rules.to_str().unwrap()]).run();
        assert_eq!(csalock(&sandbox, &["run", "-n"], &lock, &["true"]).code, Some(75), "{lock:?}");
        job.release();
        wait_until("no holder is left", || !is_skipped(&directory));
        sandbox.call("systemd-tmpfiles", ["--clean", rules.to_str().unwrap()]).run();
        assert!(!directory.exists(), "the cleaner cleans nothing");
    }
}

#[test]
fn doctor_warns_of_stores_in_tmp() {
    let sandbox = Sandbox::new(Kind::Directory);
    let warning = "\nwarning  cleaner  programs that clean /tmp and /var/tmp, as systemd-tmpfiles does, remove the records \
                   of scripts that hold a lock for days\n                  fix: keep the store in another directory, for \
                   example in /var/lib\n";
    for at in 0..4 {
        let place = in_tmp();
        let (lock, _) = &locks(place.path())[at];
        for _ in 0..2 {
            let words = if lock.len() > 1 { &lock[..2] } else { &lock[..] };
            let done = csalock(&sandbox, &["doctor"], words, &[]);
            assert!(done.code == Some(0) && done.stdout.contains(warning), "{done:?}");
            csalock(&sandbox, &["run"], lock, &["true"]).exits(0);
        }
    }
    let done = csalock(&sandbox, &["doctor", "--store", "dir:/dev/shm/csalock-doctor"], &[], &[]);
    assert!(!done.stdout.contains("cleaner"), "{done:?}");
}
