//! The parked record: after its removal, the directory stays with a tombstone in it, and the next caller that acquires
//! that name revives it. Most stores use one name repeatedly, and on a disk, making and removing a directory costs more
//! than the rest of a lock.
//!
//! The name of an empty file, `rest.NAME`, tells which record is parked. The record keeps its place for at least a
//! minute; then the next released record replaces it. If two records come first at the same time, both are parked.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::stat::Mode;

use super::entry::is_file_name;
use super::sys;

const PREFIX: &[u8] = b"rest.";

/// Minimum time that a parked record keeps its place.
const AT_LEAST: Duration = Duration::from_secs(60);

/// The decision if a record may be parked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rest {
    Yes,
    No,
    /// The record may be parked, and these records no longer may.
    InsteadOf(Vec<Vec<u8>>),
}

/// Decides if the record with this file name may be parked, at this time since 1970.
pub(super) fn may_rest(work: &OwnedFd, file_name: &OsStr, now: Duration, mode: Mode) -> Result<Rest, Errno> {
    let resting = names(work)?;
    if resting.iter().any(|name| name == file_name.as_bytes()) {
        return Ok(Rest::Yes);
    }
    for name in &resting {
        let since = sys::changed_at(work, sys::os(&marker(name))).unwrap_or_default();
        if now.saturating_sub(since) < AT_LEAST {
            return Ok(Rest::No);
        }
    }
    for name in &resting {
        sys::remove_file(work, sys::os(&marker(name)))?;
    }
    match sys::create_file(work, &String::from_utf8_lossy(&marker(file_name.as_bytes())), mode, b"", false) {
        Ok(()) | Err(Errno::EEXIST) if resting.is_empty() => Ok(Rest::Yes),
        Ok(()) | Err(Errno::EEXIST) => Ok(Rest::InsteadOf(resting)),
        Err(errno) => Err(errno),
    }
}

/// Returns the file names of the records that may be parked.
pub(super) fn names(work: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let fresh = sys::open_directory(work, ".")?;
    let mut names = Vec::new();
    sys::each_name::<Errno>(fresh, &mut |name| {
        // The name `rest...` would mean the directory above the store.
        names.extend(name.strip_prefix(PREFIX).filter(|name| is_file_name(name)).map(<[u8]>::to_vec));
        Ok(())
    })?;
    Ok(names)
}

fn marker(name: &[u8]) -> Vec<u8> {
    [PREFIX, name].concat()
}
