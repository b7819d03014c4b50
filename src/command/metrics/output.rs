//! The file of `metrics --output`: a reader sees the old file or the new one, never a part.

use std::ffi::{OsStr, OsString};
use std::fs::{OpenOptions, Permissions, canonicalize, remove_file, rename, set_permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::error::{Error, ErrorKind, Result, describe};
use crate::name::escape_path;

/// Permissions of the file: the collector runs as another user.
const READABLE: u32 = 0o644;

/// Replaces the file by one with these bytes, or the file to which this link leads. The process with this id writes them
/// to a temporary file beside it, whose name the collector does not read.
pub(super) fn write(path: &OsStr, bytes: &[u8], pid: i32) -> Result<()> {
    let shown = escape_path(Path::new(path));
    let path = &canonicalize(path).unwrap_or_else(|_| PathBuf::from(path));
    // A rename would replace a device or FIFO for all programs.
    if path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        let what = format!("cannot write {shown}: it is not a regular file");
        return Err(Error::new(ErrorKind::CannotCreate, what, "without --output, the text goes to stdout"));
    }
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{pid}"));
    let temporary = path.with_file_name(name);
    replace(path, &temporary, bytes).map_err(|error| {
        let _ = remove_file(&temporary);
        match error.raw_os_error().map(Errno::from_raw) {
            Some(errno @ (Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG | Errno::EIO)) => {
                Error::os(errno, "write", path)
            }
            _ => {
                let what = format!("cannot write {shown}: {}", describe(&error));
                Error::new(
                    ErrorKind::CannotCreate,
                    what,
                    "name a file in a directory that exists and that you may write",
                )
            }
        }
    })
}

fn replace(path: &Path, temporary: &Path, bytes: &[u8]) -> io::Result<()> {
    // A process that was killed may have had the same id.
    let _ = remove_file(temporary);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(READABLE).open(temporary)?;
    file.write_all(bytes)?;
    set_permissions(temporary, Permissions::from_mode(READABLE))?;
    rename(temporary, path)
}
