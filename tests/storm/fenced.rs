//! A token prevents what a lease cannot: a writer that was frozen beyond its lease comes too late, and a register that
//! has seen a higher `CSALOCK_TOKEN` refuses it. The register loses no accepted write.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::sandbox::{Kind, Sandbox, csalock, wait_until};

/// How many write at once, and how often each.
const WRITERS: usize = 4;
const TIMES: usize = 6;

/// A number in a file, with the highest token that came to it and how many writes it accepted.
struct Register {
    path: PathBuf,
    fences: bool,
}

/// The content of the file.
#[derive(Debug, Clone, Copy, Default)]
struct Content {
    number: u64,
    highest: u64,
    accepted: u64,
}

impl Register {
    fn new(place: &Path) -> Register {
        Register { path: place.join("register"), fences: true }
    }

    /// The content, changed by one process at a time.
    fn with<T>(&self, change: impl FnOnce(&mut Content) -> T) -> T {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&self.path).unwrap();
        let mut file: Flock<File> = Flock::lock(file, FlockArg::LockExclusive).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        let mut fields = text.split_whitespace().map(|field| field.parse().unwrap());
        let mut next = || fields.next().unwrap_or_default();
        let mut content = Content { number: next(), highest: next(), accepted: next() };
        let result = change(&mut content);
        file.rewind().unwrap();
        // One write: who is killed has written all of it or nothing.
        file.write_all(format!("{:20} {:20} {:20}", content.number, content.highest, content.accepted).as_bytes())
            .unwrap();
        result
    }

    /// A read counts too: a reader from before a higher token must not write after it.
    fn read(&self, token: u64) -> Option<u64> {
        self.with(|content| self.admits(content, token).then_some(content.number))
    }

    /// Whether the write was accepted.
    fn write(&self, token: u64, number: u64) -> bool {
        self.with(|content| {
            let is_admitted = self.admits(content, token);
            if is_admitted {
                (content.number, content.accepted) = (number, content.accepted + 1);
            }
            is_admitted
        })
    }

    fn admits(&self, content: &mut Content, token: u64) -> bool {
        let is_admitted = !self.fences || token >= content.highest;
        content.highest = content.highest.max(token);
        is_admitted
    }
}

/// The critical section: it adds one to the number, slowly.
#[test]
#[ignore = "the writers run it"]
fn add_one_as_a_client() {
    let Ok(token) = std::env::var("CSALOCK_TOKEN") else { return };
    let (token, register) = (token.parse().unwrap(), Register::new(Path::new(".")));
    let Some(number) = register.read(token) else { return };
    std::fs::write(format!("read-{token}.{}", nix::unistd::getpgrp()), "").unwrap();
    std::thread::sleep(Duration::from_millis(150));
    if !register.write(token, number + 1) {
        std::fs::write(format!("refused-{token}"), "").unwrap();
    }
}

fn writer(sandbox: &Sandbox) -> Child {
    let this = std::env::current_exe().unwrap().display().to_string();
    let mut command = Command::new("setsid");
    command.arg(csalock()).args(["run", "-q", "-w", "60s", "--ttl", sandbox.lease("300ms"), "--on-lost", "warn", "x"]);
    command.args(["--", &this, "fenced::add_one_as_a_client", "--exact", "--ignored", "--test-threads=1"]);
    command
        .env_clear()
        .envs(crate::supervised::mark())
        .env("PATH", sandbox.search_path())
        .env("CSALOCK_STORE", sandbox.store());
    command.current_dir(sandbox.path("files")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

fn how_many(sandbox: &Sandbox, what: &str) -> usize {
    let entries = std::fs::read_dir(sandbox.path("files")).unwrap();
    entries.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(what)).count()
}

/// Whether the command of this process group has read.
fn has_read(sandbox: &Sandbox, group: Pid) -> bool {
    let entries = std::fs::read_dir(sandbox.path("files")).unwrap();
    let end = format!(".{group}");
    entries.filter_map(Result::ok).any(|entry| entry.file_name().to_string_lossy().ends_with(&end))
}

/// A holder that has read is frozen with its csalock until the next one has read.
fn nothing_is_lost(kind: Kind) {
    Sandbox::with(kind, |sandbox| {
        let frozen = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for number in 0..WRITERS {
                let frozen = &frozen;
                scope.spawn(move || {
                    for time in 0..TIMES {
                        let mut writer = writer(sandbox);
                        let group = Pid::from_raw(writer.id() as i32);
                        if number == 0 && time % 2 == 0 {
                            wait_until("it has read", || has_read(sandbox, group));
                            let seen = how_many(sandbox, "read-");
                            let is_frozen = killpg(group, Signal::SIGSTOP).is_ok();
                            // The lease of a frozen holder ends, and another one reads; unless all have ended.
                            let begun = std::time::Instant::now();
                            while begun.elapsed() < Duration::from_secs(3) && how_many(sandbox, "read-") == seen {
                                std::thread::sleep(Duration::from_millis(5));
                            }
                            let _ = killpg(group, Signal::SIGCONT);
                            frozen.fetch_add(usize::from(is_frozen), Ordering::Relaxed);
                        }
                        writer.wait().unwrap();
                    }
                });
            }
        });
        let content = Register::new(&sandbox.path("files")).with(|content| *content);
        println!("{kind:?}: {content:?}, {frozen:?} frozen, {} refused", how_many(sandbox, "refused-"));
        assert_eq!(content.number, content.accepted, "of what was accepted something is lost");
        assert!(content.accepted >= (WRITERS * TIMES / 2) as u64, "next to nothing was accepted: {content:?}");
    });
}

cases! {
    fn tokens_prevent_lost_writes_on_a_directory() { nothing_is_lost(Kind::Directory) }
    fn tokens_prevent_lost_writes_on_sqlite() { nothing_is_lost(Kind::Sqlite) }
    fn tokens_prevent_lost_writes_on_a_shared_directory() { nothing_is_lost(Kind::Shared) }
    fn tokens_prevent_lost_writes_on_etcd() { nothing_is_lost(Kind::Etcd) }
}

#[test]
fn a_late_write_without_tokens_is_lost_and_detected() {
    for fences in [true, false] {
        let place = tempfile::tempdir().unwrap();
        let register = Register { fences, ..Register::new(place.path()) };
        // 5 is frozen between its read and its write, and 6 has the lock meanwhile.
        let (late, next) = (register.read(5).unwrap(), register.read(6).unwrap());
        assert_eq!(register.write(5, late + 1), !fences);
        assert!(register.write(6, next + 1));
        let content = register.with(|content| *content);
        assert_eq!(content.number == content.accepted, fences, "{content:?}");
    }
}
