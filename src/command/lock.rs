//! `csalock lock`

use std::os::unix::ffi::OsStrExt;

use anyhow::Context as _;

use super::acquire::{ForScript, Granted, report_taken};
use super::context::{Context, json_line, print_before};
use crate::cli::Lock;
use crate::engine::LockSet;
use crate::exit::Exit;
use crate::name::{escape, shell_quote};
use crate::report::{SettingNames, json};

/// Acquires locks. Prints their handle with `--print-handle` or `--json`, and else nothing.
pub(super) fn run(context: &Context, asked: &Lock) -> anyhow::Result<Exit> {
    let targets = &context.lock_set(&asked.common, &asked.names)?;
    warn_of_descriptors(context, asked);
    let Lock { common, taking, pid, .. } = asked;
    let prints = asked.print_handle || common.json;
    if prints {
        context.require_stdout("the handle", "send it to /dev/null if you do not need it")?;
    }
    ForScript { context, common, taking, pid: *pid, targets, settings: &SettingNames::OPTIONS, prints }.acquire(
        |granted| {
            report_taken(common, granted.opened, granted.grants, granted.evicted, Some(granted.owner));
            if prints {
                let printed = answer(context, asked, targets, granted)
                    .and_then(|text| print_before(context, granted.until, &text));
                // A handle that cannot be printed is useless.
                printed.with_context(|| format!("lock {} was released", targets.shown_names()))?;
            }
            Ok(Exit::Done)
        },
    )
}

/// Acquires locks for a caller of CSA's function, which knows no options: it prints nothing unless it fails.
pub(super) fn run_as_csa(context: &Context, asked: &Lock) -> anyhow::Result<Exit> {
    let targets = &context.lock_set(&asked.common, &asked.names)?;
    let Lock { common, taking, pid, .. } = asked;
    ForScript { context, common, taking, pid: *pid, targets, settings: &SettingNames::VARIABLES, prints: false }
        .acquire(|_| Ok(Exit::Done))
}

/// Warns of names that are numbers of files that the caller has open: flock(1) locks such a file by its number.
fn warn_of_descriptors(context: &Context, asked: &Lock) {
    for name in &asked.names {
        let descriptor = name.to_str().and_then(|name| name.parse().ok());
        let Some(path) = descriptor.and_then(|descriptor| context.inherited.file(descriptor)) else { continue };
        let (name, path) = (escape(name.as_bytes()), path.as_os_str().as_bytes());
        asked.common.note(&format!(
            "lock {name} is not the lock of descriptor {name}, which is open on {}; to lock that file, use `csalock lock {}`",
            escape(path),
            shell_quote(path)
        ));
    }
}

/// Returns the text to print: the handle.
fn answer(context: &Context, asked: &Lock, targets: &LockSet, granted: &Granted<'_>) -> anyhow::Result<String> {
    let Granted { opened, handle, grants, evicted, .. } = *granted;
    if !asked.common.json {
        return Ok(format!("{handle}\n"));
    }
    let (at, ending) = evicted.map_or((0, None), |(at, ending)| (*at, Some(ending)));
    // The time limit starts when the grant is confirmed.
    let expires = asked.taking.ttl.map(|span| context.host.wall().saturating_add(span));
    json_line(&json::acquired(&targets.all, handle, grants, ending, expires, &opened.reporter(at)))
}
