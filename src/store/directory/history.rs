//! The history file of a directory store: `.work/history`. A `.csalock` has none, because the last record takes the
//! directory along, and would take the history too.

use std::path::Path;
use std::time::Duration;

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::stat::fstat;

use super::root::{Root, WORK, no_work};
use super::sys;
use crate::error::{Error, Result};
use crate::history::Limits;
use crate::store::Layout;
use crate::store::history_file::HistoryFile;

const NAME: &str = "history";

/// Appends a line. An error means that the line is lost.
pub(super) fn note(root: &Root, line: &[u8], limits: &Limits, now: Duration) -> nix::Result<()> {
    if root.layout == Layout::Beside {
        return Ok(());
    }
    let like = || fstat(&root.directory);
    let history_file = HistoryFile { at: root.drafts()?.as_fd(), name: NAME.into(), like: &like };
    history_file.append(line, limits, now)
}

/// Visits the history lines of the store at this path, and changes nothing.
pub(super) fn read(root: &Root, store: &Path, visit: &mut dyn FnMut(&[u8])) -> Result<()> {
    let path = store.join(WORK).join(NAME);
    let work = match sys::open_directory(&root.directory, WORK) {
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno @ (Errno::ENOTDIR | Errno::ELOOP)) => return Err(no_work(errno, store)),
        opened => opened.map_err(|errno| Error::os(errno, "read the history", &path))?,
    };
    let like = || fstat(&root.directory);
    HistoryFile { at: work.as_fd(), name: NAME.into(), like: &like }.read(&path, visit)
}
