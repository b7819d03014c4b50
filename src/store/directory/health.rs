//! The findings of a directory store about its health: its kind, its location and the clock of its file system. The
//! checks leave no files behind.

use std::path::Path;
use std::time::Duration;

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use super::layout::WORK;
use super::{Directory, sys};
use crate::error::{Error, Result};
use crate::name::escape_path;
use crate::store::path_checks::{Place, first_that_exists};
use crate::store::{Finding, Layout, Scope, Store};

/// Maximum difference between two clocks that is not reported; a larger one confuses readers of both clocks' times.
const FAR: Duration = Duration::from_secs(10);

/// Maximum step back of the file system's clock between two files that ticks and rounding explain.
const TICK: Duration = Duration::from_millis(50);

impl Directory {
    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![self.what()];
        findings.extend(Place { what: "directory", path: &self.path }.findings());
        if self.scope() == Scope::Shared {
            findings.push(self.clock().unwrap_or_else(|error| Finding::failed("clock", &error)));
        } else {
            findings.push(Finding::good("clock", "leases count on this host's time since boot, which cannot be set"));
        }
        findings
    }

    fn what(&self) -> Finding {
        let what = match self.layout {
            Layout::Beside => "the locks of the files beside it, in",
            _ => "directory of records,",
        };
        let path = escape_path(&self.path);
        match self.existing() {
            Ok(Some(_)) => Finding::good("store", format!("{what} {path}")),
            Ok(None) => Finding::good("store", format!("{what} {path}: not there yet")),
            Err(error) => Finding::failed("store", &error),
        }
    }

    /// Compares the file system's time for new files, at which tokens begin, with ours. No lease expires by either.
    fn clock(&self) -> Result<Finding> {
        let path = [self.records().join(WORK), self.records()].into_iter().find(|path| path.is_dir());
        let path = path.as_deref().or_else(|| first_that_exists(&self.path)).unwrap_or(Path::new("/"));
        let failed = |errno| Error::os(errno, "ask for the time of the file system of", path);
        let directory = open(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty());
        let directory = directory.map_err(failed)?;
        let fresh = || sys::fresh_time(&directory, Mode::S_IRUSR | Mode::S_IWUSR);
        let (before, since) = (self.host.wall(), self.host.boottime());
        let first = fresh().map_err(failed)?;
        let mut last = first;
        // A clock that ticks every few milliseconds may stand still for that long.
        while last == first && self.host.boottime().saturating_sub(since) < Duration::from_secs(1) {
            self.host.sleep(Duration::from_millis(10));
            last = fresh().map_err(failed)?;
        }
        let apart = if first > before { first.saturating_sub(before) } else { before.saturating_sub(first) };
        let ahead = if first > before { "ahead of" } else { "behind" };
        let by = crate::duration::shown(apart);
        Ok(if last.saturating_add(TICK) < first {
            let back = crate::duration::shown(first.saturating_sub(last));
            let cure = "after it was set back, an expired lock is noticed later: check the clock of the server";
            Finding::bad("clock", format!("the file system's time went back by {back} between two fresh files"), cure)
        } else if first.subsec_nanos() == 0 && last.subsec_nanos() == 0 {
            let cure = "an expired lock is noticed up to two seconds later: use a file system with finer times";
            Finding::doubtful("clock", "the file system keeps times in whole seconds only", cure)
        } else if last == first {
            let cure =
                "an expired lock is noticed later: check `stat` on fresh files there, and the clock of the server";
            Finding::bad("clock", "the file system's time stood still for a second", cure)
        } else if apart > FAR {
            let cure = "set both clocks by NTP; locks do not compare them, but people do";
            Finding::doubtful("clock", format!("the file system's time is {by} {ahead} this host's"), cure)
        } else {
            let host = "each host counts leases on its own time since boot, which cannot be set";
            Finding::good("clock", format!("{host}; the file system's time is {by} {ahead} this host's"))
        })
    }
}
