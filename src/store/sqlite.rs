//! The SQLite store: one database file, for those who want to ask it questions.
//!
//! Everything is in one table, `records_1`: a name, the number of its version, its bytes. The row with the empty name
//! has no bytes; its version is the last number that any record got, so numbers of removed names do not come back. For
//! people with the sqlite3 shell there are the views `holders` and `waiters`, computed from the records themselves (see
//! [`schema`]):
//!
//! ```text
//! sqlite3 -box locks.db 'SELECT name, pid, host, since FROM holders'
//! ```
//!
//! **Swap.** `BEGIN IMMEDIATE`; take the next number if the record's version is the expected one; write or remove the
//! row; `COMMIT`. Whoever dies in between leaves a journal, and the next to come rolls it back.
//!
//! **Settings.** Rollback journal, because a lone process pays a third less for it than for a write-ahead log, and POSIX
//! locks, because the kernel drops them with their process. Nobody keeps the file locked while it does not use it.
//! Synced as far as the database survives a power cut whole; that the last lock does not matters to nobody, for locks
//! die with the boot. What is to outlast it is synced further, in its own transaction ([`Database::tune`]).
//!
//! **The file** is created by the first swap, with a mode that the umask decides; its directory must exist. All records
//! are in it, so a swap that wants its record to be read by fewer people than the file is refused. Everybody who uses
//! it needs write permission on both, for the journal stands beside the database. So root's cron and www-data share one
//! like this: a directory of a common group with mode 2770, and umask 002 for the first who comes.
//!
//! **Notes** of who waits for what ([`crate::lock::WaitEdges`]) stand in a directory beside the database, `locks.db-waits`,
//! that is there only while somebody has waited for more than a moment. The bells of waiters that processes in other network
//! namespaces ring are in there, too.
//!
//! **History** is a file beside the database ([`super::history_file`]): a row would cost a transaction more.
//!
//! **Limits.** One host: network file systems are refused, since their POSIX locks and caches are not to be trusted.
//! Wait for a lock in the queue of its record, never in the database: SQLite's own waiting is unfair ([`busy`]). In a
//! directory that others may write, sticky or not, they can plant a journal. Who opens the file by other means in the
//! same process (cp is fine, it is another one) drops our kernel locks on it. To compare a name SQLite reads its whole
//! row, so one of a gigabyte, which nobody but a stranger writes, costs as much memory before it is refused. A csalock with another format finds no
//! table of its own here and says so.

mod busy;
mod checks;
mod errors;
mod health;
mod schema;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, Transaction, TransactionBehavior};

use self::busy::Busy;
use self::errors::Cause;
use super::history_file::HistoryFile;
use super::{
    CommitResult, Directory, Durability, Finding, Layout, Scope, Store, Subscription, Swept, Version, Versioned, Visit,
    WriteOptions,
};
use crate::error::{Error, Result};
use crate::history::Limits;
use crate::host::{Host, boot_lease};
use crate::lock::Lease;
use crate::name::{escape, escape_path};

// How long a body is, SQLite knows without reading it (4 MiB at most: lock::MOST_BYTES).
const READ: &str =
    "SELECT version, CASE WHEN octet_length(body) <= 4194304 THEN body END FROM records_1 WHERE name = ?1";
const STATE: &str = "SELECT (SELECT version FROM records_1 WHERE name = ?1), version FROM records_1 WHERE name = x''";
const COUNT: &str = "UPDATE records_1 SET version = ?1 WHERE name = x''";
const WRITE: &str = "REPLACE INTO records_1 VALUES (?1, ?2, ?3)";
const REMOVE: &str = "DELETE FROM records_1 WHERE name = ?1";
const PAGE: &str = "SELECT version, CASE WHEN octet_length(body) <= 4194304 THEN body END, name FROM records_1 \
                    WHERE name > ?1 ORDER BY name LIMIT 256";

/// A scan takes no more than this into memory at once, one record excepted.
const PAGE_BYTES: usize = 1 << 20;

/// One SQLite database.
pub struct Sqlite {
    path: PathBuf,
    host: Arc<dyn Host>,
    busy: Arc<Busy>,
    /// Opened by the first who needs it, dropped after an error. It must not be carried over a fork.
    database: Mutex<Option<Database>>,
}

type Done<T> = std::result::Result<T, Cause>;

struct Database {
    connection: Connection,
    /// What it was told about waiting for the disk.
    tuned: Option<&'static str>,
    /// The file that it has open.
    file: Option<checks::FileId>,
}

impl Database {
    /// Says how much the next transactions wait for the disk.
    ///
    /// NORMAL syncs journal and database, so that either the old or the new content survives. But what commits is the
    /// removal of the journal, and that is not synced: should a power cut undo it, then the journal undoes the commit.
    /// EXTRA syncs the directory after that, and with it the name of a database that was just created. FULL would not
    /// do: it writes the journal more carefully, but never syncs its removal.
    fn tune(&mut self, durability: Durability) -> rusqlite::Result<()> {
        let wanted = match durability {
            Durability::Volatile | Durability::Atomic => "PRAGMA synchronous = NORMAL",
            Durability::Durable => "PRAGMA synchronous = EXTRA",
        };
        if self.tuned != Some(wanted) {
            self.connection.execute_batch(wanted)?;
            self.tuned = Some(wanted);
        }
        Ok(())
    }
}

impl Sqlite {
    /// Opens the database at this absolute path, or the place where the first swap will create it.
    ///
    /// # Errors
    ///
    /// When its directory is missing, on a network file system, or open to others without the sticky bit.
    pub fn open(path: &Path, host: Arc<dyn Host>) -> Result<Sqlite> {
        checks::check_directory(path)?;
        let busy = Arc::new(Busy::new(path.to_path_buf(), host.clone()));
        Ok(Sqlite { path: path.to_path_buf(), host, busy, database: Mutex::default() })
    }

    fn database(&self) -> MutexGuard<'_, Option<Database>> {
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on the database, if there is one.
    fn reading<T: Default>(&self, work: impl Fn(&Connection) -> Done<T>) -> Result<T> {
        let mut database = self.database();
        // To write a file that was removed fails; to read it tells of grants that no other process knows.
        database.take_if(|database| database.file != checks::file_id(&self.path));
        if database.is_none() && !checks::check_file(&self.path)? {
            return Ok(T::default());
        }
        let done = self.retry_once(&mut database, |database| {
            let connection = &database.connection;
            work(connection).or_else(|cause| match schema::is_missing(connection, cause)? {
                true => Ok(T::default()),
                false => work(connection),
            })
        });
        done.map_err(|cause| {
            *database = None;
            self.explain(cause)
        })
    }

    /// Runs `work` in a write transaction on the database, which is created if there is none. `T::default()` when the
    /// database that we knew is not there any more.
    fn writing<T: Default>(&self, keep: WriteOptions, work: impl Fn(&Transaction<'_>) -> Done<T>) -> Result<T> {
        let mut database = self.database();
        if database.is_none() && !checks::check_file(&self.path)? {
            checks::create_file(&self.path, keep.mode)?;
        }
        // After that, since somebody else may have been faster.
        keep.mode.map_or(Ok(()), |mode| checks::check_mode(&self.path, mode))?;
        let done = self.retry_once(&mut database, |database| {
            database.tune(keep.durability)?;
            let transaction = Transaction::new(&mut database.connection, TransactionBehavior::Immediate)?;
            let value = work(&transaction).or_else(|cause| {
                if schema::is_missing(&transaction, cause)? {
                    transaction.execute_batch(schema::CREATE)?;
                    // Should the file be deleted one day, then its successor's numbers are higher all the same.
                    transaction.execute(COUNT, [self.host.wall().as_micros() as i64])?;
                }
                work(&transaction)
            })?;
            transaction.commit()?;
            Ok(value)
        });
        done.or_else(|cause| {
            *database = None;
            if errors::was_moved(&cause) { Ok(T::default()) } else { Err(self.explain(cause)) }
        })
    }

    /// Our error for a failure of the database, whose connection is closed.
    fn explain(&self, cause: Cause) -> Error {
        if errors::is_busy(&cause) {
            return errors::locked(&self.path, self.busy.is_bounded());
        }
        errors::explain(cause, &self.path)
    }

    /// The notes of who waits for what, which are only there while somebody waits and would cost a sync each in the
    /// database: a directory beside it.
    fn notes(&self) -> Result<Directory> {
        let path = [self.path.as_os_str().as_bytes(), b"-waits"].concat();
        Directory::open(Path::new(OsStr::from_bytes(&path)), Layout::Beside, self.host.clone())
    }

    /// Does that, and once more if the database looks damaged: SQLite says so as well when the disk did not read it.
    fn retry_once<T>(&self, database: &mut Option<Database>, work: impl Fn(&mut Database) -> Done<T>) -> Done<T> {
        self.busy.begin();
        let done = self.opened(database).and_then(&work);
        if !done.as_ref().is_err_and(errors::looks_damaged) {
            return done;
        }
        *database = None;
        self.opened(database).and_then(&work)
    }

    /// The connection, which an error ends.
    fn opened<'a>(&self, database: &'a mut Option<Database>) -> Done<&'a mut Database> {
        match database {
            Some(database) => Ok(database),
            None => {
                let file = checks::file_id(&self.path);
                Ok(database.insert(Database { connection: self.connect()?, tuned: None, file }))
            }
        }
    }

    /// Opens a database that exists. No link is followed, neither by us nor by SQLite.
    fn connect(&self) -> rusqlite::Result<Connection> {
        let flags =
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let mut opened = Connection::open_with_flags(&self.path, flags);
        if errors::is_link(&opened) {
            // Links on the way to its directory are the user's own business.
            opened = Connection::open_with_flags(checks::without_links(&self.path), flags);
        }
        let mut connection = opened?;
        // Whoever may write the database can put triggers and views in it, which would run in our name, for ever perhaps.
        for harmful in [DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW] {
            connection.set_db_config(harmful, false)?;
        }
        let busy = self.busy.clone();
        connection.busy_handler(Some(move |tries| busy.pause(tries)))?;
        Ok(connection)
    }

    /// Beside the database, and for the same users.
    fn chronicle<T>(&self, work: impl FnOnce(&HistoryFile<'_>, &Path) -> T) -> T {
        let mut path = self.path.clone().into_os_string();
        path.push("-history");
        let path = PathBuf::from(path);
        let like = || nix::sys::stat::lstat(&self.path);
        work(&HistoryFile { at: nix::fcntl::AT_FDCWD, name: path.clone(), like: &like }, &path)
    }

    /// Records behind `after` in the order of names, as many as are good to have in memory at once.
    fn page(&self, after: &[u8]) -> Result<Vec<(Vec<u8>, Result<Versioned>)>> {
        self.reading(|connection| {
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

    /// A row's version and body, from a statement that selects them first.
    fn stored(&self, row: &Row<'_>, name: &[u8]) -> Result<Versioned> {
        let error = || Error::corrupt(format!("{} has no version, or no body of 4 MiB at most", self.describe(name)));
        let version = match row.get_ref(0) {
            Ok(ValueRef::Integer(number)) if number >= 0 => Version { number: number.unsigned_abs(), mark: 0 },
            _ => return Err(error()),
        };
        match row.get_ref(1) {
            Ok(ValueRef::Blob(body) | ValueRef::Text(body)) => {
                Ok(Versioned { version, body: body.to_vec(), may_be_torn: false })
            }
            _ => Err(error().in_version(version)),
        }
    }
}

impl Store for Sqlite {
    fn read(&self, name: &[u8]) -> Result<Option<Versioned>> {
        if is_note(name) {
            return self.notes()?.read(name);
        }
        let found = self.reading(|connection| {
            Ok(connection.query_row(READ, [name], |row| Ok(self.stored(row, name))).optional()?)
        });
        found?.transpose()
    }

    fn commit_with(
        &self,
        name: &[u8],
        expect: Option<&Version>,
        body: Option<&[u8]>,
        keep: WriteOptions,
    ) -> Result<CommitResult> {
        if is_note(name) {
            return self.notes()?.commit(name, expect, body);
        }
        // A removal shows nobody anything.
        let keep = WriteOptions { mode: keep.mode.filter(|_| body.is_some()), ..keep };
        let expect = match expect {
            None => None,
            Some(Version { number, mark: 0 }) if *number <= i64::MAX as u64 => Some(*number as i64),
            Some(_) => return Ok(CommitResult::Conflict),
        };
        let swapped = self.writing(keep, |transaction| {
            let state = transaction.query_row(STATE, [name], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
            let (found, last): (Option<i64>, i64) = state.ok_or_else(errors::without_counter)?;
            if found != expect {
                return Ok(None);
            }
            let number = last.checked_add(1).filter(|number| *number > 0).ok_or_else(errors::without_counter)?;
            transaction.execute(COUNT, [number])?;
            match body {
                Some(body) => transaction.execute(WRITE, (name, number, body))?,
                None => transaction.execute(REMOVE, [name])?,
            };
            Ok(Some(number))
        });
        Ok(match swapped? {
            Some(number) => CommitResult::Done(Version { number: number.unsigned_abs(), mark: 0 }),
            None => CommitResult::Conflict,
        })
    }

    fn scan(&self, visit: &mut Visit<'_>) -> Result<()> {
        let mut after = Vec::new();
        loop {
            // Nothing is locked while `visit` runs, since that may write.
            let page = self.page(&after)?;
            let Some((last, _)) = page.last() else { return self.notes()?.scan(visit) };
            after.clone_from(last);
            for (name, stored) in page {
                visit(&self.describe(&name), stored)?;
            }
        }
    }

    fn grant_lease(&self, span: Duration) -> Result<Lease> {
        boot_lease::lend(self.host.as_ref(), span)
    }

    fn lease_ttl(&self, lease: &Lease) -> Result<Duration> {
        boot_lease::remaining(self.host.as_ref(), lease)
    }

    fn set_deadline(&self, until: Option<Duration>) {
        self.busy.bound(until);
    }

    fn scope(&self) -> Scope {
        Scope::Local
    }

    fn describe(&self, name: &[u8]) -> String {
        if is_note(name)
            && let Ok(notes) = self.notes()
        {
            return notes.describe(name);
        }
        format!("{} (row {})", escape_path(&self.path), escape(name))
    }

    fn diagnose(&self) -> Vec<Finding> {
        self.findings()
    }

    fn sweep(&self, dry_run: bool) -> Result<Swept> {
        self.notes()?.sweep(dry_run)
    }

    fn notify(&self, bell: &[u8], lease: Option<&Lease>) {
        let _ = self.notes().map(|notes| notes.notify(bell, lease));
    }

    fn subscribe(&self, bell: &[u8], since: &Version) -> Option<Box<dyn Subscription>> {
        self.notes().ok()?.subscribe(bell, since)
    }

    fn remove_channel(&self, bell: &[u8]) {
        let _ = self.notes().map(|notes| notes.remove_channel(bell));
    }

    fn append_history(&self, line: &[u8], limits: &Limits) {
        let _ = self.chronicle(|history_file, _| history_file.append(line, limits, self.host.wall()));
    }

    fn read_history(&self, visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.chronicle(|history_file, path| history_file.read(path, visit)).map(|()| true)
    }
}

/// Whether this is the name of a note, and of no record.
fn is_note(name: &[u8]) -> bool {
    name.first() == Some(&0)
}
