//! The highest version number of any record that was removed, as the name of an empty file: `token.17`.
//!
//! The register only rises: a raise renames the file to a higher number, and of two files the higher number counts. So
//! the register needs no lock, and a lost race does no harm.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::sys::stat::Mode;

use super::pointer::number_of;
use super::sys;

/// Returns the number in the register; `None` if the register does not exist.
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

/// Raises the register to a number, unless it contains a higher number already.
pub(super) fn raise(work: &OwnedFd, number: u64, mode: Mode) -> Result<(), Errno> {
    let new = format!("token.{number}");
    loop {
        let raised = match highest(work)? {
            Some(known) if known >= number => return Ok(()),
            Some(known) => sys::rename(work, format!("token.{known}").as_str(), work, OsStr::new(&new)),
            None => sys::create_file(work, &new, mode, b"", false),
        };
        match raised {
            // Another process has raised the register.
            Err(Errno::ENOENT | Errno::EEXIST) => {}
            done => return done,
        }
    }
}
