//! The directory store's system calls in test builds: the real calls, or, on a thread that runs a model, calls of its
//! file system.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::NixPath;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, Mode};

use super::model::replay::{self, Call, text};
use super::ownership::Ownership;

#[path = "../sys.rs"]
mod real;

pub(super) fn open_directory<P: ?Sized + NixPath>(at: impl AsFd, name: &P) -> Result<OwnedFd, Errno> {
    match replay::directory(&at) {
        Some(at) => replay::opened(Call::OpenDirectory { at, name: replay::path(name) }),
        None => real::open_directory(at, name),
    }
}

pub(super) fn make_directory(at: impl AsFd, name: &str, mode: Mode, ownership: Ownership) -> Result<OwnedFd, Errno> {
    match replay::directory(&at) {
        Some(at) => replay::opened(Call::MakeDirectory { at, name: name.to_string() }),
        None => real::make_directory(at, name, mode, ownership),
    }
}

/// Creates a directory that other clients see in one step.
pub(super) fn put_directory(at: impl AsFd, name: &OsStr, mode: Mode, ownership: Ownership) -> Result<(), Errno> {
    match replay::directory(&at) {
        Some(at) => replay::opened(Call::MakeDirectory { at, name: text(name) }).map(drop),
        None => real::put_directory(at, name, mode, ownership),
    }
}

pub(super) fn sweep_unborn(at: impl AsFd, name: &str, long_ago: Duration, dry_run: bool) -> Result<u64, Errno> {
    match replay::directory(&at) {
        Some(_) => Ok(0),
        None => real::sweep_unborn(at, name, long_ago, dry_run),
    }
}

pub(super) fn create_file(
    at: impl AsFd,
    name: &str,
    kind: (OFlag, Mode, Ownership),
    bytes: &[u8],
    synced: bool,
) -> Result<(), Errno> {
    match replay::directory(&at) {
        Some(at) => replay::done(Call::Create { at, name: name.to_string(), bytes: bytes.to_vec() }),
        None => real::create_file(at, name, kind, bytes, synced),
    }
}

pub(super) fn sync_directory(directory: impl AsFd) -> Result<(), Errno> {
    real::sync_directory(directory)
}

pub(super) fn read_file(
    at: impl AsFd,
    name: &str,
    flags: OFlag,
    most: usize,
    is_line: bool,
) -> Result<Result<Vec<u8>, String>, Errno> {
    match replay::directory(&at) {
        Some(at) => replay::bytes(Call::Read { at, name: name.to_string() }).map(Ok),
        None => real::read_file(at, name, flags, most, is_line),
    }
}

pub(super) fn rename<P: ?Sized + NixPath>(from: impl AsFd, old: &P, to: impl AsFd, new: &OsStr) -> Result<(), Errno> {
    match (replay::directory(&from), replay::directory(&to)) {
        (Some(from), Some(to)) => replay::done(Call::Rename { from, old: replay::path(old), to, new: text(new) }),
        _ => real::rename(from, old, to, new),
    }
}

pub(super) fn remove_if_there(at: impl AsFd, name: &OsStr) -> Result<bool, Errno> {
    let Some(directory) = replay::directory(&at) else { return real::remove_if_there(at, name) };
    real::was_there(replay::done(Call::RemoveFile { at: directory, name: text(name) }))
}

pub(super) fn remove_file(at: impl AsFd, name: &OsStr) -> Result<(), Errno> {
    remove_if_there(at, name).map(drop)
}

pub(super) fn remove_directory(at: impl AsFd, name: &OsStr) -> Result<(), Errno> {
    let Some(directory) = replay::directory(&at) else { return real::remove_directory(at, name) };
    real::was_there(replay::done(Call::RemoveDirectory { at: directory, name: text(name) })).map(drop)
}

pub(super) fn is_there(at: impl AsFd, name: &OsStr) -> bool {
    match replay::directory(&at) {
        Some(at) => replay::names(Call::List { at }).is_ok_and(|names| names.contains(&text(name))),
        None => real::is_there(at, name),
    }
}

pub(super) fn is_there_below(at: impl AsFd, directory: &OsStr, name: &str) -> bool {
    match replay::directory(&at) {
        Some(_) => open_directory(at, directory).is_ok_and(|directory| is_there(directory, OsStr::new(name))),
        None => real::is_there_below(at, directory, name),
    }
}

pub(super) fn is_missing(at: impl AsFd, name: &OsStr) -> bool {
    match replay::directory(&at) {
        Some(_) => !is_there(at, name),
        None => real::is_missing(at, name),
    }
}

pub(super) fn forget_listing(directory: impl AsFd) {
    if replay::directory(&directory).is_none() {
        real::forget_listing(directory);
    }
}

pub(super) fn each_name(directory: impl AsFd, visit: &mut dyn FnMut(&[u8]) -> Result<(), Errno>) -> Result<(), Errno> {
    forget_listing(&directory);
    each_name_as_known(directory, visit)
}

pub(super) fn each_name_as_known(
    directory: impl AsFd,
    visit: &mut dyn FnMut(&[u8]) -> Result<(), Errno>,
) -> Result<(), Errno> {
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

pub(super) fn changed_at(at: impl AsFd, name: &OsStr) -> Result<Duration, Errno> {
    match replay::directory(&at) {
        Some(_) => Ok(super::model::TIME),
        None => real::changed_at(at, name),
    }
}

pub(super) fn fresh_time(directory: &OwnedFd, mode: Mode) -> Result<Duration, Errno> {
    match replay::directory(directory) {
        Some(_) => Ok(super::model::TIME),
        None => real::fresh_time(directory, mode),
    }
}

pub(super) fn os(name: &[u8]) -> &OsStr {
    real::os(name)
}
