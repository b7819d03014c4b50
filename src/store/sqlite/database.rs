//! Transactions of the database: its connection, their durability, and what csalock repeats.

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};

use super::errors::{self, Cause};
use super::{COUNT, Sqlite, checks, schema};
use crate::error::{Error, Result};
use crate::store::{Durability, WriteOptions, guarded};

type Done<T> = std::result::Result<T, Cause>;

/// An open connection to the database.
pub(super) struct Database {
    connection: Connection,
    /// Last `PRAGMA synchronous` statement of this connection.
    tuned: Option<&'static str>,
    /// Identity of the open file.
    file: Option<checks::FileId>,
}

impl Database {
    /// Sets how far the next transactions sync to the disk.
    ///
    /// NORMAL syncs journal and database, so either the old or the new content survives. The removal of the journal
    /// commits the transaction and is not synced: if a power cut undoes the removal, the journal undoes the commit.
    /// EXTRA then syncs the directory, and with it the name of a new database. FULL is not enough: it writes the
    /// journal more carefully, but never syncs its removal.
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
        // A removed file cannot be written, and a read of it would return grants that no other process knows.
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

    /// Runs `work` in a write transaction on the database, which is created if there is none. Returns `T::default()` if
    /// the file of the open database was removed or replaced.
    pub(super) fn writing<T: Default>(
        &self,
        keep: WriteOptions,
        work: impl Fn(&Transaction<'_>) -> Done<T>,
    ) -> Result<T> {
        let mut database = guarded(&self.database);
        if database.is_none() && !checks::check_file(&self.path)? {
            checks::create_file(&self.path, keep.mode)?;
        }
        // The check comes after the creation, since another process may have created the file first.
        keep.mode.map_or(Ok(()), |mode| checks::check_mode(&self.path, mode))?;
        let done = self.retry_once(&mut database, |database| {
            database.tune(keep.durability)?;
            let transaction = Transaction::new(&mut database.connection, TransactionBehavior::Immediate)?;
            let value = work(&transaction).or_else(|cause| {
                if schema::is_missing(&transaction, cause)? {
                    transaction.execute_batch(schema::CREATE)?;
                    // If the file is deleted later, the numbers of its successor are higher nevertheless.
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

    /// Runs `work`, and repeats it once if the database looks damaged: SQLite reports a failed disk read as damage too.
    fn retry_once<T>(&self, database: &mut Option<Database>, work: impl Fn(&mut Database) -> Done<T>) -> Done<T> {
        self.busy.begin();
        let done = self.opened(database).and_then(&work);
        if !done.as_ref().is_err_and(errors::looks_damaged) {
            return done;
        }
        *database = None;
        self.opened(database).and_then(&work)
    }

    /// Returns the connection, and opens it if necessary.
    fn opened<'a>(&self, database: &'a mut Option<Database>) -> Done<&'a mut Database> {
        match database {
            Some(database) => Ok(database),
            None => {
                let file = checks::file_id(&self.path);
                Ok(database.insert(Database { connection: self.connect()?, tuned: None, file }))
            }
        }
    }

    /// Opens an existing database. The final component of the path must not be a symlink.
    fn connect(&self) -> rusqlite::Result<Connection> {
        let flags =
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let mut opened = Connection::open_with_flags(&self.path, flags);
        if errors::is_link(&opened) {
            // Symlinks in the path of its directory are the user's choice, so they are allowed.
            opened = Connection::open_with_flags(checks::without_links(&self.path), flags);
        }
        let mut connection = opened?;
        // A user who may write the database can add triggers and views, which would run as this user or never end.
        for harmful in [DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW] {
            connection.set_db_config(harmful, false)?;
        }
        let busy = self.busy.clone();
        connection.busy_handler(Some(move |tries| busy.pause(tries)))?;
        Ok(connection)
    }

    /// Returns the error for a failure of the database, whose connection is closed.
    fn explain(&self, cause: Cause) -> Error {
        if errors::is_busy(&cause) {
            return errors::locked(&self.path, self.busy.is_bounded());
        }
        errors::explain(cause, &self.path)
    }
}
