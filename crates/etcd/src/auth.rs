//! Authentication to etcd: user and password, and the token that etcd returns for them.
//!
//! A login costs the server 50 ms on purpose, so the token is kept for the next call. Its directory belongs to this
//! user alone and is removed at a reboot. The file is opened through no link, and is trusted only if no other user can
//! have written it. etcd refuses a token that is too old; csalock then logs in again. etcd may not even refuse a token
//! of an earlier cluster. Such a token names a step of that cluster's log, and etcd waits until its own log has reached
//! that step. csalock therefore drops an unanswered token too.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use nix::fcntl::{OFlag, open, openat, renameat};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{UnlinkatFlags, mkdir, unlinkat};
use sha2::{Digest, Sha256};

use super::api;
use crate::Cluster;
use lock::error::{Error, ErrorKind, Result, errno_of};
use lock::name::escape_path;
use store::{ServerUrl, Variables, guarded};

/// It has a password, so it cannot be printed.
pub(super) struct Auth {
    /// User and password.
    who: Option<(String, String)>,
    uid: u32,
    /// Directory of this user, which is removed at a reboot.
    runtime: PathBuf,
    file: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    token: Option<String>,
    looked: bool,
    needless: bool,
}

impl Auth {
    pub(super) fn new(cluster: &Cluster, variables: &Variables<'_>, uid: u32) -> Result<Auth> {
        let text = |name| variables(name).map(|value| value.to_string_lossy().into_owned());
        let password_file = variables("CSALOCK_ETCD_PASSWORD_FILE").map(PathBuf::from);
        let who = match (text("CSALOCK_ETCD_USER"), text("CSALOCK_ETCD_PASSWORD"), password_file) {
            (None, _, _) => None,
            (Some(user), Some(password), _) => Some((user, password)),
            (Some(user), None, Some(path)) => Some((user, first_line(&path)?)),
            (Some(_), None, None) => {
                let what = "CSALOCK_ETCD_USER is set without a password";
                let hint = "set CSALOCK_ETCD_PASSWORD_FILE, or CSALOCK_ETCD_PASSWORD";
                return Err(Error::new(ErrorKind::InvalidInput, what, hint));
            }
        };
        let mut hash = Sha256::new();
        for part in [&cluster.url()].into_iter().chain(who.iter().flat_map(|(user, word)| [user, word])) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let file = hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect::<String>();
        let runtime = variables("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        let runtime = runtime.unwrap_or_else(|| format!("/run/user/{uid}").into());
        Ok(Auth { who, uid, runtime, file: format!("etcd-token-{file}"), state: Mutex::default() })
    }

    pub(super) fn wanted(&self) -> Option<(&str, &str)> {
        let (user, password) = self.who.as_ref().filter(|_| !guarded(&self.state).needless)?;
        Some((user, password))
    }

    pub(super) fn token(&self) -> Option<String> {
        self.who.as_ref()?;
        let mut state = guarded(&self.state);
        if state.token.is_none() && !std::mem::replace(&mut state.looked, true) {
            state.token = self.directory(false).and_then(|directory| self.kept(&directory));
        }
        state.token.clone()
    }

    /// Drops this token, in this process and in the file for later processes.
    pub(super) fn forget(&self, old: &str) {
        let mut state = guarded(&self.state);
        if state.token.as_deref() == Some(old) {
            state.token = None;
        }
        let directory = self.directory(false);
        // Another process of this user may have logged in meanwhile.
        let kept = directory.as_ref().and_then(|directory| self.kept(directory));
        if let Some(directory) = directory.filter(|_| kept.as_deref() == Some(old)) {
            let _ = unlinkat(&directory, &self.file[..], UnlinkatFlags::NoRemoveDir);
        }
        state.token = state.token.take().or(kept.filter(|kept| kept != old));
    }

    pub(super) fn is_needless(&self) {
        guarded(&self.state).needless = true;
    }

    pub(super) fn remember(&self, token: &str) {
        guarded(&self.state).token = Some(token.to_string());
        let _ = self.directory(true).and_then(|directory| self.keep(&directory, token).ok());
    }

    fn kept(&self, directory: &File) -> Option<String> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let file = File::from(openat(directory, &self.file[..], flags, Mode::empty()).ok()?);
        let found = file.metadata().ok()?;
        if !found.is_file() || found.uid() != self.uid || found.mode() & 0o077 != 0 {
            return None;
        }
        let mut token = String::new();
        file.take(api::LONGEST_TOKEN as u64).read_to_string(&mut token).ok()?;
        (!token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic())).then_some(token)
    }

    fn keep(&self, directory: &File, token: &str) -> std::io::Result<()> {
        let draft = format!("{}.{:016x}", self.file, u64::from_ne_bytes(host::random_bytes()?));
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(directory, &draft[..], flags, Mode::from_bits_truncate(0o600))?);
        file.write_all(token.as_bytes())?;
        renameat(directory, &draft[..], directory, &self.file[..])?;
        Ok(())
    }

    /// Directory of this user's tokens, created if `make`; `None` if it cannot be trusted.
    fn directory(&self, make: bool) -> Option<File> {
        let path = match self.open_own(&self.runtime, 0o022) {
            Some(_) => self.runtime.join("csalock"),
            None => PathBuf::from(format!("/tmp/csalock-{}", self.uid)),
        };
        if make {
            let _ = mkdir(&path, Mode::S_IRWXU);
        }
        self.open_own(&path, 0o077)
    }

    /// Opens a directory that belongs to this user and whose mode has none of the bits `closed`.
    fn open_own(&self, path: &Path, closed: u32) -> Option<File> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let directory = open(path, flags, Mode::empty()).ok()?;
        let found = fstat(&directory).ok()?;
        (found.st_uid == self.uid && found.st_mode & closed == 0).then(|| File::from(directory))
    }
}

fn first_line(path: &Path) -> Result<String> {
    let failed = |error: std::io::Error| Error::os(errno_of(error), "read CSALOCK_ETCD_PASSWORD_FILE", path);
    // A pipe could block and can be read only once, but several processes of csalock read the file.
    let file = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        let what = format!("CSALOCK_ETCD_PASSWORD_FILE: {} is not an ordinary file", escape_path(path));
        return Err(Error::new(ErrorKind::InvalidInput, what, "name one that has the password in its first line"));
    }
    if found.mode() & 0o007 != 0 {
        let what = format!("every user can read the password in {}", escape_path(path));
        return Err(Error::new(ErrorKind::Denied, what, format!("chmod o= {}", escape_path(path))));
    }
    let mut text = String::new();
    file.take(api::LONGEST_TOKEN as u64).read_to_string(&mut text).map_err(failed)?;
    let line = text.lines().next().filter(|line| !line.is_empty()).map(str::to_string);
    line.ok_or_else(|| {
        let what = format!("CSALOCK_ETCD_PASSWORD_FILE: {} has no password in its first line", escape_path(path));
        Error::new(ErrorKind::InvalidInput, what, "write it there")
    })
}
