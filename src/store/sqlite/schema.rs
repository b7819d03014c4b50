//! What is in the database besides records: the table, how a foreign or newer database is told, and two views for
//! people.
//!
//! The views read the records' own text, so they cannot disagree with them:
//!
//! - `holders`: name, pid, host, uid, command, label, since, expires, share, token
//! - `waiters`: name, pid, host, uid, command, label, since, share; those of one name in order of arrival
//!
//! Rows whose name has a NUL in it are kept beside records: the ends of long queues (NAME NUL PAGE), of which the views
//! show the waiters; long values (NAME NUL value.MARK), which the views pass over, for they may weigh a lot; and decisions
//! (PROOF NUL decision).
//!
//! `pid` is the first of the owners. `since` and `expires` are UTC, as SQLite's own functions have them; `expires` is
//! NULL for what ends with its owner or not at all. Names are as they are, also where a terminal would obey them; in
//! commands and labels only the space is decoded, other bytes stay `%XX` as in the record. An unreadable record has no
//! rows. The views know nothing of who is still alive: that is what `csalock status` is for.
//!
//! SQLite parses them whenever it opens the database, so their length is everybody's time: with JSON functions they
//! cost half of what recursive queries do. For that a record's lines must become JSON by replacing their separators, so
//! values must not contain `=`, `"` or a backslash: the codec escapes these.
//!
//! The table's name ends in the number of the format. A csalock of another format thus finds no table, rather than the
//! wrong one, and the usual case needs no question about it.

use rusqlite::{Connection, ErrorCode};

use super::errors::Cause;
use crate::exit::Exit;

/// "CSLK": what file(1) and others know the database by.
const APPLICATION: i64 = 0x4353_4C4B;

const FORMAT: i64 = 1;

/// Makes an empty database ours. All who look into it must be able to parse this, so no STRICT, `->>` or `unixepoch`:
/// it has been tried with 3.40, Debian 12's.
pub(super) const CREATE: &str = r#"
PRAGMA application_id = 0x43534C4B;
PRAGMA user_version = 1;
CREATE TABLE records_1(name BLOB PRIMARY KEY, version INTEGER NOT NULL, body BLOB) WITHOUT ROWID;
INSERT INTO records_1 VALUES (x'', 0, NULL);
CREATE VIEW entries AS
SELECT json_extract(j, '$.entry') AS entry,
 CAST(CASE instr(name, x'00') WHEN 0 THEN name ELSE substr(name, 1, instr(name, x'00') - 1) END AS TEXT) AS name,
 nullif(json_extract(j, '$.owners') + 0, 0) AS pid, json_extract(j, '$.host') AS host,
 json_extract(j, '$.uid') + 0 AS uid, json_extract(j, '$.command') AS command, json_extract(j, '$.label') AS label,
 datetime(json_extract(j, '$.since') / 1000, 'unixepoch') AS since,
 datetime(json_extract('["' || replace(json_extract(j, '$.tenure'), ':', '","') || '"]', '$[2]') / 1000, 'unixepoch')
  AS expires,
 json_extract(j, '$.share') AS share, coalesce(json_extract(j, '$.token') + 0, version) AS token
FROM (
 SELECT name, version,
  '{"entry":"' || replace(replace(replace(value, '=', '":"'), ' ', '","'), '%20', ' ') || '"}' AS j
 FROM (SELECT name, version, '["' || replace(CAST(body AS TEXT), char(10), '","') || '"]' AS lines
  FROM records_1 WHERE name >= x'01' AND substr(body, 1, 13) <> CAST('csalock-value' AS BLOB)), json_each(lines)
 WHERE json_valid(lines) AND (value LIKE 'holder %' OR value LIKE 'waiter %'));
CREATE VIEW holders AS
SELECT name, pid, host, uid, command, label, since, expires, share, token FROM entries WHERE entry = 'holder';
CREATE VIEW waiters AS
SELECT name, pid, host, uid, command, label, since, share FROM entries WHERE entry = 'waiter';
"#;

/// Whether `cause` came from a database with nothing in it yet. An error when there is something else in it, or when it
/// had another cause.
pub(super) fn is_missing(connection: &Connection, cause: Cause) -> Result<bool, Cause> {
    match &cause {
        Cause::Sqlite(error) if error.sqlite_error_code() == Some(ErrorCode::Unknown) => {}
        _ => return Err(cause),
    }
    let number = |sql| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    if number("SELECT count(*) FROM sqlite_master")? == 0 {
        return Ok(true);
    }
    let wrong = |what, cure| Err(Cause::Ours(Exit::Corrupt, what, cure));
    match (number("PRAGMA application_id")?, number("PRAGMA user_version")?) {
        (APPLICATION, FORMAT) => Ok(false),
        (APPLICATION, format) => {
            wrong(format!("has format {format}, this csalock knows {FORMAT}"), "use the csalock that wrote it")
        }
        _ => wrong("is some other program's database".to_string(), "name another file with --store sqlite:PATH"),
    }
}
