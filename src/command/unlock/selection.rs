//! The locks that `csalock unlock` releases or breaks: those with the given names, all held ones, or all of the caller.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::{Document, pass_over};
use crate::cli::Unlock;
use crate::command::context::{Context, LockRef};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lock::{Grant, HandleHash};
use crate::store::Location;

/// Locks to release; a lock that was found by its grant comes with the handle hash.
type NamedLocks = Vec<(LockRef, Option<HandleHash>)>;

pub(super) fn named(context: &Context, asked: &Unlock) -> Result<NamedLocks> {
    asked.names.iter().map(|name| Ok((context.target(&asked.common, name)?, None))).collect()
}

/// Returns each held or abandoned lock of the store except claims, and the exit code: an unreadable record stays.
pub(super) fn everything_held(
    context: &Context,
    asked: &Unlock,
    documents: &mut Vec<Document>,
) -> Result<(NamedLocks, Exit)> {
    let (mut targets, mut exit) = (Vec::new(), Exit::Done);
    let location = context.store(&asked.common)?;
    context.engine(&location)?.for_each_lock(&mut |status| {
        match status {
            Ok(status) if status.record.holders.iter().any(|grant| grant.claim.is_none()) => {
                targets.push((LockRef::in_store(&location, status.record.name.clone()), None));
            }
            Ok(_) => {}
            Err(error) => exit = pass_over(asked, &error, documents),
        }
        Ok(())
    })?;
    Ok((targets, exit))
}

/// Returns each grant of the caller in every store that can be reached from here, and the best possible exit code. The
/// stores are those of bare names, of the enclosing lock, and beside the files in the current directory and the named
/// files. The caller proves a grant as its owner, or by `--handle`; the locks that the caller was started under are not
/// its own. An invalid record, or an unreadable record of another user, is not the caller's. Any other unreadable
/// record may be the caller's.
pub(super) fn everything_owned(
    context: &Context,
    asked: &Unlock,
    documents: &mut Vec<Document>,
) -> Result<(NamedLocks, Exit)> {
    let (mut targets, mut exit) = (Vec::new(), Exit::Done);
    let (owners, under) = (context.caller_processes()?, context.enclosing_grants());
    for (location, directory) in stores(context, asked)? {
        let engine = context.engine(&location)?;
        let credentials = match &asked.handle {
            Some(handle) => context.credentials(&engine, Some(handle))?,
            None => engine.credentials(None, owners.clone())?,
        };
        let mut unreadable: Option<Error> = None;
        engine.for_each_lock(&mut |status| {
            let status = match status {
                Ok(status) => status,
                Err(error) => {
                    unreadable = Some(error);
                    return Ok(());
                }
            };
            let is_mine = |at: usize, grant: &Grant| {
                credentials.proof == Some(grant.proof)
                    || (credentials.space.contains(&grant.owner.domain)
                        && !under.contains(&grant.proof)
                        && status.owners[at].is_some_and(|owner| credentials.owners.contains(&owner)))
            };
            for (_, grant) in status.record.holders.iter().enumerate().filter(|(at, grant)| is_mine(*at, grant)) {
                let name = status.record.name.clone();
                let display_name = directory.as_ref().map_or_else(
                    || name.clone(),
                    |directory| directory.join(OsStr::from_bytes(&name)).into_os_string().into_vec(),
                );
                let shell_arg = crate::name::shell_quote(&display_name);
                targets
                    .push((LockRef { location: location.clone(), name, display_name, shell_arg }, Some(grant.proof)));
            }
            Ok(())
        })?;
        if let Some(error) = unreadable {
            let passed_over = pass_over(asked, &error, documents);
            if !error.is_of_one_record() || error.is_own() {
                exit = passed_over;
            }
        }
    }
    Ok((targets, exit))
}

/// Returns the stores to search, each with the directory of its files if the store is beside files.
fn stores(context: &Context, asked: &Unlock) -> Result<Vec<(Location, Option<PathBuf>)>> {
    let mut stores = vec![(context.store(&asked.common)?, None)];
    let mut add = |location: Location, directory: Option<PathBuf>| {
        if stores.iter().all(|(known, _)| *known != location) {
            stores.push((location, directory));
        }
    };
    let current = context.environment.current.as_ref();
    if asked.common.store.is_none() && current.is_absolute() {
        add(Location::beside(current), Some(current.to_path_buf()));
    }
    for name in &asked.names {
        let target = context.target(&asked.common, name)?;
        let directory = Path::new(OsStr::from_bytes(&target.display_name)).parent().map(Path::to_path_buf);
        add(target.location, directory.filter(|_| target.name != target.display_name));
    }
    if let Some(location) = context.environment.store.as_deref() {
        let location = Location::parse(location, current)?;
        let directory = location.directory_of_files().map(Path::to_path_buf);
        add(location, directory);
    }
    Ok(stores)
}
