//! The highest version number of any record that was removed, as the name of an empty file: `token.17`.
//!
//! It is a register that only rises: raising it renames the file to a higher number, and should there ever be two, the
//! higher one counts. So nobody needs a lock for it, and losing a race is no harm.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::sys::stat::Mode;

use super::pointer::number_of;
use super::sys;

/// The number that was written down, if there is one.
pub(super) fn highest(work: &OwnedFd) -> Result<Option<u64>, Errno> {
    let fresh = sys::open_directory(work, ".")?;
    let mut highest = None;
    sys::each_name::<Errno>(fresh, &mut |name| {
        let number = name.strip_prefix(b"token.").and_then(|number| number_of(std::str::from_utf8(number).ok()?));
        highest = highest.max(number);
        Ok(())
    })?;
    Ok(highest)
}

/// Writes down a number, unless a higher one is already.
pub(super) fn raise(work: &OwnedFd, number: u64, mode: Mode) -> Result<(), Errno> {
    let new = format!("token.{number}");
    loop {
        let raised = match highest(work)? {
            Some(known) if known >= number => return Ok(()),
            Some(known) => sys::rename(work, format!("token.{known}").as_str(), work, OsStr::new(&new)),
            None => sys::create_file(work, &new, mode, b"", false),
        };
        match raised {
            // Somebody else has raised it.
            Err(Errno::ENOENT | Errno::EEXIST) => {}
            done => return done,
        }
    }
}
