//! Schema of the database: the table, the detection of foreign or newer databases, and two views for users.
//!
//! The views read the JSON of the records, so they cannot disagree with them:
//!
//! - `holders`: name, pid, host, uid, command, label, since, expires, share, token
//! - `waiters`: name, pid, host, uid, command, label, since, share; the waiters of a name in order of arrival
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

use rusqlite::Connection;

use super::errors::Cause;

/// The id "CSLK" of the application, by which file(1) and other programs recognize the database.
const APPLICATION: i64 = 0x4353_4C4B;

const FORMAT: i64 = 2;

/// Statements that initialize an empty database. All readers must be able to parse them, so they avoid STRICT, `->>`
/// and `unixepoch`. They are tested with 3.40, the version of Debian 12.
pub(super) const CREATE: &str = r#"
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

/// Returns true if `cause` came from a database that is still empty. Returns an error if the database has other content
/// or the cause is different.
pub(super) fn is_missing(connection: &Connection, cause: Cause) -> Result<bool, Cause> {
    if !cause.is_of_schema() {
        return Err(cause);
    }
    let number = |sql| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    if number("SELECT count(*) FROM sqlite_master")? == 0 {
        return Ok(true);
    }
    match (number("PRAGMA application_id")?, number("PRAGMA user_version")?) {
        (APPLICATION, FORMAT) => Ok(false),
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
