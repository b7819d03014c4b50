//! Where one record may rest: its directory stays with the tombstone in it when the record is removed, and the next taker of
//! that name revives it. Most stores see one name again and again, and on a disk making and removing a directory costs more
//! than all the rest of a lock.
//!
//! Which name it is stands in the name of an empty file, `rest.NAME`. It keeps its place for a minute at least; then the
//! next that is given back takes it over. Should two come first at once, then two rest.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::stat::Mode;

use super::entry::is_file_name;
use super::sys;

const PREFIX: &[u8] = b"rest.";

/// So long a record that rests keeps its place.
const AT_LEAST: Duration = Duration::from_secs(60);

/// Whether a record may rest.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rest {
    Yes,
    No,
    /// It may, and these no longer do.
    InsteadOf(Vec<Vec<u8>>),
}

/// Whether the record with this file name may rest, at this time since 1970.
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

/// The file names of the records that may rest.
pub(super) fn names(work: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let fresh = sys::open_directory(work, ".")?;
    let mut names = Vec::new();
    sys::each_name::<Errno>(fresh, &mut |name| {
        // `rest...` would be the directory above the store.
        names.extend(name.strip_prefix(PREFIX).filter(|name| is_file_name(name)).map(<[u8]>::to_vec));
        Ok(())
    })?;
    Ok(names)
}

fn marker(name: &[u8]) -> Vec<u8> {
    [PREFIX, name].concat()
}
