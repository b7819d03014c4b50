//! A record in a directory that another user left behind.
//!
//! In a store with the sticky bit, only its owner may remove or replace a record's directory. If the owner's process is
//! killed after it removes the pointer, the directory stays and blocks the name for other users. So the next draft is
//! renamed into that directory, as [`NAME`], with no sticky bit above it. This excludes as a creation does: the rename
//! of a directory onto a name fails if a record is there.
//!
//! A directory with a pointer must not be used, and a listing that overlaps a rename may miss a pointer. A listing is
//! complete if the directory does not change for a while before and during it. A directory without a pointer never gets
//! one. In a shared store each check asks the server for the times. There the while is longer than any answer takes,
//! because a listing of another process may still be under way.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::errno::Errno;

use super::entry::REMOVED_WHILE_OPEN;
use super::pointer::Name;
use super::sys;

/// Name of the record's directory in the foreign directory.
pub(super) const NAME: &str = "inner";

/// Minimum time without changes; it exceeds a tick of the clock of local file systems.
pub(super) const A_WHILE: Duration = Duration::from_millis(50);

/// Minimum time without changes on servers: some keep times in whole seconds, and their answers take time.
pub(super) const A_WHILE_OF_SERVERS: Duration = Duration::from_secs(5);

/// The state of a name onto which a draft could not be renamed.
pub(super) enum There {
    /// A record, as far as can be determined.
    Record,
    /// A foreign directory in which a record may be created.
    Lodging(OwnedFd),
    /// A directory that seems to have no pointer. Only its owner can be sure of that.
    Nothing,
}

/// Determines the state of a name. `now` returns the file system's time; it is given if we may not remove the
/// directory. `a_while` is the minimum time without changes.
pub(super) fn find<T: Fn() -> Result<Duration, Errno>>(
    store: &OwnedFd,
    file_name: &OsStr,
    now: Option<T>,
    a_while: Duration,
) -> Result<There, Errno> {
    let outer = match sys::open_directory(store, file_name) {
        Err(Errno::ENOENT) => return Ok(There::Record),
        opened => opened?,
    };
    let before = sys::changed_now(&outer)?;
    let is_foreign = now.is_some();
    let time = now.map_or(Ok(before), |now| now())?;
    let found = list(&outer)?;
    if found.has_pointer {
        return Ok(There::Record);
    }
    let is_certain = time.saturating_sub(before) > a_while && sys::changed_now(&outer)? == before;
    let may_lodge = found.is_lodging || (is_certain && !found.has_stranger);
    match (may_lodge, is_foreign && !found.has_stranger) {
        (true, _) => {
            for record in found.records {
                let _ = sys::remove_file(&outer, sys::os(&record));
            }
            Ok(There::Lodging(outer))
        }
        // The directory becomes certain soon, so the caller retries.
        (false, true) => Ok(There::Record),
        (false, false) => Ok(There::Nothing),
    }
}

/// Removes the directory and its inner directory, if they are empty.
pub(super) fn remove_empty(store: &OwnedFd, file_name: &OsStr) {
    if let Ok(outer) = sys::open_directory(store, file_name) {
        let _ = sys::remove_directory(&outer, OsStr::new(NAME));
    }
    let _ = sys::remove_directory(store, file_name);
}

#[derive(Default)]
struct Found {
    has_pointer: bool,
    is_lodging: bool,
    has_stranger: bool,
    records: Vec<Vec<u8>>,
}

fn list(outer: &OwnedFd) -> Result<Found, Errno> {
    let mut found = Found::default();
    sys::each_name::<Errno>(sys::open_directory(outer, ".")?, &mut |name| {
        match Name::parse(name) {
            Some(Name::Pointer(_)) => found.has_pointer = true,
            Some(Name::Record(_)) => found.records.push(name.to_vec()),
            None if name == NAME.as_bytes() => found.is_lodging = true,
            None if name.starts_with(REMOVED_WHILE_OPEN) => {}
            None => found.has_stranger = true,
        }
        Ok(())
    })?;
    Ok(found)
}
