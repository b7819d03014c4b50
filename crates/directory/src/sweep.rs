//! Sweeping: the removal of drafts, tombstones and empty directories that killed processes left.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::AT_FDCWD;

use super::layout::{CHANNEL, DEAD, LOCKS, Stage, WORK, is_draft};
use super::read::Entry;
use super::root::Root;
use super::{Directory, channel, sys};
use lock::error::{Error, Result};
use store::{Durability, Layout, Scope, Swept};

/// Maximum age of a draft; the process that made an older draft has died.
const DRAFT_LASTS: Duration = Duration::from_secs(60);

impl Directory {
    pub(super) fn sweep_leftovers(&self, dry_run: bool) -> Result<Swept> {
        let now = self.host.wall();
        let long_ago = now.saturating_sub(DRAFT_LASTS);
        let mut swept = Swept::default();
        if matches!(self.layout, Layout::Beside | Layout::Served) {
            swept.removed += sweep_beside(&self.path, long_ago, dry_run);
        }
        let Some(root) = self.existing()? else { return Ok(swept) };
        let failed = |errno| Error::os(errno, "sweep the store", &root.path);
        if let Some(sticky) = &root.sticky {
            swept.removed += sys::sweep_drafts_of(sticky, LOCKS, long_ago, dry_run).map_err(failed)?;
        }
        if self.layout != Layout::Beside {
            swept.removed += sys::sweep_drafts_of(&root.directory, WORK, long_ago, dry_run).map_err(failed)?;
        }
        let mut parked = Vec::new();
        if let Some(drafts) = root.existing_drafts()? {
            swept.removed += sweep_drafts(&root, &drafts, now, dry_run)?;
            if self.layout != Layout::Beside {
                (_, parked) = root.marks(&drafts).map_err(failed)?;
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

    /// `false` if the entry is not a leftover.
    fn sweep_entry(&self, root: &Arc<Root>, file_name: &[u8], is_parked: bool, dry_run: bool) -> Result<bool> {
        let entry = Entry::new(root, file_name.to_vec());
        let Some(listing) = entry.list()? else {
            if !dry_run {
                // A process died just before this removal.
                let _ = sys::remove_directory(&root.directory, file_name);
            }
            return Ok(false);
        };
        match listing.pointer {
            Some(found) if found.is_in_use() || (found.stage == Stage::Tombstone && is_parked) => return Ok(false),
            _ if dry_run => {}
            // The number makes the record visible, and so whether its holder lives.
            Some(unnumbered) if unnumbered.stage == Stage::Unnumbered => {
                listing.number(&unnumbered, self.host.as_ref())?;
            }
            Some(end) => listing.purge(&end, Durability::Volatile)?,
            None => listing.clear()?,
        }
        Ok(true)
    }
}

fn sweep_drafts(root: &Root, drafts: &OwnedFd, now: Duration, dry_run: bool) -> Result<u64> {
    let failed = |errno| Error::os(errno, "sweep the store", &root.path);
    let now = if root.scope == Scope::Shared { root.file_system_time()? } else { now };
    let mut old = Vec::new();
    sys::each_name(drafts, &mut |name| {
        if is_draft(name)
            && sys::changed_at(drafts, name).is_ok_and(|changed| now.saturating_sub(changed) > DRAFT_LASTS)
            && !(name.starts_with(CHANNEL.as_bytes()) && channel::notify_file(drafts, name))
        {
            old.push(name.to_vec());
        }
        Ok(())
    })
    .or_else(|errno| root.unless_gone(errno))
    .map_err(failed)?;
    if !dry_run {
        old.iter().for_each(|draft| discard(drafts, draft));
    }
    Ok(old.len() as u64)
}

/// Removes a draft and its files, as far as possible. It first gets another name, so that a maker that is still alive
/// cannot put a half-removed draft in place.
fn discard(drafts: &OwnedFd, draft: &[u8]) {
    let mut dead = draft.to_vec();
    if !draft.starts_with(DEAD.as_bytes()) {
        dead = [DEAD.as_bytes(), draft].concat();
        if sys::rename(drafts, draft, drafts, dead.as_slice()).is_err() {
            return;
        }
    }
    let _ = sys::remove_file(drafts, dead.as_slice());
    if let Ok(directory) = sys::open_directory(drafts, dead.as_slice()) {
        let mut names = Vec::new();
        let _ = sys::each_name(&directory, &mut |name| {
            names.push(name.to_vec());
            Ok(())
        });
        for name in &names {
            let _ = sys::remove_file(&directory, name.as_slice());
        }
    }
    let _ = sys::remove_directory(drafts, dead.as_slice());
}

/// Removes unfinished directories of this store, a `.csalock` or one behind ssh(1). A listing error counts as 0, because the
/// caller gets that error when it opens the store.
fn sweep_beside(path: &Path, long_ago: Duration, dry_run: bool) -> u64 {
    let (Some(above), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str)) else { return 0 };
    let swept =
        sys::open_directory(AT_FDCWD, above).and_then(|above| sys::sweep_drafts_of(above, name, long_ago, dry_run));
    swept.unwrap_or(0)
}
