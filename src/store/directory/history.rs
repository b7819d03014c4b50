//! The history file of a directory store: `.work/history`. A `.csalock` has none, because the last record takes the
//! directory along, and would take the history too.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::stat::fstat;

use super::root::Root;
use super::work::WORK;
use crate::error::Result;
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

/// Visits the history lines, and changes nothing.
pub(super) fn read(root: &Root, visit: &mut dyn FnMut(&[u8])) -> Result<()> {
    let Some(work) = root.existing_drafts()? else { return Ok(()) };
    let like = || fstat(&root.directory);
    let history_file = HistoryFile { at: work.as_fd(), name: NAME.into(), like: &like };
    history_file.read(&root.path.join(WORK).join(NAME), visit)
}
