//! The error type of this crate: a kind, a message and a hint. It knows no exit codes.
//!
//! Below the commands a negative answer is not an error: busy, not held and stale are responses to a
//! [`crate::Request`]. The commands turn those that end the program into errors.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::version::Version;

/// A `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of a failure. The program has an exit code for each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErrorKind {
    /// The request itself is invalid.
    InvalidInput,
    /// A record cannot be decoded.
    Corrupt,
    /// The store cannot be reached.
    Unavailable,
    /// csalock has a bug.
    Bug,
    /// The operating system refused a call that must succeed.
    System,
    /// The store, or an object in it, cannot be created.
    CannotCreate,
    /// Reading or writing failed, for example because the disk is full.
    InputOutput,
    /// The lock was not acquired, or the store not free, within the timeout.
    Busy,
    /// A permission is missing.
    Denied,
    /// The holder ended without a release, or a value has another version than expected.
    Stale,
    /// The caller does not hold the lock, or the lock has no holder; or the value or claim does not exist.
    NotHeld,
    /// Another process holds the lock.
    NotOwner,
    /// Another id claims the name, or the value exists already.
    NotUnique,
    /// The wait would be a deadlock.
    Deadlock,
    /// The lock was lost while it was in use, or before it could be used.
    Lost,
    /// The last success of a job is longer ago than promised.
    Overdue,
    /// The command was found but cannot be executed.
    CannotExecute,
    /// The command was not found.
    CommandNotFound,
}

/// A failure: its kind, the problem, and a hint for the next step.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: String,
    unreadable: Option<Version>,
    /// The store's servers may answer soon, for example after a restart. The call may have changed the store.
    #[doc(hidden)]
    pub is_unreached: bool,
    /// Access was denied to a file of this user, which may therefore hold data that this user wrote.
    #[doc(hidden)]
    pub is_own: bool,
}

/// Next step after an operation that failed and may have been done.
const UNKNOWN_OUTCOME: &str =
    "it may be stored all the same, so look before you try again; see the kernel log and that file system";

/// Next step for an object of another version, which no option of this version changes.
const OTHER_VERSION: &str = "nothing was changed; use that version, or update this csalock";

impl Error {
    /// Callers decide by the kind; a person reads the message.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Names the thing and its problem.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Empty if no next step is known.
    pub fn hint(&self) -> &str {
        &self.hint
    }
}

/// For the parts of csalock.
#[doc(hidden)]
impl Error {
    /// `what` names the thing and its problem, `cure` the next step.
    pub fn new(kind: ErrorKind, what: impl Into<String>, cure: impl Into<String>) -> Error {
        Error { kind, message: what.into(), hint: cure.into(), unreadable: None, is_unreached: false, is_own: false }
    }

    pub fn invalid(what: impl Into<String>, cure: impl Into<String>) -> Error {
        Error::new(ErrorKind::InvalidInput, what, cure)
    }

    pub fn corrupt(what: impl Into<String>) -> Error {
        let cure = "nothing was changed; see who wrote it, then `csalock unlock --force NAME` removes it";
        Error::new(ErrorKind::Corrupt, what, cure)
    }

    /// The object may be in use by that version.
    pub(crate) fn of_other_version(what: String) -> Error {
        Error::new(ErrorKind::Corrupt, what, OTHER_VERSION)
    }

    pub fn is_of_other_version(&self) -> bool {
        self.hint == OTHER_VERSION
    }

    pub fn in_place(self, place: &str) -> Error {
        Error { message: format!("{place}: {}", self.message), ..self }
    }

    /// Replaces the NAME in the hint for an unreadable record by the shell words that mean its lock.
    pub fn of_lock(self, shell_arg: impl FnOnce() -> String) -> Error {
        match self.hint.split_once("NAME") {
            Some((before, after)) if self.kind == ErrorKind::Corrupt => {
                Error { hint: format!("{before}{}{after}", shell_arg()), ..self }
            }
            _ => self,
        }
    }

    /// A system call on `path` failed while `doing` something.
    pub fn os(errno: Errno, doing: &str, path: impl AsRef<Path>) -> Error {
        let path = path.as_ref();
        let (kind, cure) = classify(errno);
        let mut cure = cure.to_string();
        if errno == Errno::ENOSPC
            && let Some(found) = path.ancestors().find_map(|dir| nix::sys::statvfs::statvfs(dir).ok())
        {
            let free = found.blocks_available() * found.fragment_size();
            let inodes =
                if found.files() > 0 { format!(" and {} inodes", found.files_available()) } else { String::new() };
            cure = format!("{cure} ({free} bytes{inodes} are free there)");
        }
        let is_own = || std::fs::symlink_metadata(path).is_ok_and(|found| found.uid() == geteuid().as_raw());
        let is_own = kind == ErrorKind::Denied && is_own();
        let what = format!("cannot {doing} {}: {}", crate::escape::escape_path(path), errno.desc());
        Error { is_own, ..Error::new(kind, what, cure) }
    }

    /// Like [`Error::os`], for a call that follows symbolic links.
    pub fn os_through_links(errno: Errno, doing: &str, path: impl AsRef<Path>) -> Error {
        let error = Error::os(errno, doing, path);
        if errno != Errno::ELOOP {
            return error;
        }
        let cure = "its links lead to each other without an end; correct them, or name the real path";
        Error { kind: ErrorKind::Unavailable, hint: cure.to_string(), is_own: false, ..error }
    }

    pub fn with_hint(self, hint: String) -> Error {
        Error { hint, ..self }
    }

    /// Adds that the failed operation may have happened anyway.
    pub fn outcome_unknown(self) -> Error {
        Error { hint: UNKNOWN_OUTCOME.to_string(), ..self }
    }

    /// Adds that the record's contents are unreadable in this version.
    pub fn in_version(self, version: Version) -> Error {
        Error { unreadable: Some(version), ..self }
    }

    /// Version of the unreadable record, if the failed read found one. Only this version may be removed because of that
    /// read: another process may have replaced the record since.
    pub fn version(&self) -> Option<Version> {
        self.unreadable
    }

    /// Other records may be readable.
    pub fn is_of_one_record(&self) -> bool {
        matches!(self.kind, ErrorKind::Corrupt | ErrorKind::Denied)
    }

    /// An error that a server process sent: a terminal must interpret nothing in it.
    pub fn of_server(self, place: &str) -> Error {
        let plain = |text: &str| text.replace(crate::escape::is_invisible, " ");
        let message = format!("{place}: {}", plain(&self.message));
        Error { message, hint: plain(&self.hint), is_own: false, is_unreached: false, ..self }
    }

    /// Adds that the store's servers do not answer now, but may answer soon.
    pub fn unreached(self) -> Error {
        Error { is_unreached: true, ..self }
    }

    /// Adds that the call must not be repeated.
    pub fn not_repeatable(self) -> Error {
        Error { is_unreached: false, ..self }
    }

    /// Such a reason often passes: the store is full, read-only or failing.
    pub fn is_refused_change(&self) -> bool {
        matches!(self.kind, ErrorKind::InputOutput | ErrorKind::CannotCreate)
    }
}

fn classify(errno: Errno) -> (ErrorKind, &'static str) {
    match errno {
        Errno::EACCES | Errno::EPERM => {
            (ErrorKind::Denied, "ask its owner for permission, or name another store with --store or CSALOCK_STORE")
        }
        Errno::EROFS => (ErrorKind::CannotCreate, "it is mounted read-only; name another store with --store"),
        Errno::ENOSPC | Errno::EDQUOT => (ErrorKind::InputOutput, "free some space or inodes there, then try again"),
        Errno::EFBIG => (ErrorKind::InputOutput, "raise the limit of the size of files (ulimit -f), then try again"),
        Errno::EIO | Errno::ESTALE => {
            (ErrorKind::InputOutput, "see the kernel log and the state of that file system, then try again")
        }
        Errno::ENOENT => (ErrorKind::Unavailable, "create it, or name another store with --store"),
        Errno::ENOTDIR => {
            (ErrorKind::Unavailable, "a file stands where a directory belongs; name a place in a directory")
        }
        Errno::ELOOP => (ErrorKind::Denied, "links are not followed there; name the real directory"),
        Errno::EEXIST => (ErrorKind::CannotCreate, "something else has that name; move it away"),
        Errno::EMFILE | Errno::ENFILE => (ErrorKind::System, "raise the limit of open files (ulimit -n)"),
        Errno::EAGAIN => (
            ErrorKind::System,
            "raise the limit of processes (ulimit -u, or pids.max of its cgroup), or try again later",
        ),
        Errno::ENOMEM => (ErrorKind::System, "the system is out of memory; try again"),
        Errno::ENAMETOOLONG => (ErrorKind::InvalidInput, "use a shorter path"),
        _ => (ErrorKind::System, "see the kernel log, then try again"),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.message)?;
        if !self.hint.is_empty() {
            write!(out, "; {}", self.hint)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// Number of an error of a system call; 0 if it is none.
pub fn errno_of(error: impl Into<std::io::Error>) -> Errno {
    Errno::from_raw(error.into().raw_os_error().unwrap_or(0))
}

/// As the C library describes it, without its number.
pub fn describe(error: &std::io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |code| Errno::from_raw(code).desc().to_string())
}
