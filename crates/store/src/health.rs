//! Health of a store, for `csalock doctor`: findings, those about a store in files, and the store of a trial.
//!
//! The checks of a store in files only read: its kind, mount and access rights, even if it does not exist yet.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::stat::Mode;
use nix::unistd::mkdir;
use serde::{Deserialize, Serialize};

use super::{Location, mount};
use host::{group_name, user_name};
use lock::error::{Error, Result};
use lock::name::escape_path;

/// The JSON document of `doctor` has these fields and words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// One or two words.
    pub topic: String,
    pub found: String,
    pub verdict: Verdict,
    /// Hint for the user, unless the verdict is good.
    pub cure: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Locks work.
    Good,
    /// Locks work, but less well, or not for all users.
    Doubtful,
    /// Locks do not work.
    Bad,
}

impl Finding {
    pub fn good(topic: &str, found: impl Into<String>) -> Finding {
        Finding { topic: topic.to_string(), found: found.into(), verdict: Verdict::Good, cure: None }
    }

    pub fn doubtful(topic: &str, found: impl Into<String>, cure: impl Into<String>) -> Finding {
        Finding { verdict: Verdict::Doubtful, ..Finding::bad(topic, found, cure) }
    }

    pub fn failed(topic: &str, error: &Error) -> Finding {
        Finding::bad(topic, error.message(), error.hint())
    }

    pub fn bad(topic: &str, found: impl Into<String>, cure: impl Into<String>) -> Finding {
        let cure = cure.into();
        let cure = (!cure.is_empty()).then_some(cure);
        Finding { verdict: Verdict::Bad, cure, ..Finding::good(topic, found) }
    }
}

pub fn of_files(what: &str, path: &Path, exists: Result<bool>) -> Vec<Finding> {
    let shown = escape_path(path);
    let mut findings = vec![match exists {
        Ok(true) => Finding::good("store", format!("{what} {shown}")),
        Ok(false) => Finding::good("store", format!("{what} {shown}: not there yet")),
        Err(error) => Finding::failed("store", &error),
    }];
    if let Some(there) = path.ancestors().find(|path| path.exists()) {
        findings.extend(mount::of(there).map(|mount| mount.findings()).unwrap_or_default());
        findings.extend(access(path, there));
    }
    if is_cleaned(path) {
        let found = "programs that clean /tmp and /var/tmp, as systemd-tmpfiles does, remove the records of scripts that \
                     hold a lock for days";
        let cure = "keep the store in another directory, for example in /var/lib";
        findings.push(Finding::doubtful("cleaner", found, cure));
    }
    findings
}

/// Programs remove old files below these directories.
pub fn is_cleaned(path: &Path) -> bool {
    ["/tmp", "/var/tmp"].iter().any(|cleaned| path.strip_prefix(cleaned).is_ok_and(|below| below != Path::new("")))
}

/// `there` is the store or its nearest existing ancestor. The trial shows whether this user may write.
fn access(path: &Path, there: &Path) -> Option<Finding> {
    let found = std::fs::metadata(there).ok()?;
    let mut text = rights(&found);
    let mut directory = Some(found).filter(Metadata::is_dir);
    if there != path {
        text = format!("to be made by the first lock in {}, which has {text}", escape_path(there));
    } else if directory.is_none() {
        directory = there.parent().and_then(|directory| std::fs::metadata(directory).ok());
        text.extend(directory.iter().map(|directory| format!("; its directory: {}", rights(directory))));
    }
    if directory.is_some_and(|directory| directory.mode() & 0o1002 == 0o0002) {
        let cure = "set the sticky bit of the directory (chmod +t), or remove the right of others to write (chmod o-w)";
        return Some(Finding::bad("access", format!("{text}; every user may remove files of other users"), cure));
    }
    Some(Finding::good("access", text))
}

/// SQLite lets users lock a database that they may only read.
pub fn readers(path: &Path) -> Option<Finding> {
    let database = std::fs::metadata(path).ok()?.mode();
    let directory = std::fs::metadata(path.parent()?).ok()?.mode();
    let is_reader = |class: u32| database >> class & 0o6 == 0o4 && directory >> class & 0o1 == 0o1;
    (is_reader(3) || is_reader(0)).then(|| {
        let found = "users who may only read the database can block all changes";
        Finding::doubtful("readers", found, "chmod go-r the database, or use a dir: store")
    })
}

fn rights(found: &Metadata) -> String {
    let user = user_name(found.uid()).unwrap_or_else(|| found.uid().to_string());
    let group = group_name(found.gid()).unwrap_or_else(|| found.gid().to_string());
    let sticky = if found.is_dir() && found.mode() & 0o1000 != 0 { ", sticky" } else { "" };
    format!("mode {:04o}{sticky}, owner {user}, group {group}", found.mode() & 0o7777)
}

/// Temporary store in a directory of its own, which is removed when this is dropped: for a trial at a location whose store
/// does not exist yet. A real store cannot be removed safely after the trial: another process may have started to use it.
pub struct Scratch {
    pub location: Location,
    directory: PathBuf,
}

impl Scratch {
    /// Creates a scratch store in the nearest existing directory of a store that was never used. Returns `None` for a
    /// used store, which is tested itself. The `number` must be unique.
    pub fn of(location: &Location, number: u64) -> Result<Option<Scratch>> {
        let Some(path) = location.path().filter(|_| !location.was_used()) else { return Ok(None) };
        let Some(parent) = path.ancestors().find(|path| path.is_dir()) else { return Ok(None) };
        let directory = parent.join(format!(".doctor-{number:016x}"));
        mkdir(&directory, Mode::S_IRWXU).map_err(|errno| Error::os(errno, "create", &directory))?;
        Ok(Some(Scratch { location: location.moved_to(directory.join("store")), directory }))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
