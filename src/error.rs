//! What went wrong when we could not find out: one error type with its exit code and its cure.
//!
//! "No" is never an error here: busy, not held and stale are [`crate::lock::Response`]s.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;

use crate::exit::Exit;
use crate::store::Version;

/// A `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// A failure: what happened to which thing, what to do about it, and the exit code that goes with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    exit: Exit,
    message: String,
    hint: String,
    unreadable: Option<Version>,
    is_unreached: bool,
    is_own: bool,
}

impl Error {
    /// `what` names the thing and what happened to it, `cure` the next step.
    pub fn new(exit: Exit, what: impl Into<String>, cure: impl Into<String>) -> Error {
        Error { exit, message: what.into(), hint: cure.into(), unreadable: None, is_unreached: false, is_own: false }
    }

    /// A record that cannot be understood.
    pub fn corrupt(what: impl Into<String>) -> Error {
        Error::new(
            Exit::Corrupt,
            what,
            "nothing was changed; see who wrote it, then `csalock unlock --force` removes it",
        )
    }

    /// A system call on `path` that failed while `doing` something.
    pub fn os(errno: Errno, doing: &str, path: impl AsRef<Path>) -> Error {
        let path = path.as_ref();
        let (exit, cure) = classify(errno);
        let mut cure = cure.to_string();
        if errno == Errno::ENOSPC
            && let Some(free) = path.ancestors().find_map(|dir| fs2::available_space(dir).ok())
        {
            cure = format!("{cure} ({free} bytes are free there)");
        }
        let is_own = exit == Exit::Permission && is_own(path);
        let what = format!("cannot {doing} {}: {}", crate::name::escape_path(path), errno.desc());
        Error { is_own, ..Error::new(exit, what, cure) }
    }

    /// The same, of something that may have happened for all that.
    #[must_use]
    pub fn outcome_unknown(self) -> Error {
        let cure =
            "it may be stored all the same, so look before you try again; see the kernel log and that file system";
        Error { hint: cure.to_string(), ..self }
    }

    /// The same, of a record whose contents are unreadable in this version.
    #[must_use]
    pub fn in_version(self, version: Version) -> Error {
        Error { unreadable: Some(version), ..self }
    }

    /// The version of the record that is unreadable, if the failed read found one. Only this version may be removed on the
    /// strength of that read: another process may have replaced the record since.
    pub fn version(&self) -> Option<Version> {
        self.unreadable
    }

    /// Whether it concerns one record, and the others may be all right: its contents are unreadable, or not for us.
    pub fn is_of_one_record(&self) -> bool {
        matches!(self.exit, Exit::Corrupt | Exit::Permission)
    }

    /// Whether access was denied to something that belongs to this user, so that it may hold what this user wrote.
    pub fn is_own(&self) -> bool {
        self.is_own
    }

    /// The same, of a store whose servers have never answered this process and may soon.
    #[must_use]
    pub fn unreached(self) -> Error {
        Error { is_unreached: true, ..self }
    }

    /// Whether the store's servers have never answered this process and may soon, for example after a restart. Nothing
    /// was changed.
    pub fn is_unreached(&self) -> bool {
        self.is_unreached
    }

    /// What happened to which thing.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What to do about it; empty where nobody knows.
    pub fn hint(&self) -> &str {
        &self.hint
    }

    /// Whether a change was refused for a reason that often passes: the store is full, read-only or fails just now.
    pub fn is_refused_change(&self) -> bool {
        matches!(self.exit, Exit::InputOutput | Exit::CannotCreate)
    }

    /// The exit code that goes with it.
    pub fn exit(&self) -> Exit {
        self.exit
    }
}

/// Whether this user owns it.
fn is_own(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.uid() == nix::unistd::geteuid().as_raw())
}

/// The exit code and the cure for an error number, wherever it comes from.
fn classify(errno: Errno) -> (Exit, &'static str) {
    match errno {
        Errno::EACCES | Errno::EPERM => {
            (Exit::Permission, "ask its owner for permission, or name another store with --store")
        }
        Errno::EROFS => (Exit::CannotCreate, "it is mounted read-only; name another store with --store"),
        Errno::ENOSPC | Errno::EDQUOT => (Exit::InputOutput, "free some space or inodes there, then try again"),
        Errno::EIO | Errno::ESTALE | Errno::EFBIG => {
            (Exit::InputOutput, "see the kernel log and the state of that file system, then try again")
        }
        Errno::ENOENT => (Exit::Unreachable, "create it, or name another store with --store"),
        Errno::ENOTDIR => (Exit::Unreachable, "a file stands where a directory belongs; name another store"),
        Errno::ELOOP => (Exit::Permission, "links are not followed there; name the real directory"),
        Errno::EEXIST => (Exit::CannotCreate, "something else has that name; move it away"),
        Errno::EMFILE | Errno::ENFILE => (Exit::System, "raise the limit of open files (ulimit -n)"),
        Errno::ENOMEM | Errno::EAGAIN => (Exit::System, "the system is out of memory or processes; try again"),
        Errno::ENAMETOOLONG => (Exit::Usage, "use a shorter path"),
        _ => (Exit::System, "see the kernel log, then try again"),
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
