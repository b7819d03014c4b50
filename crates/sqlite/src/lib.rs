//! SQLite store: one database file, for users who want to query it.
//!
//! The table `records_2` has a name, a version number and the bytes of each record. The row with the empty name has no
//! bytes: its version is the last number that any record got, so numbers of removed names are never reused. The views
//! `holders` and `waiters` are for users of the sqlite3 shell and are computed from the records ([`database`]):
//!
//! ```text
//! sqlite3 -box locks.db 'SELECT name, pid, host, since FROM holders'
//! ```
//!
//! **Commit.** `BEGIN IMMEDIATE`; take the next number if the record has the expected version; write or remove the row;
//! `COMMIT`. If a process dies in between, the next process sees no part of the transaction.
//!
//! **Settings.** The store uses a write-ahead log, because its commits need no sync ([`database`]). A power cut may undo
//! the last locks, since locks end with the boot. A transaction that needs more durability syncs the log, and with it
//! all earlier transactions. The store uses POSIX locks, because the kernel drops them with their process.
//! A process has the database open until it ends, but locks it for writing only during a commit.
//!
//! **The file** is created by the first commit, with a mode from the umask; its directory must exist. The file has all
//! records, so the store refuses a commit whose record fewer users may read than the file. All users need write
//! permission for both, because the log is in the directory of the database. A file with a second name, by a hard link
//! or a mount, is refused: users of the other name would not see the log. Root's cron and www-data can share a
//! database in a directory of a common group with mode 2770, if its creator has umask 002.
//!
//! **Channels** of waiters in other network namespaces are in the directory `locks.db-waits` next to the database. The
//! directory exists only during such a wait.
//!
//! **History** is a file next to the database ([`store::history_file`]): a row would cost another transaction.
//!
//! **Limits.** The store serves one host: it refuses network file systems, whose POSIX locks and caches are unreliable.
//! Callers must wait in the queue of a record, never in the database: SQLite's own waiting is unfair ([`busy`]). Users
//! who may write the directory, even if it is sticky, can plant a journal. Code that opens the file by other means in
//! the same process drops the kernel locks on it. A copy of the file alone lacks the log; `sqlite3 locks.db .backup`
//! copies both. SQLite reads a whole row to compare a name, so a row of a gigabyte costs that much memory before it is
//! refused. Only a foreign program writes such a row. A csalock with another format does not find its own table here and
//! reports that.

mod busy;
mod checks;
mod database;
mod errors;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rusqlite::types::ValueRef;
use rusqlite::{OptionalExtension, Row};

use self::database::Shared;
pub use self::database::{FORMAT, close_before_fork};
use directory::Directory;
use host::Host;
use lock::error::{Error, Result};
use lock::name::{escape, escape_path};
use store::history_file::HistoryFile;
use store::leases::BootLeases;
use store::{
    Abilities, Call, CommitResult, Finding, Layout, Leases, Scope, Store, Subscription, Swept, Topic, Upkeep, Version,
    Versioned, Visit, Write, WriteSet, health, with_suffix,
};

// SQLite knows the length of a body without reading it (4 MiB at most: lock::MOST_BYTES).
const READ: &str =
    "SELECT version, CASE WHEN octet_length(body) <= 4194304 THEN body END FROM records_2 WHERE name = ?1";
const STATE: &str = "SELECT (SELECT version FROM records_2 WHERE name = ?1), version FROM records_2 WHERE name = x''";
const COUNT: &str = "UPDATE records_2 SET version = ?1 WHERE name = x''";
const WRITE: &str = "REPLACE INTO records_2 VALUES (?1, ?2, ?3)";
const REMOVE: &str = "DELETE FROM records_2 WHERE name = ?1";
const PAGE: &str = "SELECT version, CASE WHEN octet_length(body) <= 4194304 THEN body END, name FROM records_2 \
                    WHERE name > ?1 ORDER BY name LIMIT 256";

/// Maximum number of bytes that a scan reads into memory at once, except for a single larger record.
const PAGE_BYTES: usize = 1 << 20;

pub struct Sqlite {
    path: PathBuf,
    host: Arc<dyn Host>,
    leases: BootLeases,
    database: Shared,
    committed_in: Mutex<Option<checks::FileId>>,
}

impl Sqlite {
    /// Opens the database at this absolute path. If there is none, the first commit creates it.
    /// Fails if its directory is missing, is on a network file system, or is writable by others without the sticky bit.
    pub fn open(path: &Path, host: Arc<dyn Host>) -> Result<Sqlite> {
        checks::check_directory(path)?;
        Ok(Sqlite {
            path: path.to_path_buf(),
            leases: BootLeases(host.clone()),
            host,
            database: database::share(),
            committed_in: Mutex::default(),
        })
    }

    /// A directory without records, next to the database.
    fn channels(&self) -> Result<Directory> {
        Directory::open(&with_suffix(&self.path, "-waits"), Layout::Beside, self.host.clone())
    }

    fn history_file(&self) -> HistoryFile<'static> {
        let name = with_suffix(&self.path, "-history");
        HistoryFile { at: nix::fcntl::AT_FDCWD, name, like: self.path.clone() }
    }

    /// The records after this name in the order of names, up to [`PAGE_BYTES`].
    fn page(&self, call: Call, after: &[u8]) -> Result<Vec<(Vec<u8>, Result<Versioned>)>> {
        self.reading(call, |connection| {
            let mut statement = connection.prepare(PAGE)?;
            let mut rows = statement.query([after])?;
            let (mut page, mut bytes) = (Vec::new(), 0);
            while bytes < PAGE_BYTES
                && let Some(row) = rows.next()?
            {
                let name = row.get_ref(2)?.as_bytes().unwrap_or_default().to_vec();
                let stored = self.stored(row, &name);
                bytes += stored.as_ref().map_or(0, |stored| stored.body.len());
                page.push((name, stored));
            }
            Ok(page)
        })
    }

    /// The row begins with version and body.
    fn stored(&self, row: &Row<'_>, name: &[u8]) -> Result<Versioned> {
        let error = || Error::corrupt(format!("{} has no version, or no body of 4 MiB at most", self.describe(name)));
        let version = match row.get_ref(0) {
            Ok(ValueRef::Integer(number)) if number >= 0 => Version { number: number.unsigned_abs(), mark: 0 },
            _ => return Err(error()),
        };
        match row.get_ref(1) {
            Ok(ValueRef::Blob(body) | ValueRef::Text(body)) => Ok(Versioned::new(version, body.to_vec())),
            _ => Err(error().in_version(version)),
        }
    }

    /// Makes one change. If it conflicts with a record, passes that record on, which saves the caller a read.
    fn replace(&self, call: Call, change: &Write<'_>) -> Result<CommitResult> {
        let Write { name, body, mut options, .. } = *change;
        if body.is_none() {
            // A removal makes no bytes readable.
            options.mode = None;
        }
        let expect = match change.expect {
            None => None,
            Some(Version { number, mark: 0 }) if number <= i64::MAX as u64 => Some(number as i64),
            Some(_) => return Ok(CommitResult::Conflict(None)),
        };
        self.writing(call, options, |transaction| {
            let state = transaction.query_row(STATE, [name], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
            let (found, last): (Option<i64>, i64) = state.ok_or_else(errors::without_counter)?;
            if found != expect {
                let now = transaction.query_row(READ, [name], |row| Ok(self.stored(row, name))).optional()?;
                return Ok(CommitResult::Conflict(now.and_then(Result::ok)));
            }
            // A power cut may undo the last numbers. The clock makes the numbers after it higher nevertheless.
            let number = last.checked_add(1).filter(|number| *number > 0).ok_or_else(errors::without_counter)?;
            let number = number.max(self.host.wall().as_micros() as i64);
            transaction.execute(COUNT, [number])?;
            match body {
                Some(body) => transaction.execute(WRITE, (name, number, body))?,
                None => transaction.execute(REMOVE, [name])?,
            };
            Ok(CommitResult::Done(Version { number: number.unsigned_abs(), mark: 0 }))
        })
    }
}

impl Store for Sqlite {
    fn read(&self, call: Call, name: &[u8]) -> Result<Option<Versioned>> {
        let found = self.reading(call, |connection| {
            Ok(connection.query_row(READ, [name], |row| Ok(self.stored(row, name))).optional()?)
        });
        found?.transpose()
    }

    fn scan(&self, call: Call, visit: &mut Visit<'_>) -> Result<()> {
        let mut after = Vec::new();
        loop {
            // The database is not locked while `visit` runs, since `visit` may write.
            let page = self.page(call, &after)?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after.clone_from(last);
            for (name, stored) in page {
                visit(&self.describe(&name), stored)?;
            }
        }
    }

    fn commit(&self, call: Call, set: &WriteSet<'_>) -> Result<CommitResult> {
        set.commit_alone(call, &self.leases, |change| self.replace(call, change))
    }

    fn finish(&self, _call: Call, set: &WriteSet<'_>) {
        if !(set.wake.is_empty() && set.closed.is_empty())
            && let Ok(channels) = self.channels()
        {
            channels.carry_out(set);
        }
        for line in set.history.iter() {
            let _ = self.history_file().append(line.as_bytes(), &set.limits, self.host.wall());
        }
        self.after_commit();
    }

    fn leases(&self) -> &dyn Leases {
        &self.leases
    }

    fn subscribe(&self, call: Call, topic: Topic<'_>) -> Option<Box<dyn Subscription>> {
        self.channels().ok()?.subscribe(call, topic)
    }

    fn abilities(&self) -> Abilities {
        Abilities::of(Scope::Local)
    }

    fn is_replaced(&self) -> bool {
        self.has_other_files()
    }
}

impl Upkeep for Sqlite {
    fn describe(&self, name: &[u8]) -> String {
        format!("{} (row {})", escape_path(&self.path), escape(name))
    }

    fn cleaned_directory(&self) -> Option<PathBuf> {
        // A lock on /tmp itself would keep cleaners from all of it.
        self.path.parent().filter(|directory| health::is_cleaned(directory)).map(PathBuf::from)
    }

    fn read_history(&self, _call: Call, visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let history_file = self.history_file();
        history_file.read(&history_file.name, visit).map(|()| true)
    }

    fn sweep(&self, call: Call, dry_run: bool) -> Result<Swept> {
        self.channels()?.sweep(call, dry_run)
    }

    fn diagnose(&self, call: Call) -> Vec<Finding> {
        let checked = checks::check_directory(&self.path).and_then(|()| checks::check_file(&self.path));
        let mut findings = health::of_files("SQLite database", &self.path, checked);
        let version = self.reading(call, |connection| {
            Ok(connection.query_row("PRAGMA schema_version", [], |row| row.get::<_, i64>(0))?)
        });
        // Another file that is named by mistake keeps its mode.
        if version.is_ok_and(|version| version > 0) {
            findings.extend(health::readers(&self.path));
        }
        findings
    }
}
