//! Findings about the location of a store that do not need an open store: the mount, access and free space. `csalock
//! doctor` uses them, even for a store that does not exist yet or cannot be opened.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, Uid, eaccess, geteuid};

use super::{Finding, Location, mount};
use crate::error::Error;
use crate::host::{group_name, user_name};
use crate::name::escape_path;

/// Minimum free bytes and inodes, below which a store may be full at any moment.
const LITTLE: (u64, u64) = (16 << 20, 1000);

pub(super) struct Place<'a> {
    /// Kind of object at this location: `directory`, `database`.
    pub(super) what: &'static str,
    pub(super) path: &'a Path,
}

/// Returns findings about the location of a store that cannot be opened, or none if it has no location.
pub fn path_findings(location: &Location) -> Vec<Finding> {
    let Some(path) = location.path() else { return Vec::new() };
    let place = Place { what: if location.is_database() { "database" } else { "directory" }, path };
    if place.path.exists() || place.path.parent().is_some_and(Path::is_dir) { place.findings() } else { Vec::new() }
}

impl Place<'_> {
    /// Returns findings about the mount, access and free space.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let Some(there) = first_that_exists(self.path) else { return Vec::new() };
        let mut findings = mount::of(there).map(|mount| mount.findings()).unwrap_or_default();
        findings.extend(self.access(there));
        findings.extend(room(there));
        findings
    }

    /// Returns a finding about mode, owner and group, our write access, and excessive rights of other users.
    fn access(&self, there: &Path) -> Option<Finding> {
        let found = std::fs::metadata(there).ok()?;
        let mut text = rights(&found);
        if there != self.path {
            text = format!("to be made by the first lock in {}: {text}", escape_path(there));
        } else if self.what == "database"
            && let Some(directory) = there.parent()
            && let Ok(found) = std::fs::metadata(directory)
        {
            text = format!("{text}; its directory: {}", rights(&found));
        }
        let directory = if found.is_dir() { Some(there) } else { there.parent() };
        if directory.is_some_and(is_open_to_all) {
            let cure =
                "set the sticky bit of the directory (chmod +t), or remove the right of others to write (chmod o-w)";
            return Some(Finding::bad("access", format!("{text}; every user may remove files of other users"), cure));
        }
        let us = user(geteuid());
        let wanted = if found.is_dir() { AccessFlags::W_OK | AccessFlags::X_OK } else { AccessFlags::W_OK };
        Some(match self.refused(there, wanted) {
            None if self.what == "database" && there == self.path && has_mere_readers(&found, directory) => {
                let text = format!("{text}; {us} may take locks; users who may only read it can block all changes");
                Finding::doubtful("access", text, "chmod go-r the database, or use a dir: store")
            }
            None => Finding::good("access", format!("{text}; {us} may take locks")),
            Some(error) => Finding::bad("access", format!("{text}; {us} may not take locks"), error.hint()),
        })
    }

    /// Returns the reason why this user cannot write there.
    fn refused(&self, there: &Path, wanted: AccessFlags) -> Option<Error> {
        let checked =
            |path: &Path, wanted| eaccess(path, wanted).map_err(|errno| Error::os(errno, "write to", path)).err();
        let journal = self.path.parent().filter(|_| self.what == "database" && there == self.path);
        checked(there, wanted)
            .or_else(|| journal.and_then(|directory| checked(directory, AccessFlags::W_OK | AccessFlags::X_OK)))
    }
}

/// Returns true if users may read a database in this directory but not write it. SQLite lets a reader lock it.
fn has_mere_readers(database: &std::fs::Metadata, directory: Option<&Path>) -> bool {
    let way = directory.and_then(|directory| std::fs::metadata(directory).ok()).map_or(0o777, |found| found.mode());
    [3, 0].iter().any(|class| database.mode() >> class & 0o6 == 0o4 && way >> class & 0o1 == 0o1)
}

/// Returns true if the directory is world-writable without the sticky bit.
fn is_open_to_all(directory: &Path) -> bool {
    std::fs::metadata(directory).is_ok_and(|found| found.mode() & 0o1002 == 0o0002)
}

pub(super) fn first_that_exists(path: &Path) -> Option<&Path> {
    path.ancestors().find(|path| path.exists())
}

fn rights(found: &std::fs::Metadata) -> String {
    let group = group_name(found.gid()).unwrap_or_else(|| found.gid().to_string());
    let sticky = if found.is_dir() && found.mode() & 0o1000 != 0 { ", sticky" } else { "" };
    format!("mode {:04o}{sticky}, owner {}, group {group}", found.mode() & 0o7777, user(found.uid().into()))
}

fn user(uid: Uid) -> String {
    user_name(uid.as_raw()).unwrap_or_else(|| uid.to_string())
}

/// Returns a finding about free bytes and inodes. A file system that does not count inodes reports zero of them.
fn room(there: &Path) -> Option<Finding> {
    let found = statvfs(there).ok()?;
    let free = found.blocks_available().saturating_mul(found.fragment_size());
    let (inodes, all) = (found.files_available(), found.files());
    let text = match all {
        0 => format!("{} free", bytes(free)),
        _ => format!("{} and {inodes} of {all} inodes free", bytes(free)),
    };
    Some(if free < LITTLE.0 || (all > 0 && inodes < LITTLE.1.min(all / 10).max(1)) {
        Finding::doubtful("space", text, "remove some files there")
    } else {
        Finding::good("space", text)
    })
}

fn bytes(size: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.iter().find(|(shift, _)| size >> shift > 0);
    unit.map_or_else(
        || format!("{size} bytes"),
        |(shift, unit)| format!("{:.1} {unit}", size as f64 / (1u64 << shift) as f64),
    )
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_are_shown_in_the_unit_that_fits() {
        for (size, wanted) in [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB")] {
            assert_eq!(bytes(size), wanted);
        }
    }
}
