//! SQLite's errors as ours: the exit code, and words that say more than "unable to open database file".

use std::path::Path;

use nix::errno::Errno;
use rusqlite::{ErrorCode, ffi};

use super::ground;
use crate::error::Error;
use crate::exit::Exit;
use crate::name::shown_path;

/// The longest path that SQLite takes, less what it appends for the journal.
const LONGEST_PATH: usize = 500;

const MOVE_IT_AWAY: &str = "nothing was changed; move it away when nobody holds a lock in it";

/// What went wrong: as SQLite says it, or already in our words.
pub(super) enum Cause {
    Sqlite(rusqlite::Error),
    Ours(Exit, String, &'static str),
}

impl From<rusqlite::Error> for Cause {
    fn from(error: rusqlite::Error) -> Cause {
        Cause::Sqlite(error)
    }
}

/// Whether it was refused because a link is part of the path.
pub(super) fn is_link<T>(opened: &rusqlite::Result<T>) -> bool {
    let code = opened.as_ref().err().and_then(rusqlite::Error::sqlite_error);
    code.is_some_and(|code| code.extended_code == ffi::SQLITE_CANTOPEN_SYMLINK)
}

/// Whether the file under the connection was removed or replaced.
pub(super) fn was_moved(cause: &Cause) -> bool {
    let Cause::Sqlite(error) = cause else { return false };
    error.sqlite_error().is_some_and(|code| code.extended_code == ffi::SQLITE_READONLY_DBMOVED)
}

/// Whether the database makes no sense, or could not be read.
pub(super) fn looks_damaged(cause: &Cause) -> bool {
    let Cause::Sqlite(error) = cause else { return false };
    matches!(error.sqlite_error_code(), Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt))
}

/// Somebody has removed the row that numbers the versions.
pub(super) fn without_counter() -> Cause {
    let what = "has lost its row with the empty name, the last version number";
    Cause::Ours(Exit::Corrupt, what.to_string(), MOVE_IT_AWAY)
}

/// Our error for a failure of the database at `path`.
pub(super) fn explain(cause: Cause, path: &Path) -> Error {
    let error = match cause {
        Cause::Ours(exit, what, cure) => {
            return Error::new(exit, format!("the database {} {what}", shown_path(path)), cure);
        }
        Cause::Sqlite(error) => error,
    };
    let failed = |exit, what: &str, cure: &str| {
        Error::new(exit, format!("the database {} {what}: {error}", shown_path(path)), cure)
    };
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => failed(
            Exit::System,
            "stayed busy for thirty seconds",
            "somebody keeps a transaction open, for example a sqlite3 shell: see `fuser -v` on that file",
        ),
        Some(ErrorCode::DiskFull) => Error::os(Errno::ENOSPC, "write the database", path),
        Some(ErrorCode::OutOfMemory) => Error::os(Errno::ENOMEM, "use the database", path),
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => failed(
            Exit::Corrupt,
            "is damaged, or no database at all",
            "nothing was changed; move it away, or name another store with --store",
        ),
        Some(ErrorCode::Unknown) => failed(Exit::Corrupt, "lacks what csalock put in it", MOVE_IT_AWAY),
        Some(ErrorCode::CannotOpen) if path.as_os_str().len() >= LONGEST_PATH => {
            Error::os(Errno::ENAMETOOLONG, "open the database", path)
        }
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => ground::obstacle(path)
            .unwrap_or_else(|| failed(Exit::System, "cannot be used", "see the limit of open files (ulimit -n)")),
        Some(ErrorCode::SystemIoFailure) => ground::obstacle(path).unwrap_or_else(|| {
            let cure = "see the kernel log, quotas and the state of that file system, then try again";
            failed(Exit::InputOutput, "cannot be read or written", cure)
        }),
        _ => failed(Exit::System, "cannot be used", "see whether `sqlite3` can, then try again"),
    }
}
