//! Where one record may rest: its directory stays with the tombstone in it when the record is removed, and the next taker of
//! that name revives it. Most stores see one name again and again, and on a disk making and removing a directory costs more
//! than all the rest of a lock.
//!
//! Which name it is stands in the name of an empty file, `rest.NAME`: that of the first that was given back since the last
//! sweep. Should two come first at once, then two rest.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::sys::stat::Mode;

use super::sys;

const PREFIX: &[u8] = b"rest.";

/// Whether the record with this file name is one that may rest.
pub(super) fn may_rest(work: &OwnedFd, file_name: &OsStr, mode: Mode) -> Result<bool, Errno> {
    let mut found = false;
    let mut this_one = false;
    each(work, &mut |name| {
        found = true;
        this_one |= name == file_name.as_bytes();
    })?;
    if found {
        return Ok(this_one);
    }
    let name = [PREFIX, file_name.as_bytes()].concat();
    match sys::create_file(work, &String::from_utf8_lossy(&name), mode, b"") {
        Err(Errno::EEXIST) | Ok(()) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// From now on another one may rest.
pub(super) fn forget(work: &OwnedFd) -> Result<(), Errno> {
    let mut names = Vec::new();
    each(work, &mut |name| names.push([PREFIX, name].concat()))?;
    names.iter().try_for_each(|name| sys::remove_file(work, sys::os(name)))
}

fn each(work: &OwnedFd, visit: &mut dyn FnMut(&[u8])) -> Result<(), Errno> {
    let fresh = sys::open_directory(work, ".")?;
    sys::each_name::<Errno>(fresh, &mut |name| {
        name.strip_prefix(PREFIX).into_iter().for_each(&mut *visit);
        Ok(())
    })
}
