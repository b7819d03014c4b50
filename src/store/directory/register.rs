//! The register of a store: the names of empty files in its working directory.
//!
//! `token.17` is the highest version number of any record whose directory was removed. The number only rises: a raise
//! renames the file, and of two files the higher number counts. So the register needs no lock, and a lost race does no
//! harm.
//!
//! `rest.NAME` marks a parked record: its tombstone stays after its removal, and the next caller that acquires that
//! name revives it. Most stores use one name repeatedly, and on a disk, making and removing a directory costs more than
//! the rest of a lock. A parked record keeps its place for at least a minute; then the next released record replaces
//! it. If two records come first at the same time, both are parked.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use super::file_name::is_file_name;
use super::ownership::Ownership;
use super::pointer::number_of;
use super::sys;

/// Minimum time that a parked record keeps its place.
const AT_LEAST: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct Register {
    /// The highest known version number.
    pub(super) token: Option<u64>,
    /// File names of the parked records.
    pub(super) parked: Vec<Vec<u8>>,
}

impl Register {
    pub(super) fn read(work: &OwnedFd) -> Result<Register, Errno> {
        let mut register = Register::default();
        sys::each_name(sys::open_directory(work, ".")?, &mut |name| {
            if let Some(number) = name.strip_prefix(b"token.") {
                register.token = register.token.max(std::str::from_utf8(number).ok().and_then(number_of));
            }
            // The name `rest...` would mean the directory above the store.
            register.parked.extend(name.strip_prefix(b"rest.").filter(|name| is_file_name(name)).map(<[u8]>::to_vec));
            Ok(())
        })?;
        Ok(register)
    }

    /// Raises the token to a number, unless it is higher already.
    pub(super) fn raise(&mut self, work: &OwnedFd, number: u64, mode: Mode) -> Result<(), Errno> {
        let new = format!("token.{number}");
        while self.token.is_none_or(|token| token < number) {
            let raised = match self.token {
                Some(token) => sys::rename(work, format!("token.{token}").as_str(), work, OsStr::new(&new)),
                None => create(work, &new, mode),
            };
            match raised {
                // Another process has raised the token.
                Err(Errno::ENOENT | Errno::EEXIST) => self.token = Register::read(work)?.token,
                raised => {
                    raised?;
                    self.token = Some(number);
                }
            }
        }
        Ok(())
    }

    /// Returns true if the record with this file name is parked.
    pub(super) fn has_parked(work: &OwnedFd, file_name: &[u8]) -> bool {
        sys::is_there(work, OsStr::new(&marker(file_name)))
    }

    /// Parks a record if the others have had their time. Returns those that it replaces, or
    /// `None` if the record may not be parked.
    pub(super) fn park(
        &mut self,
        work: &OwnedFd,
        file_name: &[u8],
        now: Duration,
        mode: Mode,
    ) -> Result<Option<Vec<Vec<u8>>>, Errno> {
        let since = |name: &Vec<u8>| sys::changed_at(work, OsStr::new(&marker(name))).unwrap_or_default();
        if self.parked.iter().any(|name| now.saturating_sub(since(name)) < AT_LEAST) {
            return Ok(None);
        }
        for name in &self.parked {
            sys::remove_file(work, OsStr::new(&marker(name)))?;
        }
        match create(work, &marker(file_name), mode) {
            Ok(()) | Err(Errno::EEXIST) => Ok(Some(std::mem::take(&mut self.parked))),
            Err(errno) => Err(errno),
        }
    }
}

fn create(work: &OwnedFd, name: &str, mode: Mode) -> Result<(), Errno> {
    sys::create_file(work, name, (OFlag::empty(), mode, Ownership::default()), b"", false)
}

/// Returns the name of a parked record's marker. File names of records are ASCII.
fn marker(file_name: &[u8]) -> String {
    format!("rest.{}", String::from_utf8_lossy(file_name))
}
