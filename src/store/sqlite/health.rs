//! Findings about an SQLite store: its location, and users who can block it. The checks only read.

use std::os::unix::fs::MetadataExt;

use super::{Sqlite, checks};
use crate::name::escape_path;
use crate::store::{Finding, path_checks};

impl Sqlite {
    pub(super) fn findings(&self) -> Vec<Finding> {
        let path = escape_path(&self.path);
        let checked = checks::check_directory(&self.path).and_then(|()| checks::check_file(&self.path));
        let mut findings = vec![match &checked {
            Ok(Some(_)) => Finding::good("store", format!("SQLite database {path}")),
            Ok(None) => Finding::good("store", format!("SQLite database {path}: not there yet")),
            Err(error) => Finding::failed("store", error),
        }];
        findings.extend(path_checks::findings(&self.path));
        findings.extend(self.readers());
        findings
    }

    /// Returns a finding if users may read the database but not write it: SQLite lets a reader lock it.
    fn readers(&self) -> Option<Finding> {
        let database = std::fs::metadata(&self.path).ok()?.mode();
        let directory = std::fs::metadata(self.path.parent()?).ok()?.mode();
        let is_reader = |class: u32| database >> class & 0o6 == 0o4 && directory >> class & 0o1 == 0o1;
        (is_reader(3) || is_reader(0)).then(|| {
            let found = "users who may only read the database can block all changes";
            Finding::doubtful("readers", found, "chmod go-r the database, or use a dir: store")
        })
    }
}
