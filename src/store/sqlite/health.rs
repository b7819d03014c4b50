//! Findings about the health of an SQLite store: its kind, its location, and the integrity of the database. The checks
//! only read.

use super::{Sqlite, checks};
use crate::name::{escape, escape_path, shell_quote};
use crate::store::Finding;
use crate::store::path_checks::Place;

/// Maximum size of a database, in bytes, for a full check: writers would have to wait for a longer one.
const LARGEST: u64 = 256 << 20;

impl Sqlite {
    /// Returns all findings about the store.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let path = escape_path(&self.path);
        let there = match checks::check_directory(&self.path).and_then(|()| checks::check_file(&self.path)) {
            Ok(true) => Ok(Finding::good("store", format!("SQLite database {path}"))),
            Ok(false) => {
                Ok(Finding::good("store", format!("SQLite database {path}: not there yet, the first lock makes it")))
            }
            Err(error) => Err(Finding::failed("store", &error)),
        };
        let is_there = there.is_ok();
        let mut findings = vec![there.unwrap_or_else(|bad| bad)];
        findings.extend(Place { what: "database", path: &self.path }.findings());
        findings.push(Finding::good(
            "clock",
            "leases count on this host's time since it was started, which nobody can set",
        ));
        if is_there {
            findings.extend(self.database_is_whole());
        }
        findings
    }

    /// Returns findings about durability and integrity of the file, or none if there is no file.
    fn database_is_whole(&self) -> Vec<Finding> {
        let size = std::fs::metadata(&self.path).map_or(0, |found| found.len());
        if size == 0 {
            return Vec::new();
        }
        let asked = self.reading(|connection| {
            let mode: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
            let check = || connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
            let found = if size > LARGEST { None } else { Some(check()?) };
            Ok(Some((mode, found)))
        });
        let (mode, found) = match asked {
            Ok(Some(asked)) => asked,
            Ok(None) => return Vec::new(),
            Err(error) => return vec![Finding::failed("database", &error)],
        };
        let mut findings = vec![match mode.as_str() {
            "delete" => Finding::good("journal", "rollback journal, removed by each change"),
            "wal" | "truncate" | "persist" => Finding::doubtful(
                "journal",
                format!("{mode}, which csalock did not choose"),
                format!(
                    "sqlite3 {path} 'PRAGMA journal_mode = DELETE'",
                    path = shell_quote(self.path.as_os_str().as_encoded_bytes())
                ),
            ),
            _ => Finding::bad(
                "journal",
                format!("{mode}: who is killed half-way leaves a damaged database"),
                format!(
                    "sqlite3 {path} 'PRAGMA journal_mode = DELETE'",
                    path = shell_quote(self.path.as_os_str().as_encoded_bytes())
                ),
            ),
        }];
        findings.push(match found {
            None => Finding::good("database", "too large to be read through while others wait"),
            Some(found) if found == "ok" => Finding::good("database", "whole, as SQLite's quick_check has it"),
            Some(found) => Finding::bad(
                "database",
                format!("SQLite's quick_check finds: {}", escape(found.as_bytes())),
                "move it away when no process holds a lock in it, or recover it: `sqlite3 OLD .recover | sqlite3 NEW`",
            ),
        });
        findings
    }
}
