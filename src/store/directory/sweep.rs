//! Sweeping: the removal of drafts, tombstones and empty directories that killed processes left.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::AT_FDCWD;

use super::commit::Commit;
use super::entry::Entry;
use super::pointer::Stage;
use super::register::Register;
use super::root::{LOCKS, Root};
use super::work::WORK;
use super::{Directory, doorbell, sys};
use crate::error::{Error, Result};
use crate::store::{Layout, Scope, Swept, WriteOptions};

/// Prefix of the name that a draft gets while it is removed.
const DEAD: &[u8] = b".dead";

/// Maximum age of a draft; the process that made an older draft has died.
const DRAFT_LASTS: Duration = Duration::from_secs(60);

impl Directory {
    pub(super) fn sweep_leftovers(&self, dry_run: bool) -> Result<Swept> {
        let now = self.host.wall();
        let long_ago = now.saturating_sub(DRAFT_LASTS);
        let mut swept = Swept::default();
        if self.layout == Layout::Beside {
            swept.removed += sweep_beside(&self.path, long_ago, dry_run);
        }
        let Some(root) = self.existing()? else { return Ok(swept) };
        let failed = |errno| Error::os(errno, "sweep the store", &root.path);
        if let Some(sticky) = &root.sticky {
            swept.removed += sys::sweep_unborn(sticky, LOCKS, long_ago, dry_run).map_err(failed)?;
        }
        if self.layout != Layout::Beside {
            swept.removed += sys::sweep_unborn(&root.directory, WORK, long_ago, dry_run).map_err(failed)?;
        }
        let mut parked = Vec::new();
        if let Some(drafts) = root.existing_drafts()? {
            swept.removed += sweep_drafts(&root, &drafts, now, dry_run)?;
            if self.layout != Layout::Beside {
                parked = Register::read(&drafts).map_err(failed)?.parked;
            }
        }
        root.each_entry(&mut |file_name| {
            let is_parked = parked.iter().any(|name| name == file_name);
            match self.sweep_entry(&root, file_name, is_parked, dry_run) {
                Ok(removed) => swept.removed += u64::from(removed),
                Err(error) => swept.pass_over(error)?,
            }
            Ok(())
        })?;
        if !dry_run {
            root.remove_if_empty();
        }
        Ok(swept)
    }

    /// Removes the remainder of one record; returns `false` if the entry is not a leftover.
    fn sweep_entry(&self, root: &Arc<Root>, file_name: &[u8], is_parked: bool, dry_run: bool) -> Result<bool> {
        let step = Commit { store: self, root, keep: WriteOptions::default() };
        let entry = Entry::new(root, file_name.to_vec());
        let Some(look) = entry.look()? else {
            if !dry_run {
                // A process died just before this removal.
                let _ = sys::remove_directory(&root.directory, sys::os(file_name));
            }
            return Ok(false);
        };
        match look.pointer {
            Some(found) if found.is_in_use() || (found.stage == Stage::Tombstone && is_parked) => return Ok(false),
            _ if dry_run => {}
            // A numbered record is visible, and so is the state of its maker.
            Some(unnumbered) if unnumbered.stage == Stage::Unnumbered => step.finish_create(&look, &unnumbered)?,
            Some(end) => step.purge(&look, &end)?,
            None => look.clear()?,
        }
        Ok(true)
    }
}

/// Removes drafts that were left behind; returns their number.
fn sweep_drafts(root: &Root, drafts: &OwnedFd, now: Duration, dry_run: bool) -> Result<u64> {
    let failed = |errno| Error::os(errno, "sweep the store", &root.path);
    let now = if root.scope == Scope::Shared { root.file_system_time()? } else { now };
    let mut old = Vec::new();
    sys::each_name(drafts, &mut |name| {
        let age = sys::changed_at(drafts, sys::os(name)).map(|changed| now.saturating_sub(changed));
        let is_old = is_draft(name) && age.is_ok_and(|age| age > DRAFT_LASTS);
        if is_old && !(name.starts_with(doorbell::PREFIX) && doorbell::is_heard(drafts, name)) {
            old.push(name.to_vec());
        }
        Ok(())
    })
    .or_else(|errno| root.unless_gone(errno))
    .map_err(failed)?;
    for draft in old.iter().filter(|_| !dry_run) {
        // Under another name, a maker that is still alive cannot put a half-removed draft in place.
        let mine = if draft.starts_with(DEAD) { draft.clone() } else { [DEAD, draft.as_slice()].concat() };
        if mine == *draft || sys::rename(drafts, sys::os(draft), drafts, sys::os(&mine)).is_ok() {
            let _ = sys::remove_file(drafts, sys::os(&mine));
            discard_draft(drafts, sys::os(&mine));
        }
    }
    Ok(old.len() as u64)
}

fn is_draft(name: &[u8]) -> bool {
    [&b".new."[..], b".clock.", doorbell::PREFIX, DEAD].iter().any(|prefix| name.starts_with(prefix))
}

/// Removes a draft and its files, as far as possible.
fn discard_draft(drafts: &OwnedFd, draft: &OsStr) {
    if let Ok(directory) = sys::open_directory(drafts, draft) {
        let mut names = Vec::new();
        let _ = sys::each_name(&directory, &mut |name| {
            names.push(name.to_vec());
            Ok(())
        });
        for name in &names {
            let _ = sys::remove_file(&directory, sys::os(name));
        }
    }
    let _ = sys::remove_directory(drafts, draft);
}

/// Removes unfinished `.csalock` directories that killed processes left; returns their number. A listing error counts
/// as 0, because the caller gets that error when it opens the store.
fn sweep_beside(path: &Path, long_ago: Duration, dry_run: bool) -> u64 {
    let (Some(above), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str)) else { return 0 };
    let swept =
        sys::open_directory(AT_FDCWD, above).and_then(|above| sys::sweep_unborn(above, name, long_ago, dry_run));
    swept.unwrap_or(0)
}
