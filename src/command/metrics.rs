//! `csalock metrics`. A reader of the file of `--output` sees the old file or the new one, never a part.

use std::ffi::{OsStr, OsString};
use std::fs::{OpenOptions, Permissions, canonicalize, remove_file, rename, set_permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::context::{Context, print};
use super::history::Filter;
use crate::cli::Metrics as Options;
use crate::exit::Exit;
use crate::report::Metrics;
use engine::{Engine, LockStatus, environment};
use lock::error::{Error, ErrorKind, Result, describe};
use lock::history::Past;
use lock::name::{escape, escape_path};

pub(super) fn run(context: &Context, options: &Options) -> anyhow::Result<Exit> {
    if context.common.json {
        let what = "metrics has one format, the text format of Prometheus";
        return Err(Error::invalid(what, "leave out --json, or use `csalock status --json`").into());
    }
    environment::history()?;
    let location = context.store()?;
    let wanted = Filter::of(context, &options.names)?;
    let mut metrics = Metrics::new(&escape(location.place().as_encoded_bytes()));
    let collected = context.engine(&location).and_then(|engine| collect(context, &wanted, &engine, &mut metrics));
    metrics.limit(options.limit as usize);
    // A store that does not answer is a result too.
    match &options.output {
        Some(path) => write_file(path, metrics.text().as_bytes(), context.host.this_process()?.pid)?,
        None => print(metrics.text())?,
    }
    Ok(match collected {
        Ok(()) => Exit::Done,
        Err(error) => {
            context.common.note(&error.to_string());
            error.kind().into()
        }
    })
}

fn collect(context: &Context, wanted: &Filter, engine: &Engine, metrics: &mut Metrics) -> Result<()> {
    let (mut statuses, mut endings): (Vec<_>, Vec<Past>) = (Vec::new(), Vec::new());
    let mut unreadable = wanted.each_lock(engine, &mut |status| statuses.push(status))?;
    metrics.unreadable = unreadable.len();
    metrics.is_up = true;
    match engine.each_past(&mut |past| endings.push(past)) {
        // A monitor that may only look gets everything else.
        Err(error) if error.kind() == ErrorKind::Denied => {
            context.common.note(&error.to_string());
            metrics.lacks_history = true;
        }
        read => drop(read?),
    }
    let exact = wanted.exact(&endings);
    let now = context.host.wall();
    wanted.names().for_each(|name| metrics.add_name(name));
    statuses.retain(|status| wanted.has(&status.record.name, &exact));
    let may_be_ahead = |status: &LockStatus| {
        let job = status.record.job.as_ref();
        job.is_some_and(|job| job.doubtful_success(now.as_millis() as u64).is_some())
    };
    // The store's clock decides, but a directory tells its time only to a user who writes.
    let of_store = if statuses.iter().any(may_be_ahead) { engine.time().unwrap_or(now) } else { now };
    statuses.iter().for_each(|status| metrics.add_status(status, now, of_store));
    endings.iter().filter(|past| wanted.has(&past.name, &exact)).for_each(|past| metrics.add_ending(past));
    unreadable.pop().map_or(Ok(()), Err)
}

/// Permissions of the file: the collector runs as another user.
const READABLE: u32 = 0o644;

/// Replaces the file by one with these bytes, or the file to which this link leads. The process with this id writes them
/// to a temporary file beside it, whose name the collector does not read.
fn write_file(path: &OsStr, bytes: &[u8], pid: i32) -> Result<()> {
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
                let hint = "name a file in a directory that exists and that you may write";
                Error::new(ErrorKind::CannotCreate, what, hint)
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
