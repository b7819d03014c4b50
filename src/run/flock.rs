//! flock(2) and fcntl(2) on a file: the locks of flock(1) and dpkg(1), for scripts that must agree with their users.
//!
//! Of fcntl(2) it is the lock of an open file description, which a traditional one of another process excludes. So
//! both locks belong to the *open file*: every process with a descriptor of it holds the lock, and each can release it
//! for all. The call waits without a limit or not at all. A helper, a child that shares the open file, therefore
//! blocks in it. csalock waits for the end of the helper, a signal or the timeout, whatever comes first. No process
//! polls, and waiters queue in the kernel.

#![expect(unsafe_code, reason = "fork, and descriptors that are numbers of the command line")]

use std::cell::Cell;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getppid};

use super::child::{SleepingChild, in_spite_of_signals};
use super::detach::exit_now;
use super::exec::to_be_inherited;
use super::timer::wait_readable;
use crate::exit::Exit;
use host::signals::{self, Signals};
use host::{FileLock, Host, WakeSocket, pidfd_of};
use lock::Mode as LockMode;
use lock::error::{Error, ErrorKind, Result, errno_of};
use lock::name::escape_path;

/// Maximum number of times that the file may be replaced during an attempt to lock it.
const MOST_REPLACED: u32 = 100;

/// A locked file. The lock ends when the last process has closed the file.
#[derive(Debug)]
pub struct Flock {
    kind: FileLock,
    file: File,
    path: PathBuf,
    /// The command gets the open file.
    pub(super) is_inherited: bool,
    stays_locked: bool,
}

#[derive(Debug)]
pub enum Flocked {
    Held(Flock),
    /// Another process holds the lock and kept it until the timeout.
    Busy,
    /// A signal interrupted the wait; this is how csalock ends.
    Interrupted(Exit),
}

pub struct FlockWait<'a> {
    pub host: &'a dyn Host,
    pub signals: &'a Signals,
    /// A child for whose command the file is locked, unless this process becomes the command. Its end interrupts, too.
    pub child: Option<&'a SleepingChild<'a>>,
    /// On CLOCK_BOOTTIME; `None`: no limit.
    pub until: Option<Duration>,
    /// Runs when the wait begins and while it continues; returns the longest delay until the next call. An error ends
    /// the wait.
    pub on_tick: &'a mut dyn FnMut() -> Result<Option<Duration>>,
    /// Receives a wake-up when a grant may have ended.
    pub wake_socket: Option<&'a WakeSocket>,
    /// Tells after a wake-up whether `on_tick` must run at once. It must change no grant, which is a wake-up itself.
    pub is_lost: &'a dyn Fn() -> bool,
}

impl Flock {
    /// A missing file is created, unless there is a descriptor of it to lock. Without `wait` it tries once.
    pub fn take(
        kind: FileLock,
        (path, descriptor): (&Path, Option<&File>),
        mode: LockMode,
        mut wait: Option<&mut FlockWait<'_>>,
    ) -> Result<Flocked> {
        let mut access = if descriptor.is_some() { OFlag::O_RDWR } else { OFlag::O_RDONLY };
        for _ in 0..MOST_REPLACED {
            let file = match descriptor {
                Some(file) => file.try_clone().map_err(|error| Error::os(errno_of(error), "duplicate", path))?,
                None => open(kind, path, access)?,
            };
            match lock(kind, &file, mode, false) {
                Ok(()) => {}
                // A write lock of fcntl(2), by which NFS implements flock(2), needs a writable descriptor.
                Err(Errno::EBADF | Errno::EIO) if access == OFlag::O_RDONLY && mode == LockMode::Exclusive => {
                    access = OFlag::O_RDWR;
                    continue;
                }
                Err(Errno::EWOULDBLOCK) => match &mut wait {
                    None => return Ok(Flocked::Busy),
                    Some(wait) => {
                        if let Some(refused) = wait.begin(kind, path, &file, mode)? {
                            return Ok(refused);
                        }
                    }
                },
                Err(errno) => return Err(Error::os(errno, "lock", path)),
            }
            if descriptor.is_some() || is_still(&file, path)? {
                let (path, is_inherited, stays_locked) = (path.to_path_buf(), true, false);
                return Ok(Flocked::Held(Flock { kind, file, path, is_inherited, stays_locked }));
            }
        }
        let what = format!("file {} was replaced whenever it was locked", escape_path(path));
        Err(Error::new(ErrorKind::System, what, "lock a file that stays, beside it"))
    }

    /// A file can have several names.
    pub fn is_of(&self, kind: FileLock, path: &Path) -> bool {
        self.kind == kind && is_still(&self.file, path).unwrap_or(false)
    }

    /// Keeps the file open across exec, so that the executed program holds the lock.
    pub fn to_be_inherited(&self) -> Result<()> {
        to_be_inherited(&self.file).map_err(|errno| Error::os(errno, "keep open", &self.path))
    }

    /// From now on only the end of the last process that has it open unlocks the file; `close` keeps it from the command.
    pub fn stay_locked(&mut self, close: bool) {
        (self.is_inherited, self.stays_locked) = (!close, true);
    }

    /// Unlocks the file, even if other processes still have it open.
    pub fn unlock(self) {
        if self.stays_locked {
            return;
        }
        // The drop closes the descriptor even if the unlock fails, which is nearly as good.
        let _ = match self.kind {
            FileLock::Flock => fs2::FileExt::unlock(&self.file).map_err(errno_of),
            FileLock::Fcntl => ofd_lock(&self.file, libc::F_UNLCK, false),
        };
    }
}

impl AsFd for Flock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A copy of a descriptor that the caller has left to this process, so that both share its locks.
pub fn inherited(number: i32) -> Result<File> {
    let is_closed = u32::try_from(number).is_ok_and(|number| number < 3 && signals::was_closed(number));
    // SAFETY: a number that is not open fails with EBADF. csalock has opened no file yet that it could mean.
    let copy = unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned();
    match copy {
        Ok(copy) if !is_closed => Ok(copy.into()),
        _ => Err(Error::invalid(
            format!("descriptor {number} is not open"),
            format!("open it first: exec {number}> FILE; ksh and mksh pass it on only with {number}>&{number}"),
        )),
    }
}

/// Opens the file as flock(1) does, without waiting for the other end of a pipe. The path is already resolved, so a
/// link at its end is another file than the requested file.
pub fn open(kind: FileLock, path: &Path, access: OFlag) -> Result<File> {
    let call = kind.name();
    let flags = access | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let opened = match nix::fcntl::open(path, flags, Mode::empty()) {
        // O_CREAT comes second: in a directory like /tmp no user may open another user's file with O_CREAT.
        Err(Errno::ENOENT) => nix::fcntl::open(path, flags | OFlag::O_CREAT, Mode::from_bits_truncate(0o666)),
        // Another process has a lease on the file (fcntl(2)); it must release the lease only if the open waits.
        Err(Errno::EWOULDBLOCK) => nix::fcntl::open(path, flags & !OFlag::O_NONBLOCK, Mode::empty()),
        opened => opened,
    };
    opened.map(File::from).map_err(|errno| {
        let error = Error::os(errno, "open", path);
        let cure = match errno {
            Errno::EACCES | Errno::EPERM if access == OFlag::O_RDWR => {
                let on = if kind == FileLock::Flock { " on this file system" } else { "" };
                format!("{call}(2){on} must be able to write to it; ask its owner, or leave out --{call}")
            }
            Errno::EACCES | Errno::EPERM => {
                format!("{call}(2) must be able to read it; ask its owner, or leave out --{call}")
            }
            Errno::EROFS => "it is not there and its file system is mounted read-only; name another file".to_string(),
            _ => return error,
        };
        Error::new(error.kind(), format!("cannot open {}: {}", escape_path(path), errno.desc()), cure)
    })
}

/// Locks the file. If another process has the lock, `blocks` waits for it; otherwise the call fails with EWOULDBLOCK.
fn lock(kind: FileLock, file: &File, mode: LockMode, blocks: bool) -> nix::Result<()> {
    if kind == FileLock::Fcntl {
        let how = if mode == LockMode::Exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
        return ofd_lock(file, how, blocks);
    }
    let locked = match (mode, blocks) {
        (LockMode::Exclusive, true) => fs2::FileExt::lock_exclusive(file),
        (LockMode::Exclusive, false) => fs2::FileExt::try_lock_exclusive(file),
        (_, true) => fs2::FileExt::lock_shared(file),
        (_, false) => fs2::FileExt::try_lock_shared(file),
    };
    locked.map_err(errno_of)
}

/// Locks or unlocks the whole file by fcntl(2). EACCES says the same as EWOULDBLOCK there.
fn ofd_lock(file: &File, how: i32, blocks: bool) -> nix::Result<()> {
    let (l_type, l_whence) = (how as i16, libc::SEEK_SET as i16);
    let whole = libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 };
    let call = if blocks { FcntlArg::F_OFD_SETLKW(&whole) } else { FcntlArg::F_OFD_SETLK(&whole) };
    match fcntl(file, call) {
        Ok(_) => Ok(()),
        Err(Errno::EACCES) => Err(Errno::EWOULDBLOCK),
        Err(errno) => Err(errno),
    }
}

/// Another process has locked the file, which exists. flock(2) has no such question: here it locks the file for a moment.
pub fn is_locked(kind: FileLock, path: &Path) -> Result<bool> {
    let file = open(kind, path, OFlag::O_RDONLY)?;
    if kind == FileLock::Flock {
        return Ok(lock(kind, &file, LockMode::Exclusive, false) == Err(Errno::EWOULDBLOCK));
    }
    let (l_type, l_whence) = (libc::F_WRLCK as i16, libc::SEEK_SET as i16);
    let mut whole = libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 };
    fcntl(&file, FcntlArg::F_OFD_GETLK(&mut whole)).map_err(|errno| Error::os(errno, "look at", path))?;
    Ok(i32::from(whole.l_type) != libc::F_UNLCK)
}

/// The path, whose end is not followed, still leads to this open file.
pub fn is_still(file: &File, path: &Path) -> Result<bool> {
    let failed = |error: std::io::Error| Error::os(errno_of(error), "look at", path);
    let open = file.metadata().map_err(failed)?;
    match fs::symlink_metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (open.dev(), open.ino())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

impl FlockWait<'_> {
    /// Waits until the file is locked. Returns the reason if the wait ends before.
    fn begin(&mut self, kind: FileLock, path: &Path, file: &File, mode: LockMode) -> Result<Option<Flocked>> {
        let failed = |errno| Error::os(errno, "lock", path);
        let mut helper = Helper::start(kind, file, mode).map_err(failed)?;
        // A wait that ends immediately needs this call too: the caller must check the grants that it held meanwhile.
        let mut look_at = self.look_again_at()?;
        loop {
            // SIGCHLD arrives here too. The checks of the children come later, or the sleep could miss the end of one.
            let came = std::iter::from_fn(|| self.signals.next()).find(|came| came.ends());
            match helper.reap(Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED)) {
                None => {}
                Some(Err(Errno::EINTR)) => helper = Helper::start(kind, file, mode).map_err(failed)?,
                // A signal that came too ends the wait all the same.
                Some(Ok(())) if came.is_some() => {}
                Some(locked) => return locked.map(|()| None).map_err(failed),
            }
            let interrupted = came.map(|came| Ok(Exit::Signal(came.signal))).or_else(|| self.child?.ended());
            if let Some(exit) = interrupted {
                return Ok(Some(Flocked::Interrupted(exit?)));
            }
            let now = self.host.boottime();
            if self.until.is_some_and(|until| until <= now) {
                // The helper may have acquired the lock at the last moment.
                return Ok((!helper.stop()).then_some(Flocked::Busy));
            }
            let is_woken = self.wake_socket.is_some_and(WakeSocket::was_woken);
            if look_at.is_some_and(|at| at <= now) || (is_woken && (self.is_lost)()) {
                look_at = self.look_again_at()?;
            }
            let next = self.until.into_iter().chain(look_at).min();
            let events = [self.signals.all_events()?.as_fd()].into_iter().chain(self.wake_socket.map(AsFd::as_fd));
            wait_readable(events, next.map(|next| next.saturating_sub(now))).map_err(|errno| {
                Error::new(ErrorKind::System, format!("cannot wait: {}", errno.desc()), "try again")
            })?;
        }
    }

    fn look_again_at(&mut self) -> Result<Option<Duration>> {
        let now = self.host.boottime();
        Ok((self.on_tick)()?.map(|span| now.saturating_add(span)))
    }
}

/// Blocks in the call, so that csalock can wait for other events too. It ends with csalock, or with this value.
struct Helper {
    pid: Pid,
    /// The result, once reaped; the pid may belong to another process from then on. EINTR: a signal killed the helper.
    ended: Cell<Option<nix::Result<()>>>,
}

impl Helper {
    fn start(kind: FileLock, file: &File, mode: LockMode) -> nix::Result<Helper> {
        let parent = Pid::this();
        // SAFETY: the child only makes system calls; it acquires no mutex and allocates nothing.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(Helper { pid: child, ended: Cell::new(None) }),
            ForkResult::Child => {
                // The child inherits the blocked signals that end a wait, so only the parent ends it.
                let wait = || in_spite_of_signals(|| lock(kind, file, mode, true));
                let locked = set_pdeathsig(Signal::SIGKILL)
                    .and_then(|()| if getppid() == parent { wait() } else { Err(Errno::ESRCH) });
                // This runs no cleanup of the parent a second time.
                exit_now(locked.err().map_or(0, |errno| errno as u8))
            }
        }
    }

    /// Ends the helper. Returns true if it had acquired the lock.
    fn stop(&self) -> bool {
        if self.ended.get().is_none() {
            let _ = kill(self.pid, Signal::SIGKILL);
            if let Ok(end) = pidfd_of(self.pid.as_raw()) {
                // A file system or a debugger may hold a killed process for ever.
                let _ = wait_readable([end.as_fd()], Some(Duration::from_millis(500)));
                return self.reap(Some(WaitPidFlag::WNOHANG)) == Some(Ok(()));
            }
        }
        self.reap(None) == Some(Ok(()))
    }

    /// Returns the result of the attempt, or `None` while the helper waits.
    fn reap(&self, how: Option<WaitPidFlag>) -> Option<nix::Result<()>> {
        while self.ended.get().is_none() {
            self.ended.set(match waitpid(self.pid, how) {
                Err(Errno::EINTR) => continue,
                Ok(WaitStatus::StillAlive) => return None,
                // It must not sleep while this process, which stops with it on Ctrl-Z, goes on.
                Ok(WaitStatus::Stopped(..)) if kill(self.pid, Signal::SIGCONT).is_ok() => continue,
                Ok(WaitStatus::Exited(_, 0)) => Some(Ok(())),
                Ok(WaitStatus::Exited(_, errno)) => Some(Err(Errno::from_raw(errno))),
                Ok(_) | Err(_) => Some(Err(Errno::EINTR)),
            });
        }
        self.ended.get()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_the_file_and_a_writer_has_it_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(dir.path()).unwrap().join("file");
        let take = |mode| match Flock::take(FileLock::Flock, (&path, None), mode, None) {
            Ok(Flocked::Held(flock)) => Some(flock),
            Ok(Flocked::Busy) => None,
            other => panic!("{other:?}"),
        };
        let (one, two) = (take(LockMode::Shared).unwrap(), take(LockMode::Slot).unwrap());
        assert!(take(LockMode::Exclusive).is_none());
        drop((one, two));
        let alone = take(LockMode::Exclusive).unwrap();
        assert!(take(LockMode::Shared).is_none());
        drop(alone);
        assert!(take(LockMode::Exclusive).is_some());
    }

    #[test]
    fn two_names_of_one_file_are_recognized() {
        let dir = tempfile::tempdir().unwrap();
        let [path, other, none] = ["file", "other", "none"].map(|name| dir.path().join(name));
        let Ok(Flocked::Held(flock)) = Flock::take(FileLock::Flock, (&path, None), LockMode::Exclusive, None) else {
            panic!()
        };
        fs::hard_link(&path, &other).unwrap();
        assert!(
            flock.is_of(FileLock::Flock, &path)
                && flock.is_of(FileLock::Flock, &other)
                && !flock.is_of(FileLock::Flock, &none)
        );
        fs::remove_file(&path).unwrap();
        assert!(!flock.is_of(FileLock::Flock, &path) && flock.is_of(FileLock::Flock, &other));
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_reported_with_its_exit_code() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("file", dir.path().join("link")).unwrap();
        let exit = |name: &str| match Flock::take(
            FileLock::Flock,
            (&dir.path().join(name), None),
            LockMode::Exclusive,
            None,
        ) {
            Err(error) => error.kind(),
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(exit("none/file"), ErrorKind::Unavailable);
        assert_eq!(exit("link"), ErrorKind::Denied);
    }
}
