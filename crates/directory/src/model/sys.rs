//! The directory store's system calls in test builds: the real calls, or, on a thread that runs a model, calls of its
//! file system.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, Mode};
use nix::{NixPath, Result};

use super::model::replay::{self, Call, text};

#[path = "../sys.rs"]
mod real;

pub(super) use real::{FileKind, Ownership, answers};

pub(super) fn open_directory(at: impl AsFd, name: &(impl NixPath + ?Sized)) -> Result<OwnedFd> {
    match replay::directory(&at) {
        Some(at) => replay::opened(Call::OpenDirectory { at, name: text(name) }),
        None => real::open_directory(at, name),
    }
}

pub(super) fn make_directory(
    at: impl AsFd,
    name: &(impl NixPath + ?Sized),
    mode: Mode,
    ownership: Ownership,
) -> Result<OwnedFd> {
    match replay::directory(&at) {
        Some(at) => replay::opened(Call::MakeDirectory { at, name: text(name) }),
        None => real::make_directory(at, name, mode, ownership),
    }
}

/// Creates a directory that other clients see in one step.
pub(super) fn put_directory(at: impl AsFd, name: &Path, mode: Mode, ownership: Ownership) -> Result<()> {
    match replay::directory(&at) {
        Some(at) => replay::opened(Call::MakeDirectory { at, name: text(name) }).map(drop),
        None => real::put_directory(at, name, mode, ownership),
    }
}

pub(super) fn sweep_drafts_of(at: impl AsFd, name: &str, long_ago: Duration, dry_run: bool) -> Result<u64> {
    match replay::directory(&at) {
        Some(_) => Ok(0),
        None => real::sweep_drafts_of(at, name, long_ago, dry_run),
    }
}

pub(super) fn create_file(at: impl AsFd, name: &str, kind: FileKind, bytes: &[u8], synced: bool) -> Result<()> {
    match replay::directory(&at) {
        Some(at) => replay::done(Call::Create { at, name: name.to_string(), bytes: bytes.to_vec() }),
        None => real::create_file(at, name, kind, bytes, synced),
    }
}

pub(super) fn sync_directory(directory: impl AsFd) -> Result<()> {
    real::sync_directory(directory)
}

pub(super) fn read_file(
    at: impl AsFd,
    name: &str,
    flags: OFlag,
    most: usize,
    is_line: bool,
) -> Result<std::result::Result<Vec<u8>, String>> {
    match replay::directory(&at) {
        Some(at) => replay::bytes(Call::Read { at, name: name.to_string() }).map(Ok),
        None => real::read_file(at, name, flags, most, is_line),
    }
}

pub(super) fn rename(
    from: impl AsFd,
    old: &(impl NixPath + ?Sized),
    to: impl AsFd,
    new: &(impl NixPath + ?Sized),
) -> Result<()> {
    match (replay::directory(&from), replay::directory(&to)) {
        (Some(from), Some(to)) => replay::done(Call::Rename { from, old: text(old), to, new: text(new) }),
        _ => real::rename(from, old, to, new),
    }
}

pub(super) fn remove_file(at: impl AsFd, name: &(impl NixPath + ?Sized)) -> Result<bool> {
    let Some(directory) = replay::directory(&at) else { return real::remove_file(at, name) };
    real::was_there(replay::done(Call::RemoveFile { at: directory, name: text(name) }))
}

pub(super) fn remove_directory(at: impl AsFd, name: &(impl NixPath + ?Sized)) -> Result<bool> {
    let Some(directory) = replay::directory(&at) else { return real::remove_directory(at, name) };
    real::was_there(replay::done(Call::RemoveDirectory { at: directory, name: text(name) }))
}

pub(super) fn is_there(at: impl AsFd, path: &Path) -> Result<bool> {
    match (replay::directory(&at), path.parent()) {
        (None, _) => real::is_there(at, path),
        (Some(_), Some(above)) if !above.as_os_str().is_empty() => {
            is_there(open_directory(at, above)?, Path::new(path.file_name().expect("a path ends with a name")))
        }
        (Some(at), _) => replay::names(Call::List { at }).map(|names| names.contains(&text(path))),
    }
}

pub(super) fn forget_listing(directory: impl AsFd) {
    if replay::directory(&directory).is_none() {
        real::forget_listing(directory);
    }
}

pub(super) fn each_name(directory: impl AsFd, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    forget_listing(&directory);
    each_name_as_known(directory, visit)
}

pub(super) fn each_name_as_known(directory: impl AsFd, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    match replay::directory(&directory) {
        Some(at) => replay::names(Call::List { at })?.iter().try_for_each(|name| visit(name.as_bytes())),
        None => real::each_name_as_known(directory, visit),
    }
}

pub(super) fn is_removed(directory: impl AsFd) -> bool {
    match replay::directory(&directory) {
        Some(at) => replay::done(Call::IsThere { at }).is_err(),
        None => real::is_removed(directory),
    }
}

pub(super) fn changed(found: &FileStat) -> Duration {
    real::changed(found)
}

/// The exchange changes no name and no record, so it is no step of the model.
pub(super) fn replace_by_empty(at: impl AsFd, name: &str, draft: &str, ownership: Ownership) -> bool {
    replay::directory(&at).is_some() || real::replace_by_empty(at, name, draft, ownership)
}

pub(super) fn changed_at(at: impl AsFd, name: &(impl NixPath + ?Sized)) -> Result<Duration> {
    match replay::directory(&at) {
        Some(_) => Ok(super::model::TIME),
        None => real::changed_at(at, name),
    }
}

pub(super) fn fresh_time(directory: &OwnedFd, mode: Mode) -> Result<Duration> {
    match replay::directory(directory) {
        Some(_) => Ok(super::model::TIME),
        None => real::fresh_time(directory, mode),
    }
}
