//! Errors of SQLite as csalock errors: the kind, and clearer messages than "unable to open database file".

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use rusqlite::ErrorCode;

use super::checks;
use host::{command_of, is_stopped, posix_holders, start_of};
use lock::error::{Error, ErrorKind};
use lock::name::{escape, escape_path, shell_quote};
use store::with_suffix;

/// Maximum length of a path in SQLite, in bytes, less the suffix of the journal.
const LONGEST_PATH: usize = 500;

const MOST_OF_COMMAND: usize = 256;

const MOVE_IT_AWAY: &str = "nothing was changed; move it away when no process holds a lock in it";

pub(super) enum Cause {
    Sqlite(rusqlite::Error),
    /// Other contents than csalock's: what is wrong, and a hint.
    Contents(String, &'static str),
}

impl From<rusqlite::Error> for Cause {
    fn from(error: rusqlite::Error) -> Cause {
        Cause::Sqlite(error)
    }
}

impl Cause {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Cause::Sqlite(error) => error.sqlite_error_code(),
            Cause::Contents(..) => None,
        }
    }

    pub(super) fn is_refused(&self) -> bool {
        matches!(self.code(), Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly))
    }

    pub(super) fn looks_damaged(&self) -> bool {
        matches!(self.code(), Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt))
    }

    pub(super) fn is_full(&self) -> bool {
        self.code() == Some(ErrorCode::DiskFull)
    }

    /// Other processes kept the database locked until the call's limit.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self.code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)) || self.ran_out_of_tries()
    }

    /// SQLite tried a hundred times in vain to begin a read of the log, which it calls a failed protocol.
    pub(super) fn ran_out_of_tries(&self) -> bool {
        self.code() == Some(ErrorCode::FileLockingProtocolFailed)
    }

    /// A statement does not fit the tables.
    pub(super) fn is_of_schema(&self) -> bool {
        self.code() == Some(ErrorCode::Unknown)
    }
}

/// A locked database is a busy lock for callers with a deadline, else an unreachable store.
pub(super) fn locked(path: &Path, has_deadline: bool) -> Error {
    let kind = if has_deadline { ErrorKind::Busy } else { ErrorKind::Unavailable };
    // A process with an open log has a lock on the database all the time, but one on the index only while it writes.
    let mut holders = posix_holders(&with_suffix(path, "-shm"), true);
    if holders.is_empty() {
        holders = posix_holders(path, false);
    }
    // Other csalock calls hold the lock only briefly, and may have ended meanwhile. The process that keeps it is stopped or
    // started before this call.
    let order = |pid| {
        let start = start_of(pid);
        (start.is_none(), !is_stopped(pid), start, pid)
    };
    let (by, cure) = match holders.into_iter().map(order).min() {
        Some((_, false, _, pid)) => (
            format!("{}, which is stopped", shown(pid)),
            format!("continue it (`kill -CONT {pid}`) or end it, then try again"),
        ),
        Some((_, true, _, pid)) => (shown(pid), "end that process or its transaction, then try again".to_string()),
        None => (
            "another process".to_string(),
            format!("find it with `fuser -v {}`", shell_quote(path.as_os_str().as_bytes())),
        ),
    };
    Error::new(kind, format!("the database {} is kept locked by {by}", escape_path(path)), cure)
}

fn shown(pid: i32) -> String {
    match &command_of(pid)[..] {
        b"" => format!("pid {pid}"),
        command => format!("pid {pid} ({})", escape(&command[..command.len().min(MOST_OF_COMMAND)])),
    }
}

pub(super) fn without_counter() -> Cause {
    Cause::Contents("has lost its row with the empty name, the last version number".to_string(), MOVE_IT_AWAY)
}

pub(super) fn explain(cause: Cause, path: &Path) -> Error {
    let error = match cause {
        Cause::Contents(what, cure) => {
            return Error::new(ErrorKind::Corrupt, format!("the database {} {what}", escape_path(path)), cure);
        }
        Cause::Sqlite(error) => error,
    };
    let failed = |kind, what: &str, cure: &str| {
        Error::new(kind, format!("the database {} {what}: {error}", escape_path(path)), cure)
    };
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => Error::os(Errno::ENOSPC, "write the database", path),
        Some(ErrorCode::OutOfMemory) => Error::os(Errno::ENOMEM, "use the database", path),
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            let cure = "nothing was changed; check the path: name another store with --store, or move the file away";
            failed(ErrorKind::Corrupt, "is damaged, or no database at all", cure)
        }
        Some(ErrorCode::Unknown) => failed(ErrorKind::Corrupt, "lacks what csalock put in it", MOVE_IT_AWAY),
        Some(ErrorCode::CannotOpen) if path.as_os_str().len() >= LONGEST_PATH => {
            Error::os(Errno::ENAMETOOLONG, "open the database", path)
        }
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => checks::obstacle(path)
            .unwrap_or_else(|| failed(ErrorKind::System, "cannot be used", "see the limit of open files (ulimit -n)")),
        Some(ErrorCode::SystemIoFailure) => checks::obstacle(path).unwrap_or_else(|| {
            let cure = "see the kernel log, quotas, `ulimit -f` and the state of that file system, then try again";
            failed(ErrorKind::InputOutput, "cannot be read or written", cure)
        }),
        _ => failed(ErrorKind::System, "cannot be used", "see whether `sqlite3` can, then try again"),
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    #[test]
    fn a_log_that_is_kept_locked_is_busy() {
        let failed = |code| Cause::Sqlite(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
        assert!(failed(ffi::SQLITE_PROTOCOL).is_busy() && failed(ffi::SQLITE_BUSY_RECOVERY).is_busy());
        assert!(!failed(ffi::SQLITE_FULL).is_busy());
    }
}
