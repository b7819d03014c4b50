//! Transactions of the database: its connection, its journal, its schema, and what csalock repeats.
//!
//! A write-ahead log makes a commit cheap: an append, without a sync unless the commit must survive a power cut. SQLite
//! reads the whole log when a process opens a database that no other process has open. The log therefore stays short.
//!
//! Log and index (`-wal`, `-shm`) are files of their own, which stay when the process ends. If another program removed
//! them, even a read creates them again. If a user of the database could not write them, the database keeps SQLite's
//! rollback journal.
//!
//! **Schema.** The views read the JSON of the records, so they cannot disagree with them. `waiters` has the waiters of a
//! name in order of arrival.
//!
//! Rows whose name contains a NUL are auxiliary objects. The ends of long queues are NAME NUL PAGE; the views show
//! their waiters. Long values are NAME NUL value.MARK; the views skip them, because they may be large. Commit records
//! are PROOF NUL decision.
//!
//! `pid` is the first of the owners. `since` and `expires` are UTC, in the format of SQLite's functions; `expires` is
//! NULL for a grant without a time limit. Names appear unescaped, even if a terminal would interpret them. Commands and
//! labels appear as in the record, with `%XX` for each byte that is not printable ASCII. An unreadable record has no
//! rows. The views do not know which processes are alive: `csalock status` does.
//!
//! SQLite parses the views at each open of the database, so every call pays for their length.
//!
//! The table's name ends in the number of the format. A csalock of another format thus finds no table, instead of a
//! wrong one, and the usual case needs no query for the format.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, Weak};
use std::{fs, ptr};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior, ffi};

use super::errors::{self, Cause};
use super::{Sqlite, busy, checks};
use lock::error::{Error, Result};
use store::{Call, CommitResult, Durability, WriteOptions, guarded, with_suffix};

type Done<T> = std::result::Result<T, Cause>;

/// Connection of a store, which the first use opens and an error drops.
pub(super) type Shared = Arc<Mutex<Option<Database>>>;

/// Those of all stores in this process.
static CONNECTIONS: Mutex<Vec<Weak<Mutex<Option<Database>>>>> = Mutex::new(Vec::new());

/// Size of the log, in bytes, at which it is written into the database and emptied: twelve frames of 4 KiB.
///
/// A frame costs each lone process 2 us, and the writing costs three syncs, 0.5 ms or more. A commit is one or two
/// frames.
const MOST_OF_LOG: u64 = 12 * (4096 + 24);

const EMPTY_LOG: &str = "PRAGMA wal_checkpoint(TRUNCATE)";

pub(super) fn share() -> Shared {
    let place = Shared::default();
    let mut all = guarded(&CONNECTIONS);
    all.retain(|place| place.strong_count() > 0);
    all.push(Arc::downgrade(&place));
    place
}

/// Closes all connections of this process, which must call this before a fork. A child inherits SQLite's knowledge of
/// the process's locks, but not the locks. Both processes open the database again at the next use.
pub fn close_before_fork() {
    let all: Vec<Shared> = guarded(&CONNECTIONS).iter().filter_map(Weak::upgrade).collect();
    all.iter().for_each(|place| *guarded(place) = None);
}

pub(super) struct Database {
    connection: Connection,
    /// Identity of the open file; `None` if it was missing, or had several names, when it was opened.
    file: Option<checks::FileId>,
    /// Identity of the log, once this connection has made a commit that is in it.
    log: Option<checks::FileId>,
}

impl Sqlite {
    /// Runs `work` on the database, or returns `T::default()` without a database.
    pub(super) fn reading<T: Default>(&self, call: Call, work: impl Fn(&Connection) -> Done<T>) -> Result<T> {
        let mut database = guarded(&self.database);
        // A read of a removed file would return grants that no other process knows.
        database.take_if(|database| !checks::is_name_of(&self.path, database.file));
        if database.is_none() && !checks::check_file(&self.path)? {
            return Ok(T::default());
        }
        let mut done = self.with_retries(call, &mut database, |database| read(&database.connection, &work));
        // A user who may only read looks at the database also when it has no log, which this user may not create.
        if done.as_ref().is_err_and(Cause::is_refused) && checks::cannot_make_log(&self.path) {
            let read = self.connect_without_log().map_err(Cause::from).and_then(|found| read(&found, &work));
            // Without a log, no other process has changed the file meanwhile.
            if checks::cannot_make_log(&self.path) {
                done = read;
            }
        }
        done.map_err(|cause| {
            *database = None;
            self.explain(call, cause)
        })
    }

    /// Runs `work` in a write transaction on the database, which is created if there is none. The result is a conflict if
    /// the file of the open database was removed or replaced: no other process would ever read a commit in it. The caller
    /// then reads, which opens the new file.
    pub(super) fn writing(
        &self,
        call: Call,
        options: WriteOptions,
        work: impl Fn(&Transaction<'_>) -> Done<CommitResult>,
    ) -> Result<CommitResult> {
        let mut database = guarded(&self.database);
        if database.is_none() && !checks::check_file(&self.path)? {
            checks::create_file(&self.path, options.mode)?;
        }
        // The check comes after the creation, since another process may have created the file first.
        if let Some(mode) = options.mode {
            checks::check_mode(&self.path, mode)?;
        }
        // A commit that failed may stand all the same, and is tried again.
        let has_tried = Cell::new(false);
        let commit = |database: &mut Database| {
            database.connection.execute_batch(synchronous(options.durability))?;
            let file = database.file;
            let transaction = Transaction::new(&mut database.connection, TransactionBehavior::Immediate)?;
            if !checks::is_name_of(&self.path, file) {
                return Ok(CommitResult::Conflict(None));
            }
            let pages_before = pages(&transaction)?;
            let result = work(&transaction).or_else(|cause| {
                if is_schema_missing(&transaction, cause)? {
                    self.remove_foreign_index();
                    transaction.execute_batch(CREATE_SCHEMA)?;
                }
                work(&transaction)
            })?;
            // A file without a log would show its readers empty pages, and one that is still empty is no database with them.
            if pages_before > 0 && pages(&transaction)? > pages_before && has_log(&transaction)? {
                reserve(&transaction)?;
            }
            if matches!(result, CommitResult::Conflict(_)) && has_tried.get() {
                return Ok(CommitResult::Unclear);
            }
            has_tried.set(true);
            transaction.commit()?;
            Ok(result)
        };
        let mut done = self.with_retries(call, &mut database, commit);
        // A log that grew during a long read may be what fills the disk, and only a commit would empty it.
        if done.as_ref().is_err_and(Cause::is_full)
            && let Some(open) = database.as_ref()
            && fs::symlink_metadata(with_suffix(&self.path, "-wal")).is_ok_and(|found| found.len() >= MOST_OF_LOG)
        {
            let _ = open.connection.query_row(EMPTY_LOG, [], |_| Ok(()));
            done = self.with_retries(call, &mut database, commit);
        }
        done.or_else(|cause| {
            // SQLite opens the log by the name of the database, which fails if the file is gone.
            let file = database.take().and_then(|open| open.file);
            if file.is_some_and(|file| checks::is_elsewhere(&self.path, file)) {
                return Ok(CommitResult::Unclear);
            }
            Err(self.explain(call, cause))
        })
    }

    /// Runs `work`, and repeats it with another connection: once if the database looks damaged or is busy, and until
    /// the call's limit if SQLite only ran out of tries. SQLite reports a failed read as damage too, and after a failed
    /// unlock it waits for its own lock.
    fn with_retries<T>(
        &self,
        call: Call,
        database: &mut Option<Database>,
        work: impl Fn(&mut Database) -> Done<T>,
    ) -> Done<T> {
        busy::waiting(&self.host, &self.path, call, || {
            let mut is_first = true;
            loop {
                let done = self.opened(database).and_then(&work);
                let again = done.as_ref().is_err_and(|cause| {
                    (is_first && (cause.looks_damaged() || cause.is_busy()))
                        || (cause.ran_out_of_tries() && busy::pause_after(0))
                });
                if !again {
                    return done;
                }
                is_first = false;
                *database = None;
            }
        })
    }

    fn opened<'a>(&self, database: &'a mut Option<Database>) -> Done<&'a mut Database> {
        match database {
            Some(database) => Ok(database),
            None => {
                let file = checks::file_id(&self.path);
                Ok(database.insert(Database { connection: self.connect()?, file, log: None }))
            }
        }
    }

    /// Opens an existing database. The final component of the path must not be a symlink.
    fn connect(&self) -> rusqlite::Result<Connection> {
        let flags =
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let path = checks::without_links(&self.path);
        let mut connection = harmless(Connection::open_with_flags_and_vfs(path, flags, busy::vfs())?)?;
        // `after_commit` writes the log into the database, from time to time.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        connection.busy_handler(Some(busy::pause_after))?;
        Ok(connection)
    }

    /// Opens a database whose log is missing now, for a user who may not create one. SQLite then takes the file as it is.
    fn connect_without_log(&self) -> rusqlite::Result<Connection> {
        let mut uri = "file:".to_string();
        for byte in checks::without_links(&self.path).as_os_str().as_bytes() {
            let _ = write!(uri, "%{byte:02X}");
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
        harmless(Connection::open_with_flags(uri + "?immutable=1", flags | OpenFlags::SQLITE_OPEN_NOFOLLOW)?)
    }

    /// Keeps the log short after a commit, gives the database a log if it may have one, and remembers the files for
    /// [`Sqlite::has_other_files`]. Does not wait for other processes. If it fails, the next commit tries again.
    pub(super) fn after_commit(&self) {
        let mut database = guarded(&self.database);
        let Some(open) = database.as_mut() else { return };
        *guarded(&self.committed_in) = open.file;
        let log = with_suffix(&self.path, "-wal");
        open.log = open.log.or_else(|| checks::file_id(&log));
        let statement = match fs::symlink_metadata(&log) {
            Ok(found) if found.len() < MOST_OF_LOG => return,
            Ok(_) => EMPTY_LOG,
            Err(_) if checks::may_have_log(&self.path) => "PRAGMA journal_mode = WAL",
            Err(_) => return,
        };
        let _ = open.connection.query_row(statement, [], |_| Ok(()));
    }

    /// The database was replaced since the last commit of this process, or its log since the first commit of this
    /// connection. No other process removes the log meanwhile, except by mistake.
    pub(super) fn has_other_files(&self) -> bool {
        let log = guarded(&self.database).as_ref().and_then(|open| open.log);
        guarded(&self.committed_in).is_some_and(|file| checks::is_elsewhere(&self.path, file))
            || log.is_some_and(|log| checks::is_elsewhere(&with_suffix(&self.path, "-wal"), log))
    }

    /// Removes the log's index of an earlier database with this name, which processes may still use; SQLite removes the
    /// log. The caller has locked the database for writing. While it is empty, no process has an index of it.
    fn remove_foreign_index(&self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.len() == 0) {
            let _ = fs::remove_file(with_suffix(&self.path, "-shm"));
        }
    }

    fn explain(&self, call: Call, cause: Cause) -> Error {
        if cause.is_busy() {
            return errors::locked(&self.path, call.until.is_some());
        }
        errors::explain(cause, &self.path)
    }
}

fn read<T: Default>(connection: &Connection, work: impl Fn(&Connection) -> Done<T>) -> Done<T> {
    work(connection)
        .or_else(|cause| if is_schema_missing(connection, cause)? { Ok(T::default()) } else { work(connection) })
}

fn pages(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA page_count", [], |row| row.get(0))
}

fn has_log(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("PRAGMA journal_mode", [], |row| Ok(row.get_ref(0)?.as_str() == Ok("wal")))
}

/// Makes room in the file for all pages of this transaction, so that the log can be emptied even on a full disk.
#[expect(unsafe_code, reason = "rusqlite has no function for it")]
fn reserve(transaction: &Transaction<'_>) -> Done<()> {
    let page_size: c_int = transaction.query_row("PRAGMA page_size", [], |row| row.get(0))?;
    let size = pages(transaction)? * i64::from(page_size);
    // SAFETY: the connection is open, and SQLite reads each number during the call only.
    let done = unsafe {
        let tell =
            |what, number: *mut c_void| ffi::sqlite3_file_control(transaction.handle(), ptr::null(), what, number);
        // Without a unit, the file does not grow.
        tell(ffi::SQLITE_FCNTL_CHUNK_SIZE, (&raw const page_size).cast_mut().cast());
        tell(ffi::SQLITE_FCNTL_SIZE_HINT, (&raw const size).cast_mut().cast())
    };
    let full = || rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_FULL), None);
    if done == ffi::SQLITE_OK { Ok(()) } else { Err(full().into()) }
}

/// With a log, NORMAL syncs nothing: a power cut may undo the last commits, but later ones before earlier ones, and
/// each as a whole. EXTRA syncs the log, and with it all earlier commits.
///
/// With a rollback journal, NORMAL syncs journal and database, so either the old or the new content survives. The
/// removal of the journal commits the transaction and is not synced: if a power cut undoes the removal, the journal
/// undoes the commit. EXTRA then syncs the directory, and with it the name of a new database. FULL is not enough: it
/// writes the journal more carefully, but never syncs its removal.
fn synchronous(durability: Durability) -> &'static str {
    match durability {
        Durability::Volatile | Durability::Atomic => "PRAGMA secure_delete = ON; PRAGMA synchronous = NORMAL",
        Durability::Durable => "PRAGMA secure_delete = ON; PRAGMA synchronous = EXTRA",
    }
}

/// A user who may write the database can add triggers and views, which would run as this user or never end.
fn harmless(connection: Connection) -> rusqlite::Result<Connection> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
    Ok(connection)
}

/// "CSLK", by which file(1) and other programs recognize the database.
const APPLICATION: i64 = 0x4353_4C4B;

pub const FORMAT: u32 = 2;

/// Statements that initialize an empty database. All readers must be able to parse them, so they avoid STRICT, `->>`
/// and `unixepoch`. They are tested with 3.40, the version of Debian 12.
const CREATE_SCHEMA: &str = r#"
PRAGMA application_id = 0x43534C4B;
PRAGMA user_version = 2;
CREATE TABLE records_2(name BLOB PRIMARY KEY, version INTEGER NOT NULL, body BLOB) WITHOUT ROWID;
INSERT INTO records_2 VALUES (x'', 0, NULL);
CREATE VIEW entries AS
SELECT list,
 CAST(CASE instr(name, x'00') WHEN 0 THEN name ELSE substr(name, 1, instr(name, x'00') - 1) END AS TEXT) AS name,
 json_extract(j, '$.owner.processes[0]') + 0 AS pid, json_extract(j, '$.owner.host') AS host,
 json_extract(j, '$.owner.uid') AS uid, json_extract(j, '$.owner.command') AS command,
 json_extract(j, '$.owner.label') AS label, datetime(json_extract(j, '$.since') / 1000, 'unixepoch') AS since,
 datetime(json_extract(j, '$.lifetime.expires_at.wall') / 1000, 'unixepoch') AS expires,
 json_extract(j, '$.mode') AS share, coalesce(json_extract(j, '$.token'), version) AS token
FROM (SELECT name, version, list.key AS list, entry.value AS j
 FROM (SELECT name, version, CAST(body AS TEXT) AS record FROM records_2
  WHERE name >= x'01' AND substr(body, 1, 15) <> CAST('{"csalock-value' AS BLOB)),
  json_each(CASE json_valid(record) WHEN 1 THEN record END) AS list, json_each(list.value) AS entry
 WHERE list.key IN ('holders', 'waiters') AND list.type = 'array' AND entry.type = 'object');
CREATE VIEW holders AS
SELECT name, pid, host, uid, command, label, since, expires, share, token FROM entries WHERE list = 'holders';
CREATE VIEW waiters AS
SELECT name, pid, host, uid, command, label, since, share FROM entries WHERE list = 'waiters';
"#;

/// `true` if the database is still empty. An error if it has other content, or if it is not the cause.
fn is_schema_missing(connection: &Connection, cause: Cause) -> Done<bool> {
    if !cause.is_of_schema() {
        return Err(cause);
    }
    let number = |sql| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    if number("SELECT count(*) FROM sqlite_master")? == 0 {
        return Ok(true);
    }
    match (number("PRAGMA application_id")?, number("PRAGMA user_version")?) {
        (APPLICATION, format) if format == i64::from(FORMAT) => Ok(false),
        (APPLICATION, format) => {
            let what = format!("has format {format}, this csalock knows {FORMAT}");
            Err(Cause::Contents(what, "use the csalock that wrote it"))
        }
        _ => {
            let what = "is some other program's database".to_string();
            Err(Cause::Contents(what, "name another file with --store sqlite:PATH"))
        }
    }
}
