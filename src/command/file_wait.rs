//! `csalock wait` for the locks that other programs have on files: it looks for them and takes none.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use nix::sys::statfs::statfs;

use super::context::{Context, print_json};
use crate::cli::Wait;
use crate::exit::Exit;
use crate::report::{RefusalReport, json, locked_by};
use crate::run::flock;
use host::{FileLock, command_of, file_locks, is_file_locked};
use lock::error::{Error, ErrorKind, Result};
use lock::name::{self, escape, shell_quote};
use store::mount;

/// Pause between two looks at a file: the kernel does not tell of the end of a lock.
const LOOK_AT_FILE: Duration = Duration::from_millis(100);

/// Number of reads of the kernel's list that miss a lock before the file counts as unlocked.
const LOOKS: usize = 10;

/// Waits for each file in turn, for locks of these kinds only. It needs no store.
pub(super) fn wait(context: &Context, options: &Wait, kinds: &[FileLock]) -> anyhow::Result<Exit> {
    let policy = options.waiting.wait_policy(None);
    let end = policy.end(context.host.boottime());
    let mut documents = Vec::new();
    for typed in &options.names {
        let file = name::file_of(&checked(typed, kinds)?, &context.current)?;
        let shown = file.as_os_str().as_bytes();
        while is_locked(context, &file, kinds) {
            let left = end.saturating_sub(context.host.boottime());
            if left.is_zero() {
                let refusal = refusal(&file, kinds);
                return context.common.refuse(&refusal, options.waiting.exit(refusal.kind), None);
            }
            context.host.sleep(left.min(LOOK_AT_FILE));
        }
        context.common.note_step(|| format!("file {} is not locked", escape(shown)));
        documents.push(json::unlocked_file(shown));
    }
    if context.common.json {
        print_json(&documents)?;
    }
    Ok(Exit::Done)
}

fn checked(typed: &OsStr, kinds: &[FileLock]) -> Result<Vec<u8>> {
    let name = typed.as_bytes();
    name::check(name)?;
    if name::is_path(name) {
        return Ok(name.to_vec());
    }
    let option = kinds.first().map_or("flock", |kind| kind.name());
    let what = format!("--{option} waits for a file, and {} is not a path", escape(name));
    Err(Error::invalid(what, format!("use ./{}, or leave out --{option}", shell_quote(name))))
}

/// Another process, maybe one that cannot be seen from here, has locked the file.
pub(super) fn is_locked(context: &Context, file: &Path, kinds: &[FileLock]) -> bool {
    if !file.exists() {
        return false;
    }
    let is_hidden = || {
        // The kernel lists no locks of other pid namespaces and of other hosts.
        let is_remote = statfs(file).is_ok_and(|found| mount::network(found.filesystem_type()).is_some());
        (is_remote || context.host.is_in_container())
            && kinds.iter().any(|kind| flock::is_locked(*kind, file).unwrap_or(false))
    };
    (0..LOOKS).any(|_| is_file_locked(file, kinds)) || is_hidden()
}

/// The refusal of a caller that waits for such a lock.
pub(super) fn refusal(file: &Path, kinds: &[FileLock]) -> RefusalReport {
    let mut found = file_locks(file);
    found.retain(|(kind, _)| kinds.contains(kind));
    if found.is_empty() {
        found.extend(kinds.first().map(|kind| (*kind, Vec::new())));
    }
    let clause =
        |(kind, pids): (FileLock, Vec<i32>)| locked_by(kind, pids.into_iter().map(|pid| (pid, command_of(pid))));
    let by: Vec<String> = found.into_iter().map(clause).collect();
    let name = file.as_os_str().as_bytes();
    let message = format!("lock {} is busy: its file is {}", escape(name), by.join("; and "));
    RefusalReport::new(ErrorKind::Busy, message, "wait longer with -w, or see lslocks(8)").about(name)
}
