//! A record in a directory that somebody else left behind.
//!
//! In a store with the sticky bit nobody but its owner may remove or replace a record's directory. If he is killed between
//! the removal of the pointer and that of the directory, then the name would be his until he comes by again. So the next
//! one's draft is not renamed onto that directory but into it, as [`NAME`], where it has no sticky bit above it. That excludes
//! as a birth does: one rename of a directory onto a name, which fails if a record is there.
//!
//! It must not happen to a directory with a pointer in it, and a listing that a rename overtakes may miss one. Who lists a
//! directory that did not change for a while, neither before nor meanwhile, has missed nothing; and where no pointer is
//! none can ever come. Where hosts share the store, the times are asked of the server each time, and the while is longer than
//! any answer takes: a listing that another process asked for may still be under way.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::errno::Errno;

use super::entry::REMOVED_WHILE_OPEN;
use super::pointer::Name;
use super::sys;

/// What it is called in there.
pub(super) const NAME: &str = "inner";

/// Longer than a tick of the clock that file systems take their times from.
pub(super) const A_WHILE: Duration = Duration::from_millis(50);

/// The same for servers, some of which keep times in whole seconds, and whose answers take time.
pub(super) const A_WHILE_OF_SERVERS: Duration = Duration::from_secs(5);

/// What stands where a draft could not be put.
pub(super) enum There {
    /// A record, as far as can be told.
    Record,
    /// A directory in which a record may lodge.
    Lodging(OwnedFd),
    /// A directory without a pointer, as it seems. Who can be sure of it is its owner.
    Nothing,
}

/// Looks what stands there. `now`: the file system's time, if the directory is not ours to remove. `a_while`: how long it must
/// not have changed.
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
        // Soon it will be certain.
        (false, true) => Ok(There::Record),
        (false, false) => Ok(There::Nothing),
    }
}

/// Removes what is empty.
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
