//! Transactions of the database: its connection, their durability, and what csalock repeats.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};

use super::errors::{self, Cause};
use super::{COUNT, Sqlite, checks, journal, schema, vfs};
use crate::error::{Error, Result};
use crate::store::deadline::of_call;
use crate::store::{Durability, WriteOptions, guarded, with_suffix};

type Done<T> = std::result::Result<T, Cause>;

/// Connection of a store, which the first use opens and an error drops.
pub(super) type Shared = Arc<Mutex<Option<Database>>>;

/// Connections of all stores in this process.
static CONNECTIONS: Mutex<Vec<Weak<Mutex<Option<Database>>>>> = Mutex::new(Vec::new());

/// Returns a place for the connection of a store.
pub(super) fn share() -> Shared {
    let place = Shared::default();
    let mut all = guarded(&CONNECTIONS);
    all.retain(|place| place.strong_count() > 0);
    all.push(Arc::downgrade(&place));
    place
}

/// Closes all connections of this process, which must call this before a fork. A child inherits SQLite's knowledge of
/// the process's locks, but not the locks. Both processes open the database again at the next use.
pub(crate) fn close_before_fork() {
    let all: Vec<Shared> = guarded(&CONNECTIONS).iter().filter_map(Weak::upgrade).collect();
    all.iter().for_each(|place| *guarded(place) = None);
}

/// An open connection to the database.
pub(super) struct Database {
    pub(super) connection: Connection,
    /// Last `PRAGMA synchronous` statement of this connection.
    tuned: Option<&'static str>,
    /// Identity of the open file.
    file: Option<checks::FileId>,
    /// Identity of the log, once this connection has made a commit that is in it.
    log: Option<checks::FileId>,
    /// Number of frames in the log after the last commit. It is zero if the database has no log.
    pub(super) frames: Arc<AtomicI32>,
}

impl Database {
    /// Sets how far the next transactions sync to the disk.
    ///
    /// With a log, NORMAL syncs nothing: a power cut may undo the last commits, but later ones before earlier ones, and
    /// each as a whole. EXTRA syncs the log, and with it all earlier commits.
    ///
    /// With a rollback journal, NORMAL syncs journal and database, so either the old or the new content survives. The
    /// removal of the journal commits the transaction and is not synced: if a power cut undoes the removal, the journal
    /// undoes the commit. EXTRA then syncs the directory, and with it the name of a new database. FULL is not enough: it
    /// writes the journal more carefully, but never syncs its removal.
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
    /// Runs `work` on the database, or returns `T::default()` without a database.
    pub(super) fn reading<T: Default>(&self, work: impl Fn(&Connection) -> Done<T>) -> Result<T> {
        let mut database = guarded(&self.database);
        // A read of a removed file would return grants that no other process knows.
        database.take_if(|database| database.file != checks::file_id(&self.path));
        let file = if database.is_none() { checks::check_file(&self.path)? } else { None };
        if database.is_none() && file.is_none() {
            return Ok(T::default());
        }
        let read = |connection: &Connection| {
            work(connection).or_else(|cause| match schema::is_missing(connection, cause)? {
                true => Ok(T::default()),
                false => work(connection),
            })
        };
        let mut done = self.with_retries(&mut database, file, |database| read(&database.connection));
        if done.as_ref().is_err_and(errors::is_refused) && journal::cannot_make_log(&self.path) {
            let read = self.connect_without_log().map_err(Cause::from).and_then(|connection| read(&connection));
            // Without a log, no other process has changed the file meanwhile.
            if journal::cannot_make_log(&self.path) {
                done = read;
            }
        }
        done.map_err(|cause| {
            *database = None;
            self.explain(cause)
        })
    }

    /// Runs `work` in a write transaction on the database, which is created if there is none. Returns `None` if the
    /// file of the open database was removed or replaced.
    pub(super) fn writing<T>(
        &self,
        keep: WriteOptions,
        work: impl Fn(&Transaction<'_>) -> Done<T>,
    ) -> Result<Option<T>> {
        let mut database = guarded(&self.database);
        let file = if database.is_none() { checks::check_file(&self.path)? } else { None };
        if database.is_none() && file.is_none() {
            checks::create_file(&self.path, keep.mode)?;
        }
        // The check comes after the creation, since another process may have created the file first.
        keep.mode.map_or(Ok(()), |mode| checks::check_mode(&self.path, mode))?;
        let done = self.with_retries(&mut database, file, |database| {
            database.tune(keep.durability)?;
            let Database { connection, file, frames, .. } = database;
            let transaction = Transaction::new(connection, TransactionBehavior::Immediate)?;
            // No other process would ever read a commit in a removed file.
            if *file != checks::file_id(&self.path) {
                return Err(Cause::Moved);
            }
            frames.store(0, Ordering::Relaxed);
            let value = work(&transaction).or_else(|cause| {
                if schema::is_missing(&transaction, cause)? {
                    journal::remove_foreign_log(&self.path);
                    transaction.execute_batch(schema::CREATE)?;
                    // If the file is deleted later, the numbers of its successor are higher nevertheless.
                    transaction.execute(COUNT, [self.host.wall().as_micros() as i64])?;
                }
                work(&transaction)
            })?;
            transaction.commit()?;
            Ok(value)
        });
        done.map(Some).or_else(|cause| {
            // SQLite opens the log by the name of the database, which fails if the file is gone.
            let file = database.take().and_then(|open| open.file);
            match file.is_some_and(|file| checks::is_elsewhere(&self.path, file)) || errors::was_moved(&cause) {
                true => Ok(None),
                false => Err(self.explain(cause)),
            }
        })
    }

    /// Runs `work`, and repeats it with another connection: once if the database looks damaged or is busy, and until
    /// the call's limit if SQLite only ran out of tries. SQLite reports a failed read as damage too, and after a failed
    /// unlock it waits for its own lock. The file of a database that is not open yet has the identity `file`, if it is
    /// known.
    fn with_retries<T>(
        &self,
        database: &mut Option<Database>,
        mut file: Option<checks::FileId>,
        work: impl Fn(&mut Database) -> Done<T>,
    ) -> Done<T> {
        self.busy.begin();
        let mut is_first = true;
        loop {
            let done = vfs::within(&self.busy, || self.opened(database, file.take()).and_then(&work));
            let again = done.as_ref().is_err_and(|cause| {
                let may_pass = errors::looks_damaged(cause) || errors::is_busy(cause);
                (is_first && may_pass) || (errors::ran_out_of_tries(cause) && self.busy.pause_after(0))
            });
            if !again {
                return done;
            }
            is_first = false;
            *database = None;
        }
    }

    /// Remembers the files of a commit, for [`Sqlite::has_other_files`].
    pub(super) fn note_files(&self) {
        let mut database = guarded(&self.database);
        let Some(open) = database.as_mut() else { return };
        *guarded(&self.committed_in) = open.file;
        if open.log.is_none() && open.frames.load(Ordering::Relaxed) > 0 {
            open.log = checks::file_id(&with_suffix(&self.path, "-wal"));
        }
    }

    /// Returns true if the database was replaced since the last commit of this process, or its log since the first commit
    /// of this connection. No other process removes the log meanwhile, except by mistake.
    pub(super) fn has_other_files(&self) -> bool {
        let log = guarded(&self.database).as_ref().and_then(|open| open.log);
        guarded(&self.committed_in).is_some_and(|file| checks::is_elsewhere(&self.path, file))
            || log.is_some_and(|log| checks::is_elsewhere(&with_suffix(&self.path, "-wal"), log))
    }

    /// Returns the connection, and opens it if necessary.
    fn opened<'a>(&self, database: &'a mut Option<Database>, file: Option<checks::FileId>) -> Done<&'a mut Database> {
        match database {
            Some(database) => Ok(database),
            None => {
                let file = file.or_else(|| checks::file_id(&self.path));
                let frames = Arc::default();
                let connection = self.connect(&frames)?;
                Ok(database.insert(Database { connection, tuned: None, file, log: None, frames }))
            }
        }
    }

    /// Opens an existing database. The final component of the path must not be a symlink.
    fn connect(&self, frames: &Arc<AtomicI32>) -> rusqlite::Result<Connection> {
        let flags =
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let mut opened = Connection::open_with_flags_and_vfs(&self.path, flags, vfs::name());
        if errors::is_link(&opened) {
            // Symlinks in the path of its directory are the user's choice, so they are allowed.
            opened = Connection::open_with_flags_and_vfs(checks::without_links(&self.path), flags, vfs::name());
        }
        let mut connection = harmless(opened?)?;
        // `tend_journal` writes the log into the database, from time to time.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        let frames = frames.clone();
        connection.wal_hook(Some(move |_: &mut _, count| {
            frames.store(count, Ordering::Relaxed);
            Ok(())
        }))?;
        let busy = self.busy.clone();
        connection.busy_handler(Some(move |tries| busy.pause_after(tries)))?;
        Ok(connection)
    }

    /// Opens a database that has a log from time to time, but not now, for a user who may not create one. SQLite then
    /// takes the file as it is.
    fn connect_without_log(&self) -> rusqlite::Result<Connection> {
        let mut uri = "file:".to_string();
        for byte in checks::without_links(&self.path).as_os_str().as_bytes() {
            let _ = write!(uri, "%{byte:02X}");
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
        harmless(Connection::open_with_flags(uri + "?immutable=1", flags | OpenFlags::SQLITE_OPEN_NOFOLLOW)?)
    }

    /// Returns the error for a failure of the database, whose connection is closed.
    fn explain(&self, cause: Cause) -> Error {
        if errors::is_busy(&cause) {
            return errors::locked(&self.path, of_call().is_some());
        }
        errors::explain(cause, &self.path)
    }
}

/// Returns the connection after it has lost triggers and views: a user who may write the database can add them, and they
/// would run as this user or never end.
fn harmless(connection: Connection) -> rusqlite::Result<Connection> {
    for harmful in [DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW] {
        connection.set_db_config(harmful, false)?;
    }
    Ok(connection)
}
