//! `csalock serve`

use std::fs::{Permissions, set_permissions};
use std::io::{self, IsTerminal};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;

use super::context::Context;
use crate::cli::Serve;
use crate::exit::Exit;
use directory::{Directory, MARK};
use lock::error::{Error, ErrorKind, Result};
use lock::name::escape_path;
use ssh::serve;
use store::{Layout, Location, Store};

/// Time for processes of this host that opened the store before its mark to make their call.
const TO_NOTICE: Duration = Duration::from_secs(1);

pub(super) fn run(context: &Context, options: &Serve) -> anyhow::Result<Exit> {
    if io::stdin().is_terminal() {
        let what = "serve: standard input is a terminal, not a client";
        return Err(Error::invalid(what, "use the store ssh://HOST/PATH on another host").into());
    }
    let location = engine::location(&options.directory, &context.current)?;
    serve(open(context, &location), context.host.as_ref())?;
    Ok(Exit::Done)
}

/// Opens the directory. Marks it if it does not have the mark yet.
fn open(context: &Context, location: &Location) -> Result<Box<dyn Store>> {
    let Location::Directory { path, layout: Layout::Own, shared } = location else {
        return Err(Error::invalid("serve: the store is not a directory of records", "use dir:PATH"));
    };
    // Other processes of this host give the option, too.
    if !shared {
        mark(context, location, path)?;
    }
    Ok(Box::new(Directory::open_as(path, Layout::Served, *shared, context.host.clone())?))
}

/// Marks the directory, if it exists; otherwise the first commit creates it with the mark.
fn mark(context: &Context, location: &Location, path: &Path) -> Result<()> {
    let failed =
        |doing| move |error: io::Error| Error::os(Errno::from_raw(error.raw_os_error().unwrap_or(0)), doing, path);
    let mode = match path.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(failed("open the store"))?.permissions().mode(),
    };
    if mode & MARK != 0 {
        return Ok(());
    }
    // Processes that hold or want a lock now take other hosts for dead processes of this one.
    let mut is_used = false;
    context.engine(location)?.for_each_lock(&mut |status| {
        is_used |= !status.is_ok_and(|status| status.record.is_free() && status.record.waiters.is_empty());
        Ok(())
    })?;
    if is_used {
        let what = format!(
            "{} has locks that are held or waited for, by processes that know this host only",
            escape_path(path)
        );
        return Err(Error::new(ErrorKind::Busy, what, "try again when no lock is held there"));
    }
    set_permissions(path, Permissions::from_mode(mode & 0o7777 | MARK)).map_err(|error| {
        let error = failed("mark the store")(error);
        Error::new(error.kind(), error.message(), "its owner marks it for other hosts: chmod u+s on the directory")
    })?;
    context.host.sleep(TO_NOTICE);
    Ok(())
}
