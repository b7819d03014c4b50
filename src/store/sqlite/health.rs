//! Findings about the health of an SQLite store: its kind, its location and its journal. The checks only read.

use super::{Sqlite, checks};
use crate::name::{escape_path, shell_quote};
use crate::store::Finding;
use crate::store::path_checks::Place;

impl Sqlite {
    pub(super) fn findings(&self) -> Vec<Finding> {
        let path = escape_path(&self.path);
        let checked = checks::check_directory(&self.path).and_then(|()| checks::check_file(&self.path));
        let mut findings = vec![match &checked {
            Ok(Some(_)) => Finding::good("store", format!("SQLite database {path}")),
            Ok(None) => Finding::good("store", format!("SQLite database {path}: not there yet")),
            Err(error) => Finding::failed("store", error),
        }];
        findings.extend(Place { what: "database", path: &self.path }.findings());
        findings.push(Finding::good("clock", "leases count on this host's time since boot, which cannot be set"));
        if checked.is_ok() && std::fs::metadata(&self.path).is_ok_and(|found| found.len() > 0) {
            findings.extend(self.journal());
        }
        findings
    }

    /// Returns a finding about the journal, which keeps the database whole if a writer is killed.
    fn journal(&self) -> Option<Finding> {
        let mode = self.reading(|connection| {
            Ok(Some(connection.query_row("PRAGMA journal_mode", [], |row| row.get::<_, String>(0))?))
        });
        let path = shell_quote(self.path.as_os_str().as_encoded_bytes());
        let cure = format!("sqlite3 {path} 'PRAGMA journal_mode = DELETE'");
        Some(match mode {
            Err(error) => Finding::failed("database", &error),
            Ok(mode) => match mode?.as_str() {
                "wal" => Finding::good("journal", "write-ahead log, which each change extends"),
                "delete" => Finding::good("journal", "rollback journal, removed by each change"),
                mode => Finding::bad("journal", format!("{mode}: a killed writer leaves a damaged database"), cure),
            },
        })
    }
}
