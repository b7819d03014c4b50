//! Findings about a directory store: its purpose and its location. The checks only read.

use super::Directory;
use crate::name::escape_path;
use crate::store::{Finding, Layout, path_checks};

impl Directory {
    pub(super) fn findings(&self) -> Vec<Finding> {
        let what = match self.layout {
            Layout::Beside => "the locks of the files beside it, in",
            _ => "directory of records,",
        };
        let path = escape_path(&self.path);
        let store = match self.existing() {
            Ok(Some(_)) => Finding::good("store", format!("{what} {path}")),
            Ok(None) => Finding::good("store", format!("{what} {path}: not there yet")),
            Err(error) => Finding::failed("store", &error),
        };
        std::iter::once(store).chain(path_checks::findings(&self.path)).collect()
    }
}
